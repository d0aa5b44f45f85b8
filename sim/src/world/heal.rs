//! Act two: no fault comes any more, everybody finishes or leaves, time passes every deadline.
//! Then nothing may be left (design P4), and what was promised must still be there.

use super::{ProcessId, Step, World};
use crate::rest::{self, TICKS};
use crate::transcript::Input;
use kvtide_core::time::Duration;
use std::cmp::Reverse;

impl World {
    pub(super) fn heal(&mut self) -> Step {
        self.is_healing = true;
        self.heal_tiers();
        self.finish_work()?;
        for process in 0..self.processes.len() {
            if self.rng.below(2) == 0 {
                self.leave(ProcessId(process))?;
            }
        }
        self.finish_work()?;
        let longest = rest::longest(&self.profile.config);
        self.pass(longest)?;
        rest::check_answered(&self.bench)?;
        // Those that stay connected may have been lent what they will never commit; else nothing.
        if self.bench.model.copies().next().is_none() {
            rest::check_quiet(&self.bench)?;
        }
        for process in 0..self.processes.len() {
            self.leave(ProcessId(process))?;
        }
        self.finish_work()?;
        self.pass(longest)?;
        rest::check_quiet(&self.bench)?;
        self.bench.check_memory()
    }

    /// Until nobody has anything left to do.
    fn finish_work(&mut self) -> Step {
        let mut steps = 0;
        while !self.queue.is_empty() {
            self.step()?;
            steps += 1;
            if steps > STEPS_MAX {
                return Err("P4: the world does not come to rest".into());
            }
        }
        Ok(())
    }

    fn leave(&mut self, process: ProcessId) -> Step {
        self.crash(process)
    }

    /// Lets time pass, with every tick that is wanted.
    fn pass(&mut self, longest: Duration) -> Step {
        let end = self.now + longest;
        // Once in small steps to the first deadlines, then in large ones.
        for _ in 0..TICKS {
            let due = self.bench.engine().deadline().map(|(at, _)| at);
            let next = self.queue.peek().map(|Reverse(planned)| planned.at);
            match (due, next) {
                (_, Some(next)) if next <= end && due.is_none_or(|due| next < due) => {
                    self.step()?;
                }
                (Some(due), _) if due <= end => {
                    self.now = self.now.max(due);
                    self.feed(Input::Tick)?;
                }
                _ => break,
            }
        }
        while self.now < end {
            self.now = end.min(self.now + longest / 8);
            for _ in 0..TICKS {
                // What lower tiers were asked for meanwhile.
                while self.queue.peek().is_some_and(|planned| planned.0.at <= self.now) {
                    self.step()?;
                }
                self.feed(Input::Tick)?;
                if self.bench.engine().deadline().is_none_or(|(at, _)| at > self.now) {
                    break;
                }
            }
        }
        self.finish_work()
    }
}

/// Steps that the longest act two takes, many times over.
const STEPS_MAX: u64 = 200_000;
