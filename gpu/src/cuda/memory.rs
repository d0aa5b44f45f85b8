//! Memory of both sides: allocations that engines export, and host memory that cards may reach.
//!
//! An allocation is opened once per process however many tensors lie in it: torch packs many
//! layers into one, and older drivers refuse a second opening. It is closed with its last user.

use super::driver::{IpcMemory, characters};
use super::{Card, Failed};
use crate::host::OutsideRegion;
use rustix::fs::{Mode, fstat};
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::shm::{self, OFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is open on one card, by handle.
#[derive(Default)]
pub struct Imports(BTreeMap<[u8; 64], Open>);

struct Open {
    address: u64,
    /// Bytes from the address to the end of the allocation, where the driver tells.
    bytes: Option<u64>,
    uses: usize,
}

/// One use of an open allocation.
pub struct Import {
    card: Card,
    handle: [u8; 64],
    pub address: u64,
    pub bytes: Option<u64>,
}

fn imports(card: &Card) -> MutexGuard<'_, Imports> {
    card.imports().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Import {
    pub fn open(card: &Card, handle: &[u8; 64]) -> Result<Import, Failed> {
        let calls = card.bind()?;
        let mut imports = imports(card);
        if let Some(open) = imports.0.get_mut(handle) {
            open.uses += 1;
            let (address, bytes) = (open.address, open.bytes);
            return Ok(Import { card: card.clone(), handle: *handle, address, bytes });
        }
        let raw = IpcMemory { reserved: characters(handle) };
        let mut address = 0;
        // SAFETY: the address is a place for one pointer; the driver checks the handle, and what
        // is not one is its error.
        unsafe { calls.memory_open(&mut address, raw, LAZY_PEER_ACCESS) }?;
        let (mut base, mut whole) = (0, 0);
        // SAFETY: both are places for one number; the address was just opened.
        let told = unsafe { calls.memory_range(&mut base, &mut whole, address) };
        let end = base.checked_add(whole as u64).filter(|_| told.is_ok());
        let bytes = end.and_then(|end| end.checked_sub(address));
        imports.0.insert(*handle, Open { address, bytes, uses: 1 });
        Ok(Import { card: card.clone(), handle: *handle, address, bytes })
    }

    /// The address `offset` into the allocation, where `bytes` fit behind it.
    pub fn at(&self, offset: u64, bytes: u64) -> Result<u64, OutsideRegion> {
        let region_bytes = self.bytes.unwrap_or(u64::MAX - self.address);
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > region_bytes) {
            return Err(OutsideRegion { offset, bytes, region_bytes });
        }
        Ok(self.address + offset)
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        // Under the lock to the end: who opens the same handle meanwhile waits for the closing.
        let mut imports = imports(&self.card);
        let Some(open) = imports.0.get_mut(&self.handle) else { return };
        open.uses -= 1;
        if open.uses > 0 {
            return;
        }
        imports.0.remove(&self.handle);
        if let Ok(calls) = self.card.bind() {
            // SAFETY: opened once by this module, and this was the last use. Whoever copied there
            // held a use until its ticket ended.
            let _ = unsafe { calls.memory_close(self.address) };
        }
    }
}

/// Where a tensor lies, as its descriptor says.
#[derive(Clone, Copy, Debug)]
pub struct RegionSource<'a> {
    pub memory: &'a [u8; 64],
    /// From the start of the allocation to the start of the storage.
    pub offset: u64,
    pub bytes: u64,
    pub counter: Option<TorchCounter<'a>>,
}

/// PyTorch's count of users of a storage: a file in shared memory, and a slot in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorchCounter<'a> {
    pub name: &'a [u8],
    pub index: u64,
}

/// A storage of an engine, open in this process.
pub struct Region {
    import: Import,
    address: u64,
    bytes: u64,
    counter: Option<(Vec<u8>, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFault {
    Failed(Failed),
    /// A storage that is not within its allocation.
    OutsideAllocation(OutsideRegion),
}

impl fmt::Display for MemoryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryFault::Failed(failed) => write!(f, "device memory cannot be opened: {failed}"),
            MemoryFault::OutsideAllocation(outside) => {
                write!(f, "a storage is not within its allocation: {outside}")
            }
        }
    }
}

impl std::error::Error for MemoryFault {}

impl Region {
    pub fn open(card: &Card, source: &RegionSource<'_>) -> Result<Region, MemoryFault> {
        let import = Import::open(card, source.memory).map_err(MemoryFault::Failed)?;
        let address =
            import.at(source.offset, source.bytes).map_err(MemoryFault::OutsideAllocation)?;
        let counter = source.counter.map(|counter| (counter.name.to_vec(), counter.index));
        Ok(Region { import, address, bytes: source.bytes, counter })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether both lie in one allocation, so that one copy may cross from one to the other.
    pub(super) fn same_allocation(&self, other: &Region) -> bool {
        self.import.handle == other.import.handle
    }

    pub(super) fn is_on(&self, card: &Card) -> bool {
        self.import.card.info() == card.info()
    }

    /// The address of a span, where it lies inside the storage.
    pub(super) fn at(&self, offset: u64, bytes: u64) -> Result<u64, OutsideRegion> {
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(OutsideRegion { offset, bytes, region_bytes: self.bytes });
        }
        Ok(self.address + offset)
    }
}

impl Drop for Region {
    /// Tells the producer that the storage has one user less, or it would never use the block
    /// again. Best effort: the file is gone where the producer is.
    fn drop(&mut self) {
        if let Some((name, index)) = &self.counter {
            let _ = count_down(name, *index);
        }
    }
}

/// Takes one from a slot of the producer's counter file. The name comes from a peer: only names
/// that PyTorch gives are opened, so nobody's segment is changed but an engine's.
fn count_down(name: &[u8], index: u64) -> Option<()> {
    if !name.starts_with(b"/torch_") || name[1..].contains(&b'/') || name.len() > 255 {
        return None;
    }
    let file = shm::open(name, OFlags::RDWR, Mode::empty()).ok()?;
    let length = usize::try_from(fstat(&file).ok()?.st_size).ok()?;
    let slot = usize::try_from(index).ok()?.checked_mul(8)?;
    if slot.checked_add(8)? > length {
        return None;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let anywhere = std::ptr::null_mut();
    // SAFETY: a fresh mapping wherever the kernel likes disturbs none that exists.
    let base = unsafe { mm::mmap(anywhere, length, access, MapFlags::SHARED, &file, 0) }.ok()?;
    // SAFETY: the slot lies within the mapping, whose start is aligned to a page, and its other
    // users touch it as an atomic, too. Should its owner cut the file short within these few
    // instructions, the process is ended by a signal; PyTorch never does.
    let slot = unsafe { &*base.cast::<u8>().add(slot).cast::<AtomicI64>() };
    slot.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: made a few lines above, and nothing refers to it any more.
    let _ = unsafe { mm::munmap(base, length) };
    Some(())
}

/// Host memory that every card may reach, registered slice by slice: as it grows, and because one
/// registration of hundreds of gigabytes would hold up everything. A copy never crosses two slices.
pub struct Pinned {
    card: Card,
    base: usize,
    slice_bytes: usize,
    /// Registered from the start on. Grows under the lock, and is read without it.
    bytes: AtomicUsize,
    /// As far as all slices are whole. Beyond it their ends are listed.
    whole: AtomicUsize,
    ends: Mutex<Vec<usize>>,
}

impl Pinned {
    /// # Safety
    ///
    /// Whatever is given to [`Pinned::grow`] must stay mapped until this value is dropped, and
    /// nobody may need exclusive access to bytes that an instance was told to copy to or from.
    pub unsafe fn new(card: &Card, base: NonNull<u8>, slice_bytes: usize) -> Pinned {
        assert!(slice_bytes > 0, "a slice holds something");
        assert!(slice_bytes.is_multiple_of(4096), "slices begin at pages");
        let base = base.as_ptr().expose_provenance();
        let (bytes, whole) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Pinned { card: card.clone(), base, slice_bytes, bytes, whole, ends: Mutex::default() }
    }

    fn ends(&self) -> MutexGuard<'_, Vec<usize>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers up to `bytes` from the start, in whole slices but for the last. What was
    /// registered before an error stays.
    pub fn grow(&self, bytes: usize) -> Result<(), Failed> {
        let calls = self.card.bind()?;
        let mut ends = self.ends();
        let mut length = self.bytes.load(Ordering::Acquire);
        while length < bytes {
            let slice = self.slice_bytes.min(bytes - length);
            // SAFETY: the caller of `new` keeps these bytes mapped until this value is dropped.
            unsafe { calls.host_register(self.base + length, slice, PORTABLE) }?;
            length += slice;
            if ends.is_empty() && slice == self.slice_bytes {
                self.whole.store(length, Ordering::Release);
            } else {
                ends.push(length);
            }
            self.bytes.store(length, Ordering::Release);
        }
        Ok(())
    }

    /// How much of the memory may be copied to and from.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire) as u64
    }

    pub(super) fn at(&self, offset: u64, bytes: u64) -> Result<u64, OutsideRegion> {
        let region_bytes = self.bytes();
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > region_bytes) {
            return Err(OutsideRegion { offset, bytes, region_bytes });
        }
        Ok(self.base as u64 + offset)
    }

    /// Where the slice that `offset` lies in begins, and where it ends.
    pub(super) fn slice_of(&self, offset: u64) -> Range<u64> {
        let slice = self.slice_bytes as u64;
        let whole = self.whole.load(Ordering::Acquire);
        if offset < whole as u64 {
            let start = offset - offset % slice;
            return start..start + slice;
        }
        let ends = self.ends();
        let at = ends.partition_point(|end| *end as u64 <= offset);
        let start = at.checked_sub(1).map_or(whole, |before| ends[before]);
        let end = ends.get(at).copied().expect("an offset that is registered");
        start as u64..end as u64
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(calls) = self.card.bind() else { return };
        let whole = (0..*self.whole.get_mut()).step_by(self.slice_bytes);
        let ends = self.ends();
        let last = self.whole.load(Ordering::Acquire);
        let beyond = [last].into_iter().chain(ends.iter().copied()).take(ends.len());
        for start in whole.chain(beyond) {
            // SAFETY: registered by `grow`; instances hold this value until their tickets ended.
            let _ = unsafe { calls.host_unregister(self.base + start) };
        }
    }
}

const LAZY_PEER_ACCESS: u32 = 1;
const PORTABLE: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_goes_down_where_pytorch_keeps_it_and_nowhere_else() {
        let name = format!("/torch_{}_kvtide_test", std::process::id());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = shm::open(name.as_str(), flags, Mode::RUSR | Mode::WUSR).expect("a segment");
        let mut file = std::fs::File::from(file);
        std::io::Write::write_all(&mut file, &[2, 0, 0, 0, 0, 0, 0, 0, 9]).expect("a slot");
        assert_eq!(count_down(name.as_bytes(), 0), Some(()));
        for (name, index) in [(name.as_str(), 1), (&name, u64::MAX), ("/kvtide_1", 0), ("/x", 0)] {
            assert_eq!(count_down(name.as_bytes(), index), None, "{name} {index}");
        }
        assert_eq!(count_down(b"/torch_/../x", 0), None);
        let mut bytes = [0; 9];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("the slot");
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 9]);
        shm::unlink(name.as_str()).expect("made above");
        assert_eq!(count_down(name.as_bytes(), 0), None, "its owner is gone");
    }
}
