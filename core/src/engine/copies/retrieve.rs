//! Retrieves: resident objects pinned for a reader, over shared memory or in the answer itself.

use super::commits::{Commit, Committer};
use super::{Asker, Copies, Copy, Ending, Kind, Owner, PendingKey, new_copy, pending_key};
use crate::effect::{Answer, Effect};
use crate::engine::sessions::Sessions;
use crate::engine::turn::Turn;
use crate::event::{Keys, SendOutcome};
use crate::fact::{Fact, FactKey, KeyRange, LeaseEnd, ReadFailure, RequestFault};
use crate::names::{InstanceId, Ticket};
use crate::slots::SlotName;
use alloc::vec::Vec;

impl Copies {
    /// `prepare_retrieve`: every chunk of the range under the session's own leases, or a miss.
    pub fn prepare_retrieve(
        &mut self,
        turn: &mut Turn,
        sessions: &mut Sessions,
        asker: &Asker,
        keys: &Keys,
    ) {
        let chunks = keys.chunks();
        let (offers_slots, mut offers_payload) = asker.offers;
        let payload = (asker.bytes + INLINE_OVERHEAD_BYTES).saturating_mul(chunks.len() as u64);
        if payload > u32::MAX as u64 {
            // No answer can carry this. A client that maps the pool does not need it to.
            offers_payload = false;
        }
        let room = turn.config.limits.lease_cells.saturating_sub(self.reads);
        let offers_nothing = !offers_slots && !offers_payload;
        let key = renamed(turn, pending_key(Kind::Retrieve, asker, keys));
        let is_full = self.copies.is_full() || self.has_too_many(&key);
        if is_full || chunks.len() > room || offers_nothing {
            let fault = RequestFault::TableFull;
            turn.out.tell(Fact::RequestFaulted { operation: "prepare_retrieve", fault });
            turn.out.answer(asker.reply, Answer::RetrieveMiss);
            return;
        }
        if chunks.is_empty() {
            turn.out.answer(asker.reply, Answer::RetrieveMiss);
            return;
        }
        let objects = match sessions.consume(turn, keys, asker.scope, asker.row) {
            Ok(objects) => objects,
            Err(why) => {
                tell_miss(turn, asker, keys, why);
                return turn.out.answer(asker.reply, Answer::RetrieveMiss);
            }
        };
        let mut copy = new_copy(turn, asker, key);
        copy.chunks = (0..objects.len() as u32).collect();
        copy.reads = objects.len();
        copy.objects = objects;
        self.reads += copy.reads;
        let slots = self.list_slots(turn, &copy);
        let name = self.admit(copy);
        if offers_slots {
            let ticket = self.issue(Owner::ClientCopy(name));
            self.copies.find_mut(name).expect("admitted above").lent = Some(ticket);
        }
        let layout = asker.layout;
        if !offers_payload {
            turn.out.answer(asker.reply, Answer::RetrieveSlots { slots, layout });
            return;
        }
        let ticket = self.issue(Owner::Send(name));
        self.copies.find_mut(name).expect("admitted above").stream = Some(ticket);
        turn.out.effects.push(Effect::Send {
            reply: asker.reply,
            ticket,
            slots,
            layout,
            with_slots: offers_slots,
        });
    }

    /// `commit_retrieve`: the client is done with its slots. Sent after a miss as well.
    pub fn commit_retrieve(&mut self, turn: &mut Turn, asker: &Asker, keys: &Keys) {
        let (key, by) = (pending_key(Kind::Retrieve, asker, keys), asker.committer());
        let key = renamed(turn, key);
        if planted!(turn.config, 14) {
            self.end_cleared(turn, &key, by);
        }
        match self.count_commit(&key, by) {
            Commit::Of(names) => names.into_iter().for_each(|name| self.was_read(turn, name)),
            Commit::OneOfSeveral => {}
            Commit::OfNothing => {
                self.commit_unregistered(turn, by, Kind::Retrieve, asker.instance, keys);
            }
        }
    }

    /// Other requests' reads of the same range that a clear has taken: nobody wants them.
    fn end_cleared(&mut self, turn: &mut Turn, key: &PendingKey, by: Committer) {
        let of = |key: &PendingKey| (key.kind, key.scope, key.first_chunk, key.end_chunk);
        let is_cleared = |copy: &Copy| {
            let gone = copy.objects.iter().all(|id| turn.l1.readable(*id).is_none());
            of(&copy.key) == of(key) && copy.key.reader != key.reader && gone
        };
        let names = self.by_connection.get(&by.connection).map_or(&[][..], |owned| &owned.names);
        let found = |name: &&SlotName| self.copies.find(**name).is_some_and(is_cleared);
        for name in names.iter().filter(found).copied().collect::<Vec<_>>() {
            self.was_read(turn, name);
        }
    }

    /// Its client is done with the slots.
    pub(super) fn was_read(&mut self, turn: &mut Turn, name: SlotName) {
        self.end_lent(name);
        self.copies.find_mut(name).expect("listed while it exists").was_read = true;
        self.finish_read(turn, name);
    }

    /// The bytes of a `Send` have left, or never will.
    pub fn send_ended(&mut self, turn: &mut Turn, ticket: Ticket, outcome: SendOutcome) {
        let ticket = match planted!(turn.config, 7) {
            true => self.successor(ticket, |owner| matches!(owner, Owner::Send(_))),
            false => ticket,
        };
        let Some(name) = self.end_ticket(turn, ticket, Owner::sending) else { return };
        let copy = self.copies.find_mut(name).expect("a ticket keeps its copy");
        copy.stream = None;
        copy.was_read |= outcome == SendOutcome::Sent;
        self.finish_read(turn, name);
    }

    /// A reader has ended one of its two tickets; with the last one the pins go. Bytes that never
    /// reached it were not retrieved (F26).
    fn finish_read(&mut self, turn: &mut Turn, name: SlotName) {
        let copy = self.copies.find(name).expect("called while it exists");
        if copy.lent.is_some() || copy.stream.is_some() {
            return;
        }
        let started = copy.started;
        if !copy.was_read {
            return self.end(turn, name, Ending::Unread);
        }
        let keys = self.tell_read(turn, name, LeaseEnd::Retrieved);
        let bytes = keys.of(&turn.out.keys).iter().map(|key| key.bytes).sum();
        if !keys.is_empty() {
            turn.out.tell(Fact::Retrieved { keys, bytes, took: turn.now - started });
        }
        self.end(turn, name, Ending::Unpin);
    }

    /// Tells of the end of a read, and names its keys.
    pub(super) fn tell_read(&self, turn: &mut Turn, name: SlotName, why: LeaseEnd) -> KeyRange {
        let copy = self.copies.find(name).expect("told while it exists");
        let mark = turn.out.mark();
        turn.work.spend_own(copy.objects.len());
        for id in &copy.objects {
            turn.l1.push_key(*id, turn.out);
        }
        let keys = turn.out.keys_since(mark);
        if !keys.is_empty() {
            turn.out.tell(Fact::ReadFinished { keys, why });
        }
        keys
    }
}

/// The name that a reader's copy goes by.
fn renamed(turn: &Turn, mut key: PendingKey) -> PendingKey {
    if planted!(turn.config, 9) {
        key.instance = InstanceId(0);
    }
    if planted!(turn.config, 27) {
        key.reader = 0;
    }
    key
}

/// Tells of a range that cannot be read, and why.
pub(super) fn tell_miss(turn: &mut Turn, asker: &Asker, keys: &Keys, why: ReadFailure) {
    let mark = turn.out.mark();
    let (scope, bytes) = (asker.scope, asker.bytes);
    let tenant = turn.l1.scopes.tenant_of(scope);
    for chunk in keys.chunks() {
        let hash = keys.hashes[chunk as usize];
        turn.out.keys.push(FactKey { hash, bytes, scope, tenant });
    }
    let keys = turn.out.keys_since(mark);
    turn.out.tell(Fact::ReadFailed { keys, why });
}

/// What the pickle of one chunk takes beside its bytes, and more.
const INLINE_OVERHEAD_BYTES: u64 = 1024;
