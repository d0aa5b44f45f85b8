//! A set of numbers below a bound that finds its next member in a handful of steps: words of 64
//! bits, and over them words that say which words below are not empty.
//!
//! Invariant: a bit of an upper level is set if and only if the word below it is not zero. Five
//! levels cover 2^30 numbers, so every door costs a constant number of words.

use alloc::vec;
use alloc::vec::Vec;

/// Members are numbers in `0..len`, `len` as given at start. Memory is never taken later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitTree {
    /// Lowest first; the last level is one word.
    levels: Vec<Vec<u64>>,
    len: usize,
}

impl BitTree {
    /// An empty set over `0..len`.
    pub fn new(len: usize) -> BitTree {
        let mut levels = Vec::new();
        let mut words = len.div_ceil(64).max(1);
        loop {
            levels.push(vec![0u64; words]);
            if words == 1 {
                return BitTree { levels, len };
            }
            words = words.div_ceil(64);
        }
    }

    pub fn insert(&mut self, number: usize) {
        assert!(number < self.len, "a member lies below the bound");
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                return;
            }
            at /= 64;
        }
    }

    pub fn remove(&mut self, number: usize) {
        assert!(number < self.len, "a member lies below the bound");
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// Inserts all of `start..start + count`, a word at a time.
    pub fn insert_range(&mut self, start: usize, count: usize) {
        assert!(start + count <= self.len, "a member lies below the bound");
        let mut from = start;
        while from < start + count {
            let upto = (start + count).min((from / 64 + 1) * 64);
            // The first bit updates the levels above, the rest of the word is filled in.
            self.insert(from);
            self.levels[0][from / 64] |= mask(from % 64, upto - from);
            from = upto;
        }
    }

    /// Removes all of `start..start + count`, a word at a time.
    pub fn remove_range(&mut self, start: usize, count: usize) {
        assert!(start + count <= self.len, "a member lies below the bound");
        let mut from = start;
        while from < start + count {
            let upto = (start + count).min((from / 64 + 1) * 64);
            self.levels[0][from / 64] &= !mask(from % 64, upto - from);
            self.remove(from);
            from = upto;
        }
    }

    pub fn contains(&self, number: usize) -> bool {
        number < self.len && self.levels[0][number / 64] & (1 << (number % 64)) != 0
    }

    /// The smallest member at or above `from`.
    pub fn next_from(&self, from: usize) -> Option<usize> {
        if from >= self.len {
            return None;
        }
        // Up, until a word has a member to the right; then down to the lowest one in it.
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let rest = level.get(at / 64).map_or(0, |word| word & (u64::MAX << (at % 64)));
            if rest != 0 {
                return Some(self.descend(height, at / 64 * 64 + rest.trailing_zeros() as usize));
            }
            at = at / 64 + 1;
        }
        None
    }

    /// The smallest number of `from..end` that is not a member, and the words that were looked at.
    pub fn next_absent(&self, from: usize, end: usize) -> (Option<usize>, usize) {
        let end = end.min(self.len);
        let mut at = from;
        let mut words = 0;
        while at < end {
            words += 1;
            let absent = !self.levels[0][at / 64] & (u64::MAX << (at % 64));
            if absent != 0 {
                let found = at / 64 * 64 + absent.trailing_zeros() as usize;
                return (Some(found).filter(|found| *found < end), words);
            }
            at = (at / 64 + 1) * 64;
        }
        (None, words)
    }

    pub fn first(&self) -> Option<usize> {
        self.next_from(0)
    }

    /// Members of `start..start + count`.
    pub fn count_range(&self, start: usize, count: usize) -> usize {
        let mut found = 0;
        let mut from = start;
        while from < start + count {
            let upto = (start + count).min((from / 64 + 1) * 64);
            let word = self.levels[0][from / 64] & mask(from % 64, upto - from);
            found += word.count_ones() as usize;
            from = upto;
        }
        found
    }

    /// Bytes taken at start for a set over `0..len`.
    pub fn memory_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.capacity() as u64 * 8).sum()
    }

    fn descend(&self, height: usize, mut at: usize) -> usize {
        for level in self.levels[..height].iter().rev() {
            let word = level[at];
            assert!(word != 0, "an upper bit stands for a word that is not empty");
            at = at * 64 + word.trailing_zeros() as usize;
        }
        at
    }
}

/// `count` ones, the lowest at `start`; both lie within one word and `count` is at least 1.
fn mask(start: usize, count: usize) -> u64 {
    (u64::MAX >> (64 - count)) << start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_crosses_words_and_levels() {
        let mut set = BitTree::new(300_000);
        assert_eq!(set.first(), None);
        for number in [0, 63, 64, 4096, 262_144, 299_999] {
            set.insert(number);
        }
        assert_eq!(set.next_from(0), Some(0));
        assert_eq!(set.next_from(1), Some(63));
        assert_eq!(set.next_from(65), Some(4096));
        assert_eq!(set.next_from(4097), Some(262_144));
        assert_eq!(set.next_from(262_145), Some(299_999));
        assert_eq!(set.next_from(300_000), None);
        set.remove(262_144);
        assert_eq!(set.next_from(4097), Some(299_999));
        set.remove(299_999);
        assert_eq!(set.next_from(4097), None);
    }

    #[test]
    fn absent_numbers_are_found_by_words() {
        let mut set = BitTree::new(1000);
        set.insert_range(3, 500);
        assert_eq!(set.next_absent(0, 1000), (Some(0), 1));
        assert_eq!(set.next_absent(3, 1000), (Some(503), 8));
        assert_eq!(set.next_absent(3, 503), (None, 8));
        assert_eq!(set.next_absent(64, 128), (None, 1));
        set.remove(70);
        assert_eq!(set.next_absent(5, 1000), (Some(70), 2));
        set.insert_range(503, 497);
        assert_eq!(set.next_absent(990, 2000), (None, 1));
        assert_eq!(set.next_absent(1000, 1000), (None, 0));
    }

    #[test]
    fn ranges_are_the_same_as_single_numbers() {
        let mut by_range = BitTree::new(10_000);
        let mut one_by_one = BitTree::new(10_000);
        by_range.insert_range(60, 5000);
        (60..5060).for_each(|number| one_by_one.insert(number));
        assert_eq!(by_range, one_by_one);
        assert_eq!(by_range.count_range(0, 10_000), 5000);
        assert_eq!(by_range.count_range(61, 3), 3);
        by_range.remove_range(64, 4900);
        (64..4964).for_each(|number| one_by_one.remove(number));
        assert_eq!(by_range, one_by_one);
    }
}
