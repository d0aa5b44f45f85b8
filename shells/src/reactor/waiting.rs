//! Whether to look before falling asleep. A thread that sleeps is woken for tens of microseconds,
//! on a virtual machine for more than a hundred, and a client that speaks a few sentences in a row
//! waits for that each time. So after a turn the reactor looks a little while longer where news has
//! mostly come within that while, and sleeps at once where it has not.
//!
//! The one invariant: an idle server does not look, and looking never takes more than `LOOK_MAX` of
//! a wait.

use kvtide_core::time::Duration;

/// What waits have been like lately.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Share of waits that ended soon, in 1/256; each wait counts for an eighth.
    soon: u32,
}

impl Waiting {
    /// How long to look for news before sleeping.
    pub fn look(&self) -> Duration {
        if self.soon > MOSTLY { LOOK_MAX } else { Duration::ZERO }
    }

    /// A wait has ended after this time, asleep or not.
    pub fn waited(&mut self, time: Duration) {
        self.soon -= self.soon / 8;
        if time <= LOOK_MAX {
            self.soon += WHOLE / 8;
        }
    }
}

const WHOLE: u32 = 256;
/// Five of eight.
const MOSTLY: u32 = WHOLE * 5 / 8;
/// As long as being woken costs: looking for longer would cost more than it saves.
const LOOK_MAX: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn after(waits: &[u64]) -> Waiting {
        let mut waiting = Waiting::default();
        waits.iter().for_each(|micros| waiting.waited(Duration::from_micros(*micros)));
        waiting
    }

    #[test]
    fn who_has_no_history_or_a_slow_one_sleeps_at_once() {
        assert_eq!(Waiting::default().look(), Duration::ZERO);
        assert_eq!(after(&[1000; 100]).look(), Duration::ZERO);
        assert_eq!(after(&[20, 1000].repeat(100)).look(), Duration::ZERO);
    }

    #[test]
    fn who_is_mostly_spoken_to_soon_looks_first() {
        assert_eq!(after(&[20; 100]).look(), LOOK_MAX);
        assert_eq!(after(&[20, 20, 20, 20, 1000].repeat(100)).look(), LOOK_MAX);
    }

    #[test]
    fn silence_ends_it_within_a_few_waits() {
        let mut waiting = after(&[20; 100]);
        let mut waits = 0;
        while waiting.look() > Duration::ZERO {
            waiting.waited(Duration::from_millis(1));
            waits += 1;
        }
        assert!(waits <= 4, "{waits}");
    }
}
