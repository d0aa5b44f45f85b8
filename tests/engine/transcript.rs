//! A run as text: the time and the event, then its effects (`>`) and facts (`.`), a line each.

// Every binary that includes this file uses a part of it.
#![allow(dead_code)]

use crate::harness::{is_routine, keys_of};
use kvtide_core::effect::{Answer, Effect, Outbox, Slot, SlotRange};
use kvtide_core::event::{Ask, Event, Keys, SendOutcome};
use kvtide_core::fact::{Fact, FactKey};
use kvtide_core::names::{ChunkHash, Connection, Layout, Reply, Ticket};
use kvtide_core::time::Instant;
use std::fmt::Write;

#[derive(Clone, Debug, Default)]
pub struct Transcript {
    pub text: String,
}

impl Transcript {
    /// Adds one event. A tick with no news but the time of day is left out.
    pub fn add(&mut self, now: Instant, event: String, out: &Outbox) {
        let news: Vec<&Fact> = out.facts.iter().filter(|fact| !is_routine(fact)).collect();
        if event == "tick" && out.effects.is_empty() && news.is_empty() {
            return;
        }
        let millis = now.0 / 1_000_000;
        self.line(&format!("{:>4}.{:03} {event}", millis / 1000, millis % 1000));
        for effect in &out.effects {
            self.line(&format!("       > {}", effect_text(effect, out)));
        }
        for fact in news {
            self.line(&format!("       . {}", fact_text(fact, &out.keys)));
        }
    }

    /// A heading, where a scene comes to its point.
    pub fn say(&mut self, text: &str) {
        self.line(&format!("--- {text}"));
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    pub fn event(event: &Event<'_>) -> String {
        match event {
            Event::Tick => "tick".into(),
            Event::Asked { reply, ask } => format!("{} asks {}", reply_text(reply), ask_text(ask)),
            Event::ConnectionEnded { connection } => {
                format!("{} ends", connection_text(connection))
            }
            Event::SendEnded { ticket, outcome: SendOutcome::Sent } => {
                format!("sent {}", ticket_text(ticket))
            }
            Event::SendEnded { ticket, outcome: SendOutcome::Cut } => {
                format!("cut {}", ticket_text(ticket))
            }
            Event::ReceiveEnded { ticket, complete, outcome } => {
                format!("received {}: {complete} chunks, {outcome:?}", ticket_text(ticket))
            }
            Event::ArenaGrown { bytes } => format!("arena {bytes} bytes"),
            Event::OperatorAsked { ask, .. } => format!("operator asks {ask:?}"),
        }
    }
}

fn ask_text(ask: &Ask<'_>) -> String {
    match ask {
        Ask::Register(registration) => format!(
            "register {}: {} of {} ranks, {}",
            registration.instance.0,
            registration.model,
            registration.world_size,
            layout_text(&registration.layout),
        ),
        Ask::RegisterRefused { instance, model, reason } => {
            format!("register {}: {model}, {}", instance.0, reason.label())
        }
        Ask::Unregister { instance } => format!("unregister {}", instance.0),
        Ask::Ping { instance } => format!("ping {:?}", instance.map(|instance| instance.0)),
        Ask::Lookup { keys } => format!("lookup {}, readers {}", keys_text(keys), keys.readers),
        Ask::QueryPrefetch { request } => format!("query {request}"),
        Ask::WaitPrefetch { request, wait } => format!("wait {request} {wait:?}"),
        Ask::FreeLookupLocks { keys } => format!("free {}", keys_text(keys)),
        Ask::EndSession { request, .. } => format!("end_session {request}"),
        Ask::PrepareStore { instance, keys } => {
            format!("prepare_store {}: {}", instance.0, keys_text(keys))
        }
        Ask::CommitStore { instance, keys, inline_bytes } => {
            let how = if *inline_bytes == 0 { "" } else { ", inline" };
            format!("commit_store {}: {}{how}", instance.0, keys_text(keys))
        }
        Ask::PrepareRetrieve { instance, keys } => {
            format!("prepare_retrieve {}: {}", instance.0, keys_text(keys))
        }
        Ask::CommitRetrieve { instance, keys } => {
            format!("commit_retrieve {}: {}", instance.0, keys_text(keys))
        }
        Ask::Clear { force } => format!("clear force={force}"),
    }
}

fn keys_text(keys: &Keys<'_>) -> String {
    let range = keys.first_chunk as usize..keys.end_chunk as usize;
    let names = keys.hashes[range].iter().map(hash_text);
    let rank = keys.worker.map_or("all ranks".into(), |rank| format!("rank {rank}"));
    format!("{} {rank} {}", keys.request, list(names))
}

fn effect_text(effect: &Effect, out: &Outbox) -> String {
    match effect {
        Effect::Answer { reply, answer } => {
            format!("answer {}: {}", reply_text(reply), answer_text(answer, out))
        }
        Effect::Send { reply, ticket, slots, with_slots, .. } => format!(
            "send {} as {}: {}{}",
            reply_text(reply),
            ticket_text(ticket),
            slots_text(*slots, out),
            if *with_slots { ", with slots" } else { "" },
        ),
        Effect::Receive { reply, ticket, slots, .. } => format!(
            "receive {} as {}: {}",
            reply_text(reply),
            ticket_text(ticket),
            slots_text(*slots, out),
        ),
        Effect::OperatorAnswer { answer, .. } => format!("answer operator: {answer:?}"),
    }
}

fn answer_text(answer: &Answer, out: &Outbox) -> String {
    match answer {
        Answer::StoreSlots { slots, .. } => format!("StoreSlots {}", slots_text(*slots, out)),
        Answer::RetrieveSlots { slots, .. } => format!("RetrieveSlots {}", slots_text(*slots, out)),
        answer => format!("{answer:?}"),
    }
}

fn slots_text(range: SlotRange, out: &Outbox) -> String {
    list(out.slots(range).iter().map(|Slot { chunk, place }| match place {
        Some(place) => format!("{chunk}@{:#x}+{:#x}", place.offset, place.bytes),
        None => format!("{chunk} skipped"),
    }))
}

/// The fact with the names of its keys in place of their range.
fn fact_text(fact: &Fact, keys: &[FactKey]) -> String {
    let text = format!("{fact:?}");
    let Some(range) = keys_of(fact) else { return text };
    let keys = range.of(keys);
    let names = list(keys.iter().map(|key| {
        let scope = key.scope.0;
        if scope == 0 { hash_text(&key.hash) } else { format!("{}/{scope}", hash_text(&key.hash)) }
    }));
    text.replace(&format!("{range:?}"), &names)
}

/// Names side by side. A run of one prompt's chunks shows its ends only.
fn list(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    let mut text = String::from("[");
    if let (true, [first, .., last]) = (names.len() > 12, &names[..]) {
        write!(text, "{first} ..{}.. {last}", names.len() - 2).expect("a string takes all");
    } else {
        text.push_str(&names.join(" "));
    }
    text.push(']');
    text
}

fn hash_text(hash: &ChunkHash) -> String {
    let number = u32::from_be_bytes(hash.0[1..5].try_into().expect("four bytes"));
    format!("{}{number}", hash.0[0] as char)
}

fn reply_text(reply: &Reply) -> String {
    format!("{}#{}", connection_text(&reply.connection), reply.request.index)
}

fn connection_text(connection: &Connection) -> String {
    format!("c{}", connection.0.index)
}

fn ticket_text(ticket: &Ticket) -> String {
    format!("t{}.{}", ticket.0.index, ticket.0.generation)
}

fn layout_text(layout: &Layout) -> String {
    let (shape, dimensions) = layout.shape();
    format!("{:?} {}", &shape[..dimensions], layout.dtype.name())
}
