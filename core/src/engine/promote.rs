//! From lower tiers to L1: what a lookup does when L1 alone has not all of its chunks.
//!
//! A *seek* goes on where the prefix in L1 ends (spec/storage §5.3): it takes what L1 has behind
//! the hole, asks adapters about what their tables do not name, and loads the rest, chunk after
//! chunk. A *load* brings one object into L1, for every seek that wants it.
//!
//! The invariants: what a seek holds is in its own lease set, and all of it is handed on when the
//! seek ends, however it ends (I-11); there is one load per L1 key at most, and what it reads into
//! stays pinned until its ticket has ended (I-2, I-34); an object is published and leased in one
//! step, after its digest (I-8, I-26).

mod audit;
mod loads;
mod plan;

use crate::config::Limits;
use crate::engine::adapters::Adapters;
use crate::engine::alarms::{Alarm, Timer};
use crate::engine::jobs::Job;
use crate::engine::l1::leases::LeaseSet;
use crate::engine::memory::{map_bytes, slots_bytes};
use crate::engine::scopes::ScopeKey;
use crate::engine::status::PrefetchStatus;
use crate::engine::turn::Turn;
use crate::fact::{Fact, LookupStop};
use crate::limits;
use crate::names::{ChunkHash, L2Key, Layout, ObjectId, ScopeId, TenantId};
use crate::slots::{SlotName, Slots};
use crate::time::Duration;
use crate::{Map, map_with_capacity};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use loads::Load;
use plan::Probing;
use smallvec::SmallVec;

/// One row of a lookup: its scope in L1, and the one without layout that lower tiers know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub scope: ScopeId,
    pub below: ScopeId,
}

/// What a session hands over when L1 has not all it was asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub session: SlotName,
    pub tenant: TenantId,
    pub scopes: SmallVec<[ScopeId; 4]>,
    pub readers: u16,
    /// Chunks that the whole lookup asks for.
    pub requested: u32,
    /// Hashes of the chunks behind the prefix in L1, as far as the lookup may reach.
    pub hashes: Vec<ChunkHash>,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct Sought {
    pub session: SlotName,
    /// Cells of the chunks behind the prefix in L1, all of them leased.
    pub tail: LeaseSet,
    /// Of these, those that were loaded.
    pub loaded: u32,
    /// Cells that were leased and are of no use.
    pub rest: LeaseSet,
    pub readers: u16,
    pub stop: LookupStop,
}

#[derive(Clone, Debug)]
pub(crate) struct Seek {
    pub session: SlotName,
    pub tenant: TenantId,
    pub rows: SmallVec<[Row; 4]>,
    /// Bytes of every object, and what tells their layout at rest.
    pub bytes: u64,
    pub layout: u32,
    pub readers: u16,
    /// Of the chunks behind the prefix in L1. Here and below, chunk 0 is the first of these.
    pub hashes: Vec<ChunkHash>,
    pub set: LeaseSet,
    /// All cells before this one are leased.
    pub leased: usize,
    /// Chunks whose cells are all taken or on their way.
    pub planned: u32,
    /// No chunk from here on can be had, and why.
    pub end: u32,
    pub stop: LookupStop,
    /// Adapters were asked about the chunks below this one.
    pub asked: u32,
    /// Chunks that the next question is about.
    pub batch: u32,
    pub probing: SmallVec<[Probing; 2]>,
    /// Cells that came, or are to come, from a lower tier.
    pub loaded: u32,
    /// It has been told that room is being made so often.
    pub waits_for_room: u8,
    /// Its place among those that wait for their turn.
    arrival: u64,
    /// It may load; at most so many do at once (`--l2-prefetch-max-in-flight`).
    pub is_active: bool,
    /// It stands in `done`.
    pub is_done: bool,
    timer: Option<Timer>,
}

/// Loads in the order in which they came. Who has given up leaves it, so that it is never longer
/// than the table of loads.
#[derive(Clone, Debug, Default)]
struct Line {
    loads: BTreeMap<u64, SlotName>,
    bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Promote {
    pub(crate) seeks: Slots<Seek>,
    by_session: Map<SlotName, SlotName>,
    pub(crate) loads: Slots<Load>,
    by_object: Map<ObjectId, SlotName>,
    /// Seeks that wait for their turn, first come first served (I-32).
    queue: BTreeMap<u64, SlotName>,
    pub(crate) active: usize,
    /// Loads that wait for a credit of their adapter, by its place in the roster.
    waiting: Vec<Line>,
    /// Seeks and loads that have come so far: who comes later stands behind.
    arrivals: u64,
    /// Seeks whose result stands, for the desk to hand on.
    done: Vec<SlotName>,
}

impl Promote {
    pub fn new(limits: &Limits, seed: u64) -> Promote {
        Promote {
            seeks: Slots::with_limit(limits.loads),
            by_session: map_with_capacity(limits.loads, seed ^ 31),
            loads: Slots::with_limit(limits.loads),
            by_object: map_with_capacity(limits.loads, seed ^ 32),
            queue: BTreeMap::new(),
            active: 0,
            waiting: Vec::new(),
            arrivals: 0,
            done: Vec::new(),
        }
    }

    /// All seeks and loads at their bounds. Hashes of seeks are counted with the lookups.
    pub(crate) fn table_bytes(limits: &Limits) -> u64 {
        // Nodes of the trees are at least half full.
        let of_tree = 2 * size_of::<(u64, SlotName)>() + size_of::<[usize; 2]>();
        let names = limits.loads * (2 * of_tree + size_of::<SlotName>());
        slots_bytes::<Seek>(limits.loads)
            + slots_bytes::<Load>(limits.loads)
            + map_bytes::<SlotName, SlotName>(limits.loads)
            + map_bytes::<ObjectId, SlotName>(limits.loads)
            + names as u64
    }

    /// A lookup goes on below L1. Its result comes through `take_sought`, possibly at once.
    pub fn seek(&mut self, turn: &mut Turn, adapters: &mut Adapters, wanted: Wanted) {
        let timer_at = turn.now + Duration::from_secs(limits::SEEK_SECS_MAX);
        let (tenant, keys) = (wanted.tenant, wanted.requested * wanted.scopes.len() as u32);
        let seek = self.new_seek(turn, wanted);
        let name = match self.seeks.insert(seek) {
            Ok(name) => name,
            Err(_) => unreachable!("the desk asks for room first"),
        };
        let timer = turn.alarms.arm(timer_at, Alarm::SeekExpiry, name);
        let seek = self.seeks.find_mut(name).expect("inserted above");
        seek.timer = Some(timer);
        self.by_session.insert(seek.session, name);
        let asked = adapters.loading().count() as u32;
        turn.out.tell(Fact::L2LookupSubmitted { tenant, keys, adapters: asked });
        if self.seeks.find(name).is_some_and(|seek| seek.end == 0) {
            self.finish(name);
        } else if self.active < turn.config.prefetch_max {
            self.activate(turn, adapters, name);
        } else {
            let seek = self.seeks.find_mut(name).expect("inserted above");
            seek.arrival = self.arrivals;
            self.queue.insert(self.arrivals, name);
            self.arrivals += 1;
        }
    }

    /// Whether one more lookup may go on below L1.
    pub fn has_room(&self) -> bool {
        !self.seeks.is_full()
    }

    fn new_seek(&self, turn: &mut Turn, wanted: Wanted) -> Seek {
        let mut rows = SmallVec::new();
        for scope in &wanted.scopes {
            let key = *turn.l1.scopes.key(*scope);
            let below = ScopeKey { layout: Layout::UNKNOWN, ..key };
            let Some(below) = turn.l1.scopes.name_scope(below) else { break };
            turn.l1.scopes.retain(below);
            rows.push(Row { scope: *scope, below });
        }
        let layout = wanted.scopes.first().map(|scope| turn.l1.scopes.key(*scope).layout);
        let layout = layout.unwrap_or(Layout::UNKNOWN);
        let is_named = rows.len() == wanted.scopes.len();
        let end = if is_named { wanted.hashes.len() as u32 } else { 0 };
        Seek {
            session: wanted.session,
            tenant: wanted.tenant,
            // Of as many rows as the lookup, also where not all of them could be named.
            set: LeaseSet::new(wanted.scopes.len() as u32, 0),
            leased: 0,
            rows,
            bytes: layout.bytes().unwrap_or(0),
            layout: layout.fingerprint(),
            readers: wanted.readers,
            hashes: wanted.hashes,
            planned: 0,
            end,
            stop: if is_named { LookupStop::Complete } else { LookupStop::NoRoom },
            asked: 0,
            batch: PROBE_CHUNKS_FIRST,
            probing: SmallVec::new(),
            loaded: 0,
            waits_for_room: 0,
            arrival: u64::MAX,
            is_active: false,
            is_done: false,
            timer: None,
        }
    }

    fn activate(&mut self, turn: &mut Turn, adapters: &mut Adapters, name: SlotName) {
        let seek = self.seeks.find_mut(name).expect("activated while it exists");
        seek.is_active = true;
        self.active += 1;
        if !self.go_on(turn, adapters, name) {
            turn.jobs.push(Job::Seek { seek: name });
        }
    }

    /// The session has ended or was replaced: everything is given back (I-11, R-26).
    pub fn cancel(&mut self, turn: &mut Turn, session: SlotName) {
        let Some(&name) = self.by_session.get(&session) else { return };
        let seek = self.seeks.find_mut(name).expect("the index names live seeks");
        seek.cut(0, LookupStop::Absent);
        self.finish(name);
        turn.spend(1);
    }

    /// A lookup has waited as long as it may: it gets what is there by now.
    pub fn expire(&mut self, turn: &mut Turn, name: SlotName) {
        let Some(seek) = self.seeks.find_mut(name) else { return };
        seek.timer = None;
        let planned = seek.planned;
        let rows = seek.rows.len().max(1);
        let cells = (planned as usize * rows).min(seek.set.len());
        let open = seek.set.first_open(seek.leased.min(cells)..cells);
        turn.work.spend_steps(cells);
        let open = open.filter(|_| !planted!(turn.config, 39));
        let chunk = open.map_or(planned, |at| (at / rows) as u32);
        seek.cut(chunk, LookupStop::TimedOut);
        self.finish(name);
    }

    /// The result stands: the desk takes it before this event ends, or as soon as a turn reaches
    /// it.
    fn finish(&mut self, name: SlotName) {
        let seek = self.seeks.find_mut(name).expect("finished while it exists");
        if !seek.is_done {
            seek.is_done = true;
            self.done.push(name);
        }
    }

    /// Whether all that can come has come.
    fn settle(&mut self, turn: &mut Turn, name: SlotName) {
        let Some(seek) = self.seeks.find_mut(name) else { return };
        if seek.is_done || seek.planned < seek.end {
            return;
        }
        let cells = (seek.end as usize * seek.rows.len()).min(seek.set.len());
        let from = seek.leased.min(cells);
        seek.leased = seek.set.first_open(from..cells).unwrap_or(cells);
        turn.work.spend_steps(seek.leased - from);
        if seek.leased == cells {
            self.finish(name);
        }
    }

    /// Whether another result stands.
    pub fn has_sought(&self) -> bool {
        !self.done.is_empty()
    }

    /// The next result, `is_own` where it may be that of the event itself. Its seek is gone; loads
    /// that only it waited for are given up.
    pub fn take_sought(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        is_own: bool,
    ) -> Option<Sought> {
        let name = self.done.pop()?;
        let mut seek = self.seeks.remove(name).expect("listed while it exists");
        self.by_session.remove(&seek.session);
        if let Some(timer) = seek.timer {
            turn.alarms.cancel(timer);
        }
        for probing in &seek.probing {
            turn.out.effects.push(crate::effect::Effect::Cancel { ticket: probing.ticket });
        }
        let keep = (seek.end as usize * seek.rows.len()).min(seek.set.len());
        let rest = seek.set.split_off(keep);
        match is_own {
            true => turn.spend_own(rest.len()),
            false => turn.spend(1 + rest.len()),
        }
        for cell in rest.cells().iter().filter(|cell| cell.left == 0) {
            self.leave(turn, adapters, name, cell.object);
        }
        for row in &seek.rows {
            turn.l1.scopes.release(row.below);
        }
        match seek.is_active {
            true => self.active -= 1,
            false => drop(self.queue.remove(&seek.arrival)),
        }
        if seek.loaded > 0 {
            turn.out.tell(Fact::L2LookupFound { tenant: seek.tenant, keys: seek.loaded });
        }
        let loaded = seek.loaded.min(seek.set.len() as u32);
        let Seek { session, set: tail, readers, stop, .. } = seek;
        Some(Sought { session, tail, loaded, rest, readers, stop })
    }

    /// Lets seeks begin that have waited for others. The desk calls it when some have ended.
    pub fn admit(&mut self, turn: &mut Turn, adapters: &mut Adapters) {
        let is_alone = adapters.loading().next().is_none();
        while self.active < turn.config.prefetch_max && !(planted!(turn.config, 48) && is_alone) {
            let Some((_, name)) = self.queue.pop_first() else { return };
            self.activate(turn, adapters, name);
        }
    }

    /// For `/status`: a seek that asks and loads at once is counted as loading.
    pub fn status(&self) -> PrefetchStatus {
        let mut status = PrefetchStatus::default();
        for (_, seek) in self.seeks.iter() {
            let phase = match (seek.is_active, seek.loaded > 0) {
                (false, _) => &mut status.waiting,
                (true, false) => &mut status.asking,
                (true, true) => &mut status.loading,
            };
            *phase += 1;
        }
        status
    }

    pub fn is_empty(&self) -> bool {
        self.seeks.is_empty() && self.loads.is_empty()
    }

    pub(crate) fn is_seeking(&self, session: SlotName) -> bool {
        self.by_session.contains_key(&session)
    }
}

impl Seek {
    /// No chunk from this one on can be had.
    pub(super) fn cut(&mut self, chunk: u32, stop: LookupStop) {
        if chunk < self.end {
            self.end = chunk;
            self.stop = stop;
        }
    }

    pub(super) fn key(&self, chunk: u32, row: usize) -> L2Key {
        L2Key { hash: self.hashes[chunk as usize], scope: self.rows[row].below }
    }
}

/// Chunks of the first question to adapters; each later one is about twice as many.
const PROBE_CHUNKS_FIRST: u32 = 16;
