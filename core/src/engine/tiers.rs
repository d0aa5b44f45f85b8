//! The desk's part for lower tiers: which room an ending belongs to, and what one room's answer
//! means for the next.

use super::Engine;
use super::adapters::flights::Flight;
use crate::effect::Outbox;
use crate::event::Event;
use crate::format::names::{HashBytes, ObjectName};
use crate::names::L2Key;
use crate::slots::SlotName;
use alloc::borrow::Cow;

impl Engine {
    /// Everything that lower tiers say.
    pub(super) fn tier_event(&mut self, event: Event<'_>, out: &mut Outbox) {
        match event {
            Event::AdapterAdded { adapter, setup } => self.adapters.add(adapter, &setup, out),
            Event::AdapterScanned { .. } | Event::AdapterScanEnded { .. } => {}
            Event::ProbeEnded { ticket, found: _ } => {
                let is_kind = |flight: &Flight| matches!(flight, Flight::Probe { .. });
                self.adapters.arrive(ticket, is_kind, &mut self.alarms, out);
            }
            Event::StoreEnded { ticket, outcome: _ } => {
                let is_kind = |flight: &Flight| matches!(flight, Flight::Store { .. });
                self.adapters.arrive(ticket, is_kind, &mut self.alarms, out);
            }
            Event::LoadEnded { ticket, outcome: _ } => {
                let is_kind = |flight: &Flight| matches!(flight, Flight::Load { .. });
                self.adapters.arrive(ticket, is_kind, &mut self.alarms, out);
            }
            Event::DeleteEnded { ticket, outcome: _ } => {
                let is_kind = |flight: &Flight| matches!(flight, Flight::Delete { .. });
                self.adapters.arrive(ticket, is_kind, &mut self.alarms, out);
            }
            Event::DigestEnded { ticket, digest: _ } => {
                let is_kind = |flight: &Flight| {
                    matches!(flight, Flight::StoreDigest { .. } | Flight::LoadDigest { .. })
                };
                self.adapters.arrive(ticket, is_kind, &mut self.alarms, out);
            }
            Event::ScrubEnded { ticket, digest: _ } => {
                let is_kind = |flight: &Flight| matches!(flight, Flight::Scrub { .. });
                self.adapters.arrive(ticket, is_kind, &mut self.alarms, out);
            }
            _ => unreachable!("the desk sends what lower tiers say"),
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

    /// A lower tier takes longer than it may.
    pub(super) fn tier_stalled(&mut self, name: SlotName) {
        self.adapters.stalled(name);
    }
}
