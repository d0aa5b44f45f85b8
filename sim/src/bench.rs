//! The engine on the bench: every event goes through here, and after every event the audit runs,
//! the model judges what was answered and announced, and the arena is compared with what it says.

use crate::calls::Call;
use crate::memory::Memory;
use crate::model::{Aborted, Delivered, Granted, Key, Model, News, ObjectNumber, Removed};
use crate::model::{Rules, Scope, Transfer};
use crate::reach::{Reach, State};
use crate::transcript::{Input, Transcript};
use kvtide_core::config::{Config, Limits, PoolKind};
use kvtide_core::effect::{Answer, Effect, Outbox, Refusal, Slot, SlotRange};
use kvtide_core::engine::{Alarm, Engine};
use kvtide_core::event::{BodyOutcome, Event, OperatorAsk};
use kvtide_core::fact::{
    Abort, Fact, InstanceEnd, KeyRange, LeaseEnd, LookupStop, NoRoom, Removal,
};
use kvtide_core::fact::{ReadFailure, RequestFault};
use kvtide_core::limits;
use kvtide_core::names::{Connection, Operator, Place, Reply, ScopeId, Ticket};
use kvtide_core::slots::SlotName;
use kvtide_core::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What the world has to act upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// `slots` belong to a store or retrieve answer.
    Answered { reply: Reply, answer: Answer, slots: Vec<Lent> },
    /// `Event::SendEnded` is owed.
    Sending { reply: Reply, ticket: Ticket, slots: Vec<Lent>, with_slots: bool },
    /// `Event::ReceiveEnded` is owed.
    Receiving { reply: Reply, ticket: Ticket, slots: Vec<Lent>, chunks: u32 },
}

/// A place and the object whose bytes belong there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    pub chunk: u32,
    pub place: Place,
    pub object: ObjectNumber,
}

struct Open {
    call: Call,
    /// The session that a wait is about.
    serial: Option<u64>,
    parked: bool,
}

pub struct Bench {
    engine: Engine,
    out: Outbox,
    pub model: Model,
    pub memory: Memory,
    pub reach: Reach,
    pub transcript: Transcript,
    scopes: BTreeMap<ScopeId, Rc<Scope>>,
    places: BTreeMap<ObjectNumber, Place>,
    open: BTreeMap<Reply, Open>,
    ended: BTreeSet<Connection>,
    replies: u32,
    align_bytes: u64,
    now: Instant,
    pub events: u64,
}

impl Bench {
    pub fn new(config: Config, lines_kept: usize) -> Bench {
        let rules = Rules {
            read_ttl: config.read_ttl,
            write_ttl: config.write_ttl,
            session_ttl: config.session_ttl,
            linger: Duration::from_secs(limits::LINGER_SECS),
            reap_after: config.reap_after,
            registration_grace: config.registration_grace,
            is_shared: config.pool == PoolKind::Shared,
            tables_may_fill: Limits { work_units: 0, ..config.limits }
                != Limits { work_units: 0, ..Limits::default() },
        };
        Bench {
            memory: Memory::new(config.l1_bytes),
            align_bytes: config.l1_align_bytes,
            engine: Engine::new(config),
            out: Outbox::default(),
            model: Model::new(rules),
            reach: Reach::default(),
            transcript: Transcript::new(lines_kept),
            scopes: BTreeMap::new(),
            places: BTreeMap::new(),
            open: BTreeMap::new(),
            ended: BTreeSet::new(),
            replies: 0,
            now: Instant::ZERO,
            events: 0,
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A name for a request that is about to be asked.
    pub fn new_reply(&mut self, connection: Connection) -> Reply {
        self.replies += 1;
        Reply { connection, request: SlotName { index: self.replies, generation: 0 } }
    }

    /// Requests that still wait for an answer, but for those of connections that have ended.
    pub fn unanswered(&self) -> impl Iterator<Item = (&Reply, &Call)> {
        self.open.iter().map(|(reply, open)| (reply, &open.call))
    }

    /// One event. An error names the rule that was broken.
    pub fn feed(&mut self, now: Instant, input: &Input) -> Result<Vec<Seen>, String> {
        self.events += 1;
        self.now = now;
        self.transcript.event(now, input);
        if let Input::Asked { reply, call } = input {
            let serial = match call {
                Call::Wait { request, .. } | Call::Query { request } => self.model.serial(request),
                _ => None,
            };
            let open = Open { call: call.clone(), serial, parked: false };
            self.open.insert(*reply, open);
        }
        let is_close = matches!(input, Input::ConnectionEnded { .. });
        let condemned = if is_close { self.engine.status().condemned_objects } else { 0 };
        self.out.clear();
        self.handle(now, input);
        if is_close && self.engine.status().condemned_objects < condemned {
            self.reach.met(State::CondemnedFreedAtClose);
        }
        let out = std::mem::take(&mut self.out);
        self.transcript.outcome(&out);
        let seen = self.judge(now, input, &out);
        self.out = out;
        if let Input::ConnectionEnded { connection } = input {
            self.open.retain(|reply, _| reply.connection != *connection);
            self.ended.insert(*connection);
        }
        self.engine
            .audit()
            .map_err(|violation| format!("audit, {}: {}", violation.invariant, violation.found))?;
        seen
    }

    fn handle(&mut self, now: Instant, input: &Input) {
        let event = match input {
            Input::Tick => Event::Tick,
            Input::Asked { reply, call } => Event::Asked { reply: *reply, ask: call.ask() },
            Input::ConnectionEnded { connection } => {
                Event::ConnectionEnded { connection: *connection }
            }
            Input::SendEnded { ticket } => Event::SendEnded { ticket: *ticket },
            Input::ReceiveEnded { ticket, complete, outcome } => {
                Event::ReceiveEnded { ticket: *ticket, complete: *complete, outcome: *outcome }
            }
            Input::ArenaGrown { bytes } => Event::ArenaGrown { bytes: *bytes },
            Input::OperatorClear { operator, force } => Event::OperatorAsked {
                operator: Operator(*operator),
                ask: OperatorAsk::Clear { force: *force },
            },
        };
        self.engine.handle(now, event, &mut self.out);
    }

    fn judge(&mut self, now: Instant, input: &Input, out: &Outbox) -> Result<Vec<Seen>, String> {
        let is_working = matches!(self.engine.deadline(), Some((_, Alarm::Work)));
        self.learn_scopes(input, out);
        let news = self.news(out)?;
        self.count(input, out);
        self.model.at(now, is_working);
        self.model.hear(&news)?;
        let mut seen = Vec::new();
        match input {
            Input::Tick => {
                // A wait may time out and its lookup end within one tick.
                self.answers(out, &news, &mut seen, |answer| *answer == Answer::None)?;
                self.model.settle(self.settled(now))?;
            }
            Input::Asked { call: Call::Lookup { range }, .. } => self.model.lookup(range),
            Input::Asked { call: Call::EndSession { request, .. }, .. } => {
                self.model.end_session(request);
            }
            Input::Asked { call: Call::Clear { force }, .. }
            | Input::OperatorClear { force, .. } => self.model.clear(*force),
            Input::Asked { .. } | Input::ArenaGrown { .. } => {}
            Input::ConnectionEnded { connection } => self.model.connection_ended(*connection),
            Input::SendEnded { ticket } => {
                let known = self.model.send_ended(*ticket);
                self.stale(known, out)?;
            }
            Input::ReceiveEnded { ticket, complete, outcome } => {
                let got = self.answer_of_body(out);
                let known = self.model.receive_ended(*ticket, (*complete, *outcome), &news, got)?;
                self.stale(known, out)?;
            }
        }
        self.answers(out, &news, &mut seen, |_| true)?;
        self.park(input, &seen);
        if !matches!(input, Input::Tick) {
            self.model.settle(None)?;
        }
        Ok(seen)
    }

    /// The instant up to which every deadline has surely been acted upon, after a tick.
    fn settled(&self, now: Instant) -> Option<Instant> {
        let is_done = self.engine.deadline().is_none_or(|(at, _)| at > now);
        is_done.then(|| Instant(now.0.saturating_sub(1 << 20)))
    }

    fn stale(&mut self, known: bool, out: &Outbox) -> Result<(), String> {
        let told = out.facts.iter().any(|fact| matches!(fact, Fact::StaleEnding));
        if known == told {
            return Err("I-6: an ending was taken for another".into());
        }
        Ok(())
    }

    /// What `Receive`'s end was answered with.
    fn answer_of_body(&self, out: &Outbox) -> Option<bool> {
        out.effects.iter().find_map(|effect| match effect {
            Effect::Answer { answer: Answer::Bool(flag), .. } => Some(*flag),
            _ => None,
        })
    }

    /// A wait without an answer is parked.
    fn park(&mut self, input: &Input, seen: &[Seen]) {
        let Input::Asked { reply, call: Call::Wait { .. } } = input else { return };
        if !seen.iter().any(|seen| is_answer_to(seen, *reply))
            && let Some(open) = self.open.get_mut(reply)
        {
            open.parked = true;
        }
    }

    /// Every answer goes to an open request, once (P2), and is what the model expects.
    fn answers(
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
                        continue;
                    };
                    self.count_answer(&open, answer, news, out);
                    let lent = self.judge_answer(*reply, &open, answer, news, out)?;
                    seen.push(Seen::Answered { reply: *reply, answer: *answer, slots: lent });
                }
                Effect::Answer { .. } | Effect::OperatorAnswer { .. } => {}
                Effect::Send { reply, ticket, slots, with_slots, .. } => {
                    let Some(open) = self.open.remove(reply) else {
                        return Err("P2: a request was answered twice".into());
                    };
                    let lent = self.delivered(*slots, out)?;
                    let got = Delivered::Hit {
                        objects: lent.iter().map(|lent| lent.object).collect(),
                        with_slots: *with_slots,
                        ticket: Some(*ticket),
                    };
                    let Call::PrepareRetrieve { instance, range } = &open.call else {
                        return Err("bytes were sent for something else than a retrieve".into());
                    };
                    let transfer = transfer(*reply, *instance, range);
                    if *with_slots {
                        self.reach.met(State::SendToUnknown);
                    }
                    self.model.prepare_retrieve(transfer, &got)?;
                    let (reply, ticket, with_slots) = (*reply, *ticket, *with_slots);
                    seen.push(Seen::Sending { reply, ticket, slots: lent, with_slots });
                }
                Effect::Receive { reply, ticket, slots, .. } => {
                    seen.push(self.receiving(*reply, *ticket, *slots, news, out)?);
                }
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
            (Call::Register { instance, model, world_size, layout }, _) => {
                let accepted = *answer == Answer::Registered;
                self.model.register(*instance, (model, *world_size, *layout), accepted)?;
            }
            (Call::Unregister { instance }, Answer::None) => self.model.unregister(*instance)?,
            (Call::Ping { instance }, Answer::Bool(flag)) => self.model.ping(*instance, *flag)?,
            (Call::Lookup { .. } | Call::EndSession { .. } | Call::Clear { .. }, Answer::None) => {}
            (Call::Query { request }, Answer::None) => {
                self.model.result(request, open.serial, None)?;
            }
            (Call::Query { request }, Answer::Count(count)) => {
                self.model.result(request, open.serial, Some(*count))?;
            }
            (Call::Wait { request, .. }, Answer::None) => {
                if open.parked {
                    self.reach.met(State::WaitTimedOut);
                }
                self.model.result(request, open.serial, None)?;
            }
            (Call::Wait { request, .. }, Answer::Count(count)) => {
                if open.parked && *count > 0 {
                    self.reach.met(State::WaitParked);
                }
                self.model.result(request, open.serial, Some(*count))?;
            }
            (Call::Free { range }, Answer::None) => self.model.free(range, news.no_such_hold)?,
            (Call::PrepareStore { instance, range }, Answer::NoContext) => {
                let transfer = transfer(reply, *instance, range);
                self.model.prepare_store(transfer, news, &Granted::NoContext)?;
            }
            (Call::PrepareStore { instance, range }, Answer::StoreSlots { slots, layout }) => {
                let slots = out.slots(*slots);
                let granted = Granted::Slots(slots.iter().map(|slot| slot.chunk).collect());
                let transfer = transfer(reply, *instance, range);
                let objects = self.model.prepare_store(transfer, news, &granted)?;
                return self.lend(slots, &objects, layout.bytes());
            }
            (Call::CommitStore { instance, range, inline_bytes: 0 }, Answer::Bool(flag)) => {
                let transfer = transfer(reply, *instance, range);
                self.model.commit_store(transfer, news, *flag)?;
            }
            // The end of a body is judged with its event; a refusal comes at once.
            (Call::CommitStore { instance, range, .. }, Answer::Bool(flag)) => {
                if !open.parked {
                    let transfer = transfer(reply, *instance, range);
                    self.model.receive(transfer, news, None)?;
                    if *flag {
                        return Err("a body that was not read was accepted".into());
                    }
                }
            }
            (Call::PrepareRetrieve { instance, range }, Answer::RetrieveMiss) => {
                let transfer = transfer(reply, *instance, range);
                self.model.prepare_retrieve(transfer, &Delivered::Miss)?;
            }
            (Call::PrepareRetrieve { instance, range }, Answer::RetrieveSlots { slots, .. }) => {
                let lent = self.delivered(*slots, out)?;
                let objects = lent.iter().map(|lent| lent.object).collect();
                let got = Delivered::Hit { objects, with_slots: true, ticket: None };
                self.model.prepare_retrieve(transfer(reply, *instance, range), &got)?;
                return Ok(lent);
            }
            (Call::CommitRetrieve { instance, range }, Answer::Bool(flag)) => {
                let transfer = transfer(reply, *instance, range);
                self.model.commit_retrieve(transfer, *flag)?;
            }
            (call, answer) => return Err(format!("P7: {call:?} was answered {answer:?}")),
        }
        Ok(Vec::new())
    }

    fn receiving(
        &mut self,
        reply: Reply,
        ticket: Ticket,
        range: SlotRange,
        news: &News,
        out: &Outbox,
    ) -> Result<Seen, String> {
        let open = self.open.get_mut(&reply).ok_or("P2: a request was answered twice")?;
        open.parked = true;
        let Call::CommitStore { instance, range: keys, .. } = open.call.clone() else {
            return Err("a body was read for something else than a store".into());
        };
        let all = out.slots(range);
        let slots: Vec<Slot> = all.iter().filter(|slot| slot.place.is_some()).copied().collect();
        let places: Vec<u32> = slots.iter().map(|slot| slot.chunk).collect();
        let transfer = transfer(reply, instance, &keys);
        let objects = self.model.receive(transfer, news, Some((ticket, &places)))?;
        if news.reserved.is_empty() && !places.is_empty() {
            self.reach.met(State::PickleIntoReservation);
        }
        let numbers: Vec<ObjectNumber> = objects.iter().map(|(_, number)| *number).collect();
        let lent = self.lend(&slots, &numbers, None)?;
        Ok(Seen::Receiving { reply, ticket, slots: lent, chunks: all.len() as u32 })
    }

    /// Places that were given to a writer.
    fn lend(
        &mut self,
        slots: &[Slot],
        objects: &[ObjectNumber],
        bytes: Option<u64>,
    ) -> Result<Vec<Lent>, String> {
        let mut lent = Vec::new();
        for (slot, object) in slots.iter().zip(objects) {
            let place = slot.place.ok_or("I-5: a slot without a place")?;
            if bytes.is_some_and(|bytes| bytes != place.bytes)
                || !place.offset.is_multiple_of(self.align_bytes)
            {
                return Err(format!("I-5: {place:?} has not the size or alignment asked for"));
            }
            match self.places.get(object) {
                Some(known) if *known == place => {}
                Some(_) => return Err("I-1: an object has moved".into()),
                None => {
                    let model = &self.model;
                    self.memory.lend(place, *object, |other| model.is_in_use(other))?;
                    self.places.insert(*object, place);
                }
            }
            lent.push(Lent { chunk: slot.chunk, place, object: *object });
        }
        Ok(lent)
    }

    /// Places that were given to a reader: the arena knows whose they are.
    fn delivered(&mut self, slots: SlotRange, out: &Outbox) -> Result<Vec<Lent>, String> {
        let mut lent = Vec::new();
        for slot in out.slots(slots) {
            let place = slot.place.ok_or("a reader was given no place")?;
            let object = self.memory.owner(place)?.ok_or("a place that nobody ever had")?;
            self.memory.check(place, object)?;
            lent.push(Lent { chunk: slot.chunk, place, object });
        }
        Ok(lent)
    }

    /// Every committed object's bytes are where they should be.
    pub fn check_memory(&self) -> Result<(), String> {
        for (_, number) in self.model.residents() {
            self.memory.check(self.places[&number], number)?;
        }
        Ok(())
    }

    /// The scope of a transfer is learnt when something is reserved in it first.
    fn learn_scopes(&mut self, input: &Input, out: &Outbox) {
        let Input::Asked { call, .. } = input else { return };
        let (Call::PrepareStore { instance, range } | Call::CommitStore { instance, range, .. }) =
            call
        else {
            return;
        };
        let Some((_, known)) = self.model.instances().find(|(id, _)| *id == instance) else {
            return;
        };
        let layout = known.layout;
        for fact in &out.facts {
            let (Fact::WriteReserved { keys } | Fact::WriteRefused { keys, .. }) = fact else {
                continue;
            };
            for key in keys.of(&out.keys) {
                let scope = Scope {
                    model: range.model.clone(),
                    salt: range.salt.clone(),
                    world_size: range.world_size,
                    rank: range.worker.unwrap_or_default(),
                    layout,
                };
                self.scopes.entry(key.scope).or_insert_with(|| Rc::new(scope));
            }
        }
    }

    fn news(&self, out: &Outbox) -> Result<News, String> {
        let mut news = News::default();
        for fact in &out.facts {
            match fact {
                Fact::WriteReserved { keys } => news.reserved.extend(self.keys(*keys, out)?),
                Fact::WriteFinished { keys } => news.committed.extend(self.keys(*keys, out)?),
                Fact::WriteAborted { keys, why } => {
                    let why = match why {
                        Abort::WriteTtl => Aborted::WriteTtl,
                        Abort::ConnectionEnded => Aborted::StreamEnded,
                        Abort::Unregistered | Abort::Reaped | Abort::Replaced => {
                            Aborted::InstanceEnded
                        }
                        Abort::ForcedClear => Aborted::Forced,
                        Abort::Body => Aborted::Body,
                    };
                    let keys = self.keys(*keys, out)?;
                    news.aborted.extend(keys.into_iter().map(|key| (key, why)));
                }
                Fact::Evicted { keys, why } => {
                    let why = match why {
                        Removal::Watermark | Removal::Pressure | Removal::Table => Removed::ForRoom,
                        Removal::Clear => Removed::Cleared,
                        Removal::ForcedClear => Removed::Forced,
                    };
                    let keys = self.keys(*keys, out)?;
                    news.removed.extend(keys.into_iter().map(|key| (key, why)));
                }
                Fact::InstanceEnded { instance, why } => {
                    news.instances_ended.push((*instance, *why == InstanceEnd::Reaped));
                }
                Fact::WriteRefused { keys, .. } => news.refused.extend(self.keys(*keys, out)?),
                Fact::RequestFaulted { fault: RequestFault::NoSuchHold, .. } => {
                    news.no_such_hold = true;
                }
                _ => {}
            }
        }
        Ok(news)
    }

    fn keys(&self, range: KeyRange, out: &Outbox) -> Result<Vec<Key>, String> {
        let named = range.of(&out.keys).iter().map(|key| {
            let scope = self.scopes.get(&key.scope).ok_or("I-49: news of an unknown scope")?;
            Ok(Key { scope: scope.clone(), hash: key.hash })
        });
        named.collect()
    }

    /// Counts the states that are seen in facts.
    fn count(&mut self, input: &Input, out: &Outbox) {
        for fact in &out.facts {
            let met = match fact {
                Fact::Evicted { why: Removal::Pressure, .. } => State::EvictedOnDemand,
                Fact::Evicted { why: Removal::Watermark, .. } => State::EvictionPass,
                Fact::Evicted { why: Removal::Table, .. } => State::TableFullEvicts,
                Fact::WriteAborted { why: Abort::WriteTtl, .. } => State::WriteTtlPassed,
                Fact::ReadFinished { why: LeaseEnd::Expired, .. } => State::LeaseExpired,
                Fact::ReadFinished { why: LeaseEnd::Replaced, .. } => State::LookupReplaced,
                Fact::LookupTaken { stop: LookupStop::RankMissing, .. } => State::RankMissing,
                Fact::LookupTaken { stop: LookupStop::InFlight, .. } => State::InFlightStop,
                Fact::InstanceTold { .. } => State::ToldOnce,
                Fact::InstanceEnded { why: InstanceEnd::Reaped, .. } => State::InstanceReaped,
                Fact::InstanceEnded { why: InstanceEnd::Replaced, .. } => State::InstanceReplaced,
                Fact::StaleEnding => State::StaleEnding,
                Fact::ReadFailed { why: ReadFailure::NotFound, .. } => State::ForcedClearOfLeased,
                Fact::RequestFaulted { fault: RequestFault::TableFull, .. }
                | Fact::RegistrationRefused { reason: Refusal::InstancesFull, .. }
                | Fact::LookupTaken { stop: LookupStop::NoRoom, .. }
                | Fact::WriteRefused { why: NoRoom::ObjectTable, .. } => State::TableFull,
                _ => continue,
            };
            self.reach.met(met);
        }
        match input {
            Input::ReceiveEnded { outcome: BodyOutcome::Short, .. } => {
                self.reach.met(State::PickleShort);
            }
            Input::ReceiveEnded { outcome: BodyOutcome::Cut, .. } => {
                self.reach.met(State::BodyCut);
            }
            _ => {}
        }
    }

    /// Counts the states that are seen in an answer, before the model takes it in.
    fn count_answer(&mut self, open: &Open, answer: &Answer, news: &News, out: &Outbox) {
        let met = match (&open.call, answer) {
            (Call::Query { .. }, Answer::None) => State::LookupOverTurns,
            (Call::Query { request }, _) if self.model.has_forgotten(request) => {
                State::SessionForgotten
            }
            (Call::CommitStore { inline_bytes: 0, .. }, Answer::Bool(false))
                if out.facts.iter().any(|fact| matches!(fact, Fact::StoreFinished { .. })) =>
            {
                State::LateCommitRefused
            }
            (Call::PrepareRetrieve { range, .. }, Answer::RetrieveSlots { .. })
                if self.model.has_ended(&range.request) =>
            {
                State::LingerUsed
            }
            (Call::PrepareStore { .. }, Answer::StoreSlots { slots, .. })
                if !news.refused.is_empty() && slots.start < slots.end =>
            {
                State::NoRoomKeepsPrefix
            }
            (Call::Free { range }, _)
                if !range.is_empty()
                    && !news.no_such_hold
                    && !out.facts.iter().any(|fact| matches!(fact, Fact::ReadFinished { .. })) =>
            {
                State::DoubleFree
            }
            (Call::Clear { force: false }, _) if self.model.holds_readable() => {
                State::ClearSparesHeld
            }
            _ => return,
        };
        self.reach.met(met);
    }
}

fn transfer(
    reply: Reply,
    instance: kvtide_core::names::InstanceId,
    range: &crate::calls::Range,
) -> Transfer<'_> {
    Transfer { connection: reply.connection, reply, instance, range }
}

fn is_answer_to(seen: &Seen, to: Reply) -> bool {
    matches!(seen, Seen::Answered { reply, .. } if *reply == to)
}
