//! A list of events for the engine, with times and faults, over the simulator's bench: after every
//! event the audit runs and the model judges what was answered. In the end everybody leaves, and
//! nothing may be left.
//!
//! ```text
//! input   | settings, 4 | event, 4 | event, 4 | …       what stands where: `Settings`, `Event`
//! event   | kind | who | what | how
//! ```
//!
//! Clients may be as wrong as they like, but for one thing that nothing helps against: nobody says
//! that bytes are whole which its own side is still writing.

use kvtide_core::config::{Config, Limits, PolicyKind, PoolKind};
use kvtide_core::event::{AttachFault, BodyOutcome, SendOutcome};
use kvtide_core::names::{InstanceId, Ticket};
use kvtide_core::slots::SlotName;
use kvtide_core::time::Duration;
use kvtide_sim::calls::{Call, Range};
use kvtide_sim::driver::{Driver, SCHEDULER, instance};
use kvtide_sim::model::Kind;
use kvtide_sim::profile::layout_of;
use kvtide_sim::transcript::Input;

pub fn run(input: &[u8]) {
    let Some((settings, events)) = input.split_first_chunk::<4>() else { return };
    let settings = Settings::of(*settings);
    let mut run = Run {
        driver: Driver::new(settings.config, settings.world_size, settings.grains),
        ended: Vec::new(),
    };
    let (events, _) = events.as_chunks::<4>();
    for event in events.iter().take(EVENTS_MAX) {
        run.apply(Event::of(*event, settings.world_size));
    }
    run.driver.leave();
}

/// What a run begins with.
struct Settings {
    config: Config,
    world_size: u32,
    grains: u64,
}

impl Settings {
    fn of([shape, room, times, tables]: [u8; 4]) -> Settings {
        let policies =
            [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::IsolatedLru, PolicyKind::Noop];
        let policy = policies[usize::from(shape & 3)];
        let pool = if shape >> 2 & 3 == 3 { PoolKind::Private } else { PoolKind::Shared };
        let world_size = 1 + u32::from(shape >> 4 & 3) % 3;
        let grains = [1, 20, 37, 64][usize::from(shape >> 6)];
        let share = |nibble: u8| u64::from(nibble) * 1_000_000 / 15;
        let seconds = |bits: u8| Duration::from_secs([1, 4, 10, 20][usize::from(bits & 3)]);
        let limits = match tables % 4 {
            // More than a run of this size can fill, and made quickly.
            0 => Limits {
                sessions: 64,
                lease_cells: 1024,
                instances: 16,
                told: 64,
                tickets: 256,
                waits: 64,
                lent_ppm: 1_000_000,
                ..Limits::default()
            },
            units => Limits {
                work_units: [2, 3, 16][usize::from(units - 1)],
                sessions: 1 + usize::from(tables >> 2 & 3) * 3,
                lease_cells: 4 + usize::from(tables >> 4 & 3) * 10,
                instances: 2 + usize::from(tables >> 6),
                told: 1 + usize::from(tables >> 2 & 3),
                tickets: 2 + usize::from(tables >> 4 & 3),
                waits: 1 + usize::from(tables >> 6),
                lent_ppm: if tables & 4 == 0 { 1_000_000 } else { 400_000 },
                ..Limits::default()
            },
        };
        let reap_after = if times >> 6 == 0 { 0 } else { 30 };
        let config = Config {
            policy,
            pool,
            l1_bytes: 1 << 20,
            l1_align_bytes: if times >> 6 == 2 { 4096 } else { 1024 },
            l1_objects_max: 4 + usize::from(shape >> 4) * 3,
            watermark_ppm: share(room & 15),
            ratio_ppm: share(room >> 4),
            read_ttl: seconds(times),
            write_ttl: seconds(times >> 2),
            session_ttl: seconds(times >> 4),
            reap_after: Duration::from_secs(reap_after),
            registration_grace: Duration::from_secs(reap_after),
            limits,
            ..Config::default()
        };
        Settings { config, world_size, grains }
    }
}

/// One thing that a client, the clock or an operator does. Numbers are taken modulo what exists.
enum Event {
    Register {
        rank: u32,
        grains: Option<u64>,
    },
    Unregister {
        rank: u32,
    },
    Ping {
        rank: u32,
        nobody: bool,
    },
    Disconnect {
        connection: u32,
    },
    Lookup {
        range: Named,
        readers: u16,
    },
    Query {
        request: u8,
    },
    Wait {
        request: u8,
        wait: Duration,
    },
    Free {
        range: Named,
    },
    End {
        request: u8,
        hashes: Named,
    },
    PrepareStore {
        rank: u32,
        range: Named,
    },
    PrepareRetrieve {
        rank: u32,
        range: Named,
    },
    /// The bytes of a store, in its message.
    Inline {
        rank: u32,
        range: Named,
    },
    RegisterPaged {
        rank: u32,
    },
    StoreBlocks {
        rank: u32,
        range: Named,
    },
    RetrieveBlocks {
        rank: u32,
        range: Named,
        skip_tokens: u64,
    },
    EndAttach {
        nth: usize,
        is_good: bool,
    },
    EndCopy {
        nth: usize,
        fails_at: Option<usize>,
    },
    /// What was lent is used and committed.
    Commit {
        nth: usize,
    },
    /// What was lent is used, and its commit never comes.
    Abandon {
        nth: usize,
    },
    /// A commit of what was never lent.
    Stray {
        rank: u32,
        range: Named,
        is_store: bool,
    },
    EndStream {
        nth: usize,
        complete: u32,
        outcome: BodyOutcome,
    },
    /// An ending that has been told, or of a ticket that never was.
    Stale {
        nth: usize,
    },
    Clear {
        force: bool,
    },
    OperatorClear {
        force: bool,
    },
    /// Time with every tick on the way.
    Pass {
        time: Duration,
    },
    /// Time without any.
    Jump {
        time: Duration,
    },
    Tick,
}

/// Chunks of a document under a request's name.
#[derive(Clone, Copy)]
struct Named {
    request: u8,
    document: u64,
    first: u32,
    end: u32,
    /// Another tenant, or an engine of another size.
    salted: bool,
    larger: bool,
}

impl Event {
    fn of([kind, who, what, how]: [u8; 4], world_size: u32) -> Event {
        let rank = u32::from(who & 3) % world_size;
        let first = u32::from(what >> 2 & 7);
        let range = Named {
            request: who >> 2 & 3,
            document: u64::from(what & 3),
            first,
            end: (first + u32::from(what >> 5)).min(CHUNKS),
            salted: who >> 4 == 9,
            larger: who >> 4 == 10,
        };
        let nth = usize::from(who);
        let force = how & 1 == 1;
        let time = Duration::from_millis(u64::from(how) * [1, 10, 130, 400][usize::from(what & 3)]);
        match kind % 40 {
            0 => Event::Register { rank, grains: (how > 127).then_some(u64::from(how & 63) + 1) },
            1 => Event::Unregister { rank },
            2 => Event::Ping { rank, nobody: how > 200 },
            3 => Event::Disconnect { connection: u32::from(who) % (world_size + 1) },
            4..=7 => Event::Lookup { range, readers: 1 + u16::from(how & 3) },
            8..=9 => Event::Query { request: range.request },
            10 => Event::Wait { request: range.request, wait: time },
            11 => Event::Free { range },
            12 => Event::End { request: range.request, hashes: range },
            13..=16 => Event::PrepareStore { rank, range },
            17..=18 => Event::PrepareRetrieve { rank, range },
            19 => Event::Inline { rank, range },
            20..=22 => Event::Commit { nth },
            23 => Event::Abandon { nth },
            24 => Event::Stray { rank, range, is_store: force },
            25..=26 => Event::EndStream {
                nth,
                complete: u32::from(what & 7),
                outcome: [
                    BodyOutcome::Whole,
                    BodyOutcome::Short,
                    BodyOutcome::Malformed,
                    BodyOutcome::Cut,
                ][usize::from(how & 3)],
            },
            27 => Event::Stale { nth },
            28 if how & 2 == 0 => Event::Clear { force },
            28 => Event::OperatorClear { force },
            29 => Event::Pass { time },
            30 => Event::Jump { time },
            31 => Event::RegisterPaged { rank },
            32..=33 => Event::StoreBlocks { rank, range },
            34..=35 => Event::RetrieveBlocks { rank, range, skip_tokens: u64::from(how & 7) * 100 },
            36 => Event::EndAttach { nth, is_good: !force },
            37..=38 => {
                Event::EndCopy { nth, fails_at: (how > 200).then_some(usize::from(how & 7)) }
            }
            _ => Event::Tick,
        }
    }
}

struct Run {
    driver: Driver,
    /// Endings that have been told.
    ended: Vec<Input>,
}

impl Run {
    fn apply(&mut self, event: Event) {
        match event {
            Event::Register { rank, grains } => self.register(rank, grains),
            Event::Unregister { rank } => {
                self.ask(rank + 1, Call::Unregister { instance: instance(rank) });
            }
            Event::Ping { rank, nobody } => {
                let instance = (!nobody).then(|| instance(rank));
                self.ask(rank + 1, Call::Ping { instance });
            }
            Event::Disconnect { connection } => self.driver.disconnect(connection),
            Event::Commit { nth } if !self.driver.holdings.is_empty() => {
                self.driver.commit(nth % self.driver.holdings.len());
            }
            Event::Abandon { nth } if !self.driver.holdings.is_empty() => {
                // Whoever has forgotten what it was lent uses it no more.
                let nth = nth % self.driver.holdings.len();
                self.driver.holdings.remove(nth);
            }
            Event::Commit { .. } | Event::Abandon { .. } => {}
            Event::EndStream { nth, complete, outcome } => {
                self.end_stream(nth, complete, outcome);
            }
            Event::Stale { nth } => self.end_again(nth),
            Event::OperatorClear { force } => {
                let operator = self.driver.bench.events;
                self.driver.feed(Input::OperatorClear { operator, force });
            }
            Event::RegisterPaged { rank } => self.driver.register_paged(rank),
            Event::EndAttach { nth, is_good } if !self.driver.attaching.is_empty() => {
                let nth = nth % self.driver.attaching.len();
                let outcome = if is_good { Ok(()) } else { Err(AttachFault::Absent) };
                let attachment = self.driver.attaching[nth];
                self.ended.push(Input::AttachEnded { attachment, outcome });
                self.driver.end_attach(nth, outcome);
            }
            Event::EndCopy { nth, fails_at } if !self.driver.copies.is_empty() => {
                let nth = nth % self.driver.copies.len();
                let ticket = self.driver.copies[nth].ticket;
                self.ended.push(Input::CopyEnded { ticket, whole: fails_at.is_none() });
                self.driver.end_copy(nth, fails_at);
            }
            Event::EndAttach { .. } | Event::EndCopy { .. } => {}
            Event::Pass { time } => self.driver.pass(time),
            Event::Jump { time } => {
                self.driver.now = self.driver.now + time;
                self.driver.feed(Input::Tick);
            }
            Event::Tick => drop(self.driver.feed(Input::Tick)),
            asked => self.ask_about_chunks(asked),
        }
    }

    fn ask_about_chunks(&mut self, event: Event) {
        match event {
            Event::Lookup { range, readers } => {
                let mut range = self.range(range, None);
                range = Range { readers, first_chunk: 0, ..range };
                self.ask(SCHEDULER, Call::Lookup { range });
            }
            Event::Query { request } => self.ask(SCHEDULER, Call::Query { request: name(request) }),
            Event::Wait { request, wait } => {
                let request = name(request);
                let is_same =
                    |call: &Call| matches!(call, Call::Wait { request: r, .. } if *r == request);
                if self.driver.bench.unanswered().filter(|(_, call)| is_same(call)).count() < 4 {
                    self.ask(SCHEDULER, Call::Wait { request, wait });
                }
            }
            Event::Free { range } => {
                let range = self.range(range, None);
                self.ask(SCHEDULER, Call::Free { range });
            }
            Event::End { request, hashes } => {
                let hashes = self.range(hashes, None).hashes;
                self.ask(SCHEDULER, Call::EndSession { request: name(request), hashes });
            }
            Event::PrepareStore { rank, range } => {
                let range = self.range(range, Some(rank));
                self.ask(rank + 1, Call::PrepareStore { instance: instance(rank), range });
            }
            Event::PrepareRetrieve { rank, range } => {
                let range = self.range(range, Some(rank));
                self.ask(rank + 1, Call::PrepareRetrieve { instance: instance(rank), range });
            }
            Event::StoreBlocks { rank, range } => {
                let range = self.range(range, Some(rank));
                self.driver.store_blocks(rank, range);
            }
            Event::RetrieveBlocks { rank, range, skip_tokens } => {
                let range = self.range(range, Some(rank));
                self.driver.retrieve_blocks(rank, range, skip_tokens);
            }
            Event::Inline { rank, range } => {
                let (instance, range) = (instance(rank), self.range(range, Some(rank)));
                if !self.is_at_work(Kind::Store, instance, &range) {
                    let commit = Call::CommitStore { instance, range, inline_bytes: 1000 };
                    self.ask(rank + 1, commit);
                }
            }
            Event::Stray { rank, range, is_store } => {
                let (instance, range) = (instance(rank), self.range(range, Some(rank)));
                let kind = if is_store { Kind::Store } else { Kind::Retrieve };
                if !self.is_at_work(kind, instance, &range) {
                    let commit = match kind {
                        Kind::Store => Call::CommitStore { instance, range, inline_bytes: 0 },
                        Kind::Retrieve => Call::CommitRetrieve { instance, range },
                    };
                    self.ask(rank + 1, commit);
                }
            }
            Event::Clear { force } => self.ask(SCHEDULER, Call::Clear { force }),
            _ => {}
        }
    }

    fn ask(&mut self, connection: u32, call: Call) {
        self.driver.ask(connection, call);
    }

    fn range(&self, named: Named, worker: Option<u32>) -> Range {
        let Named { request, document, first, end, salted, larger } = named;
        let mut range = self.driver.range(&name(request), document, worker, first..end);
        if salted {
            range.salt = "tenant".into();
        }
        if larger {
            range.world_size += 1;
        }
        range
    }

    /// Whether a client has these chunks in its hands, so that a word about them would be a lie
    /// about its own bytes.
    fn is_at_work(&self, kind: Kind, instance: InstanceId, range: &Range) -> bool {
        self.driver.bench.model.is_lent(kind, instance, range, None)
    }

    /// Again as it was, or with objects of another size.
    fn register(&mut self, rank: u32, grains: Option<u64>) {
        let Some(grains) = grains else { return self.driver.register(rank) };
        let (range, world_size) = (self.driver.range("", 0, None, 0..0), self.driver.world_size);
        let (instance, model, layout) = (instance(rank), range.model, layout_of(grains));
        self.ask(rank + 1, Call::Register { instance, model, world_size, layout });
    }

    fn end_stream(&mut self, nth: usize, complete: u32, outcome: BodyOutcome) {
        if self.driver.streams.is_empty() {
            return;
        }
        let nth = nth % self.driver.streams.len();
        let stream = &self.driver.streams[nth];
        let ticket = stream.ticket;
        self.ended.push(match stream.is_body {
            true => Input::ReceiveEnded { ticket, complete: 0, outcome: BodyOutcome::Cut },
            false => Input::SendEnded { ticket, outcome: SendOutcome::Sent },
        });
        self.driver.end_stream(nth, complete, outcome);
    }

    fn end_again(&mut self, nth: usize) {
        // No table is as large as that. Other names may be those of copies that are in a client's
        // hands, which no shell has ever heard of.
        let invented = Ticket(SlotName { index: u32::MAX - nth as u32, generation: 0 });
        let never = Input::SendEnded { ticket: invented, outcome: SendOutcome::Cut };
        let told = self.ended.get(nth % (self.ended.len() + 1)).cloned();
        self.driver.feed(told.unwrap_or(never));
    }
}

fn name(request: u8) -> std::rc::Rc<str> {
    ["request-0", "request-1", "request-2", "request-3"][usize::from(request & 3)].into()
}

/// Longer documents find nothing more.
const CHUNKS: u32 = 7;
/// Longer lists find nothing more, only later.
const EVENTS_MAX: usize = 400;
