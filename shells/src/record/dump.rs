//! Dumps: the flight recorder's frames as a file of their own. Its one invariant: nobody can fill a
//! disk or overwrite a file of others by asking for dumps. There are four names, a link is replaced
//! and never followed, and where somebody else sits on a name another one is taken that he cannot
//! guess. A dump has its name only when it is whole, so one that fails costs no earlier one.

use kvtide_core::recording::Frame;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// A dump that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dumped {
    pub path: PathBuf,
    pub bytes: u64,
    pub events: u64,
    /// It begins with the server, so it can be replayed and not only be read.
    pub is_whole: bool,
}

/// Hears how a dump went.
pub type DumpTeller = Box<dyn FnOnce(Result<Dumped, String>) + Send>;

/// Where dumps go and what they begin with.
#[derive(Clone, Debug)]
pub struct Dumps {
    folder: PathBuf,
    header: Arc<Vec<u8>>,
    /// In the second name that each dump could have.
    tag: u64,
    written: u64,
}

impl Dumps {
    /// `tag` is a number that nobody can guess.
    pub fn new(folder: PathBuf, header: Arc<Vec<u8>>, tag: u64) -> Dumps {
        Dumps { folder, header, tag, written: 0 }
    }

    /// The newest dumps are kept, older ones give way. `until` is the number of the event after
    /// the last one.
    pub fn write(&mut self, frames: &[Frame], until: u64) -> io::Result<Dumped> {
        let name = (self.written % DUMPS_KEPT).to_string();
        let dumped = self.write_named(&name, frames, until)?;
        // Only now: a disk that is full takes the oldest dump from nobody.
        self.written += 1;
        Ok(dumped)
    }

    pub fn write_panic(&self, frames: &[Frame], until: u64) -> io::Result<Dumped> {
        self.write_named("panic", frames, until)
    }

    /// A server that panics is started again and may panic again, so without an end to it these
    /// would fill the disk. Others may write to the folder, so only files of this user are looked
    /// at, and whatever fails is left as it is.
    pub fn forget_old_panics(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let own = rustix::process::geteuid().as_raw();
        let mut panics: Vec<(SystemTime, PathBuf)> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_str().is_some_and(is_panic))
            .filter_map(|entry| {
                let there = entry.metadata().ok()?;
                let is_own = there.is_file() && there.uid() == own;
                is_own.then_some((there.modified().ok()?, entry.path()))
            })
            .collect();
        panics.sort();
        let old = panics.len().saturating_sub(PANICS_KEPT);
        for (_, path) in &panics[..old] {
            fs::remove_file(path).ok();
        }
    }

    fn write_named(&self, name: &str, frames: &[Frame], until: u64) -> io::Result<Dumped> {
        let (process, tag) = (std::process::id(), self.tag);
        let plain = self.folder.join(format!("{PREFIX}{process}-{name}{SUFFIX}"));
        match self.write_to(&plain, frames, until) {
            Err(error) if is_taken(&error) => {
                let tagged = format!("{PREFIX}{process}-{tag:016x}-{name}{SUFFIX}");
                // What kept it from its name says more than what kept it from another.
                self.write_to(&self.folder.join(tagged), frames, until).map_err(|_| error)
            }
            written => written,
        }
    }

    fn write_to(&self, path: &Path, frames: &[Frame], until: u64) -> io::Result<Dumped> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let bytes = save(path, |file| self.write_frames(file, frames)).map_err(named)?;
        let first = frames.first();
        let events = until - first.map_or(until, |frame| frame.first_event);
        let is_whole = first.is_none_or(|frame| frame.number == 0);
        Ok(Dumped { path: path.to_owned(), bytes, events, is_whole })
    }

    fn write_frames(&self, file: &File, frames: &[Frame]) -> io::Result<u64> {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&self.header)?;
        let mut bytes = self.header.len() as u64;
        for frame in frames {
            let (head, entries) = frame.bytes();
            file.write_all(&head)?;
            file.write_all(entries)?;
            bytes += frame.file_bytes();
        }
        file.flush()?;
        Ok(bytes)
    }
}

/// A whole file under this name, or none but what was there before.
fn save(path: &Path, write: impl FnOnce(&File) -> io::Result<u64>) -> io::Result<u64> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let file = create(&unfinished)?;
    let saved = write(&file).and_then(|bytes| fs::rename(&unfinished, path).map(|()| bytes));
    if saved.is_err() {
        fs::remove_file(&unfinished).ok();
    }
    saved
}

/// Never follows a link and never opens what is there: others may write to the folder.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Whether somebody else sits on the name.
fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, PermissionDenied};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | IsADirectory | PermissionDenied)
}

/// `kvtide-PID-panic.dump`, or the same with a tag.
fn is_panic(name: &str) -> bool {
    let middle = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(SUFFIX));
    let numbers = middle.and_then(|name| name.strip_suffix("-panic"));
    numbers.is_some_and(|numbers| {
        numbers.split('-').all(|number| {
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
    })
}

/// Dumps of one server that are kept, of those that were asked for.
const DUMPS_KEPT: u64 = 4;
/// Panic dumps of earlier servers that are kept at start.
const PANICS_KEPT: usize = 3;
const PREFIX: &str = "kvtide-";
const SUFFIX: &str = ".dump";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::folder::Folder;
    use std::time::Duration;

    fn dumps(folder: &Folder) -> Dumps {
        Dumps::new(folder.path().to_owned(), Arc::new(b"header".to_vec()), 7)
    }

    #[test]
    fn more_dumps_than_are_kept_take_the_place_of_older_ones() {
        let folder = Folder::new("many");
        let mut dumps = dumps(&folder);
        for _ in 0..9 {
            dumps.write(&[], 0).expect("there is room");
        }
        assert_eq!(folder.files().len() as u64, DUMPS_KEPT);
    }

    #[test]
    fn a_dump_that_fails_leaves_the_earlier_one_and_no_half_of_its_own() {
        let folder = Folder::new("full");
        let path = folder.path().join("kvtide-1-0.dump");
        save(&path, |mut file| file.write_all(b"good").map(|()| 4)).expect("there is room");
        let full = save(&path, |mut file| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert_eq!(full.expect_err("there is no room").kind(), io::ErrorKind::StorageFull);
        assert_eq!(folder.files(), [("kvtide-1-0.dump".to_owned(), 4)]);
        assert_eq!(fs::read(&path).expect("it is there"), b"good");
    }

    #[test]
    fn a_name_that_is_taken_is_left_for_one_that_nobody_can_guess() {
        let folder = Folder::new("taken");
        let mut dumps = dumps(&folder);
        let squatted = folder.path().join(format!("kvtide-{}-0.dump", std::process::id()));
        fs::create_dir_all(squatted.join("squatter")).expect("the folder is ours");
        let dumped = dumps.write(&[], 0).expect("another name is free");
        let name = dumped.path.file_name().and_then(|name| name.to_str()).expect("plain");
        assert!(name.ends_with("-0000000000000007-0.dump"), "{name}");
        assert_eq!(folder.files().len(), 2, "nothing is left of the first try");
    }

    #[test]
    fn old_panic_dumps_go_and_nothing_else() {
        let folder = Folder::new("panics");
        let others = ["kvtide-1-0.dump", "kvtide-x-panic.dump", "kvtide-1-panic.dump.new", "mine"];
        for name in others {
            fs::write(folder.path().join(name), name).expect("the folder is ours");
        }
        for process in 1..=6 {
            let path = folder.path().join(format!("kvtide-{process}-panic.dump"));
            let file = File::create(path).expect("the folder is ours");
            let written = SystemTime::UNIX_EPOCH + Duration::from_secs(process);
            file.set_modified(written).expect("it is ours");
        }
        dumps(&folder).forget_old_panics();
        let mut left: Vec<String> = folder.files().into_iter().map(|(name, _)| name).collect();
        left.retain(|name| !others.contains(&name.as_str()));
        let kept = [4, 5, 6].map(|process| format!("kvtide-{process}-panic.dump"));
        assert_eq!(left, kept);
        assert_eq!(folder.files().len(), others.len() + PANICS_KEPT);
    }
}
