//! Where a run can begin: stretches of free blocks.

use super::Space;

impl Space {
    /// `find_free`, with its cost remembered. What is kept for this size is free for it.
    pub(super) fn find_place_for(&mut self, slot_bytes: u64, blocks: u32) -> Option<u32> {
        if self.is_kept_for(slot_bytes) {
            self.let_go();
        }
        let mut steps = 0;
        let found = self.find_free(blocks, &mut steps);
        self.steps.0 += steps;
        found
    }

    /// The lowest place for a run. Runs of one length then always lie at multiples of it, which is
    /// why a single class never fragments the arena.
    pub(super) fn find_free(&self, blocks: u32, steps: &mut usize) -> Option<u32> {
        if blocks > self.blocks_free {
            return None;
        }
        let mut from = 0;
        loop {
            let first = self.free_blocks.next_from(from)?;
            let is_taken = |block: &usize| !self.free_blocks.contains(*block);
            let taken = (first..first + blocks as usize).find(is_taken);
            *steps += taken.map_or(blocks as usize, |taken| taken - first);
            match taken {
                Some(taken) => from = taken,
                None => return Some(first as u32),
            }
        }
    }

    /// Bits and blocks that were looked at since the last time that this was asked.
    pub fn take_steps(&mut self) -> usize {
        core::mem::take(&mut self.steps.0)
    }

    /// How many disjoint runs of this length would find a place, with what is kept or without.
    pub(super) fn count_free(&self, blocks: u32, with_kept: bool) -> u64 {
        let is_free = |block: &u32| {
            let listed = self.free_blocks.contains(*block as usize);
            let kept = with_kept && self.owners[*block as usize] == 0 && self.is_kept(*block);
            listed || kept
        };
        let (mut count, mut from) = (0, 0);
        while from + blocks <= self.blocks_published {
            match (from..from + blocks).find(|block| !is_free(block)) {
                Some(taken) => from = taken + 1,
                None => (count, from) = (count + 1, from + blocks),
            }
        }
        count
    }
}
