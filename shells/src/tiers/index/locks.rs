//! Who holds which index. The one invariant: a live server holds an exclusive `flock` on the file
//! that its name leads to, so an index whose lock can be had belongs to nobody. Pids decide
//! nothing.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What trying for the lock of an index has shown.
#[derive(Debug)]
pub enum Claim {
    /// It is ours as long as the file is open.
    Ours(File),
    /// A live server has it.
    Held,
    /// Files cannot be locked here: nobody can be asked.
    NoLocks(File),
    Gone,
}

/// Tries for the lock of an index that lies there.
pub fn claim(path: &Path) -> io::Result<Claim> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(NOFOLLOW).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claim::Gone),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) if leads_to(path, &file)? => Ok(Claim::Ours(file)),
        // Its owner has put another one in its place since it was opened here.
        Ok(()) => Ok(Claim::Held),
        Err(Errno::WOULDBLOCK) => Ok(Claim::Held),
        Err(_) => Ok(Claim::NoLocks(file)),
    }
}

/// A new file of this name. None where somebody took its lock before we could: try another name.
pub fn create(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        // Where files cannot be locked, others go by age.
        Ok(()) | Err(_) => Ok(leads_to(path, &file)?.then_some(file)),
    }
}

fn leads_to(path: &Path, file: &File) -> io::Result<bool> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let ours = file.metadata()?;
    Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
}

/// What lies under the name may be a link, which must not be followed.
const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
