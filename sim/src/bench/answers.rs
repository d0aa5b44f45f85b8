//! Every answer, put to the model.

use super::{Bench, Lent, Open, Seen, is_answer_to, transfer};
use crate::calls::Call;
use crate::model::{Delivered, Granted, News, ObjectNumber, Rejected};
use crate::reach::State;
use kvtide_core::effect::{Answer, Effect, Outbox, Refusal, Slot, SlotRange};
use kvtide_core::fact::{Fact, LookupStop};
use kvtide_core::names::{Layout, Place, Reply, Ticket};

impl Bench {
    /// Every answer goes to an open request, once (P2), and is what the model expects.
    pub(super) fn answers(
        &mut self,
        out: &Outbox,
        news: &News,
        seen: &mut Vec<Seen>,
        wanted: impl Fn(&Answer) -> bool,
    ) -> Result<(), String> {
        for effect in &out.effects {
            match effect {
                Effect::Answer { reply, answer } if wanted(answer) => {
                    let Some(open) = self.open.remove(reply) else {
                        // A tick's answers are walked twice; the end of a body whose connection
                        // has gone is answered to nobody.
                        let may = seen.iter().any(|seen| is_answer_to(seen, *reply))
                            || self.ended.contains(&reply.connection);
                        if !may {
                            return Err("P2: a request was answered twice".into());
                        }
                        // Counts are answers to polls and waits only.
                        if matches!(answer, Answer::Count(_))
                            && self.ended.contains(&reply.connection)
                        {
                            return Err("I-14: a result was delivered to nobody".into());
                        }
                        continue;
                    };
                    self.count_answer(&open, answer, news, out);
                    let lent = self.judge_answer(*reply, &open, answer, news, out)?;
                    seen.push(Seen::Answered { reply: *reply, answer: *answer, slots: lent });
                }
                Effect::Answer { .. } | Effect::OperatorAnswer { .. } => {}
                Effect::Send { reply, ticket, slots, layout, with_slots } => {
                    let what = (*slots, *layout, *with_slots);
                    seen.push(self.sending(*reply, *ticket, what, news, out)?);
                }
                Effect::Receive { reply, ticket, slots, layout } => {
                    let what = (*slots, *layout);
                    seen.push(self.receiving(*reply, *ticket, what, news, out)?);
                }
                Effect::Copy { ticket, attachment, copy } => {
                    seen.push(self.copying(*ticket, *attachment, copy, news, out)?);
                }
                // Orders for lower tiers are looked at when all is answered.
                _ => {}
            }
        }
        Ok(())
    }

    fn judge_answer(
        &mut self,
        reply: Reply,
        open: &Open,
        answer: &Answer,
        news: &News,
        out: &Outbox,
    ) -> Result<Vec<Lent>, String> {
        match (&open.call, answer) {
            (Call::Register { instance, model, world_size, layout }, answer) => {
                let rejected = match answer {
                    Answer::Registered => None,
                    Answer::Refused(Refusal::WorldSize) => Some(Rejected::WorldSize),
                    Answer::Refused(Refusal::LayoutTooLarge) => Some(Rejected::Layout),
                    Answer::Refused(Refusal::InstancesFull) => Some(Rejected::Full),
                    Answer::Refused(_) => Some(Rejected::Other),
                    other => return Err(format!("P7: a registration was answered {other:?}")),
                };
                let what = (model, *world_size, *layout);
                self.model.register(*instance, what, None, rejected)?;
            }
            (Call::RegisterPaged { .. }, _) => self.registered_paged(open, answer)?,
            // The end of a copy is judged with its event; a refusal comes at once.
            (Call::Store { .. } | Call::Retrieve { .. }, Answer::EventFlag(flag)) => {
                if !open.parked {
                    self.answered_at_once(reply, &open.call, *flag, news)?;
                }
            }
            (Call::Unregister { instance }, Answer::None) => self.model.unregister(*instance)?,
            (Call::Ping { instance }, Answer::Bool(flag)) => self.model.ping(*instance, *flag)?,
            (Call::Lookup { .. } | Call::EndSession { .. } | Call::Clear { .. }, Answer::None) => {}
            (Call::Query { request }, Answer::None) => {
                self.model.result(request, open.serial, None, false)?;
            }
            (Call::Query { request }, Answer::Count(count)) => {
                self.model.result(request, open.serial, Some(*count), is_miss(out))?;
            }
            (Call::Wait { request, wait }, Answer::None) => {
                if open.parked {
                    if self.now < open.asked + *wait {
                        return Err(format!("I-44: a wait for {request} ran out early"));
                    }
                    self.reach.met(State::WaitTimedOut);
                }
                self.model.result(request, open.serial, None, false)?;
            }
            (Call::Wait { request, .. }, Answer::Count(count)) => {
                if open.parked && *count > 0 {
                    self.reach.met(State::WaitParked);
                }
                self.model.result(request, open.serial, Some(*count), is_miss(out))?;
            }
            (Call::Free { range }, Answer::None) => self.model.free(range, news.no_such_hold)?,
            (call, answer) => {
                return self.judge_transfer(reply, (call, answer), open.parked, news, out);
            }
        }
        Ok(Vec::new())
    }

    fn judge_transfer(
        &mut self,
        reply: Reply,
        asked: (&Call, &Answer),
        is_parked: bool,
        news: &News,
        out: &Outbox,
    ) -> Result<Vec<Lent>, String> {
        match asked {
            (Call::PrepareStore { instance, range }, Answer::NoContext) => {
                let transfer = transfer(reply, *instance, range);
                self.model.prepare_store(transfer, news, &Granted::NoContext)?;
            }
            (Call::PrepareStore { instance, range }, Answer::StoreSlots { slots, layout }) => {
                let slots = out.slots(*slots);
                let granted = Granted::Slots(places_of(slots)?);
                let transfer = transfer(reply, *instance, range);
                let objects = self.model.prepare_store(transfer, news, &granted)?;
                return self.lend(slots, &objects, *layout);
            }
            (Call::CommitStore { instance, range, inline_bytes: 0 }, Answer::Bool(flag)) => {
                let transfer = transfer(reply, *instance, range);
                self.model.commit_store(transfer, news, *flag)?;
            }
            // The end of a body is judged with its event; a refusal comes at once.
            (Call::CommitStore { instance, range, .. }, Answer::Bool(flag)) => {
                if !is_parked {
                    let transfer = transfer(reply, *instance, range);
                    self.model.receive(transfer, news, None)?;
                    if *flag {
                        return Err("a body that was not read was accepted".into());
                    }
                }
            }
            (Call::PrepareRetrieve { instance, range }, Answer::RetrieveMiss) => {
                let transfer = transfer(reply, *instance, range);
                self.model.prepare_retrieve(transfer, news, &Delivered::Miss)?;
            }
            (
                Call::PrepareRetrieve { instance, range },
                Answer::RetrieveSlots { slots, layout },
            ) => {
                let lent = self.delivered(*slots, *layout, out)?;
                let objects = lent.iter().map(|lent| lent.object).collect();
                let got = Delivered::Hit { objects, with_slots: true, ticket: None };
                self.model.prepare_retrieve(transfer(reply, *instance, range), news, &got)?;
                return Ok(lent);
            }
            (Call::CommitRetrieve { instance, range }, Answer::Bool(flag)) => {
                let transfer = transfer(reply, *instance, range);
                self.model.commit_retrieve(transfer, news, *flag)?;
            }
            (call, answer) => return Err(format!("P7: {call:?} was answered {answer:?}")),
        }
        Ok(Vec::new())
    }

    fn sending(
        &mut self,
        reply: Reply,
        ticket: Ticket,
        (slots, layout, with_slots): (SlotRange, Layout, bool),
        news: &News,
        out: &Outbox,
    ) -> Result<Seen, String> {
        let open = self.open.remove(&reply).ok_or("P2: a request was answered twice")?;
        let Call::PrepareRetrieve { instance, range } = &open.call else {
            return Err("bytes were sent for something else than a retrieve".into());
        };
        let slots = self.delivered(slots, layout, out)?;
        let objects = slots.iter().map(|lent| lent.object).collect();
        let got = Delivered::Hit { objects, with_slots, ticket: Some(ticket) };
        if with_slots {
            self.reach.met(State::SendToUnknown);
        }
        self.model.prepare_retrieve(transfer(reply, *instance, range), news, &got)?;
        Ok(Seen::Sending { reply, ticket, slots, with_slots })
    }

    fn receiving(
        &mut self,
        reply: Reply,
        ticket: Ticket,
        (range, layout): (SlotRange, Layout),
        news: &News,
        out: &Outbox,
    ) -> Result<Seen, String> {
        let open = self.open.get_mut(&reply).ok_or("P2: a request was answered twice")?;
        open.parked = true;
        let Call::CommitStore { instance, range: keys, .. } = open.call.clone() else {
            return Err("a body was read for something else than a store".into());
        };
        let all = out.slots(range);
        if !all.iter().map(|slot| slot.chunk).eq(0..keys.len()) {
            return Err("P1: a body has not one slot for each chunk, in order".into());
        }
        let slots: Vec<Slot> = all.iter().filter(|slot| slot.place.is_some()).copied().collect();
        let places = places_of(&slots)?;
        let transfer = transfer(reply, instance, &keys);
        let objects = self.model.receive(transfer, news, Some((ticket, &places)))?;
        if news.reserved.is_empty() && !places.is_empty() {
            self.reach.met(State::PickleIntoReservation);
        }
        let numbers: Vec<ObjectNumber> = objects.iter().map(|(_, number)| *number).collect();
        let lent = self.lend(&slots, &numbers, layout)?;
        Ok(Seen::Receiving { reply, ticket, slots: lent, chunks: all.len() as u32 })
    }
}

/// A lookup was told to end as there is nothing more to be had.
fn is_miss(out: &Outbox) -> bool {
    let is_miss = |fact: &Fact| match fact {
        Fact::LookupTaken { stop, .. } => {
            matches!(stop, LookupStop::Absent | LookupStop::RankMissing | LookupStop::InFlight)
        }
        _ => false,
    };
    out.facts.iter().any(is_miss)
}

/// Positions of granted slots, and where their bytes go.
fn places_of(slots: &[Slot]) -> Result<Vec<(u32, Place)>, String> {
    let place = |slot: &Slot| Some((slot.chunk, slot.place?));
    let places: Option<Vec<(u32, Place)>> = slots.iter().map(place).collect();
    places.ok_or_else(|| "I-5: a slot without a place".into())
}
