//! How stores begin, end and fail.

use super::queue::At;
use super::{Demote, Demotion, Digest, Drops, note_of, place_of};
use crate::effect::Effect;
use crate::engine::adapters::flights::Flight;
use crate::engine::adapters::shelf::{Stage, is_size_of};
use crate::engine::adapters::{Adapters, Room, fact_key};
use crate::engine::turn::Turn;
use crate::event::{StoreOutcome, TierFault};
use crate::fact::{AdapterState, Fact, FactKey, L2StoreEnd, StoreDrop};
use crate::limits::{STORE_RETRY_SECS, STORE_TRIES_MAX};
use crate::names::{AdapterId, L2Key, ObjectId, Seal, Ticket};
use crate::slots::SlotName;
use crate::time::Duration;
use alloc::vec::Vec;

/// What becomes of the task whose turn it is.
enum Next {
    /// It has begun, or is over: the next one.
    Went,
    /// Nothing more can begin now; an ending or a tick goes on.
    Waits,
    Drop(StoreDrop),
}

impl Demote {
    /// Begins what can begin and gives up what cannot, adapter by adapter. True where the turn
    /// ended before that did.
    pub(crate) fn store_some(&mut self, turn: &mut Turn, adapters: &mut Adapters) -> bool {
        let mut drops = Drops::default();
        let mut is_unfinished = false;
        for index in 0..self.queues.len() {
            if self.queues[index].waiting > 0 {
                let id = AdapterId(index as u16);
                is_unfinished |= self.store_some_in(turn, adapters, id, &mut drops);
            }
        }
        drops.tell(turn.out);
        is_unfinished
    }

    fn store_some_in(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        id: AdapterId,
        drops: &mut Drops,
    ) -> bool {
        let mut begun: Vec<FactKey> = Vec::new();
        let is_unfinished = loop {
            if turn.is_spent() {
                break true;
            }
            let given_up = match adapters.get(id).state {
                AdapterState::Draining => Some(StoreDrop::Draining),
                AdapterState::Tripped => Some(StoreDrop::Tripped),
                _ => None,
            };
            if given_up.is_some() {
                self.hurry(turn, id);
            }
            let Some(task) = self.queue(id).head() else { break false };
            let next = match given_up {
                Some(why) => Next::Drop(why),
                None => self.store_next(turn, adapters, id, task, &mut begun),
            };
            // Only what gets on is work: whoever waits would use up the turn for others.
            match next {
                Next::Went => turn.spend(1),
                Next::Waits => break false,
                Next::Drop(why) => {
                    turn.spend(1);
                    self.queue_mut(id).take_head();
                    self.give_up(turn, id, task, why, drops);
                }
            }
        };
        self.charge_more(turn, adapters, id);
        if !begun.is_empty() {
            let mark = turn.out.mark();
            turn.out.keys.append(&mut begun);
            let keys = turn.out.keys_since(mark);
            turn.out.tell(Fact::L2StoreSubmitted { adapter: id, keys });
        }
        is_unfinished
    }

    /// Who waits for another try has nothing to wait for.
    fn hurry(&mut self, turn: &mut Turn, id: AdapterId) {
        let queue = &mut self.queues[id.0 as usize];
        if queue.head().is_none() && queue.due().is_some() {
            let name = queue.take_later(crate::time::Instant::FAR).expect("somebody is due");
            queue.push_back(name);
            queue.rearm(id, turn.alarms);
        }
    }

    fn store_next(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        id: AdapterId,
        name: SlotName,
        begun: &mut Vec<FactKey>,
    ) -> Next {
        let adapter = adapters.get(id);
        // Somebody waits for loads; nobody waits for a store (F48).
        let credits = match adapter.loads {
            0 => adapter.setup.stores_max,
            _ => (adapter.setup.stores_max / 2).max(1),
        };
        let queue = self.queue(id);
        if adapters.is_full(id) || adapter.stores >= credits || !queue.budget.may_now() {
            return Next::Waits;
        }
        let task = queue.tasks.find(name).expect("a head exists");
        let demotion = *self.demotions.find(task.demotion).expect("a task keeps its demotion");
        let (key, bytes) = (demotion.key, demotion.bytes);
        let Some(of) = turn.l1.readable(demotion.object) else {
            if planted!(turn.config, 42) {
                self.queue_mut(id).take_head();
                self.end_task(turn, id, name, false);
                return Next::Went;
            }
            return Next::Drop(StoreDrop::Evicted);
        };
        match adapter.shelf.find(&key).map(|(_, entry)| entry) {
            None => {}
            // A load has found it there, or the scan.
            Some(entry) if entry.is_loadable() => {
                let layout = turn.l1.scopes.key(of.scope).layout.fingerprint();
                let is_kept = adapter.setup.keeps_data && entry.is_like(bytes, layout);
                self.queue_mut(id).take_head();
                self.end_task(turn, id, name, is_kept);
                return Next::Went;
            }
            // It is on its way out, or an old store of it has not ended yet.
            Some(_) => return self.put_off(turn, id, name),
        }
        if !queue.budget.may_today(bytes) {
            return Next::Drop(StoreDrop::WriteBudget);
        }
        match adapters.make_room(turn, id, bytes) {
            Room::Fits => self.store(turn, adapters, id, name, begun),
            Room::Later => Next::Waits,
            Room::Nothing => Next::Drop(StoreDrop::NoRoom),
        }
    }

    /// The head of the queue is tried again later, unless that was its last try.
    fn put_off(&mut self, turn: &mut Turn, id: AdapterId, name: SlotName) -> Next {
        let queue = &mut self.queues[id.0 as usize];
        let task = queue.tasks.find_mut(name).expect("a head exists");
        task.tries += 1;
        if task.tries >= STORE_TRIES_MAX {
            return Next::Drop(StoreDrop::Failed);
        }
        let at = turn.now + back_off(task.tries);
        queue.take_head();
        queue.push_later(name, at);
        queue.rearm(id, turn.alarms);
        Next::Went
    }

    fn store(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        id: AdapterId,
        name: SlotName,
        begun: &mut Vec<FactKey>,
    ) -> Next {
        let flight = Flight::Store { adapter: id, task: name };
        let patience = adapters.get(id).setup.store_deadline;
        let departed = adapters.depart(flight, Some(patience), turn.now, turn.alarms);
        let Some(ticket) = departed else { return Next::Waits };
        let queue = self.queue_mut(id);
        queue.take_head();
        let of = queue.tasks.find(name).expect("a head exists").demotion;
        let demotion = *self.demotions.find(of).expect("a task keeps its demotion");
        let (object, key, bytes) = (demotion.object, demotion.key, demotion.bytes);
        turn.l1.pin(object);
        self.uncharge(turn, id, name);
        let adapter = adapters.get_mut(id);
        let scopes = &mut turn.l1.scopes;
        let entry = adapter.shelf.enter(key, bytes, None, Stage::Storing, scopes);
        let entry = entry.expect("there was room, and nothing under this key");
        adapter.stores += 1;
        let queue = self.queue_mut(id);
        queue.budget.spend(bytes);
        let task = queue.tasks.find_mut(name).expect("a head exists");
        (task.at, task.object) = (At::Flight(entry), object);
        let place = place_of(turn, object);
        turn.out.effects.push(Effect::StoreObject { ticket, adapter: id, key, place });
        begun.push(fact_key(&key, bytes, turn.l1));
        self.demotions.find_mut(of).expect("found above").has_begun = true;
        if demotion.digest == Digest::NotAsked {
            self.ask_digest(turn, adapters, of, object, key);
        }
        Next::Went
    }

    /// What the object comes to, found out beside its first store. Without a ticket for it the
    /// object is stored unsealed, as those of other servers are.
    fn ask_digest(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        name: SlotName,
        object: ObjectId,
        key: L2Key,
    ) {
        let flight = Flight::StoreDigest { demotion: name };
        let departed = adapters.depart(flight, None, turn.now, turn.alarms);
        let Some(ticket) = departed else { return };
        turn.l1.pin(object);
        self.demotions.find_mut(name).expect("it is being stored").digest = Digest::OnItsWay;
        let place = place_of(turn, object);
        turn.out.effects.push(Effect::Digest { ticket, key, place });
    }

    /// The digest of an object that is being stored is known. Adapters that have stored it already
    /// learn of it now.
    pub(crate) fn digest_ended(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        ticket: Ticket,
        digest: u32,
    ) {
        let is_kind = |flight: &Flight| matches!(flight, Flight::StoreDigest { .. });
        let found = adapters.arrive(ticket, is_kind, turn.alarms, turn.out);
        let Some(Flight::StoreDigest { demotion: name }) = found.map(|found| found.flight) else {
            return;
        };
        let demotion = self.demotions.find_mut(name).expect("a digest keeps its demotion");
        demotion.digest = Digest::Known;
        let Demotion { object, key, bytes, .. } = *demotion;
        let mut unsealed = core::mem::take(&mut demotion.unsealed);
        let of = turn.l1.objects.find(object.0).expect("a digest pins its object");
        let layout = turn.l1.scopes.key(of.scope).layout.fingerprint();
        let seal = Seal { digest, layout };
        turn.l1.objects.find_mut(object.0).expect("found above").seal = Some(seal);
        turn.l1.unpin(object);
        while unsealed != 0 {
            let adapter = AdapterId(unsealed.trailing_zeros() as u16);
            unsealed &= unsealed - 1;
            if adapters.get_mut(adapter).shelf.sealed(&key, bytes, seal).is_some() {
                let note = note_of(bytes, Some(seal));
                turn.out.effects.push(Effect::Note { adapter, key, note });
            }
        }
        self.end_if_over(turn, name);
    }

    /// An adapter has stored an object, or not.
    pub(crate) fn store_ended(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        ticket: Ticket,
        outcome: StoreOutcome,
    ) {
        let is_kind = |flight: &Flight| matches!(flight, Flight::Store { .. });
        let Some(found) = adapters.arrive(ticket, is_kind, turn.alarms, turn.out) else { return };
        let Flight::Store { adapter: id, task: name } = found.flight else { return };
        let task = *self.queue(id).tasks.find(name).expect("a flight keeps its task");
        let (entry, is_stalled) = match task.at {
            At::Flight(entry) => (entry, false),
            At::Stalled(entry) => (entry, true),
            At::Line | At::Later(_) => unreachable!("only what is on its way ends"),
        };
        let adapter = adapters.get_mut(id);
        adapter.stores -= 1;
        let key = adapter.shelf.fact_key(entry, turn.l1).expect("on its way, it is charged");
        let took = turn.now.since(found.departed);
        if !is_stalled {
            tell_end(turn, id, key, end_of(outcome), took);
        }
        self.settle_entry(turn, adapters, id, (task.demotion, task.object, entry), outcome);
        let is_other =
            matches!(outcome, StoreOutcome::Present { bytes } if !is_size_of(bytes, key.bytes));
        let is_kept = !is_other && adapters.get(id).setup.keeps_data;
        match outcome {
            // Its demotion was answered when it stalled, and so was the breaker.
            _ if is_stalled => {
                self.queue_mut(id).tasks.remove(name);
                turn.l1.unpin(task.object);
            }
            StoreOutcome::Failed(fault) => {
                adapters.faulted(turn, id, fault);
                self.try_again(turn, adapters, id, name, fault);
            }
            StoreOutcome::Stored | StoreOutcome::Present { .. } => {
                adapters.succeeded(id);
                turn.l1.unpin(task.object);
                self.end_task(turn, id, name, is_kept);
            }
        }
    }

    /// What the shelf and the index at rest say of an object whose store has ended.
    fn settle_entry(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        id: AdapterId,
        (demotion, object, entry): (SlotName, ObjectId, SlotName),
        outcome: StoreOutcome,
    ) {
        let adapter = adapters.get_mut(id);
        let key = adapter.shelf.entry(entry).expect("on its way, it is charged").key;
        match outcome {
            StoreOutcome::Stored => {
                let of = turn.l1.objects.find(object.0).expect("on its way, it is pinned");
                let (bytes, seal) = (of.extent.bytes, of.seal);
                adapter.shelf.arrived(entry, bytes, seal, &turn.l1.scopes);
                let demotion = self.demotions.find_mut(demotion);
                match demotion.filter(|demotion| demotion.digest == Digest::OnItsWay) {
                    Some(demotion) => demotion.unsealed |= 1 << id.0,
                    None => {
                        let note = note_of(bytes, seal);
                        turn.out.effects.push(Effect::Note { adapter: id, key, note });
                    }
                }
                let mark = turn.out.mark();
                turn.out.keys.push(fact_key(&key, bytes, turn.l1));
                let keys = turn.out.keys_since(mark);
                turn.out.tell(Fact::L2Stored { adapter: id, keys });
            }
            // Somebody else's, whose bytes nobody here has seen. What our own index says of it
            // comes with the scan.
            StoreOutcome::Present { bytes } => {
                adapter.shelf.arrived(entry, bytes, None, &turn.l1.scopes);
                if adapter.is_scanned {
                    let note = note_of(bytes, None);
                    turn.out.effects.push(Effect::Note { adapter: id, key, note });
                }
            }
            StoreOutcome::Failed(_) => {
                adapter.shelf.remove(entry, &mut turn.l1.scopes);
            }
        }
    }

    /// A store has failed: tried again after a while, or given up. Ends its pin.
    fn try_again(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        id: AdapterId,
        name: SlotName,
        fault: TierFault,
    ) {
        let queue = &mut self.queues[id.0 as usize];
        let task = queue.tasks.find_mut(name).expect("a flight keeps its task");
        let demotion = self.demotions.find(task.demotion).expect("a task keeps its demotion");
        let is_over = match fault {
            // Once more when something has gone to make room.
            TierFault::NoSpace => core::mem::replace(&mut task.met_full, true),
            _ => {
                task.tries += 1;
                task.tries >= STORE_TRIES_MAX
            }
        };
        let (tries, object) = (task.tries, task.object);
        if fault == TierFault::NoSpace {
            adapters.is_out_of_space(id, demotion.bytes);
        }
        if is_over {
            let is_full = fault == TierFault::NoSpace;
            let why = if is_full { StoreDrop::NoRoom } else { StoreDrop::Failed };
            let mut drops = Drops::default();
            turn.l1.unpin(object);
            self.give_up(turn, id, name, why, &mut drops);
            return drops.tell(turn.out);
        }
        match fault {
            TierFault::NoSpace => queue.push_front(name),
            _ => {
                queue.push_later(name, turn.now + back_off(tries));
                queue.rearm(id, turn.alarms);
            }
        }
        self.charge(turn, adapters, id, name);
        turn.l1.unpin(object);
    }

    /// A store takes longer than it may: whoever waits for it is answered, its memory stays pinned
    /// until its ending.
    pub(crate) fn store_stalled(
        &mut self,
        turn: &mut Turn,
        adapters: &Adapters,
        (id, name): (AdapterId, SlotName),
        ticket: Ticket,
    ) {
        let task = self.queue_mut(id).tasks.find_mut(name).expect("a flight keeps its task");
        let At::Flight(entry) = task.at else { return };
        task.at = At::Stalled(entry);
        let of = task.demotion;
        let adapter = adapters.get(id);
        let key = adapter.shelf.fact_key(entry, turn.l1).expect("on its way, it is charged");
        let took = adapter.setup.store_deadline;
        tell_end(turn, id, key, L2StoreEnd::TimedOut, took);
        let mut drops = Drops::default();
        self.drop_told(id, StoreDrop::Failed, key, &mut drops);
        drops.tell(turn.out);
        turn.out.effects.push(Effect::Cancel { ticket });
        self.answered(turn, of, false);
    }

    /// Those whose next try is due stand in line again.
    pub(crate) fn retry(&mut self, turn: &mut Turn, subject: SlotName) {
        let id = AdapterId(subject.index as u16);
        let queue = self.queue_mut(id);
        queue.timer = None;
        while !turn.is_spent() {
            let Some(name) = queue.take_later(turn.now) else { break };
            turn.spend(1);
            queue.push_back(name);
        }
        queue.rearm(id, turn.alarms);
    }

    /// Once a second: so much more may be written.
    pub(crate) fn tick(&mut self, turn: &mut Turn) {
        self.queues.iter_mut().for_each(|queue| queue.budget.tick(turn.now));
    }

    /// A task that has left its line will not be stored.
    fn give_up(
        &mut self,
        turn: &mut Turn,
        id: AdapterId,
        name: SlotName,
        why: StoreDrop,
        drops: &mut Drops,
    ) {
        let task = self.queue(id).tasks.find(name).expect("given up once");
        let demotion = self.demotions.find(task.demotion).expect("a task keeps its demotion");
        let key = fact_key(&demotion.key, demotion.bytes, turn.l1);
        self.drop_told(id, why, key, drops);
        self.end_task(turn, id, name, false);
    }

    fn end_task(&mut self, turn: &mut Turn, id: AdapterId, name: SlotName, is_kept: bool) {
        self.uncharge(turn, id, name);
        let task = self.queue_mut(id).tasks.remove(name).expect("a task ends once");
        self.answered(turn, task.demotion, is_kept);
    }
}

fn end_of(outcome: StoreOutcome) -> L2StoreEnd {
    match outcome {
        StoreOutcome::Stored => L2StoreEnd::Stored,
        StoreOutcome::Present { .. } => L2StoreEnd::Present,
        StoreOutcome::Failed(TierFault::NoSpace) => L2StoreEnd::NoSpace,
        StoreOutcome::Failed(_) => L2StoreEnd::Io,
    }
}

fn tell_end(turn: &mut Turn, adapter: AdapterId, key: FactKey, end: L2StoreEnd, took: Duration) {
    let mark = turn.out.mark();
    turn.out.keys.push(key);
    let keys = turn.out.keys_since(mark);
    turn.out.tell(Fact::L2StoreEnded { adapter, keys, end, took });
}

/// Each wait is twice as long as the last.
fn back_off(tries: u8) -> Duration {
    Duration::from_secs(STORE_RETRY_SECS << u32::from(tries.saturating_sub(1)).min(16))
}
