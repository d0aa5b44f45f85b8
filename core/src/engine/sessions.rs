//! Sessions: one per request id with a lookup, from the lookup to the end of its leases.
//!
//! The invariant: whatever a session promises is in its own lease set, and every way of leaving
//! (end, replacement, expiry) gives the whole set back (I-11, I-12). A lookup is probed, leased and
//! touched a slice at a time; its result is handed out once (I-14).

mod look;

use crate::Map;
use crate::effect::Answer;
use crate::engine::alarms::{Alarm, Timer};
use crate::engine::fold::{Fold, Window};
use crate::engine::jobs::Job;
use crate::engine::l1::leases::{LeaseSet, Unreadable};
use crate::engine::l1::{Found, Key};
use crate::engine::scopes::ScopeKey;
use crate::engine::turn::Turn;
use crate::event::Keys;
use crate::fact::{EarlyExit, Fact, LeaseEnd, LookupStop, ReadFailure};
use crate::limits;
use crate::map_with_capacity;
use crate::names::{ChunkHash, KvRank, Layout, ObjectId, Reply, ScopeId, TenantId};
use crate::slots::{SlotName, Slots};
use crate::time::{Duration, Instant};
use alloc::sync::Arc;
use alloc::vec::Vec;
use smallvec::SmallVec;

#[derive(Clone, Debug)]
enum Phase {
    /// Chunks are probed; `hashes` are kept only when they do not fit one turn.
    Looking {
        fold: Fold,
        next: u32,
        hashes: Vec<ChunkHash>,
    },
    /// The result stands; cells `..left` are still to be touched, from the last to the first.
    Touching {
        left: usize,
    },
    Found,
    /// Ended by the scheduler; leases linger for a worker on another connection (design §7).
    Lingering,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    session: SlotName,
    reply: Reply,
    timer: Option<Timer>,
}

#[derive(Clone, Debug)]
pub(crate) struct Session {
    request: Arc<str>,
    model: Arc<str>,
    salt: Arc<str>,
    world_size: u32,
    tenant: Option<TenantId>,
    scopes: SmallVec<[ScopeId; 4]>,
    readers: u16,
    requested: u32,
    /// Chunks that the caps let a lookup take.
    reach: u32,
    hit: u32,
    stop: LookupStop,
    skipped: Option<EarlyExit>,
    phase: Phase,
    taken: bool,
    pub set: LeaseSet,
    waits: SmallVec<[SlotName; 1]>,
    lease_timer: Option<Timer>,
    idle_timer: Option<Timer>,
    last_used: Instant,
}

/// Lease cells whose session is gone, given back a slice at a time.
#[derive(Clone, Debug)]
pub(crate) struct Orphan {
    pub set: LeaseSet,
    next: usize,
    why: LeaseEnd,
}

#[derive(Clone, Debug)]
pub struct Sessions {
    pub(crate) sessions: Slots<Session>,
    index: Map<Arc<str>, SlotName>,
    waits: Slots<Wait>,
    pub(crate) orphans: Slots<Orphan>,
    /// Lease cells over all sessions and orphans.
    pub(crate) cells: usize,
    /// Lookups whose result nobody has taken yet (metrics row 41).
    pub(crate) untaken: u64,
}

impl Sessions {
    pub fn new(seed: u64) -> Sessions {
        Sessions {
            sessions: Slots::with_limit(limits::SESSIONS_MAX),
            index: map_with_capacity(limits::SESSIONS_MAX, seed ^ 7),
            waits: Slots::with_limit(limits::WAITS_MAX),
            orphans: Slots::with_limit(limits::SESSIONS_MAX),
            cells: 0,
            untaken: 0,
        }
    }

    /// Starts a lookup. `layout` is what is registered for (model, world size), if anything is.
    /// The session can be found before the request is answered.
    pub fn lookup(&mut self, turn: &mut Turn, keys: &Keys, layout: Option<Layout>) {
        if let Some(&name) = self.index.get(keys.request) {
            self.end_now(turn, name, LeaseEnd::Replaced);
        }
        if self.sessions.is_full() || self.orphans.is_full() {
            return;
        }
        let mut session = new_session(turn, keys);
        match layout {
            None => session.skipped = Some(EarlyExit::NoGpuContext),
            Some(_) if keys.end_chunk == 0 => {
                session.skipped = Some(EarlyExit::EmptyChunkHashes);
            }
            Some(layout) => self.aim(turn, &mut session, layout),
        }
        self.untaken += 1;
        let request = session.request.clone();
        let name = self.sessions.insert(session).ok().expect("there is room, checked above");
        self.index.insert(request, name);
        let at = turn.now + turn.config.session_ttl;
        let timer = turn.alarms.arm(at, Alarm::SessionExpiry, name);
        let session = self.sessions.find_mut(name).expect("inserted above");
        session.idle_timer = Some(timer);
        if let Phase::Looking { .. } = session.phase
            && !self.probe(turn, name, Some(keys.hashes))
        {
            turn.jobs.push(Job::Lookup { session: name });
        }
    }

    /// Resolves the rows of a lookup. Where a row has no scope, nothing was ever stored in it.
    fn aim(&self, turn: &mut Turn, session: &mut Session, layout: Layout) {
        let scopes = &mut turn.l1.scopes;
        let facts = &mut turn.out.facts;
        let Some(tenant) = scopes.name_tenant(&session.model, &session.salt, facts) else {
            session.stop = LookupStop::NoRoom;
            return;
        };
        scopes.retain_tenant(tenant);
        session.tenant = Some(tenant);
        for rank in 0..session.world_size {
            let Some(rank) = KvRank::of(session.world_size, rank) else { break };
            let key = ScopeKey { tenant, rank, group: 0, layout };
            let Some(scope) = scopes.scope(&key) else { break };
            session.scopes.push(scope);
        }
        let rows = session.scopes.len() as u32;
        if rows < session.world_size {
            let nobody = rows == 0;
            session.stop = if nobody { LookupStop::Absent } else { LookupStop::RankMissing };
            return;
        }
        let room = (limits::LEASE_CELLS_MAX - self.cells) / rows as usize;
        session.reach = session.requested.min(room as u32);
        let fold = Fold::new((0..rows).map(|_| Window::None));
        session.set = LeaseSet::new(rows, 0);
        session.phase = Phase::Looking { fold, next: 0, hashes: Vec::new() };
    }

    /// Goes on probing and touching. True when the lookup needs no further turn.
    pub fn probe(&mut self, turn: &mut Turn, name: SlotName, hashes: Option<&[ChunkHash]>) -> bool {
        let Some(session) = self.sessions.find_mut(name) else { return true };
        if let Phase::Looking { .. } = session.phase {
            let before = session.set.len();
            let decided = session.look(turn, hashes);
            self.cells = self.cells + session.set.len() - before;
            if !decided {
                return false;
            }
            self.conclude(turn, name);
        }
        self.touch_some(turn, name)
    }

    /// The result stands: leases start to run, waiters are answered.
    fn conclude(&mut self, turn: &mut Turn, name: SlotName) {
        let session = self.sessions.find_mut(name).expect("concluded while it exists");
        let before = session.set.len();
        session.trim(turn);
        self.cells -= before - session.set.len();
        let cells = session.set.len();
        session.phase = Phase::Touching { left: cells };
        if cells > 0 {
            let at = turn.now + turn.config.read_ttl;
            session.lease_timer = Some(turn.alarms.arm(at, Alarm::LeaseExpiry, name));
        }
        if cells > 0 {
            let mark = turn.out.mark();
            for cell in session.set.cells() {
                turn.l1.push_key(cell.object, turn.out);
            }
            let (keys, readers) = (turn.out.keys_since(mark), session.readers);
            turn.out.tell(Fact::ReadReserved { keys, readers });
        }
        self.answer_waits(turn, name);
    }

    fn touch_some(&mut self, turn: &mut Turn, name: SlotName) -> bool {
        let session = self.sessions.find_mut(name).expect("touched while it exists");
        let Phase::Touching { left } = &mut session.phase else { return true };
        let mark = turn.out.mark();
        while *left > 0 && !turn.is_spent() {
            *left -= 1;
            turn.spend(1);
            let object = session.set.cells()[*left].object;
            turn.l1.touch(object);
            turn.l1.push_key(object, turn.out);
        }
        let done = *left == 0;
        let keys = turn.out.keys_since(mark);
        if !keys.is_empty() {
            turn.out.tell(Fact::Accessed { keys });
        }
        if done {
            session.phase = Phase::Found;
        }
        done
    }

    pub fn query(&mut self, turn: &mut Turn, reply: Reply, request: &str) {
        let answer = match self.find(request) {
            None => Answer::Count(0),
            Some(name) if self.is_looking(name) => Answer::None,
            Some(name) => Answer::Count(self.take_result(turn, name)),
        };
        turn.out.answer(reply, answer);
    }

    pub fn wait(&mut self, turn: &mut Turn, reply: Reply, request: &str, wait: Duration) {
        let looking = self.find(request).filter(|name| self.is_looking(*name));
        let Some(session) = looking.filter(|_| !wait.is_zero() && !self.waits.is_full()) else {
            return self.query(turn, reply, request);
        };
        let wait_of = Wait { session, reply, timer: None };
        let name = self.waits.insert(wait_of).ok().expect("room was checked");
        let timer = turn.alarms.arm(turn.now + wait, Alarm::WaitTimeout, name);
        self.waits.find_mut(name).expect("inserted above").timer = Some(timer);
        self.sessions.find_mut(session).expect("found above").waits.push(name);
    }

    /// A parked wait has run out: still loading.
    pub fn wait_expired(&mut self, turn: &mut Turn, wait: SlotName) {
        let Some(wait_of) = self.waits.remove(wait) else { return };
        if let Some(session) = self.sessions.find_mut(wait_of.session) {
            session.waits.retain(|other| *other != wait);
        }
        turn.out.answer(wait_of.reply, Answer::None);
    }

    /// Gives back what is left of whole chunks in a range. False where the request holds nothing
    /// under this key.
    pub fn free(&mut self, turn: &mut Turn, keys: &Keys) -> bool {
        let Some(name) = self.find(keys.request) else { return keys.chunks().is_empty() };
        let session = self.sessions.find(name).expect("found above");
        if !session.speaks_of(keys) {
            return false;
        }
        if self.is_looking(name) {
            return true;
        }
        self.take_result(turn, name);
        let session = self.sessions.find(name).expect("found above");
        let end = keys.end_chunk.min(session.hit);
        self.free_some(turn, name, keys.first_chunk, end);
        true
    }

    /// Frees chunks from `next` on; what does not fit this turn becomes a job.
    pub fn free_some(&mut self, turn: &mut Turn, name: SlotName, next: u32, end: u32) {
        let Some(session) = self.sessions.find_mut(name) else { return };
        let rows = session.set.rows();
        let mark = turn.out.mark();
        let mut chunk = next;
        while chunk < end && !turn.is_spent() {
            for row in 0..rows {
                turn.spend(1);
                let at = (chunk * rows + row) as usize;
                if let Some(object) = session.set.end_cell(turn.l1, at, LeaseEnd::Freed) {
                    turn.l1.push_key(object, turn.out);
                }
            }
            chunk += 1;
        }
        let keys = turn.out.keys_since(mark);
        if !keys.is_empty() {
            turn.out.tell(Fact::ReadFinished { keys, why: LeaseEnd::Freed });
        }
        if chunk < end {
            turn.jobs.push(Job::FreeRange { session: name, next: chunk, end });
        }
    }

    /// The scheduler is done with a request. Its leases linger; its result is gone.
    pub fn end(&mut self, turn: &mut Turn, request: &str, hashes: &[ChunkHash]) {
        let Some(name) = self.find(request) else { return };
        self.touch_all(turn, name, hashes);
        self.settle_untaken(name);
        let unfinished = self.is_looking(name);
        let session = self.sessions.find_mut(name).expect("found above");
        session.hit = if unfinished { 0 } else { session.hit };
        self.answer_waits(turn, name);
        let session = self.sessions.find_mut(name).expect("found above");
        if unfinished || session.set.units() == 0 {
            self.end_now(turn, name, LeaseEnd::SessionEnded);
            return;
        }
        session.phase = Phase::Lingering;
        if let Some(timer) = session.lease_timer.take() {
            turn.alarms.cancel(timer);
        }
        let at = turn.now + Duration::from_secs(limits::LINGER_SECS);
        session.lease_timer = Some(turn.alarms.arm(at, Alarm::LeaseExpiry, name));
    }

    /// The read TTL of a set, or the linger after its session, has passed.
    pub fn leases_expired(&mut self, turn: &mut Turn, name: SlotName) {
        let Some(session) = self.sessions.find_mut(name) else { return };
        session.lease_timer = None;
        if let Phase::Lingering = session.phase {
            self.end_now(turn, name, LeaseEnd::SessionEnded);
            return;
        }
        let rows = session.set.rows();
        let set = core::mem::replace(&mut session.set, LeaseSet::new(rows, 0));
        self.orphan(turn, set, LeaseEnd::Expired);
    }

    /// An idle session has run out, or was used meanwhile and gets a new deadline.
    pub fn idle(&mut self, turn: &mut Turn, name: SlotName) {
        let Some(session) = self.sessions.find_mut(name) else { return };
        session.idle_timer = None;
        let until = session.last_used + turn.config.session_ttl;
        if until > turn.now {
            session.idle_timer = Some(turn.alarms.arm(until, Alarm::SessionExpiry, name));
        } else {
            self.end_now(turn, name, LeaseEnd::Expired);
        }
    }

    /// Takes one unit of every cell of a range; each becomes a pin of the caller. All or nothing.
    pub fn consume(
        &mut self,
        turn: &mut Turn,
        keys: &Keys,
        scope: ScopeId,
        row: u32,
    ) -> Result<Vec<ObjectId>, ReadFailure> {
        let name = *self.index.get(keys.request).ok_or(ReadFailure::NotLeased)?;
        let session = self.sessions.find_mut(name).expect("the index names live sessions");
        if !session.speaks_of(keys) {
            return Err(ReadFailure::NotLeased);
        }
        let chunks = keys.chunks();
        let checked = session.set.check(turn.l1, row, scope, chunks.clone(), keys.hashes);
        checked.map_err(|why| match why {
            Unreadable::NotLeased => ReadFailure::NotLeased,
            Unreadable::NotFound => ReadFailure::NotFound,
            Unreadable::OtherKey => ReadFailure::Layout,
        })?;
        session.last_used = turn.now;
        Ok(chunks.map(|chunk| session.set.consume(turn.l1, chunk, row)).collect())
    }

    /// Every parked wait gets an answer: the server goes down.
    pub fn finish(&mut self, turn: &mut Turn) {
        let parked: Vec<SlotName> = self.waits.iter().map(|(name, _)| name).collect();
        for name in parked {
            let wait = self.waits.remove(name).expect("listed above");
            wait.timer.iter().for_each(|timer| turn.alarms.cancel(*timer));
            if let Some(session) = self.sessions.find_mut(wait.session) {
                session.waits.clear();
            }
            turn.out.answer(wait.reply, Answer::Count(0));
        }
    }

    /// Gives back cells of a set whose session is gone. True when none is left.
    pub fn end_orphan(&mut self, turn: &mut Turn, name: SlotName) -> bool {
        let Some(orphan) = self.orphans.find_mut(name) else { return true };
        let mark = turn.out.mark();
        while orphan.next < orphan.set.len() && !turn.is_spent() {
            turn.spend(1);
            if let Some(object) = orphan.set.end_cell(turn.l1, orphan.next, orphan.why) {
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
    fn end_now(&mut self, turn: &mut Turn, name: SlotName, why: LeaseEnd) {
        self.settle_untaken(name);
        let looking = self.is_looking(name);
        if looking {
            let session = self.sessions.find_mut(name).expect("ended once");
            session.hit = 0;
        }
        self.answer_waits(turn, name);
        let session = self.sessions.remove(name).expect("ended once");
        self.index.remove(&session.request);
        for timer in [session.lease_timer, session.idle_timer].into_iter().flatten() {
            turn.alarms.cancel(timer);
        }
        if let Some(tenant) = session.tenant {
            turn.l1.scopes.release_tenant(tenant);
        }
        self.orphan(turn, session.set, why);
    }

    fn orphan(&mut self, turn: &mut Turn, set: LeaseSet, why: LeaseEnd) {
        if set.units() == 0 {
            self.cells -= set.len();
            return;
        }
        let orphan = Orphan { set, next: 0, why };
        let name = self.orphans.insert(orphan).ok().expect("lookups stop while it is full");
        if !self.end_orphan(turn, name) {
            turn.jobs.push(Job::EndLeases { orphan: name });
        }
    }

    /// Recency of every chunk of the request, tail first (spec/storage §3.2). Recency is worth one
    /// turn at the most: a longer request is touched as far as that goes, from its tail.
    fn touch_all(&mut self, turn: &mut Turn, name: SlotName, hashes: &[ChunkHash]) {
        let session = self.sessions.find(name).expect("touched while it exists");
        let scopes = session.scopes.clone();
        let mark = turn.out.mark();
        for hash in hashes.iter().rev() {
            for scope in scopes.iter().rev() {
                if turn.is_spent() {
                    break;
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

    /// Hands the result out: once, then 0.
    fn take_result(&mut self, turn: &mut Turn, name: SlotName) -> u64 {
        let session = self.sessions.find_mut(name).expect("found by the caller");
        session.last_used = turn.now;
        if session.taken || matches!(session.phase, Phase::Lingering) {
            return 0;
        }
        session.taken = true;
        self.untaken -= 1;
        let fact = match (session.skipped, session.tenant) {
            (Some(why), _) => {
                let (model, salt) = (session.model.clone(), session.salt.clone());
                Fact::LookupSkipped { model, salt, why }
            }
            (None, Some(tenant)) => Fact::LookupTaken {
                tenant,
                requested_chunks: session.requested,
                hit_chunks: session.hit,
                hit_keys: session.set.len() as u32,
                stop: session.stop,
            },
            // Without a name left for the tenant there is no label to count it under.
            (None, None) => return session.hit as u64,
        };
        let hit = session.hit as u64;
        turn.out.tell(fact);
        hit
    }

    /// A result that nobody will take any more.
    fn settle_untaken(&mut self, name: SlotName) {
        let session = self.sessions.find_mut(name).expect("found by the caller");
        if !session.taken {
            session.taken = true;
            self.untaken -= 1;
        }
    }

    fn answer_waits(&mut self, turn: &mut Turn, name: SlotName) {
        let session = self.sessions.find_mut(name).expect("found by the caller");
        for wait in core::mem::take(&mut session.waits) {
            let wait = self.waits.remove(wait).expect("listed while it is parked");
            wait.timer.iter().for_each(|timer| turn.alarms.cancel(*timer));
            let hit = if self.is_looking(name) { 0 } else { self.take_result(turn, name) };
            turn.out.answer(wait.reply, Answer::Count(hit));
        }
    }

    fn find(&self, request: &str) -> Option<SlotName> {
        self.index.get(request).copied()
    }

    fn is_looking(&self, name: SlotName) -> bool {
        let session = self.sessions.find(name);
        session.is_some_and(|session| matches!(session.phase, Phase::Looking { .. }))
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub fn waits_len(&self) -> usize {
        self.waits.len()
    }
}

fn new_session(turn: &Turn, keys: &Keys) -> Session {
    Session {
        request: keys.request.into(),
        model: keys.model.into(),
        salt: keys.salt.into(),
        world_size: keys.world_size,
        tenant: None,
        scopes: SmallVec::new(),
        readers: keys.readers,
        requested: keys.end_chunk,
        reach: 0,
        hit: 0,
        stop: LookupStop::Absent,
        skipped: None,
        phase: Phase::Found,
        taken: false,
        set: LeaseSet::default(),
        waits: SmallVec::new(),
        lease_timer: None,
        idle_timer: None,
        last_used: turn.now,
    }
}
