//! Lower tiers in words.

use super::{Transcript, bytes_text, counted, hash_text, time_text};
use kvtide_core::effect::{Effect, Note, Outbox};
use kvtide_core::event::{DeleteOutcome, Event, LoadOutcome, StoreOutcome, TierFault};
use kvtide_core::fact::{AdapterState, Fact};
use kvtide_core::names::{AdapterId, L2Key};

impl Transcript {
    pub(super) fn tier_event(&mut self, event: &Event<'_>) -> String {
        match event {
            Event::AdapterAdded { adapter, setup } => {
                let (name, bytes) = (setup.name, bytes_text(setup.capacity_bytes));
                format!("{} joins: {name}, {bytes}", adapter_name(*adapter))
            }
            Event::AdapterScanned { adapter, found } => {
                let objects = counted(found.len() as u64, "object");
                format!("{objects} lie in {}", adapter_name(*adapter))
            }
            Event::AdapterScanEnded { adapter } => {
                format!("that is all that lies in {}", adapter_name(*adapter))
            }
            Event::ProbeEnded { ticket, found: None } => {
                format!("{}: it cannot be asked", self.transfer(*ticket))
            }
            Event::ProbeEnded { ticket, found: Some(found) } => {
                let there = found.iter().flatten().count();
                format!("{}: {there} of {} are there", self.transfer(*ticket), found.len())
            }
            Event::StoreEnded { ticket, outcome } => {
                let how = match outcome {
                    StoreOutcome::Stored => "it is stored".into(),
                    StoreOutcome::Present { bytes } => {
                        format!("it was there already, with {}", bytes_text(*bytes))
                    }
                    StoreOutcome::Failed(fault) => fault_text(*fault).into(),
                };
                format!("{} ends: {how}", self.transfer(*ticket))
            }
            Event::LoadEnded { ticket, outcome } => {
                let how = match outcome {
                    LoadOutcome::Loaded => "it is loaded".into(),
                    LoadOutcome::Absent => "there is none".into(),
                    LoadOutcome::OtherSize { bytes } => format!("it has {}", bytes_text(*bytes)),
                    LoadOutcome::Failed(fault) => fault_text(*fault).into(),
                };
                format!("{} ends: {how}", self.transfer(*ticket))
            }
            Event::DeleteEnded { ticket, outcome } => {
                let how = match outcome {
                    DeleteOutcome::Deleted => "it is gone",
                    DeleteOutcome::Absent => "there was none",
                    DeleteOutcome::Failed(fault) => fault_text(*fault),
                };
                format!("{} ends: {how}", self.transfer(*ticket))
            }
            Event::DigestEnded { ticket, digest } => {
                format!("{} ends: {digest:08x}", self.transfer(*ticket))
            }
            Event::ScrubEnded { ticket, digest: Some(digest) } => {
                format!("{} ends: {digest:08x}", self.transfer(*ticket))
            }
            Event::ScrubEnded { ticket, digest: None } => {
                format!("{} ends: it cannot be read", self.transfer(*ticket))
            }
            other => unreachable!("{other:?} is told elsewhere"),
        }
    }

    pub(super) fn tier_effect(&mut self, effect: &Effect, out: &Outbox) -> String {
        match effect {
            Effect::Probe { ticket, adapter, keys } => {
                let keys = out.l2_keys(*keys).iter().map(|key| self.l2_key(key));
                let keys = super::list(&keys.collect::<Vec<_>>());
                format!("asks {} for {keys}: {}", adapter_name(*adapter), self.transfer(*ticket))
            }
            Effect::StoreObject { ticket, adapter, key, place } => {
                let (key, to) = (self.l2_key(key), adapter_name(*adapter));
                let bytes = bytes_text(place.bytes);
                format!("stores {key}, {bytes}, in {to}: {}", self.transfer(*ticket))
            }
            Effect::LoadObject { ticket, adapter, key, place } => {
                let (key, from) = (self.l2_key(key), adapter_name(*adapter));
                let bytes = bytes_text(place.bytes);
                format!("loads {key}, {bytes}, from {from}: {}", self.transfer(*ticket))
            }
            Effect::DeleteObject { ticket, adapter, key, quarantine } => {
                let verb = if *quarantine { "puts aside" } else { "deletes" };
                let (key, from) = (self.l2_key(key), adapter_name(*adapter));
                format!("{verb} {key} in {from}: {}", self.transfer(*ticket))
            }
            Effect::Digest { ticket, key, .. } => {
                format!("digests {}: {}", self.l2_key(key), self.transfer(*ticket))
            }
            Effect::Scrub { ticket, adapter, key, .. } => {
                let (key, at) = (self.l2_key(key), adapter_name(*adapter));
                format!("checks {key} in {at}: {}", self.transfer(*ticket))
            }
            Effect::Cancel { ticket } => format!("gives up {}", self.transfer(*ticket)),
            Effect::Note { adapter, key, note } => {
                let what = match note {
                    Note::Stored { bytes, seal } => {
                        let seal = if seal.is_some() { "sealed" } else { "without a seal" };
                        format!("is there, {}, {seal}", bytes_text(*bytes))
                    }
                    Note::Used => "was used".into(),
                    Note::Removed => "is gone".into(),
                };
                format!("notes in {}: {} {what}", adapter_name(*adapter), self.l2_key(key))
            }
            Effect::AdapterClosed { adapter } => {
                format!("lets go of {}", adapter_name(*adapter))
            }
            other => unreachable!("{other:?} is told elsewhere"),
        }
    }

    /// Below L1 an object has a scope of its own, without a layout.
    fn l2_key(&self, key: &L2Key) -> String {
        hash_text(&key.hash)
    }
}

pub(super) fn tier_fact(fact: &Fact, names: &str) -> String {
    match fact {
        Fact::AdapterNamed { adapter, name } => {
            format!("first mention of {}: {name}", adapter_name(*adapter))
        }
        Fact::L2ScanSkipped { adapter, objects } => {
            format!("{objects} objects of {} cannot be served", adapter_name(*adapter))
        }
        Fact::AdapterChanged { adapter, state } => {
            let state = match state {
                AdapterState::Scanning => "serves, and is still being looked through",
                AdapterState::Ready => "is ready",
                AdapterState::Tripped => "is left alone: it has failed again and again",
                AdapterState::Draining => "takes nothing new",
                AdapterState::Gone => "has left",
            };
            format!("{} {state}", adapter_name(*adapter))
        }
        Fact::L2StoreSubmitted { adapter, .. } => {
            format!("on the way to {}: {names}", adapter_name(*adapter))
        }
        Fact::L2StoreEnded { adapter, end, took, .. } => {
            let (adapter, took) = (adapter_name(*adapter), time_text(*took));
            format!("store in {adapter} ended ({}) after {took}: {names}", end.label())
        }
        Fact::L2StoreDropped { adapter, why, .. } => {
            format!("not stored in {} ({}): {names}", adapter_name(*adapter), why.label())
        }
        Fact::L2LookupSubmitted { keys, adapters, .. } => {
            let (objects, adapters) =
                (counted((*keys).into(), "object"), counted((*adapters).into(), "adapter"));
            format!("the lookup goes on below L1: {objects}, {adapters}")
        }
        Fact::L2LookupFound { keys, .. } => {
            format!("found below L1: {}", counted((*keys).into(), "object"))
        }
        Fact::L2LoadSubmitted { adapter, .. } => {
            format!("on the way from {}: {names}", adapter_name(*adapter))
        }
        Fact::L2LoadEnded { adapter, end, took, .. } => {
            let (adapter, took) = (adapter_name(*adapter), time_text(*took));
            format!("load from {adapter} ended ({}) after {took}: {names}", end.label())
        }
        Fact::L2PrefetchFailed { why, .. } => {
            format!("not had from below L1 ({}): {names}", why.label())
        }
        Fact::L2Stored { adapter, .. } => {
            format!("at rest in {}: {names}", adapter_name(*adapter))
        }
        Fact::L2Accessed { adapter, .. } => {
            format!("used in {}: {names}", adapter_name(*adapter))
        }
        Fact::L2Removed { adapter, why, .. } => {
            format!("no longer in {} ({}): {names}", adapter_name(*adapter), why.label())
        }
        other => unreachable!("{other:?} is told elsewhere"),
    }
}

pub(super) fn adapter_name(adapter: AdapterId) -> String {
    format!("adapter {}", adapter.0)
}

fn fault_text(fault: TierFault) -> &'static str {
    match fault {
        TierFault::NoSpace => "there is no space",
        TierFault::Io => "the device has failed",
        TierFault::Denied => "it is not allowed",
        TierFault::Cancelled => "it was given up",
    }
}
