//! What one event brought about, in few bytes: which effects and facts, with their most telling
//! number, and a digest of all of it. Its one invariant: the same decisions give equal outcomes,
//! and any other ones, but for chance, unequal ones.

use super::bytes::{Fault, Input, Malformed, Write};
use super::digest::{Digest, fold};
use super::secret::Naming;
use crate::effect::{Answer, Effect, Note, OperatorAnswer, Outbox, Slot};
use crate::fact::{Fact, FactKey};
use crate::names::{ChunkHash, L2Key};
use alloc::vec::Vec;
use core::fmt;
use smallvec::SmallVec;

/// What an event appended to an outbox. The ranges in effects and facts are of whole tables.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub effects: &'a [Effect],
    pub facts: &'a [Fact],
    pub keys: &'a [FactKey],
    pub slots: &'a [Slot],
    pub l2_keys: &'a [L2Key],
    pub blocks: &'a [u32],
}

impl<'a> Part<'a> {
    /// Everything after the first so many effects and facts.
    pub fn since((effects, facts): (usize, usize), out: &'a Outbox) -> Part<'a> {
        Part {
            effects: &out.effects[effects..],
            facts: &out.facts[facts..],
            keys: &out.keys,
            slots: &out.slots,
            blocks: &out.blocks,
            l2_keys: &out.l2_keys,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// All of them; the first ones by kind, with a number that means something to its kind.
    effects: u64,
    first_effects: SmallVec<[(u8, u64); EFFECTS_TOLD]>,
    /// Runs of facts of one kind, likewise: kind, facts and keys of each.
    runs: u64,
    first_runs: SmallVec<[(u8, u64, u64); RUNS_TOLD]>,
    /// Of everything since the frame began.
    digest: u32,
}

impl Outcome {
    /// `digest` is that of everything before, since the frame began, and is carried on.
    pub fn of<N: Naming>(
        digest: &mut Digest,
        naming: &N,
        hashes: &[ChunkHash],
        part: &Part<'_>,
    ) -> Outcome {
        fold(digest, naming, hashes, part);
        let told = part.effects.iter().take(EFFECTS_TOLD);
        let mut outcome = Outcome {
            effects: part.effects.len() as u64,
            first_effects: told.map(|effect| (kind_of_effect(effect), value_of(effect))).collect(),
            digest: digest.value() as u32,
            ..Outcome::default()
        };
        let mut kind_before = 0;
        for fact in part.facts {
            let (kind, keys) = (kind_of_fact(fact), keys_of(fact));
            if kind != kind_before {
                outcome.runs += 1;
                if outcome.first_runs.len() < RUNS_TOLD {
                    outcome.first_runs.push((kind, 0, 0));
                }
                kind_before = kind;
            }
            if outcome.runs <= RUNS_TOLD as u64
                && let Some((_, facts, all_keys)) = outcome.first_runs.last_mut()
            {
                *facts += 1;
                *all_keys += keys;
            }
        }
        outcome
    }

    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        bytes.number(self.effects);
        for (kind, value) in &self.first_effects {
            bytes.byte(*kind);
            bytes.number(*value);
        }
        bytes.number(self.runs);
        for (kind, facts, keys) in &self.first_runs {
            bytes.byte(*kind);
            bytes.number(*facts);
            bytes.number(*keys);
        }
        bytes.fixed_u32(self.digest);
    }

    pub(super) fn read(input: &mut Input<'_>) -> Result<Outcome, Malformed> {
        let mut outcome = Outcome { effects: input.number(WHAT)?, ..Outcome::default() };
        for _ in 0..outcome.effects.min(EFFECTS_TOLD as u64) {
            let kind = known(input, EFFECTS.len())?;
            outcome.first_effects.push((kind, input.number(WHAT)?));
        }
        outcome.runs = input.number(WHAT)?;
        for _ in 0..outcome.runs.min(RUNS_TOLD as u64) {
            let kind = known(input, FACTS.len())?;
            outcome.first_runs.push((kind, input.number(WHAT)?, input.number(WHAT)?));
        }
        outcome.digest = input.fixed_u32(WHAT)?;
        Ok(outcome)
    }

    /// Effects of the event.
    pub fn effects(&self) -> u64 {
        self.effects
    }

    /// Facts of the event, as far as their runs are told.
    pub fn facts(&self) -> u64 {
        // A file may claim more than can be counted.
        self.first_runs.iter().fold(0, |all, (_, facts, _)| all.saturating_add(*facts))
    }

    pub fn digest(&self) -> u32 {
        self.digest
    }
}

fn known(input: &mut Input<'_>, kinds: usize) -> Result<u8, Malformed> {
    let start = *input;
    let kind = input.byte(WHAT)?;
    if usize::from(kind) < kinds {
        return Ok(kind);
    }
    Err(start.fault(Fault::Value { what: "a kind of effect or fact" }))
}

impl fmt::Display for Outcome {
    /// For a transcript: what was ordered, then what was told.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (kind, value) in &self.first_effects {
            write!(f, "{separator}{}", EFFECTS[usize::from(*kind)])?;
            if *value > 0 {
                write!(f, " {value}")?;
            }
            separator = ", ";
        }
        let more = self.effects - self.first_effects.len() as u64;
        if more > 0 {
            write!(f, ", and {more} more")?;
        }
        if self.effects == 0 {
            f.write_str("nothing")?;
        }
        separator = "; ";
        for (kind, facts, keys) in &self.first_runs {
            write!(f, "{separator}{}", FACTS[usize::from(*kind)])?;
            if *facts > 1 {
                write!(f, " x{facts}")?;
            }
            if *keys > 0 {
                write!(f, " ({keys} keys)")?;
            }
            separator = ", ";
        }
        let more = self.runs - self.first_runs.len() as u64;
        if more > 0 {
            write!(f, ", and {more} more kinds")?;
        }
        Ok(())
    }
}

/// By number: what a recording calls an effect. Places are never given to another kind.
const EFFECTS: [&str; 38] = [
    "",
    "answer none",
    "answer bool",
    "answer count",
    "answer text",
    "answer no texts",
    "answer registered",
    "answer refused",
    "answer store slots",
    "answer no context",
    "answer retrieve slots",
    "answer retrieve miss",
    "answer event flag",
    "answer blend miss",
    "answer handshake refused",
    "answer empty array",
    "answer peer misses",
    "answer events off",
    "answer module refused",
    "send slots",
    "receive slots",
    "operator answer",
    "operator answer full",
    "probe",
    "store object",
    "load object",
    "delete object",
    "quarantine object",
    "digest",
    "scrub",
    "cancel",
    "note stored",
    "note used",
    "note removed",
    "adapter closed",
    "attach",
    "detach",
    "copy",
];

pub(super) fn kind_of_effect(effect: &Effect) -> u8 {
    match effect {
        Effect::Answer { answer, .. } => match answer {
            Answer::None => 1,
            Answer::Bool(_) => 2,
            Answer::Count(_) => 3,
            Answer::Text(_) => 4,
            Answer::NoTexts => 5,
            Answer::Registered => 6,
            Answer::Refused(_) => 7,
            Answer::StoreSlots { .. } => 8,
            Answer::NoContext => 9,
            Answer::RetrieveSlots { .. } => 10,
            Answer::RetrieveMiss => 11,
            Answer::EventFlag(_) => 12,
            Answer::BlendMiss => 13,
            Answer::HandshakeRefused => 14,
            Answer::EmptyArray => 15,
            Answer::PeerMisses { .. } => 16,
            Answer::EventsOff { .. } => 17,
            Answer::ModuleRefused => 18,
        },
        Effect::Send { .. } => 19,
        Effect::Receive { .. } => 20,
        Effect::OperatorAnswer { answer: OperatorAnswer::Full(_), .. } => 22,
        Effect::OperatorAnswer { .. } => 21,
        Effect::Probe { .. } => 23,
        Effect::StoreObject { .. } => 24,
        Effect::LoadObject { .. } => 25,
        Effect::DeleteObject { quarantine: false, .. } => 26,
        Effect::DeleteObject { quarantine: true, .. } => 27,
        Effect::Digest { .. } => 28,
        Effect::Scrub { .. } => 29,
        Effect::Cancel { .. } => 30,
        Effect::Note { note, .. } => match note {
            Note::Stored { .. } => 31,
            Note::Used => 32,
            Note::Removed => 33,
        },
        Effect::AdapterClosed { .. } => 34,
        Effect::Attach { .. } => 35,
        Effect::Detach { .. } => 36,
        Effect::Copy { .. } => 37,
    }
}

/// The number that tells most about it; 0 where there is none.
fn value_of(effect: &Effect) -> u64 {
    match effect {
        Effect::Answer { answer, .. } => match answer {
            Answer::Bool(value) | Answer::EventFlag(value) => (*value).into(),
            Answer::Count(count) => *count,
            Answer::Refused(refusal) => super::digest::number_of(*refusal).into(),
            Answer::StoreSlots { slots, .. } | Answer::RetrieveSlots { slots, .. } => {
                u64::from(slots.end - slots.start)
            }
            Answer::PeerMisses { keys } => (*keys).into(),
            _ => 0,
        },
        Effect::Send { slots, .. } | Effect::Receive { slots, .. } => {
            u64::from(slots.end - slots.start)
        }
        Effect::OperatorAnswer { answer, .. } => match answer {
            OperatorAnswer::Removed(removed) => (*removed).into(),
            OperatorAnswer::Deleted { deleted, .. } => (*deleted).into(),
            OperatorAnswer::Done | OperatorAnswer::Full(_) => 0,
        },
        Effect::Probe { keys, .. } => u64::from(keys.end - keys.start),
        Effect::StoreObject { place, .. }
        | Effect::LoadObject { place, .. }
        | Effect::Digest { place, .. } => place.bytes,
        Effect::Scrub { bytes, .. } => *bytes,
        Effect::Note { note: Note::Stored { bytes, .. }, .. } => *bytes,
        Effect::DeleteObject { adapter, .. }
        | Effect::Note { adapter, .. }
        | Effect::AdapterClosed { adapter } => adapter.0.into(),
        Effect::Copy { copy, .. } => u64::from(copy.slots.end - copy.slots.start),
        Effect::Cancel { .. } | Effect::Attach { .. } | Effect::Detach { .. } => 0,
    }
}

/// By number: what a recording calls a fact. Places are never given to another kind.
const FACTS: [&str; 42] = [
    "",
    "tenant named",
    "instance registered",
    "instance ended",
    "instance told",
    "registration refused",
    "request faulted",
    "write reserved",
    "write finished",
    "write aborted",
    "write refused",
    "store finished",
    "read reserved",
    "read finished",
    "read failed",
    "accessed",
    "evicted",
    "eviction tick",
    "lookup taken",
    "lookup skipped",
    "retrieved",
    "stored",
    "stale ending, clear or quota",
    "gauges",
    "adapter named",
    "adapter changed",
    "L2 store submitted",
    "L2 store ended",
    "L2 store dropped",
    "L2 lookup submitted",
    "L2 lookup found",
    "L2 load submitted",
    "L2 load ended",
    "L2 prefetch failed",
    "L2 stored",
    "L2 accessed",
    "L2 removed",
    "L2 scan skipped",
    "transfer submitted",
    "transfer ended",
    "blocks allocated",
    "session ended",
];

pub(super) fn kind_of_fact(fact: &Fact) -> u8 {
    match fact {
        Fact::TenantNamed { .. } => 1,
        Fact::InstanceRegistered { .. } => 2,
        Fact::InstanceEnded { .. } => 3,
        Fact::InstanceTold { .. } => 4,
        Fact::RegistrationRefused { .. } => 5,
        Fact::RequestFaulted { .. } => 6,
        Fact::WriteReserved { .. } => 7,
        Fact::WriteFinished { .. } => 8,
        Fact::WriteAborted { .. } => 9,
        Fact::WriteRefused { .. } => 10,
        Fact::StoreFinished { .. } => 11,
        Fact::ReadReserved { .. } => 12,
        Fact::ReadFinished { .. } => 13,
        Fact::ReadFailed { .. } => 14,
        Fact::Accessed { .. } => 15,
        Fact::Evicted { .. } => 16,
        Fact::EvictionTick { .. } => 17,
        Fact::LookupTaken { .. } => 18,
        Fact::LookupSkipped { .. } => 19,
        Fact::Retrieved { .. } => 20,
        Fact::Stored { .. } => 21,
        Fact::StaleEnding | Fact::Cleared { .. } | Fact::QuotaChanged => 22,
        Fact::Gauges(_) => 23,
        Fact::AdapterNamed { .. } => 24,
        Fact::AdapterChanged { .. } => 25,
        Fact::L2StoreSubmitted { .. } => 26,
        Fact::L2StoreEnded { .. } => 27,
        Fact::L2StoreDropped { .. } => 28,
        Fact::L2LookupSubmitted { .. } => 29,
        Fact::L2LookupFound { .. } => 30,
        Fact::L2LoadSubmitted { .. } => 31,
        Fact::L2LoadEnded { .. } => 32,
        Fact::L2PrefetchFailed { .. } => 33,
        Fact::L2Stored { .. } => 34,
        Fact::L2Accessed { .. } => 35,
        Fact::L2Removed { .. } => 36,
        Fact::L2ScanSkipped { .. } => 37,
        Fact::TransferSubmitted { .. } => 38,
        Fact::TransferEnded(_) => 39,
        Fact::BlocksAllocated { .. } => 40,
        Fact::SessionEnded { .. } => 41,
    }
}

fn keys_of(fact: &Fact) -> u64 {
    match fact {
        Fact::WriteReserved { keys }
        | Fact::WriteFinished { keys }
        | Fact::WriteAborted { keys, .. }
        | Fact::WriteRefused { keys, .. }
        | Fact::StoreFinished { stored: keys, .. }
        | Fact::ReadReserved { keys, .. }
        | Fact::ReadFinished { keys, .. }
        | Fact::ReadFailed { keys, .. }
        | Fact::Accessed { keys }
        | Fact::Evicted { keys, .. }
        | Fact::Retrieved { keys, .. }
        | Fact::Stored { keys, .. }
        | Fact::L2StoreSubmitted { keys, .. }
        | Fact::L2StoreEnded { keys, .. }
        | Fact::L2StoreDropped { keys, .. }
        | Fact::L2LoadSubmitted { keys, .. }
        | Fact::L2LoadEnded { keys, .. }
        | Fact::L2PrefetchFailed { keys, .. }
        | Fact::L2Stored { keys, .. }
        | Fact::L2Accessed { keys, .. }
        | Fact::L2Removed { keys, .. } => keys.len(),
        Fact::L2LookupSubmitted { keys, .. } | Fact::L2LookupFound { keys, .. } => u64::from(*keys),
        Fact::TransferEnded(end) => u64::from(end.keys),
        _ => 0,
    }
}

/// Effects of one event that are told by kind. Nearly every event has one.
const EFFECTS_TOLD: usize = 8;
/// Runs of facts that are.
const RUNS_TOLD: usize = 12;
const WHAT: &str = "an outcome";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Connection, Reply};
    use crate::recording::secret::Numbered;
    use crate::slots::SlotName;
    use alloc::string::ToString;

    fn outcome(out: &Outbox) -> Outcome {
        let part = Part::since((0, 0), out);
        Outcome::of(&mut Digest::START.clone(), &Numbered, &[], &part)
    }

    fn reply() -> Reply {
        let name = SlotName { index: 1, generation: 2 };
        Reply { connection: Connection(name), request: name }
    }

    #[test]
    fn an_outcome_comes_back_and_reads_like_a_sentence() {
        let mut out = Outbox::default();
        out.answer(reply(), Answer::Count(7));
        out.tell(Fact::StaleEnding);
        out.tell(Fact::QuotaChanged);
        out.tell(Fact::InstanceTold { instance: crate::names::InstanceId(3) });
        let told = outcome(&out);
        assert_eq!(
            told.to_string(),
            "answer count 7; stale ending, clear or quota x2, instance told"
        );
        assert_eq!((told.effects(), told.facts()), (1, 3));
        let mut bytes = Vec::new();
        told.write(&mut bytes);
        assert_eq!(Outcome::read(&mut Input::new(&bytes, 0)), Ok(told));
        assert_eq!(outcome(&Outbox::default()).to_string(), "nothing");
    }

    #[test]
    fn more_than_is_told_still_counts() {
        let mut out = Outbox::default();
        let mut before = outcome(&out);
        for _ in 0..40 {
            out.answer(reply(), Answer::None);
            out.tell(Fact::StaleEnding);
            out.tell(Fact::InstanceTold { instance: crate::names::InstanceId(3) });
            let now = outcome(&out);
            assert_ne!(now, before);
            before = now;
        }
        assert!(before.to_string().contains("and 32 more; "), "{before}");
        assert!(before.to_string().ends_with("and 68 more kinds"), "{before}");
        let mut bytes = Vec::new();
        before.write(&mut bytes);
        assert!(bytes.len() < 80, "{} bytes", bytes.len());
        assert_eq!(Outcome::read(&mut Input::new(&bytes, 0)), Ok(before));
    }

    #[test]
    fn the_first_difference_shows_in_the_digest() {
        let (mut one, mut other) = (Outbox::default(), Outbox::default());
        one.tell(Fact::Cleared { force: true });
        other.tell(Fact::Cleared { force: false });
        assert_ne!(outcome(&one), outcome(&other));
    }
}
