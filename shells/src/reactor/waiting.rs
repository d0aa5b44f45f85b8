//! Whether to look before falling asleep. A thread that sleeps is woken for tens of microseconds,
//! on a virtual machine for more than a hundred, and a client that speaks a few sentences in a row
//! waits for that each time. So after a turn the reactor looks a little while longer where the
//! sentence that it has just answered is one which its client mostly goes on from at once: a lookup
//! is followed by the question for its result, a `prepare_store` by a long copy. Many clients at
//! once keep it busy anyway, and a thread that never sleeps is put last by the system's scheduler.
//!
//! The one invariant: an idle server does not look, and looking never takes more than `LOOK_MAX` of
//! a wait.

use super::recent::EventName;
use super::{Desk, HEARTBEAT, Reactor};
use kvtide_core::time::Duration;
use mio::{Events, Token};
use std::io;

/// What waits have been like lately.
#[derive(Debug)]
pub struct Waiting {
    /// By the last event of the turn before: the share of waits that ended soon and by the same
    /// client, in 1/256; each wait counts for an eighth. Turns without an event (`noop`, a part of
    /// a message) have a place of their own.
    soon: [u32; EventName::COUNT],
    /// Who spoke last, where it was one, and what it asked for.
    last: Option<(Token, EventName)>,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { soon: [0; EventName::COUNT], last: None }
    }
}

impl Waiting {
    /// A turn is over; this was its last event.
    pub fn turned(&mut self, event: EventName) {
        if let Some((_, last)) = &mut self.last {
            *last = event;
        }
    }

    /// How long to look for news before sleeping.
    pub fn look(&self) -> Duration {
        let soon = self.last.map(|(_, event)| self.soon[usize::from(event.to_index())]);
        if soon.is_some_and(|soon| soon > MOSTLY) { LOOK_MAX } else { Duration::ZERO }
    }

    /// A wait has ended after this time, asleep or not, with these events.
    pub fn waited(&mut self, time: Duration, events: &Events) {
        let mut tokens = events.iter().map(mio::event::Event::token);
        let only = tokens.next().filter(|_| tokens.next().is_none());
        self.ended(time, only);
    }

    /// `only` is whose news it was, where it was one's.
    fn ended(&mut self, time: Duration, only: Option<Token>) {
        if let Some((token, event)) = self.last {
            let soon = &mut self.soon[usize::from(event.to_index())];
            *soon -= *soon / 8;
            if time <= LOOK_MAX && only == Some(token) {
                *soon += WHOLE / 8;
            }
        }
        self.last = only.map(|token| (token, EventName::default()));
    }
}

impl<E: Desk> Reactor<E> {
    pub(super) fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        if timeout.is_zero() {
            return self.poll.poll(&mut self.events, Some(timeout));
        }
        let clock = self.shared.door.clock;
        let (began, look) = (clock.now(), self.waiting.look().min(timeout));
        while clock.now().since(began) < look {
            self.poll.poll(&mut self.events, Some(Duration::ZERO))?;
            if !self.events.is_empty() {
                self.waiting.waited(clock.now().since(began), &self.events);
                return Ok(());
            }
        }
        let polled = self.poll.poll(&mut self.events, Some(timeout - look));
        self.waiting.waited(clock.now().since(began), &self.events);
        polled
    }

    /// How long the next poll may wait: not at all while somebody can be brought forward.
    pub(super) fn timeout(&self) -> Duration {
        let now = self.shared.door.clock.now();
        let accepting = self.listeners.iter().any(|listener| listener.ready);
        let busy = !self.ready.is_empty()
            || !self.shared.dirty.is_empty()
            || self.tiers.is_eager()
            || (accepting && now >= self.accept_after);
        if busy {
            return Duration::ZERO;
        }
        let mut until = now + HEARTBEAT;
        if accepting {
            until = until.min(self.accept_after);
        }
        if let Some(tick) = self.shared.door.engine.next_tick() {
            until = until.min(tick);
        }
        if let Some(due) = self.tiers.deadline() {
            until = until.min(due);
        }
        if let Some(stopping) = &self.stopping {
            until = until.min(stopping.next_step(now));
        }
        until.since(now)
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

    const ONE: Option<Token> = Some(Token(7));

    fn event(index: u8) -> EventName {
        EventName::from_index(index).expect("a name")
    }

    /// One client asks for event 1, 2, 1 ..., and these waits in microseconds follow.
    fn after(waits: &[u64]) -> Waiting {
        let mut waiting = Waiting::default();
        waiting.ended(Duration::ZERO, ONE);
        for (at, micros) in waits.iter().enumerate() {
            waiting.turned(event(1 + at as u8 % 2));
            waiting.ended(Duration::from_micros(*micros), ONE);
        }
        waiting
    }

    fn look_after(waiting: &mut Waiting, index: u8) -> Duration {
        waiting.turned(event(index));
        waiting.look()
    }

    #[test]
    fn who_has_no_history_or_a_slow_one_sleeps_at_once() {
        assert_eq!(Waiting::default().look(), Duration::ZERO);
        assert_eq!(look_after(&mut after(&[1000; 100]), 1), Duration::ZERO);
    }

    #[test]
    fn one_client_that_speaks_soon_again_is_looked_for() {
        assert_eq!(look_after(&mut after(&[20; 100]), 1), LOOK_MAX);
        assert_eq!(look_after(&mut after(&[20; 100]), 2), LOOK_MAX);
    }

    #[test]
    fn what_a_pause_follows_is_told_from_what_it_does_not() {
        let mut waiting = after(&[20, 8000].repeat(50));
        assert_eq!(look_after(&mut waiting, 1), LOOK_MAX);
        assert_eq!(look_after(&mut waiting, 2), Duration::ZERO);
    }

    #[test]
    fn many_clients_are_not_looked_for() {
        let mut waiting = Waiting::default();
        for at in 0..100 {
            waiting.ended(Duration::from_micros(20), Some(Token(at % 3)));
            assert_eq!(look_after(&mut waiting, 1), Duration::ZERO);
            waiting.ended(Duration::from_micros(20), None);
            assert_eq!(look_after(&mut waiting, 1), Duration::ZERO);
        }
    }

    #[test]
    fn silence_ends_it_within_a_few_waits() {
        let mut waiting = after(&[20; 100]);
        let mut waits = 0;
        while look_after(&mut waiting, 1) > Duration::ZERO {
            waiting.ended(Duration::from_millis(1), ONE);
            waits += 1;
        }
        assert!(waits <= 4, "{waits}");
    }
}
