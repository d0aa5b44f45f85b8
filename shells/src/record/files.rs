//! The files of `--record`: the newest part is FILE, older ones are FILE.1 to FILE.3. Its one
//! invariant: all parts together stay within the bound, and each can be read without the others.

use super::thread::Store;
use kvtide_core::recording::recorder::{FRAME_BYTES, SCOPE_BYTES};
use kvtide_core::recording::{Frame, Mark};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
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
}

impl Files {
    /// What lies there from an earlier run is kept as an older part, and goes when the bound says
    /// so.
    pub fn open(path: &Path, bytes_max: u64, header: Arc<Vec<u8>>) -> io::Result<Files> {
        let opened = || {
            match fs::symlink_metadata(path) {
                Ok(there) if !there.is_file() => {
                    return Err(io::Error::other("there is something that is no file"));
                }
                Ok(_) => make_way(path)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            begin(path, &header)
        };
        let named = |error| io::Error::other(format!("--record {}: {error}", path.display()));
        let file = opened().map_err(named)?;
        let (path, bytes) = (path.to_owned(), header.len() as u64);
        Ok(Files { path, part_bytes_max: bytes_max / PARTS, header, file, bytes })
    }

    fn rotate(&mut self) -> io::Result<()> {
        make_way(&self.path)?;
        self.file = begin(&self.path, &self.header)?;
        self.bytes = self.header.len() as u64;
        Ok(())
    }

    fn append(&mut self, frame: &Frame) -> io::Result<()> {
        let (head, entries) = frame.bytes();
        self.file.write_all(&head)?;
        self.file.write_all(entries)?;
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
        match fs::rename(part(path, age), part(path, age + 1)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn begin(path: &Path, header: &[u8]) -> io::Result<File> {
    // Appending: what is cut off is written again at the end, wherever that is.
    let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(header)?;
    Ok(file)
}

/// Part 0 is the newest.
pub fn part(path: &Path, age: u64) -> PathBuf {
    if age == 0 {
        return path.to_owned();
    }
    let mut name = OsString::from(path);
    name.push(format!(".{age}"));
    PathBuf::from(name)
}

pub const PARTS: u64 = 4;
/// A part is left at a fresh frame only, so this much must still fit: a scope and its last frame.
const SCOPE_BYTES_MAX: u64 = (SCOPE_BYTES + 4 * FRAME_BYTES) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::folder::Folder;
    use kvtide_core::time::Instant;

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
        let header = Arc::new(b"header".to_vec());
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
            assert_eq!(&bytes[..10], b"headerKVFR");
            assert_eq!(bytes[10], 1, "the first frame of a part is fresh");
        }
        drop(files);
        Files::open(&path, 8 << 20, header).expect("it can be written again");
        assert_eq!(folder.files()[0], ("recording".to_owned(), 6), "the old one has made way");
    }

    #[test]
    fn what_is_no_file_is_left_alone_and_named() {
        let folder = Folder::new("folder");
        let header = Arc::new(b"header".to_vec());
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
            Files::open(&path, 8 << 20, Arc::new(b"header".to_vec())).expect("it can be written");
        files.put(&frame(0, true)).expect("there is room");
        files.file.write_all(b"half a frame").expect("there is room");
        files.give_up(&frame(1, false));
        let bytes = fs::read(&path).expect("it is there");
        let mark = Frame::marked(Mark::Gap, 1, 1, Instant(1)).bytes().0;
        assert_eq!(bytes.len() as u64, 6 + frame(0, true).file_bytes() + mark.len() as u64);
        assert!(bytes.ends_with(&mark));
    }
}
