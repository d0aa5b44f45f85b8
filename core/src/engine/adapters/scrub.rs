//! Objects at rest are read again, so many bytes in a second, and compared with what they came to
//! when they were stored. What has changed is put aside before anybody loads it.

use super::flights::Flight;
use super::{Adapters, Stage};
use crate::effect::Effect;
use crate::engine::turn::Turn;
use crate::fact::AdapterState;
use crate::limits::SCRUBS_MAX;
use crate::names::{AdapterId, Ticket};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scrub {
    /// The place of the table that is looked at next.
    at: u32,
    pub(super) in_flight: u32,
    /// What may be read in this second. An object that is larger is made up for in the next ones.
    credit: i64,
}

impl Adapters {
    /// Once a second: so much more may be read.
    pub(crate) fn tick_scrubs(&mut self, turn: &mut Turn) {
        for index in 0..self.list.len() {
            let adapter = &mut self.list[index];
            let rate = adapter.setup.scrub_bytes_per_second.min(RATE_MAX) as i64;
            adapter.scrub.credit = (adapter.scrub.credit + rate).min(rate);
            self.scrub_some(turn, AdapterId(index as u16));
        }
    }

    /// Checks the next objects of the table that can be checked.
    fn scrub_some(&mut self, turn: &mut Turn, id: AdapterId) {
        for _ in 0..VISITS {
            let adapter = self.get_mut(id);
            let scrub = &mut adapter.scrub;
            let may = adapter.state == AdapterState::Ready && scrub.in_flight < SCRUBS_MAX;
            if !may || scrub.credit <= 0 || adapter.shelf.is_empty() || turn.is_spent() {
                return;
            }
            let at = scrub.at;
            scrub.at = if at + 1 < adapter.shelf.entries.high_water() { at + 1 } else { 0 };
            turn.work.spend_steps(1);
            let Some((entry, found)) = adapter.shelf.entries.at(at) else { continue };
            if found.stage != Stage::Stored || found.seal.is_none() {
                continue;
            }
            let (key, bytes) = (found.key, found.bytes);
            let patience = adapter.setup.load_deadline;
            let flight = Flight::Scrub { adapter: id, entry };
            let departed = self.depart(flight, Some(patience), turn.now, turn.alarms);
            let Some(ticket) = departed else { return };
            let adapter = self.get_mut(id);
            adapter.shelf.hold(entry);
            adapter.scrub.in_flight += 1;
            adapter.scrub.credit -= bytes.min(RATE_MAX) as i64;
            turn.out.effects.push(Effect::Scrub { ticket, adapter: id, key, bytes });
        }
    }

    /// What an object at rest comes to now; None where it could not be read.
    pub(crate) fn scrub_ended(&mut self, turn: &mut Turn, ticket: Ticket, digest: Option<u32>) {
        let is_kind = |flight: &Flight| matches!(flight, Flight::Scrub { .. });
        let found = self.arrive(ticket, is_kind, turn.alarms, turn.out);
        let Some(Flight::Scrub { adapter: id, entry }) = found.map(|found| found.flight) else {
            return;
        };
        let adapter = self.get_mut(id);
        adapter.scrub.in_flight -= 1;
        let read = adapter.shelf.entry(entry).map(|entry| (entry.bytes, entry.seal));
        adapter.shelf.unhold(entry);
        // That may be the object's fault alone: somebody else has taken it away.
        let Some(digest) = digest else {
            adapter.counts.scrubs_failed += 1;
            return;
        };
        let Some((bytes, seal)) = read else { return };
        self.get_mut(id).counts.scrubbed_bytes += bytes;
        if seal.is_some_and(|seal| seal.digest != digest) {
            self.quarantine(turn, id, entry);
        }
    }
}

/// Places of the table that one second looks at: many of them may hold nothing to check.
const VISITS: u32 = 1024;
/// No device reads more in a second; sums of it stay far from the end of 64 bits.
const RATE_MAX: u64 = 1 << 50;
