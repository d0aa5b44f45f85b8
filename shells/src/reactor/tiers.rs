//! The lower tiers' part of a turn: what has come back from them is told to the engine, what it
//! ordered goes to them, once each. Invariant: a turn neither waits for a device nor begins more on
//! one than the limit for a turn.

use super::shared::{Desk, Door};
use super::{Reactor, TIERS};
use crate::tiers::{Engine, Opened, Terms};
use kvtide_core::event::Event;
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::{AdapterId, L2Key};
use std::io;

impl<E: Desk> Engine for Door<E> {
    fn l2_name(&self, key: &L2Key) -> ObjectName<'_> {
        self.engine.l2_name(key)
    }

    fn tell(&mut self, event: Event<'_>) {
        Door::tell(self, event);
    }
}

impl<E: Desk> Reactor<E> {
    /// What whoever opens a tier for this server has to know.
    pub fn tier_terms(&self) -> &Terms {
        self.tiers.terms()
    }

    /// Takes a tier into service, behind all others. None where there are as many as can be.
    pub fn add_tier(&mut self, opened: Opened) -> io::Result<Option<AdapterId>> {
        let registry = self.poll.registry();
        self.tiers.add(opened, (registry, TIERS), &mut self.shared.door)
    }

    /// How many threads copy from and to engines, from the first engine on.
    pub fn set_copy_lanes(&mut self, lanes: usize) {
        self.pager.set_lanes(lanes);
    }

    pub(super) fn collect_tiers(&mut self) {
        let door = &mut self.shared.door;
        let now = self.shared.now;
        self.tiers.collect(now, &mut |event| door.tell(event));
        self.pager.collect(&mut |event| door.tell(event));
    }

    pub(super) fn submit_to_tiers(&mut self) {
        self.tiers.submit(self.shared.now);
    }
}
