//! The thread that has the index: it alone reads and writes the file.
//!
//! ```text
//! replay what is left -> look through the folder -> make the index anew -> tell what lies there
//!                                   then: append, compact, make good what was lost
//! ```
//!
//! The one invariant: notes are taken all the time, and each of them is told by the file, or is
//! counted and makes the index be compared with the folder again.

use super::log::{Left, LeftIndex, LogFile, read_into, remove_if_there};
use super::scan::{self, Scan, prune_quarantine};
use super::temps::{OLD_SECONDS, Owners};
use super::{Batch, Credit, FoundObject, IndexCounts, IndexOptions, Line, QUARANTINE, Question};
use super::{ScanNews, ScanSummary};
use crate::clock::Clock;
use crate::entropy;
use kvtide_core::effect::Note;
use kvtide_core::format::index::{Log, Replay, ScopeName};
use kvtide_core::limits::SCANNED_PER_EVENT;
use kvtide_core::names::ChunkHash;
use kvtide_core::time::Instant;
use kvtide_core::{Map, map_with_capacity};
use kvtide_lanes::lane::Consumer;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

pub struct Keeper {
    base: PathBuf,
    options: IndexOptions,
    lane: Consumer<Vec<Line>>,
    log: LogFile,
    counts: Arc<IndexCounts>,
    clock: Clock,
    taken: Vec<Vec<Line>>,
    /// Scopes by the numbers of the reactor.
    heard: Vec<ScopeName>,
    /// Notes that have not been given to the file yet.
    notes: Vec<(u32, ChunkHash, Note)>,
    is_open: bool,
    /// Notes were lost: a gap is to be written, and the index is to be compared with the folder.
    has_gap: bool,
    is_incomplete: bool,
    /// When it was compared last.
    compared: Option<Instant>,
    on_scan: OnScan,
    /// What was asked and not looked up yet, and answers that were not told yet.
    questions: Vec<Question>,
    answers: VecDeque<ScanNews>,
}

/// Hears what the look through the folder finds; hands back what it cannot take just now.
type OnScan = Box<dyn FnMut(ScanNews) -> Result<(), ScanNews> + Send>;

/// The reactor is gone: what remains is to write what it has noted.
struct Closed;

/// The table and what has left the folder since it was listed.
struct Table {
    replay: Replay,
    gone: Map<(u32, ChunkHash), ()>,
}

impl Keeper {
    pub fn new(
        base: &Path,
        options: IndexOptions,
        lane: Consumer<Vec<Line>>,
        log: LogFile,
        counts: Arc<IndexCounts>,
        on_scan: OnScan,
    ) -> Keeper {
        Keeper {
            base: base.to_owned(),
            options,
            lane,
            log,
            counts,
            clock: Clock::start(),
            taken: Vec::new(),
            heard: Vec::new(),
            notes: Vec::new(),
            is_open: true,
            has_gap: false,
            is_incomplete: false,
            compared: None,
            on_scan,
            questions: Vec::new(),
            answers: VecDeque::new(),
        }
    }

    pub fn run(mut self, left: Left) {
        self.prune();
        if self.begin(left).is_ok() {
            while self.is_open {
                self.wait();
                self.append();
                self.compact_if_due();
                self.compare_if_due();
            }
        }
        // What is not told any more is found in the folder at the next start.
        self.hear();
        self.append();
        if self.log.write().and_then(|()| self.log.sync()).is_err() {
            IndexCounts::add(&self.counts.failures, 1);
        }
    }

    /// Up to the end of the scan.
    fn begin(&mut self, left: Left) -> Result<(), Closed> {
        let started = self.clock.now();
        for newer in &left.newer {
            tracing::warn!("{newer} was written by a later kvtide and is left alone");
        }
        let mut summary = ScanSummary { damaged: left.damaged, ..ScanSummary::default() };
        let (mut table, merged, mut is_stale) = self.replay(left, &mut summary);
        let owners = Owners::new(self.log.folder().to_owned(), self.log.uuid());
        is_stale |= self.look(&mut table, &mut summary, Some(owners))?;
        summary.bytes = table.replay.bytes();
        if is_stale && self.compact(&table.replay) {
            for index in merged {
                drop_merged(&index, self.wall_seconds());
            }
        }
        self.deliver(&mut table)?;
        summary.took = Duration::from_nanos(self.clock.now().0 - started.0);
        self.counts.is_scanned.store(true, Ordering::Release);
        self.offer(ScanNews::Ended(Box::new(summary)), &mut None)
    }

    /// Reads what is left. True where our own index cannot be gone on with, or is not alone.
    fn replay(&mut self, left: Left, summary: &mut ScanSummary) -> (Table, Vec<LeftIndex>, bool) {
        let replay = Replay::new(self.options.objects_max.max(1), entropy::seed());
        let gone = map_with_capacity(0, entropy::seed());
        let mut table = Table { replay, gone };
        let mut is_stale = !left.indexes.is_empty();
        let mut logs = Vec::new();
        for index in &left.indexes {
            logs.push(self.fold(index, &mut table.replay, summary));
        }
        if let Some(own) = &left.own {
            let log = self.fold(own, &mut table.replay, summary);
            let resumed = log.map(|log| self.log.resume(&log, &table.replay));
            is_stale |= !matches!(resumed, Some(Ok(true)));
        }
        table.replay.sort_by_time();
        (table, left.indexes, is_stale)
    }

    fn fold(
        &self,
        index: &LeftIndex,
        replay: &mut Replay,
        summary: &mut ScanSummary,
    ) -> Option<Log> {
        match read_into(replay, &index.file, &index.header) {
            Ok((log, fault)) => {
                summary.gaps += log.gaps();
                if let Some(fault) = fault {
                    summary.damaged += 1;
                    let (path, at) = (index.path.display(), log.reader().bytes());
                    tracing::info!("{path} is read up to byte {at}, where {fault}");
                }
                Some(log)
            }
            Err(error) => {
                summary.damaged += 1;
                tracing::warn!("{} cannot be read: {error}", index.path.display());
                None
            }
        }
    }

    /// Compares the table with the folder. True where the index does not tell what lies there.
    fn look(
        &mut self,
        table: &mut Table,
        summary: &mut ScanSummary,
        owners: Option<Owners>,
    ) -> Result<bool, Closed> {
        let (base, temp_dir) = (self.base.clone(), self.options.temp_dir.clone());
        let limit = self.options.objects_max.max(1);
        let now_seconds = self.wall_seconds();
        let Table { replay, gone } = table;
        let has_owners = owners.is_some();
        let temp_folder = temp_dir.as_deref().and_then(Path::to_str);
        let found = Vec::new();
        let mut scan = Scan { replay, summary, found, limit, owners, now_seconds, temp_folder };
        let mut names = 0_u64;
        let mut read = scan::each_entry(&base, |folder, entry| {
            scan.entry(folder, entry);
            names += 1;
            if names.is_multiple_of(NAMES_PER_BREATH) {
                IndexCounts::add(&self.counts.names, NAMES_PER_BREATH);
                self.hear();
                self.append_into(scan.replay, gone);
                self.tell_answers();
            }
            self.is_open
        });
        IndexCounts::add(&self.counts.names, names % NAMES_PER_BREATH);
        if let (true, Some(temp_dir)) = (has_owners && read.is_ok(), &temp_dir) {
            let listed = scan::each_entry(&base.join(temp_dir), |folder, entry| {
                scan.temp_entry(folder, entry);
                true
            });
            read = listed.or_else(unless_absent);
        }
        let mut found = scan.found;
        if !self.is_open {
            return Err(Closed);
        }
        self.hear();
        self.append_into(replay, gone);
        self.tell_answers();
        if let Err(error) = read {
            // What was not listed may be there all the same.
            summary.fault = Some(error.to_string());
            tracing::warn!("{} cannot be read to its end: {error}", base.display());
            return Ok(false);
        }
        summary.absent = replay.drop_unseen();
        found.retain(|file| !gone.contains_key(&(file.scope, file.hash)));
        let is_stale = !found.is_empty() || summary.absent > 0;
        replay.admit(found);
        summary.forgotten += replay.forgotten();
        Ok(is_stale)
    }

    /// Tells the reactor what lies there, and empties the table.
    fn deliver(&mut self, table: &mut Table) -> Result<(), Closed> {
        let out = Arc::new(AtomicU32::new(0));
        loop {
            while out.load(Ordering::Acquire) >= BATCHES_OUT {
                self.breathe(&mut Some(table))?;
                self.tell_answers();
            }
            // Not once it is off the table and not told: its answer would be that it is not known.
            self.tell_answers();
            let mut objects = Vec::with_capacity(SCANNED_PER_EVENT);
            while objects.len() < SCANNED_PER_EVENT
                && let Some((object, is_noted)) = table.replay.pop()
            {
                // What the reactor has noted it knows already.
                if !is_noted {
                    let scope = table.replay.scope(object.scope).clone();
                    let (hash, bytes, seal) = (object.hash, object.bytes, object.seal);
                    objects.push(FoundObject { scope, hash, bytes, seal });
                }
            }
            if objects.is_empty() {
                return Ok(());
            }
            out.fetch_add(1, Ordering::Relaxed);
            let credit = Credit { out: out.clone(), keeper: thread::current() };
            let batch = Batch { objects, _credit: credit };
            self.offer(ScanNews::Found(batch), &mut Some(table))?;
        }
    }

    /// Until it is taken.
    fn offer(&mut self, mut news: ScanNews, table: &mut Option<&mut Table>) -> Result<(), Closed> {
        while let Err(back) = (self.on_scan)(news) {
            news = back;
            self.breathe(table)?;
        }
        Ok(())
    }

    /// Answers reach the reactor behind what was told before them.
    fn tell_answers(&mut self) {
        while let Some(answer) = self.answers.pop_front() {
            if let Err(back) = (self.on_scan)(answer) {
                self.answers.push_front(back);
                return;
            }
        }
    }

    /// A short rest, in which notes are taken.
    fn breathe(&mut self, table: &mut Option<&mut Table>) -> Result<(), Closed> {
        thread::park_timeout(BREATH);
        self.hear();
        match table {
            Some(table) => self.append_into(&mut table.replay, &mut table.gone),
            None => self.append(),
        }
        if self.is_open { Ok(()) } else { Err(Closed) }
    }

    fn wait(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        self.is_open = self.lane.wait_at_most(&mut taken, TICK);
        self.take(&mut taken);
        self.taken = taken;
    }

    /// Takes what has been noted, without waiting for it.
    fn hear(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        self.is_open &= self.lane.take(&mut taken);
        self.take(&mut taken);
        self.taken = taken;
    }

    fn take(&mut self, taken: &mut Vec<Vec<Line>>) {
        for line in taken.drain(..).flatten() {
            match line {
                Line::Scope(scope) => self.heard.push(scope),
                Line::Note { scope, hash, note } => self.notes.push((scope, hash, note)),
                // What was asked before is answered by the end of the look.
                Line::Ask(_) if self.counts.is_scanned.load(Ordering::Acquire) => {}
                Line::Ask(question) => self.questions.push(question),
                Line::Lost => (self.has_gap, self.is_incomplete) = (true, true),
                Line::Quarantined => self.prune(),
            }
        }
    }

    /// Gives the notes to the file, and to a table that is being told from, which then answers what
    /// was asked.
    fn append_into(&mut self, replay: &mut Replay, gone: &mut Map<(u32, ChunkHash), ()>) {
        let now = self.wall_seconds();
        for (scope, hash, note) in &self.notes {
            let scope = self.heard[*scope as usize].borrowed();
            let Some(number) = replay.scopes_mut().intern(&scope) else { continue };
            replay.note(number, hash, *note, now);
            match note {
                Note::Removed => gone.insert((number, *hash), ()),
                Note::Stored { .. } | Note::Used => gone.remove(&(number, *hash)),
            };
        }
        for question in self.questions.drain(..) {
            self.answers.push_back(ScanNews::Known(question.answered(replay)));
        }
        self.append();
    }

    fn append(&mut self) {
        let now = self.wall_seconds();
        if self.has_gap && !self.log.is_stuck() {
            self.log.push_gap();
            self.has_gap = false;
        }
        for (scope, hash, note) in self.notes.drain(..) {
            let scope = self.heard[scope as usize].borrowed();
            if self.log.is_stuck() {
                IndexCounts::add(&self.counts.missed, 1);
                (self.has_gap, self.is_incomplete) = (true, true);
            } else if !self.log.push(&scope, hash, note, now) {
                IndexCounts::add(&self.counts.unnamed, 1);
            }
        }
        if self.log.write().is_err() {
            IndexCounts::add(&self.counts.failures, 1);
        }
        self.counts.bytes.store(self.log.bytes(), Ordering::Relaxed);
    }

    fn compact_if_due(&mut self) {
        if !self.log.wants_compaction() || !self.is_open {
            return;
        }
        let replayed = self.log.write().and_then(|()| self.log.replay(self.options.objects_max));
        match replayed {
            Ok(replay) => {
                self.compact(&replay);
            }
            // What cannot be read is not to be gone on with.
            Err(error) => {
                self.failed("read", &error);
                self.is_incomplete = true;
            }
        }
    }

    /// True where it has taken the place of the old one.
    fn compact(&mut self, replay: &Replay) -> bool {
        match self.log.compact(replay) {
            Ok(()) => {
                IndexCounts::add(&self.counts.compactions, 1);
                self.counts.bytes.store(self.log.bytes(), Ordering::Relaxed);
                true
            }
            Err(error) => {
                self.failed("write", &error);
                false
            }
        }
    }

    fn failed(&mut self, what: &str, error: &io::Error) {
        IndexCounts::add(&self.counts.failures, 1);
        self.log.put_compaction_off();
        let name = &self.options.name;
        tracing::warn!("the index of {name} cannot be {what} anew: {error}; data is not concerned");
    }

    /// After a loss, when there is time: the folder says what lies there.
    fn compare_if_due(&mut self) {
        let now = self.clock.now();
        let is_due = self.compared.is_none_or(|then| now.0 - then.0 >= COMPARE_PAUSE_NANOS);
        if !self.is_incomplete || !is_due || !self.is_open {
            return;
        }
        self.compared = Some(now);
        let limit = self.options.objects_max.max(1);
        let replay = match self.log.write().and_then(|()| self.log.replay(limit)) {
            Ok(replay) => replay,
            Err(error) => {
                self.failed("read", &error);
                Replay::new(limit, entropy::seed())
            }
        };
        let mut table = Table { replay, gone: map_with_capacity(0, entropy::seed()) };
        let mut summary = ScanSummary::default();
        self.is_incomplete = false;
        let looked = self.look(&mut table, &mut summary, None);
        let is_whole = looked.is_ok() && summary.fault.is_none();
        if !is_whole || !self.compact(&table.replay) {
            self.is_incomplete = true;
        }
    }

    fn prune(&self) {
        let pruned = prune_quarantine(&self.log.folder().join(QUARANTINE));
        if let Ok(removed @ 1..) = pruned {
            tracing::info!("{removed} files had to leave the quarantine of {}", self.options.name);
        }
    }

    fn wall_seconds(&self) -> u64 {
        self.clock.wall_nanos() / 1_000_000_000
    }
}

/// What is told by ours now. Where nobody could be asked whether its server lives, only if it is
/// old.
fn drop_merged(index: &LeftIndex, now_seconds: u64) {
    let written = index.file.metadata().and_then(|there| there.modified()).ok();
    let written = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let age = now_seconds.saturating_sub(written.map_or(now_seconds, |since| since.as_secs()));
    if index.is_ours || age > OLD_SECONDS {
        remove_if_there(&index.path).ok();
    }
}

fn unless_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// How long it rests while it cannot go on, unless it is woken.
const BREATH: Duration = Duration::from_millis(20);
const TICK: Duration = Duration::from_secs(1);
/// Batches that the reactor may have before another one is made.
const BATCHES_OUT: u32 = 2;
/// Notes are taken so often while a folder is read.
const NAMES_PER_BREATH: u64 = 4096;
/// The folder is read again at most so often.
const COMPARE_PAUSE_NANOS: u64 = 60 * 1_000_000_000;
