//! Whether to look before falling asleep. A thread that sleeps is woken for tens of microseconds,
//! on a virtual machine for more than a hundred, and a client that speaks a few sentences in a row
//! waits for that each time. So after a turn the reactor looks a little while longer where one
//! client has been speaking sentence after sentence, and sleeps at once where it has not. Many
//! clients at once keep it busy anyway, and a thread that never sleeps is put last by the system's
//! scheduler.
//!
//! The one invariant: an idle server does not look, and looking never takes more than `LOOK_MAX` of
//! a wait.

use kvtide_core::time::Duration;
use mio::{Events, Token};

/// What waits have been like lately.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Share of waits that ended soon and by the same client as before, in 1/256; each wait counts
    /// for an eighth.
    soon: u32,
    last: Option<Token>,
}

impl Waiting {
    /// How long to look for news before sleeping.
    pub fn look(&self) -> Duration {
        if self.soon > MOSTLY { LOOK_MAX } else { Duration::ZERO }
    }

    /// A wait has ended after this time, asleep or not, with these events.
    pub fn waited(&mut self, time: Duration, events: &Events) {
        let mut tokens = events.iter().map(mio::event::Event::token);
        let only = tokens.next().filter(|_| tokens.next().is_none());
        self.ended(time, only);
    }

    /// `only` is whose news it was, where it was one's.
    fn ended(&mut self, time: Duration, only: Option<Token>) {
        self.soon -= self.soon / 8;
        if time <= LOOK_MAX && only.is_some() && only == self.last {
            self.soon += WHOLE / 8;
        }
        self.last = only;
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
        let one = Some(Token(7));
        waits.iter().for_each(|micros| waiting.ended(Duration::from_micros(*micros), one));
        waiting
    }

    #[test]
    fn who_has_no_history_or_a_slow_one_sleeps_at_once() {
        assert_eq!(Waiting::default().look(), Duration::ZERO);
        assert_eq!(after(&[1000; 100]).look(), Duration::ZERO);
        assert_eq!(after(&[20, 1000].repeat(100)).look(), Duration::ZERO);
    }

    #[test]
    fn one_client_that_speaks_soon_again_is_looked_for() {
        assert_eq!(after(&[20; 100]).look(), LOOK_MAX);
        assert_eq!(after(&[20, 20, 20, 20, 1000].repeat(100)).look(), LOOK_MAX);
    }

    #[test]
    fn many_clients_are_not_looked_for() {
        let mut waiting = Waiting::default();
        for at in 0..100 {
            waiting.ended(Duration::from_micros(20), Some(Token(at % 3)));
            waiting.ended(Duration::from_micros(20), None);
        }
        assert_eq!(waiting.look(), Duration::ZERO);
    }

    #[test]
    fn silence_ends_it_within_a_few_waits() {
        let mut waiting = after(&[20; 100]);
        let mut waits = 0;
        while waiting.look() > Duration::ZERO {
            waiting.ended(Duration::from_millis(1), Some(Token(7)));
            waits += 1;
        }
        assert!(waits <= 4, "{waits}");
    }
}
