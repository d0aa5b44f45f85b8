//! Tiers that join, are scanned, leave and come back, and what a crash leaves of them.

use crate::orders::{Found, Order};
use crate::reach::State;
use crate::transcript::Input;
use crate::world::disk::End;
use crate::world::{Action, Step, World};
use kvtide_core::limits::{ADAPTERS_MAX, SCANNED_PER_EVENT};
use kvtide_core::names::AdapterId;
use kvtide_core::time::{Duration, Instant};
use std::rc::Rc;

impl World {
    /// A tier joins behind all others, and what lies in it begins to be told.
    pub(in crate::world) fn join(&mut self, tier: usize) -> Step {
        if self.tiers[tier].id.is_some() || self.joined as usize >= ADAPTERS_MAX {
            return Ok(());
        }
        let adapter = AdapterId(self.joined);
        self.joined += 1;
        let entry = &mut self.tiers[tier];
        entry.id = Some(adapter);
        entry.is_leaving = false;
        entry.disk.temps = 0;
        let found = entry.disk.scan();
        if !found.is_empty() {
            let sealed = found.iter().any(|found| found.seal.is_some());
            let met = if sealed { State::JoinedWithIndex } else { State::JoinedWithoutIndex };
            self.bench.reach.met(met);
        }
        entry.scan = Some(found.into());
        let setup = Rc::new(entry.profile.setup.clone());
        self.feed(Input::AdapterAdded { adapter, setup })?;
        let gap = self.tiers[tier].profile.scan_gap;
        self.plan(gap, Action::Scan { tier, adapter });
        Ok(())
    }

    /// Some more of what lay in a tier is told.
    pub(in crate::world) fn scan(&mut self, tier: usize, adapter: AdapterId) -> Step {
        let (gap, batch) = (self.tiers[tier].profile.scan_gap, self.tiers[tier].profile.scan_batch);
        let may_be_stale = self.tiers[tier].profile.faults.stale_scan;
        if self.tiers[tier].id != Some(adapter) {
            return Ok(());
        }
        let Some(mut left) = self.tiers[tier].scan.take() else { return Ok(()) };
        let most = (1 + self.rng.below(batch)).min(SCANNED_PER_EVENT as u64) as usize;
        let batch: Vec<Found> = left.drain(..most.min(left.len())).collect();
        let is_stale = self.chance(may_be_stale);
        let disk = &self.tiers[tier].disk;
        let is_there =
            |found: &Found| disk.file(&found.name).is_some_and(|file| file.bytes == found.bytes);
        let gone = batch.iter().any(|found| !is_there(found));
        let found: Rc<[Found]> =
            batch.into_iter().filter(|found| is_stale || is_there(found)).collect();
        if gone && is_stale {
            self.tally.came("scan told of what was gone");
        }
        if left.is_empty() {
            if !found.is_empty() {
                self.feed(Input::AdapterScanned { adapter, found })?;
            }
            return self.feed(Input::AdapterScanEnded { adapter });
        }
        self.tiers[tier].scan = Some(left);
        self.plan(gap, Action::Scan { tier, adapter });
        // It may be empty: nothing of a batch was there any more.
        self.feed(Input::AdapterScanned { adapter, found })
    }

    /// A tier is taken off the roster.
    pub(in crate::world) fn remove_tier(&mut self, tier: usize) -> Step {
        let Some(adapter) = self.tiers[tier].id.filter(|_| !self.tiers[tier].is_leaving) else {
            return Ok(());
        };
        self.tally.came("tier taken off");
        self.tiers[tier].is_leaving = true;
        if self.jobs.values().any(|job| job.order.adapter() == Some(adapter)) {
            self.bench.reach.met(State::DrainedWithWork);
        }
        let operator = self.bench.events;
        self.feed(Input::OperatorRemove { operator, adapter })
    }

    /// The engine has let go of a tier; another server may have it, or this one once more.
    pub(super) fn closed(&mut self, adapter: AdapterId) -> Step {
        let Some(tier) = self.tier_of(adapter) else {
            return Err("I-33: a tier was closed that is not there".into());
        };
        let is_busy = self.jobs.values().any(|job| job.order.adapter() == Some(adapter));
        if is_busy {
            return Err("I-33: a tier was closed before its last order had ended".into());
        }
        let entry = &mut self.tiers[tier];
        entry.id = None;
        entry.scan = None;
        entry.disk.flush(usize::MAX);
        let rejoin = entry.profile.faults.rejoin;
        if rejoin > 0 && !self.is_healing {
            self.plan(Duration::from_secs(20), Action::Join { tier });
        }
        Ok(())
    }

    pub(super) fn plan_flush(&mut self, tier: usize) {
        let (within, notes) =
            (self.tiers[tier].profile.flush_within, self.tiers[tier].disk.notes());
        self.plan(within, Action::Flush { tier, notes });
    }

    /// The server is gone, in the middle of whatever it did.
    pub(in crate::world) fn crash_tiers(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        for job in jobs.into_values() {
            // A store under way is there whole or not at all; the rest comes to nothing.
            if let (Order::Store { name, what, .. }, Some(tier)) = (&job.order, job.tier) {
                let content = self.bench.memory.tag(what.object);
                let is_whole = self.rng.below(3) == 0;
                if is_whole {
                    let bytes = what.place.bytes;
                    let file = crate::world::disk::File {
                        bytes,
                        content,
                        damage: None,
                        is_durable: false,
                    };
                    self.tiers[tier].disk.store(name, file);
                }
            }
        }
        for tier in 0..self.tiers.len() {
            let faults = self.tiers[tier].profile.faults.clone();
            let end = if self.chance(faults.power) {
                self.tally.came("power lost");
                End::PowerLost
            } else {
                End::Killed
            };
            let garbage = self.garbage();
            let entry = &mut self.tiers[tier];
            entry.disk.crash(end, faults.lies, &mut self.rng, garbage);
            entry.id = None;
            entry.is_leaving = false;
            entry.scan = None;
            entry.hangs_until = Instant::ZERO;
            entry.fails_until = Instant::ZERO;
            if self.chance(faults.index_lost) {
                self.tally.came("index lost");
                self.tiers[tier].disk.lose_index();
            }
            let joins_within = self.tiers[tier].profile.joins_within;
            self.plan(joins_within, Action::Join { tier });
        }
        self.joined = 0;
    }
}
