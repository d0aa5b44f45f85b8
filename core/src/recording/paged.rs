//! The fields of events about server-driven transfer. Its one invariant is that of `events`: `read`
//! gives back what `write` was given; and what is read never makes the engine divide by zero.
//!
//! ```text
//! registration  instance u64 | model | v world size | pages
//! pages         u8 format | v each: layers, tensors, blocks, slots and tokens per block, heads,
//!               width, planes, block stride, chunk tokens, object slots | type, text
//! transfer      instance u64 | v skipped tokens | blocks | keys
//! blocks        v runs | of each: v first id | v ids that ascend by one
//! attach ended  name | u8 0, or 1 + the fault
//! copy ended    name | u8 whole
//! ```

use super::bytes::{Fault, Input, Malformed, Write};
use super::events::{Reading, Writing, instance, name, one_of};
use super::secret::Naming;
use crate::event::{Ask, AttachFault, Event, Keys, PagedRegistration};
use crate::limits::REQUEST_BLOCKS_MAX;
use crate::names::{Attachment, Dtype, InstanceId, Ticket};
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
        outcome: Result<(), AttachFault>,
    ) {
        self.name(attachment.0);
        self.bytes.byte(outcome.map_or_else(|fault| 1 + fault as u8, |()| 0));
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
        let outcome = match one_of(input, FAULTS.len() as u8 + 1, "how an attachment ended")? {
            0 => Ok(()),
            number => Err(FAULTS[usize::from(number) - 1]),
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
        let skip_tokens = input.number("skipped tokens")?;
        self.blocks(input)?;
        let keys = self.read_keys(input)?;
        let (keys, blocks) = (keys.keys(&self.scratch), &self.scratch.blocks);
        Ok(match kind {
            STORE => Ask::Store { instance, keys, blocks },
            _ => Ask::Retrieve { instance, keys, blocks, skip_tokens },
        })
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
