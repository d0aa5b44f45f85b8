//! What stands for a chunk, a request, a salt and a digest in a recording: SipHash-2-4 under a
//! secret that is never written. Its one invariant: equal things have equal numbers within one run
//! of a server, in its recording and its dumps, and nobody who has no more than the files can say
//! which thing a number stands for, or check a guess. Whoever could send requests to the server
//! meanwhile can check one: he knows which entries are his own.

use crate::names::ChunkHash;

/// Numbers in place of things that may not be told.
pub trait Naming {
    fn chunk(&self, hash: &ChunkHash) -> u128;
    fn request(&self, request: &str) -> u64;
    /// 0 for the empty salt, which says nothing.
    fn salt(&self, salt: &str) -> u64;
    /// Of a number that stands for something within one run already.
    fn number(&self, number: u64) -> u64;
    /// Of the digest of an object's bytes: whoever can compute those could check a guess with it.
    fn digest(&self, digest: u32) -> u32;
}

/// The key of one run.
#[derive(Clone)]
pub struct Secret {
    low: u64,
    high: u64,
}

impl Secret {
    /// `bytes` are 16 that nobody can guess.
    pub fn new(bytes: [u8; 16]) -> Secret {
        let (low, high) = halves(&bytes);
        Secret { low, high }
    }
}

impl Naming for Secret {
    /// The first half of a hash is enough: whoever finds two with the same half has broken it.
    fn chunk(&self, hash: &ChunkHash) -> u128 {
        let first: &[u8; 16] = hash.0.first_chunk().expect("a hash has 32 bytes");
        let (low, high) = halves(first);
        let mut state = State::new(self.low, self.high ^ CHUNKS, true);
        state.word(low);
        state.word(high);
        state.word(16 << 56);
        let low = state.end(0xee);
        u128::from(state.end_again()) << 64 | u128::from(low)
    }

    fn request(&self, request: &str) -> u64 {
        hash(self.low, self.high ^ REQUESTS, request.as_bytes())
    }

    fn salt(&self, salt: &str) -> u64 {
        if salt.is_empty() { 0 } else { hash(self.low, self.high ^ SALTS, salt.as_bytes()) }
    }

    fn number(&self, number: u64) -> u64 {
        hash(self.low, self.high ^ NUMBERS, &number.to_le_bytes())
    }

    fn digest(&self, digest: u32) -> u32 {
        hash(self.low, self.high ^ DIGESTS, &digest.to_le_bytes()) as u32
    }
}

/// The names of a recording that is run again: they are numbers already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbered;

impl Naming for Numbered {
    fn chunk(&self, hash: &ChunkHash) -> u128 {
        u128::from_le_bytes(*hash.0.first_chunk().expect("a hash has 32 bytes"))
    }

    fn request(&self, request: &str) -> u64 {
        u64::from_str_radix(request, 16).unwrap_or(0)
    }

    fn salt(&self, salt: &str) -> u64 {
        u64::from_str_radix(salt, 16).unwrap_or(0)
    }

    fn number(&self, number: u64) -> u64 {
        number
    }

    fn digest(&self, digest: u32) -> u32 {
        digest
    }
}

impl Numbered {
    /// The hash that a recorded chunk has in a replay.
    pub fn hash_of(chunk: u128) -> ChunkHash {
        let mut hash = [0; 32];
        hash[..16].copy_from_slice(&chunk.to_le_bytes());
        ChunkHash(hash)
    }
}

struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    fn new(low: u64, high: u64, is_wide: bool) -> State {
        let wide = if is_wide { 0xee } else { 0 };
        State {
            v0: low ^ 0x736f_6d65_7073_6575,
            v1: high ^ 0x646f_7261_6e64_6f6d ^ wide,
            v2: low ^ 0x6c79_6765_6e65_7261,
            v3: high ^ 0x7465_6462_7974_6573,
        }
    }

    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }

    fn word(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.round();
        self.v0 ^= word;
    }

    fn end(&mut self, mark: u64) -> u64 {
        self.v2 ^= mark;
        (0..4).for_each(|_| self.round());
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }

    /// The second half of a wide hash.
    fn end_again(&mut self) -> u64 {
        self.v1 ^= 0xdd;
        (0..4).for_each(|_| self.round());
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }
}

fn hash(low: u64, high: u64, bytes: &[u8]) -> u64 {
    let mut state = State::new(low, high, false);
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| state.word(u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    state.word(u64::from_le_bytes(last) | (bytes.len() as u64) << 56);
    state.end(0xff)
}

fn halves(bytes: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*bytes);
    (both as u64, (both >> 64) as u64)
}

/// Keys of their own for each kind of thing, so that a salt and a request of the same text differ.
const CHUNKS: u64 = 1;
const REQUESTS: u64 = 2;
const SALTS: u64 = 3;
const DIGESTS: u64 = 4;
const NUMBERS: u64 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use core::array::from_fn;

    /// The vectors of the authors of SipHash: key 00..0f, input 00..0e and none.
    #[test]
    fn it_is_siphash() {
        let (low, high) = halves(&from_fn(|index| index as u8));
        let input: [u8; 15] = from_fn(|index| index as u8);
        assert_eq!(hash(low, high, &input), 0xa129_ca61_49be_45e5);
        let mut state = State::new(low, high, true);
        state.word(0);
        let wide = [state.end(0xee).to_le_bytes(), state.end_again().to_le_bytes()].concat();
        let expected =
            [0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55];
        assert_eq!((&wide[..14], &wide[14..]), (&expected[..], &[0x02, 0x93][..]));
    }

    #[test]
    fn equal_things_have_equal_numbers_and_other_secrets_other_numbers() {
        let (one, other) = (Secret::new([1; 16]), Secret::new([2; 16]));
        let (a, b) = (ChunkHash([3; 32]), ChunkHash([4; 32]));
        assert_eq!(one.chunk(&a), one.chunk(&a));
        assert_ne!(one.chunk(&a), one.chunk(&b));
        assert_ne!(one.chunk(&a), other.chunk(&a));
        assert_ne!(one.request("r-1"), other.request("r-1"));
        assert_ne!(one.request("r-1"), one.salt("r-1"), "each kind has a key of its own");
        assert_eq!((one.salt(""), Numbered.salt("")), (0, 0));
        assert_eq!(one.digest(7), one.digest(7));
        assert_ne!(one.digest(7), one.digest(8));
        assert_ne!((one.digest(7), other.digest(7)), (7, 7));
        assert_eq!(Numbered.digest(7), 7);
    }

    #[test]
    fn numbers_stand_for_themselves_in_a_replay() {
        let number = Secret::new([9; 16]).chunk(&ChunkHash([7; 32]));
        assert_eq!(Numbered.chunk(&Numbered::hash_of(number)), number);
        assert_eq!(Numbered.request("00000000000000ff"), 255);
    }
}
