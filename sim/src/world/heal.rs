//! Act two: no fault comes any more, everybody finishes or leaves, time passes every deadline.
//! Then nothing may be left (design P4), and what was promised must still be there.

use super::{ProcessId, Step, World};
use crate::transcript::Input;
use kvtide_core::time::Duration;

impl World {
    pub(super) fn heal(&mut self) -> Step {
        self.is_healing = true;
        self.finish_work()?;
        for process in 0..self.processes.len() {
            if self.rng.below(2) == 0 {
                self.leave(ProcessId(process))?;
            }
        }
        self.finish_work()?;
        let longest = self.longest();
        self.pass(longest)?;
        self.check_answered()?;
        // Those that stay connected may have been lent what they will never commit; else nothing.
        if self.bench.model.copies().next().is_none() {
            self.check_quiet()?;
        }
        for process in 0..self.processes.len() {
            self.leave(ProcessId(process))?;
        }
        self.finish_work()?;
        self.pass(longest)?;
        self.check_quiet()?;
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
            let Some((at, _)) = self.bench.engine().deadline() else { break };
            if at > end {
                break;
            }
            self.now = self.now.max(at);
            self.feed(Input::Tick)?;
        }
        while self.now < end {
            self.now = end.min(self.now + longest / 8);
            for _ in 0..TICKS {
                self.feed(Input::Tick)?;
                if self.bench.engine().deadline().is_none_or(|(at, _)| at > self.now) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Longer than any deadline can be.
    fn longest(&self) -> Duration {
        let config = &self.profile.config;
        let deadlines = [
            config.read_ttl,
            config.write_ttl,
            config.session_ttl,
            config.reap_after,
            config.registration_grace,
        ];
        let longest = deadlines.into_iter().max().unwrap_or_default();
        longest * 2 + Duration::from_secs(10)
    }

    /// Every request has had its answer, but for parked waits, of which none is so long (P2).
    fn check_answered(&self) -> Step {
        match self.bench.unanswered().next() {
            None => Ok(()),
            Some((_, call)) => Err(format!("P2: never answered: {call:?}")),
        }
    }

    fn check_quiet(&self) -> Step {
        let engine = self.bench.engine();
        let status = engine.status();
        if !engine.is_quiet() {
            return Err(format!("P4: something is left: {status:?}"));
        }
        let left = [
            ("sessions", status.sessions),
            ("tickets", status.tickets),
            ("staged objects", status.staged_objects),
            ("condemned objects", status.condemned_objects),
            ("leased bytes", status.leased_bytes),
            ("untaken results", status.active_prefetch_jobs),
        ];
        match left.iter().find(|(_, count)| *count > 0) {
            None => Ok(()),
            Some((name, count)) => Err(format!("P4: {count} {name} are left")),
        }
    }
}

/// Steps that the longest act two takes, many times over.
const STEPS_MAX: u64 = 200_000;
const TICKS: u64 = 2_000;
