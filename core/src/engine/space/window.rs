//! Where emptying runs makes room: the coldest stretch of blocks that could become a run of
//! another class, and the coldest run of a class with something to evict.
//!
//! Both look at every block once; they are asked only when a class is full.

use super::{RunId, Space};

/// Consecutive blocks that are free or belong to runs that hold nothing back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub first_block: u32,
    pub blocks: u32,
    /// Newest touch of anything that would have to go; 0 where all of it is free.
    pub stamp: u64,
}

impl Space {
    /// The window for a run of this size whose newest touch is oldest; the lowest among equals.
    /// None where every window holds an object that cannot go now, or the size can never fit.
    pub fn coldest_window(&mut self, bytes: u64) -> Option<Window> {
        let slot_bytes = self.check_size(bytes).ok()?;
        let blocks = match self.classes.find(slot_bytes) {
            Some(class) => self.classes.at(class).shape.blocks,
            None => self.shape(slot_bytes).blocks,
        };
        // `newest` holds blocks of the current window with falling stamps: its front is the
        // window's newest touch, and each block enters and leaves it once.
        let mut newest = core::mem::take(&mut self.scratch);
        let mut coldest: Option<Window> = None;
        let mut start = 0;
        for block in 0..self.blocks_published {
            let Some(stamp) = self.block_stamp(block) else {
                newest.clear();
                start = block + 1;
                continue;
            };
            while newest.back().is_some_and(|(_, older)| *older <= stamp) {
                newest.pop_back();
            }
            newest.push_back((block, stamp));
            if block + 1 - start < blocks {
                continue;
            }
            let first_block = block + 1 - blocks;
            while newest.front().is_some_and(|(left, _)| *left < first_block) {
                newest.pop_front();
            }
            let stamp = newest.front().expect("the window's last block is in it").1;
            if coldest.is_none_or(|window| stamp < window.stamp) {
                coldest = Some(Window { first_block, blocks, stamp });
            }
        }
        newest.clear();
        self.scratch = newest;
        self.steps.0 += self.blocks_published as usize;
        coldest
    }

    /// Runs that have to be emptied for a window, ascending. A run that reaches over its edge
    /// goes as a whole.
    pub fn runs_in(&self, window: Window) -> impl Iterator<Item = RunId> + '_ {
        let end = window.first_block + window.blocks;
        let mut last = 0;
        (window.first_block..end).filter_map(move |block| {
            let owner = self.owners[block as usize];
            let is_new = owner != 0 && owner != last;
            last = owner;
            is_new.then(|| RunId(owner - 1))
        })
    }

    /// Offsets of all objects that have to go for a window, ascending.
    pub fn occupied_in(&self, window: Window) -> impl Iterator<Item = u64> + '_ {
        self.runs_in(window).flat_map(|run| self.occupied(run))
    }

    /// Among the runs of this size with an object that is not held, the one whose newest touch is
    /// oldest: what a full class evicts from when the policy's order has nothing near its head.
    pub fn coldest_run(&mut self, bytes: u64) -> Option<RunId> {
        let class = self.classes.find(self.check_size(bytes).ok()?)?;
        let mut coldest: Option<(u64, u32)> = None;
        let mut block = 0;
        while block < self.blocks_published {
            let run = &self.runs[block as usize];
            if self.owners[block as usize] == 0 {
                block += 1;
                continue;
            }
            let can_give = run.class == class && run.held < run.used && !run.is_draining;
            if can_give && coldest.is_none_or(|(stamp, _)| run.stamp < stamp) {
                coldest = Some((run.stamp, block));
            }
            block += self.run_class(block).shape.blocks;
        }
        self.steps.0 += self.blocks_published as usize;
        coldest.map(|(_, first)| RunId(first))
    }

    /// Newest touch of the run a block belongs to, 0 where it is free; None where it cannot go or
    /// is kept for somebody.
    fn block_stamp(&self, block: u32) -> Option<u64> {
        if self.is_kept(block) {
            return None;
        }
        match self.owners[block as usize] {
            0 => Some(0),
            owner => {
                let run = &self.runs[owner as usize - 1];
                let is_leaving = planted!(self, 12) && run.is_draining;
                (run.held == 0 || is_leaving).then_some(run.stamp)
            }
        }
    }
}
