//! Room for a new object: from what is free, else by evicting on demand (design §7, F16, F20).
//!
//! Nothing is evicted unless it makes the reservation succeed. A full size class gives up one of
//! its own objects first: the first of its size near the head of the policy's order, else one of
//! the run whose newest touch is oldest. Only where no run of it has one that can go is the coldest
//! stretch of superblocks emptied, which frees the deficit rounded up to whole runs.
//!
//! Looking for room is work like any other. A request that has used up its turn gets what has been
//! found by then. A stretch that holds more than the turn can evict is drained: a job empties it,
//! and what is free of it is kept for the size that asked until a second or two later.

use super::objects::{Object, State};
use super::{Found, Key, L1};
use crate::effect::Outbox;
use crate::engine::space::{Extent, NoSpace, RunId, Window};
use crate::engine::turn::Work;
use crate::fact::{NoRoom, Removal};
use crate::names::ObjectId;
use crate::policy::{Policy, PolicyKey};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// What came of asking for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// Reserved and pinned for its writer.
    New(ObjectId),
    /// Somebody has stored it, or is about to.
    Present,
    NoRoom(NoRoom),
}

/// What one request has learnt about room while it asks for slot after slot, all of one size.
#[derive(Debug, Default)]
pub struct Search {
    /// Chunks of the request that were there already. They are pinned as soon as room has to be
    /// made: a request never gives up its own beginning for its end.
    present: SmallVec<[ObjectId; 16]>,
    are_pinned: bool,
    /// Nothing of this size stands near the head of the order.
    is_walk_over: bool,
    /// The run that gives, and the slot from which on it may.
    run: Option<(RunId, u32)>,
    /// A window has to be emptied over several turns: there is a job to push.
    pub must_empty: bool,
}

/// A window that a job empties, and how far it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emptying {
    pub(super) window: Window,
    at: Option<(RunId, u32)>,
}

impl L1 {
    /// Reserves a slot under `key` for one writer, with its pin.
    pub fn stage(
        &mut self,
        key: Key,
        bytes: u64,
        search: &mut Search,
        work: &mut Work,
        out: &mut Outbox,
    ) -> Staged {
        match self.find(&key) {
            Found::Absent => {}
            Found::Staged => return Staged::Present,
            Found::Resident(id) => {
                self.keep(id, search);
                return Staged::Present;
            }
        }
        if let Some(index) = self.index_of(&key) {
            let (name, _) = self.objects.at(index).expect("the index names live objects");
            self.bury(ObjectId(name), out);
        }
        let extent = match self.make_room(bytes, search, work, out) {
            Ok(extent) => extent,
            Err(why) => return Staged::NoRoom(why),
        };
        // Whatever went for the extent's sake has left its place in the table, too.
        if self.objects.is_full() {
            self.pin_present(search);
            let is_spent = work.is_spent();
            if is_spent || !self.evict_coldest(Removal::Table, out) {
                self.space.release(extent);
                let why = if is_spent { NoRoom::Busy } else { NoRoom::ObjectTable };
                return Staged::NoRoom(why);
            }
            work.spend(1);
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
            leaves: None,
            epoch: self.epochs.now,
            seal: None,
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

    /// Remembers a chunk of the request that is there already.
    fn keep(&mut self, id: ObjectId, search: &mut Search) {
        search.present.push(id);
        if search.are_pinned {
            self.pin(id);
        }
    }

    fn pin_present(&mut self, search: &mut Search) {
        if !search.are_pinned {
            search.are_pinned = true;
            search.present.iter().for_each(|id| self.pin(*id));
        }
    }

    /// The request has asked for its last slot.
    pub fn end_search(&mut self, search: &mut Search) {
        if core::mem::take(&mut search.are_pinned) {
            search.present.iter().for_each(|id| self.unpin(*id));
        }
    }

    fn make_room(
        &mut self,
        bytes: u64,
        search: &mut Search,
        work: &mut Work,
        out: &mut Outbox,
    ) -> Result<Extent, NoRoom> {
        loop {
            let reserved = self.space.reserve(bytes);
            work.spend_steps(self.space.take_steps());
            match reserved {
                Ok(extent) => return Ok(extent),
                Err(NoSpace::ClassTable) => return Err(NoRoom::SizeClasses),
                Err(NoSpace::ZeroSize | NoSpace::TooLarge) => return Err(NoRoom::Held),
                Err(NoSpace::ClassFull) => {}
            }
            if work.is_spent() {
                return Err(NoRoom::Busy);
            }
            self.pin_present(search);
            match self.evict_own_class(bytes, search, work, out) {
                Gave::One => continue,
                Gave::NotYet => return Err(NoRoom::Busy),
                Gave::Nothing => {}
            }
            match self.empty_window(bytes, work, out) {
                Emptied::Now => {}
                Emptied::Later { is_new } => {
                    search.must_empty |= is_new;
                    return Err(NoRoom::Busy);
                }
                Emptied::Not => {
                    let growing = self.space.published_bytes() < self.configured;
                    return Err(if growing { NoRoom::Growing } else { NoRoom::Held });
                }
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
    fn evict_own_class(
        &mut self,
        bytes: u64,
        search: &mut Search,
        work: &mut Work,
        out: &mut Outbox,
    ) -> Gave {
        let Some(class) = self.space.class_of(bytes) else { return Gave::Nothing };
        if !search.is_walk_over {
            let mut candidate = self.policy.coldest();
            for visits in 1..=OWN_CLASS_VISITS {
                let Some(index) = candidate else {
                    work.spend_steps(visits);
                    return Gave::Nothing;
                };
                let (name, object) =
                    self.objects.at(index).expect("the policy tracks live objects");
                assert!(!object.held, "the policy offers only what can go (I-35)");
                // What is being drained gives its slots to nobody.
                let gives = self.emptying.is_none() || !self.space.is_draining(&object.extent);
                if object.extent.class == class && gives {
                    self.evict(ObjectId(name), Removal::Pressure, out);
                    work.spend(1 + visits / STEPS_OF_A_FEW);
                    return Gave::One;
                }
                candidate = self.policy.next_after(index);
            }
            // The head of the order stays what it is while this request lasts.
            work.spend_steps(OWN_CLASS_VISITS);
            search.is_walk_over = true;
        }
        self.evict_in_coldest_run(bytes, search, work, out)
    }

    /// Evicts from the run of this size whose newest touch is oldest. Held objects in front are
    /// looked past; where they are more than the turn can visit, the next request goes on behind
    /// them.
    fn evict_in_coldest_run(
        &mut self,
        bytes: u64,
        search: &mut Search,
        work: &mut Work,
        out: &mut Outbox,
    ) -> Gave {
        let mut visits = 0;
        loop {
            let (run, from) = match search.run {
                Some(known) => known,
                None => {
                    let coldest = self.space.coldest_run(bytes);
                    work.spend_steps(self.space.take_steps());
                    let Some(run) = coldest else { return Gave::Nothing };
                    let walked = self.walked.take().filter(|(walked, _)| *walked == run);
                    walked.unwrap_or((run, 0))
                }
            };
            let taken = self.space.next_taken(run, from);
            work.spend_steps(self.space.take_steps());
            let Some((slot, offset)) = taken else {
                // All of it was looked at. The run that is coldest now gives next: its first slot
                // that can go lies ahead.
                search.run = None;
                continue;
            };
            search.run = Some((run, slot + 1));
            visits += 1;
            let id = self.object_at(offset).expect("every extent has its object");
            if self.objects.find(id.0).is_some_and(|object| !object.held) {
                self.evict(id, Removal::Pressure, out);
                work.spend(visits / STEPS_OF_A_FEW + 1);
                return Gave::One;
            }
            if visits % STEPS_OF_A_FEW == 0 && visits / STEPS_OF_A_FEW >= work.left() {
                self.walked = search.run;
                work.spend(visits / STEPS_OF_A_FEW);
                return Gave::NotYet;
            }
        }
    }

    /// Empties the coldest run of superblocks that would hold an object of this size, or begins to.
    fn empty_window(&mut self, bytes: u64, work: &mut Work, out: &mut Outbox) -> Emptied {
        if matches!(self.policy, Policy::Noop) {
            return Emptied::Not;
        }
        let coldest = self.space.coldest_window(bytes);
        work.spend_steps(self.space.take_steps());
        let is_new = !self.space.is_keeping();
        let Some(window) = coldest else {
            // What is kept is kept for moments only.
            return if is_new { Emptied::Not } else { Emptied::Later { is_new } };
        };
        work.spend_steps(2 * window.blocks as usize);
        let words = self.space.words_in(window);
        if self.space.used_in(window) + words.div_ceil(STEPS_OF_A_FEW) > work.left() {
            if is_new {
                self.space.drain(window, bytes);
                self.emptying = Some(Emptying { window, at: None });
            }
            return Emptied::Later { is_new };
        }
        let victims: Vec<u64> = self.space.occupied_in(window).collect();
        work.spend(victims.len());
        work.spend_steps(words);
        for offset in victims {
            let id = self.object_at(offset).expect("every extent has its object");
            self.evict(id, Removal::Pressure, out);
        }
        Emptied::Now
    }

    /// Goes on with a window that is being emptied. True when that has ended: all of it is free,
    /// or something in it is held again and the rest stays.
    pub fn empty_some(&mut self, work: &mut Work, out: &mut Outbox) -> bool {
        let Some(Emptying { window, mut at }) = self.emptying else { return true };
        let mut has_begun = false;
        while let Some((run, can_go)) = self.space.next_draining(window) {
            work.spend_steps(self.space.take_steps());
            if !can_go {
                self.space.undrain(window);
                self.emptying = None;
                return true;
            }
            let mut slot = at.filter(|(last, _)| *last == run).map_or(0, |(_, slot)| slot);
            while let Some((next, offset)) = self.space.next_taken(run, slot) {
                work.spend_steps(self.space.take_steps());
                // One goes in every turn, however little it may do.
                if has_begun && work.is_spent() {
                    self.emptying = Some(Emptying { window, at: Some((run, slot)) });
                    return false;
                }
                work.spend(1);
                has_begun = true;
                slot = next + 1;
                let id = self.object_at(offset).expect("every extent has its object");
                self.evict(id, Removal::Pressure, out);
            }
            at = None;
        }
        self.space.is_emptied();
        self.emptying = None;
        true
    }

    /// A tick of the clock: a window that was emptied for somebody is not kept for ever.
    pub fn age_kept(&mut self) {
        self.space.age_kept();
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

/// What a full size class gave up.
enum Gave {
    One,
    /// There is something, and the turn did not reach it.
    NotYet,
    Nothing,
}

/// What became of emptying a window.
enum Emptied {
    /// Nothing can go.
    Not,
    Now,
    /// A job does it, a new one or the one that is at work already.
    Later {
        is_new: bool,
    },
}

/// Objects of other sizes that a full class looks past before it asks for its coldest run.
const OWN_CLASS_VISITS: usize = 64;
/// Objects looked at for one cell's worth of work: most of a cell's cost is in changing it.
const STEPS_OF_A_FEW: usize = 8;
