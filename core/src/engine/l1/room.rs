//! Room for a new object: from what is free, else by evicting on demand (design §7, F16, F20).
//!
//! Nothing is evicted unless it makes the reservation succeed. A full size class gives up its own
//! coldest object first; only where it has none that can go is the coldest stretch of superblocks
//! emptied, which frees the deficit rounded up to whole runs.

use super::objects::{Object, State};
use super::{Found, Key, L1};
use crate::effect::Outbox;
use crate::engine::space::{Extent, NoSpace};
use crate::fact::{NoRoom, Removal};
use crate::names::ObjectId;
use crate::policy::{Policy, PolicyKey};
use alloc::vec::Vec;

/// What came of asking for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// Reserved and pinned for its writer.
    New(ObjectId),
    /// Somebody has stored it, or is about to.
    Present,
    NoRoom(NoRoom),
}

impl L1 {
    /// Reserves a slot under `key` for one writer, with its pin.
    pub fn stage(&mut self, key: Key, bytes: u64, out: &mut Outbox) -> Staged {
        if self.find(&key) != Found::Absent {
            return Staged::Present;
        }
        if let Some(index) = self.index_of(&key) {
            let (name, _) = self.objects.at(index).expect("the index names live objects");
            self.bury(ObjectId(name), out);
        }
        let extent = match self.make_room(bytes, out) {
            Ok(extent) => extent,
            Err(why) => return Staged::NoRoom(why),
        };
        // Whatever went for the extent's sake has left its place in the table, too.
        if self.objects.is_full() && !self.evict_coldest(Removal::Table, out) {
            self.space.release(extent);
            return Staged::NoRoom(NoRoom::ObjectTable);
        }
        let aligned = self.space.slot_bytes(&extent);
        let object = Object {
            hash: key.hash,
            scope: key.scope,
            extent,
            aligned,
            state: State::Staged,
            leases: 0,
            pins: 0,
            held: false,
            epoch: self.epochs.now,
        };
        let name = self.objects.insert(object).expect("the table has room, checked above");
        self.enter(key, extent.offset, name.index);
        self.scopes.retain(key.scope);
        let tenant = self.scopes.tenant_of(key.scope);
        let policy_key = PolicyKey { scope: key.scope, hash: key.hash, tenant };
        self.policy.reserve(name.index, &policy_key);
        self.bytes.staged += aligned;
        self.staged += 1;
        self.totals.reserved += 1;
        self.pin(ObjectId(name));
        Staged::New(ObjectId(name))
    }

    fn make_room(&mut self, bytes: u64, out: &mut Outbox) -> Result<Extent, NoRoom> {
        loop {
            match self.space.reserve(bytes) {
                Ok(extent) => return Ok(extent),
                Err(NoSpace::ClassTable) => return Err(NoRoom::SizeClasses),
                Err(NoSpace::ZeroSize | NoSpace::TooLarge) => return Err(NoRoom::Held),
                Err(NoSpace::ClassFull) => {}
            }
            if self.evict_own_class(bytes, out) {
                continue;
            }
            if !self.empty_window(bytes, out) {
                let growing = self.space.published_bytes() < self.configured;
                return Err(if growing { NoRoom::Growing } else { NoRoom::Held });
            }
        }
    }

    /// Evicts the first object in policy order that can go.
    pub(crate) fn evict_coldest(&mut self, why: Removal, out: &mut Outbox) -> bool {
        let Some(index) = self.policy.coldest() else { return false };
        let (name, object) = self.objects.at(index).expect("the policy tracks live objects");
        assert!(!object.held, "the policy offers only what can go (I-35)");
        self.evict(ObjectId(name), why, out);
        true
    }

    /// Evicts the first object in policy order that can go and has the size that is wanted. Where
    /// none stands near the head of the order, the coldest run of that size gives one up.
    fn evict_own_class(&mut self, bytes: u64, out: &mut Outbox) -> bool {
        let Some(class) = self.space.class_of(bytes) else { return false };
        let mut candidate = self.policy.coldest();
        for _ in 0..OWN_CLASS_VISITS {
            let Some(index) = candidate else { return false };
            let (name, object) = self.objects.at(index).expect("the policy tracks live objects");
            assert!(!object.held, "the policy offers only what can go (I-35)");
            if object.extent.class == class {
                self.evict(ObjectId(name), Removal::Pressure, out);
                return true;
            }
            candidate = self.policy.next_after(index);
        }
        let Some(run) = self.space.coldest_run(bytes) else { return false };
        let victim = self
            .space
            .occupied(run)
            .filter_map(|offset| self.object_at(offset))
            .find(|id| self.objects.find(id.0).is_some_and(|object| !object.held));
        let Some(victim) = victim else { return false };
        self.evict(victim, Removal::Pressure, out);
        true
    }

    /// Empties the coldest run of superblocks that would hold an object of this size.
    fn empty_window(&mut self, bytes: u64, out: &mut Outbox) -> bool {
        if matches!(self.policy, Policy::Noop) {
            return false;
        }
        let Some(window) = self.space.coldest_window(bytes) else { return false };
        let victims: Vec<u64> = self.space.occupied_in(window).collect();
        for offset in victims {
            let id = self.object_at(offset).expect("every extent has its object");
            self.evict(id, Removal::Pressure, out);
        }
        true
    }

    /// What a slot for an object of this size takes.
    pub fn slot_bytes(&self, bytes: u64) -> u64 {
        self.space.slot_bytes_for(bytes)
    }

    /// Whether an object of this size can ever lie here.
    pub fn fits_ever(&self, bytes: u64) -> bool {
        self.space.can_fit_ever(bytes)
    }
}

/// Objects of other sizes that a full class looks past before it asks for its coldest run.
const OWN_CLASS_VISITS: usize = 64;
