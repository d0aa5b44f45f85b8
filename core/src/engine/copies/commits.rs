//! Whose commit a commit is.
//!
//! A commit names a key and nothing else, so several copies of one client may go by the same name:
//! a second store after the first one's write TTL, or two requests with the same tokens. Taking the
//! oldest would free, or publish, slots that another writer is still filling. So nothing ends until
//! as many commits have come as there are copies under the name; then all of them end. Readers of
//! the very same objects need no such care: any one of them may be let go.

use super::{Copies, Copy, Kind, PendingKey};
use crate::engine::l1::L1;
use crate::names::Connection;
use crate::slots::SlotName;
use smallvec::SmallVec;

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
    /// Takes in one commit. Copies of the connection that it came over go before others.
    pub(super) fn count_commit(&mut self, key: &PendingKey, connection: Connection) -> Commit {
        let names = self.at_rest(key, connection);
        let Some(oldest) = names.first() else { return Commit::OfNothing };
        let objects = |name: &SlotName| self.copies.find(*name).map(|copy| &copy.objects);
        let is_same = names.iter().all(|name| objects(name) == objects(oldest));
        if names.len() == 1 || (key.kind == Kind::Retrieve && is_same) {
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

    /// The one reservation that a body can go into: in the client's hands, alone under its name,
    /// and nothing of it given up.
    pub(super) fn only_pending(
        &self,
        l1: &L1,
        key: &PendingKey,
        connection: Connection,
    ) -> Option<SlotName> {
        let is_wanted = |copy: &Copy| copy.objects.iter().all(|id| l1.can_commit(*id));
        match self.at_rest(key, connection)[..] {
            [name] => self.copies.find(name).is_some_and(is_wanted).then_some(name),
            _ => None,
        }
    }

    /// Copies of this name whose slots are in the client's hands, oldest first. A store whose body
    /// is still being received ends with its own ticket, and by no commit of another message.
    fn at_rest(&self, key: &PendingKey, connection: Connection) -> SmallVec<[SlotName; 2]> {
        let rests = |copy: &Copy| {
            copy.lent.is_some() && (key.kind == Kind::Retrieve || copy.stream.is_none())
        };
        let listed = self.pending.get(key).map_or(&[][..], |names| &names[..]);
        let resting = || {
            listed.iter().filter_map(|name| {
                let copy = self.copies.find(*name).filter(|copy| rests(copy))?;
                Some((*name, copy.connection))
            })
        };
        let ours = resting().filter(|(_, of)| *of == connection).map(|(name, _)| name);
        let ours: SmallVec<[SlotName; 2]> = ours.collect();
        if ours.is_empty() { resting().map(|(name, _)| name).collect() } else { ours }
    }
}
