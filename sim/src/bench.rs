//! The engine on the bench: every event goes through here, and after every event the audit runs,
//! the model judges what was answered and announced, and the arena is compared with what it says.

mod answers;
mod counts;
mod judge;
mod news;
mod paged;
mod promises;
mod restart;
mod rules;
mod tiercounts;
mod tiers;

use crate::calls::{Call, Paged, Range};
use crate::devices::Devices;
use crate::model::{Due, Key, Model, News, ObjectNumber, Removed, Scope, Transfer};
use crate::model::{Turn, Use};
use crate::orders::Ending;
use crate::orders::{Found, Order};
use crate::reach::{Reach, State};
use crate::transcript::{Input, Transcript};
use crate::{ledger::Ledger, memory::Memory};
use kvtide_core::config::Config;
use kvtide_core::effect::{Answer, Effect, Outbox, Slot, SlotRange};
use kvtide_core::engine::audit::Scratch;
use kvtide_core::engine::{Alarm, Engine};
use kvtide_core::event::{AttachFault, Event, OperatorAsk, Scanned};
use kvtide_core::fact::{Fact, FactKey};
use kvtide_core::limits;
use kvtide_core::names::{
    AdapterId, Attachment, ChunkHash, Connection, Layout, Operator, Place, Reply,
};
use kvtide_core::names::{ScopeId, Ticket};
use kvtide_core::slots::SlotName;
use kvtide_core::time::Instant;
pub use paged::Copying;
use paged::Owed;
use rules::{over, rules};
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
    /// Memory is to be attached; `Event::AttachEnded` is owed.
    Attaching { attachment: Attachment, reply: Reply, paged: Paged },
    /// Memory is let go as soon as no copy uses it.
    Detached { attachment: Attachment },
    /// `Event::CopyEnded` is owed.
    Copying(Box<Copying>),
    /// A lower tier has something to do; it may owe an ending.
    Ordered(Order),
}

/// A place and the object whose bytes belong there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    pub chunk: u32,
    pub place: Place,
    pub object: ObjectNumber,
}

/// What was told of the leases of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Leases begun, less ends.
    cells: i64,
    /// Readers that they were promised to, less ends.
    units: i64,
    /// A forced clear took the object: ends of its leases have nothing to name.
    is_taken: bool,
}

struct Open {
    call: Call,
    asked: Instant,
    /// The session that a wait is about.
    serial: Option<u64>,
    parked: bool,
}

pub struct Bench {
    engine: Engine,
    pub devices: Devices,
    out: Outbox,
    pub model: Model,
    pub memory: Memory,
    pub ledger: Ledger,
    pub reach: Reach,
    pub transcript: Transcript,
    scopes: BTreeMap<ScopeId, Rc<Scope>>,
    places: BTreeMap<ObjectNumber, Place>,
    open: BTreeMap<Reply, Open>,
    ended: BTreeSet<Connection>,
    /// The request of the event at hand.
    asked: Option<Reply>,
    /// What the attach that the event at hand has ended is due.
    due: Option<Due>,
    was_due: Option<Due>,
    attaching: Option<Attachment>,
    fault: Option<AttachFault>,
    attached: BTreeMap<Attachment, Paged>,
    copying: BTreeMap<Ticket, Owed>,
    /// Waits without an answer.
    parked: BTreeSet<Reply>,
    replies: u32,
    align_bytes: u64,
    now: Instant,
    /// Most ranks, and longest range, of any request so far.
    rows_max: usize,
    chunks_max: usize,
    pub events: u64,
    kept: Option<Vec<(Vec<Fact>, Vec<FactKey>)>>,
    /// Lease units told of, by what they are leases of.
    leases: BTreeMap<(ScopeId, ChunkHash), Told>,
    /// Those of which more were told to end than to begin.
    overdrawn: BTreeSet<(ScopeId, ChunkHash)>,
    audit: Scratch,
    /// Looks at the watermark since an emptied window is kept.
    looks: u32,
    was_keeping: bool,
    /// Tiers that are tripped, and stores that have failed and may be tried again.
    tripped: BTreeSet<AdapterId>,
    failed_stores: BTreeSet<(AdapterId, ScopeId, ChunkHash)>,
    /// What was loaded from where.
    loaded_once: BTreeSet<(AdapterId, ScopeId, ChunkHash)>,
}

impl Bench {
    pub fn new(config: Config, lines_kept: usize) -> Bench {
        let rules = rules(&config);
        Bench {
            memory: Memory::new(config.l1_bytes, config.incarnation),
            ledger: Ledger::default(),
            devices: Devices::default(),
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
            asked: None,
            due: None,
            was_due: None,
            attaching: None,
            fault: None,
            attached: BTreeMap::new(),
            copying: BTreeMap::new(),
            parked: BTreeSet::new(),
            replies: 0,
            now: Instant::ZERO,
            rows_max: 1,
            chunks_max: 0,
            events: 0,
            kept: None,
            leases: BTreeMap::new(),
            overdrawn: BTreeSet::new(),
            audit: Scratch::default(),
            looks: 0,
            was_keeping: false,
            tripped: BTreeSet::new(),
            failed_stores: BTreeSet::new(),
            loaded_once: BTreeSet::new(),
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What came of the last event.
    pub fn outbox(&self) -> &Outbox {
        &self.out
    }

    /// Keeps the facts of every event from now on.
    pub fn keep_facts(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// The facts kept so far, with the keys that they name, one entry per event.
    pub fn take_facts(&mut self) -> Vec<(Vec<Fact>, Vec<FactKey>)> {
        self.kept.as_mut().map(std::mem::take).unwrap_or_default()
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
        if matches!(input, Input::Restarted) {
            self.restart();
            return Ok(Vec::new());
        }
        (self.asked, self.due, self.was_due) = (None, None, None);
        if let Input::Asked { reply, call } = input {
            self.asked = Some(*reply);
            let serial = match call {
                Call::Wait { request, .. } | Call::Query { request } => self.model.serial(request),
                _ => None,
            };
            let open = Open { call: call.clone(), asked: now, serial, parked: false };
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
        if let Some(kept) = &mut self.kept {
            kept.push((out.facts.clone(), out.keys.clone()));
        }
        let seen = self.judge(now, input, &out);
        self.out = out;
        if let Input::ConnectionEnded { connection } = input {
            self.open.retain(|reply, _| reply.connection != *connection);
            self.parked.retain(|reply| reply.connection != *connection);
            self.ended.insert(*connection);
        }
        self.check_work(input)?;
        self.check_kept()?;
        self.engine
            .audit_with(&mut self.audit)
            .map_err(|violation| format!("audit, {}: {}", violation.invariant, violation.found))?;
        seen
    }

    fn handle(&mut self, now: Instant, input: &Input) {
        let event = match input {
            Input::Restarted => unreachable!("a new server is not an event of the old one"),
            Input::Tick => Event::Tick,
            Input::Asked { reply, call } => Event::Asked { reply: *reply, ask: call.ask() },
            Input::ConnectionEnded { connection } => {
                Event::ConnectionEnded { connection: *connection }
            }
            Input::SendEnded { ticket, outcome } => {
                Event::SendEnded { ticket: *ticket, outcome: *outcome }
            }
            Input::ReceiveEnded { ticket, complete, outcome } => {
                Event::ReceiveEnded { ticket: *ticket, complete: *complete, outcome: *outcome }
            }
            Input::ArenaGrown { bytes } => Event::ArenaGrown { bytes: *bytes },
            Input::OperatorClear { operator, force } => Event::OperatorAsked {
                operator: Operator(*operator),
                ask: OperatorAsk::Clear { force: *force },
            },
            Input::OperatorQuota { operator, salt, bytes } => {
                let ask = match bytes {
                    Some(bytes) => OperatorAsk::QuotaSet { salt, bytes: *bytes },
                    None => OperatorAsk::QuotaRemove { salt },
                };
                Event::OperatorAsked { operator: Operator(*operator), ask }
            }
            Input::OperatorRemove { operator, adapter } => Event::OperatorAsked {
                operator: Operator(*operator),
                ask: OperatorAsk::AdapterRemove { adapter: *adapter },
            },
            Input::AdapterAdded { adapter, setup } => {
                Event::AdapterAdded { adapter: *adapter, setup: setup.lent() }
            }
            Input::AdapterScanned { adapter, found } => {
                let found: Vec<Scanned> = found.iter().map(Found::lent).collect();
                let event = Event::AdapterScanned { adapter: *adapter, found: &found };
                return self.engine.handle(now, event, &mut self.out);
            }
            Input::AdapterScanEnded { adapter } => Event::AdapterScanEnded { adapter: *adapter },
            Input::AttachEnded { attachment, outcome } => {
                Event::AttachEnded { attachment: *attachment, outcome: *outcome }
            }
            Input::CopyEnded { ticket, whole } => {
                Event::CopyEnded { ticket: *ticket, whole: *whole }
            }
            Input::TierEnded { .. } => return self.tier_ended(now, input),
        };
        self.engine.handle(now, event, &mut self.out);
    }

    /// A turn is bounded (P3): what can wait keeps to the units, what cannot is the request's own.
    fn check_work(&mut self, input: &Input) -> Result<(), String> {
        let work = self.engine.work();
        let units = self.engine.config().limits.work_units;
        // Rows of one chunk go together, and a session that ends takes its rows and waits along.
        let overshoot = 3 * self.rows_max + PARKED_MAX + limits::LATE_COPIES_CELLS;
        let own = match input {
            Input::Asked { call, .. } => call.range().map_or(0, Range::len) as usize,
            Input::SendEnded { .. } | Input::ReceiveEnded { .. } | Input::CopyEnded { .. } => {
                self.chunks_max
            }
            Input::AdapterScanned { found, .. } => found.len(),
            _ => 0,
        };
        // All cells of lookups that wait below L1, which any event may end or let go on.
        let waiting = match self.model.has_tiers() {
            true => self.chunks_max * self.rows_max * self.engine.config().prefetch_max,
            false => 0,
        };
        let own = own + waiting;
        if let Input::Asked { call, .. } = input
            && let Some(range) = call.range()
        {
            self.rows_max = self.rows_max.max(range.world_size as usize);
            self.chunks_max = self.chunks_max.max(range.len() as usize);
        }
        if work.counted >= units {
            self.reach.met(State::TurnSpent);
        }
        let is_bounded =
            work.counted <= units + overshoot && work.own <= limits::COPIES_PER_NAME_MAX * own;
        is_bounded.then_some(()).ok_or_else(|| format!("P3: {input:?} was {work:?} of {units}"))
    }

    fn judge(&mut self, now: Instant, input: &Input, out: &Outbox) -> Result<Vec<Seen>, String> {
        let is_working = matches!(self.engine.deadline(), Some((_, Alarm::Work)));
        let news = self.hear(now, is_working, input, out)?;
        let seen = self.judge_input(now, input, &news, out)?;
        self.operator_answers(input, out)?;
        self.park(input, &seen)?;
        if !matches!(input, Input::Tick) {
            self.model.settle(None)?;
        }
        let is_working = is_working || self.model.waits_below();
        self.check_parked(now, is_working)?;
        Ok(seen)
    }

    /// What was told, and what it means for what the model knows.
    fn hear(
        &mut self,
        now: Instant,
        is_working: bool,
        input: &Input,
        out: &Outbox,
    ) -> Result<News, String> {
        let turn = Turn { is_working, is_spent: self.engine.work().is_spent() };
        self.learn_scopes(input, out);
        if let Input::TierEnded { ticket, ending: Ending::Digest(digest) } = input {
            self.note_digest(*ticket, *digest);
        }
        let news = self.news(input, out)?;
        self.hear_leases(out)?;
        self.hear_gauges(input, out)?;
        self.count(input, out);
        self.model.at(now, turn);
        promises::check_cause(input, &news)?;
        self.learn_origins(&news)?;
        self.check_bytes(&news)?;
        self.note_committed(&news);
        let asked = match input {
            Input::Asked { call, .. } => call.range(),
            _ => None,
        };
        self.before_news(input)?;
        self.count_ending(input, &news, out);
        if let Input::TierEnded { ticket, ending } = input {
            let known = self.model.tier_ended(*ticket, ending);
            self.stale(known, out)?;
        }
        self.model.hear(&news, asked, over(input))?;
        Ok(news)
    }

    /// Whatever became readable, and whatever stops being so, has its own bytes and no others.
    fn check_bytes(&self, news: &News) -> Result<(), String> {
        let removed = news.uses.iter().filter_map(|(key, what)| match what {
            Use::Removed(why) => Some((key, *why)),
            _ => None,
        });
        let removed = removed.filter(|(_, why)| *why != Removed::Forced).map(|(key, _)| key);
        for key in removed.chain(&news.committed) {
            self.check_bytes_of(key)?;
        }
        Ok(())
    }

    fn check_bytes_of(&self, key: &Key) -> Result<(), String> {
        // What is not there is for the model to judge.
        let Some(number) = self.model.number(key) else { return Ok(()) };
        let Some(place) = self.places.get(&number) else { return Ok(()) };
        self.memory.check(*place, number)
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

    /// Places that were given to a writer.
    fn lend(
        &mut self,
        slots: &[Slot],
        objects: &[ObjectNumber],
        layout: Layout,
    ) -> Result<Vec<Lent>, String> {
        let mut lent = Vec::new();
        for (slot, object) in slots.iter().zip(objects) {
            let place = slot.place.ok_or("I-5: a slot without a place")?;
            if layout.bytes() != Some(place.bytes) || !place.offset.is_multiple_of(self.align_bytes)
            {
                return Err(format!("I-5: {place:?} has not the size or alignment asked for"));
            }
            if self.model.layout(*object) != layout {
                return Err("I-5: places for another layout than the instance has".into());
            }
            if !self.model.has_grown_to(place.offset + place.bytes) {
                return Err(format!("I-17: {place:?} lies beyond what has grown"));
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
    fn delivered(
        &mut self,
        slots: SlotRange,
        layout: Layout,
        out: &Outbox,
    ) -> Result<Vec<Lent>, String> {
        let mut lent = Vec::new();
        for (position, slot) in (0..).zip(out.slots(slots)) {
            let place = slot.place.ok_or("a reader was given no place")?;
            let object = self.memory.owner(place)?.ok_or("a place that nobody ever had")?;
            self.memory.check(place, object)?;
            if slot.chunk != position {
                return Err("P1: a reader's places are out of order".into());
            }
            if self.places.get(&object) != Some(&place) || self.model.layout(object) != layout {
                return Err(format!("I-5: {place:?} is not the whole of object {}", object.0));
            }
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

/// More waits than any simulated session has parked at once.
const PARKED_MAX: usize = 4;
