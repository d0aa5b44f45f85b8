//! Who holds what, as far as it can be known from outside, and what settles when nothing is left to
//! do.
//!
//! The engine lets go a slice at a time. Until its last slice, whatever a session or a copy had may
//! still count: for being in the way, for its share of a table. Only that is uncertain, and only
//! for events that have used up their turn.

use super::sessions::Session;
use super::transfers::{Copy, Kind};
use super::{Model, ObjectNumber, State, Sure, Verdict, check};
use kvtide_core::time::Instant;
use std::collections::BTreeSet;

/// What is over, and may still be on its way out.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaving {
    pub copies: Vec<Copy>,
    /// Objects that sessions held.
    objects: BTreeSet<ObjectNumber>,
    /// Sessions that left leases behind, and how many cells.
    pub sessions: usize,
    pub cells: usize,
}

impl Model {
    /// `clear`: everything unheld is absent from now on; with `force`, everything.
    pub fn clear(&mut self, force: bool) {
        let (surely, maybe) = self.held();
        let numbers: Vec<ObjectNumber> = self.index.values().copied().collect();
        for number in numbers {
            let object = &mut self.objects[number.0 as usize];
            object.forced |= force;
            if object.state != State::Resident {
                continue;
            }
            if force {
                self.taken.insert(object.key.clone());
            }
            let left = match (force, surely.contains(&number), maybe.contains(&number)) {
                (true, _, _) => Sure::No,
                (false, true, _) => Sure::Yes,
                (false, false, true) => Sure::Maybe,
                (false, false, false) => Sure::No,
            };
            object.readable = object.readable.min(left);
            if object.readable != Sure::Yes {
                self.no_longer_present(number);
            }
        }
    }

    /// A copy is over. Where the turn was spent, its memory may still be in use for a while.
    pub(super) fn leave_copy(&mut self, number: u64) -> Copy {
        let copy = self.copies.remove(&number).expect("found by the caller");
        if self.turn.is_spent {
            self.holds.copies.push(copy.clone());
        }
        copy
    }

    /// A session is over. Where the turn was spent, its leases may still be there for a while.
    pub(super) fn leave_session(&mut self, session: &Session) {
        if !self.turn.is_spent {
            return;
        }
        let (mut surely, mut maybe) = (BTreeSet::new(), BTreeSet::new());
        session.add_held(self, &mut surely, &mut maybe);
        self.holds.objects.append(&mut surely);
        self.holds.objects.append(&mut maybe);
        self.holds.sessions += 1;
        self.holds.cells += session.cells_at_most();
    }

    /// Objects that surely cannot go now, and objects of which that is possible.
    pub(super) fn held(&self) -> (BTreeSet<ObjectNumber>, BTreeSet<ObjectNumber>) {
        let mut surely = BTreeSet::new();
        for copy in self.copies.values() {
            surely.extend(copy.objects.iter().map(|(_, number)| *number));
        }
        surely.extend(self.below.in_flight());
        let mut maybe = self.holds.objects.clone();
        maybe.extend(self.below.demoting());
        for copy in &self.holds.copies {
            maybe.extend(copy.objects.iter().map(|(_, number)| *number));
        }
        for session in self.sessions.values() {
            session.add_held(self, &mut surely, &mut maybe);
        }
        maybe.extend(surely.iter().copied());
        (surely, maybe)
    }

    /// What writers have in their hands: at least, and at most.
    pub(super) fn lent_bytes(&self) -> (u64, u64) {
        let least: u64 = self.copies.values().map(|copy| copy.lent_bytes).sum();
        let leaving: u64 = self.holds.copies.iter().map(|copy| copy.lent_bytes).sum();
        (least, least + leaving)
    }

    /// Copies that there are: at least, and at most.
    pub(super) fn copies_between(&self) -> (usize, usize) {
        (self.copies.len(), self.copies.len() + self.holds.copies.len())
    }

    /// Objects that readers pin, each as often as it is read: at least, and at most.
    pub(super) fn reads(&self) -> (usize, usize) {
        let of = |copy: &Copy| if copy.kind() == Kind::Retrieve { copy.objects.len() } else { 0 };
        let least: usize = self.copies.values().map(of).sum();
        (least, least + self.holds.copies.iter().map(of).sum::<usize>())
    }

    /// Sessions and what they have left behind, at most.
    pub(super) fn sessions_at_most(&self) -> usize {
        // One whose leases have run out may be there beside them.
        let of = |session: &Session| 1 + session.may_have_expired(self) as usize;
        self.sessions.values().map(of).sum::<usize>() + self.holds.sessions
    }

    /// Lease cells that lookups are charged for, at most.
    pub(super) fn cells_at_most(&self) -> usize {
        let cells: usize = self.sessions.values().map(Session::cells_at_most).sum();
        cells + self.holds.cells
    }

    /// Objects that have a place in the table, at most.
    pub(super) fn objects_at_most(&self) -> usize {
        let copies = self.copies.values().chain(&self.holds.copies);
        let gone: BTreeSet<ObjectNumber> = copies
            .flat_map(|copy| copy.objects.iter().map(|(_, number)| *number))
            .filter(|number| self.object(*number).state == State::Gone)
            .collect();
        let below = self.below.in_flight().chain(self.below.demoting());
        let below: BTreeSet<ObjectNumber> = below
            .filter(|number| self.object(*number).state == State::Gone)
            .filter(|number| !gone.contains(number))
            .collect();
        self.index.len() + gone.len() + below.len()
    }

    /// Everything that has a place in the arena or may still have one.
    pub(super) fn placed(&self) -> BTreeSet<ObjectNumber> {
        let copies = self.copies.values().chain(&self.holds.copies);
        let pinned = copies.flat_map(|copy| copy.objects.iter().map(|(_, number)| *number));
        let below = self.below.in_flight();
        pinned.chain(self.index.values().copied()).chain(below).collect()
    }

    /// All deadlines up to `settled` were acted upon. Where no work is left over either, whatever
    /// was uncertain has been decided; where something should have ended by now, it must have.
    pub fn settle(&mut self, settled: Option<Instant>) -> Verdict {
        self.settled = self.settled.max(settled.unwrap_or_default());
        if self.below.has_failed {
            self.excuse(None);
        }
        if self.turn.is_working {
            return Ok(());
        }
        self.holds = Leaving::default();
        self.decide_lookups();
        self.settle_pass()?;
        self.settle_below()?;
        let mut written = BTreeSet::new();
        for copy in self.copies.values().filter(|copy| copy.kind() == Kind::Store) {
            written.extend(copy.objects.iter().map(|(_, number)| *number));
        }
        for number in self.index.values() {
            let object = &mut self.objects[number.0 as usize];
            match object.state {
                State::Resident => {
                    check(object.readable != Sure::No, "I-49: cleared, swept and never told")?;
                    object.readable = Sure::Yes;
                }
                State::Staged if self.below.loading.contains_key(number) => {
                    check(!object.forced, "I-49: cleared by force, swept and never told")?;
                }
                State::Staged => {
                    let writing = written.contains(number);
                    check(writing, "I-11: a reservation outlived its writer")?;
                    let due = object.reserved_at + self.rules.write_ttl;
                    check(due > self.settled, "I-44: the write TTL passed and nothing happened")?;
                    check(!object.forced, "I-49: cleared by force, swept and never told")?;
                }
                State::Gone => unreachable!("the index holds what is there"),
            }
        }
        self.settle_given_up()?;
        self.settle_instances()?;
        self.forget_past();
        if self.sessions.is_empty() {
            self.taken.clear();
        }
        Ok(())
    }
}
