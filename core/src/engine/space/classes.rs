//! The table of size classes, and how many superblocks a run of each has.
//!
//! Invariant: `order` names every used entry once, by ascending slot size.

use super::Space;
use crate::limits::SIZE_CLASSES_MAX;
use alloc::vec::Vec;

/// Longest run of objects that are not themselves longer.
const RUN_BLOCKS_MAX: u64 = 8;

/// How the runs of one class are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) blocks: u32,
    pub(super) slots: u32,
    pub(super) waste_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) slot_bytes: u64,
    pub(super) shape: Shape,
    /// Open runs, and the free slots in all of them.
    pub(super) runs: u32,
    pub(super) free_slots: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Classes {
    entries: Vec<Option<Class>>,
    free: Vec<u16>,
    order: Vec<(u64, u16)>,
}

impl Classes {
    pub(super) fn new() -> Classes {
        Classes {
            entries: Vec::with_capacity(SIZE_CLASSES_MAX),
            free: Vec::with_capacity(SIZE_CLASSES_MAX),
            order: Vec::with_capacity(SIZE_CLASSES_MAX),
        }
    }

    pub(super) fn insert(&mut self, slot_bytes: u64, shape: Shape) -> u16 {
        assert!(!self.is_full(), "the caller looked for a free entry");
        let class = Class { slot_bytes, shape, runs: 0, free_slots: 0 };
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = Some(class);
                id
            }
            None => {
                self.entries.push(Some(class));
                (self.entries.len() - 1) as u16
            }
        };
        let at = self.order.partition_point(|(size, _)| *size < slot_bytes);
        self.order.insert(at, (slot_bytes, id));
        id
    }

    pub(super) fn remove(&mut self, id: u16) {
        let class = self.entries[id as usize].take().expect("a class is removed once");
        let at = self.order.binary_search_by_key(&class.slot_bytes, |(size, _)| *size);
        self.order.remove(at.expect("a used entry is in the order"));
        self.free.push(id);
    }

    pub(super) fn find(&self, slot_bytes: u64) -> Option<u16> {
        let at = self.order.binary_search_by_key(&slot_bytes, |(size, _)| *size).ok()?;
        Some(self.order[at].1)
    }

    pub(super) fn at(&self, id: u16) -> &Class {
        self.entries[id as usize].as_ref().expect("a live run or extent keeps its class")
    }

    pub(super) fn at_mut(&mut self, id: u16) -> &mut Class {
        self.entries[id as usize].as_mut().expect("a live run or extent keeps its class")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &Class)> {
        self.order.iter().map(|(_, id)| (*id, self.at(*id)))
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.order.len() == SIZE_CLASSES_MAX
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.entries.capacity() * size_of::<Option<Class>>()
            + self.free.capacity() * size_of::<u16>()
            + self.order.capacity() * size_of::<(u64, u16)>()) as u64
    }
}

impl Space {
    /// The shortest run, of up to eight blocks, with which an arena full of this size would waste
    /// at most an eighth; the best there is where none does. The remainder of the arena that is
    /// too short for a run counts as waste, so a tiny arena gets short runs. Larger objects have a
    /// run each.
    pub(super) fn shape(&self, slot_bytes: u64) -> Shape {
        let least = slot_bytes.div_ceil(self.block_bytes);
        assert!(least <= self.blocks_max as u64, "an object that never fits has no shape");
        if least > RUN_BLOCKS_MAX {
            return self.shape_of(slot_bytes, least);
        }
        let arena_bytes = self.configured_bytes();
        let covered = |blocks: u64| {
            self.blocks_max as u64 / blocks * (blocks * self.block_bytes / slot_bytes) * slot_bytes
        };
        let mut best = least;
        for blocks in least..=RUN_BLOCKS_MAX.min(self.blocks_max as u64) {
            if covered(blocks) > covered(best) {
                best = blocks;
            }
            if covered(best) >= arena_bytes - arena_bytes / 8 {
                break;
            }
        }
        self.shape_of(slot_bytes, best)
    }

    fn shape_of(&self, slot_bytes: u64, blocks: u64) -> Shape {
        let run_bytes = blocks * self.block_bytes;
        let slots = run_bytes / slot_bytes;
        Shape {
            blocks: blocks as u32,
            slots: slots as u32,
            waste_bytes: run_bytes - slots * slot_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn shape(configured: u64, slot_bytes: u64) -> (u32, u32) {
        let shape = Space::new(configured, 4096).shape(slot_bytes);
        (shape.blocks, shape.slots)
    }

    #[test]
    fn superblocks_are_a_share_of_the_arena() {
        for (configured, block) in [
            (MIB, MIB),
            (64 * MIB, MIB),
            (GIB, 4 * MIB),
            (20 * GIB, 64 * MIB),
            (7 * GIB, 16 * MIB),
            (512 * GIB, 64 * MIB),
        ] {
            assert_eq!(Space::new(configured, 4096).superblock_bytes(), block, "{configured}");
        }
    }

    #[test]
    fn runs_waste_at_most_an_eighth() {
        let arena = 64 * GIB;
        assert_eq!(shape(arena, 4096), (1, 16_384));
        assert_eq!(shape(arena, 2 * MIB), (1, 32));
        assert_eq!(shape(arena, 56 * MIB), (1, 1));
        // One block would hold one of 40 MiB and waste 24.
        assert_eq!(shape(arena, 40 * MIB), (2, 3));
        assert_eq!(shape(arena, 80 * MIB), (4, 3));
        assert_eq!(shape(arena, 640 * MIB), (10, 1));
    }

    #[test]
    fn a_tiny_arena_gets_short_runs() {
        // Runs of two would hold one object more each, but there is no second block.
        assert_eq!(shape(MIB, 600 << 10), (1, 1));
        assert_eq!(shape(2 * MIB, 600 << 10), (2, 3));
        assert_eq!(shape(3 * MIB, 600 << 10), (3, 5));
        assert_eq!(shape(3 * MIB, 3 * MIB), (3, 1));
    }
}
