//! What one adapter is known to hold, in which order it goes, and what it takes.
//!
//! The invariant: the bytes of a shelf are the sum of the charges of its entries, over all and by
//! tenant (I-39), and of them those on their way out are counted beside; an entry that is held, is
//! on its way there or on its way out is not offered for eviction (I-31).

use crate::SeededHash;
use crate::chains::Chains;
use crate::config::AdapterSetup;
use crate::engine::l1::L1;
use crate::engine::memory::slots_bytes;
use crate::engine::scopes::Scopes;
use crate::fact::{FactKey, L2Removal};
use crate::limits;
use crate::names::{L2Key, Seal, TenantId};
use crate::policy::{Departure, Policy, PolicyKey};
use crate::slots::{SlotName, Slots};
use alloc::collections::BTreeMap;
use core::hash::BuildHasher;

/// Where an object below L1 stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// On its way there: charged, and not to be read.
    Storing,
    Stored,
    /// On its way out: charged until it has gone, and not to be read.
    Deleting(L2Removal),
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: L2Key,
    pub bytes: u64,
    pub seal: Option<Seal>,
    pub stage: Stage,
    /// Loads and checks that read it.
    pub holds: u32,
    /// It has been loaded before.
    pub was_used: bool,
}

impl Entry {
    pub fn is_loadable(&self) -> bool {
        self.stage == Stage::Stored
    }

    /// Whether these are an object's bytes, as far as its size and its seal tell.
    pub fn is_like(&self, bytes: u64, layout: u32) -> bool {
        is_size_of(self.bytes, bytes) && self.seal.is_none_or(|seal| seal.layout == layout)
    }
}

/// Whether an object of `bytes` may take this size at rest: some servers leave their files in whole
/// blocks, with nothing of worth behind the object.
pub(crate) fn is_size_of(at_rest: u64, bytes: u64) -> bool {
    at_rest == bytes || Some(at_rest) == bytes.checked_next_multiple_of(limits::PADDED_TO_BYTES)
}

/// Charges of a tenant's entries, and of those on their way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub bytes: u64,
    pub leaving: u64,
}

impl Share {
    /// What stays when all that leaves has gone.
    pub fn staying(&self) -> u64 {
        self.bytes - self.leaving
    }
}

#[derive(Clone, Debug)]
pub struct Shelf {
    pub(crate) entries: Slots<Entry>,
    by_key: Chains,
    pub(crate) policy: Policy,
    hash: SeededHash,
    charge_bytes: u64,
    /// Charges of all entries, and of those on their way out.
    pub(crate) used_bytes: u64,
    pub(crate) leaving_bytes: u64,
    /// Entries on their way out.
    pub(crate) leaving: usize,
    /// Entries that somebody reads.
    pub(crate) held: usize,
    /// Charges of those that are read or on their way here: they cannot go now.
    pub(crate) fixed_bytes: u64,
    pub(crate) by_tenant: BTreeMap<TenantId, Share>,
}

impl Shelf {
    pub fn new(setup: &AdapterSetup<'_>, hash: SeededHash) -> Shelf {
        let limit = setup.objects_max as usize;
        let seed = hash.hash_one(setup.name);
        Shelf {
            entries: Slots::with_limit(limit),
            by_key: Chains::with_limit(limit),
            policy: Policy::new(setup.policy, limit, seed),
            hash,
            charge_bytes: u64::from(setup.charge_bytes.max(1)),
            used_bytes: 0,
            leaving_bytes: 0,
            leaving: 0,
            held: 0,
            fixed_bytes: 0,
            by_tenant: BTreeMap::new(),
        }
    }

    /// What a shelf of this size takes, its tenants at their bound.
    pub fn table_bytes(setup: &AdapterSetup<'_>) -> u64 {
        let limit = setup.objects_max as usize;
        // Nodes of the tree are at least half full.
        let tenant = 2 * size_of::<(TenantId, Share)>() + size_of::<[usize; 2]>();
        slots_bytes::<Entry>(limit)
            + Chains::bytes(limit)
            + Policy::new(setup.policy, limit, 0).memory_bytes()
            + (limits::TENANTS_MAX.min(limit) * tenant) as u64
    }

    /// What an object of this size takes at rest.
    pub fn charge(&self, bytes: u64) -> u64 {
        bytes.max(1).checked_next_multiple_of(self.charge_bytes).unwrap_or(u64::MAX)
    }

    pub fn find(&self, key: &L2Key) -> Option<(SlotName, &Entry)> {
        let is_it = |index| self.entries.at(index).is_some_and(|(_, entry)| entry.key == *key);
        let index = self.by_key.find(self.hash.hash_one(key), is_it)?;
        self.entries.at(index)
    }

    pub fn entry(&self, name: SlotName) -> Option<&Entry> {
        self.entries.find(name)
    }

    /// An object that lies there already. None where the table is full or names it already.
    pub fn admit(
        &mut self,
        key: L2Key,
        bytes: u64,
        seal: Option<Seal>,
        scopes: &mut Scopes,
    ) -> Option<SlotName> {
        self.enter(key, bytes, seal, Stage::Stored, scopes)
    }

    pub(crate) fn enter(
        &mut self,
        key: L2Key,
        bytes: u64,
        seal: Option<Seal>,
        stage: Stage,
        scopes: &mut Scopes,
    ) -> Option<SlotName> {
        // What is told of an adapter comes from files: their sum may be anything.
        let charge = self.charge(bytes);
        let used = self.used_bytes.checked_add(charge)?;
        if self.entries.is_full() || self.find(&key).is_some() {
            return None;
        }
        let entry = Entry { key, bytes, seal, stage, holds: 0, was_used: false };
        let name = self.entries.insert(entry).expect("there is room, checked above");
        self.by_key.insert(self.hash.hash_one(key), name.index);
        scopes.retain(key.scope);
        let tenant = scopes.tenant_of(key.scope);
        let policy_key = PolicyKey { scope: key.scope, hash: key.hash, tenant };
        self.policy.admit(name.index, &policy_key);
        if stage != Stage::Stored {
            self.policy.hold(name.index);
            self.fixed_bytes += charge;
        }
        self.used_bytes = used;
        self.by_tenant.entry(tenant).or_default().bytes += charge;
        Some(name)
    }

    /// What was on its way there has arrived, with so many bytes.
    pub(crate) fn arrived(
        &mut self,
        name: SlotName,
        bytes: u64,
        seal: Option<Seal>,
        scopes: &Scopes,
    ) {
        let entry = self.entries.find_mut(name).expect("on its way until it arrives");
        assert!(entry.stage == Stage::Storing, "an object arrives once");
        let (before, key) = (entry.bytes, entry.key);
        (entry.stage, entry.bytes, entry.seal) = (Stage::Stored, bytes, seal);
        let (before, after) = (self.charge(before), self.charge(bytes));
        let share = self.by_tenant.get_mut(&scopes.tenant_of(key.scope));
        let share = share.expect("every entry is charged");
        // A size that the world tells may be anything; a sum that is full is full.
        share.bytes = (share.bytes - before).saturating_add(after);
        self.used_bytes = (self.used_bytes - before).saturating_add(after);
        self.fixed_bytes -= before;
        self.policy.unhold(name.index);
    }

    /// Takes an entry off the table, whatever its stage.
    pub fn remove(&mut self, name: SlotName, scopes: &mut Scopes) -> Option<L2Key> {
        self.keep(name, scopes);
        let entry = self.entries.remove(name)?;
        if entry.holds > 0 || entry.stage == Stage::Storing {
            self.fixed_bytes -= self.charge(entry.bytes);
        }
        self.by_key.remove(self.hash.hash_one(entry.key), name.index);
        self.policy.remove(name.index, Departure::Evicted);
        let (tenant, charge) = (scopes.tenant_of(entry.key.scope), self.charge(entry.bytes));
        self.used_bytes -= charge;
        self.held -= (entry.holds > 0) as usize;
        let share = self.by_tenant.get_mut(&tenant).expect("every entry is charged");
        share.bytes -= charge;
        if share.bytes == 0 {
            self.by_tenant.remove(&tenant);
        }
        scopes.release(entry.key.scope);
        Some(entry.key)
    }

    /// An object at rest is about to go: not to be read any more, and charged until it has gone.
    pub(crate) fn doom(&mut self, name: SlotName, why: L2Removal, scopes: &Scopes) {
        let entry = self.entries.find_mut(name).expect("doomed while it exists");
        assert!(entry.stage == Stage::Stored, "only what is at rest can go");
        entry.stage = Stage::Deleting(why);
        let (bytes, scope, is_held) = (entry.bytes, entry.key.scope, entry.holds > 0);
        let charge = self.charge(bytes);
        if is_held {
            self.fixed_bytes -= charge;
        }
        self.policy.hold(name.index);
        self.leaving += 1;
        self.leaving_bytes += charge;
        let share = self.by_tenant.get_mut(&scopes.tenant_of(scope));
        share.expect("every entry is charged").leaving += charge;
    }

    /// It does not go after all. Harmless for what is not about to.
    pub(crate) fn keep(&mut self, name: SlotName, scopes: &Scopes) {
        let Some(entry) = self.entries.find_mut(name) else { return };
        if !matches!(entry.stage, Stage::Deleting(_)) {
            return;
        }
        entry.stage = Stage::Stored;
        let (bytes, scope, is_held) = (entry.bytes, entry.key.scope, entry.holds > 0);
        let charge = self.charge(bytes);
        self.leaving -= 1;
        self.leaving_bytes -= charge;
        let share = self.by_tenant.get_mut(&scopes.tenant_of(scope));
        share.expect("every entry is charged").leaving -= charge;
        match is_held {
            true => self.fixed_bytes += charge,
            false => self.policy.unhold(name.index),
        }
    }

    /// True where it has been loaded before.
    pub fn hold(&mut self, name: SlotName) -> bool {
        let entry = self.entries.find_mut(name).expect("held while it exists");
        entry.holds += 1;
        let (bytes, was_used) = (entry.bytes, entry.was_used);
        if entry.holds == 1 {
            self.held += 1;
            self.policy.hold(name.index);
            if entry.stage == Stage::Stored {
                self.fixed_bytes += self.charge(bytes);
            }
        }
        was_used
    }

    /// Harmless for what has been lost meanwhile.
    pub fn unhold(&mut self, name: SlotName) {
        let Some(entry) = self.entries.find_mut(name) else { return };
        assert!(entry.holds > 0, "a hold ends once");
        entry.holds -= 1;
        if entry.holds == 0 {
            self.held -= 1;
            if entry.stage == Stage::Stored {
                let bytes = entry.bytes;
                self.fixed_bytes -= self.charge(bytes);
                self.policy.unhold(name.index);
            }
        }
    }

    pub fn touch(&mut self, name: SlotName) -> Option<L2Key> {
        let entry = self.entries.find_mut(name)?;
        entry.was_used = true;
        let key = entry.key;
        self.policy.touch(name.index);
        Some(key)
    }

    /// What its bytes come to, and how many of them are worth anything, is known from now on.
    /// False where it was, or it is gone.
    pub fn seal(&mut self, name: SlotName, bytes: u64, seal: Seal, scopes: &Scopes) -> bool {
        let entry = self.entries.find_mut(name).filter(|entry| entry.seal.is_none());
        let Some(entry) = entry else { return false };
        entry.seal = Some(seal);
        let padded = core::mem::replace(&mut entry.bytes, bytes);
        let (stage, is_held, tenant) =
            (entry.stage, entry.holds > 0, scopes.tenant_of(entry.key.scope));
        let less = self.charge(padded) - self.charge(bytes);
        let share = self.by_tenant.get_mut(&tenant).expect("every entry is charged");
        self.used_bytes -= less;
        share.bytes -= less;
        match stage {
            Stage::Deleting(_) => {
                self.leaving_bytes -= less;
                share.leaving -= less;
            }
            Stage::Stored if is_held => self.fixed_bytes -= less,
            Stage::Stored => {}
            Stage::Storing => unreachable!("what is not whole yet is not read"),
        }
        true
    }

    /// The digest of what was stored is known now. What is written of it at rest; None where the
    /// object has gone meanwhile, or is another.
    pub(crate) fn sealed(&mut self, key: &L2Key, bytes: u64, seal: Seal) -> Option<SlotName> {
        let (name, entry) = self.find(key)?;
        if !entry.is_loadable() || entry.bytes != bytes || entry.seal.is_some() {
            return None;
        }
        self.entries.find_mut(name).expect("found above").seal = Some(seal);
        Some(name)
    }

    /// The first in policy order that can go.
    pub fn coldest(&self) -> Option<(SlotName, &Entry)> {
        self.entries.at(self.policy.coldest()?)
    }

    /// Bytes of what can go now.
    pub(crate) fn evictable_bytes(&self) -> u64 {
        match self.policy {
            Policy::Noop => 0,
            _ => self.used_bytes - self.leaving_bytes - self.fixed_bytes,
        }
    }

    /// Whether tenants are told apart.
    pub(crate) fn isolates(&self) -> bool {
        matches!(self.policy, Policy::IsolatedLru(_))
    }

    /// What stays when all that leaves has gone.
    pub(crate) fn staying_bytes(&self) -> u64 {
        self.used_bytes - self.leaving_bytes
    }

    /// Something that an adapter can be asked for.
    pub(crate) fn any(&self) -> Option<SlotName> {
        let first = || (0..ANY_VISITS).find_map(|index| self.entries.at(index));
        let (name, entry) = self.coldest().or_else(first)?;
        entry.is_loadable().then_some(name)
    }

    /// The same among the objects of some tenants. Only IsolatedLRU tells tenants apart.
    pub fn coldest_of(&self, tenants: &[TenantId]) -> Option<SlotName> {
        let mut oldest: Option<u32> = None;
        for tenant in tenants {
            let Some(index) = self.policy.coldest_of(*tenant, TENANT_VISITS) else { continue };
            if oldest.is_none_or(|oldest| self.policy.is_older(index, oldest)) {
                oldest = Some(index);
            }
        }
        Some(self.entries.at(oldest?)?.0)
    }

    pub fn fact_key(&self, name: SlotName, l1: &L1) -> Option<FactKey> {
        let entry = self.entries.find(name)?;
        Some(super::fact_key(&entry.key, entry.bytes, l1))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Places of the table that are looked at for anything at all.
const ANY_VISITS: u32 = 16;
/// Objects of a tenant that are looked past for one that can go.
const TENANT_VISITS: usize = 256;
