//! Emptying runs over several turns.
//!
//! Invariant: a draining run has a taken slot, stands in no list and counts no free slot for its
//! class; it ends with its last object like any other.

use super::window::Window;
use super::{Extent, RunId, Space};

impl Space {
    /// Objects that have to go for a window.
    pub fn used_in(&self, window: Window) -> usize {
        self.runs_in(window).map(|run| self.runs[run.0 as usize].used as usize).sum()
    }

    /// Words of free slots that are looked at to find them.
    pub fn words_in(&self, window: Window) -> usize {
        self.runs_in(window).map(|run| self.runs[run.0 as usize].slots as usize / 64 + 1).sum()
    }

    /// The runs of a window give no slot out from now on, and what becomes free in it is kept for
    /// objects of this size.
    pub fn drain(&mut self, window: Window, bytes: u64) {
        self.keep(window, self.slot_bytes_for(bytes));
        let mut from = window.first_block;
        while let Some(run) = self.run_from(window, from) {
            from = run.0 + self.run_class(run.0).shape.blocks;
            let entry = &mut self.runs[run.0 as usize];
            let free = entry.slots - entry.used;
            let class = entry.class;
            if !entry.is_draining {
                entry.is_draining = true;
                self.classes.at_mut(class).free_slots -= free as u64;
                if free > 0 {
                    self.partial.remove(class as u32, run.0);
                }
            }
        }
    }

    /// What is still draining in a window becomes usable again.
    pub fn undrain(&mut self, window: Window) {
        self.let_go();
        let mut from = window.first_block;
        while let Some(run) = self.run_from(window, from) {
            from = run.0 + self.run_class(run.0).shape.blocks;
            let entry = &mut self.runs[run.0 as usize];
            let free = entry.slots - entry.used;
            let class = entry.class;
            if entry.is_draining {
                entry.is_draining = false;
                self.classes.at_mut(class).free_slots += free as u64;
                if free > 0 {
                    self.partial.push_front(class as u32, run.0);
                }
            }
        }
    }

    pub fn is_draining(&self, extent: &Extent) -> bool {
        self.runs[extent.run.0 as usize].is_draining
    }

    /// The first run of a window that is being emptied, and whether it can be.
    pub fn next_draining(&mut self, window: Window) -> Option<(RunId, bool)> {
        self.steps.0 += window.blocks as usize;
        let draining = |run: &RunId| self.runs[run.0 as usize].is_draining;
        let run = self.runs_in(window).find(draining)?;
        Some((run, self.runs[run.0 as usize].held == 0))
    }

    /// The first taken slot of a run at or after `slot`, with its offset.
    pub fn next_taken(&mut self, run: RunId, slot: u32) -> Option<(u32, u64)> {
        let (taken, words) = self.find_taken(run, slot);
        // The first word is part of what visiting the object costs.
        self.steps.0 += words.saturating_sub(1);
        taken
    }

    /// The same, and the words of free slots that were looked at.
    pub(super) fn find_taken(&self, run: RunId, slot: u32) -> (Option<(u32, u64)>, usize) {
        if !self.exists(run) {
            return (None, 0);
        }
        let base = run.0 as usize * self.slots_per_block();
        let end = base + self.runs[run.0 as usize].slots as usize;
        let (taken, words) = self.free_slots.next_absent(base + slot as usize, end);
        let of = |number: usize| {
            let slot = number - base;
            let within = slot as u64 * self.run_class(run.0).slot_bytes;
            (slot as u32, run.0 as u64 * self.block_bytes + within)
        };
        (taken.map(of), words)
    }

    /// The first run of a window that reaches to or beyond block `from`.
    fn run_from(&self, window: Window, from: u32) -> Option<RunId> {
        let end = window.first_block + window.blocks;
        let owners = self.owners[from.min(end) as usize..end as usize].iter();
        owners.copied().find(|owner| *owner != 0).map(|owner| RunId(owner - 1))
    }

    pub(super) fn exists(&self, run: RunId) -> bool {
        self.owners.get(run.0 as usize) == Some(&(run.0 + 1))
    }
}
