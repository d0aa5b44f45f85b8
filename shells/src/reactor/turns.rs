//! How long turns take, and which event made the longest one long (design §2). Plain numbers on
//! the reactor thread; only what `/livez` and the watchdog read is atomic.

use super::recent::{EventName, Recent};
use kvtide_core::time::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

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
    recent: Recent,
    began: Instant,
    slowest: (Duration, EventName),
    /// The last event of this turn.
    latest: EventName,
}

/// The reactor's pulse, for other threads to see.
#[derive(Clone, Debug, Default)]
pub struct LastTurn(Arc<Pulse>);

#[derive(Debug, Default)]
struct Pulse {
    /// When the last turn ended, in nanoseconds since start.
    ended: AtomicU64,
    /// The index of the event begun last, with `ENDED` once it is over.
    doing: AtomicU8,
    /// How often the watchdog found it standing still.
    stalls: AtomicU64,
}

impl LastTurn {
    /// Time since the last turn ended. A turn that hangs and a dead reactor look the same.
    pub fn age(&self, now: Instant) -> Duration {
        now.since(self.ended())
    }

    pub fn ended(&self) -> Instant {
        Instant(self.0.ended.load(Ordering::Relaxed))
    }

    /// The last event, and whether it is over.
    pub fn doing(&self) -> (&'static str, bool) {
        let doing = self.0.doing.load(Ordering::Relaxed);
        let name = EventName::from_index(doing & !ENDED).unwrap_or_default();
        (name.text(), doing & ENDED != 0)
    }

    pub fn stalls(&self) -> u64 {
        self.0.stalls.load(Ordering::Relaxed)
    }

    pub(super) fn count_stall(&self) {
        self.0.stalls.fetch_add(1, Ordering::Relaxed);
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
        let slowest = (Duration::ZERO, EventName::default());
        let (began, latest) = (Instant::ZERO, EventName::default());
        Turns { times, last, recent: Recent::new(), began, slowest, latest }
    }

    pub fn begin(&mut self, now: Instant) {
        (self.began, self.latest) = (now, EventName::default());
        self.slowest = (Duration::ZERO, self.latest);
    }

    /// An event is about to be handled.
    pub fn begins(&mut self, now: Instant, name: EventName) {
        self.recent.begins(now, name);
        self.latest = name;
        self.last.0.doing.store(name.to_index(), Ordering::Relaxed);
    }

    /// One event of this turn took this long.
    pub fn event(&mut self, name: EventName, took: Duration) {
        self.last.0.doing.store(name.to_index() | ENDED, Ordering::Relaxed);
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
            (self.times.longest, self.times.longest_event) = (took, self.slowest.1.text());
        }
        self.last.0.ended.store(now.0, Ordering::Relaxed);
    }

    pub fn times(&self) -> &TurnTimes {
        &self.times
    }

    /// The last event of this turn; that of no event is empty.
    pub fn latest(&self) -> EventName {
        self.latest
    }

    /// The last events that were begun.
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    pub fn stalls(&self) -> u64 {
        self.last.stalls()
    }
}

/// Marks an event that is over; no index is that large.
const ENDED: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_turn_names_its_slowest_event() {
        let name = |index| EventName::from_index(index).expect("a name");
        let last = LastTurn::default();
        let mut turns = Turns::new(last.clone());
        turns.begin(Instant(1_000));
        turns.event(name(12), Duration::from_nanos(10));
        turns.event(name(13), Duration::from_nanos(700));
        turns.event(name(1), Duration::from_nanos(20));
        turns.end(Instant(2_024));
        turns.begin(Instant(5_000));
        turns.event(name(22), Duration::from_nanos(2));
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
