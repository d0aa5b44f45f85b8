//! The fields of events about lower tiers. Its one invariant is that of `events`: `read` gives back
//! what `write` was given, with numbers in place of salts, chunk hashes and digests.
//!
//! ```text
//! setup   name, text | flags u8 (1 shared, 2 keeps data, 4 on second touch, 8 verify)
//!         | v policy | v each: capacity, objects, charge, watermark, ratio, stores, loads,
//!         deadlines of probes, loads and stores in ns, bytes a second and a day, scrubbed bytes
//! scan    v adapter | v count | of each: model | salt u64 | v rank | v group | 16 bytes for its
//!         chunk | v bytes | seal
//! seal    u8 0, or 1 | digest u32 | layout u32
//! probe   name | v 0, or v 1 + count | of each: u8 0, or 1 | v bytes
//! delete  model | salt u64 | v rank | v group | 16 bytes for its chunk | u8 (1 from L1, 2 forced)
//!         | v adapter + 1, 0 for none
//! ending  name | u8 how | v bytes where there are other ones than expected
//! ```

use super::bytes::{Fault, Input, Malformed, Write};
use super::digest::clip_to;
use super::events::{Reading, Writing, name, one_of};
use super::header::{POLICIES, nanos, number_in};
use super::secret::{Naming, Numbered};
use crate::config::AdapterSetup;
use crate::event::TierFault;
use crate::event::{
    DeleteOutcome, Event, Found, LoadOutcome, Named, OperatorAsk, Scanned, StoreOutcome,
};
use crate::limits::{ADAPTER_NAME_BYTES_MAX, SCANNED_PER_EVENT};
use crate::names::{AdapterId, ChunkHash, KvRank, Seal, Ticket};
use crate::time::Duration;
use core::ops::Range;

impl<N: Naming> Writing<'_, N> {
    pub(super) fn adapter(&mut self, adapter: AdapterId) {
        self.bytes.number(adapter.0.into());
    }

    pub(super) fn setup(&mut self, setup: &AdapterSetup<'_>) {
        let AdapterSetup {
            // Taken apart, so that a new setting is not forgotten.
            name,
            is_shared,
            keeps_data,
            capacity_bytes,
            objects_max,
            charge_bytes,
            policy,
            watermark_ppm,
            ratio_ppm,
            stores_max,
            loads_max,
            probe_deadline,
            load_deadline,
            store_deadline,
            on_second_touch,
            write_bytes_per_second,
            write_bytes_per_day,
            scrub_bytes_per_second,
            verify,
        } = *setup;
        self.bytes.text(clip_to(name, ADAPTER_NAME_BYTES_MAX));
        let flags = [is_shared, keeps_data, on_second_touch, verify].map(u8::from);
        self.bytes.byte(flags.iter().rev().fold(0, |all, flag| all << 1 | flag));
        self.bytes.number(number_in(&POLICIES, policy));
        let numbers: [u64; NUMBERS] = [
            capacity_bytes,
            objects_max.into(),
            charge_bytes.into(),
            watermark_ppm,
            ratio_ppm,
            stores_max.into(),
            loads_max.into(),
            nanos(probe_deadline),
            nanos(load_deadline),
            nanos(store_deadline),
            write_bytes_per_second,
            write_bytes_per_day,
            scrub_bytes_per_second,
        ];
        numbers.into_iter().for_each(|number| self.bytes.number(number));
    }

    pub(super) fn scanned(&mut self, adapter: AdapterId, found: &[Scanned<'_>]) {
        self.adapter(adapter);
        self.bytes.number(found.len() as u64);
        for Scanned { model, salt, rank, group, hash, bytes, seal } in found {
            self.models.write(model, self.bytes);
            self.bytes.fixed_u64(self.naming.salt(salt));
            self.bytes.number(rank.0.into());
            self.bytes.number((*group).into());
            self.bytes.extend_from_slice(&self.naming.chunk(hash).to_le_bytes());
            self.bytes.number(*bytes);
            self.bytes.byte(seal.is_some().into());
            if let Some(seal) = seal {
                self.seal(seal);
            }
        }
    }

    pub(super) fn delete(
        &mut self,
        key: &Named<'_>,
        from_l1: bool,
        adapter: Option<AdapterId>,
        force: bool,
    ) {
        let Named { model, salt, rank, group, hash } = key;
        self.models.write(model, self.bytes);
        self.bytes.fixed_u64(self.naming.salt(salt));
        self.bytes.number(rank.0.into());
        self.bytes.number((*group).into());
        self.bytes.extend_from_slice(&self.naming.chunk(hash).to_le_bytes());
        self.bytes.byte(u8::from(from_l1) | u8::from(force) << 1);
        self.bytes.number(adapter.map_or(0, |adapter| u64::from(adapter.0) + 1));
    }

    pub(super) fn probe_ended(&mut self, ticket: Ticket, found: Option<&[Option<Found>]>) {
        self.name(ticket.0);
        self.bytes.number(found.map_or(0, |found| found.len() as u64 + 1));
        for found in found.into_iter().flatten() {
            let Some(Found { bytes, seal }) = found else {
                self.bytes.byte(PROBED_NONE);
                continue;
            };
            self.bytes.byte(if seal.is_some() { PROBED_SEALED } else { PROBED_BYTES });
            self.bytes.number(*bytes);
            if let Some(seal) = seal {
                self.seal(seal);
            }
        }
    }

    fn seal(&mut self, Seal { digest, layout }: &Seal) {
        self.bytes.fixed_u32(self.naming.digest(*digest));
        self.bytes.fixed_u32(*layout);
    }

    pub(super) fn store_ended(&mut self, ticket: Ticket, outcome: StoreOutcome) {
        self.name(ticket.0);
        match outcome {
            StoreOutcome::Stored => self.bytes.byte(DONE),
            StoreOutcome::Present { bytes } => {
                self.bytes.byte(OTHER);
                self.bytes.number(bytes);
            }
            StoreOutcome::Failed(fault) => self.failed(fault),
        }
    }

    pub(super) fn load_ended(&mut self, ticket: Ticket, outcome: LoadOutcome) {
        self.name(ticket.0);
        match outcome {
            LoadOutcome::Loaded => self.bytes.byte(DONE),
            LoadOutcome::Absent => self.bytes.byte(ABSENT),
            LoadOutcome::OtherSize { bytes } => {
                self.bytes.byte(OTHER);
                self.bytes.number(bytes);
            }
            LoadOutcome::Failed(fault) => self.failed(fault),
        }
    }

    pub(super) fn delete_ended(&mut self, ticket: Ticket, outcome: DeleteOutcome) {
        self.name(ticket.0);
        match outcome {
            DeleteOutcome::Deleted => self.bytes.byte(DONE),
            DeleteOutcome::Absent => self.bytes.byte(ABSENT),
            DeleteOutcome::Failed(fault) => self.failed(fault),
        }
    }

    pub(super) fn scrub_ended(&mut self, ticket: Ticket, digest: Option<u32>) {
        self.name(ticket.0);
        self.bytes.byte(digest.is_some().into());
        if let Some(digest) = digest {
            self.bytes.fixed_u32(self.naming.digest(digest));
        }
    }

    fn failed(&mut self, fault: TierFault) {
        self.bytes.byte(FAILED + number_in(&FAULTS, fault) as u8);
    }
}

/// An object that a scan told, with places in place of its names: the list that an event borrows
/// cannot stand beside the names that the list borrows.
#[derive(Clone, Debug)]
pub(super) struct FoundObject {
    model: Range<usize>,
    salt: Range<usize>,
    rank: KvRank,
    group: u16,
    hash: ChunkHash,
    bytes: u64,
    seal: Option<Seal>,
}

/// What a scan told.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'r> {
    pub adapter: AdapterId,
    found: &'r [FoundObject],
    names: &'r str,
}

impl<'r> Scan<'r> {
    pub fn objects(&self) -> impl ExactSizeIterator<Item = Scanned<'r>> {
        let (found, names) = (self.found, self.names);
        found.iter().map(|object| Scanned {
            model: &names[object.model.clone()],
            salt: &names[object.salt.clone()],
            rank: object.rank,
            group: object.group,
            hash: object.hash,
            bytes: object.bytes,
            seal: object.seal,
        })
    }
}

impl Reading {
    /// The fields of an event of this kind, which is one about lower tiers and no scan.
    pub(super) fn tier_event(
        &mut self,
        kind: u8,
        input: &mut Input<'_>,
    ) -> Result<Event<'_>, Malformed> {
        Ok(match kind {
            25 => {
                let adapter = adapter(input)?;
                Event::AdapterAdded { adapter, setup: self.setup(input)? }
            }
            27 => Event::AdapterScanEnded { adapter: adapter(input)? },
            28 => self.probe_ended(input)?,
            29 => {
                let ticket = Ticket(name(input)?);
                let outcome = match how(input)? {
                    How::Done => StoreOutcome::Stored,
                    How::Other(bytes) => StoreOutcome::Present { bytes },
                    How::Failed(fault) => StoreOutcome::Failed(fault),
                    How::Absent => return Err(input.fault(ENDING)),
                };
                Event::StoreEnded { ticket, outcome }
            }
            30 => {
                let ticket = Ticket(name(input)?);
                let outcome = match how(input)? {
                    How::Done => LoadOutcome::Loaded,
                    How::Absent => LoadOutcome::Absent,
                    How::Other(bytes) => LoadOutcome::OtherSize { bytes },
                    How::Failed(fault) => LoadOutcome::Failed(fault),
                };
                Event::LoadEnded { ticket, outcome }
            }
            31 => {
                let ticket = Ticket(name(input)?);
                let outcome = match how(input)? {
                    How::Done => DeleteOutcome::Deleted,
                    How::Absent => DeleteOutcome::Absent,
                    How::Failed(fault) => DeleteOutcome::Failed(fault),
                    How::Other(_) => return Err(input.fault(ENDING)),
                };
                Event::DeleteEnded { ticket, outcome }
            }
            32 => {
                let ticket = Ticket(name(input)?);
                Event::DigestEnded { ticket, digest: input.fixed_u32("a digest")? }
            }
            _ => {
                let ticket = Ticket(name(input)?);
                let digest = match input.flag("a digest")? {
                    true => Some(input.fixed_u32("a digest")?),
                    false => None,
                };
                Event::ScrubEnded { ticket, digest }
            }
        })
    }

    fn setup(&mut self, input: &mut Input<'_>) -> Result<AdapterSetup<'_>, Malformed> {
        let what = "an adapter";
        let start = *input;
        let value = || start.fault(Fault::Value { what });
        self.scratch.names.clear();
        self.scratch.names.push_str(input.text(ADAPTER_NAME_BYTES_MAX, what)?);
        let flags = one_of(input, 16, what)?;
        let policy = usize::try_from(input.number(what)?).ok();
        let policy = *policy.and_then(|policy| POLICIES.get(policy)).ok_or_else(value)?;
        let mut numbers = [0; NUMBERS];
        for number in &mut numbers {
            *number = input.number(what)?;
        }
        let count = |number: u64| u32::try_from(number).map_err(|_| value());
        let [capacity_bytes, objects, charge, watermark_ppm, ratio_ppm, stores, loads, ..] =
            numbers;
        let [.., probe, load, store, a_second, a_day, scrub] = numbers;
        Ok(AdapterSetup {
            name: &self.scratch.names,
            is_shared: flags & 1 != 0,
            keeps_data: flags & 2 != 0,
            capacity_bytes,
            objects_max: count(objects)?,
            charge_bytes: count(charge)?,
            policy,
            watermark_ppm,
            ratio_ppm,
            stores_max: count(stores)?,
            loads_max: count(loads)?,
            probe_deadline: Duration::from_nanos(probe),
            load_deadline: Duration::from_nanos(load),
            store_deadline: Duration::from_nanos(store),
            on_second_touch: flags & 4 != 0,
            write_bytes_per_second: a_second,
            write_bytes_per_day: a_day,
            scrub_bytes_per_second: scrub,
            verify: flags & 8 != 0,
        })
    }

    /// The fields of `Event::AdapterScanned`.
    pub(super) fn scan(&mut self, input: &mut Input<'_>) -> Result<Scan<'_>, Malformed> {
        let what = "what a scan found";
        let adapter = adapter(input)?;
        self.scratch.found.clear();
        self.scratch.names.clear();
        let start = *input;
        let count = input.number(what)?;
        if count > SCANNED_PER_EVENT as u64 {
            return Err(start.fault(Fault::Value { what }));
        }
        for _ in 0..count {
            self.models.read(input, &mut self.scratch.model)?;
            self.salt(input)?;
            let rank = KvRank(input.number_u32(what)?);
            let start = *input;
            let group = u16::try_from(input.number(what)?);
            let group = group.map_err(|_| start.fault(Fault::Value { what }))?;
            let hash = Numbered::hash_of(u128::from_le_bytes(input.array(what)?));
            let bytes = input.number(what)?;
            let seal = if input.flag(what)? { Some(seal(input, what)?) } else { None };
            let names = &mut self.scratch.names;
            let mut keep = |text: &str| {
                let start = names.len();
                names.push_str(text);
                start..names.len()
            };
            let (model, salt) = (keep(&self.scratch.model), keep(&self.scratch.salt));
            let object = FoundObject { model, salt, rank, group, hash, bytes, seal };
            self.scratch.found.push(object);
        }
        Ok(Scan { adapter, found: &self.scratch.found, names: &self.scratch.names })
    }

    /// The fields of `OperatorAsk::Delete`.
    pub(super) fn delete(&mut self, input: &mut Input<'_>) -> Result<OperatorAsk<'_>, Malformed> {
        let what = "a delete";
        self.models.read(input, &mut self.scratch.model)?;
        self.salt(input)?;
        let rank = KvRank(input.number_u32(what)?);
        let start = *input;
        let value = || start.fault(Fault::Value { what });
        let group = u16::try_from(input.number(what)?).map_err(|_| value())?;
        let hash = Numbered::hash_of(u128::from_le_bytes(input.array(what)?));
        let flags = one_of(input, 4, what)?;
        let adapter = match input.number(what)?.checked_sub(1) {
            Some(number) => Some(AdapterId(u16::try_from(number).map_err(|_| value())?)),
            None => None,
        };
        let (model, salt) = (&self.scratch.model, &self.scratch.salt);
        let key = Named { model, salt, rank, group, hash };
        Ok(OperatorAsk::Delete { key, from_l1: flags & 1 != 0, adapter, force: flags & 2 != 0 })
    }

    fn probe_ended(&mut self, input: &mut Input<'_>) -> Result<Event<'_>, Malformed> {
        let what = "what a probe found";
        let ticket = Ticket(name(input)?);
        let count = input.number(what)?;
        let probed = &mut self.scratch.probed;
        probed.clear();
        let Some(count) = count.checked_sub(1) else {
            return Ok(Event::ProbeEnded { ticket, found: None });
        };
        // What is claimed must be there: each takes a byte at least.
        if count > input.left() as u64 {
            return Err(input.fault(Fault::Truncated { what }));
        }
        for _ in 0..count {
            probed.push(match one_of(input, PROBED_SEALED + 1, what)? {
                PROBED_NONE => None,
                PROBED_BYTES => Some(Found::of(input.number(what)?)),
                _ => Some(Found { bytes: input.number(what)?, seal: Some(seal(input, what)?) }),
            });
        }
        Ok(Event::ProbeEnded { ticket, found: Some(probed) })
    }
}

pub(super) fn adapter(input: &mut Input<'_>) -> Result<AdapterId, Malformed> {
    let start = *input;
    let number = u16::try_from(input.number("an adapter")?);
    Ok(AdapterId(number.map_err(|_| start.fault(Fault::Value { what: "an adapter" }))?))
}

fn seal(input: &mut Input<'_>, what: &'static str) -> Result<Seal, Malformed> {
    let digest = input.fixed_u32(what)?;
    Ok(Seal { digest, layout: input.fixed_u32(what)? })
}

/// How an order to an adapter ended, whichever it was.
enum How {
    Done,
    Absent,
    Other(u64),
    Failed(TierFault),
}

fn how(input: &mut Input<'_>) -> Result<How, Malformed> {
    let number = one_of(input, FAILED + FAULTS.len() as u8, "how it ended")?;
    Ok(match number {
        DONE => How::Done,
        ABSENT => How::Absent,
        OTHER => How::Other(input.number("how it ended")?),
        failed => How::Failed(FAULTS[usize::from(failed - FAILED)]),
    })
}

/// Numbers of an adapter's setup.
const NUMBERS: usize = 13;
/// What a probe found under a key: nothing, an object, or one with its seal.
const PROBED_NONE: u8 = 0;
const PROBED_BYTES: u8 = 1;
const PROBED_SEALED: u8 = 2;
const DONE: u8 = 0;
const ABSENT: u8 = 1;
const OTHER: u8 = 2;
/// And the place of its cause.
const FAILED: u8 = 3;
const FAULTS: [TierFault; 4] =
    [TierFault::NoSpace, TierFault::Io, TierFault::Denied, TierFault::Cancelled];
const ENDING: Fault = Fault::Value { what: "how it ended" };
