//! The writer: turns events and what they brought about into frames. Its one invariant: what was
//! finished can be read to the last event, whatever comes after it; an event during which the
//! engine panicked is there, too, without an outcome.
//!
//! On the reactor's thread, so: no allocation and no formatting for an event, one copy of the
//! entries for a frame.

use super::bytes::Write;
use super::chunks::{self, Known};
use super::digest::Digest;
use super::events::{FINISH, TOKENS, Writing, kind_of};
use super::frame::{Frame, Mark};
use super::models::{self, Models};
use super::outcome::{Outcome, Part};
use super::secret::Secret;
use crate::event::{Ask, Event};
use crate::limits::REQUEST_CHUNKS_MAX;
use crate::names::ChunkHash;
use crate::time::{Duration, Instant};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

#[derive(Clone)]
pub struct Recorder {
    secret: Secret,
    known: Known,
    models: Models,
    /// Entries of the frame that is being filled.
    bytes: Vec<u8>,
    /// Up to where they can be read.
    readable: usize,
    frame: u64,
    first_event: u64,
    began: Instant,
    is_fresh: bool,
    /// What this and earlier frames hold since the last fresh one, which began then.
    scope_bytes: usize,
    scope_began: Instant,
    last: Instant,
    digest: Digest,
    events: u64,
}

impl Recorder {
    pub fn new(secret: Secret) -> Recorder {
        Recorder {
            secret,
            known: Known::new(),
            models: Models::default(),
            bytes: Vec::with_capacity(FRAME_BYTES + ENTRY_BYTES_USUAL),
            readable: 0,
            frame: 0,
            first_event: 0,
            began: Instant::ZERO,
            is_fresh: true,
            scope_bytes: SCOPE_BYTES,
            scope_began: Instant::ZERO,
            last: Instant::ZERO,
            digest: Digest::START,
            events: 0,
        }
    }

    /// An event is about to be handled. `ended` says what came of it.
    pub fn begins(&mut self, now: Instant, event: &Event<'_>) {
        self.entry(now, kind_of(event));
        let mut writing = Writing {
            naming: &self.secret,
            known: &mut self.known,
            models: &mut self.models,
            bytes: &mut self.bytes,
        };
        writing.event(event);
        self.event_begun();
    }

    /// The engine is about to be told that the server ends. `ended` says what came of it.
    pub fn begins_finish(&mut self, now: Instant) {
        self.entry(now, FINISH);
        self.event_begun();
    }

    /// What the event begun last brought about. `hashes` are its own (`hashes_of`).
    pub fn ended(&mut self, hashes: &[ChunkHash], part: &Part<'_>) {
        let outcome = Outcome::of(&mut self.digest, &self.secret, hashes, part);
        outcome.write(&mut self.bytes);
        self.readable = self.bytes.len();
    }

    /// Chunks that the last event told for the first time, by their place in its hashes.
    pub fn fresh_chunks(&self) -> Range<usize> {
        self.known.fresh()
    }

    /// Token ids of chunks of the last event, as its key encoded them (`--record-tokens`). Too many
    /// for one entry are left out.
    pub fn tokens(&mut self, now: Instant, chunks: Range<usize>, encoded: &[u8]) {
        if encoded.len() > TOKENS_BYTES_MAX {
            return;
        }
        self.entry(now, TOKENS);
        self.bytes.number(chunks.start as u64);
        self.bytes.number(chunks.len() as u64);
        self.bytes.number(encoded.len() as u64);
        self.bytes.extend_from_slice(encoded);
        self.readable = self.bytes.len();
    }

    /// Whether it is time to close the frame: it is full, or what it holds has waited long enough.
    pub fn is_due(&self, now: Instant) -> bool {
        self.is_full() || (self.readable > 0 && now.since(self.began) >= FRAME_TIME)
    }

    pub fn is_full(&self) -> bool {
        self.bytes.len() >= FRAME_BYTES
    }

    /// Ends the frame that is being filled, if it holds anything.
    pub fn close(&mut self) -> Option<Frame> {
        let entries = Arc::from(&self.bytes[..self.readable]);
        self.bytes.clear();
        if self.readable == 0 {
            return None;
        }
        let frame = Frame {
            number: self.frame,
            first_event: self.first_event,
            began: self.began,
            is_fresh: self.is_fresh,
            mark: Mark::None,
            entries,
        };
        self.frame += 1;
        self.scope_bytes += self.readable;
        self.readable = 0;
        Some(frame)
    }

    /// A frame that says how it ended, in place of the next one.
    pub fn marked(&self, mark: Mark) -> Frame {
        Frame::marked(mark, self.frame, self.events, self.last)
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    fn entry(&mut self, now: Instant, kind: u8) {
        if self.bytes.is_empty() {
            self.open(now);
        }
        // Whoever measures time for us may have looked a little earlier.
        let now = now.max(self.last);
        self.bytes.byte(kind);
        self.bytes.number(now.0 - self.last.0);
        self.last = now;
    }

    fn open(&mut self, now: Instant) {
        let now = now.max(self.last);
        (self.began, self.last) = (now, now);
        (self.first_event, self.digest) = (self.events, Digest::START);
        let aged = now.since(self.scope_began) >= SCOPE_TIME;
        self.is_fresh = aged || self.scope_bytes >= SCOPE_BYTES;
        if self.is_fresh {
            self.known.reset();
            self.models.reset();
            (self.scope_bytes, self.scope_began) = (0, now);
        }
    }

    fn event_begun(&mut self) {
        self.events += 1;
        self.readable = self.bytes.len();
    }
}

/// The hashes that an event brings.
pub fn hashes_of<'a>(event: &Event<'a>) -> &'a [ChunkHash] {
    let Event::Asked { ask, .. } = event else { return &[] };
    match ask {
        Ask::Lookup { keys }
        | Ask::FreeLookupLocks { keys }
        | Ask::PrepareStore { keys, .. }
        | Ask::CommitStore { keys, .. }
        | Ask::PrepareRetrieve { keys, .. }
        | Ask::CommitRetrieve { keys, .. }
        | Ask::Store { keys, .. }
        | Ask::Retrieve { keys, .. } => keys.hashes,
        Ask::EndSession { hashes, .. } => hashes,
        Ask::Register(_)
        | Ask::RegisterPaged(_)
        | Ask::RegisterRefused { .. }
        | Ask::Unregister { .. }
        | Ask::Ping { .. }
        | Ask::BlocksAllocated { .. }
        | Ask::QueryPrefetch { .. }
        | Ask::WaitPrefetch { .. }
        | Ask::Clear { .. } => &[],
    }
}

/// A frame is closed when it holds so much.
pub const FRAME_BYTES: usize = 64 << 10;
/// Or when what it holds has waited so long: a server that is killed loses no more.
pub const FRAME_TIME: Duration = Duration::from_secs(1);
/// A fresh frame comes when those since the last one hold so much. Only whole scopes can be
/// dropped, and what is used over scopes is told in each of them.
pub const SCOPE_BYTES: usize = 1 << 20;
/// Or when it is so long ago.
pub const SCOPE_TIME: Duration = Duration::from_secs(5);
/// The chunks of the largest request, and everything else of an event. The end of a session may
/// name more; then the buffer grows.
const ENTRY_BYTES_USUAL: usize = REQUEST_CHUNKS_MAX * 16 + (8 << 10);
/// Token bytes in one entry.
pub const TOKENS_BYTES_MAX: usize = 64 << 10;
/// Buffer, table of chunks and names.
pub(super) const MEMORY_BYTES_MAX: u64 =
    (FRAME_BYTES + ENTRY_BYTES_USUAL) as u64 + chunks::MEMORY_BYTES + models::MEMORY_BYTES;
