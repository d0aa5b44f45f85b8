//! ARC as the peer has it (spec/storage §3.2): objects seen once in T1, more often in T2, the
//! names of evicted ones in B1 and B2, and a target `p` for the length of T1 that moves with every
//! hit on a ghost.
//!
//! | | in T1 | in T2 | name in B1 | name in B2 | unknown |
//! |---|---|---|---|---|---|
//! | reserve | – | – | p up, to T1 | p down, to T1 | to T1 |
//! | admit | – | – | p up, to T2 | p down, to T2 | to T1 |
//! | commit | stays if reserved, else T2 | stays if reserved, else its tail | – | – | – |
//! | touch | to T2 | its tail | – | – | nothing |
//! | evict | name to B1 | name to B2 | – | – | nothing |
//! | forget | gone | gone | – | – | nothing |
//!
//! T1 and T2 are two lists in one `Order`. A pick takes T1's oldest while T1 is at least as long
//! as `p`, else T2's, and the other list where the wanted one has nothing that can go. Held objects
//! count for the length of T1.
//!
//! Invariant (I-38): `|T1| + |B1| <= cap`, `|T1| + |T2| + |B1| + |B2| <= 2 cap`, `0 <= p <= cap`,
//! where `cap` is the most objects ever tracked at once.

use super::ghosts::Ghosts;
use super::order::{FREQUENT, Order, RECENT};
use super::{Departure, PolicyKey, holds};
use crate::SeededHash;
use crate::bits::BitTree;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::BuildHasher;

/// `p` moves by fractions of an object: it is kept in parts per million, without floats.
const ONE: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) struct Adaptive {
    pub(super) order: Order,
    ghosts: Ghosts,
    /// Name of each tracked object, for its time as a ghost.
    names: Vec<u64>,
    /// Reserved and not committed.
    pending: BitTree,
    capacity: u64,
    target_ppm: u64,
    hash: SeededHash,
}

impl Adaptive {
    pub(super) fn new(objects_max: usize, seed: u64) -> Adaptive {
        Adaptive {
            order: Order::new(objects_max, 2),
            ghosts: Ghosts::new(2 * objects_max),
            names: vec![0; objects_max],
            pending: BitTree::new(objects_max),
            capacity: 0,
            target_ppm: 0,
            hash: SeededHash::new(seed),
        }
    }

    pub(super) fn reserve(&mut self, index: u32, key: &PolicyKey) {
        self.enter(index, key, RECENT);
        self.pending.insert(index as usize);
    }

    pub(super) fn admit(&mut self, index: u32, key: &PolicyKey) {
        self.enter(index, key, FREQUENT);
    }

    pub(super) fn commit(&mut self, index: u32) {
        if self.pending.contains(index as usize) {
            self.pending.remove(index as usize);
            return;
        }
        self.order.renew(index, FREQUENT);
    }

    pub(super) fn touch(&mut self, index: u32) {
        self.order.renew(index, FREQUENT);
    }

    pub(super) fn remove(&mut self, index: u32, how: Departure) {
        let list = self.order.list_of(index);
        self.order.remove(index);
        self.pending.remove(index as usize);
        if how == Departure::Evicted {
            self.ghosts.push(self.names[index as usize], list);
            self.trim();
        }
    }

    pub(super) fn coldest(&self) -> Option<u32> {
        let (wanted, other) = self.turns();
        self.order.first(wanted).or_else(|| self.order.first(other))
    }

    pub(super) fn next_after(&self, index: u32) -> Option<u32> {
        let (wanted, other) = self.turns();
        let next = self.order.next_after(index);
        if self.order.list_of(index) != wanted {
            return next;
        }
        next.or_else(|| self.order.first(other))
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.order.memory_bytes()
            + self.ghosts.memory_bytes()
            + self.pending.memory_bytes()
            + (self.names.capacity() * size_of::<u64>()) as u64
    }

    pub(super) fn audit(&self) -> Result<(), &'static str> {
        self.order.audit()?;
        self.ghosts.audit()?;
        let recent = self.order.list_len(RECENT) + self.ghosts.len(RECENT);
        let frequent = self.order.list_len(FREQUENT) + self.ghosts.len(FREQUENT);
        let capacity = self.capacity as usize;
        holds(self.order.len() <= capacity, "I-38: cap is the most ever tracked")?;
        holds(recent <= capacity, "I-38: |T1| + |B1| <= cap")?;
        holds(recent + frequent <= 2 * capacity, "I-38: total <= 2 cap")?;
        holds(self.target_ppm <= self.capacity * ONE, "I-38: 0 <= p <= cap")
    }

    /// A new object goes to T1; one whose name is a ghost moves `p` and goes to `list_of_ghosts`.
    fn enter(&mut self, index: u32, key: &PolicyKey, list_of_ghosts: usize) {
        let name = self.hash.hash_one((key.scope, key.hash));
        let ghost = self.ghosts.find(name);
        if let Some(ghost) = ghost {
            self.adapt(ghost);
            self.ghosts.take(name);
        }
        self.names[index as usize] = name;
        self.order.push(index, if ghost.is_some() { list_of_ghosts } else { RECENT });
        self.capacity = self.capacity.max(self.order.len() as u64);
        self.trim();
    }

    /// A hit in B1 says that T1 is too short, one in B2 that it is too long. Counts still include
    /// the ghost that was hit.
    fn adapt(&mut self, hit: usize) {
        let recent = self.ghosts.len(RECENT) as u64;
        let frequent = self.ghosts.len(FREQUENT) as u64;
        self.target_ppm = match hit {
            RECENT => {
                let up = (frequent * ONE / recent).max(ONE);
                (self.target_ppm + up).min(self.capacity * ONE)
            }
            _ => {
                let down = (recent * ONE / frequent).max(ONE);
                self.target_ppm.saturating_sub(down)
            }
        };
    }

    fn trim(&mut self) {
        let capacity = self.capacity as usize;
        while self.order.list_len(RECENT) + self.ghosts.len(RECENT) > capacity
            && self.ghosts.drop_oldest(RECENT)
        {}
        let ghosts = |ghosts: &Ghosts| ghosts.len(RECENT) + ghosts.len(FREQUENT);
        while self.order.len() + ghosts(&self.ghosts) > 2 * capacity
            && (self.ghosts.drop_oldest(FREQUENT) || self.ghosts.drop_oldest(RECENT))
        {}
    }

    /// The list that gives first, and the other.
    fn turns(&self) -> (usize, usize) {
        if self.order.list_len(RECENT) as u64 >= self.target_ppm / ONE {
            (RECENT, FREQUENT)
        } else {
            (FREQUENT, RECENT)
        }
    }
}
