//! Which keys are followed, and a table of them that never outgrows its bound.
//!
//! The one invariant: the same key gets the same answer for a whole run.

use crate::map::{Map, SeededHash, map_with_capacity};
use crate::rng::Rng;
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};

/// A share of all keys, in (0, 1]. As the peer's: a key is followed when its hash modulo a prime
/// lies below a threshold (spec/metrics §3.3), so 0.01 and 1.0 mean what they mean there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRate {
    threshold: u64,
}

const MODULUS: u64 = 1_000_003;

impl SampleRate {
    pub const ALL: SampleRate = SampleRate { threshold: MODULUS };

    /// None outside (0, 1]: the server does not start with such a rate.
    pub fn from_ratio(rate: f64) -> Option<SampleRate> {
        if !(rate > 0.0 && rate <= 1.0) {
            return None;
        }
        Some(SampleRate { threshold: (rate * MODULUS as f64) as u64 })
    }

    /// The same from parts per million.
    pub fn from_ppm(parts: u64) -> Option<SampleRate> {
        if parts == 0 || parts > 1_000_000 {
            return None;
        }
        Some(SampleRate { threshold: parts * MODULUS / 1_000_000 })
    }

    fn admits(self, hash: u64) -> bool {
        hash % MODULUS < self.threshold
    }
}

/// Draws keys by a seeded hash: stable within a run, and nobody can choose keys that are drawn.
#[derive(Clone, Debug)]
pub(super) struct Sampler {
    rate: SampleRate,
    hasher: SeededHash,
}

impl Sampler {
    pub(super) fn new(rate: SampleRate, seed: u64) -> Sampler {
        Sampler { rate, hasher: SeededHash::new(seed) }
    }

    pub(super) fn takes(&self, key: &impl Hash) -> bool {
        self.rate == SampleRate::ALL || self.rate.admits(self.hasher.hash_one(key))
    }
}

/// Entries by key. When it is full, a random entry makes room for a new one: neither old nor
/// young keys are favoured.
#[derive(Clone, Debug)]
pub(super) struct Tracked<K, V> {
    places: Map<K, u32>,
    entries: Vec<(K, V)>,
    limit: usize,
    rng: Rng,
}

impl<K: Copy + Eq + Hash, V> Tracked<K, V> {
    pub(super) fn with_limit(limit: usize, seed: u64, rng: Rng) -> Tracked<K, V> {
        assert!(limit > 0, "a table holds something");
        assert!(limit <= u32::MAX as usize, "a place has 32 bits");
        Tracked { places: map_with_capacity(0, seed), entries: Vec::new(), limit, rng }
    }

    pub(super) fn find_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = *self.places.get(key)?;
        Some(&mut self.entries[place as usize].1)
    }

    /// The key is not there yet. What made room for it, if something had to.
    pub(super) fn admit(&mut self, key: K, value: V) -> Option<(K, V)> {
        let mut gone = None;
        if self.entries.len() == self.limit {
            let victim = self.rng.below(self.limit as u64) as usize;
            let victim = self.entries[victim].0;
            gone = self.remove(&victim).map(|value| (victim, value));
        }
        let before = self.places.insert(key, self.entries.len() as u32);
        assert!(before.is_none(), "a key is admitted once");
        self.entries.push((key, value));
        gone
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.places.remove(key)? as usize;
        let (_, value) = self.entries.swap_remove(place);
        if let Some((moved, _)) = self.entries.get(place) {
            self.places.insert(*moved, place as u32);
        }
        Some(value)
    }

    /// Bytes of a full table: a hash map keeps one place in eight free, and doubles.
    pub(super) const fn memory_bytes_max(limit: usize) -> u64 {
        let places = (limit * 8 / 7).next_power_of_two() * (size_of::<(K, u32)>() + 1);
        let entries = limit.next_power_of_two() * size_of::<(K, V)>();
        (places + entries) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_mean_what_they_mean_to_the_peer() {
        assert_eq!(SampleRate::from_ratio(0.01).map(|rate| rate.threshold), Some(10_000));
        assert_eq!(SampleRate::from_ratio(1.0), Some(SampleRate::ALL));
        assert_eq!(SampleRate::from_ppm(10_000), SampleRate::from_ratio(0.01));
        assert_eq!(SampleRate::from_ppm(1_000_000), Some(SampleRate::ALL));
        assert_eq!(SampleRate::from_ratio(1e-7).map(|rate| rate.threshold), Some(0));
        for rate in [0.0, -0.5, 1.5, f64::NAN] {
            assert_eq!(SampleRate::from_ratio(rate), None);
        }
        assert_eq!(SampleRate::from_ppm(0), None);
        assert_eq!(SampleRate::from_ppm(1_000_001), None);
    }

    #[test]
    fn a_rate_takes_its_share_and_always_the_same_keys() {
        let rate = SampleRate::from_ratio(0.1).expect("it lies in (0, 1]");
        let taken =
            |sampler: Sampler| (0..10_000_u32).filter(|key| sampler.takes(key)).collect::<Vec<_>>();
        let first = taken(Sampler::new(rate, 7));
        assert!((800..1200).contains(&first.len()), "{} of 10000", first.len());
        assert_eq!(first, taken(Sampler::new(rate, 7)));
        assert_ne!(first, taken(Sampler::new(rate, 8)));
    }

    #[test]
    fn a_full_table_drops_one_entry_for_a_new_one() {
        let mut table = Tracked::with_limit(3, 1, Rng::new(1));
        for key in 0..100_u32 {
            table.admit(key, key * 10);
            assert_eq!(table.find_mut(&key), Some(&mut (key * 10)));
            assert_eq!(table.entries.len(), table.places.len());
            assert!(table.entries.len() <= 3);
        }
        let kept: Vec<u32> = table.entries.iter().map(|(key, _)| *key).collect();
        for key in kept {
            assert_eq!(table.remove(&key), Some(key * 10));
            assert_eq!(table.find_mut(&key), None);
        }
        assert!(table.places.is_empty());
    }
}
