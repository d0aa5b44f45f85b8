//! The paged KV cache of an engine on the CPU: POSIX shared memory that the engine has put its
//! tensors into.
//!
//! The one invariant: a segment is moved from and to by the kernel only, through its descriptor and
//! within the size that it has at that moment. Whoever cuts it short makes a copy fail; an access
//! through a mapping would be a signal, and a write behind its end would make it grow.

use kvtide_core::effect::Direction;
use kvtide_core::event::AttachFault;
use kvtide_core::front::paged::Source;
use kvtide_core::pages::{Run, Shape};
use rustix::fs::{FileType, Mode, fstat};
use rustix::io::{Errno, pread, preadv, pwritev, retry_on_intr};
use rustix::shm;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::slice;

/// The segments of one registration, each opened once.
#[derive(Debug)]
pub struct Segments {
    files: Vec<OwnedFd>,
    tensors: Vec<Tensor>,
    /// From a tensor's first element to the end of its last.
    tensor_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tensor {
    file: usize,
    offset: u64,
}

/// An object of L1, as memory that the kernel reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    pub start: NonNull<u8>,
    pub bytes: u64,
}

/// Why bytes did not get where they belong. Some may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// A run names a tensor, a page or a place in the object that is not there.
    Outside,
    /// The segment is shorter than when it was attached.
    Cut,
    System(Errno),
}

impl fmt::Display for CopyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyFault::Outside => f.write_str("a copy would leave its tensor or its object"),
            CopyFault::Cut => f.write_str("the engine's segment was cut short"),
            CopyFault::System(error) => write!(f, "the kernel does not copy: {error}"),
        }
    }
}

impl std::error::Error for CopyFault {}

impl Segments {
    /// Opens what the tensors lie in, at most `room` segments.
    pub fn open(
        sources: &[Source],
        tensor_bytes: u64,
        room: usize,
    ) -> Result<Segments, AttachFault> {
        let (mut files, mut tensors) = (Vec::new(), Vec::new());
        let mut opened: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        for source in sources {
            let (file, bytes) = match opened.get(&*source.segment) {
                Some(known) => *known,
                None if files.len() == room => return Err(AttachFault::Full),
                None => {
                    let (descriptor, bytes) = open_segment(&source.segment)?;
                    files.push(descriptor);
                    *opened.entry(&source.segment).or_insert((files.len() - 1, bytes))
                }
            };
            let end = source.offset_bytes.checked_add(tensor_bytes);
            if end.is_none_or(|end| end > bytes) || source.segment_bytes > bytes {
                return Err(AttachFault::Short);
            }
            tensors.push(Tensor { file, offset: source.offset_bytes });
        }
        Ok(Segments { files, tensors, tensor_bytes })
    }

    /// Descriptors that are held.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// Carries out the runs of one object.
    ///
    /// # Safety
    ///
    /// The object's memory must stay mapped until this returns, and whoever else of this process
    /// may touch it must not meanwhile: nobody at all for a store, no writer for a retrieve.
    pub unsafe fn copy(
        &self,
        direction: Direction,
        runs: &[Run],
        object: Object,
    ) -> Result<(), CopyFault> {
        if direction == Direction::Retrieve {
            self.check_sizes(runs)?;
        }
        for run in runs {
            let tensor = self.tensors.get(run.tensor as usize).ok_or(CopyFault::Outside)?;
            let fits = |start: u64, bytes: u64| {
                start.checked_add(run.bytes).is_some_and(|end| end <= bytes)
            };
            // A run that is not flat stays within its block on both sides.
            if !fits(run.page, self.tensor_bytes) || !fits(run.object, object.bytes) {
                return Err(CopyFault::Outside);
            }
            let at = tensor.offset + run.page;
            let file = &self.files[tensor.file];
            let mut pieces = Pieces::of(run);
            let mut done = 0;
            while done < run.bytes {
                // SAFETY: the caller keeps the object mapped, and every piece lies within the run's
                // bytes of it, which were seen to lie inside.
                done += unsafe { pieces.copy_some(direction, file, at + done, object) }?;
            }
        }
        Ok(())
    }

    /// Fills `into` with what lies `page` bytes behind a tensor's first element.
    pub fn read(&self, tensor: u32, page: u64, into: &mut [u8]) -> Result<(), CopyFault> {
        let tensor = self.tensors.get(tensor as usize).ok_or(CopyFault::Outside)?;
        let end = page.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > self.tensor_bytes) {
            return Err(CopyFault::Outside);
        }
        let mut done = 0;
        while done < into.len() {
            let (file, at) = (&self.files[tensor.file], tensor.offset + page + done as u64);
            let read = retry_on_intr(|| pread(file, &mut into[done..], at));
            match read.map_err(CopyFault::System)? {
                0 => return Err(CopyFault::Cut),
                read => done += read,
            }
        }
        Ok(())
    }

    /// A write would make a segment grow again that was cut short.
    fn check_sizes(&self, runs: &[Run]) -> Result<(), CopyFault> {
        let mut seen = None;
        for run in runs {
            let tensor = self.tensors.get(run.tensor as usize).ok_or(CopyFault::Outside)?;
            if seen.replace(run.tensor) == Some(run.tensor) {
                continue;
            }
            let size = fstat(&self.files[tensor.file]).map_err(CopyFault::System)?.st_size as u64;
            if size < tensor.offset + self.tensor_bytes {
                return Err(CopyFault::Cut);
            }
        }
        Ok(())
    }
}

/// The stretches of an object that one run's bytes belong to, in the order of the page.
struct Pieces {
    object: u64,
    /// Bytes of one stretch, how many make a row of stretches, and how far those lie apart.
    bytes: u64,
    slots: u64,
    slot_step: u64,
    head_step: u64,
    /// Stretches that are done, and bytes of the next one.
    at: u64,
    skip: u64,
    count: u64,
}

impl Pieces {
    fn of(run: &Run) -> Pieces {
        let (bytes, heads, slots) = match run.shape {
            Shape::Flat => (run.bytes, 1, 1),
            Shape::Heads { heads, slots, row_bytes } => {
                (row_bytes.into(), u64::from(heads), u64::from(slots))
            }
        };
        let (slot_step, head_step, count) = (heads * bytes, bytes, heads * slots);
        Pieces { object: run.object, bytes, slots, slot_step, head_step, at: 0, skip: 0, count }
    }

    /// Where stretch `at` begins.
    fn start(&self, at: u64) -> u64 {
        let (head, slot) = (at / self.slots, at % self.slots);
        self.object + slot * self.slot_step + head * self.head_step
    }

    /// Moves what one system call can. How many bytes that was.
    ///
    /// # Safety
    ///
    /// As for `Segments::copy`, and every stretch lies inside the object.
    unsafe fn copy_some(
        &mut self,
        direction: Direction,
        file: &OwnedFd,
        offset: u64,
        object: Object,
    ) -> Result<u64, CopyFault> {
        let last = self.count.min(self.at + PIECES_MAX);
        let first = self.at;
        let lengths = (first..last).map(|at| {
            let skip = if at == first { self.skip } else { 0 };
            (self.start(at) + skip, (self.bytes - skip) as usize)
        });
        let pieces = lengths.map(|(start, bytes)| {
            assert!(start + bytes as u64 <= object.bytes, "a run stays inside its object");
            // SAFETY: just checked against the object's length.
            (unsafe { object.start.add(start as usize) }, bytes)
        });
        let moved = match direction {
            Direction::Store => {
                // SAFETY: the caller keeps these bytes mapped and unused until this returns, and
                // no two stretches of a run overlap.
                let mut slices: Vec<IoSliceMut<'_>> = pieces
                    .map(|(start, bytes)| unsafe {
                        IoSliceMut::new(slice::from_raw_parts_mut(start.as_ptr(), bytes))
                    })
                    .collect();
                retry_on_intr(|| preadv(file, &mut slices, offset))
            }
            Direction::Retrieve => {
                // SAFETY: the caller keeps these bytes mapped and unwritten until this returns.
                let slices: Vec<IoSlice<'_>> = pieces
                    .map(|(start, bytes)| unsafe {
                        IoSlice::new(slice::from_raw_parts(start.as_ptr(), bytes))
                    })
                    .collect();
                retry_on_intr(|| pwritev(file, &slices, offset))
            }
        };
        let moved = moved.map_err(CopyFault::System)? as u64;
        if moved == 0 {
            return Err(CopyFault::Cut);
        }
        let done = self.skip + moved;
        self.at += done / self.bytes;
        self.skip = done % self.bytes;
        Ok(moved)
    }
}

/// Only what engines make is opened: whoever can speak to the server could else have it read and
/// write any segment of its user.
fn open_segment(name: &str) -> Result<(OwnedFd, u64), AttachFault> {
    let plain = name.strip_prefix('/').unwrap_or(name);
    if !plain.starts_with(SEGMENT_PREFIX) || plain.contains(['/', '\0']) {
        return Err(AttachFault::Denied);
    }
    let opened = shm::open(plain, shm::OFlags::RDWR, Mode::empty());
    let file = opened.map_err(|error| match error {
        Errno::NOENT => AttachFault::Absent,
        Errno::ACCESS | Errno::PERM => AttachFault::Denied,
        Errno::MFILE | Errno::NFILE => AttachFault::Full,
        _ => AttachFault::Failed,
    })?;
    let about = fstat(&file).map_err(|_| AttachFault::Failed)?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Err(AttachFault::Denied);
    }
    Ok((file, about.st_size as u64))
}

/// What the client names its segments (spec/transfer §5.2).
pub const SEGMENT_PREFIX: &str = "lmcache_kv_";
/// The kernel takes so many stretches at once.
const PIECES_MAX: u64 = 1024;
