//! The course of one run: what is due, what is counted.

use super::{Load, Outcome, Pace};
use crate::bench::candidate::{Candidate, Prompt};
use crate::bench::figures::{latencies, note};
use crate::bench::process::Usage;
use kvtide_core::rng::Rng;
use std::collections::VecDeque;

pub struct Run<'p> {
    pub load: Load<'p>,
    pub begin: u64,
    pub end: u64,
    /// Connections without a request, and since when.
    idle: Vec<(usize, u64)>,
    /// When requests that nobody has begun yet were due.
    pub due: VecDeque<u64>,
    next_due: u64,
    rng: Rng,
    begun: usize,
    /// When a server last said something.
    pub heard: u64,
    usage: Option<Usage>,
    cpu: Option<(Option<f64>, Option<f64>)>,
    pub outcome: Outcome,
}

impl<'p> Run<'p> {
    pub fn new(now: u64, load: Load<'p>, members: usize, seed: u64) -> Run<'p> {
        let begin = now + load.warm_nanos;
        Run {
            load,
            begin,
            end: begin + load.nanos,
            idle: (0..members).rev().map(|index| (index, now)).collect(),
            due: VecDeque::new(),
            next_due: now,
            rng: Rng::new(seed),
            begun: 0,
            heard: now,
            usage: None,
            cpu: None,
            outcome: Outcome {
                done: 0,
                nanos: load.nanos,
                latency: latencies(),
                lag: latencies(),
                server_cpu_us: None,
                generator_cpu_us: None,
                hog_done: 0,
            },
        }
    }

    /// Reads the processor clocks when the counted time begins and, in the closed loop, ends.
    pub fn mark(&mut self, now: u64, candidate: &Candidate) {
        if self.usage.is_none() && now >= self.begin {
            self.usage = Some(Usage::now(candidate.process));
        }
        if self.load.pace == Pace::Closed && now >= self.end && self.cpu.is_none() {
            self.read_cpu(candidate);
        }
    }

    fn read_cpu(&mut self, candidate: &Candidate) {
        let usage = self.usage.take().unwrap_or_else(|| Usage::now(candidate.process));
        self.cpu = Some(usage.per(candidate.process, self.outcome.done));
    }

    /// Lets requests become due until now.
    pub fn draw(&mut self, now: u64) {
        let Pace::Open { per_second } = self.load.pace else { return };
        while self.next_due <= now && self.next_due < self.end {
            self.due.push_back(self.next_due);
            // The gaps of a Poisson process.
            let uniform = (1 + (self.rng.next_u64() >> 11)) as f64 / (1_u64 << 53) as f64;
            self.next_due += 1 + (-uniform.ln() * 1e9 / per_second) as u64;
        }
    }

    /// A free connection and when its request was due, while there is both.
    pub fn next(&mut self, now: u64) -> Option<(usize, u64)> {
        let due = match self.load.pace {
            Pace::Closed => (now < self.end).then_some(now)?,
            Pace::Open { .. } => *self.due.front()?,
        };
        let (index, free_since) = self.idle.pop()?;
        if self.load.pace != Pace::Closed {
            self.due.pop_front();
            if due >= self.begin {
                // Waiting for a connection is the server's doing, not the generator's.
                note(&mut self.outcome.lag, now.saturating_sub(due.max(free_since)));
            }
        }
        Some((index, due))
    }

    /// Begins nothing more.
    pub fn cut(&mut self, now: u64) {
        self.end = self.end.min(now);
        self.due.clear();
    }

    /// Prompts take turns.
    pub fn prompt(&mut self) -> (usize, &'p Prompt) {
        self.begun += 1;
        let number = self.begun % self.load.prompts.len();
        (number, &self.load.prompts[number])
    }

    /// A request that was due then has ended now.
    pub fn ended(&mut self, index: usize, due: u64, now: u64) {
        self.idle.push((index, now));
        let counts = match self.load.pace {
            Pace::Closed => (self.begin..self.end).contains(&now),
            // Late ones, too: they are what the open loop is for.
            Pace::Open { .. } => due >= self.begin,
        };
        if counts {
            self.outcome.done += 1;
            note(&mut self.outcome.latency, now - due);
        }
    }

    pub fn is_over(&self, now: u64) -> bool {
        now >= self.end && self.due.is_empty()
    }

    /// When the generator has something to do of its own accord. None: as soon as answers come.
    pub fn wakes_at(&self, now: u64) -> Option<u64> {
        match self.load.pace {
            Pace::Open { .. } if now < self.end => Some(self.next_due.min(self.end)),
            _ if now < self.begin => Some(self.begin),
            _ if now < self.end => Some(self.end),
            _ => None,
        }
    }

    pub fn into_outcome(mut self, candidate: &Candidate) -> Outcome {
        if self.cpu.is_none() {
            self.read_cpu(candidate);
        }
        let (server, own) = self.cpu.expect("it was just read");
        Outcome { server_cpu_us: server, generator_cpu_us: own, ..self.outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pace: Pace) -> Load<'static> {
        Load { prompts: &[], hog: None, pace, warm_nanos: 0, nanos: 1_000_000_000 }
    }

    #[test]
    fn an_open_loop_offers_its_rate_and_counts_from_when_requests_were_due() {
        let mut run = Run::new(0, load(Pace::Open { per_second: 1000.0 }), 1, 1);
        run.draw(u64::MAX);
        let offered = run.due.len();
        assert!((900..1100).contains(&offered), "{offered}");
        let (index, due) = run.next(500).expect("one is due and one is free");
        assert_eq!((index, due), (0, 0));
        assert_eq!(run.next(500), None, "the only connection is taken");
        run.ended(index, due, 7_000_000_000);
        assert_eq!(run.outcome.done, 1, "a request that ends late counts");
        assert!(run.outcome.latency.max() >= 6_900_000_000);
        assert!(!run.is_over(u64::MAX), "others are still due");
        assert_eq!(run.outcome.lag.max(), 500);
        run.next(7_000_000_001);
        assert_eq!(run.outcome.lag.max(), 500, "it had to wait for the connection");
    }

    #[test]
    fn a_closed_loop_counts_what_ends_in_time_and_then_begins_no_more() {
        let mut run = Run::new(0, load(Pace::Closed), 2, 1);
        assert_eq!(run.next(5), Some((0, 5)));
        assert_eq!(run.next(5), Some((1, 5)));
        run.ended(0, 5, 999_999_999);
        run.ended(1, 5, 1_000_000_000);
        assert_eq!(run.outcome.done, 1);
        assert_eq!(run.next(1_000_000_000), None);
        assert!(run.is_over(1_000_000_000));
    }

    #[test]
    fn a_run_that_is_cut_short_begins_nothing_more() {
        for pace in [Pace::Closed, Pace::Open { per_second: 1e6 }] {
            let mut run = Run::new(0, load(pace), 2, 1);
            run.draw(500);
            assert!(run.next(500).is_some());
            run.cut(500);
            run.draw(501);
            assert_eq!(run.next(501), None);
            assert!(run.is_over(501));
        }
    }
}
