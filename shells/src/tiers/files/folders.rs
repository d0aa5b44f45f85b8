//! Where a tier's files lie, and what they are called there.
//!
//! ```text
//! <base>/                   the objects, under the peer's names
//! <base>/<tmp>/             what is being written; <base> itself unless told otherwise
//! <base>/.kvtide/           what is ours alone
//! <base>/.kvtide/quarantine what turned out not to be what it was stored as
//! ```
//!
//! Invariant: no two writers ever have the same temporary name, in whichever server they are.

use kvtide_core::format::names::ObjectName;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    Base,
    Temporary,
    /// `.kvtide`
    Own,
    Quarantine,
}

/// Descriptors of the folders. Names are looked up in them, so moving the folder moves nothing.
#[derive(Debug)]
pub struct Folders {
    base: OwnedFd,
    temporary: Option<OwnedFd>,
    own: OwnedFd,
    /// None where it could not be made.
    quarantine: Option<OwnedFd>,
}

impl Folders {
    /// Creates what is missing.
    pub fn open(base_path: &Path, relative_tmp_dir: Option<&Path>) -> io::Result<Folders> {
        let open = |path: &Path| -> io::Result<OwnedFd> {
            let named = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            std::fs::create_dir_all(path).map_err(named)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, path, flags, Mode::empty()).map_err(|error| named(error.into()))
        };
        let base = open(base_path)?;
        let own_path = base_path.join(OWN);
        // A directory that is read only still serves what lies there: it stands in for what cannot
        // be created, and nothing will be written to it either.
        let or_base = |path: PathBuf| open(&path).or_else(|_| open(base_path));
        Ok(Folders {
            temporary: match relative_tmp_dir {
                Some(folder) => Some(or_base(base_path.join(folder))?),
                None => None,
            },
            own: or_base(own_path.clone())?,
            quarantine: open(&own_path.join(QUARANTINE)).ok(),
            base,
        })
    }

    pub fn descriptor(&self, folder: Folder) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        match folder {
            Folder::Base => self.base.as_fd(),
            Folder::Temporary => self.temporary.as_ref().unwrap_or(&self.base).as_fd(),
            Folder::Own => self.own.as_fd(),
            Folder::Quarantine => self.quarantine.as_ref().unwrap_or(&self.base).as_fd(),
        }
    }

    /// Without it files that should go there are removed: to rename one to its own name succeeds
    /// and leaves it where it is.
    pub fn has_quarantine(&self) -> bool {
        self.quarantine.is_some()
    }

    pub fn raw(&self, folder: Folder) -> RawFd {
        self.descriptor(folder).as_raw_fd()
    }
}

/// Gives out temporary names.
#[derive(Debug)]
pub struct Temporaries {
    /// Eight digits that tell this server from others.
    server: String,
    next: u64,
}

impl Temporaries {
    pub fn new(server: &str) -> Temporaries {
        Temporaries { server: server.chars().take(SERVER_CHARS).collect(), next: 0 }
    }

    /// `<stem>.<server>.<number>.tmp`; the stem is cut where that would be too long for a name.
    pub fn name(&mut self, object: &CStr) -> Arc<CStr> {
        self.next += 1;
        let tail = format!(".{}.{}{TEMPORARY}", self.server, self.next);
        let object = object.to_bytes();
        let stem = object.strip_suffix(OBJECT).unwrap_or(object);
        let stem = &stem[..stem.len().min(NAME_BYTES_MAX - tail.len())];
        let name = [stem, tail.as_bytes()].concat();
        CString::new(name).expect("neither part holds a zero byte").into()
    }
}

/// The file of an object. `Errno::NAMETOOLONG` where no file can be called that, and
/// `Errno::ILSEQ` where the peer's spelling would make it another object's.
pub fn file_name(name: &ObjectName<'_>) -> Result<Arc<CStr>, Errno> {
    let file = name.file().map_err(|_| Errno::ILSEQ)?;
    if file.len() > NAME_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    Ok(CString::new(file).map_err(|_| Errno::ILSEQ)?.into())
}

/// A name of our own.
pub fn own_name(name: &str) -> Arc<CStr> {
    CString::new(name).expect("names of ours hold no zero byte").into()
}

pub const OWN: &str = ".kvtide";
pub const QUARANTINE: &str = "quarantine";
pub const TEMPORARY: &str = ".tmp";
const OBJECT: &[u8] = b".data";
const SERVER_CHARS: usize = 8;
const NAME_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    /// Broke: in a folder that cannot be written a file with wrong bytes stayed in its place, and
    /// its quarantine was told to have succeeded. Guards: what is not there is not used.
    #[test]
    fn a_quarantine_that_cannot_be_made_is_none() {
        let path = std::env::temp_dir().join(format!("kvtide-folders-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder can be made");
        let opened = Folders::open(&path, None).expect("it is ours");
        assert!(opened.has_quarantine());
        std::fs::remove_dir_all(path.join(OWN)).expect("it is ours");
        std::fs::write(path.join(OWN), "").expect("its name is free");
        let opened = Folders::open(&path, None).expect("what lies there can be read");
        assert!(!opened.has_quarantine());
        std::fs::remove_dir_all(&path).expect("it is ours");
    }

    #[test]
    fn temporary_names_are_unique_and_fit() {
        let mut one = Temporaries::new("0123456789ab-cdef");
        let mut other = Temporaries::new("99999999-cdef");
        let object = c"m@0x01000100@0@ab.data";
        let first = one.name(object);
        assert_eq!(first.to_str(), Ok("m@0x01000100@0@ab.01234567.1.tmp"));
        assert_ne!(first, one.name(object));
        assert_ne!(first, other.name(object));
        let long = CString::new("x".repeat(255)).expect("no zero byte");
        assert_eq!(one.name(&long).to_bytes().len(), NAME_BYTES_MAX);
    }
}
