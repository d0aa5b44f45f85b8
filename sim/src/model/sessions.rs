//! Lookups: what each may answer, and what it holds (I-3, I-11..I-14, I-26, I-28).

use super::{Key, Model, ObjectNumber, Scope, Sure, Verdict, check};
use crate::calls::Range;
use kvtide_core::names::ChunkHash;
use kvtide_core::time::Instant;
use std::collections::BTreeSet;
use std::rc::Rc;

#[derive(Clone, Debug)]
pub struct Session {
    pub serial: u64,
    model: Rc<str>,
    salt: Rc<str>,
    world_size: u32,
    readers: u16,
    rows: Vec<Rc<Scope>>,
    hashes: Rc<[ChunkHash]>,
    /// What each cell (chunk, row) has been since the lookup, until that is decided.
    watch: Vec<Watch>,
    is_decided: bool,
    /// Nothing is certain of it: a table may have been full, or a release met a running lookup.
    is_vague: bool,
    /// The hit lies within.
    low: u32,
    high: u32,
    cells: Vec<Cell>,
    is_taken: bool,
    has_ended: bool,
    /// When its leases end, at the earliest and at the latest.
    until: (Instant, Instant),
    last_used: (Instant, Instant),
    /// Releases that may not have been acted upon yet.
    freeing: Vec<core::ops::Range<usize>>,
}

#[derive(Clone, Debug)]
struct Watch {
    key: Key,
    /// Present all the time.
    always: bool,
    /// Present at some time.
    ever: bool,
    object: Option<ObjectNumber>,
}

#[derive(Clone, Debug)]
struct Cell {
    key: Key,
    /// The object, where there is only one that it can be.
    object: Option<ObjectNumber>,
    leased: Sure,
    /// Readers that have not come yet, at least and at most.
    least: u16,
    most: u16,
}

impl Session {
    /// Adds the objects that this session keeps from being evicted.
    pub(super) fn add_held(
        &self,
        model: &Model,
        surely: &mut BTreeSet<ObjectNumber>,
        maybe: &mut BTreeSet<ObjectNumber>,
    ) {
        if self.is_over(model) {
            return;
        }
        let is_alive = self.is_alive(model);
        for cell in self.cells.iter().filter(|cell| cell.most > 0) {
            match cell.object {
                Some(number) if is_alive && cell.leased == Sure::Yes && cell.least > 0 => {
                    surely.insert(number);
                    maybe.insert(number);
                }
                Some(number) => {
                    maybe.insert(number);
                }
                None => maybe.extend(model.presence(&cell.key).1),
            }
        }
    }

    /// Surely still there, leases and all.
    fn is_alive(&self, model: &Model) -> bool {
        self.is_decided
            && !self.is_vague
            && model.now < self.until.0
            && model.now < self.last_used.0 + model.rules.session_ttl
    }

    /// Surely no lease is left.
    fn is_over(&self, model: &Model) -> bool {
        let leases_over = self.is_decided && model.settled >= self.until.1;
        !model.is_working && (leases_over || self.is_forgotten(model))
    }

    /// Surely idle for so long that nothing is known of it any more.
    fn is_forgotten(&self, model: &Model) -> bool {
        model.settled >= self.last_used.1 + model.rules.session_ttl
    }

    fn speaks_of(&self, range: &Range) -> bool {
        self.model == range.model && self.salt == range.salt && self.world_size == range.world_size
    }

    fn used(&mut self, now: Instant) {
        if self.is_decided {
            self.last_used.0 = now;
        }
        self.last_used.1 = now;
    }

    fn learn_hit(&mut self, hit: u32) {
        (self.low, self.high) = (hit, hit);
        self.cells.truncate(hit as usize * self.rows.len());
        for cell in &mut self.cells {
            cell.leased = Sure::Yes;
        }
    }

    /// Chunks that the answer lies between.
    pub fn bounds(&self) -> (u32, u32) {
        (self.low, self.high)
    }
}

impl Model {
    /// `lookup`, after it was answered. A running one under the same id has ended (I-12).
    pub fn lookup(&mut self, range: &Range) {
        self.sessions_made += 1;
        let layout = self.layout_of(&range.model, range.world_size);
        let rows: Vec<Rc<Scope>> = layout.map_or(Vec::new(), |layout| {
            let scope = |rank| Scope {
                model: range.model.clone(),
                salt: range.salt.clone(),
                world_size: range.world_size,
                rank,
                layout,
            };
            (0..range.world_size).map(|rank| Rc::new(scope(rank))).collect()
        });
        let chunks = if rows.is_empty() { 0 } else { range.end_chunk };
        let mut watch = Vec::new();
        for hash in &range.hashes[..chunks as usize] {
            for row in &rows {
                let key = Key { scope: row.clone(), hash: *hash };
                let (readable, object) = self.presence(&key);
                let (always, ever) = (readable == Sure::Yes, readable != Sure::No);
                watch.push(Watch { key, always, ever, object: object.filter(|_| always) });
            }
        }
        let session = Session {
            serial: self.sessions_made,
            model: range.model.clone(),
            salt: range.salt.clone(),
            world_size: range.world_size,
            readers: range.readers,
            rows,
            hashes: range.hashes.clone(),
            watch,
            is_decided: false,
            is_vague: self.rules.tables_may_fill,
            low: 0,
            high: 0,
            cells: Vec::new(),
            is_taken: false,
            has_ended: false,
            until: (self.now + self.rules.read_ttl, Instant::FAR),
            last_used: (self.now, self.now),
            freeing: Vec::new(),
        };
        self.sessions.insert(range.request.clone(), session);
        if !self.is_working {
            self.decide_lookups();
        }
    }

    /// No work is left over: every lookup has its result.
    pub(super) fn decide_lookups(&mut self) {
        let until = self.now + self.rules.read_ttl;
        for session in self.sessions.values_mut() {
            for freed in session.freeing.drain(..) {
                let end = freed.end.min(session.cells.len());
                for cell in &mut session.cells[freed.start.min(end)..end] {
                    cell.most = 0;
                }
            }
            if session.is_decided {
                continue;
            }
            session.is_decided = true;
            let rows = session.rows.len().max(1);
            let watch = std::mem::take(&mut session.watch);
            let leading = |present: fn(&Watch) -> bool| {
                watch.chunks(rows).take_while(|chunk| chunk.iter().all(present)).count() as u32
            };
            session.high = leading(|cell| cell.ever);
            session.low = if session.is_vague { 0 } else { leading(|cell| cell.always) };
            let certain = session.low as usize * rows;
            let cells = watch.into_iter().take(session.high as usize * rows).enumerate();
            let readers = session.readers;
            session.cells = cells
                .map(|(at, cell)| Cell {
                    key: cell.key,
                    object: cell.object,
                    leased: if at < certain { Sure::Yes } else { Sure::Maybe },
                    least: readers,
                    most: readers,
                })
                .collect();
            if !session.has_ended {
                session.until.1 = until;
            }
        }
    }

    /// A key became readable: a lookup under way may find it.
    pub(super) fn became_present(&mut self, key: &Key) {
        let watches = self.sessions.values_mut().flat_map(|session| &mut session.watch);
        for watch in watches.filter(|watch| watch.key == *key) {
            watch.ever = true;
            watch.object = None;
        }
    }

    pub(super) fn no_longer_present(&mut self, number: ObjectNumber) {
        let key = &self.objects[number.0 as usize].key;
        let watches = self.sessions.values_mut().flat_map(|session| &mut session.watch);
        for watch in watches.filter(|watch| watch.key == *key) {
            watch.always = false;
            watch.object = None;
        }
    }

    /// Serial of the session under this id, to tell a later one apart.
    pub fn serial(&self, request: &str) -> Option<u64> {
        self.sessions.get(request).map(|session| session.serial)
    }

    /// An answer to `query` or `wait`: a count once, then 0; nothing only while it may be looking.
    /// `serial` is the session that a parked wait was about.
    pub fn result(&mut self, request: &str, serial: Option<u64>, got: Option<u64>) -> Verdict {
        let forgotten = self.sessions.get(request).is_some_and(|known| known.is_forgotten(self));
        let now = self.now;
        let current = self.sessions.get_mut(request).filter(|known| Some(known.serial) == serial);
        let Some(session) = current else {
            return check(got == Some(0), "I-14: an unknown or replaced request has a result");
        };
        let Some(got) = got else {
            return check(!session.is_decided, "I-14: still loading, but it had its result");
        };
        if session.is_taken || session.has_ended || forgotten {
            // A session that may have been forgotten meanwhile is not surely used anew.
            if now < session.last_used.0 + self.rules.session_ttl {
                session.used(now);
            } else if !forgotten {
                session.last_used.1 = now;
            }
            return check(got == 0, "I-14: a result was delivered twice");
        }
        if !session.is_decided {
            // The engine was faster than the model can know: its work still goes on.
            let rows = session.rows.len().max(1);
            let leading = session.watch.chunks(rows).take_while(|c| c.iter().all(|c| c.ever));
            let high = leading.count() as u64;
            session.is_taken = true;
            session.is_vague = true;
            session.last_used.1 = now;
            return check(got <= high, "I-26: more chunks than were ever there");
        }
        let idle = now >= session.last_used.0 + self.rules.session_ttl;
        session.is_taken = true;
        let is_uncertain = session.is_vague || idle || now >= session.until.0;
        let ran_out = session.low > 0 && self.settled >= session.until.1;
        check(got == 0 || !ran_out, "F30: a hit was told after its leases had run out")?;
        let fits = (session.low as u64..=session.high as u64).contains(&got);
        if got == 0 && is_uncertain {
            session.last_used.1 = now;
            session.is_vague = true;
            return Ok(());
        }
        if !fits {
            let (low, high) = (session.low, session.high);
            return Err(format!("I-27, I-28: {got} chunks hit, not within {low}..={high}"));
        }
        session.used(now);
        session.learn_hit(got as u32);
        Ok(())
    }

    /// `free_lookup_locks`: gives back what this request holds of whole chunks in a range.
    pub fn free(&mut self, range: &Range, no_such_hold: bool) -> Verdict {
        let (now, is_working) = (self.now, self.is_working);
        let vague =
            |known: &Session| known.is_vague || now >= known.last_used.0 + self.rules.session_ttl;
        let known = self.sessions.get(&*range.request);
        let may_be_unknown = known.is_none_or(|known| vague(known) || known.has_ended);
        let forgotten = known.is_some_and(|known| known.is_forgotten(self));
        let named = known.filter(|known| !forgotten && known.speaks_of(range));
        if named.is_none() {
            let may_be_silent = range.is_empty();
            return check(no_such_hold || may_be_silent, "F01: a release that names nothing");
        }
        check(!no_such_hold || may_be_unknown, "F01: a good release was called wrong")?;
        if no_such_hold {
            self.sessions.remove(&*range.request);
            return Ok(());
        }
        let session = self.sessions.get_mut(&*range.request).expect("found above");
        if !session.is_decided {
            session.is_vague = true;
            session.last_used.1 = now;
            return Ok(());
        }
        session.is_taken = true;
        session.used(now);
        let rows = session.rows.len();
        let len = session.cells.len();
        let (first, end) = (range.first_chunk as usize * rows, range.end_chunk as usize * rows);
        let freed = first.min(len)..end.min(len).max(first.min(len));
        for cell in &mut session.cells[freed.clone()] {
            cell.least = 0;
            cell.most = if is_working { cell.most } else { 0 };
        }
        if is_working {
            session.freeing.push(freed);
        }
        Ok(())
    }

    /// `end_session`: the result is gone, leases linger once and for a fixed time (I-11, I-13).
    pub fn end_session(&mut self, request: &str) {
        let linger = self.now + self.rules.linger;
        let settled = self.settled;
        let Some(session) = self.sessions.get_mut(request) else { return };
        if session.has_ended {
            return;
        }
        session.has_ended = true;
        session.is_vague |= !session.is_decided;
        // What has run out already does not come back.
        if !session.is_decided || settled < session.until.1 {
            session.until = (session.until.0.min(linger), linger);
        }
    }

    /// Whether a retrieve of this range may, or must, find everything.
    pub(super) fn may_read(&self, range: &Range, scope: &Scope) -> Sure {
        let Some(session) = self.sessions.get(&*range.request) else { return Sure::No };
        if range.is_empty() || !session.speaks_of(range) {
            return Sure::No;
        }
        if !session.is_decided {
            return Sure::Maybe;
        }
        if session.is_over(self) {
            return Sure::No;
        }
        let mut sure = if session.is_alive(self) { Sure::Yes } else { Sure::Maybe };
        for chunk in range.first_chunk..range.end_chunk {
            let at = chunk as usize * session.rows.len() + scope.rank as usize;
            let Some(cell) = session.cells.get(at) else { return Sure::No };
            let hash = range.hashes[chunk as usize];
            if *cell.key.scope != *scope || cell.key.hash != hash || cell.most == 0 {
                return Sure::No;
            }
            let readable = cell.object.map_or(Sure::Maybe, |number| {
                let object = self.object(number);
                if self.is_resident(number) && !object.forced { Sure::Yes } else { Sure::No }
            });
            let left = if cell.least > 0 { Sure::Yes } else { Sure::Maybe };
            sure = sure.min(readable).min(left).min(cell.leased);
        }
        sure
    }

    /// A retrieve found everything: one reader of every cell has come.
    pub(super) fn consume(
        &mut self,
        range: &Range,
        rank: u32,
        objects: &[ObjectNumber],
    ) -> Verdict {
        let now = self.now;
        let session = self.sessions.get_mut(&*range.request).expect("asked for before");
        session.used(now);
        if !session.is_decided {
            session.is_vague = true;
            return Ok(());
        }
        for (chunk, number) in (range.first_chunk..range.end_chunk).zip(objects) {
            let at = chunk as usize * session.rows.len() + rank as usize;
            let cell = &mut session.cells[at];
            let same = cell.object.is_none_or(|object| object == *number);
            check(same, "I-1: a lease was answered with another object")?;
            cell.object = Some(*number);
            cell.least = cell.least.saturating_sub(1);
            cell.most -= 1;
        }
        Ok(())
    }

    /// Surely idle for so long that it is not known any more.
    pub fn has_forgotten(&self, request: &str) -> bool {
        self.sessions.get(request).is_some_and(|known| known.is_forgotten(self))
    }

    /// Ended by its scheduler, with leases that linger.
    pub fn has_ended(&self, request: &str) -> bool {
        self.sessions.get(request).is_some_and(|known| known.has_ended)
    }

    /// Whether something that can be read is held as well.
    pub fn holds_readable(&self) -> bool {
        let (surely, _) = self.held();
        surely.iter().any(|number| self.is_resident(*number) && !self.object(*number).forced)
    }

    /// Chunk hashes of the request's lookup, for its end.
    pub fn hashes_of(&self, request: &str) -> Option<Rc<[ChunkHash]>> {
        self.sessions.get(request).map(|session| session.hashes.clone())
    }

    /// Sessions that may still hold something.
    pub fn open_sessions(&self) -> usize {
        self.sessions.values().filter(|session| !session.is_over(self)).count()
    }
}
