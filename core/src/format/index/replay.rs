//! What one or several indexes tell, folded: each object once, the least recently used first.
//!
//! The one invariant: the state after any records is that of a list that was told them one by one,
//! and never holds more objects than the limit; the least recently used ones are forgotten first.

use super::{Fault, Header, Reader, Record, ScopeName, ScopeRef, Scopes, Step, Writer};
use crate::SeededHash;
use crate::chains::Chains;
use crate::effect::Note;
use crate::names::{ChunkHash, Seal};
use alloc::vec::Vec;
use core::hash::BuildHasher;

/// One object at rest. `scope` is a number of [`Replay::scopes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub scope: u32,
    pub hash: ChunkHash,
    pub bytes: u64,
    pub seal: Option<Seal>,
    /// When it was stored or used last, seconds since 1970, as far as that was told.
    pub seconds: u64,
}

/// A file that no index told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub scope: u32,
    pub hash: ChunkHash,
    pub bytes: u64,
    /// When it was written.
    pub seconds: u64,
}

/// One index that is being read.
#[derive(Clone, Debug)]
pub struct Log {
    reader: Reader,
    number: u32,
    /// What its numbers are in `Replay::scopes`; None where there was no room.
    scopes: Vec<Option<u32>>,
    seconds: u64,
    records: u64,
    gaps: u64,
}

impl Log {
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    pub fn records(&self) -> u64 {
        self.records
    }

    /// How often notes were lost while it was written.
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// The last time that it told.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// The number in `Replay::scopes` of each of its scopes. None where one is told twice, which
    /// no writer does, or there was no room for all: it cannot be appended to.
    pub fn scopes(&self) -> Option<Vec<u32>> {
        let numbers: Option<Vec<u32>> = self.scopes.iter().copied().collect();
        numbers.filter(|numbers| {
            let mut sorted = numbers.clone();
            sorted.sort_unstable();
            sorted.windows(2).all(|pair| pair[0] != pair[1])
        })
    }
}

#[derive(Clone, Debug)]
struct Entry {
    object: Object,
    /// Of the index that told it last.
    log: u32,
    is_seen: bool,
    is_noted: bool,
    /// Neighbours in the order of use, plus one; 0: none.
    before: u32,
    after: u32,
}

#[derive(Clone, Debug)]
pub struct Replay {
    scopes: Scopes,
    entries: Vec<Entry>,
    /// Places of `entries` that hold nothing.
    free: Vec<u32>,
    by_key: Chains,
    /// Ends of the order of use, plus one: the least and the most recently used one. The links are
    /// in the entries, so that a table of which little is used takes little.
    oldest: u32,
    newest: u32,
    hash: SeededHash,
    limit: usize,
    logs: u32,
    forgotten: u64,
    bytes: u128,
}

/// An index that holds no more than what was there to be told.
#[derive(Clone, Debug)]
pub struct Compacted {
    pub writer: Writer,
    /// Numbered as in the index.
    pub scopes: Scopes,
}

impl Replay {
    /// Holds at most `limit` objects. Memory is touched only as it fills.
    pub fn new(limit: usize, seed: u64) -> Replay {
        assert!(limit > 0, "a table of nothing tells nothing");
        Replay {
            scopes: Scopes::new(seed),
            entries: Vec::new(),
            free: Vec::new(),
            by_key: Chains::with_limit(limit),
            oldest: 0,
            newest: 0,
            hash: SeededHash::new(seed),
            limit,
            logs: 0,
            forgotten: 0,
            bytes: 0,
        }
    }

    /// What a full table of so many objects takes, its scopes apart.
    pub fn table_bytes(limit: usize) -> u64 {
        // Lists grow by doubling, and the order is written out where it is sorted.
        let of_each = 2 * size_of::<Entry>() + 3 * size_of::<u32>();
        (limit * of_each) as u64 + Chains::bytes(limit)
    }

    /// Begins with another index. Those that were written last come last.
    pub fn log(&mut self, header: &Header) -> Log {
        self.logs += 1;
        Log {
            reader: Reader::new(header),
            number: self.logs,
            scopes: Vec::new(),
            seconds: header.created_nanos / 1_000_000_000,
            records: 0,
            gaps: 0,
        }
    }

    /// Reads what is whole of a piece. How many bytes that were, and what is wrong behind them.
    pub fn fold(&mut self, log: &mut Log, piece: &[u8]) -> (usize, Option<Fault>) {
        let mut rest = piece;
        loop {
            match log.reader.next(&mut rest) {
                Step::Record(record) => self.apply(log, &record),
                Step::More => return (piece.len() - rest.len(), None),
                Step::Bad(fault) => return (piece.len() - rest.len(), Some(fault)),
            }
        }
    }

    fn apply(&mut self, log: &mut Log, record: &Record<'_>) {
        log.records += 1;
        let place = |scope: u32| log.scopes[scope as usize];
        match *record {
            Record::Scope(scope) => {
                let number = self.scopes.intern(&scope);
                log.scopes.push(number);
            }
            Record::Stored { scope, hash, bytes, seal } => {
                let Some(scope) = place(scope) else { return };
                let object = Object { scope, hash, bytes, seal, seconds: log.seconds };
                self.store(object, log.number);
            }
            Record::Used { scope, hash } => {
                let Some(scope) = place(scope) else { return };
                if let Some(at) = self.find(scope, &hash) {
                    self.touch(at, log.seconds);
                }
            }
            Record::Removed { scope, hash } => {
                let Some(scope) = place(scope) else { return };
                if let Some(at) = self.find(scope, &hash) {
                    self.remove(at);
                }
            }
            Record::Time { seconds } => log.seconds = seconds,
            Record::Gap => log.gaps += 1,
        }
    }

    fn store(&mut self, object: Object, log: u32) -> u32 {
        let Some(at) = self.find(object.scope, &object.hash) else {
            return self.insert(object, log);
        };
        let entry = &mut self.entries[at as usize];
        let before = core::mem::replace(&mut entry.object, object);
        self.bytes = self.bytes - u128::from(before.bytes) + u128::from(object.bytes);
        if entry.log != log && before.seal != object.seal {
            // Two servers stored it. Whose bytes are there only the bytes can tell.
            entry.object.seal = None;
        }
        entry.log = log;
        self.touch(at, object.seconds);
        at
    }

    fn insert(&mut self, object: Object, log: u32) -> u32 {
        if self.len() == self.limit {
            let oldest = self.oldest.checked_sub(1).expect("a full table has an oldest object");
            self.remove(oldest);
            self.forgotten += 1;
        }
        let hash = self.key_hash(object.scope, &object.hash);
        self.bytes += u128::from(object.bytes);
        let entry = Entry { object, log, is_seen: false, is_noted: false, before: 0, after: 0 };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.by_key.insert(hash, at);
        self.link(at);
        at
    }

    fn remove(&mut self, at: u32) -> Object {
        let object = self.entries[at as usize].object;
        let was_there = self.by_key.remove(self.key_hash(object.scope, &object.hash), at);
        assert!(was_there, "an entry is under its key");
        self.unlink(at);
        self.free.push(at);
        self.bytes -= u128::from(object.bytes);
        object
    }

    fn touch(&mut self, at: u32, seconds: u64) {
        self.entries[at as usize].object.seconds = seconds;
        self.unlink(at);
        self.link(at);
    }

    /// What the server does meanwhile. Such an object is not told again when it is popped.
    pub fn note(&mut self, scope: u32, hash: &ChunkHash, note: Note, seconds: u64) {
        match note {
            Note::Stored { bytes, seal } => {
                let object = Object { scope, hash: *hash, bytes, seal, seconds };
                // The server's word is the last one, whatever an index says.
                if let Some(at) = self.find(scope, hash) {
                    self.remove(at);
                }
                let at = self.insert(object, 0);
                self.entries[at as usize].is_noted = true;
            }
            Note::Used => {
                if let Some(at) = self.find(scope, hash) {
                    self.touch(at, seconds);
                    self.entries[at as usize].is_noted = true;
                }
            }
            Note::Removed => {
                if let Some(at) = self.find(scope, hash) {
                    self.remove(at);
                }
            }
        }
    }

    /// What is known of one object.
    pub fn object(&self, scope: &ScopeRef<'_>, hash: &ChunkHash) -> Option<&Object> {
        let at = self.find(self.scopes.find(scope)?, hash)?;
        Some(&self.entries[at as usize].object)
    }

    /// A file of this name is there. False where it is not known.
    pub fn see(&mut self, scope: u32, hash: &ChunkHash) -> bool {
        let at = self.find(scope, hash);
        if let Some(at) = at {
            self.entries[at as usize].is_seen = true;
        }
        at.is_some()
    }

    /// Forgets what was neither seen nor noted: how many.
    pub fn drop_unseen(&mut self) -> u64 {
        let absent = |at: &u32| {
            let entry = &self.entries[*at as usize];
            !entry.is_seen && !entry.is_noted
        };
        let absent: Vec<u32> = self.order().filter(absent).collect();
        absent.iter().for_each(|at| {
            self.remove(*at);
        });
        absent.len() as u64
    }

    /// Puts objects of several indexes into the order in which they were used.
    pub fn sort_by_time(&mut self) {
        if self.logs < 2 {
            // One index is in order, whatever the clock did.
            return;
        }
        let mut order: Vec<u32> = self.order().collect();
        order.sort_by_key(|at| self.entries[*at as usize].object.seconds);
        for at in order {
            self.unlink(at);
            self.link(at);
        }
    }

    /// Puts files among the others by time. Those that are known already are left out.
    pub fn admit(&mut self, mut found: Vec<Found>) {
        found.sort_by_key(|file| (file.seconds, file.hash, file.scope));
        found.dedup_by_key(|file| (file.hash, file.scope));
        found.retain(|file| self.find(file.scope, &file.hash).is_none());
        let mut surplus = (self.len() + found.len()).saturating_sub(self.limit);
        let mut found = found.into_iter().peekable();
        // The list goes round once: what is taken off its head is put back behind its tail.
        for _ in 0..self.len() {
            let at = self.oldest.checked_sub(1).expect("as many as were counted");
            let seconds = self.entries[at as usize].object.seconds;
            while let Some(older) = found.next_if(|file| file.seconds <= seconds) {
                self.admit_one(older, &mut surplus);
            }
            if surplus > 0 {
                surplus -= 1;
                self.forgotten += 1;
                self.remove(at);
            } else {
                self.unlink(at);
                self.link(at);
            }
        }
        found.for_each(|file| self.admit_one(file, &mut surplus));
    }

    fn admit_one(&mut self, file: Found, surplus: &mut usize) {
        if *surplus > 0 {
            *surplus -= 1;
            self.forgotten += 1;
            return;
        }
        let Found { scope, hash, bytes, seconds } = file;
        let at = self.insert(Object { scope, hash, bytes, seal: None, seconds }, 0);
        self.entries[at as usize].is_seen = true;
    }

    /// Takes the least recently used object out, and says whether the server has noted it.
    pub fn pop(&mut self) -> Option<(Object, bool)> {
        let at = self.oldest.checked_sub(1)?;
        let is_noted = self.entries[at as usize].is_noted;
        Some((self.remove(at), is_noted))
    }

    /// The least recently used one first.
    pub fn iter(&self) -> impl Iterator<Item = &Object> {
        self.order().map(|at| &self.entries[at as usize].object)
    }

    /// Writes an index of what is here; `put` takes it in pieces and empties them.
    pub fn compact<E>(
        &self,
        header: &Header,
        mut put: impl FnMut(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Compacted, E> {
        let mut out = Vec::with_capacity(2 * PIECE_BYTES);
        let mut writer = Writer::begin(header, &mut out);
        let mut scopes = Scopes::new(0);
        let mut told = alloc::vec![None; self.scopes.len()];
        let mut seconds = header.created_nanos / 1_000_000_000;
        for object in self.iter() {
            let place = &mut told[object.scope as usize];
            let scope = match *place {
                Some(scope) => scope,
                None => {
                    let name = self.scopes.name(object.scope).borrowed();
                    let scope = scopes.intern(&name).expect("no more than there are here");
                    writer.push(&Record::Scope(name), &mut out);
                    *place = Some(scope);
                    scope
                }
            };
            if object.seconds != seconds {
                seconds = object.seconds;
                writer.push(&Record::Time { seconds }, &mut out);
            }
            let Object { hash, bytes, seal, .. } = *object;
            writer.push(&Record::Stored { scope, hash, bytes, seal }, &mut out);
            if out.len() >= PIECE_BYTES {
                put(&mut out)?;
                out.clear();
            }
        }
        put(&mut out)?;
        Ok(Compacted { writer, scopes })
    }

    pub fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    pub fn scopes_mut(&mut self) -> &mut Scopes {
        &mut self.scopes
    }

    pub fn scope(&self, number: u32) -> &ScopeName {
        self.scopes.name(number)
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Objects that there was no room for.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Bytes of all objects.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// The least recently used one first.
    fn order(&self) -> impl Iterator<Item = u32> + '_ {
        let after = |at: &u32| self.entries[*at as usize].after.checked_sub(1);
        core::iter::successors(self.oldest.checked_sub(1), after)
    }

    /// As the most recently used one.
    fn link(&mut self, at: u32) {
        let newest = core::mem::replace(&mut self.newest, at + 1);
        let entry = &mut self.entries[at as usize];
        (entry.before, entry.after) = (newest, 0);
        match newest {
            0 => self.oldest = at + 1,
            newest => self.entries[newest as usize - 1].after = at + 1,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Entry { before, after, .. } = self.entries[at as usize];
        match before {
            0 => self.oldest = after,
            before => self.entries[before as usize - 1].after = after,
        }
        match after {
            0 => self.newest = before,
            after => self.entries[after as usize - 1].before = before,
        }
    }

    fn find(&self, scope: u32, hash: &ChunkHash) -> Option<u32> {
        let is_it = |at: u32| {
            let object = &self.entries[at as usize].object;
            object.hash == *hash && object.scope == scope
        };
        self.by_key.find(self.key_hash(scope, hash), is_it)
    }

    fn key_hash(&self, scope: u32, hash: &ChunkHash) -> u64 {
        self.hash.hash_one((scope, hash))
    }
}

/// What is handed to `put` at a time.
const PIECE_BYTES: usize = 256 << 10;
