//! A small world for tests that say themselves what happens: one scheduler, a worker per rank,
//! documents of a few chunks. Every event goes over the bench; a broken rule is a panic.

use crate::bench::{Bench, Copying, Lent, Seen};
use crate::calls::{Call, Range};
use crate::memory::grains;
use crate::profile::layout_of;
use crate::transcript::Input;
use kvtide_core::config::Config;
use kvtide_core::effect::{Answer, Effect};
use kvtide_core::event::{BodyOutcome, SendOutcome};
use kvtide_core::fact::Fact;
use kvtide_core::names::{Attachment, ChunkHash, Connection, InstanceId, Layout, Ticket};
use kvtide_core::slots::SlotName;
use kvtide_core::time::{Duration, Instant};
use std::rc::Rc;

pub const MODEL: &str = "model";
pub const SCHEDULER: u32 = 0;

/// Places that a client has and has not committed yet.
#[derive(Clone, Debug)]
pub struct Holding {
    pub connection: u32,
    pub commit: Call,
    pub slots: Vec<Lent>,
}

/// Bytes in flight.
#[derive(Clone, Debug)]
pub struct Stream {
    pub ticket: Ticket,
    pub chunks: u32,
    pub slots: Vec<Lent>,
    pub is_body: bool,
}

pub struct Driver {
    pub bench: Bench,
    pub now: Instant,
    pub holdings: Vec<Holding>,
    pub streams: Vec<Stream>,
    /// Memory that is being attached, and copies under way.
    pub attaching: Vec<Attachment>,
    pub copies: Vec<Copying>,
    pub world_size: u32,
    pub layout: Layout,
    generations: Vec<u32>,
}

impl Driver {
    /// A grown arena, and one registered worker per rank on connections `1..=world_size`.
    pub fn new(config: Config, world_size: u32, grains_per_object: u64) -> Driver {
        let bytes = config.l1_bytes;
        let mut driver = Driver {
            bench: Bench::new(config, 200),
            now: Instant::ZERO,
            holdings: Vec::new(),
            streams: Vec::new(),
            attaching: Vec::new(),
            copies: Vec::new(),
            world_size,
            layout: layout_of(grains_per_object),
            generations: vec![0; world_size as usize + 1],
        };
        driver.feed(Input::ArenaGrown { bytes });
        for rank in 0..world_size {
            driver.register(rank);
        }
        driver
    }

    pub fn register(&mut self, rank: u32) {
        let call = Call::Register {
            instance: instance(rank),
            model: MODEL.into(),
            world_size: self.world_size,
            layout: self.layout,
        };
        self.ask(rank + 1, call);
    }

    /// Feeds one event. A broken rule ends the test with its sentence.
    pub fn feed(&mut self, input: Input) -> Vec<Seen> {
        let seen = match self.bench.feed(self.now, &input) {
            Ok(seen) => seen,
            Err(rule) => {
                let lines: Vec<&str> = self.bench.transcript.lines().collect();
                panic!("{rule}\n{}", lines.join("\n"));
            }
        };
        for seen in &seen {
            match seen.clone() {
                Seen::Sending { ticket, slots, .. } => {
                    self.streams.push(Stream { ticket, chunks: 0, slots, is_body: false });
                }
                Seen::Receiving { ticket, slots, chunks, .. } => {
                    self.streams.push(Stream { ticket, chunks, slots, is_body: true });
                }
                Seen::Answered { .. } | Seen::Detached { .. } => {}
                Seen::Attaching { attachment, .. } => self.attaching.push(attachment),
                Seen::Copying(copying) => self.copies.push(*copying),
                Seen::Ordered(_) => panic!("there are no lower tiers in this world"),
            }
        }
        seen
    }

    /// Asks, and keeps what was lent. None where the answer is still to come.
    pub fn ask(&mut self, connection: u32, call: Call) -> Option<Answer> {
        let name = Connection(SlotName {
            index: connection,
            generation: self.generations[connection as usize],
        });
        let reply = self.bench.new_reply(name);
        let seen = self.feed(Input::Asked { reply, call: call.clone() });
        seen.into_iter().find_map(|seen| match seen {
            Seen::Answered { reply: to, answer, slots } if to == reply => {
                self.keep(connection, &call, slots);
                Some(answer)
            }
            Seen::Sending { reply: to, slots, with_slots: true, .. } if to == reply => {
                self.keep(connection, &call, slots);
                None
            }
            _ => None,
        })
    }

    fn keep(&mut self, connection: u32, call: &Call, slots: Vec<Lent>) {
        let commit = match call.clone() {
            Call::PrepareStore { instance, range } => {
                Call::CommitStore { instance, range, inline_bytes: 0 }
            }
            Call::PrepareRetrieve { instance, range } => Call::CommitRetrieve { instance, range },
            _ => return,
        };
        if !slots.is_empty() {
            self.holdings.push(Holding { connection, commit, slots });
        }
    }

    /// Writes or reads all of a holding and commits it.
    pub fn commit(&mut self, nth: usize) -> Option<Answer> {
        let holding = self.holdings.remove(nth);
        let is_writer = matches!(holding.commit, Call::CommitStore { .. });
        for slot in &holding.slots {
            self.use_place(slot, is_writer);
        }
        self.ask(holding.connection, holding.commit)
    }

    fn use_place(&mut self, slot: &Lent, is_writer: bool) {
        for grain in 0..grains(slot.place) {
            if is_writer {
                let written = self.bench.memory.write(slot.place, grain, slot.object);
                written.expect("a lent place lies in the arena");
            }
        }
        if let Err(rule) = self.bench.memory.check(slot.place, slot.object) {
            panic!("{rule}");
        }
    }

    /// Ends a stream: a body after `complete` chunks.
    pub fn end_stream(&mut self, nth: usize, complete: u32, outcome: BodyOutcome) {
        let stream = self.streams.remove(nth);
        for slot in stream.slots.iter().filter(|slot| !stream.is_body || slot.chunk < complete) {
            self.use_place(slot, stream.is_body);
        }
        let ticket = stream.ticket;
        if stream.is_body {
            let complete = complete.min(stream.chunks);
            let is_whole = outcome == BodyOutcome::Whole;
            let complete = if is_whole { stream.chunks } else { complete };
            for slot in &stream.slots {
                if slot.chunk < complete {
                    self.use_place(slot, true);
                }
            }
            self.feed(Input::ReceiveEnded { ticket, complete, outcome });
        } else {
            let cut = outcome == BodyOutcome::Cut;
            let outcome = if cut { SendOutcome::Cut } else { SendOutcome::Sent };
            self.feed(Input::SendEnded { ticket, outcome });
        }
    }

    /// End of stream: what was lent over this connection is used no more.
    pub fn disconnect(&mut self, connection: u32) {
        let generation = &mut self.generations[connection as usize];
        let name = Connection(SlotName { index: connection, generation: *generation });
        *generation += 1;
        self.holdings.retain(|holding| holding.connection != connection);
        self.feed(Input::ConnectionEnded { connection: name });
    }

    /// Time passes, with every tick that is wanted on the way.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((at, _)) = self.bench.engine().deadline().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.feed(Input::Tick);
        }
        self.now = end;
        self.feed(Input::Tick);
    }

    /// Ticks at once, until no work is left over.
    pub fn settle(&mut self) {
        while self.bench.engine().deadline().is_some_and(|(at, _)| at <= self.now) {
            self.feed(Input::Tick);
        }
    }

    /// Stores a range of a document in one go, at every rank.
    pub fn store(&mut self, document: u64, chunks: std::ops::Range<u32>) {
        for rank in 0..self.world_size {
            let range = self.range("store", document, Some(rank), chunks.clone());
            let call = Call::PrepareStore { instance: instance(rank), range };
            let before = self.holdings.len();
            self.ask(rank + 1, call);
            if self.holdings.len() > before {
                self.commit(before);
            }
        }
    }

    pub fn lookup(&mut self, request: &str, document: u64, chunks: u32, readers: u16) -> u64 {
        let mut range = self.range(request, document, None, 0..chunks);
        range.readers = readers;
        self.ask(SCHEDULER, Call::Lookup { range });
        self.query(request)
    }

    /// The result of a lookup, once it has one.
    pub fn query(&mut self, request: &str) -> u64 {
        self.settle();
        match self.ask(SCHEDULER, Call::Query { request: request.into() }) {
            Some(Answer::Count(count)) => count,
            other => panic!("a settled lookup has its result, not {other:?}"),
        }
    }

    /// Whether a rank can read a range under a request. Reads it, and commits.
    pub fn retrieve(
        &mut self,
        request: &str,
        document: u64,
        rank: u32,
        chunks: std::ops::Range<u32>,
    ) -> bool {
        let range = self.range(request, document, Some(rank), chunks);
        let call = Call::PrepareRetrieve { instance: instance(rank), range: range.clone() };
        let (held, flowing) = (self.holdings.len(), self.streams.len());
        self.ask(rank + 1, call);
        let hit = self.holdings.len() > held || self.streams.len() > flowing;
        if self.streams.len() > flowing {
            self.end_stream(flowing, 0, BodyOutcome::Whole);
        }
        if self.holdings.len() > held {
            self.commit(held);
        }
        hit
    }

    pub fn free(&mut self, request: &str, document: u64, chunks: std::ops::Range<u32>) {
        let range = self.range(request, document, None, chunks);
        self.ask(SCHEDULER, Call::Free { range });
    }

    pub fn end(&mut self, request: &str) {
        let hashes = Rc::from([]);
        self.ask(SCHEDULER, Call::EndSession { request: request.into(), hashes });
    }

    pub fn range(
        &self,
        request: &str,
        document: u64,
        worker: Option<u32>,
        chunks: std::ops::Range<u32>,
    ) -> Range {
        Range {
            model: MODEL.into(),
            salt: "".into(),
            request: request.into(),
            world_size: self.world_size,
            worker,
            readers: 1,
            first_chunk: chunks.start,
            end_chunk: chunks.end,
            hashes: (0..chunks.end).map(|chunk| hash(document, chunk)).collect(),
        }
    }

    /// Everybody leaves and every deadline passes: nothing is left (design P4).
    pub fn leave(&mut self) {
        for connection in 0..=self.world_size {
            self.disconnect(connection);
        }
        while !self.streams.is_empty() {
            self.end_stream(0, 0, BodyOutcome::Cut);
        }
        self.pass(Duration::from_secs(70));
        let status = self.bench.engine().status();
        assert!(self.bench.engine().is_quiet(), "P4: something is left: {status:?}");
        assert_eq!(status.sessions, 0, "I-11: a session is left");
        assert_eq!(self.bench.unanswered().next(), None, "P2: a request has no answer");
        if let Err(rule) = self.bench.check_memory() {
            panic!("{rule}");
        }
    }

    /// Facts of the last event.
    pub fn facts(&self) -> &[Fact] {
        &self.bench.outbox().facts
    }

    pub fn effects(&self) -> &[Effect] {
        &self.bench.outbox().effects
    }

    /// Resident chunks of a document at a rank, from the first one on without a hole.
    pub fn resident_prefix(&self, document: u64, rank: u32) -> u32 {
        let is_there = |chunk: &u32| {
            self.bench
                .model
                .residents()
                .any(|(key, _)| key.hash == hash(document, *chunk) && key.scope.rank == rank)
        };
        (0..).take_while(is_there).count() as u32
    }
}

pub fn instance(rank: u32) -> InstanceId {
    InstanceId(100 + rank as i64)
}

pub fn hash(document: u64, chunk: u32) -> ChunkHash {
    let mut bytes = [0; 32];
    bytes[0] = document as u8 + 1;
    bytes[1] = chunk as u8;
    ChunkHash(bytes)
}
