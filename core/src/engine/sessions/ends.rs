//! Every way in which a session gives back what it holds.

use super::{Orphan, Phase, Sessions};
use crate::engine::alarms::Alarm;
use crate::engine::jobs::Job;
use crate::engine::l1::leases::LeaseSet;
use crate::engine::l1::{Found, Key};
use crate::engine::turn::Turn;
use crate::event::Keys;
use crate::fact::{Fact, LeaseEnd};
use crate::limits;
use crate::names::{ChunkHash, ObjectId};
use crate::slots::SlotName;
use crate::time::Duration;
use smallvec::SmallVec;

/// Leases that end, or are read, before their lookup has come to telling of them.
pub(super) type Begun = SmallVec<[ObjectId; 8]>;

/// Tells that these leases have begun, now that something happens to them: later their objects may
/// be gone (I-49, I-52).
pub(super) fn tell_begun(turn: &mut Turn, begun: &Begun, readers: u16) {
    let mark = turn.out.mark();
    for object in begun {
        turn.l1.touch(*object);
        turn.l1.push_key(*object, turn.out);
    }
    let keys = turn.out.keys_since(mark);
    if !keys.is_empty() {
        turn.out.tell(Fact::ReadReserved { keys, readers });
        turn.out.tell(Fact::Accessed { keys });
    }
}

impl Sessions {
    /// Gives back what is left of whole chunks in a range. False where the request holds nothing
    /// under this key.
    pub fn free(&mut self, turn: &mut Turn, keys: &Keys) -> bool {
        let Some(name) = self.find(keys.request) else { return keys.chunks().is_empty() };
        if planted!(turn.config, 17) && self.is_looking(name) {
            return true;
        }
        let session = self.sessions.find(name).expect("found above");
        if !session.speaks_of(keys) {
            return false;
        }
        if planted!(turn.config, 32) && self.is_looking(name) {
            let session = self.sessions.find_mut(name).expect("found above");
            for at in 0..session.set.len() {
                session.set.end_cell(turn.l1, at, LeaseEnd::Freed);
            }
        }
        if self.is_looking(name) {
            return true;
        }
        self.take_result(turn, name);
        let session = self.sessions.find(name).expect("found above");
        let end = keys.end_chunk.min(session.hit);
        let session = self.sessions.find_mut(name).expect("found above");
        let is_new = session.frees.is_empty();
        // More ranges at once than this come from no engine; what they name ends with the session.
        if keys.first_chunk < end && session.frees.len() < FREES_MAX {
            session.frees.push((keys.first_chunk, end));
        }
        if is_new && !self.free_some(turn, name) {
            turn.jobs.push(Job::FreeRange { session: name });
        }
        true
    }

    /// Goes on giving back the ranges that were asked for. True when there is none left.
    pub fn free_some(&mut self, turn: &mut Turn, name: SlotName) -> bool {
        let Some(session) = self.sessions.find_mut(name) else { return true };
        let (rows, readers, untold) = (session.set.rows(), session.readers, session.untold());
        let mark = turn.out.mark();
        let mut begun = Begun::new();
        while let Some((chunk, end)) = session.frees.last_mut() {
            if turn.is_spent() {
                break;
            }
            for row in 0..rows {
                turn.spend(1);
                let at = (*chunk * rows + row) as usize;
                let is_first = at < untold && session.set.is_untouched(at, readers);
                if let Some(object) = session.set.end_cell(turn.l1, at, LeaseEnd::Freed) {
                    turn.l1.push_key(object, turn.out);
                    begun.extend(is_first.then_some(object));
                }
            }
            *chunk += 1;
            if *chunk >= *end {
                session.frees.pop();
            }
        }
        let keys = turn.out.keys_since(mark);
        tell_begun(turn, &begun, readers);
        if !keys.is_empty() {
            turn.out.tell(Fact::ReadFinished { keys, why: LeaseEnd::Freed });
        }
        session.frees.is_empty()
    }

    /// The scheduler is done with a request. Its leases linger; its result is gone.
    pub fn end(&mut self, turn: &mut Turn, request: &str, hashes: &[ChunkHash]) {
        let Some(name) = self.find(request) else { return };
        let session = self.sessions.find(name).expect("found above");
        // It has ended before: the linger does not begin anew (I-13).
        if let Phase::Lingering { .. } = session.phase {
            return;
        }
        self.touch_all(turn, name, hashes);
        self.settle_untaken(name);
        let unfinished = self.is_looking(name);
        let session = self.sessions.find_mut(name).expect("found above");
        if planted!(turn.config, 15) && unfinished && !hashes.is_empty() {
            session.set = LeaseSet::default();
        }
        session.hit = if unfinished { 0 } else { session.hit };
        self.answer_waits(turn, name);
        let session = self.sessions.find_mut(name).expect("found above");
        // What is still to be told of is told before its end, however it ends (I-49).
        let left = session.untold();
        if unfinished || (session.set.units() == 0 && left == 0) {
            self.end_now(turn, name, LeaseEnd::SessionEnded);
            return;
        }
        session.phase = Phase::Lingering { left };
        if let Some(timer) = session.lease_timer.take() {
            turn.alarms.cancel(timer);
        }
        let linger = turn.now + Duration::from_secs(limits::LINGER_SECS);
        let until = session.leases_until;
        let at = if planted!(turn.config, 29) { linger } else { until.min(linger) };
        session.lease_timer = Some(turn.alarms.arm(at, Alarm::LeaseExpiry, name));
    }

    /// The read TTL of a set, or the linger after its session, has passed.
    pub fn leases_expired(&mut self, turn: &mut Turn, name: SlotName) {
        let name = match planted!(turn.config, 1) {
            true => self.sessions.at(name.index).map_or(name, |(newest, _)| newest),
            false => name,
        };
        let Some(session) = self.sessions.find_mut(name) else { return };
        session.lease_timer = None;
        if let Phase::Lingering { .. } = session.phase {
            self.end_now(turn, name, LeaseEnd::SessionEnded);
            return;
        }
        let untold = session.untold();
        // What was still to be touched is no longer this session's, and what nobody holds any more
        // is not promised to a late poll (F30).
        session.phase = Phase::Found;
        session.hit = 0;
        session.charged = 0;
        session.frees.clear();
        let rows = session.set.rows();
        let set = core::mem::replace(&mut session.set, LeaseSet::new(rows, 0));
        let readers = session.readers;
        self.orphan(turn, set, (untold, readers), LeaseEnd::Expired);
    }

    /// An idle session has run out, or was used meanwhile and gets a new deadline.
    pub fn idle(&mut self, turn: &mut Turn, name: SlotName) {
        let Some(session) = self.sessions.find_mut(name) else { return };
        session.idle_timer = None;
        if planted!(turn.config, 16) && matches!(session.phase, Phase::Lingering { .. }) {
            return;
        }
        let until = session.last_used + turn.config.session_ttl;
        if until > turn.now {
            session.idle_timer = Some(turn.alarms.arm(until, Alarm::SessionExpiry, name));
        } else {
            self.end_now(turn, name, LeaseEnd::Expired);
        }
    }

    /// Gives back cells of a set whose session is gone. True when none is left.
    pub fn end_orphan(&mut self, turn: &mut Turn, name: SlotName) -> bool {
        let Some(orphan) = self.orphans.find_mut(name) else { return true };
        let mark = turn.out.mark();
        while orphan.next < orphan.set.len() && !turn.is_spent() {
            turn.spend(1);
            // Nobody was told that it begins, nor that it ends.
            let is_told = orphan.next >= orphan.untold
                || !orphan.set.is_untouched(orphan.next, orphan.readers);
            let ended = orphan.set.end_cell(turn.l1, orphan.next, orphan.why);
            if let Some(object) = ended.filter(|_| is_told) {
                turn.l1.push_key(object, turn.out);
            }
            orphan.next += 1;
        }
        let keys = turn.out.keys_since(mark);
        if !keys.is_empty() {
            turn.out.tell(Fact::ReadFinished { keys, why: orphan.why });
        }
        let done = orphan.next == orphan.set.len();
        if done {
            self.cells -= orphan.set.len();
            self.orphans.remove(name);
        }
        done
    }

    /// Removes a session; what its set still holds is given back, in slices if it is large.
    pub(super) fn end_now(&mut self, turn: &mut Turn, name: SlotName, why: LeaseEnd) {
        self.settle_untaken(name);
        let looking = self.is_looking(name);
        if looking {
            let session = self.sessions.find_mut(name).expect("ended once");
            session.hit = 0;
        }
        self.answer_waits(turn, name);
        let session = self.sessions.remove(name).expect("ended once");
        let beyond = session.charged - session.set.len();
        if matches!(session.phase, Phase::Seeking) {
            self.abandoned.push((name, beyond));
        } else {
            self.cells -= beyond;
        }
        self.index.remove(&session.request);
        let is_left = planted!(turn.config, 1) && why == LeaseEnd::Expired;
        let lease_timer = session.lease_timer.filter(|_| !is_left);
        for timer in [lease_timer, session.idle_timer].into_iter().flatten() {
            turn.alarms.cancel(timer);
        }
        turn.spend(session.scopes.len());
        for scope in &session.scopes {
            turn.l1.scopes.release(*scope);
        }
        if let Some(tenant) = session.tenant {
            turn.l1.scopes.release_tenant(tenant);
        }
        let untold = session.untold();
        self.orphan(turn, session.set, (untold, session.readers), why);
    }

    /// Takes over a set whose cells are still charged.
    pub(super) fn orphan(
        &mut self,
        turn: &mut Turn,
        set: LeaseSet,
        (untold, readers): (usize, u16),
        why: LeaseEnd,
    ) {
        if set.units() == 0 && untold == 0 {
            self.cells -= set.len();
            return;
        }
        let orphan = Orphan { set, next: 0, untold, readers, why };
        let name = self.orphans.insert(orphan).expect("lookups stop before it is full");
        if !self.end_orphan(turn, name) {
            turn.jobs.push(Job::EndLeases { orphan: name });
        }
    }

    /// Recency of every chunk of the request, tail first (spec/storage §3.2). Recency is worth one
    /// turn at the most: a longer request is touched as far as that goes, from its tail.
    pub(super) fn touch_all(&mut self, turn: &mut Turn, name: SlotName, hashes: &[ChunkHash]) {
        let session = self.sessions.find(name).expect("touched while it exists");
        let scopes = session.scopes.clone();
        let mark = turn.out.mark();
        'chunks: for hash in hashes.iter().rev() {
            for scope in scopes.iter().rev() {
                if turn.is_spent() {
                    break 'chunks;
                }
                turn.spend(1);
                if let Found::Resident(id) = turn.l1.find(&Key { hash: *hash, scope: *scope }) {
                    turn.l1.touch(id);
                    turn.l1.push_key(id, turn.out);
                }
            }
        }
        let keys = turn.out.keys_since(mark);
        if !keys.is_empty() {
            turn.out.tell(Fact::Accessed { keys });
        }
    }
}

/// Ranges of one session that may be on their way back at once.
const FREES_MAX: usize = 8;
