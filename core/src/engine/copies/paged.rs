//! Server-driven copies: between an engine's blocks and L1, ordered from the shells.
//!
//! A store reserves like any other and is published when its bytes have come; a retrieve pins what
//! its own session leased until they have gone. The answer follows the copy, so an object is
//! visible before its store can be seen to be complete, and a block is filled before its retrieve
//! can.
//!
//! Whatever passes the checks is told as submitted and, in the end, as ended, once each: also what
//! finds nothing to copy, as by the peer, whose counters of requests these are (spec/metrics §3.5).
//! What is refused before is told as a fault alone.

use super::{Asker, Copies, Copy, Ending, Kind, Owner, new_copy, pending_key};
use crate::effect::{Answer, BlockRange, Direction, Effect, PageCopy, SlotRange};
use crate::engine::attachments::Memory;
use crate::engine::sessions::Sessions;
use crate::engine::turn::Turn;
use crate::event::Keys;
use crate::fact::{Abort, Fact, LeaseEnd, RequestFault, TransferEnd};
use crate::limits::{BLOCKS_IN_FLIGHT_MAX, PAGE_COPIES_MAX};
use crate::names::{Device, Ticket};
use crate::slots::SlotName;
use crate::time::Duration;

/// Blocks of an engine, for each chunk of a range.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    pub memory: Memory,
    /// `Pages::blocks_per_chunk` ids for every chunk.
    pub ids: &'a [u32],
    /// Tokens from the start of the range on that the engine has already.
    pub skip_tokens: u64,
}

/// A copy that the shells have been told of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paged {
    /// Block ids that its `Effect::Copy` names.
    pub blocks: u32,
    device: Device,
    /// Of all its slots.
    bytes: u64,
}

impl Blocks<'_> {
    /// The ids of one chunk, by its position within the range.
    fn of(&self, chunk: u32) -> &[u32] {
        let each = self.memory.pages.blocks_per_chunk() as usize;
        &self.ids[chunk as usize * each..][..each]
    }

    /// Whether a chunk has no block of its own: the engine has put its null block everywhere.
    fn is_null(&self, chunk: u32, null_block: Option<u32>) -> bool {
        null_block.is_some_and(|null| self.of(chunk).iter().all(|id| *id == null))
    }
}

impl Copies {
    /// `store`: what is not there yet is copied from the engine's blocks, as long a prefix as fits.
    pub fn store_blocks(&mut self, turn: &mut Turn, asker: &Asker, keys: &Keys, blocks: &Blocks) {
        let key = pending_key(Kind::Store, asker, keys);
        if self.copies.is_full() || self.has_too_many(&key) || self.has_no_lane_for(blocks) {
            return faulted(turn, asker, "store");
        }
        let transfer = submitted(turn, asker, Direction::Store, blocks);
        let null_block = turn.config.null_block;
        let first = keys.first_chunk;
        let is_wanted = |chunk: u32| !blocks.is_null(chunk - first, null_block);
        let (mut copy, refused) = self.reserve(turn, asker, keys, false, is_wanted);
        if copy.objects.is_empty() {
            ended(turn, transfer);
            // Nothing to do is done; nothing that could be done is not.
            return turn.out.answer(asker.reply, Answer::EventFlag(refused.is_none()));
        }
        copy.reply = Some(asker.reply);
        let slots = self.list_slots(turn, &copy);
        if planted!(turn.config, 56) {
            copy.objects.iter().for_each(|id| turn.l1.commit(*id));
        }
        let name = self.admit_store(turn, copy);
        self.order(turn, name, Direction::Store, slots, blocks);
    }

    /// `retrieve`: every chunk of the range under the session's own leases, or a miss.
    pub fn retrieve_blocks(
        &mut self,
        turn: &mut Turn,
        sessions: &mut Sessions,
        asker: &Asker,
        keys: &Keys,
        blocks: &Blocks,
    ) {
        let key = pending_key(Kind::Retrieve, asker, keys);
        let room = turn.config.limits.lease_cells.saturating_sub(self.reads);
        let is_full = self.copies.is_full() || self.has_too_many(&key);
        let is_full = is_full || self.has_no_lane_for(blocks);
        if is_full || keys.chunks().len() > room {
            return faulted(turn, asker, "retrieve");
        }
        let transfer = submitted(turn, asker, Direction::Retrieve, blocks);
        if keys.chunks().is_empty() {
            ended(turn, transfer);
            return turn.out.answer(asker.reply, Answer::EventFlag(true));
        }
        let objects = match sessions.consume(turn, keys, asker.scope, asker.row) {
            Ok(objects) => objects,
            Err(why) => {
                super::retrieve::tell_miss(turn, asker, keys, why);
                ended(turn, transfer);
                return turn.out.answer(asker.reply, Answer::EventFlag(false));
            }
        };
        let mut copy = new_copy(turn, asker, key);
        copy.chunks = (0..objects.len() as u32).collect();
        copy.reads = objects.len();
        copy.objects = objects;
        copy.reply = Some(asker.reply);
        self.reads += copy.reads;
        let slots = self.list_slots(turn, &copy);
        let name = self.admit(copy);
        self.order(turn, name, Direction::Retrieve, slots, blocks);
    }

    /// Whether as much is being copied as may be at once.
    fn has_no_lane_for(&self, blocks: &Blocks) -> bool {
        self.paged >= PAGE_COPIES_MAX || self.blocks + blocks.ids.len() > BLOCKS_IN_FLIGHT_MAX
    }

    fn order(
        &mut self,
        turn: &mut Turn,
        name: SlotName,
        direction: Direction,
        slots: SlotRange,
        blocks: &Blocks,
    ) {
        let ticket = self.issue(Owner::Paged(name));
        let pages = blocks.memory.pages;
        let start = turn.out.blocks.len() as u32;
        let each = pages.blocks_per_object() as usize;
        let tail = pages.blocks_per_chunk() as usize - each;
        let tail = if planted!(turn.config, 55) { 0 } else { tail };
        for at in slots.start..slots.end {
            let chunk = turn.out.slots[at as usize].chunk;
            turn.out.blocks.extend_from_slice(&blocks.of(chunk)[tail..][..each]);
        }
        let end = turn.out.blocks.len() as u32;
        let places = turn.out.slots(slots).iter().filter_map(|slot| slot.place);
        let bytes = places.map(|place| place.bytes).sum();
        let device = blocks.memory.device;
        let copy = self.copies.find_mut(name).expect("admitted above");
        let reply = copy.reply.expect("set before it was admitted");
        copy.stream = Some(ticket);
        copy.paged = Some(Paged { blocks: end - start, device, bytes });
        let first_chunk = copy.key.first_chunk;
        self.paged += 1;
        self.blocks += (end - start) as usize;
        turn.work.spend_own(((end - start) as usize).div_ceil(BLOCKS_PER_CELL));
        let blocks_of = BlockRange { start, end };
        let before = match planted!(turn.config, 51) {
            true => u64::from(first_chunk) * u64::from(pages.chunk_tokens),
            false => 0,
        };
        let skip_tokens = blocks.skip_tokens.saturating_sub(before);
        let copy = PageCopy { reply, direction, slots, blocks: blocks_of, skip_tokens };
        let attachment = blocks.memory.attachment;
        turn.out.effects.push(Effect::Copy { ticket, attachment, copy });
    }

    /// The shells are done with a copy.
    pub fn copy_ended(&mut self, turn: &mut Turn, ticket: Ticket, whole: bool) {
        let Some(name) = self.end_ticket(turn, ticket, Owner::copying) else { return };
        let copy = self.copies.find_mut(name).expect("a ticket keeps its copy");
        copy.stream = None;
        let paged = copy.paged.take().expect("set when it was ordered");
        let reply = copy.reply.take();
        let mut transfer = end_of(turn, copy, paged.device);
        self.paged -= 1;
        self.blocks -= paged.blocks as usize;
        let is_good = match copy.key.kind {
            Kind::Store => {
                let is_there = whole || planted!(turn.config, 49);
                let complete = if is_there { u32::MAX } else { 0 };
                let published = self.publish(turn, name, complete, Abort::Copy);
                (transfer.keys, transfer.bytes) = (published.keys, published.bytes);
                published.is_whole
            }
            Kind::Retrieve if whole => {
                (transfer.keys, transfer.bytes) = (copy.objects.len() as u32, paged.bytes);
                self.was_read(turn, name);
                true
            }
            Kind::Retrieve => {
                self.tell_read(turn, name, LeaseEnd::CopyFailed);
                self.end(turn, name, Ending::Unpin);
                false
            }
        };
        ended(turn, transfer);
        if let Some(reply) = reply {
            turn.out.answer(reply, Answer::EventFlag(is_good));
        }
    }
}

/// A cell touches a handful of tables; an id is four bytes of a list that is copied.
pub const BLOCKS_PER_CELL: usize = 64;

/// Tells that a transfer has begun. What comes back is told when it has ended.
#[must_use]
fn submitted(turn: &mut Turn, asker: &Asker, direction: Direction, blocks: &Blocks) -> TransferEnd {
    let (instance, device) = (asker.instance, blocks.memory.device);
    let tenant = turn.l1.scopes.tenant_of(asker.scope);
    turn.out.tell(Fact::TransferSubmitted { direction, device });
    TransferEnd { direction, device, instance, tenant, keys: 0, bytes: 0, took: Duration::ZERO }
}

fn end_of(turn: &Turn, copy: &Copy, device: Device) -> TransferEnd {
    let direction = match copy.key.kind {
        Kind::Store => Direction::Store,
        Kind::Retrieve => Direction::Retrieve,
    };
    let (instance, tenant) = (copy.key.instance, turn.l1.scopes.tenant_of(copy.key.scope));
    let took = turn.now - copy.started;
    TransferEnd { direction, device, instance, tenant, keys: 0, bytes: 0, took }
}

fn ended(turn: &mut Turn, transfer: TransferEnd) {
    turn.out.tell(Fact::TransferEnded(transfer));
}

fn faulted(turn: &mut Turn, asker: &Asker, operation: &'static str) {
    turn.out.tell(Fact::RequestFaulted { operation, fault: RequestFault::TableFull });
    turn.out.answer(asker.reply, Answer::EventFlag(false));
}
