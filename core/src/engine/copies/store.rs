//! Stores: slots lent to a writer, or a body received into them, and their publication.

use super::commits::Commit;
use super::{Asker, Copies, Copy, Kind, Owner, new_copy, pending_key, place_of};
use crate::config::PoolKind;
use crate::effect::{Answer, Effect, Slot, SlotRange};
use crate::engine::jobs::Job;
use crate::engine::l1::room::{Search, Staged};
use crate::engine::l1::{Found, Key};
use crate::engine::turn::Turn;
use crate::event::{BodyOutcome, Keys};
use crate::fact::{Abort, Fact, FactKey, NoRoom, RequestFault};
use crate::names::{InstanceId, Ticket};
use crate::slots::SlotName;
use alloc::vec::Vec;

/// What of a copy became readable.
pub(super) struct Published {
    pub keys: u32,
    pub bytes: u64,
    /// Every object did.
    pub is_whole: bool,
}

impl Copies {
    /// `prepare_store`: slots for what is not there yet, as long a prefix as fits. A shared pool
    /// offers them to a client that sends its bytes inline as well: it ignores them, and its bytes
    /// go into the reservation.
    pub fn prepare_store(&mut self, turn: &mut Turn, asker: &Asker, keys: &Keys) {
        if turn.config.pool == PoolKind::Private {
            turn.out.answer(asker.reply, Answer::NoContext);
            return;
        }
        let key = pending_key(Kind::Store, asker, keys);
        if self.copies.is_full() || self.has_too_many(&key) {
            let fault = RequestFault::TableFull;
            turn.out.tell(Fact::RequestFaulted { operation: "prepare_store", fault });
            turn.out.answer(asker.reply, Answer::NoContext);
            return;
        }
        let (copy, refused) = self.reserve(turn, asker, keys, true, |_| true);
        if copy.objects.is_empty() {
            let answer = match refused {
                Some(_) => Answer::NoContext,
                None => Answer::StoreSlots { slots: SlotRange::default(), layout: asker.layout },
            };
            turn.out.answer(asker.reply, answer);
            return;
        }
        self.lent_bytes += copy.lent_bytes;
        let slots = self.list_slots(turn, &copy);
        let name = self.admit_store(turn, copy);
        let ticket = self.issue(Owner::ClientCopy(name));
        self.copies.find_mut(name).expect("admitted above").lent = Some(ticket);
        turn.out.answer(asker.reply, Answer::StoreSlots { slots, layout: asker.layout });
    }

    /// `commit_store` over shared memory: the client has written its slots.
    pub fn commit_store(&mut self, turn: &mut Turn, asker: &Asker, keys: &Keys) {
        let (key, mut by) = (pending_key(Kind::Store, asker, keys), asker.committer());
        if planted!(turn.config, 2) {
            by.request = self.heir(turn.l1, &key, by, true);
        }
        if planted!(turn.config, 23) {
            by.request = self.heir(turn.l1, &key, by, false);
        }
        let mut whole = false;
        match self.count_commit(&key, by) {
            // Of several, those that were given up earlier do not count.
            Commit::Of(names) => {
                for name in names {
                    whole |= self.publish(turn, name, u32::MAX, Abort::ForcedClear).is_whole;
                }
                if planted!(turn.config, 3) {
                    self.end_outrun(turn, &key);
                }
            }
            Commit::OneOfSeveral => {}
            Commit::OfNothing => {
                self.commit_unregistered(turn, by, Kind::Store, asker.instance, keys);
            }
        }
        turn.out.answer(asker.reply, Answer::Bool(whole));
    }

    /// `commit_store` with its bytes in the message: they go into the pending reservation, or into
    /// a new one.
    pub fn receive(&mut self, turn: &mut Turn, asker: &Asker, keys: &Keys) {
        let key = pending_key(Kind::Store, asker, keys);
        // An instance that commits its slots may still be writing to them: a body that it sends
        // for once goes elsewhere.
        let writes_slots = !asker.offers.1;
        if !writes_slots {
            self.body_unregistered(turn, asker.committer(), asker.instance, keys);
            self.end_given_up(turn, &key, asker.committer());
        }
        let pending = self.only_pending(turn.l1, &key, asker.committer()).filter(|_| !writes_slots);
        let name = match pending {
            Some(name) => name,
            None if self.copies.is_full() || self.has_too_many(&key) => {
                let fault = RequestFault::TableFull;
                turn.out.tell(Fact::RequestFaulted { operation: "commit_store", fault });
                turn.out.answer(asker.reply, Answer::Bool(false));
                return;
            }
            None => {
                let (copy, _) = self.reserve(turn, asker, keys, false, |_| true);
                self.admit_store(turn, copy)
            }
        };
        let ticket = self.issue(Owner::Receive(name));
        let copy = self.copies.find_mut(name).expect("found or admitted above");
        if planted!(turn.config, 37) && copy.lent.is_some() {
            copy.timer.take().iter().for_each(|timer| turn.alarms.cancel(*timer));
        }
        copy.stream = Some(ticket);
        copy.reply = Some(asker.reply);
        let start = turn.out.slots.len() as u32;
        let mut next = copy.chunks.iter().zip(&copy.objects).peekable();
        for chunk in 0..keys.chunks().len() as u32 {
            let ours = next.next_if(|(at, _)| **at == chunk).map(|(_, id)| *id);
            let place = ours.and_then(|id| place_of(turn, id));
            turn.out.slots.push(Slot { chunk, place });
        }
        let slots = SlotRange { start, end: turn.out.slots.len() as u32 };
        let layout = asker.layout;
        turn.out.effects.push(Effect::Receive { reply: asker.reply, ticket, slots, layout });
    }

    /// The body has ended: publish the chunks that came whole, and answer. Names the instance that
    /// sent it.
    pub fn receive_ended(
        &mut self,
        turn: &mut Turn,
        ticket: Ticket,
        complete: u32,
        outcome: BodyOutcome,
    ) -> Option<InstanceId> {
        let ticket = match planted!(turn.config, 6) {
            true => self.successor(ticket, |owner| matches!(owner, Owner::Receive(_))),
            false => ticket,
        };
        let name = self.end_ticket(turn, ticket, Owner::receiving)?;
        let copy = self.copies.find_mut(name).expect("a ticket keeps its copy");
        copy.stream = None;
        let complete = match planted!(turn.config, 36) && copy.lent.is_some() {
            true => copy.chunks.get(complete as usize).copied().unwrap_or(u32::MAX),
            false => complete,
        };
        let reply = copy.reply.take();
        let instance = copy.key.instance;
        let whole = outcome == BodyOutcome::Whole && !copy.short;
        let published = self.publish(turn, name, complete, Abort::Body);
        if let Some(reply) = reply {
            turn.out.answer(reply, Answer::Bool(published.is_whole && whole));
        }
        Some(instance)
    }

    /// A new reservation for the absent and wanted chunks of a range: the longest prefix that fits,
    /// into L1 and, where the slots will be lent, into the share that writers may hold.
    pub(super) fn reserve(
        &mut self,
        turn: &mut Turn,
        asker: &Asker,
        keys: &Keys,
        will_lend: bool,
        is_wanted: impl Fn(u32) -> bool,
    ) -> (Copy, Option<NoRoom>) {
        let slot_bytes = if will_lend { turn.l1.slot_bytes(asker.bytes) } else { 0 };
        let lent_max = turn.config.lent_bytes_max();
        let mut copy = new_copy(turn, asker, pending_key(Kind::Store, asker, keys));
        let mut refused = None;
        let mut dropped = 0..0;
        let mut search = Search::default();
        turn.work.spend_own(keys.chunks().len());
        for chunk in keys.chunks().filter(|chunk| is_wanted(*chunk)) {
            let key = Key { hash: keys.hashes[chunk as usize], scope: asker.scope };
            let lent = self.lent_bytes + copy.lent_bytes;
            // A chunk that is larger than the share may be written while nobody else writes.
            let is_over = will_lend && lent > 0 && lent + slot_bytes > lent_max;
            let staged = match is_over && turn.l1.find(&key) == Found::Absent {
                true => Staged::NoRoom(NoRoom::Lent),
                false => turn.l1.stage(key, asker.bytes, &mut search, turn.work, turn.out),
            };
            match staged {
                Staged::New(id) => {
                    copy.lent_bytes += slot_bytes;
                    copy.objects.push(id);
                    copy.chunks.push(chunk - keys.first_chunk);
                }
                Staged::Present => {}
                Staged::NoRoom(why) => {
                    refused = Some(why);
                    dropped = chunk..keys.end_chunk;
                }
            }
            if refused.is_some() {
                break;
            }
        }
        turn.l1.end_search(&mut search);
        if search.must_empty {
            turn.jobs.push(Job::EmptyWindow);
        }
        copy.short = refused.is_some();
        if !copy.objects.is_empty() {
            let mark = turn.out.mark();
            copy.objects.iter().for_each(|id| turn.l1.push_key(*id, turn.out));
            turn.out.tell(Fact::WriteReserved { keys: turn.out.keys_since(mark) });
        }
        if let Some(why) = refused {
            // One chunk met the reason; those behind it were not tried (F37).
            let rest = dropped.start + 1..dropped.end;
            for (chunks, why) in [(dropped.start..rest.start, why), (rest, NoRoom::Trimmed)] {
                let mark = turn.out.mark();
                let (scope, bytes) = (asker.scope, asker.bytes);
                let tenant = turn.l1.scopes.tenant_of(scope);
                for chunk in chunks {
                    let hash = keys.hashes[chunk as usize];
                    turn.out.keys.push(FactKey { hash, bytes, scope, tenant });
                }
                let keys = turn.out.keys_since(mark);
                if !keys.is_empty() {
                    turn.out.tell(Fact::WriteRefused { keys, why });
                }
            }
        }
        (copy, refused)
    }

    /// Publishes the objects of chunks below `complete`, gives up the others, ends the copy.
    pub(super) fn publish(
        &mut self,
        turn: &mut Turn,
        name: SlotName,
        complete: u32,
        otherwise: Abort,
    ) -> Published {
        self.end_lent(name);
        let given_up = self.copies.find(name).and_then(|copy| self.given_up(copy));
        let copy = self.copies.find_mut(name).expect("found by its key or ticket");
        let objects = core::mem::take(&mut copy.objects);
        let chunks = core::mem::take(&mut copy.chunks);
        let started = copy.started;
        turn.work.spend_own(objects.len());
        let (mark, mut bytes) = (turn.out.mark(), 0);
        let mut failed = Vec::new();
        // From the tail, so that the first chunk is the newest (spec/storage §3.2).
        for (id, chunk) in objects.iter().zip(&chunks).rev() {
            if given_up.is_none() && *chunk < complete && turn.l1.can_commit(*id) {
                turn.l1.commit(*id);
                turn.l1.push_key(*id, turn.out);
                self.published.push(*id);
                bytes += turn.out.keys.last().map_or(0, |key| key.bytes);
            } else {
                failed.push((*id, *chunk < complete));
            }
        }
        let stored = turn.out.keys_since(mark);
        if !stored.is_empty() {
            turn.out.tell(Fact::WriteFinished { keys: stored });
        }
        let failures = failed.len() as u32;
        // What is whole and cannot be committed has met a forced clear, if nobody said otherwise.
        let of_whole = given_up.unwrap_or(Abort::ForcedClear);
        for (is_whole, why) in [(true, of_whole), (false, otherwise)] {
            let mark = turn.out.mark();
            for (id, _) in failed.iter().filter(|(_, whole)| *whole == is_whole) {
                turn.l1.condemn_staged(*id, turn.out);
                turn.l1.unpin(*id);
            }
            let keys = turn.out.keys_since(mark);
            if !keys.is_empty() {
                turn.out.tell(Fact::WriteAborted { keys, why });
            }
        }
        turn.out.tell(Fact::StoreFinished { stored, failed: failures });
        if !stored.is_empty() {
            let took = turn.now - started;
            turn.out.tell(Fact::Stored { keys: stored, bytes, took });
        }
        self.remove(turn, name);
        Published { keys: stored.len() as u32, bytes, is_whole: failures == 0 }
    }
}
