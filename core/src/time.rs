//! Virtual time. The core is told the time, it never asks.

use core::ops::{Add, Sub};
pub use core::time::Duration;

/// Nanoseconds since the server started. Only `shells/src/clock.rs` makes these from a real clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    pub const ZERO: Instant = Instant(0);
    pub const FAR: Instant = Instant(u64::MAX);

    pub const fn from_secs(secs: u64) -> Instant {
        Instant(secs * 1_000_000_000)
    }

    pub const fn from_millis(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    /// Time passed since `earlier`; zero when `earlier` lies ahead.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates: a deadline beyond 584 years never comes.
    fn add(self, later: Duration) -> Instant {
        let nanos = u64::try_from(later.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}
