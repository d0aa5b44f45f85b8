//! The look through an adapter's folder: which objects lie there, and what was left behind.
//!
//! The one invariant: a file is removed only as a temp that is nobody's any more. Whatever else is
//! there, foreign names above all, is counted and left alone.

use super::temps::{FILE_SUFFIX, OLD_SECONDS, Owner, Owners, Temp};
use super::{FOLDER, ScanSummary};
use kvtide_core::format::index::{Found, Replay, ScopeRef};
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::ChunkHash;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::path::Path;

/// A folder that is being read.
pub struct Folder(OwnedFd);

impl Folder {
    pub fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder(openat(rustix::fs::CWD, path, flags, Mode::empty())?))
    }

    /// Bytes of a regular file, and when it was written in seconds since 1970.
    pub fn file(&self, name: &CStr) -> Option<(u64, u64)> {
        let there = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
        let seconds = u64::try_from(there.st_mtime).unwrap_or(0);
        is_file.then_some((there.st_size as u64, seconds))
    }

    fn remove(&self, name: &CStr) -> bool {
        unlinkat(&self.0, name, AtFlags::empty()).is_ok()
    }
}

/// One name of a folder.
pub struct Entry<'a> {
    pub name: &'a CStr,
    kind: FileType,
}

impl Entry<'_> {
    /// The object whose file has this name, if it is one that we can serve.
    pub fn object(&self) -> Option<(ObjectName<'_>, ChunkHash, u16)> {
        if !matches!(self.kind, FileType::RegularFile | FileType::Unknown) {
            return None;
        }
        let text = self.name.to_str().ok().filter(|text| text.ends_with(FILE_SUFFIX))?;
        let name = ObjectName::parse_file(text).ok()?;
        let (hash, group) = (name.hash.chunk_hash()?, u16::try_from(name.group).ok()?);
        Some((name, hash, group))
    }
}

/// Calls `each` for every name but those of folders that every folder has. It ends the reading by
/// answering false.
pub fn each_entry(
    path: &Path,
    mut each: impl FnMut(&Folder, &Entry<'_>) -> bool,
) -> io::Result<()> {
    let folder = Folder::open(path)?;
    let listed = Folder::open(path)?;
    let mut buffer = Vec::with_capacity(LISTING_BYTES);
    let mut names = RawDir::new(&listed.0, buffer.spare_capacity_mut());
    while let Some(entry) = names.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let (name, kind) = (entry.file_name(), entry.file_type());
        if name == c"." || name == c".." {
            continue;
        }
        if !each(&folder, &Entry { name, kind }) {
            return Ok(());
        }
    }
    Ok(())
}

/// What a look through the folder needs and finds.
pub struct Scan<'a> {
    pub replay: &'a mut Replay,
    pub summary: &'a mut ScanSummary,
    /// Files that the index does not tell of.
    pub found: Vec<Found>,
    pub limit: usize,
    /// None where temps are nobody's business just now.
    pub owners: Option<Owners>,
    pub now_seconds: u64,
    /// The folder for temps below this one: no object's name, and not foreign.
    pub temp_folder: Option<&'a str>,
}

impl Scan<'_> {
    pub fn entry(&mut self, folder: &Folder, entry: &Entry<'_>) {
        if entry.name.to_bytes() == FOLDER.as_bytes() {
            return;
        }
        if let Some((name, hash, group)) = entry.object() {
            self.object(folder, entry, &name, (hash, group));
            return;
        }
        // The end of a temp's object may have been cut within a character.
        let text = entry.name.to_string_lossy();
        if let Some(temp) = Temp::parse(&text) {
            self.temp(folder, entry, temp);
        } else if self.temp_folder != Some(&*text) {
            self.foreign(entry);
        }
    }

    fn object(
        &mut self,
        folder: &Folder,
        entry: &Entry<'_>,
        name: &ObjectName<'_>,
        (hash, group): (ChunkHash, u16),
    ) {
        let scope = ScopeRef { model: &name.model, salt: name.salt, rank: name.rank, group };
        let Some(number) = self.replay.scopes_mut().intern(&scope) else {
            self.foreign(entry);
            return;
        };
        if self.replay.see(number, &hash) {
            self.summary.known += 1;
            return;
        }
        match folder.file(entry.name) {
            // Nothing has no bytes: what is empty was never written.
            Some((bytes, seconds)) if bytes > 0 => {
                self.summary.unknown += 1;
                self.found.push(Found { scope: number, hash, bytes, seconds });
                self.keep_the_newest();
            }
            Some(_) => self.foreign(entry),
            // Gone meanwhile, or no file: neither is ours to serve.
            None => {}
        }
    }

    /// More than fits the table need not be remembered: the table would not keep the oldest.
    fn keep_the_newest(&mut self) {
        if self.found.len() < 2 * self.limit {
            return;
        }
        let surplus = self.found.len() - self.limit;
        self.found.select_nth_unstable_by_key(surplus, |file| (file.seconds, file.hash));
        self.found.drain(..surplus);
        self.summary.forgotten += surplus as u64;
    }

    fn temp(&mut self, folder: &Folder, entry: &Entry<'_>, temp: Temp<'_>) {
        let Some(owners) = &mut self.owners else { return };
        let is_nobodys = match owners.of(temp) {
            Owner::Alive => false,
            Owner::Dead => true,
            Owner::Unknown => is_old(folder.file(entry.name), self.now_seconds),
        };
        if is_nobodys && folder.remove(entry.name) {
            self.summary.temps_removed += 1;
        }
    }

    /// In a folder for temps the peer's have whole names.
    pub fn temp_entry(&mut self, folder: &Folder, entry: &Entry<'_>) {
        let text = entry.name.to_string_lossy();
        match Temp::parse(&text).or_else(|| entry.object().map(|_| Temp::Peers)) {
            Some(temp) => self.temp(folder, entry, temp),
            None => self.foreign(entry),
        }
    }

    fn foreign(&mut self, entry: &Entry<'_>) {
        self.summary.foreign += 1;
        if self.summary.foreign_example.is_none() {
            let name = entry.name.to_string_lossy().escape_debug().to_string();
            self.summary.foreign_example = Some(name);
        }
    }
}

fn is_old(file: Option<(u64, u64)>, now_seconds: u64) -> bool {
    file.is_some_and(|(_, written)| now_seconds.saturating_sub(written) > OLD_SECONDS)
}

/// The quarantine keeps the newest ones within its bounds. How many had to go.
pub fn prune_quarantine(path: &Path) -> io::Result<u64> {
    let mut files = Vec::new();
    each_entry(path, |folder, entry| {
        if let Some((bytes, seconds)) = folder.file(entry.name) {
            files.push((std::cmp::Reverse(seconds), bytes, entry.name.to_owned()));
        }
        true
    })?;
    files.sort_unstable();
    let folder = Folder::open(path)?;
    let (mut kept, mut held, mut removed) = (0, 0_u64, 0);
    for (_, bytes, name) in files {
        held = held.saturating_add(bytes);
        if kept < QUARANTINE_FILES && held <= QUARANTINE_BYTES {
            kept += 1;
        } else if folder.remove(&name) {
            removed += 1;
            held = held.saturating_sub(bytes);
        }
    }
    Ok(removed)
}

/// Names are fetched in pieces of this size.
const LISTING_BYTES: usize = 256 << 10;
pub const QUARANTINE_FILES: usize = 64;
const QUARANTINE_BYTES: u64 = 1 << 30;
