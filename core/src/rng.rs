//! Our own small generator (SplitMix64): a seed must mean the same in five years.

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub const fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`. `bound` is at least 1.
    pub const fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a range has at least one number");
        (((self.next_u64() as u128) * (bound as u128)) >> 64) as u64
    }

    /// True in `parts` of a million draws.
    pub const fn chance_ppm(&mut self, parts: u64) -> bool {
        self.below(1_000_000) < parts
    }

    /// A generator of its own for one purpose, so that one user's draws do not move another's.
    pub const fn fork(&mut self, purpose: u64) -> Rng {
        let seed = self.next_u64();
        Rng(seed ^ purpose.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }
}
