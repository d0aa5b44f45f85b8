//! What comes from beside the sockets: letters of other threads, signals, and the end. Invariant:
//! the server ends once nobody waits for it, or when its time is up, whichever is first; until then
//! every request that came whole is answered once.

use super::buffers::Class;
use super::notes::{Note, OperatorRequest, OperatorTeller};
use super::shared::Desk;
use super::signals::Signal;
use super::status::ReactorStatus;
use super::{Reactor, list};
use kvtide_core::effect::OperatorAnswer;
use kvtide_core::event::Event;
use kvtide_core::names::Operator;
use kvtide_core::time::{Duration, Instant};

/// The server is ending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopping {
    signal: Signal,
    /// Requests that come later are left alone.
    last_call: Instant,
    /// Bodies that have not ended by then are cut, so that their requests are answered.
    cut_at: Instant,
    /// What is not answered and written by then is given up.
    until: Instant,
    /// Disks that have not ended by then are given up.
    disks_until: Instant,
    /// A second signal: now.
    at_once: bool,
}

impl Stopping {
    pub(super) fn is_at_once(&self) -> bool {
        self.at_once
    }

    /// When there is something to do again, though nothing came.
    pub(super) fn next_step(&self, now: Instant) -> Instant {
        let steps = [self.last_call, self.cut_at, self.until, self.disks_until];
        steps.into_iter().find(|at| *at > now).unwrap_or(now)
    }
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
                    self.tiers.grown(bytes);
                    self.pager.grown(bytes);
                    self.shared.door.tell(Event::ArenaGrown { bytes });
                }
                Note::Tier { opened, answer } => answer(self.add_tier(*opened)),
                Note::Pool(news) => self.shared.arena.hear(news),
                Note::Operator { ask, answer } => self.operate(&ask, answer),
                Note::Delete { keys, how, answer } => self.delete_all(keys, how, answer),
                Note::Look(look) => look(&self.shared.door.engine, &self.status()),
                Note::Sum { instance, wanted, answer } => {
                    let attachment = self.shared.door.engine.attachment_of(instance);
                    self.pager.sum(attachment, wanted, answer);
                }
                Note::Dump(tell) => self.dump(tell),
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
        let mut dump = false;
        if let Some(signals) = &mut self.signals {
            dump = signals.take_dump();
            let mut at = 0;
            // The first decides how the server ends, a second when; more say nothing new.
            signals.take(|signal| {
                if let Some(place) = came.get_mut(at) {
                    *place = Some(signal);
                    at += 1;
                }
            });
        }
        if dump {
            self.dump_for_signal();
        }
        came.into_iter().flatten().for_each(|signal| self.stop(signal));
    }

    pub(super) fn operate(&mut self, ask: &OperatorRequest, answer: OperatorTeller) {
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
        self.stopping = Some(Stopping {
            signal,
            last_call: now + LAST_CALL,
            cut_at: now + FLUSH_TIME / 2,
            until: now + FLUSH_TIME,
            disks_until: now + DISKS_TIME,
            at_once: false,
        });
        self.shared.stopping = true;
        self.listeners.clear();
    }

    /// A turn of a server that ends: whoever waits is answered, also who asked only now; bodies
    /// that do not come are given up; who has got all answers is told that there are no more.
    pub(super) fn wind_up(&mut self) {
        let Some(stopping) = self.stopping else { return };
        let now = self.shared.now;
        self.shared.door.finish(now);
        if now < stopping.last_call {
            return;
        }
        for index in 0..self.connections.high_water() {
            let Some(connection) = self.connections.at_mut(index) else { continue };
            if now >= stopping.cut_at {
                connection.cut_body(&mut self.shared);
            }
            if !connection.has_input() {
                connection.take_leave(&mut self.shared);
            }
            list(&mut self.ready, connection, self.shared.terms());
        }
    }

    /// Whether the end is reached: nobody waits for an answer or time for that is up, and so it is
    /// with disks.
    pub(super) fn finished(&self) -> Option<Signal> {
        let stopping = self.stopping?;
        let now = self.shared.door.clock.now();
        let waited = now >= stopping.until;
        let done = now >= stopping.last_call
            && self.shared.requests.is_empty()
            && self.connections.iter().all(|(_, connection)| !connection.is_owed());
        let written = self.tiers.is_idle() && self.pager.is_idle() || now >= stopping.disks_until;
        (stopping.at_once || ((waited || done) && written)).then_some(stopping.signal)
    }

    fn status(&self) -> ReactorStatus {
        ReactorStatus {
            connections: self.connections.len(),
            requests: self.shared.requests.len(),
            ready: self.ready.len(),
            medium_frame_bytes_left: self.shared.budgets.left_bytes(Class::Medium),
            large_frame_bytes_left: self.shared.budgets.left_bytes(Class::Large),
            buffered_bytes: self.shared.buffered_bytes,
            stopping: self.stopping.is_some(),
            pool_name: self.shared.arena.pool_name().map(str::to_owned),
            usable_bytes: self.shared.arena.usable_bytes(),
            pool_news: self.shared.arena.news(),
            stalls: self.shared.door.turns.stalls(),
            turns: self.shared.door.turns.times().clone(),
            counters: self.shared.counters.clone(),
            recording: self.recording_status(),
            tiers: self.tiers.status(),
        }
    }
}

/// For how long after the signal requests are still taken: what was on its way arrives.
const LAST_CALL: Duration = Duration::from_millis(50);
/// What the last answers may take to be written (design §7).
const FLUSH_TIME: Duration = Duration::from_secs(2);
/// What is on its way to a disk may take so long to get there (design §7).
const DISKS_TIME: Duration = Duration::from_secs(10);
