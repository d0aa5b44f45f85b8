//! Dumps: the flight recorder's frames as a file of their own. Its one invariant: nobody can fill a
//! disk or overwrite a file of others by asking for dumps: there are four names, and a name that
//! is a link or belongs to somebody else is refused.

use kvtide_core::recording::Frame;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    written: u64,
}

impl Dumps {
    pub fn new(folder: PathBuf, header: Arc<Vec<u8>>) -> Dumps {
        Dumps { folder, header, written: 0 }
    }

    /// The newest dumps are kept, older ones give way.
    pub fn write(&mut self, frames: &[Frame], until: u64) -> io::Result<Dumped> {
        let name = format!("kvtide-{}-{}.dump", std::process::id(), self.written % DUMPS_KEPT);
        self.written += 1;
        self.write_to(&self.folder.join(name), frames, until)
    }

    pub fn write_panic(&self, frames: &[Frame], until: u64) -> io::Result<Dumped> {
        let name = format!("kvtide-{}-panic.dump", std::process::id());
        self.write_to(&self.folder.join(name), frames, until)
    }

    /// `until` is the number of the event after the last one.
    fn write_to(&self, path: &Path, frames: &[Frame], until: u64) -> io::Result<Dumped> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = create(path).map_err(named)?;
        let bytes = self.write_frames(file, frames).map_err(named)?;
        let first = frames.first();
        let events = until - first.map_or(until, |frame| frame.first_event);
        let is_whole = first.is_none_or(|frame| frame.number == 0);
        Ok(Dumped { path: path.to_owned(), bytes, events, is_whole })
    }

    fn write_frames(&self, file: File, frames: &[Frame]) -> io::Result<u64> {
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

/// Never follows a link and never opens what is there: others may write to the folder.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Dumps of one server that are kept.
const DUMPS_KEPT: u64 = 4;
