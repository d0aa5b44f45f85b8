//! What must hold of lower tiers (I-30, I-31, I-33, I-35, I-38, I-39).

use super::flights::{Flight, InFlight};
use super::shelf::{Share, Shelf};
use super::{Adapter, Adapters, Stage, health_subject};
use crate::engine::alarms::Alarm;
use crate::engine::audit::{Claims, View, Violation, check};
use crate::fact::AdapterState;
use crate::limits::{ADAPTERS_MAX, DELETES_MAX, QUARANTINES_MAX, UNWANTED_MAX};
use crate::names::{AdapterId, TenantId};
use crate::policy::Policy;
use alloc::collections::BTreeMap;

/// What is on its way, by kind.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Counted {
    all: u32,
    stores: u32,
    loads: u32,
    loads_stalled: u32,
    deletes: u32,
    scrubs: u32,
    trials: u32,
}

impl Adapters {
    /// Adds what flights and shelves claim of names and alarms.
    pub(crate) fn audit(&self, view: &View, claims: &mut Claims) -> Result<(), Violation> {
        let mut counted = [Counted::default(); ADAPTERS_MAX];
        for (name, found) in self.flights.iter() {
            claims.timers += found.timer.is_some() as usize;
            let fires = found.timer.is_none()
                || view.alarms.is_armed(found.timer, Alarm::FlightStall, name);
            check(fires, "I-32", "an order's patience has no alarm")?;
            if let Some(id) = found.flight.adapter() {
                counted[usize::from(id.0)].add(found);
            }
            self.audit_flight(&found.flight)?;
        }
        let mut draining = 0;
        for (adapter, counted) in self.list.iter().zip(counted) {
            draining += (adapter.state == AdapterState::Draining) as usize;
            adapter.audit_flights(&counted)?;
            adapter.audit_health(view, claims)?;
            adapter.shelf.audit(view, claims)?;
        }
        check(draining == self.draining, "I-33", "adapters that leave are miscounted")
    }

    /// What is on its way still speaks of what it was sent for.
    fn audit_flight(&self, flight: &Flight) -> Result<(), Violation> {
        let entry = |id: AdapterId, name| self.get(id).shelf.entry(name);
        match *flight {
            Flight::Delete { adapter, entry: name } => {
                let goes = entry(adapter, name)
                    .is_none_or(|entry| matches!(entry.stage, Stage::Deleting(_)));
                check(goes, "I-30", "an object is taken away and can be read")
            }
            Flight::Scrub { adapter, entry: name }
            | Flight::Trial { adapter, entry: Some(name) } => {
                let is_held = entry(adapter, name).is_none_or(|entry| entry.holds > 0);
                check(is_held, "I-31", "an object is read and can go")
            }
            _ => Ok(()),
        }
    }
}

impl Adapter {
    fn audit_flights(&self, counted: &Counted) -> Result<(), Violation> {
        check(self.flights == counted.all, "I-33", "an adapter's orders are miscounted")?;
        check(self.stores == counted.stores, "I-19", "an adapter's stores are miscounted")?;
        check(self.loads == counted.loads, "I-24", "an adapter's loads are miscounted")?;
        let is_stalled = self.loads_stalled == counted.loads_stalled;
        check(is_stalled, "I-32", "an adapter's stalled loads are miscounted")?;
        check(self.deletes == counted.deletes, "I-30", "an adapter's deletes are miscounted")?;
        let scrubs = self.scrub.in_flight == counted.scrubs;
        check(scrubs, "I-31", "an adapter's checks are miscounted")?;
        check(self.stores <= self.setup.stores_max.max(1), "P3", "more stores than credits")?;
        check(self.deletes <= DELETES_MAX, "P3", "more deletes than credits")?;
        check(self.evicting.aside_len() <= QUARANTINES_MAX, "P3", "too many wait to go aside")?;
        check(self.evicting.unwanted_len() <= UNWANTED_MAX, "P3", "too many wait to be deleted")?;
        let is_idle = *counted == Counted::default() && self.shelf.is_empty();
        check(
            self.state != AdapterState::Gone || is_idle,
            "I-33",
            "something is asked of what left",
        )
    }

    /// A tripped adapter is tried again some time (F47).
    fn audit_health(&self, view: &View, claims: &mut Claims) -> Result<(), Violation> {
        let timer = self.health.timer;
        claims.timers += timer.is_some() as usize;
        let is_tripped = self.state == AdapterState::Tripped;
        let subject = health_subject(self.id);
        let is_armed = view.alarms.is_armed(timer, Alarm::AdapterRetry, subject);
        check(is_armed || timer.is_none(), "F47", "a trial is waited for without an alarm")?;
        let is_tried = timer.is_some() || self.health.trial.is_some();
        check(!is_tripped || is_tried, "F47", "a tripped adapter is never tried again")?;
        check(is_tripped || timer.is_none(), "F47", "what works waits for a trial")
    }
}

impl Shelf {
    fn audit(&self, view: &View, claims: &mut Claims) -> Result<(), Violation> {
        let (mut used, mut leaving, mut fixed) = (0, 0, 0);
        let (mut going, mut held, mut eligible) = (0, 0, 0);
        let mut tenants: BTreeMap<TenantId, Share> = BTreeMap::new();
        for (name, entry) in self.entries.iter() {
            let found = self.find(&entry.key).map(|(found, _)| found);
            check(found == Some(name), "I-48", "an object below L1 is not found by its key")?;
            claims.scopes[entry.key.scope.0 as usize] += 1;
            let charge = self.charge(entry.bytes);
            let share = tenants.entry(view.l1.scopes.tenant_of(entry.key.scope)).or_default();
            used += charge;
            share.bytes += charge;
            held += (entry.holds > 0) as usize;
            match entry.stage {
                Stage::Storing => {
                    fixed += charge;
                    check(entry.holds == 0, "I-29", "what is not whole yet is read")?;
                }
                Stage::Stored if entry.holds > 0 => fixed += charge,
                Stage::Stored => eligible += 1,
                Stage::Deleting(_) => {
                    leaving += charge;
                    share.leaving += charge;
                    going += 1;
                }
            }
        }
        check(used == self.used_bytes, "I-39", "used bytes are not those of the objects")?;
        check(tenants == self.by_tenant, "I-39", "bytes by tenant are not those of the objects")?;
        check(leaving == self.leaving_bytes, "I-39", "leaving bytes are miscounted")?;
        check(fixed == self.fixed_bytes, "I-39", "bytes that cannot go are miscounted")?;
        check(going == self.leaving, "I-30", "leaving objects are miscounted")?;
        check(held == self.held, "I-31", "held objects are miscounted")?;
        self.audit_policy(eligible)
    }

    /// Exactly what can go is offered.
    fn audit_policy(&self, eligible: usize) -> Result<(), Violation> {
        self.policy.audit().map_err(|found| Violation { invariant: "I-38", found })?;
        if matches!(self.policy, Policy::Noop) {
            return Ok(());
        }
        check(self.policy.len() == self.len(), "I-38", "the policy has ghosts or orphans")?;
        let mut offered = 0;
        let mut candidate = self.policy.coldest();
        while let Some(index) = candidate {
            let found = self.entries.at(index).map(|(_, entry)| entry);
            let can_go =
                found.is_some_and(|entry| entry.stage == Stage::Stored && entry.holds == 0);
            check(can_go, "I-31", "the policy offers what cannot go")?;
            offered += 1;
            candidate = self.policy.next_after(index);
        }
        check(offered == eligible, "I-37", "the policy does not offer what can go")
    }
}

impl Counted {
    fn add(&mut self, found: &InFlight) {
        self.all += 1;
        match found.flight {
            Flight::Store { .. } => self.stores += 1,
            Flight::Load { .. } => {
                self.loads += 1;
                self.loads_stalled += u32::from(found.has_stalled());
            }
            Flight::Delete { .. } => self.deletes += 1,
            Flight::Scrub { .. } => self.scrubs += 1,
            Flight::Trial { .. } => self.trials += 1,
            Flight::Probe { .. } | Flight::StoreDigest { .. } | Flight::LoadDigest { .. } => {}
        }
    }
}
