//! The roster of lower tiers: what each of them is known to hold, what is on its way to and from
//! it, and whether it can be trusted with more.
//!
//! The invariant: an adapter's shelf counts every byte that is at rest in it or on its way there
//! exactly once (I-39), what is being loaded cannot go (I-23, I-31), and every effect that was
//! ordered from an adapter stands in `flights` until its one ending (I-33).

pub mod flights;
pub mod shelf;

use crate::SeededHash;
use crate::config::{AdapterSetup, Limits};
use crate::effect::{Effect, Note, Outbox};
use crate::engine::alarms::{Alarm, Alarms};
use crate::engine::l1::L1;
use crate::fact::{AdapterGauges, AdapterState, Fact, FactKey, L2Removal};
use crate::limits;
use crate::names::{AdapterId, L2Key, Seal, Ticket};
use crate::slots::{SlotName, Slots};
use crate::time::{Duration, Instant};
use alloc::sync::Arc;
use alloc::vec::Vec;
use flights::{Flight, InFlight};
use shelf::Shelf;

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
    pub(crate) shelf: Shelf,
    pub(crate) stores: u32,
    pub(crate) loads: u32,
    /// Bytes of L1 that the loads on their way are for.
    pub(crate) loading_bytes: u64,
    /// Effects on their way, of every kind.
    pub(crate) flights: u32,
}

#[derive(Clone, Debug)]
pub struct Adapters {
    pub(crate) list: Vec<Adapter>,
    pub(crate) flights: Slots<InFlight>,
    pub(crate) stale_endings: u64,
    hash: SeededHash,
}

impl Adapters {
    pub fn new(limits: &Limits, seed: u64) -> Adapters {
        Adapters {
            list: Vec::new(),
            flights: Slots::with_limit(limits.flights),
            stale_endings: 0,
            hash: SeededHash::new(seed ^ 21),
        }
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
            shelf,
            stores: 0,
            loads: 0,
            loading_bytes: 0,
            flights: 0,
        });
    }

    pub fn find(&self, id: AdapterId) -> Option<&Adapter> {
        self.list.get(id.0 as usize).filter(|adapter| adapter.state != AdapterState::Gone)
    }

    pub(crate) fn get(&self, id: AdapterId) -> &Adapter {
        &self.list[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: AdapterId) -> &mut Adapter {
        &mut self.list[id.0 as usize]
    }

    /// Adapters that a lookup may load from, the preferred one first.
    pub fn loading(&self) -> impl Iterator<Item = AdapterId> {
        let serves = |adapter: &&Adapter| {
            matches!(adapter.state, AdapterState::Scanning | AdapterState::Ready)
        };
        self.list.iter().filter(serves).map(|adapter| adapter.id)
    }

    /// What an adapter is known to hold under a key.
    pub fn known(&self, id: AdapterId, key: &L2Key) -> Known {
        let adapter = self.get(id);
        match adapter.shelf.find(key) {
            Some((entry, found)) if found.is_loadable() => {
                Known::Here { entry, bytes: found.bytes, seal: found.seal }
            }
            Some(_) => Known::Absent,
            None if adapter.is_scanned && !adapter.setup.is_shared => Known::Absent,
            None => Known::Unknown,
        }
    }

    /// A probe has found an object that the table does not name. False where the table has no room
    /// for it.
    pub fn learn(&mut self, id: AdapterId, key: L2Key, bytes: u64, l1: &mut L1) -> bool {
        let adapter = self.get_mut(id);
        let learnt = adapter.shelf.admit(key, bytes, None, &mut l1.scopes);
        learnt.is_some()
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
        Some(found.flight)
    }

    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    // TEMP-BEGIN
    pub fn may_load(&self, id: AdapterId, _bytes: u64) -> bool {
        self.get(id).loads < self.get(id).setup.loads_max
    }
    pub fn load_begun(&mut self, id: AdapterId, bytes: u64) {
        self.get_mut(id).loads += 1;
        self.get_mut(id).loading_bytes += bytes;
    }
    #[allow(clippy::too_many_arguments)]
    pub fn load_ended(
        &mut self,
        id: AdapterId,
        bytes: u64,
        _took: Duration,
        _works: bool,
        _now: Instant,
        _alarms: &mut Alarms,
        _out: &mut Outbox,
    ) {
        self.get_mut(id).loads -= 1;
        self.get_mut(id).loading_bytes -= bytes;
    }
    pub fn probe_ended(
        &mut self,
        _id: AdapterId,
        _ok: bool,
        _now: Instant,
        _alarms: &mut Alarms,
        _out: &mut Outbox,
    ) {
    }
    pub fn stalled_on(
        &mut self,
        _id: AdapterId,
        _now: Instant,
        _alarms: &mut Alarms,
        _out: &mut Outbox,
    ) {
    }
    pub fn load_bytes_per_second(&self, _id: AdapterId) -> u64 {
        0
    }
    pub fn seal(&mut self, id: AdapterId, entry: SlotName, seal: Seal) -> bool {
        self.get_mut(id).shelf.seal(entry, seal)
    }
    pub fn quarantine(
        &mut self,
        id: AdapterId,
        entry: SlotName,
        l1: &mut L1,
        _now: Instant,
        _alarms: &mut Alarms,
        out: &mut Outbox,
    ) {
        self.lost((id, entry), L2Removal::Digest, l1, out);
    }
    // TEMP-END

    /// Absolute, for a scrape and for every tick.
    pub fn gauges(&self) -> Vec<AdapterGauges> {
        let live = self.list.iter().filter(|adapter| adapter.state != AdapterState::Gone);
        live.map(|adapter| AdapterGauges {
            adapter: adapter.id.0,
            used_bytes: adapter.shelf.used_bytes,
            capacity_bytes: adapter.setup.capacity_bytes,
            objects: adapter.shelf.len() as u64,
            stores_in_flight: adapter.stores.into(),
            loads_in_flight: adapter.loads.into(),
            loading_bytes: adapter.loading_bytes,
            stores_waiting: 0,
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

/// What a fact says of an object below L1.
pub(crate) fn fact_key(key: &L2Key, bytes: u64, l1: &L1) -> FactKey {
    let (hash, scope) = (key.hash, key.scope);
    FactKey { hash, bytes, scope, tenant: l1.scopes.tenant_of(scope) }
}
