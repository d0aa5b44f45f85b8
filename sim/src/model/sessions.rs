//! Lookups: what each may answer, and what it holds (I-3, I-11..I-14, I-26, I-28).

use super::orders::LONGEST;
use super::{Key, Model, ObjectNumber, Scope, Sure, Verdict, check};
use crate::calls::Range;
use crate::orders::Name;
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
    pub(super) rows: Vec<Rc<Scope>>,
    hashes: Rc<[ChunkHash]>,
    /// What each cell (chunk, row) has been since the lookup, until that is decided.
    watch: Vec<Watch>,
    pub(super) is_decided: bool,
    /// Nothing is certain of it: a release or an end may have met it while it was looking.
    pub(super) is_vague: bool,
    /// That is so for no other reason than releases, each of which comes to nothing if it was
    /// still looking afterwards.
    pub(super) was_freed: bool,
    /// There may have been fewer lease cells left than it asked for.
    may_be_short: bool,
    /// The hit lies within.
    low: u32,
    high: u32,
    pub(super) cells: Vec<Cell>,
    pub(super) is_taken: bool,
    pub(super) has_ended: bool,
    /// When its leases end, at the earliest and at the latest.
    pub(super) until: (Instant, Instant),
    pub(super) last_used: (Instant, Instant),
    /// Releases that may not have been acted upon yet.
    pub(super) freeing: Vec<core::ops::Range<usize>>,
    /// Since when it may wait for lower tiers, if it may.
    below_since: Option<Instant>,
    /// Something came between it and what lower tiers have.
    is_excused: bool,
    /// Chunks that L1 and lower tiers together surely had.
    low_below: u32,
}

#[derive(Clone, Debug)]
struct Watch {
    key: Key,
    /// Present all the time.
    always: bool,
    /// Present at some time.
    ever: bool,
    object: Option<ObjectNumber>,
    /// Where it is not in L1, a lower tier surely has it, and did so from the beginning.
    is_below: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub key: Key,
    /// The object, where there is only one that it can be.
    pub object: Option<ObjectNumber>,
    pub leased: Sure,
    /// Readers that have not come yet, at least and at most.
    pub least: u16,
    pub most: u16,
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
        // A lookup under way holds some of what it asks for.
        let asked = self.watch.iter().filter_map(|watch| model.index.get(&watch.key));
        maybe.extend(asked.copied());
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

    /// What a lookup asks for that goes on below L1.
    pub(super) fn looks_for(&self) -> impl Iterator<Item = &Key> {
        let is_looking = !self.is_decided && self.below_since.is_some();
        self.watch.iter().filter(move |_| is_looking).map(|watch| &watch.key)
    }

    /// Surely still there, leases and all.
    pub(super) fn is_alive(&self, model: &Model) -> bool {
        self.is_decided
            && !self.is_vague
            && model.now < self.until.0
            && model.now < self.last_used.0 + model.rules.session_ttl
    }

    /// Surely no lease is left.
    pub(super) fn is_over(&self, model: &Model) -> bool {
        let leases_over = self.is_decided && model.settled >= self.until.1;
        leases_over || self.is_forgotten(model)
    }

    /// Its leases may have run out, and may not be given back yet.
    pub(super) fn may_have_expired(&self, model: &Model) -> bool {
        model.now >= self.until.0 && model.settled < self.until.1
    }

    /// Cells that it is charged for, at most.
    pub(super) fn cells_at_most(&self) -> usize {
        self.cells.len() + self.watch.len()
    }

    /// Its result stands, as far as it can be told from what was there all the time and at some
    /// time since it began.
    fn decide(&mut self, until: Instant) {
        self.is_decided = true;
        let rows = self.rows.len().max(1);
        let watch = std::mem::take(&mut self.watch);
        let leading = |present: fn(&Watch) -> bool| {
            watch.chunks(rows).take_while(|chunk| chunk.iter().all(present)).count() as u32
        };
        self.high = leading(|cell| cell.ever);
        let is_exact = !self.is_vague && !self.may_be_short;
        self.low = if is_exact { leading(|cell| cell.always) } else { 0 };
        let known = |cell: &Watch| cell.always || cell.is_below;
        let known = watch.chunks(rows).take_while(|chunk| chunk.iter().all(known)).count() as u32;
        self.low_below = if is_exact && !self.is_excused { known } else { 0 };
        let certain = self.low as usize * rows;
        let cells = watch.into_iter().take(self.high as usize * rows).enumerate();
        let readers = self.readers;
        self.cells = cells
            .map(|(at, cell)| Cell {
                key: cell.key,
                object: cell.object,
                leased: if at < certain { Sure::Yes } else { Sure::Maybe },
                least: readers,
                most: readers,
            })
            .collect();
        if !self.has_ended {
            self.until.1 = until;
        }
    }

    /// Releases that were still on their way have arrived.
    fn finish_frees(&mut self) {
        for freed in self.freeing.drain(..) {
            let end = freed.end.min(self.cells.len());
            for cell in &mut self.cells[freed.start.min(end)..end] {
                cell.most = 0;
            }
        }
    }

    /// Surely idle for so long that nothing is known of it any more.
    pub(super) fn is_forgotten(&self, model: &Model) -> bool {
        model.settled >= self.last_used.1 + model.rules.session_ttl
    }

    pub(super) fn speaks_of(&self, range: &Range) -> bool {
        self.model == range.model && self.salt == range.salt && self.world_size == range.world_size
    }

    pub(super) fn used(&mut self, now: Instant) {
        if self.is_decided {
            self.last_used.0 = now;
        }
        self.last_used.1 = now;
    }

    /// It is not decided, and this is one of its keys.
    pub(super) fn watches(&self, key: &Key) -> bool {
        self.watch.iter().any(|watch| watch.key == *key)
    }

    /// It surely holds what is under this name.
    pub(super) fn holds_some(&self, model: &Model, name: &Name) -> bool {
        self.is_alive(model)
            && self
                .cells
                .iter()
                .any(|cell| cell.leased == Sure::Yes && cell.least > 0 && cell.key.name() == *name)
    }

    fn learn_hit(&mut self, hit: u32) {
        (self.low, self.high) = (hit, hit);
        self.cells.truncate(hit as usize * self.rows.len());
        for cell in &mut self.cells {
            cell.leased = Sure::Yes;
        }
    }

    /// It has no result yet: releases so far came to nothing.
    fn still_looks(&mut self) {
        if !self.is_decided && std::mem::take(&mut self.was_freed) {
            self.is_vague = false;
        }
    }

    /// Chunks that the answer lies between.
    pub fn bounds(&self) -> (u32, u32) {
        (self.low, self.high)
    }
}

impl Model {
    /// `lookup`, after it was answered. A running one under the same id has ended (I-12). It is
    /// refused where there are too many sessions.
    pub fn lookup(&mut self, range: &Range, refused: bool) -> Verdict {
        if let Some(replaced) = self.sessions.remove(&range.request) {
            self.leave_session(&replaced);
        }
        self.past.remove(&range.request);
        if refused {
            // What is left of those that have ended stands in the table until its work is done.
            let full = self.sessions_at_most() >= self.rules.sessions || self.before.is_working;
            return check(full, "P3: a lookup was refused by a table with room");
        }
        let session = self.new_session(range);
        let waits = session.below_since.is_some();
        self.sessions.insert(range.request.clone(), session);
        if !self.turn.is_spent && !waits {
            let until = self.now + self.rules.read_ttl;
            let session = self.sessions.get_mut(&range.request).expect("inserted above");
            session.decide(until);
        }
        Ok(())
    }

    fn new_session(&mut self, range: &Range) -> Session {
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
                let is_below = !always
                    && self.index.get(&key).is_none_or(|n| self.is_loading(*n))
                    && self.surely_loadable(&key);
                let object = object.filter(|_| always);
                watch.push(Watch { key, always, ever, object, is_below });
            }
        }
        // What L1 has not, lower tiers are asked for.
        let is_short = watch.iter().any(|watch| !watch.always);
        let below_since = (is_short && self.goes_below()).then_some(self.now);
        for watch in &watch {
            if let Some(number) = self.index.get(&watch.key) {
                // Who finds it is the second to want it.
                let object = &mut self.objects[number.0 as usize];
                object.temporary = object.temporary.min(Sure::Maybe);
            }
        }
        let may_be_short = self.cells_at_most() + watch.len() > self.rules.lease_cells;
        Session {
            serial: self.sessions_made,
            model: range.model.clone(),
            salt: range.salt.clone(),
            world_size: range.world_size,
            readers: range.readers,
            rows,
            hashes: range.hashes.clone(),
            watch,
            is_decided: false,
            is_vague: false,
            was_freed: false,
            may_be_short,
            low: 0,
            high: 0,
            cells: Vec::new(),
            is_taken: false,
            has_ended: false,
            until: (self.now + self.rules.read_ttl, Instant::FAR),
            last_used: (self.now, self.now),
            freeing: Vec::new(),
            below_since,
            is_excused: self.rules.few_loads,
            low_below: 0,
        }
    }

    /// Something went wrong below L1, or a client has begun to write one of these keys.
    pub(super) fn excuse(&mut self, written: Option<&Key>) {
        for session in self.sessions.values_mut().filter(|session| !session.is_decided) {
            let is_written = written.is_none_or(|key| session.watches(key));
            session.is_excused |= is_written;
        }
    }

    /// No work is left over: every lookup has its result, every release has arrived.
    pub(super) fn decide_lookups(&mut self) {
        let until = self.now + self.rules.read_ttl;
        let (waits, settled) = (self.waits_below(), self.settled);
        for session in self.sessions.values_mut() {
            session.finish_frees();
            let may_wait = session.below_since.is_some_and(|since| since + LONGEST > settled);
            if !(session.is_decided || waits && may_wait) {
                session.decide(until);
            }
        }
    }

    /// Nothing is left of sessions that were ended, or idle for too long: they are not known.
    pub(super) fn forget_past(&mut self) {
        let settled = self.settled;
        let is_past = |session: &Session, ttl| {
            let is_ended = session.has_ended && settled >= session.until.1;
            is_ended || settled >= session.last_used.1 + ttl
        };
        let ttl = self.rules.session_ttl;
        let past = &mut self.past;
        self.sessions.retain(|request, session| {
            let is_past = is_past(session, ttl);
            if is_past {
                past.insert(request.clone(), session.has_ended);
            } else if settled >= session.until.1 {
                session.cells.clear();
            }
            !is_past
        });
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
        let goes_below = self.goes_below();
        let key = &self.objects[number.0 as usize].key;
        for session in self.sessions.values_mut() {
            for watch in session.watch.iter_mut().filter(|watch| watch.key == *key) {
                watch.always = false;
                watch.object = None;
                // What has gone before the lookup came to it is asked for below.
                if goes_below && session.below_since.is_none() {
                    session.below_since = Some(self.now);
                }
            }
        }
    }

    /// Serial of the session under this id, to tell a later one apart.
    pub fn serial(&self, request: &str) -> Option<u64> {
        self.sessions.get(request).map(|session| session.serial)
    }

    /// An answer to `query` or `wait`: a count once, then 0; nothing only while it may be looking.
    /// `serial` is the session that a parked wait was about.
    pub fn result(
        &mut self,
        request: &str,
        serial: Option<u64>,
        got: Option<u64>,
        is_miss: bool,
    ) -> Verdict {
        let forgotten = self.sessions.get(request).is_some_and(|known| known.is_forgotten(self));
        let now = self.now;
        let current = self.sessions.get_mut(request).filter(|known| Some(known.serial) == serial);
        let Some(session) = current else {
            return check(got == Some(0), "I-14: an unknown or replaced request has a result");
        };
        let Some(got) = got else {
            session.still_looks();
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
            // It was decided some time since it began; now it is known how.
            let until = now + self.rules.read_ttl;
            session.decide(until);
            session.is_taken = true;
            session.last_used.1 = now;
            check(got <= session.high as u64, "I-26: more chunks than were ever there")?;
            let idle = now >= session.last_used.0 + self.rules.session_ttl;
            let ran_out = got == 0 && (idle || now >= session.until.0);
            check(ran_out || got >= session.low as u64, "I-27: less than was there all the time")?;
            let is_less = is_miss && !ran_out && got < session.low_below as u64;
            check(!is_less, "I-27: less than L1 and lower tiers had all the time")?;
            if !session.is_vague || got > 0 {
                session.learn_hit(got as u32);
            }
            return Ok(());
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
        let is_less = is_miss && got < session.low_below as u64;
        check(!is_less, "I-27: less than L1 and lower tiers had all the time")?;
        session.used(now);
        session.learn_hit(got as u32);
        Ok(())
    }

    /// Idle for so long that it is not known any more.
    pub fn has_forgotten(&self, request: &str) -> bool {
        self.past.get(request) == Some(&false)
    }

    /// Ended by its scheduler, with leases that linger or have lingered.
    pub fn has_ended(&self, request: &str) -> bool {
        self.sessions.get(request).is_some_and(|known| known.has_ended)
            || self.past.get(request) == Some(&true)
    }

    /// Whether a wait may be parked for this session: its lookup may be under way (I-10).
    pub fn may_look(&self, request: &str, serial: Option<u64>) -> bool {
        self.sessions.get(request).is_some_and(|known| {
            Some(known.serial) == serial && !known.is_decided && !known.has_ended
        })
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
