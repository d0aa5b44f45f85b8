//! From L1 to lower tiers: what becomes of an object from its commit to the end of its last store.
//!
//! The invariant: an object that was committed either comes to rest in every adapter that takes
//! stores, or it is told why not, once for each (I-18); what it was pinned for is unpinned once,
//! whatever the outcome (I-19).
//!
//! ```text
//! commit ──► demotion ──► task per adapter ──► line of its tenant ──► on its way ──► at rest
//!                │                                  ▲                     │
//!                │                                  └── next try ◄── failed ──► dropped, with why
//!                └► digest, beside the first store ──► seal of the object ──► index at rest
//! ```
//!
//! *Waiting* keeps an object in L1 within a budget of bytes, shared out among the adapters, so that
//! a slow one does not hold memory for the others (F48). Beyond it an object waits all the same and
//! may be evicted before its turn. *On its way* it is pinned whatever the budget says; how many are
//! on their way an adapter's credits bound.
//!
//! Under `skip_l1` the object leaves L1 when every adapter has answered and one that keeps what it
//! is given has it (I-21, I-22). Where somebody holds it at that moment, it leaves when they let
//! go (R-12).

mod audit;
mod budget;
mod flow;
mod queue;

use crate::SeededHash;
use crate::chains::Chains;
use crate::config::{AdapterSetup, Config, Limits, StorePolicy};
use crate::effect::{Note, Outbox};
use crate::engine::adapters::shelf::Stage;
use crate::engine::adapters::{Adapters, fact_key};
use crate::engine::memory::slots_bytes;
use crate::engine::scopes::ScopeKey;
use crate::engine::turn::Turn;
use crate::fact::{AdapterState, Fact, FactKey, Removal, StoreDrop};
use crate::limits;
use crate::names::{AdapterId, ArenaId, L2Key, Layout, ObjectId, Place, ScopeId};
use crate::slots::{SlotName, Slots};
use crate::time::Instant;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use queue::{Queue, Task};
use smallvec::SmallVec;

/// What is known of an object's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digest {
    NotAsked,
    OnItsWay,
    Known,
}

/// One object on its way to lower tiers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demotion {
    pub(crate) object: ObjectId,
    pub(crate) key: L2Key,
    pub(crate) bytes: u64,
    /// Tasks without an answer.
    pub(crate) targets: u32,
    /// Tasks whose waiting keeps it in L1; one pin for all of them.
    pub(crate) charged: u32,
    pub(crate) digest: Digest,
    /// Some store of it has begun.
    has_begun: bool,
    /// An adapter that keeps what it is given has it.
    is_kept: bool,
    /// Adapters that had stored it before its digest was known, by their bits.
    unsealed: u64,
}

#[derive(Clone, Debug)]
pub struct Demote {
    pub(crate) demotions: Slots<Demotion>,
    by_key: Chains,
    hash: SeededHash,
    /// By the place of their adapter.
    pub(crate) queues: Vec<Queue>,
}

/// Objects that will not be stored, told of together.
#[derive(Default)]
struct Drops(Vec<(AdapterId, StoreDrop, FactKey)>);

impl Drops {
    /// In the order in which they were given up, for each adapter and reason.
    fn tell(mut self, out: &mut Outbox) {
        self.0.sort_by_key(|(adapter, why, _)| (*adapter, *why));
        for dropped in self.0.chunk_by(|left, right| (left.0, left.1) == (right.0, right.1)) {
            let (adapter, why, _) = dropped[0];
            let mark = out.mark();
            out.keys.extend(dropped.iter().map(|(_, _, key)| *key));
            out.tell(Fact::L2StoreDropped { adapter, keys: out.keys_since(mark), why });
        }
    }
}

impl Demote {
    pub fn new(limits: &Limits, seed: u64) -> Demote {
        Demote {
            demotions: Slots::with_limit(limits.demotions),
            by_key: Chains::with_limit(limits.demotions),
            hash: SeededHash::new(seed ^ 22),
            queues: Vec::new(),
        }
    }

    /// What is on its way, at its bound, and what one event can commit. What waits for an adapter
    /// is counted when that joins.
    pub(crate) fn table_bytes(limits: &Limits) -> u64 {
        let leaving = (2 * limits.demotions + limits::COMMITTED_MAX) * size_of::<ObjectId>();
        slots_bytes::<Demotion>(limits.demotions) + Chains::bytes(limits.demotions) + leaving as u64
    }

    /// What one more adapter takes here.
    pub(crate) fn adapter_bytes(limits: &Limits, setup: &AdapterSetup<'_>) -> u64 {
        size_of::<Queue>() as u64 + Queue::table_bytes(limits, setup)
    }

    /// An adapter has joined.
    pub fn joined(&mut self, limits: &Limits, setup: &AdapterSetup<'_>, now: Instant) {
        self.queues.push(Queue::new(setup, limits.demotions, now));
    }

    /// Whether nothing waits for an adapter any more, or is on its way there.
    pub(crate) fn is_done_with(&self, id: AdapterId) -> bool {
        self.queue(id).tasks.is_empty()
    }

    /// An adapter has left.
    pub(crate) fn left(&mut self, id: AdapterId, setup: &AdapterSetup<'_>) {
        self.queue_mut(id).close(setup);
    }

    /// Objects that wait to be stored in an adapter.
    pub fn waiting(&self, id: AdapterId) -> usize {
        self.queue(id).waiting
    }

    pub(crate) fn queue(&self, id: AdapterId) -> &Queue {
        &self.queues[id.0 as usize]
    }

    fn queue_mut(&mut self, id: AdapterId) -> &mut Queue {
        &mut self.queues[id.0 as usize]
    }

    /// A client's store has published these objects, the last chunk first. The first one is the
    /// first to be stored, so that what finds no room is the tail (F18).
    pub fn committed(&mut self, turn: &mut Turn, adapters: &mut Adapters, objects: &[ObjectId]) {
        if adapters.staying().next().is_none() {
            return;
        }
        let mut drops = Drops::default();
        let mut named = None;
        for object in objects.iter().rev() {
            self.demote(turn, adapters, *object, &mut named, &mut drops);
        }
        drops.tell(turn.out);
    }

    fn demote(
        &mut self,
        turn: &mut Turn,
        adapters: &Adapters,
        object: ObjectId,
        named: &mut Option<(ScopeId, Option<ScopeId>)>,
        drops: &mut Drops,
    ) {
        // What was published may have made room for what came after it.
        let Some(of) = turn.l1.readable(object) else { return };
        let scope = match *named {
            Some((scope, below)) if scope == of.scope => below,
            _ => {
                let scopes = &mut turn.l1.scopes;
                let below = ScopeKey { layout: Layout::UNKNOWN, ..*scopes.key(of.scope) };
                let below = scopes.name_scope(below);
                *named = Some((of.scope, below));
                below
            }
        };
        let Some(scope) = scope else {
            let key = turn.l1.fact_key(object).expect("readable, seen above");
            for adapter in adapters.staying() {
                self.drop_told(adapter.id, StoreDrop::Unfit, key, drops);
            }
            return;
        };
        let key = L2Key { hash: of.hash, scope };
        if let Some(demotion) = self.find(&key) {
            return self.renew(turn, demotion, object);
        }
        let (targets, is_kept) = self.targets(turn, adapters, object, &key, drops);
        if !targets.is_empty() {
            self.begin(turn, adapters, object, key, is_kept, &targets);
        } else if is_kept {
            self.is_below(turn, object);
        }
    }

    /// The adapters that one object is to be stored in. Beside them, whether it rests already in
    /// one that keeps it.
    fn targets(
        &mut self,
        turn: &Turn,
        adapters: &Adapters,
        object: ObjectId,
        key: &L2Key,
        drops: &mut Drops,
    ) -> (SmallVec<[AdapterId; 4]>, bool) {
        let mut targets = SmallVec::new();
        let mut is_kept = false;
        let found = turn.l1.objects.find(object.0).expect("readable, seen by the caller");
        let (bytes, scope) = (found.extent.bytes, found.scope);
        let told = fact_key(key, bytes, turn.l1);
        let share = self.demotions.limit() / adapters.staying().count().max(1);
        for adapter in adapters.staying() {
            let queue = &mut self.queues[adapter.id.0 as usize];
            if let Some((_, entry)) = adapter.shelf.find(key)
                && !matches!(entry.stage, Stage::Deleting(_))
            {
                let layout = turn.l1.scopes.key(scope).layout.fingerprint();
                let is_other = entry.is_loadable() && !entry.is_like(bytes, layout);
                is_kept |= entry.is_loadable() && !is_other && adapter.setup.keeps_data;
                // What is there already stays as it is.
                if is_other {
                    self.drop_told(adapter.id, StoreDrop::Unfit, told, drops);
                }
                continue;
            }
            if !queue.touches.see(self.hash.hash_one(key)) {
                queue.first_touches += 1;
                continue;
            }
            let fits = adapter.shelf.charge(bytes) <= adapter.setup.capacity_bytes
                && adapter.shelf.entries.limit() > 0;
            let is_full = self.demotions.is_full() || queue.tasks.len() >= share.max(1);
            let why = if adapter.state == AdapterState::Tripped {
                StoreDrop::Tripped
            } else if !fits {
                StoreDrop::Unfit
            } else if is_full {
                StoreDrop::QueueFull
            } else {
                targets.push(adapter.id);
                continue;
            };
            self.drop_told(adapter.id, why, told, drops);
        }
        (targets, is_kept)
    }

    fn begin(
        &mut self,
        turn: &mut Turn,
        adapters: &Adapters,
        object: ObjectId,
        key: L2Key,
        is_kept: bool,
        targets: &[AdapterId],
    ) {
        let found = turn.l1.objects.find(object.0).expect("readable, seen by the caller");
        let digest = if found.seal.is_some() { Digest::Known } else { Digest::NotAsked };
        let demotion = Demotion {
            object,
            key,
            bytes: found.extent.bytes,
            targets: targets.len() as u32,
            charged: 0,
            digest,
            has_begun: false,
            is_kept,
            unsealed: 0,
        };
        let name = self.demotions.insert(demotion).expect("the targets had room for it");
        self.by_key.insert(self.hash.hash_one(key), name.index);
        turn.l1.scopes.retain(key.scope);
        let tenant = turn.l1.scopes.tenant_of(key.scope);
        for id in targets {
            let queue = self.queue_mut(*id);
            let task = Task::new(name, object, tenant);
            let task = queue.tasks.insert(task).expect("a queue has room for every demotion");
            queue.push_back(task);
            self.charge(turn, adapters, *id, task);
        }
    }

    /// From now on the task keeps its object in L1, if that is within its adapter's share, or else
    /// as soon as it is.
    fn charge(&mut self, turn: &mut Turn, adapters: &Adapters, id: AdapterId, name: SlotName) {
        let share = demoting_share(turn.config, adapters);
        if !self.charge_within(turn, share, id, name) {
            self.queue_mut(id).push_unkept(name);
        }
    }

    /// Some of the budget may be free again: the next ones are kept.
    fn charge_more(&mut self, turn: &mut Turn, adapters: &Adapters, id: AdapterId) {
        let share = demoting_share(turn.config, adapters);
        while !turn.is_spent() {
            let Some(name) = self.queue_mut(id).next_unkept() else { return };
            if !self.charge_within(turn, share, id, name) {
                return;
            }
            turn.spend(1);
            self.queue_mut(id).pop_unkept();
        }
    }

    /// False where the share is used up.
    fn charge_within(
        &mut self,
        turn: &mut Turn,
        share: u64,
        id: AdapterId,
        name: SlotName,
    ) -> bool {
        let queue = &mut self.queues[id.0 as usize];
        let task = queue.tasks.find_mut(name).expect("charged while it waits");
        let demotion = self.demotions.find_mut(task.demotion).expect("a task keeps its demotion");
        let object = demotion.object;
        // What has left L1 is told of when its turn comes.
        if turn.l1.readable(object).is_none() {
            return true;
        }
        let bytes = turn.l1.objects.find(object.0).expect("readable, seen above").aligned;
        // An object that is larger than the share is kept while no other is.
        if queue.charged_bytes > 0 && queue.charged_bytes + bytes > share {
            return false;
        }
        queue.charged_bytes += bytes;
        task.charge = Some(bytes);
        demotion.charged += 1;
        if demotion.charged == 1 {
            turn.l1.pin(object);
        }
        true
    }

    /// The task waits no more, or no longer keeps what it waits with.
    fn uncharge(&mut self, turn: &mut Turn, id: AdapterId, name: SlotName) {
        let queue = &mut self.queues[id.0 as usize];
        let task = queue.tasks.find_mut(name).expect("uncharged while it exists");
        let Some(bytes) = task.charge.take() else { return };
        queue.charged_bytes -= bytes;
        let demotion = self.demotions.find_mut(task.demotion).expect("a task keeps its demotion");
        demotion.charged -= 1;
        if demotion.charged == 0 {
            turn.l1.unpin(demotion.object);
        }
    }

    /// The same key is committed again while it is on its way. What waits and was evicted meanwhile
    /// is there again; what has begun goes on with the bytes that it began with.
    fn renew(&mut self, turn: &mut Turn, name: SlotName, object: ObjectId) {
        let demotion = self.demotions.find_mut(name).expect("found by its key");
        let bytes = turn.l1.objects.find(object.0).map_or(0, |object| object.extent.bytes);
        let is_gone = turn.l1.readable(demotion.object).is_none();
        let has_begun = demotion.has_begun && !planted!(turn.config, 38);
        if !is_gone || has_begun || demotion.bytes != bytes {
            return;
        }
        if demotion.charged > 0 {
            turn.l1.unpin(demotion.object);
            turn.l1.pin(object);
        }
        demotion.object = object;
    }

    pub(crate) fn find(&self, key: &L2Key) -> Option<SlotName> {
        let is_it = |index| self.demotions.at(index).is_some_and(|(_, found)| found.key == *key);
        let index = self.by_key.find(self.hash.hash_one(key), is_it)?;
        Some(self.demotions.at(index)?.0)
    }

    /// One adapter has answered for an object: it has it and keeps it, or not.
    fn answered(&mut self, turn: &mut Turn, name: SlotName, is_kept: bool) {
        let demotion = self.demotions.find_mut(name).expect("a task keeps its demotion");
        demotion.targets -= 1;
        demotion.is_kept |= is_kept;
        self.end_if_over(turn, name);
    }

    /// Everybody has answered, and the digest has.
    fn end_if_over(&mut self, turn: &mut Turn, name: SlotName) {
        let demotion = *self.demotions.find(name).expect("ended once");
        if demotion.targets > 0 || demotion.digest == Digest::OnItsWay {
            return;
        }
        assert!(demotion.charged == 0, "nobody waits with it any more");
        self.demotions.remove(name);
        self.by_key.remove(self.hash.hash_one(demotion.key), name.index);
        turn.l1.scopes.release(demotion.key.scope);
        if demotion.is_kept {
            self.is_below(turn, demotion.object);
        }
    }

    /// Every adapter has answered, and one keeps it: under `skip_l1` it leaves L1, now or as soon
    /// as nobody holds it.
    fn is_below(&self, turn: &mut Turn, object: ObjectId) {
        if turn.config.store_policy != StorePolicy::SkipL1 || turn.l1.readable(object).is_none() {
            return;
        }
        turn.l1.leave_when_free(object, Removal::Demoted);
    }

    fn drop_told(&mut self, id: AdapterId, why: StoreDrop, key: FactKey, drops: &mut Drops) {
        self.queue_mut(id).drops[why as usize] += 1;
        drops.0.push((id, why, key));
    }

    /// Nothing is on its way, and nothing waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.demotions.is_empty() && self.queues.iter().all(|queue| queue.tasks.is_empty())
    }
}

/// Bytes of L1 that may wait for one adapter.
pub(crate) fn demoting_share(config: &Config, adapters: &Adapters) -> u64 {
    config.demoting_bytes_max() / adapters.staying().count().max(1) as u64
}

fn place_of(turn: &Turn, object: ObjectId) -> Place {
    let extent = &turn.l1.objects.find(object.0).expect("pinned").extent;
    Place { arena: ArenaId(0), offset: extent.offset, bytes: extent.bytes }
}

/// What the index at rest is told of an object that has come to rest.
fn note_of(bytes: u64, seal: Option<crate::names::Seal>) -> Note {
    Note::Stored { bytes, seal }
}
