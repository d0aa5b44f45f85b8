//! The life of sampled objects in L1: rows 6 to 9 of spec/metrics, by the rules of its §3.2.
//!
//! The one invariant: an object is tracked or remembered as evicted, never both.

use super::sample::{SampleRate, Sampler, Tracked};
use super::{L1_TAG, Measurement, Metric, observe, seconds};
use crate::fact::FactKey;
use crate::limits::{EVICTED_KEYS_MAX, LIFECYCLE_KEYS_MAX};
use crate::map::{Map, map_with_capacity};
use crate::names::{ChunkHash, ScopeId};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Tenant, rank, group and layout stand behind the scope: with the hash, the whole key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ObjectKey {
    hash: ChunkHash,
    scope: ScopeId,
}

impl From<&FactKey> for ObjectKey {
    fn from(key: &FactKey) -> ObjectKey {
        ObjectKey { hash: key.hash, scope: key.scope }
    }
}

#[derive(Clone, Copy, Debug)]
struct Life {
    written: Instant,
    touched: Instant,
}

#[derive(Clone, Debug)]
pub(super) struct Lifecycle {
    sampler: Sampler,
    tracked: Tracked<ObjectKey, Life>,
    evicted_at: Map<ObjectKey, Instant>,
    /// The same in order of time. An entry whose time is not the map's is stale: the key came back.
    evictions: VecDeque<(Instant, ObjectKey)>,
}

/// How long an eviction is remembered.
const REMEMBERED: Duration = Duration::from_secs(300);

impl Lifecycle {
    pub(super) fn new(rate: SampleRate, seed: u64, rng: Rng) -> Lifecycle {
        Lifecycle {
            sampler: Sampler::new(rate, seed),
            tracked: Tracked::with_limit(LIFECYCLE_KEYS_MAX, seed, rng),
            evicted_at: map_with_capacity(0, seed),
            evictions: VecDeque::new(),
        }
    }

    pub(super) fn written(&mut self, at: Instant, keys: &[FactKey], out: &mut Vec<Measurement>) {
        for key in keys.iter().map(ObjectKey::from) {
            if let Some(evicted) = self.evicted_at.remove(&key) {
                let gap = at.since(evicted).min(REMEMBERED);
                observe(out, Metric::L1ChunkEvictReuseGap, [L1_TAG], seconds(gap));
            }
            if let Some(life) = self.tracked.find_mut(&key) {
                let gap = seconds(at.since(life.touched));
                observe(out, Metric::L1ChunkReuseGap, [L1_TAG], gap);
                *life = Life { written: at, touched: at };
            } else if self.sampler.takes(&key) {
                self.tracked.admit(key, Life { written: at, touched: at });
            }
        }
        self.sweep(at, out);
    }

    pub(super) fn read(&mut self, at: Instant, keys: &[FactKey], out: &mut Vec<Measurement>) {
        for key in keys.iter().map(ObjectKey::from) {
            let Some(life) = self.tracked.find_mut(&key) else { continue };
            let gap = seconds(at.since(life.touched));
            observe(out, Metric::L1ChunkReuseGap, [L1_TAG], gap);
            life.touched = at;
        }
    }

    pub(super) fn evicted(&mut self, at: Instant, keys: &[FactKey], out: &mut Vec<Measurement>) {
        for key in keys.iter().map(ObjectKey::from) {
            let Some(life) = self.tracked.remove(&key) else { continue };
            let lifetime = seconds(at.since(life.written));
            observe(out, Metric::L1ChunkLifetime, [L1_TAG], lifetime);
            observe(out, Metric::L1ChunkIdle, [L1_TAG], seconds(at.since(life.touched)));
            self.remember(at, key);
        }
        self.sweep(at, out);
    }

    /// Bytes of all tables when full.
    pub(super) const fn memory_bytes_max() -> u64 {
        let places = (EVICTED_KEYS_MAX * 8 / 7).next_power_of_two();
        let evicted_at = places * (size_of::<(ObjectKey, Instant)>() + 1);
        let evictions = EVICTED_KEYS_MAX.next_power_of_two() * size_of::<(Instant, ObjectKey)>();
        let tracked = Tracked::<ObjectKey, Life>::memory_bytes_max(LIFECYCLE_KEYS_MAX);
        tracked + (evicted_at + evictions) as u64
    }

    /// Over the bound the oldest eviction is forgotten without a sample.
    fn remember(&mut self, at: Instant, key: ObjectKey) {
        if self.evictions.len() == EVICTED_KEYS_MAX {
            let (then, oldest) = self.evictions.pop_front().expect("a full queue has a front");
            if self.evicted_at.get(&oldest) == Some(&then) {
                self.evicted_at.remove(&oldest);
            }
        }
        self.evicted_at.insert(key, at);
        self.evictions.push_back((at, key));
    }

    /// Keys that did not come back in time count as exactly that long.
    fn sweep(&mut self, at: Instant, out: &mut Vec<Measurement>) {
        while let Some((then, key)) = self.evictions.front().copied() {
            if at.since(then) < REMEMBERED {
                return;
            }
            self.evictions.pop_front();
            if self.evicted_at.get(&key) == Some(&then) {
                self.evicted_at.remove(&key);
                let gap = seconds(REMEMBERED);
                observe(out, Metric::L1ChunkEvictReuseGap, [L1_TAG], gap);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Value;
    use crate::names::TenantId;

    fn key(number: u32) -> FactKey {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&number.to_le_bytes());
        FactKey { hash: ChunkHash(hash), bytes: 1, scope: ScopeId(0), tenant: TenantId(0) }
    }

    fn gaps(out: &mut Vec<Measurement>) -> Vec<f64> {
        out.drain(..)
            .filter(|one| one.metric == Metric::L1ChunkEvictReuseGap)
            .map(|one| match one.value {
                Value::Observe(value) => value,
                other => panic!("a histogram is not told {other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_key_that_comes_back_is_swept_never() {
        let mut life = Lifecycle::new(SampleRate::ALL, 1, Rng::new(1));
        let mut out = Vec::new();
        life.written(Instant::from_secs(0), &[key(1)], &mut out);
        life.evicted(Instant::from_secs(10), &[key(1)], &mut out);
        life.written(Instant::from_secs(30), &[key(1)], &mut out);
        life.evicted(Instant::from_secs(40), &[key(1)], &mut out);
        assert_eq!(gaps(&mut out), [20.0]);
        // The first eviction is 300 s old now, but it ended at 30; the second one is not.
        life.written(Instant::from_secs(320), &[], &mut out);
        assert_eq!(gaps(&mut out), [0.0; 0]);
        life.written(Instant::from_secs(340), &[], &mut out);
        assert_eq!(gaps(&mut out), [300.0]);
        assert!(life.evictions.is_empty());
        assert!(life.evicted_at.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut life = Lifecycle::new(SampleRate::ALL, 1, Rng::new(1));
        let mut out = Vec::new();
        let count = (EVICTED_KEYS_MAX + 10) as u32;
        for number in 0..count {
            life.written(Instant::from_secs(1), &[key(number)], &mut out);
            life.evicted(Instant::from_secs(2), &[key(number)], &mut out);
        }
        assert_eq!(life.evictions.len(), EVICTED_KEYS_MAX);
        assert_eq!(life.evicted_at.len(), EVICTED_KEYS_MAX);
        out.clear();
        life.written(Instant::from_secs(3), &[key(0), key(count - 1)], &mut out);
        assert_eq!(gaps(&mut out), [1.0]);
    }
}
