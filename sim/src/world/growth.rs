//! The arena grows, step by step; a step need not end where a block of it does.

use super::actions::Action;
use super::{Step, World};
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::time::Duration;

impl World {
    pub(super) fn grow(&mut self) -> Step {
        let total = self.profile.config.l1_bytes;
        let most = self.profile.grown_bytes_max;
        if self.grown > 0 && self.now >= self.grown_at + LATE_GROWTH {
            self.tally.came("growth step late");
            self.bench.reach.met(State::GrowthLate);
        }
        self.grown_at = self.now;
        self.grown = (self.grown + self.profile.grow_step_bytes).min(most);
        if self.grown < most {
            self.plan(self.profile.grow_gap, Action::Grow);
        } else if most < total {
            self.tally.came("arena stopped growing");
        }
        self.feed(Input::ArenaGrown { bytes: self.grown })
    }
}

/// A step of growth that takes so long is a late one.
const LATE_GROWTH: Duration = Duration::from_secs(30);
