//! Bytes on their way: places in the hands of clients, answers being sent, bodies being received.

use super::actions::{Action, Then};
use super::{ProcessId, Step, World};
use crate::bench::Lent;
use crate::calls::Call;
use crate::deeds::Deed;
use crate::memory::grains;
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::effect::Answer;
use kvtide_core::event::{BodyOutcome, SendOutcome};
use kvtide_core::fact::Fact;
use kvtide_core::names::{Connection, Reply, Ticket};
use kvtide_core::time::{Duration, Instant};

/// Places that a client reads or writes until its commit, or until its connection ends.
pub(crate) struct Holding {
    /// The request that they were lent for.
    reply: Reply,
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
    reply: Reply,
    pub connection: Connection,
    slots: Vec<Lent>,
    kind: StreamKind,
    is_stalled: bool,
    has_rested: bool,
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
    pub(super) fn hold(&mut self, reply: Reply, call: &Call, slots: Vec<Lent>) {
        let connection = reply.connection;
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
        self.holdings_made += 1;
        let holding = Holding {
            reply,
            connection,
            slots,
            commit,
            is_writer,
            done: 0,
            is_stalled: self.stalls(),
            has_slept: false,
        };
        self.holdings.insert(self.holdings_made, holding);
        self.clear_between(reply, call);
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
                        self.write(holding.reply, slot, grain)?;
                    }
                    at += 1;
                }
            }
        } else {
            self.read(holding.reply, &holding.slots)?;
        }
        holding.done += steps;
        if holding.done >= total && (!holding.is_stalled || self.is_healing) {
            let process = ProcessId(holding.connection.0.index as usize);
            let of = holding.reply;
            let (commit, then) = match holding.is_writer {
                true => self.commit_of(&holding.commit, of),
                false => (holding.commit, Then::HasRead(of)),
            };
            self.send(process, commit, then);
            return Ok(());
        }
        let mut delay = self.latency();
        if !holding.has_slept && self.chance(self.profile.faults.sleep) {
            holding.has_slept = true;
            self.tally.came("client slept over a write TTL");
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

    /// A writer goes on. Was its instance reaped while it was stopped? Asked once after a stop.
    fn note_stopped(&mut self, connection: Connection) {
        let entry = &mut self.processes[connection.0.index as usize];
        let until = std::mem::take(&mut entry.stopped_until);
        if until > Instant::ZERO && self.bench.model.was_reaped(entry.instance) {
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
        self.note_reader(&then);
        if with_slots {
            self.hold(reply, &call, slots.clone());
        }
        let kind = StreamKind::Send { left: 1 + self.rng.below(4), call, then };
        self.open_stream(reply, ticket, slots, kind);
    }

    fn open_stream(&mut self, reply: Reply, ticket: Ticket, slots: Vec<Lent>, kind: StreamKind) {
        let connection = reply.connection;
        let is_stalled = self.stalls();
        let stream = Stream { reply, connection, slots, kind, is_stalled, has_rested: false };
        self.streams.insert(ticket, stream);
        self.opened_for.insert(ticket, reply);
        let latency = self.latency();
        self.plan_in(latency, Action::Flow { ticket });
    }

    fn stalls(&mut self) -> bool {
        let stalls = self.chance(self.profile.faults.stall);
        if stalls {
            self.tally.came("completion only at close");
        }
        stalls
    }

    fn write(&mut self, reply: Reply, slot: &Lent, grain: u64) -> Step {
        self.note(Deed::Wrote { reply, chunk: slot.chunk, grain });
        self.bench.memory.write(slot.place, grain, slot.object)
    }

    fn read(&mut self, reply: Reply, slots: &[Lent]) -> Step {
        self.note(Deed::Read { reply });
        slots.iter().try_for_each(|slot| self.bench.memory.check(slot.place, slot.object))
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
        let kind = StreamKind::Receive { chunks, complete: 0, grain: 0, plan };
        self.open_stream(reply, ticket, slots, kind);
    }

    /// A stream goes on a little, and may end.
    pub(super) fn flow(&mut self, ticket: Ticket) -> Step {
        let Some(mut stream) = self.streams.remove(&ticket) else { return Ok(()) };
        let is_open = self.is_open(stream.connection);
        let ended = match stream.kind {
            StreamKind::Send { .. } => self.flow_out(ticket, &mut stream, is_open)?,
            StreamKind::Receive { .. } => self.flow_in(ticket, &mut stream, is_open)?,
        };
        let waits = stream.is_stalled && is_open && !self.is_healing;
        let Some(input) = ended.filter(|_| !waits) else {
            let mut delay = self.latency() + Duration::from_micros(1);
            if stream.is_stalled {
                delay += Duration::from_secs(1);
            } else if !stream.has_rested && self.chance(self.profile.faults.slow) {
                stream.has_rested = true;
                self.tally.came("completion late");
                let config = &self.profile.config;
                let over = [config.write_ttl, config.read_ttl, config.session_ttl];
                delay = over[self.pick(over.len())] + Duration::from_secs(1);
            }
            self.streams.insert(ticket, stream);
            self.plan_in(delay, Action::Flow { ticket });
            return Ok(());
        };
        if stream.is_stalled && !is_open {
            self.bench.reach.met(State::EndingAtClose);
        }
        self.end_stream(stream, input)
    }

    fn flow_out(
        &mut self,
        ticket: Ticket,
        stream: &mut Stream,
        is_open: bool,
    ) -> Result<Option<Input>, String> {
        self.read(stream.reply, &stream.slots)?;
        let StreamKind::Send { left, .. } = &mut stream.kind else { return Ok(None) };
        *left = left.saturating_sub(1);
        let outcome = if is_open { SendOutcome::Sent } else { SendOutcome::Cut };
        Ok((*left == 0 || !is_open).then_some(Input::SendEnded { ticket, outcome }))
    }

    fn flow_in(
        &mut self,
        ticket: Ticket,
        stream: &mut Stream,
        is_open: bool,
    ) -> Result<Option<Input>, String> {
        let Stream { reply, slots, kind, .. } = stream;
        let StreamKind::Receive { chunks, complete, grain, plan } = kind else { return Ok(None) };
        let (last, outcome) = match *plan {
            Plan::Whole => (*chunks, BodyOutcome::Whole),
            Plan::Short(last) => (last, BodyOutcome::Short),
            Plan::Malformed(last) => (last, BodyOutcome::Malformed),
        };
        if !is_open {
            let (complete, outcome) = (*complete, BodyOutcome::Cut);
            return Ok(Some(Input::ReceiveEnded { ticket, complete, outcome }));
        }
        if *complete >= last {
            return Ok(Some(Input::ReceiveEnded { ticket, complete: last, outcome }));
        }
        let slot = slots.iter().find(|slot| slot.chunk == *complete);
        let total = slot.map_or(0, |slot| grains(slot.place));
        if let Some(slot) = slot.filter(|_| *grain < total) {
            let more = (*grain + 1 + self.rng.below(8)).min(total);
            for at in *grain..more {
                self.write(*reply, slot, at)?;
            }
            *grain = more;
        }
        if *grain >= total {
            (*complete, *grain) = (*complete + 1, 0);
        }
        Ok(None)
    }

    fn end_stream(&mut self, stream: Stream, input: Input) -> Step {
        let is_bad = matches!(
            input,
            Input::ReceiveEnded { outcome: BodyOutcome::Short | BodyOutcome::Malformed, .. }
        );
        if is_bad {
            self.tally.came("body short or malformed");
        }
        self.feed(input.clone())?;
        self.note_ending(&stream, &input);
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

    /// Which of the states worth meeting this ending is.
    fn note_ending(&mut self, stream: &Stream, input: &Input) {
        if stream.has_rested {
            self.bench.reach.met(State::EndingLate);
        }
        let is_whole = matches!(input, Input::ReceiveEnded { outcome: BodyOutcome::Whole, .. });
        let published = |fact: &Fact| matches!(fact, Fact::WriteFinished { .. });
        if is_whole && !stream.slots.is_empty() && !self.bench.outbox().facts.iter().any(published)
        {
            self.bench.reach.met(State::EndingAfterAbort);
        }
    }

    /// Processes with a body or an answer on its way.
    pub(super) fn flowing(&self) -> impl Iterator<Item = usize> {
        let open = self.streams.values().filter(|stream| self.is_open(stream.connection));
        open.map(|stream| stream.connection.0.index as usize)
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
            let trails = self.chance(self.profile.faults.trailing);
            let most = if trails { Duration::from_secs(2) } else { self.profile.latency };
            self.plan(most, Action::Flow { ticket });
        }
    }
}
