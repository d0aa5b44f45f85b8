//! Orders and their endings: what may be ordered, and what is left when nothing is to be left.

use super::Serving;
use super::below::{Flight, Has};
use super::{Model, ObjectNumber, State, Sure, Verdict, check};
use crate::orders::{Ending, Name, Noted, Order};
use kvtide_core::event::{Found, LoadOutcome, StoreOutcome};
use kvtide_core::names::{AdapterId, Ticket};
use kvtide_core::time::Duration;

impl Model {
    /// An order leaves the engine.
    pub fn ordered(&mut self, order: &Order) -> Verdict {
        if let Some(adapter) = order.adapter() {
            let tier = self.below.tier(adapter)?;
            check(!tier.is_closed, "I-33: an order after a tier was closed")?;
            let is_new = order.ticket().is_some();
            let leaves = tier.is_removed || tier.state == Serving::Draining;
            check(!is_new || !leaves, "I-33: a leaving tier was given a new task")?;
        }
        match order {
            Order::Probe { .. } => {}
            Order::Store { adapter, name, what, .. } => {
                self.check_store(*adapter, name, what.object)?;
            }
            Order::Load { adapter, name, what, .. } => {
                self.check_load(*adapter, name, what.object)?;
            }
            Order::Delete { adapter, name, quarantine, .. } => {
                if *quarantine {
                    self.below.tier(*adapter)?.barred.insert(name.clone());
                }
                let is_read = self.below.has_order(*adapter, name, |order| {
                    matches!(order, Order::Load { .. } | Order::Scrub { .. })
                });
                check(!is_read, "I-23, I-31: deleted while it is being read")?;
                let is_written = self
                    .below
                    .has_order(*adapter, name, |order| matches!(order, Order::Store { .. }));
                check(!is_written, "I-30: deleted while it is being written")?;
                // It may be there again if that fails, and is not there as long as it does not.
                // Whatever becomes of that, it may not be read any more.
                if let Some(has) = self.below.tier(*adapter)?.has.get_mut(name) {
                    has.layout = None;
                }
                self.below.has_failed = true;
                let objects = &self.objects;
                for (number, demotion) in &mut self.below.demotions {
                    let key = &objects[number.0 as usize].key;
                    demotion.is_vague |= key.hash == name.hash && key.name() == *name;
                }
            }
            Order::Digest { what, name, .. } => {
                let object = self.object(what.object);
                check(object.key.name() == *name, "I-48: a digest under another name")?;
            }
            Order::Scrub { adapter, name, .. } => {
                let is_gone = self
                    .below
                    .has_order(*adapter, name, |order| matches!(order, Order::Delete { .. }));
                check(!is_gone, "I-31: checked while it is being deleted")?;
            }
            Order::Cancel { ticket } => {
                let flight = self.below.flights.get_mut(ticket);
                flight.ok_or("I-6: cancelled what is not under way")?.is_cancelled = true;
            }
            Order::Note { adapter, name, note } => self.noted(*adapter, name, *note)?,
            Order::Closed { adapter } => self.closed(*adapter)?,
        }
        if let Some(ticket) = order.ticket() {
            let (order, since) = (order.clone(), self.now);
            let flight = Flight { order, since, is_cancelled: false, is_of_gone: false };
            let before = self.below.flights.insert(ticket, flight);
            check(before.is_none(), "I-6: a ticket was issued twice")?;
        }
        Ok(())
    }

    /// Only what was committed is stored, under its own name, once at a time (I-18, I-20).
    fn check_store(&mut self, adapter: AdapterId, name: &Name, number: ObjectNumber) -> Verdict {
        let object = self.object(number);
        check(object.key.name() == *name, "I-48: stored under another name")?;
        let was_committed =
            object.state == State::Resident || self.below.demotions.contains_key(&number);
        check(was_committed, "I-7: stored below L1 without its writer's word")?;
        let is_double =
            self.below.has_order(adapter, name, |order| matches!(order, Order::Store { .. }));
        check(!is_double, "R-34: one object is stored twice at a time")?;
        let stores = self.below.count(adapter, |order| matches!(order, Order::Store { .. }));
        let layout = self.object(number).key.scope.layout;
        let tier = self.below.tier(adapter)?;
        tier.layouts.insert(name.clone(), layout);
        check(stores < tier.setup.stores_max as usize, "I-32: more stores than a tier's credits")
    }

    fn check_load(&mut self, adapter: AdapterId, name: &Name, number: ObjectNumber) -> Verdict {
        let object = self.object(number);
        check(object.key.name() == *name, "I-48: loaded from another name")?;
        let loads = self.below.count(adapter, |order| matches!(order, Order::Load { .. }));
        let is_going =
            self.below.has_order(adapter, name, |order| matches!(order, Order::Delete { .. }));
        check(!is_going, "I-31: loaded while it is being deleted")?;
        let has_served = self.below.served.contains(&adapter);
        let tier = self.below.tier(adapter)?;
        let serves = matches!(tier.state, Serving::Scanning | Serving::Ready);
        check(serves || has_served, "R-30: a load from a tier that does not serve")?;
        check(loads < tier.setup.loads_max as usize, "I-32: more loads than a tier's credits")?;
        let is_barred = tier.barred.contains(name);
        check(!is_barred, "I-47, F29: loaded again what is gone or damaged, and not stored anew")?;
        let verifies = tier.setup.verify;
        let sealed = tier.has.get(name).and_then(|has| has.sealed);
        let loading = self.below.loading.get_mut(&number).expect("a load has its reservation");
        loading.is_sealed = verifies && sealed.is_some_and(|since| since < loading.begun);
        Ok(())
    }

    fn noted(&mut self, adapter: AdapterId, name: &Name, note: Noted) -> Verdict {
        let events = self.below.events;
        let tier = self.below.tier(adapter)?;
        match note {
            Noted::Stored { bytes, seal } => {
                let has = tier.has.entry(name.clone()).or_insert(Has::found(bytes));
                has.sealed = has.sealed.or(seal.map(|_| events));
                has.digest = has.digest.or(seal.map(|seal| seal.digest));
            }
            Noted::Used => {}
            Noted::Removed => drop(tier.has.remove(name)),
        }
        Ok(())
    }

    /// A tier is let go of after its last order has ended (I-33).
    fn closed(&mut self, adapter: AdapterId) -> Verdict {
        let is_busy = self.below.flights.values().any(|flight| {
            flight.order.adapter() == Some(adapter) && flight.order.ticket().is_some()
        });
        check(!is_busy, "I-33: closed before its last order had ended")?;
        let tier = self.below.tier(adapter)?;
        check(tier.is_removed, "I-33: closed, and nobody asked for it")?;
        tier.is_closed = true;
        let is_owed = self
            .below
            .owed
            .iter()
            .any(|((of, _), owed)| *of == adapter && owed.iter().any(|owed| owed.must));
        check(!is_owed, "I-18: a tier left with stores that nobody was told of")?;
        self.below.owed.retain(|(of, _), _| *of != adapter);
        Ok(())
    }

    /// An order has ended. False for a stale ticket.
    pub fn tier_ended(&mut self, ticket: Ticket, ending: &Ending) -> bool {
        let is_kind = |order: &Order| {
            matches!(
                (order, ending),
                (Order::Probe { .. }, Ending::Probe(_))
                    | (Order::Store { .. }, Ending::Store(_))
                    | (Order::Load { .. }, Ending::Load(_))
                    | (Order::Delete { .. }, Ending::Delete(_))
                    | (Order::Digest { .. }, Ending::Digest(_))
                    | (Order::Scrub { .. }, Ending::Scrub(_))
            )
        };
        let found = self.below.flights.get(&ticket).filter(|flight| is_kind(&flight.order));
        let found =
            found.map(|flight| (flight.order.clone(), flight.is_cancelled, flight.is_of_gone));
        let Some((order, is_late, is_of_gone)) = found else { return false };
        self.below.flights.remove(&ticket);
        if let Order::Load { adapter, name, .. } = &order
            && let Ending::Load(LoadOutcome::Absent | LoadOutcome::OtherSize { .. }) = ending
            && !is_late
            && !is_of_gone
            && let Ok(tier) = self.below.tier(*adapter)
        {
            tier.barred.insert(name.clone());
        }
        if let Order::Store { adapter, name, .. } = &order
            && let Ending::Store(StoreOutcome::Present { bytes }) = ending
            && is_late
        {
            // Nobody is told of what somebody else has stored meanwhile.
            let has = Has::found(*bytes);
            self.found_below(*adapter, name, has);
        }
        if let (Order::Scrub { adapter, name, .. }, Ending::Scrub(Some(digest))) = (&order, ending)
            && let Ok(tier) = self.below.tier(*adapter)
            && let Some(has) = tier.has.get_mut(name)
            && has.digest != Some(*digest)
        {
            // It is not read again, and lies there until nobody reads it any more.
            has.layout = None;
        }
        if let (Order::Probe { adapter, names, .. }, Ending::Probe(Some(found))) = (order, ending) {
            for (name, found) in names.iter().zip(found.iter()) {
                if let Some(Found { bytes, seal }) = found {
                    self.probed(adapter, name, *bytes, *seal);
                }
            }
        }
        true
    }

    /// What a digest under way is made of.
    pub fn digested(&self, ticket: Ticket) -> Option<Name> {
        match &self.below.flights.get(&ticket)?.order {
            Order::Digest { name, .. } => Some(name.clone()),
            _ => None,
        }
    }

    /// A lookup may wait for what lower tiers say or send.
    pub fn waits_below(&self) -> bool {
        // What a forced clear has taken is waited for until its turn would have come.
        let is_coming = |number: &ObjectNumber| {
            let object = self.object(*number);
            object.state == State::Staged || object.forced
        };
        self.below.loading.keys().any(is_coming)
            || self.below.flights.values().any(|flight| {
                let patience = match &flight.order {
                    Order::Probe { adapter, .. } => {
                        self.below.tiers[adapter.0 as usize].setup.probe_deadline
                    }
                    Order::Load { adapter, .. } => {
                        self.below.tiers[adapter.0 as usize].setup.load_deadline
                    }
                    Order::Digest { what, .. } => {
                        return self.is_loading(what.object) || self.object(what.object).forced;
                    }
                    _ => return false,
                };
                flight.since + patience > self.settled
            })
    }

    /// Whether more than one lookup may be waiting for a load under this key.
    pub fn is_wanted_twice(&self, key: &super::Key) -> bool {
        self.sessions.values().filter(|known| known.watches(key)).count() > 1
    }

    /// Whether a probe is one of a tier that has not told yet what lay there.
    pub fn asks_before_scan(&self, ticket: Ticket) -> bool {
        let adapter = self.below.flights.get(&ticket).and_then(|flight| flight.order.adapter());
        adapter
            .is_some_and(|adapter| self.below.tiers[adapter.0 as usize].state == Serving::Scanning)
    }

    /// Whether what a tier has now would leave L1, but for those who hold it.
    pub fn holds_demoted(&self, name: &Name) -> bool {
        let (surely, _) = self.held();
        let is_it = |number: &ObjectNumber| self.object(*number).key.name() == *name;
        self.rules.skips_l1
            && self.sessions.values().any(|known| known.holds_some(self, name))
            && surely.iter().any(is_it)
    }

    /// Some tier has ever joined.
    pub fn has_tiers(&self) -> bool {
        !self.below.tiers.is_empty()
    }

    /// Lookups may go on below L1.
    pub fn goes_below(&self) -> bool {
        self.below.serves().next().is_some()
    }

    /// No work is left over: what nothing holds any more has left L1.
    pub(super) fn settle_below(&mut self) -> Verdict {
        let (objects, settled) = (&self.objects, self.settled);
        self.below.loading.retain(|number, loading| {
            let object = &objects[number.0 as usize];
            let is_taken = object.forced && !loading.has_place;
            object.state == State::Staged || (is_taken && object.reserved_at + LONGEST > settled)
        });
        if self.below.tiers.is_empty() {
            return Ok(());
        }
        let (_, maybe) = self.held();
        for (_, number) in self.residents().filter(|(_, number)| !maybe.contains(number)) {
            let object = self.object(number);
            if object.readable != Sure::Yes {
                continue;
            }
            let outlives = object.temporary == Sure::Yes;
            check(!outlives, "I-9: a loaded object outlives its leases")?;
            let demotion = self.below.demotions.get(&number).copied().unwrap_or_default();
            let is_done = demotion.owed == 0 && demotion.good > 0 && demotion.bad == 0;
            let is_like = self.rules.skips_l1 && is_done && !demotion.is_vague;
            let stays = is_like && self.surely_has(&object.key.name());
            check(!stays, "I-21: every tier has it, and it stays in L1")?;
        }
        Ok(())
    }

    /// It leaves L1 as lower tiers have it: all have answered, and one has it that keeps data.
    pub(super) fn check_demoted(&self, number: ObjectNumber) -> Verdict {
        check(self.rules.skips_l1, "P7: what lower tiers have leaves L1 under skip_l1 only")?;
        let demotion = self.below.demotions.get(&number).copied().unwrap_or_default();
        check(demotion.owed == 0, "I-21: left L1 before every tier had answered")?;
        let name = self.object(number).key.name();
        let has = |tier: &super::below::Tier| tier.setup.keeps_data && tier.has.contains_key(&name);
        check(self.below.tiers.iter().any(has), "I-22: left L1, and no tier that keeps data has it")
    }

    /// Whether some tier that keeps data surely still has it.
    fn surely_has(&self, name: &Name) -> bool {
        let goes = |order: &Order| matches!(order, Order::Delete { .. });
        (0..).map(AdapterId).zip(&self.below.tiers).any(|(adapter, tier)| {
            tier.setup.keeps_data
                && !matches!(tier.state, Serving::Draining | Serving::Gone)
                && tier.has.contains_key(name)
                && !self
                    .below
                    .flights
                    .values()
                    .any(|flight| goes(&flight.order) && flight.order.adapter() == Some(adapter))
        })
    }

    pub(super) fn is_loading(&self, number: ObjectNumber) -> bool {
        self.below.loading.contains_key(&number)
    }

    /// Whether a tier that serves surely has an object of L1, of this very layout.
    pub(super) fn surely_loadable(&self, key: &super::Key) -> bool {
        let name = key.name();
        self.below.serves().any(|(adapter, tier)| {
            let has = tier.has.get(&name);
            has.is_some_and(|has| {
                has.layout == Some(key.scope.layout) && Some(has.bytes) == key.scope.layout.bytes()
            }) && !self.may_hang(adapter)
                && !self
                    .below
                    .has_order(adapter, &name, |order| matches!(order, Order::Delete { .. }))
        })
    }

    /// Some load from a tier was given up and has not ended: it may have no credit left.
    fn may_hang(&self, adapter: AdapterId) -> bool {
        self.below.flights.values().any(|flight| {
            let is_load = matches!(flight.order, Order::Load { .. });
            is_load && flight.is_cancelled && flight.order.adapter() == Some(adapter)
        })
    }

    /// Nothing is under way, and nobody waits for a store (I-18, P4).
    pub fn check_below(&self) -> Verdict {
        check(self.below.flights.is_empty(), "P4: an order has not ended")?;
        let is_staged = |number: &ObjectNumber| self.object(*number).state == State::Staged;
        let is_loading = self.below.loading.keys().any(is_staged);
        check(!is_loading, "P4: something is still to be loaded")?;
        let untold = self.below.owed.iter().find(|(_, owed)| owed.iter().any(|owed| owed.must));
        match untold {
            None => Ok(()),
            Some(((adapter, name), _)) => {
                let adapter = adapter.0;
                Err(format!("I-18: whether a{adapter} has {name:?} nobody was told"))
            }
        }
    }
}

/// Longest that a lookup waits for lower tiers, whatever they do.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
