//! How long, and how many other accesses, until a chunk is read again: rows 10 and 11 of
//! spec/metrics, by the rules of its §3.4.
//!
//! The one invariant: a chunk counts once per fact, however many ranks and groups it has.

use super::sample::{SampleRate, Sampler, Tracked};
use super::tenants::{SaltId, Tenants};
use super::{Measurement, Metric, observe, seconds};
use crate::fact::FactKey;
use crate::limits::{REUSE_KEYS_MAX, WORK_UNITS};
use crate::map::{Map, map_with_capacity};
use crate::names::ChunkHash;
use crate::rng::Rng;
use crate::time::Instant;
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Chunk {
    hash: ChunkHash,
    salt: SaltId,
}

#[derive(Clone, Copy, Debug)]
struct Access {
    at: Instant,
    /// Accesses of the salt by then.
    number: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Reuse {
    sampler: Sampler,
    tracked: Tracked<Chunk, Access>,
    /// Chunks of the fact at hand; empty between facts.
    seen: Map<Chunk, ()>,
}

impl Reuse {
    pub(super) fn new(rate: SampleRate, seed: u64, rng: Rng) -> Reuse {
        Reuse {
            sampler: Sampler::new(rate, seed),
            tracked: Tracked::with_limit(REUSE_KEYS_MAX, seed, rng),
            seen: map_with_capacity(0, seed),
        }
    }

    /// A write moves the time of the last access and measures nothing.
    pub(super) fn written(&mut self, at: Instant, keys: &[FactKey], tenants: &mut Tenants) {
        self.access(at, keys, tenants, |_, _, _| {});
    }

    pub(super) fn read(
        &mut self,
        at: Instant,
        keys: &[FactKey],
        tenants: &mut Tenants,
        out: &mut Vec<Measurement>,
    ) {
        self.access(at, keys, tenants, |salt, last, now| {
            let gap = seconds(now.at.since(last.at));
            observe(out, Metric::RealReuseGap, [("cache_salt", salt.clone())], gap);
            let between = now.number.saturating_sub(last.number) as f64;
            observe(out, Metric::RealReuseGapObjects, [("cache_salt", salt)], between);
        });
    }

    /// Bytes of all tables when full. A fact has no more keys than a turn visits cells.
    pub(super) const fn memory_bytes_max() -> u64 {
        let seen = (WORK_UNITS * 2 * (size_of::<Chunk>() + 1)) as u64;
        Tracked::<Chunk, Access>::memory_bytes_max(REUSE_KEYS_MAX) + seen
    }

    /// Keys of a tenant without a name are left out: their salt is not known.
    fn access(
        &mut self,
        at: Instant,
        keys: &[FactKey],
        tenants: &mut Tenants,
        mut again: impl FnMut(super::Text, Access, Access),
    ) {
        for key in keys {
            let Some(salt) = tenants.salt_of(key.tenant) else { continue };
            let chunk = Chunk { hash: key.hash, salt };
            if self.seen.insert(chunk, ()).is_some() {
                continue;
            }
            let now = Access { at, number: tenants.access(salt) };
            if let Some(last) = self.tracked.find_mut(&chunk) {
                again(tenants.salt_name(salt), *last, now);
                *last = now;
            } else if self.sampler.takes(&chunk) {
                self.tracked.admit(chunk, now);
            }
        }
        self.seen.clear();
    }
}
