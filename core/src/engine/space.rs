//! Extents of the L1 arena: who gets which bytes of one virtual range, each door O(1).
//!
//! ```text
//! arena       | block | block | block | block | block | ...  | not published yet
//! run         |<- class A ->| |<- A ->| free  |<- class B (2 blocks) ->|
//! slots       |a |a |a |..|w|                  |b      |b      |b  |w|      w = waste
//! ```
//!
//! The arena is cut into *superblocks* (blocks): configured bytes / 256, rounded down to a power
//! of two between 1 and 64 MiB. A *size class* is one exact aligned object size. It owns *runs* of
//! consecutive blocks, cut into slots of that size, and only while one of the slots is taken: the
//! last release gives the blocks back, and the class's table entry with its last run. So free
//! memory never belongs to anybody, and with a single class a free slot means that a reservation
//! succeeds, whatever happened before (F23).
//!
//! Invariant (I-15, I-17): every published byte is in exactly one of free block, free slot, taken
//! slot or waste at the end of a run; taken slots are aligned, never overlap and never leave their
//! run, and `used + free == published`.
//!
//! What a door costs: a slot is found in a `BitTree` over all slots of the arena, a partly free
//! run at the head of its class's list. Only opening a run looks further, over one bit per block:
//! at most 512 blocks below 32 GiB, 8192 at 512 GiB; `take_steps` says how far.
//!
//! A run that holds more than one turn can evict is *drained*: it gives no slot out any more, so
//! that it becomes empty however long that takes.
//!
//! Memory, all taken at start: one bit per 4 KiB (`align_bytes`, at least 1/65536 of a block) and
//! 52 bytes per block. That is 16 MiB for 512 GiB.

mod audit;
mod classes;
mod drain;
mod free;
mod keep;
mod window;

use keep::Kept;
pub use window::Window;

use crate::bits::BitTree;
use crate::limits::{SIZE_CLASSES_MAX, SUPERBLOCK_BYTES_MAX, SUPERBLOCK_BYTES_MIN};
use crate::lists::Lists;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use classes::Classes;

/// A run by its first block: unique among the runs that exist at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub u32);

/// A size class; a freed entry of the table is used again for another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub u16);

/// Reserved bytes. Given back by `Space::release`, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    pub offset: u64,
    /// As asked; `Space::slot_bytes` says what is taken.
    pub bytes: u64,
    pub run: RunId,
    pub class: ClassId,
}

/// Why there is no extent. Only `ClassFull` can be helped by evicting (F22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSpace {
    /// A caller's fault: nothing was asked for.
    ZeroSize,
    /// A caller's fault: larger than the arena will ever be.
    TooLarge,
    /// As many distinct sizes are resident as the table holds.
    ClassTable,
    /// Every slot of this size is taken, and no run of free blocks is long enough for more.
    ClassFull,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    align_bytes: u64,
    block_bytes: u64,
    /// Smaller objects take this much, so that the bits of one block are bounded.
    slot_bytes_min: u64,
    blocks_max: u32,
    blocks_published: u32,
    blocks_free: u32,
    used_bytes: u64,
    waste_bytes: u64,
    /// Block to its run's first block plus one; 0 is free or not published.
    owners: Vec<u32>,
    /// By first block. Meaningless where no run begins.
    runs: Vec<Run>,
    free_blocks: BitTree,
    kept: Option<Kept>,
    /// Free slots of open runs. Slot `i` of the run at block `b` is number
    /// `b * slots_per_block_max + i`.
    free_slots: BitTree,
    classes: Classes,
    /// Runs with a free slot, one list per class, nodes are first blocks.
    partial: Lists,
    /// Empty between calls; memory for the sliding maximum of `coldest_window`.
    scratch: VecDeque<(u32, u64)>,
    steps: Steps,
    #[cfg(feature = "planted")]
    pub(super) planted: u32,
}

/// Bits looked at since somebody asked: no part of what an arena is.
#[derive(Clone, Copy, Debug, Default)]
struct Steps(usize);

impl PartialEq for Steps {
    fn eq(&self, _: &Steps) -> bool {
        true
    }
}

impl Eq for Steps {}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    /// Newest touch of anything in the run.
    stamp: u64,
    slots: u32,
    used: u32,
    /// Objects that cannot go now.
    held: u32,
    class: u16,
    /// It is being emptied: its free slots are nobody's.
    is_draining: bool,
}

impl Space {
    /// An arena of `configured_bytes`, nothing of it published yet.
    pub fn new(configured_bytes: u64, align_bytes: u64) -> Space {
        assert!(align_bytes.is_power_of_two(), "the alignment is a power of two");
        assert!(
            align_bytes <= SUPERBLOCK_BYTES_MIN,
            "a superblock is a whole number of alignments"
        );
        let block_bytes = superblock_bytes(configured_bytes);
        let blocks_max = configured_bytes / block_bytes;
        assert!(blocks_max < u32::MAX as u64, "a block number has 32 bits");
        let slot_bytes_min = align_bytes.max(block_bytes / SLOTS_PER_BLOCK_MAX);
        let blocks = blocks_max as usize;
        Space {
            align_bytes,
            block_bytes,
            slot_bytes_min,
            blocks_max: blocks_max as u32,
            blocks_published: 0,
            blocks_free: 0,
            used_bytes: 0,
            waste_bytes: 0,
            owners: vec![0; blocks],
            runs: vec![Run::default(); blocks],
            free_blocks: BitTree::new(blocks),
            kept: None,
            free_slots: BitTree::new(blocks * (block_bytes / slot_bytes_min) as usize),
            classes: Classes::new(),
            partial: Lists::new(SIZE_CLASSES_MAX, blocks),
            scratch: VecDeque::with_capacity(blocks),
            steps: Steps::default(),
            #[cfg(feature = "planted")]
            planted: 0,
        }
    }

    #[cfg(feature = "planted")]
    pub(super) fn plant(&mut self, number: u32) {
        self.planted = number;
    }

    /// The first `bytes` of the arena may be used from now on, as far as they are whole
    /// superblocks. Never shrinks. Returns what is published.
    pub fn grow(&mut self, bytes: u64) -> u64 {
        let blocks = (bytes / self.block_bytes).min(self.blocks_max as u64) as u32;
        if blocks > self.blocks_published {
            let more = blocks - self.blocks_published;
            self.free_blocks.insert_range(self.blocks_published as usize, more as usize);
            self.blocks_free += more;
            self.blocks_published = blocks;
        }
        self.published_bytes()
    }

    /// Bytes for one object. A failure changes nothing (I-16).
    pub fn reserve(&mut self, bytes: u64) -> Result<Extent, NoSpace> {
        let slot_bytes = self.check_size(bytes)?;
        let (class, first) = match self.classes.find(slot_bytes) {
            Some(class) => match self.partial.head(class as u32) {
                Some(first) => (class, first),
                None => (class, self.open_run(class).ok_or(NoSpace::ClassFull)?),
            },
            None => {
                if self.classes.is_full() {
                    return Err(NoSpace::ClassTable);
                }
                let shape = self.shape(slot_bytes);
                let first =
                    self.find_place_for(slot_bytes, shape.blocks).ok_or(NoSpace::ClassFull)?;
                let class = self.classes.insert(slot_bytes, shape);
                (class, self.open_run_at(class, first))
            }
        };
        let base = first as usize * self.slots_per_block();
        let found = self.free_slots.next_from(base).expect("a listed run has a free slot");
        let slot = found - base;
        let run = &mut self.runs[first as usize];
        assert!(slot < run.slots as usize, "a run's free slot lies within the run");
        self.free_slots.remove(found);
        run.used += 1;
        if run.used == run.slots {
            self.partial.remove(class as u32, first);
        }
        self.classes.at_mut(class).free_slots -= 1;
        self.used_bytes += slot_bytes;
        let offset = first as u64 * self.block_bytes + slot as u64 * slot_bytes;
        Ok(Extent { offset, bytes, run: RunId(first), class: ClassId(class) })
    }

    /// `count` extents of the same size appended to `out`, or none of them (I-16).
    pub fn reserve_all(
        &mut self,
        bytes: u64,
        count: u64,
        out: &mut Vec<Extent>,
    ) -> Result<(), NoSpace> {
        if self.room(bytes)? < count {
            return Err(NoSpace::ClassFull);
        }
        for _ in 0..count {
            out.push(self.reserve(bytes).expect("room for all of them was counted"));
        }
        Ok(())
    }

    /// Gives an extent back. It is neither held nor given back already.
    pub fn release(&mut self, extent: Extent) {
        let (first, slot) = self.place(&extent);
        let number = first as usize * self.slots_per_block() + slot as usize;
        assert!(!self.free_slots.contains(number), "an extent is released once");
        let slot_bytes = self.classes.at(extent.class.0).slot_bytes;
        self.used_bytes -= slot_bytes;
        self.free_slots.insert(number);
        let run = &mut self.runs[first as usize];
        let was_full = run.used == run.slots;
        run.used -= 1;
        assert!(run.held <= run.used, "a held extent is not released");
        let (is_empty, is_draining) = (run.used == 0, run.is_draining);
        self.classes.at_mut(extent.class.0).free_slots += !is_draining as u64;
        // The fullest runs are filled up first, so that the emptiest ones get a chance to end.
        let is_listed = !was_full && !is_draining;
        match (is_listed, is_empty) {
            (true, true) => {
                self.partial.remove(extent.class.0 as u32, first);
                self.close_run(first);
            }
            (false, true) => self.close_run(first),
            (false, false) if !is_draining => {
                self.partial.push_front(extent.class.0 as u32, first);
            }
            (_, false) => {}
        }
    }

    /// The object cannot go now: its first lease or pin came.
    pub fn hold(&mut self, extent: &Extent) {
        let (first, _) = self.place(extent);
        let run = &mut self.runs[first as usize];
        assert!(run.held < run.used, "an object is held once");
        run.held += 1;
    }

    /// The object can go again: its last lease or pin ended.
    pub fn unhold(&mut self, extent: &Extent) {
        let (first, _) = self.place(extent);
        let run = &mut self.runs[first as usize];
        assert!(run.held > 0, "only a held object is let go");
        run.held -= 1;
    }

    /// The object was used at `stamp`, a number that grows with time.
    pub fn touch(&mut self, extent: &Extent, stamp: u64) {
        let (first, _) = self.place(extent);
        let run = &mut self.runs[first as usize];
        run.stamp = run.stamp.max(stamp);
    }

    /// Whether `reserve` would succeed now.
    pub fn has_room(&self, bytes: u64) -> bool {
        let Ok(slot_bytes) = self.check_size(bytes) else { return false };
        match self.classes.find(slot_bytes) {
            Some(class) if !self.partial.is_empty(class as u32) => true,
            None if self.classes.is_full() => false,
            _ if self.is_kept_for(slot_bytes) => true,
            Some(class) => self.find_free(self.classes.at(class).shape.blocks, &mut 0).is_some(),
            None => self.find_free(self.shape(slot_bytes).blocks, &mut 0).is_some(),
        }
    }

    /// How many reservations of this size would succeed now.
    pub fn room(&self, bytes: u64) -> Result<u64, NoSpace> {
        let slot_bytes = self.check_size(bytes)?;
        let (free, shape) = match self.classes.find(slot_bytes) {
            Some(class) => (self.classes.at(class).free_slots, self.classes.at(class).shape),
            None if self.classes.is_full() => return Err(NoSpace::ClassTable),
            None => (0, self.shape(slot_bytes)),
        };
        let kept = self.is_kept_for(slot_bytes);
        Ok(free + self.count_free(shape.blocks, kept) * shape.slots as u64)
    }

    /// The class that objects of this size belong to, where one is open.
    pub fn class_of(&self, bytes: u64) -> Option<ClassId> {
        let slot_bytes = self.check_size(bytes).ok()?;
        self.classes.find(slot_bytes).map(ClassId)
    }

    /// Whether an empty and fully grown arena would hold such an object.
    pub fn can_fit_ever(&self, bytes: u64) -> bool {
        self.check_size(bytes).is_ok()
    }

    /// The bytes that an object takes of the arena.
    pub fn slot_bytes(&self, extent: &Extent) -> u64 {
        self.classes.at(extent.class.0).slot_bytes
    }

    /// Offsets of the taken slots of a run, ascending; none where no run begins.
    pub fn occupied(&self, run: RunId) -> impl Iterator<Item = u64> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let (slot, offset) = self.find_taken(run, from).0?;
            from = slot + 1;
            Some(offset)
        })
    }

    /// Aligned bytes of all live extents.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub fn published_bytes(&self) -> u64 {
        self.blocks_published as u64 * self.block_bytes
    }

    /// Published and not used; waste included, because no object could have it either way.
    pub fn free_bytes(&self) -> u64 {
        self.published_bytes() - self.used_bytes
    }

    /// Bytes at the ends of open runs that no slot covers.
    pub fn waste_bytes(&self) -> u64 {
        self.waste_bytes
    }

    /// Whole superblocks of the configured size.
    pub fn configured_bytes(&self) -> u64 {
        self.blocks_max as u64 * self.block_bytes
    }

    pub fn superblock_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// One more than the largest `RunId`, for tables beside this one.
    pub fn runs_max(&self) -> u32 {
        self.blocks_max
    }

    /// Size classes with an object now.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Bytes of all tables, taken at start.
    pub fn memory_bytes(&self) -> u64 {
        let tables = self.owners.capacity() * size_of::<u32>()
            + self.runs.capacity() * size_of::<Run>()
            + self.scratch.capacity() * size_of::<(u32, u64)>();
        tables as u64
            + self.free_blocks.memory_bytes()
            + self.free_slots.memory_bytes()
            + self.partial.memory_bytes()
            + self.classes.memory_bytes()
    }

    /// What a slot for so many bytes takes; as asked where there can be none.
    pub fn slot_bytes_for(&self, bytes: u64) -> u64 {
        self.check_size(bytes).unwrap_or(bytes)
    }

    /// The size class of an object, or why there can be none.
    fn check_size(&self, bytes: u64) -> Result<u64, NoSpace> {
        if bytes == 0 {
            return Err(NoSpace::ZeroSize);
        }
        let aligned = bytes.checked_next_multiple_of(self.align_bytes).ok_or(NoSpace::TooLarge)?;
        if aligned > self.configured_bytes() {
            return Err(NoSpace::TooLarge);
        }
        Ok(aligned.max(self.slot_bytes_min))
    }

    /// First block and slot of a live extent.
    fn place(&self, extent: &Extent) -> (u32, u32) {
        let first = extent.run.0;
        assert!(self.owners[first as usize] == first + 1, "a live extent lies in a run");
        let run = &self.runs[first as usize];
        assert!(run.class == extent.class.0, "a live extent has its run's class");
        let within = extent.offset - first as u64 * self.block_bytes;
        let slot = within / self.classes.at(run.class).slot_bytes;
        assert!(slot < run.slots as u64, "a live extent lies within its run");
        (first, slot as u32)
    }

    fn open_run(&mut self, class: u16) -> Option<u32> {
        let entry = self.classes.at(class);
        let first = self.find_place_for(entry.slot_bytes, entry.shape.blocks)?;
        Some(self.open_run_at(class, first))
    }

    /// Makes the free blocks from `first` a run of `class` and lists it.
    fn open_run_at(&mut self, class: u16, first: u32) -> u32 {
        let entry = self.classes.at_mut(class);
        let shape = entry.shape;
        entry.runs += 1;
        entry.free_slots += shape.slots as u64;
        self.waste_bytes += shape.waste_bytes;
        self.blocks_free -= shape.blocks;
        self.free_blocks.remove_range(first as usize, shape.blocks as usize);
        self.owners[first as usize..][..shape.blocks as usize].fill(first + 1);
        let base = first as usize * self.slots_per_block();
        self.free_slots.insert_range(base, shape.slots as usize);
        self.runs[first as usize] = Run { slots: shape.slots, class, ..Run::default() };
        self.partial.push_front(class as u32, first);
        first
    }

    /// Gives the blocks of an empty run back, and the class's entry with its last run.
    fn close_run(&mut self, first: u32) {
        let run = core::mem::take(&mut self.runs[first as usize]);
        assert!(run.held == 0, "an empty run holds nothing");
        let base = first as usize * self.slots_per_block();
        self.free_slots.remove_range(base, run.slots as usize);
        let entry = self.classes.at_mut(run.class);
        let shape = entry.shape;
        entry.runs -= 1;
        if !run.is_draining {
            entry.free_slots -= shape.slots as u64;
        }
        self.owners[first as usize..][..shape.blocks as usize].fill(0);
        self.set_free(first, shape.blocks);
        self.waste_bytes -= shape.waste_bytes;
        if self.classes.at(run.class).runs == 0 {
            self.classes.remove(run.class);
        }
    }

    fn run_class(&self, first: u32) -> &classes::Class {
        self.classes.at(self.runs[first as usize].class)
    }

    fn slots_per_block(&self) -> usize {
        (self.block_bytes / self.slot_bytes_min) as usize
    }
}

/// Configured bytes / 256, rounded down to a power of two and clamped (design §4).
fn superblock_bytes(configured_bytes: u64) -> u64 {
    let share = (configured_bytes / 256).max(1);
    (1 << share.ilog2()).clamp(SUPERBLOCK_BYTES_MIN, SUPERBLOCK_BYTES_MAX)
}

/// Bounds the bits of one block: objects below 1 KiB in a 64 MiB block take 1 KiB.
const SLOTS_PER_BLOCK_MAX: u64 = 1 << 16;
