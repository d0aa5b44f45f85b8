//! What every room is lent for one event.

use crate::config::Config;
use crate::effect::Outbox;
use crate::engine::alarms::Alarms;
use crate::engine::jobs::Jobs;
use crate::engine::l1::L1;
use crate::time::Instant;

pub struct Turn<'a> {
    pub now: Instant,
    pub config: &'a Config,
    pub l1: &'a mut L1,
    pub alarms: &'a mut Alarms,
    pub jobs: &'a mut Jobs,
    /// Cells that this turn may still visit.
    pub budget: &'a mut usize,
    pub out: &'a mut Outbox,
}

impl Turn<'_> {
    /// One cell visited.
    pub fn spend(&mut self, cells: usize) {
        *self.budget = self.budget.saturating_sub(cells);
    }

    pub fn is_spent(&self) -> bool {
        *self.budget == 0
    }
}
