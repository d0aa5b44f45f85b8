//! Lower tiers: what may be ordered from them and when, what they owe, and what a lookup may wait
//! for (I-18 … I-25, I-31 … I-34).

use super::{Key, Model, ObjectNumber, State, Sure, Verdict, check};
use crate::orders::{Name, Order, Setup};
use kvtide_core::names::{AdapterId, ArenaId, Layout, Place, Seal, Ticket};
use kvtide_core::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// News of a lower tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierNews {
    State {
        adapter: AdapterId,
        state: Serving,
    },
    StoreEnded {
        adapter: AdapterId,
        name: Name,
        end: StoreEnd,
    },
    StoreDropped {
        adapter: AdapterId,
        name: Name,
    },
    /// `is_damaged`: its bytes were others, and it is not read again.
    LoadEnded {
        adapter: AdapterId,
        name: Name,
        is_loaded: bool,
        is_damaged: bool,
    },
    Has {
        adapter: AdapterId,
        name: Name,
        bytes: u64,
    },
    HasNoMore {
        adapter: AdapterId,
        name: Name,
    },
    /// A lookup did not get something from below L1.
    Failed,
}

/// What a tier can be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    Scanning,
    Ready,
    Tripped,
    Draining,
    Gone,
}

/// What came of one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreEnd {
    Stored,
    /// It was there already.
    Present,
    Failed,
}

/// One tier of the roster.
#[derive(Clone, Debug)]
pub(super) struct Tier {
    pub setup: Rc<Setup>,
    pub state: Serving,
    pub is_removed: bool,
    pub is_closed: bool,
    /// What it is told to hold, or may have been.
    pub has: BTreeMap<Name, Has>,
    /// What has turned out not to be there, or not to be what was stored: not to be read again
    /// before it was stored or found anew.
    pub barred: BTreeSet<Name>,
    /// Layouts of what it was given to store last.
    pub layouts: BTreeMap<Name, Layout>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Has {
    pub bytes: u64,
    /// Since which event its digest is known for sure.
    pub sealed: Option<u64>,
    pub digest: Option<u32>,
    /// That was told by a probe, whose answer may have been nobody's.
    pub is_probed: bool,
    /// It may have been wanted before.
    pub was_wanted: bool,
    /// Of what it was surely stored as.
    pub layout: Option<Layout>,
}

impl Has {
    /// Nothing is known of it but its size.
    pub fn found(bytes: u64) -> Has {
        Has { bytes, sealed: None, digest: None, is_probed: false, was_wanted: true, layout: None }
    }
}

/// An order without its ending.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub order: Order,
    pub since: Instant,
    pub is_cancelled: bool,
    /// It reads what is known to have gone: another object may be there by now.
    pub is_of_gone: bool,
}

/// An object on its way into L1, or given up on that way.
#[derive(Clone, Debug)]
pub(super) struct Loading {
    /// The event in which its place was reserved.
    pub begun: u64,
    pub has_place: bool,
    pub is_sealed: bool,
}

/// What came of one object's stores below L1.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demotion {
    /// Tiers that have not answered.
    pub owed: u32,
    /// Tiers that keep data and have it, and tiers that have failed.
    pub good: u32,
    pub bad: u32,
    /// Nothing is certain of it.
    pub is_vague: bool,
}

/// A store that a tier owes an answer for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    pub object: ObjectNumber,
    pub must: bool,
}

#[derive(Default)]
pub(super) struct Below {
    pub tiers: Vec<Tier>,
    pub flights: BTreeMap<Ticket, Flight>,
    pub loading: BTreeMap<ObjectNumber, Loading>,
    pub owed: BTreeMap<(AdapterId, Name), Vec<Owed>>,
    pub demotions: BTreeMap<ObjectNumber, Demotion>,
    pub events: u64,
    /// What was on its way to or from below L1 before this event, or waited for by a lookup.
    pub before: BTreeSet<ObjectNumber>,
    /// Tiers that served when this event began.
    pub served: BTreeSet<AdapterId>,
    /// Something went wrong below L1 in this event.
    pub has_failed: bool,
}

impl Below {
    pub fn tier(&mut self, adapter: AdapterId) -> Result<&mut Tier, String> {
        let found = self.tiers.get_mut(adapter.0 as usize);
        found.ok_or_else(|| "I-33: news or an order of an unknown tier".into())
    }

    /// Orders of one kind under way in one tier.
    pub fn count(&self, adapter: AdapterId, is_kind: fn(&Order) -> bool) -> usize {
        let of =
            |flight: &&Flight| flight.order.adapter() == Some(adapter) && is_kind(&flight.order);
        self.flights.values().filter(of).count()
    }

    /// Objects of L1 that an order under way reads or writes.
    pub fn in_flight(&self) -> impl Iterator<Item = ObjectNumber> {
        self.flights.values().filter_map(|flight| match &flight.order {
            Order::Store { what, .. } | Order::Load { what, .. } | Order::Digest { what, .. } => {
                Some(what.object)
            }
            _ => None,
        })
    }

    /// Objects that wait to be stored below L1, or are being stored.
    pub fn demoting(&self) -> impl Iterator<Item = ObjectNumber> {
        self.owed.values().flatten().map(|owed| owed.object)
    }

    /// Whether such an order is under way for one object of one tier.
    pub fn has_order(&self, adapter: AdapterId, name: &Name, is_kind: fn(&Order) -> bool) -> bool {
        let of_name = |order: &Order| match order {
            Order::Store { name: of, .. }
            | Order::Load { name: of, .. }
            | Order::Delete { name: of, .. }
            | Order::Scrub { name: of, .. } => of == name,
            _ => false,
        };
        self.flights.values().any(|flight| {
            let order = &flight.order;
            let is_of_it = order.adapter() == Some(adapter) && of_name(order);
            is_of_it && is_kind(order) && !flight.is_of_gone
        })
    }

    /// What reads an object that has gone keeps nobody from the next one under its name.
    fn reads_what_has_gone(&mut self, adapter: AdapterId, name: &Name) {
        for flight in self.flights.values_mut() {
            if let Order::Load { adapter: of, name: read, .. }
            | Order::Scrub { adapter: of, name: read, .. } = &flight.order
            {
                flight.is_of_gone |= *of == adapter && read == name;
            }
        }
    }

    pub fn serves(&self) -> impl Iterator<Item = (AdapterId, &Tier)> {
        let serves = |(_, tier): &(AdapterId, &Tier)| {
            matches!(tier.state, Serving::Scanning | Serving::Ready)
        };
        (0..).map(AdapterId).zip(&self.tiers).filter(serves)
    }
}

impl Model {
    pub fn next_event(&mut self) {
        self.below.events += 1;
        self.below.has_failed = false;
        self.below.served = self.below.serves().map(|(adapter, _)| adapter).collect();
        // A lookup that goes on below L1 holds what L1 has of its prefix.
        let looking = self.sessions.values().flat_map(|session| session.looks_for());
        let looking = looking.filter_map(|key| self.index.get(key).copied());
        let below = self.below.in_flight().chain(self.below.demoting());
        self.below.before = below.chain(looking).collect();
    }

    pub fn adapter_added(&mut self, adapter: AdapterId, setup: &Rc<Setup>) -> Verdict {
        check(self.below.tiers.len() == adapter.0 as usize, "tiers join in order")?;
        self.below.tiers.push(Tier {
            setup: setup.clone(),
            state: Serving::Scanning,
            is_removed: false,
            is_closed: false,
            has: BTreeMap::new(),
            barred: BTreeSet::new(),
            layouts: BTreeMap::new(),
        });
        Ok(())
    }

    /// `skips`: its table had no room for some of it, and what that comes to is not known.
    pub fn adapter_scanned(
        &mut self,
        adapter: AdapterId,
        found: &[crate::orders::Found],
        skips: bool,
    ) {
        let events = self.below.events;
        for found in found {
            // What the table names already it is told nothing new of.
            let sealed = found.seal.filter(|_| !skips).map(|_| events);
            let digest = found.seal.map(|seal| seal.digest);
            let has = Has { sealed, digest, was_wanted: false, ..Has::found(found.bytes) };
            self.found_below(adapter, &found.name, has);
        }
    }

    /// A probe has found something. What it tells of a seal counts at once, as a lookup is planned
    /// by the same event; the engine may not have heard it, if nobody waited any more.
    pub(super) fn probed(
        &mut self,
        adapter: AdapterId,
        name: &Name,
        bytes: u64,
        seal: Option<Seal>,
    ) {
        let before = seal.map(|_| self.below.events - 1);
        let digest = seal.map(|seal| seal.digest);
        let has = Has { sealed: before, digest, is_probed: true, ..Has::found(bytes) };
        self.found_below(adapter, name, has);
        if let (None, Ok(tier)) = (seal, self.below.tier(adapter))
            && let Some(has) = tier.has.get_mut(name).filter(|has| has.is_probed)
        {
            has.sealed = None;
        }
    }

    /// A tier has turned out to have something. Nobody is told of a store that is not needed then.
    pub(super) fn found_below(&mut self, adapter: AdapterId, name: &Name, has: Has) {
        let Ok(tier) = self.below.tier(adapter) else { return };
        // As long as the engine names what it has put aside, it is told nothing new of it.
        if !tier.has.contains_key(name) {
            tier.barred.remove(name);
        }
        tier.has.entry(name.clone()).or_insert(has);
        for owed in self.below.owed.get_mut(&(adapter, name.clone())).into_iter().flatten() {
            let demotion = self.below.demotions.entry(owed.object).or_default();
            demotion.owed -= std::mem::take(&mut owed.must) as u32;
            demotion.is_vague = true;
        }
    }

    pub fn adapter_removed(&mut self, adapter: AdapterId) {
        if let Ok(tier) = self.below.tier(adapter) {
            tier.is_removed = true;
        }
    }

    /// Whether the engine knew what the bytes of this load have to come to, and will look.
    pub fn is_sealed(&self, ticket: Ticket) -> bool {
        let Some(Flight { order: Order::Load { what, .. }, .. }) = self.below.flights.get(&ticket)
        else {
            return false;
        };
        self.was_sealed(what.object)
    }

    pub fn was_sealed(&self, object: ObjectNumber) -> bool {
        self.below.loading.get(&object).is_some_and(|loading| loading.is_sealed)
    }

    /// A place in L1 was reserved for what a lower tier has.
    pub(super) fn stage_load(&mut self, key: &Key) -> Verdict {
        check(!self.index.contains_key(key), "I-34, I-4: a load of what is there already")?;
        let serves = !self.below.served.is_empty() || self.goes_below();
        check(serves, "I-49: reserved for a load from nowhere")?;
        let place = Place { arena: ArenaId(0), offset: 0, bytes: 0 };
        let is_wanted = self.may_be_wanted_again(key);
        let number = self.stage(key.clone(), place);
        self.objects[number.0 as usize].temporary = if is_wanted { Sure::Maybe } else { Sure::Yes };
        let loading = Loading { begun: self.below.events, has_place: false, is_sealed: false };
        self.below.loading.insert(number, loading);
        Ok(())
    }

    /// A load is ordered into a place; `is_cut`: by an event that also gave it up.
    pub fn begin_load(
        &mut self,
        key: &Key,
        place: Place,
        is_cut: bool,
    ) -> Result<ObjectNumber, String> {
        let is_it = |number: &ObjectNumber| self.object(*number).key == *key;
        let waits = |(number, loading): (&ObjectNumber, &Loading)| {
            let is_gone = self.object(*number).state == State::Gone;
            let is_free = !loading.has_place && !self.object(*number).forced;
            (is_free && is_gone == is_cut && is_it(number)).then_some(*number)
        };
        let number = self.below.loading.iter().rev().find_map(waits);
        let number = number.ok_or("I-2, I-34: a load into what is not reserved for it")?;
        self.below.loading.get_mut(&number).expect("found above").has_place = true;
        check(key.scope.layout.bytes() == Some(place.bytes), "I-5: a load of another size")?;
        check(self.has_grown_to(place.offset + place.bytes), "I-17: a load beyond what has grown")?;
        self.objects[number.0 as usize].place = place;
        Ok(number)
    }

    /// A load has come to a good end: it can be read from now on.
    pub(super) fn publish_load(&mut self, key: &Key) -> Verdict {
        let number = *self.index.get(key).ok_or("I-49: published what was not reserved")?;
        let loading = self.below.loading.get(&number);
        let loading = loading.ok_or("I-7: a client's slots were published without its word")?;
        check(loading.has_place, "I-7: published without having been loaded")?;
        let is_reading = self.below.in_flight().any(|object| object == number);
        check(!is_reading, "R-7: published while it was being loaded")?;
        let object = &mut self.objects[number.0 as usize];
        check(object.state == State::Staged, "I-49: published twice")?;
        check(!object.forced, "a forced clear left something to publish")?;
        object.state = State::Resident;
        object.readable = Sure::Yes;
        let is_wanted = self.may_be_wanted_again(key);
        let stays = self.rules.retains;
        self.objects[number.0 as usize].temporary = match (stays, is_wanted) {
            (true, _) => Sure::No,
            (false, true) => Sure::Maybe,
            // Whoever asked for it while it was on its way has wanted it as well.
            (false, false) => self.objects[number.0 as usize].temporary,
        };
        self.became_present(key);
        self.used(number);
        let name = key.name();
        for tier in &mut self.below.tiers {
            if let Some(has) = tier.has.get_mut(&name) {
                has.was_wanted = true;
            }
        }
        Ok(())
    }

    /// Whether more than one lookup may have wanted it, or one before.
    fn may_be_wanted_again(&self, key: &Key) -> bool {
        let name = key.name();
        let before = |tier: &Tier| tier.has.get(&name).is_none_or(|has| has.was_wanted);
        let asked = self.sessions.values().filter(|known| known.watches(key)).count();
        asked != 1 || self.below.tiers.iter().any(before)
    }

    /// A load was given up.
    pub(super) fn load_given_up(&mut self, key: &Key) -> Verdict {
        let number = self.index.remove(key).ok_or("I-49: gave up what was not reserved")?;
        let is_load = self.below.loading.contains_key(&number);
        check(is_load, "I-7: a client's slots were given up for a load")?;
        self.objects[number.0 as usize].state = State::Gone;
        Ok(())
    }

    /// A client's store was published: every tier owes an answer for it (I-18).
    pub(super) fn owe(&mut self, number: ObjectNumber) {
        let name = self.object(number).key.name();
        let mut demotion = Demotion::default();
        let takes = |state: Serving| !matches!(state, Serving::Draining | Serving::Gone);
        // A commit of what is on its way already goes along with that, to those that it is for.
        let is_under_way = self.below.owed.keys().any(|(_, of)| *of == name);
        for (place, tier) in self.below.tiers.iter().enumerate() {
            if !takes(tier.state) || tier.is_removed {
                continue;
            }
            let adapter = AdapterId(place as u16);
            // A store that took too long may still end well.
            let is_store = |order: &Order| matches!(order, Order::Store { .. });
            let may_come = self.below.has_order(adapter, &name, is_store);
            let is_coalesced = tier.has.contains_key(&name) || is_under_way || may_come;
            let owed = self.below.owed.entry((adapter, name.clone())).or_default();
            let must = !is_coalesced && !tier.setup.on_second_touch;
            demotion.is_vague |= !must;
            demotion.owed += must as u32;
            owed.push(Owed { object: number, must });
        }
        self.below.demotions.insert(number, demotion);
    }

    /// News of tiers, as they came one after the other.
    pub(super) fn hear_tiers(&mut self, news: &[TierNews]) -> Verdict {
        for told in news {
            match told {
                TierNews::State { adapter, state } => {
                    let tier = self.below.tier(*adapter)?;
                    let is_over = tier.state == Serving::Gone;
                    check(!is_over, "I-33: a tier that had gone came back")?;
                    let leaves = tier.state == Serving::Draining;
                    let may = !leaves || *state == Serving::Gone;
                    check(may, "I-33: a leaving tier stayed")?;
                    tier.state = *state;
                    self.below.has_failed = true;
                }
                TierNews::StoreEnded { .. } | TierNews::StoreDropped { .. } => {}
                TierNews::LoadEnded { adapter, name, is_loaded, is_damaged } => {
                    self.below.has_failed |= !is_loaded;
                    // It may lie there for as long as somebody else reads it.
                    let has = self.below.tier(*adapter)?.has.get_mut(name);
                    if let Some(has) = has.filter(|_| *is_damaged) {
                        has.layout = None;
                    }
                }
                TierNews::Has { adapter, name, bytes } => {
                    let tier = self.below.tier(*adapter)?;
                    tier.barred.remove(name);
                    let layout = tier.layouts.get(name).copied();
                    let has = Has { was_wanted: false, layout, ..Has::found(*bytes) };
                    let is_end = |news: &TierNews| match news {
                        TierNews::StoreEnded { adapter: of, name: stored, .. } => {
                            of == adapter && stored == name
                        }
                        _ => false,
                    };
                    if news.iter().any(is_end) {
                        tier.has.entry(name.clone()).or_insert(has);
                    } else {
                        // A store that was given up for late: it is needed no more.
                        self.found_below(*adapter, name, has);
                    }
                }
                TierNews::HasNoMore { adapter, name, .. } => {
                    self.below.tier(*adapter)?.has.remove(name);
                    self.below.reads_what_has_gone(*adapter, name);
                    self.below.has_failed = true;
                }
                TierNews::Failed => self.below.has_failed = true,
            }
        }
        if self.below.has_failed {
            self.excuse(None);
        }
        Ok(())
    }
}
