//! Stores: which slots may be granted, and what becomes readable when (I-4, I-7, F18).

use super::clients::Way;
use super::transfers::{Kind, Name};
use super::{Granted, Key, Model, News, Object, ObjectNumber, Scope, State, Sure};
use super::{Transfer, Use, Verdict, check};
use crate::calls::Range;
use kvtide_core::event::BodyOutcome;
use kvtide_core::names::{InstanceId, Place, Ticket};
use std::rc::Rc;

impl Model {
    /// `prepare_store`: slots for the absent chunks, as long a prefix as fits. Names the objects.
    pub fn prepare_store(
        &mut self,
        transfer: Transfer,
        news: &News,
        got: &Granted,
    ) -> Result<Vec<ObjectNumber>, String> {
        // A client that sends its bytes ignores the slots; a private pool has none to offer.
        let asker = self.asker(transfer).filter(|_| self.rules.is_shared);
        let Some((scope, _)) = asker else {
            check(*got == Granted::NoContext, "slots for somebody who cannot use them")?;
            check(news.reserved.is_empty(), "I-52: reserved for nobody")?;
            return Ok(Vec::new());
        };
        let name = self.name(Kind::Store, transfer, &scope);
        let (must_be_full, may_be_full) = self.is_crowded(&name, None);
        if news.table_full {
            check(*got == Granted::NoContext, "P3: a full table, and slots all the same")?;
            check(may_be_full, "P3: a writer was refused by a table with room")?;
            check(news.reserved.is_empty(), "I-52: reserved for nobody")?;
            return Ok(Vec::new());
        }
        check(!must_be_full, "P3: a writer was let in although the table was full")?;
        let granted = match got {
            Granted::NoContext => &Vec::new(),
            Granted::Slots(granted) => granted,
        };
        let (objects, is_short) = self.reserve(transfer.range, &scope, news, granted, |_| false)?;
        self.judge_refusal(news, transfer.range, true)?;
        if objects.is_empty() {
            let refused = *got == Granted::NoContext;
            check(!refused || is_short, "refused although there was room")?;
            check(refused || !is_short, "empty slots mean that all is here already")?;
            return Ok(Vec::new());
        }
        let bytes = scope.layout.bytes().unwrap_or(1);
        let slot_bytes = self.rules.arena.slot_bytes(bytes);
        let mut copy = Model::new_copy(name, transfer);
        copy.objects = granted.iter().map(|(at, _)| *at).zip(objects.iter().copied()).collect();
        copy.is_lent = true;
        copy.is_short = is_short;
        copy.lent_bytes = slot_bytes * objects.len() as u64;
        self.admit(copy);
        // Writers have no more of L1 in their hands than their share, given up or not; but one may
        // always write one object.
        let (lent, _) = self.lent_bytes();
        let fits = lent <= self.rules.lent_bytes_max || lent == slot_bytes;
        check(fits, "P3: writers hold more than their share of L1")?;
        Ok(objects)
    }

    /// Judges a reservation: exactly the absent chunks, but for those without blocks, up to the
    /// first that found no room.
    pub(super) fn reserve(
        &mut self,
        range: &Range,
        scope: &Rc<Scope>,
        news: &News,
        granted: &[(u32, Place)],
        is_null: impl Fn(u32) -> bool,
    ) -> Result<(Vec<ObjectNumber>, bool), String> {
        let mut objects = Vec::new();
        let is_short = !news.refused.is_empty();
        let mut refused = Vec::new();
        let mut keys = Vec::new();
        for (position, chunk) in (range.first_chunk..range.end_chunk).enumerate() {
            let key = Key { scope: scope.clone(), hash: range.hashes[chunk as usize] };
            let place = granted.iter().find(|(at, _)| *at == position as u32);
            if let Some((_, place)) = place {
                check(refused.is_empty(), "F18: a slot beyond the first without room")?;
                check(!self.index.contains_key(&key), "I-4: a slot for what is there already")?;
                self.excuse(Some(&key));
                objects.push(self.stage(key.clone(), *place));
                keys.push(key);
                continue;
            }
            if is_null(position as u32) && refused.is_empty() {
                continue;
            }
            let is_there = self.index.get(&key).is_some_and(|number| {
                let object = self.object(*number);
                let is_dead = object.forced
                    || (object.state == State::Resident && object.readable == Sure::No);
                !is_dead
            });
            // Its load was given up later in this very event, when the store had looked already.
            let was_coming = news.uses.contains(&(key.clone(), Use::GivenUp));
            let is_there = is_there || was_coming;
            let first = news.refused.first().map(|(key, _)| key);
            if refused.is_empty() && first != Some(&key) {
                // A chunk that went for the sake of one behind it is not there any more.
                check(is_there, "F18: a chunk was dropped in silence, or by its own request")?;
            } else {
                refused.push(key);
            }
        }
        let told = news.refused.iter().map(|(key, _)| key);
        check(refused.iter().eq(told), "F37: what was refused is not what was told")?;
        check(granted.len() == keys.len(), "I-5: slots for chunks that were not asked for")?;
        check(keys == news.reserved, "I-49: what was reserved is not what was told")?;
        Ok((objects, is_short))
    }

    pub(super) fn stage(&mut self, key: Key, place: Place) -> ObjectNumber {
        let number = ObjectNumber(self.objects.len() as u64);
        self.index.insert(key.clone(), number);
        let is_heir = self.taken.contains(&key);
        self.objects.push(Object {
            key,
            state: State::Staged,
            readable: Sure::No,
            forced: false,
            reserved_at: self.now,
            place,
            used: 0,
            is_heir,
            temporary: Sure::No,
        });
        number
    }

    /// `commit_store` of slots.
    pub fn commit_store(&mut self, transfer: Transfer, news: &News, got: bool) -> Verdict {
        let Some((scope, _)) = self.asker(transfer) else {
            let numbers = self.commit_late(Kind::Store, transfer);
            let whole = self.publish(&numbers, u32::MAX, news)?;
            check(whole == 0, "I-7: published for an instance that is gone")?;
            return check(!got, "a stranger's commit was accepted");
        };
        self.saw(transfer.instance, Way::Slots);
        let name = self.name(Kind::Store, transfer, &scope);
        let numbers = self.commit(&name, transfer);
        let whole = self.publish(&numbers, u32::MAX, news)? > 0;
        check(got == whole, "I-6, I-7: a commit is true exactly when all of it is readable")
    }

    /// `commit_store` with its bytes: into the pending reservation, or into a new one. `places`
    /// are the positions that have a place. None: it was refused.
    pub fn receive(
        &mut self,
        transfer: Transfer,
        news: &News,
        got: Option<(Ticket, &[(u32, Place)])>,
    ) -> Result<Vec<(u32, ObjectNumber)>, String> {
        let asker = self.asker(transfer);
        // One that commits its slots may still be writing to them.
        let sends_bytes = asker.as_ref().is_none_or(|(_, offers)| offers.bytes);
        if sends_bytes {
            let scope = asker.as_ref().map(|(scope, _)| scope);
            let name = scope.map(|scope| self.name(Kind::Store, transfer, scope));
            self.body_came(name.as_ref(), transfer);
        }
        let Some((ticket, places)) = got else {
            let may = asker.as_ref().is_none_or(|(scope, _)| {
                news.table_full && self.is_crowded(&self.name(Kind::Store, transfer, scope), None).1
            });
            check(may, "P3: a body was refused by a table with room")?;
            check(news.reserved.is_empty(), "I-52: reserved for nobody")?;
            return Ok(Vec::new());
        };
        let (scope, _) = asker.ok_or("a stranger's bytes were accepted")?;
        let name = self.name(Kind::Store, transfer, &scope);
        let number = match self.pending(&name, transfer).filter(|_| sends_bytes) {
            Some(number) => {
                check(news.reserved.is_empty(), "reserved although a reservation was pending")?;
                number
            }
            None => {
                let (must_be_full, _) = self.is_crowded(&name, None);
                check(!must_be_full, "P3: a body was let in although the table was full")?;
                let (objects, is_short) =
                    self.reserve(transfer.range, &scope, news, places, |_| false)?;
                self.judge_refusal(news, transfer.range, false)?;
                let mut copy = Model::new_copy(name, transfer);
                copy.objects = places.iter().map(|(at, _)| *at).zip(objects).collect();
                copy.is_short = is_short;
                self.admit(copy)
            }
        };
        let copy = self.copies.get_mut(&number).expect("found or admitted above");
        copy.stream = Some(ticket);
        copy.reply = Some(transfer.reply);
        let positions = copy.objects.iter().map(|(position, _)| *position);
        check(
            positions.eq(places.iter().map(|(at, _)| *at)),
            "a body goes to the chunks of its reservation",
        )?;
        Ok(copy.objects.clone())
    }

    /// The reservation that a body can go into: the request's own, alone under its name, nothing of
    /// it given up.
    fn pending(&self, name: &Name, transfer: Transfer) -> Option<u64> {
        match self.in_hand(name, transfer)[..] {
            [number] => {
                let copy = &self.copies[&number];
                let is_own = copy.request == transfer.range.request;
                (is_own && copy.objects.iter().all(|(_, number)| self.is_wanted(*number)))
                    .then_some(number)
            }
            _ => None,
        }
    }

    /// Whether what is written to a reservation may become readable.
    pub(super) fn is_wanted(&self, number: ObjectNumber) -> bool {
        let object = self.object(number);
        object.state == State::Staged && !object.forced
    }

    /// A body has ended. False for a stale ticket; then nothing may have changed.
    pub fn receive_ended(
        &mut self,
        ticket: Ticket,
        (complete, outcome): (u32, BodyOutcome),
        news: &News,
        got: Option<bool>,
    ) -> Result<bool, String> {
        let Some(number) = self.streaming(Kind::Store, ticket) else {
            check(news.committed.is_empty(), "I-6: a stale ending published something")?;
            check(got.is_none(), "I-6: a stale ending was answered")?;
            return Ok(false);
        };
        let copy = &self.copies[&number];
        let good = outcome == BodyOutcome::Whole && !copy.is_short;
        let instance = copy.name.instance;
        let whole = self.publish(&[number], complete, news)? == 1;
        if outcome == BodyOutcome::Whole {
            self.saw(instance, Way::Inline);
        }
        check(got == Some(whole && good), "a body is true exactly when all of it is readable")?;
        Ok(true)
    }

    /// Ends stores: what was written, and is still wanted, becomes readable. How many became
    /// readable as a whole.
    pub(super) fn publish(
        &mut self,
        numbers: &[u64],
        complete: u32,
        news: &News,
    ) -> Result<usize, String> {
        let (mut whole, mut published) = (0, 0);
        for number in numbers {
            let copy = self.copies.remove(number).expect("found by the caller");
            let before = published;
            for (position, number) in &copy.objects {
                let object = &mut self.objects[number.0 as usize];
                let told = news.committed.contains(&object.key);
                let is_staged = object.state == State::Staged;
                let wrong = told && is_staged && copy.is_given_up;
                check(!wrong, "I-7: published for an instance that is gone")?;
                let key = object.key.clone();
                if *position < complete && object.state == State::Staged && !object.forced {
                    check(told, "I-7: a finished write was not published")?;
                    object.state = State::Resident;
                    object.readable = Sure::Yes;
                    published += 1;
                    self.became_present(&key);
                    self.owe(*number);
                } else {
                    check(object.state == State::Gone, "I-52: neither committed nor aborted")?;
                }
            }
            whole += (published - before == copy.objects.len()) as usize;
        }
        check(news.committed.len() == published, "I-7: more was published than written")?;
        // In that order they were used: the tail of a request goes before its beginning.
        for key in &news.committed {
            if let Some(number) = self.index.get(key) {
                self.used(*number);
            }
        }
        Ok(whole)
    }

    /// The instance is gone: every slot that it had not committed goes, at the latest when no work
    /// is left, and from now on none of them is published.
    pub(super) fn give_up_stores_of(&mut self, instance: InstanceId, way: Way) {
        for copy in self.copies.values_mut().filter(|copy| copy.name.instance == instance) {
            copy.wrote_slots |= !copy.is_orphan && way == Way::Slots;
            copy.is_orphan = true;
            copy.is_given_up |= copy.name.kind == Kind::Store;
        }
    }

    pub(super) fn settle_given_up(&self) -> Verdict {
        let staged = |(_, number): &(u32, ObjectNumber)| {
            self.objects[number.0 as usize].state == State::Staged
        };
        let mut given_up = self.copies.values().filter(|copy| copy.is_given_up);
        check(
            !given_up.any(|copy| copy.objects.iter().any(staged)),
            "I-7: uncommitted slots outlive an instance",
        )
    }

    fn saw(&mut self, instance: InstanceId, way: Way) {
        if self.rules.is_shared
            && let Some(known) = self.instances.get_mut(&instance)
            && known.memory.is_none()
        {
            known.way = way;
        }
    }
}
