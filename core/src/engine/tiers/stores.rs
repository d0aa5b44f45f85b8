//! The desk's part for stores below L1 and for the adapters themselves.

use crate::config::AdapterSetup;
use crate::effect::{Effect, Outbox};
use crate::engine::Engine;
use crate::engine::adapters::Adapters;
use crate::engine::adapters::flights::Flight;
use crate::engine::demote::Demote;
use crate::engine::quota::Quota;
use crate::engine::turn::Turn;
use crate::event::{DeleteOutcome, Scanned, StoreOutcome};
use crate::names::{AdapterId, Ticket};
use crate::slots::SlotName;

impl Engine {
    pub(super) fn adapter_added(
        &mut self,
        adapter: AdapterId,
        setup: &AdapterSetup<'_>,
        out: &mut Outbox,
    ) {
        self.adapters.add(adapter, setup, out);
        self.demote.joined(&self.config.limits, setup, self.now);
    }

    /// What lay in an adapter that has left already is nobody's business.
    pub(super) fn adapter_scanned(
        &mut self,
        adapter: AdapterId,
        found: &[Scanned<'_>],
        out: &mut Outbox,
    ) {
        let mut turn = turn!(self, out);
        if self.adapters.is_here(adapter) {
            self.adapters.scanned(&mut turn, adapter, found);
        }
    }

    pub(super) fn adapter_scan_ended(&mut self, adapter: AdapterId, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        if self.adapters.is_here(adapter) {
            self.adapters.scan_ended(&mut turn, adapter);
        }
    }

    /// An operator takes an adapter away. False where there is none.
    pub(in crate::engine) fn adapter_removed(
        &mut self,
        adapter: AdapterId,
        out: &mut Outbox,
    ) -> bool {
        let mut turn = turn!(self, out);
        self.adapters.remove(&mut turn, adapter)
    }

    pub(super) fn store_ended(&mut self, ticket: Ticket, outcome: StoreOutcome, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        self.demote.store_ended(&mut turn, &mut self.adapters, ticket, outcome);
    }

    pub(super) fn is_store_digest(&self, ticket: Ticket) -> bool {
        let found = self.adapters.flights.find(ticket.0);
        found.is_some_and(|found| matches!(found.flight, Flight::StoreDigest { .. }))
    }

    pub(super) fn store_digest_ended(&mut self, ticket: Ticket, digest: u32, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        self.demote.digest_ended(&mut turn, &mut self.adapters, ticket, digest);
    }

    pub(super) fn delete_ended(
        &mut self,
        ticket: Ticket,
        outcome: DeleteOutcome,
        out: &mut Outbox,
    ) {
        let mut turn = turn!(self, out);
        self.adapters.delete_ended(&mut turn, ticket, outcome);
    }

    pub(super) fn scrub_ended(&mut self, ticket: Ticket, digest: Option<u32>, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        self.adapters.scrub_ended(&mut turn, ticket, digest);
    }

    pub(super) fn trial_ended(&mut self, ticket: Ticket, is_answered: bool, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        self.adapters.trial_ended(&mut turn, ticket, is_answered);
    }

    pub(super) fn store_stalled(
        &mut self,
        adapter: AdapterId,
        task: SlotName,
        ticket: Ticket,
        out: &mut Outbox,
    ) {
        let mut turn = turn!(self, out);
        self.demote.store_stalled(&mut turn, &self.adapters, (adapter, task), ticket);
    }

    pub(super) fn delete_stalled(&mut self, adapter: AdapterId, ticket: Ticket, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        self.adapters.delete_stalled(&mut turn, adapter, ticket);
    }

    pub(super) fn scrub_stalled(&mut self, ticket: Ticket, out: &mut Outbox) {
        out.effects.push(Effect::Cancel { ticket });
    }

    pub(super) fn trial_stalled(&mut self, adapter: AdapterId, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        self.adapters.trial_stalled(&mut turn, adapter);
    }

    /// Failed stores of an adapter are due for their next try.
    pub(in crate::engine) fn store_retry(&mut self, subject: SlotName, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        self.demote.retry(&mut turn, subject);
    }

    /// A tripped adapter is due for a trial.
    pub(in crate::engine) fn adapter_retry(&mut self, subject: SlotName, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        self.adapters.retry(&mut turn, subject);
    }

    /// What the event at hand has published goes on to lower tiers.
    pub(in crate::engine) fn objects_committed(&mut self, out: &mut Outbox) {
        let mut published = core::mem::take(&mut self.copies.published);
        let mut turn = turn!(self, out);
        self.demote.committed(&mut turn, &mut self.adapters, &published);
        published.clear();
        self.copies.published = published;
    }

    /// Once a second.
    pub(in crate::engine) fn tiers_tick(&mut self, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        self.demote.tick(&mut turn);
        self.adapters.tick_evictions(&mut turn, &self.quota);
        self.adapters.tick_scrubs(&mut turn);
    }

    /// Whatever has changed may let something begin, or an adapter leave.
    pub(super) fn serve_tiers(&mut self, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        if tiers_some(&mut turn, &mut self.adapters, &mut self.demote, &self.quota) {
            self.jobs.tiers();
        }
    }
}

/// Goes on with what lower tiers have to do. True where the turn did not reach all of it.
pub(in crate::engine) fn tiers_some(
    turn: &mut Turn,
    adapters: &mut Adapters,
    demote: &mut Demote,
    quota: &Quota,
) -> bool {
    adapters.evict_some(turn, quota);
    let stores_on = demote.store_some(turn, adapters);
    let leaves_on = adapters.leave_some(turn, demote);
    stores_on || leaves_on
}
