//! Many seeds over all cores. What comes out does not depend on how many those are: results are
//! taken in the order of their seeds.

use crate::reach::Reach;
use crate::tally::Tally;
use crate::{Failure, Run, run};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// What a row of seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub seeds: u64,
    /// Events of every run, sorted.
    pub events: Vec<u64>,
    pub reach: Reach,
    pub faults: Tally,
    /// The first that failed; of later ones nothing is known.
    pub failure: Option<Box<Failure>>,
}

impl Totals {
    fn take(&mut self, run: Run) {
        self.seeds += 1;
        self.events.push(run.events);
        self.reach.add(&run.reach);
        self.faults.add(&run.faults);
    }

    pub fn median(&self) -> u64 {
        self.events.get(self.events.len() / 2).copied().unwrap_or_default()
    }

    pub fn sum(&self) -> u64 {
        self.events.iter().sum()
    }
}

/// Runs seeds from `from` on for as long as `goes_on` says of the next one, and until one fails.
/// The last seed of all wraps around to the first.
pub fn run_many(from: u64, cores: usize, goes_on: impl Fn(u64) -> bool + Sync) -> Totals {
    run_these(|nth| goes_on(nth).then(|| from.wrapping_add(nth)), cores)
}

/// Runs the seeds that `nth_seed` names, until it names none or one fails.
pub fn run_these(nth_seed: impl Fn(u64) -> Option<u64> + Sync, cores: usize) -> Totals {
    let next = AtomicU64::new(0);
    // No seed after the first that failed counts.
    let failed_at = AtomicU64::new(u64::MAX);
    let results = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth > failed_at.load(Ordering::Relaxed) {
                return;
            }
            let Some(seed) = nth_seed(nth) else { return };
            let result = run(seed);
            if result.is_err() {
                failed_at.fetch_min(nth, Ordering::Relaxed);
            }
            results.lock().expect("a run's panic is caught").insert(nth, result);
        }
    };
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let mut totals = Totals::default();
    for result in results.into_inner().expect("a run's panic is caught").into_values() {
        match result {
            Ok(run) => totals.take(run),
            Err(failure) => {
                totals.failure = Some(failure);
                break;
            }
        }
    }
    totals.events.sort_unstable();
    totals
}

/// The seeds of a list such as `tests/seeds.txt`: every line that does not begin with `#` begins
/// with one. None where a line does not.
pub fn seeds_in(list: &str) -> Option<Vec<u64>> {
    let lines = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split(' ').next()?.parse().ok()).collect()
}

/// A seed made of a text, such as a commit id.
pub fn seed_of(text: &str) -> u64 {
    // FNV-1a; eight digits are easily typed again.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
    });
    FIXED_SEEDS + hash % 100_000_000
}

/// Below lie the seeds that are run every time.
pub const FIXED_SEEDS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_gives_the_seeds_at_the_beginning_of_its_lines() {
        assert_eq!(seeds_in("# 1\n\n6 why\n15\n"), Some(vec![6, 15]));
        assert_eq!(seeds_in("six"), None);
    }

    #[test]
    fn a_text_gives_one_seed_beyond_the_fixed_ones() {
        assert_eq!(seed_of("5fade3a"), seed_of("5fade3a"));
        assert_ne!(seed_of("5fade3a"), seed_of("5fade3b"));
        assert!(seed_of("") >= FIXED_SEEDS);
    }
}
