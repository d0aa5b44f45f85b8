//! The words of what is ordered from lower tiers, and of what is told about them.

use super::{Folder, clip_to};
use crate::effect::{Effect, Note};
use crate::fact::{AdapterGauges, Fact};
use crate::limits::ADAPTER_NAME_BYTES_MAX;
use crate::names::{AdapterId, L2Key, Place, Seal, Ticket};
use crate::recording::outcome::Part;
use crate::recording::secret::Naming;

impl<N: Naming> Folder<'_, N> {
    /// Adds nothing for an effect of another kind.
    pub(super) fn tier_effect(&mut self, effect: &Effect, part: &Part<'_>) {
        match *effect {
            Effect::Probe { ticket, adapter, keys } => {
                self.ordered(ticket, adapter);
                let keys = &part.l2_keys[keys.start as usize..keys.end as usize];
                self.digest.word(keys.len() as u64);
                keys.iter().for_each(|key| self.l2_key(key));
            }
            Effect::StoreObject { ticket, adapter, key, place }
            | Effect::LoadObject { ticket, adapter, key, place } => {
                self.ordered(ticket, adapter);
                self.l2_key(&key);
                self.place(place);
            }
            // The kind says whether into quarantine.
            Effect::DeleteObject { ticket, adapter, key, quarantine: _ } => {
                self.ordered(ticket, adapter);
                self.l2_key(&key);
            }
            Effect::Digest { ticket, key, place } => {
                self.digest.name(ticket.0);
                self.l2_key(&key);
                self.place(place);
            }
            Effect::Scrub { ticket, adapter, key, bytes } => {
                self.ordered(ticket, adapter);
                self.l2_key(&key);
                self.digest.word(bytes);
            }
            Effect::Cancel { ticket } => self.digest.name(ticket.0),
            Effect::Note { adapter, key, note } => self.note(adapter, &key, note),
            Effect::AdapterClosed { adapter } => self.digest.word(adapter.0.into()),
            _ => {}
        }
    }

    /// Adds nothing for a fact of another kind.
    pub(super) fn fact_of_tier(&mut self, fact: &Fact, part: &Part<'_>) {
        let digest = &mut *self.digest;
        let (adapter, keys, why) = match fact {
            Fact::AdapterNamed { adapter, name } => {
                digest.word(adapter.0.into());
                return digest.bytes(clip_to(name, ADAPTER_NAME_BYTES_MAX).as_bytes());
            }
            Fact::AdapterChanged { adapter, state } => {
                return digest.pair(adapter.0.into(), *state as u32);
            }
            Fact::L2ScanSkipped { adapter, objects } => {
                return digest.pair(adapter.0.into(), *objects);
            }
            Fact::L2LookupSubmitted { tenant, keys, adapters } => {
                digest.word(tenant.0.into());
                return digest.pair(*keys, *adapters);
            }
            Fact::L2LookupFound { tenant, keys } => return digest.pair(tenant.0, *keys),
            Fact::L2StoreEnded { adapter, keys, end, took } => {
                digest.word(took.as_nanos() as u64);
                (adapter, keys, *end as u32)
            }
            Fact::L2LoadEnded { adapter, keys, end, took } => {
                digest.word(took.as_nanos() as u64);
                (adapter, keys, *end as u32)
            }
            Fact::L2StoreDropped { adapter, keys, why } => (adapter, keys, *why as u32),
            Fact::L2Removed { adapter, keys, why } => (adapter, keys, *why as u32),
            Fact::L2StoreSubmitted { adapter, keys }
            | Fact::L2LoadSubmitted { adapter, keys }
            | Fact::L2Stored { adapter, keys }
            | Fact::L2Accessed { adapter, keys } => (adapter, keys, 0),
            _ => return,
        };
        digest.word(adapter.0.into());
        self.keys(*keys, why, part);
    }

    pub(super) fn adapter_gauges(&mut self, gauges: &AdapterGauges) {
        let AdapterGauges {
            // Taken apart, so that a new gauge is not forgotten.
            adapter,
            used_bytes,
            capacity_bytes,
            objects,
            stores_in_flight,
            loads_in_flight,
            loading_bytes,
            stores_waiting,
            is_draining,
        } = *gauges;
        self.digest.pair(adapter.into(), is_draining.into());
        let words = [used_bytes, capacity_bytes, objects, loading_bytes];
        let on_their_way = [stores_in_flight, loads_in_flight, stores_waiting];
        words.into_iter().chain(on_their_way).for_each(|word| self.digest.word(word));
    }

    fn ordered(&mut self, ticket: Ticket, adapter: AdapterId) {
        self.digest.name(ticket.0);
        self.digest.word(adapter.0.into());
    }

    /// The kind of the effect says what is noted.
    fn note(&mut self, adapter: AdapterId, key: &L2Key, note: Note) {
        self.digest.word(adapter.0.into());
        self.l2_key(key);
        if let Note::Stored { bytes, seal } = note {
            self.digest.word(bytes);
            let seal = seal.map(|Seal { digest, layout }| (self.naming.digest(digest), layout));
            let (digest, layout) = seal.unwrap_or_default();
            self.digest.pair(digest, layout);
            self.digest.word(seal.is_some().into());
        }
    }

    fn place(&mut self, place: Place) {
        self.digest.pair(place.arena.0.into(), 0);
        self.digest.word(place.offset);
        self.digest.word(place.bytes);
    }

    fn l2_key(&mut self, key: &L2Key) {
        match self.position(&key.hash) {
            Some(at) => {
                self.digest.word((at as u64) << 32 | 1);
                self.next = at + 1;
            }
            None => self.unlisted(&key.hash),
        }
        self.digest.word(key.scope.0.into());
    }
}
