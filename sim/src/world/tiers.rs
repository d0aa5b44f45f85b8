//! Lower tiers at work: orders come in, rest, go on, and end; things go wrong on the way.
//!
//! The invariant: every order ends once, at the latest in act two, and until then its place is read
//! or written (design P1, I-2). What a tier has done stands on its disk whether or not anybody is
//! told of it.

mod endings;
mod peers;
mod roster;

use super::actions::Action;
use super::disk::Disk;
use super::{Step, World};
use crate::memory::{GRAIN_BYTES, Tag, grains};
use crate::orders::{Found, Name, Order, digest};
use crate::reach::State;
use crate::tierprofile::TierProfile;
use crate::transcript::Input;
use kvtide_core::names::{AdapterId, Ticket};
use kvtide_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// One lower tier of the world. It is there whether or not a server has it on its roster.
pub(crate) struct Tier {
    pub profile: TierProfile,
    pub disk: Disk,
    /// Its place in the roster of the server at hand.
    pub id: Option<AdapterId>,
    /// The server was told to take it off.
    pub is_leaving: bool,
    /// What is still to be told of what lay there.
    pub scan: Option<VecDeque<Found>>,
    /// Nothing ends, and everything fails, until then.
    pub hangs_until: Instant,
    pub fails_until: Instant,
}

/// One order under way.
pub(crate) struct Job {
    order: Order,
    tier: Option<usize>,
    fate: Fate,
    /// Grains read or written.
    done: u64,
    is_cancelled: bool,
    is_deaf: bool,
    has_rested: bool,
}

/// What becomes of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Good,
    Error,
    Full,
    /// Ends when it is cancelled, or when all is well again.
    Hangs,
}

impl World {
    pub(super) fn found_tiers(&mut self) {
        for (number, profile) in self.profile.tiers.clone().into_iter().enumerate() {
            let joins_within = profile.joins_within;
            self.tiers.push(Tier {
                profile,
                disk: Disk::default(),
                id: None,
                is_leaving: false,
                scan: None,
                hangs_until: Instant::ZERO,
                fails_until: Instant::ZERO,
            });
            self.plan(joins_within, Action::Join { tier: number });
        }
    }

    pub(super) fn ordered(&mut self, order: Order) -> Step {
        let tier = order.adapter().and_then(|id| self.tier_of(id));
        match order {
            Order::Note { name, note, .. } => {
                let Some(tier) = tier else { return Ok(()) };
                self.tiers[tier].disk.note(name, note);
                self.plan_flush(tier);
                Ok(())
            }
            Order::Closed { adapter } => self.closed(adapter),
            Order::Cancel { ticket } => {
                self.cancelled(ticket);
                Ok(())
            }
            order => {
                self.begin_job(order, tier);
                Ok(())
            }
        }
    }

    fn begin_job(&mut self, order: Order, tier: Option<usize>) {
        let ticket = order.ticket().expect("notes and the like are dealt with");
        let faults = tier.map(|tier| self.tiers[tier].profile.faults.clone()).unwrap_or_default();
        let is_store = matches!(order, Order::Store { .. });
        let fate = if self.chance(faults.hang) {
            self.tally.came("order hangs");
            Fate::Hangs
        } else if is_store && self.chance(faults.full) {
            self.tally.came("tier full");
            Fate::Full
        } else if self.chance(faults.error) {
            self.tally.came("order failed");
            Fate::Error
        } else {
            Fate::Good
        };
        let is_deaf = self.chance(faults.deaf);
        let job =
            Job { order, tier, fate, done: 0, is_cancelled: false, is_deaf, has_rested: false };
        self.jobs.insert(ticket, job);
        let delay = self.job_delay(tier);
        self.plan_in(delay, Action::Toil { ticket });
    }

    fn job_delay(&mut self, tier: Option<usize>) -> Duration {
        let most = match tier {
            Some(tier) => self.tiers[tier].profile.latency,
            // Digests are made beside the tiers.
            None => Duration::from_millis(2),
        };
        Duration::from_nanos(self.rng.below(most.as_nanos() as u64 + 1))
    }

    fn cancelled(&mut self, ticket: Ticket) {
        let Some(job) = self.jobs.get_mut(&ticket) else { return };
        if job.is_deaf {
            self.tally.came("cancellation not heard");
            return;
        }
        job.is_cancelled = true;
        self.tally.came("order cancelled");
        let tier = job.tier;
        let delay = self.job_delay(tier);
        self.plan_in(delay, Action::Toil { ticket });
    }

    /// An order goes on a little, and may end.
    pub(super) fn toil(&mut self, ticket: Ticket) -> Step {
        let Some(mut job) = self.jobs.remove(&ticket) else { return Ok(()) };
        if let Some(delay) = self.rests(&mut job) {
            self.jobs.insert(ticket, job);
            if let Some(delay) = delay {
                self.plan_in(delay, Action::Toil { ticket });
            }
            return Ok(());
        }
        let total = self.move_bytes(&mut job)?;
        if job.done < total {
            let delay = self.job_delay(job.tier);
            self.jobs.insert(ticket, job);
            self.plan_in(delay, Action::Toil { ticket });
            return Ok(());
        }
        self.end_job(ticket, job)
    }

    /// Whether nothing comes of an order now, and when it is looked at again, if by itself.
    fn rests(&mut self, job: &mut Job) -> Option<Option<Duration>> {
        if self.is_healing || job.is_cancelled {
            return None;
        }
        if job.fate == Fate::Hangs {
            return Some(None);
        }
        let tier = job.tier?;
        let hangs_until = self.tiers[tier].hangs_until;
        if hangs_until > self.now {
            return Some(Some(hangs_until - self.now + self.latency()));
        }
        let late = self.tiers[tier].profile.faults.late;
        if job.has_rested || !self.chance(late) {
            return None;
        }
        job.has_rested = true;
        self.tally.came("order late");
        let setup = &self.tiers[tier].profile.setup;
        let over = match job.order {
            Order::Load { .. } => setup.load_deadline,
            Order::Probe { .. } => setup.probe_deadline,
            _ => setup.store_deadline,
        };
        Some(Some(over + self.job_delay(Some(tier))))
    }

    /// Reads or writes some of an order's place. How many grains there are of it.
    fn move_bytes(&mut self, job: &mut Job) -> Result<u64, String> {
        let (what, is_load) = match &job.order {
            Order::Store { what, .. } | Order::Digest { what, .. } => (*what, false),
            Order::Load { what, .. } => (*what, true),
            _ => return Ok(0),
        };
        let total = grains(what.place);
        let more = (1 + self.rng.below(total)).min(total - job.done);
        if is_load {
            for grain in job.done..job.done + more {
                let tag = self.loaded_tag(job, grain);
                self.bench.memory.fill(what.place, grain, tag)?;
            }
        } else if matches!(job.order, Order::Store { .. }) {
            // Every part of it has to be right for as long as it is read (R-2, I-20).
            let checked = self.bench.memory.check(what.place, what.object);
            checked.map_err(|rule| format!("R-2, I-20: stored below L1: {rule}"))?;
        }
        job.done += more;
        Ok(total)
    }

    /// What a load writes into one grain of its place; garbage where it comes to nothing. Other
    /// bytes than were stored are read where something is to notice it.
    fn loaded_tag(&mut self, job: &Job, grain: u64) -> Tag {
        let Order::Load { ticket, name, .. } = &job.order else { return Tag::garbage(0) };
        let is_checked = self.bench.model.is_sealed(*ticket);
        let file = job.tier.and_then(|tier| self.tiers[tier].disk.file(name));
        match file {
            Some(file) if job.fate == Fate::Good => match file.damage {
                Some(damage) if grain == 0 && is_checked => damage,
                _ => file.content,
            },
            _ => self.garbage(),
        }
    }

    pub(super) fn garbage(&mut self) -> Tag {
        self.garbage_made += 1;
        Tag::garbage(self.garbage_made)
    }

    /// The digest of what is at rest under a name.
    fn digest_at_rest(&self, tier: usize, name: &Name) -> Option<u32> {
        let file = self.tiers[tier].disk.file(name)?;
        let content = (0..file.bytes / GRAIN_BYTES).map(|grain| match file.damage {
            Some(damage) if grain == 0 => Some(damage),
            _ => Some(file.content),
        });
        Some(digest(name, content))
    }

    pub(super) fn tier_of(&self, id: AdapterId) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.id == Some(id))
    }

    /// All is well again: what hung goes on.
    pub(super) fn heal_tiers(&mut self) {
        let tickets: Vec<Ticket> = self.jobs.keys().copied().collect();
        for ticket in tickets {
            self.plan(Duration::from_secs(1), Action::Toil { ticket });
        }
    }

    /// An ending, and perhaps once more.
    fn tell_ending(&mut self, tier: Option<usize>, input: Input) -> Step {
        self.feed(input.clone())?;
        let twice = tier.map_or(0, |tier| self.tiers[tier].profile.faults.twice);
        if self.chance(twice) {
            self.plan(Duration::from_secs(2), Action::StaleEnding { input });
        }
        Ok(())
    }

    /// An order that rested for longer than its deadline came to a good end.
    fn note_cut(&mut self, is_good: bool) {
        if is_good {
            self.bench.reach.met(State::TierEndedLate);
        }
    }
}
