//! Whose commit a commit is.
//!
//! A commit belongs to the copy of its own request, if that has one. The name that the protocol
//! gives it is less than that, a key without its request id, so a store's commit may come under
//! another request; then it is that of the copies left under the name, and several of one client
//! cannot be told apart: a second store after the first one's write TTL, say. Taking the oldest
//! would free, or publish, slots that another writer is still filling. So nothing ends until as
//! many commits have come as there are copies under the name; then all of them end. Readers of the
//! very same objects need no such care: any one of them may be let go. A reader's commit comes
//! after a miss as well and never ends another request's read.

use super::{Copies, Copy, Ending, Kind, PendingKey, last_hash};
use crate::engine::l1::L1;
use crate::engine::turn::Turn;
use crate::event::Keys;
use crate::fact::Abort;
use crate::limits::{COPIES_PER_NAME_MAX, LATE_COPIES_MAX};
use crate::names::{Connection, InstanceId, KvRank};
use crate::slots::SlotName;
use smallvec::SmallVec;

/// Who commits: the request by its hash, and the connection that it came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committer {
    pub request: u64,
    pub connection: Connection,
}

/// The copies that a commit ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Commit {
    /// There is nothing under this name.
    OfNothing,
    /// One of several, and it cannot be told which.
    OneOfSeveral,
    Of(SmallVec<[SlotName; 2]>),
}

impl Copies {
    /// Takes in one commit. The request's own copies go before those of its connection, and those
    /// before others.
    pub(super) fn count_commit(&mut self, key: &PendingKey, by: Committer) -> Commit {
        let names = self.at_rest(key, by);
        self.count(names, key.kind)
    }

    /// A late commit of an instance that is registered no more, or with another layout. Nothing of
    /// it is published, but its client has said that it is done with its slots. The copy's layout
    /// is not known any more; its request, connection, range, row and tenant are.
    pub fn commit_unregistered(
        &mut self,
        turn: &mut Turn,
        by: Committer,
        kind: Kind,
        instance: InstanceId,
        keys: &Keys,
    ) {
        let names = self.orphans(turn, by, kind, instance, keys);
        let Commit::Of(names) = self.count(names, kind) else { return };
        for name in names {
            match kind {
                Kind::Store => drop(self.publish(turn, name, u32::MAX, Abort::Unregistered)),
                Kind::Retrieve => self.was_read(turn, name),
            }
        }
    }

    /// A body of an instance that is registered no more, or with another layout: whoever sends
    /// bytes does not write to the slots that it had for them.
    pub fn body_unregistered(
        &mut self,
        turn: &mut Turn,
        by: Committer,
        instance: InstanceId,
        keys: &Keys,
    ) {
        let mut names = self.orphans(turn, by, Kind::Store, instance, keys);
        names.retain(|name| self.copies.find(*name).is_some_and(|copy| !self.wrote_slots(copy)));
        self.end_unwritten(turn, names);
    }

    /// The same within one registration: slots of the body's own request that were given up, by a
    /// write TTL or a forced clear. They would stay lent until the end of the connection.
    pub(super) fn end_given_up(&mut self, turn: &mut Turn, key: &PendingKey, by: Committer) {
        let mut names = self.at_rest(key, by);
        names.retain(|name| {
            let copy = self.copies.find(*name).expect("listed while it exists");
            turn.work.spend_steps(copy.objects.len());
            let is_given_up = || copy.objects.iter().any(|id| !turn.l1.can_commit(*id));
            (copy.request, copy.connection) == (by.request, by.connection)
                && !self.is_orphan(copy)
                && (copy.condemned.is_some() || is_given_up())
        });
        self.end_unwritten(turn, names);
    }

    /// Whose commit one is whose own copies were given up: somebody's who stores the same.
    pub(super) fn heir(&self, l1: &L1, key: &PendingKey, by: Committer, late: bool) -> u64 {
        let names = self.pending.get(key).into_iter().flatten();
        let copies = || names.clone().filter_map(|name| self.copies.find(*name));
        let is_wanted = |copy: &Copy| copy.objects.iter().all(|id| l1.can_commit(*id));
        let is_gone = |copy: &Copy| !is_wanted(copy) && copy.condemned.is_some() == late;
        let mut own = copies().filter(|copy| copy.request == by.request).peekable();
        let is_lost = own.peek().is_some() && own.all(is_gone);
        copies().find(|copy| is_lost && is_wanted(copy)).map_or(by.request, |copy| copy.request)
    }

    /// Slots of this name that were given up: somebody has stored it all by now.
    pub(super) fn end_outrun(&mut self, turn: &mut Turn, key: &PendingKey) {
        let mut names = self.pending.get(key).cloned().unwrap_or_default();
        names.retain(|name| {
            self.copies.find(*name).is_some_and(|c| c.condemned.is_some() && self.is_rest(c))
        });
        self.end_unwritten(turn, names);
    }

    fn end_unwritten(&mut self, turn: &mut Turn, names: SmallVec<[SlotName; 2]>) {
        for name in names {
            let why = self.copies.find(name).and_then(|copy| self.given_up(copy));
            self.end_lent(name);
            self.end(turn, name, Ending::Abort(why.unwrap_or(Abort::ForcedClear)));
        }
    }

    /// A request's copies of one range at one rank whose registration has ended, oldest first. None
    /// where they are more than one name has, so that one event ends no more than any other commit
    /// could: they wait for the end of their connection.
    fn orphans(
        &self,
        turn: &mut Turn,
        by: Committer,
        kind: Kind,
        instance: InstanceId,
        keys: &Keys,
    ) -> SmallVec<[SlotName; 2]> {
        let mut names = SmallVec::new();
        if self.ended == 0 {
            return names;
        }
        let is_one = planted!(turn.config, 9) && kind == Kind::Retrieve;
        let instance = if is_one { InstanceId(0) } else { instance };
        let (chunks, last) = (keys.chunks(), last_hash(keys));
        let rank = keys.worker.and_then(|row| KvRank::of(keys.world_size, row));
        let tenant = turn.l1.scopes.tenant(keys.model, keys.salt);
        let (Some(rank), Some(tenant)) = (rank, tenant) else { return names };
        let Some(owned) = self.by_connection.get(&by.connection) else { return names };
        turn.work.spend_steps(owned.names.len().min(LATE_COPIES_MAX));
        for name in owned.names.iter().rev().take(LATE_COPIES_MAX) {
            let copy = self.copies.find(*name).expect("listed while it exists");
            let key = &copy.key;
            let is_named = (copy.request, key.kind, key.instance) == (by.request, kind, instance)
                && (key.first_chunk, key.end_chunk, key.last) == (chunks.start, chunks.end, last);
            if !is_named || !self.is_rest(copy) || !self.is_orphan(copy) {
                continue;
            }
            // Its objects keep the scope named.
            let scope = turn.l1.scopes.key(key.scope);
            if (scope.tenant, scope.rank) == (tenant, rank) {
                names.push(*name);
            }
        }
        if names.len() > COPIES_PER_NAME_MAX {
            return SmallVec::new();
        }
        // As old ones first as where they are found by name.
        names.sort_by_key(|name| {
            let copy = self.copies.find(*name).expect("listed while it exists");
            (copy.started, copy.at_connection)
        });
        names
    }

    fn count(&mut self, names: SmallVec<[SlotName; 2]>, kind: Kind) -> Commit {
        let Some(oldest) = names.first() else { return Commit::OfNothing };
        let objects = |name: &SlotName| self.copies.find(*name).map(|copy| &copy.objects);
        let is_same = names.iter().all(|name| objects(name) == objects(oldest));
        if names.len() == 1 || (kind == Kind::Retrieve && is_same) {
            return Commit::Of(SmallVec::from_elem(*oldest, 1));
        }
        let mut left = names.len();
        let mut is_counted = false;
        for name in &names {
            let copy = self.copies.find_mut(*name).expect("listed while it exists");
            if !copy.committed && !is_counted {
                copy.committed = true;
                is_counted = true;
            }
            left -= copy.committed as usize;
        }
        if left == 0 { Commit::Of(names) } else { Commit::OneOfSeveral }
    }

    /// The one reservation that a body can go into: the request's own, in the client's hands, alone
    /// under its name, and nothing of it given up. Another request's may still be written to.
    pub(super) fn only_pending(
        &self,
        l1: &L1,
        key: &PendingKey,
        by: Committer,
    ) -> Option<SlotName> {
        let is_wanted = |copy: &Copy| {
            copy.request == by.request
                && self.given_up(copy).is_none()
                && copy.objects.iter().all(|id| l1.can_commit(*id))
        };
        match self.at_rest(key, by)[..] {
            [name] => self.copies.find(name).is_some_and(is_wanted).then_some(name),
            _ => None,
        }
    }

    /// Whether one more copy of this name would be one too many.
    pub(super) fn has_too_many(&self, key: &PendingKey) -> bool {
        self.pending.get(key).is_some_and(|names| names.len() >= COPIES_PER_NAME_MAX)
    }

    /// Copies of this name whose slots are in the client's hands, oldest first. A store whose body
    /// is still being received ends with its own ticket, and by no commit of another message.
    fn at_rest(&self, key: &PendingKey, by: Committer) -> SmallVec<[SlotName; 2]> {
        let listed = self.pending.get(key).map_or(&[][..], |names| &names[..]);
        let those = |is_wanted: &dyn Fn(&Copy) -> bool| -> SmallVec<[SlotName; 2]> {
            let copies = listed.iter().filter(|name| {
                self.copies.find(**name).is_some_and(|copy| self.is_rest(copy) && is_wanted(copy))
            });
            copies.copied().collect()
        };
        let own = those(&|copy| copy.request == by.request);
        let is_told_apart = !own.is_empty() && !planted!(self, 8);
        if is_told_apart || key.kind == Kind::Retrieve {
            return own;
        }
        let of_connection = those(&|copy| copy.connection == by.connection);
        if of_connection.is_empty() { those(&|_| true) } else { of_connection }
    }

    fn is_rest(&self, copy: &Copy) -> bool {
        copy.lent.is_some()
            && (copy.key.kind == Kind::Retrieve || copy.stream.is_none())
            && !copy.is_ending
            && !self.is_cut(copy)
    }
}
