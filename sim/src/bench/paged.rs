//! Server-driven transfers: copies and attachments, put to the model, and what engines' blocks
//! must hold after them (P1).

use super::rules::geometry;
use super::{Bench, Lent, Open, Seen, transfer};
use crate::calls::{Blocks, Call, Paged};
use crate::devices::{DeviceId, Held, NULL};
use crate::memory::{Tag, grains};
use crate::model::{Began, Due, Geometry, News, ObjectNumber, Ordered, Rejected, Says};
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::effect::{Answer, Direction, Effect, Outbox, PageCopy, Refusal};
use kvtide_core::fact::Fact;
use kvtide_core::names::{Attachment, Connection, InstanceId, Layout, Place, Reply, Ticket};

/// A copy between an engine's blocks and L1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copying {
    pub reply: Reply,
    pub ticket: Ticket,
    pub device: DeviceId,
    pub direction: Direction,
    pub slots: Vec<Lent>,
    /// For each slot the blocks that are copied: which of the object's, and its id.
    pub blocks: Vec<Vec<(u32, u32)>>,
    /// Blocks of every object.
    pub parts: u32,
}

/// What a retrieve owes to the blocks of an engine.
pub(super) struct Owed {
    connection: Connection,
    device: DeviceId,
    fills: Vec<(u32, Held)>,
    is_skipping: bool,
}

impl Bench {
    /// A copy was ordered, for the request of this event.
    pub(super) fn copying(
        &mut self,
        ticket: Ticket,
        attachment: Attachment,
        copy: &PageCopy,
        news: &News,
        out: &Outbox,
    ) -> Result<Seen, String> {
        let reply = self.asked.ok_or("I-49: a copy that nobody has asked for")?;
        let open = self.open.get_mut(&reply).ok_or("R-32: a copy after its answer")?;
        open.parked = true;
        let call = open.call.clone();
        let paged = *self.attached.get(&attachment).ok_or("R-32: a copy of what is not there")?;
        let layout = paged.pages.layout();
        let mut owed = Vec::new();
        let blocks = out.blocks(copy.blocks);
        let places: Option<Vec<(u32, Place)>> =
            out.slots(copy.slots).iter().map(|slot| Some((slot.chunk, slot.place?))).collect();
        let places = places.ok_or("I-5: a copy without a place")?;
        let ordered =
            Ordered { ticket, attachment, places, objects: Vec::new(), blocks: blocks.to_vec() };
        let slots = match (&call, copy.direction) {
            (Call::Store { instance, range, blocks: Blocks { ids, .. } }, Direction::Store) => {
                let asked = transfer(reply, *instance, range);
                let began = Began::Copying(ordered);
                let objects = self.model.store_blocks(asked, ids, news, &began)?;
                let slots = self.lend(out.slots(copy.slots), &objects, layout)?;
                self.gathers(paged, blocks, &objects)?;
                slots
            }
            (Call::Retrieve { instance, range, blocks, skip_tokens }, Direction::Retrieve) => {
                let slots = self.delivered(copy.slots, layout, out)?;
                let objects: Vec<ObjectNumber> = slots.iter().map(|lent| lent.object).collect();
                let began = Began::Copying(Ordered { objects, ..ordered });
                let (asked, named) =
                    (transfer(reply, *instance, range), (&*blocks.ids, *skip_tokens));
                owed = self.model.retrieve_blocks(asked, named, news, &began)?;
                slots
            }
            _ => return Err("R-32: a copy in a direction that nobody has asked for".into()),
        };
        self.reach.met(match copy.direction {
            Direction::Store => State::PagedStore,
            Direction::Retrieve => State::PagedRetrieve,
        });
        let fills: Vec<(u32, Held)> = owed
            .iter()
            .map(|filled| (filled.block, Some((self.memory.tag(filled.object), filled.part))))
            .collect();
        fills.iter().for_each(|(block, _)| self.devices.open(paged.device, *block));
        let is_skipping = matches!(call, Call::Retrieve { skip_tokens: 1.., .. });
        let connection = reply.connection;
        let owed = Owed { connection, device: paged.device, fills, is_skipping };
        if copy.direction == Direction::Retrieve {
            self.copying.insert(ticket, owed);
        }
        Ok(Seen::Copying(Box::new(carried(reply, ticket, (paged, copy), slots, out)?)))
    }

    /// What is stored has the bytes that its blocks have now: their engine leaves them alone until
    /// the answer.
    fn gathers(
        &mut self,
        paged: Paged,
        blocks: &[u32],
        objects: &[ObjectNumber],
    ) -> Result<(), String> {
        let parts = geometry(&paged.pages).per_object as usize;
        for (ids, object) in blocks.chunks(parts).zip(objects) {
            let tag = self.devices.object(paged.device, ids);
            let tag = tag.ok_or("P1: stored from blocks that are not those of one chunk")?;
            self.memory.set_origin(*object, tag);
        }
        Ok(())
    }

    pub(super) fn answered_at_once(
        &mut self,
        reply: Reply,
        call: &Call,
        flag: bool,
        news: &News,
    ) -> Result<(), String> {
        let began = Began::Answered(flag);
        match call {
            Call::Store { instance, range, blocks } => {
                let asked = transfer(reply, *instance, range);
                self.model.store_blocks(asked, &blocks.ids, news, &began)?;
                let all_null =
                    blocks.ids.iter().all(|id| Some(*id) == self.engine.config().null_block);
                if flag && all_null && !range.is_empty() {
                    self.reach.met(State::NullChunks);
                }
            }
            Call::Retrieve { instance, range, blocks, skip_tokens } => {
                let asked = transfer(reply, *instance, range);
                self.model.retrieve_blocks(asked, (&blocks.ids, *skip_tokens), news, &began)?;
            }
            _ => return Err("P7: an answer that is another request's".into()),
        }
        Ok(())
    }

    /// Puts the end of a copy to the model, and looks at the engine's blocks.
    pub(super) fn copy_ended(
        &mut self,
        ticket: Ticket,
        whole: bool,
        news: &News,
        out: &Outbox,
    ) -> Result<(), String> {
        let got = out.effects.iter().find_map(|effect| match effect {
            Effect::Answer { answer: Answer::EventFlag(flag), .. } => Some(*flag),
            _ => None,
        });
        let is_orphan = self.model.has_orphan(ticket);
        let known = self.model.copy_ended(ticket, whole, news, got)?;
        if known {
            let met = [
                (State::CopyAfterItsInstance, is_orphan),
                (State::CopyFailed, !whole),
                (State::CopyForNothing, whole && got == Some(false)),
            ];
            let met = met.into_iter().filter(|(_, is_met)| *is_met);
            met.for_each(|(state, _)| self.reach.met(state));
        } else {
            self.reach.met(State::CopyEndedTwice);
        }
        if let Some(owed) = self.copying.remove(&ticket).filter(|_| whole) {
            for (block, held) in owed.fills {
                self.devices.expect(owed.device, block, held);
            }
            self.devices.check(owed.device)?;
            if owed.is_skipping {
                self.reach.met(State::PagedSkip);
            }
            if self.ended.contains(&owed.connection) {
                self.reach.met(State::CopyAfterItsConnection);
            }
        }
        self.stale(known, out)
    }

    /// The answer to a server-driven registration, at once or after its attach.
    pub(super) fn registered_paged(&mut self, open: &Open, answer: &Answer) -> Result<(), String> {
        let Call::RegisterPaged { instance, model, world_size, paged } = &open.call else {
            return Err("P7: a registration was answered that is none".into());
        };
        let layout = paged.pages.layout();
        let says = says(*instance, (model, *world_size, layout), paged);
        let rejected = match answer {
            Answer::None => None,
            Answer::Refused(Refusal::WorldSize) => Some(Rejected::WorldSize),
            Answer::Refused(Refusal::LayoutTooLarge) => Some(Rejected::Layout),
            Answer::Refused(Refusal::InstancesFull) => Some(Rejected::Full),
            Answer::Refused(_) => Some(Rejected::Other),
            other => return Err(format!("P7: a registration was answered {other:?}")),
        };
        if !open.parked {
            let rejected = rejected.ok_or("R-32: registered without being attached")?;
            return self.model.attach_asked(&says, Some(rejected));
        }
        let due = self.due.take().ok_or("P2: an attach was answered before its end")?;
        match (due, self.fault) {
            (Due::Nothing, _) => Err("P2: nobody waits for this registration".into()),
            (Due::Outdated, _) if rejected == Some(Rejected::Other) => {
                self.reach.met(State::AttachOutdated);
                Ok(())
            }
            (Due::Outdated, _) => Err("R-39: an older registration replaced a newer one".into()),
            (Due::Registration, Some(fault)) => {
                self.reach.met(State::AttachRefused);
                let is_told = *answer == Answer::Refused(Refusal::Attach(fault));
                is_told
                    .then_some(())
                    .ok_or_else(|| "P7: an attach failed for another reason".into())
            }
            (Due::Registration, None) => {
                let memory = (self.attaching, says.geometry);
                let memory = memory.0.map(|attachment| (attachment, memory.1));
                self.model.register(*instance, (model, *world_size, layout), memory, rejected)
            }
        }
    }

    /// Attachments that begin and end with an event, when all is answered.
    pub(super) fn attachments(
        &mut self,
        input: &Input,
        out: &Outbox,
        seen: &mut Vec<Seen>,
    ) -> Result<(), String> {
        let mut detached = Vec::new();
        for effect in &out.effects {
            match effect {
                Effect::Attach { attachment, reply, .. } => {
                    let attachment = *attachment;
                    let open = self.open.get_mut(reply).ok_or("P2: attached for nobody")?;
                    open.parked = true;
                    let Call::RegisterPaged { instance, model, world_size, paged } = &open.call
                    else {
                        return Err("R-32: attached for no registration".into());
                    };
                    let what = (model, *world_size, paged.pages.layout());
                    let says = says(*instance, what, paged);
                    self.model.attach_ordered(&says, attachment, reply.connection)?;
                    let paged = *paged;
                    self.attached.insert(attachment, paged);
                    seen.push(Seen::Attaching { attachment, reply: *reply, paged });
                }
                Effect::Detach { attachment } => {
                    detached.push(*attachment);
                    seen.push(Seen::Detached { attachment: *attachment });
                }
                _ => {}
            }
        }
        if let Input::AttachEnded { attachment, outcome } = input {
            let known = self.was_due.is_some();
            self.stale(known, out)?;
            if self.due.is_some_and(|due| due != Due::Nothing) {
                return Err("P2: an attach has ended and nobody was told".into());
            }
            if self.was_due == Some(Due::Nothing) {
                self.reach.met(State::AttachAfterItsConnection);
            }
            if known && outcome.is_err() {
                self.attached.remove(attachment);
            }
        }
        self.model.detached(&detached)?;
        for attachment in &detached {
            self.attached.remove(attachment);
        }
        Ok(())
    }

    /// Every engine's blocks hold what they should (P1).
    pub fn check_devices(&self) -> Result<(), String> {
        self.attached.values().try_for_each(|paged| self.devices.check(paged.device))
    }

    /// A clear by force: what it meets in flight.
    pub(super) fn count_clear(&mut self, out: &Outbox) {
        let is_cleared = |fact: &Fact| {
            use kvtide_core::fact::{Abort, Removal};
            matches!(
                fact,
                Fact::WriteAborted { why: Abort::ForcedClear, .. }
                    | Fact::Evicted { why: Removal::ForcedClear, .. }
            )
        };
        if self.model.paged_copies() > 0 && out.facts.iter().any(is_cleared) {
            self.reach.met(State::ClearedMidCopy);
        }
    }
}

/// What the card has to do for a copy: as the core's own plan says.
fn carried(
    reply: Reply,
    ticket: Ticket,
    (paged, copy): (Paged, &PageCopy),
    slots: Vec<Lent>,
    out: &Outbox,
) -> Result<Copying, String> {
    let pages = paged.pages;
    let parts = geometry(&pages).per_object;
    let ids = out.blocks(copy.blocks);
    if ids.len() != slots.len() * parts as usize {
        return Err("P1: a copy has not as many blocks as its objects".into());
    }
    let mut blocks = Vec::new();
    for (slot, ids) in slots.iter().zip(ids.chunks(parts as usize)) {
        let skip = pages.blocks_skipped(copy.skip_tokens, slot.chunk);
        let mut runs = Vec::new();
        let planned = pages.plan(ids, skip, &mut runs);
        planned.map_err(|fault| format!("P1: a copy cannot be planned: {fault:?}"))?;
        let of_slot = (0..).zip(ids.iter().copied()).skip(skip as usize);
        blocks.push(of_slot.collect());
    }
    let (direction, device) = (copy.direction, paged.device);
    Ok(Copying { reply, ticket, device, direction, slots, blocks, parts })
}

fn says<'a>(
    instance: InstanceId,
    (model, world_size, layout): (&'a std::rc::Rc<str>, u32, Layout),
    paged: &Paged,
) -> Says<'a> {
    Says { instance, model, world_size, layout, geometry: geometry(&paged.pages) }
}

impl Bench {
    /// Whether an honest engine names these blocks: to be stored, they hold what one chunk's have;
    /// and none of them is being copied.
    pub fn may_name(&self, instance: InstanceId, blocks: &Blocks, is_store: bool) -> bool {
        let is_its = |memory: &(Attachment, Geometry)| {
            self.attached.get(&memory.0).is_some_and(|paged| paged.device == blocks.device)
        };
        let known = self.model.instances().find(|(id, _)| **id == instance);
        let Some((attachment, geometry)) = known.and_then(|(_, known)| known.memory) else {
            return true;
        };
        if !is_its(&(attachment, geometry)) {
            return false;
        }
        let open = self.copying.values().filter(|owed| owed.device == blocks.device);
        let mut open = open.flat_map(|owed| owed.fills.iter().map(|(block, _)| *block));
        if open.any(|block| block != NULL && blocks.ids.contains(&block)) {
            return false;
        }
        let null = self.engine.config().null_block;
        let is_good = |ids: &[u32]| {
            let own = &ids[(geometry.per_chunk - geometry.per_object) as usize..];
            let is_null = null.is_some_and(|null| ids.iter().all(|id| *id == null));
            is_null || self.devices.object(blocks.device, own).is_some()
        };
        !is_store || blocks.ids.chunks_exact(geometry.per_chunk as usize).all(is_good)
    }

    /// The card copies one block: of each object its own share of grains.
    pub fn move_block(&mut self, copying: &Copying, step: usize) -> Result<(), String> {
        let mut left = step;
        let mut found = None;
        for (slot, blocks) in copying.slots.iter().zip(&copying.blocks) {
            if let Some(block) = blocks.get(left) {
                found = Some((slot, *block));
                break;
            }
            left -= blocks.len();
        }
        let Some((slot, (part, id))) = found else { return Ok(()) };
        let each = grains(slot.place) / u64::from(copying.parts);
        let share = u64::from(part) * each..u64::from(part + 1) * each;
        if copying.direction == Direction::Store {
            let held = self.devices.held(copying.device, id);
            let held = held.filter(|(_, of)| *of == part).map(|(tag, _)| tag);
            let tag = held.unwrap_or(Tag::garbage(u64::from(id)));
            return share.into_iter().try_for_each(|at| self.memory.fill(slot.place, at, tag));
        }
        let mut content = self.memory.content(slot.place)?.skip(share.start as usize);
        let first = content.next().flatten();
        let is_one = content.take(each as usize - 1).all(|tag| tag == first);
        let held = first.filter(|_| is_one).map(|tag| (tag, part));
        self.devices.fill(copying.device, id, held);
        Ok(())
    }
}
