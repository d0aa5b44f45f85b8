//! The roster of lower tiers: what each of them is known to hold, what is on its way to and from
//! it, and whether it can be trusted with more.
//!
//! The invariant: an adapter's shelf counts every byte that is at rest in it or on its way there
//! exactly once (I-39), what is being loaded cannot go (I-23, I-31), and every effect that was
//! ordered from an adapter stands in `flights` until its one ending (I-33).
//!
//! What it does by itself stands beside it: `health` trusts and mistrusts, `scan` takes in what lay
//! there, `evict` keeps it below its bounds, `scrub` looks after what is at rest, `leave` lets it
//! go. What goes there from L1 is `demote`'s, what comes from there `promote`'s.

mod audit;
mod evict;
pub mod flights;
mod health;
mod leave;
pub mod operator;
mod pace;
mod scan;
mod scrub;
pub mod shelf;

use crate::SeededHash;
use crate::config::{AdapterSetup, Limits};
use crate::effect::{Effect, Note, Outbox};
use crate::engine::alarms::{Alarm, Alarms};
use crate::engine::demote::Demote;
use crate::engine::l1::{Key, L1};
use crate::engine::memory::slots_bytes;
use crate::engine::scopes::{ScopeKey, Scopes};
use crate::engine::turn::Turn;
use crate::event::{Found, LoadOutcome};
use crate::fact::{AdapterGauges, AdapterState, Fact, FactKey, L2Removal};
use crate::limits;
use crate::names::{AdapterId, L2Key, Layout, Seal, Ticket};
use crate::slots::{SlotName, Slots};
use crate::time::{Duration, Instant};
use alloc::sync::Arc;
use alloc::vec::Vec;
pub(crate) use evict::Room;
use flights::{Flight, InFlight};
use health::Health;
pub(crate) use health::subject as health_subject;
use pace::Pace;
use scrub::Scrub;
use shelf::{Shelf, Stage};

/// What is known of a key in one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Here {
        entry: SlotName,
        bytes: u64,
        seal: Option<Seal>,
    },
    Absent,
    /// Not in its table, which does not mean that it is not there: it has to be asked.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Adapter {
    pub(crate) id: AdapterId,
    pub(crate) name: Arc<str>,
    /// As it joined; its name is in `name`.
    pub(crate) setup: AdapterSetup<'static>,
    pub(crate) state: AdapterState,
    /// All of what lay in it when it joined has been told.
    pub(crate) is_scanned: bool,
    /// More lay in it than its table can name: what it keeps of that at rest is not known.
    pub(crate) has_untold: bool,
    pub(crate) shelf: Shelf,
    pub(crate) stores: u32,
    pub(crate) loads: u32,
    /// Of these, those that take longer than they may.
    pub(crate) loads_stalled: u32,
    /// Bytes of L1 that the loads on their way are for.
    pub(crate) loading_bytes: u64,
    /// Effects on their way, of every kind.
    pub(crate) flights: u32,
    pub(crate) deletes: u32,
    pub(crate) health: Health,
    evicting: evict::Evicting,
    scrub: Scrub,
    pub(crate) counts: Counts,
    /// Bytes that a load brings in a second, on average; 0: not known yet.
    pace: Pace,
    /// It leaves, and its table is being freed up to here.
    closing: Option<u32>,
}

/// What has happened to an adapter since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Orders that failed, and orders that took longer than they may.
    pub failures: u64,
    pub stalls: u64,
    pub trips: u64,
    pub deletes_failed: u64,
    /// Objects that were told of and could not be named, or did not fit the table.
    pub scan_skipped: u64,
    pub scrubbed_bytes: u64,
    pub scrubs_failed: u64,
    /// Objects whose bytes were not those that were stored.
    pub quarantined: u64,
    /// Times that the device was full.
    pub no_space: u64,
}

#[derive(Clone, Debug)]
pub struct Adapters {
    pub(crate) list: Vec<Adapter>,
    pub(crate) flights: Slots<InFlight>,
    pub(crate) stale_endings: u64,
    /// Adapters that leave.
    draining: usize,
    hash: SeededHash,
}

impl Adapters {
    pub fn new(limits: &Limits, seed: u64) -> Adapters {
        Adapters {
            list: Vec::new(),
            flights: Slots::with_limit(limits.flights),
            stale_endings: 0,
            draining: 0,
            hash: SeededHash::new(seed ^ 21),
        }
    }

    /// What is in flight, at its bound. What an adapter takes is counted when it joins.
    pub(crate) fn table_bytes(limits: &Limits) -> u64 {
        slots_bytes::<InFlight>(limits.flights)
            + (limits::ADAPTERS_MAX * (size_of::<Adapter>() + limits::ADAPTER_NAME_BYTES_MAX))
                as u64
    }

    /// A tier joins behind all others. Ids are given in order and never again.
    pub fn add(&mut self, id: AdapterId, setup: &AdapterSetup<'_>, out: &mut Outbox) {
        assert!(id.0 as usize == self.list.len(), "adapters join in the order of their ids");
        assert!(self.list.len() < limits::ADAPTERS_MAX, "the shell counts what it adds");
        let name: Arc<str> = setup.name.into();
        out.tell(Fact::AdapterNamed { adapter: id, name: name.clone() });
        out.tell(Fact::AdapterChanged { adapter: id, state: AdapterState::Scanning });
        let shelf = Shelf::new(setup, self.hash.clone());
        self.list.push(Adapter {
            id,
            name,
            setup: AdapterSetup { name: "", ..*setup },
            state: AdapterState::Scanning,
            is_scanned: false,
            has_untold: false,
            shelf,
            stores: 0,
            loads: 0,
            loads_stalled: 0,
            loading_bytes: 0,
            flights: 0,
            deletes: 0,
            health: Health::default(),
            evicting: evict::Evicting::default(),
            scrub: Scrub::default(),
            counts: Counts::default(),
            pace: Pace::new(),
            closing: None,
        });
    }

    pub fn find(&self, id: AdapterId) -> Option<&Adapter> {
        self.list.get(id.0 as usize).filter(|adapter| adapter.state != AdapterState::Gone)
    }

    pub(crate) fn is_here(&self, id: AdapterId) -> bool {
        self.find(id).is_some()
    }

    pub(crate) fn get(&self, id: AdapterId) -> &Adapter {
        &self.list[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: AdapterId) -> &mut Adapter {
        &mut self.list[id.0 as usize]
    }

    /// Adapters that a lookup may load from, the preferred one first.
    pub fn loading(&self) -> impl Iterator<Item = AdapterId> {
        let loads = |adapter: &&Adapter| adapter.serves() && !adapter.hangs();
        self.list.iter().filter(loads).map(|adapter| adapter.id)
    }

    /// Adapters that have neither left nor begun to.
    pub(crate) fn staying(&self) -> impl Iterator<Item = &Adapter> {
        let leaves = |state| matches!(state, AdapterState::Draining | AdapterState::Gone);
        self.list.iter().filter(move |adapter| !leaves(adapter.state))
    }

    /// Whether an adapter that stays, and keeps what it is given, has an object of L1.
    pub(crate) fn keep(&self, scopes: &Scopes, key: &Key) -> bool {
        let of = *scopes.key(key.scope);
        let below = ScopeKey { layout: Layout::UNKNOWN, ..of };
        let Some(scope) = scopes.scope(&below) else { return false };
        let key = L2Key { hash: key.hash, scope };
        let (bytes, layout) = (of.layout.bytes().unwrap_or(0), of.layout.fingerprint());
        let has = |entry: &shelf::Entry| entry.is_loadable() && entry.is_like(bytes, layout);
        self.staying()
            .filter(|adapter| adapter.setup.keeps_data)
            .any(|adapter| adapter.shelf.find(&key).is_some_and(|(_, entry)| has(entry)))
    }

    /// What an adapter is known to hold under a key. Nothing that can be had, where nothing is
    /// asked of it just now.
    pub fn known(&self, id: AdapterId, key: &L2Key) -> Known {
        let adapter = self.get(id);
        if !adapter.serves() {
            return Known::Absent;
        }
        match adapter.shelf.find(key) {
            Some((entry, found)) if found.is_loadable() => {
                Known::Here { entry, bytes: found.bytes, seal: found.seal }
            }
            Some(_) => Known::Absent,
            None if adapter.is_scanned && !adapter.setup.is_shared => Known::Absent,
            None => Known::Unknown,
        }
    }

    /// A probe has found an object that the table does not name, and told its seal as a scan does.
    /// False where the table has no room for it, or names it: a store may have been faster, and
    /// what was asked before that is not about its bytes.
    pub fn learn(&mut self, id: AdapterId, key: L2Key, found: Found, l1: &mut L1) -> bool {
        let adapter = self.get_mut(id);
        if adapter.closing.is_some() {
            return false;
        }
        adapter.shelf.admit(key, found.bytes, found.seal, &mut l1.scopes).is_some()
    }

    /// The object is wanted, and cannot go until `unhold`. True where it was wanted before.
    pub fn hold(&mut self, id: AdapterId, entry: SlotName) -> bool {
        self.get_mut(id).shelf.hold(entry)
    }

    pub fn unhold(&mut self, id: AdapterId, entry: SlotName) {
        self.get_mut(id).shelf.unhold(entry);
    }

    /// The object was loaded: it is the most recently used.
    pub fn used(&mut self, id: AdapterId, entry: SlotName, l1: &L1, out: &mut Outbox) {
        let adapter = self.get_mut(id);
        let Some(key) = adapter.shelf.touch(entry) else { return };
        out.effects.push(Effect::Note { adapter: id, key, note: Note::Used });
        let mark = out.mark();
        out.keys.extend(adapter.shelf.fact_key(entry, l1));
        out.tell(Fact::L2Accessed { adapter: id, keys: out.keys_since(mark) });
    }

    /// The object is not there any more, or is not what it was.
    pub fn lost(
        &mut self,
        (id, entry): (AdapterId, SlotName),
        why: L2Removal,
        l1: &mut L1,
        out: &mut Outbox,
    ) {
        let adapter = self.get_mut(id);
        let mark = out.mark();
        out.keys.extend(adapter.shelf.fact_key(entry, l1));
        let Some(key) = adapter.shelf.remove(entry, &mut l1.scopes) else { return };
        out.effects.push(Effect::Note { adapter: id, key, note: Note::Removed });
        out.tell(Fact::L2Removed { adapter: id, keys: out.keys_since(mark), why });
    }

    /// An effect is about to be ordered; `patience` is how long it may take before somebody is
    /// told (`Alarm::FlightStall`). None when too much is in flight.
    pub fn depart(
        &mut self,
        flight: Flight,
        patience: Option<Duration>,
        now: Instant,
        alarms: &mut Alarms,
    ) -> Option<Ticket> {
        let in_flight = InFlight { flight, departed: now, timer: None };
        let name = self.flights.insert(in_flight).ok()?;
        if let Some(patience) = patience {
            let timer = alarms.arm(now + patience, Alarm::FlightStall, name);
            self.flights.find_mut(name).expect("inserted above").timer = Some(timer);
        }
        if let Some(id) = flight.adapter() {
            self.get_mut(id).flights += 1;
        }
        Some(Ticket(name))
    }

    /// The one ending of an effect. A ticket that has ended before, or is another kind's, changes
    /// nothing and is counted.
    pub fn arrive(
        &mut self,
        ticket: Ticket,
        is_kind: fn(&Flight) -> bool,
        alarms: &mut Alarms,
        out: &mut Outbox,
    ) -> Option<InFlight> {
        let found = self.flights.find(ticket.0).filter(|found| is_kind(&found.flight));
        let Some(found) = found.copied() else {
            self.stale_endings += 1;
            out.tell(Fact::StaleEnding);
            return None;
        };
        self.flights.remove(ticket.0);
        if let Some(timer) = found.timer {
            alarms.cancel(timer);
        }
        if let Some(id) = found.flight.adapter() {
            self.get_mut(id).flights -= 1;
        }
        Some(found)
    }

    /// A flight takes longer than it may. It goes on; its memory stays pinned until its ending.
    pub fn stalled(&mut self, name: SlotName) -> Option<Flight> {
        let found = self.flights.find_mut(name)?;
        found.timer = None;
        let flight = found.flight;
        if let Flight::Load { adapter, .. } = flight {
            self.get_mut(adapter).loads_stalled += 1;
        }
        Some(flight)
    }

    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether one more object may be loaded now: the adapter serves, and has credit for it.
    pub fn may_load(&self, id: AdapterId, bytes: u64) -> bool {
        let adapter = self.get(id);
        let fits = adapter.loading_bytes.saturating_add(bytes) <= limits::LOADING_BYTES_MAX;
        adapter.serves()
            && adapter.loads < adapter.setup.loads_max
            && (fits || adapter.loads == 0)
            && !self.flights.is_full()
    }

    /// A load has departed: its credit is taken until `load_ended`.
    pub fn load_begun(&mut self, id: AdapterId, bytes: u64, now: Instant) {
        let adapter = self.get_mut(id);
        if adapter.loads == 0 {
            adapter.pace.begin(now);
        }
        adapter.loads += 1;
        adapter.loading_bytes += bytes;
    }

    /// A load has arrived. Called once for each `load_begun`, at the ending of its ticket and not
    /// at its stall: until then the device may still write.
    pub fn load_ended(
        &mut self,
        turn: &mut Turn,
        flight: &InFlight,
        bytes: u64,
        outcome: LoadOutcome,
    ) {
        let Some(id) = flight.flight.adapter() else { return };
        let is_late = flight.has_stalled();
        let adapter = self.get_mut(id);
        assert!(adapter.loads > 0, "a load ends once");
        adapter.loads -= 1;
        adapter.loads_stalled -= u32::from(is_late);
        adapter.loading_bytes -= bytes;
        let came = if outcome == LoadOutcome::Loaded { bytes } else { 0 };
        adapter.pace.end(turn.now, came);
        // What comes after its stall was counted by the stall.
        match outcome {
            _ if is_late => {}
            LoadOutcome::Loaded | LoadOutcome::Absent | LoadOutcome::OtherSize { .. } => {
                self.succeeded(id);
            }
            LoadOutcome::Failed(fault) => self.faulted(turn, id, fault),
        }
    }

    /// A probe has arrived; `is_answered` where the adapter could be asked.
    pub fn probe_ended(
        &mut self,
        turn: &mut Turn,
        id: AdapterId,
        took: Duration,
        is_answered: bool,
    ) {
        if took > self.get(id).setup.probe_deadline {
            return;
        }
        match is_answered {
            true => self.succeeded(id),
            false => self.failed(turn, id),
        }
    }

    /// A flight of this adapter has taken longer than it may.
    pub fn stalled_on(&mut self, turn: &mut Turn, id: AdapterId) {
        self.get_mut(id).counts.stalls += 1;
        self.failed(turn, id);
    }

    /// What one load brings in a second, on average; 0 where none has ended yet.
    pub fn load_bytes_per_second(&self, id: AdapterId) -> u64 {
        self.get(id).pace.bytes_per_second()
    }

    /// The same, where that can be told of now: an adapter that was not asked for a while may be
    /// faster than it was.
    pub(crate) fn pace(&self, id: AdapterId, now: Instant) -> Option<u64> {
        let adapter = self.get(id);
        let rate = adapter.pace.bytes_per_second();
        (rate > 0 && (adapter.loads > 0 || adapter.pace.is_fresh(now))).then_some(rate)
    }

    /// Whether an object that is held here can still be had. What goes only goes when it has been
    /// read; what was lost, or has turned out to be damaged, is not read again.
    pub(crate) fn may_read(&self, (id, entry): (AdapterId, SlotName)) -> bool {
        let entry = self.get(id).shelf.entry(entry);
        entry.is_some_and(|entry| entry.stage != Stage::Deleting(L2Removal::Digest))
    }

    /// What an object's bytes have to come to, as far as it is known by now.
    pub fn seal_of(&self, (id, entry): (AdapterId, SlotName)) -> Option<Seal> {
        self.get(id).shelf.entry(entry)?.seal
    }

    /// The first load has shown what an object of `bytes` comes to. False where it was known, or
    /// where a digest made earlier may still lie at rest: that one counts.
    pub fn seal(
        &mut self,
        (id, entry): (AdapterId, SlotName),
        bytes: u64,
        seal: Seal,
        scopes: &Scopes,
    ) -> bool {
        let adapter = self.get_mut(id);
        adapter.is_scanned && !adapter.has_untold && adapter.shelf.seal(entry, bytes, seal, scopes)
    }

    /// Absolute, for a scrape and for every tick.
    pub fn gauges(&self, demote: &Demote) -> Vec<AdapterGauges> {
        let live = self.list.iter().filter(|adapter| adapter.state != AdapterState::Gone);
        live.map(|adapter| AdapterGauges {
            adapter: adapter.id.0,
            used_bytes: adapter.shelf.used_bytes,
            capacity_bytes: adapter.setup.capacity_bytes,
            objects: adapter.shelf.len() as u64,
            stores_in_flight: adapter.stores.into(),
            loads_in_flight: adapter.loads.into(),
            loading_bytes: adapter.loading_bytes,
            stores_waiting: demote.waiting(adapter.id) as u64,
            is_draining: adapter.state == AdapterState::Draining,
        })
        .collect()
    }

    /// Says every adapter's name again.
    pub fn retell(&self, facts: &mut Vec<Fact>) {
        for adapter in &self.list {
            facts.push(Fact::AdapterNamed { adapter: adapter.id, name: adapter.name.clone() });
            facts.push(Fact::AdapterChanged { adapter: adapter.id, state: adapter.state });
        }
    }
}

impl Adapter {
    /// Whether anything but a trial may be asked of it.
    pub(crate) fn serves(&self) -> bool {
        matches!(self.state, AdapterState::Scanning | AdapterState::Ready)
    }

    /// Whether its credits for loads are used up by such as take longer than they may: nothing can
    /// be had from it until one of them has ended, however well it answers otherwise (F47).
    pub(crate) fn hangs(&self) -> bool {
        let is_used_up = self.loads >= self.setup.loads_max
            || self.loading_bytes > limits::LOADING_BYTES_MAX / 2;
        self.loads > 0 && self.loads_stalled == self.loads && is_used_up
    }
}

/// What a fact says of an object below L1.
pub(crate) fn fact_key(key: &L2Key, bytes: u64, l1: &L1) -> FactKey {
    let (hash, scope) = (key.hash, key.scope);
    FactKey { hash, bytes, scope, tenant: l1.scopes.tenant_of(scope) }
}
