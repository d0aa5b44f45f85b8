//! Sessions: one per request id with a lookup, from the lookup to the end of its leases.
//!
//! The invariant: whatever a session promises is in its own lease set, and every way of leaving
//! (end, replacement, expiry) gives the whole set back (I-11, I-12). A lookup is probed, leased and
//! touched a slice at a time; its result is handed out once (I-14).

mod audit;
pub(crate) use audit::claim_set;
mod ends;
mod look;
mod results;

use crate::Map;
use crate::config::Limits;
use crate::engine::alarms::{Alarm, Timer};
use crate::engine::fold::{Fold, Window};
use crate::engine::jobs::Job;
use crate::engine::l1::leases::{LeaseSet, Unreadable};
use crate::engine::memory::{TEXT_BYTES, map_bytes, slots_bytes};
use crate::engine::promote::{Sought, Wanted};
use crate::engine::scopes::ScopeKey;
use crate::engine::turn::Turn;
use crate::event::Keys;
use crate::fact::{EarlyExit, Fact, LeaseEnd, LookupStop, ReadFailure, RequestFault};
use crate::limits::{MODEL_BYTES_MAX, REQUEST_ID_BYTES_MAX, SALT_CHARS_MAX, WORLD_SIZE_MAX};
use crate::map_with_capacity;
use crate::names::{ChunkHash, Connection, KvRank, Layout, ObjectId, Reply, ScopeId, TenantId};
use crate::slots::{SlotName, Slots};
use crate::time::Instant;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ends::{Begun, tell_begun};
use smallvec::SmallVec;

#[derive(Clone, Debug)]
enum Phase {
    /// Chunks are probed; `hashes` are kept only when they do not fit one turn.
    Looking {
        fold: Fold,
        next: u32,
        hashes: Vec<ChunkHash>,
    },
    /// L1 has not all of it: a seek goes on below (`promote`).
    Seeking,
    /// The result stands; cells `..left` are still to be touched, from the last to the first.
    Touching {
        left: usize,
    },
    Found,
    /// Ended by the scheduler; leases linger for a worker on another connection (design §7).
    /// Cells `..left` are still to be touched, and told of.
    Lingering {
        left: usize,
    },
}

/// How far a lookup has come.
#[derive(Clone, Debug)]
pub enum Looked {
    /// It needs a further turn.
    More,
    Done,
    /// L1 has not all of it.
    Short(Wanted),
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
    pub scopes: SmallVec<[ScopeId; 4]>,
    readers: u16,
    requested: u32,
    /// Chunks that the caps let a lookup take.
    reach: u32,
    hit: u32,
    /// Of the hit, the chunks that L1 alone would have served.
    l1_hit: u32,
    /// Of the leased cells, those that came from below L1.
    loaded: u32,
    stop: LookupStop,
    skipped: Option<EarlyExit>,
    phase: Phase,
    pub taken: bool,
    pub set: LeaseSet,
    /// Cells that this session is charged for: what it may still take, then what it has.
    pub charged: usize,
    /// Ranges that are being given back over several turns.
    frees: SmallVec<[(u32, u32); 2]>,
    waits: SmallVec<[SlotName; 1]>,
    lease_timer: Option<Timer>,
    leases_until: Instant,
    idle_timer: Option<Timer>,
    last_used: Instant,
    #[cfg(feature = "planted")]
    probed: crate::engine::l1::Probes,
    #[cfg(feature = "planted")]
    taken_over: Option<Connection>,
}

/// Waits that are parked over one connection.
#[derive(Clone, Copy, Debug, Default)]
struct Parked {
    waits: u32,
    /// Nobody is there any more to be told: they take nothing.
    has_ended: bool,
}

/// Lease cells whose session is gone, given back a slice at a time.
#[derive(Clone, Debug)]
pub(crate) struct Orphan {
    pub set: LeaseSet,
    next: usize,
    /// Cells below this one were taken without anybody being told.
    untold: usize,
    /// How many readers each of them was for.
    readers: u16,
    why: LeaseEnd,
}

#[derive(Clone, Debug)]
pub struct Sessions {
    pub(crate) sessions: Slots<Session>,
    index: Map<Arc<str>, SlotName>,
    waits: Slots<Wait>,
    /// Connections that have parked waits.
    parked: Map<Connection, Parked>,
    pub(crate) orphans: Slots<Orphan>,
    /// Lease cells over all sessions and orphans.
    pub(crate) cells: usize,
    /// Sessions that ended while a seek went on for them, for the desk to end it, and the cells
    /// beyond their own leases that they are charged for until then.
    abandoned: Vec<(SlotName, usize)>,
    /// Lookups whose result nobody has taken yet (metrics row 41).
    pub(crate) untaken: u64,
}

impl Sessions {
    pub fn new(limits: &Limits, seed: u64) -> Sessions {
        Sessions {
            sessions: Slots::with_limit(limits.sessions),
            index: map_with_capacity(limits.sessions, seed ^ 7),
            waits: Slots::with_limit(limits.waits),
            parked: map_with_capacity(limits.waits, seed ^ 12),
            orphans: Slots::with_limit(ORPHANS_PER_SESSION * limits.sessions),
            cells: 0,
            abandoned: Vec::new(),
            untaken: 0,
        }
    }

    /// All sessions at their bounds, with their texts and rows.
    pub(crate) fn table_bytes(limits: &Limits) -> u64 {
        let texts = 3 * TEXT_BYTES + REQUEST_ID_BYTES_MAX + MODEL_BYTES_MAX + 4 * SALT_CHARS_MAX;
        let rows = WORLD_SIZE_MAX.next_power_of_two() as usize * size_of::<ScopeId>();
        let waits = limits.waits * 2 * size_of::<SlotName>();
        slots_bytes::<Session>(limits.sessions)
            + slots_bytes::<Wait>(limits.waits)
            + map_bytes::<Connection, Parked>(limits.waits)
            + slots_bytes::<Orphan>(ORPHANS_PER_SESSION * limits.sessions)
            + map_bytes::<Arc<str>, SlotName>(limits.sessions)
            + (limits.sessions * (texts + rows) + waits) as u64
    }

    /// Starts a lookup. `layout` is what is registered for (model, world size), if anything is.
    /// The session can be found before the request is answered. Its name, where it is to be looked
    /// for in L1; `is_below` says that lower tiers may have what L1 has not.
    pub fn lookup(
        &mut self,
        turn: &mut Turn,
        keys: &Keys,
        layout: Option<Layout>,
        is_below: bool,
    ) -> Option<SlotName> {
        if let Some(&name) = self.index.get(keys.request)
            && (!planted!(turn.config, 10)
                || self.sessions.find(name).is_some_and(|s| s.speaks_of(keys)))
        {
            self.end_now(turn, name, LeaseEnd::Replaced);
        }
        // Every session leaves two orphans at the most, so this bounds both.
        if self.sessions.len() + self.orphans.len() >= self.sessions.limit() {
            let fault = RequestFault::TableFull;
            turn.out.tell(Fact::RequestFaulted { operation: "lookup", fault });
            return None;
        }
        let mut session = new_session(turn, keys);
        match layout {
            None => session.skipped = Some(EarlyExit::NoGpuContext),
            Some(_) if keys.end_chunk == 0 => {
                session.skipped = Some(EarlyExit::EmptyChunkHashes);
            }
            Some(layout) => self.aim(turn, &mut session, layout, is_below),
        }
        self.untaken += 1;
        let request = session.request.clone();
        let name = self.sessions.insert(session).expect("there is room, checked above");
        self.index.insert(request, name);
        let at = turn.now + turn.config.session_ttl;
        let timer = turn.alarms.arm(at, Alarm::SessionExpiry, name);
        let session = self.sessions.find_mut(name).expect("inserted above");
        session.idle_timer = Some(timer);
        matches!(session.phase, Phase::Looking { .. }).then_some(name)
    }

    /// Resolves the rows of a lookup. Where a row has no scope, nothing was ever stored in it in
    /// this run; lower tiers may have it all the same.
    fn aim(&mut self, turn: &mut Turn, session: &mut Session, layout: Layout, is_below: bool) {
        let scopes = &mut turn.l1.scopes;
        let facts = &mut turn.out.facts;
        let Some(tenant) = scopes.name_tenant(&session.model, &session.salt, facts) else {
            session.stop = LookupStop::NoRoom;
            return;
        };
        scopes.retain_tenant(tenant);
        session.tenant = Some(tenant);
        turn.work.spend(session.world_size as usize);
        for rank in 0..session.world_size {
            let Some(rank) = KvRank::of(session.world_size, rank) else { break };
            let key = ScopeKey { tenant, rank, group: 0, layout };
            let known = scopes.scope(&key);
            let scope = if is_below { scopes.name_scope(key) } else { known };
            let Some(scope) = scope else { break };
            // It keeps its meaning while this session speaks of it.
            scopes.retain(scope);
            session.scopes.push(scope);
        }
        let rows = session.scopes.len() as u32;
        if rows < session.world_size {
            let nobody = rows == 0;
            session.stop = if nobody { LookupStop::Absent } else { LookupStop::RankMissing };
            return;
        }
        let room = turn.config.limits.lease_cells.saturating_sub(self.cells) / rows as usize;
        session.reach = session.requested.min(room as u32);
        session.charged = session.reach as usize * rows as usize;
        self.cells += session.charged;
        let fold = Fold::new((0..rows).map(|_| Window::None));
        session.set = LeaseSet::new(rows, 0);
        session.phase = Phase::Looking { fold, next: 0, hashes: Vec::new() };
    }

    /// Goes on probing and touching. `is_below`: lower tiers may have what L1 has not.
    pub fn probe(
        &mut self,
        turn: &mut Turn,
        name: SlotName,
        hashes: Option<&[ChunkHash]>,
        is_below: bool,
    ) -> Looked {
        let Some(session) = self.sessions.find_mut(name) else { return Looked::Done };
        if let Phase::Looking { .. } = session.phase {
            if !session.look(turn, hashes) {
                return Looked::More;
            }
            session.l1_hit = session.hit;
            if is_below && let Some(wanted) = session.wants_more(turn, name, hashes) {
                return Looked::Short(wanted);
            }
            self.conclude(turn, name);
        }
        if self.touch_some(turn, name) { Looked::Done } else { Looked::More }
    }

    /// A seek has ended: its cells lie behind those that were found in L1.
    pub fn sought(&mut self, turn: &mut Turn, sought: Sought) {
        let Sought { session: name, tail, loaded, rest, readers, stop } = sought;
        self.adopt(turn, rest, readers);
        let found = self.sessions.find_mut(name);
        let seeking = found.filter(|session| matches!(session.phase, Phase::Seeking));
        let Some(session) = seeking else { return self.adopt(turn, tail, readers) };
        let rows = session.set.rows().max(1);
        session.hit += tail.len() as u32 / rows;
        session.set.append(tail);
        session.loaded = loaded;
        let whole = session.hit == session.reach && session.reach < session.requested;
        session.stop = if whole { LookupStop::NoRoom } else { stop };
        self.conclude(turn, name);
        if !self.touch_some(turn, name) {
            turn.jobs.push(Job::Lookup { session: name });
        }
    }

    /// Cells of a seek that are of no use to anybody go back.
    fn adopt(&mut self, turn: &mut Turn, set: LeaseSet, readers: u16) {
        self.cells += set.len();
        let untold = set.len();
        self.orphan(turn, set, (untold, readers), LeaseEnd::Trimmed);
    }

    /// The next session that ended while a seek went on for it.
    pub fn take_abandoned(&mut self) -> Option<SlotName> {
        let (name, beyond) = self.abandoned.pop()?;
        self.cells -= beyond;
        Some(name)
    }

    /// The result stands: leases start to run, waiters are answered.
    fn conclude(&mut self, turn: &mut Turn, name: SlotName) {
        let session = self.sessions.find_mut(name).expect("concluded while it exists");
        session.trim(turn);
        let cells = session.set.len();
        self.cells -= session.charged - cells;
        session.charged = cells;
        session.phase = Phase::Touching { left: cells };
        if cells > 0 {
            session.leases_until = turn.now + turn.config.read_ttl;
            let timer = turn.alarms.arm(session.leases_until, Alarm::LeaseExpiry, name);
            session.lease_timer = Some(timer);
        }
        self.answer_waits(turn, name);
    }

    fn touch_some(&mut self, turn: &mut Turn, name: SlotName) -> bool {
        let session = self.sessions.find_mut(name).expect("touched while it exists");
        let (Phase::Touching { left } | Phase::Lingering { left }) = &mut session.phase else {
            return true;
        };
        let mark = turn.out.mark();
        while *left > 0 && !turn.is_spent() {
            *left -= 1;
            turn.spend(1);
            let cell = session.set.cells()[*left];
            // What somebody has come for already was told of then.
            if cell.left == session.readers {
                turn.l1.touch(cell.object);
                turn.l1.push_key(cell.object, turn.out);
            }
        }
        let done = *left == 0;
        let keys = turn.out.keys_since(mark);
        if !keys.is_empty() {
            turn.out.tell(Fact::ReadReserved { keys, readers: session.readers });
            turn.out.tell(Fact::Accessed { keys });
        }
        if done && let Phase::Touching { .. } = session.phase {
            session.phase = Phase::Found;
        }
        done
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
        turn.work.spend_own(chunks.len());
        let checked = session.set.check(turn.l1, row, scope, chunks.clone(), keys.hashes);
        checked.map_err(|why| match why {
            Unreadable::NotLeased => ReadFailure::NotLeased,
            Unreadable::NotFound => ReadFailure::NotFound,
            Unreadable::OtherKey => ReadFailure::Layout,
        })?;
        if !planted!(turn.config, 26) {
            session.last_used = turn.now;
        }
        let mut begun = Begun::new();
        let untold = session.untold();
        let objects = chunks.map(|chunk| {
            let at = (chunk * session.set.rows() + row) as usize;
            let is_first = at < untold && session.set.is_untouched(at, session.readers);
            let object = session.set.consume(turn.l1, chunk, row);
            begun.extend(is_first.then_some(object));
            object
        });
        let objects = objects.collect();
        tell_begun(turn, &begun, session.readers);
        Ok(objects)
    }

    fn find(&self, request: &str) -> Option<SlotName> {
        self.index.get(request).copied()
    }

    fn is_looking(&self, name: SlotName) -> bool {
        let session = self.sessions.find(name);
        session.is_some_and(|session| session.is_undecided())
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
        l1_hit: 0,
        loaded: 0,
        stop: LookupStop::Absent,
        skipped: None,
        phase: Phase::Found,
        taken: false,
        set: LeaseSet::default(),
        charged: 0,
        frees: SmallVec::new(),
        waits: SmallVec::new(),
        lease_timer: None,
        leases_until: Instant::FAR,
        idle_timer: None,
        last_used: turn.now,
        #[cfg(feature = "planted")]
        probed: Default::default(),
        #[cfg(feature = "planted")]
        taken_over: None,
    }
}

/// What a session may leave behind at most: what its seek was not to keep, what it gave back, and
/// its leases.
const ORPHANS_PER_SESSION: usize = 3;
