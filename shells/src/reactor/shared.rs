//! What all connections share: the way to the engine, the tables and the buffers. Invariant: every
//! event reaches the engine through `Door::tell`, so that each is timed and none is forgotten.

use super::buffers::{Budgets, Buffers};
use super::counters::Counters;
use super::recent::EventName;
use super::requests::Requests;
use super::turns::Turns;
use crate::arena::Arena;
use crate::clock::Clock;
use crate::record::Recording;
use kvtide_core::effect::Outbox;
use kvtide_core::engine::Engine;
use kvtide_core::event::{Ask, Event, SendOutcome};
use kvtide_core::format::names::ObjectName;
use kvtide_core::front::Front;
use kvtide_core::front::paged::Memory;
use kvtide_core::limits::{
    BUFFER_BUDGET_BYTES, INPUT_BYTES_PER_TURN, REQUEST_CHUNKS_MAX, REQUESTS_MAX,
};
use kvtide_core::names::{Attachment, Connection, InstanceId, L2Key, Reply, Ticket};
use kvtide_core::time::Instant;
use kvtide_core::wire::answer::Context;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// The engine as the reactor sees it. A trait, because tests script one to bring about what the
/// real one does rarely: answers that come late, or never, and payload for clients that left.
pub trait Desk {
    fn handle(&mut self, now: Instant, event: Event<'_>, out: &mut Outbox);

    /// When the next `Event::Tick` is wanted.
    fn next_tick(&self) -> Option<Instant>;

    /// The name at rest of an object that an effect has just named. Asked only of who orders
    /// something of lower tiers.
    fn l2_name(&self, key: &L2Key) -> ObjectName<'_> {
        unreachable!("nobody here names {key:?}")
    }

    /// The memory that an instance has registered.
    fn attachment_of(&self, _instance: InstanceId) -> Option<Attachment> {
        None
    }

    /// Tells again every name that facts use by number, after facts were lost.
    fn retell(&mut self, out: &mut Outbox);

    /// The server ends: whatever waits is answered now.
    fn finish(&mut self, now: Instant, out: &mut Outbox);
}

impl Desk for Engine {
    fn handle(&mut self, now: Instant, event: Event<'_>, out: &mut Outbox) {
        Engine::handle(self, now, event, out);
    }

    fn next_tick(&self) -> Option<Instant> {
        self.deadline().map(|(at, _)| at)
    }

    fn l2_name(&self, key: &L2Key) -> ObjectName<'_> {
        Engine::l2_name(self, key)
    }

    fn attachment_of(&self, instance: InstanceId) -> Option<Attachment> {
        Engine::attachment_of(self, instance)
    }

    fn retell(&mut self, out: &mut Outbox) {
        Engine::retell(self, out);
    }

    fn finish(&mut self, now: Instant, out: &mut Outbox) {
        Engine::finish(self, now, out);
    }
}

/// The one way to the engine.
pub struct Door<E> {
    pub engine: E,
    pub out: Outbox,
    /// Slots that were ordered in this turn.
    pub ordered: usize,
    pub turns: Turns,
    pub clock: Clock,
    /// What is told and what comes of it, kept.
    pub recording: Option<Recording>,
}

impl<E: Desk> Door<E> {
    pub fn tell(&mut self, event: Event<'_>) {
        let now = self.clock.now();
        let name = EventName::of(&event);
        self.turns.begins(now, name);
        let before = self.out.slots.len();
        match &mut self.recording {
            Some(recording) => recording.handle(&mut self.engine, now, event, &mut self.out),
            None => self.engine.handle(now, event, &mut self.out),
        }
        self.ordered += self.out.slots.len() - before;
        self.turns.event(name, self.clock.now().since(now));
    }

    /// Whose tokens are to be recorded with this question, if anybody's.
    pub fn speaker(&self, ask: &Ask<'_>) -> Option<String> {
        self.recording.as_ref()?.speaker(ask)
    }

    /// The server ends: whatever waits is answered.
    pub fn finish(&mut self, now: Instant) {
        match &mut self.recording {
            Some(recording) => recording.finish(&mut self.engine, now, &mut self.out),
            None => self.engine.finish(now, &mut self.out),
        }
    }
}

/// What all connections have to heed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// The server is ending.
    pub stopping: bool,
    /// Buffers are scarce: who leaves much unread is not read either.
    pub scarce: bool,
}

pub struct Shared<E> {
    pub door: Door<E>,
    pub front: Front,
    pub arena: Arena,
    pub requests: Requests,
    /// What registrations of this turn say of their memory, until it is attached.
    pub memories: BTreeMap<Reply, Memory>,
    /// Events that transfers of this turn brought, as handles for a card.
    pub events: BTreeMap<Reply, SmallVec<[u8; 88]>>,
    pub buffers: Buffers,
    pub budgets: Budgets,
    /// What all connections buffer, as each of them last told.
    pub buffered_bytes: usize,
    pub counters: Counters,
    /// When this turn began.
    pub now: Instant,
    /// The server is ending: what has come is answered, and then nothing more is taken.
    pub stopping: bool,
    /// Connections with a message for which the request table has no place, in order.
    pub starved: VecDeque<Connection>,
    /// Connections with something to write.
    pub dirty: VecDeque<Connection>,
    /// Where sockets are read into.
    pub scratch: Vec<u8>,
    /// Tickets whose places are no longer read; told to the engine after the queue was left.
    pub sent: Vec<Ticket>,
    /// The same, but the bytes did not all leave.
    pub cut: Vec<Ticket>,
}

impl<E: Desk> Shared<E> {
    pub fn new(door: Door<E>, front: Front, arena: Arena) -> Shared<E> {
        Shared {
            door,
            front,
            arena,
            requests: Requests::with_limit(REQUESTS_MAX),
            memories: BTreeMap::new(),
            events: BTreeMap::new(),
            buffers: Buffers::default(),
            budgets: Budgets::new(),
            buffered_bytes: 0,
            counters: Counters::default(),
            now: Instant::ZERO,
            stopping: false,
            starved: VecDeque::new(),
            dirty: VecDeque::new(),
            scratch: vec![0; INPUT_BYTES_PER_TURN],
            sent: Vec::new(),
            cut: Vec::new(),
        }
    }

    /// On which terms connections are served in this turn.
    pub fn terms(&self) -> Terms {
        let scarce = self.buffered_bytes > BUFFER_BUDGET_BYTES / 2;
        Terms { stopping: self.stopping, scarce }
    }

    /// Whether this turn has ordered as much output as a turn may. A request of a few bytes may be
    /// answered with thousands of slots, and they are queued only when the turn has served all.
    pub fn is_turn_full(&self) -> bool {
        self.door.ordered >= SLOTS_PER_TURN
    }

    /// What answers say of the pool: nothing where clients cannot map it.
    pub fn context(&self) -> Context<'_> {
        match self.arena.pool_name() {
            Some(pool_name) => Context { pool_name, pool_bytes: self.arena.bytes() },
            None => Context::default(),
        }
    }

    /// What came with this turn's requests and nobody has wanted.
    pub fn forget_unwanted(&mut self) {
        self.memories.clear();
        self.events.clear();
    }

    /// Records the tokens of a question that was just put, where they are wanted.
    pub fn record_tokens(&mut self, request: &str) {
        let now = self.door.clock.now();
        if let Some(recording) = &mut self.door.recording {
            recording.tokens(now, request, self.front.memo());
        }
    }

    /// Tells the engine of every payload that is no longer read.
    pub fn tell_sent(&mut self) {
        for (tickets, outcome) in
            [(&mut self.sent, SendOutcome::Sent), (&mut self.cut, SendOutcome::Cut)]
        {
            while let Some(ticket) = tickets.pop() {
                self.door.tell(Event::SendEnded { ticket, outcome });
            }
        }
    }
}

/// Slots ordered in one turn; the request that reaches it is still carried out.
pub const SLOTS_PER_TURN: usize = 4 * REQUEST_CHUNKS_MAX;
