//! What a recording holds, counted, and what its engine came to.

use kvtide_core::recording::{Entry, Replay};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Counts {
    by_kind: BTreeMap<&'static str, u64>,
    events: u64,
    effects: u64,
    facts: u64,
    last_nanos: u64,
    first_nanos: Option<u64>,
}

impl Counts {
    pub fn add(&mut self, entry: &Entry<'_>) {
        self.first_nanos.get_or_insert(entry.at.0);
        self.last_nanos = entry.at.0;
        if !entry.happened.is_event() {
            return;
        }
        *self.by_kind.entry(entry.kind).or_default() += 1;
        self.events += 1;
        if let Some(outcome) = &entry.outcome {
            // What a file claims may be anything.
            self.effects = self.effects.saturating_add(outcome.effects());
            self.facts = self.facts.saturating_add(outcome.facts());
        }
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    pub fn lines(&self, replay: Option<&Replay>) -> Vec<String> {
        let (first, last) = (self.first_nanos.unwrap_or(0), self.last_nanos);
        let mut lines = vec![format!(
            "{} events, {} effects and {} facts from {} s to {} s",
            self.events,
            self.effects,
            self.facts,
            seconds(first),
            seconds(last)
        )];
        lines.extend(self.by_kind.iter().map(|(kind, count)| format!("{count:>12} {kind}")));
        if let Some(replay) = replay {
            let status = replay.engine().status();
            lines.push(format!(
                "the engine at the end: {} objects, {} of {} bytes used, {} sessions, \
                 {} instances, {} lease units, {} tickets, {} evicted",
                status.objects,
                status.used_bytes,
                status.total_bytes,
                status.sessions,
                status.instances.len(),
                status.lease_units,
                status.tickets,
                status.evicted_objects
            ));
        }
        lines
    }
}

pub fn seconds(nanos: u64) -> String {
    format!("{}.{:06}", nanos / 1_000_000_000, nanos / 1000 % 1_000_000)
}
