//! One object on its way into L1.
//!
//! ```text
//! WAITING ──► READING ──► CHECKING ──► published, leased by all who wait
//!    │           │            └──────► the bytes are others: put aside, all who wait are cut
//!    │           ├───────────────────► not there, or failed: all who wait are cut
//!    │           └── too slow, or nobody waits: GIVEN UP, its memory waits for the ticket
//!    └────────────── nobody waits any more: gone
//! ```

use super::{Line, Promote};
use crate::config::PrefetchPolicy;
use crate::effect::{Effect, Note};
use crate::engine::adapters::Adapters;
use crate::engine::adapters::flights::{Flight, InFlight};
use crate::engine::turn::Turn;
use crate::event::LoadOutcome;
use crate::fact::{Abort, Fact, L2LoadEnd, L2Removal, LookupStop, PrefetchFailure, Removal};
use crate::names::{AdapterId, ArenaId, L2Key, ObjectId, Place, Seal, Ticket};
use crate::slots::SlotName;
use crate::time::Instant;
use smallvec::SmallVec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    Reading(Ticket),
    Checking(Ticket),
    /// Nobody waits; its ticket has not ended.
    GivenUp,
}

/// What is loaded, from where, into what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bringing {
    pub adapter: AdapterId,
    pub entry: SlotName,
    pub key: L2Key,
    pub seal: Option<Seal>,
    pub object: ObjectId,
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub adapter: AdapterId,
    pub entry: SlotName,
    pub key: L2Key,
    pub seal: Option<Seal>,
    pub object: ObjectId,
    pub bytes: u64,
    pub stage: Stage,
    /// Layout fingerprint of who loads it, for a seal where there is none.
    layout: u32,
    /// Seeks that wait, and the cell of each.
    pub waiters: SmallVec<[(SlotName, u32); 2]>,
    /// Somebody has wanted it before, or more than one want it now.
    is_wanted_again: bool,
    departed: Instant,
    /// Its place among those that wait for a credit.
    pub arrival: u64,
}

impl Promote {
    /// One more seek waits for a load. The object that it brings.
    pub(super) fn join(&mut self, load: SlotName, seek: SlotName, at: usize) -> ObjectId {
        let load = self.loads.find_mut(load).expect("found by its object");
        load.waiters.push((seek, at as u32));
        load.is_wanted_again = true;
        load.object
    }

    /// A load of a staged object begins to wait for its adapter.
    pub(super) fn bring(
        &mut self,
        adapters: &mut Adapters,
        bringing: Bringing,
        layout: u32,
        (seek, at): (SlotName, usize),
    ) {
        let Bringing { adapter, entry, key, seal, object, bytes } = bringing;
        let load = Load {
            adapter,
            entry,
            key,
            seal,
            object,
            bytes,
            stage: Stage::Waiting,
            layout,
            waiters: SmallVec::from_slice(&[(seek, at as u32)]),
            is_wanted_again: adapters.hold(adapter, entry),
            departed: Instant::ZERO,
            arrival: self.arrivals,
        };
        let name = self.loads.insert(load).expect("the caller has looked for room");
        self.by_object.insert(object, name);
        let place = usize::from(adapter.0);
        if self.waiting.len() <= place {
            self.waiting.resize_with(place + 1, Line::default);
        }
        self.waiting[place].loads.insert(self.arrivals, name);
        self.waiting[place].bytes += bytes;
        self.arrivals += 1;
    }

    /// The first that waits for a credit of this adapter.
    fn first_waiting(&self, id: AdapterId) -> Option<SlotName> {
        let line = self.waiting.get(usize::from(id.0))?;
        line.loads.first_key_value().map(|(_, name)| *name)
    }

    /// It waits no more.
    fn leave_line(&mut self, name: SlotName) {
        let load = self.loads.find(name).expect("it stands in line while it exists");
        let line = &mut self.waiting[usize::from(load.adapter.0)];
        line.loads.remove(&load.arrival).expect("what waits stands in line");
        line.bytes -= load.bytes;
    }

    /// Bytes of loads that wait for a credit of this adapter.
    pub(super) fn waiting_bytes(&self, adapter: AdapterId) -> u64 {
        self.waiting.get(usize::from(adapter.0)).map_or(0, |line| line.bytes)
    }

    /// Orders what waits from adapters, as far as their credits reach.
    pub(super) fn order(&mut self, turn: &mut Turn, adapters: &mut Adapters, of: &[AdapterId]) {
        for adapter in of {
            self.order_from(turn, adapters, *adapter);
        }
    }

    /// As far as the turn reaches; a job goes on with the rest.
    fn order_from(&mut self, turn: &mut Turn, adapters: &mut Adapters, id: AdapterId) {
        if self.order_some(turn, adapters, id) {
            turn.jobs.loads();
        }
    }

    /// True where the turn was over before that.
    fn order_some(&mut self, turn: &mut Turn, adapters: &mut Adapters, id: AdapterId) -> bool {
        let mut submitted: SmallVec<[ObjectId; 16]> = SmallVec::new();
        let is_unfinished = loop {
            let Some(name) = self.first_waiting(id) else { break false };
            if turn.is_spent() {
                break true;
            }
            let load = self.loads.find(name).expect("it stands in line while it exists");
            // It was lost or put aside while it waited: another load of it has found that out.
            if !adapters.may_read((id, load.entry)) {
                self.fail_waiting(turn, adapters, name, LookupStop::Absent, Abort::Load);
                continue;
            }
            if !turn.l1.can_commit(load.object) {
                self.fail_waiting(turn, adapters, name, LookupStop::Absent, Abort::ForcedClear);
                continue;
            }
            let is_late = planted!(turn.config, 47) && !adapters.get(id).serves();
            if !adapters.may_load(id, load.bytes) && !is_late {
                break false;
            }
            let patience = adapters.get(id).setup.load_deadline;
            let flight = Flight::Load { adapter: id, load: name };
            let departed = adapters.depart(flight, Some(patience), turn.now, turn.alarms);
            let Some(ticket) = departed else { break false };
            self.leave_line(name);
            let load = self.loads.find_mut(name).expect("it exists, seen above");
            load.stage = Stage::Reading(ticket);
            load.departed = turn.now;
            let (key, object, bytes) = (load.key, load.object, load.bytes);
            adapters.load_begun(id, bytes, turn.now);
            turn.spend(1);
            let into = place_of(turn, object, bytes);
            turn.out.effects.push(Effect::LoadObject { ticket, adapter: id, key, place: into });
            submitted.push(object);
        };
        let mark = turn.out.mark();
        submitted.iter().for_each(|object| turn.l1.push_key(*object, turn.out));
        let keys = turn.out.keys_since(mark);
        if !keys.is_empty() {
            turn.out.tell(Fact::L2LoadSubmitted { adapter: id, keys });
        }
        is_unfinished
    }

    /// A load has ended, one way or another.
    pub fn load_ended(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        (flight, outcome): (InFlight, LoadOutcome),
    ) {
        let Flight::Load { adapter, load: name } = flight.flight else { return };
        if planted!(turn.config, 40) && self.loads.find(name).is_none() {
            return;
        }
        let load = self.loads.find_mut(name).expect("a ticket keeps its load");
        let (entry, bytes, object) = (load.entry, load.bytes, load.object);
        let took = turn.now - flight.departed;
        let was_given_up = load.stage == Stage::GivenUp;
        adapters.load_ended(turn, &flight, bytes, outcome);
        match outcome {
            _ if was_given_up => self.release(turn, adapters, name),
            LoadOutcome::Loaded => self.check(turn, adapters, name),
            LoadOutcome::Absent | LoadOutcome::OtherSize { .. } => {
                let end = match outcome {
                    LoadOutcome::Absent => L2LoadEnd::Absent,
                    _ => L2LoadEnd::OtherSize,
                };
                self.tell_end(turn, (adapter, object), end, took);
                self.fail(turn, name, (LookupStop::Absent, PrefetchFailure::NotFound), Abort::Load);
                self.release(turn, adapters, name);
                adapters.lost((adapter, entry), L2Removal::Lost, turn.l1, turn.out);
            }
            LoadOutcome::Failed(_) => {
                self.tell_end(turn, (adapter, object), L2LoadEnd::Io, took);
                let why = (LookupStop::TierError, PrefetchFailure::NotFound);
                self.fail(turn, name, why, Abort::Load);
                self.release(turn, adapters, name);
            }
        }
        self.order_from(turn, adapters, adapter);
    }

    /// The bytes are there: are they those that were stored?
    fn check(&mut self, turn: &mut Turn, adapters: &mut Adapters, name: SlotName) {
        let load = self.loads.find_mut(name).expect("checked while it exists");
        if !adapters.get(load.adapter).setup.verify {
            return self.publish(turn, adapters, name);
        }
        let flight = Flight::LoadDigest { load: name };
        let Some(ticket) = adapters.depart(flight, None, turn.now, turn.alarms) else {
            let (adapter, object, took) = (load.adapter, load.object, turn.now - load.departed);
            self.tell_end(turn, (adapter, object), L2LoadEnd::Io, took);
            let why = (LookupStop::TierError, PrefetchFailure::NotFound);
            self.fail(turn, name, why, Abort::Load);
            return self.release(turn, adapters, name);
        };
        load.stage = Stage::Checking(ticket);
        let (key, object, bytes) = (load.key, load.object, load.bytes);
        let place = place_of(turn, object, bytes);
        turn.out.effects.push(Effect::Digest { ticket, key, place });
    }

    pub fn digested(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        name: SlotName,
        digest: u32,
    ) {
        let load = self.loads.find_mut(name).expect("a ticket keeps its load");
        if load.stage == Stage::GivenUp {
            return self.release(turn, adapters, name);
        }
        let (adapter, entry, object) = (load.adapter, load.entry, load.object);
        // A scan may have told it after the load was planned.
        let seal = load.seal.or_else(|| adapters.seal_of((adapter, entry)));
        let is_damaged = seal.is_some_and(|seal| seal.digest != digest);
        if is_damaged || seal.is_some_and(|seal| seal.layout != load.layout) {
            let (took, why) = (turn.now - load.departed, LookupStop::Absent);
            let end = if is_damaged { L2LoadEnd::Digest } else { L2LoadEnd::OtherSize };
            self.tell_end(turn, (adapter, object), end, took);
            self.fail(turn, name, (why, PrefetchFailure::NotFound), Abort::Digest);
            self.release(turn, adapters, name);
            if is_damaged {
                adapters.quarantine(turn, adapter, entry);
            }
            return;
        }
        if seal.is_none() {
            // A foreign file. From its first load on it has to stay what it was then.
            let seal = Seal { digest, layout: load.layout };
            let (key, bytes) = (load.key, load.bytes);
            if adapters.seal((adapter, entry), bytes, seal, &turn.l1.scopes) {
                let note = Note::Stored { bytes, seal: Some(seal) };
                turn.out.effects.push(Effect::Note { adapter, key, note });
            }
        }
        self.publish(turn, adapters, name);
    }

    /// Commits the object and leases it to all who wait, in one step (I-8).
    fn publish(&mut self, turn: &mut Turn, adapters: &mut Adapters, name: SlotName) {
        let load = self.loads.find_mut(name).expect("published while it exists");
        let (adapter, entry, object) = (load.adapter, load.entry, load.object);
        let took = turn.now - load.departed;
        if !turn.l1.can_commit(object) {
            // A forced clear has come meanwhile.
            self.tell_end(turn, (adapter, object), L2LoadEnd::Cancelled, took);
            let why = (LookupStop::Absent, PrefetchFailure::NotFound);
            self.fail(turn, name, why, Abort::ForcedClear);
            return self.release(turn, adapters, name);
        }
        let waiters = core::mem::take(&mut load.waiters);
        let is_kept = turn.config.prefetch_policy == PrefetchPolicy::Retain || load.is_wanted_again;
        // The writer's pin ends with the commit; this one bridges the step to the leases.
        turn.l1.pin(object);
        turn.l1.commit(object);
        let mark = turn.out.mark();
        turn.l1.push_key(object, turn.out);
        let keys = turn.out.keys_since(mark);
        turn.out.tell(Fact::WriteFinished { keys });
        turn.out.tell(Fact::L2LoadEnded { adapter, keys, end: L2LoadEnd::Loaded, took });
        turn.spend_own(waiters.len());
        for (seek, at) in &waiters {
            if let Some(seek) = self.seeks.find_mut(*seek) {
                seek.set.fill(turn.l1, *at as usize, seek.readers);
            }
        }
        if !is_kept {
            turn.l1.leave_when_free(object, Removal::Temporary);
        }
        adapters.used(adapter, entry, turn.l1, turn.out);
        self.release(turn, adapters, name);
        for (seek, _) in waiters {
            self.settle(turn, seek);
        }
    }

    /// What an event is about has failed.
    fn fail(
        &mut self,
        turn: &mut Turn,
        name: SlotName,
        why: (LookupStop, PrefetchFailure),
        abort: Abort,
    ) {
        let load = self.loads.find(name).expect("failed while it exists");
        turn.spend_own(load.waiters.len());
        self.cut_waiters(turn, name, why, abort);
    }

    /// All who wait are cut where they wait for it; its key is free again.
    fn cut_waiters(
        &mut self,
        turn: &mut Turn,
        name: SlotName,
        (stop, failure): (LookupStop, PrefetchFailure),
        abort: Abort,
    ) {
        let load = self.loads.find_mut(name).expect("failed while it exists");
        let (object, waiters) = (load.object, core::mem::take(&mut load.waiters));
        let mark = turn.out.mark();
        turn.l1.push_key(object, turn.out);
        let keys = turn.out.keys_since(mark);
        turn.out.tell(Fact::L2PrefetchFailed { keys, why: failure });
        self.give_back(turn, object, abort);
        for (seek, at) in waiters {
            if let Some(of) = self.seeks.find_mut(seek) {
                of.cut(at / of.rows.len() as u32, stop);
                self.settle(turn, seek);
            }
        }
    }

    /// The reservation is given up; its memory stays until its pin ends.
    fn give_back(&self, turn: &mut Turn, object: ObjectId, why: Abort) {
        let mark = turn.out.mark();
        if turn.l1.condemn_staged(object, turn.out) {
            turn.out.tell(Fact::WriteAborted { keys: turn.out.keys_since(mark), why });
        }
    }

    /// The load is over: its memory and its hold on the adapter end.
    fn release(&mut self, turn: &mut Turn, adapters: &mut Adapters, name: SlotName) {
        let load = self.loads.remove(name).expect("released once");
        self.by_object.remove(&load.object);
        turn.l1.unpin(load.object);
        let is_given_up = load.stage == Stage::GivenUp;
        if planted!(turn.config, 44) {
            return;
        }
        let (one, other) = (planted!(turn.config, 41), planted!(turn.config, 45));
        if is_given_up && (one || other) {
            return;
        }
        adapters.unhold(load.adapter, load.entry);
    }

    /// A seek does not wait for this object any more.
    pub(super) fn leave(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        seek: SlotName,
        object: ObjectId,
    ) {
        let Some(&name) = self.by_object.get(&object) else { return };
        let load = self.loads.find_mut(name).expect("the index names live loads");
        load.waiters.retain(|(other, _)| *other != seek);
        if load.waiters.is_empty() {
            self.give_up(turn, adapters, name, L2LoadEnd::Cancelled);
        }
    }

    /// A load takes longer than it may: nobody waits for it any more (F47).
    pub fn load_stalled(&mut self, turn: &mut Turn, adapters: &mut Adapters, name: SlotName) {
        let Some(load) = self.loads.find(name) else { return };
        if load.stage == Stage::GivenUp {
            return;
        }
        let why = (LookupStop::TimedOut, PrefetchFailure::TimedOut);
        self.fail(turn, name, why, Abort::Load);
        self.give_up(turn, adapters, name, L2LoadEnd::TimedOut);
    }

    /// What waits for an adapter that takes no more loads does not wait for it any longer (R-30).
    /// What waits for a credit of another is given one, if there is one by now. True where the turn
    /// was over before that.
    pub fn look_after_waiting(&mut self, turn: &mut Turn, adapters: &mut Adapters) -> bool {
        let mut is_unfinished = false;
        for place in 0..self.waiting.len() {
            let id = AdapterId(place as u16);
            if adapters.loading().any(|serving| serving == id) || planted!(turn.config, 47) {
                is_unfinished |= self.order_some(turn, adapters, id);
                continue;
            }
            while let Some(name) = self.first_waiting(id) {
                if turn.is_spent() {
                    is_unfinished = true;
                    break;
                }
                self.fail_waiting(turn, adapters, name, LookupStop::TierError, Abort::Load);
            }
        }
        is_unfinished
    }

    /// What waits for a credit has nothing to wait for: its adapter serves no more, or a forced
    /// clear has taken its place.
    fn fail_waiting(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        name: SlotName,
        stop: LookupStop,
        abort: Abort,
    ) {
        let load = self.loads.find(name).expect("it stands in line while it exists");
        turn.spend(1 + load.waiters.len());
        self.leave_line(name);
        self.cut_waiters(turn, name, (stop, PrefetchFailure::NotFound), abort);
        self.release(turn, adapters, name);
    }

    /// Its key is free at once, its memory when its ticket has ended (I-2).
    fn give_up(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        name: SlotName,
        end: L2LoadEnd,
    ) {
        let load = self.loads.find_mut(name).expect("given up while it exists");
        let (from, entry) = (load.adapter, load.entry);
        let (adapter, object, took) = (load.adapter, load.object, turn.now - load.departed);
        let stage = core::mem::replace(&mut load.stage, Stage::GivenUp);
        self.by_object.remove(&object);
        if stage != Stage::Waiting {
            self.tell_end(turn, (adapter, object), end, took);
        }
        self.give_back(turn, object, Abort::Load);
        match stage {
            Stage::Waiting => {
                self.leave_line(name);
                self.release(turn, adapters, name);
            }
            Stage::Reading(ticket) => {
                turn.out.effects.push(Effect::Cancel { ticket });
                if planted!(turn.config, 40) {
                    self.release(turn, adapters, name);
                }
                if planted!(turn.config, 45) {
                    adapters.unhold(from, entry);
                }
            }
            Stage::Checking(_) | Stage::GivenUp => {}
        }
    }

    fn tell_end(
        &self,
        turn: &mut Turn,
        (adapter, object): (AdapterId, ObjectId),
        end: L2LoadEnd,
        took: crate::time::Duration,
    ) {
        let mark = turn.out.mark();
        turn.l1.push_key(object, turn.out);
        turn.out.tell(Fact::L2LoadEnded { adapter, keys: turn.out.keys_since(mark), end, took });
    }
}

fn place_of(turn: &Turn, object: ObjectId, bytes: u64) -> Place {
    let extent = &turn.l1.objects.find(object.0).expect("a pin keeps its object").extent;
    Place { arena: ArenaId(0), offset: extent.offset, bytes }
}
