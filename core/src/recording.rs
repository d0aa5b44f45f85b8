//! Recordings: what an engine was told and what it decided, as bytes that can be run again.
//!
//! Pure: the shells lend the bytes a file or a ring, `kvtide replay` and the fuzzers read them. The
//! one invariant: an event that was recorded and read again makes an engine of the same
//! configuration decide the same, although no prompt, salt or request id can be told from it.
//!
//! # Format, version 2
//!
//! Numbers are little-endian; `v` is a varint (seven bits a byte, lowest first, the eighth bit says
//! that more follows); `text` is a `v` length and that many bytes of UTF-8.
//!
//! ```text
//! file    magic "KVTIDREC" | version u16 | body bytes u32 | body | checksum u64 of all before
//!         body: recording u64 (the same in all parts of one recording) | flags u8 (1: tokens)
//!               | wall clock at time zero, ns u64 | writer's version, text | settings
//!         settings: v count, then as often: v number | v value (`header::settings`)
//! frame*  magic "KVFR" | flags u8 | 0 0 0 | payload bytes u32 | 0 u32
//!         | frame number u64 | first event's number u64 | time at the start, ns u64
//!         | checksum u64 of head (less this) and payload | payload: entries
//!         flags: 1 fresh (knows nothing of earlier frames), 2 gap, 4 end
//! entry   kind u8 | v nanoseconds since the last entry of this frame, or its start
//!         | fields by kind (`events`) | outcome
//! hashes  v count | v 1 + number of the last chunk already known, 0 for none | 16 bytes for each
//!         chunk after it. A chunk hash stands for everything before it, so the last known one says
//!         all of them. Chunks are numbered from 0 as they appear, anew at each fresh frame.
//! model   v 0 and a text, which is kept in the next of 16 places, or v 1 + the place
//! outcome v effects | of the first 8: kind u8, v value | v runs of facts | of the first 12:
//!         kind u8, v facts, v keys | digest u32 of every effect and fact since the frame began
//! ```
//!
//! The last entry of a frame that a panic ended has no outcome. A frame that says `gap` or `end`
//! holds no entries and is the last one. Request ids and salts are 64-bit numbers, chunk hashes
//! 128-bit ones, digests of objects 32-bit ones: SipHash-2-4 under a secret that is made when the
//! server starts and stored nowhere. Equal ones stay equal, and nobody can find out from the file
//! what they were (`secret`).
//!
//! Version 2 came with lower tiers. It adds settings from 26 on, and the kinds of events from 25,
//! of effects from 23 and of facts from 24 on. A recording of version 1 has none of them, and what
//! an engine without lower tiers decides has the digest that it had. Before the first release of
//! version 2 what a probe finds got a third kind (`2`: with its seal); what was written without it
//! reads as before.

pub mod digest;
pub mod events;
pub mod frame;
pub mod header;
pub mod outcome;
mod paged;
pub mod reader;
pub mod recorder;
pub mod replay;
pub mod secret;

mod bytes;
mod chunks;
mod kinds;
mod models;
mod tiers;

pub use bytes::{Fault, Malformed};
pub use frame::{Frame, Mark};
pub use header::{Header, VERSION};
pub use outcome::{Outcome, Part};
pub use reader::{Entry, Happened, Reader, decode};
pub use recorder::{Recorder, hashes_of};
pub use replay::{Difference, Replay};
pub use secret::Secret;
pub use tiers::Scan;

/// What the recorder keeps at its bound: the frame being filled and the chunks it knows.
pub const RECORDER_BYTES_MAX: u64 = recorder::MEMORY_BYTES_MAX;
