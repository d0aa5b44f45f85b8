//! A server's pool as an engine maps it.
//!
//! The one invariant: bytes are touched only inside the mapping, and only those of slots that the
//! server has named to us.

use kvtide_gpu::host::{HostRegion, OutsideRegion};
use rustix::fs::{Mode, fstat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::shm::{self, OFlags};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

pub struct Pool {
    region: HostRegion,
    address: NonNull<c_void>,
    bytes: usize,
}

impl Pool {
    /// Maps a pool by the name that its server has told, and makes all of its pages present, so
    /// that copies measure memory and not page faults.
    pub fn map(name: &str, bytes: u64) -> Result<Pool, String> {
        let failed = |error: Errno| format!("the pool {name} cannot be mapped: {error}");
        let file = shm::open(name, OFlags::RDWR, Mode::empty()).map_err(failed)?;
        let size = fstat(&file).map_err(failed)?.st_size;
        if u64::try_from(size).is_ok_and(|size| size < bytes) {
            return Err(format!("the pool {name} is smaller than the {bytes} bytes it was told"));
        }
        let length = isize::try_from(bytes).map_err(|_| failed(Errno::NOMEM))? as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choosing touches no memory that this
        // process uses.
        let mapped = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, &file, 0) };
        let address = NonNull::new(mapped.map_err(failed)?).ok_or(failed(Errno::NOMEM))?;
        // Where the kernel does not know the advice, the first pass takes the faults.
        // SAFETY: the range is the mapping just made; the advice does not change contents.
        unsafe { madvise(address.as_ptr(), length, Advice::LinuxPopulateWrite) }.ok();
        // SAFETY: the mapping has `length` bytes and is unmapped only when the pool is dropped, and
        // the region with it. Other processes write to slots of their own; within this one nothing
        // else reaches the mapping.
        let region = unsafe { HostRegion::new(address.cast(), length) };
        Ok(Pool { region, address, bytes: length })
    }

    pub fn copy_in(&mut self, offset: u64, from: &[u8]) -> Result<(), OutsideRegion> {
        self.region.copy_in(offset, from)
    }

    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<(), OutsideRegion> {
        self.region.copy_out(offset, to)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and only this pool reaches it.
        let unmapped = unsafe { munmap(self.address.as_ptr(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "a mapping of ours can be unmapped");
    }
}
