//! Lines about lower tiers. The one invariant: a state is told when it changes, not when it is
//! repeated, and neither an adapter that comes and goes nor a disk that fails fills the log.

use super::{Pace, Telling, shown};
use crate::telemetry::FactBatch;
use kvtide_core::fact::{AdapterState, Fact, L2Removal};
use kvtide_core::names::AdapterId;
use kvtide_core::time::Instant;
use std::collections::BTreeMap;

#[derive(Debug)]
pub(super) struct Tiers {
    adapters: BTreeMap<AdapterId, Adapter>,
    changes: Pace,
    mismatches: Pace,
    skips: Pace,
}

#[derive(Debug, Default)]
struct Adapter {
    name: String,
    state: Option<AdapterState>,
}

/// What is to be said of an adapter, less its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    is_warning: bool,
    text: &'static str,
}

impl Tiers {
    pub(super) fn new() -> Tiers {
        let (changes, mismatches) = (Pace::new(CHANGES_MAX), Pace::new(MISMATCHES_MAX));
        let skips = Pace::new(MISMATCHES_MAX);
        Tiers { adapters: BTreeMap::new(), changes, mismatches, skips }
    }

    pub(super) fn tell(&mut self, fact: &Fact, batch: &FactBatch) {
        match fact {
            Fact::AdapterNamed { adapter, name } => {
                self.adapters.entry(*adapter).or_default().name = shown(name);
            }
            Fact::AdapterChanged { adapter, state } => self.changed(*adapter, *state, batch.at),
            Fact::L2Removed { adapter, keys, why: L2Removal::Digest } if !keys.is_empty() => {
                self.mismatched(*adapter, keys.len(), batch.at);
            }
            Fact::L2ScanSkipped { adapter, objects } if *objects > 0 => {
                self.skipped(*adapter, *objects, batch.at);
            }
            _ => {}
        }
    }

    /// Told with every part of a scan.
    fn skipped(&mut self, id: AdapterId, objects: u32, now: Instant) {
        let name = self.adapters.get(&id).map_or("", |adapter| &adapter.name);
        let id = id.0;
        match self.skips.telling(now) {
            Telling::Line => tracing::info!(
                "L2 adapter {id} ({name}): {objects} objects that lie there are not served"
            ),
            Telling::Summary => tracing::info!(
                "More objects below L1 are not served than this log tells; \
                 kvtide_l2_scan_skipped_total counts them all"
            ),
            Telling::Nothing => {}
        }
    }

    fn changed(&mut self, id: AdapterId, state: AdapterState, now: Instant) {
        let adapter = self.adapters.entry(id).or_default();
        let before = adapter.state.replace(state);
        let (id, name) = (id.0, &adapter.name);
        let Some(Line { is_warning, text }) = line(before, state) else { return };
        match self.changes.telling(now) {
            Telling::Line if is_warning => tracing::warn!("L2 adapter {id} ({name}) {text}"),
            Telling::Line => tracing::info!("L2 adapter {id} ({name}) {text}"),
            Telling::Summary => tracing::warn!(
                "L2 adapters change more often than this log tells in a minute; \
                 kvtide_l2_adapter_state shows what they are"
            ),
            Telling::Nothing => {}
        }
    }

    fn mismatched(&mut self, id: AdapterId, objects: u64, now: Instant) {
        let name = self.adapters.get(&id).map_or("", |adapter| &adapter.name);
        let id = id.0;
        match self.mismatches.telling(now) {
            Telling::Line => tracing::warn!(
                "L2 adapter {id} ({name}): {objects} objects are not what was stored, \
                 and are put aside; is the disk failing?"
            ),
            Telling::Summary => tracing::warn!(
                "More objects below L1 are not what was stored than this log tells; \
                 kvtide_l2_digest_mismatches_total counts them all"
            ),
            Telling::Nothing => {}
        }
    }
}

fn line(before: Option<AdapterState>, state: AdapterState) -> Option<Line> {
    if before == Some(state) {
        return None;
    }
    let text = match state {
        AdapterState::Scanning => "joins; what lies in it is being found",
        AdapterState::Ready if before == Some(AdapterState::Tripped) => "works again",
        AdapterState::Ready => "is ready: what lies in it is known",
        AdapterState::Tripped => {
            "fails again and again and is left alone, but for a trial now and then"
        }
        AdapterState::Draining => "takes nothing new and will leave",
        AdapterState::Gone => "has left",
    };
    Some(Line { is_warning: state == AdapterState::Tripped, text })
}

/// Lines about changes in a minute: a full roster that joins and becomes ready.
const CHANGES_MAX: usize = 128;
/// Lines about bytes that have changed, and about objects that are not served, in a minute.
const MISMATCHES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_told_once_and_only_a_tripped_adapter_is_a_warning() {
        use AdapterState::*;
        let told = |before, state| line(before, state).map(|line| line.is_warning);
        assert_eq!(told(None, Scanning), Some(false));
        assert_eq!(told(Some(Scanning), Ready), Some(false));
        assert_eq!(told(Some(Ready), Ready), None);
        assert_eq!(told(Some(Ready), Tripped), Some(true));
        assert_eq!(told(Some(Tripped), Ready), Some(false));
        assert_ne!(line(Some(Tripped), Ready), line(Some(Scanning), Ready));
        assert_eq!(told(Some(Draining), Gone), Some(false));
    }

    /// Names come before states, and what is told again changes nothing.
    #[test]
    fn a_name_that_is_told_again_keeps_the_state() {
        let (mut tiers, adapter) = (Tiers::new(), AdapterId(3));
        let facts = [
            Fact::AdapterNamed { adapter, name: "fs\n".into() },
            Fact::AdapterChanged { adapter, state: AdapterState::Ready },
        ];
        for _ in 0..2 {
            facts.iter().for_each(|fact| tiers.tell(fact, &FactBatch::default()));
        }
        assert_eq!(tiers.adapters[&adapter].name, "fs\\n");
        assert_eq!(tiers.adapters[&adapter].state, Some(AdapterState::Ready));
        assert_eq!(tiers.changes.lines, 1);
    }

    #[test]
    fn a_failing_disk_brings_a_bounded_number_of_lines() {
        let mut pace = Pace::new(MISMATCHES_MAX);
        let told = (0..1000).map(|_| pace.telling(Instant::from_secs(1)));
        assert_eq!(told.filter(|told| *told != Telling::Nothing).count(), MISMATCHES_MAX + 1);
    }
}
