//! Pickled lists of tensors: what an engine without shared memory sends in `commit_store`
//! (spec/transfer §4.7, spec/wire §2.5), and what it gets from `prepare_retrieve`.
//!
//! ```text
//! list ─┬ _rebuild_tensor_v2( storage, 0, shape, stride, … ) ─┬ chunk 0
//!       │                       └ _load_from_bytes( head · raw bytes ) ─► spans, as they come
//!       └ …                                                    └ chunk 1 …
//! ```
//!
//! This reads exactly that and evaluates nothing: no name leads to code. The one invariant: payload
//! is never held, and a chunk counts as complete only when all of its bytes came under the shape
//! and type that the layout says, in the order of the range.

mod lexer;
mod machine;
mod storage;
mod symbols;
pub mod writer;

use crate::event::BodyOutcome;
use crate::names::{Dtype, Layout};
use lexer::Lexer;
use machine::{Machine, Plain, Request, Value};
use storage::{Contents, Piece, StorageReader};
use symbols::Global;

/// Payload of one chunk: `bytes` belong at `offset` of chunk `chunk` of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'b> {
    pub chunk: u32,
    pub offset: u64,
    pub bytes: &'b [u8],
}

/// Not a pickle that we read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unreadable;

/// One body, being read.
#[derive(Clone, Debug)]
pub struct PickleReader {
    layout: Layout,
    /// Bytes of one chunk.
    chunk_bytes: u64,
    /// Chunks of the range.
    chunks: u32,
    phase: Phase,
    lexer: Lexer,
    machine: Machine,
    storage: StorageReader,
    /// Storages so far, and what the last one holds; its bytes were the chunk of its number.
    storages: u32,
    last: Option<Contents>,
    tensors: u32,
    /// Items of the list so far.
    items: u32,
    /// Chunks `0..complete` are there.
    complete: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Among the instructions of the list.
    List,
    /// Within a storage: bytes that are left of it, and raw bytes seen.
    Storage {
        left: u64,
        raw: u64,
    },
    Ended,
    Malformed,
}

impl PickleReader {
    /// Reads what should be one tensor of `layout` for each of `chunks` chunks.
    pub fn new(layout: Layout, chunks: u32) -> PickleReader {
        PickleReader {
            layout,
            chunk_bytes: layout.bytes().unwrap_or(0),
            chunks,
            phase: Phase::List,
            lexer: Lexer::new(),
            machine: Machine::new(MEMO_PER_CHUNK * chunks as usize + MEMO_SPARE),
            storage: StorageReader::new(),
            storages: 0,
            last: None,
            tensors: 0,
            items: 0,
            complete: 0,
        }
    }

    /// Takes in the next bytes of the body; `sink` gets the payload among them.
    pub fn feed(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Span<'_>)) {
        while !bytes.is_empty() {
            let read = match self.phase {
                Phase::List => self.read_list(&mut bytes),
                Phase::Storage { left, raw } => self.read_storage(left, raw, &mut bytes, &mut sink),
                // What follows the end of a pickle is nobody's.
                Phase::Ended | Phase::Malformed => return,
            };
            if read.is_err() {
                self.phase = Phase::Malformed;
            }
        }
    }

    /// The body has ended. Chunks `0..complete` came whole and of the right shape.
    pub fn end(&self) -> (u32, BodyOutcome) {
        let whole = self.complete == self.chunks && self.items == self.chunks;
        let outcome = match self.phase {
            Phase::Malformed => BodyOutcome::Malformed,
            Phase::Ended if whole => BodyOutcome::Whole,
            _ => BodyOutcome::Short,
        };
        (self.complete, outcome)
    }

    fn read_list(&mut self, bytes: &mut &[u8]) -> Result<(), Unreadable> {
        let Some(instruction) = self.lexer.next(bytes)? else { return Ok(()) };
        match self.machine.run(instruction)? {
            Request::Nothing => Ok(()),
            Request::Call(function, arguments) => {
                let value = self.call(function, &arguments)?;
                self.machine.push(value)
            }
            Request::Binary(left) => {
                self.storage.restart();
                self.last = None;
                self.phase = Phase::Storage { left, raw: 0 };
                // An empty binary gets no bytes that could end it, and is no storage.
                if left == 0 { Err(Unreadable) } else { Ok(()) }
            }
            Request::Appended(start) => self.append(start),
            Request::Stopped(Value::Plain(Plain::List)) => {
                self.phase = Phase::Ended;
                Ok(())
            }
            Request::Stopped(_) | Request::Set(_) | Request::Persistent(_) => Err(Unreadable),
        }
    }

    fn read_storage(
        &mut self,
        left: u64,
        raw: u64,
        bytes: &mut &[u8],
        sink: &mut impl FnMut(Span<'_>),
    ) -> Result<(), Unreadable> {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let (mut now, rest) = bytes.split_at(count);
        let mut raw = raw;
        loop {
            match self.storage.next(&mut now)? {
                Piece::End => break,
                Piece::Head(contents) => self.last = Some(contents),
                Piece::Raw(payload) => {
                    if self.is_wanted() {
                        // More than the chunk takes is not passed on; it is refused at the end.
                        let room = self.chunk_bytes.saturating_sub(raw);
                        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(payload.len());
                        let span =
                            Span { chunk: self.storages, offset: raw, bytes: &payload[..fits] };
                        if fits > 0 {
                            sink(span);
                        }
                    }
                    raw += payload.len() as u64;
                }
            }
        }
        *bytes = rest;
        let left = left - count as u64;
        self.phase = Phase::Storage { left, raw };
        if left == 0 {
            let contents = self.last.ok_or(Unreadable)?;
            if contents.bytes != raw {
                return Err(Unreadable);
            }
            self.machine.push(Plain::Storage(self.storages))?;
            self.storages = self.storages.checked_add(1).ok_or(Unreadable)?;
            self.phase = Phase::List;
        }
        Ok(())
    }

    /// Whether the storage being read can be a chunk of the range.
    fn is_wanted(&self) -> bool {
        let Some(contents) = self.last else { return false };
        let typed = contents.dtype.is_none_or(|dtype| dtype == self.layout.dtype);
        typed && contents.bytes == self.chunk_bytes && self.storages < self.chunks
    }

    fn call(&mut self, function: Global, arguments: &[Value]) -> Result<Plain, Unreadable> {
        match (function, arguments) {
            // The storage was read where its bytes stood.
            (Global::LoadFromBytes, [Value::Plain(storage @ Plain::Storage(_))]) => Ok(*storage),
            (Global::OrderedDict, []) => Ok(Plain::OrderedDict),
            (
                Global::RebuildV2,
                [storage, offset, shape, stride, _, _] | [storage, offset, shape, stride, _, _, _],
            ) => {
                let dtype = self.last.ok_or(Unreadable)?.dtype;
                self.tensor(storage, offset, (shape, stride), dtype)
            }
            (Global::RebuildV3, [storage, offset, shape, stride, _, _, dtype, ..]) => {
                let Value::Plain(Plain::Global(Global::Dtype(dtype))) = dtype else {
                    return Err(Unreadable);
                };
                self.tensor(storage, offset, (shape, stride), Some(*dtype))
            }
            _ => Err(Unreadable),
        }
    }

    /// A tensor has been made: is it the next chunk of the range?
    fn tensor(
        &mut self,
        storage: &Value,
        offset: &Value,
        (shape, stride): (&Value, &Value),
        dtype: Option<Dtype>,
    ) -> Result<Plain, Unreadable> {
        let number = self.tensors;
        self.tensors = number.checked_add(1).ok_or(Unreadable)?;
        // Its storage is the last one that was read, and the only one that it uses.
        let own = number + 1 == self.storages && *storage == Value::Plain(Plain::Storage(number));
        let whole = self.last.is_some_and(|contents| contents.bytes == self.chunk_bytes);
        let starts = *offset == Value::Plain(Plain::Int(0));
        let right = own
            && whole
            && starts
            && dtype == Some(self.layout.dtype)
            && self.is_shape(shape)
            && self.is_contiguous(stride);
        if right && number == self.complete && number < self.chunks {
            self.complete += 1;
        }
        Ok(Plain::Tensor(number))
    }

    fn is_shape(&self, shape: &Value) -> bool {
        let (wanted, rank) = self.layout.shape();
        let Value::Tuple(sizes) = shape else { return false };
        let same = |(size, wanted): (&Value, &u64)| is_number(size, *wanted);
        sizes.len() == rank && sizes.iter().zip(&wanted[..rank]).all(same)
    }

    /// Elements follow each other without gaps. Steps along an axis of one element are never taken.
    fn is_contiguous(&self, stride: &Value) -> bool {
        let (sizes, rank) = self.layout.shape();
        let Value::Tuple(strides) = stride else { return false };
        let mut step = 1_u64;
        let mut contiguous = strides.len() == rank;
        for (stride, size) in strides.iter().zip(&sizes[..rank]).rev() {
            contiguous &= *size == 1 || is_number(stride, step);
            step = step.saturating_mul(*size);
        }
        contiguous
    }

    /// The items must be the tensors in the order in which they were made.
    fn append(&mut self, start: usize) -> Result<(), Unreadable> {
        for item in self.machine.take_from(start) {
            if item != Value::Plain(Plain::Tensor(self.items)) {
                self.complete = self.complete.min(self.items);
            }
            self.items = self.items.checked_add(1).ok_or(Unreadable)?;
        }
        Ok(())
    }
}

fn is_number(value: &Value, number: u64) -> bool {
    matches!(value, Value::Plain(Plain::Int(int)) if u64::try_from(*int) == Ok(number))
}

/// Python memoizes about twelve values per tensor.
const MEMO_PER_CHUNK: usize = 24;
/// Names and the like, which are memoized once.
const MEMO_SPARE: usize = 256;
