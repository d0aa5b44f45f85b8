//! Server-driven copies: between an engine's blocks and L1, ordered from the shells.
//!
//! A store reserves like any other and is published when its bytes have come; a retrieve pins what
//! its own session leased until they have gone. The answer follows the copy, so an object is
//! visible before its store can be seen to be complete, and a block is filled before its retrieve
//! can.

use super::{Asker, Copies, Ending, Kind, Owner, new_copy, pending_key};
use crate::effect::{Answer, BlockRange, Direction, Effect, PageCopy, SlotRange};
use crate::engine::attachments::Memory;
use crate::engine::sessions::Sessions;
use crate::engine::turn::Turn;
use crate::event::Keys;
use crate::fact::{Abort, Fact, LeaseEnd, RequestFault};
use crate::limits::{BLOCKS_IN_FLIGHT_MAX, PAGE_COPIES_MAX};
use crate::names::Ticket;
use crate::slots::SlotName;

/// Blocks of an engine, for each chunk of a range.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    pub memory: Memory,
    /// `Pages::blocks_per_chunk` ids for every chunk.
    pub ids: &'a [u32],
    /// Tokens from the start of the range on that the engine has already.
    pub skip_tokens: u64,
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
        let null_block = turn.config.null_block;
        let first = keys.first_chunk;
        let is_wanted = |chunk: u32| !blocks.is_null(chunk - first, null_block);
        let (mut copy, refused) = self.reserve(turn, asker, keys, false, is_wanted);
        if copy.objects.is_empty() {
            // Nothing to do is done; nothing that could be done is not.
            return turn.out.answer(asker.reply, Answer::EventFlag(refused.is_none()));
        }
        copy.reply = Some(asker.reply);
        let slots = self.list_slots(turn, &copy);
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
        if keys.chunks().is_empty() {
            return turn.out.answer(asker.reply, Answer::EventFlag(true));
        }
        let objects = match sessions.consume(turn, keys, asker.scope, asker.row) {
            Ok(objects) => objects,
            Err(why) => {
                super::retrieve::tell_miss(turn, asker, keys, why);
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
        let tail = (pages.blocks_per_chunk() - pages.blocks_per_object()) as usize;
        for at in slots.start..slots.end {
            let chunk = turn.out.slots[at as usize].chunk;
            turn.out.blocks.extend_from_slice(&blocks.of(chunk)[tail..]);
        }
        let end = turn.out.blocks.len() as u32;
        let copy = self.copies.find_mut(name).expect("admitted above");
        let reply = copy.reply.expect("set before it was admitted");
        (copy.stream, copy.blocks) = (Some(ticket), end - start);
        self.paged += 1;
        self.blocks += copy.blocks as usize;
        turn.work.spend_own(((end - start) as usize).div_ceil(BLOCKS_PER_CELL));
        let blocks_of = BlockRange { start, end };
        let skip_tokens = blocks.skip_tokens;
        let copy = PageCopy { reply, direction, slots, blocks: blocks_of, skip_tokens };
        let attachment = blocks.memory.attachment;
        turn.out.effects.push(Effect::Copy { ticket, attachment, copy });
    }

    /// The shells are done with a copy.
    pub fn copy_ended(&mut self, turn: &mut Turn, ticket: Ticket, whole: bool) {
        let Some(name) = self.end_ticket(turn, ticket, Owner::copying) else { return };
        let copy = self.copies.find_mut(name).expect("a ticket keeps its copy");
        copy.stream = None;
        self.paged -= 1;
        self.blocks -= core::mem::take(&mut copy.blocks) as usize;
        let reply = copy.reply.take();
        let is_good = match copy.key.kind {
            Kind::Store => {
                let complete = if whole { u32::MAX } else { 0 };
                self.publish(turn, name, complete, Abort::Copy)
            }
            Kind::Retrieve if whole => {
                self.was_read(turn, name);
                true
            }
            Kind::Retrieve => {
                self.tell_read(turn, name, LeaseEnd::CopyFailed);
                self.end(turn, name, Ending::Unpin);
                false
            }
        };
        if let Some(reply) = reply {
            turn.out.answer(reply, Answer::EventFlag(is_good));
        }
    }
}

/// A cell touches a handful of tables; an id is four bytes of a list that is copied.
const BLOCKS_PER_CELL: usize = 64;

fn faulted(turn: &mut Turn, asker: &Asker, operation: &'static str) {
    turn.out.tell(Fact::RequestFaulted { operation, fault: RequestFault::TableFull });
    turn.out.answer(asker.reply, Answer::EventFlag(false));
}
