//! What one adapter is known to hold, in which order it goes, and what it takes.
//!
//! The invariant: the bytes of a shelf are the sum of the charges of its entries, over all and by
//! tenant (I-39); an entry that is held is not offered for eviction (I-31).

use crate::SeededHash;
use crate::chains::Chains;
use crate::config::AdapterSetup;
use crate::engine::l1::L1;
use crate::engine::scopes::Scopes;
use crate::fact::FactKey;
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
    Deleting,
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
}

#[derive(Clone, Debug)]
pub struct Shelf {
    pub(crate) entries: Slots<Entry>,
    by_key: Chains,
    pub(crate) policy: Policy,
    hash: SeededHash,
    charge_bytes: u64,
    /// Charges of all entries, and by tenant.
    pub(crate) used_bytes: u64,
    pub(crate) by_tenant: BTreeMap<TenantId, u64>,
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
            by_tenant: BTreeMap::new(),
        }
    }

    /// What an object of this size takes at rest.
    pub fn charge(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.charge_bytes)
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
        }
        let charge = self.charge(bytes);
        self.used_bytes += charge;
        *self.by_tenant.entry(tenant).or_default() += charge;
        Some(name)
    }

    /// Takes an entry off the table, whatever its stage.
    pub fn remove(&mut self, name: SlotName, scopes: &mut Scopes) -> Option<L2Key> {
        let entry = self.entries.remove(name)?;
        self.by_key.remove(self.hash.hash_one(entry.key), name.index);
        self.policy.remove(name.index, Departure::Evicted);
        let (tenant, charge) = (scopes.tenant_of(entry.key.scope), self.charge(entry.bytes));
        self.used_bytes -= charge;
        let of_tenant = self.by_tenant.get_mut(&tenant).expect("every entry is charged");
        *of_tenant -= charge;
        if *of_tenant == 0 {
            self.by_tenant.remove(&tenant);
        }
        scopes.release(entry.key.scope);
        Some(entry.key)
    }

    /// True where it has been loaded before.
    pub fn hold(&mut self, name: SlotName) -> bool {
        let entry = self.entries.find_mut(name).expect("held while it exists");
        entry.holds += 1;
        if entry.holds == 1 {
            self.policy.hold(name.index);
        }
        entry.was_used
    }

    /// Harmless for what has been lost meanwhile.
    pub fn unhold(&mut self, name: SlotName) {
        let Some(entry) = self.entries.find_mut(name) else { return };
        assert!(entry.holds > 0, "a hold ends once");
        entry.holds -= 1;
        if entry.holds == 0 && entry.stage == Stage::Stored {
            self.policy.unhold(name.index);
        }
    }

    pub fn touch(&mut self, name: SlotName) -> Option<L2Key> {
        let entry = self.entries.find_mut(name)?;
        entry.was_used = true;
        let key = entry.key;
        self.policy.touch(name.index);
        Some(key)
    }

    /// What its bytes come to is known from now on. False where it was, or it is gone.
    pub fn seal(&mut self, name: SlotName, seal: Seal) -> bool {
        let entry = self.entries.find_mut(name).filter(|entry| entry.seal.is_none());
        let Some(entry) = entry else { return false };
        entry.seal = Some(seal);
        true
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
