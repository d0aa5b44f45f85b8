//! How long turns take, and which event made the longest one long (design §2). Plain numbers on
//! the reactor thread; only the time of the last turn is an atomic, read by `/livez`.

use kvtide_core::event::{Ask, Event, OperatorAsk};
use kvtide_core::time::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Turns by duration: bucket `i` counts those of `2^i` up to `2^(i+1)` nanoseconds.
pub const TURN_BUCKETS: usize = 40;

/// What is known of the turns so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnTimes {
    pub buckets: [u64; TURN_BUCKETS],
    pub turns: u64,
    /// All of them together.
    pub total: Duration,
    pub longest: Duration,
    /// The slowest event within the longest turn; `""` where it held none.
    pub longest_event: &'static str,
}

/// Measures turns. The clock is read by the caller.
pub struct Turns {
    times: TurnTimes,
    last: LastTurn,
    began: Instant,
    slowest: (Duration, &'static str),
}

/// When the last turn ended, for another thread to see. Nanoseconds since start.
#[derive(Clone, Debug, Default)]
pub struct LastTurn(Arc<AtomicU64>);

impl LastTurn {
    /// Time since the last turn ended. A turn that hangs and a dead reactor look the same.
    pub fn age(&self, now: Instant) -> Duration {
        now.since(Instant(self.0.load(Ordering::Relaxed)))
    }
}

impl Turns {
    pub fn new(last: LastTurn) -> Turns {
        let times = TurnTimes {
            buckets: [0; TURN_BUCKETS],
            turns: 0,
            total: Duration::ZERO,
            longest: Duration::ZERO,
            longest_event: "",
        };
        Turns { times, last, began: Instant::ZERO, slowest: (Duration::ZERO, "") }
    }

    pub fn begin(&mut self, now: Instant) {
        (self.began, self.slowest) = (now, (Duration::ZERO, ""));
    }

    /// One event of this turn took this long.
    pub fn event(&mut self, name: &'static str, took: Duration) {
        if took >= self.slowest.0 {
            self.slowest = (took, name);
        }
    }

    pub fn end(&mut self, now: Instant) {
        let took = now.since(self.began);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.times.buckets[(nanos.ilog2() as usize).min(TURN_BUCKETS - 1)] += 1;
        self.times.turns += 1;
        self.times.total += took;
        if took > self.times.longest {
            (self.times.longest, self.times.longest_event) = (took, self.slowest.1);
        }
        self.last.0.store(now.0, Ordering::Relaxed);
    }

    pub fn times(&self) -> &TurnTimes {
        &self.times
    }
}

/// What an event is called in logs and in the histogram.
pub fn event_name(event: &Event<'_>) -> &'static str {
    match event {
        Event::Tick => "tick",
        Event::Asked { ask, .. } => ask_name(ask),
        Event::ConnectionEnded { .. } => "connection_ended",
        Event::SendEnded { .. } => "send_ended",
        Event::ReceiveEnded { .. } => "receive_ended",
        Event::ArenaGrown { .. } => "arena_grown",
        Event::OperatorAsked { ask, .. } => match ask {
            OperatorAsk::Clear { .. } => "operator_clear",
            OperatorAsk::QuotaSet { .. } => "operator_quota_set",
            OperatorAsk::QuotaRemove { .. } => "operator_quota_remove",
        },
    }
}

fn ask_name(ask: &Ask<'_>) -> &'static str {
    match ask {
        Ask::Register(_) => "register",
        Ask::RegisterRefused { .. } => "register_refused",
        Ask::Unregister { .. } => "unregister",
        Ask::Ping { .. } => "ping",
        Ask::Lookup { .. } => "lookup",
        Ask::QueryPrefetch { .. } => "query_prefetch_status",
        Ask::WaitPrefetch { .. } => "wait_prefetch_status",
        Ask::FreeLookupLocks { .. } => "free_lookup_locks",
        Ask::EndSession { .. } => "end_session",
        Ask::PrepareStore { .. } => "prepare_store",
        Ask::CommitStore { .. } => "commit_store",
        Ask::PrepareRetrieve { .. } => "prepare_retrieve",
        Ask::CommitRetrieve { .. } => "commit_retrieve",
        Ask::Clear { .. } => "clear",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_turn_names_its_slowest_event() {
        let last = LastTurn::default();
        let mut turns = Turns::new(last.clone());
        turns.begin(Instant(1_000));
        turns.event("ping", Duration::from_nanos(10));
        turns.event("lookup", Duration::from_nanos(700));
        turns.event("tick", Duration::from_nanos(20));
        turns.end(Instant(2_024));
        turns.begin(Instant(5_000));
        turns.event("clear", Duration::from_nanos(2));
        turns.end(Instant(5_003));
        let times = turns.times();
        assert_eq!((times.longest, times.longest_event), (Duration::from_nanos(1_024), "lookup"));
        assert_eq!((times.turns, times.buckets[10], times.buckets[1]), (2, 1, 1));
        assert_eq!(times.total, Duration::from_nanos(1_027));
        assert_eq!(last.age(Instant(6_003)), Duration::from_micros(1));
    }

    #[test]
    fn a_turn_of_no_time_or_of_hours_has_a_bucket() {
        let mut turns = Turns::new(LastTurn::default());
        turns.begin(Instant(7));
        turns.end(Instant(7));
        turns.begin(Instant::ZERO);
        turns.end(Instant::from_secs(86_400));
        assert_eq!((turns.times().buckets[0], turns.times().buckets[TURN_BUCKETS - 1]), (1, 1));
    }
}
