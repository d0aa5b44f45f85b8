//! What will happen, in the order of time, and of planning where that is the same.

use super::actions::Action;
use kvtide_core::time::Instant;
use std::cmp::Ordering;

pub(super) struct Planned {
    pub at: Instant,
    pub number: u64,
    pub action: Action,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Planned) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Planned) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Planned) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
