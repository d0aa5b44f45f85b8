//! `clear`: an epoch bump, and a sweeper that follows (design §2).
//!
//! The answer is right at once: whatever was published before the bump counts as absent unless it
//! was held then. The sweeper only gives the memory back, a slice at a time. An object that was
//! held survives a plain clear; when its last holder leaves it is moved into the current epoch. An
//! unheld one cannot become held again, because nobody finds it.

use super::L1;
use super::objects::{Object, State};
use crate::effect::Outbox;
use crate::engine::turn::Work;
use crate::fact::{Abort, Fact, Removal};
use crate::names::ObjectId;

#[derive(Clone, Copy, Debug, Default)]
pub struct Epochs {
    pub now: u32,
    /// Objects published before this epoch are gone unless held.
    cleared: u32,
    /// Objects published before this epoch are gone, held or not.
    forced: u32,
    sweep: Sweep,
}

/// After each `clear` the sweeper visits every place that had been used by then, once around from
/// wherever it is. Places used later hold nothing that the clear is about.
#[derive(Clone, Copy, Debug, Default)]
struct Sweep {
    at: u32,
    left: u32,
    places: u32,
}

impl Epochs {
    pub fn is_dead(&self, object: &Object) -> bool {
        if self.is_forced(object) {
            return true;
        }
        object.state == State::Resident && object.epoch < self.cleared && !object.held
    }

    pub fn is_forced(&self, object: &Object) -> bool {
        object.epoch < self.forced
    }

    /// Whether a forced clear has ever come, for the audit.
    pub(super) fn was_ever_forced(&self) -> bool {
        self.forced > 0
    }

    /// Whether the sweep under way has still to come by this place, for the audit.
    pub(super) fn will_sweep(&self, index: u32) -> bool {
        let Sweep { at, left, places } = self.sweep;
        // It visits the place behind `at` next, once around.
        let ahead = if index > at { index - at - 1 } else { index + places - at - 1 };
        index < places && ahead < left
    }
}

impl L1 {
    /// From now on everything unheld is absent; with `force`, everything.
    pub fn clear(&mut self, force: bool) {
        self.epochs.now += 1;
        self.epochs.cleared = self.epochs.now;
        if force {
            self.epochs.forced = self.epochs.now;
        }
        let sweep = &mut self.epochs.sweep;
        sweep.places = self.objects.high_water();
        sweep.left = sweep.places;
    }

    /// Frees dead objects, as far as the turn's units reach. True while there is more to do.
    pub fn sweep(&mut self, work: &mut Work, out: &mut Outbox) -> bool {
        let Sweep { mut at, mut left, places } = self.epochs.sweep;
        while left > 0 && !work.is_spent() {
            work.spend(1);
            left -= 1;
            at = if at + 1 < places { at + 1 } else { 0 };
            if let Some((name, object)) = self.objects.at(at)
                && object.state != State::Condemned
                && self.epochs.is_dead(object)
            {
                self.bury(ObjectId(name), out);
            }
        }
        self.epochs.sweep = Sweep { at, left, places };
        left > 0
    }

    /// Takes a dead object out of the table, or out of the index while it is pinned.
    pub(super) fn bury(&mut self, id: ObjectId, out: &mut Outbox) {
        let object = self.objects.find(id.0).expect("buried while it exists");
        let forced = self.epochs.is_forced(object);
        match object.state {
            State::Staged => {
                let mark = out.mark();
                self.condemn_staged(id, out);
                let keys = out.keys_since(mark);
                out.tell(Fact::WriteAborted { keys, why: Abort::ForcedClear });
            }
            State::Resident => {
                self.evict(id, if forced { Removal::ForcedClear } else { Removal::Clear }, out);
            }
            State::Condemned => {}
        }
    }
}
