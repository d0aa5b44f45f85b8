//! The clock, the network and the processes around the engine.
//!
//! Everything that will happen stands in one queue, ordered by time. Messages of one connection
//! keep their order, connections have none between them. Whatever belongs to a connection names
//! its generation and comes to nothing once that has ended.

mod actions;
mod bytes;
mod clients;
mod disk;
mod faults;
mod growth;
mod heal;
mod paged;
mod planned;
mod restart;
mod rush;
mod streams;
mod tiers;
mod twins;

use crate::bench::{Bench, Lent, Seen};
use crate::calls::Call;
use crate::deeds::{Deed, Sense, is_unfair};
use crate::library::Library;
use crate::profile::Profile;
use crate::reach::State;
use crate::tally::Tally;
use crate::transcript::Input;
use actions::{Action, Then};
use clients::{Group, Process, Request};
use kvtide_core::effect::Answer;
use kvtide_core::engine::Alarm;
use kvtide_core::fact::{Fact, NoRoom};
use kvtide_core::front::Front;
use kvtide_core::names::{Connection, Reply, Ticket};
use kvtide_core::rng::Rng;
use kvtide_core::time::{Duration, Instant};
use paged::Carried;
use planned::Planned;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use streams::{Holding, Stream};
use tiers::{Job, Tier};

pub(crate) type Step = Result<(), String>;

/// One process by its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessId(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestNumber(usize);

pub struct World {
    profile: Profile,
    bench: Bench,
    rng: Rng,
    now: Instant,
    queue: BinaryHeap<Reverse<Planned>>,
    planned: u64,
    processes: Vec<Process>,
    groups: Vec<Group>,
    requests: Vec<Request>,
    waiting: BTreeMap<Reply, (Call, Then)>,
    holdings: BTreeMap<u64, Holding>,
    holdings_made: u64,
    streams: BTreeMap<Ticket, Stream>,
    carried: BTreeMap<Ticket, Carried>,
    devices_made: u32,
    tiers: Vec<Tier>,
    jobs: BTreeMap<Ticket, Job>,
    /// Tiers that the server at hand has had on its roster.
    joined: u16,
    garbage_made: u64,
    foreign_made: u64,
    instances_made: i64,
    library: Library,
    front: Front,
    messages_sent: u64,
    grown: u64,
    grown_at: Instant,
    /// How often another server has taken the place of the first.
    restarts: u32,
    is_healing: bool,
    /// What is sent arrives at once.
    is_rushing: bool,
    pub tally: Tally,
    /// For the record: the requests that streams were opened for, and what was done.
    opened_for: BTreeMap<Ticket, Reply>,
    deeds: Option<Vec<(Instant, Deed)>>,
}

impl World {
    /// A world before its first event. `lines_kept` bounds the transcript.
    pub fn new(profile: Profile, lines_kept: usize) -> World {
        let bench = Bench::new(profile.config.clone(), lines_kept);
        let mut world = World {
            rng: Rng::new(profile.seed ^ 0x5149),
            library: Library::new(&profile.config, profile.documents, profile.chunks_max + 1),
            front: Front::new(&profile.config),
            messages_sent: 0,
            profile,
            bench,
            now: Instant::ZERO,
            queue: BinaryHeap::new(),
            planned: 0,
            processes: Vec::new(),
            groups: Vec::new(),
            requests: Vec::new(),
            waiting: BTreeMap::new(),
            holdings: BTreeMap::new(),
            holdings_made: 0,
            streams: BTreeMap::new(),
            carried: BTreeMap::new(),
            devices_made: 0,
            tiers: Vec::new(),
            jobs: BTreeMap::new(),
            joined: 0,
            garbage_made: 0,
            foreign_made: 0,
            instances_made: 0,
            grown: 0,
            grown_at: Instant::ZERO,
            restarts: 0,
            is_healing: false,
            is_rushing: false,
            tally: Tally::default(),
            opened_for: BTreeMap::new(),
            deeds: None,
        };
        world.found_groups();
        world.plan_in(Duration::ZERO, Action::Grow);
        world.plan(world.profile.gap, Action::Fault);
        world.found_tiers();
        world
    }

    pub fn bench(&self) -> &Bench {
        &self.bench
    }

    /// Keeps everything that is done to the bench from now on.
    pub fn record(&mut self) {
        self.deeds = Some(Vec::new());
    }

    pub fn take_deeds(&mut self) -> Vec<(Instant, Deed)> {
        self.deeds.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Both acts.
    pub fn run(&mut self) -> Step {
        while self.bench.events < self.profile.events {
            self.step()?;
        }
        self.heal()
    }

    /// Does whatever comes next: a planned action, or a tick that is due.
    fn step(&mut self) -> Step {
        if self.is_rushed() {
            return self.rush();
        }
        let next = self.queue.peek().map(|Reverse(planned)| planned.at);
        let due = self.bench.engine().deadline().map(|(at, _)| at);
        let tick_first = match (next, due) {
            (None, None) => return Err("the world has stopped".into()),
            (Some(_), None) => false,
            (None, Some(_)) => true,
            (Some(next), Some(due)) => due <= next.max(self.now) && !self.is_tick_late(),
        };
        if tick_first {
            self.now = self.now.max(due.expect("a tick is due"));
            self.feed(Input::Tick)?;
        } else {
            let Reverse(planned) = self.queue.pop().expect("something is planned");
            self.now = self.now.max(planned.at);
            self.act(planned.action)?;
        }
        // Work that is left over is seldom, and worth a crash.
        let is_working = matches!(self.bench.engine().deadline(), Some((_, Alarm::Work)));
        let more = if is_working { 16 } else { 1 };
        if self.chance(self.profile.faults.restart * more) {
            self.restart()?;
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Step {
        if let Some(until) = self.stopped(&action) {
            self.plan_at(until, action);
            return Ok(());
        }
        match action {
            Action::Arrive { connection, call, then } => self.arrive(connection, call, then),
            Action::Return { connection, call, then, answer } => {
                if self.is_open(connection) {
                    self.returned(connection, call, then, answer);
                }
                Ok(())
            }
            Action::ReadOn { connection } => self.read_on(connection),
            Action::Work { holding } => self.work(holding),
            Action::Flow { ticket } => self.flow(ticket),
            Action::StaleEnding { input } => {
                self.tally.came("completion twice");
                self.feed(input)
            }
            Action::Connect { process } => {
                self.connect(process);
                Ok(())
            }
            Action::Ping { connection } => {
                self.ping(connection);
                Ok(())
            }
            Action::Begin { group } => {
                self.begin(group);
                Ok(())
            }
            Action::StartRetrieve { process, request } => {
                self.start_retrieve(process, request);
                Ok(())
            }
            Action::StartStore { process, request, from } => {
                self.start_store(process, request, from);
                Ok(())
            }
            Action::Finish { request } => {
                self.finish(request);
                Ok(())
            }
            Action::Grow => self.grow(),
            Action::Fault => self.fault(),
            Action::ForcedClear => self.forced_clear(),
            Action::Crash { process } => self.crash(process),
            Action::Join { tier } => self.rejoin(tier),
            Action::Scan { tier, adapter } => self.scan(tier, adapter),
            Action::Toil { ticket } => self.toil(ticket),
            Action::Attached { attachment, outcome } => {
                self.feed(Input::AttachEnded { attachment, outcome })
            }
            Action::Carry { ticket } => self.carry(ticket),
            Action::Anew { process } => {
                self.register_anew(process);
                Ok(())
            }
            Action::Flush { tier, notes } => self.flush(tier, notes),
        }
    }

    /// When the process goes on that an action is for, if that is stopped. What it has sent before
    /// still arrives.
    fn stopped(&self, action: &Action) -> Option<Instant> {
        let process = match action {
            Action::Return { connection, .. } | Action::Ping { connection } => {
                connection.0.index as usize
            }
            Action::Work { holding } => self.holdings.get(holding)?.connection.0.index as usize,
            Action::Flow { ticket } => self.streams.get(ticket)?.connection.0.index as usize,
            Action::StartRetrieve { process, .. } | Action::StartStore { process, .. } => process.0,
            _ => return None,
        };
        let entry = &self.processes[process];
        (entry.is_open && entry.stopped_until > self.now).then_some(entry.stopped_until)
    }

    /// Sends a message; it arrives after those that this connection has sent before.
    fn send(&mut self, process: ProcessId, call: Call, then: Then) {
        let latency = self.latency();
        let entry = &mut self.processes[process.0];
        if !entry.is_open {
            return;
        }
        let at = (self.now + latency).max(entry.last_arrival);
        entry.last_arrival = at;
        let connection = entry.connection(process);
        self.plan_at(at, Action::Arrive { connection, call, then });
    }

    fn arrive(&mut self, connection: Connection, call: Call, then: Then) -> Step {
        if !self.is_open(connection) {
            return Ok(());
        }
        let process = &self.processes[connection.0.index as usize];
        if process.speaks_bytes && process.cache.is_none() {
            return self.arrive_in_bytes(connection, call, then);
        }
        self.ask(connection, call, then)
    }

    /// The server has understood a request.
    fn ask(&mut self, connection: Connection, mut call: Call, then: Then) -> Step {
        if let Then::CommittedAs(_, own) = &then {
            self.sign(connection, &mut call, own);
        }
        let sense = match then {
            Then::Stray | Then::Lied(_) => Sense::Stray,
            Then::Committed(of) | Then::CommittedAs(of, _) | Then::HasRead(of) => Sense::Commit(of),
            _ => Sense::Plain,
        };
        // A liar that happens to name what it was lent lies about its own bytes.
        if sense == Sense::Stray && is_unfair(&self.bench.model, &call) {
            return Ok(());
        }
        let reply = self.bench.new_reply(connection);
        self.waiting.insert(reply, (call.clone(), then));
        self.feed_as(Input::Asked { reply, call }, sense)
    }

    fn feed(&mut self, input: Input) -> Step {
        self.feed_as(input, Sense::Plain)
    }

    /// Feeds one event and sees to what came of it.
    fn feed_as(&mut self, input: Input, sense: Sense) -> Step {
        self.note_input(&input, sense);
        let seen = self.bench.feed(self.now, &input)?;
        for seen in seen {
            match seen {
                Seen::Answered { reply, answer, slots } => self.answered(reply, answer, slots),
                Seen::Sending { reply, ticket, slots, with_slots } => {
                    self.sending(reply, ticket, slots, with_slots);
                }
                Seen::Receiving { ticket, slots, chunks, reply } => {
                    self.receiving(reply, ticket, slots, chunks);
                }
                Seen::Attaching { attachment, .. } => self.attaching(attachment),
                Seen::Detached { .. } => {}
                Seen::Copying(copying) => self.copying(*copying),
                Seen::Ordered(order) => self.ordered(order)?,
            }
        }
        Ok(())
    }

    fn note_input(&mut self, input: &Input, sense: Sense) {
        let Some(deeds) = &mut self.deeds else { return };
        let opened_for = |ticket| self.opened_for.get(ticket).copied();
        let deed = match input.clone() {
            Input::Asked { reply, call } => Deed::Asked { reply, call, sense },
            Input::SendEnded { ticket, outcome } => match opened_for(&ticket) {
                Some(reply) => Deed::SendEnded { reply, outcome },
                None => Deed::Other(input.clone()),
            },
            Input::ReceiveEnded { ticket, complete, outcome } => match opened_for(&ticket) {
                Some(reply) => Deed::ReceiveEnded { reply, complete, outcome },
                None => Deed::Other(input.clone()),
            },
            Input::CopyEnded { ticket, whole } => match opened_for(&ticket) {
                Some(reply) => Deed::CopyEnded { reply, whole },
                None => Deed::Other(input.clone()),
            },
            other => Deed::Other(other),
        };
        deeds.push((self.now, deed));
    }

    fn note(&mut self, deed: Deed) {
        if let Some(deeds) = &mut self.deeds {
            deeds.push((self.now, deed));
        }
    }

    /// An answer leaves the server. What it lends is in the client's hands from now on.
    fn answered(&mut self, reply: Reply, answer: Answer, slots: Vec<Lent>) {
        let Some((call, then)) = self.waiting.remove(&reply) else { return };
        let connection = reply.connection;
        let is_stunted =
            self.grown < self.profile.config.l1_bytes && self.grown == self.profile.grown_bytes_max;
        let refused = |fact: &Fact| matches!(fact, Fact::WriteRefused { why: NoRoom::Growing, .. });
        if is_stunted && self.bench.outbox().facts.iter().any(refused) {
            self.bench.reach.met(State::GrowthStopped);
        }
        if !slots.is_empty() {
            self.note_reader(&then);
            self.hold(reply, &call, slots);
        }
        self.answer(connection, call, then, answer);
    }

    fn answer(&mut self, connection: Connection, call: Call, then: Then, answer: Answer) {
        let at = self.now + self.latency();
        self.plan_at(at, Action::Return { connection, call, then, answer });
    }

    fn plan_at(&mut self, at: Instant, action: Action) {
        self.planned += 1;
        self.queue.push(Reverse(Planned { at, number: self.planned, action }));
    }

    fn plan_in(&mut self, delay: Duration, action: Action) {
        self.plan_at(self.now + delay, action);
    }

    /// Some time within `most`.
    fn plan(&mut self, most: Duration, action: Action) {
        let delay = self.rng.below(most.as_nanos() as u64 + 1);
        self.plan_at(Instant(self.now.0 + delay), action);
    }

    fn latency(&mut self) -> Duration {
        if self.is_rushing {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.rng.below(self.profile.latency.as_nanos() as u64 + 1))
    }

    fn chance(&mut self, parts: u64) -> bool {
        !self.is_healing && self.rng.chance_ppm(parts)
    }

    fn pick(&mut self, len: usize) -> usize {
        self.rng.below(len as u64) as usize
    }

    fn is_open(&self, connection: Connection) -> bool {
        let process = &self.processes[connection.0.index as usize];
        process.is_open && process.generation == connection.0.generation
    }
}
