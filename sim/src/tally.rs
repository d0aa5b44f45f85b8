//! How often each fault has really come: a fault that exists in a profile and never comes tests
//! nothing.

use std::collections::BTreeMap;

/// Counts by what happened, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub fn came(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Tally) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    /// In alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().map(|(what, count)| (*what, *count))
    }
}
