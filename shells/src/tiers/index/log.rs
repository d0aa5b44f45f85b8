//! The file of the index: taken over or begun, appended to, and made anew beside itself.
//!
//! The one invariant: the file and `out` behind it are the whole records that `writer` has made.
//! What fails to be written stays in `out` and is written again at its place, and a compacted index
//! takes the place of the old one only when it is whole on the disk.

use super::locks::{self, Claim, claim};
use super::{FOLDER, IndexError, QUARANTINE};
use crate::entropy;
use kvtide_core::effect::Note;
use kvtide_core::format::index::{
    Compacted, Fault, HEADER_BYTES, Header, Log, Record, Replay, ScopeRef, Scopes, Writer,
};
use kvtide_core::names::ChunkHash;
use std::cmp::Reverse;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct LogFile {
    /// `.kvtide`.
    folder: PathBuf,
    uuid: String,
    file: File,
    writer: Writer,
    /// Numbered as in the file.
    scopes: Scopes,
    /// What is still to be written.
    out: Vec<u8>,
    seconds: u64,
    /// About how many objects the file tells of: exact after a compaction.
    live: u64,
    /// It is made anew when it has grown to this.
    compact_at: u64,
}

/// What dead servers have left.
#[derive(Debug, Default)]
pub struct Left {
    /// The one that we go on with, under our name.
    pub own: Option<LeftIndex>,
    pub indexes: Vec<LeftIndex>,
    /// Files that are named as indexes and are none.
    pub damaged: u64,
    /// Written by a version that this one does not know: they stay.
    pub newer: Vec<String>,
}

#[derive(Debug)]
pub struct LeftIndex {
    pub file: File,
    pub header: Header,
    pub path: PathBuf,
    /// False where nobody can be asked whether its server lives: it stays until it is old.
    pub is_ours: bool,
}

impl LogFile {
    /// Takes over what is there and makes sure of a file of our own, without reading more than
    /// headers.
    pub fn open(base: &Path) -> Result<(LogFile, Left), IndexError> {
        let folder = base.join(FOLDER);
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |error| IndexError { what, path, error }
        };
        let quarantine = folder.join(QUARANTINE);
        fs::create_dir_all(&quarantine).map_err(failed("make the folder", &quarantine))?;
        let mut left = collect(&folder).map_err(failed("look for indexes in", &folder))?;
        // The longest one is likely ours of the last run: what is in the others is merged into it.
        let bytes = |index: &LeftIndex| index.file.metadata().map_or(0, |there| there.len());
        left.indexes.sort_by_key(|index| (!index.is_ours, Reverse(bytes(index))));
        let mut uuid = entropy::uuid();
        if left.indexes.first().is_some_and(|first| first.is_ours) {
            let first = left.indexes.remove(0);
            let path = path_of(&folder, &uuid);
            left.own = adopt(first, &path).map_err(failed("take over the index", &path))?;
        }
        // Written with the first records: a full disk is no reason not to start.
        let mut out = Vec::new();
        let begun = match &left.own {
            Some(own) => own.file.try_clone().map(|file| (file, own.header)),
            None => begin(&folder, &mut uuid).map(|file| {
                let header = header();
                out.extend(header.bytes());
                (file, header)
            }),
        };
        let (file, header) = begun.map_err(failed("begin an index in", &folder))?;
        let log = LogFile {
            folder,
            uuid,
            file,
            writer: Writer::begin(&header, &mut Vec::new()),
            scopes: Scopes::new(entropy::seed()),
            out,
            seconds: 0,
            live: 0,
            compact_at: COMPACT_BYTES_MIN,
        };
        Ok((log, left))
    }

    /// Goes on behind what was read of our own file. False where it has to be made anew first.
    pub fn resume(&mut self, log: &Log, replay: &Replay) -> io::Result<bool> {
        let Some(numbers) = log.scopes() else { return Ok(false) };
        let mut scopes = Scopes::new(entropy::seed());
        for number in numbers {
            scopes.intern(&replay.scope(number).borrowed());
        }
        self.scopes = scopes;
        self.writer = Writer::resume(log.reader());
        self.seconds = log.seconds();
        self.live = replay.len() as u64;
        self.file.set_len(self.writer.bytes())?;
        self.plan_compaction();
        Ok(true)
    }

    /// Adds a record to what is to be written. False where there is no room for its scope.
    pub fn push(&mut self, scope: &ScopeRef<'_>, hash: ChunkHash, note: Note, now: u64) -> bool {
        let Some(number) = self.scopes.intern(scope) else { return false };
        let LogFile { writer, out, .. } = self;
        if number == writer.scopes() {
            writer.push(&Record::Scope(*scope), out);
        }
        if now.abs_diff(self.seconds) >= TIME_SECONDS {
            self.seconds = now;
            writer.push(&Record::Time { seconds: now }, out);
        }
        let record = match note {
            Note::Stored { bytes, seal } => {
                self.live += 1;
                Record::Stored { scope: number, hash, bytes, seal }
            }
            Note::Used => Record::Used { scope: number, hash },
            Note::Removed => {
                self.live = self.live.saturating_sub(1);
                Record::Removed { scope: number, hash }
            }
        };
        writer.push(&record, out);
        true
    }

    /// Notes were lost before what comes next.
    pub fn push_gap(&mut self) {
        self.writer.push(&Record::Gap, &mut self.out);
    }

    /// Writes what was pushed. After an error all of it is written again the next time.
    pub fn write(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let at = self.writer.bytes() - self.out.len() as u64;
        self.file.write_all_at(&self.out, at)?;
        self.out.clear();
        Ok(())
    }

    /// Too much waits to be written: no more may be pushed.
    pub fn is_stuck(&self) -> bool {
        self.out.len() >= OUT_BYTES_MAX
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    pub fn wants_compaction(&self) -> bool {
        self.writer.bytes() >= self.compact_at
    }

    /// It failed: not again before there is as much again.
    pub fn put_compaction_off(&mut self) {
        self.compact_at = self.writer.bytes().saturating_mul(2);
    }

    /// Puts an index of what `replay` tells in the place of ours.
    pub fn compact(&mut self, replay: &Replay) -> io::Result<()> {
        let path = path_of(&self.folder, &self.uuid);
        let beside = path.with_extension("idx.new");
        remove_if_there(&beside)?;
        let done = self.write_beside(&beside, replay).and_then(|(file, compacted)| {
            fs::rename(&beside, &path)?;
            Ok((file, compacted))
        });
        let (file, compacted) = match done {
            Ok(done) => done,
            Err(error) => {
                remove_if_there(&beside).ok();
                return Err(error);
            }
        };
        // Whoever opened the old one meanwhile gets its lock now and sees that no name leads to it.
        self.file = file;
        self.writer = compacted.writer;
        self.scopes = compacted.scopes;
        self.out.clear();
        self.seconds = 0;
        self.live = replay.len() as u64;
        self.plan_compaction();
        File::open(&self.folder)?.sync_all()
    }

    fn write_beside(&self, beside: &Path, replay: &Replay) -> io::Result<(File, Compacted)> {
        let taken = || io::Error::other("somebody took its lock");
        let file = locks::create(beside)?.ok_or_else(taken)?;
        let mut at = 0;
        let compacted = replay.compact(&header(), |piece: &mut Vec<u8>| {
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
            io::Result::Ok(())
        })?;
        file.sync_all()?;
        Ok((file, compacted))
    }

    fn plan_compaction(&mut self) {
        let content = self.live.saturating_mul(RECORD_BYTES).max(COMPACT_BYTES_MIN);
        self.compact_at = content.saturating_mul(COMPACT_FACTOR).max(self.writer.bytes());
    }

    /// Reads our own file into a table. Nothing is appended meanwhile.
    pub fn replay(&self, limit: usize) -> io::Result<Replay> {
        let mut replay = Replay::new(limit, entropy::seed());
        let mut front = [0; HEADER_BYTES];
        self.file.read_exact_at(&mut front, 0)?;
        let wrong = |fault: Fault| io::Error::other(fault.to_string());
        let header = Header::read(&front).map_err(wrong)?;
        let (_, fault) = read_into(&mut replay, &self.file, &header)?;
        fault.map_or(Ok(replay), |fault| Err(wrong(fault)))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn uuid(&self) -> &str {
        &self.uuid
    }
}

/// Folds an index into a table. What ended the reading before the file did, if anything.
pub fn read_into(
    replay: &mut Replay,
    file: &File,
    header: &Header,
) -> io::Result<(Log, Option<Fault>)> {
    let mut log = replay.log(header);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = file.read_at(&mut piece, log.reader().bytes())?;
        let (taken, fault) = replay.fold(&mut log, &piece[..count]);
        if fault.is_some() {
            return Ok((log, fault));
        }
        if taken == 0 {
            // A record is shorter than a piece, so this is the end, or within a record.
            return Ok((log, (count > 0).then_some(Fault::Truncated)));
        }
    }
}

/// Everything that can be had, and the remains of compactions away.
fn collect(folder: &Path) -> io::Result<Left> {
    let mut left = Left::default();
    for uuid in indexes(folder)? {
        let path = path_of(folder, &uuid);
        let (file, is_ours) = match claim(&path) {
            Ok(Claim::Ours(file)) => (file, true),
            Ok(Claim::NoLocks(file)) => (file, false),
            Ok(Claim::Held | Claim::Gone) => continue,
            Err(error) => {
                tracing::warn!("{} is left alone: {error}", path.display());
                continue;
            }
        };
        let mut front = [0; HEADER_BYTES];
        let read = read_up_to(&file, &mut front)?;
        match Header::read(&front[..read]) {
            Ok(header) => {
                left.indexes.push(LeftIndex { file, header, path, is_ours });
            }
            Err(Fault::Version { found }) => {
                left.newer.push(format!("{} (version {found})", path.display()));
            }
            // A server that ended while it began, or a file that the power took.
            Err(_) => {
                left.damaged += 1;
                if is_ours {
                    remove_if_there(&path)?;
                }
            }
        }
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_beside = path.to_str().is_some_and(|path| path.ends_with(".idx.new"));
        if is_beside && let Ok(Claim::Ours(_)) = claim(&path) {
            remove_if_there(&path)?;
        }
    }
    Ok(left)
}

/// The uuids of all indexes that lie there, in order.
pub fn indexes(folder: &Path) -> io::Result<Vec<String>> {
    let mut uuids = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let uuid = name.to_str().and_then(|name| name.strip_suffix(".idx"));
        uuids.extend(uuid.filter(|uuid| is_uuid(uuid)).map(str::to_owned));
    }
    uuids.sort_unstable();
    Ok(uuids)
}

/// Lower case, in the usual spelling.
pub fn is_uuid(text: &str) -> bool {
    let is_right = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_right)
}

/// Moves an index under our name, with its lock. None where its own name is gone.
fn adopt(left: LeftIndex, path: &Path) -> io::Result<Option<LeftIndex>> {
    match fs::rename(&left.path, path) {
        Ok(()) => Ok(Some(LeftIndex { path: path.to_owned(), ..left })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A new index. Another server that starts just now may take its lock before we do, and the file
/// for one that was left: then it is that server's to remove.
fn begin(folder: &Path, uuid: &mut String) -> io::Result<File> {
    for _ in 0..BEGINNINGS_MAX {
        if let Some(file) = locks::create(&path_of(folder, uuid))? {
            return Ok(file);
        }
        *uuid = entropy::uuid();
    }
    Err(io::Error::other("others take its lock again and again"))
}

fn header() -> Header {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&entropy::seed().to_le_bytes());
    id[8..].copy_from_slice(&entropy::seed().to_le_bytes());
    Header { id, created_nanos: crate::clock::Clock::start().wall_nanos_at_start() }
}

fn path_of(folder: &Path, uuid: &str) -> PathBuf {
    folder.join(format!("{uuid}.idx"))
}

fn read_up_to(file: &File, into: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < into.len() {
        match file.read_at(&mut into[read..], read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Servers that start at once disturb each other at most so often.
const BEGINNINGS_MAX: usize = 64;
/// What may wait where the disk does not take it.
pub const OUT_BYTES_MAX: usize = 16 << 20;
/// What is read of an index at once; longer than any record.
const PIECE_BYTES: usize = 1 << 20;
/// An index is made anew when it is so many times as long as what it tells of.
const COMPACT_FACTOR: u64 = 4;
/// Below this it is short enough whatever it holds.
const COMPACT_BYTES_MIN: u64 = 1 << 20;
/// About what one object takes.
const RECORD_BYTES: u64 = 52;
/// So exactly is the time of each use known.
const TIME_SECONDS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::super::folder::Folder;
    use super::*;
    use kvtide_core::names::KvRank;

    const SCOPE: ScopeRef<'static> =
        ScopeRef { model: "m", salt: "", rank: KvRank(0x0100_0100), group: 0 };

    /// A full disk refuses writes for a while. What was to be written is, when it can be.
    #[test]
    fn what_the_disk_refused_is_written_later() {
        let folder = Folder::new("refused");
        let (mut log, _) = LogFile::open(folder.path()).expect("the folder is ours");
        let stored = Note::Stored { bytes: 5, seal: None };
        let push = |log: &mut LogFile, number| log.push(&SCOPE, ChunkHash([number; 32]), stored, 9);
        assert!(push(&mut log, 1));
        log.write().expect("there is room");
        let path = path_of(log.folder(), log.uuid());
        let writable = std::mem::replace(&mut log.file, File::open(&path).expect("it is there"));
        for number in 2..5 {
            assert!(push(&mut log, number));
            log.write().expect_err("it cannot be written through this file");
        }
        log.file = writable;
        assert_eq!(log.replay(10).expect("it is an index").len(), 1);
        log.write().expect("there is room");
        assert_eq!(log.replay(10).expect("it is an index").len(), 4);
        assert_eq!(fs::metadata(&path).expect("it is there").len(), log.bytes());
    }

    /// Broke: on a full disk a server could not start, as it could not write the first bytes of its
    /// index. Guards: nothing is written before it has to be, and then from the beginning on.
    #[test]
    fn an_index_is_begun_without_room_and_written_when_there_is_some() {
        let folder = Folder::new("full");
        let (mut log, _) = LogFile::open(folder.path()).expect("the folder is ours");
        let path = path_of(log.folder(), log.uuid());
        assert_eq!(fs::metadata(&path).expect("its name is there").len(), 0);
        let stored = Note::Stored { bytes: 5, seal: None };
        assert!(log.push(&SCOPE, ChunkHash([1; 32]), stored, 9));
        log.write().expect("there is room");
        assert_eq!(log.replay(10).expect("it is an index").len(), 1);
        assert_eq!(fs::metadata(&path).expect("it is there").len(), log.bytes());
        drop(log);
        let (_, left) = LogFile::open(folder.path()).expect("the folder is ours");
        assert!(left.own.is_some() && left.damaged == 0);
    }

    #[test]
    fn only_uuids_name_indexes() {
        assert!(is_uuid(&entropy::uuid()));
        for other in ["", "thesis", "0123abcd-0000-4000-8000-00000000000G", "0123ABCD"] {
            assert!(!is_uuid(other), "{other}");
        }
    }

    /// Servers that start at once in one folder all get an index of their own.
    #[test]
    fn servers_that_start_at_once_have_an_index_each() {
        let folder = Folder::new("at-once");
        let base = folder.path().to_owned();
        let open = |_| {
            let base = base.clone();
            std::thread::spawn(move || LogFile::open(&base).expect("the folder is ours").0)
        };
        for _ in 0..20 {
            let threads: Vec<_> = (0..4).map(open).collect();
            let logs: Vec<LogFile> =
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            for log in &logs {
                let path = path_of(log.folder(), log.uuid());
                assert!(matches!(claim(&path), Ok(Claim::Held)), "{}", path.display());
            }
        }
    }
}
