//! Two requests with one prompt: one worker has the same range in its hands twice. An operator who
//! clears by force between the two makes them a store, or a read, of different objects.

use super::{Action, RequestNumber, World};
use crate::calls::Call;
use kvtide_core::names::Reply;
use kvtide_core::time::Duration;

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
        let process = super::ProcessId(reply.connection.0.index as usize);
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
}
