//! Host memory: objects, the space they lie in, who holds them, and in which order they go.
//!
//! One invariant, one owner: every aligned byte that `space` has given out belongs to exactly one
//! object, which is staged, resident or condemned (I-15); memory comes back only when no pin names
//! it (I-2); and only a commit makes bytes readable (I-7).
//!
//! Two counts per object. *Leases* are about visibility: cells of lease sets that promise it to a
//! request. *Pins* are about memory: tickets under which somebody may still read or write it.
//! Evictable means resident with both at zero.

mod audit;
pub mod clear;
pub mod leases;
pub mod objects;
pub mod room;

use crate::SeededHash;
use crate::chains::{Chain, Chains};
use crate::config::Config;
use crate::engine::memory::slots_bytes;
use crate::engine::scopes::Scopes;
use crate::engine::space::{RunId, Space};
use crate::engine::turn::Work;
use crate::fact::{FactKey, LeaseEnd, Removal};
use crate::names::{ChunkHash, ObjectId, ScopeId};
use crate::policy::{Departure, Policy};
use crate::slots::Slots;
use crate::{effect::Outbox, fact::Fact};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use objects::{Object, State};
use smallvec::SmallVec;

/// Everything of an object key: the scope holds model, salt, rank, group and layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub hash: ChunkHash,
    pub scope: ScopeId,
}

/// What is known under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Absent,
    Staged,
    Resident(ObjectId),
}

/// Probes that are under way at once.
pub const PROBES: usize = 16;

/// What came of several probes.
pub type Probes = SmallVec<[Found; PROBES]>;

/// Bytes by state, aligned: what `space` counts as used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    pub staged: u64,
    pub resident: u64,
    pub condemned: u64,
    /// Of the resident ones, those with a lease.
    pub leased: u64,
}

/// Counts that must balance (I-52).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub reserved: u64,
    pub committed: u64,
    pub aborted: u64,
    pub lease_units_taken: u64,
    pub lease_units_ended: [u64; LeaseEnd::ALL.len()],
    pub evicted: u64,
}

#[derive(Clone, Debug)]
pub struct L1 {
    pub scopes: Scopes,
    pub(crate) space: Space,
    pub(crate) policy: Policy,
    pub(crate) objects: Slots<Object>,
    /// Staged and resident objects by key.
    pub(crate) by_key: Chains,
    /// All objects by offset, to empty a window of the arena.
    pub(crate) by_offset: Chains,
    hash: SeededHash,
    pub(crate) bytes: Bytes,
    pub(crate) totals: Totals,
    pub(crate) epochs: clear::Epochs,
    pub(crate) staged: u32,
    pub(crate) condemned: u32,
    pub(crate) leased: u32,
    stamp: u64,
    configured: u64,
    /// A window that is emptied over several turns.
    emptying: Option<room::Emptying>,
    /// Objects that were to leave when nothing holds them, and nothing does.
    leaving: Vec<ObjectId>,
    /// Where a request's walk over the held objects of a run ran out of its turn.
    walked: Option<(RunId, u32)>,
    #[cfg(feature = "planted")]
    pub(crate) planted: u32,
    #[cfg(feature = "planted")]
    pub(crate) victim: Option<ObjectId>,
}

impl L1 {
    pub fn new(config: &Config) -> L1 {
        let objects = config.l1_objects_max;
        #[cfg_attr(not(feature = "planted"), expect(unused_mut))]
        let mut space = Space::new(config.l1_bytes, config.l1_align_bytes);
        #[cfg(feature = "planted")]
        space.plant(config.planted);
        L1 {
            scopes: Scopes::new(config.seed),
            space,
            policy: Policy::new(config.policy, objects, config.seed),
            objects: Slots::with_limit(objects),
            by_key: Chains::with_limit(objects),
            by_offset: Chains::with_limit(objects),
            hash: SeededHash::new(config.seed ^ 2),
            bytes: Bytes::default(),
            totals: Totals::default(),
            epochs: clear::Epochs::default(),
            staged: 0,
            condemned: 0,
            leased: 0,
            stamp: 0,
            configured: config.l1_bytes,
            emptying: None,
            leaving: Vec::new(),
            walked: None,
            #[cfg(feature = "planted")]
            planted: config.planted,
            #[cfg(feature = "planted")]
            victim: None,
        }
    }

    /// Objects and their two indices, for `--print-memory`.
    pub(crate) fn table_bytes(config: &Config) -> u64 {
        let limit = config.l1_objects_max;
        slots_bytes::<Object>(limit) + 2 * Chains::bytes(limit)
    }

    pub(crate) fn policy_bytes(config: &Config) -> u64 {
        Policy::new(config.policy, config.l1_objects_max, 0).memory_bytes()
    }

    pub(crate) fn space_bytes(config: &Config) -> u64 {
        Space::new(config.l1_bytes, config.l1_align_bytes).memory_bytes()
    }

    /// The first `bytes` of the arena are usable now.
    pub fn grow(&mut self, bytes: u64) {
        let block = self.space.superblock_bytes();
        let whole = planted!(self, 30);
        self.space.grow(if whole { bytes.next_multiple_of(block) } else { bytes });
    }

    pub fn find(&self, key: &Key) -> Found {
        self.judge(self.index_of(key))
    }

    /// `find` for many keys, appended to `found`. Each probe waits for memory twice; they do not
    /// wait for each other.
    pub fn find_all(&self, keys: impl Iterator<Item = Key> + Clone, found: &mut Probes) {
        let mut begun: SmallVec<[Chain; PROBES]> = SmallVec::new();
        begun.extend(keys.clone().map(|key| self.by_key.begin(self.hash.hash_one(key))));
        for (key, chain) in keys.zip(begun) {
            let index = self.by_key.find_from(chain, |index| self.is_at(index, &key));
            found.push(self.judge(index));
        }
    }

    fn judge(&self, index: Option<u32>) -> Found {
        let Some(index) = index else { return Found::Absent };
        let (name, object) = self.objects.at(index).expect("the index names live objects");
        match object.state {
            _ if self.epochs.is_dead(object) => Found::Absent,
            State::Staged => Found::Staged,
            State::Resident => Found::Resident(ObjectId(name)),
            State::Condemned => unreachable!("condemned objects have left the index"),
        }
    }

    /// The object under a key, dead ones included.
    pub(crate) fn index_of(&self, key: &Key) -> Option<u32> {
        self.by_key.find(self.hash.hash_one(key), |index| self.is_at(index, key))
    }

    fn is_at(&self, index: u32, key: &Key) -> bool {
        let (_, object) = self.objects.at(index).expect("the index names live objects");
        object.hash == key.hash && object.scope == key.scope
    }

    /// What is under an object's key now.
    pub(crate) fn newest(&self, id: ObjectId) -> ObjectId {
        let key = self.objects.find(id.0).map(|of| Key { hash: of.hash, scope: of.scope });
        let found = key.and_then(|key| self.objects.at(self.index_of(&key)?));
        found.map_or(id, |(name, _)| ObjectId(name))
    }

    /// The object at an offset of the arena.
    pub(crate) fn object_at(&self, offset: u64) -> Option<ObjectId> {
        let index = self.by_offset.find(self.hash.hash_one(offset), |index| {
            self.objects.at(index).is_some_and(|(_, object)| object.extent.offset == offset)
        });
        Some(ObjectId(self.objects.at(index?)?.0))
    }

    /// The key of an object that can still be read.
    pub fn readable(&self, id: ObjectId) -> Option<Key> {
        let object = self.objects.find(id.0)?;
        let alive = object.state == State::Resident && !self.epochs.is_dead(object);
        alive.then_some(Key { hash: object.hash, scope: object.scope })
    }

    /// Whether a commit of this reservation would publish it.
    pub fn can_commit(&self, id: ObjectId) -> bool {
        let object = self.objects.find(id.0);
        object.is_some_and(|object| object.state == State::Staged && !self.epochs.is_dead(object))
    }

    /// The writer has reported every byte. Ends its pin.
    pub fn commit(&mut self, id: ObjectId) {
        assert!(self.can_commit(id), "only what is still wanted is committed");
        let object = self.objects.find_mut(id.0).expect("found above");
        object.state = State::Resident;
        object.epoch = self.epochs.now;
        let bytes = object.aligned;
        self.bytes.staged -= bytes;
        self.bytes.resident += bytes;
        self.staged -= 1;
        self.totals.committed += 1;
        self.policy.commit(id.0.index);
        self.warm(id);
        self.unpin(id);
    }

    /// The reservation under a key, while it is one.
    pub fn staged_under(&self, key: &Key) -> Option<ObjectId> {
        let (name, object) = self.objects.at(self.index_of(key)?)?;
        (object.state == State::Staged).then_some(ObjectId(name))
    }

    /// The object goes as soon as nothing holds it.
    pub fn leave_when_free(&mut self, id: ObjectId, why: Removal) {
        let Some(object) = self.objects.find_mut(id.0) else { return };
        object.leaves = Some(why);
        if !object.held && object.state == State::Resident {
            self.leaving.push(id);
        }
    }

    /// Somebody wants the object once more: it stays for the policy to judge. One that a lower tier
    /// has instead leaves all the same (I-21).
    pub fn stay(&mut self, id: ObjectId) {
        let is_temporary = |object: &&mut Object| object.leaves == Some(Removal::Temporary);
        if let Some(object) = self.objects.find_mut(id.0).filter(is_temporary) {
            object.leaves = None;
        }
    }

    /// Lets go of objects that nothing holds any more. True while there are more. `is_below` says
    /// whether a lower tier has one: it may have lost it while somebody held it here (I-22).
    pub fn drop_leaving(
        &mut self,
        work: &mut Work,
        out: &mut Outbox,
        is_below: impl Fn(&Scopes, &Key) -> bool,
    ) -> bool {
        while let Some(id) = self.leaving.pop() {
            if work.is_spent() {
                self.leaving.push(id);
                return true;
            }
            work.spend(1);
            let Some(object) = self.objects.find(id.0) else { continue };
            let is_free = object.state == State::Resident && !object.held;
            let Some(why) = object.leaves.filter(|_| is_free) else { continue };
            let key = Key { hash: object.hash, scope: object.scope };
            if why == Removal::Demoted && !is_below(&self.scopes, &key) {
                self.stay(id);
                continue;
            }
            self.evict(id, why, out);
        }
        false
    }

    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The reservation is given up: its key is free at once, its memory when the writer's pin
    /// ends. Names the key in `out`. False where that has happened before.
    pub fn condemn_staged(&mut self, id: ObjectId, out: &mut Outbox) -> bool {
        let staged = self.objects.find(id.0).is_some_and(|object| object.state == State::Staged);
        if staged {
            self.push_key(id, out);
            self.give_up(id);
        }
        staged
    }

    fn give_up(&mut self, id: ObjectId) {
        self.totals.aborted += 1;
        self.staged -= 1;
        self.condemn(id, Departure::Forgotten);
    }

    /// Takes a key out of the index; the memory follows when the last pin ends.
    fn condemn(&mut self, id: ObjectId, how: Departure) {
        let object = self.objects.find_mut(id.0).expect("condemned once, while it exists");
        let was = object.state;
        assert!(was != State::Condemned, "an object is condemned once");
        object.state = State::Condemned;
        let (key, aligned) = (Key { hash: object.hash, scope: object.scope }, object.aligned);
        if object.leases > 0 {
            self.bytes.leased -= aligned;
            self.leased -= 1;
        }
        match was {
            State::Staged => self.bytes.staged -= aligned,
            State::Resident => self.bytes.resident -= aligned,
            State::Condemned => unreachable!("checked above"),
        }
        self.policy.remove(id.0.index, how);
        self.bytes.condemned += aligned;
        self.condemned += 1;
        let removed = self.by_key.remove(self.hash.hash_one(key), id.0.index);
        assert!(removed, "the index named this object");
        self.free_if_unpinned(id);
    }

    pub fn pin(&mut self, id: ObjectId) {
        let object = self.objects.find_mut(id.0).expect("only live objects are pinned");
        object.pins += 1;
        if object.pins == 1 && object.leases == 0 {
            self.held_changed(id, true);
        }
    }

    pub fn unpin(&mut self, id: ObjectId) {
        let object = self.objects.find_mut(id.0).expect("a pin keeps its object");
        assert!(object.pins > 0, "a pin ends once");
        object.pins -= 1;
        if object.state == State::Condemned {
            self.free_if_unpinned(id);
        } else if object.pins == 0 && object.leases == 0 {
            self.held_changed(id, false);
        }
    }

    /// One more cell of a lease set promises this object.
    pub(crate) fn lease(&mut self, id: ObjectId) {
        let object = self.objects.find_mut(id.0).expect("only live objects are leased");
        assert!(object.state == State::Resident, "only readable objects are leased");
        object.leases += 1;
        if object.leases == 1 {
            self.bytes.leased += object.aligned;
            self.leased += 1;
            if object.pins == 0 {
                self.held_changed(id, true);
            }
        }
    }

    /// A cell has nothing left. Harmless for objects that were forced out meanwhile.
    pub(crate) fn unlease(&mut self, id: ObjectId) {
        let Some(object) = self.objects.find_mut(id.0) else { return };
        if object.state != State::Resident {
            return;
        }
        assert!(object.leases > 0, "a lease ends once");
        object.leases -= 1;
        if object.leases == 0 {
            self.bytes.leased -= object.aligned;
            self.leased -= 1;
            if object.pins == 0 {
                self.held_changed(id, false);
            }
        }
    }

    /// Becomes the newest of its policy. A batch is walked from its last chunk to its first, so
    /// that the tail of a request goes first (spec/storage §3.2).
    pub fn touch(&mut self, id: ObjectId) {
        let Some(object) = self.objects.find(id.0) else { return };
        if object.state != State::Resident {
            return;
        }
        self.warm(id);
        self.policy.touch(id.0.index);
    }

    /// The run it lies in was used last.
    fn warm(&mut self, id: ObjectId) {
        let object = self.objects.find(id.0).expect("warmed while it exists");
        self.stamp += 1;
        self.space.touch(&object.extent, self.stamp);
    }

    pub fn evict(&mut self, id: ObjectId, why: Removal, out: &mut Outbox) {
        let mark = out.mark();
        self.push_key(id, out);
        self.totals.evicted += 1;
        let picked = matches!(why, Removal::Watermark | Removal::Pressure | Removal::Table);
        self.condemn(id, if picked { Departure::Evicted } else { Departure::Forgotten });
        out.tell(Fact::Evicted { keys: out.keys_since(mark), why });
    }

    /// The first thing that holds an object has come, or the last one has left.
    fn held_changed(&mut self, id: ObjectId, held: bool) {
        let object = self.objects.find_mut(id.0).expect("only live objects are held");
        object.held = held;
        if held {
            self.space.hold(&object.extent);
            self.policy.hold(id.0.index);
        } else {
            // A survivor of `clear` is as good as new.
            if !self.epochs.is_forced(object) {
                object.epoch = self.epochs.now;
            }
            if object.leaves.is_some() && object.state == State::Resident {
                self.leaving.push(id);
            }
            self.space.unhold(&object.extent);
            self.policy.unhold(id.0.index);
        }
    }

    /// Enters a new object into the two indices.
    pub(crate) fn enter(&mut self, key: Key, offset: u64, index: u32) {
        self.by_key.insert(self.hash.hash_one(key), index);
        self.by_offset.insert(self.hash.hash_one(offset), index);
    }

    fn free_if_unpinned(&mut self, id: ObjectId) {
        let object = self.objects.find(id.0).expect("freed once");
        assert!(object.state == State::Condemned, "only condemned objects are freed");
        if object.pins > 0 {
            return;
        }
        let object = self.objects.remove(id.0).expect("found above");
        if object.held {
            self.space.unhold(&object.extent);
        }
        self.by_offset.remove(self.hash.hash_one(object.extent.offset), id.0.index);
        self.space.release(object.extent);
        self.bytes.condemned -= object.aligned;
        self.condemned -= 1;
        self.scopes.release(object.scope);
    }

    pub fn fact_key(&self, id: ObjectId) -> Option<FactKey> {
        let object = self.objects.find(id.0)?;
        Some(FactKey {
            hash: object.hash,
            bytes: object.extent.bytes,
            scope: object.scope,
            tenant: self.scopes.tenant_of(object.scope),
        })
    }

    pub fn push_key(&self, id: ObjectId, out: &mut Outbox) {
        out.keys.extend(self.fact_key(id));
    }

    pub fn used_bytes(&self) -> u64 {
        self.space.used_bytes()
    }

    pub fn total_bytes(&self) -> u64 {
        self.space.published_bytes()
    }

    pub fn configured_bytes(&self) -> u64 {
        self.configured
    }

    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Units of leases that are out.
    pub fn lease_units(&self) -> u64 {
        let ended: u64 = self.totals.lease_units_ended.iter().sum();
        self.totals.lease_units_taken - ended
    }

    pub fn objects_len(&self) -> usize {
        self.objects.len()
    }
}
