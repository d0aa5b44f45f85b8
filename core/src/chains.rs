//! A hash index over a table of things that already have indices.
//!
//! Heads by hash, and one link per index: inserting and removing are O(1), nothing is ever moved
//! or rehashed, and no tombstones gather, so that no request pays for another's removal
//! (design §2). Keys are not kept here; the caller compares. Links are kept plus one, so that an
//! empty table is all zeros and takes memory only as it fills.

use alloc::vec::Vec;

#[derive(Clone, Debug)]
pub struct Chains {
    heads: Vec<u32>,
    next: Vec<u32>,
    len: usize,
}

/// The begin of a search.
#[derive(Clone, Copy, Debug)]
pub struct Chain(u32);

impl Chains {
    /// For indices in `0..limit`, with at least one head per index.
    pub fn with_limit(limit: usize) -> Chains {
        assert!(limit < u32::MAX as usize, "an index plus one has 32 bits");
        let heads = limit.next_power_of_two().max(1);
        Chains { heads: alloc::vec![NONE; heads], next: alloc::vec![NONE; limit], len: 0 }
    }

    /// What a table of this size takes.
    pub fn bytes(limit: usize) -> u64 {
        ((limit.next_power_of_two().max(1) + limit) * size_of::<u32>()) as u64
    }

    /// Bytes taken at start.
    pub fn memory_bytes(&self) -> u64 {
        ((self.heads.capacity() + self.next.capacity()) * size_of::<u32>()) as u64
    }

    /// The first index under `hash` for which `is_same` holds.
    pub fn find(&self, hash: u64, is_same: impl FnMut(u32) -> bool) -> Option<u32> {
        self.find_from(self.begin(hash), is_same)
    }

    /// Where the search for `hash` begins. Asked for several hashes before any of them is searched
    /// for, the processor waits for all of their heads at once.
    pub fn begin(&self, hash: u64) -> Chain {
        Chain(self.heads[self.head(hash)])
    }

    /// `find`, from where it begins.
    pub fn find_from(&self, chain: Chain, mut is_same: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut link = chain.0;
        while link != NONE {
            let index = link - 1;
            if is_same(index) {
                return Some(index);
            }
            link = self.next[index as usize];
        }
        None
    }

    /// `index` is not in the table yet.
    pub fn insert(&mut self, hash: u64, index: u32) {
        let head = self.head(hash);
        self.next[index as usize] = self.heads[head];
        self.heads[head] = index + 1;
        self.len += 1;
    }

    /// Takes `index` out. False where it was not under this hash.
    pub fn remove(&mut self, hash: u64, index: u32) -> bool {
        let head = self.head(hash);
        let after = self.next[index as usize];
        if self.heads[head] == index + 1 {
            self.heads[head] = after;
            self.len -= 1;
            return true;
        }
        let mut link = self.heads[head];
        while link != NONE {
            let at = link as usize - 1;
            if self.next[at] == index + 1 {
                self.next[at] = after;
                self.len -= 1;
                return true;
            }
            link = self.next[at];
        }
        false
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn head(&self, hash: u64) -> usize {
        // The high bits of the hasher are its best ones.
        let bits = self.heads.len().trailing_zeros();
        (hash.rotate_left(bits) & (self.heads.len() as u64 - 1)) as usize
    }
}

const NONE: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_hashes_share_a_chain() {
        let mut chains = Chains::with_limit(4);
        for index in 0..4 {
            chains.insert(7, index);
        }
        assert_eq!(chains.find(7, |index| index == 2), Some(2));
        assert!(chains.remove(7, 2));
        assert!(!chains.remove(7, 2));
        assert_eq!(chains.find(7, |index| index == 2), None);
        assert_eq!(chains.find(7, |index| index == 0), Some(0));
        assert!(chains.remove(7, 3));
        assert!(chains.remove(7, 0));
        assert_eq!(chains.len(), 1);
    }
}
