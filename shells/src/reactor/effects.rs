//! Carries out what the engine ordered. Every variant is matched by name: a new effect does not
//! build until it is dealt with here. Invariant: an effect that cannot be carried out, because its
//! connection is gone, is ended at once.

use super::body::Body;
use super::connection::{Phase, Plan};
use super::outgoing::Payload;
use super::requests::Envelope;
use super::shared::{Desk, Shared};
use super::{Reactor, list};
use kvtide_core::effect::{Answer, Effect, Outbox};
use kvtide_core::event::{Event, SendOutcome};
use kvtide_core::names::{Reply, Ticket};
use kvtide_core::slots::SlotName;
use kvtide_core::wire::answer::{Context, append_answer};

impl<E: Desk> Reactor<E> {
    /// Carries out all effects, those that endings bring about included.
    pub(super) fn carry_out(&mut self) {
        loop {
            // Swapped out, as endings told on the way may append effects with slots and keys of
            // their own.
            let out = &mut self.shared.door.out;
            std::mem::swap(&mut out.effects, &mut self.orders.effects);
            std::mem::swap(&mut out.slots, &mut self.orders.slots);
            std::mem::swap(&mut out.l2_keys, &mut self.orders.l2_keys);
            std::mem::swap(&mut out.blocks, &mut self.orders.blocks);
            if self.orders.effects.is_empty() {
                return self.orders.clear();
            }
            let orders = std::mem::take(&mut self.orders);
            for effect in &orders.effects {
                self.carry_out_one(*effect, &orders);
            }
            self.orders = orders;
            self.orders.clear();
        }
    }

    fn carry_out_one(&mut self, effect: Effect, orders: &Outbox) {
        match effect {
            Effect::Answer { reply, answer } => self.answer(reply, answer, orders),
            Effect::Send { reply, ticket, slots, layout, with_slots } => {
                let payload = Payload { slots: orders.slots(slots), layout, with_slots };
                if !self.send(reply, ticket, &payload) {
                    let outcome = SendOutcome::Cut;
                    self.shared.door.tell(Event::SendEnded { ticket, outcome });
                }
            }
            Effect::Receive { reply, ticket, slots, layout } => {
                let body = Body::new(ticket, orders.slots(slots), layout);
                if let Some(body) = self.receive(reply, body) {
                    self.shared.door.tell(body.cut());
                }
            }
            Effect::Attach { attachment, reply, pages } => {
                let memory = self.shared.memories.remove(&reply);
                let door = &mut self.shared.door;
                self.pager.attach(attachment, memory, pages, &mut |event| door.tell(event));
            }
            Effect::Detach { attachment } => self.pager.detach(attachment),
            Effect::Copy { ticket, attachment, copy } => {
                let Shared { arena, door, events, .. } = &mut self.shared;
                let event = events.remove(&copy.reply).unwrap_or_default();
                let tell = &mut |event: Event<'_>| door.tell(event);
                self.pager.copy((ticket, attachment, copy), &event, orders, arena, tell);
            }
            Effect::OperatorAnswer { operator, answer } => {
                let index = operator.0 as u32;
                let name = SlotName { index, generation: (operator.0 >> 32) as u32 };
                if let Some(tell) = self.operators.remove(name) {
                    tell(answer);
                }
            }
            Effect::Probe { .. }
            | Effect::StoreObject { .. }
            | Effect::LoadObject { .. }
            | Effect::DeleteObject { .. }
            | Effect::Digest { .. }
            | Effect::Scrub { .. }
            | Effect::Cancel { .. }
            | Effect::Note { .. }
            | Effect::AdapterClosed { .. } => {
                let (now, shared) = (self.shared.now, &mut self.shared);
                self.tiers.carry_out(now, effect, orders, &shared.arena, &mut shared.door);
            }
        }
    }

    fn answer(&mut self, reply: Reply, answer: Answer, orders: &Outbox) {
        let Some(envelope) = self.close_request(reply) else { return };
        let Some(connection) = self.connections.find_mut(reply.connection.0) else { return };
        if connection.opens_output(&mut self.shared) {
            let context = self.shared.context();
            connection.outgoing.encode(|bytes| {
                let (uid, operation) = (envelope.uid(), envelope.operation());
                append_answer(answer, uid, operation, &context, orders, bytes);
            });
        }
        list(&mut self.ready, connection, self.shared.terms());
    }

    /// Queues the answer of a `prepare_retrieve` with its payload. False when nobody reads it.
    fn send(&mut self, reply: Reply, ticket: Ticket, payload: &Payload<'_>) -> bool {
        let Some(envelope) = self.close_request(reply) else { return false };
        let Some(connection) = self.connections.find_mut(reply.connection.0) else { return false };
        list(&mut self.ready, connection, self.shared.terms());
        if !connection.opens_output(&mut self.shared) {
            return false;
        }
        if connection.outgoing.retrieved(&envelope, ticket, payload) {
            return true;
        }
        // More than an answer can hold, which the client itself could not have stored at once.
        connection.outgoing.encode(|bytes| {
            let (uid, operation) = (envelope.uid(), envelope.operation());
            let (miss, context) = (Answer::RetrieveMiss, Context::default());
            append_answer(miss, uid, operation, &context, &Outbox::default(), bytes);
        });
        false
    }

    /// Opens a body where its connection still waits to hear of it; else hands it back.
    fn receive(&mut self, reply: Reply, body: Body) -> Option<Body> {
        let Some(connection) = self.connections.find_mut(reply.connection.0) else {
            return Some(body);
        };
        if !matches!(connection.phase, Phase::Verdict(waits) if waits == reply) {
            return Some(body);
        }
        connection.phase = Phase::Reading;
        connection.plan = Plan::Body;
        connection.body = Some(body);
        list(&mut self.ready, connection, self.shared.terms());
        None
    }

    /// Takes a request off the table for its answer. None when its connection is gone.
    fn close_request(&mut self, reply: Reply) -> Option<Envelope> {
        let connection = self.connections.find_mut(reply.connection.0);
        let closed = connection.and_then(|connection| {
            // Answered without having wanted the body: it is read and thrown away. So it is for
            // who takes no answers any more.
            if matches!(connection.phase, Phase::Verdict(waits) if waits == reply) {
                connection.phase = Phase::Reading;
                list(&mut self.ready, connection, self.shared.terms());
            }
            self.shared.requests.close(&mut connection.own, reply)
        });
        let counters = &mut self.shared.counters;
        match closed {
            Some(_) => counters.answers += 1,
            None => counters.answers_dropped += 1,
        }
        closed
    }
}
