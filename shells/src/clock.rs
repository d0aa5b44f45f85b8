//! The only real clock. Time starts at zero with the server and never goes back; the wall clock is
//! read once, at that start, so that virtual time can be told as wall time without a second source.
#![allow(clippy::disallowed_methods, reason = "this is the file that reads real clocks")]

use kvtide_core::time::Instant;

/// Copies tell the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: std::time::Instant,
    wall_nanos_at_start: u64,
}

impl Clock {
    /// A clock that stands at zero now.
    pub fn start() -> Clock {
        let since_1970 = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or(std::time::Duration::ZERO);
        Clock {
            start: std::time::Instant::now(),
            wall_nanos_at_start: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Monotone, also over threads: the operating system's monotone clock is.
    pub fn now(&self) -> Instant {
        Instant(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Nanoseconds since 1970 when the clock stood at zero.
    pub fn wall_nanos_at_start(&self) -> u64 {
        self.wall_nanos_at_start
    }

    /// Nanoseconds since 1970 as this clock counts them: later steps of the wall clock do not show.
    pub fn wall_nanos(&self) -> u64 {
        self.wall_nanos_at_start.saturating_add(self.now().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back_and_copies_agree() {
        let clock = Clock::start();
        let copy = clock;
        let mut before = clock.now();
        for _ in 0..1000 {
            let after = copy.now();
            assert!(after >= before);
            before = after;
        }
        assert!(clock.wall_nanos() >= clock.wall_nanos_at_start());
    }
}
