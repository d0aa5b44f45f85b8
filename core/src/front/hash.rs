//! Chunk hashes: a chain over whole chunks of token ids (spec/transfer §1.2, §1.3).
//!
//! ```text
//! blake3       h[i] = blake3( h[i-1] | u32be(token) … )
//! sha256_cbor  h[i] = sha256( cbor([h[i-1], [token, …], null]) )
//! ```
//!
//! The one invariant: a hash depends on the tokens from the first one on and on nothing else, so it
//! does not matter into which pieces a caller cuts them.

use crate::config::HashAlgorithm;
use crate::names::ChunkHash;
use alloc::boxed::Box;
use alloc::vec::Vec;
use sha2::{Digest, Sha256};

/// A chain in progress: what came before, and the tokens of the chunk that is not whole yet.
#[derive(Clone, Debug)]
pub struct ChunkHasher {
    algorithm: HashAlgorithm,
    chunk_tokens: u32,
    /// Tokens of the unfinished chunk.
    filled: u32,
    previous: ChunkHash,
    /// Encoded head of the unfinished chunk. Never grows beyond what `new` reserved.
    pending: Vec<u8>,
    /// Takes what `pending` cannot hold: only for chunks of more than `PENDING_TOKENS` tokens.
    spilled: Spilled,
}

#[derive(Clone, Debug)]
enum Spilled {
    Nothing,
    Blake3(Box<blake3::Hasher>),
    Sha256(Box<Sha256>),
}

impl ChunkHasher {
    /// Stands before the first token.
    pub fn new(algorithm: HashAlgorithm, chunk_tokens: u32) -> ChunkHasher {
        assert!(chunk_tokens > 0, "a chunk holds at least one token (Config::check)");
        let held_tokens = chunk_tokens.min(PENDING_TOKENS) as usize;
        let mut hasher = ChunkHasher {
            algorithm,
            chunk_tokens,
            filled: 0,
            previous: seed(algorithm),
            pending: Vec::with_capacity(HEAD_BYTES_MAX + held_tokens * TOKEN_BYTES_MAX),
            spilled: Spilled::Nothing,
        };
        hasher.restart(None);
        hasher
    }

    /// Goes on after the chunk with this hash, or from the seed. Forgets an unfinished chunk.
    pub fn restart(&mut self, previous: Option<ChunkHash>) {
        self.previous = previous.unwrap_or_else(|| seed(self.algorithm));
        self.open_chunk();
    }

    /// How many tokens the unfinished chunk still takes: at least one.
    pub fn room(&self) -> u32 {
        self.chunk_tokens - self.filled
    }

    /// Takes in tokens in order; `whole` gets the hash of every chunk that they complete.
    pub fn feed(&mut self, mut tokens: &[u32], mut whole: impl FnMut(ChunkHash)) {
        while !tokens.is_empty() {
            let count = tokens.len().min(self.room() as usize).min(PENDING_TOKENS as usize);
            let (now, later) = tokens.split_at(count);
            self.encode(now);
            self.filled += count as u32;
            tokens = later;
            if self.filled == self.chunk_tokens {
                self.previous = self.close_chunk();
                self.open_chunk();
                whole(self.previous);
            }
        }
    }

    fn open_chunk(&mut self) {
        self.filled = 0;
        self.spilled = Spilled::Nothing;
        self.pending.clear();
        match self.algorithm {
            HashAlgorithm::Blake3 => self.pending.extend_from_slice(&self.previous.0),
            HashAlgorithm::Sha256Cbor => {
                self.pending.extend_from_slice(&[0x83, 0x58, 0x20]);
                self.pending.extend_from_slice(&self.previous.0);
                push_cbor_head(&mut self.pending, 0x80, self.chunk_tokens);
            }
        }
    }

    fn encode(&mut self, tokens: &[u32]) {
        if self.pending.len() + tokens.len() * TOKEN_BYTES_MAX > self.pending.capacity() {
            self.spill();
        }
        match self.algorithm {
            HashAlgorithm::Blake3 => {
                let start = self.pending.len();
                self.pending.resize(start + tokens.len() * 4, 0);
                let (words, _) = self.pending[start..].as_chunks_mut::<4>();
                for (word, token) in words.iter_mut().zip(tokens) {
                    *word = token.to_be_bytes();
                }
            }
            HashAlgorithm::Sha256Cbor => {
                for token in tokens {
                    push_cbor_head(&mut self.pending, 0x00, *token);
                }
            }
        }
    }

    /// Empties `pending` into a running hash, for chunks that are larger than it.
    fn spill(&mut self) {
        if let Spilled::Nothing = self.spilled {
            self.spilled = match self.algorithm {
                HashAlgorithm::Blake3 => Spilled::Blake3(Box::new(blake3::Hasher::new())),
                HashAlgorithm::Sha256Cbor => Spilled::Sha256(Box::new(Sha256::new())),
            };
        }
        match &mut self.spilled {
            Spilled::Nothing => {}
            Spilled::Blake3(hasher) => drop(hasher.update(&self.pending)),
            Spilled::Sha256(hasher) => hasher.update(&self.pending),
        }
        self.pending.clear();
    }

    fn close_chunk(&mut self) -> ChunkHash {
        if self.algorithm == HashAlgorithm::Sha256Cbor {
            self.pending.push(CBOR_NULL);
        }
        ChunkHash(match core::mem::replace(&mut self.spilled, Spilled::Nothing) {
            Spilled::Blake3(mut hasher) => *hasher.update(&self.pending).finalize().as_bytes(),
            Spilled::Sha256(hasher) => hasher.chain_update(&self.pending).finalize().into(),
            Spilled::Nothing => match self.algorithm {
                HashAlgorithm::Blake3 => *blake3::hash(&self.pending).as_bytes(),
                HashAlgorithm::Sha256Cbor => Sha256::digest(&self.pending).into(),
            },
        })
    }
}

/// What stands before the first chunk of every prompt.
pub fn seed(algorithm: HashAlgorithm) -> ChunkHash {
    match algorithm {
        // A zero i64 and one zero u32 (spec/transfer §1.2).
        HashAlgorithm::Blake3 => ChunkHash(*blake3::hash(&[0; 12]).as_bytes()),
        HashAlgorithm::Sha256Cbor => {
            let mut text = Vec::with_capacity(1 + SHA256_SEED_TEXT.len());
            push_cbor_head(&mut text, 0x60, SHA256_SEED_TEXT.len() as u32);
            text.extend_from_slice(SHA256_SEED_TEXT.as_bytes());
            ChunkHash(Sha256::digest(&text).into())
        }
    }
}

/// A CBOR head: major type and its number in the shortest form.
#[inline]
fn push_cbor_head(out: &mut Vec<u8>, major: u8, number: u32) {
    match number {
        0..=23 => out.push(major | number as u8),
        24..=0xff => out.extend_from_slice(&[major | 24, number as u8]),
        0x100..=0xffff => {
            let [high, low] = (number as u16).to_be_bytes();
            out.extend_from_slice(&[major | 25, high, low]);
        }
        _ => {
            let [a, b, c, d] = number.to_be_bytes();
            out.extend_from_slice(&[major | 26, a, b, c, d]);
        }
    }
}

/// Chunks up to this size are hashed in one piece.
const PENDING_TOKENS: u32 = 1024;
/// The longest head: CBOR's array of three, the byte string, and the array of tokens; and its end.
const HEAD_BYTES_MAX: usize = 3 + 32 + 5 + 1;
/// The longest token: a CBOR head with four bytes.
const TOKEN_BYTES_MAX: usize = 5;
const CBOR_NULL: u8 = 0xf6;
/// Hashed in place of `PYTHONHASHSEED` where that is not set (spec/transfer §1.3).
const SHA256_SEED_TEXT: &str = "vllm-none-hash";

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(algorithm: HashAlgorithm, chunk: u32, pieces: &[&[u32]]) -> Vec<ChunkHash> {
        let mut hasher = ChunkHasher::new(algorithm, chunk);
        let mut hashes = Vec::new();
        for piece in pieces {
            hasher.feed(piece, |hash| hashes.push(hash));
        }
        hashes
    }

    #[test]
    fn pieces_do_not_matter() {
        let count = if cfg!(miri) { 1_100 } else { 10_000 };
        let tokens: Vec<u32> = (0..count).map(|n: u32| n.wrapping_mul(2_654_435_761)).collect();
        for algorithm in [HashAlgorithm::Blake3, HashAlgorithm::Sha256Cbor] {
            for chunk in [1, 7, 256, 1024, 1025, 3000, 10_000] {
                let whole = chain(algorithm, chunk, &[&tokens]);
                let (head, tail) = tokens.split_at(tokens.len() / 7 * 3);
                assert_eq!(whole, chain(algorithm, chunk, &[head, tail]));
                let single: Vec<&[u32]> = tokens.chunks(1).collect();
                assert_eq!(whole, chain(algorithm, chunk, &single));
                assert_eq!(whole.len(), tokens.len() / chunk as usize);
            }
        }
    }

    #[test]
    fn a_chain_goes_on_after_a_known_chunk() {
        let tokens: Vec<u32> = (0..64).collect();
        let whole = chain(HashAlgorithm::Blake3, 16, &[&tokens]);
        let mut hasher = ChunkHasher::new(HashAlgorithm::Blake3, 16);
        hasher.feed(&[9; 5], |_| panic!("no chunk is whole yet"));
        hasher.restart(Some(whole[1]));
        let mut rest = Vec::new();
        hasher.feed(&tokens[32..], |hash| rest.push(hash));
        assert_eq!(rest, whole[2..]);
    }

    #[test]
    fn large_chunks_stay_within_the_reserved_buffer() {
        let chunk = if cfg!(miri) { 3_000 } else { 100_000 };
        let mut hasher = ChunkHasher::new(HashAlgorithm::Sha256Cbor, chunk);
        let reserved = hasher.pending.capacity();
        hasher.feed(&alloc::vec![u32::MAX; chunk as usize / 2 * 5], |_| {});
        assert_eq!(hasher.pending.capacity(), reserved);
        assert_eq!(hasher.room(), chunk / 2);
    }
}
