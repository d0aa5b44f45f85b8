//! The kinds of lower tiers, and what each of them can be told.
//!
//! Invariant: a method reaches every kind by name, so a new kind does not build before it knows all
//! of them.

use super::Order;
use super::fault::FaultTier;
use super::files::status::TierStatus;
use super::files::{Closing, FileTier};
use super::mock::MockTier;
use crate::arena::Span;
use kvtide_core::effect::Note;
use kvtide_core::event::Event;
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::{AdapterId, Ticket};
use kvtide_core::time::Instant;
use mio::{Registry, Token};
use std::io;

/// One lower tier. A variant more needs these methods, all of which return at once:
///
/// * `probe(ticket, names)`, `store(order, span)`, `load(order, span)`,
///   `delete(order, quarantine)`, `scrub(order, bytes)`: take an order on;
/// * `cancel(ticket)`: end it as soon as it can end; unknown tickets are others';
/// * `note(name, note)`: a line for its index, where it has one;
/// * `added(adapter)`: it has joined the roster and tells what lies in it, at least
///   `AdapterScanEnded`;
/// * `collect(now, tell)`: tell every ending that is known;
/// * `submit(now, budget)`: begin with what was taken on, as many bytes as there is budget;
///   true where something is left that could begin in the next turn;
/// * `deadline()`: when to collect or submit although nobody wakes;
/// * `register(registry, token)`: whatever makes the poll wake beside `Terms::wake`;
/// * `grown(usable)`: so many bytes of the arena have memory behind them;
/// * `workers()`, `limit_workers(all)`: threads of the system that may wait for its device, and
///   how many all tiers together may have;
/// * `is_idle()`: no order is on its way; `close()`: let go of everything, with what is still to be
///   written down on a thread of its own;
/// * `status()`: for `/status`.
#[derive(Debug)]
pub enum Tier {
    Files(Box<FileTier>),
    Mock(Box<MockTier>),
    Faulty(Box<FaultTier>),
}

impl Tier {
    pub(super) fn probe<'a>(
        &mut self,
        ticket: Ticket,
        names: impl Iterator<Item = ObjectName<'a>>,
    ) {
        match self {
            Tier::Files(tier) => tier.probe(ticket, names),
            Tier::Mock(tier) => tier.probe(ticket, names),
            Tier::Faulty(tier) => tier.probe(ticket, names),
        }
    }

    pub(super) fn store(&mut self, order: Order<'_>, span: Span) {
        match self {
            Tier::Files(tier) => tier.store(order, span),
            Tier::Mock(tier) => tier.store(order, span),
            Tier::Faulty(tier) => tier.store(order, span),
        }
    }

    pub(super) fn load(&mut self, order: Order<'_>, span: Span) {
        match self {
            Tier::Files(tier) => tier.load(order, span),
            Tier::Mock(tier) => tier.load(order, span),
            Tier::Faulty(tier) => tier.load(order, span),
        }
    }

    pub(super) fn delete(&mut self, order: Order<'_>, quarantine: bool) {
        match self {
            Tier::Files(tier) => tier.delete(order, quarantine),
            Tier::Mock(tier) => tier.delete(order, quarantine),
            Tier::Faulty(tier) => tier.delete(order, quarantine),
        }
    }

    pub(super) fn scrub(&mut self, order: Order<'_>, bytes: u64) {
        match self {
            Tier::Files(tier) => tier.scrub(order, bytes),
            Tier::Mock(tier) => tier.scrub(order, bytes),
            Tier::Faulty(tier) => tier.scrub(order, bytes),
        }
    }

    pub(super) fn cancel(&mut self, ticket: Ticket) {
        match self {
            Tier::Files(tier) => tier.cancel(ticket),
            Tier::Mock(tier) => tier.cancel(ticket),
            Tier::Faulty(tier) => tier.cancel(ticket),
        }
    }

    pub(super) fn note(&mut self, name: &ObjectName<'_>, note: Note) {
        match self {
            Tier::Files(tier) => tier.note(name, note),
            Tier::Mock(tier) => tier.note(name, note),
            Tier::Faulty(tier) => tier.note(name, note),
        }
    }

    pub(super) fn added(&mut self, adapter: AdapterId) {
        match self {
            Tier::Files(tier) => tier.added(adapter),
            Tier::Mock(tier) => tier.added(adapter),
            Tier::Faulty(tier) => tier.added(adapter),
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Tier::Files(tier) => tier.register(registry, token),
            Tier::Mock(_) => Ok(()),
            Tier::Faulty(tier) => tier.register(registry, token),
        }
    }

    pub(super) fn grown(&mut self, usable: u64) {
        match self {
            Tier::Files(tier) => tier.grown(usable),
            Tier::Mock(_) => {}
            Tier::Faulty(tier) => tier.grown(usable),
        }
    }

    pub(super) fn workers(&self) -> u32 {
        match self {
            Tier::Files(tier) => tier.workers(),
            Tier::Mock(_) => 0,
            Tier::Faulty(tier) => tier.workers(),
        }
    }

    pub(super) fn limit_workers(&self, all: u32) {
        match self {
            Tier::Files(tier) => tier.limit_workers(all),
            Tier::Mock(_) => {}
            Tier::Faulty(tier) => tier.limit_workers(all),
        }
    }

    pub(super) fn collect(&mut self, now: Instant, tell: &mut dyn FnMut(Event<'_>)) {
        match self {
            Tier::Files(tier) => tier.collect(tell),
            Tier::Mock(tier) => tier.collect(now, tell),
            Tier::Faulty(tier) => tier.collect(now, tell),
        }
    }

    pub(super) fn submit(&mut self, now: Instant, budget: &mut u64) -> bool {
        match self {
            Tier::Files(tier) => tier.submit(budget),
            // It begins with everything at once, and ends it in parts.
            Tier::Mock(_) => false,
            Tier::Faulty(tier) => tier.submit(now, budget),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Tier::Files(_) => None,
            Tier::Mock(tier) => tier.deadline(),
            Tier::Faulty(tier) => tier.deadline(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        match self {
            Tier::Files(tier) => tier.is_idle(),
            Tier::Mock(tier) => tier.is_idle(),
            Tier::Faulty(tier) => tier.is_idle(),
        }
    }

    pub(super) fn close(self) -> Option<Closing> {
        match self {
            Tier::Files(tier) => tier.close(),
            Tier::Mock(_) => None,
            Tier::Faulty(tier) => tier.close(),
        }
    }

    pub fn status(&self) -> TierStatus {
        match self {
            Tier::Files(tier) => tier.status(),
            Tier::Mock(tier) => tier.status(),
            Tier::Faulty(tier) => tier.status(),
        }
    }
}
