//! Two requests with one prompt: one worker has the same range in its hands twice. An operator who
//! clears by force between the two makes them a store, or a read, of different objects. And one
//! request's slots may be committed under the id of another.

use super::actions::{Action, Then};
use super::{ProcessId, RequestNumber, World};
use crate::calls::Call;
use kvtide_core::names::{Connection, Reply};
use kvtide_core::time::Duration;
use std::rc::Rc;

impl World {
    /// Places were lent; a twin may come for the same, after a clear.
    pub(super) fn clear_between(&mut self, reply: Reply, call: &Call) {
        let Some(range) = call.range() else { return };
        let mut recent = (self.requests.len().saturating_sub(60)..self.requests.len()).rev();
        let own = recent.find(|nth| self.requests[*nth].range.request == range.request);
        let Some(own) = own.map(RequestNumber) else { return };
        let Some(twin) = self.requests[own.0].twin else { return };
        if !self.chance(self.profile.faults.forced_clear * 20) {
            return;
        }
        self.tally.came("forced clear between two of one prompt");
        let process = ProcessId(reply.connection.0.index as usize);
        let latency = self.profile.latency;
        self.plan_in(latency, Action::ForcedClear);
        if let Call::PrepareStore { range, .. } = call {
            let from = range.first_chunk;
            self.plan_in(latency * 2, Action::StartStore { process, request: twin, from });
            if self.rng.below(4) == 0 {
                let delay = latency * 4 + Duration::from_millis(1);
                self.plan_in(delay, Action::Crash { process });
            }
        }
    }

    /// What a writer sends when it has written its slots.
    pub(super) fn commit_of(&mut self, commit: &Call, of: Reply) -> (Call, Then) {
        let mut commit = commit.clone();
        if !self.chance(self.profile.faults.foreign) || self.requests.is_empty() {
            return (commit, Then::Committed(of));
        }
        let Call::CommitStore { range, .. } = &mut commit else {
            return (commit, Then::Committed(of));
        };
        let recent = self.requests.len().saturating_sub(10);
        let other = recent + self.pick(self.requests.len() - recent);
        let other = self.requests[other].range.request.clone();
        let own = std::mem::replace(&mut range.request, other);
        (commit, Then::CommittedAs(of, own))
    }

    /// A commit under another id is that of what the name leaves: no honest client sends it while
    /// that may be somebody else's.
    pub(super) fn sign(&mut self, connection: Connection, call: &mut Call, own: &Rc<str>) {
        let Call::CommitStore { instance, range, .. } = call else { return };
        if self.bench.model.is_lent_alone(*instance, range, (connection, own)) {
            self.tally.came("commit under another id");
        } else {
            range.request = own.clone();
        }
    }
}
