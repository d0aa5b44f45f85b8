//! The index of an adapter that keeps one file per object, and the look through its folder at start
//! (docs/disk-format.md).
//!
//! ```text
//! reactor: note -> batch -> lane -> keeper -> .kvtide/<uuid>.idx
//!                                     |  at start: index + folder, the least recently used first
//!          on_scan <- batches --------+
//! ```
//!
//! The one invariant: the index is never needed. It saves the look at every file and keeps seals
//! and the order of use; whatever it has lost is found again in the folder, and what it tells and
//! the folder lacks is dropped. So the reactor never waits for it: notes that find no room are
//! counted, and the keeper makes the index anew from the folder when there is time.

mod capacity;
#[cfg(test)]
mod folder;
mod keeper;
mod locks;
mod log;
mod questions;
mod scan;
mod temps;

pub use capacity::{Capacity, TooLarge, capacity, free_bytes, held_bytes};
pub use questions::{Known, Question, told};
pub use temps::temp_name;

use crate::ending::Ending;
use crate::entropy;
use keeper::Keeper;
use kvtide_core::effect::Note;
use kvtide_core::event::Scanned;
use kvtide_core::format::index::{Found, Replay, ScopeName, ScopeRef, Scopes};
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::{ChunkHash, Seal};
use kvtide_lanes::lane::{Producer, lane};
use log::LogFile;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// What the keeper has to know of its adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexOptions {
    /// What the log lines call it.
    pub name: String,
    /// Objects that the adapter's table can name (`AdapterSetup::objects_max`).
    pub objects_max: usize,
    /// `relative_tmp_dir`, below the base folder: where else temps lie.
    pub temp_dir: Option<PathBuf>,
}

/// What the look through the folder has found.
#[derive(Debug)]
pub enum ScanNews {
    Found(Batch),
    /// The answer to a question. What was told before it is not in it.
    Known(Known),
    /// There is nothing more.
    Ended(Box<ScanSummary>),
}

/// At most `limits::SCANNED_PER_EVENT` objects, the least recently used first. As long as two of
/// them have not been dropped, no further one is made.
#[derive(Debug)]
pub struct Batch {
    pub objects: Vec<FoundObject>,
    _credit: Credit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundObject {
    pub scope: ScopeName,
    pub hash: ChunkHash,
    pub bytes: u64,
    pub seal: Option<Seal>,
}

impl FoundObject {
    pub fn scanned(&self) -> Scanned<'_> {
        let ScopeRef { model, salt, rank, group } = self.scope.borrowed();
        Scanned { model, salt, rank, group, hash: self.hash, bytes: self.bytes, seal: self.seal }
    }
}

/// What there was in the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// Files that the index tells of, and others.
    pub known: u64,
    pub unknown: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Objects of the index that the folder lacks.
    pub absent: u64,
    /// Objects that the table has no room for, the least recently used ones.
    pub forgotten: u64,
    /// Names that are no object's, and one of them.
    pub foreign: u64,
    pub foreign_example: Option<String>,
    pub temps_removed: u64,
    /// Indexes, or ends of them, that could not be read.
    pub damaged: u64,
    /// How often notes had been lost when the index was written.
    pub gaps: u64,
    /// Why the folder could not be read to its end.
    pub fault: Option<String>,
    /// From the start of the keeper to the last batch that was taken.
    pub took: Duration,
}

/// Counted by the keeper and the reactor, read by whoever likes to.
#[derive(Debug, Default)]
pub struct IndexCounts {
    /// Notes that found no room on their way to the keeper, or were about to be written when that
    /// failed.
    pub missed: AtomicU64,
    /// Notes of objects that no index can name.
    pub unnamed: AtomicU64,
    /// Bytes of the index.
    pub bytes: AtomicU64,
    pub compactions: AtomicU64,
    /// Times that the index could not be written.
    pub failures: AtomicU64,
    /// Names that the look through the folder has met so far.
    pub names: AtomicU64,
    pub is_scanned: AtomicBool,
}

impl IndexCounts {
    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// The folder or its index cannot be used.
#[derive(Debug)]
pub struct IndexError {
    what: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl IndexError {
    pub fn kind(&self) -> io::ErrorKind {
        self.error.kind()
    }
}

impl fmt::Display for IndexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.what, self.path.display(), self.error)
    }
}

impl std::error::Error for IndexError {}

/// The reactor's end. Dropping it ends the keeper as `close` does.
pub struct Index {
    lane: Producer<Vec<Line>>,
    lines: Vec<Line>,
    scopes: Scopes,
    /// Notes were lost since the last batch that was accepted.
    has_lost: bool,
    counts: Arc<IndexCounts>,
    ending: Option<Ending>,
    uuid: String,
    quarantine: PathBuf,
}

/// What the keeper is told. Scopes are numbered in the order in which they are told.
#[derive(Clone, Debug)]
enum Line {
    Scope(ScopeName),
    Note {
        scope: u32,
        hash: ChunkHash,
        note: Note,
    },
    /// Notes were lost before this.
    Lost,
    Ask(Question),
    /// A file was moved to the quarantine.
    Quarantined,
}

impl Index {
    /// Takes over what dead servers have left in `<base>/.kvtide`, or begins anew, and starts the
    /// keeper, which looks through the folder and tells `on_scan`. What that hands back is offered
    /// again a little later; it may be called on another thread, and must not wait.
    pub fn open(
        base: &Path,
        options: IndexOptions,
        on_scan: impl FnMut(ScanNews) -> Result<(), ScanNews> + Send + 'static,
    ) -> Result<Index, IndexError> {
        let (log, left) = LogFile::open(base)?;
        let uuid = log.uuid().to_owned();
        let counts = Arc::new(IndexCounts::default());
        let (to_keeper, lines) = lane(BATCHES);
        let name = format!("index-{}", options.name);
        let keeper = Keeper::new(base, options, lines, log, counts.clone(), Box::new(on_scan));
        let ending = Ending::spawn(&name, move || keeper.run(left))
            .map_err(|error| IndexError { what: "start a thread for", path: base.into(), error })?;
        Ok(Index {
            lane: to_keeper,
            lines: Vec::with_capacity(LINES),
            scopes: Scopes::new(entropy::seed()),
            has_lost: false,
            counts,
            ending: Some(ending),
            uuid,
            quarantine: base.join(FOLDER).join(QUARANTINE),
        })
    }

    /// Names this run in the folder. `temp_name` begins with it.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Where files go that are to be looked at by somebody. It is there.
    pub fn quarantine(&self) -> &Path {
        &self.quarantine
    }

    pub fn counts(&self) -> &Arc<IndexCounts> {
        &self.counts
    }

    /// Never waits. Reaches the keeper with `flush`, or when many have come together.
    pub fn note(&mut self, name: &ObjectName<'_>, note: Note) {
        let (Some(hash), Ok(group)) = (name.hash.chunk_hash(), u16::try_from(name.group)) else {
            IndexCounts::add(&self.counts.unnamed, 1);
            return;
        };
        let scope = ScopeRef { model: &name.model, salt: name.salt, rank: name.rank, group };
        let known = self.scopes.len();
        let number = if scope.is_legal() { self.scopes.intern(&scope) } else { None };
        let Some(number) = number else {
            IndexCounts::add(&self.counts.unnamed, 1);
            return;
        };
        if self.scopes.len() > known {
            self.lines.push(Line::Scope(self.scopes.name(number).clone()));
        }
        self.lines.push(Line::Note { scope: number, hash, note });
        if self.lines.len() >= LINES {
            self.flush();
        }
    }

    /// Asks what the index tells of objects, with what was noted so far. It is answered by
    /// `ScanNews::Known`, unless the look through the folder ends first: then all of it was told.
    pub fn ask(&mut self, question: Question) {
        self.lines.push(Line::Ask(question));
        self.flush();
    }

    /// A file was moved to the quarantine, which has a bound.
    pub fn quarantined(&mut self) {
        self.lines.push(Line::Quarantined);
    }

    /// Hands over what was noted. To be called now and then, such as before the reactor sleeps:
    /// what has not been handed over is lost with the process.
    pub fn flush(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let mut batch = std::mem::replace(&mut self.lines, Vec::with_capacity(LINES));
        if self.has_lost {
            batch.push(Line::Lost);
        }
        let Err(refused) = self.lane.put(batch) else {
            self.has_lost = false;
            return;
        };
        let mut batch = refused.into_value();
        let notes = batch.iter().filter(|line| matches!(line, Line::Note { .. })).count();
        IndexCounts::add(&self.counts.missed, notes as u64);
        // The numbers of later scopes depend on these, and lookups on those.
        batch.retain(|line| matches!(line, Line::Scope(_) | Line::Ask(_)));
        self.lines = batch;
        self.has_lost = true;
    }

    /// Everything noted is written and reaches the disk before the thread of this ending ends.
    pub fn close(mut self) -> Ending {
        self.flush();
        self.ending.take().expect("it is closed once")
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Counts batches that have not been dropped, and wakes the keeper.
#[derive(Debug)]
struct Credit {
    out: Arc<AtomicU32>,
    keeper: Thread,
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.out.fetch_sub(1, Ordering::Release);
        self.keeper.unpark();
    }
}

/// Most that one index takes, for `--print-memory`: the table of a look through the folder and the
/// files that it has found, notes on their way, and what waits to be written. Texts apart, of which
/// those of the engine's names are the most.
pub fn memory_bytes_max(objects_max: usize) -> u64 {
    let limit = objects_max.max(1);
    // As many again before the oldest of them are forgotten, in a list that grows by doubling.
    let found = 4 * limit * size_of::<Found>();
    let lines = (BATCHES + 2) * LINES * size_of::<Line>();
    Replay::table_bytes(limit) + (found + lines + log::OUT_BYTES_MAX) as u64
}

/// The folder of kvtide in an adapter's folder.
const FOLDER: &str = ".kvtide";
const QUARANTINE: &str = "quarantine";
/// Lines that are handed over together, and batches that may wait: a quarter of a million notes.
const LINES: usize = 256;
const BATCHES: usize = 1024;

#[cfg(test)]
mod tests;
