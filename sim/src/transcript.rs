//! What happened, line by line, and one number for all of it. Golden scenes and failing runs show
//! these lines; equal seeds must give equal numbers on every machine.

use crate::calls::Call;
use crate::orders::{Ending, Found, Setup};
use kvtide_core::effect::{Answer, Effect, Outbox, Slot, SlotRange};
use kvtide_core::event::{AttachFault, BodyOutcome, SendOutcome};
use kvtide_core::fact::{Fact, KeyRange};
use kvtide_core::names::{AdapterId, Attachment, Connection, Reply, Ticket};
use kvtide_core::time::Instant;
use std::collections::VecDeque;
use std::fmt::Write;
use std::rc::Rc;

pub struct Transcript {
    lines: VecDeque<String>,
    kept: usize,
    hash: u64,
}

/// What the engine is told, in a form that owns everything.
#[derive(Clone, Debug)]
pub enum Input {
    Tick,
    Asked {
        reply: Reply,
        call: Call,
    },
    ConnectionEnded {
        connection: Connection,
    },
    SendEnded {
        ticket: Ticket,
        outcome: SendOutcome,
    },
    ReceiveEnded {
        ticket: Ticket,
        complete: u32,
        outcome: BodyOutcome,
    },
    ArenaGrown {
        bytes: u64,
    },
    OperatorClear {
        operator: u64,
        force: bool,
    },
    OperatorQuota {
        operator: u64,
        salt: Rc<str>,
        /// None: no more.
        bytes: Option<u64>,
    },
    OperatorRemove {
        operator: u64,
        adapter: AdapterId,
    },
    AdapterAdded {
        adapter: AdapterId,
        setup: Rc<Setup>,
    },
    AdapterScanned {
        adapter: AdapterId,
        found: Rc<[Found]>,
    },
    AdapterScanEnded {
        adapter: AdapterId,
    },
    TierEnded {
        ticket: Ticket,
        ending: Ending,
    },
    AttachEnded {
        attachment: Attachment,
        outcome: Result<(), AttachFault>,
    },
    CopyEnded {
        ticket: Ticket,
        whole: bool,
    },
    /// Another server takes the place of this one: it knows nothing, and its arena is empty.
    Restarted,
}

impl Transcript {
    /// Remembers the last `kept` lines; the hash covers all of them.
    pub fn new(kept: usize) -> Transcript {
        Transcript { lines: VecDeque::new(), kept, hash: HASH_START }
    }

    pub fn event(&mut self, now: Instant, input: &Input) {
        let (secs, nanos) = (now.0 / 1_000_000_000, now.0 % 1_000_000_000);
        let what = match input {
            Input::Tick => "tick".into(),
            Input::Asked { reply, call } => format!("{} {call:?}", reply_name(*reply)),
            Input::ConnectionEnded { connection } => {
                format!("{} ended", connection_name(*connection))
            }
            Input::SendEnded { ticket, outcome: SendOutcome::Sent } => {
                format!("{} sent", ticket_name(*ticket))
            }
            Input::SendEnded { ticket, outcome: SendOutcome::Cut } => {
                format!("{} cut", ticket_name(*ticket))
            }
            Input::ReceiveEnded { ticket, complete, outcome } => {
                format!("{} received, {complete} chunks, {outcome:?}", ticket_name(*ticket))
            }
            Input::ArenaGrown { bytes } => format!("arena grown to {bytes}"),
            Input::Restarted => "server starts anew".into(),
            Input::OperatorClear { force, .. } => format!("operator clears, force {force}"),
            Input::OperatorQuota { salt, bytes, .. } => {
                format!("operator sets quota of {salt:?} to {bytes:?}")
            }
            Input::OperatorRemove { adapter, .. } => format!("operator removes a{}", adapter.0),
            Input::AdapterAdded { adapter, setup } => {
                format!("a{} joins: {setup:?}", adapter.0)
            }
            Input::AdapterScanned { adapter, found } => {
                let mut line = format!("a{} scanned", adapter.0);
                for Found { name, bytes, seal } in found.iter() {
                    let seal = if seal.is_some() { ", sealed" } else { "" };
                    write!(line, " {name:?}, {bytes} bytes{seal};").expect("it takes everything");
                }
                line
            }
            Input::AdapterScanEnded { adapter } => format!("a{} scan ended", adapter.0),
            Input::AttachEnded { attachment, outcome } => {
                format!("{} attached: {outcome:?}", attachment_name(*attachment))
            }
            Input::CopyEnded { ticket, whole } => {
                format!("{} copied, whole {whole}", ticket_name(*ticket))
            }
            Input::TierEnded { ticket, ending } => {
                format!("l{} ended: {ending:?}", &ticket_name(*ticket)[1..])
            }
        };
        self.line(format!("{secs}.{nanos:09} {what}"));
    }

    pub fn outcome(&mut self, out: &Outbox) {
        for effect in &out.effects {
            self.line(format!("    -> {}", effect_line(effect, out)));
        }
        for fact in &out.facts {
            if let Some(line) = fact_line(fact, out) {
                self.line(format!("    .. {line}"));
            }
        }
    }

    pub fn line(&mut self, line: String) {
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ byte as u64).wrapping_mul(HASH_PRIME);
        }
        if self.lines.len() >= self.kept {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Forgets the lines so far, not the hash.
    pub fn forget(&mut self) {
        self.lines.clear();
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

fn effect_line(effect: &Effect, out: &Outbox) -> String {
    match effect {
        Effect::Answer { reply, answer } => {
            format!("{} {}", reply_name(*reply), answer_line(answer, out))
        }
        Effect::Send { reply, ticket, slots, with_slots, .. } => {
            let with = if *with_slots { "slots and bytes" } else { "bytes" };
            let (reply, ticket) = (reply_name(*reply), ticket_name(*ticket));
            format!("{reply} send {with} as {ticket}:{}", slots_line(*slots, out))
        }
        Effect::Receive { reply, ticket, slots, .. } => {
            let (reply, ticket) = (reply_name(*reply), ticket_name(*ticket));
            format!("{reply} receive as {ticket}:{}", slots_line(*slots, out))
        }
        Effect::Attach { attachment, reply, .. } => {
            format!("{} attach {}", reply_name(*reply), attachment_name(*attachment))
        }
        Effect::Detach { attachment } => format!("detach {}", attachment_name(*attachment)),
        Effect::Copy { ticket, attachment, copy } => {
            let (ticket, of) = (ticket_name(*ticket), attachment_name(*attachment));
            let (slots, blocks) = (slots_line(copy.slots, out), out.blocks(copy.blocks));
            let (what, skip) = (copy.direction, copy.skip_tokens);
            format!("{ticket} {what:?} {of} {blocks:?}, skip {skip}:{slots}")
        }
        Effect::OperatorAnswer { answer, .. } => format!("operator: {answer:?}"),
        Effect::Probe { ticket, adapter, keys } => {
            let mut line = format!("{} probe of adapter {}:", ticket_name(*ticket), adapter.0);
            for key in out.l2_keys(*keys) {
                write!(line, " {:?}/{}", key.hash, key.scope.0).expect("a string takes everything");
            }
            line
        }
        other => format!("{other:?}"),
    }
}

fn answer_line(answer: &Answer, out: &Outbox) -> String {
    match answer {
        Answer::None => "done".into(),
        Answer::Bool(flag) => format!("{flag}"),
        Answer::Count(count) => format!("{count}"),
        Answer::StoreSlots { slots, .. } => format!("store slots:{}", slots_line(*slots, out)),
        Answer::RetrieveSlots { slots, .. } => {
            format!("retrieve slots:{}", slots_line(*slots, out))
        }
        other => format!("{other:?}"),
    }
}

fn slots_line(range: SlotRange, out: &Outbox) -> String {
    let mut line = String::new();
    for Slot { chunk, place } in out.slots(range) {
        let written = match place {
            Some(place) => write!(line, " {chunk}@{}+{}", place.offset, place.bytes),
            None => write!(line, " {chunk}@-"),
        };
        written.expect("a string takes everything");
    }
    if line.is_empty() { " none".into() } else { line }
}

/// Facts that only repeat the state are left out.
fn fact_line(fact: &Fact, out: &Outbox) -> Option<String> {
    let keys = |range: &KeyRange| {
        let mut line = String::new();
        for key in range.of(&out.keys) {
            write!(line, " {:?}/{}", key.hash, key.scope.0).expect("a string takes everything");
        }
        line
    };
    Some(match fact {
        Fact::Gauges(_) => return None,
        Fact::WriteReserved { keys: k } => format!("write reserved{}", keys(k)),
        Fact::WriteFinished { keys: k } => format!("write finished{}", keys(k)),
        Fact::WriteAborted { keys: k, why } => format!("write aborted, {why:?}{}", keys(k)),
        Fact::WriteRefused { keys: k, why } => format!("write refused, {why:?}{}", keys(k)),
        Fact::StoreFinished { stored, failed } => {
            format!("store finished, {} stored, {failed} failed", stored.len())
        }
        Fact::ReadReserved { keys: k, readers } => {
            format!("read reserved for {readers}{}", keys(k))
        }
        Fact::ReadFinished { keys: k, why } => format!("read finished, {why:?}{}", keys(k)),
        Fact::ReadFailed { keys: k, why } => format!("read failed, {why:?}{}", keys(k)),
        Fact::Accessed { keys: k } => format!("accessed{}", keys(k)),
        Fact::Evicted { keys: k, why } => format!("evicted, {why:?}{}", keys(k)),
        Fact::Retrieved { keys: k, bytes, took } => {
            format!("retrieved {} keys, {bytes} bytes in {took:?}", k.len())
        }
        Fact::Stored { keys: k, bytes, took } => {
            format!("stored {} keys, {bytes} bytes in {took:?}", k.len())
        }
        Fact::L2StoreSubmitted { adapter, keys: k } => {
            format!("stores submitted to {}{}", adapter.0, keys(k))
        }
        Fact::L2StoreEnded { adapter, keys: k, end, took } => {
            format!("store in {} ended, {end:?} in {took:?}{}", adapter.0, keys(k))
        }
        Fact::L2StoreDropped { adapter, keys: k, why } => {
            format!("not stored in {}, {why:?}{}", adapter.0, keys(k))
        }
        Fact::L2LoadSubmitted { adapter, keys: k } => {
            format!("loads submitted to {}{}", adapter.0, keys(k))
        }
        Fact::L2LoadEnded { adapter, keys: k, end, took } => {
            format!("load from {} ended, {end:?} in {took:?}{}", adapter.0, keys(k))
        }
        Fact::L2PrefetchFailed { keys: k, why } => format!("not loaded, {why:?}{}", keys(k)),
        Fact::L2Stored { adapter, keys: k } => format!("at rest in {}{}", adapter.0, keys(k)),
        Fact::L2Accessed { adapter, keys: k } => format!("used in {}{}", adapter.0, keys(k)),
        Fact::L2Removed { adapter, keys: k, why } => {
            format!("gone from {}, {why:?}{}", adapter.0, keys(k))
        }
        other => format!("{other:?}"),
    })
}

fn connection_name(connection: Connection) -> String {
    format!("c{}", connection.0.index)
}

fn reply_name(reply: Reply) -> String {
    format!("c{}.{}", reply.connection.0.index, reply.request.index)
}

fn attachment_name(attachment: Attachment) -> String {
    format!("m{}.{}", attachment.0.index, attachment.0.generation)
}

fn ticket_name(ticket: Ticket) -> String {
    format!("t{}.{}", ticket.0.index, ticket.0.generation)
}

/// FNV-1a, 64 bits.
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_PRIME: u64 = 0x0000_0100_0000_01b3;
