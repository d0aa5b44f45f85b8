//! What events are called, and which ones came last: written down as each begins, so that a panic
//! can tell what led to it and the watchdog what the reactor hangs in. Invariant: writing one down
//! costs a few stores, and no time is read for it.

use kvtide_core::event::{Ask, Event, OperatorAsk};
use kvtide_core::time::Instant;
use std::fmt::Write;

/// An event's name, small enough for an atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventName(u8);

impl EventName {
    /// So many names there are, that of no event included.
    pub const COUNT: usize = NAMES.len();

    pub fn of(event: &Event<'_>) -> EventName {
        EventName(match event {
            Event::Tick => 1,
            Event::ConnectionEnded { .. } => 2,
            Event::SendEnded { .. } => 3,
            Event::ReceiveEnded { .. } => 4,
            Event::ArenaGrown { .. } => 5,
            Event::OperatorAsked { ask: OperatorAsk::Clear { .. }, .. } => 6,
            Event::OperatorAsked { ask: OperatorAsk::QuotaSet { .. }, .. } => 7,
            Event::OperatorAsked { ask: OperatorAsk::QuotaRemove { .. }, .. } => 8,
            Event::OperatorAsked { ask: OperatorAsk::AdapterRemove { .. }, .. } => 32,
            Event::OperatorAsked { ask: OperatorAsk::Delete { .. }, .. } => 33,
            Event::Asked { ask, .. } => index_of(ask),
            Event::AdapterAdded { .. } => 23,
            Event::AdapterScanned { .. } => 24,
            Event::AdapterScanEnded { .. } => 25,
            Event::ProbeEnded { .. } => 26,
            Event::StoreEnded { .. } => 27,
            Event::LoadEnded { .. } => 28,
            Event::DeleteEnded { .. } => 29,
            Event::DigestEnded { .. } => 30,
            Event::ScrubEnded { .. } => 31,
            Event::AttachEnded { .. } => 37,
            Event::CopyEnded { .. } => 38,
        })
    }

    /// The name of no event is empty.
    pub fn text(self) -> &'static str {
        NAMES[usize::from(self.0)]
    }

    pub fn to_index(self) -> u8 {
        self.0
    }

    /// None where no name has that index.
    pub fn from_index(index: u8) -> Option<EventName> {
        (usize::from(index) < NAMES.len()).then_some(EventName(index))
    }
}

fn index_of(ask: &Ask<'_>) -> u8 {
    match ask {
        Ask::Register(_) => 9,
        Ask::RegisterRefused { .. } => 10,
        Ask::Unregister { .. } => 11,
        Ask::Ping { .. } => 12,
        Ask::Lookup { .. } => 13,
        Ask::QueryPrefetch { .. } => 14,
        Ask::WaitPrefetch { .. } => 15,
        Ask::FreeLookupLocks { .. } => 16,
        Ask::EndSession { .. } => 17,
        Ask::PrepareStore { .. } => 18,
        Ask::CommitStore { .. } => 19,
        Ask::PrepareRetrieve { .. } => 20,
        Ask::CommitRetrieve { .. } => 21,
        Ask::Clear { .. } => 22,
        Ask::RegisterPaged(_) => 34,
        Ask::Store { .. } => 35,
        Ask::Retrieve { .. } => 36,
        Ask::BlocksAllocated { .. } => 39,
    }
}

/// By index; the first is that of no event.
const NAMES: [&str; 40] = [
    "",
    "tick",
    "connection_ended",
    "send_ended",
    "receive_ended",
    "arena_grown",
    "operator_clear",
    "operator_quota_set",
    "operator_quota_remove",
    "register",
    "register_refused",
    "unregister",
    "ping",
    "lookup",
    "query_prefetch_status",
    "wait_prefetch_status",
    "free_lookup_locks",
    "end_session",
    "prepare_store",
    "commit_store",
    "prepare_retrieve",
    "commit_retrieve",
    "clear",
    "adapter_added",
    "adapter_scanned",
    "adapter_scan_ended",
    "probe_ended",
    "store_ended",
    "load_ended",
    "delete_ended",
    "digest_ended",
    "scrub_ended",
    "operator_adapter_remove",
    "operator_delete",
    "register_kv_cache",
    "store",
    "retrieve",
    "attach_ended",
    "copy_ended",
    "report_block_allocation",
];

/// The last events, oldest overwritten first.
#[derive(Clone, Debug)]
pub struct Recent {
    events: [(Instant, EventName); KEPT],
    next: usize,
}

impl Recent {
    pub fn new() -> Recent {
        Recent { events: [(Instant::ZERO, EventName::default()); KEPT], next: 0 }
    }

    pub fn begins(&mut self, now: Instant, name: EventName) {
        self.events[self.next] = (now, name);
        self.next = (self.next + 1) % KEPT;
    }

    /// From the oldest to the last.
    pub fn iter(&self) -> impl Iterator<Item = (Instant, EventName)> {
        let (newer, older) = self.events.split_at(self.next);
        older.iter().chain(newer).copied().filter(|(_, name)| *name != EventName::default())
    }

    /// For a log line: each with its time in seconds since the start.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (at, name) in self.iter() {
            let comma = if text.is_empty() { "" } else { ", " };
            let (seconds, micros) = (at.0 / 1_000_000_000, at.0 / 1000 % 1_000_000);
            write!(text, "{comma}{seconds}.{micros:06} {}", name.text()).expect("text takes all");
        }
        text
    }
}

const KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_kept_in_order() {
        let mut recent = Recent::new();
        assert_eq!(recent.text(), "");
        let name = |index: u8| EventName::from_index(index).expect("a name");
        recent.begins(Instant(1_500_002_000), name(12));
        recent.begins(Instant(2_000_000_000), name(1));
        assert_eq!(recent.text(), "1.500002 ping, 2.000000 tick");
        for at in 0..KEPT as u64 {
            recent.begins(Instant(at), name(1 + at as u8 % 22));
        }
        let kept: Vec<u64> = recent.iter().map(|(at, _)| at.0).collect();
        assert_eq!(kept, Vec::from_iter(0..KEPT as u64));
    }

    #[test]
    fn names_and_indices_belong_together() {
        assert_eq!(EventName::of(&Event::Tick).text(), "tick");
        let clear = Event::OperatorAsked {
            operator: kvtide_core::names::Operator(0),
            ask: OperatorAsk::Clear { force: false },
        };
        assert_eq!(EventName::of(&clear).text(), "operator_clear");
        let adapter = kvtide_core::names::AdapterId(0);
        let ended = Event::AdapterScanEnded { adapter };
        assert_eq!(EventName::of(&ended).text(), "adapter_scan_ended");
        let remove = Event::OperatorAsked {
            operator: kvtide_core::names::Operator(0),
            ask: OperatorAsk::AdapterRemove { adapter },
        };
        assert_eq!(EventName::of(&remove).text(), "operator_adapter_remove");
        assert_eq!(EventName(index_of(&Ask::Clear { force: true })).text(), "clear");
        assert_eq!(EventName(index_of(&Ask::Ping { instance: None })).text(), "ping");
        let wait = Ask::WaitPrefetch { request: "", wait: kvtide_core::time::Duration::ZERO };
        assert_eq!(EventName(index_of(&wait)).text(), "wait_prefetch_status");
        assert_eq!(EventName::from_index(NAMES.len() as u8), None);
    }
}
