//! Which of the states of lower tiers an event has met.

use super::Bench;
use crate::model::{News, StoreEnd, TierNews, Use};
use crate::orders::Ending;
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::config::PrefetchPolicy;
use kvtide_core::effect::{Effect, Outbox};
use kvtide_core::fact::{AdapterState, Fact, FactKey, L2LoadEnd, L2Removal, L2StoreEnd};
use kvtide_core::fact::{LookupStop, PrefetchFailure, Removal, StoreDrop};

impl Bench {
    /// Counts the states that are seen in facts, before the model takes them in.
    pub(super) fn count_below(&mut self, out: &Outbox) {
        for fact in &out.facts {
            let met = match fact {
                Fact::AdapterChanged { adapter, state } => {
                    let was_tripped = self.tripped.contains(adapter);
                    match state {
                        AdapterState::Tripped => {
                            self.tripped.insert(*adapter);
                            State::TierTripped
                        }
                        AdapterState::Ready | AdapterState::Scanning if was_tripped => {
                            self.tripped.remove(adapter);
                            State::TierHealed
                        }
                        _ => continue,
                    }
                }
                Fact::L2StoreDropped { why, .. } => dropped(*why),
                Fact::L2StoreEnded { end: L2StoreEnd::Stored, .. } => State::StoredBelow,
                Fact::L2StoreEnded { end: L2StoreEnd::Present, .. } => State::PresentBelow,
                Fact::L2LoadEnded { end, .. } => match loaded(*end) {
                    Some(met) => met,
                    None => continue,
                },
                Fact::L2PrefetchFailed { why: PrefetchFailure::L1Oom, .. } => State::CutByNoRoom,
                Fact::L2PrefetchFailed { why: PrefetchFailure::NotFound, .. } => {
                    State::CutByFailedLoad
                }
                Fact::L2PrefetchFailed { why: PrefetchFailure::SlowerThanRecompute, .. } => {
                    State::SlowerThanRecompute
                }
                Fact::L2Removed { why, .. } => match removed(*why) {
                    Some(met) => met,
                    None => continue,
                },
                Fact::Evicted { why: Removal::Temporary, .. } => State::TemporaryFreed,
                Fact::Evicted { why: Removal::Demoted, .. } => State::DemotedFromL1,
                Fact::LookupTaken { stop: LookupStop::TimedOut, .. } => State::TierTimedOut,
                Fact::L2Accessed { adapter, keys } => {
                    let is_default =
                        self.engine.config().prefetch_policy == PrefetchPolicy::Default;
                    let of = |key: &FactKey| (*adapter, key.scope, key.hash);
                    let mut keys = keys.of(&out.keys).iter().map(of);
                    // Once more: from now on it stays.
                    if !keys.any(|key| !self.loaded_once.insert(key)) || !is_default {
                        continue;
                    }
                    State::SecondHitRetained
                }
                Fact::L2ScanSkipped { .. } => State::TierTableFull,
                _ => continue,
            };
            self.reach.met(met);
        }
        self.count_stores_again(out);
    }

    /// Counts the states that are seen in endings, and in what was published by them.
    pub(super) fn count_ending(&mut self, input: &Input, news: &News, out: &Outbox) {
        let Input::TierEnded { ticket, ending } = input else { return };
        if let Ending::Probe(Some(found)) = ending
            && found.iter().any(Option::is_some)
        {
            self.reach.met(State::ProbedBelow);
            if found.iter().flatten().any(|found| found.seal.is_some()) {
                self.reach.met(State::ProbedWithSeal);
            }
            if self.model.asks_before_scan(*ticket) {
                self.reach.met(State::ProbedBeforeScan);
            }
        }
        let puts_aside =
            |effect: &Effect| matches!(effect, Effect::DeleteObject { quarantine: true, .. });
        if matches!(ending, Ending::Scrub(Some(_))) && out.effects.iter().any(puts_aside) {
            self.reach.met(State::ScrubFoundDamage);
        }
        for (key, what) in &news.uses {
            if *what == Use::Published && self.model.is_wanted_twice(key) {
                self.reach.met(State::LoadJoined);
            }
        }
        let stored = news.below.iter().filter_map(|news| match news {
            TierNews::StoreEnded { name, end: StoreEnd::Stored, .. } => Some(name),
            _ => None,
        });
        if stored.into_iter().any(|name| self.model.holds_demoted(name)) {
            self.reach.met(State::DemotionHeld);
        }
    }

    /// Stores that are tried again: an order for what an earlier one was for.
    fn count_stores_again(&mut self, out: &Outbox) {
        for fact in &out.facts {
            if let Fact::L2StoreEnded { adapter, keys, end, .. } = fact {
                let is_bad = matches!(end, L2StoreEnd::Io | L2StoreEnd::NoSpace);
                for key in keys.of(&out.keys) {
                    let of = (*adapter, key.scope, key.hash);
                    match is_bad {
                        true => drop(self.failed_stores.insert(of)),
                        false => drop(self.failed_stores.remove(&of)),
                    }
                }
            }
        }
        for effect in &out.effects {
            if let Effect::StoreObject { adapter, key, .. } = effect
                && self.failed_stores.remove(&(*adapter, key.scope, key.hash))
            {
                self.reach.met(State::StoreRetried);
            }
        }
    }
}

fn dropped(why: StoreDrop) -> State {
    match why {
        StoreDrop::Failed => State::StoreDroppedFailed,
        StoreDrop::NoRoom => State::StoreDroppedNoRoom,
        StoreDrop::QueueFull => State::StoreDroppedQueue,
        StoreDrop::Evicted => State::StoreDroppedEvicted,
        StoreDrop::Tripped => State::StoreDroppedTripped,
        StoreDrop::Draining => State::StoreDroppedDraining,
        StoreDrop::WriteBudget => State::StoreDroppedBudget,
        StoreDrop::Unfit => State::StoreDroppedUnfit,
    }
}

fn loaded(end: L2LoadEnd) -> Option<State> {
    match end {
        L2LoadEnd::Loaded => Some(State::LoadedBelow),
        L2LoadEnd::Digest => Some(State::Quarantined),
        L2LoadEnd::TimedOut => Some(State::LoadStalled),
        L2LoadEnd::Cancelled => Some(State::LoadCancelled),
        L2LoadEnd::Absent | L2LoadEnd::OtherSize | L2LoadEnd::Io => None,
    }
}

fn removed(why: L2Removal) -> Option<State> {
    match why {
        L2Removal::Watermark => Some(State::TierWatermark),
        L2Removal::Pressure => Some(State::TierPressure),
        L2Removal::Quota => Some(State::TierQuota),
        L2Removal::Table => Some(State::TierTableFull),
        L2Removal::Lost => Some(State::FoundLost),
        L2Removal::Digest | L2Removal::Operator => None,
    }
}
