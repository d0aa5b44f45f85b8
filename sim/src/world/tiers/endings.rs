//! What becomes of an order when its time has come.

use super::{Fate, Job};
use crate::memory::GRAIN_BYTES;
use crate::orders::Ending;
use crate::orders::{Lies, Name, Order, digest};
use crate::transcript::Input;
use crate::world::disk::File;
use crate::world::{Step, World};
use kvtide_core::event::{DeleteOutcome, LoadOutcome, StoreOutcome, TierFault};
use kvtide_core::names::Ticket;

impl World {
    pub(super) fn end_job(&mut self, ticket: Ticket, mut job: Job) -> Step {
        let tier = job.tier;
        if let Some(tier) = tier
            && self.tiers[tier].fails_until > self.now
            && !self.is_healing
        {
            job.fate = Fate::Error;
        }
        // Who is cancelled may have been through already.
        let is_cut = job.is_cancelled && (job.fate == Fate::Hangs || self.rng.below(2) == 0);
        let fault = match job.fate {
            _ if is_cut => Some(TierFault::Cancelled),
            Fate::Good | Fate::Hangs => None,
            Fate::Full => Some(TierFault::NoSpace),
            Fate::Error if self.rng.below(8) == 0 => Some(TierFault::Denied),
            Fate::Error => Some(TierFault::Io),
        };
        let ending = match (&job.order, tier) {
            (Order::Probe { names, .. }, Some(tier)) => {
                let disk = &self.tiers[tier].disk;
                let found = names.iter().map(|name| disk.probe(name));
                Ending::Probe(fault.is_none().then(|| found.collect()))
            }
            (Order::Store { name, what, .. }, Some(tier)) => {
                Ending::Store(self.end_store(tier, name, *what, fault))
            }
            (Order::Load { name, what, .. }, Some(tier)) => {
                Ending::Load(self.end_load((tier, ticket), name, *what, fault)?)
            }
            (Order::Delete { name, .. }, Some(tier)) => {
                let disk = &mut self.tiers[tier].disk;
                Ending::Delete(match fault {
                    Some(fault) => DeleteOutcome::Failed(fault),
                    None => disk.delete(name),
                })
            }
            (Order::Digest { name, what, .. }, _) => {
                let content = self.bench.memory.content(what.place)?;
                Ending::Digest(digest(name, content))
            }
            (Order::Scrub { name, .. }, Some(tier)) => {
                let found = self.digest_at_rest(tier, name);
                Ending::Scrub(found.filter(|_| fault.is_none()))
            }
            (order, _) => return Err(format!("I-33: {order:?} is for a tier that has left")),
        };
        self.note_cut(job.has_rested && fault.is_none());
        self.tell_ending(tier, Input::TierEnded { ticket, ending })
    }

    /// A store becomes visible whole, or not at all (I-29); also where nobody is told.
    fn end_store(
        &mut self,
        tier: usize,
        name: &Name,
        what: Lies,
        fault: Option<TierFault>,
    ) -> StoreOutcome {
        let content = self.bench.memory.tag(what.object);
        let file = File { bytes: what.place.bytes, content, damage: None, is_durable: false };
        let keeps = self.tiers[tier].profile.setup.keeps_data || self.rng.below(2) == 0;
        let is_full = self.tiers[tier].disk.bytes() + file.bytes > self.medium_bytes(tier);
        let disk = &mut self.tiers[tier].disk;
        match fault {
            Some(fault) => {
                let is_whole = fault != TierFault::NoSpace && self.rng.below(4) == 0;
                if is_whole {
                    // It was done, and the answer was lost.
                    disk.store(name, file);
                    self.plan_flush(tier);
                } else if self.rng.below(2) == 0 {
                    disk.temps += 1;
                }
                StoreOutcome::Failed(fault)
            }
            None if is_full && disk.file(name).is_none() => {
                self.tally.came("medium full");
                StoreOutcome::Failed(TierFault::NoSpace)
            }
            None if !keeps => StoreOutcome::Stored,
            None => {
                let outcome = disk.store(name, file);
                self.plan_flush(tier);
                outcome
            }
        }
    }

    /// More than the tier may hold: others have files there, too.
    fn medium_bytes(&self, tier: usize) -> u64 {
        self.tiers[tier].profile.setup.capacity_bytes * 2
    }

    fn end_load(
        &mut self,
        (tier, ticket): (usize, Ticket),
        name: &Name,
        what: Lies,
        fault: Option<TierFault>,
    ) -> Result<LoadOutcome, String> {
        if let Some(fault) = fault {
            return Ok(LoadOutcome::Failed(fault));
        }
        let Some(file) = self.tiers[tier].disk.file(name).cloned() else {
            return Ok(LoadOutcome::Absent);
        };
        if file.bytes != what.place.bytes {
            return Ok(LoadOutcome::OtherSize { bytes: file.bytes });
        }
        // Only what the engine can tell from the truth is ever wrong; of the rest a device knows.
        let is_known = self.bench.model.is_sealed(ticket);
        if file.damage.is_some() && !is_known {
            return Ok(LoadOutcome::Failed(TierFault::Io));
        }
        for grain in 0..file.bytes / GRAIN_BYTES {
            let tag = file.damage.filter(|_| grain == 0).unwrap_or(file.content);
            self.bench.memory.fill(what.place, grain, tag)?;
        }
        let flips = self.tiers[tier].profile.faults.flip;
        if is_known && self.chance(flips) {
            self.tally.came("bytes flipped on their way");
            let garbage = self.garbage();
            let grain = self.rng.below(file.bytes / GRAIN_BYTES);
            self.bench.memory.fill(what.place, grain, garbage)?;
        }
        Ok(LoadOutcome::Loaded)
    }
}
