//! The fields of each event. Its one invariant: `read` gives back what `write` was given, with
//! numbers in place of request ids, salts and chunk hashes.
//!
//! Those of lower tiers are in `tiers`, those of server-driven transfer in `paged`.
//!
//! ```text
//! name      v index | v generation                    (connections, requests, tickets)
//! reply     name of the connection | name of the request
//! keys      model | salt u64 | request u64 | v world size | v worker + 1, 0 for none
//!           | v readers | v first chunk | v end chunk | hashes
//! instance  u64
//! ```

use super::bytes::{Fault, Input, Malformed, Write};
use super::chunks::{Known, Told};
use super::digest::{number_of, refusal_of};
use super::header::nanos;
pub use super::kinds::KINDS;
pub(super) use super::kinds::{FINISH, SCANNED, TOKENS};
use super::models::Models;
use super::paged::{self, ALLOCATED, ATTACH_ENDED, COPY_ENDED, REGISTER_PAGED, RETRIEVE};
use super::secret::Naming;
use super::tiers::{FoundObject, adapter};
use crate::event::{AllocatedBlock, Ask, BodyOutcome, Event, Found, Keys, OperatorAsk};
use crate::event::{Registration, SendOutcome};
use crate::names::{ChunkHash, Connection, Dtype, InstanceId, Layout, Operator, Reply, Ticket};
use crate::slots::SlotName;
use crate::time::Duration;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

/// The number of an event's kind in recordings. Numbers are never given to another kind.
pub(super) fn kind_of(event: &Event<'_>) -> u8 {
    match event {
        Event::Tick => 1,
        Event::ConnectionEnded { .. } => 2,
        Event::SendEnded { .. } => 3,
        Event::ReceiveEnded { .. } => 4,
        Event::ArenaGrown { .. } => 5,
        Event::OperatorAsked { ask, .. } => match ask {
            OperatorAsk::Clear { .. } => 6,
            OperatorAsk::QuotaSet { .. } => 7,
            OperatorAsk::QuotaRemove { .. } => 8,
            OperatorAsk::AdapterRemove { .. } => 34,
            OperatorAsk::Delete { .. } => 35,
        },
        Event::Asked { ask, .. } => match ask {
            Ask::Register(_) => 9,
            Ask::RegisterRefused { .. } => 10,
            Ask::Unregister { .. } => 11,
            Ask::Ping { .. } => 12,
            Ask::Lookup { .. } => 13,
            Ask::QueryPrefetch { .. } => 14,
            Ask::WaitPrefetch { .. } => 15,
            Ask::FreeLookupLocks { .. } => 16,
            Ask::EndSession { .. } => 17,
            Ask::PrepareStore { .. } => 18,
            Ask::CommitStore { .. } => 19,
            Ask::PrepareRetrieve { .. } => 20,
            Ask::CommitRetrieve { .. } => 21,
            Ask::Clear { .. } => 22,
            Ask::RegisterPaged(_) => paged::REGISTER_PAGED,
            Ask::Store { .. } => paged::STORE,
            Ask::Retrieve { .. } => paged::RETRIEVE,
            Ask::BlocksAllocated { .. } => ALLOCATED,
        },
        Event::AttachEnded { .. } => paged::ATTACH_ENDED,
        Event::CopyEnded { .. } => paged::COPY_ENDED,
        Event::AdapterAdded { .. } => 25,
        Event::AdapterScanned { .. } => SCANNED,
        Event::AdapterScanEnded { .. } => 27,
        Event::ProbeEnded { .. } => 28,
        Event::StoreEnded { .. } => 29,
        Event::LoadEnded { .. } => 30,
        Event::DeleteEnded { .. } => 31,
        Event::DigestEnded { .. } => 32,
        Event::ScrubEnded { .. } => 33,
    }
}

/// The writer's side.
pub(super) struct Writing<'a, N> {
    pub naming: &'a N,
    pub known: &'a mut Known,
    pub models: &'a mut Models,
    pub bytes: &'a mut Vec<u8>,
}

impl<N: Naming> Writing<'_, N> {
    pub fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Tick => {}
            Event::Asked { reply, ask } => {
                self.name(reply.connection.0);
                self.name(reply.request);
                self.ask(ask);
            }
            Event::ConnectionEnded { connection } => self.name(connection.0),
            Event::SendEnded { ticket, outcome } => {
                self.name(ticket.0);
                self.bytes.byte(match outcome {
                    SendOutcome::Sent => 0,
                    SendOutcome::Cut => 1,
                });
            }
            Event::ReceiveEnded { ticket, complete, outcome } => {
                self.name(ticket.0);
                self.bytes.number((*complete).into());
                self.bytes.byte(match outcome {
                    BodyOutcome::Whole => 0,
                    BodyOutcome::Short => 1,
                    BodyOutcome::Malformed => 2,
                    BodyOutcome::Cut => 3,
                });
            }
            Event::AttachEnded { attachment, outcome } => self.attach_ended(*attachment, *outcome),
            Event::CopyEnded { ticket, whole } => self.copy_ended(*ticket, *whole),
            Event::ArenaGrown { bytes } => self.bytes.number(*bytes),
            Event::OperatorAsked { operator, ask } => {
                self.bytes.fixed_u64(operator.0);
                match ask {
                    OperatorAsk::Clear { force } => self.bytes.byte((*force).into()),
                    OperatorAsk::QuotaSet { salt, bytes } => {
                        self.bytes.fixed_u64(self.naming.salt(salt));
                        self.bytes.number(*bytes);
                    }
                    OperatorAsk::QuotaRemove { salt } => {
                        self.bytes.fixed_u64(self.naming.salt(salt));
                    }
                    OperatorAsk::AdapterRemove { adapter } => self.adapter(*adapter),
                    OperatorAsk::Delete { key, from_l1, adapter, force } => {
                        self.delete(key, *from_l1, *adapter, *force);
                    }
                }
            }
            Event::AdapterAdded { adapter, setup } => {
                self.adapter(*adapter);
                self.setup(setup);
            }
            Event::AdapterScanned { adapter, found } => self.scanned(*adapter, found),
            Event::AdapterScanEnded { adapter } => self.adapter(*adapter),
            Event::ProbeEnded { ticket, found } => self.probe_ended(*ticket, *found),
            Event::StoreEnded { ticket, outcome } => self.store_ended(*ticket, *outcome),
            Event::LoadEnded { ticket, outcome } => self.load_ended(*ticket, *outcome),
            Event::DeleteEnded { ticket, outcome } => self.delete_ended(*ticket, *outcome),
            Event::DigestEnded { ticket, digest } => {
                self.name(ticket.0);
                self.bytes.fixed_u32(self.naming.digest(*digest));
            }
            Event::ScrubEnded { ticket, digest } => self.scrub_ended(*ticket, *digest),
        }
    }

    fn ask(&mut self, ask: &Ask<'_>) {
        match ask {
            Ask::Register(registration) => self.registration(registration),
            Ask::RegisterRefused { instance, model, reason } => {
                self.bytes.fixed_u64(instance.0 as u64);
                self.models.write(model, self.bytes);
                self.bytes.byte(number_of(*reason));
            }
            Ask::Unregister { instance } => self.bytes.fixed_u64(instance.0 as u64),
            Ask::Ping { instance } => {
                self.bytes.byte(instance.is_some().into());
                if let Some(instance) = instance {
                    self.bytes.fixed_u64(instance.0 as u64);
                }
            }
            Ask::Lookup { keys } | Ask::FreeLookupLocks { keys } => self.keys(keys),
            Ask::QueryPrefetch { request } => self.request(request),
            Ask::WaitPrefetch { request, wait } => {
                self.request(request);
                self.bytes.number(nanos(*wait));
            }
            Ask::EndSession { request, hashes } => {
                self.request(request);
                self.known.write(hashes, self.naming, self.bytes);
            }
            Ask::PrepareStore { instance, keys }
            | Ask::PrepareRetrieve { instance, keys }
            | Ask::CommitRetrieve { instance, keys } => {
                self.bytes.fixed_u64(instance.0 as u64);
                self.keys(keys);
            }
            Ask::CommitStore { instance, keys, inline_bytes } => {
                self.bytes.fixed_u64(instance.0 as u64);
                self.bytes.number(*inline_bytes);
                self.keys(keys);
            }
            Ask::Clear { force } => self.bytes.byte((*force).into()),
            Ask::RegisterPaged(registration) => self.paged_registration(registration),
            Ask::Store { instance, keys, blocks } => {
                self.paged_transfer(*instance, keys, blocks, 0);
            }
            Ask::Retrieve { instance, keys, blocks, skip_tokens } => {
                self.paged_transfer(*instance, keys, blocks, *skip_tokens);
            }
            Ask::BlocksAllocated { instance, model, blocks } => {
                self.allocated(*instance, model, blocks);
            }
        }
    }

    fn registration(&mut self, registration: &Registration<'_>) {
        let Registration { instance, model, world_size, block_size, layout } = registration;
        self.bytes.fixed_u64(instance.0 as u64);
        self.models.write(model, self.bytes);
        let Layout { planes, layers, slots, hidden, dtype } = *layout;
        for number in [*world_size, *block_size, planes.into(), layers, slots, hidden] {
            self.bytes.number(number.into());
        }
        self.bytes.text(dtype.name());
    }

    pub(super) fn keys(&mut self, keys: &Keys<'_>) {
        self.models.write(keys.model, self.bytes);
        self.bytes.fixed_u64(self.naming.salt(keys.salt));
        self.request(keys.request);
        self.bytes.number(keys.world_size.into());
        self.bytes.number(keys.worker.map_or(0, |worker| u64::from(worker) + 1));
        self.bytes.number(keys.readers.into());
        self.bytes.number(keys.first_chunk.into());
        self.bytes.number(keys.end_chunk.into());
        self.known.write(keys.hashes, self.naming, self.bytes);
    }

    fn request(&mut self, request: &str) {
        self.bytes.fixed_u64(self.naming.request(request));
    }

    pub(super) fn name(&mut self, name: SlotName) {
        self.bytes.number(name.index.into());
        self.bytes.number(name.generation.into());
    }
}

/// What a read event borrows.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    pub(super) model: String,
    pub(super) salt: String,
    request: String,
    hashes: Vec<ChunkHash>,
    pub(super) blocks: Vec<u32>,
    pub(super) allocated: Vec<AllocatedBlock>,
    pub(super) probed: Vec<Option<Found>>,
    pub(super) found: Vec<FoundObject>,
    /// Names of what was found, one behind the other.
    pub(super) names: String,
}

/// The reader's side.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub told: Told,
    pub models: Models,
    pub(super) scratch: Scratch,
}

/// `Keys` without what it borrows.
pub(super) struct KeyNumbers {
    world_size: u32,
    worker: Option<u32>,
    readers: u16,
    first_chunk: u32,
    end_chunk: u32,
}

impl KeyNumbers {
    pub(super) fn keys<'s>(&self, scratch: &'s Scratch) -> Keys<'s> {
        Keys {
            model: &scratch.model,
            salt: &scratch.salt,
            request: &scratch.request,
            world_size: self.world_size,
            worker: self.worker,
            readers: self.readers,
            first_chunk: self.first_chunk,
            end_chunk: self.end_chunk,
            hashes: &scratch.hashes,
        }
    }
}

impl Reading {
    /// Reads the fields of an event of this kind.
    pub fn event(&mut self, kind: u8, input: &mut Input<'_>) -> Result<Event<'_>, Malformed> {
        Ok(match kind {
            1 => Event::Tick,
            2 => Event::ConnectionEnded { connection: Connection(name(input)?) },
            3 => {
                let ticket = Ticket(name(input)?);
                let outcome = match one_of(input, 2, "how a send ended")? {
                    0 => SendOutcome::Sent,
                    _ => SendOutcome::Cut,
                };
                Event::SendEnded { ticket, outcome }
            }
            4 => {
                let ticket = Ticket(name(input)?);
                let complete = input.number_u32("complete chunks")?;
                let outcome = match one_of(input, 4, "how a body ended")? {
                    0 => BodyOutcome::Whole,
                    1 => BodyOutcome::Short,
                    2 => BodyOutcome::Malformed,
                    _ => BodyOutcome::Cut,
                };
                Event::ReceiveEnded { ticket, complete, outcome }
            }
            5 => Event::ArenaGrown { bytes: input.number("bytes of the arena")? },
            6..=8 => {
                let operator = Operator(input.fixed_u64("an operator")?);
                Event::OperatorAsked { operator, ask: self.operator_ask(kind, input)? }
            }
            9..=22 => {
                let connection = Connection(name(input)?);
                let reply = Reply { connection, request: name(input)? };
                Event::Asked { reply, ask: self.ask(kind, input)? }
            }
            REGISTER_PAGED..=RETRIEVE | ALLOCATED => {
                let connection = Connection(name(input)?);
                let reply = Reply { connection, request: name(input)? };
                Event::Asked { reply, ask: self.paged_ask(kind, input)? }
            }
            ATTACH_ENDED | COPY_ENDED => self.paged_event(kind, input)?,
            34 => {
                let operator = Operator(input.fixed_u64("an operator")?);
                let ask = OperatorAsk::AdapterRemove { adapter: adapter(input)? };
                Event::OperatorAsked { operator, ask }
            }
            35 => {
                let operator = Operator(input.fixed_u64("an operator")?);
                Event::OperatorAsked { operator, ask: self.delete(input)? }
            }
            25 | 27..=33 => self.tier_event(kind, input)?,
            // Scans are read by `scan`, and what is no event by the reader.
            _ => return Err(input.fault(Fault::Value { what: "a kind of event" })),
        })
    }

    fn operator_ask(
        &mut self,
        kind: u8,
        input: &mut Input<'_>,
    ) -> Result<OperatorAsk<'_>, Malformed> {
        if kind == 6 {
            return Ok(OperatorAsk::Clear { force: input.flag("force")? });
        }
        self.salt(input)?;
        let salt = &self.scratch.salt;
        Ok(match kind {
            7 => OperatorAsk::QuotaSet { salt, bytes: input.number("bytes of a quota")? },
            _ => OperatorAsk::QuotaRemove { salt },
        })
    }

    fn ask(&mut self, kind: u8, input: &mut Input<'_>) -> Result<Ask<'_>, Malformed> {
        Ok(match kind {
            9 => return self.registration(input),
            10 => {
                let instance = instance(input)?;
                self.models.read(input, &mut self.scratch.model)?;
                let start = *input;
                let reason = refusal_of(input.byte("a refusal")?);
                let reason =
                    reason.ok_or_else(|| start.fault(Fault::Value { what: "a refusal" }))?;
                Ask::RegisterRefused { instance, model: &self.scratch.model, reason }
            }
            11 => Ask::Unregister { instance: instance(input)? },
            12 => match input.flag("an instance")? {
                true => Ask::Ping { instance: Some(instance(input)?) },
                false => Ask::Ping { instance: None },
            },
            13 => Ask::Lookup { keys: self.keys(input)? },
            14 => Ask::QueryPrefetch { request: self.request(input)? },
            15 => {
                self.request(input)?;
                let wait = Duration::from_nanos(input.number("a wait")?);
                Ask::WaitPrefetch { request: &self.scratch.request, wait }
            }
            16 => Ask::FreeLookupLocks { keys: self.keys(input)? },
            17 => {
                self.request(input)?;
                self.told.read(input, &mut self.scratch.hashes)?;
                let Scratch { request, hashes, .. } = &self.scratch;
                Ask::EndSession { request, hashes }
            }
            18 => Ask::PrepareStore { instance: instance(input)?, keys: self.keys(input)? },
            19 => {
                let instance = instance(input)?;
                let inline_bytes = input.number("inline bytes")?;
                Ask::CommitStore { instance, inline_bytes, keys: self.keys(input)? }
            }
            20 => Ask::PrepareRetrieve { instance: instance(input)?, keys: self.keys(input)? },
            21 => Ask::CommitRetrieve { instance: instance(input)?, keys: self.keys(input)? },
            _ => Ask::Clear { force: input.flag("force")? },
        })
    }

    fn registration(&mut self, input: &mut Input<'_>) -> Result<Ask<'_>, Malformed> {
        let instance = instance(input)?;
        self.models.read(input, &mut self.scratch.model)?;
        let mut number = || input.number_u32("a layout");
        let (world_size, block_size, planes) = (number()?, number()?, number()?);
        let (layers, slots, hidden) = (number()?, number()?, number()?);
        let start = *input;
        let value = || start.fault(Fault::Value { what: "a layout" });
        let dtype = Dtype::named(input.text(64, "a layout")?).ok_or_else(value)?;
        let planes = u8::try_from(planes).map_err(|_| value())?;
        let layout = Layout { planes, layers, slots, hidden, dtype };
        let model = &self.scratch.model;
        Ok(Ask::Register(Registration { instance, model, world_size, block_size, layout }))
    }

    fn keys(&mut self, input: &mut Input<'_>) -> Result<Keys<'_>, Malformed> {
        let numbers = self.read_keys(input)?;
        Ok(numbers.keys(&self.scratch))
    }

    pub(super) fn read_keys(&mut self, input: &mut Input<'_>) -> Result<KeyNumbers, Malformed> {
        self.models.read(input, &mut self.scratch.model)?;
        self.salt(input)?;
        self.request(input)?;
        let world_size = input.number_u32("a world size")?;
        let worker = input.number_u32("a worker")?.checked_sub(1);
        let start = *input;
        let readers = u16::try_from(input.number("readers")?);
        let readers = readers.map_err(|_| start.fault(Fault::Value { what: "readers" }))?;
        let first_chunk = input.number_u32("a range of chunks")?;
        let end_chunk = input.number_u32("a range of chunks")?;
        let start = *input;
        self.told.read(input, &mut self.scratch.hashes)?;
        // The engine relies on it: a hash for each chunk of the range.
        if self.scratch.hashes.len() != end_chunk as usize || first_chunk > end_chunk {
            return Err(start.fault(Fault::Value { what: "a range of chunks" }));
        }
        Ok(KeyNumbers { world_size, worker, readers, first_chunk, end_chunk })
    }

    fn request(&mut self, input: &mut Input<'_>) -> Result<&str, Malformed> {
        let number = input.fixed_u64("a request")?;
        spell(number, &mut self.scratch.request);
        Ok(&self.scratch.request)
    }

    pub(super) fn salt(&mut self, input: &mut Input<'_>) -> Result<(), Malformed> {
        match input.fixed_u64("a salt")? {
            0 => self.scratch.salt.clear(),
            number => spell(number, &mut self.scratch.salt),
        }
        Ok(())
    }
}

/// As transcripts show it and `--request` takes it.
fn spell(number: u64, text: &mut String) {
    text.clear();
    write!(text, "{number:016x}").expect("text takes all");
}

pub(super) fn name(input: &mut Input<'_>) -> Result<SlotName, Malformed> {
    Ok(SlotName { index: input.number_u32("a name")?, generation: input.number_u32("a name")? })
}

pub(super) fn instance(input: &mut Input<'_>) -> Result<InstanceId, Malformed> {
    Ok(InstanceId(input.fixed_u64("an instance")? as i64))
}

pub(super) fn one_of(
    input: &mut Input<'_>,
    count: u8,
    what: &'static str,
) -> Result<u8, Malformed> {
    let start = *input;
    let number = input.byte(what)?;
    if number < count { Ok(number) } else { Err(start.fault(Fault::Value { what })) }
}
