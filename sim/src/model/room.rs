//! Whether there was room (F16 … F18): every refusal says why, and the reason must be true.
//!
//! The arena is cut into blocks. Objects of one size share runs of whole blocks, and a run belongs
//! to its size while something lies in it (design §4). From the places of all objects follows what
//! a new one could have had: a free slot in a run of its size, free blocks for a new run, the slot
//! of an object of its size that could have gone, or blocks in which everything could have gone.
//! Where it cannot be told from outside where a run begins, nothing is concluded from it.

use super::{Key, Model, News, ObjectNumber, Refused, State, Verdict, check};
use crate::calls::Range;
use kvtide_core::names::Place;
use std::collections::BTreeSet;

/// How the arena is cut.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    /// Configured.
    pub bytes: u64,
    pub block_bytes: u64,
    pub align_bytes: u64,
}

/// One object as it lies in the arena.
struct Lying {
    /// The blocks that its run may reach over.
    first: u64,
    end: u64,
    slot_bytes: u64,
    can_go: bool,
}

impl Arena {
    pub fn new(bytes: u64, align_bytes: u64) -> Arena {
        // A 256th of it, a power of two from 1 to 64 MiB (design §4).
        let share = (bytes / 256).max(1);
        let block_bytes = (1 << share.ilog2()).clamp(1 << 20, 64 << 20);
        Arena { bytes: bytes / block_bytes * block_bytes, block_bytes, align_bytes }
    }

    /// What an object takes.
    pub fn slot_bytes(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.align_bytes).max(self.block_bytes >> 16)
    }

    /// Blocks of a run: the shortest with which an arena full of this size would waste at most an
    /// eighth, or the best there is.
    fn run_blocks(&self, slot_bytes: u64) -> u64 {
        let least = slot_bytes.div_ceil(self.block_bytes);
        let most = (self.bytes / self.block_bytes).min(8).max(least);
        let covered = |blocks: u64| {
            let runs = self.bytes / (blocks * self.block_bytes);
            runs * (blocks * self.block_bytes / slot_bytes) * slot_bytes
        };
        let is_good = |blocks: &u64| covered(*blocks) >= self.bytes - self.bytes / 8;
        let best = || (least..=most).rev().max_by_key(|blocks| covered(*blocks));
        (least..=most).find(is_good).or_else(best).unwrap_or(least)
    }

    /// Where the run may begin and end in which an object of this size lies.
    fn run_around(&self, place: Place, slot_bytes: u64) -> (u64, u64) {
        let blocks = self.run_blocks(slot_bytes);
        let block = place.offset / self.block_bytes;
        let fits = |first: &u64| {
            let within = place.offset - first * self.block_bytes;
            within.is_multiple_of(slot_bytes) && within + slot_bytes <= blocks * self.block_bytes
        };
        let first = (block + 1).saturating_sub(blocks);
        let mut starts = (first..=block).filter(fits);
        let low = starts.next().unwrap_or(block);
        (low, starts.next_back().unwrap_or(low) + blocks)
    }
}

impl Model {
    /// Judges why the first chunk without a slot has none, and that those behind it were not tried.
    pub(super) fn judge_refusal(&mut self, news: &News, range: &Range, is_lent: bool) -> Verdict {
        let Some(((key, why), rest)) = news.refused.split_first() else { return Ok(()) };
        let trimmed = rest.iter().all(|(_, why)| *why == Refused::Trimmed);
        check(trimmed, "F37: what was not tried has a reason of its own")?;
        let bytes = key.scope.layout.bytes().unwrap_or(1);
        let slot_bytes = self.rules.arena.slot_bytes(bytes);
        match why {
            Refused::Trimmed => check(false, "F37: nothing was tried")?,
            Refused::Lent => {
                let (_, lent) = self.lent_bytes();
                let granted = news.reserved.len() as u64 * slot_bytes;
                let over =
                    lent + granted > 0 && lent + granted + slot_bytes > self.rules.lent_bytes_max;
                check(is_lent && over, "F17: refused for a share that was not used up")?;
            }
            Refused::Busy => {
                let kept = self.kept_for > 0;
                let busy = self.turn.is_spent || self.turn.is_working || kept;
                check(busy, "F16: put off, and nobody is making room")?;
                let table = self.objects_at_most() >= self.rules.objects_max;
                let free = self.has_free_room(slot_bytes);
                // What is being emptied may be for a load.
                let loads = self.sessions.values().any(|known| known.looks_for().next().is_some());
                check(table || !free || loads, "F16: put off although there was room")?;
                if self.turn.is_working {
                    self.kept_for = KEPT_FOR;
                }
            }
            Refused::Table => {
                let full = self.objects_at_most() >= self.rules.objects_max;
                check(full, "F17: refused for a table that was not full")?;
                let stuck = !self.rules.evicts || !self.any_can_go(range);
                check(stuck, "F16: refused although something could have gone from the table")?;
            }
            Refused::Classes => {
                let sizes: BTreeSet<u64> = self
                    .placed()
                    .iter()
                    .filter_map(|number| self.object(*number).key.scope.layout.bytes())
                    .map(|bytes| self.rules.arena.slot_bytes(bytes))
                    .collect();
                check(sizes.len() >= SIZES_MAX, "F17: refused for sizes that are not many")?;
            }
            Refused::Held | Refused::Growing => {
                let whole = self.published() == self.rules.arena.bytes;
                let growing = *why == Refused::Growing;
                check(growing != whole, "F17: the arena grows, or it does not")?;
                check(!self.has_free_room(slot_bytes), "F16: refused although there was room")?;
                let stuck = !self.rules.evicts || !self.could_make_room(slot_bytes, range);
                check(stuck, "F16: refused although room could have been made")?;
            }
        }
        Ok(())
    }

    /// It is not known where everything lies: of loads that have not begun, and of what was cleared
    /// before its store below L1.
    pub(super) fn is_unplaced(&self) -> bool {
        let has_no_place = |number: &ObjectNumber| {
            let object = self.object(*number);
            object.place.bytes == 0 && object.state != State::Gone
        };
        let is_gone = |number: ObjectNumber| self.object(number).state == State::Gone;
        self.below.loading.keys().any(has_no_place) || self.below.demoting().any(is_gone)
    }

    fn published(&self) -> u64 {
        let arena = self.rules.arena;
        (self.grown / arena.block_bytes * arena.block_bytes).min(arena.bytes)
    }

    /// Whether an object could surely go now, for a store of this range.
    fn can_go(&self, number: ObjectNumber, held: &BTreeSet<ObjectNumber>, range: &Range) -> bool {
        let object = self.object(number);
        object.state == State::Resident
            && !held.contains(&number)
            && !self.is_asked(&object.key, range)
    }

    fn is_asked(&self, key: &Key, range: &Range) -> bool {
        range.hashes.contains(&key.hash)
    }

    fn any_can_go(&self, range: &Range) -> bool {
        let (_, held) = self.held();
        self.index.values().any(|number| self.can_go(*number, &held, range))
    }

    fn lying(&self, range: Option<&Range>) -> Vec<Lying> {
        let arena = self.rules.arena;
        let held = if range.is_some() { self.held().1 } else { BTreeSet::new() };
        let lying = |number: &ObjectNumber| {
            let object = self.object(*number);
            let slot_bytes = arena.slot_bytes(object.key.scope.layout.bytes().unwrap_or(1));
            let (first, end) = arena.run_around(object.place, slot_bytes);
            let can_go = range.is_some_and(|range| self.can_go(*number, &held, range));
            Lying { first, end, slot_bytes, can_go }
        };
        self.placed().iter().map(lying).collect()
    }

    /// A slot of a run of this size, or blocks for a new run, are surely free.
    fn has_free_room(&self, slot_bytes: u64) -> bool {
        // What is being emptied, or was, gives nothing out but to who asked for it.
        if self.kept_for > 0 || self.is_unplaced() {
            return false;
        }
        let arena = self.rules.arena;
        let blocks = arena.run_blocks(slot_bytes);
        let lying = self.lying(None);
        if self.has_stretch(blocks, &lying, |_| false) {
            return true;
        }
        let slots = blocks * arena.block_bytes / slot_bytes;
        let known = |object: &&Lying| {
            object.slot_bytes == slot_bytes && object.end - object.first == blocks
        };
        let used = |first: u64| lying.iter().filter(known).filter(|o| o.first == first).count();
        let sure = lying.iter().filter(|object| object.slot_bytes == slot_bytes);
        let all_known = sure.clone().all(|object| object.end - object.first == blocks);
        all_known && lying.iter().filter(known).any(|o| (used(o.first) as u64) < slots)
    }

    /// Something surely could have gone so that there was room.
    fn could_make_room(&self, slot_bytes: u64, range: &Range) -> bool {
        if self.kept_for > 0 || self.is_unplaced() {
            return false;
        }
        let lying = self.lying(Some(range));
        let own = lying.iter().any(|object| object.slot_bytes == slot_bytes && object.can_go);
        if own {
            return true;
        }
        let blocks = self.rules.arena.run_blocks(slot_bytes);
        self.has_stretch(blocks, &lying, |object| object.can_go)
    }

    /// Whether so many consecutive blocks hold nothing but what does not count.
    fn has_stretch(&self, blocks: u64, lying: &[Lying], is_none: impl Fn(&Lying) -> bool) -> bool {
        let total = self.published() / self.rules.arena.block_bytes;
        // What would go takes along whatever lies in the same run.
        let taken =
            |block: u64| lying.iter().any(|o| (o.first..o.end).contains(&block) && !is_none(o));
        let mut free = 0;
        (0..total).any(|block| {
            free = if taken(block) { 0 } else { free + 1 };
            free >= blocks
        })
    }
}

/// Sizes of objects that one arena holds at once (spec: `SIZE_CLASSES_MAX`).
const SIZES_MAX: usize = 256;
/// Looks at the watermark, once a second, for which an emptied stretch may be kept, and one more.
const KEPT_FOR: u32 = 3;
