//! Blocks that are kept for one size. A window that is emptied over several turns becomes free
//! block by block; without this, stores of other sizes would take the blocks before the one that
//! asked for all of them comes back, and it would never get in.
//!
//! Invariant: at most one window is kept; those of its blocks that no run owns are in no list of
//! free blocks, and all others that no run owns are.

use super::Space;
use super::window::Window;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    window: Window,
    /// The size that may have it.
    slot_bytes: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Runs in it are still to end.
    Emptying,
    /// All of it is free. Whoever asked has until the second tick from then.
    Whole,
    Old,
}

impl Kept {
    pub(super) fn covers(&self, block: u32) -> bool {
        (self.window.first_block..self.window.first_block + self.window.blocks).contains(&block)
    }
}

impl Space {
    /// Keeps a window's free blocks, and all that become free in it, for objects of this size.
    pub(super) fn keep(&mut self, window: Window, slot_bytes: u64) {
        assert!(self.kept.is_none(), "one window is kept at a time");
        self.kept = Some(Kept { window, slot_bytes, stage: Stage::Emptying });
        for block in window.first_block..window.first_block + window.blocks {
            if self.owners[block as usize] == 0 {
                self.free_blocks.remove(block as usize);
                self.blocks_free -= 1;
            }
        }
    }

    /// Everybody may have the window.
    pub(super) fn let_go(&mut self) {
        let Some(Kept { window, .. }) = self.kept.take() else { return };
        for block in window.first_block..window.first_block + window.blocks {
            if self.owners[block as usize] == 0 {
                self.free_blocks.insert(block as usize);
                self.blocks_free += 1;
            }
        }
    }

    /// Blocks that no run owns any more.
    pub(super) fn set_free(&mut self, first: u32, blocks: u32) {
        let Some(kept) = self.kept else {
            self.free_blocks.insert_range(first as usize, blocks as usize);
            self.blocks_free += blocks;
            return;
        };
        for block in (first..first + blocks).filter(|block| !kept.covers(*block)) {
            self.free_blocks.insert(block as usize);
            self.blocks_free += 1;
        }
    }

    /// The window has been emptied: the next object of its size gets it.
    pub fn is_emptied(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.stage = Stage::Whole;
        }
    }

    /// A tick. What nobody has come back for is everybody's.
    pub fn age_kept(&mut self) {
        match &mut self.kept {
            Some(Kept { stage: stage @ Stage::Whole, .. }) => *stage = Stage::Old,
            Some(Kept { stage: Stage::Old, .. }) => self.let_go(),
            Some(Kept { stage: Stage::Emptying, .. }) | None => {}
        }
    }

    /// Whether some window is kept.
    pub fn is_keeping(&self) -> bool {
        self.kept.is_some()
    }

    /// The window that is kept while runs in it are still to end.
    pub(crate) fn emptying(&self) -> Option<Window> {
        let kept = self.kept.filter(|kept| kept.stage == Stage::Emptying);
        kept.map(|kept| kept.window)
    }

    /// Whether an object of this size may have the window now.
    pub(super) fn is_kept_for(&self, slot_bytes: u64) -> bool {
        let kept = self.kept.filter(|kept| kept.stage != Stage::Emptying);
        kept.is_some_and(|kept| kept.slot_bytes == slot_bytes)
    }

    pub(super) fn is_kept(&self, block: u32) -> bool {
        self.kept.is_some_and(|kept| kept.covers(block))
    }
}
