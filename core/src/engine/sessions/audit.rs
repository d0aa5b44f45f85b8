//! What must hold of sessions, their leases and their waits (I-3, I-10 … I-14, I-26).

use super::{Phase, Session, Sessions};
use crate::engine::alarms::Alarm;
use crate::engine::audit::{Claims, View, Violation, check, of_session};
use crate::engine::l1::leases::LeaseSet;
use crate::engine::l1::objects::State;
use crate::slots::SlotName;

impl Sessions {
    /// Adds what sessions claim of objects, names and alarms.
    pub(crate) fn audit(&self, view: &View, claims: &mut Claims) -> Result<(), Violation> {
        let (mut cells, mut charged, mut waits, mut untaken, mut holding) = (0, 0, 0, 0, 0);
        for (name, session) in self.sessions.iter() {
            let named = self.index.get(&session.request) == Some(&name);
            check(named, "I-12", "a session is not the one under its request id")?;
            cells += session.set.len();
            charged += session.charged;
            waits += session.waits.len();
            untaken += !session.taken as u64;
            let may_take = session.is_undecided();
            holding += (may_take || !session.set.is_empty()) as usize;
            claim_set(&session.set, view, claims)?;
            session.audit_cells(view)?;
            session.audit_phase(name, view)?;
            session.audit_timers(name, view, claims)?;
            for wait in &session.waits {
                let wait = self.waits.find(*wait);
                let ours = wait.is_some_and(|wait| wait.session == name);
                check(ours, "I-10", "a session lists a wait that is not its own")?;
            }
            session.scopes.iter().for_each(|scope| claims.scopes[scope.0 as usize] += 1);
            session.tenant.iter().for_each(|tenant| claims.tenants[tenant.0 as usize] += 1);
        }
        check(self.index.len() == self.sessions.len(), "I-12", "a request id names no session")?;
        check(waits == self.waits.len(), "I-10", "a parked wait is in no session's list")?;
        for (name, wait) in self.waits.iter() {
            let will_end = view.alarms.is_armed(wait.timer, Alarm::WaitTimeout, name);
            check(will_end, "I-10", "a parked wait has no deadline")?;
            let is_counted = self.parked.contains_key(&wait.reply.connection);
            check(is_counted, "I-14", "a parked wait is of no connection")?;
            claims.timers += 1;
        }
        let parked: usize = self.parked.values().map(|parked| parked.waits as usize).sum();
        check(parked == self.waits.len(), "I-14", "waits of connections are miscounted")?;
        let is_empty = self.parked.values().any(|parked| parked.waits == 0);
        check(!is_empty, "I-14", "a connection without parked waits is kept")?;
        check(untaken == self.untaken, "I-14", "untaken results are miscounted")?;
        for (name, orphan) in self.orphans.iter() {
            charged += orphan.set.len();
            cells += orphan.set.len();
            claim_set(&orphan.set, view, claims)?;
            check(
                view.jobs.orphan(name),
                "I-11",
                "leases without a session, and no job ends them",
            )?;
            let (ended, _) = orphan.set.cells().split_at(orphan.next);
            let are_over = ended.iter().all(|cell| cell.left == 0);
            check(are_over, "I-11", "a cell was passed over when its session ended")?;
        }
        let bound = 2 * holding + self.orphans.len() <= self.orphans.limit();
        check(bound, "I-11", "sessions would leave more behind than there is room for")?;
        check(charged == self.cells, "I-11", "lease cells are not counted right")?;
        check(cells <= self.cells, "I-11", "more cells are leased than are charged")?;
        let bound = view.config.limits.lease_cells;
        check(self.cells <= bound, "I-11", "lease cells are over their bound")
    }
}

impl Session {
    /// Cells promise what the lookup asked for, to no more readers than it declared.
    fn audit_cells(&self, view: &View) -> Result<(), Violation> {
        let rows = self.set.rows() as usize;
        if self.set.is_empty() {
            return Ok(());
        }
        check(rows == self.scopes.len(), "I-28", "a lease set has other rows than its lookup")?;
        let mut hash = None;
        for (at, cell) in self.set.cells().iter().enumerate() {
            check(cell.left <= self.readers, "I-3", "more readers are left than were declared")?;
            let row = at % rows;
            hash = if row == 0 { None } else { hash };
            let Some(object) = view.l1.objects.find(cell.object.0) else { continue };
            let scope = object.scope == self.scopes[row];
            check(scope, "I-48", "a cell promises an object of another scope")?;
            let same = *hash.get_or_insert(object.hash) == object.hash;
            check(same, "I-28", "one chunk has different hashes at different ranks")?;
        }
        Ok(())
    }

    /// What is unfinished has its job; what is decided holds exactly its hit (I-26).
    fn audit_phase(&self, name: SlotName, view: &View) -> Result<(), Violation> {
        let looks_on = view.jobs.session(name, of_session::LOOKUP);
        let frees_on = view.jobs.session(name, of_session::FREE);
        check(self.frees.is_empty() || frees_on, "I-13", "a release is under way without a job")?;
        let left = match self.phase {
            Phase::Looking { .. } => {
                check(!self.taken, "I-14", "a result was taken before it was there")?;
                let within = self.set.len() <= self.charged;
                check(within, "I-11", "a lookup takes more cells than it is charged for")?;
                return check(looks_on, "I-10", "a lookup is under way without a job");
            }
            Phase::Seeking => {
                check(!self.taken, "I-14", "a result was taken before it was there")?;
                return check(view.seeks.is_seeking(name), "I-10", "a lookup waits for no seek");
            }
            Phase::Touching { left } | Phase::Lingering { left } => left,
            Phase::Found => 0,
        };
        check(left == 0 || looks_on, "I-49", "leases are to be told of, and no job does it")?;
        check(left <= self.set.len(), "I-49", "more is to be told of than was leased")?;
        check(self.waits.is_empty(), "I-10", "a wait is parked for a result that is there")?;
        check(self.charged == self.set.len(), "I-11", "a lookup is charged for what it has not")?;
        let hit = (self.hit * self.set.rows()) as usize;
        check(hit == self.set.len(), "I-26", "a hit and its leases do not go together")?;
        check(self.hit <= self.requested, "I-28", "more was hit than was asked for")
    }

    /// Whatever a session holds runs out some time, by an alarm of its own (I-11).
    fn audit_timers(
        &self,
        name: SlotName,
        view: &View,
        claims: &mut Claims,
    ) -> Result<(), Violation> {
        let until = self.last_used + view.config.session_ttl;
        let idle = view.alarms.will_fire(self.idle_timer, Alarm::SessionExpiry, name, until);
        check(idle, "I-11", "an idle session would never be forgotten")?;
        claims.timers += 1;
        let lingers = matches!(self.phase, Phase::Lingering { .. });
        let is_looking = self.is_undecided();
        let lease = self.lease_timer;
        if lease.is_some() {
            claims.timers += 1;
            let until = self.leases_until;
            let ends = view.alarms.will_fire(lease, Alarm::LeaseExpiry, name, until);
            return check(ends, "I-11", "leases outlive their TTL");
        }
        let holds = self.set.units() > 0 && !is_looking;
        check(!holds && !lingers, "I-11", "leases have no deadline")
    }
}

/// Adds the leases of one set to those of its objects.
pub(crate) fn claim_set(set: &LeaseSet, view: &View, claims: &mut Claims) -> Result<(), Violation> {
    let mut left = 0;
    for cell in set.cells().iter().filter(|cell| cell.left > 0) {
        left += cell.left as u64;
        match view.l1.objects.find(cell.object.0) {
            Some(object) if object.state == State::Resident => claims.of(cell.object).0 += 1,
            // Only a forced clear takes what is leased; then the set outlives the object.
            found => {
                let forced = view.l1.was_ever_forced();
                check(forced, "I-1", "a leased object is gone, and nobody used force")?;
                let staged = found.is_some_and(|object| object.state == State::Staged);
                check(!staged, "I-7", "an unwritten object is leased")?;
            }
        }
    }
    check(left == set.units(), "I-3", "a set's units are not what its cells have left")?;
    claims.lease_units += left;
    Ok(())
}
