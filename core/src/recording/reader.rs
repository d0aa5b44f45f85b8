//! The reader: from the bytes of a file to events and what they brought about. Its one invariant:
//! whatever the bytes are, it ends in entries and at most one fault, which says where it is.

use super::bytes::{Fault, Input, Malformed};
use super::events::{FINISH, KINDS, Reading, SCANNED, TOKENS};
use super::frame::{self, Mark};
use super::header::Header;
use super::outcome::Outcome;
use super::tiers::Scan;
use crate::event::{Event, Scanned};
use crate::time::Instant;
use alloc::vec::Vec;

/// One part of a recording. Reading goes from the front to the back.
#[derive(Clone, Debug)]
pub struct Reader<'f> {
    frames: Input<'f>,
    entries: Input<'f>,
    reading: Reading,
    /// Of the frame that is being read; None before the first.
    frame: Option<u64>,
    event: u64,
    at: Instant,
    mark: Mark,
}

/// One thing that was recorded.
#[derive(Clone, Debug)]
pub struct Entry<'r> {
    /// Events from 0 on; tokens and marks have the number of the next event.
    pub number: u64,
    pub at: Instant,
    /// Where it begins in the file.
    pub offset: u64,
    /// The frame that it lies in: digests begin anew with each.
    pub frame: u64,
    pub kind: &'static str,
    pub happened: Happened<'r>,
    /// None where there is none: the engine panicked, or it is no event.
    pub outcome: Option<Outcome>,
}

#[derive(Clone, Debug)]
pub enum Happened<'r> {
    Event(Event<'r>),
    /// `Event::AdapterScanned`, in a form that owns its list.
    Scanned(Scan<'r>),
    /// `Engine::finish`.
    Finish,
    /// Token ids of chunks of the event before, as msgpack encodes them.
    Tokens {
        first_chunk: u64,
        chunks: u64,
        encoded: &'r [u8],
    },
    /// Recording ended here; the server went on.
    Gap,
    /// The server ended.
    End,
}

impl Happened<'_> {
    /// Whether an engine is told of it.
    pub fn is_event(&self) -> bool {
        matches!(self, Happened::Event(_) | Happened::Scanned(_) | Happened::Finish)
    }

    /// Shows the event that it is, if it is one.
    pub fn with_event<T>(&self, show: impl FnOnce(&Event<'_>) -> T) -> Option<T> {
        match self {
            Happened::Event(event) => Some(show(event)),
            Happened::Scanned(scan) => {
                let found: Vec<Scanned<'_>> = scan.objects().collect();
                Some(show(&Event::AdapterScanned { adapter: scan.adapter, found: &found }))
            }
            Happened::Finish | Happened::Tokens { .. } | Happened::Gap | Happened::End => None,
        }
    }
}

impl<'f> Reader<'f> {
    /// Reads the header.
    pub fn new(file: &'f [u8]) -> Result<(Header, Reader<'f>), Malformed> {
        let (header, bytes) = Header::read(file)?;
        let offset = bytes as u64;
        let reader = Reader {
            frames: Input::new(&file[bytes..], offset),
            entries: Input::new(&[], offset),
            reading: Reading::default(),
            frame: None,
            event: 0,
            at: Instant::ZERO,
            mark: Mark::None,
        };
        Ok((header, reader))
    }

    /// The number of the frame that was read last.
    pub fn frame(&self) -> Option<u64> {
        self.frame
    }

    /// Whether a mark was read: whatever the recording holds was there.
    pub fn is_marked(&self) -> bool {
        self.mark != Mark::None
    }

    /// The next entry; None at the end of the file.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, Malformed> {
        while self.entries.is_empty() {
            if self.frames.is_empty() {
                return Ok(None);
            }
            self.next_frame()?;
            if self.mark != Mark::None {
                return Ok(Some(self.marked()));
            }
        }
        self.entry().map(Some)
    }

    fn next_frame(&mut self) -> Result<(), Malformed> {
        let start = self.frames;
        let value = |what| start.fault(Fault::Value { what });
        if self.mark != Mark::None {
            return Err(value("a frame after the last one"));
        }
        let (head, entries) = frame::read(&mut self.frames)?;
        match self.frame {
            Some(before) if before.checked_add(1) != Some(head.number) => {
                let expected = before.saturating_add(1);
                let fault = Fault::Order { expected, found: head.number };
                return Err(start.fault(fault));
            }
            Some(_) if head.first_event != self.event => {
                return Err(value("the number of a frame's first event"));
            }
            None if !head.is_fresh => return Err(value("a first frame that is not fresh")),
            _ => {}
        }
        if head.began < self.at {
            return Err(value("a frame that began before the last one ended"));
        }
        if head.is_fresh {
            self.reading.told.reset();
            self.reading.models.reset();
        }
        (self.frame, self.event) = (Some(head.number), head.first_event);
        (self.at, self.mark, self.entries) = (head.began, head.mark, entries);
        Ok(())
    }

    fn marked(&self) -> Entry<'_> {
        let (kind, happened) = match self.mark {
            Mark::Gap => ("gap", Happened::Gap),
            Mark::End | Mark::None => ("end", Happened::End),
        };
        Entry {
            number: self.event,
            at: self.at,
            offset: self.frames.offset(),
            frame: self.frame.unwrap_or(0),
            kind,
            happened,
            outcome: None,
        }
    }

    fn entry(&mut self) -> Result<Entry<'_>, Malformed> {
        let Reader { entries, reading, .. } = self;
        let start = *entries;
        let kind = entries.byte("an entry")?;
        let later = entries.number("a time")?;
        let value = |what| start.fault(Fault::Value { what });
        self.at = Instant(self.at.0.checked_add(later).ok_or_else(|| value("a time"))?);
        let happened = match kind {
            FINISH => Happened::Finish,
            TOKENS => {
                let (first_chunk, chunks) = (entries.number("chunks")?, entries.number("chunks")?);
                let bytes = usize::try_from(entries.number("tokens")?);
                let encoded = entries.take(bytes.map_err(|_| value("tokens"))?, "tokens")?;
                Happened::Tokens { first_chunk, chunks, encoded }
            }
            SCANNED => Happened::Scanned(reading.scan(entries)?),
            kind => Happened::Event(reading.event(kind, entries)?),
        };
        let is_event = kind != TOKENS;
        let has_outcome = is_event && !entries.is_empty();
        let outcome = if has_outcome { Some(Outcome::read(entries)?) } else { None };
        let number = self.event;
        let next = self.event.checked_add(u64::from(is_event));
        self.event = next.ok_or_else(|| value("the number of an event"))?;
        Ok(Entry {
            number,
            at: self.at,
            offset: start.offset(),
            frame: self.frame.unwrap_or(0),
            kind: KINDS[usize::from(kind)],
            happened,
            outcome,
        })
    }
}

/// Reads a whole file and says how many events it holds: what a fuzzer calls.
pub fn decode(file: &[u8]) -> Result<u64, Malformed> {
    let (_, mut reader) = Reader::new(file)?;
    let mut events = 0;
    while let Some(entry) = reader.next_entry()? {
        events += u64::from(entry.happened.is_event());
    }
    Ok(events)
}
