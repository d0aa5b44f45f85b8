//! Bytes on their way: places in the hands of clients, answers being sent, bodies being received.

use super::{Action, ProcessId, Step, Then, World};
use crate::bench::Lent;
use crate::calls::Call;
use crate::memory::grains;
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::effect::Answer;
use kvtide_core::event::{BodyOutcome, SendOutcome};
use kvtide_core::names::{Connection, Reply, Ticket};
use kvtide_core::time::Duration;

/// Places that a client reads or writes until its commit, or until its connection ends.
pub(crate) struct Holding {
    pub connection: Connection,
    pub slots: Vec<Lent>,
    /// What it will send when it is done.
    pub commit: Call,
    pub is_writer: bool,
    /// Grains done, over all slots.
    done: u64,
    is_stalled: bool,
    has_slept: bool,
}

/// One `Send` or `Receive` in flight.
pub(crate) struct Stream {
    pub connection: Connection,
    slots: Vec<Lent>,
    kind: StreamKind,
    is_stalled: bool,
}

enum StreamKind {
    Send { left: u64, call: Call, then: Then },
    Receive { chunks: u32, complete: u32, grain: u64, plan: Plan },
}

/// What becomes of a body.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Whole,
    Short(u32),
    Malformed(u32),
}

impl World {
    /// Slots were lent. An inline client has no use for them, but has them all the same.
    pub(super) fn hold(&mut self, connection: Connection, call: &Call, slots: Vec<Lent>) {
        let process = &self.processes[connection.0.index as usize];
        let (commit, is_writer) = match call.clone() {
            Call::PrepareStore { instance, range } => {
                (Call::CommitStore { instance, range, inline_bytes: 0 }, true)
            }
            Call::PrepareRetrieve { instance, range } => {
                (Call::CommitRetrieve { instance, range }, false)
            }
            _ => return,
        };
        if process.is_inline {
            return;
        }
        let is_stalled = self.chance(self.profile.faults.stall);
        let holding =
            Holding { connection, slots, commit, is_writer, done: 0, is_stalled, has_slept: false };
        self.holdings_made += 1;
        self.holdings.insert(self.holdings_made, holding);
        let latency = self.latency();
        self.plan_in(latency, Action::Work { holding: self.holdings_made });
    }

    /// One step of a client at its places: a few grains written, or everything read once more.
    pub(super) fn work(&mut self, number: u64) -> Step {
        let Some(mut holding) = self.holdings.remove(&number) else { return Ok(()) };
        if !self.is_open(holding.connection) {
            return Ok(());
        }
        if holding.is_writer {
            self.note_stopped(holding.connection);
        }
        let total: u64 = holding.slots.iter().map(|slot| grains(slot.place)).sum();
        let steps = 1 + self.rng.below(1 + total / 3);
        if holding.is_writer {
            let mut at = 0;
            for slot in &holding.slots {
                for grain in 0..grains(slot.place) {
                    if (holding.done..holding.done + steps).contains(&at) {
                        self.bench.memory.write(slot.place, grain, slot.object)?;
                    }
                    at += 1;
                }
            }
        } else {
            for slot in &holding.slots {
                self.bench.memory.check(slot.place, slot.object)?;
            }
        }
        holding.done += steps;
        if holding.done >= total && (!holding.is_stalled || self.is_healing) {
            let process = ProcessId(holding.connection.0.index as usize);
            let then = if holding.is_writer { Then::Committed } else { Then::Nothing };
            self.send(process, holding.commit.clone(), then);
            return Ok(());
        }
        let mut delay = self.latency();
        if !holding.has_slept && self.chance(self.profile.faults.sleep) {
            holding.has_slept = true;
            delay = self.profile.config.write_ttl + Duration::from_secs(1);
        }
        if holding.is_stalled && holding.done >= total {
            // Keeps looking until it dies.
            delay = Duration::from_millis(500);
        }
        self.holdings.insert(number, holding);
        self.plan_in(delay, Action::Work { holding: number });
        Ok(())
    }

    /// A writer goes on. Was its instance reaped while it was stopped?
    fn note_stopped(&mut self, connection: Connection) {
        let entry = &mut self.processes[connection.0.index as usize];
        let has_stopped = entry.stopped_until > kvtide_core::time::Instant::ZERO;
        let is_known = self.bench.model.instances().any(|(id, _)| *id == entry.instance);
        if has_stopped && !is_known {
            entry.was_reaped = true;
            self.bench.reach.met(State::StoppedWritesOn);
        }
    }

    pub(super) fn sending(
        &mut self,
        reply: Reply,
        ticket: Ticket,
        slots: Vec<Lent>,
        with_slots: bool,
    ) {
        let Some((call, then)) = self.waiting.remove(&reply) else { return };
        if with_slots {
            self.hold(reply.connection, &call, slots.clone());
        }
        let is_stalled = self.chance(self.profile.faults.stall);
        let kind = StreamKind::Send { left: 1 + self.rng.below(4), call, then };
        let stream = Stream { connection: reply.connection, slots, kind, is_stalled };
        self.streams.insert(ticket, stream);
        let latency = self.latency();
        self.plan_in(latency, Action::Flow { ticket });
    }

    pub(super) fn receiving(
        &mut self,
        reply: Reply,
        ticket: Ticket,
        slots: Vec<Lent>,
        chunks: u32,
    ) {
        let bad = self.chance(self.profile.faults.bad_body);
        let short = self.rng.below(chunks as u64 + 1) as u32;
        let plan = match (bad, self.rng.below(2)) {
            (false, _) => Plan::Whole,
            (true, 0) => Plan::Short(short),
            (true, _) => Plan::Malformed(short),
        };
        let is_stalled = self.chance(self.profile.faults.stall);
        let kind = StreamKind::Receive { chunks, complete: 0, grain: 0, plan };
        let stream = Stream { connection: reply.connection, slots, kind, is_stalled };
        self.streams.insert(ticket, stream);
        let latency = self.latency();
        self.plan_in(latency, Action::Flow { ticket });
    }

    /// A stream goes on a little, and may end.
    pub(super) fn flow(&mut self, ticket: Ticket) -> Step {
        let Some(mut stream) = self.streams.remove(&ticket) else { return Ok(()) };
        let is_open = self.is_open(stream.connection);
        let ended = match &mut stream.kind {
            StreamKind::Send { left, .. } => {
                for slot in &stream.slots {
                    self.bench.memory.check(slot.place, slot.object)?;
                }
                *left = left.saturating_sub(1);
                let outcome = if is_open { SendOutcome::Sent } else { SendOutcome::Cut };
                (*left == 0 || !is_open).then_some(Input::SendEnded { ticket, outcome })
            }
            StreamKind::Receive { chunks, complete, grain, plan } => {
                let (last, outcome) = match *plan {
                    Plan::Whole => (*chunks, BodyOutcome::Whole),
                    Plan::Short(last) => (last, BodyOutcome::Short),
                    Plan::Malformed(last) => (last, BodyOutcome::Malformed),
                };
                if !is_open {
                    let complete = *complete;
                    Some(Input::ReceiveEnded { ticket, complete, outcome: BodyOutcome::Cut })
                } else if *complete >= last {
                    Some(Input::ReceiveEnded { ticket, complete: last, outcome })
                } else {
                    let slot = stream.slots.iter().find(|slot| slot.chunk == *complete);
                    let total = slot.map_or(0, |slot| grains(slot.place));
                    if let Some(slot) = slot.filter(|_| *grain < total) {
                        let more = (*grain + 1 + self.rng.below(8)).min(total);
                        for at in *grain..more {
                            self.bench.memory.write(slot.place, at, slot.object)?;
                        }
                        *grain = more;
                    }
                    if *grain >= total {
                        (*complete, *grain) = (*complete + 1, 0);
                    }
                    None
                }
            }
        };
        let Some(input) = ended.filter(|_| !stream.is_stalled || !is_open || self.is_healing)
        else {
            let delay = self.latency() + Duration::from_micros(1);
            let delay = if stream.is_stalled { delay + Duration::from_secs(1) } else { delay };
            self.streams.insert(ticket, stream);
            self.plan_in(delay, Action::Flow { ticket });
            return Ok(());
        };
        self.end_stream(stream, input)
    }

    fn end_stream(&mut self, stream: Stream, input: Input) -> Step {
        self.feed(input.clone())?;
        if self.chance(self.profile.faults.stale) {
            self.plan(Duration::from_secs(2), Action::StaleEnding { input });
        }
        if let StreamKind::Send { call, then, .. } = stream.kind {
            // The answer itself has travelled with the bytes.
            let connection = stream.connection;
            let answer = Answer::None;
            self.plan_in(Duration::ZERO, Action::Return { connection, call, then, answer });
        }
        Ok(())
    }

    /// Ends what still flows over a connection that is about to end, or has just ended.
    pub(super) fn hurry_streams(&mut self, connection: Connection) {
        let tickets: Vec<Ticket> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.connection == connection)
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in tickets {
            self.plan(self.profile.latency, Action::Flow { ticket });
        }
    }
}
