//! Whether an adapter can be trusted with more: a breaker that opens after `FAILURES_MAX` failures
//! in a row, and a trial now and then until one succeeds (F47).
//!
//! The invariant: a tripped adapter has a deadline for its next trial, or its trial is on its way;
//! nothing else is asked of it.
//!
//! A trial that succeeds closes the breaker at its edge: the next failure opens it again, for twice
//! as long, until something that was asked in earnest has succeeded.

use super::Adapters;
use super::flights::Flight;
use crate::effect::{Effect, L2KeyRange};
use crate::engine::alarms::{Alarm, Timer};
use crate::engine::turn::Turn;
use crate::event::TierFault;
use crate::fact::{AdapterState, Fact};
use crate::limits::{FAILURES_MAX, TRIP_SECS_MAX, TRIP_SECS_MIN};
use crate::names::{AdapterId, Ticket};
use crate::slots::SlotName;
use crate::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    /// Failures in a row.
    pub(crate) failures: u32,
    /// Trips since something has succeeded in earnest.
    trips: u32,
    /// When the next trial is due.
    pub(crate) until: Option<Instant>,
    pub(super) timer: Option<Timer>,
    /// The trial that is on its way.
    pub(super) trial: Option<Ticket>,
}

impl Adapters {
    /// An order was carried out in time. What was on its way when the breaker opened does not close
    /// it: that is the trial's business.
    pub(crate) fn succeeded(&mut self, id: AdapterId) {
        let adapter = self.get_mut(id);
        if adapter.serves() {
            (adapter.health.failures, adapter.health.trips) = (0, 0);
        }
    }

    /// An order has ended with a fault. Not each of them speaks against the adapter.
    pub(crate) fn faulted(&mut self, turn: &mut Turn, id: AdapterId, fault: TierFault) {
        match fault {
            TierFault::Io | TierFault::Denied => self.failed(turn, id),
            // A full device reads as well as ever, and what was cancelled was not tried.
            TierFault::NoSpace | TierFault::Cancelled => {}
        }
    }

    /// An order has failed, or takes longer than it may.
    pub(crate) fn failed(&mut self, turn: &mut Turn, id: AdapterId) {
        let adapter = self.get_mut(id);
        adapter.counts.failures += 1;
        let health = &mut adapter.health;
        health.failures = health.failures.saturating_add(1);
        if health.failures < FAILURES_MAX || !adapter.serves() {
            return;
        }
        adapter.state = AdapterState::Tripped;
        adapter.counts.trips += 1;
        turn.out.tell(Fact::AdapterChanged { adapter: id, state: AdapterState::Tripped });
        self.wait_for_trial(turn, id);
    }

    /// Each wait is twice as long as the last.
    fn wait_for_trial(&mut self, turn: &mut Turn, id: AdapterId) {
        let health = &mut self.get_mut(id).health;
        let secs = (TRIP_SECS_MIN << health.trips.min(16)).min(TRIP_SECS_MAX);
        health.trips = health.trips.saturating_add(1);
        self.arm_trial(turn, id, Duration::from_secs(secs));
    }

    fn arm_trial(&mut self, turn: &mut Turn, id: AdapterId, after: Duration) {
        let health = &mut self.get_mut(id).health;
        assert!(health.timer.is_none(), "one trial is waited for");
        let at = turn.now + after;
        health.until = Some(at);
        health.timer = Some(turn.alarms.arm(at, Alarm::AdapterRetry, subject(id)));
    }

    /// The back-off of a tripped adapter has passed: one trial, which nobody waits for.
    pub(crate) fn retry(&mut self, turn: &mut Turn, subject: SlotName) {
        let id = AdapterId(subject.index as u16);
        let adapter = self.get_mut(id);
        adapter.health.timer = None;
        if adapter.state != AdapterState::Tripped {
            return;
        }
        // A trial that has stalled is still on its way: its ending says more than another one.
        if adapter.health.trial.is_some() {
            return self.wait_for_trial(turn, id);
        }
        let (entry, patience) = (adapter.shelf.any(), adapter.setup.probe_deadline);
        let flight = Flight::Trial { adapter: id, entry };
        let departed = self.depart(flight, Some(patience), turn.now, turn.alarms);
        let Some(ticket) = departed else {
            return self.arm_trial(turn, id, Duration::from_secs(TRIP_SECS_MIN));
        };
        let adapter = self.get_mut(id);
        (adapter.health.trial, adapter.health.until) = (Some(ticket), None);
        let start = turn.out.l2_keys.len() as u32;
        // Where it is known to hold nothing, that it answers at all has to do.
        if let Some(entry) = entry {
            adapter.shelf.hold(entry);
            turn.out.l2_keys.extend(adapter.shelf.entry(entry).map(|entry| entry.key));
        }
        let keys = L2KeyRange { start, end: turn.out.l2_keys.len() as u32 };
        turn.out.effects.push(Effect::Probe { ticket, adapter: id, keys });
    }

    pub(crate) fn is_trial(&self, ticket: Ticket) -> bool {
        let found = self.flights.find(ticket.0);
        found.is_some_and(|found| matches!(found.flight, Flight::Trial { .. }))
    }

    /// A trial has ended, late or not.
    pub(crate) fn trial_ended(&mut self, turn: &mut Turn, ticket: Ticket, is_answered: bool) {
        let is_kind = |flight: &Flight| matches!(flight, Flight::Trial { .. });
        let Some(found) = self.arrive(ticket, is_kind, turn.alarms, turn.out) else { return };
        let Flight::Trial { adapter: id, entry } = found.flight else { return };
        let adapter = self.get_mut(id);
        adapter.health.trial = None;
        entry.into_iter().for_each(|entry| adapter.shelf.unhold(entry));
        if adapter.state != AdapterState::Tripped {
            return;
        }
        if is_answered {
            return self.close_breaker(turn, id);
        }
        adapter.counts.failures += 1;
        if adapter.health.timer.is_none() {
            self.wait_for_trial(turn, id);
        }
    }

    /// A trial takes too long: the next one is due some time after this one has ended.
    pub(crate) fn trial_stalled(&mut self, turn: &mut Turn, id: AdapterId) {
        let adapter = self.get(id);
        if let Some(ticket) = adapter.health.trial {
            turn.out.effects.push(Effect::Cancel { ticket });
        }
        if adapter.state == AdapterState::Tripped && adapter.health.timer.is_none() {
            self.wait_for_trial(turn, id);
        }
    }

    /// It is trusted again, at the breaker's edge.
    fn close_breaker(&mut self, turn: &mut Turn, id: AdapterId) {
        self.disarm_trial(turn, id);
        let adapter = self.get_mut(id);
        adapter.health.failures = FAILURES_MAX - 1;
        adapter.state =
            if adapter.is_scanned { AdapterState::Ready } else { AdapterState::Scanning };
        let state = adapter.state;
        turn.out.tell(Fact::AdapterChanged { adapter: id, state });
    }

    pub(super) fn disarm_trial(&mut self, turn: &mut Turn, id: AdapterId) {
        let health = &mut self.get_mut(id).health;
        health.until = None;
        if let Some(timer) = health.timer.take() {
            turn.alarms.cancel(timer);
        }
    }
}

/// What an adapter's own alarms name.
pub(crate) fn subject(id: AdapterId) -> SlotName {
    SlotName { index: id.0.into(), generation: 0 }
}
