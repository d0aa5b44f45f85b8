//! The names of objects that ARC evicted: two lists, oldest first, found by key.
//!
//! A name is a seeded 64-bit hash of the object key. Two keys with one hash would at worst move
//! ARC's balance once for nothing, so the 36 bytes of the key are not kept.
//!
//! Invariant: a name is in at most one list, and in the chain of its bucket exactly while it is in
//! a list. The chains are our own because a hash map under constant removal has to be rebuilt now
//! and then, and a turn is bounded.

use super::holds;
use crate::lists::Lists;
use alloc::vec;
use alloc::vec::Vec;

/// The list of a ghost is the list that it was evicted from: `order::RECENT` or `FREQUENT`.
#[derive(Clone, Debug)]
pub(super) struct Ghosts {
    /// First node of each chain plus one, 0 is empty. As many as a power of two.
    buckets: Vec<u32>,
    nodes: Vec<Ghost>,
    lists: Lists,
    /// Nodes from here on were never used.
    fresh: u32,
    /// Used before and free now, chained, plus one.
    free: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ghost {
    name: u64,
    /// Next node of the chain plus one.
    chain: u32,
    list: u32,
}

impl Ghosts {
    pub(super) fn new(ghosts_max: usize) -> Ghosts {
        Ghosts {
            buckets: vec![0; ghosts_max.max(1).next_power_of_two()],
            nodes: vec![Ghost::default(); ghosts_max],
            lists: Lists::new(2, ghosts_max),
            fresh: 0,
            free: 0,
        }
    }

    /// Appends a name to a list; a ghost of the same name gives way.
    pub(super) fn push(&mut self, name: u64, list: usize) {
        self.take(name);
        let node = match self.free.checked_sub(1) {
            Some(node) => {
                self.free = self.nodes[node as usize].chain;
                node
            }
            None => {
                assert!((self.fresh as usize) < self.nodes.len(), "ARC's trims bound its ghosts");
                self.fresh += 1;
                self.fresh - 1
            }
        };
        let bucket = self.bucket(name);
        let chain = core::mem::replace(&mut self.buckets[bucket], node + 1);
        self.nodes[node as usize] = Ghost { name, chain, list: list as u32 };
        self.lists.push_back(list as u32, node);
    }

    /// The list of a ghost, if there is one of this name.
    pub(super) fn find(&self, name: u64) -> Option<usize> {
        let mut at = self.buckets[self.bucket(name)];
        while at != 0 {
            let ghost = &self.nodes[at as usize - 1];
            if ghost.name == name {
                return Some(ghost.list as usize);
            }
            at = ghost.chain;
        }
        None
    }

    /// Removes a ghost; returns its list.
    pub(super) fn take(&mut self, name: u64) -> Option<usize> {
        let bucket = self.bucket(name);
        let mut before = 0;
        let mut at = self.buckets[bucket];
        while at != 0 {
            let ghost = self.nodes[at as usize - 1];
            if ghost.name != name {
                before = at;
                at = ghost.chain;
                continue;
            }
            match before {
                0 => self.buckets[bucket] = ghost.chain,
                before => self.nodes[before as usize - 1].chain = ghost.chain,
            }
            self.lists.remove(ghost.list, at - 1);
            self.nodes[at as usize - 1] = Ghost { chain: self.free, ..Ghost::default() };
            self.free = at;
            return Some(ghost.list as usize);
        }
        None
    }

    /// Forgets the oldest ghost of a list; false when there is none.
    pub(super) fn drop_oldest(&mut self, list: usize) -> bool {
        let Some(node) = self.lists.head(list as u32) else { return false };
        self.take(self.nodes[node as usize].name).expect("a listed ghost is in its chain");
        true
    }

    pub(super) fn len(&self, list: usize) -> usize {
        self.lists.len(list as u32) as usize
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let tables =
            self.buckets.capacity() * size_of::<u32>() + self.nodes.capacity() * size_of::<Ghost>();
        tables as u64 + self.lists.memory_bytes()
    }

    pub(super) fn audit(&self) -> Result<(), &'static str> {
        let mut chained = 0;
        for bucket in 0..self.buckets.len() {
            let mut at = self.buckets[bucket];
            while at != 0 {
                let ghost = &self.nodes[at as usize - 1];
                holds(self.bucket(ghost.name) == bucket, "I-38: a ghost is in its own chain")?;
                chained += 1;
                at = ghost.chain;
            }
        }
        holds(chained == self.len(0) + self.len(1), "I-38: every ghost is in a list")
    }

    fn bucket(&self, name: u64) -> usize {
        name as usize & (self.buckets.len() - 1)
    }
}
