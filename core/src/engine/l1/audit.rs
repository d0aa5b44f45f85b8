//! What must hold of host memory: objects, their bytes, the space they lie in, their order
//! (I-1, I-2, I-4, I-5, I-7, I-15, I-17, I-35, I-38, I-48, I-52).

use super::objects::{Object, State};
use super::{Bytes, Key, L1};
use crate::engine::audit::{Claims, View, Violation, check};
use crate::names::{ObjectId, ScopeId, TenantId};
use crate::policy::Policy;
use crate::slots::SlotName;

/// Sums over all objects.
#[derive(Default)]
struct Counted {
    bytes: Bytes,
    staged: u32,
    condemned: u32,
    leased: u32,
    /// Resident and not held.
    eligible: usize,
    readable: usize,
}

impl L1 {
    /// `claims` are what all other rooms say of objects and names.
    pub(crate) fn audit(&self, view: &View, claims: &mut Claims) -> Result<(), Violation> {
        let mut counted = Counted::default();
        for (name, object) in self.objects.iter() {
            let claim = claims.objects[name.index as usize];
            audit_holders(object, claim)?;
            self.audit_index(name, object)?;
            let is_dead = self.epochs.is_dead(object) && !self.will_bury(name, object, view);
            check(!is_dead, "I-49", "an object is cleared, and no sweep will come by")?;
            claims.scopes[object.scope.0 as usize] += 1;
            counted.add(object);
        }
        let indexed = self.objects.len() - counted.condemned as usize;
        check(indexed == self.by_key.len(), "I-4", "the index names objects that are gone")?;
        let placed = self.by_offset.len() == self.objects.len();
        check(placed, "I-17", "offsets are stale")?;
        self.audit_bytes(&counted)?;
        self.audit_emptying(view)?;
        self.audit_policy(&counted)?;
        self.audit_names(claims)?;
        let totals = self.totals;
        let ended = totals.committed + totals.aborted + self.staged as u64;
        check(totals.reserved == ended, "I-52", "reserved != committed + aborted + staged")?;
        let left = totals.committed - totals.evicted;
        check(left == counted.readable as u64, "I-52", "resident != committed - evicted")
    }

    /// An object is found under its key and at its place, and fits the place.
    fn audit_index(&self, name: SlotName, object: &Object) -> Result<(), Violation> {
        if object.state != State::Condemned {
            let key = Key { hash: object.hash, scope: object.scope };
            let named = self.index_of(&key) == Some(name.index);
            check(named, "I-4", "a live object is not the one under its key")?;
        }
        let scope = self.scopes.key(object.scope);
        let fits = scope.layout.bytes() == Some(object.extent.bytes);
        check(fits, "I-5", "a slot does not have its layout's size")?;
        let aligned = self.space.slot_bytes(&object.extent);
        check(
            aligned == object.aligned,
            "I-15",
            "an object counts for another size than its slot",
        )?;
        let placed = self.object_at(object.extent.offset) == Some(ObjectId(name));
        check(placed, "I-17", "two objects at one offset")
    }

    fn audit_bytes(&self, counted: &Counted) -> Result<(), Violation> {
        let bytes = counted.bytes;
        check(bytes == self.bytes, "I-15", "bytes by state do not match the objects")?;
        let counts = (self.staged, self.condemned, self.leased);
        let found = (counted.staged, counted.condemned, counted.leased);
        check(counts == found, "I-15", "counts by state do not match")?;
        let used = bytes.staged + bytes.resident + bytes.condemned;
        check(used == self.used_bytes(), "I-15", "used bytes are not those of the objects")?;
        let free = self.space.free_bytes();
        check(used + free == self.total_bytes(), "I-15", "used + free != published")?;
        self.space.audit().map_err(|found| Violation { invariant: "I-17", found })
    }

    /// A window is emptied by a job, and nothing else withholds its slots.
    fn audit_emptying(&self, view: &View) -> Result<(), Violation> {
        let window = self.emptying.as_ref().map(|emptying| emptying.window);
        let together = window.is_some() == view.jobs.empties_window();
        check(together, "I-37", "a window is being emptied without a job, or the reverse")?;
        let kept = self.space.emptying() == window;
        check(kept, "I-37", "a window is kept for what is being emptied elsewhere, or not at all")?;
        let found = "a run gives no slot out, and nobody empties it";
        check(self.space.drains_only(window), "I-17", found)
    }

    /// Exactly what can go is offered.
    fn audit_policy(&self, counted: &Counted) -> Result<(), Violation> {
        self.policy.audit().map_err(|found| Violation { invariant: "I-38", found })?;
        if matches!(self.policy, Policy::Noop) {
            return Ok(());
        }
        let live = self.objects.len() - self.condemned as usize;
        check(self.policy.len() == live, "I-38", "the policy has ghosts or orphans")?;
        let mut offered = 0;
        let mut candidate = self.policy.coldest();
        while let Some(index) = candidate {
            let found = self.objects.at(index).map(|(_, object)| object);
            let can_go =
                found.is_some_and(|object| object.state == State::Resident && !object.held);
            check(can_go, "I-35", "the policy offers what cannot go")?;
            offered += 1;
            candidate = self.policy.next_after(index);
        }
        check(offered == counted.eligible, "I-37", "the policy does not offer what can go")
    }

    /// Names are used by exactly the objects and sessions that speak of them (I-48).
    fn audit_names(&self, claims: &mut Claims) -> Result<(), Violation> {
        for (scope, uses) in claims.scopes.iter().enumerate() {
            let scope = ScopeId(scope as u32);
            let right = self.scopes.uses(scope) == *uses;
            check(right, "I-48", "a scope's users are not counted right")?;
            let is_named = self.scopes.is_named(scope);
            check(is_named || *uses == 0, "I-48", "a scope is used under another's name")?;
            claims.tenants[self.scopes.tenant_of(scope).0 as usize] += is_named as u32;
        }
        for (tenant, uses) in claims.tenants.iter().enumerate() {
            let right = self.scopes.tenant_uses(TenantId(tenant as u32)) == *uses;
            check(right, "I-48", "a tenant's users are not counted right")?;
        }
        Ok(())
    }

    /// A dead object is taken out of the table by the sweep that follows its clear.
    fn will_bury(&self, name: SlotName, object: &Object, view: &View) -> bool {
        object.state == State::Condemned
            || (view.jobs.sweeps() && self.epochs.will_sweep(name.index))
    }

    /// Whether a forced clear has ever come.
    pub(crate) fn was_ever_forced(&self) -> bool {
        self.epochs.was_ever_forced()
    }
}

impl Counted {
    fn add(&mut self, object: &Object) {
        match object.state {
            State::Staged => {
                self.bytes.staged += object.aligned;
                self.staged += 1;
            }
            State::Resident => {
                self.bytes.resident += object.aligned;
                self.readable += 1;
                self.eligible += !object.held as usize;
            }
            State::Condemned => {
                self.bytes.condemned += object.aligned;
                self.condemned += 1;
            }
        }
        if object.leases > 0 && object.state == State::Resident {
            self.bytes.leased += object.aligned;
            self.leased += 1;
        }
    }
}

/// Leases and pins are what lease sets and copies say.
fn audit_holders(object: &Object, (leases, pins): (u32, u32)) -> Result<(), Violation> {
    check(object.pins == pins, "I-2", "pins do not match the copies")?;
    match object.state {
        State::Staged => {
            check(pins == 1, "I-7", "a staged object has one writer")?;
            check(leases == 0, "I-7", "an unwritten object is leased")?;
        }
        State::Resident => {
            check(object.leases == leases, "I-1", "leases do not match the sets")?;
        }
        State::Condemned => check(pins > 0, "I-2", "condemned memory that nobody pins")?,
    }
    let held = pins > 0 || (leases > 0 && object.state == State::Resident);
    check(object.held == held, "I-35", "held is not what leases and pins say")
}
