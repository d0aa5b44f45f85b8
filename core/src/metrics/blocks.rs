//! The life of sampled blocks in engines' own memory: rows 29 to 31 of spec/metrics, by the rules
//! of its §3.7.
//!
//! ```text
//!              same tokens, another request
//!                     ┌────┐
//! first seen ──► used by requests ──── the last one ends ───► released
//!                 ▲       ▲                                     │
//!                 │       └── same tokens: an access ───────────┤
//!                 └────────── other tokens: told, starts anew ──┘
//! ```
//!
//! The one invariant: `owned` lists exactly the owners of the blocks that are followed.

use super::sample::{SampleRate, Sampler, Tracked};
use super::transfers::number;
use super::{Measurement, Metric, Text, observe, seconds};
use crate::fact::AllocatedBlock;
use crate::limits::{L0_BLOCKS_MAX, L0_MODELS_MAX, L0_OWNERS_MAX, MODEL_BYTES_MAX};
use crate::map::{Map, map_with_capacity};
use crate::names::InstanceId;
use crate::rng::Rng;
use crate::time::Instant;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use smallvec::SmallVec;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    instance: InstanceId,
    block: u32,
}

#[derive(Clone, Debug)]
struct Life {
    model: Arc<str>,
    /// A number for what is in it.
    tokens: u64,
    /// Requests that use it, by their numbers, the latest last. Without one it is released.
    owners: SmallVec<[u64; 2]>,
    allocated: Instant,
    accessed: Instant,
    /// The last few accesses; the allocation is none (§3.7).
    accesses: SmallVec<[Instant; ACCESSES_KEPT]>,
}

#[derive(Clone, Debug)]
pub(super) struct Blocks {
    sampler: Sampler,
    tracked: Tracked<Place, Life>,
    owned: BTreeSet<(u64, Place)>,
    /// Names that blocks bear, and how many bear each.
    models: Map<Arc<str>, u32>,
}

const ACCESSES_KEPT: usize = 4;

impl Blocks {
    pub(super) fn new(rate: SampleRate, seed: u64, rng: Rng) -> Blocks {
        Blocks {
            sampler: Sampler::new(rate, seed),
            tracked: Tracked::with_limit(L0_BLOCKS_MAX, seed, rng),
            owned: BTreeSet::new(),
            models: map_with_capacity(0, seed),
        }
    }

    pub(super) fn allocated(
        &mut self,
        at: Instant,
        (instance, model): (InstanceId, &Arc<str>),
        blocks: &[AllocatedBlock],
        out: &mut Vec<Measurement>,
    ) {
        for AllocatedBlock { request, tokens, block } in blocks.iter().copied() {
            let place = Place { instance, block };
            match self.tracked.find_mut(&place) {
                Some(life) if life.tokens == tokens => self.shared(at, place, request),
                Some(_) => {
                    let life = self.tracked.remove(&place).expect("found above");
                    life.tell(at, place, out);
                    self.left(place, &life);
                    self.follow(at, place, (model, tokens, request));
                }
                None if self.sampler.takes(&place) => {
                    self.follow(at, place, (model, tokens, request));
                }
                None => {}
            }
        }
    }

    /// A request has ended: its blocks are used by one request less.
    pub(super) fn session_ended(&mut self, request: u64) {
        let first = Place { instance: InstanceId(i64::MIN), block: 0 };
        let is_its = |owned: &&(u64, Place)| owned.0 == request;
        let from = |owned: &BTreeSet<(u64, Place)>| {
            owned.range((request, first)..).next().filter(is_its).copied()
        };
        while let Some((_, place)) = from(&self.owned) {
            self.owned.remove(&(request, place));
            let life = self.tracked.find_mut(&place).expect("only what is followed is owned");
            life.owners.retain(|owner| *owner != request);
        }
    }

    /// Bytes of all tables when full.
    pub(super) const fn memory_bytes_max() -> u64 {
        // Nodes of the tree are half full at worst, and lists double as they grow.
        let owners = L0_BLOCKS_MAX * L0_OWNERS_MAX;
        let owned = 2 * owners * size_of::<(u64, Place)>() + 2 * owners * size_of::<u64>();
        let models = 2 * L0_MODELS_MAX * (MODEL_BYTES_MAX + 4 * size_of::<Arc<str>>());
        Tracked::<Place, Life>::memory_bytes_max(L0_BLOCKS_MAX) + (owned + models) as u64
    }

    /// The same tokens in the same block. To join those who use it is no access.
    fn shared(&mut self, at: Instant, place: Place, request: u64) {
        let life = self.tracked.find_mut(&place).expect("the caller has found it");
        if life.owners.contains(&request) {
            return;
        }
        if life.owners.is_empty() {
            if life.accesses.len() == ACCESSES_KEPT {
                life.accesses.remove(0);
            }
            life.accesses.push(at);
            life.accessed = at;
        }
        // Whoever came first is most likely to end first.
        if life.owners.len() == L0_OWNERS_MAX {
            let oldest = life.owners.remove(0);
            self.owned.remove(&(oldest, place));
        }
        life.owners.push(request);
        self.owned.insert((request, place));
    }

    /// Where the table is full, a random block is followed no longer, without a sample.
    fn follow(
        &mut self,
        at: Instant,
        place: Place,
        (model, tokens, request): (&Arc<str>, u64, u64),
    ) {
        let Some(model) = self.model(model) else { return };
        let owners = SmallVec::from_elem(request, 1);
        let accesses = SmallVec::new();
        let life = Life { model, tokens, owners, allocated: at, accessed: at, accesses };
        self.owned.insert((request, place));
        if let Some((place, life)) = self.tracked.admit(place, life) {
            self.left(place, &life);
        }
    }

    fn left(&mut self, place: Place, life: &Life) {
        for owner in &life.owners {
            self.owned.remove(&(*owner, place));
        }
        let bearers = self.models.get_mut(&life.model).expect("a block's model is known");
        *bearers -= 1;
        if *bearers == 0 {
            self.models.remove(&life.model);
        }
    }

    /// One more block bears this name. None where it is one name too many.
    fn model(&mut self, model: &Arc<str>) -> Option<Arc<str>> {
        if let Some((known, bearers)) = self.models.get_key_value_mut(model) {
            *bearers += 1;
            return Some(known.clone());
        }
        if self.models.len() == L0_MODELS_MAX {
            return None;
        }
        self.models.insert(model.clone(), 1);
        Some(model.clone())
    }
}

impl Life {
    /// Other tokens have come: all that is measured of a block is told now.
    fn tell(&self, at: Instant, place: Place, out: &mut Vec<Measurement>) {
        let labels = || {
            let instance = ("instance_id", number(place.instance.0));
            [instance, ("model_name", Text::Shared(self.model.clone()))]
        };
        observe(out, Metric::L0BlockLifetime, labels(), seconds(at.since(self.allocated)));
        observe(out, Metric::L0BlockIdle, labels(), seconds(at.since(self.accessed)));
        for pair in self.accesses.windows(2) {
            observe(out, Metric::L0BlockReuseGap, labels(), seconds(pair[1].since(pair[0])));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Value;

    const ENGINE: InstanceId = InstanceId(7);

    struct Bench {
        blocks: Blocks,
        model: Arc<str>,
        out: Vec<Measurement>,
    }

    impl Bench {
        fn new() -> Bench {
            let blocks = Blocks::new(SampleRate::ALL, 1, Rng::new(1));
            Bench { blocks, model: "m".into(), out: Vec::new() }
        }

        fn allocate(&mut self, at: u64, request: u64, block: u32, tokens: u64) {
            let blocks = [AllocatedBlock { request, tokens, block }];
            let at = Instant::from_secs(at);
            self.blocks.allocated(at, (ENGINE, &self.model), &blocks, &mut self.out);
            self.check();
        }

        fn end(&mut self, request: u64) {
            self.blocks.session_ended(request);
            self.check();
        }

        fn check(&mut self) {
            let mut owned = 0;
            for (request, place) in &self.blocks.owned {
                let life = self.blocks.tracked.find_mut(place).expect("what is owned is followed");
                assert!(life.owners.contains(request), "{request} owns {place:?}");
                owned += 1;
            }
            assert_eq!(owned, self.blocks.owned.len());
        }

        fn told(&mut self) -> Vec<(Metric, f64)> {
            let told = self.out.drain(..).map(|one| match one.value {
                Value::Observe(value) => (one.metric, value),
                other => panic!("a histogram is not told {other:?}"),
            });
            told.collect()
        }
    }

    #[test]
    fn a_block_tells_of_its_life_when_other_tokens_come() {
        let mut bench = Bench::new();
        bench.allocate(0, 1, 5, 10);
        bench.end(1);
        // Five accesses, of which four are kept.
        for (at, request) in [(10, 2), (11, 3), (13, 4), (16, 5), (20, 6)] {
            bench.allocate(at, request, 5, 10);
            bench.end(request);
        }
        assert_eq!(bench.told(), []);
        bench.allocate(30, 7, 5, 11);
        let gap = Metric::L0BlockReuseGap;
        assert_eq!(
            bench.told(),
            [
                (Metric::L0BlockLifetime, 30.0),
                (Metric::L0BlockIdle, 10.0),
                (gap, 2.0),
                (gap, 3.0),
                (gap, 4.0),
            ]
        );
        // It starts anew.
        bench.allocate(32, 8, 5, 12);
        assert_eq!(bench.told(), [(Metric::L0BlockLifetime, 2.0), (Metric::L0BlockIdle, 2.0)]);
    }

    #[test]
    fn who_joins_others_does_not_access() {
        let mut bench = Bench::new();
        bench.allocate(0, 1, 5, 10);
        bench.allocate(1, 1, 5, 10);
        bench.allocate(2, 2, 5, 10);
        bench.end(1);
        bench.allocate(3, 3, 5, 10);
        bench.end(2);
        bench.end(3);
        bench.end(3);
        bench.allocate(9, 4, 5, 11);
        assert_eq!(bench.told(), [(Metric::L0BlockLifetime, 9.0), (Metric::L0BlockIdle, 9.0)]);
    }

    #[test]
    fn of_many_owners_the_latest_are_remembered() {
        let mut bench = Bench::new();
        let most = L0_OWNERS_MAX as u64;
        for request in 0..=most {
            bench.allocate(0, request, 5, 10);
        }
        assert_eq!(bench.blocks.owned.len(), L0_OWNERS_MAX);
        (0..most).for_each(|request| bench.end(request));
        // The last one still uses it.
        bench.allocate(1, 100, 5, 10);
        bench.end(100);
        bench.end(most);
        assert!(bench.blocks.owned.is_empty());
        bench.allocate(4, 101, 5, 10);
        bench.allocate(6, 102, 5, 11);
        assert_eq!(bench.told(), [(Metric::L0BlockLifetime, 6.0), (Metric::L0BlockIdle, 2.0)]);
    }

    #[test]
    fn what_is_followed_is_bounded() {
        let mut bench = Bench::new();
        let count = L0_BLOCKS_MAX as u32 + 100;
        let block = |block| AllocatedBlock { request: block as u64 % 5, tokens: 1, block };
        let blocks: Vec<AllocatedBlock> = (0..count).map(block).collect();
        let model = bench.model.clone();
        bench.blocks.allocated(Instant::ZERO, (ENGINE, &model), &blocks, &mut bench.out);
        bench.check();
        assert_eq!(bench.blocks.owned.len(), L0_BLOCKS_MAX);
        assert_eq!(bench.blocks.models.get(&model), Some(&(L0_BLOCKS_MAX as u32)));
        (0..5).for_each(|request| bench.end(request));
        assert!(bench.blocks.owned.is_empty());

        // Models likewise; a name that nobody bears any more makes room.
        for number in 0..L0_MODELS_MAX + 10 {
            bench.model = alloc::format!("{number}").into();
            bench.allocate(1, 9, u32::MAX, number as u64);
        }
        assert_eq!(bench.blocks.models.len(), 2);
        for number in 0..L0_MODELS_MAX as u32 + 10 {
            bench.model = alloc::format!("{number}").into();
            bench.allocate(1, 9, count + number, 1);
        }
        assert_eq!(bench.blocks.models.len(), L0_MODELS_MAX);
    }
}
