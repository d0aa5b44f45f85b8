//! One lower tier's medium: what is at rest in it, and the index that its server keeps beside it.
//!
//! It outlives servers. What was done is visible at once, and durable some time later: a crash of
//! the process keeps everything but the notes that had not reached the index, a loss of power also
//! takes what was not durable yet. The invariant: whatever is visible under a name is whole (I-29),
//! but for what a device lost that had said that it was safe.

use crate::memory::Tag;
use crate::orders::{Found, Name, Noted};
use kvtide_core::event::{self, DeleteOutcome, StoreOutcome};
use kvtide_core::names::Seal;
use kvtide_core::rng::Rng;
use std::collections::BTreeMap;

/// One object at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub bytes: u64,
    /// Whose bytes these are.
    pub content: Tag,
    /// What lies in one grain of it instead.
    pub damage: Option<Tag>,
    pub is_durable: bool,
}

/// A line of the index.
#[derive(Clone, Debug)]
struct Line {
    bytes: u64,
    seal: Option<Seal>,
    used: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Disk {
    files: BTreeMap<Name, File>,
    index: BTreeMap<Name, Line>,
    /// Lines that are not durable yet, oldest first.
    notes: Vec<(Name, Noted)>,
    /// Unfinished files, which nobody sees.
    pub temps: u64,
    uses: u64,
}

/// What ends a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is asked to: everything is written down first (I-46).
    Stopped,
    /// The process is gone, the machine is not.
    Killed,
    /// The machine is gone.
    PowerLost,
}

impl Disk {
    pub fn file(&self, name: &Name) -> Option<&File> {
        self.files.get(name)
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// The nth object at rest.
    pub fn nth(&self, nth: usize) -> Option<(&Name, &File)> {
        self.files.iter().nth(nth)
    }

    /// A whole object becomes visible, unless one is there already.
    pub fn store(&mut self, name: &Name, file: File) -> StoreOutcome {
        if let Some(there) = self.files.get(name) {
            return StoreOutcome::Present { bytes: there.bytes };
        }
        self.files.insert(name.clone(), file);
        StoreOutcome::Stored
    }

    pub fn delete(&mut self, name: &Name) -> DeleteOutcome {
        match self.files.remove(name) {
            Some(_) => DeleteOutcome::Deleted,
            None => DeleteOutcome::Absent,
        }
    }

    /// The bytes of one grain change where they lie.
    pub fn damage(&mut self, name: &Name, with: Tag) {
        if let Some(file) = self.files.get_mut(name) {
            file.damage = Some(with);
        }
    }

    pub fn note(&mut self, name: Name, note: Noted) {
        self.notes.push((name, note));
    }

    /// Everything so far is durable now: files, and the notes that were there for so long.
    pub fn flush(&mut self, notes: usize) {
        self.files.values_mut().for_each(|file| file.is_durable = true);
        let notes: Vec<(Name, Noted)> = self.notes.drain(..notes.min(self.notes.len())).collect();
        for (name, note) in notes {
            self.write_line(name, note);
        }
    }

    pub fn notes(&self) -> usize {
        self.notes.len()
    }

    fn write_line(&mut self, name: Name, note: Noted) {
        self.uses += 1;
        let used = self.uses;
        match note {
            Noted::Stored { bytes, seal } => {
                self.index.insert(name, Line { bytes, seal, used });
            }
            Noted::Used => {
                if let Some(line) = self.index.get_mut(&name) {
                    line.used = used;
                }
            }
            Noted::Removed => drop(self.index.remove(&name)),
        }
    }

    /// Whether what lies under a name is known again after a crash, digest and all.
    pub fn is_sealed(&self, name: &Name) -> bool {
        let is_pending = self.notes.iter().any(|(noted, _)| noted == name);
        let bytes = self.files.get(name).map(|file| file.bytes);
        let is_of_it = |line: &Line| line.seal.is_some() && Some(line.bytes) == bytes;
        !is_pending && self.index.get(name).is_some_and(is_of_it)
    }

    /// What a probe tells of a name: its file, and what the index of the running server, with all
    /// that was noted in it, says of it.
    pub fn probe(&self, name: &Name) -> Option<event::Found> {
        let bytes = self.files.get(name)?.bytes;
        let noted = self.notes.iter().rev().filter(|(noted, _)| noted == name);
        let noted = noted.map(|(_, note)| *note).find(|note| *note != Noted::Used);
        let line = match noted {
            Some(Noted::Stored { bytes, seal }) => Some((bytes, seal)),
            Some(_) => None,
            None => self.index.get(name).map(|line| (line.bytes, line.seal)),
        };
        let seal = line.filter(|(told, _)| *told == bytes).and_then(|(_, seal)| seal);
        Some(event::Found { bytes, seal })
    }

    /// The server is gone. `garbage` is what a device leaves that lied about being safe; only what
    /// the index can tell from the truth is torn.
    pub fn crash(&mut self, end: End, lies: bool, rng: &mut Rng, garbage: Tag) {
        self.temps = 0;
        if end == End::Stopped {
            self.flush(usize::MAX);
            return;
        }
        let kept = rng.below(self.notes.len() as u64 + 1) as usize;
        let notes: Vec<(Name, Noted)> = self.notes.drain(..).take(kept).collect();
        for (name, note) in notes {
            self.write_line(name, note);
        }
        if end == End::Killed {
            return;
        }
        let unsafe_names: Vec<Name> = self
            .files
            .iter()
            .filter(|(_, file)| !file.is_durable)
            .map(|(name, _)| name.clone())
            .collect();
        for name in unsafe_names {
            match rng.below(3) {
                0 => drop(self.files.remove(&name)),
                1 if lies && self.is_sealed(&name) => self.damage(&name, garbage),
                _ => {}
            }
        }
        self.files.values_mut().for_each(|file| file.is_durable = true);
    }

    /// The index is gone, the files are not.
    /// Nothing could tell rotten bytes from good ones any more: whoever lost it has lost those too.
    pub fn lose_index(&mut self) {
        self.files.retain(|_, file| file.damage.is_none());
        self.index.clear();
        self.notes.clear();
    }

    /// Everything at rest, the least recently used first. A line that does not fit its file says
    /// nothing about it.
    pub fn scan(&self) -> Vec<Found> {
        let line =
            |name: &Name, file: &File| self.index.get(name).filter(|line| line.bytes == file.bytes);
        let mut found: Vec<(u64, Found)> = self
            .files
            .iter()
            .map(|(name, file)| {
                let line = line(name, file);
                let seal = line.and_then(|line| line.seal);
                let found = Found { name: name.clone(), bytes: file.bytes, seal };
                (line.map_or(0, |line| line.used), found)
            })
            .collect();
        found.sort_by_key(|(used, _)| *used);
        found.into_iter().map(|(_, found)| found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::names::{ChunkHash, KvRank};

    fn name(number: u8) -> Name {
        let rank = KvRank(0x0100_0100);
        Name { model: "m".into(), salt: "".into(), rank, group: 0, hash: ChunkHash([number; 32]) }
    }

    fn file(number: u64) -> File {
        File { bytes: 1024, content: Tag(number), damage: None, is_durable: false }
    }

    fn stored(digest: u32) -> Noted {
        Noted::Stored { bytes: 1024, seal: Some(Seal { digest, layout: 0 }) }
    }

    #[test]
    fn what_is_there_stays_as_it_is() {
        let mut disk = Disk::default();
        assert_eq!(disk.store(&name(1), file(1)), StoreOutcome::Stored);
        assert_eq!(disk.store(&name(1), file(2)), StoreOutcome::Present { bytes: 1024 });
        assert_eq!(disk.file(&name(1)).map(|file| file.content), Some(Tag(1)));
    }

    #[test]
    fn i46_a_clean_stop_keeps_everything_in_its_order() {
        let mut disk = Disk::default();
        for number in [2, 1, 3] {
            disk.store(&name(number), file(number.into()));
            disk.note(name(number), stored(number.into()));
        }
        disk.note(name(2), Noted::Used);
        disk.crash(End::Stopped, true, &mut Rng::new(1), Tag(9));
        let order: Vec<u8> = disk.scan().iter().map(|found| found.name.hash.0[0]).collect();
        assert_eq!(order, [1, 3, 2]);
        assert!(disk.scan().iter().all(|found| found.seal.is_some()));
    }

    #[test]
    fn i29_power_takes_an_object_whole_or_leaves_it() {
        for seed in 0..50 {
            let mut disk = Disk::default();
            disk.store(&name(1), file(1));
            disk.note(name(1), stored(1));
            disk.crash(End::PowerLost, false, &mut Rng::new(seed), Tag(9));
            assert!(disk.file(&name(1)).is_none_or(|file| file.damage.is_none()));
        }
    }
}
