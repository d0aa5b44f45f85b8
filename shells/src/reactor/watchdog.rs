//! Looks at the reactor from another thread: one ERROR when it stands still, one line when it goes
//! on. Invariant: a stall is told once, however long it lasts; a process that was stopped as a
//! whole is none, as its reactor turns again before the second look.

use super::turns::LastTurn;
use kvtide_core::time::{Duration, Instant};
use std::fmt;

/// The thread that owns it looks about once a second.
#[derive(Debug)]
pub struct Watchdog {
    last_turn: LastTurn,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Well,
    /// Seen standing still once. It may be this whole process that stood.
    Suspected {
        turned: Instant,
    },
    /// Told of; it has stood since then.
    Stalled {
        turned: Instant,
    },
}

/// What there is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    Stalled {
        /// For how long already.
        time: Duration,
        /// What it was last doing; empty where that was no event.
        event: &'static str,
        /// Whether that event has ended.
        ended: bool,
    },
    Recovered {
        /// How long it stood, to within a look.
        time: Duration,
    },
}

impl fmt::Display for Sighting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Sighting::Stalled { time, event, ended } => {
                let seconds = time.as_secs_f64();
                write!(f, "The reactor has not turned for {seconds:.1} s; ")?;
                match (event, ended) {
                    ("", _) => f.write_str("it has seen no event yet"),
                    (event, true) => write!(f, "the last event, {event}, had ended"),
                    (event, false) => write!(f, "it is in the event {event}"),
                }
            }
            Sighting::Recovered { time } => {
                write!(f, "The reactor turns again after {:.1} s", time.as_secs_f64())
            }
        }
    }
}

impl Watchdog {
    pub fn new(last_turn: LastTurn) -> Watchdog {
        Watchdog { last_turn, state: State::Well }
    }

    /// One look. Counts a stall when it tells of it.
    pub fn look(&mut self, now: Instant) -> Option<Sighting> {
        let turned = self.last_turn.ended();
        let stands = now.since(turned) > STALL_TIME;
        let (state, sighting) = match self.state {
            State::Suspected { turned: before } if stands && turned == before => {
                self.last_turn.count_stall();
                let (event, ended) = self.last_turn.doing();
                let time = now.since(turned);
                (State::Stalled { turned }, Some(Sighting::Stalled { time, event, ended }))
            }
            State::Stalled { turned: before } if turned == before => (self.state, None),
            State::Stalled { turned: before } => {
                (State::Well, Some(Sighting::Recovered { time: turned.since(before) }))
            }
            _ if stands => (State::Suspected { turned }, None),
            _ => (State::Well, None),
        };
        self.state = state;
        sighting
    }
}

/// An idle reactor turns about once a second; `/livez` waits as long.
pub const STALL_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::recent::EventName;
    use super::super::turns::Turns;
    use super::*;
    use kvtide_core::event::Event;

    fn seconds(seconds: u64) -> Instant {
        Instant::from_secs(seconds)
    }

    fn turn(turns: &mut Turns, at: Instant) {
        turns.begin(at);
        turns.end(at);
    }

    #[test]
    fn a_stall_is_told_once_and_so_is_its_end() {
        let last = LastTurn::default();
        let (mut turns, mut watchdog) = (Turns::new(last.clone()), Watchdog::new(last.clone()));
        turn(&mut turns, seconds(10));
        assert_eq!(watchdog.look(seconds(15)), None, "five seconds are not long");
        turns.begins(seconds(11), EventName::of(&Event::Tick));
        assert_eq!(watchdog.look(seconds(16)), None, "this process may have been stopped");
        assert_eq!(last.stalls(), 0);
        let told = watchdog.look(seconds(17)).expect("it stands still");
        let text = "The reactor has not turned for 7.0 s; it is in the event tick";
        assert_eq!((told.to_string().as_str(), last.stalls()), (text, 1));
        assert_eq!(watchdog.look(seconds(18)), None, "told already");
        assert_eq!(watchdog.look(seconds(600)), None);
        turns.end(seconds(601));
        let told = watchdog.look(seconds(601)).expect("it turns");
        assert_eq!(told.to_string(), "The reactor turns again after 591.0 s");
        assert_eq!((watchdog.look(seconds(602)), last.stalls()), (None, 1));
    }

    #[test]
    fn a_process_that_was_stopped_has_not_stalled() {
        let last = LastTurn::default();
        let (mut turns, mut watchdog) = (Turns::new(last.clone()), Watchdog::new(last.clone()));
        turn(&mut turns, seconds(1));
        for stopped in [100, 200, 300] {
            assert_eq!(watchdog.look(seconds(stopped)), None);
            turn(&mut turns, seconds(stopped));
            assert_eq!(watchdog.look(seconds(stopped + 1)), None);
            turn(&mut turns, seconds(stopped + 1));
        }
        assert_eq!(last.stalls(), 0);
    }

    #[test]
    fn what_it_was_last_doing_is_named() {
        let last = LastTurn::default();
        let (mut turns, mut watchdog) = (Turns::new(last.clone()), Watchdog::new(last));
        let mut told = |from| {
            watchdog.look(seconds(from));
            watchdog.look(seconds(from + 1)).expect("it stands still").to_string()
        };
        assert!(told(10).ends_with("; it has seen no event yet"));
        let mut watchdog = Watchdog::new(watchdog.last_turn.clone());
        let name = EventName::of(&Event::ArenaGrown { bytes: 1 });
        turns.begins(seconds(3), name);
        turns.event(name, Duration::ZERO);
        watchdog.look(seconds(20));
        let told = watchdog.look(seconds(21)).expect("it stands still").to_string();
        assert!(told.ends_with("; the last event, arena_grown, had ended"), "{told}");
    }
}
