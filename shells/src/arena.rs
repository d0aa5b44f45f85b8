//! L1 memory: one mapping, shared with clients under a name or private, and the only file beside
//! `arena/grow.rs` and `arena/window.rs` that turns a [`Place`] into an address.
//!
//! The mapping has its final size at once, but memory comes in steps: the [`Grower`] allocates and
//! populates on a helper thread, and bytes are used only once it has reported them. The one
//! invariant: every access lies within the bytes reported so far, which have memory behind them, so
//! no access faults. Whoever else may write to a segment can also cut it short; so its bytes are
//! moved by the kernel only (`pwrite` in, gathered writes out), to which a missing page is an error
//! and no signal.

pub mod grow;
pub mod machine;
pub mod segment;
pub mod sizing;
pub mod window;

pub use grow::{Condition, Grower, Growth};
pub use machine::{Machine, SharedMount};
pub use segment::{Segment, SegmentError, SegmentOptions};
pub use sizing::{NoPool, Sizing, Wanted};
pub use window::{Span, Window};

use kvtide_core::names::{ArenaId, Place};
use kvtide_gpu::host::HostRegion;
use rustix::io::{Errno, pwrite, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::fmt;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The arena that `Place::arena` 0 names.
pub const L1: ArenaId = ArenaId(0);

/// L1 memory, owned by the reactor. Dropping it removes the segment's name.
#[derive(Debug)]
pub struct Arena {
    region: HostRegion,
    /// First bytes that have memory behind them.
    usable: u64,
    segment: Option<Segment>,
    news: PoolNews,
    /// Keeps the mapping behind `region`; grower and windows hold further shares.
    mapping: Arc<Mapping>,
}

/// What is out of order with the pool, absolute: a lost report is made up for by the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolNews {
    /// Why L1 has not its full size yet; it is tried again and again.
    pub waits: Option<Errno>,
    /// Somebody has removed the segment's name: engines that start now cannot map it.
    pub is_unnamed: bool,
}

/// A place that does not lie within the usable bytes of this arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    pub place: Place,
    pub usable: u64,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outside { place, usable } = self;
        write!(f, "{place:?} does not lie within the first {usable} bytes of the arena")
    }
}

/// Why bytes did not get into a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    Outside(Outside),
    /// The segment does not take them: somebody has cut it short.
    Lost(Errno),
}

/// Why there is no arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArenaError {
    Segment(SegmentError),
    Map { bytes: u64, error: Errno },
    HugePages { bytes: u64, error: Errno },
}

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArenaError::Segment(error) => error.fmt(f),
            ArenaError::Map { bytes, error } => {
                write!(f, "cannot map {} for L1: {error}", sizing::Bytes(*bytes))
            }
            ArenaError::HugePages { bytes, error } => {
                let bytes = sizing::Bytes(*bytes);
                write!(f, "--l1-use-hugepages: no {bytes} of pages of 2 MiB can be had: {error}")
            }
        }
    }
}

impl Arena {
    /// A segment that clients can map. No memory is behind it before the grower has run.
    pub fn shared(options: &SegmentOptions, bytes: u64) -> Result<(Arena, Grower), ArenaError> {
        let segment = Segment::create(options, bytes).map_err(ArenaError::Segment)?;
        let mapping = Mapping::shared(&segment, bytes)?;
        Arena::over(mapping, Some(segment))
    }

    /// Memory that only this process sees.
    pub fn private(bytes: u64) -> Result<(Arena, Grower), ArenaError> {
        Arena::over(Mapping::private(bytes)?, None)
    }

    /// The same in pages of 2 MiB, all of them reserved at once.
    pub fn huge(bytes: u64) -> Result<(Arena, Grower), ArenaError> {
        Arena::over(Mapping::huge(bytes)?, None)
    }

    fn over(mapping: Mapping, segment: Option<Segment>) -> Result<(Arena, Grower), ArenaError> {
        let bytes = mapping.bytes as u64;
        let mapping = Arc::new(mapping);
        // SAFETY: the mapping is as long as the region says and outlives it, as the arena holds a
        // share. Within this process bytes are written through this region only, except by the
        // grower, which stays above what it has reported and thus above `usable`. Clients write to
        // slots that were lent to them, which nobody reads before their commit (design P1).
        let region = unsafe { HostRegion::new(mapping.base, mapping.bytes) };
        let grower = Grower::new(mapping.clone(), segment.as_ref());
        let grower = grower.map_err(|error| ArenaError::Map { bytes, error })?;
        let news = PoolNews::default();
        Ok((Arena { region, usable: 0, segment, news, mapping }, grower))
    }

    /// The grower has reported that the first `bytes` are usable. Never shrinks.
    pub fn grown_to(&mut self, bytes: u64) {
        assert!(bytes <= self.region.bytes(), "the grower stays inside the mapping");
        self.usable = self.usable.max(bytes);
    }

    /// The size when fully grown; for a shared arena also the size of the file.
    pub fn bytes(&self) -> u64 {
        self.region.bytes()
    }

    pub fn usable_bytes(&self) -> u64 {
        self.usable
    }

    /// The name that clients open, without a leading slash; None when memory is private.
    pub fn pool_name(&self) -> Option<&str> {
        self.segment.as_ref().map(Segment::name)
    }

    /// The grower's news of the pool; each change is told once.
    pub fn hear(&mut self, news: PoolNews) {
        let before = std::mem::replace(&mut self.news, news);
        if let (Some(error), None) = (news.waits, before.waits) {
            let (usable, whole) = (sizing::Bytes(self.usable), sizing::Bytes(self.bytes()));
            tracing::warn!(
                "L1 stays at {usable} of {whole}: no more memory ({error}); it is tried again"
            );
        }
        if let (true, false, Some(name)) = (news.is_unnamed, before.is_unnamed, self.pool_name()) {
            tracing::warn!(
                "The name of segment {name} was removed from outside: engines that have mapped it \
                 go on, others send their KV inside messages until this server is started again"
            );
        }
    }

    pub fn news(&self) -> PoolNews {
        self.news
    }

    /// Lends a place for reading. The engine pins it until the borrower's ending.
    pub fn slice(&self, place: Place) -> Result<&[u8], Outside> {
        self.check(place)?;
        let outside = |_| Outside { place, usable: self.usable };
        self.region.slice(place.offset, place.bytes).map_err(outside)
    }

    /// Lends what is left of a place after `skip` bytes, as one part of a gathered write.
    pub fn io_slice(&self, place: Place, skip: u64) -> Result<IoSlice<'_>, Outside> {
        let bytes = self.slice(place)?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len());
        Ok(IoSlice::new(&bytes[skip..]))
    }

    /// Copies inline bytes into a place, `skip` bytes from its start.
    pub fn copy_in(&mut self, place: Place, skip: u64, from: &[u8]) -> Result<(), CopyFault> {
        self.check(place).map_err(CopyFault::Outside)?;
        let outside = CopyFault::Outside(Outside { place, usable: self.usable });
        let fits = skip.checked_add(from.len() as u64).is_some_and(|end| end <= place.bytes);
        if !fits {
            return Err(outside);
        }
        match &self.segment {
            None => self.region.copy_in(place.offset + skip, from).map_err(|_| outside),
            Some(segment) => write_all(segment, from, place.offset + skip).map_err(CopyFault::Lost),
        }
    }

    /// A share of this memory for who moves bytes of it from beside the reactor.
    pub fn window(&self) -> rustix::io::Result<Window> {
        Window::new(&self.mapping, self.segment.as_ref())
    }

    /// The bytes of a place, for a window. The engine pins them until the borrower's ending.
    pub fn span(&self, place: Place) -> Result<Span, Outside> {
        self.check(place)?;
        Ok(Span::of(place))
    }

    fn check(&self, place: Place) -> Result<(), Outside> {
        let end = place.offset.checked_add(place.bytes);
        if place.arena == L1 && end.is_some_and(|end| end <= self.usable) {
            return Ok(());
        }
        Err(Outside { place, usable: self.usable })
    }
}

/// Writes all of `from` to the file, which has the room unless somebody has cut it.
fn write_all(segment: impl AsFd, mut from: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !from.is_empty() {
        let written = retry_on_intr(|| pwrite(&segment, from, offset))?;
        if written == 0 {
            return Err(Errno::NOSPC);
        }
        from = &from[written..];
        offset += written as u64;
    }
    Ok(())
}

/// The address range itself; unmapped when arena and grower are both gone.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range without a thread of its own; who may access which bytes of
// it is settled by `Arena` and `Grower`.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared mapping offers no access by itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn shared(segment: &Segment, bytes: u64) -> Result<Mapping, ArenaError> {
        let map = |length| {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address of the kernel's choosing touches no memory that
            // this process uses.
            unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, segment, 0) }
        };
        Mapping::of(bytes, map)
    }

    fn private(bytes: u64) -> Result<Mapping, ArenaError> {
        Mapping::anonymous(bytes, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn huge(bytes: u64) -> Result<Mapping, ArenaError> {
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        Mapping::anonymous(bytes, flags).map_err(|error| match error {
            ArenaError::Map { bytes, error } => ArenaError::HugePages { bytes, error },
            other => other,
        })
    }

    fn anonymous(bytes: u64, flags: MapFlags) -> Result<Mapping, ArenaError> {
        let map = |length| {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address of the kernel's choosing touches no memory that
            // this process uses.
            unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags) }
        };
        Mapping::of(bytes, map)
    }

    fn of(
        bytes: u64,
        map: impl FnOnce(usize) -> rustix::io::Result<*mut core::ffi::c_void>,
    ) -> Result<Mapping, ArenaError> {
        let failed = |error| ArenaError::Map { bytes, error };
        let length = isize::try_from(bytes).map_err(|_| failed(Errno::NOMEM))? as usize;
        let address = map(length).map_err(failed)?;
        let base = NonNull::new(address.cast()).ok_or(failed(Errno::NOMEM))?;
        let mapping = Mapping { base, bytes: length };
        // Payload has no place in a crash dump, and a dump of this size helps nobody. All of it is
        // used, so large pages cost nothing where the system lends them to those who ask. Where the
        // kernel does not know an advice nothing is lost.
        for advice in [Advice::LinuxDontDump, Advice::LinuxHugepage] {
            // SAFETY: the range is the mapping that was just made; neither advice changes contents.
            unsafe { madvise(address, length, advice) }.ok();
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `Mapping::of` and nobody can reach it any more: arena and
        // grower each held a share.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "a mapping of ours can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;

    fn place(offset: u64, bytes: u64) -> Place {
        Place { arena: L1, offset, bytes }
    }

    fn grown(mut arena: Arena, mut grower: Grower) -> Arena {
        grower.run(|growth| {
            arena.grown_to(growth.usable());
            std::ops::ControlFlow::Continue(())
        });
        arena
    }

    #[test]
    fn nothing_is_usable_before_the_grower_has_said_so() {
        let (mut arena, grower) = Arena::private(BYTES).expect("a MiB can be mapped");
        let outside = Outside { place: place(0, 1), usable: 0 };
        assert_eq!(arena.slice(place(0, 1)), Err(outside));
        assert_eq!(arena.copy_in(place(0, 1), 0, b"x"), Err(CopyFault::Outside(outside)));
        let arena = grown(arena, grower);
        assert_eq!(arena.usable_bytes(), BYTES);
        assert_eq!(arena.slice(place(0, 1)), Ok(&[0][..]));
    }

    #[test]
    fn bytes_go_where_the_place_says_and_nowhere_else() {
        let (arena, grower) = Arena::private(BYTES).expect("a MiB can be mapped");
        let mut arena = grown(arena, grower);
        let slot = place(4096, 8);
        arena.copy_in(slot, 2, b"tide").expect("the bytes fit the slot");
        assert_eq!(arena.slice(place(4095, 10)), Ok(&b"\0\0\0tide\0\0\0"[..]));
        let rest = arena.io_slice(slot, 4).expect("the slot is usable");
        assert_eq!(&*rest, b"de\0\0");
        let past = arena.io_slice(slot, 9).expect("nothing is left after the end");
        assert!(past.is_empty());

        let usable = BYTES;
        let outside = CopyFault::Outside(Outside { place: slot, usable });
        assert_eq!(arena.copy_in(slot, 6, b"tide"), Err(outside), "not into the neighbour");
        assert_eq!(arena.copy_in(slot, u64::MAX, b"tide"), Err(outside));
        for bad in [place(BYTES - 1, 2), place(u64::MAX, 2), place(1, u64::MAX)] {
            assert_eq!(arena.slice(bad), Err(Outside { place: bad, usable }));
        }
        let other = Place { arena: ArenaId(1), offset: 0, bytes: 1 };
        assert_eq!(arena.slice(other), Err(Outside { place: other, usable }));
    }

    #[test]
    fn f49_clients_see_the_same_bytes_under_the_name_and_the_name_goes_with_the_arena() {
        let name = format!("test_{}_arena", std::process::id());
        let options = SegmentOptions { name: Some(name), mode: 0o600, group: None };
        let (arena, grower) = Arena::shared(&options, BYTES).expect("a MiB can be mapped");
        let mut arena = grown(arena, grower);
        let name = arena.pool_name().expect("the arena is shared").to_owned();
        arena.copy_in(place(BYTES - 4, 4), 0, b"tide").expect("the end is usable");
        let path = format!("{}/{name}", machine::SHM_DIRECTORY);
        let seen = std::fs::read(&path).expect("a client of this user can open the segment");
        assert_eq!(seen.len() as u64, BYTES);
        assert_eq!(&seen[BYTES as usize - 4..], b"tide");
        drop(arena);
        assert!(!std::path::Path::new(&path).exists());
    }

    #[test]
    fn a_size_that_cannot_be_mapped_is_an_error() {
        let error = Arena::private(u64::MAX).map(|_| ()).expect_err("nobody has that much");
        assert_eq!(error, ArenaError::Map { bytes: u64::MAX, error: Errno::NOMEM });
    }
}
