//! What requests sent before: per request id the raw bytes of its token array and the hashes of its
//! whole chunks (design §3), so that an array which begins with known bytes is only compared.
//!
//! The one invariant: `hashes[i]` of a session is the hash of exactly the tokens that its bytes up
//! to `ends[i]` encode. A hash depends on tokens alone and the bytes that are reused have been
//! compared, so a session gives right hashes whatever request it came from: finding the wrong one,
//! or none, costs time only. Bounded by bytes and sessions; what was used longest ago goes first.

use crate::limits::{MEMO_BYTES_MAX, MEMO_SESSIONS_MAX};
use crate::map::{Map, map_with_capacity};
use crate::names::ChunkHash;
use crate::slots::{SlotName, Slots};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

/// The known prefix of one token array.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// Encoded elements of the array, from the first on, whole chunks only.
    bytes: Vec<u8>,
    /// Where each chunk ends within `bytes`. May be shorter than `hashes`, never longer.
    ends: Vec<u32>,
    hashes: Vec<ChunkHash>,
}

impl Session {
    /// Chunks whose bytes are known.
    pub fn known(&self) -> usize {
        self.ends.len()
    }

    pub fn hashes(&self) -> &[ChunkHash] {
        &self.hashes
    }

    /// Says how many bytes chunk `index` takes when `array`, which begins with the chunks before
    /// it, goes on with that chunk.
    pub fn matches(&self, index: usize, array: &[u8]) -> Option<usize> {
        let end = *self.ends.get(index)? as usize;
        let start = self.start_of(index);
        let same = array.get(start..end)? == &self.bytes[start..end];
        same.then_some(end - start)
    }

    /// Forgets chunk `chunks` and everything after it.
    pub fn truncate(&mut self, chunks: usize) {
        self.hashes.truncate(chunks);
        if self.ends.len() > chunks {
            self.bytes.truncate(self.start_of(chunks));
            self.ends.truncate(chunks);
        }
    }

    /// Makes room for an array that goes on for `bytes` and `chunks` more.
    pub fn reserve(&mut self, bytes: usize, chunks: usize) {
        self.bytes.reserve(bytes.min(SESSION_BYTES_MAX.saturating_sub(self.bytes.len())));
        self.ends.reserve(chunks);
        self.hashes.reserve(chunks);
    }

    /// Adds the next chunk. Beyond the bound of one session the hash alone is kept.
    pub fn push(&mut self, encoded: &[u8], hash: ChunkHash) {
        let follows = self.ends.len() == self.hashes.len();
        self.hashes.push(hash);
        if follows && self.bytes.len() + encoded.len() <= SESSION_BYTES_MAX {
            self.bytes.extend_from_slice(encoded);
            self.ends.push(self.bytes.len() as u32);
        }
    }

    /// Whether `bytes` fit in what it has, and it does not have far too much for them.
    fn has_room_for(&self, bytes: usize) -> bool {
        let room = self.bytes.capacity();
        room >= bytes && room / 4 <= bytes
    }

    fn start_of(&self, index: usize) -> usize {
        match index.checked_sub(1) {
            Some(before) => self.ends[before] as usize,
            None => 0,
        }
    }

    fn footprint(&self) -> usize {
        self.bytes.capacity()
            + self.ends.capacity() * size_of::<u32>()
            + self.hashes.capacity() * size_of::<ChunkHash>()
    }
}

/// Sessions by request id, in order of use.
#[derive(Debug)]
pub struct Memo {
    entries: Slots<Entry>,
    names: Map<Arc<str>, SlotName>,
    /// Used last, and used longest ago.
    hot: Option<SlotName>,
    cold: Option<SlotName>,
    bytes: usize,
    bytes_max: usize,
    /// An empty session with room in it, of one that has gone: memory that is there already takes
    /// a long prompt sooner than memory that the system has to make present.
    spare: Session,
}

#[derive(Debug)]
struct Entry {
    request: Arc<str>,
    session: Session,
    /// What this entry counts for in `Memo::bytes`.
    bytes: usize,
    hotter: Option<SlotName>,
    colder: Option<SlotName>,
}

impl Memo {
    pub fn new(seed: u64) -> Memo {
        Memo::with_limits(seed, MEMO_SESSIONS_MAX, MEMO_BYTES_MAX)
    }

    /// Smaller than production, for tests that must see it full.
    pub fn with_limits(seed: u64, sessions_max: usize, bytes_max: usize) -> Memo {
        assert!(sessions_max > 0, "a memo holds at least one session");
        Memo {
            entries: Slots::with_limit(sessions_max),
            names: map_with_capacity(sessions_max, seed),
            hot: None,
            cold: None,
            bytes: 0,
            bytes_max,
            spare: Session::default(),
        }
    }

    /// Takes a session out, to compare and to extend it to about `bytes`. `put` brings it back; a
    /// session that never comes back is a session that is not known.
    pub fn take(&mut self, request: &str, bytes: usize) -> Session {
        let Some(&name) = self.names.get(request) else {
            let fits = self.spare.has_room_for(bytes);
            return if fits { core::mem::take(&mut self.spare) } else { Session::default() };
        };
        let entry = self.entries.find_mut(name).expect("a named session is in the table");
        let session = core::mem::take(&mut entry.session);
        let bytes = core::mem::replace(&mut entry.bytes, entry.request.len());
        self.bytes = self.bytes - bytes + entry.request.len();
        session
    }

    /// Keeps a session as the one used last, in place of what is kept under this id.
    pub fn put(&mut self, request: &str, session: Session) {
        let name = match self.names.get(request) {
            Some(&name) => name,
            None => self.insert(request),
        };
        let entry = self.entries.find_mut(name).expect("a named session is in the table");
        let bytes = session.footprint() + entry.request.len();
        self.bytes = self.bytes - entry.bytes + bytes;
        entry.bytes = bytes;
        entry.session = session;
        self.unlink(name);
        self.link_hot(name);
        while self.bytes + self.spare.footprint() > self.bytes_max && self.cold != Some(name) {
            self.evict_coldest();
        }
    }

    /// The hashes known for a request; empty where nothing is.
    pub fn hashes(&self, request: &str) -> &[ChunkHash] {
        let name = self.names.get(request);
        name.and_then(|name| self.entries.find(*name)).map_or(&[], |entry| &entry.session.hashes)
    }

    /// The tokens of some chunks of a request, as its key encoded them. None where they are not
    /// known any more.
    pub fn tokens(&self, request: &str, chunks: Range<usize>) -> Option<&[u8]> {
        let session = &self.entries.find(*self.names.get(request)?)?.session;
        let last = chunks.end.checked_sub(1).filter(|last| chunks.start <= *last)?;
        let end = *session.ends.get(last)? as usize;
        session.bytes.get(session.start_of(chunks.start)..end)
    }

    /// The request has ended: its session goes first when room is needed. Not at once, because a
    /// worker's store may come after the scheduler's end of session (spec/wire §1.6).
    pub fn retire(&mut self, request: &str) {
        let Some(&name) = self.names.get(request) else { return };
        self.unlink(name);
        self.link_cold(name);
    }

    pub fn sessions(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes + self.spare.footprint()
    }

    fn insert(&mut self, request: &str) -> SlotName {
        if self.entries.is_full() {
            self.evict_coldest();
        }
        let request: Arc<str> = Arc::from(request);
        let entry = Entry {
            request: request.clone(),
            session: Session::default(),
            bytes: 0,
            hotter: None,
            colder: None,
        };
        let name = self.entries.insert(entry).expect("the coldest session has made room");
        self.names.insert(request, name);
        self.link_hot(name);
        name
    }

    fn evict_coldest(&mut self) {
        let Some(name) = self.cold else { return };
        self.unlink(name);
        let entry = self.entries.remove(name).expect("a linked session is in the table");
        self.names.remove(&*entry.request);
        self.bytes -= entry.bytes;
        if entry.session.bytes.capacity() > self.spare.bytes.capacity() {
            self.spare = entry.session;
            self.spare.truncate(0);
        }
    }

    fn unlink(&mut self, name: SlotName) {
        let entry = self.entries.find_mut(name).expect("a linked session is in the table");
        let (hotter, colder) = (entry.hotter.take(), entry.colder.take());
        match hotter.and_then(|hotter| self.entries.find_mut(hotter)) {
            Some(hotter) => hotter.colder = colder,
            None => self.hot = colder,
        }
        match colder.and_then(|colder| self.entries.find_mut(colder)) {
            Some(colder) => colder.hotter = hotter,
            None => self.cold = hotter,
        }
    }

    fn link_hot(&mut self, name: SlotName) {
        let colder = self.hot.replace(name);
        match colder.and_then(|colder| self.entries.find_mut(colder)) {
            Some(colder) => colder.hotter = Some(name),
            None => self.cold = Some(name),
        }
        let entry = self.entries.find_mut(name).expect("a linked session is in the table");
        (entry.hotter, entry.colder) = (None, colder);
    }

    fn link_cold(&mut self, name: SlotName) {
        let hotter = self.cold.replace(name);
        match hotter.and_then(|hotter| self.entries.find_mut(hotter)) {
            Some(hotter) => hotter.colder = Some(name),
            None => self.hot = Some(name),
        }
        let entry = self.entries.find_mut(name).expect("a linked session is in the table");
        (entry.hotter, entry.colder) = (hotter, None);
    }
}

/// Token bytes that one session may keep: more than `REQUEST_CHUNKS_MAX` chunks of 256 tokens take,
/// and a small part of the whole memo.
const SESSION_BYTES_MAX: usize = MEMO_BYTES_MAX / 8;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn session(chunks: usize) -> Session {
        let mut session = Session::default();
        for index in 0..chunks {
            session.push(&[index as u8; 10], ChunkHash([index as u8; 32]));
        }
        session
    }

    /// Walks both ways and counts again.
    fn audit(memo: &Memo) {
        let (mut count, mut bytes, mut last) = (0, 0, None);
        let mut next = memo.hot;
        while let Some(name) = next {
            let entry = memo.entries.find(name).expect("a linked session is in the table");
            assert_eq!(entry.hotter, last);
            assert_eq!(memo.names.get(&entry.request), Some(&name));
            count += 1;
            bytes += entry.bytes;
            last = Some(name);
            next = entry.colder;
        }
        assert_eq!(memo.cold, last);
        assert_eq!(count, memo.entries.len());
        assert_eq!(count, memo.names.len());
        assert_eq!(bytes, memo.bytes);
        assert!(memo.bytes() <= memo.bytes_max || count == 1);
    }

    #[test]
    fn the_session_used_longest_ago_goes_first() {
        let mut memo = Memo::with_limits(0, 2, usize::MAX);
        memo.put("a", session(1));
        memo.put("b", session(2));
        memo.put("a", session(3));
        memo.put("c", session(4));
        audit(&memo);
        assert_eq!(memo.hashes("a").len(), 3);
        assert_eq!(memo.hashes("b"), &[]);
        memo.retire("c");
        memo.put("d", session(5));
        audit(&memo);
        assert_eq!(memo.hashes("c"), &[]);
        assert_eq!(memo.hashes("a").len(), 3);
    }

    #[test]
    fn bytes_are_bounded_and_the_newest_stays() {
        let mut memo = Memo::with_limits(0, 64, 4096);
        for index in 0..100 {
            memo.put(&format!("request {}", index % 50), session(index % 40));
            audit(&memo);
            assert_eq!(memo.hashes(&format!("request {}", index % 50)).len(), index % 40);
        }
    }

    #[test]
    fn what_is_taken_and_never_put_back_is_only_unknown() {
        let mut memo = Memo::with_limits(0, 4, usize::MAX);
        memo.put("a", session(3));
        assert_eq!(memo.take("a", 0).hashes().len(), 3);
        audit(&memo);
        assert_eq!(memo.take("a", 0).hashes().len(), 0);
        assert_eq!(memo.take("nobody", 0).hashes().len(), 0);
        memo.put("a", session(2));
        audit(&memo);
        assert_eq!(memo.hashes("a").len(), 2);
    }

    #[test]
    fn memory_of_a_session_that_has_gone_takes_the_next_of_its_size() {
        let mut memo = Memo::with_limits(0, 1, usize::MAX);
        memo.put("a", session(100));
        memo.put("b", session(1));
        audit(&memo);
        let room = memo.spare.bytes.capacity();
        assert!(room >= 1000);
        assert_eq!(memo.take("c", room + 1).bytes.capacity(), 0, "too much is asked for");
        assert_eq!(memo.take("c", room / 5).bytes.capacity(), 0, "a waste");
        let reused = memo.take("c", 1000);
        assert_eq!((reused.bytes.capacity(), reused.known(), reused.hashes().len()), (room, 0, 0));
        assert_eq!(memo.take("c", 1000).bytes.capacity(), 0, "it is given once");
        memo.put("c", reused);
        audit(&memo);
    }

    #[test]
    fn a_session_over_its_bound_keeps_hashes_only() {
        let mut session = Session::default();
        let large = alloc::vec![7; SESSION_BYTES_MAX / 2 + 1];
        session.push(&large, ChunkHash([1; 32]));
        session.push(&large, ChunkHash([2; 32]));
        session.push(&[7], ChunkHash([3; 32]));
        assert_eq!((session.known(), session.hashes().len()), (1, 3));
        session.truncate(2);
        assert_eq!((session.known(), session.hashes().len()), (1, 2));
        session.truncate(0);
        assert_eq!((session.known(), session.hashes().len(), session.bytes.len()), (0, 0, 0));
    }
}
