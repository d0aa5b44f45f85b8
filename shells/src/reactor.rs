//! The reactor: one thread that owns all state. It turns what sockets, the mailbox, the clock and
//! signals bring into events for the engine, and what the engine orders into bytes (design §2).
//!
//! ```text
//! poll -> edges -> accept -> serve the ready list -> tick -> tiers -> notes -> effects -> writes
//!      -> disks -> facts
//! ```
//!
//! Edges are seen once, so whatever is not used up stays on a list and the next poll does not wait.
//! Invariant: a turn is bounded, in connections, in messages and bytes of each, and in what is
//! written; so no client's work delays another's by more than a turn.

pub mod listener;
pub mod notes;
pub mod shared;
pub mod signals;
pub mod status;
pub mod turns;
pub mod watchdog;

mod body;
mod buffers;
mod connection;
mod control;
mod counters;
mod deletes;
mod effects;
mod input;
mod message;
mod outgoing;
mod recent;
mod recording;
mod requests;
mod socket;
mod tiers;
mod waiting;

pub use counters::{Closing, Counters};
pub use listener::{ListenAddress, SocketFile};
pub use notes::{Look, Note, OperatorRequest, OperatorTeller};
pub use shared::{Desk, SLOTS_PER_TURN};
pub use signals::{Signal, Signals};
pub use status::{ReactorStatus, table_bytes};
pub use turns::{LastTurn, TurnTimes};
pub use watchdog::Watchdog;

use crate::arena::Arena;
use crate::clock::Clock;
use crate::entropy;
use crate::paged::Pager;
use crate::telemetry::{FactBatch, FactSender, Sockets};
use crate::tiers::{Terms as TierTerms, Tiers};
use connection::{Connection, Served};
use control::Stopping;
use kvtide_core::effect::Outbox;
use kvtide_core::event::Event;
use kvtide_core::front::Front;
use kvtide_core::limits::{BUFFER_BUDGET_BYTES, CONNECTIONS_MAX};
use kvtide_core::names;
use kvtide_core::slots::Slots;
use kvtide_core::time::{Duration, Instant};
use kvtide_lanes::mailbox::{Mailbox, Sender, mailbox};
use listener::{Accepted, Listener, Spare};
use mio::{Events, Poll, Token, Waker};
use shared::{Door, Shared, Terms};
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use turns::Turns;
use waiting::Waiting;

/// What the reactor is made of. Everything is moved to its thread.
pub struct Parts<E> {
    pub engine: E,
    pub front: Front,
    pub arena: Arena,
    pub clock: Clock,
    /// Where facts go; None drops them.
    pub facts: Option<FactSender>,
}

pub struct Reactor<E> {
    poll: Poll,
    events: Events,
    listeners: Vec<Listener>,
    spare: Spare,
    /// Until then nothing is accepted: no descriptor was to be had.
    accept_after: Instant,
    signals: Option<Signals>,
    /// An edge came from them.
    signalled: bool,
    mailbox: Mailbox<Note<E>>,
    sender: Sender<Note<E>>,
    notes: Vec<Note<E>>,
    operators: Slots<OperatorTeller>,
    connections: Slots<Box<Connection>>,
    /// Connections that can be brought forward, each once.
    ready: VecDeque<names::Connection>,
    shared: Shared<E>,
    /// What is being carried out: effects, their slots and keys.
    orders: Outbox,
    tiers: Tiers,
    pager: Pager,
    facts: Option<FactSender>,
    /// Facts lost since the last batch that the lane took.
    facts_lost: u64,
    /// Until then names are not told again because telemetry lacks some.
    retell_after: Instant,
    last_turn: LastTurn,
    waiting: Waiting,
    sweep_at: Instant,
    /// Where the next look for connections that stand still begins, so that each has its turn.
    reclaim_from: u32,
    stopping: Option<Stopping>,
}

impl<E: Desk> Reactor<E> {
    pub fn new(parts: Parts<E>) -> io::Result<Reactor<E>> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), MAILBOX)?);
        // Waking fails only where the poll is gone, and then nobody is left to be woken.
        let wakes = waker.clone();
        let (sender, mailbox) = mailbox(MAILBOX_NOTES, move || drop(wakes.wake()));
        let last_turn = LastTurn::default();
        let turns = Turns::new(last_turn.clone());
        let Parts { engine, front, arena, clock, facts } = parts;
        let (window, wake) = (arena.window()?, waker.clone());
        let pager = Pager::new(window.clone(), 1, Arc::new(move || drop(wake.wake())));
        let tiers = Tiers::new(TierTerms {
            window,
            wake: Arc::new(move || drop(waker.wake())),
            server: entropy::uuid(),
        });
        let out = Outbox::default();
        let door = Door { engine, out, ordered: 0, turns, clock, recording: None };
        Ok(Reactor {
            poll,
            events: Events::with_capacity(POLL_EVENTS),
            listeners: Vec::new(),
            spare: Spare::hold(),
            accept_after: Instant::ZERO,
            signals: None,
            signalled: false,
            mailbox,
            sender,
            notes: Vec::new(),
            operators: Slots::with_limit(MAILBOX_NOTES),
            connections: Slots::with_limit(CONNECTIONS_MAX),
            ready: VecDeque::new(),
            shared: Shared::new(door, front, arena),
            orders: Outbox::default(),
            tiers,
            pager,
            facts,
            facts_lost: 0,
            retell_after: Instant::ZERO,
            last_turn,
            waiting: Waiting::default(),
            sweep_at: Instant::ZERO,
            reclaim_from: 0,
            stopping: None,
        })
    }

    /// Binds an address and says which it became.
    pub fn listen(&mut self, address: &ListenAddress) -> io::Result<ListenAddress> {
        self.add(Listener::bind(address)?)
    }

    /// Accepts at a socket that was bound, and is listened to, already.
    pub fn accept_at(&mut self, socket: TcpListener) -> io::Result<ListenAddress> {
        self.add(Listener::of(socket)?)
    }

    fn add(&mut self, mut listener: Listener) -> io::Result<ListenAddress> {
        let token = Token(FIRST_LISTENER + self.listeners.len());
        assert!(token.0 < FIRST_CONNECTION, "a server listens at a handful of addresses");
        listener.register(self.poll.registry(), token)?;
        let bound = listener.address().clone();
        self.listeners.push(listener);
        Ok(bound)
    }

    /// Lets these signals end the server.
    pub fn watch(&mut self, mut signals: Signals) -> io::Result<()> {
        signals.register(self.poll.registry(), SIGNALS)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// A way in for another thread.
    pub fn sender(&self) -> Sender<Note<E>> {
        self.sender.clone()
    }

    /// For `/livez`: an idle reactor turns at least once a second.
    pub fn last_turn(&self) -> LastTurn {
        self.last_turn.clone()
    }

    /// The last events, oldest first, for whoever has to tell what a panic came after.
    pub fn recent_events(&self) -> String {
        self.shared.door.turns.recent().text()
    }

    /// Serves until a signal or a note ends the server. Fails only where polling itself does.
    pub fn run(&mut self) -> io::Result<Signal> {
        loop {
            let timeout = self.timeout();
            match self.wait(timeout) {
                Ok(()) => {}
                // A signal handler ran, or a ring has news: a turn like any other.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.turn();
            if let Some(signal) = self.finished() {
                if self.stopping.is_some_and(|stopping| stopping.is_at_once()) {
                    self.tiers.hurry();
                }
                return Ok(signal);
            }
        }
    }

    fn turn(&mut self) {
        let now = self.shared.door.clock.now();
        self.shared.now = now;
        self.shared.door.turns.begin(now);
        self.shared.door.ordered = 0;
        self.take_edges();
        self.accept();
        self.serve_ready();
        self.tick();
        self.collect_tiers();
        self.take_notes();
        self.wind_up();
        self.carry_out();
        self.shared.forget_unwanted();
        self.write();
        self.sweep();
        self.submit_to_tiers();
        self.tell_facts();
        self.waiting.turned(self.shared.door.turns.latest());
        self.record_turn();
        self.shared.door.turns.end(self.shared.door.clock.now());
    }

    fn take_edges(&mut self) {
        for event in &self.events {
            match event.token() {
                // Looked at in every turn.
                MAILBOX | TIERS => {}
                SIGNALS => self.signalled = true,
                Token(token) if token < FIRST_CONNECTION => {
                    if let Some(listener) = self.listeners.get_mut(token - FIRST_LISTENER) {
                        listener.ready = true;
                    }
                }
                Token(token) => {
                    let index = (token - FIRST_CONNECTION) as u32;
                    // The edge may be of a connection that had this place before; then it is
                    // a try too many and nothing else.
                    let Some(connection) = self.connections.at_mut(index) else { continue };
                    connection.readable |= event.is_readable() || event.is_error();
                    connection.hung_up |= event.is_read_closed() || event.is_error();
                    if event.is_writable() || event.is_error() {
                        connection.writable = true;
                        if !connection.outgoing.is_empty() {
                            connection.mark_dirty(&mut self.shared);
                        }
                    }
                    list(&mut self.ready, connection, self.shared.terms());
                }
            }
        }
    }

    fn accept(&mut self) {
        if self.shared.now < self.accept_after {
            return;
        }
        for at in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                if !self.listeners[at].ready {
                    break;
                }
                match self.listeners[at].accept(&mut self.spare) {
                    Accepted::Client(socket) => self.admit(socket),
                    Accepted::Nobody => {}
                    Accepted::TurnedAway => self.shared.counters.turned_away_descriptors += 1,
                    Accepted::Exhausted => {
                        self.accept_after = self.shared.now + ACCEPT_PAUSE;
                        return;
                    }
                }
            }
        }
    }

    /// Gives a newcomer its place. Without one it is closed at once, which it understands better
    /// than silence.
    fn admit(&mut self, socket: socket::Socket) {
        let connection = Box::new(Connection::new(socket, self.shared.now));
        let Ok(name) = self.connections.insert(connection) else {
            self.shared.counters.turned_away_full += 1;
            return;
        };
        let connection = self.connections.find_mut(name).expect("it was just put there");
        connection.name = names::Connection(name);
        let token = Token(FIRST_CONNECTION + name.index as usize);
        if connection.socket.register(self.poll.registry(), token).is_err() {
            // It left before it was looked at; the engine has not heard of it.
            self.connections.remove(name);
            return;
        }
        self.shared.counters.accepted += 1;
        connection.greet(&mut self.shared);
    }

    fn serve_ready(&mut self) {
        for _ in 0..self.ready.len().min(CONNECTIONS_PER_TURN) {
            if self.shared.is_turn_full() {
                return;
            }
            let Some(name) = self.ready.pop_front() else { return };
            let Some(connection) = self.connections.find_mut(name.0) else { continue };
            connection.listed = false;
            match connection.serve(&mut self.shared) {
                Served::Again => list(&mut self.ready, connection, self.shared.terms()),
                Served::Idle => {}
                Served::Ended => {
                    // What its last requests brought about is queued first, and ends with it.
                    self.carry_out();
                    let connection = self.connections.remove(name.0);
                    connection.expect("it was just served").end(&mut self.shared);
                }
            }
        }
    }

    fn tick(&mut self) {
        let due = self.shared.door.engine.next_tick();
        if due.is_some_and(|due| due <= self.shared.door.clock.now()) {
            self.shared.door.tell(Event::Tick);
        }
    }

    /// Writes what this turn's answers and earlier ones left, each connection its share.
    fn write(&mut self) {
        for _ in 0..self.shared.dirty.len().min(CONNECTIONS_PER_TURN) {
            let Some(name) = self.shared.dirty.pop_front() else { break };
            let Some(connection) = self.connections.find_mut(name.0) else { continue };
            connection.dirty = false;
            if connection.flush(&mut self.shared) {
                connection.mark_dirty(&mut self.shared);
            }
            // With its answers gone it may be allowed to ask again.
            list(&mut self.ready, connection, self.shared.terms());
        }
        self.shared.tell_sent();
        self.carry_out();
    }

    /// Grants what was waited for, and now and then looks for connections that stand still.
    fn sweep(&mut self) {
        while let Some((name, class, bytes)) = self.shared.budgets.grant() {
            match self.connections.find_mut(name.0) {
                Some(connection) => {
                    connection.is_granted(class, bytes, &mut self.shared);
                    list(&mut self.ready, connection, self.shared.terms());
                }
                None => self.shared.budgets.of(class).release(bytes),
            }
        }
        // As many as there are places: who is woken for nothing decodes its message for nothing.
        let mut room = self.shared.requests.room();
        while room > 0 {
            let Some(name) = self.shared.starved.pop_front() else { break };
            let Some(connection) = self.connections.find_mut(name.0) else { continue };
            connection.starving = false;
            list(&mut self.ready, connection, self.shared.terms());
            room -= usize::from(connection.listed);
        }
        if self.shared.buffered_bytes > BUFFER_BUDGET_BYTES {
            self.reclaim();
        }
        if self.shared.now < self.sweep_at {
            return;
        }
        self.sweep_at = self.shared.now + SWEEP_EVERY;
        for index in 0..self.connections.high_water() {
            let Some(connection) = self.connections.at_mut(index) else { continue };
            if let Some(why) = connection.overdue(&self.shared) {
                connection.close(&mut self.shared, why);
            }
            // Also whoever was held only because buffers were scarce.
            list(&mut self.ready, connection, self.shared.terms());
        }
    }

    /// The buffers of all connections together are too many: those that have stood still for about
    /// the longest time are closed, until there is room for a while.
    fn reclaim(&mut self) {
        let now = self.shared.now;
        let still = |connection: &Connection| connection.stands_still(now);
        let all = self.connections.iter();
        let Some(longest) = all.filter_map(|(_, connection)| still(connection)).max() else {
            return;
        };
        let from = self.reclaim_from;
        let places = self.connections.high_water();
        for step in 0..places {
            if self.shared.buffered_bytes <= BUFFER_BUDGET_BYTES - RECLAIM_BYTES {
                return;
            }
            self.reclaim_from = (from + step + 1) % places;
            let Some(connection) = self.connections.at_mut((from + step) % places) else {
                continue;
            };
            if connection.stands_still(now).is_some_and(|time| time >= longest / 2) {
                connection.close(&mut self.shared, Closing::BuffersFull);
                list(&mut self.ready, connection, self.shared.terms());
            }
        }
    }

    /// One batch a turn. Where telemetry does not keep up it is dropped and counted, and the names
    /// that later facts use are told again.
    fn tell_facts(&mut self) {
        let out = &mut self.shared.door.out;
        if out.facts.is_empty() {
            return;
        }
        let facts = std::mem::take(&mut out.facts);
        let keys = std::mem::take(&mut out.keys);
        let Some(lane) = &mut self.facts else { return };
        let lost = self.facts_lost;
        let count = facts.len() as u64;
        let connections = self.connections.len() as u64;
        let sockets = Sockets { connections, messages: self.shared.counters.messages };
        if lane.put(FactBatch { at: self.shared.now, facts, keys, lost, sockets }).is_err() {
            self.shared.counters.fact_batches_dropped += 1;
            self.facts_lost = lost + count;
            return;
        }
        self.facts_lost = 0;
        // Told once there is room again: a full lane would only lose them, too. Somebody may have
        // no name at all; asking for it again and again does not bring it.
        let now = self.shared.now;
        if lost > 0 || now >= self.retell_after && lane.are_names_wanted() {
            self.retell_after = now + RETELL_PAUSE;
            self.shared.door.engine.retell(&mut self.shared.door.out);
        }
    }
}

/// Puts a connection on the ready list, where it can be brought forward and is not there yet.
fn list(ready: &mut VecDeque<names::Connection>, connection: &mut Connection, terms: Terms) {
    if !connection.listed && connection.wants_service(terms) {
        connection.listed = true;
        ready.push_back(connection.name);
    }
}

const MAILBOX: Token = Token(0);
const SIGNALS: Token = Token(1);
/// The rings of all lower tiers.
const TIERS: Token = Token(2);
const FIRST_LISTENER: usize = 3;
const FIRST_CONNECTION: usize = 64;

/// Edges taken in one poll; further ones come with the next.
const POLL_EVENTS: usize = 1024;
/// Letters in the mailbox, and operators that wait for an answer.
const MAILBOX_NOTES: usize = 1024;
/// Connections served, and connections written to, in one turn.
const CONNECTIONS_PER_TURN: usize = 64;
const ACCEPTS_PER_TURN: usize = 64;
/// How long accepting rests when there are no descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// An idle reactor turns this often, so that `/livez` can tell it from a hung one.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Names are told again at most so often because telemetry lacks some.
const RETELL_PAUSE: Duration = Duration::from_secs(1);
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// What closing connections that stand still frees at a time.
const RECLAIM_BYTES: usize = BUFFER_BUDGET_BYTES / 16;

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::config::Config;
    use mio::net::UnixStream;
    use requests::{OwnRequests, Requests};

    /// Is asked nothing here but for names.
    #[derive(Default)]
    struct Nobody {
        retold: u32,
    }

    impl Desk for Nobody {
        fn handle(&mut self, _now: Instant, _event: Event<'_>, _out: &mut Outbox) {}

        fn next_tick(&self) -> Option<Instant> {
            None
        }

        fn retell(&mut self, _out: &mut Outbox) {
            self.retold += 1;
        }

        fn finish(&mut self, _now: Instant, _out: &mut Outbox) {}
    }

    /// Broke: the names in a batch on which telemetry panicked were gone until the next restart.
    /// Guards: whoever lacks names is told them again, and not in every turn.
    #[test]
    fn names_that_telemetry_lacks_are_told_again_once_in_a_while() {
        let (arena, _grower) = Arena::private(1 << 20).expect("a megabyte can be mapped");
        let (front, clock) = (Front::new(&Config::default()), Clock::start());
        let (sender, receiver) = crate::telemetry::facts(None);
        let engine = Nobody::default();
        let parts = Parts { engine, front, arena, clock, facts: Some(sender) };
        let mut reactor = Reactor::new(parts).expect("a poll can be made");
        let retold = |reactor: &mut Reactor<Nobody>, seconds| {
            reactor.shared.now = Instant::from_secs(seconds);
            reactor.shared.door.out.facts.push(kvtide_core::fact::Fact::QuotaChanged);
            reactor.tell_facts();
            reactor.shared.door.engine.retold
        };
        assert_eq!(retold(&mut reactor, 1), 0);
        receiver.want_names();
        assert_eq!(retold(&mut reactor, 1), 1);
        receiver.want_names();
        assert_eq!(retold(&mut reactor, 1), 1, "it was told just now");
        assert_eq!(retold(&mut reactor, 2), 2);
        assert_eq!(retold(&mut reactor, 9), 2, "nobody has asked");
    }

    #[test]
    fn a_free_place_in_the_request_table_wakes_one_who_waits_for_it() {
        let (arena, _grower) = Arena::private(1 << 20).expect("a megabyte can be mapped");
        let (front, clock) = (Front::new(&Config::default()), Clock::start());
        let engine = Nobody::default();
        let parts = Parts { engine, front, arena, clock, facts: None };
        let mut reactor = Reactor::new(parts).expect("a poll can be made");
        reactor.shared.requests = Requests::with_limit(2);
        let mut theirs = Vec::new();
        for _ in 0..4 {
            let (ours, other) = UnixStream::pair().expect("a pair of sockets");
            theirs.push(other);
            reactor.admit(socket::Socket::Unix(ours));
        }
        let names: Vec<names::Connection> =
            reactor.connections.iter().map(|(name, _)| names::Connection(name)).collect();
        for name in &names {
            let connection = reactor.connections.find_mut(name.0).expect("it was admitted");
            (connection.starving, connection.readable) = (true, true);
            reactor.shared.starved.push_back(*name);
        }
        let mut own = OwnRequests::default();
        let mut ask = |reactor: &mut Reactor<Nobody>| {
            let envelope = requests::Envelope::new(b"u", b"\x16");
            reactor.shared.requests.open(&mut own, names[0], envelope).expect("there is a place")
        };
        ask(&mut reactor);
        reactor.sweep();
        assert_eq!(reactor.shared.starved, &names[1..], "the first who came is the first who goes");
        ask(&mut reactor);
        reactor.sweep();
        assert_eq!(reactor.shared.starved, &names[1..], "there is no place");
    }
}
