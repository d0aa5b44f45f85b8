//! What clients say just when the server has work left over: a reactor hands over whatever has
//! arrived before it goes on with old work, so anything may come between two turns of a lookup, an
//! eviction pass or an end.

use super::actions::Then;
use super::clients::Request;
use super::{ProcessId, RequestNumber, Step, World};
use crate::calls::{Call, Range};
use kvtide_core::engine::Alarm;
use kvtide_core::time::Duration;

impl World {
    pub(super) fn is_tick_late(&mut self) -> bool {
        let is_late = self.chance(self.profile.faults.late_tick);
        if is_late {
            self.tally.came("tick late");
        }
        is_late
    }

    pub(super) fn is_rushed(&mut self) -> bool {
        let is_working = matches!(self.bench.engine().deadline(), Some((_, Alarm::Work)));
        is_working && self.chance(self.profile.faults.rush)
    }

    /// Somebody speaks, and is heard before the next turn.
    pub(super) fn rush(&mut self) -> Step {
        self.tally.came("asked between two turns");
        // Where every event leaves work over, each would beget more of them than one.
        if self.queue.len() <= CROWDED {
            self.speak();
        }
        if self.chance(self.profile.faults.forced_clear * 2) {
            self.forced_clear()?;
        }
        for _ in 0..HEARD_MAX {
            let is_here = self.queue.peek().is_some_and(|planned| planned.0.at <= self.now);
            let Some(planned) = is_here.then(|| self.queue.pop()).flatten() else { break };
            self.act(planned.0.action)?;
        }
        Ok(())
    }

    fn speak(&mut self) {
        self.is_rushing = true;
        let looking = self.looking();
        match (self.rng.below(8), looking) {
            (0, Some(request)) => self.wait_twice(request),
            (1, Some(request)) => self.release_early(request),
            (2, Some(request)) => self.end_early(request),
            (0..4, _) => self.store_something(),
            (4..6, _) => self.ask_for_coldest(),
            _ => {
                let group = self.pick(self.groups.len());
                self.begin_some(group);
            }
        }
        self.is_rushing = false;
    }

    /// An old prompt comes again, the very one that has not been used for longest.
    fn ask_for_coldest(&mut self) {
        let Some(key) = self.bench.model.coldest() else { return };
        let is_of = |request: &&Request| {
            let Range { model, salt, hashes, .. } = &request.range;
            (model, salt) == (&key.scope.model, &key.scope.salt) && hashes.contains(&key.hash)
        };
        let old = self.requests.iter().rev().find(is_of);
        let Some((group, range)) = old.map(|old| (old.group, old.range.clone())) else { return };
        self.begin_as(group, range.hashes);
    }

    fn recent(&self) -> std::ops::Range<usize> {
        self.requests.len().saturating_sub(20)..self.requests.len()
    }

    /// A request whose lookup may be under way.
    fn looking(&mut self) -> Option<RequestNumber> {
        let model = &self.bench.model;
        let is_looking = |number: &usize| {
            let request = &self.requests[*number].range.request;
            model.may_look(request, model.serial(request))
        };
        let looking: Vec<usize> = self.recent().filter(is_looking).collect();
        (!looking.is_empty()).then(|| RequestNumber(looking[self.pick(looking.len())]))
    }

    fn scheduler_of(&self, request: RequestNumber) -> ProcessId {
        self.groups[self.requests[request.0].group].scheduler
    }

    /// Two that wait for one result.
    fn wait_twice(&mut self, request: RequestNumber) {
        let other = ProcessId(self.pick(self.processes.len()));
        for process in [self.scheduler_of(request), other] {
            let wait = Duration::from_millis(1 + self.rng.below(2_000));
            let name = self.requests[request.0].range.request.clone();
            self.send(process, Call::Wait { request: name, wait }, Then::Stray);
        }
    }

    /// A release before there is a result; some are another tenant's.
    fn release_early(&mut self, request: RequestNumber) {
        let range = self.requests[request.0].range.clone();
        let mut range = range.part(None, 0, range.end_chunk);
        if self.rng.below(2) == 0 {
            range.salt = if range.salt.is_empty() { "tenant".into() } else { "".into() };
        }
        let scheduler = self.scheduler_of(request);
        let name = range.request.clone();
        self.send(scheduler, Call::Free { range }, Then::Stray);
        self.send(scheduler, Call::Query { request: name }, Then::Stray);
    }

    fn end_early(&mut self, request: RequestNumber) {
        let range = &self.requests[request.0].range;
        let (name, hashes) = (range.request.clone(), range.hashes.clone());
        let scheduler = self.scheduler_of(request);
        self.send(scheduler, Call::EndSession { request: name, hashes }, Then::Stray);
    }

    /// A worker wants room.
    fn store_something(&mut self) {
        let recent = self.recent();
        if recent.is_empty() {
            return;
        }
        let request = RequestNumber(recent.start + self.pick(recent.len()));
        let workers = self.groups[self.requests[request.0].group].workers.clone();
        let process = workers[self.pick(workers.len())];
        self.start_store(process, request, 0);
    }
}

/// What is heard between two turns at most.
const HEARD_MAX: u32 = 8;
/// With so much planned nobody begins anything more between two turns.
const CROWDED: usize = 1_000;
