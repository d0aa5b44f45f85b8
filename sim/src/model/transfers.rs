//! Client copies: who may still read or write which object's memory (I-2, I-3, I-6, I-7).

use super::clients::Way;
use super::{Delivered, Missed, Model, News, ObjectNumber, Scope, Sure, Transfer, Verdict, check};
use crate::calls::Range;
use kvtide_core::event::SendOutcome;
use kvtide_core::names::{Attachment, ChunkHash, Connection, InstanceId, Reply, Ticket};
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Store,
    Retrieve,
}

/// What a commit names: the key without its request id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub(super) kind: Kind,
    pub(super) instance: InstanceId,
    scope: Rc<Scope>,
    first_chunk: u32,
    end_chunk: u32,
    last: Option<ChunkHash>,
}

#[derive(Clone, Debug)]
pub struct Copy {
    pub(super) name: Name,
    pub(super) connection: Connection,
    pub(super) request: Rc<str>,
    /// Position within the range, and the object there.
    pub objects: Vec<(u32, ObjectNumber)>,
    /// A client has the places.
    pub(super) is_lent: bool,
    /// Bytes are being sent or received.
    pub(super) stream: Option<Ticket>,
    pub(super) reply: Option<Reply>,
    /// Some chunk of the range found no room.
    pub(super) is_short: bool,
    /// A commit has come for one of several copies under this name.
    pub(super) is_counted: bool,
    /// A reader has said that it is done, or has all of its bytes.
    pub(super) was_read: bool,
    /// Its instance has gone: nothing of it may be published.
    pub(super) is_given_up: bool,
    /// The registration that it was lent under has ended.
    pub(super) is_orphan: bool,
    /// Its instance had been seen to write to slots by then.
    pub(super) wrote_slots: bool,
    /// What it counts for in the share of writers.
    pub(super) lent_bytes: u64,
    /// The server copies, from or to this memory.
    pub(super) attachment: Option<Attachment>,
}

impl Copy {
    pub fn names(&self, number: ObjectNumber) -> bool {
        self.objects.iter().any(|(_, object)| *object == number)
    }

    pub fn kind(&self) -> Kind {
        self.name.kind
    }
}

/// What an instance is offered: places, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offers {
    pub slots: bool,
    pub bytes: bool,
}

impl Model {
    /// Whether the request comes from a registered instance, for its own model, as one of its
    /// ranks.
    pub(super) fn asker(&mut self, transfer: Transfer) -> Option<(Rc<Scope>, Offers)> {
        let is_shared = self.rules.is_shared;
        let range = transfer.range;
        let known = self.seen(transfer.instance)?;
        let rank = range.worker.filter(|rank| *rank < range.world_size)?;
        if known.model != range.model || known.world_size != range.world_size {
            return None;
        }
        let offers = Offers {
            slots: is_shared && known.way != Way::Inline,
            bytes: !is_shared || known.way != Way::Slots,
        };
        let scope = Scope {
            model: range.model.clone(),
            salt: range.salt.clone(),
            world_size: range.world_size,
            rank,
            layout: known.layout,
        };
        Some((Rc::new(scope), offers))
    }

    pub(super) fn name(&self, kind: Kind, transfer: Transfer, scope: &Rc<Scope>) -> Name {
        let range = transfer.range;
        let last = range.hashes[range.first_chunk.min(range.end_chunk) as usize..]
            [..range.len() as usize]
            .last();
        Name {
            kind,
            instance: transfer.instance,
            scope: scope.clone(),
            first_chunk: range.first_chunk,
            end_chunk: range.end_chunk.max(range.first_chunk),
            last: last.copied(),
        }
    }

    pub(super) fn admit(&mut self, copy: Copy) -> u64 {
        self.copies_made += 1;
        self.copies.insert(self.copies_made, copy);
        self.copies_made
    }

    pub(super) fn new_copy(name: Name, transfer: Transfer) -> Copy {
        Copy {
            name,
            connection: transfer.connection,
            request: transfer.range.request.clone(),
            objects: Vec::new(),
            is_lent: false,
            stream: None,
            reply: None,
            is_short: false,
            is_counted: false,
            was_read: false,
            is_given_up: false,
            is_orphan: false,
            wrote_slots: false,
            lent_bytes: 0,
            attachment: None,
        }
    }

    /// Whether an instance has places under the name that such a commit would give, for one
    /// request or for any.
    pub fn is_lent(
        &self,
        kind: Kind,
        instance: InstanceId,
        range: &Range,
        request: Option<&str>,
    ) -> bool {
        let mut lent = self.lent(kind, instance, range);
        lent.any(|copy| request.is_none_or(|request| *copy.request == *request))
    }

    /// Whether what a store's commit would name is this request's over this connection, and
    /// nobody else's.
    pub fn is_lent_alone(
        &self,
        instance: InstanceId,
        range: &Range,
        (connection, request): (Connection, &str),
    ) -> bool {
        let mut lent = self.lent(Kind::Store, instance, range);
        let first = lent.next();
        let is_own = first.is_some_and(|c| c.connection == connection && *c.request == *request);
        is_own && lent.next().is_none()
    }

    fn lent(&self, kind: Kind, instance: InstanceId, range: &Range) -> impl Iterator<Item = &Copy> {
        let last = range.keys().hashes.last().filter(|_| !range.is_empty()).copied();
        let (first_chunk, end_chunk) = (range.first_chunk, range.end_chunk);
        self.copies.values().filter(move |copy| {
            copy.is_lent
                && copy.name.kind == kind
                && copy.name.instance == instance
                && copy.name.first_chunk == first_chunk
                && copy.name.end_chunk == end_chunk
                && copy.name.last == last
        })
    }

    /// Copies of this name in a client's hands: the request's own; for a store without any, those
    /// of the connection, or else all.
    pub(super) fn in_hand(&self, name: &Name, transfer: Transfer) -> Vec<u64> {
        let named = |copy: &Copy| {
            let is_flowing = name.kind == Kind::Store && copy.stream.is_some();
            copy.name == *name && copy.is_lent && !is_flowing
        };
        let those = |is_wanted: &dyn Fn(&Copy) -> bool| -> Vec<u64> {
            let copies = self.copies.iter().filter(|(_, copy)| named(copy) && is_wanted(copy));
            copies.map(|(number, _)| *number).collect()
        };
        let own = those(&|copy| copy.request == transfer.range.request);
        if !own.is_empty() || name.kind == Kind::Retrieve {
            return own;
        }
        let ours = those(&|copy| copy.connection == transfer.connection);
        if ours.is_empty() { those(&|_| true) } else { ours }
    }

    /// Copies of this name: of one request for readers, of anybody for writers; at least, and at
    /// most.
    fn of_name(&self, name: &Name, reader: Option<&str>) -> (usize, usize) {
        let named = |copy: &&Copy| {
            copy.name == *name && reader.is_none_or(|reader| *copy.request == *reader)
        };
        let least = self.copies.values().filter(named).count();
        (least, least + self.holds.copies.iter().filter(named).count())
    }

    /// Whether there must be, and whether there may be, too many copies to let one more in.
    pub(super) fn is_crowded(&self, name: &Name, reader: Option<&str>) -> (bool, bool) {
        let (named, all) = (self.of_name(name, reader), self.copies_between());
        let (per_name, most) = (COPIES_PER_NAME, self.rules.copies);
        (named.0 >= per_name || all.0 >= most, named.1 >= per_name || all.1 >= most)
    }

    /// The copies that a commit ends. Several under one name cannot be told apart: they end when
    /// as many commits have come. For readers of the same objects it does not matter which goes.
    pub(super) fn commit(&mut self, name: &Name, transfer: Transfer) -> Vec<u64> {
        let numbers = self.in_hand(name, transfer);
        if numbers.is_empty() {
            // Lent under another layout, to an instance that has registered anew since.
            return self.commit_late(name.kind, transfer);
        }
        self.count(name.kind, numbers)
    }

    /// The same for an instance that is registered no more, or with another layout: its own
    /// request's copies of that range, at that rank, over the connection that commits, of
    /// registrations that have ended.
    pub(super) fn commit_late(&mut self, kind: Kind, transfer: Transfer) -> Vec<u64> {
        let numbers = self.orphans(kind, transfer);
        self.count(kind, numbers)
    }

    /// Whoever sends its bytes does not write to the slots that it had for them: those of them that
    /// were given up are nobody's any more.
    pub(super) fn body_came(&mut self, name: Option<&Name>, transfer: Transfer) {
        let mut numbers = self.orphans(Kind::Store, transfer);
        numbers.retain(|number| !self.copies[number].wrote_slots);
        if let Some(name) = name {
            numbers.extend(self.in_hand(name, transfer).into_iter().filter(|number| {
                let copy = &self.copies[number];
                copy.request == transfer.range.request
                    && copy.connection == transfer.connection
                    && !copy.is_orphan
                    && !copy.objects.iter().all(|(_, number)| self.is_wanted(*number))
            }));
        }
        numbers.iter().for_each(|number| drop(self.leave_copy(*number)));
    }

    fn orphans(&self, kind: Kind, transfer: Transfer) -> Vec<u64> {
        let range = transfer.range;
        let last = range.keys().hashes.last().filter(|_| !range.is_empty()).copied();
        let is_wanted = |copy: &Copy| {
            let is_flowing = kind == Kind::Store && copy.stream.is_some();
            copy.is_orphan
                && copy.is_lent
                && !is_flowing
                && copy.connection == transfer.connection
                && copy.request == range.request
                && (copy.name.kind, copy.name.instance) == (kind, transfer.instance)
                && copy.name.first_chunk == range.first_chunk
                && copy.name.end_chunk == range.end_chunk
                && copy.name.last == last
                && (&copy.name.scope.model, &copy.name.scope.salt) == (&range.model, &range.salt)
                && copy.name.scope.world_size == range.world_size
                && Some(copy.name.scope.rank) == range.worker
        };
        let copies = self.copies.iter().filter(|(_, copy)| is_wanted(copy));
        let numbers: Vec<u64> = copies.map(|(number, _)| *number).collect();
        if numbers.len() > COPIES_PER_NAME {
            return Vec::new();
        }
        numbers
    }

    fn count(&mut self, kind: Kind, numbers: Vec<u64>) -> Vec<u64> {
        let Some(oldest) = numbers.first() else { return numbers };
        let objects = |number: &u64| &self.copies[number].objects;
        let is_same = numbers.iter().all(|number| objects(number) == objects(oldest));
        if numbers.len() == 1 || (kind == Kind::Retrieve && is_same) {
            return vec![*oldest];
        }
        let uncounted = numbers.iter().find(|number| !self.copies[number].is_counted);
        if let Some(number) = uncounted {
            self.copies.get_mut(number).expect("found above").is_counted = true;
        }
        if numbers.iter().all(|number| self.copies[number].is_counted) {
            return numbers;
        }
        Vec::new()
    }

    /// `prepare_retrieve`: every chunk under the request's own leases, or a miss.
    pub fn prepare_retrieve(
        &mut self,
        transfer: Transfer,
        news: &News,
        got: &Delivered,
    ) -> Verdict {
        let asker = self.asker(transfer);
        let Delivered::Hit { objects, with_slots, ticket } = got else {
            return self.judge_miss(transfer, asker.map(|(scope, _)| scope), news);
        };
        let (scope, offers) = asker.ok_or("a stranger was given an object's bytes")?;
        let name = self.name(Kind::Retrieve, transfer, &scope);
        self.check_read(transfer, (&scope, &name), objects, news)?;
        check(*with_slots == offers.slots, "places are told to those that use them")?;
        check(ticket.is_some() == offers.bytes, "bytes are sent to those that use them")?;
        self.consume(transfer.range, scope.rank, objects)?;
        let mut copy = Model::new_copy(name, transfer);
        copy.objects = (0..).zip(objects.iter().copied()).collect();
        copy.is_lent = *with_slots;
        copy.stream = *ticket;
        self.admit(copy);
        Ok(())
    }

    /// A miss has a reason, and the reason is true.
    pub(super) fn judge_miss(
        &mut self,
        transfer: Transfer,
        scope: Option<Rc<Scope>>,
        news: &News,
    ) -> Verdict {
        let Some(scope) = scope else {
            return check(
                news.missed.is_none(),
                "I-49: a stranger's miss was told as a failed read",
            );
        };
        let range = transfer.range;
        let must_hit = self.may_read(range, &scope) == Sure::Yes;
        if news.table_full {
            let name = self.name(Kind::Retrieve, transfer, &scope);
            let (_, full) = self.is_crowded(&name, Some(&range.request));
            let reads = self.reads().1 + range.len() as usize;
            let full = full || reads > self.rules.lease_cells;
            return check(full, "P3: a reader was refused by a table with room");
        }
        match news.missed {
            None => return check(range.is_empty(), "I-49: a read failed and nobody was told"),
            Some(Missed::NotFound) => {
                let taken = self.may_be_taken(range, &scope);
                check(taken, "F57: what was leased is gone, and nobody used force")?;
            }
            Some(Missed::OtherKey) => {
                let same = self.is_looked_up(range, &scope);
                check(!same, "F57: the very chunks of the lookup were called others")?;
            }
            Some(Missed::NotLeased) => {}
        }
        check(!must_hit, "F57, I-26: a promised chunk could not be read")
    }

    /// `commit_retrieve`: true for every registered instance, also after a miss.
    pub fn commit_retrieve(&mut self, transfer: Transfer, news: &News, got: bool) -> Verdict {
        let asker = self.asker(transfer);
        check(got == asker.is_some(), "commit_retrieve is true for those that are registered")?;
        let ended = match asker {
            Some((scope, _)) => self.commit(&self.name(Kind::Retrieve, transfer, &scope), transfer),
            None => self.commit_late(Kind::Retrieve, transfer),
        };
        let mut expected = 0;
        for number in ended {
            let copy = self.copies.get_mut(&number).expect("found above");
            copy.is_lent = false;
            copy.was_read = true;
            expected += if copy.stream.is_none() { copy.objects.len() } else { 0 };
            self.drop_if_ended(number);
        }
        check(news.retrieved == expected, "F26: retrieved is what has reached its reader")
    }

    /// The bytes of an answer have left, or never will. False for a stale ticket. What did not
    /// reach its reader does not count as retrieved (F26).
    pub fn send_ended(
        &mut self,
        ticket: Ticket,
        outcome: SendOutcome,
        news: &News,
    ) -> Result<bool, String> {
        let Some(number) = self.streaming(Kind::Retrieve, ticket) else {
            check(news.retrieved == 0, "I-6: a stale ending counted as a retrieve")?;
            return Ok(false);
        };
        let copy = self.copies.get_mut(&number).expect("found above");
        copy.stream = None;
        copy.was_read |= outcome == SendOutcome::Sent;
        let counts = copy.was_read && !copy.is_lent;
        let expected = if counts { copy.objects.len() } else { 0 };
        check(news.retrieved == expected, "F26: retrieved is what has reached its reader")?;
        self.drop_if_ended(number);
        Ok(true)
    }

    /// The copy of this kind whose bytes come or go under a ticket.
    pub(super) fn streaming(&self, kind: Kind, ticket: Ticket) -> Option<u64> {
        let is_it = |copy: &Copy| {
            copy.kind() == kind && copy.attachment.is_none() && copy.stream == Some(ticket)
        };
        self.copies.iter().find(|(_, copy)| is_it(copy)).map(|(number, _)| *number)
    }

    /// End of stream: nobody has places of this connection any more.
    pub fn connection_ended(&mut self, connection: Connection) {
        let of_connection = |(number, copy): (&u64, &mut Copy)| {
            let ours = copy.connection == connection;
            copy.is_lent &= !ours;
            ours.then_some(*number)
        };
        let numbers: Vec<u64> = self.copies.iter_mut().filter_map(of_connection).collect();
        for number in numbers {
            self.drop_if_ended(number);
        }
    }

    fn drop_if_ended(&mut self, number: u64) {
        let copy = &self.copies[&number];
        if !copy.is_lent && copy.stream.is_none() {
            self.leave_copy(number);
        }
    }
}

/// Copies under one name; a worker that wants more has lost track of them.
const COPIES_PER_NAME: usize = 4;
