//! The invariants of spec/storage §8, by number. Simulation, properties and fuzzing call this
//! after every event; a bug found by hand first becomes a line here.

use crate::engine::Engine;
use crate::engine::copies::{Kind, Owner};
use crate::engine::l1::objects::State;
use crate::names::ObjectId;
use crate::policy::Policy;
use crate::slots::SlotName;
use crate::{Map, map_with_capacity};

/// The number of the invariant and what was found instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub found: &'static str,
}

/// What other rooms say about one object.
#[derive(Clone, Copy, Debug, Default)]
struct Claims {
    leases: u32,
    pins: u32,
}

impl Engine {
    /// Checks everything. Costs a walk over all tables; not for production.
    pub fn audit(&self) -> Result<(), Violation> {
        let claims = self.audit_claims()?;
        self.audit_objects(&claims)?;
        self.audit_bytes()?;
        self.audit_policy()?;
        self.audit_tickets()?;
        self.audit_totals()
    }

    /// Counts what lease sets and copies claim of every object.
    fn audit_claims(&self) -> Result<Map<ObjectId, Claims>, Violation> {
        let mut claims: Map<ObjectId, Claims> = map_with_capacity(self.l1.objects.len(), 0);
        let mut cells = 0;
        let sessions = self.sessions.sessions.iter().map(|(_, session)| &session.set);
        let orphans = self.sessions.orphans.iter().map(|(_, orphan)| &orphan.set);
        let mut units = 0;
        for set in sessions.chain(orphans) {
            cells += set.len();
            units += set.units();
            let left: u64 = set.cells().iter().map(|cell| cell.left as u64).sum();
            check(left == set.units(), "I-3", "a set's units are not what its cells have left")?;
            for cell in set.cells().iter().filter(|cell| cell.left > 0) {
                claims.entry(cell.object).or_default().leases += 1;
            }
        }
        let taken: usize = self.sessions.orphans.iter().map(|(_, orphan)| orphan.set.len()).sum();
        let charged: usize = self.sessions.sessions.iter().map(|(_, s)| s.charged).sum();
        let counted = self.sessions.cells;
        check(taken + charged == counted, "I-11", "lease cells are not counted right")?;
        check(cells <= counted, "I-11", "more cells are leased than are charged")?;
        let bound = self.config.limits.lease_cells;
        check(counted <= bound, "I-11", "lease cells are over their bound")?;
        check(units == self.l1.lease_units(), "I-52", "lease units taken - ended != live")?;
        let readers = self.copies.copies.iter();
        let readers = readers.filter(|(_, copy)| copy.key.kind == Kind::Retrieve);
        let pinned: usize = readers.map(|(_, copy)| copy.objects.len()).sum();
        check(pinned <= self.copies.reads, "I-11", "readers pin more than is counted")?;
        self.audit_lent()?;
        self.audit_scopes()?;
        for (_, copy) in self.copies.copies.iter() {
            for object in &copy.objects {
                let exists = self.l1.objects.find(object.0).is_some();
                check(exists, "I-2", "a pin names memory that was given back")?;
                claims.entry(*object).or_default().pins += 1;
            }
        }
        Ok(claims)
    }

    /// Writers hold no more than their share, unless one single object is larger than that.
    fn audit_lent(&self) -> Result<(), Violation> {
        let copies = || self.copies.copies.iter().map(|(_, copy)| copy);
        let bytes: u64 = copies().map(|copy| copy.lent_bytes()).sum();
        check(bytes == self.copies.lent_bytes, "I-2", "lent bytes do not match the copies")?;
        let lent = copies().filter(|copy| copy.lent_bytes() > 0);
        let objects: usize = lent.map(|copy| copy.objects.len()).sum();
        let bounded = bytes <= self.config.lent_bytes_max() || objects <= 1;
        check(bounded, "I-2", "writers hold more than their share")
    }

    /// Scopes are used by exactly the objects in them and the sessions that speak of them.
    fn audit_scopes(&self) -> Result<(), Violation> {
        let mut uses = alloc::vec![0u32; self.l1.scopes.scopes_len()];
        for (_, object) in self.l1.objects.iter() {
            uses[object.scope.0 as usize] += 1;
        }
        for (_, session) in self.sessions.sessions.iter() {
            session.scopes.iter().for_each(|scope| uses[scope.0 as usize] += 1);
        }
        let right = uses
            .iter()
            .enumerate()
            .all(|(scope, uses)| self.l1.scopes.uses(crate::names::ScopeId(scope as u32)) == *uses);
        check(right, "I-48", "a scope's users are not counted right")?;
        let untaken = self.sessions.sessions.iter().filter(|(_, session)| !session.taken).count();
        check(untaken as u64 == self.sessions.untaken, "I-14", "untaken results are miscounted")
    }

    fn audit_objects(&self, claims: &Map<ObjectId, Claims>) -> Result<(), Violation> {
        let mut indexed = 0;
        for (name, object) in self.l1.objects.iter() {
            let claim = claims.get(&ObjectId(name)).copied().unwrap_or_default();
            check(object.pins == claim.pins, "I-2", "pins do not match the copies")?;
            match object.state {
                State::Staged => {
                    check(object.pins == 1, "I-7", "a staged object has one writer")?;
                    check(claim.leases == 0, "I-7", "an unwritten object is leased")?;
                }
                State::Resident => {
                    check(object.leases == claim.leases, "I-1", "leases do not match the sets")?;
                }
                State::Condemned => {
                    check(object.pins > 0, "I-2", "condemned memory that nobody pins")?;
                }
            }
            let held = object.pins > 0 || (object.leases > 0 && object.state == State::Resident);
            check(object.held == held, "I-35", "held is not what leases and pins say")?;
            let key = crate::engine::l1::Key { hash: object.hash, scope: object.scope };
            if object.state != State::Condemned {
                indexed += 1;
                let named = self.l1.index_of(&key) == Some(name.index);
                check(named, "I-4", "a live object is not the one under its key")?;
            }
            let scope = self.l1.scopes.key(object.scope);
            let fits = scope.layout.bytes() == Some(object.extent.bytes);
            check(fits, "I-5", "a slot does not have its layout's size")?;
            let placed = self.l1.object_at(object.extent.offset) == Some(ObjectId(name));
            check(placed, "I-17", "two objects at one offset")?;
        }
        check(indexed == self.l1.by_key.len(), "I-4", "the index names objects that are gone")?;
        check(self.l1.by_offset.len() == self.l1.objects.len(), "I-17", "offsets are stale")
    }

    fn audit_bytes(&self) -> Result<(), Violation> {
        let mut bytes = crate::engine::l1::Bytes::default();
        let (mut staged, mut condemned, mut leased) = (0, 0, 0);
        for (_, object) in self.l1.objects.iter() {
            match object.state {
                State::Staged => {
                    bytes.staged += object.aligned;
                    staged += 1;
                }
                State::Resident => bytes.resident += object.aligned,
                State::Condemned => {
                    bytes.condemned += object.aligned;
                    condemned += 1;
                }
            }
            if object.leases > 0 && object.state == State::Resident {
                bytes.leased += object.aligned;
                leased += 1;
            }
        }
        check(bytes == self.l1.bytes, "I-15", "bytes by state do not match the objects")?;
        let counts = (self.l1.staged, self.l1.condemned, self.l1.leased);
        check(counts == (staged, condemned, leased), "I-15", "counts by state do not match")?;
        let used = bytes.staged + bytes.resident + bytes.condemned;
        check(used == self.l1.used_bytes(), "I-15", "used bytes are not those of the objects")?;
        let free = self.l1.space.free_bytes();
        check(used + free == self.l1.total_bytes(), "I-15", "used + free != published")?;
        self.l1.space.audit().map_err(|found| Violation { invariant: "I-17", found })
    }

    fn audit_policy(&self) -> Result<(), Violation> {
        self.l1.policy.audit().map_err(|found| Violation { invariant: "I-38", found })?;
        if !matches!(self.l1.policy, Policy::Noop) {
            let live = self.l1.objects.len() - self.l1.condemned as usize;
            check(self.l1.policy.len() == live, "I-38", "the policy has ghosts or orphans")?;
        }
        let mut candidate = self.l1.policy.coldest();
        while let Some(index) = candidate {
            let eligible = self
                .l1
                .objects
                .at(index)
                .is_some_and(|(_, object)| object.state == State::Resident && !object.held);
            check(eligible, "I-35", "the policy offers what cannot go")?;
            candidate = self.l1.policy.next_after(index);
        }
        Ok(())
    }

    fn audit_tickets(&self) -> Result<(), Violation> {
        for (name, owner) in self.copies.tickets.iter() {
            let ticket = Some(crate::names::Ticket(name));
            let named = |copy: SlotName, lent: bool| {
                let copy = self.copies.copies.find(copy);
                copy.is_some_and(|copy| if lent { copy.lent } else { copy.stream } == ticket)
            };
            let owned = match *owner {
                Owner::ClientCopy(copy) => named(copy, true),
                Owner::Send(copy) | Owner::Receive(copy) => named(copy, false),
            };
            check(owned, "I-6", "a ticket without its copy")?;
        }
        let held = |copy: &crate::engine::copies::Copy| {
            copy.lent.is_some() as usize + copy.stream.is_some() as usize
        };
        let tickets: usize = self.copies.copies.iter().map(|(_, copy)| held(copy)).sum();
        check(tickets == self.copies.tickets.len(), "I-6", "a copy whose ticket has ended")?;
        for (_, copy) in self.copies.copies.iter() {
            let uncommitted = copy.key.kind == Kind::Store;
            for object in &copy.objects {
                let Some(object) = self.l1.objects.find(object.0) else { continue };
                let published = object.state == State::Resident;
                check(!(uncommitted && published), "I-7", "an uncommitted slot is readable")?;
            }
        }
        check(self.copies.counts_ended(), "I-6", "ended owners of copies are miscounted")?;
        let instances = self.layouts.instances() as usize;
        check(instances == self.clients.len(), "I-45", "layouts do not match the instances")
    }

    fn audit_totals(&self) -> Result<(), Violation> {
        let totals = self.l1.totals();
        let ended = totals.committed + totals.aborted + self.l1.staged as u64;
        check(totals.reserved == ended, "I-52", "reserved != committed + aborted + staged")
    }

    /// Whether nothing is in flight: what P4 demands when all clients are gone.
    pub fn is_quiet(&self) -> bool {
        self.copies.copies.is_empty()
            && self.copies.tickets.is_empty()
            && self.sessions.waits_len() == 0
            && self.sessions.orphans.is_empty()
            && self.jobs.is_empty()
            && self.l1.lease_units() == 0
            && self.copies.reads == 0
            && (self.sessions.cells == 0 || !self.sessions.is_empty())
            && self.l1.staged == 0
            && self.l1.condemned == 0
    }
}

fn check(holds: bool, invariant: &'static str, found: &'static str) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { invariant, found }) }
}
