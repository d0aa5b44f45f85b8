//! What goes from an adapter, and when: by the second above its watermark, or above a tenant's
//! quota; at once where a store needs the room; aside where its bytes are not what they were.
//!
//! The invariant: an object is charged and has its place until the device has let go of it (I-30,
//! I-39); a pass frees what it is for and at most one object more (F20); nothing goes that is read
//! (I-31); and over a quota only the objects of its own salt (I-40).

use super::flights::Flight;
use super::{Adapters, Stage};
use crate::effect::Effect;
use crate::engine::evict::parts;
use crate::engine::quota::Quota;
use crate::engine::turn::Turn;
use crate::event::DeleteOutcome;
use crate::fact::L2Removal;
use crate::limits::{DELETES_MAX, QUARANTINES_MAX, UNWANTED_MAX};
use crate::names::{AdapterId, TenantId, Ticket};
use crate::slots::SlotName;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// How far an adapter has come with what is to go.
#[derive(Clone, Debug, Default)]
pub(super) struct Evicting {
    /// What a pass under way is still to free.
    bytes: u64,
    /// A tenant was above its quota when it was last looked at.
    is_over_quota: bool,
    /// Something could not be taken away: nothing is tried until the next tick.
    is_blocked: bool,
    /// The device is full: nothing is stored until something has gone, or a tick has passed.
    is_full: bool,
    /// What is to be put aside as soon as it can be.
    aside: VecDeque<SlotName>,
    /// What an operator takes away, likewise.
    unwanted: VecDeque<SlotName>,
}

impl Evicting {
    /// The adapter leaves: what lies there stays.
    pub(super) fn stop(&mut self) {
        *self = Evicting::default();
    }

    /// What waits to be put aside, for the audit.
    pub(super) fn aside_len(&self) -> usize {
        self.aside.len()
    }

    /// What waits to be taken away for an operator, likewise.
    pub(super) fn unwanted_len(&self) -> usize {
        self.unwanted.len()
    }
}

/// Whether there is room for one more object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Fits,
    /// Something is going, or on its way there, and the store is to be tried again then.
    Later,
    /// Nothing can go.
    Nothing,
}

impl Adapters {
    /// Once a second: the watermark and the quotas are looked at anew, and what had failed may be
    /// tried again.
    pub(crate) fn tick_evictions(&mut self, turn: &mut Turn, quota: &Quota) {
        for index in 0..self.list.len() {
            let adapter = &mut self.list[index];
            let evicting = &mut adapter.evicting;
            (evicting.is_blocked, evicting.is_full) = (false, false);
            evicting.is_over_quota = true;
            // What has not been told of is not charged yet: the order is not known (design §7).
            if adapter.serves() && adapter.is_scanned {
                let staying = adapter.shelf.staying_bytes();
                let mark = parts(adapter.setup.capacity_bytes, adapter.setup.watermark_ppm);
                if staying >= mark && staying > 0 {
                    let share = parts(staying, adapter.setup.ratio_ppm).max(1);
                    let pass = share.max((staying - mark).saturating_add(1));
                    adapter.evicting.bytes = adapter.evicting.bytes.max(pass);
                }
            }
        }
        self.evict_some(turn, quota);
    }

    /// Goes on with every adapter's passes, as far as its deletes and the turn reach.
    pub(crate) fn evict_some(&mut self, turn: &mut Turn, quota: &Quota) {
        for index in 0..self.list.len() {
            let id = AdapterId(index as u16);
            if turn.is_spent() {
                return;
            }
            if !self.get(id).serves() {
                self.get_mut(id).evicting.bytes = 0;
                continue;
            }
            self.put_aside(turn, id);
            self.drop_unwanted(turn, id);
            self.free_some(turn, id);
            self.enforce_quotas(turn, id, quota);
        }
    }

    fn free_some(&mut self, turn: &mut Turn, id: AdapterId) {
        while self.get(id).evicting.bytes > 0 && !turn.is_spent() {
            let adapter = self.get_mut(id);
            let Some((name, entry)) = adapter.shelf.coldest() else {
                adapter.evicting.bytes = 0;
                return;
            };
            let charge = adapter.shelf.charge(entry.bytes);
            if !self.delete(turn, id, name, L2Removal::Watermark) {
                return;
            }
            let left = &mut self.get_mut(id).evicting.bytes;
            *left = left.saturating_sub(charge);
        }
    }

    /// Objects of tenants above their quota go, in the order of their salt (spec/storage §3.3). A
    /// salt without a quota is not limited.
    fn enforce_quotas(&mut self, turn: &mut Turn, id: AdapterId, quota: &Quota) {
        let adapter = self.get(id);
        let evicting = &adapter.evicting;
        let is_due = evicting.is_over_quota && !evicting.is_blocked;
        if !is_due || adapter.deletes > DELETES_MAX / 2 || !adapter.is_scanned {
            return;
        }
        let over = self.over_quota(turn, id, quota);
        let mut can_go = false;
        for (mut bytes, tenants) in over {
            while bytes > 0 && !turn.is_spent() {
                let shelf = &self.get(id).shelf;
                let Some(name) = shelf.coldest_of(&tenants) else { break };
                turn.work.spend_steps(tenants.len());
                let charge = shelf.entry(name).map_or(0, |entry| shelf.charge(entry.bytes));
                if !self.delete(turn, id, name, L2Removal::Quota) {
                    // The next tick looks at it anew.
                    self.get_mut(id).evicting.is_over_quota = false;
                    return;
                }
                can_go = true;
                bytes = bytes.saturating_sub(charge);
            }
        }
        // Where nothing can go just now, or has to, the next tick looks at it anew: finding that
        // out costs a look at every tenant.
        self.get_mut(id).evicting.is_over_quota = can_go || turn.is_spent();
    }

    /// What is to go of each salt that is above its quota, and its tenants.
    fn over_quota(
        &self,
        turn: &mut Turn,
        id: AdapterId,
        quota: &Quota,
    ) -> Vec<(u64, Vec<TenantId>)> {
        let adapter = self.get(id);
        if quota.iter().next().is_none() || !adapter.shelf.isolates() {
            return Vec::new();
        }
        turn.work.spend_steps(adapter.shelf.by_tenant.len());
        let mut salts: BTreeMap<&str, (u64, Vec<TenantId>)> = BTreeMap::new();
        for (tenant, share) in &adapter.shelf.by_tenant {
            let (_, salt) = turn.l1.scopes.names_of(*tenant);
            if quota.find(salt).is_some() {
                let of_salt = salts.entry(salt).or_default();
                of_salt.0 += share.staying();
                of_salt.1.push(*tenant);
            }
        }
        let pass = |(salt, (staying, tenants)): (&str, (u64, Vec<TenantId>))| {
            let mark = parts(quota.find(salt)?, adapter.setup.watermark_ppm);
            let is_over = staying > 0 && staying >= mark;
            let share = parts(staying, adapter.setup.ratio_ppm);
            is_over.then(|| (share.max((staying - mark).saturating_add(1)), tenants))
        };
        salts.into_iter().filter_map(pass).collect()
    }

    /// Room for an object that is about to be stored: what is missing goes, and nothing where that
    /// would not do (F16).
    pub(crate) fn make_room(&mut self, turn: &mut Turn, id: AdapterId, bytes: u64) -> Room {
        let adapter = self.get(id);
        let (shelf, capacity) = (&adapter.shelf, adapter.setup.capacity_bytes);
        let charge = shelf.charge(bytes);
        if charge > capacity || shelf.entries.limit() == 0 {
            return Room::Nothing;
        }
        let over = shelf.used_bytes.saturating_add(charge).saturating_sub(capacity);
        if over == 0 && !shelf.entries.is_full() {
            return Room::Fits;
        }
        let mut missing = over.saturating_sub(shelf.leaving_bytes);
        let mut lacks_place = shelf.entries.is_full() && shelf.leaving == 0;
        let is_moving = adapter.stores > 0 || shelf.leaving > 0;
        let later = if is_moving { Room::Later } else { Room::Nothing };
        if missing > shelf.evictable_bytes() {
            return later;
        }
        while missing > 0 || lacks_place {
            let shelf = &self.get(id).shelf;
            let Some((name, entry)) = shelf.coldest() else { return later };
            let charge = shelf.charge(entry.bytes);
            let why = if missing > 0 { L2Removal::Pressure } else { L2Removal::Table };
            if turn.is_spent() || !self.delete(turn, id, name, why) {
                return Room::Later;
            }
            missing = missing.saturating_sub(charge);
            lacks_place = false;
        }
        Room::Later
    }

    /// The device has no space left, whatever its capacity was said to be.
    pub(crate) fn is_out_of_space(&mut self, id: AdapterId, bytes: u64) {
        let adapter = self.get_mut(id);
        adapter.counts.no_space += 1;
        let share = parts(adapter.shelf.staying_bytes(), adapter.setup.ratio_ppm);
        let evicting = &mut adapter.evicting;
        evicting.is_full = true;
        evicting.bytes = evicting.bytes.max(share).max(bytes);
    }

    /// Whether nothing is to be stored just now.
    pub(crate) fn is_full(&self, id: AdapterId) -> bool {
        self.get(id).evicting.is_full
    }

    /// The bytes of an object are not those that were stored: it is put out of the way, for
    /// somebody to look at. It cannot be loaded from now on, whatever becomes of that.
    pub fn quarantine(&mut self, turn: &mut Turn, id: AdapterId, entry: SlotName) {
        let adapter = self.get_mut(id);
        let Some(found) = adapter.shelf.entry(entry) else { return };
        if found.stage != Stage::Stored {
            return;
        }
        adapter.counts.quarantined += 1;
        adapter.shelf.doom(entry, L2Removal::Digest, &turn.l1.scopes);
        self.wants_aside(id, entry);
        self.put_aside(turn, id);
    }

    /// Where too many wait already, it stays where it is, and is not read.
    fn wants_aside(&mut self, id: AdapterId, entry: SlotName) {
        let aside = &mut self.get_mut(id).evicting.aside;
        if aside.len() < QUARANTINES_MAX {
            aside.push_back(entry);
        }
    }

    /// Puts aside what nobody reads any more.
    fn put_aside(&mut self, turn: &mut Turn, id: AdapterId) {
        for _ in 0..self.get(id).evicting.aside.len() {
            let adapter = self.get_mut(id);
            let Some(name) = adapter.evicting.aside.pop_front() else { return };
            let Some(found) = adapter.shelf.entry(name) else { continue };
            if found.holds > 0 || !self.order_delete(turn, id, name, true) {
                self.get_mut(id).evicting.aside.push_back(name);
            }
        }
    }

    /// An operator wants an object to go: it cannot be loaded from now on, and goes as soon as
    /// nobody reads it. False where too many wait already, or the adapter does not serve.
    pub(super) fn take_away(&mut self, turn: &mut Turn, id: AdapterId, entry: SlotName) -> bool {
        let adapter = self.get_mut(id);
        if !adapter.serves() || adapter.evicting.unwanted.len() >= UNWANTED_MAX {
            return false;
        }
        adapter.shelf.doom(entry, L2Removal::Operator, &turn.l1.scopes);
        adapter.evicting.unwanted.push_back(entry);
        self.drop_unwanted(turn, id);
        true
    }

    /// Takes away what nobody reads any more, a few at a time: the rest follows when these have
    /// gone.
    fn drop_unwanted(&mut self, turn: &mut Turn, id: AdapterId) {
        for _ in 0..self.get(id).evicting.unwanted.len().min(DELETES_MAX as usize) {
            let adapter = self.get_mut(id);
            let Some(name) = adapter.evicting.unwanted.pop_front() else { return };
            let Some(found) = adapter.shelf.entry(name) else { continue };
            if found.holds > 0 {
                adapter.evicting.unwanted.push_back(name);
            } else if !self.order_delete(turn, id, name, false) {
                self.get_mut(id).evicting.unwanted.push_front(name);
                return;
            }
        }
    }

    /// Begins to take an object away. False where nothing more can be ordered now.
    fn delete(&mut self, turn: &mut Turn, id: AdapterId, entry: SlotName, why: L2Removal) -> bool {
        self.get_mut(id).shelf.doom(entry, why, &turn.l1.scopes);
        let is_ordered = self.order_delete(turn, id, entry, false);
        match is_ordered {
            true => turn.spend(1),
            false => self.get_mut(id).shelf.keep(entry, &turn.l1.scopes),
        }
        is_ordered
    }

    fn order_delete(
        &mut self,
        turn: &mut Turn,
        id: AdapterId,
        entry: SlotName,
        quarantine: bool,
    ) -> bool {
        let adapter = self.get(id);
        let may = adapter.serves() && !adapter.evicting.is_blocked && adapter.deletes < DELETES_MAX;
        if !may {
            return false;
        }
        let key = adapter.shelf.entry(entry).expect("ordered while it exists").key;
        let patience = adapter.setup.store_deadline;
        let flight = Flight::Delete { adapter: id, entry };
        let departed = self.depart(flight, Some(patience), turn.now, turn.alarms);
        let Some(ticket) = departed else { return false };
        self.get_mut(id).deletes += 1;
        turn.out.effects.push(Effect::DeleteObject { ticket, adapter: id, key, quarantine });
        true
    }

    /// The device has let go of an object, or not.
    pub(crate) fn delete_ended(&mut self, turn: &mut Turn, ticket: Ticket, outcome: DeleteOutcome) {
        let is_kind = |flight: &Flight| matches!(flight, Flight::Delete { .. });
        let Some(found) = self.arrive(ticket, is_kind, turn.alarms, turn.out) else { return };
        let Flight::Delete { adapter: id, entry: name } = found.flight else { return };
        let adapter = self.get_mut(id);
        let is_late = turn.now.since(found.departed) > adapter.setup.store_deadline;
        adapter.deletes -= 1;
        let stage = adapter.shelf.entry(name).map(|entry| entry.stage);
        let why = match stage {
            Some(Stage::Deleting(why)) => Some(why),
            // It was found lost meanwhile.
            _ => None,
        };
        match outcome {
            DeleteOutcome::Deleted | DeleteOutcome::Absent => {
                if adapter.deletes == 0 {
                    adapter.evicting.is_full = false;
                }
                if !is_late {
                    self.succeeded(id);
                }
                if let Some(why) = why {
                    self.lost((id, name), why, turn.l1, turn.out);
                }
            }
            DeleteOutcome::Failed(fault) => {
                adapter.counts.deletes_failed += 1;
                adapter.evicting.is_blocked = true;
                match why {
                    // Its bytes are wrong: it is never served again.
                    Some(L2Removal::Digest) => self.wants_aside(id, name),
                    Some(_) => adapter.shelf.keep(name, &turn.l1.scopes),
                    None => {}
                }
                if !is_late {
                    self.faulted(turn, id, fault);
                }
            }
        }
    }

    /// A delete takes too long. The object stays charged until its ending.
    pub(crate) fn delete_stalled(&mut self, turn: &mut Turn, id: AdapterId, ticket: Ticket) {
        self.get_mut(id).evicting.is_blocked = true;
        turn.out.effects.push(Effect::Cancel { ticket });
    }
}
