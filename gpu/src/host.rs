//! Host memory as a copy target. A region is a base and a length; every access is checked against
//! the length before a pointer is made.

pub mod pages;

use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;

/// A stretch of host memory that somebody else maps and unmaps.
#[derive(Debug)]
pub struct HostRegion {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is an address and a length; `new` asks its caller to keep the memory valid and
// free of overlapping accesses from whichever thread uses it.
unsafe impl Send for HostRegion {}
// SAFETY: through a shared reference the bytes are only read; writing takes `&mut self`.
unsafe impl Sync for HostRegion {}

/// An access that would leave its region. Nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideRegion {
    pub offset: u64,
    pub bytes: u64,
    pub region_bytes: u64,
}

impl fmt::Display for OutsideRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutsideRegion { offset, bytes, region_bytes } = self;
        write!(f, "{bytes} bytes at {offset} leave a region of {region_bytes} bytes")
    }
}

impl std::error::Error for OutsideRegion {}

impl HostRegion {
    /// # Safety
    ///
    /// `base` must be valid for reads and writes of `bytes` bytes for as long as the region lives,
    /// and `bytes` must not exceed `isize::MAX`. No other part of this process may write to bytes
    /// that are being accessed through the region at that moment, nor read bytes being written.
    pub unsafe fn new(base: NonNull<u8>, bytes: usize) -> HostRegion {
        assert!(isize::try_from(bytes).is_ok(), "a region is no larger than an allocation can be");
        HostRegion { base, bytes }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Copies all of `from` to `offset`.
    pub fn copy_in(&mut self, offset: u64, from: &[u8]) -> Result<(), OutsideRegion> {
        let start = self.start_of(offset, from.len() as u64)?;
        // SAFETY: `start_of` checked that the span lies inside the region, which `new`'s caller
        // keeps valid for writes; `from` is borrowed from elsewhere, as this region is borrowed
        // mutably and lends nothing else.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), start, from.len()) };
        Ok(())
    }

    /// Fills all of `to` from `offset` on.
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<(), OutsideRegion> {
        to.copy_from_slice(self.slice(offset, to.len() as u64)?);
        Ok(())
    }

    /// Lends a span for reading, for gathered writes to a socket or a file.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<&[u8], OutsideRegion> {
        let start = self.start_of(offset, bytes)?;
        // SAFETY: `start_of` checked that the span lies inside the region, which `new`'s caller
        // keeps valid for reads and free of writes while it is lent; writing through this region
        // needs `&mut self`, which the borrow excludes.
        Ok(unsafe { slice::from_raw_parts(start, bytes as usize) })
    }

    fn start_of(&self, offset: u64, bytes: u64) -> Result<*mut u8, OutsideRegion> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes as u64);
        if !fits {
            return Err(OutsideRegion { offset, bytes, region_bytes: self.bytes as u64 });
        }
        // SAFETY: `offset` is at most the region's length, so the sum stays inside it or one past
        // its end.
        Ok(unsafe { self.base.as_ptr().add(offset as usize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region_over(memory: &mut [u8]) -> HostRegion {
        let base = NonNull::new(memory.as_mut_ptr()).expect("a slice has an address");
        // SAFETY: every test keeps the array alive and untouched while the region is in use.
        unsafe { HostRegion::new(base, memory.len()) }
    }

    #[test]
    fn what_is_copied_in_comes_out_and_neighbours_stay() {
        let mut memory = [7_u8; 16];
        let mut region = region_over(&mut memory);
        region.copy_in(4, b"tide").expect("four bytes at four fit into sixteen");
        let mut out = [0; 6];
        region.copy_out(3, &mut out).expect("six bytes at three fit into sixteen");
        assert_eq!(&out, b"\x07tide\x07");
        assert_eq!(region.slice(4, 4), Ok(&b"tide"[..]));
    }

    #[test]
    fn an_access_that_would_leave_the_region_touches_nothing() {
        let mut memory = [0_u8; 8];
        let mut region = region_over(&mut memory);
        let outside =
            |offset, bytes| Err::<(), _>(OutsideRegion { offset, bytes, region_bytes: 8 });
        assert_eq!(region.copy_in(5, b"tide"), outside(5, 4));
        assert_eq!(region.copy_in(9, b""), outside(9, 0));
        assert_eq!(region.slice(u64::MAX, 2).map(|_| ()), outside(u64::MAX, 2));
        assert_eq!(region.slice(0, u64::MAX).map(|_| ()), outside(0, u64::MAX));
        let mut out = [1; 9];
        assert_eq!(region.copy_out(0, &mut out), outside(0, 9));
        assert_eq!(out, [1; 9]);
        assert_eq!(region.slice(8, 0), Ok(&[][..]), "the end itself is a place for nothing");
        assert_eq!(memory, [0; 8]);
    }
}
