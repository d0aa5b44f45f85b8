//! The engine alone on a virtual clock: what the tests of its rules and the scenes share.
//!
//! The invariant: after every event the engine's own audit holds, and no request is answered twice
//! or without having been asked.

// Every binary that includes this file uses a part of it.
#![allow(dead_code)]

use crate::transcript::Transcript;
use kvtide_core::config::{Config, Limits};
use kvtide_core::effect::{Answer, Effect, Outbox, Slot};
use kvtide_core::engine::{Alarm, Engine, Status};
use kvtide_core::event::{Ask, BodyOutcome, Event, Keys, OperatorAsk, Registration, SendOutcome};
use kvtide_core::fact::{Fact, FactKey, KeyRange};
use kvtide_core::limits;
use kvtide_core::names::{Attachment, ChunkHash, Connection, Dtype, InstanceId, Layout, Operator};
use kvtide_core::names::{Reply, Ticket};
use kvtide_core::slots::SlotName;
use kvtide_core::time::{Duration, Instant};
use std::collections::BTreeSet;
use std::ops::Range;

pub const MIB: u64 = 1 << 20;

/// One engine worker, and the scheduler that speaks of the same model.
#[derive(Clone, Copy, Debug)]
pub struct Worker {
    pub instance: InstanceId,
    pub connection: Connection,
    pub model: &'static str,
    pub salt: &'static str,
    pub world_size: u32,
    pub rank: u32,
    pub layout: Layout,
}

impl Worker {
    /// Worker `number` of a world of one, over a connection of the same number.
    pub fn new(number: u32) -> Worker {
        Worker {
            instance: InstanceId(number as i64),
            connection: connection(number),
            model: "llama",
            salt: "",
            world_size: 1,
            rank: 0,
            layout: layout_of(MIB),
        }
    }

    pub fn with_salt(self, salt: &'static str) -> Worker {
        Worker { salt, ..self }
    }

    pub fn with_model(self, model: &'static str) -> Worker {
        Worker { model, ..self }
    }

    pub fn with_layout(self, layout: Layout) -> Worker {
        Worker { layout, ..self }
    }

    pub fn with_rank(self, rank: u32, world_size: u32) -> Worker {
        Worker { rank, world_size, ..self }
    }

    pub fn registration(&self) -> Registration<'_> {
        Registration {
            instance: self.instance,
            model: self.model,
            world_size: self.world_size,
            block_size: 16,
            layout: self.layout,
        }
    }

    /// What this worker stores or retrieves.
    pub fn keys<'a>(
        &'a self,
        request: &'a str,
        prompt: &'a [ChunkHash],
        chunks: Range<u32>,
    ) -> Keys<'a> {
        Keys {
            model: self.model,
            salt: self.salt,
            request,
            world_size: self.world_size,
            worker: Some(self.rank),
            readers: 1,
            first_chunk: chunks.start,
            end_chunk: chunks.end,
            hashes: &prompt[..chunks.end as usize],
        }
    }

    /// What the scheduler looks up or gives back, for all ranks.
    pub fn all_ranks<'a>(
        &'a self,
        request: &'a str,
        prompt: &'a [ChunkHash],
        chunks: Range<u32>,
    ) -> Keys<'a> {
        Keys { worker: None, ..self.keys(request, prompt, chunks) }
    }
}

pub fn connection(number: u32) -> Connection {
    Connection(SlotName { index: number, generation: 0 })
}

/// Schedulers share one connection in these tests; nothing is owned by it.
pub fn scheduler() -> Connection {
    connection(100)
}

/// A layout whose objects have this many bytes.
pub fn layout_of(bytes: u64) -> Layout {
    let dtype = Dtype::named("float16").expect("a known type");
    assert!(bytes.is_multiple_of(4096), "16 slots of 128 elements and more");
    let layout = Layout { planes: 1, layers: 1, slots: 16, hidden: (bytes / 32) as u32, dtype };
    assert_eq!(layout.bytes(), Some(bytes));
    layout
}

/// A prompt of so many chunks. Its letter and its chunk numbers are what transcripts show.
pub fn prompt(letter: char, chunks: u32) -> Vec<ChunkHash> {
    (0..chunks).map(|chunk| hash(letter as u8, chunk)).collect()
}

fn hash(letter: u8, chunk: u32) -> ChunkHash {
    let mut bytes = [0; 32];
    bytes[0] = letter;
    bytes[1..5].copy_from_slice(&chunk.to_be_bytes());
    ChunkHash(bytes)
}

/// What one request has been given.
#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    /// Nothing yet.
    Nothing,
    Answer(Answer),
    /// `StoreSlots` and `RetrieveSlots`.
    Slots(Vec<Slot>),
    /// Payload in the answer, with or without slots beside it.
    Sent {
        ticket: Ticket,
        slots: Vec<Slot>,
        with_slots: bool,
    },
    /// The body is to be read into these.
    Receiving {
        ticket: Ticket,
        slots: Vec<Slot>,
    },
    /// Memory is to be attached.
    Attaching {
        attachment: Attachment,
    },
    /// Blocks are to be copied from or to these.
    Copying {
        ticket: Ticket,
        slots: Vec<Slot>,
        blocks: Vec<u32>,
    },
}

impl Got {
    pub fn slots(self) -> Vec<Slot> {
        match self {
            Got::Slots(slots) => slots,
            got => panic!("expected slots, got {got:?}"),
        }
    }

    pub fn receiving(self) -> (Ticket, Vec<Slot>) {
        match self {
            Got::Receiving { ticket, slots } => (ticket, slots),
            got => panic!("expected to receive, got {got:?}"),
        }
    }

    pub fn sent(self) -> Ticket {
        match self {
            Got::Sent { ticket, .. } => ticket,
            got => panic!("expected payload, got {got:?}"),
        }
    }
}

/// A fact with its keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub at: Instant,
    pub fact: Fact,
    pub keys: Vec<FactKey>,
}

/// A configuration with small tables: `objects` objects of 1 MiB fill the pool.
pub fn config(objects: u64) -> Config {
    let limits = Limits {
        sessions: 256,
        lease_cells: 1 << 16,
        instances: 64,
        told: 64,
        tickets: 2048,
        waits: 64,
        // The whole pool: what writers may hold of it is a subject of its own.
        lent_ppm: 1_000_000,
        ..Limits::default()
    };
    Config { l1_bytes: objects * MIB, l1_objects_max: 4096, limits, ..Config::default() }
}

pub struct Bench {
    pub engine: Engine,
    pub now: Instant,
    /// Facts since they were last taken.
    pub told: Vec<Told>,
    /// Answers that came later than their request.
    pub late: Vec<(Reply, Answer)>,
    /// Memory that was let go.
    pub detached: Vec<Attachment>,
    /// Audit after every event. Long runs do it by themselves now and then.
    pub audits: bool,
    /// Most cells of any turn.
    pub longest: usize,
    pub transcript: Option<Transcript>,
    unanswered: BTreeSet<Reply>,
    /// Those of them that may be parked: they end with their connection.
    waits: BTreeSet<Reply>,
    requests: u32,
    out: Outbox,
}

impl Bench {
    /// An engine whose whole arena is usable.
    pub fn new(config: Config) -> Bench {
        let bytes = config.l1_bytes;
        let mut bench = Bench::without_arena(config);
        bench.handle(Event::ArenaGrown { bytes });
        bench
    }

    pub fn without_arena(config: Config) -> Bench {
        Bench {
            engine: Engine::new(config),
            now: Instant::ZERO,
            told: Vec::new(),
            late: Vec::new(),
            detached: Vec::new(),
            audits: true,
            longest: 0,
            transcript: None,
            unanswered: BTreeSet::new(),
            waits: BTreeSet::new(),
            requests: 0,
            out: Outbox::default(),
        }
    }

    /// Feeds one event. Returns what came of the request in it, if it was one.
    pub fn handle(&mut self, event: Event<'_>) -> Got {
        let asked = match &event {
            Event::Asked { reply, .. } => Some(*reply),
            _ => None,
        };
        if let Some(reply) = asked {
            assert!(self.unanswered.insert(reply), "a request is asked once: {reply:?}");
        }
        match &event {
            Event::Asked { reply, ask: Ask::WaitPrefetch { .. } } => {
                self.waits.insert(*reply);
            }
            Event::ConnectionEnded { connection } => {
                let waits = &self.waits;
                let is_over = |reply: &Reply| reply.connection == *connection;
                self.unanswered.retain(|reply| !(is_over(reply) && waits.contains(reply)));
            }
            _ => {}
        }
        let is_tick = matches!(event, Event::Tick);
        let own = match &event {
            Event::Asked { ask, .. } => chunks_of(ask),
            Event::SendEnded { .. } | Event::ReceiveEnded { .. } | Event::CopyEnded { .. } => {
                limits::REQUEST_CHUNKS_MAX
            }
            _ => 0,
        };
        let line = self.transcript.as_mut().map(|transcript| transcript.event(&event));
        self.out.clear();
        self.engine.handle(self.now, event, &mut self.out);
        if let (Some(transcript), Some(line)) = (&mut self.transcript, line) {
            let status = transcript.shows_pool.then(|| self.engine.status());
            transcript.add(self.now, line, asked, &self.out, status.as_ref());
        }
        self.check_work(own);
        // A second that passes without news has changed nothing that the audit looks at.
        let is_quiet = self.out.effects.is_empty() && self.out.facts.iter().all(is_routine);
        if self.audits && !(is_tick && is_quiet) {
            self.audit();
        }
        self.collect(asked)
    }

    /// A turn is bounded, whatever the event (design §2).
    fn check_work(&mut self, own: usize) {
        let work = self.engine.work();
        let most = self.engine.config().limits.work_units + limits::WORK_OVERSHOOT;
        assert!(work.counted <= most, "a turn of {work:?}, at most {most}");
        assert!(work.own <= limits::COPIES_PER_NAME_MAX * own, "{work:?} for {own} chunks");
        self.longest = self.longest.max(work.counted);
    }

    pub fn audit(&self) {
        if let Err(violation) = self.engine.audit() {
            panic!("at {:?}: {violation:?}", self.now);
        }
    }

    fn collect(&mut self, asked: Option<Reply>) -> Got {
        let mut got = Got::Nothing;
        for effect in &self.out.effects {
            let slots = |range| self.out.slots(range).to_vec();
            let (reply, what) = match *effect {
                Effect::Answer { reply, answer } => {
                    self.unanswered.take(&reply).expect("one answer for each request");
                    let what = match answer {
                        Answer::StoreSlots { slots: range, .. }
                        | Answer::RetrieveSlots { slots: range, .. } => Got::Slots(slots(range)),
                        answer => Got::Answer(answer),
                    };
                    if Some(reply) != asked {
                        self.late.push((reply, answer));
                    }
                    (reply, what)
                }
                Effect::Send { reply, ticket, slots: range, with_slots, .. } => {
                    self.unanswered.take(&reply).expect("one answer for each request");
                    (reply, Got::Sent { ticket, slots: slots(range), with_slots })
                }
                Effect::Receive { reply, ticket, slots: range, .. } => {
                    (reply, Got::Receiving { ticket, slots: slots(range) })
                }
                Effect::Attach { reply, attachment, .. } => (reply, Got::Attaching { attachment }),
                Effect::Copy { ticket, copy, .. } => {
                    let reply = asked.expect("a copy begins with its request");
                    let (slots, blocks) =
                        (slots(copy.slots), self.out.blocks(copy.blocks).to_vec());
                    (reply, Got::Copying { ticket, slots, blocks })
                }
                Effect::Detach { attachment } => {
                    self.detached.push(attachment);
                    continue;
                }
                Effect::OperatorAnswer { .. }
                | Effect::Probe { .. }
                | Effect::StoreObject { .. }
                | Effect::LoadObject { .. }
                | Effect::DeleteObject { .. }
                | Effect::Digest { .. }
                | Effect::Scrub { .. }
                | Effect::Cancel { .. }
                | Effect::Note { .. }
                | Effect::AdapterClosed { .. } => continue,
            };
            if Some(reply) == asked {
                assert_eq!(got, Got::Nothing, "one effect for each request");
                got = what;
            }
        }
        for fact in &self.out.facts {
            let keys = keys_of(fact).map_or_else(Vec::new, |range| range.of(&self.out.keys).into());
            self.told.push(Told { at: self.now, fact: fact.clone(), keys });
        }
        got
    }

    /// A name for the next request over a connection.
    pub fn reply(&mut self, connection: Connection) -> Reply {
        self.requests += 1;
        let request = SlotName { index: self.requests, generation: 0 };
        Reply { connection, request }
    }

    pub fn ask(&mut self, connection: Connection, ask: Ask<'_>) -> Got {
        let reply = self.reply(connection);
        self.handle(Event::Asked { reply, ask })
    }

    pub fn register(&mut self, worker: &Worker) {
        let got = self.ask(worker.connection, Ask::Register(worker.registration()));
        assert_eq!(got, Got::Answer(Answer::Registered));
    }

    pub fn unregister(&mut self, worker: &Worker) {
        let instance = worker.instance;
        let got = self.ask(worker.connection, Ask::Unregister { instance });
        assert_eq!(got, Got::Answer(Answer::None));
    }

    pub fn ping(&mut self, worker: &Worker) -> bool {
        let instance = Some(worker.instance);
        yes(self.ask(worker.connection, Ask::Ping { instance }))
    }

    pub fn prepare_store(
        &mut self,
        worker: &Worker,
        prompt: &[ChunkHash],
        chunks: Range<u32>,
    ) -> Got {
        let keys = worker.keys("store", prompt, chunks);
        self.ask(worker.connection, Ask::PrepareStore { instance: worker.instance, keys })
    }

    pub fn commit_store(
        &mut self,
        worker: &Worker,
        prompt: &[ChunkHash],
        chunks: Range<u32>,
    ) -> bool {
        let (instance, keys) = (worker.instance, worker.keys("store", prompt, chunks));
        yes(self.ask(worker.connection, Ask::CommitStore { instance, keys, inline_bytes: 0 }))
    }

    /// A commit with its bytes in the message.
    pub fn commit_inline(
        &mut self,
        worker: &Worker,
        prompt: &[ChunkHash],
        chunks: Range<u32>,
    ) -> Got {
        let (instance, keys) = (worker.instance, worker.keys("store", prompt, chunks));
        self.ask(worker.connection, Ask::CommitStore { instance, keys, inline_bytes: 1 })
    }

    /// Prepare and, where there is something to write, commit. The slots that were written.
    pub fn store(
        &mut self,
        worker: &Worker,
        prompt: &[ChunkHash],
        chunks: Range<u32>,
    ) -> Vec<Slot> {
        match self.prepare_store(worker, prompt, chunks.clone()) {
            Got::Slots(slots) => {
                if !slots.is_empty() {
                    assert!(self.commit_store(worker, prompt, chunks), "what was lent is stored");
                }
                slots
            }
            Got::Answer(Answer::NoContext) => Vec::new(),
            got => panic!("prepare_store is answered with {got:?}"),
        }
    }

    /// Looks a whole prompt up. The answer to the lookup says nothing yet.
    pub fn lookup(&mut self, worker: &Worker, request: &str, prompt: &[ChunkHash], readers: u16) {
        let keys = worker.all_ranks(request, prompt, 0..prompt.len() as u32);
        let got = self.ask(scheduler(), Ask::Lookup { keys: Keys { readers, ..keys } });
        assert_eq!(got, Got::Answer(Answer::None));
    }

    pub fn query(&mut self, request: &str) -> Option<u64> {
        match self.ask(scheduler(), Ask::QueryPrefetch { request }) {
            Got::Answer(Answer::Count(hit)) => Some(hit),
            Got::Answer(Answer::None) => None,
            got => panic!("a poll is answered with {got:?}"),
        }
    }

    /// Lookup and poll at once, for lookups that fit one turn.
    pub fn hit(&mut self, worker: &Worker, request: &str, prompt: &[ChunkHash]) -> u64 {
        self.lookup(worker, request, prompt, 1);
        self.query(request).expect("a short lookup is decided at once")
    }

    pub fn prepare_retrieve(
        &mut self,
        worker: &Worker,
        request: &str,
        prompt: &[ChunkHash],
        chunks: Range<u32>,
    ) -> Got {
        let keys = worker.keys(request, prompt, chunks);
        self.ask(worker.connection, Ask::PrepareRetrieve { instance: worker.instance, keys })
    }

    /// A whole retrieve, over slots or payload or both. False for a miss.
    pub fn retrieve(
        &mut self,
        worker: &Worker,
        request: &str,
        prompt: &[ChunkHash],
        chunks: Range<u32>,
    ) -> bool {
        match self.prepare_retrieve(worker, request, prompt, chunks.clone()) {
            Got::Slots(slots) => assert_eq!(slots.len(), chunks.len()),
            Got::Sent { ticket, slots, .. } => {
                assert_eq!(slots.len(), chunks.len());
                self.end_send(ticket);
            }
            Got::Answer(Answer::RetrieveMiss) => return false,
            got => panic!("prepare_retrieve is answered with {got:?}"),
        }
        self.commit_retrieve(worker, request, prompt, chunks);
        true
    }

    pub fn commit_retrieve(
        &mut self,
        worker: &Worker,
        request: &str,
        prompt: &[ChunkHash],
        chunks: Range<u32>,
    ) {
        let keys = worker.keys(request, prompt, chunks);
        let instance = worker.instance;
        assert!(yes(self.ask(worker.connection, Ask::CommitRetrieve { instance, keys })));
    }

    pub fn free(&mut self, worker: &Worker, request: &str, prompt: &[ChunkHash]) {
        let keys = worker.all_ranks(request, prompt, 0..prompt.len() as u32);
        let got = self.ask(scheduler(), Ask::FreeLookupLocks { keys });
        assert_eq!(got, Got::Answer(Answer::None));
    }

    pub fn end_session(&mut self, request: &str) {
        let got = self.ask(scheduler(), Ask::EndSession { request, hashes: &[] });
        assert_eq!(got, Got::Answer(Answer::None));
    }

    pub fn end_connection(&mut self, worker: &Worker) {
        self.handle(Event::ConnectionEnded { connection: worker.connection });
    }

    pub fn end_send(&mut self, ticket: Ticket) {
        self.handle(Event::SendEnded { ticket, outcome: SendOutcome::Sent });
    }

    /// The connection ended before all of the payload had left.
    pub fn cut_send(&mut self, ticket: Ticket) {
        self.handle(Event::SendEnded { ticket, outcome: SendOutcome::Cut });
    }

    pub fn end_receive(&mut self, ticket: Ticket, complete: u32, outcome: BodyOutcome) {
        self.handle(Event::ReceiveEnded { ticket, complete, outcome });
    }

    pub fn clear(&mut self, force: bool) {
        let ask = OperatorAsk::Clear { force };
        self.handle(Event::OperatorAsked { operator: Operator(0), ask });
    }

    /// Lets virtual time pass, with a tick at every deadline.
    pub fn advance(&mut self, by: Duration) {
        let until = self.now + by;
        while let Some((at, _)) = self.engine.deadline().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            self.handle(Event::Tick);
        }
        self.now = until;
    }

    /// Lets a time limit of this length run out: alarms may be late by a millisecond.
    pub fn outlast(&mut self, limit: Duration) {
        self.advance(limit + Duration::from_millis(2));
    }

    /// Ticks until the watermark has been looked at once more.
    pub fn until_eviction_tick(&mut self) {
        let before = self.told.len();
        let looked = |told: &Told| matches!(told.fact, Fact::EvictionTick { .. });
        while !self.told[before..].iter().any(looked) {
            let (at, _) = self.engine.deadline().expect("the watermark is looked at for ever");
            self.now = self.now.max(at);
            self.handle(Event::Tick);
        }
        self.settle();
    }

    /// Ticks until no job is left over, without letting time pass. How many it took.
    pub fn settle(&mut self) -> u32 {
        let mut ticks = 0;
        while self.engine.deadline().is_some_and(|(_, alarm)| alarm == Alarm::Work) {
            self.handle(Event::Tick);
            ticks += 1;
            assert!(ticks < 100_000, "work comes to an end");
        }
        ticks
    }

    pub fn status(&self) -> Status {
        self.engine.status()
    }

    /// Facts since the last time, without the news of every second.
    pub fn take_told(&mut self) -> Vec<Told> {
        let mut told = std::mem::take(&mut self.told);
        told.retain(|told| !is_routine(&told.fact));
        told
    }

    pub fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// What P4 demands: nothing is held for anybody.
    pub fn assert_quiet(&self) {
        assert!(self.engine.is_quiet(), "something is left: {:#?}", self.status());
        let status = self.status();
        assert_eq!((status.lease_units, status.tickets, status.jobs), (0, 0, 0));
        assert_eq!((status.staged_bytes, status.condemned_bytes, status.leased_bytes), (0, 0, 0));
        assert_eq!(self.unanswered(), 0, "every request has its answer");
    }
}

fn chunks_of(ask: &Ask<'_>) -> usize {
    match ask {
        Ask::Lookup { keys }
        | Ask::FreeLookupLocks { keys }
        | Ask::PrepareStore { keys, .. }
        | Ask::CommitStore { keys, .. }
        | Ask::PrepareRetrieve { keys, .. }
        | Ask::CommitRetrieve { keys, .. }
        | Ask::Store { keys, .. }
        | Ask::Retrieve { keys, .. } => keys.chunks().len(),
        _ => 0,
    }
}

fn yes(got: Got) -> bool {
    match got {
        Got::Answer(Answer::Bool(yes)) => yes,
        got => panic!("expected yes or no, got {got:?}"),
    }
}

/// News of every second, whatever happens.
pub fn is_routine(fact: &Fact) -> bool {
    match fact {
        Fact::EvictionTick { triggered, .. } => !triggered,
        Fact::Gauges(_) => true,
        _ => false,
    }
}

/// The keys that a fact speaks of.
pub fn keys_of(fact: &Fact) -> Option<KeyRange> {
    match fact {
        Fact::WriteReserved { keys }
        | Fact::WriteFinished { keys }
        | Fact::WriteAborted { keys, .. }
        | Fact::WriteRefused { keys, .. }
        | Fact::StoreFinished { stored: keys, .. }
        | Fact::ReadReserved { keys, .. }
        | Fact::ReadFinished { keys, .. }
        | Fact::ReadFailed { keys, .. }
        | Fact::Accessed { keys }
        | Fact::Evicted { keys, .. }
        | Fact::Retrieved { keys, .. }
        | Fact::Stored { keys, .. }
        | Fact::L2StoreSubmitted { keys, .. }
        | Fact::L2StoreEnded { keys, .. }
        | Fact::L2StoreDropped { keys, .. }
        | Fact::L2LoadSubmitted { keys, .. }
        | Fact::L2LoadEnded { keys, .. }
        | Fact::L2PrefetchFailed { keys, .. }
        | Fact::L2Stored { keys, .. }
        | Fact::L2Accessed { keys, .. }
        | Fact::L2Removed { keys, .. } => Some(*keys),
        Fact::TenantNamed { .. }
        | Fact::InstanceRegistered { .. }
        | Fact::InstanceEnded { .. }
        | Fact::InstanceTold { .. }
        | Fact::RegistrationRefused { .. }
        | Fact::RequestFaulted { .. }
        | Fact::EvictionTick { .. }
        | Fact::LookupTaken { .. }
        | Fact::LookupSkipped { .. }
        | Fact::AdapterNamed { .. }
        | Fact::AdapterChanged { .. }
        | Fact::L2ScanSkipped { .. }
        | Fact::L2LookupSubmitted { .. }
        | Fact::L2LookupFound { .. }
        | Fact::StaleEnding
        | Fact::Cleared { .. }
        | Fact::QuotaChanged
        | Fact::Gauges(_) => None,
    }
}
