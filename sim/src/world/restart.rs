//! The server crashes and another one takes its place: the engine, the arena and everything that
//! was in memory only are gone; lower tiers are there, with what was durable. Clients notice that
//! their connections have ended and come back, some without a word about who they are; what they
//! had on its way comes to nothing.

use super::actions::Action;
use super::bytes::Link;
use super::{ProcessId, Step, World};
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::front::Front;
use kvtide_core::time::Duration;

impl World {
    pub(super) fn restart(&mut self) -> Step {
        self.tally.came("server crashed");
        self.note_crash();
        for process in &mut self.processes {
            process.generation += process.is_open as u32;
            process.is_open = false;
            process.link = Link::default();
        }
        for process in 0..self.processes.len() {
            self.lose_cache(ProcessId(process));
        }
        self.waiting.clear();
        self.holdings.clear();
        self.streams.clear();
        self.carried.clear();
        self.opened_for.clear();
        // What the old server was still to be told names tickets that the new one has not issued.
        self.queue.retain(|planned| {
            let of_server = matches!(
                planned.0.action,
                Action::Flow { .. }
                    | Action::Attached { .. }
                    | Action::Carry { .. }
                    | Action::StaleEnding { .. }
                    | Action::Grow
                    | Action::Join { .. }
                    | Action::Scan { .. }
                    | Action::Toil { .. }
                    | Action::Flush { .. }
            );
            !of_server
        });
        self.crash_tiers();
        self.restarts += 1;
        self.grown = 0;
        self.front = Front::new(&self.profile.config);
        self.feed(Input::Restarted)?;
        self.plan_in(Duration::ZERO, Action::Grow);
        for process in 0..self.processes.len() {
            self.plan(Duration::from_secs(5), Action::Connect { process: ProcessId(process) });
        }
        Ok(())
    }

    fn note_crash(&mut self) {
        let status = self.bench.engine().status();
        let met = [
            (State::ServerCrashedLeased, status.leased_objects > 0),
            (State::ServerCrashedWriting, self.holdings.values().any(|held| held.is_writer)),
            (State::ServerCrashedFlowing, !self.streams.is_empty()),
            (State::ServerCrashedCopying, !self.carried.is_empty()),
            (State::ServerCrashedWorking, status.jobs > 0),
        ];
        for (state, _) in met.into_iter().filter(|(_, is_met)| *is_met) {
            self.bench.reach.met(state);
        }
    }
}
