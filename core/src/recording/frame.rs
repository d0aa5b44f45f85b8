//! Frames: pieces of a recording that are written, dropped and checked as a whole. Its one
//! invariant: a frame says where in the recording it belongs, so what is missing before it shows.

use super::bytes::{Fault, Input, Malformed, Write};
use super::header::checksum;
use crate::time::Instant;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A finished frame. Copies share its entries.
#[derive(Clone, Debug)]
pub struct Frame {
    /// From 0 on.
    pub number: u64,
    /// The number of its first event.
    pub first_event: u64,
    pub began: Instant,
    /// It can be read without those before it.
    pub is_fresh: bool,
    pub mark: Mark,
    pub entries: Arc<[u8]>,
}

/// What a frame without entries says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing: it has entries.
    None,
    /// Recording ended here although the server went on, from this event on.
    Gap,
    /// The server ended in order.
    End,
}

impl Frame {
    /// The last frame of a recording.
    pub fn marked(mark: Mark, number: u64, event: u64, at: Instant) -> Frame {
        let (first_event, began) = (event, at);
        Frame { number, first_event, began, is_fresh: true, mark, entries: Arc::from([]) }
    }

    /// Head and entries, to be written one behind the other.
    pub fn bytes(&self) -> ([u8; HEAD_BYTES], &[u8]) {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend_from_slice(&MAGIC);
        let mark = match self.mark {
            Mark::None => 0,
            Mark::Gap => GAP,
            Mark::End => END,
        };
        head.extend_from_slice(&[mark | if self.is_fresh { FRESH } else { 0 }, 0, 0, 0]);
        head.fixed_u32(self.entries.len() as u32);
        head.fixed_u32(0);
        head.fixed_u64(self.number);
        head.fixed_u64(self.first_event);
        head.fixed_u64(self.began.0);
        let sum = checksum(&[&head, &self.entries]);
        head.fixed_u64(sum);
        let head = head.try_into().expect("a head has its size");
        (head, &self.entries)
    }

    /// Bytes of a file that it takes.
    pub fn file_bytes(&self) -> u64 {
        (HEAD_BYTES + self.entries.len()) as u64
    }
}

/// The head of a frame that is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub number: u64,
    pub first_event: u64,
    pub began: Instant,
    pub is_fresh: bool,
    pub mark: Mark,
}

/// Reads one frame: its head and its entries. `offset` is where in the file `file` begins.
pub(super) fn read<'a>(input: &mut Input<'a>) -> Result<(Head, Input<'a>), Malformed> {
    let start = *input;
    let head = input.take(HEAD_BYTES, WHAT)?;
    let mut fields = Input::new(head, start.offset());
    if fields.array::<4>(WHAT)? != MAGIC {
        return Err(start.fault(Fault::Value { what: "the beginning of a frame" }));
    }
    let at_flags = fields;
    let flags = fields.byte(WHAT)?;
    fields.take(3, WHAT)?;
    let bytes = fields.fixed_u32(WHAT)? as usize;
    fields.fixed_u32(WHAT)?;
    let (number, first_event) = (fields.fixed_u64(WHAT)?, fields.fixed_u64(WHAT)?);
    let began = Instant(fields.fixed_u64(WHAT)?);
    let sum = fields.fixed_u64(WHAT)?;
    let at_entries = input.offset();
    let entries = input.take(bytes, "the entries of a frame")?;
    if sum != checksum(&[&head[..HEAD_BYTES - 8], entries]) {
        return Err(start.fault(Fault::Checksum { what: WHAT }));
    }
    let mark = match flags & !FRESH {
        0 => Mark::None,
        GAP => Mark::Gap,
        END => Mark::End,
        _ => return Err(at_flags.fault(Fault::Value { what: "the flags of a frame" })),
    };
    if mark != Mark::None && !entries.is_empty() {
        return Err(at_flags.fault(Fault::Value { what: "the flags of a frame" }));
    }
    let is_fresh = flags & FRESH != 0;
    let head = Head { number, first_event, began, is_fresh, mark };
    Ok((head, Input::new(entries, at_entries)))
}

pub const HEAD_BYTES: usize = 48;
const MAGIC: [u8; 4] = *b"KVFR";
const FRESH: u8 = 1;
const GAP: u8 = 2;
const END: u8 = 4;
const WHAT: &str = "a frame";
