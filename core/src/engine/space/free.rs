//! Where a run can begin: stretches of free blocks.

use super::Space;

impl Space {
    /// `find_free`, with its cost remembered.
    pub(super) fn find_place(&mut self, blocks: u32) -> Option<u32> {
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

    /// How many disjoint runs of this length would find a place.
    pub(super) fn count_free(&self, blocks: u32) -> u64 {
        self.free_spans().map(|(_, count)| (count / blocks) as u64).sum()
    }

    /// Longest stretches of free blocks as (first, count), ascending.
    fn free_spans(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let first = self.free_blocks.next_from(from)?;
            let mut end = first + 1;
            while self.free_blocks.contains(end) {
                end += 1;
            }
            from = end;
            Some((first as u32, (end - first) as u32))
        })
    }
}
