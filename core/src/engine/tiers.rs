//! The desk's part for lower tiers: which room an ending belongs to, and what one room's answer
//! means for the next. What concerns stores and the adapters themselves is in `stores`.

mod stores;

use super::Engine;
use super::adapters::flights::Flight;
use super::sessions::Looked;
use super::turn::Turn;
use crate::effect::Outbox;
use crate::event::{Event, Found, LoadOutcome};
use crate::format::names::{HashBytes, ObjectName};
use crate::names::{ChunkHash, L2Key, Layout, ScopeId, Ticket};
use crate::slots::SlotName;
use alloc::borrow::Cow;
pub(super) use stores::tiers_some;

impl Engine {
    /// Everything that lower tiers say.
    pub(super) fn tier_event(&mut self, event: Event<'_>, out: &mut Outbox) {
        match event {
            Event::AdapterAdded { adapter, setup } => self.adapter_added(adapter, &setup, out),
            Event::AdapterScanned { adapter, found } => self.adapter_scanned(adapter, found, out),
            Event::AdapterScanEnded { adapter } => self.adapter_scan_ended(adapter, out),
            Event::ProbeEnded { ticket, found } => self.probe_ended(ticket, found, out),
            Event::LoadEnded { ticket, outcome } => self.load_ended(ticket, outcome, out),
            Event::DigestEnded { ticket, digest } => self.digest_ended(ticket, digest, out),
            Event::StoreEnded { ticket, outcome } => self.store_ended(ticket, outcome, out),
            Event::DeleteEnded { ticket, outcome } => self.delete_ended(ticket, outcome, out),
            Event::ScrubEnded { ticket, digest } => self.scrub_ended(ticket, digest, out),
            _ => unreachable!("the desk sends what lower tiers say"),
        }
    }

    fn probe_ended(&mut self, ticket: Ticket, found: Option<&[Option<Found>]>, out: &mut Outbox) {
        if self.adapters.is_trial(ticket) {
            return self.trial_ended(ticket, found.is_some(), out);
        }
        let is_kind = |flight: &Flight| matches!(flight, Flight::Probe { .. });
        let Some(flight) = self.adapters.arrive(ticket, is_kind, &mut self.alarms, out) else {
            return;
        };
        let Flight::Probe { adapter, seek } = flight.flight else { return };
        let mut turn = turn!(self, out);
        let adapters = &mut self.adapters;
        let took = turn.now.since(flight.departed);
        adapters.probe_ended(&mut turn, adapter, took, found.is_some());
        self.promote.probed(&mut turn, adapters, (adapter, seek, ticket), found);
    }

    fn load_ended(&mut self, ticket: Ticket, outcome: LoadOutcome, out: &mut Outbox) {
        let is_kind = |flight: &Flight| matches!(flight, Flight::Load { .. });
        let Some(flight) = self.adapters.arrive(ticket, is_kind, &mut self.alarms, out) else {
            return;
        };
        let mut turn = turn!(self, out);
        self.promote.load_ended(&mut turn, &mut self.adapters, (flight, outcome));
    }

    fn digest_ended(&mut self, ticket: Ticket, digest: u32, out: &mut Outbox) {
        if self.is_store_digest(ticket) {
            return self.store_digest_ended(ticket, digest, out);
        }
        let is_kind = |flight: &Flight| matches!(flight, Flight::LoadDigest { .. });
        let Some(flight) = self.adapters.arrive(ticket, is_kind, &mut self.alarms, out) else {
            return;
        };
        let mut turn = turn!(self, out);
        if let Flight::LoadDigest { load } = flight.flight {
            self.promote.digested(&mut turn, &mut self.adapters, load, digest);
        }
    }

    /// Goes on with a lookup: in L1, then below it. True when it needs no further turn of its own.
    pub(super) fn look_on(
        &mut self,
        session: SlotName,
        given: Option<&[ChunkHash]>,
        out: &mut Outbox,
    ) -> bool {
        let is_below = self.adapters.loading().next().is_some() && self.promote.has_room();
        let mut turn = turn!(self, out);
        match self.sessions.probe(&mut turn, session, given, is_below) {
            Looked::More => false,
            Looked::Done => true,
            Looked::Short(wanted) => {
                self.promote.seek(&mut turn, &mut self.adapters, wanted);
                true
            }
        }
    }

    /// Hands on what this event has decided: ended sessions to their seeks, results of seeks to
    /// their sessions, and lets others begin. One result at least, as it may be the event's own; of
    /// others as many as the turn reaches.
    pub(super) fn settle_tiers(&mut self, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        let mut is_own = true;
        loop {
            while let Some(session) = self.sessions.take_abandoned() {
                self.promote.cancel(&mut turn, session);
            }
            if !is_own && turn.is_spent() && self.promote.has_sought() {
                turn.jobs.loads();
                break;
            }
            let sought = self.promote.take_sought(&mut turn, &mut self.adapters, is_own);
            let Some(sought) = sought else { break };
            is_own = false;
            self.sessions.sought(&mut turn, sought);
            self.promote.admit(&mut turn, &mut self.adapters);
        }
        self.serve_tiers(out);
        if self.l1.is_leaving() {
            self.jobs.leave();
        }
    }

    /// The name at rest of an object that an effect has just named. What an effect names keeps its
    /// name until that effect's ticket has ended.
    pub fn l2_name(&self, key: &L2Key) -> ObjectName<'_> {
        let of = self.l1.scopes.key(key.scope);
        let (model, salt) = self.l1.scopes.names_of(of.tenant);
        ObjectName {
            model: Cow::Borrowed(model),
            rank: of.rank,
            group: of.group.into(),
            hash: HashBytes::from(key.hash),
            salt,
        }
    }

    /// The layout of objects of a scope that a fact has just named.
    pub fn layout_of(&self, scope: ScopeId) -> Layout {
        self.l1.scopes.key(scope).layout
    }

    /// A lower tier takes longer than it may.
    pub(super) fn tier_stalled(&mut self, name: SlotName, out: &mut Outbox) {
        let Some(flight) = self.adapters.stalled(name) else { return };
        let ticket = Ticket(name);
        let mut turn = turn!(self, out);
        let adapters = &mut self.adapters;
        if let Some(adapter) = flight.adapter() {
            adapters.stalled_on(&mut turn, adapter);
        }
        match flight {
            Flight::Probe { seek, .. } => {
                self.promote.probe_stalled(&mut turn, adapters, seek, ticket);
            }
            Flight::Load { load, .. } => self.promote.load_stalled(&mut turn, adapters, load),
            Flight::Store { adapter, task } => self.store_stalled(adapter, task, ticket, out),
            Flight::Delete { adapter, .. } => self.delete_stalled(adapter, ticket, out),
            Flight::Scrub { .. } => self.scrub_stalled(ticket, out),
            Flight::Trial { adapter, .. } => self.trial_stalled(adapter, out),
            Flight::StoreDigest { .. } | Flight::LoadDigest { .. } => {}
        }
    }
}
