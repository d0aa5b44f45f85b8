//! Chunk hashes in a recording. A hash stands for its chunk and everything before it (spec/transfer
//! §1.2), so a list of which the last hash is known is told by one number, however long it is. Its
//! one invariant: a list that was written is read as it was, by position, whatever the table of
//! known chunks has forgotten in between.

use super::bytes::{Fault, Input, Malformed, Write};
use super::secret::{Naming, Numbered};
use crate::names::ChunkHash;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// The writer's side: which chunks have a number already. Direct-mapped, so a chunk may be
/// forgotten, and is then told anew under another number.
#[derive(Clone, Debug)]
pub(super) struct Known {
    slots: Vec<Slot>,
    /// Counts fresh frames: a slot of an earlier one is empty.
    scope: u32,
    /// Chunks told since the last fresh frame.
    told: u32,
    /// Places in the last list of those that it told.
    fresh: Range<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    hash: [u8; 16],
    scope: u32,
    number: u32,
    /// Its place in its list.
    depth: u32,
}

impl Known {
    pub fn new() -> Known {
        // No scope is 0, so all slots are empty.
        Known { slots: vec![Slot::default(); SLOTS], scope: 1, told: 0, fresh: 0..0 }
    }

    /// Forgets everything: a fresh frame begins.
    pub fn reset(&mut self) {
        // After 2^32 fresh frames a slot could be taken for one of this scope.
        if self.scope == u32::MAX {
            self.slots.fill(Slot::default());
            self.scope = 0;
        }
        self.scope += 1;
        self.told = 0;
    }

    pub fn write<N: Naming>(&mut self, hashes: &[ChunkHash], naming: &N, bytes: &mut Vec<u8>) {
        let last = hashes.iter().enumerate().rev();
        let mut known = last.map(|(depth, hash)| (depth, self.find(hash, depth)));
        let known = known.find_map(|(depth, number)| Some((depth, number?)));
        bytes.number(hashes.len() as u64);
        let begin = match known {
            Some((depth, number)) => {
                bytes.number(u64::from(number) + 1);
                depth + 1
            }
            None => {
                bytes.number(0);
                0
            }
        };
        self.fresh = begin..hashes.len();
        for (depth, hash) in hashes.iter().enumerate().skip(begin) {
            bytes.extend_from_slice(&naming.chunk(hash).to_le_bytes());
            let number = self.told;
            self.told += 1;
            let slot = Slot { hash: half(hash), scope: self.scope, number, depth: depth as u32 };
            self.slots[place(hash)] = slot;
        }
    }

    /// What the last list told that was not known, by place.
    pub fn fresh(&self) -> Range<usize> {
        self.fresh.clone()
    }

    fn find(&self, hash: &ChunkHash, depth: usize) -> Option<u32> {
        let slot = &self.slots[place(hash)];
        let found =
            slot.scope == self.scope && slot.depth as usize == depth && slot.hash == half(hash);
        found.then_some(slot.number)
    }
}

/// The reader's side: every chunk told since the last fresh frame.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    chunks: Vec<Chunk>,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    name: u128,
    /// Of the chunk before it, plus one; 0 for none.
    before: u32,
    depth: u32,
}

impl Told {
    pub fn reset(&mut self) {
        self.chunks.clear();
    }

    /// Replaces what is in `hashes`.
    pub fn read(
        &mut self,
        input: &mut Input<'_>,
        hashes: &mut Vec<ChunkHash>,
    ) -> Result<(), Malformed> {
        hashes.clear();
        let start = *input;
        let value = || start.fault(Fault::Value { what: WHAT });
        let count = input.number(WHAT)?;
        let mut before = input.number_u32(WHAT)?;
        let mut depth = 0;
        if before > 0 {
            let last = self.chunks.get(before as usize - 1).ok_or_else(value)?;
            depth = last.depth + 1;
        }
        if u64::from(depth) > count {
            return Err(value());
        }
        let fresh = count - u64::from(depth);
        // What is claimed must be there before memory is reserved for it.
        if fresh > (input.left() / NAME_BYTES) as u64 {
            return Err(input.fault(Fault::Truncated { what: WHAT }));
        }
        hashes.resize(count as usize, ChunkHash([0; 32]));
        let mut at = before;
        for place in (0..depth as usize).rev() {
            let chunk = &self.chunks[at as usize - 1];
            hashes[place] = Numbered::hash_of(chunk.name);
            at = chunk.before;
        }
        for hash in &mut hashes[depth as usize..] {
            let name = u128::from_le_bytes(input.array(WHAT)?);
            *hash = Numbered::hash_of(name);
            self.chunks.push(Chunk { name, before, depth });
            depth += 1;
            before = u32::try_from(self.chunks.len()).map_err(|_| value())?;
        }
        Ok(())
    }
}

fn half(hash: &ChunkHash) -> [u8; 16] {
    *hash.0.first_chunk().expect("a hash has 32 bytes")
}

/// Hashes are spread evenly already. Clients that choose theirs to collide make recordings longer,
/// and nothing worse.
fn place(hash: &ChunkHash) -> usize {
    usize::from(u16::from_le_bytes([hash.0[16], hash.0[17]])) % SLOTS
}

/// What the table of known chunks takes.
pub(super) const MEMORY_BYTES: u64 = (SLOTS * size_of::<Slot>()) as u64;
const SLOTS: usize = 1 << 14;
const NAME_BYTES: usize = 16;
const WHAT: &str = "chunk hashes";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::secret::Secret;

    /// Lists as a front makes them: a hash says which ones come before it.
    fn list(branch: u8, chunks: u8) -> Vec<ChunkHash> {
        (0..chunks)
            .map(|depth| {
                let branch = if depth < 4 { 0 } else { branch };
                let mut hash = [branch; 32];
                (hash[0], hash[16]) = (depth + 1, depth.wrapping_mul(37) ^ branch);
                ChunkHash(hash)
            })
            .collect()
    }

    #[test]
    fn lists_come_back_and_known_ones_take_a_few_bytes() {
        let secret = Secret::new([5; 16]);
        let (mut known, mut told) = (Known::new(), Told::default());
        let mut read = Vec::new();
        let lists = [list(1, 9), list(1, 9), list(1, 3), list(2, 7), list(2, 12), list(1, 9)];
        let mut sizes = Vec::new();
        for hashes in lists.iter().chain([&Vec::new()]) {
            let mut bytes = Vec::new();
            known.write(hashes, &secret, &mut bytes);
            sizes.push(bytes.len());
            let mut input = Input::new(&bytes, 0);
            told.read(&mut input, &mut read).expect("it was just written");
            assert!(input.is_empty());
            let names: Vec<u128> = hashes.iter().map(|hash| secret.chunk(hash)).collect();
            let found: Vec<u128> = read.iter().map(|hash| Numbered.chunk(hash)).collect();
            assert_eq!(found, names);
        }
        assert_eq!(sizes, [2 + 9 * 16, 2, 2, 2 + 3 * 16, 2 + 5 * 16, 2, 2]);
        known.reset();
        let mut bytes = Vec::new();
        known.write(&lists[0], &secret, &mut bytes);
        assert_eq!(bytes.len(), 2 + 9 * 16, "a fresh frame knows nothing");
    }

    #[test]
    fn a_claim_without_bytes_reserves_nothing() {
        let mut told = Told::default();
        let mut hashes = Vec::new();
        let mut bytes = Vec::new();
        bytes.number(u64::MAX);
        bytes.number(0);
        let fault = told.read(&mut Input::new(&bytes, 0), &mut hashes).expect_err("too many");
        assert_eq!(fault.fault, Fault::Truncated { what: WHAT });
        let fault = told.read(&mut Input::new(&[1, 1], 0), &mut hashes).expect_err("unknown");
        assert_eq!(fault.fault, Fault::Value { what: WHAT });
    }
}
