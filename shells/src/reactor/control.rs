//! What comes from beside the sockets: letters of other threads, signals, and the end. Invariant:
//! the server ends once nobody waits for it, or when its time is up, whichever is first.

use super::Reactor;
use super::notes::{Note, OperatorRequest, OperatorTeller};
use super::shared::Desk;
use super::signals::Signal;
use super::status::ReactorStatus;
use kvtide_core::effect::OperatorAnswer;
use kvtide_core::event::Event;
use kvtide_core::names::Operator;
use kvtide_core::time::{Duration, Instant};

/// The server is ending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopping {
    signal: Signal,
    /// What is not answered and written by then is given up.
    pub(super) until: Instant,
    /// A second signal: now.
    at_once: bool,
}

impl<E: Desk> Reactor<E> {
    pub(super) fn take_notes(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        // False would mean that every sender is gone; the reactor keeps one itself.
        let _ = self.mailbox.take(&mut notes);
        for note in notes.drain(..) {
            match note {
                Note::ArenaGrown { bytes } => {
                    self.shared.arena.grown_to(bytes);
                    self.shared.door.tell(Event::ArenaGrown { bytes });
                }
                Note::Pool(news) => self.shared.arena.hear(news),
                Note::Operator { ask, answer } => self.operate(&ask, answer),
                Note::Look(look) => look(&self.shared.door.engine, &self.status()),
                Note::Stop(signal) => self.stop(signal),
            }
        }
        self.notes = notes;
        if std::mem::take(&mut self.signalled) {
            self.take_signals();
        }
    }

    fn take_signals(&mut self) {
        let mut came = [None; 2];
        if let Some(signals) = &mut self.signals {
            let mut at = 0;
            // The first decides how the server ends, a second when; more say nothing new.
            signals.take(|signal| {
                if let Some(place) = came.get_mut(at) {
                    *place = Some(signal);
                    at += 1;
                }
            });
        }
        came.into_iter().flatten().for_each(|signal| self.stop(signal));
    }

    fn operate(&mut self, ask: &OperatorRequest, answer: OperatorTeller) {
        match self.operators.insert(answer) {
            Ok(name) => {
                let operator = Operator((name.generation as u64) << 32 | name.index as u64);
                self.shared.door.tell(Event::OperatorAsked { operator, ask: ask.ask() });
            }
            Err(answer) => answer(OperatorAnswer::Full("OPERATORS_MAX")),
        }
    }

    /// The first signal ends the server in order, the second at once (design §7).
    fn stop(&mut self, signal: Signal) {
        if let Some(stopping) = &mut self.stopping {
            stopping.at_once = true;
            return;
        }
        let now = self.shared.door.clock.now();
        self.stopping = Some(Stopping { signal, until: now + FLUSH_TIME, at_once: false });
        self.shared.stopping = true;
        self.listeners.clear();
        self.shared.door.engine.finish(now, &mut self.shared.door.out);
    }

    /// Whether the end is reached: nobody waits for an answer, or time is up.
    pub(super) fn finished(&self) -> Option<Signal> {
        let stopping = self.stopping?;
        let waited = self.shared.door.clock.now() >= stopping.until;
        let done = self.shared.requests.is_empty()
            && self.connections.iter().all(|(_, connection)| !connection.is_owed());
        (stopping.at_once || waited || done).then_some(stopping.signal)
    }

    fn status(&self) -> ReactorStatus {
        ReactorStatus {
            connections: self.connections.len(),
            requests: self.shared.requests.len(),
            ready: self.ready.len(),
            large_frame_bytes_left: self.shared.large.left_bytes(),
            stopping: self.stopping.is_some(),
            pool_name: self.shared.arena.pool_name().map(str::to_owned),
            usable_bytes: self.shared.arena.usable_bytes(),
            pool_news: self.shared.arena.news(),
            turns: self.shared.door.turns.times().clone(),
            counters: self.shared.counters.clone(),
        }
    }
}

/// What the last answers may take to be written (design §7).
const FLUSH_TIME: Duration = Duration::from_secs(2);
