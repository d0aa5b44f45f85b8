//! Watches objects come to rest in a folder, whoever writes them: files of one model that have got
//! their name and are whole. The kernel tells of names, so that a look costs what has changed since
//! the last one and not what the folder holds.

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub struct Watch {
    folder: PathBuf,
    /// What the names of the model's files begin with.
    stem: Vec<u8>,
    object_bytes: u64,
    events: OwnedFd,
    buffer: Vec<MaybeUninit<u8>>,
    /// Names whose files were not whole yet, and those of whole ones.
    pending: Vec<OsString>,
    whole: BTreeSet<OsString>,
}

impl Watch {
    /// Counts what gets its name from here on.
    pub fn begin(folder: &Path, model: &str, object_bytes: u64) -> io::Result<Watch> {
        let events = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        add_watch(&events, folder, WatchFlags::MOVED_TO | WatchFlags::CREATE)?;
        Ok(Watch {
            folder: folder.to_owned(),
            stem: [model.as_bytes(), b"@"].concat(),
            object_bytes,
            events,
            buffer: vec![MaybeUninit::uninit(); EVENTS_BYTES],
            pending: Vec::new(),
            whole: BTreeSet::new(),
        })
    }

    /// How many objects have come to rest.
    pub fn look(&mut self) -> io::Result<u64> {
        self.take_names()?;
        for name in std::mem::take(&mut self.pending) {
            if self.whole.contains(&name) {
                continue;
            }
            // One that is not there any more is missed when it is looked up.
            let size = fs::metadata(self.folder.join(&name)).map_or(0, |file| file.len());
            if size >= self.object_bytes {
                self.whole.insert(name);
            } else {
                self.pending.push(name);
            }
        }
        Ok(self.whole.len() as u64)
    }

    fn take_names(&mut self) -> io::Result<()> {
        let mut events = Reader::new(&self.events, &mut self.buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                return Err(io::Error::other("the kernel lost count of the folder's new names"));
            }
            let Some(name) = event.file_name().map(|name| name.to_bytes()) else { continue };
            if name.starts_with(&self.stem) && name.ends_with(SUFFIX) {
                self.pending.push(OsStr::from_bytes(name).to_owned());
            }
        }
    }
}

const SUFFIX: &[u8] = b".data";
/// Some hundreds of events at once.
const EVENTS_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_objects_of_the_model_count_and_each_once() {
        let folder = std::env::temp_dir().join(format!("kvtide-watch-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the folder is ours");
        let write = |name: &str, bytes: usize| {
            fs::write(folder.join(name), vec![0; bytes]).expect("the folder is ours");
        };
        let rename = |from: &str, to: &str| {
            fs::rename(folder.join(from), folder.join(to)).expect("it is there");
        };
        write("m@0.data", 100);
        let mut watch = Watch::begin(&folder, "m", 100).expect("it is there");
        let mut look = || watch.look().expect("the folder is there");
        assert_eq!(look(), 0, "what was there before does not count");
        write("m@1.tmp", 100);
        write("other@1.data", 100);
        write("m2@1.data", 100);
        assert_eq!(look(), 0, "not named yet, or of another model");
        rename("m@1.tmp", "m@1.data");
        assert_eq!(look(), 1);
        write("m@2.data", 99);
        assert_eq!(look(), 1, "a byte is missing");
        write("m@2.data", 4096);
        assert_eq!(look(), 2, "padded files are whole");
        write("m@3.tmp", 100);
        rename("m@3.tmp", "m@1.data");
        assert_eq!(look(), 2, "the same object again");
        fs::remove_dir_all(&folder).expect("it is there");
        assert!(Watch::begin(&folder, "m", 100).is_err());
    }
}
