//! Engine processes: a scheduler and its workers, each with a connection of its own, and the
//! requests that they serve (spec/wire §3.2).

use super::actions::{Action, Then};
use super::bytes::Link;
use super::paged::Cache;
use super::{ProcessId, RequestNumber, World};
use crate::calls::{Call, Range};
use crate::reach::State;
use kvtide_core::config::PoolKind;
use kvtide_core::effect::Answer;
use kvtide_core::names::{ChunkHash, Connection, InstanceId, Layout};
use kvtide_core::slots::SlotName;
use kvtide_core::time::{Duration, Instant};
use std::rc::Rc;

/// One connection of an engine: the scheduler's, or a worker's.
pub(crate) struct Process {
    pub group: usize,
    /// None: the scheduler.
    pub rank: Option<u32>,
    pub instance: InstanceId,
    pub layout: Layout,
    /// Memory that the server copies from and to, if it does.
    pub cache: Option<Cache>,
    /// Moves its bytes in messages, whatever it is offered.
    pub is_inline: bool,
    /// Stores what its rank computes; of several workers with one rank only the first does.
    pub stores: bool,
    pub is_open: bool,
    pub generation: u32,
    pub last_arrival: Instant,
    /// It does nothing until then.
    pub stopped_until: Instant,
    /// Its instance was reaped while it was stopped.
    pub was_reaped: bool,
    /// It has come back without registering.
    pub is_unknown: bool,
    /// Its requests travel as frames.
    pub speaks_bytes: bool,
    /// The server's side of its connection.
    pub link: Link,
}

impl Process {
    pub(super) fn connection(&self, id: ProcessId) -> Connection {
        Connection(SlotName { index: id.0 as u32, generation: self.generation })
    }
}

pub(crate) struct Group {
    pub scheduler: ProcessId,
    pub workers: Vec<ProcessId>,
    pub begun: u64,
}

pub(crate) struct Request {
    pub group: usize,
    pub range: Range,
    pub hit: u32,
    pub local: u32,
    pub polls: u32,
    pub is_dropped: bool,
    /// Retrieves that were answered with bytes or places.
    pub reads: u32,
    /// Which server it began at, and which one told it what it hits.
    pub server: u32,
    pub told_by: u32,
    /// Another one with the same prompt.
    pub twin: Option<RequestNumber>,
}

impl World {
    pub(super) fn found_groups(&mut self) {
        for (number, group) in self.profile.groups.clone().into_iter().enumerate() {
            let scheduler = self.found_process(number, None, group.layout, false);
            let mut workers = Vec::new();
            for replica in 0..group.replicas {
                for rank in 0..group.world_size {
                    let worker = self.found_process(number, Some(rank), group.layout, replica == 0);
                    workers.push(worker);
                }
            }
            self.groups.push(Group { scheduler, workers, begun: 0 });
            self.plan(self.profile.gap, Action::Begin { group: number });
        }
    }

    fn found_process(
        &mut self,
        group: usize,
        rank: Option<u32>,
        layout: Layout,
        stores: bool,
    ) -> ProcessId {
        let is_inline = self.rng.chance_ppm(self.profile.inline);
        let speaks_bytes = self.rng.chance_ppm(self.profile.bytes);
        self.instances_made += 1;
        self.processes.push(Process {
            group,
            rank,
            instance: InstanceId(self.instances_made),
            layout,
            cache: None,
            is_inline,
            stores,
            is_open: false,
            generation: 0,
            last_arrival: Instant::ZERO,
            stopped_until: Instant::ZERO,
            was_reaped: false,
            is_unknown: false,
            speaks_bytes,
            link: Link::default(),
        });
        let process = ProcessId(self.processes.len() - 1);
        if rank.is_some() && self.rng.chance_ppm(self.profile.groups[group].paged) {
            self.processes[process.0].cache = self.new_cache(group);
        }
        self.plan(self.profile.latency, Action::Connect { process });
        process
    }

    pub(super) fn connect(&mut self, process: ProcessId) {
        let is_first = self.processes[process.0].generation == 0;
        let stays_unknown = !is_first && self.chance(self.profile.faults.unknown_return);
        let entry = &mut self.processes[process.0];
        if entry.is_open {
            return;
        }
        entry.is_open = true;
        entry.last_arrival = self.now;
        entry.link = Link::default();
        entry.is_unknown = stays_unknown;
        let connection = entry.connection(process);
        if stays_unknown {
            self.tally.came("client came back unregistered");
        } else if entry.rank.is_some() {
            self.register(process);
        }
        self.plan(Duration::from_secs(10), Action::Ping { connection });
    }

    pub(super) fn register(&mut self, process: ProcessId) {
        if self.processes[process.0].cache.is_some() {
            return self.register_paged(process);
        }
        let entry = &self.processes[process.0];
        let group = &self.profile.groups[entry.group];
        let call = Call::Register {
            instance: entry.instance,
            model: group.model.into(),
            world_size: group.world_size,
            layout: entry.layout,
        };
        self.send(process, call, Then::Registered);
    }

    pub(super) fn ping(&mut self, connection: Connection) {
        if !self.is_open(connection) || self.is_healing {
            return;
        }
        let process = ProcessId(connection.0.index as usize);
        let entry = &self.processes[process.0];
        let instance = entry.rank.map(|_| entry.instance);
        self.send(process, Call::Ping { instance }, Then::Nothing);
        self.register_if_refused(process);
        self.plan_in(Duration::from_secs(10), Action::Ping { connection });
    }

    /// A new request comes to a group's scheduler.
    pub(super) fn begin(&mut self, group: usize) {
        if self.is_healing {
            return;
        }
        self.plan(self.profile.gap, Action::Begin { group });
        if self.queue.len() > PLANNED_MAX {
            return;
        }
        self.begin_some(group);
    }

    /// A request, or two of a kind.
    pub(super) fn begin_some(&mut self, group: usize) {
        let chunks = 1 + self.rng.below(self.profile.chunks_max);
        let number = self.rng.below(self.profile.documents);
        let hashes = self.library.hashes(number, chunks);
        self.begin_as(group, hashes);
    }

    pub(super) fn begin_as(&mut self, group: usize, hashes: Rc<[ChunkHash]>) {
        let first = self.begin_request(group, hashes.clone());
        if self.chance(self.profile.faults.twins) {
            self.tally.came("two of one prompt");
            let second = self.begin_request(group, hashes);
            self.requests[first.0].twin = Some(second);
            self.requests[second.0].twin = Some(first);
        }
    }

    fn begin_request(&mut self, group: usize, hashes: Rc<[ChunkHash]>) -> RequestNumber {
        self.groups[group].begun += 1;
        let begun = self.groups[group].begun;
        let reused = self.chance(self.profile.faults.reuse);
        let id: Rc<str> = if reused {
            format!("shared-{}", self.rng.below(3)).into()
        } else {
            format!("request-{group}-{begun}").into()
        };
        if reused && self.requests.iter().any(|earlier| earlier.range.request == id) {
            self.tally.came("request id used again");
        }
        let entry = &self.profile.groups[group];
        let all = self.rng.below(20) > 0;
        let range = Range {
            model: entry.model.into(),
            salt: entry.salt.into(),
            request: id,
            world_size: entry.world_size,
            worker: None,
            readers: entry.replicas as u16,
            first_chunk: 0,
            end_chunk: if all { hashes.len() as u32 } else { 0 },
            hashes,
        };
        let request = RequestNumber(self.requests.len());
        let (scheduler, call) =
            (self.groups[group].scheduler, Call::Lookup { range: range.clone() });
        self.requests.push(Request {
            group,
            range,
            hit: 0,
            local: 0,
            polls: 0,
            is_dropped: false,
            reads: 0,
            server: self.restarts,
            told_by: self.restarts,
            twin: None,
        });
        self.send(scheduler, call, Then::LookedUp(request));
        request
    }

    /// An answer has come to its process.
    pub(super) fn returned(
        &mut self,
        connection: Connection,
        call: Call,
        then: Then,
        answer: Answer,
    ) {
        let process = ProcessId(connection.0.index as usize);
        self.after_copy(process, &call, &answer);
        match then {
            Then::Nothing | Then::Stray | Then::Registered | Then::HasRead(_) => {
                self.after_ping(process, &answer);
            }
            Then::LookedUp(request) => self.poll(request),
            Then::Queried(request) => self.queried(request, &answer),
            Then::Retrieve(request) => self.after_retrieve(process, request, call, &answer),
            Then::Store => self.after_store(process, call, &answer),
            Then::Committed(_) | Then::CommittedAs(..) => self.after_commit(process, &answer),
            Then::Lied(state) => self.after_lie(state, &answer),
        }
    }

    /// A worker that is told that it is unknown registers anew.
    fn after_ping(&mut self, process: ProcessId, answer: &Answer) {
        let entry = &mut self.processes[process.0];
        if *answer != Answer::Bool(false) || entry.rank.is_none() {
            return;
        }
        let was_unknown = std::mem::take(&mut entry.is_unknown);
        if was_unknown {
            self.bench.reach.met(State::UnknownReturned);
        }
        if was_unknown || self.rng.below(2) == 0 {
            self.register(process);
        }
    }

    fn poll(&mut self, request: RequestNumber) {
        if self.is_dropped(request) {
            return;
        }
        let entry = &mut self.requests[request.0];
        entry.polls += 1;
        let (name, scheduler) = (entry.range.request.clone(), self.groups[entry.group].scheduler);
        let call = if self.rng.below(4) == 0 {
            let wait = Duration::from_micros(self.rng.below(3_000));
            Call::Wait { request: name, wait }
        } else {
            Call::Query { request: name }
        };
        self.send(scheduler, call, Then::Queried(request));
    }

    fn queried(&mut self, request: RequestNumber, answer: &Answer) {
        if self.is_dropped(request) {
            return;
        }
        match answer {
            Answer::None if self.requests[request.0].polls < 100 => self.poll(request),
            Answer::Count(hit) => self.allocated(request, *hit as u32),
            _ => self.finish(request),
        }
    }

    /// Blocks are allocated: give back what is not needed, load the rest, compute and store.
    fn allocated(&mut self, request: RequestNumber, hit: u32) {
        let entry = &mut self.requests[request.0];
        let chunks = entry.range.end_chunk;
        // The answer may be about another request under the same id.
        let hit = hit.min(chunks);
        entry.hit = hit;
        entry.told_by = self.restarts;
        if hit > 0 && entry.server > 0 && entry.server == self.restarts {
            self.bench.reach.met(State::HitAfterCrash);
        }
        if hit > 0 && self.processes[self.groups[entry.group].scheduler.0].speaks_bytes {
            self.bench.reach.met(State::HitInBytes);
        }
        let local = match self.requests[request.0].twin {
            Some(_) => 0,
            None => self.rng.below(hit as u64 * 2 + 1).saturating_sub(hit as u64) as u32,
        };
        self.requests[request.0].local = local;
        let group = self.requests[request.0].group;
        let scheduler = self.groups[group].scheduler;
        if local > 0 {
            let range = self.requests[request.0].range.part(None, 0, local);
            self.send(scheduler, Call::Free { range: range.clone() }, Then::Nothing);
            if self.chance(self.profile.faults.repeat) {
                self.tally.came("released twice");
                self.send(scheduler, Call::Free { range }, Then::Nothing);
            }
        }
        self.load_and_store(request, group);
    }

    /// Workers load what was hit and store the rest; then the session ends.
    fn load_and_store(&mut self, request: RequestNumber, group: usize) {
        let Request { hit, local, range, .. } = &self.requests[request.0];
        let (hit, local, chunks) = (*hit, *local, range.end_chunk);
        let dawdles = self.chance(self.profile.faults.dawdle);
        if dawdles {
            self.tally.came("retrieves one after the other");
        }
        let workers = self.groups[group].workers.clone();
        let mut pause = Duration::ZERO;
        for process in workers {
            if local < hit && dawdles {
                pause += self.profile.config.session_ttl * 4 / 5;
                self.plan_in(pause, Action::StartRetrieve { process, request });
            } else if local < hit {
                // Some come when the leases of an ended session have lingered long enough.
                let late = self.chance(self.profile.faults.early_end / 4);
                if late {
                    self.tally.came("retrieve late");
                }
                let most = if late { Duration::from_secs(12) } else { self.profile.latency };
                self.plan(most, Action::StartRetrieve { process, request });
            }
            if self.processes[process.0].stores && hit < chunks {
                let from = if self.rng.below(6) == 0 { local } else { hit };
                self.plan(self.profile.gap, Action::StartStore { process, request, from });
            }
        }
        let is_early = !dawdles && self.chance(self.profile.faults.early_end);
        if is_early {
            self.tally.came("session ended early");
        }
        let patience = if is_early { 0 } else { 1 + self.rng.below(4_000) };
        let delay = self.rng.below(patience * 1_000_000 + 1);
        self.plan_in(pause + Duration::from_nanos(delay), Action::Finish { request });
    }

    pub(super) fn start_retrieve(&mut self, process: ProcessId, request: RequestNumber) {
        let (rank, instance) = (self.processes[process.0].rank, self.processes[process.0].instance);
        let entry = &self.requests[request.0];
        let range = entry.range.part(rank, entry.local, entry.hit);
        if self.processes[process.0].cache.is_some() {
            return self.retrieve_blocks(process, request, range);
        }
        self.send(process, Call::PrepareRetrieve { instance, range }, Then::Retrieve(request));
    }

    /// After a miss, and after bytes in the answer, the commit follows at once; places are read
    /// first, see `streams`.
    fn after_retrieve(
        &mut self,
        process: ProcessId,
        request: RequestNumber,
        call: Call,
        answer: &Answer,
    ) {
        let Call::PrepareRetrieve { instance, range } = call else { return };
        let missed = *answer == Answer::RetrieveMiss;
        let entry = &self.requests[request.0];
        if missed && entry.hit > 0 && entry.told_by < self.restarts {
            self.bench.reach.met(State::OldRequestAfterCrash);
        }
        if missed && self.bench.model.has_forgotten(&range.request) {
            self.bench.reach.met(State::RetrieveAfterForget);
        }
        if missed && self.rng.below(3) == 0 {
            // It computes the chunks itself, and stores them.
            let from = self.requests[request.0].local;
            self.plan(self.profile.gap, Action::StartStore { process, request, from });
        }
        let has_no_places =
            self.profile.config.pool == PoolKind::Private || self.processes[process.0].is_inline;
        if missed || has_no_places {
            // A worker retrieves one thing after the other (spec/transfer §4.8): the commit of a
            // miss does not meet places under the same name.
            let then = if missed { Then::Stray } else { Then::Nothing };
            self.send(process, Call::CommitRetrieve { instance, range }, then);
        }
    }

    pub(super) fn start_store(&mut self, process: ProcessId, request: RequestNumber, from: u32) {
        let (rank, instance) = (self.processes[process.0].rank, self.processes[process.0].instance);
        let range = self.requests[request.0].range.clone();
        let chunks = range.end_chunk;
        if from >= chunks {
            return;
        }
        let end = match self.requests[request.0].twin {
            Some(_) => chunks,
            None => from + 1 + self.rng.below((chunks - from) as u64) as u32,
        };
        let part = range.part(rank, from, end);
        if end < chunks {
            self.plan(self.profile.gap, Action::StartStore { process, request, from: end });
        }
        if self.processes[process.0].cache.is_some() {
            return self.store_blocks(process, part);
        }
        let call = Call::PrepareStore { instance, range: part };
        self.send(process, call, Then::Store);
    }

    /// Places are written first, see `streams`; without them the bytes follow inline.
    fn after_store(&mut self, process: ProcessId, call: Call, answer: &Answer) {
        let Call::PrepareStore { instance, range } = call else { return };
        let is_private = *answer == Answer::NoContext;
        let is_empty =
            matches!(answer, Answer::StoreSlots { slots, .. } if slots.start == slots.end);
        let is_inline = self.processes[process.0].is_inline;
        if is_private || (is_inline && !is_empty) {
            let bytes = self.processes[process.0].layout.bytes().unwrap_or(1);
            let inline_bytes = bytes * range.len() as u64 + 350;
            let call = Call::CommitStore { instance, range, inline_bytes };
            // A worker that writes to its slots does not send the same request's bytes as well.
            let then = if is_inline { Then::Nothing } else { Then::Stray };
            self.send(process, call, then);
        }
    }

    fn after_commit(&mut self, process: ProcessId, answer: &Answer) {
        let entry = &mut self.processes[process.0];
        if *answer == Answer::Bool(true) && std::mem::take(&mut entry.was_reaped) {
            self.bench.reach.met(State::StoppedStoresAgain);
        }
    }

    fn after_lie(&mut self, state: State, answer: &Answer) {
        if *answer == Answer::Bool(false) {
            self.bench.reach.met(state);
        }
    }

    pub(super) fn finish(&mut self, request: RequestNumber) {
        if self.is_dropped(request) {
            return;
        }
        let entry = &self.requests[request.0];
        let scheduler = self.groups[entry.group].scheduler;
        let (name, hashes) = (entry.range.request.clone(), entry.range.hashes.clone());
        let call = Call::EndSession { request: name, hashes };
        self.send(scheduler, call.clone(), Then::Nothing);
        if self.chance(self.profile.faults.repeat) {
            self.tally.came("session ended twice");
            self.send(scheduler, call, Then::Nothing);
        }
    }

    /// Of several workers that read the same object the last one lets it go.
    pub(super) fn note_reader(&mut self, then: &Then) {
        let Then::Retrieve(request) = then else { return };
        let entry = &mut self.requests[request.0];
        entry.reads += 1;
        let replicas = self.profile.groups[entry.group].replicas;
        let workers = self.groups[entry.group].workers.len() as u32;
        if replicas > 1 && entry.reads == workers {
            self.bench.reach.met(State::ManyReaders);
        }
    }

    /// Whether the scheduler forgets this request, here or earlier.
    fn is_dropped(&mut self, request: RequestNumber) -> bool {
        let is_new = !self.requests[request.0].is_dropped;
        if self.chance(self.profile.faults.abandon / 4) && is_new {
            self.requests[request.0].is_dropped = true;
            self.tally.came("request abandoned");
        }
        self.requests[request.0].is_dropped
    }
}

/// With so much under way a scheduler lets new requests wait.
const PLANNED_MAX: usize = 300;
