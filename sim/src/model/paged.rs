//! Server-driven transfers: which blocks a copy may name, what is readable after it, and when its
//! answer may come (I-2, I-4, I-6, I-7, R-32).

use super::transfers::{Copy, Kind, Name};
use super::{Geometry, Model, News, ObjectNumber, Scope, Sure, Transfer, Verdict, check};
use kvtide_core::names::{Attachment, Place, Ticket};
use std::rc::Rc;

/// What came of `store` or `retrieve` in the event that asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Began {
    Answered(bool),
    Copying(Ordered),
}

/// A copy as it was ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    pub ticket: Ticket,
    pub attachment: Attachment,
    /// Positions within the range, and where the bytes of each lie in L1.
    pub places: Vec<(u32, Place)>,
    /// Whose bytes those are, for a retrieve.
    pub objects: Vec<ObjectNumber>,
    /// Block ids, slot by slot.
    pub blocks: Vec<u32>,
}

/// A block that a retrieve has to fill, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    pub block: u32,
    pub object: ObjectNumber,
    /// Which of the object's blocks.
    pub part: u32,
}

impl Geometry {
    /// The ids of the blocks that make up the object of a chunk, by its position in the range. A
    /// window leaves the first ones of every chunk out.
    fn object_ids<'a>(&self, ids: &'a [u32], position: u32) -> &'a [u32] {
        let end = (position as usize + 1) * self.per_chunk as usize;
        &ids[end - self.per_object as usize..end]
    }

    /// The blocks that a retrieve of these objects fills: those of each chunk that do not lie as a
    /// whole within the tokens to be skipped.
    pub fn fills(&self, ids: &[u32], objects: &[ObjectNumber], skip_tokens: u64) -> Vec<Filled> {
        let mut filled = Vec::new();
        for (chunk, object) in (0..).zip(objects) {
            for (part, block) in (0..).zip(self.object_ids(ids, chunk)) {
                let before = (chunk + 1) * self.per_chunk - self.per_object + part;
                let end = u64::from(before + 1) * u64::from(self.tokens_per_block);
                if end > skip_tokens {
                    filled.push(Filled { block: *block, object: *object, part });
                }
            }
        }
        filled
    }
}

impl Model {
    /// Who asks, and its memory, where the request can be followed at all.
    fn paged_asker(
        &mut self,
        transfer: Transfer,
        ids: &[u32],
    ) -> Option<(Rc<Scope>, Attachment, Geometry)> {
        let (scope, _) = self.asker(transfer)?;
        let (attachment, geometry) = self.instances.get(&transfer.instance)?.memory?;
        let wanted = transfer.range.len() as usize * geometry.per_chunk as usize;
        let is_whole = ids.len().is_multiple_of(geometry.per_chunk as usize);
        let named = ids.get(..wanted).filter(|_| is_whole)?;
        let is_within = named.iter().all(|id| *id < geometry.blocks);
        is_within.then_some((scope, attachment, geometry))
    }

    /// `store`: the absent chunks that have blocks, as long a prefix as fits. Names the objects.
    pub fn store_blocks(
        &mut self,
        transfer: Transfer,
        ids: &[u32],
        news: &News,
        began: &Began,
    ) -> Result<Vec<ObjectNumber>, String> {
        let Some((scope, attachment, geometry)) = self.paged_asker(transfer, ids) else {
            check(*began == Began::Answered(false), "blocks were taken of who has none")?;
            check(news.reserved.is_empty(), "I-52: reserved for nobody")?;
            return Ok(Vec::new());
        };
        let name = self.name(Kind::Store, transfer, &scope);
        let (must_be_full, may_be_full) = self.is_crowded(&name, None);
        if news.table_full {
            check(*began == Began::Answered(false), "P3: a full table, and a copy all the same")?;
            check(may_be_full, "P3: a writer was refused by a table with room")?;
            check(news.reserved.is_empty(), "I-52: reserved for nobody")?;
            return Ok(Vec::new());
        }
        check(!must_be_full, "P3: a writer was let in although the table was full")?;
        let null = self.rules.null_block;
        let is_null = |position: u32| {
            let first = (position * geometry.per_chunk) as usize;
            let of_chunk = &ids[first..first + geometry.per_chunk as usize];
            null.is_some_and(|null| of_chunk.iter().all(|id| *id == null))
        };
        let places = match began {
            Began::Answered(_) => &Vec::new(),
            Began::Copying(ordered) => &ordered.places,
        };
        let (objects, is_short) = self.reserve(transfer.range, &scope, news, places, is_null)?;
        self.judge_refusal(news, transfer.range, false)?;
        let ordered = match began {
            Began::Answered(got) => {
                check(objects.is_empty(), "R-32: answered before the copy")?;
                check(*got != is_short, "a store without a copy is true when all is there")?;
                return Ok(objects);
            }
            Began::Copying(ordered) => ordered,
        };
        check(!objects.is_empty(), "a copy of nothing was ordered")?;
        let positions: Vec<u32> = places.iter().map(|(at, _)| *at).collect();
        self.check_blocks(ordered, (attachment, geometry), ids, &positions)?;
        let mut copy = Model::new_copy(name, transfer);
        copy.objects = positions.into_iter().zip(objects.iter().copied()).collect();
        self.admit_paged(copy, transfer, ordered);
        Ok(objects)
    }

    /// `retrieve`: every chunk under the request's own leases, or nothing. Names what is to be
    /// filled.
    pub fn retrieve_blocks(
        &mut self,
        transfer: Transfer,
        (ids, skip_tokens): (&[u32], u64),
        news: &News,
        began: &Began,
    ) -> Result<Vec<Filled>, String> {
        let asker = self.paged_asker(transfer, ids);
        let ordered = match began {
            Began::Copying(ordered) => ordered,
            Began::Answered(true) => {
                let is_empty = asker.is_some() && transfer.range.is_empty();
                check(is_empty, "R-32: a retrieve was true before its copy")?;
                return Ok(Vec::new());
            }
            Began::Answered(false) => {
                let is_empty = asker.is_some() && transfer.range.is_empty() && !news.table_full;
                check(!is_empty, "a retrieve of nothing was false")?;
                self.judge_miss(transfer, asker.map(|(scope, ..)| scope), news)?;
                return Ok(Vec::new());
            }
        };
        let (scope, attachment, geometry) = asker.ok_or("a stranger's blocks were filled")?;
        let name = self.name(Kind::Retrieve, transfer, &scope);
        self.check_read(transfer, (&scope, &name), &ordered.objects, news)?;
        let positions: Vec<u32> = (0..transfer.range.len()).collect();
        self.check_blocks(ordered, (attachment, geometry), ids, &positions)?;
        self.consume(transfer.range, scope.rank, &ordered.objects)?;
        let mut copy = Model::new_copy(name, transfer);
        copy.objects = (0..).zip(ordered.objects.iter().copied()).collect();
        self.admit_paged(copy, transfer, ordered);
        Ok(geometry.fills(ids, &ordered.objects, skip_tokens))
    }

    /// A reader found what it may read, and there was room for it.
    pub(super) fn check_read(
        &self,
        transfer: Transfer,
        (scope, name): (&Rc<Scope>, &Name),
        objects: &[ObjectNumber],
        news: &News,
    ) -> Verdict {
        let (full, _) = self.is_crowded(name, Some(&transfer.range.request));
        let chunks = transfer.range.len() as usize;
        let full = full || self.reads().0 + chunks > self.rules.lease_cells;
        check(!full, "P3: a reader was let in although the table was full")?;
        check(news.missed.is_none() && !news.table_full, "I-49: a hit was told as a miss")?;
        let may = self.may_read(transfer.range, scope) != Sure::No;
        check(may, "I-3: read without a lease of this request")?;
        check(objects.len() as u32 == transfer.range.len(), "a retrieve is all or nothing")?;
        for (chunk, number) in (transfer.range.first_chunk..).zip(objects) {
            let object = self.object(*number);
            check(self.is_resident(*number), "I-7: an object that is not readable was lent")?;
            check(!object.forced, "a forced clear left something to read")?;
            let same = *object.key.scope == **scope
                && object.key.hash == transfer.range.hashes[chunk as usize];
            check(same, "I-48: another key's bytes were lent")?;
        }
        Ok(())
    }

    /// A copy is between the right places and the right blocks of the right memory.
    fn check_blocks(
        &self,
        ordered: &Ordered,
        (attachment, geometry): (Attachment, Geometry),
        ids: &[u32],
        positions: &[u32],
    ) -> Verdict {
        let is_its = ordered.attachment == attachment;
        check(is_its, "R-32: a copy of memory that is not its instance's")?;
        let told = ordered.places.iter().map(|(at, _)| *at);
        check(told.eq(positions.iter().copied()), "P1: a copy's places are out of order")?;
        let wanted = positions.iter().flat_map(|at| geometry.object_ids(ids, *at));
        check(wanted.eq(&ordered.blocks), "P1: a copy names other blocks than its request")
    }

    fn admit_paged(&mut self, mut copy: Copy, transfer: Transfer, ordered: &Ordered) {
        copy.stream = Some(ordered.ticket);
        copy.reply = Some(transfer.reply);
        copy.attachment = Some(ordered.attachment);
        self.admit(copy);
    }

    /// A copy has ended. False for a stale ticket; then nothing may have changed.
    pub fn copy_ended(
        &mut self,
        ticket: Ticket,
        is_whole: bool,
        news: &News,
        got: Option<bool>,
    ) -> Result<bool, String> {
        let is_it = |copy: &Copy| copy.attachment.is_some() && copy.stream == Some(ticket);
        let number = self.copies.iter().find(|(_, copy)| is_it(copy)).map(|(number, _)| *number);
        let Some(number) = number else {
            check(news.committed.is_empty(), "I-6: a stale ending published something")?;
            check(news.retrieved == 0, "I-6: a stale ending counted as a retrieve")?;
            check(got.is_none(), "I-6: a stale ending was answered")?;
            return Ok(false);
        };
        let is_good = if self.copies[&number].kind() == Kind::Store {
            let complete = if is_whole { u32::MAX } else { 0 };
            self.publish(&[number], complete, news)? == 1
        } else {
            let copy = self.leave_copy(number);
            let expected = if is_whole { copy.objects.len() } else { 0 };
            check(news.retrieved == expected, "F26: retrieved is what has reached its reader")?;
            is_whole
        };
        check(got == Some(is_good), "R-32: a copy is answered once, and by how it has ended")?;
        Ok(true)
    }

    /// Whether a copy is under way whose memory its instance has no more.
    pub fn has_orphan(&self, ticket: Ticket) -> bool {
        let is_it = |copy: &&Copy| copy.attachment.is_some() && copy.stream == Some(ticket);
        self.copies.values().find(is_it).is_some_and(|copy| copy.is_orphan)
    }

    /// Server-driven copies in flight.
    pub fn paged_copies(&self) -> usize {
        self.copies.values().filter(|copy| copy.attachment.is_some()).count()
    }
}
