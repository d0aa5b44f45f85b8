//! Puts memory behind the arena, step by step, on a helper thread (or before serving where the
//! operator wants all of it at once), and looks after the segment from then on.
//!
//! Two things make a byte usable: the file system has promised the block (`fallocate`; without it a
//! full mount kills whoever touches the page) and the page is there (populated; without it the
//! first client pays for every fault). The one invariant: what was reported once stays usable.

use super::segment::Identity;
use super::{Mapping, Segment};
use kvtide_core::limits::{GROW_STEP_BYTES, GROW_STEP_BYTES_MIN};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::mm::{Advice, madvise};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Grows one arena from nothing to its full size.
#[derive(Debug)]
pub struct Grower {
    mapping: Arc<Mapping>,
    /// None for private memory.
    segment: Option<Watched>,
    usable: u64,
    step_bytes: u64,
}

/// The segment as its grower knows it.
#[derive(Debug)]
struct Watched {
    file: OwnedFd,
    name: String,
    identity: Identity,
}

/// What one step came to. The byte counts are absolute, so a lost report costs nothing but time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The first `usable` bytes can be used; more will follow.
    Grown { usable: u64 },
    /// Everything can be used.
    Whole { usable: u64 },
    /// There is no more memory now, not even for the smallest step. What is there stays usable,
    /// and the next step may find more.
    Stopped { usable: u64, error: Errno },
}

impl Growth {
    pub fn usable(self) -> u64 {
        match self {
            Growth::Grown { usable } | Growth::Whole { usable } => usable,
            Growth::Stopped { usable, .. } => usable,
        }
    }
}

/// What others may have done to the segment from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Sound,
    /// The name is gone or leads elsewhere. Who has mapped the segment goes on; nobody new can.
    Unnamed,
    /// Cut short, or holes were made in it: bytes that were stored are lost.
    Torn,
}

impl Grower {
    pub(super) fn new(mapping: Arc<Mapping>, segment: Option<&Segment>) -> Result<Grower, Errno> {
        let watched = |segment: &Segment| -> Result<Watched, Errno> {
            let file = fcntl_dupfd_cloexec(segment, 0)?;
            let (name, identity) = (segment.name().to_owned(), segment.identity());
            Ok(Watched { file, name, identity })
        };
        let segment = segment.map(watched).transpose()?;
        Ok(Grower { mapping, segment, usable: 0, step_bytes: GROW_STEP_BYTES })
    }

    /// Grows until everything is usable, memory ends or `report` breaks it off.
    pub fn run(&mut self, mut report: impl FnMut(Growth) -> ControlFlow<()>) {
        loop {
            let growth = self.step();
            let broken_off = report(growth).is_break();
            if broken_off || !matches!(growth, Growth::Grown { .. }) {
                return;
            }
        }
    }

    /// One step more; a smaller one where memory is short. Harmless once everything is usable.
    pub fn step(&mut self) -> Growth {
        let whole = self.mapping.bytes as u64;
        let mut bytes = self.step_bytes.min(whole - self.usable);
        while bytes > 0 {
            match self.allocate(bytes).and_then(|()| self.populate(bytes)) {
                Ok(()) => break,
                Err(_) if bytes > GROW_STEP_BYTES_MIN => {
                    bytes = (bytes / 2).next_multiple_of(GROW_STEP_BYTES_MIN);
                }
                Err(error) => return Growth::Stopped { usable: self.usable, error },
            }
        }
        self.usable += bytes;
        if self.usable == whole {
            Growth::Whole { usable: self.usable }
        } else {
            Growth::Grown { usable: self.usable }
        }
    }

    /// Whether others can do anything to this memory.
    pub fn is_shared(&self) -> bool {
        self.segment.is_some()
    }

    /// What has become of the segment. Two calls to the system, no byte of it is touched.
    pub fn condition(&self) -> Condition {
        let Some(segment) = &self.segment else { return Condition::Sound };
        let Ok(stat) = fstat(&segment.file) else { return Condition::Torn };
        // Blocks that were swapped out still count; holes do not.
        let allocated = (stat.st_blocks as u64).saturating_mul(BLOCK_BYTES);
        if stat.st_size as u64 != self.mapping.bytes as u64 || allocated < self.usable {
            Condition::Torn
        } else if Identity::at(&segment.name) != Some(segment.identity) {
            Condition::Unnamed
        } else {
            Condition::Sound
        }
    }

    /// Nobody new is to map the segment. A name that leads elsewhere by now is left alone.
    pub fn remove_name(&self) {
        if let Some(segment) = &self.segment
            && Identity::at(&segment.name) == Some(segment.identity)
        {
            rustix::shm::unlink(segment.name.as_str()).ok();
        }
    }

    fn allocate(&self, bytes: u64) -> Result<(), Errno> {
        let Some(segment) = &self.segment else { return Ok(()) };
        let (file, at) = (&segment.file, self.usable);
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), at, bytes))
    }

    fn populate(&self, bytes: u64) -> Result<(), Errno> {
        let (offset, length) = (self.usable as usize, bytes as usize);
        let populated = retry_on_intr(|| {
            // SAFETY: `step` keeps the range inside the mapping, which this grower holds a share
            // of; populating changes no contents.
            let start = unsafe { self.mapping.base.as_ptr().add(offset) };
            // SAFETY: as above.
            unsafe { madvise(start.cast(), length, Advice::LinuxPopulateWrite) }
        });
        match populated {
            // Kernels before 5.14 do not know this advice. A segment has its blocks already, and
            // touching them would end this process, should somebody cut it short meanwhile.
            Err(Errno::INVAL) if self.segment.is_some() => Ok(()),
            Err(Errno::INVAL) => {
                self.touch(offset, length);
                Ok(())
            }
            other => other,
        }
    }

    fn touch(&self, offset: usize, length: usize) {
        let page = rustix::param::page_size();
        for at in (offset..offset + length).step_by(page) {
            // SAFETY: the byte lies inside the mapping and above everything reported so far, so
            // neither this process nor a client uses it yet; it is zero already.
            unsafe { self.mapping.base.as_ptr().add(at).write_volatile(0) };
        }
    }
}

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, SegmentOptions};

    fn steps_of(mut grower: Grower, step_bytes: u64) -> Vec<Growth> {
        grower.step_bytes = step_bytes;
        let mut steps = Vec::new();
        grower.run(|growth| {
            steps.push(growth);
            ControlFlow::Continue(())
        });
        steps
    }

    fn shared(test: &str, bytes: u64) -> (Arena, Grower) {
        let name = format!("test_{}_{test}", std::process::id());
        let options = SegmentOptions { name: Some(name), mode: 0o600, group: None };
        Arena::shared(&options, bytes).expect("a few MiB can be mapped")
    }

    #[test]
    fn memory_comes_in_steps_and_the_last_may_be_shorter() {
        let (_arena, grower) = Arena::private(10 << 16).expect("ten pages of 64 KiB can be mapped");
        let steps = steps_of(grower, 4 << 16);
        let expected = [
            Growth::Grown { usable: 4 << 16 },
            Growth::Grown { usable: 8 << 16 },
            Growth::Whole { usable: 10 << 16 },
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn f49_every_reported_byte_of_a_segment_has_a_block() {
        let (arena, mut grower) = shared("grow", 8 << 20);
        grower.step_bytes = 2 << 20;
        let blocks = || {
            let segment = arena.segment.as_ref().expect("the arena is shared");
            let stat = rustix::fs::fstat(segment).expect("the segment is open");
            (stat.st_size as u64, stat.st_blocks as u64 * 512)
        };
        assert_eq!(blocks(), (8 << 20, 0), "the file has its size, but no memory yet");
        assert_eq!(grower.step(), Growth::Grown { usable: 2 << 20 });
        assert_eq!(blocks(), (8 << 20, 2 << 20));
        assert_eq!(grower.step(), Growth::Grown { usable: 4 << 20 });
        assert_eq!(blocks(), (8 << 20, 4 << 20));
    }

    #[test]
    fn f49_when_memory_ends_growing_stops_and_keeps_what_is_there() {
        let (_arena, mut grower) = Arena::private(1 << 20).expect("a MiB can be mapped");
        grower.step_bytes = 1 << 19;
        assert_eq!(grower.step(), Growth::Grown { usable: 1 << 19 });
        // A file that cannot be allocated stands for a full mount.
        let file = std::fs::File::open("/dev/null").expect("every system has one").into();
        let identity = Identity { device: 0, inode: 0 };
        grower.segment = Some(Watched { file, name: String::new(), identity });
        let stopped = grower.step();
        assert_eq!(stopped.usable(), 1 << 19);
        assert!(matches!(stopped, Growth::Stopped { .. }), "{stopped:?}");
        // Memory is back.
        grower.segment = None;
        assert_eq!(grower.step(), Growth::Whole { usable: 1 << 20 });
        assert_eq!(grower.step(), Growth::Whole { usable: 1 << 20 });
    }

    #[test]
    fn f49_a_segment_that_was_cut_short_or_renamed_is_noticed() {
        let (arena, mut grower) = shared("condition", 4 << 20);
        assert!(matches!(grower.step(), Growth::Whole { .. }));
        assert_eq!(grower.condition(), Condition::Sound);
        let name = arena.pool_name().expect("the arena is shared");
        let path = format!("{}/{name}", super::super::machine::SHM_DIRECTORY);
        let moved = format!("{path}_moved");
        std::fs::rename(&path, &moved).expect("the segment is ours");
        assert_eq!(grower.condition(), Condition::Unnamed);
        std::fs::rename(&moved, &path).expect("the segment is ours");
        assert_eq!(grower.condition(), Condition::Sound);

        let file = std::fs::File::options().write(true).open(&path).expect("it is ours");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, hole, 0, 4096).expect("holes can be made");
        assert_eq!(grower.condition(), Condition::Torn);
        file.set_len(0).expect("the segment can be cut");
        assert_eq!(grower.condition(), Condition::Torn);
    }

    #[test]
    fn touching_populates_without_changing_what_is_read() {
        let (mut arena, grower) = Arena::private(1 << 20).expect("a MiB can be mapped");
        grower.touch(0, 1 << 20);
        arena.grown_to(1 << 20);
        let place =
            kvtide_core::names::Place { arena: super::super::L1, offset: 0, bytes: 1 << 20 };
        let bytes = arena.slice(place).expect("everything is usable");
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn breaking_off_ends_the_run() {
        let (_arena, mut grower) = Arena::private(1 << 20).expect("a MiB can be mapped");
        grower.step_bytes = 1 << 18;
        let mut steps = 0;
        grower.run(|_| {
            steps += 1;
            ControlFlow::Break(())
        });
        assert_eq!(steps, 1);
    }
}
