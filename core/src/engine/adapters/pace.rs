//! How fast an adapter brings what it is asked for, all its loads together: bytes that came, by the
//! time in which some were on their way. One load of many at once tells little of that: it waits
//! for the others.
//!
//! What was learnt is worth something for a while only: an adapter that was slow once would never
//! be asked again, and so never be seen to be fast.

use crate::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    bytes: u64,
    nanos: u64,
    /// So far the time with loads on their way is counted; when the last of them ended.
    until: Instant,
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace { bytes: 0, nanos: 0, until: Instant::ZERO }
    }

    /// The first of some loads has departed.
    pub(super) fn begin(&mut self, now: Instant) {
        self.until = now;
    }

    /// A load has ended and brought so many bytes.
    pub(super) fn end(&mut self, now: Instant, bytes: u64) {
        let took = u64::try_from(now.since(self.until).as_nanos()).unwrap_or(u64::MAX);
        self.until = now;
        self.bytes = self.bytes.saturating_add(bytes);
        self.nanos = self.nanos.saturating_add(took);
        while self.nanos > LOOKS_BACK_NANOS {
            (self.bytes, self.nanos) = (self.bytes / 2, self.nanos / 2);
        }
    }

    /// What comes in a second; 0 where nothing has come yet.
    pub(super) fn bytes_per_second(&self) -> u64 {
        let speed = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.nanos.max(1));
        u64::try_from(speed).unwrap_or(u64::MAX)
    }

    /// Whether that was so lately.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now.since(self.until) <= LASTS
    }
}

/// Time with loads on their way that counts in full; what was before counts for less and less.
const LOOKS_BACK_NANOS: u64 = 2_000_000_000;
/// So long an adapter that brings nothing is taken to be as fast as it was.
const LASTS: Duration = Duration::from_secs(10);
