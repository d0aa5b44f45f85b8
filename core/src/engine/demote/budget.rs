//! What an adapter may be given: so many bytes in a second and in a day, and, where it is told so,
//! only what has been seen before. Both spare flash that wears out.

use crate::config::AdapterSetup;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;

/// Bytes that may still be written. A second's share may be overdrawn by one object, which the next
/// seconds make up for; a day's may not.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteBudget {
    second: i64,
    second_max: i64,
    day: u64,
    day_max: u64,
    day_ends: Instant,
}

impl WriteBudget {
    pub(super) fn new(setup: &AdapterSetup<'_>, now: Instant) -> WriteBudget {
        let second_max = setup.write_bytes_per_second.min(RATE_MAX) as i64;
        let day_max = setup.write_bytes_per_day;
        WriteBudget { second: second_max, second_max, day: day_max, day_max, day_ends: now + DAY }
    }

    /// Once a second.
    pub(super) fn tick(&mut self, now: Instant) {
        self.second = (self.second + self.second_max).min(self.second_max);
        if now >= self.day_ends {
            (self.day, self.day_ends) = (self.day_max, now + DAY);
        }
    }

    pub(super) fn may_now(&self) -> bool {
        self.second_max == 0 || self.second > 0
    }

    pub(super) fn may_today(&self, bytes: u64) -> bool {
        self.day_max == 0 || bytes <= self.day
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        if self.second_max > 0 {
            self.second -= bytes.min(RATE_MAX) as i64;
        }
        self.day = self.day.saturating_sub(bytes);
    }
}

/// Keys that were seen once, as many as there is room for: a newer one takes the place of an older
/// one of like hash. Two keys of one hash are taken for one, which costs one early store.
#[derive(Clone, Debug)]
pub(super) struct Touches(Vec<u64>);

impl Touches {
    pub(super) fn with_limit(keys: usize) -> Touches {
        Touches(alloc::vec![0; Touches::places(keys)])
    }

    pub(super) fn bytes(keys: usize) -> u64 {
        (Touches::places(keys) * size_of::<u64>()) as u64
    }

    fn places(keys: usize) -> usize {
        if keys == 0 { 0 } else { keys.next_power_of_two() }
    }

    /// Whether this key was seen before; then it is forgotten, else remembered.
    pub(super) fn see(&mut self, hash: u64) -> bool {
        let Some(last) = self.0.len().checked_sub(1) else { return true };
        let place = &mut self.0[hash as usize & last];
        // Zero is an empty place.
        let mark = hash | 1 << 63;
        let is_known = *place == mark;
        *place = if is_known { 0 } else { mark };
        is_known
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// No device takes more in a second; sums of it stay far from the end of 64 bits.
const RATE_MAX: u64 = 1 << 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_touch_is_told_from_the_first() {
        let mut touches = Touches::with_limit(3);
        assert!(!touches.see(8));
        assert!(touches.see(8));
        assert!(!touches.see(8), "stored once, it has to be seen twice again");
        assert!(!touches.see(12), "of like hash: it takes the place");
        assert!(!touches.see(8));
        assert!(Touches::with_limit(0).see(8), "no filter keeps nothing back");
    }
}
