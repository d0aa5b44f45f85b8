//! What every room is lent for one event, and how much of it the event may use up.

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
    pub work: &'a mut Work,
    pub out: &'a mut Outbox,
}

/// Cells (chunk x row) that one event may visit, and those that it has visited.
///
/// The invariant: what can wait stops when nothing is left and becomes a job, or the client's next
/// request. What cannot wait is only the request or ticket that the event is about: its one answer
/// names all of its chunks, so they are counted beside the budget, as `own`. They are at most
/// `REQUEST_CHUNKS_MAX`, times `COPIES_PER_NAME_MAX` where one commit ends several copies: those of
/// its name, or of its request where its registration has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    left: usize,
    /// Cells that were counted down.
    pub counted: usize,
    /// Cells of the request or ticket itself.
    pub own: usize,
}

impl Work {
    pub fn new(units: usize) -> Work {
        Work { left: units, counted: 0, own: 0 }
    }

    pub fn spend(&mut self, cells: usize) {
        self.left = self.left.saturating_sub(cells);
        self.counted += cells;
    }

    /// Something much cheaper than a cell was done so often: a bit looked at, a link followed.
    pub fn spend_steps(&mut self, steps: usize) {
        self.spend(steps.div_ceil(STEPS_PER_CELL));
    }

    pub fn spend_own(&mut self, cells: usize) {
        self.own += cells;
    }

    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    pub fn left(&self) -> usize {
        self.left
    }
}

impl Turn<'_> {
    /// Cells visited on behalf of what can wait.
    pub fn spend(&mut self, cells: usize) {
        self.work.spend(cells);
    }

    /// Cells of the request or ticket that this event is about.
    pub fn spend_own(&mut self, cells: usize) {
        self.work.spend_own(cells);
    }

    pub fn is_spent(&self) -> bool {
        self.work.is_spent()
    }
}

/// A cell touches a handful of tables; a step reads a word of memory that lies beside the last.
const STEPS_PER_CELL: usize = 16;
