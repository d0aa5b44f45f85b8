//! The invariants of `space`, recounted from its tables (I-15, I-17).

use super::window::Window;
use super::{Run, Space};
use crate::limits::SIZE_CLASSES_MAX;
use alloc::vec;
use alloc::vec::Vec;

/// Sums over all runs.
struct Counted {
    free_blocks: u32,
    used_bytes: u64,
    waste_bytes: u64,
    /// Runs and free slots by class.
    classes: Vec<(u32, u64)>,
}

impl Space {
    /// Walks every table. For tests and simulation: O(slots of the arena).
    pub fn audit(&self) -> Result<(), &'static str> {
        let mut counted = Counted {
            free_blocks: 0,
            used_bytes: 0,
            waste_bytes: 0,
            classes: vec![(0, 0); SIZE_CLASSES_MAX],
        };
        let mut block = 0;
        while block < self.blocks_max {
            block = match self.owners[block as usize] {
                0 => self.audit_free_block(block, &mut counted)?,
                _ => self.audit_run(block, &mut counted)?,
            };
        }
        self.audit_totals(&counted)
    }

    /// Whether nothing but a run in this window is being emptied.
    pub(crate) fn drains_only(&self, window: Option<Window>) -> bool {
        let draining = |block: &u32| {
            self.owners[*block as usize] == block + 1 && self.runs[*block as usize].is_draining
        };
        let mut runs = (0..self.blocks_published).filter(draining);
        match window {
            None => runs.next().is_none(),
            // A run that reaches over the window's edge goes as a whole.
            Some(window) => runs.all(|run| self.runs_in(window).any(|other| other.0 == run)),
        }
    }

    fn audit_free_block(&self, block: u32, counted: &mut Counted) -> Result<u32, &'static str> {
        let is_published = block < self.blocks_published;
        let is_kept = self.is_kept(block);
        holds(is_published || !is_kept, "I-17: what is kept is published")?;
        holds(
            self.free_blocks.contains(block as usize) == (is_published && !is_kept),
            "I-17: a published block without a run is free or kept, any other is not",
        )?;
        holds(self.runs[block as usize] == Run::default(), "I-17: a free block keeps no run")?;
        let slots = self.slots_per_block();
        holds(
            self.free_slots.count_range(block as usize * slots, slots) == 0,
            "I-17: a free block has no free slots",
        )?;
        counted.free_blocks += (is_published && !is_kept) as u32;
        Ok(block + 1)
    }

    /// Returns the block after the run.
    fn audit_run(&self, first: u32, counted: &mut Counted) -> Result<u32, &'static str> {
        let run = &self.runs[first as usize];
        let class = self.run_class(first);
        let end = first + class.shape.blocks;
        holds(end <= self.blocks_published, "I-17: a run lies in the published arena")?;
        for block in first..end {
            let owner = self.owners[block as usize];
            holds(owner == first + 1, "I-17: every block of a run names the run")?;
            holds(!self.free_blocks.contains(block as usize), "I-17: a run's block is not free")?;
        }
        holds(run.used > 0, "I-17: a run has a taken slot")?;
        holds(run.used <= run.slots, "I-17: a run has as many slots as it was cut into")?;
        holds(run.held <= run.used, "I-17: only taken slots are held")?;
        holds(run.slots == class.shape.slots, "I-17: a run is cut as its class says")?;
        holds(
            class.slot_bytes.is_multiple_of(self.align_bytes),
            "I-17: a slot is a whole number of alignments",
        )?;
        let slots = self.slots_per_block();
        let base = first as usize * slots;
        let free = (run.slots - run.used) as usize;
        holds(
            self.free_slots.count_range(base, run.slots as usize) == free,
            "I-17: a slot is either taken or free",
        )?;
        holds(
            self.free_slots.count_range(base, (end - first) as usize * slots) == free,
            "I-17: no free slot lies beyond a run's slots",
        )?;
        let (runs, free_slots) = &mut counted.classes[run.class as usize];
        *runs += 1;
        *free_slots += if run.is_draining { 0 } else { free as u64 };
        counted.used_bytes += run.used as u64 * class.slot_bytes;
        counted.waste_bytes += class.shape.waste_bytes;
        Ok(end)
    }

    fn audit_totals(&self, counted: &Counted) -> Result<(), &'static str> {
        holds(counted.used_bytes == self.used_bytes, "I-15: used bytes are those of taken slots")?;
        holds(self.used_bytes + self.free_bytes() == self.published_bytes(), "I-15: sum")?;
        holds(counted.waste_bytes == self.waste_bytes, "I-15: waste is the ends of open runs")?;
        holds(counted.free_blocks == self.blocks_free, "I-15: free blocks are counted")?;
        let mut listed = 0;
        for (id, class) in self.classes.iter() {
            let counts = counted.classes[id as usize];
            holds(counts == (class.runs, class.free_slots), "I-15: a class counts its runs")?;
            holds(class.runs > 0, "I-15: a class without a run gives its entry back")?;
            listed += counts.0;
            for first in self.partial.iter(id as u32) {
                let run = &self.runs[first as usize];
                holds(run.class == id, "I-15: a run is listed under its class")?;
                holds(run.used < run.slots, "I-15: a listed run has a free slot")?;
                holds(!run.is_draining, "I-15: a draining run gives no slot out")?;
            }
            let is_found = self.partial.is_empty(id as u32) == (class.free_slots == 0);
            holds(is_found, "I-15: free slots are found through their class")?;
        }
        let counted_runs: u32 = counted.classes.iter().map(|(runs, _)| runs).sum();
        holds(listed == counted_runs, "I-15: every run has a class in the table")
    }
}

fn holds(condition: bool, rule: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(rule) }
}
