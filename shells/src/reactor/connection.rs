//! One client's connection: what has come of its current message, and what it still gets.
//!
//! ```text
//! socket -> scratch -> decoder -> message -> front -> engine      (input.rs)
//! socket <- outgoing <- answers, payload in the arena             (outgoing.rs, effects.rs)
//! ```
//!
//! Invariant: `end` is the only way out. It tells the engine, in this order, that every queued
//! payload is no longer read, that an open body was cut, and, once, that the connection ended.

use super::body::Body;
use super::buffers::{Class, Granted};
use super::counters::Closing;
use super::message::Message;
use super::outgoing::{self, Outgoing, Progress};
use super::requests::OwnRequests;
use super::shared::{Desk, Shared, Terms};
use super::socket::Socket;
use kvtide_core::event::Event;
use kvtide_core::front::{Body as Data, Job};
use kvtide_core::limits::{
    BUFFER_BYTES_MIN, OUTPUT_BYTES_MAX, REQUESTS_PER_CONNECTION_MAX, SMALL_MESSAGE_BYTES_MAX,
};
use kvtide_core::names::{self, Reply};
use kvtide_core::slots::SlotName;
use kvtide_core::time::{Duration, Instant};
use kvtide_core::wire::zmtp::{Decoder, GREETING, Role};
use std::io;

pub struct Connection {
    pub(super) name: names::Connection,
    pub(super) socket: Socket,
    pub(super) decoder: Decoder,
    pub(super) phase: Phase,
    pub(super) plan: Plan,
    pub(super) message: Message,
    /// The message was put to the front already, though its inline body may still come.
    pub(super) asked: bool,
    /// Where the data of the message is.
    pub(super) data: Data,
    /// Bytes of the inline body behind its head.
    pub(super) body_bytes: u64,
    pub(super) body: Option<Body>,
    /// Bytes that were read and not decoded yet, from `unread_at` on.
    pub(super) unread: Vec<u8>,
    pub(super) unread_at: usize,
    /// Bytes of the shared budgets that this connection was granted for its message.
    pub(super) granted: Granted,
    /// What it buffers beside those, as the total over all connections has it.
    accounted_bytes: usize,
    pub(super) own: OwnRequests,
    pub(super) outgoing: Outgoing,
    /// Nothing can be sent any more; what would be sent is dropped.
    pub(super) mute: bool,
    /// The last edges that were seen and not used up.
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The peer has ended its side or the socket failed: reading goes on until it says so itself,
    /// for no further edge will.
    pub(super) hung_up: bool,
    /// Whether it stands in the list of connections to be served, or to be written to.
    pub(super) listed: bool,
    pub(super) dirty: bool,
    /// It stands in the line for a place in the request table.
    pub(super) starving: bool,
    pub(super) accepted: Instant,
    /// When bytes came last.
    pub(super) heard: Instant,
    /// When bytes were written last.
    wrote: Instant,
    /// The server ends and has taken all that it still takes of this connection.
    pub(super) drained: bool,
}

/// What the connection does next.
pub(super) enum Phase {
    /// Decodes what comes.
    Reading,
    /// A large frame has begun and waits for its share of the budget.
    Waiting,
    /// A message is complete, or complete up to its inline body; the front is at work on it.
    Working(Job),
    /// The engine was asked what to do with the inline body that follows.
    Verdict(Reply),
    /// We closed our side. Input is thrown away until the peer closes its own: until then it may
    /// write to memory that we lent it (design §4).
    Discarding,
}

/// What happens to the bytes of the current frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Kept in the message.
    Keep,
    /// Thrown away.
    Skip,
    /// The first few bytes of an inline body, which say how long it is, are kept.
    Head,
    /// They go through the body reader to their places.
    Body,
}

/// What is to be done with a connection after it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It has more to do in the next turn.
    Again,
    /// It waits for an edge, an answer or a grant.
    Idle,
    /// The peer has ended: `end` is due.
    Ended,
}

impl Connection {
    /// The table names it once it has a place.
    pub fn new(socket: Socket, now: Instant) -> Connection {
        let nobody = SlotName { index: u32::MAX, generation: u32::MAX };
        Connection {
            name: names::Connection(nobody),
            socket,
            decoder: Decoder::new(Role::Router),
            phase: Phase::Reading,
            plan: Plan::Skip,
            message: Message::default(),
            asked: false,
            data: Data::Here,
            body_bytes: 0,
            body: None,
            unread: Vec::new(),
            unread_at: 0,
            granted: Granted::nothing(),
            accounted_bytes: 0,
            own: OwnRequests::default(),
            outgoing: Outgoing::default(),
            mute: false,
            readable: false,
            // A new socket takes a greeting; if not, the write finds out.
            writable: true,
            hung_up: false,
            listed: false,
            dirty: false,
            starving: false,
            accepted: now,
            heard: now,
            wrote: now,
            drained: false,
        }
    }

    /// The first word is ours as much as theirs: neither side waits for the other's greeting.
    pub fn greet<E: Desk>(&mut self, shared: &mut Shared<E>) {
        self.say(shared, &GREETING);
    }

    /// Makes `outgoing` ready to be encoded into. False when nothing can be sent any more.
    pub(super) fn opens_output<E>(&mut self, shared: &mut Shared<E>) -> bool {
        if self.mute {
            return false;
        }
        self.outgoing.lend_buffer(|| shared.buffers.take());
        self.mark_dirty(shared);
        true
    }

    /// Queues some bytes of our own.
    pub(super) fn say<E>(&mut self, shared: &mut Shared<E>, words: &[u8]) {
        if self.opens_output(shared) {
            self.outgoing.encode(|bytes| bytes.extend_from_slice(words));
        }
    }

    pub(super) fn mark_dirty<E>(&mut self, shared: &mut Shared<E>) {
        if !self.dirty {
            self.dirty = true;
            shared.dirty.push_back(self.name);
        }
    }

    /// Whether more of its requests may be taken up: not while it has too many without an answer or
    /// does not read its answers (P3), nor when the server ends and has answered what had come,
    /// unless a body is to be finished.
    pub(super) fn may_ask(&self, terms: Terms) -> bool {
        !self.is_held(terms) && (!terms.stopping || !self.drained || self.body.is_some())
    }

    fn is_held(&self, terms: Terms) -> bool {
        let held_bytes = self.outgoing.queued_bytes() + self.own.envelope_bytes() as u64;
        let most = if terms.scarce { SMALL_MESSAGE_BYTES_MAX } else { OUTPUT_BYTES_MAX };
        held_bytes > most as u64 || self.own.len() >= REQUESTS_PER_CONNECTION_MAX
    }

    /// Whether there are bytes of it that were not decoded, as far as is known.
    pub(super) fn has_input(&self) -> bool {
        self.readable || self.unread_at < self.unread.len()
    }

    /// Whether serving it could bring it forward.
    pub(super) fn wants_service(&self, terms: Terms) -> bool {
        let input = self.has_input();
        match self.phase {
            Phase::Verdict(_) => false,
            Phase::Waiting => self.hung_up,
            Phase::Working(_) => !self.starving && (self.hung_up || !self.is_held(terms)),
            Phase::Reading => input && (self.hung_up || self.may_ask(terms)),
            Phase::Discarding => self.readable || !self.decoder.is_ready(),
        }
    }

    /// Who has hung up takes no answers: it is never held for those that it does not read.
    pub(super) fn let_go_of_answers<E: Desk>(&mut self, shared: &mut Shared<E>) {
        if self.hung_up && self.is_held(shared.terms()) {
            self.silence(shared);
        }
    }

    /// Whether the server, when it ends, still has to do with it: something to be answered,
    /// written, or read to its end.
    pub(super) fn is_owed(&self) -> bool {
        match self.phase {
            Phase::Working(_) | Phase::Verdict(_) => true,
            Phase::Reading | Phase::Waiting => {
                let asks = self.has_input() && !self.drained;
                asks || self.body.is_some() || !self.outgoing.is_empty()
            }
            Phase::Discarding => false,
        }
    }

    /// Why it stands still where others suffer from it, or where it can come to nothing.
    pub(super) fn overdue<E: Desk>(&self, shared: &Shared<E>) -> Option<Closing> {
        let (age, still) = (shared.now.since(self.accepted), shared.now.since(self.heard));
        match self.phase {
            Phase::Discarding => None,
            _ if !self.decoder.is_ready() && age >= HANDSHAKE_TIME => {
                Some(Closing::HandshakeTimeout)
            }
            // Two that wait for more may each hold what the other waits for.
            _ if self.depends_on_others(shared.terms())
                && Class::ALL.into_iter().any(|class| {
                    shared.budgets.is_contended(class) && self.blocks_others(class, shared.now)
                }) =>
            {
                Some(Closing::LargeFrameStalled)
            }
            Phase::Reading if self.is_begun() && !self.has_input() && still >= MESSAGE_TIME => {
                Some(Closing::MessageStalled)
            }
            _ => None,
        }
    }

    /// Whether it goes on only when its peer sends or takes something, or somebody else makes room.
    /// Where the request table is full its peer is not to blame, but that may last for minutes.
    fn depends_on_others(&self, terms: Terms) -> bool {
        match self.phase {
            Phase::Reading | Phase::Waiting => true,
            Phase::Working(_) => self.starving || self.is_held(terms),
            Phase::Verdict(_) | Phase::Discarding => false,
        }
    }

    /// Whether it holds some of a shared budget and brings too little for that. A byte now and then
    /// renews `heard`, hence the average.
    fn blocks_others(&self, class: Class, now: Instant) -> bool {
        let patience = match class {
            Class::Medium => MEDIUM_FRAME_TIME,
            Class::Large => LARGE_FRAME_TIME,
        };
        let held = now.since(self.granted.since);
        let expected = u128::from(FRAME_BYTES_PER_SECOND) * held.as_millis() / 1000;
        let slow = (self.message.bytes().saturating_sub(self.granted.had) as u128) < expected;
        let still = now.since(self.heard) >= patience;
        self.granted.of(class) > 0 && (still || held >= patience && slow)
    }

    /// Whether a message or its inline body has begun and holds memory until it has ended.
    fn is_begun(&self) -> bool {
        self.message.is_begun() || self.body.is_some()
    }

    /// Brings the total of what connections buffer up to date.
    pub(super) fn account<E>(&mut self, shared: &mut Shared<E>) {
        let message = self.message.capacity().saturating_sub(self.granted.total());
        let body = self.body.as_ref().map_or(0, Body::buffer_bytes);
        let bytes = message
            + body
            + self.unread.capacity()
            + self.outgoing.buffer_bytes()
            + self.own.envelope_bytes();
        shared.buffered_bytes = shared.buffered_bytes - self.accounted_bytes + bytes;
        self.accounted_bytes = bytes;
    }

    /// For how long it has buffered something without bringing or taking a byte. None where closing
    /// it would gain next to nothing.
    pub(super) fn stands_still(&self, now: Instant) -> Option<Duration> {
        (self.accounted_bytes > BUFFER_BYTES_MIN).then(|| now.since(self.heard.max(self.wrote)))
    }

    /// Writes what is queued, as far as the socket and the turn's share go. True when there is
    /// more to write at once.
    pub fn flush<E: Desk>(&mut self, shared: &mut Shared<E>) -> bool {
        let more = self.write(shared);
        self.account(shared);
        more
    }

    fn write<E: Desk>(&mut self, shared: &mut Shared<E>) -> bool {
        if !self.writable || self.mute {
            return false;
        }
        let before = self.outgoing.queued_bytes();
        let arena = &shared.arena;
        let view = |place| arena.slice(place).expect("the engine sends places that are usable");
        let written =
            self.outgoing.write(&mut self.socket, WRITE_BYTES_PER_TURN, view, &mut shared.sent);
        let taken = before - self.outgoing.queued_bytes();
        shared.counters.output_bytes += taken;
        if taken > 0 {
            self.wrote = shared.now;
        }
        if let Some(buffer) = self.outgoing.take_buffer() {
            shared.buffers.give(buffer);
        }
        let more = match written {
            Ok(Progress::Empty) => false,
            Ok(Progress::Share) => true,
            Ok(Progress::Full) => {
                self.writable = false;
                false
            }
            Err(_) => {
                self.silence(shared);
                false
            }
        };
        shared.tell_sent();
        more
    }

    /// The peer takes no more. What it sent before is still read, to its end: a request may be
    /// there that nobody waits for, such as an end of session.
    fn silence<E: Desk>(&mut self, shared: &mut Shared<E>) {
        self.mute = true;
        self.outgoing.drop_all(&mut shared.cut);
        shared.tell_sent();
        shared.requests.drop_all(&mut self.own);
        (self.readable, self.hung_up) = (true, true);
    }

    /// Closes our side after a fault of the peer. One that never shook hands was never lent
    /// anything: it is ended as soon as it is served again.
    pub fn close<E: Desk>(&mut self, shared: &mut Shared<E>, why: Closing) {
        if let Phase::Discarding = self.phase {
            return;
        }
        tracing::debug!(connection = ?self.name.0, reason = why.label(), detail = ?why, "closing");
        shared.counters.closing(why);
        self.leave(shared);
    }

    fn leave<E: Desk>(&mut self, shared: &mut Shared<E>) {
        self.drop_work(shared);
        self.mute = true;
        self.socket.shut_output();
        self.phase = Phase::Discarding;
        (self.unread, self.unread_at) = (Vec::new(), 0);
        self.account(shared);
    }

    /// The server ends, and a body that stands still must not keep its request from an answer.
    pub(super) fn cut_body<E: Desk>(&mut self, shared: &mut Shared<E>) {
        if let Some(body) = self.body.take() {
            self.plan = Plan::Skip;
            shared.door.tell(body.cut());
        }
    }

    /// The server ends and has said all that it has to say to this client. A message that did not
    /// come whole is given up, and what it holds of a budget goes to those that did.
    pub(super) fn take_leave<E: Desk>(&mut self, shared: &mut Shared<E>) {
        self.drained = true;
        if self.is_owed() || self.own.len() > 0 {
            return;
        }
        if self.is_begun() {
            self.leave(shared);
        } else if !self.mute {
            self.mute = true;
            self.socket.shut_output();
            self.account(shared);
        }
    }

    /// The connection is over. The socket is closed when `self` is dropped.
    pub fn end<E: Desk>(mut self, shared: &mut Shared<E>) {
        self.drop_work(shared);
        shared.counters.ended += 1;
        shared.buffered_bytes -= self.accounted_bytes;
        shared.door.tell(Event::ConnectionEnded { connection: self.name });
    }

    /// Lets go of everything but the socket. Doing it twice is harmless.
    fn drop_work<E: Desk>(&mut self, shared: &mut Shared<E>) {
        self.outgoing.drop_all(&mut shared.cut);
        shared.tell_sent();
        if let Some(body) = self.body.take() {
            shared.door.tell(body.cut());
        }
        shared.requests.drop_all(&mut self.own);
        if let Phase::Waiting = self.phase {
            shared.budgets.forget(self.name);
        }
        if std::mem::take(&mut self.starving) {
            shared.starved.retain(|starved| *starved != self.name);
        }
        self.drop_message(shared);
        self.phase = Phase::Reading;
    }

    /// The current message is done with.
    pub(super) fn drop_message<E>(&mut self, shared: &mut Shared<E>) {
        shared.buffers.give(self.message.reset());
        shared.budgets.release(&mut self.granted);
    }

    /// Reads once into `into`. None when nothing is there for now.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        use std::io::Read;
        loop {
            return match self.socket.read(into) {
                Ok(count) => {
                    // Less than there was room for: the next byte brings a new edge. The end of
                    // the stream may have been part of an edge that was already seen.
                    if count < into.len() && !self.hung_up {
                        self.readable = false;
                    }
                    Ok(Some(count))
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    (self.readable, self.hung_up) = (false, false);
                    Ok(None)
                }
                Err(error) => Err(error),
            };
        }
    }
}

/// A connection, its place in the table and in the list of free places, and what it keeps of its
/// queue.
pub(super) const ENTRY_BYTES: usize = size_of::<Connection>() + 24 + outgoing::KEPT_BYTES;
/// What one connection may be sent in one turn.
const WRITE_BYTES_PER_TURN: usize = 1 << 20;
/// How long a handshake may take; the peer's library gives up at the same time
/// (spec/wire §1.1).
const HANDSHAKE_TIME: Duration = Duration::from_secs(30);
/// How long a frame may stand still while others wait for its share of the budget. A medium one
/// comes whole within a moment, and more of them wait for each other.
const MEDIUM_FRAME_TIME: Duration = Duration::from_secs(2);
const LARGE_FRAME_TIME: Duration = Duration::from_secs(10);
/// What a frame brings on average, once that time has passed, while others wait.
const FRAME_BYTES_PER_SECOND: u64 = 1 << 20;
/// How long a message may stand still although nobody waits: what it holds is bounded, but not
/// free. A client writes a message at one go; one that pauses for as long has left.
const MESSAGE_TIME: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::super::requests::Requests;
    use super::super::shared::Door;
    use super::super::turns::{LastTurn, Turns};
    use super::*;
    use crate::arena::Arena;
    use crate::clock::Clock;
    use kvtide_core::config::Config;
    use kvtide_core::effect::Outbox;
    use kvtide_core::front::Front;
    use kvtide_core::limits::{
        LARGE_FRAME_BUDGET_BYTES, LARGE_FRAME_BYTES_MAX, MEDIUM_FRAME_BUDGET_BYTES,
        MESSAGE_BYTES_MAX, SMALL_FRAME_BYTES_MAX,
    };
    use kvtide_core::wire::client::{Key, append_message};
    use kvtide_core::wire::zmtp::READY_DEALER;
    use mio::net::UnixStream;

    /// Counts connections that ended.
    struct Counting(usize);

    impl Desk for Counting {
        fn handle(&mut self, _now: Instant, event: Event<'_>, _out: &mut Outbox) {
            self.0 += usize::from(matches!(event, Event::ConnectionEnded { .. }));
        }

        fn next_tick(&self) -> Option<Instant> {
            None
        }

        fn retell(&mut self, _out: &mut Outbox) {}

        fn finish(&mut self, _now: Instant, _out: &mut Outbox) {}
    }

    fn shared() -> Shared<Counting> {
        let (arena, _grower) = Arena::private(1 << 20).expect("a megabyte can be mapped");
        let (turns, clock) = (Turns::new(LastTurn::default()), Clock::start());
        let (engine, out) = (Counting(0), Outbox::default());
        let door = Door { engine, out, ordered: 0, turns, clock, recording: None };
        Shared::new(door, Front::new(&Config::default()), arena)
    }

    fn connection() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        (Connection::new(Socket::Unix(ours), Instant::from_secs(100)), theirs)
    }

    #[test]
    fn f55_a_handshake_that_does_not_end_is_ended() {
        let (mut shared, (mut connection, _theirs)) = (shared(), connection());
        // A byte now and then buys no time.
        connection.heard = Instant::from_secs(129);
        shared.now = Instant::from_secs(129);
        assert_eq!(connection.overdue(&shared), None);
        shared.now = Instant::from_secs(130);
        let why = connection.overdue(&shared).expect("it is overdue");
        assert_eq!(why, Closing::HandshakeTimeout);
        connection.close(&mut shared, why);
        assert_eq!(connection.overdue(&shared), None, "it is closed once");
        assert_eq!(connection.serve(&mut shared), Served::Ended);
        connection.end(&mut shared);
        assert_eq!((shared.door.engine.0, shared.counters.closings(why)), (1, 1));
    }

    /// Has the peer write and the connection read it, all at the given second.
    fn bring(
        shared: &mut Shared<Counting>,
        (connection, theirs): (&mut Connection, &mut UnixStream),
        bytes: &[u8],
        second: u64,
    ) {
        shared.now = Instant::from_secs(second);
        for part in bytes.chunks(64 << 10) {
            std::io::Write::write_all(theirs, part).expect("the socket has room");
            connection.readable = true;
            while connection.serve(shared) == Served::Again {}
        }
    }

    /// A handshake and the first two frames of a lookup, then the head of a frame of so many bytes.
    fn opening(bytes: u64) -> Vec<u8> {
        let frames = b"\x01\x01u\x01\x01\x08";
        [&GREETING[..], READY_DEALER, frames, b"\x03", &bytes.to_be_bytes()].concat()
    }

    /// A connection that has begun a large frame, and another that waits for the budget.
    fn contended() -> (Shared<Counting>, Connection, UnixStream) {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        bring(&mut shared, (&mut connection, &mut theirs), &opening(48 << 20), 100);
        let other = names::Connection(SlotName { index: 9, generation: 0 });
        assert!(!shared.budgets.of(Class::Large).reserve(other, 100 << 20));
        (shared, connection, theirs)
    }

    #[test]
    fn a_frame_of_the_largest_size_and_small_ones_beside_it_are_taken() {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        let largest = LARGE_FRAME_BYTES_MAX as u64;
        bring(&mut shared, (&mut connection, &mut theirs), &opening(largest), 100);
        let left = LARGE_FRAME_BUDGET_BYTES - LARGE_FRAME_BYTES_MAX;
        assert_eq!(shared.budgets.left_bytes(Class::Large), left);
        bring(&mut shared, (&mut connection, &mut theirs), &vec![0; largest as usize], 100);
        bring(&mut shared, (&mut connection, &mut theirs), b"\x00\x01s", 100);
        assert_eq!(shared.counters.messages, 1, "the last frame waits for no grant");
        assert_eq!(shared.budgets.left_bytes(Class::Large), LARGE_FRAME_BUDGET_BYTES);
        bring(&mut shared, (&mut connection, &mut theirs), &opening(largest + 1)[64 + 43..], 100);
        assert_eq!(shared.counters.closings(Closing::FrameTooLarge), 1);
    }

    #[test]
    fn a_frame_behind_a_granted_one_does_not_double_what_was_granted() {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        let granted = 5_usize << 20;
        bring(&mut shared, (&mut connection, &mut theirs), &opening(granted as u64), 100);
        bring(&mut shared, (&mut connection, &mut theirs), &vec![0; granted], 100);
        for _ in 0..4 {
            let small = [&b"\x03\0\0\0\0\0\0\x20\0"[..], &[0; 8 << 10]].concat();
            bring(&mut shared, (&mut connection, &mut theirs), &small, 100);
        }
        assert_eq!(connection.message.bytes(), 2 + granted + (32 << 10));
        assert_eq!(connection.granted.total(), granted, "small frames need no grant");
        let most = granted + 2 * SMALL_MESSAGE_BYTES_MAX;
        assert!(connection.message.capacity() <= most, "{}", connection.message.capacity());
    }

    #[test]
    fn the_frames_of_one_message_together_are_bounded() {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        let frame = 5_u64 << 20;
        bring(&mut shared, (&mut connection, &mut theirs), &opening(frame), 100);
        bring(&mut shared, (&mut connection, &mut theirs), &vec![0; frame as usize], 100);
        let rest = MESSAGE_BYTES_MAX as u64 - frame - 1;
        let head = [&b"\x03"[..], &rest.to_be_bytes()].concat();
        bring(&mut shared, (&mut connection, &mut theirs), &head, 100);
        assert_eq!(shared.counters.closings(Closing::FrameTooLarge), 1, "uid and operation count");
        assert!(!shared.budgets.is_contended(Class::Large));
        assert_eq!(shared.budgets.left_bytes(Class::Large), LARGE_FRAME_BUDGET_BYTES);
    }

    #[test]
    fn a_message_takes_its_share_of_the_budget_of_its_size() {
        let classes = |shared: &Shared<Counting>| Class::ALL.map(|c| shared.budgets.left_bytes(c));
        let whole = [MEDIUM_FRAME_BUDGET_BYTES, LARGE_FRAME_BUDGET_BYTES];
        for (bytes, taken) in [
            (SMALL_MESSAGE_BYTES_MAX - 2, [0, 0]),
            (SMALL_MESSAGE_BYTES_MAX - 1, [SMALL_MESSAGE_BYTES_MAX - 1, 0]),
            (SMALL_FRAME_BYTES_MAX - 2, [SMALL_FRAME_BYTES_MAX - 2, 0]),
            (SMALL_FRAME_BYTES_MAX - 1, [0, SMALL_FRAME_BYTES_MAX - 1]),
        ] {
            let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
            bring(&mut shared, (&mut connection, &mut theirs), &opening(bytes as u64), 100);
            assert_eq!(classes(&shared), [0, 1].map(|at| whole[at] - taken[at]), "{bytes}");
            assert!(shared.buffered_bytes < 2 * SMALL_MESSAGE_BYTES_MAX, "grants are not counted");
            connection.end(&mut shared);
            assert_eq!((classes(&shared), shared.buffered_bytes), (whole, 0));
        }
    }

    #[test]
    fn medium_frames_wait_for_each_other_not_for_large_ones() {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        let other = names::Connection(SlotName { index: 9, generation: 0 });
        assert!(shared.budgets.of(Class::Large).reserve(other, LARGE_FRAME_BUDGET_BYTES));
        bring(&mut shared, (&mut connection, &mut theirs), &opening(1 << 20), 100);
        assert!(matches!(connection.phase, Phase::Reading));
        assert!(!shared.budgets.of(Class::Medium).reserve(other, MEDIUM_FRAME_BUDGET_BYTES));
        shared.now = Instant::from_secs(101);
        assert_eq!(connection.overdue(&shared), None, "a second is not long");
        shared.now = Instant::from_secs(102);
        assert_eq!(connection.overdue(&shared), Some(Closing::LargeFrameStalled));
    }

    #[test]
    fn who_waits_for_more_while_holding_some_of_the_budget_is_closed() {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        let frame = 5_u64 << 20;
        bring(&mut shared, (&mut connection, &mut theirs), &opening(frame), 100);
        let other = names::Connection(SlotName { index: 9, generation: 0 });
        assert!(shared.budgets.of(Class::Large).reserve(other, 120 << 20));
        bring(&mut shared, (&mut connection, &mut theirs), &vec![0; frame as usize], 100);
        let head = [&b"\x03"[..], &frame.to_be_bytes()].concat();
        bring(&mut shared, (&mut connection, &mut theirs), &head, 100);
        assert!(matches!(connection.phase, Phase::Waiting));
        shared.now = Instant::from_secs(110);
        assert_eq!(connection.overdue(&shared), Some(Closing::LargeFrameStalled));
        connection.close(&mut shared, Closing::LargeFrameStalled);
        assert!(!shared.budgets.is_contended(Class::Large));
        // Who waits and holds nothing is in nobody's way, and its time begins with the grant.
        let (mut patient, mut theirs) = self::connection();
        assert!(shared.budgets.of(Class::Large).reserve(other, 8 << 20));
        bring(&mut shared, (&mut patient, &mut theirs), &opening(frame), 110);
        shared.now = Instant::from_secs(200);
        assert_eq!(patient.overdue(&shared), None);
        shared.budgets.of(Class::Large).release(8 << 20);
        let (_, bytes) = shared.budgets.of(Class::Large).grant().expect("there is room");
        patient.is_granted(Class::Large, bytes, &mut shared);
        assert!(!shared.budgets.of(Class::Large).reserve(other, 8 << 20));
        assert_eq!(patient.overdue(&shared), None);
    }

    #[test]
    fn a_large_frame_that_trickles_is_closed_where_others_wait() {
        let (mut shared, mut connection, mut theirs) = contended();
        bring(&mut shared, (&mut connection, &mut theirs), &vec![0; 11 << 20], 110);
        assert_eq!(connection.overdue(&shared), None, "a megabyte a second is enough");
        bring(&mut shared, (&mut connection, &mut theirs), &[0], 111);
        assert_eq!(connection.overdue(&shared), None);
        bring(&mut shared, (&mut connection, &mut theirs), &[0], 112);
        assert_eq!(connection.overdue(&shared), Some(Closing::LargeFrameStalled));
        let other = names::Connection(SlotName { index: 9, generation: 0 });
        shared.budgets.forget(other);
        assert_eq!(connection.overdue(&shared), None, "nobody waits");
    }

    #[test]
    fn a_message_that_waits_for_the_request_table_is_closed_where_others_wait_for_its_budget() {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        shared.requests = Requests::with_limit(0);
        let (tokens, mut key) = (vec![100_000; SMALL_MESSAGE_BYTES_MAX / 4], Vec::new());
        let end = tokens.len() as u64;
        Key {
            model: "m",
            world_size: 1,
            worker: None,
            tokens: &tokens,
            start: 0,
            end,
            request: "r",
            salt: "",
            readers: 1,
        }
        .encode(&mut key);
        let mut lookup = [&GREETING[..], READY_DEALER].concat();
        append_message(&[&b"u"[..], b"\x08", &key, b"\x01"], &mut lookup);
        bring(&mut shared, (&mut connection, &mut theirs), &lookup, 100);
        assert_eq!(connection.granted.of(Class::Medium), key.len());
        assert!(connection.starving, "there is no place");
        shared.now = Instant::from_secs(110);
        assert_eq!(connection.overdue(&shared), None, "nobody waits");
        let other = names::Connection(SlotName { index: 9, generation: 0 });
        assert!(!shared.budgets.of(Class::Medium).reserve(other, MEDIUM_FRAME_BUDGET_BYTES));
        assert_eq!(connection.overdue(&shared), Some(Closing::LargeFrameStalled));
        connection.close(&mut shared, Closing::LargeFrameStalled);
        assert!(shared.starved.is_empty());
        assert_eq!(shared.budgets.left_bytes(Class::Medium), MEDIUM_FRAME_BUDGET_BYTES);
    }

    #[test]
    fn a_message_that_has_not_come_whole_is_given_up_when_the_server_ends() {
        let (mut shared, mut connection, _theirs) = contended();
        connection.flush(&mut shared);
        assert_eq!(shared.budgets.grant(), None);
        connection.take_leave(&mut shared);
        let other = names::Connection(SlotName { index: 9, generation: 0 });
        assert_eq!(shared.budgets.grant(), Some((other, Class::Large, 100 << 20)));
        assert!(!connection.is_owed());
        // Who waits for its share and has not sent the rest owes nothing to anybody either.
        let (mut waiting, mut theirs) = self::connection();
        bring(&mut shared, (&mut waiting, &mut theirs), &opening(48 << 20), 100);
        assert!(matches!(waiting.phase, Phase::Waiting));
        waiting.flush(&mut shared);
        waiting.take_leave(&mut shared);
        assert!(!waiting.is_owed() && !shared.budgets.is_contended(Class::Large));
    }

    #[test]
    fn f55_a_message_that_stands_still_is_closed() {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        bring(&mut shared, (&mut connection, &mut theirs), &opening(1 << 20), 100);
        bring(&mut shared, (&mut connection, &mut theirs), b"some", 120);
        shared.now = Instant::from_secs(149);
        assert_eq!(connection.overdue(&shared), None);
        shared.now = Instant::from_secs(150);
        assert_eq!(connection.overdue(&shared), Some(Closing::MessageStalled));
        connection.readable = true;
        assert_eq!(connection.overdue(&shared), None, "what came is to be read first");
        connection.readable = false;
        connection.close(&mut shared, Closing::MessageStalled);
        assert_eq!(shared.counters.closings(Closing::MessageStalled), 1);
    }

    #[test]
    fn a_connection_between_two_messages_may_be_silent_for_ever() {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        bring(&mut shared, (&mut connection, &mut theirs), &opening(1), 100);
        bring(&mut shared, (&mut connection, &mut theirs), b"k\x00\x01s", 100);
        assert_eq!(shared.counters.messages, 1);
        shared.now = Instant::from_secs(100_000);
        assert_eq!(connection.overdue(&shared), None);
    }

    #[test]
    fn a_large_frame_that_stands_still_is_closed_sooner_where_others_wait() {
        let (mut shared, (mut connection, mut theirs)) = (shared(), connection());
        bring(&mut shared, (&mut connection, &mut theirs), &opening(48 << 20), 100);
        assert_eq!(connection.granted.of(Class::Large), 48 << 20);
        shared.now = Instant::from_secs(120);
        assert_eq!(connection.overdue(&shared), None, "nobody waits");
        let other = names::Connection(SlotName { index: 9, generation: 0 });
        assert!(!shared.budgets.of(Class::Large).reserve(other, 100 << 20));
        let why = connection.overdue(&shared);
        assert_eq!(why, Some(Closing::LargeFrameStalled));
        shared.now = Instant::from_secs(105);
        assert_eq!(connection.overdue(&shared), None, "five seconds are not long");
        connection.close(&mut shared, Closing::LargeFrameStalled);
        assert_eq!(shared.budgets.of(Class::Large).grant(), Some((other, 100 << 20)));
        assert_eq!(shared.door.engine.0, 0, "its end is told when it closes its side");
    }
}
