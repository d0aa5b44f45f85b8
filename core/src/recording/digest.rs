//! One number for everything that an engine decided: effects and facts as 64-bit words, folded in
//! order. Its one invariant: the words of a decision do not depend on the machine, the process or
//! the secret of a recording, so a replay that decides the same comes to the same number.
//!
//! Chunks of the event at hand are told by their position in it: a comparison costs less than
//! SipHash. Others, such as evicted ones, are told by their number. Causes are told by the place at
//! which they are declared.

mod paged;
mod tiers;

use super::outcome::Part;
use super::secret::Naming;
use crate::effect::{Answer, Effect, OperatorAnswer, Refusal, SlotRange};
use crate::event::AttachFault;
use crate::fact::{Fact, FactKey, Gauges, KeyRange};
use crate::limits::MODEL_BYTES_MAX;
use crate::names::{ChunkHash, Layout, Operator, Reply, Ticket};
use crate::slots::SlotName;

/// Not for keeping secrets: whoever can choose words can choose a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    pub const START: Digest = Digest(0x9E37_79B9_7F4A_7C15);

    pub fn value(self) -> u64 {
        self.0
    }

    pub fn word(&mut self, word: u64) {
        // A multiplication of 64 bits by 64 keeps all of both halves.
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        self.0 = (product as u64 ^ (product >> 64) as u64).wrapping_add(STEP);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    fn pair(&mut self, high: u32, low: u32) {
        self.word(u64::from(high) << 32 | u64::from(low));
    }

    fn name(&mut self, name: SlotName) {
        self.pair(name.index, name.generation);
    }

    fn reply(&mut self, reply: Reply) {
        self.name(reply.connection.0);
        self.name(reply.request);
    }

    /// A text from a client, as far as a recording keeps it.
    fn text(&mut self, text: &str) {
        self.bytes(clip(text).as_bytes());
    }

    fn layout(&mut self, layout: &Layout) {
        let Layout { planes, layers, slots, hidden, dtype } = *layout;
        self.pair(planes.into(), layers);
        self.pair(slots, hidden);
        self.text(dtype.name());
    }
}

/// Folds what one event brought about. `hashes` are those of the event.
pub fn fold<N: Naming>(digest: &mut Digest, naming: &N, hashes: &[ChunkHash], part: &Part<'_>) {
    let mut folder = Folder { digest, naming, hashes, next: 0 };
    folder.digest.pair(part.effects.len() as u32, part.facts.len() as u32);
    part.effects.iter().for_each(|effect| folder.effect(effect, part));
    part.facts.iter().for_each(|fact| folder.fact(fact, part));
}

struct Folder<'a, N> {
    digest: &'a mut Digest,
    naming: &'a N,
    hashes: &'a [ChunkHash],
    /// Where the next key is looked for: keys mostly come in the order of chunks.
    next: usize,
}

impl<N: Naming> Folder<'_, N> {
    fn effect(&mut self, effect: &Effect, part: &Part<'_>) {
        let digest = &mut *self.digest;
        digest.word(super::outcome::kind_of_effect(effect).into());
        match *effect {
            Effect::Answer { reply, ref answer } => {
                digest.reply(reply);
                self.answer(answer, part);
            }
            Effect::Send { reply, ticket, slots, ref layout, with_slots } => {
                digest.reply(reply);
                digest.word(with_slots.into());
                self.lent(ticket, slots, layout, part);
            }
            Effect::Receive { reply, ticket, slots, ref layout } => {
                digest.reply(reply);
                self.lent(ticket, slots, layout, part);
            }
            Effect::Attach { attachment, reply, ref pages } => {
                digest.name(attachment.0);
                digest.reply(reply);
                super::paged::numbers_of(pages).into_iter().for_each(|number| digest.word(number));
            }
            Effect::Detach { attachment } => digest.name(attachment.0),
            Effect::Copy { ticket, attachment, copy } => {
                digest.name(ticket.0);
                digest.name(attachment.0);
                digest.reply(copy.reply);
                digest.word(copy.direction as u64);
                digest.word(copy.skip_tokens);
                let blocks = &part.blocks[copy.blocks.start as usize..copy.blocks.end as usize];
                digest.word(blocks.len() as u64);
                blocks.iter().for_each(|id| digest.word((*id).into()));
                self.slots(copy.slots, part);
            }
            Effect::OperatorAnswer { operator: Operator(operator), answer } => {
                digest.word(operator);
                match answer {
                    OperatorAnswer::Done => digest.word(1),
                    OperatorAnswer::Removed(removed) => digest.word(2 + u64::from(removed)),
                    OperatorAnswer::Full(bound) => digest.text(bound),
                    OperatorAnswer::Deleted { deleted, skipped } => {
                        digest.word(4);
                        digest.word(u64::from(deleted) << 32 | u64::from(skipped));
                    }
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
            | Effect::AdapterClosed { .. } => self.tier_effect(effect, part),
        }
    }

    /// A chunk that is none of the event's, or stands where nobody looked.
    fn unlisted(&mut self, hash: &ChunkHash) {
        let number = self.naming.chunk(hash);
        self.digest.word(0);
        self.digest.word(number as u64);
        self.digest.word((number >> 64) as u64);
    }

    fn lent(&mut self, ticket: Ticket, slots: SlotRange, layout: &Layout, part: &Part<'_>) {
        self.digest.name(ticket.0);
        self.slots(slots, part);
        self.digest.layout(layout);
    }

    fn answer(&mut self, answer: &Answer, part: &Part<'_>) {
        let digest = &mut *self.digest;
        match *answer {
            Answer::None
            | Answer::NoTexts
            | Answer::Registered
            | Answer::NoContext
            | Answer::RetrieveMiss
            | Answer::BlendMiss
            | Answer::HandshakeRefused
            | Answer::EmptyArray
            | Answer::ModuleRefused => {}
            Answer::Bool(value) | Answer::EventFlag(value) => digest.word(value.into()),
            Answer::Count(count) => digest.word(count),
            Answer::Text(text) => digest.text(text),
            Answer::Refused(refusal) => digest.word(number_of(refusal).into()),
            Answer::StoreSlots { slots, ref layout }
            | Answer::RetrieveSlots { slots, ref layout } => {
                self.slots(slots, part);
                self.digest.layout(layout);
            }
            Answer::PeerMisses { keys } => digest.word(keys.into()),
            Answer::EventsOff { incarnation } => digest.word(incarnation),
        }
    }

    fn slots(&mut self, range: SlotRange, part: &Part<'_>) {
        let slots = &part.slots[range.start as usize..range.end as usize];
        self.digest.word(slots.len() as u64);
        let mut bytes_before = 0;
        for slot in slots {
            let Some(place) = slot.place else {
                self.digest.pair(slot.chunk, 1);
                continue;
            };
            self.digest.pair(slot.chunk, 2 + u32::from(place.arena.0));
            self.digest.word(place.offset);
            if place.bytes != bytes_before {
                bytes_before = place.bytes;
                self.digest.word(!place.bytes);
            }
        }
    }

    fn fact(&mut self, fact: &Fact, part: &Part<'_>) {
        let digest = &mut *self.digest;
        digest.word(super::outcome::kind_of_fact(fact).into());
        match fact {
            Fact::TenantNamed { tenant, model, salt } => {
                digest.word(tenant.0.into());
                digest.text(model);
                digest.word(self.naming.salt(salt));
            }
            Fact::InstanceRegistered { instance, model, world_size, layers } => {
                digest.word(instance.0 as u64);
                digest.text(model);
                digest.pair(*world_size, *layers);
            }
            Fact::InstanceEnded { instance, why } => {
                digest.word(instance.0 as u64);
                digest.word(*why as u64);
            }
            Fact::InstanceTold { instance } => digest.word(instance.0 as u64),
            Fact::RegistrationRefused { instance, model, reason } => {
                digest.word(instance.0 as u64);
                digest.text(model);
                digest.word(number_of(*reason).into());
            }
            Fact::RequestFaulted { operation, fault } => {
                digest.text(operation);
                digest.word(*fault as u64);
            }
            Fact::WriteReserved { keys }
            | Fact::WriteFinished { keys }
            | Fact::Accessed { keys } => self.keys(*keys, 0, part),
            Fact::WriteAborted { keys, why } => self.keys(*keys, *why as u32, part),
            Fact::WriteRefused { keys, why } => self.keys(*keys, *why as u32, part),
            Fact::StoreFinished { stored, failed } => self.keys(*stored, *failed, part),
            Fact::ReadReserved { keys, readers } => self.keys(*keys, (*readers).into(), part),
            Fact::ReadFinished { keys, why } => self.keys(*keys, *why as u32, part),
            Fact::ReadFailed { keys, why } => self.keys(*keys, *why as u32, part),
            Fact::Evicted { keys, why } => self.keys(*keys, *why as u32, part),
            Fact::Retrieved { keys, bytes, took } | Fact::Stored { keys, bytes, took } => {
                digest.word(*bytes);
                digest.word(took.as_nanos() as u64);
                self.keys(*keys, 0, part);
            }
            Fact::EvictionTick { .. }
            | Fact::LookupTaken { .. }
            | Fact::LookupSkipped { .. }
            | Fact::StaleEnding
            | Fact::Cleared { .. }
            | Fact::QuotaChanged
            | Fact::Gauges(_) => self.fact_without_keys(fact),
            Fact::TransferSubmitted { .. }
            | Fact::TransferEnded(_)
            | Fact::BlocksAllocated { .. }
            | Fact::SessionEnded { .. } => self.paged_fact(fact),
            Fact::L2PrefetchFailed { keys, why } => self.keys(*keys, *why as u32, part),
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
            | Fact::L2Stored { .. }
            | Fact::L2Accessed { .. }
            | Fact::L2Removed { .. } => self.fact_of_tier(fact, part),
        }
    }

    fn fact_without_keys(&mut self, fact: &Fact) {
        let digest = &mut *self.digest;
        match fact {
            Fact::EvictionTick { used_bytes, total_bytes, triggered } => {
                digest.word(*used_bytes);
                digest.word(*total_bytes);
                digest.word((*triggered).into());
            }
            Fact::LookupTaken {
                tenant,
                requested_chunks,
                hit_chunks,
                l1_hit_chunks,
                hit_keys,
                l1_hit_keys,
                stop,
            } => {
                digest.pair(tenant.0, *stop as u32);
                digest.pair(*requested_chunks, *hit_chunks);
                digest.word((*hit_keys).into());
                // Version 1 told no parts: all of a hit was in L1.
                if (l1_hit_chunks, l1_hit_keys) != (hit_chunks, hit_keys) {
                    digest.pair(*l1_hit_chunks, *l1_hit_keys);
                }
            }
            Fact::LookupSkipped { model, salt, why } => {
                digest.text(model);
                digest.word(self.naming.salt(salt));
                digest.word(*why as u64);
            }
            Fact::Cleared { force } => digest.word((*force).into()),
            Fact::Gauges(gauges) => self.gauges(gauges),
            _ => {}
        }
    }

    fn gauges(&mut self, gauges: &Gauges) {
        let Gauges {
            // Taken apart, so that a new gauge is not forgotten.
            l1_used_bytes,
            l1_total_bytes,
            l1_configured_bytes,
            l1_staging_bytes,
            l1_condemned_bytes,
            l1_leased_bytes,
            l1_objects,
            active_prefetch_jobs,
            sessions,
            instances,
            tickets,
            lease_units,
            ref adapters,
        } = *gauges;
        let memory = [l1_used_bytes, l1_total_bytes, l1_configured_bytes, l1_staging_bytes];
        let held = [l1_condemned_bytes, l1_leased_bytes, l1_objects, active_prefetch_jobs];
        let tables = [sessions, instances, tickets, lease_units];
        for word in memory.into_iter().chain(held).chain(tables) {
            self.digest.word(word);
        }
        adapters.iter().for_each(|adapter| self.adapter_gauges(adapter));
    }

    /// Keys in runs: those that follow the chunks of the event and are alike otherwise are told by
    /// where they begin and how many they are.
    fn keys(&mut self, range: KeyRange, why: u32, part: &Part<'_>) {
        let mut keys = range.of(part.keys);
        self.digest.pair(keys.len() as u32, why);
        while let Some(first) = keys.first() {
            let mut run = 1;
            match self.position(&first.hash) {
                Some(at) => {
                    let follow = keys.iter().zip(&self.hashes[at..]);
                    run = follow.take_while(|(key, hash)| is_like(key, first, hash)).count();
                    self.digest.word((at as u64) << 32 | run as u64);
                    self.next = at + run;
                }
                None => self.unlisted(&first.hash),
            }
            self.digest.word(first.bytes);
            self.digest.pair(first.scope.0, first.tenant.0);
            keys = &keys[run..];
        }
    }

    /// Where in the event's hashes this one is, if it is where one looks first: the chunk after the
    /// last one, the last one again (another rank of it), or the first.
    fn position(&self, hash: &ChunkHash) -> Option<usize> {
        let places = [self.next, self.next.wrapping_sub(1), 0];
        places.into_iter().find(|at| self.hashes.get(*at) == Some(hash))
    }
}

fn is_like(key: &FactKey, first: &FactKey, hash: &ChunkHash) -> bool {
    key.hash == *hash
        && key.bytes == first.bytes
        && key.scope == first.scope
        && key.tenant == first.tenant
}

/// The number of a refusal in recordings. The sentence of `Malformed` is not kept.
pub(super) fn number_of(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::ServerDriven => 1,
        Refusal::QueryCache => 2,
        Refusal::Rope => 3,
        Refusal::EngineDrivenOff => 4,
        Refusal::Malformed(_) => 5,
        Refusal::UnknownDtype => 6,
        Refusal::SlotsNotPositive => 7,
        Refusal::LayoutTooLarge => 8,
        Refusal::WorldSize => 9,
        Refusal::Model => 10,
        Refusal::InstancesFull => 11,
        Refusal::ScopesFull => 12,
        Refusal::ServerDrivenOff => 13,
        Refusal::Pages(_) => 14,
        Refusal::SeveralGroups => 15,
        Refusal::Attach(fault) => 16 + fault as u8,
    }
}

pub(super) fn refusal_of(number: u8) -> Option<Refusal> {
    Some(match number {
        1 => Refusal::ServerDriven,
        2 => Refusal::QueryCache,
        3 => Refusal::Rope,
        4 => Refusal::EngineDrivenOff,
        5 => Refusal::Malformed("malformed, as the recording says"),
        6 => Refusal::UnknownDtype,
        7 => Refusal::SlotsNotPositive,
        8 => Refusal::LayoutTooLarge,
        9 => Refusal::WorldSize,
        10 => Refusal::Model,
        11 => Refusal::InstancesFull,
        12 => Refusal::ScopesFull,
        13 => Refusal::ServerDrivenOff,
        14 => Refusal::Pages("not served, as the recording says"),
        15 => Refusal::SeveralGroups,
        16 => Refusal::Attach(AttachFault::Absent),
        17 => Refusal::Attach(AttachFault::Denied),
        18 => Refusal::Attach(AttachFault::Short),
        19 => Refusal::Attach(AttachFault::Full),
        20 => Refusal::Attach(AttachFault::Failed),
        21 => Refusal::Attach(AttachFault::NoDriver),
        22 => Refusal::Attach(AttachFault::NoCard),
        23 => Refusal::Attach(AttachFault::Device),
        _ => return None,
    })
}

/// A refused registration may name a model of any length; so much of it is recorded.
pub(super) fn clip(text: &str) -> &str {
    clip_to(text, MODEL_BYTES_MAX)
}

/// So many bytes of it, or fewer where a character would be cut.
pub(super) fn clip_to(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let end = (0..=bytes_max).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Odd, and with as many ones as zeros.
const FACTOR: u64 = 0xD6E8_FEB8_6659_FD93;
/// A state of zero would swallow the next word.
const STEP: u64 = 0xA076_1D64_78BD_642F;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_order_count() {
        let of = |words: &[u64]| {
            let mut digest = Digest::START;
            words.iter().for_each(|word| digest.word(*word));
            digest.value()
        };
        assert_ne!(of(&[1, 2]), of(&[2, 1]));
        assert_ne!(of(&[0]), of(&[0, 0]));
        for bit in 0..64 {
            assert_ne!(of(&[1 << bit, 7]), of(&[0, 7]), "bit {bit}");
        }
        let text = |text: &[u8]| {
            let mut digest = Digest::START;
            digest.bytes(text);
            digest.value()
        };
        assert_ne!(text(b"a"), text(b"a\0"));
    }

    /// Causes are told by the order in which they are declared: new ones belong at the end, or
    /// every recording of earlier versions differs.
    #[test]
    fn causes_keep_their_numbers() {
        use crate::fact::*;
        assert_eq!((Removal::Watermark as u8, Removal::ForcedClear as u8), (0, 4));
        assert_eq!((Removal::Temporary as u8, Removal::Demoted as u8), (5, 6));
        assert_eq!((Abort::WriteTtl as u8, Abort::Replaced as u8), (0, 6));
        assert_eq!((Abort::Load as u8, Abort::Digest as u8, Abort::Copy as u8), (7, 8, 9));
        assert_eq!((NoRoom::Held as u8, NoRoom::Trimmed as u8), (0, 6));
        assert_eq!((LeaseEnd::Retrieved as u8, LeaseEnd::ConnectionEnded as u8), (0, 7));
        assert_eq!(LeaseEnd::CopyFailed as u8, 8);
        assert_eq!((LookupStop::Complete as u8, LookupStop::NoRoom as u8), (0, 5));
        let of_tiers = [LookupStop::TierError, LookupStop::TimedOut];
        assert_eq!(of_tiers.map(|stop| stop as u8), [6, 7]);
        assert_eq!(LookupStop::SlowerThanRecompute as u8, 8);
        assert_eq!((EarlyExit::NoGpuContext as u8, EarlyExit::EmptyChunkHashes as u8), (0, 1));
        assert_eq!((ReadFailure::NotFound as u8, ReadFailure::Layout as u8), (0, 2));
        assert_eq!((InstanceEnd::Unregistered as u8, InstanceEnd::Replaced as u8), (0, 2));
        assert_eq!(InstanceEnd::ConnectionEnded as u8, 3);
        assert_eq!((RequestFault::BadBlocks as u8, RequestFault::NoMemory as u8), (11, 12));
        assert_eq!((RequestFault::OneFrame as u8, RequestFault::NoSuchHold as u8), (0, 10));
        assert_eq!((AdapterState::Scanning as u8, AdapterState::Gone as u8), (0, 4));
        assert_eq!((L2StoreEnd::Stored as u8, L2StoreEnd::TimedOut as u8), (0, 4));
        assert_eq!((StoreDrop::Failed as u8, StoreDrop::Unfit as u8), (0, 7));
        assert_eq!((L2LoadEnd::Loaded as u8, L2LoadEnd::Cancelled as u8), (0, 6));
        assert_eq!((PrefetchFailure::L1Oom as u8, PrefetchFailure::NotFound as u8), (0, 1));
        assert_eq!(PrefetchFailure::SlowerThanRecompute as u8, 3);
        assert_eq!((L2Removal::Watermark as u8, L2Removal::Operator as u8), (0, 6));
    }

    #[test]
    fn refusals_have_numbers_of_their_own() {
        for number in 1..=23 {
            let refusal = refusal_of(number).expect("this number is given");
            assert_eq!(number_of(refusal), number);
        }
        assert_eq!((refusal_of(0), refusal_of(24)), (None, None));
    }
}
