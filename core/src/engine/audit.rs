//! The invariants of spec/storage §8, by number. Simulation, properties and fuzzing call this
//! after every event; a bug found by hand first becomes a line here.
//!
//! Every room audits itself (`audit.rs` beside it): what it counts, what it lists twice, and that
//! whatever can run out has its alarm and whatever is unfinished has its job. What the rooms say of
//! each other comes together here: leases and pins of every object, users of every name, alarms.
//! A page, `docs/invariants.md`, says for every number which check or test guards it.

mod jobs;

pub(crate) use jobs::{JobsSeen, of_copy, of_session};

use crate::config::Config;
use crate::engine::Engine;
use crate::engine::alarms::Alarms;
use crate::engine::l1::L1;
use crate::engine::promote::Promote;
use crate::names::ObjectId;
use crate::slots::SlotName;
use alloc::vec::Vec;

/// The number of the invariant and what was found instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub found: &'static str,
}

/// Memory that one audit leaves to the next, so that auditing after every event allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    pub(crate) claims: Claims,
    jobs: JobsSeen,
}

/// What the rooms claim of each other's things.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    /// Leases and pins, by the index of the object.
    pub objects: Vec<(u32, u32)>,
    /// Users of scopes and of tenants, by their ids.
    pub scopes: Vec<u32>,
    pub tenants: Vec<u32>,
    pub lease_units: u64,
    /// Alarms that somebody waits for.
    pub timers: usize,
}

impl Claims {
    fn clear(&mut self, engine: &Engine) {
        let (tenants, scopes) = engine.l1.scopes.lens();
        let objects = engine.l1.objects.high_water() as usize;
        self.objects.clear();
        self.objects.resize(objects, (0, 0));
        self.scopes.clear();
        self.scopes.resize(scopes, 0);
        self.tenants.clear();
        self.tenants.resize(tenants, 0);
        self.lease_units = 0;
        self.timers = 0;
    }

    pub(crate) fn of(&mut self, object: ObjectId) -> &mut (u32, u32) {
        &mut self.objects[object.0.index as usize]
    }
}

/// What a room looks at beside itself.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub config: &'a Config,
    pub l1: &'a L1,
    pub alarms: &'a Alarms,
    pub jobs: &'a JobsSeen,
    pub seeks: &'a Promote,
}

impl Engine {
    /// Checks everything. Costs a walk over all tables; not for production.
    pub fn audit(&self) -> Result<(), Violation> {
        self.audit_with(&mut Scratch::default())
    }

    /// The same, for those who audit again and again.
    pub fn audit_with(&self, scratch: &mut Scratch) -> Result<(), Violation> {
        let Scratch { claims, jobs } = scratch;
        claims.clear(self);
        jobs.see(self)?;
        let (config, alarms) = (&self.config, &self.alarms);
        let seeks = &self.promote;
        let view = View { config, l1: &self.l1, alarms, jobs, seeks };
        self.sessions.audit(&view, claims)?;
        self.adapters.audit(&view, claims)?;
        self.demote.audit(&view, &self.adapters, claims)?;
        self.demote.audit_budget(&view, &self.adapters)?;
        self.promote.audit(&view, &self.adapters, claims)?;
        self.copies.audit(&view, &self.clients, claims)?;
        self.clients.audit(&view, &self.layouts, claims)?;
        self.attachments.audit(&self.clients)?;
        let units = self.l1.lease_units();
        check(claims.lease_units == units, "I-52", "lease units taken - ended != live")?;
        self.l1.audit(&view, claims)?;
        // The eviction tick is the one alarm that is nobody's.
        let is_armed = alarms.armed() == claims.timers + 1;
        check(is_armed, "I-44", "an alarm is armed that nobody waits for, or the tick is not")?;
        alarms.audit()
    }

    /// Whether nothing is in flight: what P4 demands when all clients are gone.
    pub fn is_quiet(&self) -> bool {
        self.copies.copies.is_empty()
            && self.copies.tickets.is_empty()
            && self.copies.lent_bytes == 0
            && !self.attachments.is_attaching()
            && self.sessions.waits_len() == 0
            && self.sessions.orphans.is_empty()
            && self.jobs.is_empty()
            && self.promote.is_empty()
            && self.adapters.in_flight() == 0
            && self.adapters.list.iter().all(|adapter| adapter.shelf.held == 0)
            && self.demote.is_quiet()
            && self.l1.lease_units() == 0
            && self.copies.reads == 0
            && (self.sessions.cells == 0 || !self.sessions.is_empty())
            && self.l1.staged == 0
            && self.l1.condemned == 0
            && !self.l1.space.is_keeping()
    }

    /// Whether a window that was emptied is kept for whoever asked. That lasts until the second
    /// tick of the watermark from then (I-37).
    pub fn keeps_emptied(&self) -> bool {
        self.l1.space.is_keeping() && self.l1.space.emptying().is_none()
    }
}

pub(crate) fn check(
    holds: bool,
    invariant: &'static str,
    found: &'static str,
) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { invariant, found }) }
}

/// A subject of nothing: alarms that are nobody's name it.
pub(crate) fn at(flags: &[u8], name: SlotName) -> u8 {
    flags.get(name.index as usize).copied().unwrap_or_default()
}
