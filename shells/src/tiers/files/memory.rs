//! The memory that steps read and write, beside the arena: blocks for direct transfers and the
//! kernel's words about a file.
//!
//! Invariant: it moves with its step, so it stays where it is until the step has ended.

use crate::arena::Span;
use std::fmt;

/// Which bytes a transfer is about.
#[derive(Debug)]
pub enum Memory {
    Arena(Span),
    /// The first so many bytes of blocks that go with the step.
    Blocks(Blocks, usize),
    /// One block that nobody looks at.
    Sink,
}

impl Memory {
    pub fn bytes(&self) -> u64 {
        match self {
            Memory::Arena(span) => span.bytes(),
            Memory::Blocks(_, bytes) => *bytes as u64,
            Memory::Sink => BLOCK_BYTES,
        }
    }
}

/// What `Look` fills in.
#[repr(transparent)]
pub struct Seen(pub(super) libc::statx);

impl Default for Seen {
    fn default() -> Seen {
        // SAFETY: all of `statx` is integers, for which zero is a value.
        Seen(unsafe { std::mem::zeroed() })
    }
}

impl Seen {
    /// What another system call has found.
    pub fn of(mode: u16, bytes: u64) -> Seen {
        let mut seen = Seen::default();
        (seen.0.stx_mode, seen.0.stx_size) = (mode, bytes);
        seen
    }

    /// The size of a regular file.
    pub fn file_bytes(&self) -> Option<u64> {
        let kind = u32::from(self.0.stx_mode) & libc::S_IFMT;
        (kind == libc::S_IFREG).then_some(self.0.stx_size)
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seen({:?})", self.file_bytes())
    }
}

/// Memory for direct transfers of what has no place in the arena.
#[derive(Debug)]
pub struct Blocks(Box<[Block]>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES as usize]);

impl Blocks {
    pub fn new(bytes: u64) -> Blocks {
        let count = bytes.div_ceil(BLOCK_BYTES) as usize;
        Blocks(vec![Block([0; BLOCK_BYTES as usize]); count].into_boxed_slice())
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a block is its bytes and nothing else, so blocks in a row are bytes in a row.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&*self.0)) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let length = size_of_val(&*self.0);
        // SAFETY: a block is its bytes and nothing else, so blocks in a row are bytes in a row.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), length) }
    }
}

/// What direct transfers are a multiple of, in memory and in the file. No device asks for more.
pub const BLOCK_BYTES: u64 = 4096;
