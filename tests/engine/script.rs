//! Random runs: whatever clients, operators and time may do, in any order, on tiny tables.

use crate::harness::{Bench, Got, Worker, config, connection, prompt, scheduler};
use crate::transcript::Transcript;
use kvtide_core::config::{Config, Limits, PolicyKind};
use kvtide_core::event::{Ask, BodyOutcome};
use kvtide_core::names::{Connection, Ticket};
use kvtide_core::rng::Rng;
use kvtide_core::time::Duration;

/// Everything that an effect has promised to end.
#[derive(Default)]
struct UnderWay {
    sends: Vec<Ticket>,
    receives: Vec<Ticket>,
}

pub struct Script {
    pub bench: Bench,
    workers: Vec<Worker>,
    /// Over which workers come back now and then.
    other: Connection,
    under_way: UnderWay,
    rng: Rng,
}

/// Tables so small that every bound is met.
pub fn tiny(seed: u64, policy: PolicyKind) -> Config {
    let limits = Limits {
        work_units: 6,
        sessions: 5,
        lease_cells: 24,
        instances: 4,
        told: 2,
        tickets: 7,
        waits: 2,
        lent_ppm: 1_000_000,
        flights: 5,
        demotions: 6,
        demoting_ppm: 500_000,
        loads: 3,
    };
    Config { l1_objects_max: 7, limits, seed, policy, ..config(8) }
}

impl Script {
    pub fn new(config: Config, seed: u64) -> Script {
        let workers = vec![
            Worker::new(1).with_rank(0, 2),
            Worker::new(2).with_rank(1, 2),
            Worker::new(3).with_salt("tenant"),
            Worker::new(4).with_rank(0, 2),
        ];
        let mut bench = Bench::new(config);
        bench.transcript = Some(Transcript::default());
        let (other, under_way) = (connection(10), UnderWay::default());
        Script { bench, workers, other, under_way, rng: Rng::new(seed) }
    }

    pub fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            self.step();
        }
    }

    fn step(&mut self) {
        let worker = self.pick_worker();
        let letter = [b'a', b'b', b'c'][self.rng.below(3) as usize] as char;
        let prompt = prompt(letter, 1 + self.rng.below(6) as u32);
        let request = ["r1", "r2", "r3", "r4", "r5", "r6"][self.rng.below(6) as usize];
        let (first, end) = self.pick_range(prompt.len() as u32);
        let bench = &mut self.bench;
        let got = match self.rng.below(24) {
            0 | 1 => bench.ask(worker.connection, Ask::Register(worker.registration())),
            2 if self.rng.below(4) == 0 => {
                bench.ask(worker.connection, Ask::Unregister { instance: worker.instance })
            }
            3 => bench.ask(worker.connection, Ask::Ping { instance: Some(worker.instance) }),
            4..=6 => bench.prepare_store(&worker, &prompt, first..end),
            7 | 8 => {
                bench.commit_store(&worker, &prompt, first..end);
                Got::Nothing
            }
            9 => bench.commit_inline(&worker, &prompt, first..end),
            10..=12 => {
                let readers = 1 + self.rng.below(2) as u16;
                bench.lookup(&worker, request, &prompt, readers);
                Got::Nothing
            }
            13 => bench.ask(scheduler(), Ask::QueryPrefetch { request }),
            14 => {
                let wait = Duration::from_millis(self.rng.below(2000));
                bench.ask(scheduler(), Ask::WaitPrefetch { request, wait })
            }
            15 => {
                bench.free(&worker, request, &prompt);
                Got::Nothing
            }
            16 => {
                bench.end_session(request);
                Got::Nothing
            }
            17 | 18 => bench.prepare_retrieve(&worker, request, &prompt, first..end),
            19 => {
                let (instance, keys) = (worker.instance, worker.keys(request, &prompt, first..end));
                bench.ask(worker.connection, Ask::CommitRetrieve { instance, keys })
            }
            20 if self.rng.below(4) == 0 => {
                let force = self.rng.below(2) == 0;
                bench.ask(scheduler(), Ask::Clear { force })
            }
            21 => {
                self.end_something();
                Got::Nothing
            }
            22 => {
                self.pass();
                Got::Nothing
            }
            23 if self.rng.below(4) == 0 => {
                bench.end_connection(&worker);
                self.connect_anew(worker.connection);
                Got::Nothing
            }
            _ => Got::Nothing,
        };
        match got {
            Got::Sent { ticket, .. } => self.under_way.sends.push(ticket),
            Got::Receiving { ticket, .. } => self.under_way.receives.push(ticket),
            Got::Nothing | Got::Answer(_) | Got::Slots(_) => {}
            Got::Attaching { .. } | Got::Copying { .. } => unreachable!("nobody has memory here"),
        }
    }

    fn pick_worker(&mut self) -> Worker {
        let worker = self.workers[self.rng.below(4) as usize];
        // Now and then somebody comes back over another connection.
        let moved = self.rng.below(8) == 0;
        if moved { Worker { connection: self.other, ..worker } } else { worker }
    }

    /// No connection has the name of one that has ended.
    fn connect_anew(&mut self, ended: Connection) {
        let connections = self.workers.iter_mut().map(|worker| &mut worker.connection);
        for connection in connections.chain([&mut self.other]) {
            connection.0.generation += (*connection == ended) as u32;
        }
    }

    fn pick_range(&mut self, chunks: u32) -> (u32, u32) {
        let first = self.rng.below(chunks as u64) as u32;
        let end = first + self.rng.below((chunks - first) as u64 + 1) as u32;
        if self.rng.below(2) == 0 { (0, chunks) } else { (first, end) }
    }

    /// Completions come in any order, and sometimes twice.
    fn end_something(&mut self) {
        let keeps = self.rng.below(8) == 0;
        let take = |list: &mut Vec<Ticket>, at: u64| {
            let at = at as usize % list.len();
            if keeps { list[at] } else { list.remove(at) }
        };
        let at = self.rng.below(16);
        if self.rng.below(2) == 0 && !self.under_way.sends.is_empty() {
            let ticket = take(&mut self.under_way.sends, at);
            self.bench.end_send(ticket);
        } else if !self.under_way.receives.is_empty() {
            let ticket = take(&mut self.under_way.receives, at);
            let outcomes =
                [BodyOutcome::Whole, BodyOutcome::Short, BodyOutcome::Malformed, BodyOutcome::Cut];
            let outcome = outcomes[self.rng.below(4) as usize];
            let complete = if outcome == BodyOutcome::Whole { 6 } else { self.rng.below(4) as u32 };
            self.bench.end_receive(ticket, complete, outcome);
        }
    }

    /// Mostly a moment, sometimes past every time limit; sometimes without a tick on the way.
    fn pass(&mut self) {
        let by = match self.rng.below(8) {
            0 => Duration::from_secs(self.rng.below(700)),
            1 => Duration::from_secs(self.rng.below(8)),
            _ => Duration::from_millis(self.rng.below(700)),
        };
        if self.rng.below(3) == 0 {
            self.bench.now = self.bench.now + by;
            self.bench.handle(kvtide_core::event::Event::Tick);
        } else {
            self.bench.advance(by);
        }
    }

    /// Everybody leaves: what is under way ends, connections end, time limits pass.
    pub fn leave(&mut self) {
        for ticket in std::mem::take(&mut self.under_way.sends) {
            self.bench.end_send(ticket);
        }
        for ticket in std::mem::take(&mut self.under_way.receives) {
            self.bench.end_receive(ticket, 0, BodyOutcome::Cut);
        }
        for worker in self.workers.clone() {
            self.bench.end_connection(&worker);
        }
        for connection in [self.other, scheduler()] {
            self.bench.end_connection(&Worker { connection, ..Worker::new(1) });
        }
        self.bench.settle();
        self.bench.advance(Duration::from_secs(1300));
    }

    pub fn text(&self) -> &str {
        &self.bench.transcript.as_ref().expect("every script is written down").text
    }
}
