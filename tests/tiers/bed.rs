//! An engine above pretended disks, on a virtual clock. Every order that the engine gives waits in
//! a list until the test ends it, in any order and with any outcome.
//!
//! The invariant: after every event the engine's own audit holds, and no ticket is issued twice.

use kvtide_core::config::{AdapterSetup, Config, Limits, PolicyKind};
use kvtide_core::effect::{Answer, Effect, Note, OperatorAnswer, Outbox};
use kvtide_core::engine::Engine;
use kvtide_core::event::{Ask, Event, Keys, LoadOutcome, Registration};
use kvtide_core::fact::{Fact, FactKey};
use kvtide_core::names::{
    AdapterId, ChunkHash, Connection, Dtype, InstanceId, L2Key, Layout, Place, Reply, Ticket,
};
use kvtide_core::slots::SlotName;
use kvtide_core::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

pub const OBJECT_BYTES: u64 = 256 << 10;
pub const READERS: u16 = 1;
const MODEL: &str = "llama";

/// An order to a lower tier that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    Probe {
        ticket: Ticket,
        adapter: AdapterId,
        keys: Vec<L2Key>,
    },
    Load {
        ticket: Ticket,
        adapter: AdapterId,
        key: L2Key,
        place: Place,
    },
    Digest {
        ticket: Ticket,
        key: L2Key,
        place: Place,
    },
    /// Stores, deletes and checks, which these tests end at once.
    Other {
        ticket: Ticket,
        effect: Effect,
    },
}

impl Order {
    pub fn ticket(&self) -> Ticket {
        match self {
            Order::Probe { ticket, .. }
            | Order::Load { ticket, .. }
            | Order::Digest { ticket, .. }
            | Order::Other { ticket, .. } => *ticket,
        }
    }
}

pub struct Bed {
    pub engine: Engine,
    pub now: Instant,
    pub orders: Vec<Order>,
    pub cancelled: BTreeSet<Ticket>,
    pub told: Vec<(Fact, Vec<FactKey>)>,
    /// Answers by the number of the request.
    pub answers: BTreeMap<u32, Answer>,
    /// What each adapter holds.
    pub disks: Vec<BTreeSet<ChunkHash>>,
    /// Lines for the indices at rest.
    pub notes: Vec<Note>,
    pub closed: Vec<AdapterId>,
    pub operator_answers: Vec<OperatorAnswer>,
    requests: u32,
    out: Outbox,
}

pub fn setup(name: &str) -> AdapterSetup<'_> {
    AdapterSetup {
        name,
        is_shared: true,
        keeps_data: true,
        capacity_bytes: 1 << 40,
        objects_max: 1024,
        charge_bytes: 4096,
        policy: PolicyKind::Lru,
        watermark_ppm: 800_000,
        ratio_ppm: 200_000,
        stores_max: 8,
        loads_max: 8,
        probe_deadline: Duration::from_secs(2),
        load_deadline: Duration::from_secs(5),
        store_deadline: Duration::from_secs(30),
        on_second_touch: false,
        write_bytes_per_second: 0,
        write_bytes_per_day: 0,
        scrub_bytes_per_second: 0,
        verify: true,
    }
}

/// A pool of so many objects.
pub fn config(objects: u64) -> Config {
    let limits = Limits {
        sessions: 64,
        lease_cells: 4096,
        instances: 16,
        told: 16,
        tickets: 256,
        waits: 64,
        flights: 256,
        demotions: 256,
        loads: 64,
        lent_ppm: 1_000_000,
        ..Limits::default()
    };
    let l1_bytes = (objects * OBJECT_BYTES).next_multiple_of(1 << 20);
    Config { l1_bytes, l1_objects_max: 1024, limits, ..Config::default() }
}

pub fn layout() -> Layout {
    let dtype = Dtype::named("float16").expect("a known type");
    Layout { planes: 1, layers: 1, slots: 16, hidden: (OBJECT_BYTES / 32) as u32, dtype }
}

pub fn hash(prompt: u8, chunk: u32) -> ChunkHash {
    let mut bytes = [0; 32];
    bytes[0] = prompt;
    bytes[1..5].copy_from_slice(&chunk.to_be_bytes());
    ChunkHash(bytes)
}

pub fn prompt(letter: u8, chunks: u32) -> Vec<ChunkHash> {
    (0..chunks).map(|chunk| hash(letter, chunk)).collect()
}

/// What the bytes of an object come to on a disk that keeps them.
pub fn digest_of(key: &L2Key) -> u32 {
    u32::from_be_bytes([key.hash.0[0], key.hash.0[2], key.hash.0[3], key.hash.0[4]])
}

impl Bed {
    /// An engine with a registered worker of a world of `ranks`, above so many shared adapters.
    pub fn new(config: Config, ranks: u32, adapters: &[AdapterSetup<'_>]) -> Bed {
        let bytes = config.l1_bytes;
        let mut bed = Bed {
            engine: Engine::new(config),
            now: Instant::ZERO,
            orders: Vec::new(),
            cancelled: BTreeSet::new(),
            told: Vec::new(),
            answers: BTreeMap::new(),
            disks: vec![BTreeSet::new(); adapters.len()],
            notes: Vec::new(),
            closed: Vec::new(),
            operator_answers: Vec::new(),
            requests: 0,
            out: Outbox::default(),
        };
        bed.handle(Event::ArenaGrown { bytes });
        for (at, setup) in adapters.iter().enumerate() {
            bed.handle(Event::AdapterAdded { adapter: AdapterId(at as u16), setup: *setup });
        }
        for rank in 0..ranks {
            bed.ask(Ask::Register(Registration {
                instance: InstanceId(rank.into()),
                model: MODEL,
                world_size: ranks,
                block_size: 16,
                layout: layout(),
            }));
        }
        bed
    }

    pub fn handle(&mut self, event: Event<'_>) {
        self.out.clear();
        self.engine.handle(self.now, event, &mut self.out);
        if let Err(violation) = self.engine.audit() {
            panic!("at {:?}: {violation:?}", self.now);
        }
        let out = std::mem::take(&mut self.out);
        for effect in &out.effects {
            self.take(*effect, &out);
        }
        for fact in &out.facts {
            let keys = keys_of(fact).map_or_else(Vec::new, |range| range.of(&out.keys).to_vec());
            self.told.push((fact.clone(), keys));
        }
        self.out = out;
    }

    fn take(&mut self, effect: Effect, out: &Outbox) {
        let order = match effect {
            Effect::Answer { reply, answer } => {
                self.answers.insert(reply.request.index, answer);
                return;
            }
            Effect::Probe { ticket, adapter, keys } => {
                Order::Probe { ticket, adapter, keys: out.l2_keys(keys).to_vec() }
            }
            Effect::LoadObject { ticket, adapter, key, place } => {
                Order::Load { ticket, adapter, key, place }
            }
            Effect::Digest { ticket, key, place } => Order::Digest { ticket, key, place },
            Effect::Cancel { ticket } => {
                self.cancelled.insert(ticket);
                return;
            }
            Effect::StoreObject { ticket, .. }
            | Effect::DeleteObject { ticket, .. }
            | Effect::Scrub { ticket, .. } => Order::Other { ticket, effect },
            Effect::Note { note, .. } => return self.notes.push(note),
            Effect::AdapterClosed { adapter } => return self.closed.push(adapter),
            Effect::OperatorAnswer { answer, .. } => return self.operator_answers.push(answer),
            Effect::Send { .. } | Effect::Receive { .. } => return,
            Effect::Attach { .. } | Effect::Detach { .. } | Effect::Copy { .. } => {
                unreachable!("nobody registers memory here")
            }
        };
        let is_new = self.orders.iter().all(|other| other.ticket() != order.ticket());
        assert!(is_new, "a ticket is issued once");
        self.orders.push(order);
    }

    /// Asks, and says under which number the answer will stand.
    pub fn ask(&mut self, ask: Ask<'_>) -> u32 {
        let number = self.requests;
        self.requests += 1;
        let request = SlotName { index: number, generation: 0 };
        let connection = Connection(SlotName { index: 1, generation: 0 });
        self.handle(Event::Asked { reply: Reply { connection, request }, ask });
        number
    }

    pub fn keys<'a>(
        request: &'a str,
        world_size: u32,
        worker: Option<u32>,
        hashes: &'a [ChunkHash],
    ) -> Keys<'a> {
        Keys {
            model: MODEL,
            salt: "",
            request,
            world_size,
            worker,
            readers: READERS,
            first_chunk: 0,
            end_chunk: hashes.len() as u32,
            hashes,
        }
    }

    pub fn lookup(&mut self, request: &str, ranks: u32, hashes: &[ChunkHash]) {
        self.ask(Ask::Lookup { keys: Bed::keys(request, ranks, None, hashes) });
        self.work();
    }

    /// Goes on with what is unfinished.
    pub fn work(&mut self) {
        while self.engine.deadline().is_some_and(|(at, _)| at <= self.now) {
            self.handle(Event::Tick);
        }
    }

    /// What a poll is answered: None while it loads.
    pub fn query(&mut self, request: &str) -> Option<u64> {
        let number = self.ask(Ask::QueryPrefetch { request });
        match self.answers[&number] {
            Answer::None => None,
            Answer::Count(count) => Some(count),
            other => panic!("no answer of a query: {other:?}"),
        }
    }

    /// Ends the order at this place as a good disk would.
    pub fn end(&mut self, at: usize) {
        match self.orders.remove(at) {
            Order::Probe { ticket, adapter, keys } => {
                let disk = &self.disks[usize::from(adapter.0)];
                let found = |key: &L2Key| disk.contains(&key.hash).then_some(OBJECT_BYTES);
                let found: Vec<_> = keys.iter().map(found).collect();
                self.handle(Event::ProbeEnded { ticket, found: Some(&found) });
            }
            Order::Load { ticket, adapter, key, .. } => {
                let is_there = self.disks[usize::from(adapter.0)].contains(&key.hash);
                let outcome = if is_there { LoadOutcome::Loaded } else { LoadOutcome::Absent };
                self.handle(Event::LoadEnded { ticket, outcome });
            }
            Order::Digest { ticket, key, .. } => {
                self.handle(Event::DigestEnded { ticket, digest: digest_of(&key) });
            }
            Order::Other { ticket, effect } => self.end_other(ticket, effect),
        }
        self.work();
    }

    fn end_other(&mut self, ticket: Ticket, effect: Effect) {
        use kvtide_core::event::{DeleteOutcome, StoreOutcome};
        match effect {
            Effect::StoreObject { adapter, key, .. } => {
                self.disks[usize::from(adapter.0)].insert(key.hash);
                self.handle(Event::StoreEnded { ticket, outcome: StoreOutcome::Stored });
            }
            Effect::DeleteObject { adapter, key, .. } => {
                self.disks[usize::from(adapter.0)].remove(&key.hash);
                self.handle(Event::DeleteEnded { ticket, outcome: DeleteOutcome::Deleted });
            }
            _ => self.handle(Event::ScrubEnded { ticket, digest: None }),
        }
    }

    /// Ends everything, what comes of it included.
    pub fn end_all(&mut self) {
        while !self.orders.is_empty() {
            self.end(0);
        }
    }

    /// Lets time pass, alarm by alarm.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some((at, _)) = self.engine.deadline().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            self.handle(Event::Tick);
        }
        self.now = until;
    }

    pub fn find_told(&self, mut is_it: impl FnMut(&Fact) -> bool) -> usize {
        self.told.iter().filter(|(fact, _)| is_it(fact)).count()
    }
}

fn keys_of(fact: &Fact) -> Option<kvtide_core::fact::KeyRange> {
    match fact {
        Fact::L2PrefetchFailed { keys, .. }
        | Fact::L2LoadEnded { keys, .. }
        | Fact::L2LoadSubmitted { keys, .. }
        | Fact::Evicted { keys, .. }
        | Fact::ReadReserved { keys, .. }
        | Fact::WriteFinished { keys } => Some(*keys),
        _ => None,
    }
}
