//! A share of the arena for those who move bytes of it from beside the reactor: the kernel, for a
//! ring, and worker threads.
//!
//! The one invariant: a [`Span`] comes from the arena, which has checked that memory is behind all
//! of it, and the mapping stays for as long as anybody holds a window. That nobody else writes to
//! these bytes, or reads them while they are written, is the engine's promise: they are pinned by a
//! ticket, and whoever got the span ends that ticket only when it is done with them.

use super::{Mapping, Segment};
use kvtide_core::names::Place;
use rustix::io::{Errno, dup, pread, retry_on_intr};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of the arena that have memory behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    offset: u64,
    bytes: u64,
}

impl Span {
    pub(super) fn of(place: Place) -> Span {
        Span { offset: place.offset, bytes: place.bytes }
    }

    /// From the start of the arena.
    pub fn offset(self) -> u64 {
        self.offset
    }

    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// What is left of it after `skip` bytes, `bytes` of that at most.
    pub fn part(self, skip: u64, bytes: u64) -> Span {
        let skip = skip.min(self.bytes);
        Span { offset: self.offset + skip, bytes: bytes.min(self.bytes - skip) }
    }
}

/// Clones are further shares of the same memory.
#[derive(Clone, Debug)]
pub struct Window {
    mapping: Arc<Mapping>,
    /// Bytes that others can map are moved through their file: where somebody has cut it short
    /// that is an error, and an access would be a signal.
    file: Option<Arc<OwnedFd>>,
}

impl Window {
    pub(super) fn new(
        mapping: &Arc<Mapping>,
        segment: Option<&Segment>,
    ) -> rustix::io::Result<Window> {
        let file = segment.map(dup).transpose()?.map(Arc::new);
        Ok(Window { mapping: mapping.clone(), file })
    }

    /// Where a span begins, for the kernel.
    pub fn address(&self, span: Span) -> NonNull<u8> {
        self.check(span);
        // SAFETY: `check` has seen that the span lies inside the mapping.
        unsafe { self.mapping.base.add(span.offset as usize) }
    }

    /// The first `usable` bytes, which have memory behind them, as the arena has told.
    pub fn whole(&self, usable: u64) -> Span {
        Span { offset: 0, bytes: usable.min(self.mapped_bytes()) }
    }

    /// The size of the whole mapping.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    /// Fills all of `to` from the beginning of a span.
    pub fn copy_out(&self, span: Span, to: &mut [u8]) -> Result<(), Errno> {
        let span = self.first(span, to.len());
        match &self.file {
            Some(file) => read_all(file, to, span.offset),
            None => {
                to.copy_from_slice(self.bytes(span));
                Ok(())
            }
        }
    }

    /// Copies all of `from` to the beginning of a span.
    pub fn copy_in(&self, span: Span, from: &[u8]) -> Result<(), Errno> {
        let span = self.first(span, from.len());
        match &self.file {
            Some(file) => super::write_all(file, from, span.offset),
            None => {
                let start = self.address(span);
                // SAFETY: the span lies inside the mapping and is as long as `from`, which is not
                // of the arena. The ticket that pins these bytes is the caller's, who is their only
                // writer, and nobody reads them before it has ended.
                unsafe { start.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
                Ok(())
            }
        }
    }

    /// Shows all bytes of a span, in order and piece by piece. `scratch` is where they pass
    /// through if they are others' as well.
    pub fn read(
        &self,
        span: Span,
        scratch: &mut [u8],
        mut see: impl FnMut(&[u8]),
    ) -> Result<(), Errno> {
        let Some(file) = &self.file else {
            see(self.bytes(span));
            return Ok(());
        };
        let mut seen = 0;
        while seen < span.bytes {
            let part = span.part(seen, scratch.len() as u64);
            let piece = &mut scratch[..part.bytes as usize];
            read_all(file, piece, part.offset)?;
            see(piece);
            seen += part.bytes;
        }
        Ok(())
    }

    fn bytes(&self, span: Span) -> &[u8] {
        let start = self.address(span);
        // SAFETY: the span lies inside the mapping, which is private memory, and has memory behind
        // it. The ticket that pins these bytes is the caller's; the engine lets nobody write to
        // them before it has ended.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), span.bytes as usize) }
    }

    fn first(&self, span: Span, bytes: usize) -> Span {
        assert!(bytes as u64 <= span.bytes, "what is copied is a part of the span");
        Span { bytes: bytes as u64, ..span }
    }

    fn check(&self, span: Span) {
        let end = span.offset.checked_add(span.bytes);
        let fits = end.is_some_and(|end| end <= self.mapping.bytes as u64);
        assert!(fits, "a span of this arena lies inside its mapping");
    }
}

fn read_all(file: &OwnedFd, mut to: &mut [u8], mut offset: u64) -> Result<(), Errno> {
    while !to.is_empty() {
        let read = retry_on_intr(|| pread(file, &mut *to, offset))?;
        if read == 0 {
            return Err(Errno::NXIO);
        }
        to = &mut to[read..];
        offset += read as u64;
    }
    Ok(())
}
