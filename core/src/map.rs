//! One hash map for everybody: a seeded hasher, so that a run repeats and nobody can choose keys
//! that collide. For lookup only: walking a map must never reach an effect.

use core::hash::BuildHasher;

/// Builds hashers from the seed in `Config`.
#[derive(Clone, Debug)]
pub struct SeededHash(foldhash::quality::SeedableRandomState);

/// Lookup only, never iterate into `out`.
pub type Map<K, V> = hashbrown::HashMap<K, V, SeededHash>;

/// An empty map that holds `capacity` entries without growing.
pub fn map_with_capacity<K, V>(capacity: usize, seed: u64) -> Map<K, V> {
    Map::with_capacity_and_hasher(capacity, SeededHash::new(seed))
}

impl SeededHash {
    pub fn new(seed: u64) -> SeededHash {
        SeededHash(foldhash::quality::SeedableRandomState::with_seed(
            seed,
            foldhash::SharedSeed::global_fixed(),
        ))
    }

    /// By which request ids are told in facts: front and engine come to the same number.
    pub fn of_requests(seed: u64) -> SeededHash {
        SeededHash::new(seed ^ 17)
    }

    /// By which the tokens of an engine's block are told apart.
    pub fn of_tokens(seed: u64) -> SeededHash {
        SeededHash::new(seed ^ 18)
    }
}

impl BuildHasher for SeededHash {
    type Hasher = <foldhash::quality::SeedableRandomState as BuildHasher>::Hasher;

    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}
