//! What goes wrong with a tier beside its orders: it hangs or fails as a whole, its bytes rot, and
//! others store and delete in the same place.

use crate::orders::Name;
use crate::transcript::Input;
use crate::world::disk::File;
use crate::world::{Action, Step, World};
use kvtide_core::names::KvRank;
use kvtide_core::time::Duration;

impl World {
    /// Each time every fault of every tier has its chance.
    pub(in crate::world) fn tier_faults(&mut self) -> Step {
        for tier in 0..self.tiers.len() {
            let faults = self.tiers[tier].profile.faults.clone();
            let lasts = Duration::from_millis(self.rng.below(20_000));
            if self.chance(faults.outage) {
                self.tally.came("tier hangs");
                self.tiers[tier].hangs_until = self.now + lasts;
            }
            if self.chance(faults.broken) {
                self.tally.came("tier fails");
                self.tiers[tier].fails_until = self.now + lasts;
            }
            if self.chance(faults.rot) {
                self.rot(tier);
            }
            if self.chance(faults.peer) {
                self.peer(tier);
            }
            if self.chance(faults.remove) {
                self.remove_tier(tier)?;
            }
        }
        if !self.tiers.is_empty() && self.chance(QUOTA_CHANCE) {
            self.set_quota()?;
        }
        Ok(())
    }

    /// A byte changes where it lies, of something whose digest is surely kept.
    fn rot(&mut self, tier: usize) {
        if self.tiers[tier].disk.is_empty() {
            return;
        }
        let nth = self.pick(self.tiers[tier].disk.len());
        let disk = &self.tiers[tier].disk;
        let name = disk.nth(nth).map(|(name, _)| name.clone());
        let Some(name) = name.filter(|name| disk.is_sealed(name)) else { return };
        self.tally.came("bytes rotted at rest");
        let garbage = self.garbage();
        self.tiers[tier].disk.damage(&name, garbage);
    }

    /// Somebody else stores what he has computed for the same tokens, or makes room for himself.
    fn peer(&mut self, tier: usize) {
        let len = self.tiers[tier].disk.len();
        if len > 0 && self.rng.below(3) == 0 {
            let nth = self.pick(len);
            let name = self.tiers[tier].disk.nth(nth).map(|(name, _)| name.clone());
            self.tally.came("somebody else deleted");
            self.tiers[tier].disk.delete(&name.expect("it was counted"));
            return;
        }
        let Some(request) = self.requests.len().checked_sub(1) else { return };
        let recent = request.saturating_sub(40);
        let range = &self.requests[recent + self.rng.below((request - recent) as u64 + 1) as usize];
        let (group, range) = (range.group, range.range.clone());
        let Some(chunk) = (range.end_chunk as usize).checked_sub(1) else { return };
        let hash = range.hashes[self.rng.below(chunk as u64 + 1) as usize];
        let rank = self.rng.below(range.world_size.into()) as u32;
        let rank = KvRank::of(range.world_size, rank).expect("a rank of its world");
        let name = Name { model: range.model, salt: range.salt, rank, group: 0, hash };
        let layout = self.profile.groups[group].layout;
        let mut bytes = layout.bytes().expect("a group's objects have a size");
        if self.rng.below(8) == 0 {
            bytes += crate::memory::GRAIN_BYTES;
        }
        self.foreign_made += 1;
        let content = crate::memory::Tag::foreign(self.foreign_made);
        self.tally.came("somebody else stored");
        self.bench.ledger.foreign(&name, content);
        let file = File { bytes, content, damage: None, is_durable: true };
        self.tiers[tier].disk.store(&name, file);
    }

    fn set_quota(&mut self) -> Step {
        let salt = if self.rng.below(2) == 0 { "" } else { "tenant" };
        let bytes = (self.rng.below(3) > 0).then(|| self.rng.below(self.profile.config.l1_bytes));
        let operator = self.bench.events;
        self.feed(Input::OperatorQuota { operator, salt: salt.into(), bytes })
    }

    pub(in crate::world) fn flush(&mut self, tier: usize, notes: usize) -> Step {
        self.tiers[tier].disk.flush(notes);
        Ok(())
    }

    /// A tier that is to come back, at rest until then.
    pub(in crate::world) fn rejoin(&mut self, tier: usize) -> Step {
        if self.is_healing {
            return Ok(());
        }
        let rejoin = self.tiers[tier].profile.faults.rejoin;
        if self.joined > 0 && self.tiers[tier].id.is_none() && !self.chance(rejoin.max(500_000)) {
            self.plan_in(Duration::from_secs(30), Action::Join { tier });
            return Ok(());
        }
        self.join(tier)
    }
}

/// A quota is set or taken away.
const QUOTA_CHANCE: u64 = 20_000;
