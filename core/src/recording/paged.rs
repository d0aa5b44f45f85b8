//! The fields of events about server-driven transfer. Its one invariant is that of `events`: `read`
//! gives back what `write` was given; and what is read never makes the engine divide by zero.
//!
//! ```text
//! registration  instance u64 | model | v world size | pages
//! pages         u8 format | v each: layers, tensors, blocks, slots and tokens per block, heads,
//!               width, planes, block stride, chunk tokens, object slots | type, text
//! transfer      instance u64 | v skipped tokens | blocks | keys
//! blocks        v runs | of each: v first id | v ids that ascend by one
//! attach ended  name | u8 0 for the host, 1 + the fault, or 255 for a card | v its number
//! allocated     instance u64 | model | v requests | of each: request u64 | v blocks
//!               | of each: v its place, tokens u64
//! copy ended    name | u8 whole
//! ```

use super::bytes::{Fault, Input, Malformed, Write};
use super::events::{Reading, Writing, instance, name};
use super::secret::Naming;
use crate::event::{AllocatedBlock, Ask, AttachFault, Event, Keys, PagedRegistration};
use crate::limits::{ALLOCATED_BLOCKS_MAX, REQUEST_BLOCKS_MAX};
use crate::names::{Attachment, Device, Dtype, InstanceId, Ticket};
use crate::pages::{Format, Pages};

impl<N: Naming> Writing<'_, N> {
    pub(super) fn paged_registration(&mut self, registration: &PagedRegistration<'_>) {
        let PagedRegistration { instance, model, world_size, pages } = registration;
        self.bytes.fixed_u64(instance.0 as u64);
        self.models.write(model, self.bytes);
        self.bytes.number((*world_size).into());
        self.bytes.byte(pages.format.number());
        numbers_of(pages).into_iter().skip(1).for_each(|number| self.bytes.number(number));
        self.bytes.text(pages.dtype.name());
    }

    pub(super) fn paged_transfer(
        &mut self,
        instance: InstanceId,
        keys: &Keys<'_>,
        blocks: &[u32],
        skip_tokens: u64,
    ) {
        self.bytes.fixed_u64(instance.0 as u64);
        self.bytes.number(skip_tokens);
        let runs = || blocks.chunk_by(|before, id| before.checked_add(1) == Some(*id));
        self.bytes.number(runs().count() as u64);
        for run in runs() {
            self.bytes.number(run[0].into());
            self.bytes.number(run.len() as u64);
        }
        self.keys(keys);
    }

    pub(super) fn attach_ended(
        &mut self,
        attachment: Attachment,
        outcome: Result<Device, AttachFault>,
    ) {
        self.name(attachment.0);
        match outcome {
            Ok(Device::Host) => self.bytes.byte(0),
            Ok(Device::Card(card)) => {
                self.bytes.byte(ON_CARD);
                self.bytes.number(card.into());
            }
            Err(fault) => self.bytes.byte(1 + fault as u8),
        }
    }

    /// What stands for requests and tokens is named once more: the key of a run's own numbers is
    /// its seed, which the header tells.
    pub(super) fn allocated(
        &mut self,
        instance: InstanceId,
        model: &str,
        blocks: &[AllocatedBlock],
    ) {
        self.bytes.fixed_u64(instance.0 as u64);
        self.models.write(model, self.bytes);
        let of_request = || blocks.chunk_by(|one, next| one.request == next.request);
        self.bytes.number(of_request().count() as u64);
        for blocks in of_request() {
            self.bytes.fixed_u64(self.naming.number(blocks[0].request));
            self.bytes.number(blocks.len() as u64);
            for AllocatedBlock { request: _, tokens, block } in blocks {
                self.bytes.number((*block).into());
                self.bytes.fixed_u64(self.naming.number(*tokens));
            }
        }
    }

    pub(super) fn copy_ended(&mut self, ticket: Ticket, whole: bool) {
        self.name(ticket.0);
        self.bytes.byte(whole.into());
    }
}

impl Reading {
    pub(super) fn paged_event(
        &mut self,
        kind: u8,
        input: &mut Input<'_>,
    ) -> Result<Event<'_>, Malformed> {
        if kind == COPY_ENDED {
            let (ticket, whole) = (Ticket(name(input)?), input.flag("whole")?);
            return Ok(Event::CopyEnded { ticket, whole });
        }
        let attachment = Attachment(name(input)?);
        let start = *input;
        let outcome = match input.byte(HOW_ATTACHED)? {
            0 => Ok(Device::Host),
            ON_CARD => Ok(Device::Card(input.number_u32("a card")?)),
            number => match FAULTS.get(usize::from(number) - 1) {
                Some(fault) => Err(*fault),
                None => return Err(start.fault(Fault::Value { what: HOW_ATTACHED })),
            },
        };
        Ok(Event::AttachEnded { attachment, outcome })
    }

    pub(super) fn paged_ask(
        &mut self,
        kind: u8,
        input: &mut Input<'_>,
    ) -> Result<Ask<'_>, Malformed> {
        let instance = instance(input)?;
        if kind == REGISTER_PAGED {
            self.models.read(input, &mut self.scratch.model)?;
            let world_size = input.number_u32("a world size")?;
            let pages = read_pages(input)?;
            let model = &self.scratch.model;
            let registration = PagedRegistration { instance, model, world_size, pages };
            return Ok(Ask::RegisterPaged(registration));
        }
        if kind == ALLOCATED {
            self.models.read(input, &mut self.scratch.model)?;
            self.allocated(input)?;
            let (model, blocks) = (&self.scratch.model, &self.scratch.allocated);
            return Ok(Ask::BlocksAllocated { instance, model, blocks });
        }
        let skip_tokens = input.number("skipped tokens")?;
        self.blocks(input)?;
        let keys = self.read_keys(input)?;
        let (keys, blocks) = (keys.keys(&self.scratch), &self.scratch.blocks);
        Ok(match kind {
            STORE => Ask::Store { instance, keys, blocks },
            _ => Ask::Retrieve { instance, keys, blocks, skip_tokens },
        })
    }

    fn allocated(&mut self, input: &mut Input<'_>) -> Result<(), Malformed> {
        let allocated = &mut self.scratch.allocated;
        allocated.clear();
        for _ in 0..input.number("requests with blocks")? {
            let request = input.fixed_u64("a request")?;
            let start = *input;
            let count = input.number("blocks")?;
            let room = (ALLOCATED_BLOCKS_MAX - allocated.len()) as u64;
            // Equal requests would be written as one.
            if count == 0 || count > room {
                return Err(start.fault(Fault::Value { what: "blocks" }));
            }
            for _ in 0..count {
                let (block, tokens) = (input.number_u32("a block")?, input.fixed_u64("tokens")?);
                allocated.push(AllocatedBlock { request, tokens, block });
            }
        }
        Ok(())
    }

    fn blocks(&mut self, input: &mut Input<'_>) -> Result<(), Malformed> {
        let blocks = &mut self.scratch.blocks;
        blocks.clear();
        for _ in 0..input.number("runs of blocks")? {
            let start = *input;
            let (first, count) = (input.number_u32("a block")?, input.number_u32("blocks")?);
            let room = (REQUEST_BLOCKS_MAX - blocks.len()) as u64;
            let end = first.checked_add(count).filter(|_| u64::from(count) <= room && count > 0);
            let end = end.ok_or_else(|| start.fault(Fault::Value { what: "blocks" }))?;
            blocks.extend(first..end);
        }
        Ok(())
    }
}

/// All that there is to say of a geometry but its type, in numbers.
pub(super) fn numbers_of(pages: &Pages) -> [u64; 12] {
    let Pages {
        // Taken apart, so that a new field is not forgotten.
        format,
        layers,
        tensors,
        blocks,
        slots_per_block,
        tokens_per_block,
        heads,
        width,
        planes,
        dtype: _,
        block_stride_bytes,
        chunk_tokens,
        object_slots,
    } = *pages;
    [
        format.number().into(),
        layers.into(),
        tensors.into(),
        blocks.into(),
        slots_per_block.into(),
        tokens_per_block.into(),
        heads.into(),
        width.into(),
        planes.into(),
        block_stride_bytes,
        chunk_tokens.into(),
        object_slots.into(),
    ]
}

fn read_pages(input: &mut Input<'_>) -> Result<Pages, Malformed> {
    let start = *input;
    let value = || start.fault(Fault::Value { what: WHAT });
    let number = input.byte(WHAT)?;
    let format = FORMATS.into_iter().find(|format| format.number() == number);
    let format = format.ok_or_else(value)?;
    let (layers, tensors, blocks) =
        (input.number_u32(WHAT)?, input.number_u32(WHAT)?, input.number_u32(WHAT)?);
    let (slots_per_block, tokens_per_block) = (input.number_u32(WHAT)?, input.number_u32(WHAT)?);
    let (heads, width) = (input.number_u32(WHAT)?, input.number_u32(WHAT)?);
    let planes = u8::try_from(input.number(WHAT)?).map_err(|_| value())?;
    let block_stride_bytes = input.number(WHAT)?;
    let (chunk_tokens, object_slots) = (input.number_u32(WHAT)?, input.number_u32(WHAT)?);
    let dtype = Dtype::named(input.text(64, WHAT)?).ok_or_else(value)?;
    let pages = Pages {
        format,
        layers,
        tensors,
        blocks,
        slots_per_block,
        tokens_per_block,
        heads,
        width,
        planes,
        dtype,
        block_stride_bytes,
        chunk_tokens,
        object_slots,
    };
    if is_sound(&pages) { Ok(pages) } else { Err(value()) }
}

/// What the engine relies on when it counts blocks and bytes.
fn is_sound(pages: &Pages) -> bool {
    let (tokens, slots) = (pages.tokens_per_block, pages.slots_per_block);
    tokens > 0
        && slots > 0
        && pages.chunk_tokens > 0
        && pages.chunk_tokens.is_multiple_of(tokens)
        && pages.object_slots > 0
        && pages.object_slots.is_multiple_of(slots)
        && pages.object_slots / slots <= pages.chunk_tokens / tokens
        && pages.heads.checked_mul(pages.width).is_some()
}

pub(super) const REGISTER_PAGED: u8 = 36;
pub(super) const STORE: u8 = 37;
pub(super) const RETRIEVE: u8 = 38;
pub(super) const ATTACH_ENDED: u8 = 39;
pub(super) const COPY_ENDED: u8 = 40;
pub(super) const ALLOCATED: u8 = 41;
/// In the place of a fault.
const ON_CARD: u8 = 255;
const HOW_ATTACHED: &str = "how an attachment ended";
const WHAT: &str = "a layout of pages";
/// By number.
const FAULTS: [AttachFault; 8] = [
    AttachFault::Absent,
    AttachFault::Denied,
    AttachFault::Short,
    AttachFault::Full,
    AttachFault::Failed,
    AttachFault::NoDriver,
    AttachFault::NoCard,
    AttachFault::Device,
];
const FORMATS: [Format; 9] = [
    Format::CrossLayer,
    Format::PlaneBlockSlot,
    Format::BlockPlaneSlot,
    Format::Latent,
    Format::PlaneBlockHead,
    Format::BlockPlaneHead,
    Format::PackedHead,
    Format::PackedSlot,
    Format::Indexer,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Connection, Reply};
    use crate::recording::chunks::Known;
    use crate::recording::events::kind_of;
    use crate::recording::models::Models;
    use crate::recording::secret::{Numbered, Secret};
    use crate::slots::SlotName;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    const NAME: SlotName = SlotName { index: 3, generation: 4 };

    fn written(naming: &impl Naming, event: &Event<'_>) -> Vec<u8> {
        let (mut known, mut models, mut bytes) = (Known::new(), Models::default(), Vec::new());
        let (known, models) = (&mut known, &mut models);
        Writing { naming, known, models, bytes: &mut bytes }.event(event);
        bytes
    }

    fn read(kind: u8, bytes: &[u8]) -> Result<String, Malformed> {
        let mut reading = Reading::default();
        let mut input = Input::new(bytes, 0);
        let event = format!("{:?}", reading.event(kind, &mut input)?);
        assert!(input.is_empty(), "all of it is read");
        Ok(event)
    }

    fn allocated(blocks: &[AllocatedBlock]) -> Event<'_> {
        let reply = Reply { connection: Connection(NAME), request: NAME };
        let instance = InstanceId(-5);
        Event::Asked { reply, ask: Ask::BlocksAllocated { instance, model: "m", blocks } }
    }

    #[test]
    fn what_is_written_is_read() {
        let block = |request, block, tokens| AllocatedBlock { request, tokens, block };
        let blocks = [block(1, 70_000, 9), block(1, 3, u64::MAX), block(2, 3, 9), block(1, 4, 9)];
        let attachment = Attachment(NAME);
        let outcomes = [Ok(Device::Host), Ok(Device::Card(0)), Ok(Device::Card(300))];
        let faults = FAULTS.map(Err);
        let attached = |outcome| Event::AttachEnded { attachment, outcome };
        let events = outcomes.into_iter().chain(faults).map(attached);
        for event in events.chain([allocated(&blocks), allocated(&blocks[..1]), allocated(&[])]) {
            let bytes = written(&Numbered, &event);
            assert_eq!(read(kind_of(&event), &bytes), Ok(format!("{event:?}")));
            for cut in 0..bytes.len() {
                assert!(read(kind_of(&event), &bytes[..cut]).is_err(), "{cut} of {event:?}");
            }
        }
    }

    #[test]
    fn numbers_of_a_run_are_not_told() {
        let number = 0x1234_5678_9abc_def0;
        let block = AllocatedBlock { request: number, tokens: number, block: 1 };
        let plain = number.to_le_bytes();
        let tells = |bytes: &[u8]| bytes.windows(8).any(|window| window == plain);
        let (blocks, secret) = ([block], Secret::new([7; 16]));
        assert!(tells(&written(&Numbered, &allocated(&blocks))));
        assert!(!tells(&written(&secret, &allocated(&blocks))));
    }

    #[test]
    fn more_blocks_than_a_report_has_are_refused() {
        let block = AllocatedBlock { request: 1, tokens: 2, block: 3 };
        let mut blocks = alloc::vec![block; ALLOCATED_BLOCKS_MAX];
        let bytes = written(&Numbered, &allocated(&blocks));
        assert!(read(ALLOCATED, &bytes).is_ok());
        blocks.push(block);
        let bytes = written(&Numbered, &allocated(&blocks));
        assert!(read(ALLOCATED, &bytes).is_err());
    }
}
