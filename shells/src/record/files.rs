//! The files of `--record`: the newest part is FILE, older ones are FILE.1 to FILE.3; those of an
//! earlier run are FILE.old, FILE.old.1 and so on. Its one invariant: all parts of a run together
//! stay within the bound, each can be read without the others, and no file is moved or replaced
//! that is not a recording.

use super::thread::Store;
use kvtide_core::recording::recorder::{FRAME_BYTES, SCOPE_BYTES};
use kvtide_core::recording::{Frame, Header, Mark};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug)]
pub struct Files {
    path: PathBuf,
    part_bytes_max: u64,
    header: Arc<Vec<u8>>,
    file: File,
    /// Bytes of the part that is being written.
    bytes: u64,
    /// A frame as it is written.
    piece: Vec<u8>,
}

impl Files {
    /// The parts of an earlier run are moved aside, in place of those of a run before it.
    pub fn open(path: &Path, bytes_max: u64, header: Arc<Vec<u8>>) -> io::Result<Files> {
        let opened = || {
            move_aside(path)?;
            begin(path, &header)
        };
        let named = |error| io::Error::other(format!("--record {}: {error}", path.display()));
        let file = opened().map_err(named)?;
        let (path, bytes) = (path.to_owned(), header.len() as u64);
        Ok(Files {
            path,
            part_bytes_max: bytes_max / PARTS,
            header,
            file,
            bytes,
            piece: Vec::new(),
        })
    }

    /// The next part is begun beside the others first: where there is no room for it they stay as
    /// they are, and this one takes the mark.
    fn rotate(&mut self) -> io::Result<()> {
        let next = unfinished(&self.path);
        let begun = begin(&next, &self.header).and_then(|file| {
            make_way(&self.path)?;
            fs::rename(&next, &self.path)?;
            Ok(file)
        });
        match begun {
            Ok(file) => (self.file, self.bytes) = (file, self.header.len() as u64),
            Err(error) => {
                fs::remove_file(&next).ok();
                return Err(error);
            }
        }
        Ok(())
    }

    /// In one piece, so that a reader hardly ever meets half a frame.
    fn append(&mut self, frame: &Frame) -> io::Result<()> {
        let (head, entries) = frame.bytes();
        self.piece.clear();
        self.piece.extend_from_slice(&head);
        self.piece.extend_from_slice(entries);
        self.file.write_all(&self.piece)?;
        self.bytes += frame.file_bytes();
        Ok(())
    }
}

impl Store for Files {
    fn put(&mut self, frame: &Frame) -> io::Result<()> {
        let is_first = self.bytes == self.header.len() as u64;
        let room = self.part_bytes_max.saturating_sub(self.bytes);
        if frame.is_fresh && frame.mark == Mark::None && !is_first && room < SCOPE_BYTES_MAX {
            self.rotate()?;
        }
        self.append(frame)
    }

    /// Leaves only whole frames behind, and a mark, if that still fits.
    fn give_up(&mut self, lost: &Frame) {
        let (event, at) = (lost.first_event, lost.began);
        let mark = Frame::marked(Mark::Gap, lost.number, event, at);
        let cut = self.file.set_len(self.bytes);
        let before = self.bytes;
        if cut.is_ok() && self.append(&mark).is_err() {
            // Nothing is better than half a mark.
            self.file.set_len(before).ok();
        }
    }
}

/// The oldest part goes, every other one becomes one older.
fn make_way(path: &Path) -> io::Result<()> {
    for age in (0..PARTS - 1).rev() {
        rename_if_there(&part(path, age), &part(path, age + 1))?;
    }
    Ok(())
}

/// Every part of an earlier run, in place of those of one before it. Looks at all of them before
/// it touches any.
fn move_aside(path: &Path) -> io::Result<()> {
    let old = aside(path);
    let mut is_there = false;
    for age in 0..PARTS {
        is_there |= is_recording(&part(path, age))?;
        is_recording(&part(&old, age))?;
    }
    is_recording(&unfinished(path))?;
    remove_if_there(&unfinished(path))?;
    if !is_there {
        // Empty at most: a server was ended before it could begin.
        return (0..PARTS).try_for_each(|age| remove_if_there(&part(path, age)));
    }
    (0..PARTS).try_for_each(|age| remove_if_there(&part(&old, age)))?;
    (0..PARTS).try_for_each(|age| rename_if_there(&part(path, age), &part(&old, age)))
}

/// Whether a recording is there that nobody writes any more. An error where something else is.
fn is_recording(path: &Path) -> io::Result<bool> {
    let wrong = |what: &str| io::Error::other(format!("{} {what}", path.display()));
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => return Err(wrong("is there and is no file")),
        Ok(there) if there.len() == 0 => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let file = File::open(path)?;
    let mut beginning = Vec::new();
    (&file).take(BEGINNING_BYTES).read_to_end(&mut beginning)?;
    if !Header::is_at(&beginning) {
        return Err(wrong("is there and is no recording: it would be moved, and lost later"));
    }
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Err(wrong("is being written by another server")),
        // Where files cannot be locked, nobody can be asked.
        Ok(()) | Err(_) => Ok(true),
    }
}

/// Locked as long as it is written, so that a second server with the same FILE does not start.
fn begin(path: &Path, header: &[u8]) -> io::Result<File> {
    // Appending: what is cut off is written again at the end, wherever that is.
    let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok();
    let written = file.write_all(header);
    if written.is_err() {
        fs::remove_file(path).ok();
    }
    written.map(|()| file)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    unless_absent(fs::rename(from, to))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    unless_absent(fs::remove_file(path))
}

fn unless_absent(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// What the parts of an earlier run are named after.
fn aside(path: &Path) -> PathBuf {
    with(path, ".old")
}

/// A part that is being begun.
fn unfinished(path: &Path) -> PathBuf {
    with(path, ".new")
}

fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    PathBuf::from(name)
}

/// Part 0 is the newest.
pub fn part(path: &Path, age: u64) -> PathBuf {
    if age == 0 {
        return path.to_owned();
    }
    with(path, &format!(".{age}"))
}

pub const PARTS: u64 = 4;
/// Enough to tell a recording from something else.
const BEGINNING_BYTES: u64 = 16;
/// A part is left at a fresh frame only, so this much must still fit: a scope and its last frame.
const SCOPE_BYTES_MAX: u64 = (SCOPE_BYTES + 4 * FRAME_BYTES) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::folder::Folder;
    use kvtide_core::time::Instant;

    const HEADER: &[u8] = b"KVTIDREC";

    fn frame(number: u64, is_fresh: bool) -> Frame {
        Frame {
            number,
            first_event: number,
            began: Instant(number),
            is_fresh,
            mark: Mark::None,
            entries: vec![7; FRAME_BYTES].into(),
        }
    }

    #[test]
    fn parts_give_way_within_the_bound_and_begin_fresh() {
        let folder = Folder::new("rotation");
        let path = folder.path().join("recording");
        let header = Arc::new(HEADER.to_vec());
        let mut files = Files::open(&path, 8 << 20, header.clone()).expect("it can be written");
        for number in 0..400 {
            files.put(&frame(number, number % 16 == 0)).expect("there is room");
            let bytes: u64 = folder.files().iter().map(|(_, bytes)| bytes).sum();
            assert!(bytes <= 8 << 20, "{bytes} at {number}");
        }
        let names: Vec<String> = folder.files().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["recording", "recording.1", "recording.2", "recording.3"]);
        for age in 0..PARTS {
            let bytes = fs::read(part(&path, age)).expect("it is there");
            assert_eq!(&bytes[..12], b"KVTIDRECKVFR");
            assert_eq!(bytes[12], 1, "the first frame of a part is fresh");
        }
    }

    fn names(folder: &Folder) -> Vec<String> {
        folder.files().into_iter().map(|(name, _)| name).collect()
    }

    /// A server that was started again took its earlier run for older parts of the new one: what
    /// had several parts could not be replayed any more, and lost its oldest one.
    #[test]
    fn an_earlier_run_is_moved_aside_whole() {
        let folder = Folder::new("aside");
        let path = folder.path().join("recording");
        let header = Arc::new(HEADER.to_vec());
        for run in 0..3_u64 {
            let mut files = Files::open(&path, 8 << 20, header.clone()).expect("nobody writes it");
            for number in 0..if run == 0 { 400 } else { 3 } {
                files.put(&frame(number + run, number % 16 == 0)).expect("there is room");
            }
            if run == 1 {
                let mut expected = vec!["recording".to_owned(), "recording.old".to_owned()];
                expected.extend((1..PARTS).map(|age| format!("recording.old.{age}")));
                assert_eq!(names(&folder), expected);
            }
        }
        assert_eq!(names(&folder), ["recording", "recording.old"], "the run before this one");
    }

    #[test]
    fn a_file_of_somebody_else_is_neither_moved_nor_replaced() {
        let header = Arc::new(HEADER.to_vec());
        for name in ["recording", "recording.2", "recording.old", "recording.old.3"] {
            let folder = Folder::new("mine");
            let path = folder.path().join("recording");
            fs::write(folder.path().join(name), "my thesis").expect("the folder is ours");
            let error = Files::open(&path, 8 << 20, header.clone()).expect_err("it is there");
            assert!(error.to_string().contains("is no recording"), "{error}");
            assert_eq!(folder.files(), [(name.to_owned(), 9)]);
        }
    }

    #[test]
    fn two_servers_do_not_write_one_file() {
        let folder = Folder::new("two");
        let path = folder.path().join("recording");
        let header = Arc::new(HEADER.to_vec());
        let first = Files::open(&path, 8 << 20, header.clone()).expect("nobody writes it");
        let error = Files::open(&path, 8 << 20, header.clone()).expect_err("the first one does");
        assert!(error.to_string().contains("another server"), "{error}");
        drop(first);
        Files::open(&path, 8 << 20, header).expect("nobody writes it any more");
    }

    #[test]
    fn a_part_that_cannot_be_begun_leaves_the_others_and_a_mark() {
        let folder = Folder::new("rotation-fails");
        let path = folder.path().join("recording");
        let mut files =
            Files::open(&path, 8 << 20, Arc::new(HEADER.to_vec())).expect("nobody writes it");
        let (mut written, mut number) = (8, 0);
        // What stands in the way of the next part has the effect of a disk without room for it.
        fs::create_dir(unfinished(&path)).expect("the folder is ours");
        while files.put(&frame(number, true)).is_ok() {
            written += frame(number, true).file_bytes();
            number += 1;
        }
        files.give_up(&frame(number, true));
        let bytes = fs::read(&path).expect("it is there");
        let mark = Frame::marked(Mark::Gap, number, number, Instant(number)).bytes().0;
        assert_eq!(bytes.len() as u64, written + mark.len() as u64);
        assert!(bytes.starts_with(HEADER) && bytes.ends_with(&mark));
        assert_eq!(names(&folder), ["recording", "recording.new"]);
    }

    #[test]
    fn what_is_no_file_is_left_alone_and_named() {
        let folder = Folder::new("folder");
        let header = Arc::new(HEADER.to_vec());
        let error = Files::open(folder.path(), 8 << 20, header.clone()).expect_err("a folder");
        assert!(error.to_string().starts_with("--record "), "{error}");
        let nowhere = folder.path().join("no/such/folder");
        let error = Files::open(&nowhere, 8 << 20, header).expect_err("there is no folder");
        assert!(error.to_string().contains("no/such/folder"), "{error}");
        assert_eq!(folder.files(), []);
    }

    #[test]
    fn a_frame_that_could_not_be_written_whole_is_cut_off_and_marked() {
        let folder = Folder::new("cut");
        let path = folder.path().join("recording");
        let mut files =
            Files::open(&path, 8 << 20, Arc::new(HEADER.to_vec())).expect("it can be written");
        files.put(&frame(0, true)).expect("there is room");
        files.file.write_all(b"half a frame").expect("there is room");
        files.give_up(&frame(1, false));
        let bytes = fs::read(&path).expect("it is there");
        let mark = Frame::marked(Mark::Gap, 1, 1, Instant(1)).bytes().0;
        assert_eq!(bytes.len() as u64, 8 + frame(0, true).file_bytes() + mark.len() as u64);
        assert!(bytes.ends_with(&mark));
    }
}
