//! What is on its way to and from lower tiers, by ticket.

use crate::engine::alarms::Timer;
use crate::names::AdapterId;
use crate::slots::SlotName;
use crate::time::Instant;

/// An effect that has not ended: whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flight {
    /// A lookup waits for what an adapter says of its next keys.
    Probe { adapter: AdapterId, seek: SlotName },
    /// An object of L1 is written to an adapter.
    Store { adapter: AdapterId, task: SlotName },
    /// The digest of an object that is being stored below L1.
    StoreDigest { demotion: SlotName },
    /// An object is read into L1.
    Load { adapter: AdapterId, load: SlotName },
    /// The digest of an object that has been loaded.
    LoadDigest { load: SlotName },
    /// An object is taken away.
    Delete { adapter: AdapterId, entry: SlotName },
    /// An object at rest is read again to be checked.
    Scrub { adapter: AdapterId, entry: SlotName },
    /// A probe of a tripped adapter that nobody waits for.
    Trial { adapter: AdapterId, entry: Option<SlotName> },
}

/// A flight, since when it is on its way, and when that is too long.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    pub flight: Flight,
    pub departed: Instant,
    pub(crate) timer: Option<Timer>,
}

impl InFlight {
    /// Whether it takes longer than it may. Only for flights that somebody has patience for.
    pub(crate) fn has_stalled(&self) -> bool {
        self.timer.is_none()
    }
}

impl Flight {
    /// The adapter that has the order, where it is one's.
    pub fn adapter(&self) -> Option<AdapterId> {
        match self {
            Flight::Probe { adapter, .. }
            | Flight::Store { adapter, .. }
            | Flight::Load { adapter, .. }
            | Flight::Delete { adapter, .. }
            | Flight::Scrub { adapter, .. }
            | Flight::Trial { adapter, .. } => Some(*adapter),
            Flight::StoreDigest { .. } | Flight::LoadDigest { .. } => None,
        }
    }
}
