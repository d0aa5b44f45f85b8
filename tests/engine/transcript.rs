//! A run in words: the time, who did what, and below it what the engine answered, which facts it
//! told and, where that has changed, what the pool holds.
//!
//! The invariant: every effect and every fact of an event is shown, but for the news of every
//! second, so a changed decision is a changed line. A reader needs to know no source: whoever acts
//! has a name (`worker 1`), and so has every chunk (`A2`, or `A2/1` where it is that of rank 1).

// Every binary that includes this file uses a part of it.
#![allow(dead_code)]

#[path = "transcript_tiers.rs"]
mod tiers;

use crate::harness::{is_routine, keys_of, scheduler};
use kvtide_core::effect::{Answer, Direction, Effect, OperatorAnswer, Outbox, Slot, SlotRange};
use kvtide_core::engine::Status;
use kvtide_core::event::{Ask, BodyOutcome, Event, Keys, OperatorAsk, SendOutcome};
use kvtide_core::fact::{Fact, FactKey, InstanceEnd, LookupStop};
use kvtide_core::names::{ChunkHash, Connection, InstanceId, Reply, ScopeId, Ticket};
use kvtide_core::time::{Duration, Instant};
use std::collections::BTreeMap;
use tiers::{adapter_name, tier_fact};

#[derive(Clone, Debug, Default)]
pub struct Transcript {
    pub text: String,
    pub shows_pool: bool,
    connections: BTreeMap<Connection, String>,
    instances: BTreeMap<InstanceId, String>,
    /// Requests without an answer.
    open: BTreeMap<Reply, Question>,
    /// How chunks of a scope are told from others: by rank, tenant, model.
    scopes: BTreeMap<ScopeId, String>,
    /// The model that goes without saying.
    model: Option<String>,
    transfers: BTreeMap<Ticket, usize>,
    pool: String,
}

#[derive(Clone, Debug, Default)]
struct Question {
    text: String,
    /// Names of the chunks of its range.
    chunks: Vec<String>,
    /// Asks for the result of a lookup.
    is_poll: bool,
    /// What a scope that it names for the first time is for.
    scope: String,
}

impl Transcript {
    /// With what the pool holds after each event. Long runs, which are only compared, do without.
    pub fn of_scene() -> Transcript {
        Transcript { shows_pool: true, ..Transcript::default() }
    }

    /// Whose connection this is. Unnamed ones are those of the worker of their number.
    pub fn name(&mut self, connection: Connection, name: &str) {
        self.connections.insert(connection, name.into());
    }

    /// The server is gone, and with it every open request.
    pub fn server_gone(&mut self) {
        self.open.clear();
        self.scopes.clear();
        self.transfers.clear();
        self.pool.clear();
    }

    /// Adds one event. A tick with no news but the time of day is left out.
    pub fn add(
        &mut self,
        now: Instant,
        event: String,
        asked: Option<Reply>,
        out: &Outbox,
        status: Option<&Status>,
    ) {
        let news: Vec<&Fact> = out.facts.iter().filter(|fact| !is_routine(fact)).collect();
        if event == TICK && out.effects.is_empty() && news.is_empty() {
            return;
        }
        let millis = now.0 / 1_000_000;
        self.line(&format!("{:>4}.{:03}  {event}", millis / 1000, millis % 1000));
        let scope = asked.and_then(|reply| self.open.get(&reply)).map(|asked| asked.scope.clone());
        for effect in &out.effects {
            let text = self.effect(effect, asked, out);
            self.line(&format!("          {text}"));
        }
        for fact in news {
            if let (Fact::WriteReserved { keys } | Fact::WriteRefused { keys, .. }, Some(scope)) =
                (fact, &scope)
                && let Some(key) = keys.of(&out.keys).first()
            {
                self.scopes.insert(key.scope, scope.clone());
            }
            let text = self.fact(fact, &out.keys);
            self.line(&format!("          fact: {text}"));
        }
        let pool = status.map_or_else(String::new, pool_text);
        if !pool.is_empty() && pool != self.pool {
            self.line(&format!("          pool: {pool}"));
            self.pool = pool;
        }
    }

    /// A heading, where a scene comes to its point.
    pub fn say(&mut self, text: &str) {
        self.line(&format!("--- {text}"));
    }

    /// A line as it is.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// What has happened, in words, before its effects are known.
    pub fn event(&mut self, event: &Event<'_>) -> String {
        match event {
            Event::Tick => TICK.into(),
            Event::Asked { reply, ask } => {
                if let Ask::Register(registration) = ask
                    && self.model.is_none()
                {
                    self.model = Some(registration.model.into());
                }
                let question = self.question(ask);
                let text = format!("{} {}", self.who(&reply.connection), question.text);
                self.open.insert(*reply, question);
                text
            }
            Event::ConnectionEnded { connection } => {
                format!("the connection of {} ends", self.who(connection))
            }
            Event::SendEnded { ticket, outcome } => {
                let how = match outcome {
                    SendOutcome::Sent => "is sent",
                    SendOutcome::Cut => "is cut",
                };
                format!("{} {how}", self.transfer(*ticket))
            }
            Event::ReceiveEnded { ticket, complete, outcome } => {
                let how = match outcome {
                    BodyOutcome::Whole => "it is whole",
                    BodyOutcome::Short => "it is too short",
                    BodyOutcome::Malformed => "it makes no sense",
                    BodyOutcome::Cut => "it is cut",
                };
                {
                    let chunks = counted(*complete as u64, "chunk");
                    format!("{} ends after {chunks}: {how}", self.transfer(*ticket))
                }
            }
            Event::ArenaGrown { bytes } => format!("{} of memory are there", bytes_text(*bytes)),
            Event::OperatorAsked { ask, .. } => match ask {
                OperatorAsk::Clear { force } => format!("an operator {}", clear_text(*force)),
                OperatorAsk::QuotaSet { salt, bytes } => {
                    format!("an operator sets the quota of {salt:?} to {}", bytes_text(*bytes))
                }
                OperatorAsk::QuotaRemove { salt } => {
                    format!("an operator removes the quota of {salt:?}")
                }
                OperatorAsk::AdapterRemove { adapter } => {
                    format!("an operator removes {}", adapter_name(*adapter))
                }
                OperatorAsk::Delete { key, .. } => {
                    format!("an operator deletes an object of {:?}", key.model)
                }
            },
            Event::AttachEnded { attachment, outcome } => {
                let how = match outcome {
                    Ok(()) => "is attached".into(),
                    Err(fault) => format!("is not attached: {fault:?}"),
                };
                format!("memory {} {how}", attachment.0.index)
            }
            Event::CopyEnded { ticket, whole } => {
                let how = if *whole { "is copied" } else { "has failed" };
                format!("{} {how}", self.transfer(*ticket))
            }
            Event::AdapterAdded { .. }
            | Event::AdapterScanned { .. }
            | Event::AdapterScanEnded { .. }
            | Event::ProbeEnded { .. }
            | Event::StoreEnded { .. }
            | Event::LoadEnded { .. }
            | Event::DeleteEnded { .. }
            | Event::DigestEnded { .. }
            | Event::ScrubEnded { .. } => self.tier_event(event),
        }
    }

    fn question(&self, ask: &Ask<'_>) -> Question {
        let plain = |text: String| Question { text, ..Question::default() };
        let of_poll = |text: String| Question { is_poll: true, ..plain(text) };
        match ask {
            Ask::Register(registration) => {
                let bytes = registration.layout.bytes().unwrap_or_default();
                let ranks = counted(registration.world_size as u64, "rank");
                let (model, bytes) = (registration.model, bytes_text(bytes));
                plain(format!("registers: model {model}, {ranks}, {bytes} a chunk"))
            }
            Ask::RegisterRefused { model, reason, .. } => {
                plain(format!("registers: model {model}, which is {}", reason.label()))
            }
            Ask::Unregister { .. } => plain("unregisters".into()),
            Ask::Ping { instance: None } => plain("pings, without an id".into()),
            Ask::Ping { instance: Some(_) } => plain("pings".into()),
            Ask::Lookup { keys } => {
                let ranks = match keys.world_size {
                    1 => String::new(),
                    ranks => format!(" at {ranks} ranks"),
                };
                let readers = match keys.readers {
                    1 => String::new(),
                    readers => format!(", for {readers} readers"),
                };
                self.of_keys(&format!("looks up {}:", keys.request), keys, &(ranks + &readers))
            }
            Ask::QueryPrefetch { request } => of_poll(format!("asks for the result of {request}")),
            Ask::WaitPrefetch { request, wait } => {
                let wait = time_text(*wait);
                of_poll(format!("waits for the result of {request}, at most {wait}"))
            }
            Ask::FreeLookupLocks { keys } => {
                self.of_keys(&format!("gives back what {} holds of", keys.request), keys, "")
            }
            Ask::EndSession { request, .. } => plain(format!("ends {request}")),
            Ask::PrepareStore { keys, .. } => self.of_keys("wants to store", keys, ""),
            Ask::CommitStore { keys, inline_bytes: 0, .. } => {
                self.of_keys("commits its store of", keys, "")
            }
            Ask::CommitStore { keys, .. } => {
                self.of_keys("stores, bytes in the message,", keys, "")
            }
            Ask::PrepareRetrieve { keys, .. } => {
                self.of_keys("wants to read", keys, &format!(" for {}", keys.request))
            }
            Ask::CommitRetrieve { keys, .. } => {
                self.of_keys("has read", keys, &format!(" for {}", keys.request))
            }
            Ask::RegisterPaged(registration) => {
                let bytes = registration.pages.layout().bytes().unwrap_or_default();
                let ranks = counted(registration.world_size as u64, "rank");
                let (model, bytes) = (registration.model, bytes_text(bytes));
                plain(format!("registers memory: model {model}, {ranks}, {bytes} a chunk"))
            }
            Ask::Store { keys, blocks, .. } => {
                self.of_keys("stores from its blocks", keys, &format!(": {blocks:?}"))
            }
            Ask::Retrieve { keys, blocks, skip_tokens, .. } => {
                let more = format!(" for {}: {blocks:?}, skips {skip_tokens}", keys.request);
                self.of_keys("reads into its blocks", keys, &more)
            }
            Ask::Clear { force } => plain(clear_text(*force).into()),
        }
    }

    fn of_keys(&self, verb: &str, keys: &Keys<'_>, more: &str) -> Question {
        let range = keys.first_chunk as usize..keys.end_chunk as usize;
        let mut scope = match keys.worker {
            Some(rank) if keys.world_size > 1 => format!("/{rank}"),
            _ => String::new(),
        };
        if !keys.salt.is_empty() {
            scope += &format!("@{}", keys.salt);
        }
        if self.model.as_deref().is_some_and(|model| model != keys.model) {
            scope += &format!("@{}", keys.model);
        }
        let names = keys.hashes[range].iter().map(|hash| hash_text(hash) + &scope);
        let chunks: Vec<String> = names.collect();
        let text = format!("{verb} {}{more}", list(&chunks));
        Question { text, chunks, is_poll: false, scope }
    }

    fn effect(&mut self, effect: &Effect, asked: Option<Reply>, out: &Outbox) -> String {
        let reply = match effect {
            Effect::Answer { reply, .. }
            | Effect::Send { reply, .. }
            | Effect::Receive { reply, .. } => *reply,
            Effect::OperatorAnswer { answer, .. } => {
                let text = match answer {
                    OperatorAnswer::Done => "done".into(),
                    OperatorAnswer::Removed(true) => "removed".into(),
                    OperatorAnswer::Removed(false) => "there was none".into(),
                    OperatorAnswer::Full(bound) => format!("full: {bound}"),
                    OperatorAnswer::Deleted { deleted, skipped } => {
                        format!("{deleted} deleted, {skipped} skipped")
                    }
                };
                return format!("answer: {text}");
            }
            Effect::Attach { attachment, .. } => {
                return format!("attaches memory {}", attachment.0.index);
            }
            Effect::Detach { attachment } => {
                return format!("lets memory {} go", attachment.0.index);
            }
            Effect::Copy { ticket, attachment, copy } => {
                let question = asked.and_then(|reply| self.open.get(&reply).cloned());
                let slots = slots_text(copy.slots, &question.unwrap_or_default(), out);
                let (blocks, memory) = (out.blocks(copy.blocks), attachment.0.index);
                let blocks = format!("blocks {blocks:?} of memory {memory}");
                let way = match copy.direction {
                    Direction::Store => format!("{blocks} into {slots}"),
                    Direction::Retrieve => {
                        format!("{slots} into {blocks}, but for {} tokens", copy.skip_tokens)
                    }
                };
                return format!("copies {way}: {}", self.transfer(*ticket));
            }
            Effect::Probe { .. }
            | Effect::StoreObject { .. }
            | Effect::LoadObject { .. }
            | Effect::DeleteObject { .. }
            | Effect::Digest { .. }
            | Effect::Scrub { .. }
            | Effect::Cancel { .. }
            | Effect::Note { .. }
            | Effect::AdapterClosed { .. } => return self.tier_effect(effect, out),
        };
        let question = self.open.get(&reply).cloned().unwrap_or_default();
        let to = if asked == Some(reply) {
            "answer".to_string()
        } else {
            format!("answer to {}, who {}", self.who(&reply.connection), question.text)
        };
        match effect {
            Effect::Receive { ticket, slots, .. } => {
                let slots = slots_text(*slots, &question, out);
                format!("reads the message into {slots}: {}", self.transfer(*ticket))
            }
            Effect::Send { ticket, with_slots, slots, .. } => {
                self.open.remove(&reply);
                let places = match with_slots {
                    true => format!(", and where they lie: {}", slots_text(*slots, &question, out)),
                    false => String::new(),
                };
                format!("{to}: the bytes, as {}{places}", self.transfer(*ticket))
            }
            Effect::Answer { answer, .. } => {
                self.open.remove(&reply);
                format!("{to}: {}", answer_text(answer, &question, out))
            }
            _ => unreachable!("told above"),
        }
    }

    fn fact(&self, fact: &Fact, keys: &[FactKey]) -> String {
        let names = keys_of(fact).map_or_else(Vec::new, |range| {
            range.of(keys).iter().map(|key| self.key(key)).collect::<Vec<_>>()
        });
        let names = list(&names);
        match fact {
            Fact::TenantNamed { model, salt, .. } if salt.is_empty() => {
                format!("first mention of model {model}")
            }
            Fact::TenantNamed { model, salt, .. } => {
                format!("first mention of model {model} with salt {salt:?}")
            }
            Fact::InstanceRegistered { instance, .. } => {
                format!("{} is registered", self.instance(*instance))
            }
            Fact::InstanceEnded { instance, why } => {
                let why = match why {
                    InstanceEnd::Unregistered => "it has unregistered",
                    InstanceEnd::Reaped => "it was silent for too long",
                    InstanceEnd::ConnectionEnded => "its connection has ended",
                    InstanceEnd::Replaced => "it comes with another layout",
                };
                format!("{} is registered no more: {why}", self.instance(*instance))
            }
            Fact::InstanceTold { instance } => {
                format!("{} is told that it is not registered", self.instance(*instance))
            }
            Fact::RegistrationRefused { instance, reason, .. } => {
                format!("{} is refused: {}", self.instance(*instance), reason.label())
            }
            Fact::RequestFaulted { operation, fault } => {
                format!("fault in {operation}: {}", fault.label())
            }
            Fact::WriteReserved { .. } => format!("reserved: {names}"),
            Fact::WriteFinished { .. } => format!("readable from now on: {names}"),
            Fact::WriteAborted { why, .. } => {
                format!("reservation given up ({}): {names}", why.label())
            }
            Fact::WriteRefused { why, .. } => format!("no room ({}): {names}", why.label()),
            Fact::StoreFinished { stored, failed } => {
                format!("store ended: {} stored, {failed} not", stored.len())
            }
            Fact::ReadReserved { readers, .. } => {
                format!("leased for {}: {names}", counted(*readers as u64, "reader"))
            }
            Fact::ReadFinished { why, .. } => format!("lease ended ({}): {names}", why.label()),
            Fact::ReadFailed { why, .. } => format!("cannot be read ({}): {names}", why.label()),
            Fact::Accessed { .. } => format!("used: {names}"),
            Fact::Evicted { why, .. } => format!("evicted ({}): {names}", why.label()),
            Fact::EvictionTick { used_bytes, total_bytes, .. } => {
                let (used, total) = (bytes_text(*used_bytes), bytes_text(*total_bytes));
                format!("the watermark is reached: {used} of {total}")
            }
            Fact::LookupTaken {
                requested_chunks,
                hit_chunks,
                l1_hit_chunks,
                hit_keys,
                stop,
                ..
            } => {
                let objects = counted(*hit_keys as u64, "object");
                let stop = stop_text(*stop);
                let parts = match hit_chunks - l1_hit_chunks {
                    0 => String::new(),
                    below => format!(", {below} of them from below L1"),
                };
                format!(
                    "result: {hit_chunks} of {requested_chunks} chunks ({objects}{parts}), {stop}"
                )
            }
            Fact::LookupSkipped { why, .. } => {
                format!("result: 0, nothing was looked for ({})", why.label())
            }
            Fact::Retrieved { keys, bytes, took } => {
                let objects = counted(keys.len(), "object");
                format!("retrieved: {objects}, {}, {}", bytes_text(*bytes), time_text(*took))
            }
            Fact::Stored { keys, bytes, took } => {
                let objects = counted(keys.len(), "object");
                format!("stored: {objects}, {}, {}", bytes_text(*bytes), time_text(*took))
            }
            Fact::StaleEnding => "this had ended before".into(),
            Fact::Cleared { force: false } => "cleared".into(),
            Fact::Cleared { force: true } => "cleared by force".into(),
            Fact::QuotaChanged => "a quota has changed".into(),
            Fact::Gauges(_) => "gauges".into(),
            Fact::AdapterNamed { .. }
            | Fact::AdapterChanged { .. }
            | Fact::L2ScanSkipped { .. }
            | Fact::L2StoreSubmitted { .. }
            | Fact::L2StoreEnded { .. }
            | Fact::L2StoreDropped { .. }
            | Fact::L2LookupSubmitted { .. }
            | Fact::L2LookupFound { .. }
            | Fact::L2LoadSubmitted { .. }
            | Fact::L2LoadEnded { .. }
            | Fact::L2PrefetchFailed { .. }
            | Fact::L2Stored { .. }
            | Fact::L2Accessed { .. }
            | Fact::L2Removed { .. } => tier_fact(fact, &names),
        }
    }

    fn key(&self, key: &FactKey) -> String {
        let scope = self.scopes.get(&key.scope).map_or("/?", String::as_str);
        hash_text(&key.hash) + scope
    }

    fn who(&self, connection: &Connection) -> String {
        match self.connections.get(connection) {
            Some(name) => name.clone(),
            None if *connection == scheduler() => "the scheduler".into(),
            None => format!("worker {}", connection.0.index),
        }
    }

    fn instance(&self, instance: InstanceId) -> String {
        format!("worker {}", instance.0)
    }

    /// Transfers are counted in the order in which they begin.
    fn transfer(&mut self, ticket: Ticket) -> String {
        let next = self.transfers.len() + 1;
        format!("transfer {}", self.transfers.entry(ticket).or_insert(next))
    }
}

const TICK: &str = "time passes";

fn clear_text(force: bool) -> &'static str {
    if force { "clears the cache by force" } else { "clears the cache" }
}

fn answer_text(answer: &Answer, question: &Question, out: &Outbox) -> String {
    match answer {
        Answer::None if question.is_poll => "no result yet".into(),
        Answer::None => "done".into(),
        Answer::Bool(yes) => yes.to_string(),
        Answer::Count(chunks) => format!("a hit of {}", counted(*chunks, "chunk")),
        Answer::Registered => "registered".into(),
        Answer::Refused(reason) => reason.to_string(),
        Answer::StoreSlots { slots, .. } if out.slots(*slots).is_empty() => {
            "there is nothing to write".into()
        }
        Answer::StoreSlots { slots, .. } => format!("write {}", slots_text(*slots, question, out)),
        Answer::RetrieveSlots { slots, .. } => {
            format!("read {}", slots_text(*slots, question, out))
        }
        Answer::NoContext => "no slots".into(),
        Answer::RetrieveMiss => "a miss".into(),
        other => format!("{other:?}"),
    }
}

fn slots_text(range: SlotRange, question: &Question, out: &Outbox) -> String {
    let slots = out.slots(range).iter().map(|Slot { chunk, place }| {
        let name = question.chunks.get(*chunk as usize).map_or("?", String::as_str);
        match place {
            Some(place) if place.offset == 0 => format!("{name} at 0"),
            Some(place) => format!("{name} at {}", bytes_text(place.offset)),
            None => format!("{name} nowhere"),
        }
    });
    slots.collect::<Vec<_>>().join(", ")
}

fn stop_text(stop: LookupStop) -> &'static str {
    match stop {
        LookupStop::Complete => "all there is",
        LookupStop::Absent => "the next one is nowhere",
        LookupStop::InFlight => "the next one is still being written",
        LookupStop::RankMissing => "the next one is missing at some rank",
        LookupStop::WindowHole => "the next one has a hole in its window",
        LookupStop::NoRoom => "there is no room to promise more",
        LookupStop::TierError => "a lower tier has failed",
        LookupStop::TimedOut => "a lower tier did not answer in time",
        LookupStop::SlowerThanRecompute => "computing the next one anew is faster",
    }
}

/// What every aligned byte of the pool is in, and what is promised of it.
fn pool_text(status: &Status) -> String {
    let free = status.total_bytes - status.used_bytes;
    let parts = [
        (status.resident_bytes, "readable"),
        (status.staged_bytes, "reserved"),
        (status.condemned_bytes, "condemned"),
        (free, "free"),
    ];
    let parts = parts.iter().filter(|(bytes, what)| *bytes > 0 || *what == "free");
    let parts = parts.map(|(bytes, what)| format!("{} {what}", bytes_text(*bytes)));
    let text = parts.collect::<Vec<_>>().join(", ");
    let held = [
        (status.lease_units > 0).then(|| counted(status.lease_units, "lease")),
        (status.tickets > 0).then(|| format!("{} under way", counted(status.tickets, "copy"))),
    ];
    match held.into_iter().flatten().reduce(|one, other| format!("{one}, {other}")) {
        Some(held) => format!("{text}; {held}"),
        None => text,
    }
}

/// Names side by side. A run of one prompt's chunks shows its ends only.
fn list(names: &[String]) -> String {
    match names {
        [] => "nothing".into(),
        [first, .., last] if names.len() > 12 => {
            format!("{first} … {last} ({} chunks)", names.len())
        }
        names => names.join(" "),
    }
}

fn hash_text(hash: &ChunkHash) -> String {
    let number = u32::from_be_bytes(hash.0[1..5].try_into().expect("four bytes"));
    format!("{}{number}", (hash.0[0] as char).to_ascii_uppercase())
}

fn counted(count: u64, what: &str) -> String {
    match what.strip_suffix('y') {
        _ if count == 1 => format!("1 {what}"),
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {what}s"),
    }
}

fn bytes_text(bytes: u64) -> String {
    let units = [(1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    match unit {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None if bytes == 0 => "0 MiB".into(),
        None => format!("{bytes} bytes"),
    }
}

fn time_text(time: Duration) -> String {
    match time.as_millis() as u64 {
        millis if millis > 0 && millis.is_multiple_of(1000) => format!("{} s", millis / 1000),
        millis => format!("{millis} ms"),
    }
}
