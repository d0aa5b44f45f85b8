//! Work that does not fit one turn: continued by `Alarm::Work`, first come first served.
//!
//! The invariant: what is in the queue is bounded by what it works on (sessions, orphans, copies,
//! connections, instances), and there is at most one sweep, one eviction pass, one window, one
//! leave-taking, one look at lower tiers and one at what comes from there.

use crate::config::Limits;
use crate::engine::copies::Ending;
use crate::names::Connection;
use crate::slots::SlotName;
use alloc::collections::VecDeque;

/// One piece of unfinished work. What it works on may be gone when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// A lookup that still probes or touches.
    Lookup { session: SlotName },
    /// Lease cells that nobody owns any more.
    EndLeases { orphan: SlotName },
    /// Locks given back over a long range.
    FreeRange { session: SlotName },
    /// A copy whose objects are let go.
    EndCopy { copy: SlotName, how: Ending },
    /// A reservation whose keys are taken back.
    Condemn { copy: SlotName },
    /// Copies of a connection that has ended; those from `left` on are done.
    EndConnection { connection: Connection, left: u32 },
    /// Reservations of a registration that has ended; those from `left` on are done.
    EndInstance { registration: SlotName, left: u32 },
    /// A window of the arena is emptied for objects of another size.
    EmptyWindow,
    /// A lookup goes on planning what to load.
    Seek { seek: SlotName },
    /// Objects that nothing holds any more leave L1.
    Leave,
    /// `clear` gives memory back.
    Sweep,
    /// The eviction tick frees bytes; `Jobs` knows how many.
    Evict,
    /// Stores below L1 that can begin or are given up, and lower tiers that leave.
    Tiers,
    /// Loads that can begin or are given up, and results of lookups that are to be handed on.
    Loads,
}

#[derive(Clone, Debug, Default)]
pub struct Jobs {
    queue: VecDeque<Job>,
    is_sweeping: bool,
    is_leaving: bool,
    has_tiers: bool,
    has_loads: bool,
    /// What a pass under way is still to free.
    evict_bytes: u64,
}

impl Jobs {
    /// A queue of all that there can be to do: per session, orphan, copy, connection and instance.
    pub(crate) fn table_bytes(limits: &Limits) -> u64 {
        let clients = 3 * limits.sessions + 3 * limits.tickets + limits.instances;
        let jobs = clients + limits.loads + SINGLE_JOBS;
        (jobs.next_power_of_two() * size_of::<Job>()) as u64
    }

    pub fn push(&mut self, job: Job) {
        self.queue.push_back(job);
    }

    /// A sweep under way takes in the new reason.
    pub fn sweep(&mut self) {
        if !self.is_sweeping {
            self.is_sweeping = true;
            self.queue.push_back(Job::Sweep);
        }
    }

    /// Objects leave L1 in the next turn.
    pub fn leave(&mut self) {
        if !self.is_leaving {
            self.is_leaving = true;
            self.queue.push_back(Job::Leave);
        }
    }

    /// Lower tiers have more to do than the turn reached.
    pub fn tiers(&mut self) {
        if !self.has_tiers {
            self.has_tiers = true;
            self.queue.push_back(Job::Tiers);
        }
    }

    /// More loads can begin or end, or more lookups, than the turn reached.
    pub fn loads(&mut self) {
        if !self.has_loads {
            self.has_loads = true;
            self.queue.push_back(Job::Loads);
        }
    }

    /// A pass under way frees the larger of both.
    pub fn evict(&mut self, bytes: u64) {
        if self.evict_bytes == 0 && bytes > 0 {
            self.queue.push_back(Job::Evict);
        }
        self.evict_bytes = self.evict_bytes.max(bytes);
    }

    pub fn evict_bytes(&self) -> u64 {
        self.evict_bytes
    }

    /// So much of the pass is left. With nothing left it has ended.
    pub fn set_evict_bytes(&mut self, bytes: u64) {
        self.evict_bytes = bytes;
    }

    pub fn take(&mut self) -> Option<Job> {
        self.queue.pop_front()
    }

    /// The job stopped half-way and goes on after the others, so that a long one holds up nobody.
    pub fn resume(&mut self, job: Job) {
        self.queue.push_back(job);
    }

    /// The job has done all that it was for.
    pub fn finished(&mut self, job: Job) {
        match job {
            Job::Sweep => self.is_sweeping = false,
            Job::Leave => self.is_leaving = false,
            Job::Tiers => self.has_tiers = false,
            Job::Loads => self.has_loads = false,
            _ => {}
        }
    }

    /// What is in the queue, for the audit.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.queue.iter()
    }

    pub(crate) fn is_sweeping(&self) -> bool {
        self.is_sweeping
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }
}

/// Kinds of jobs of which there is one at the most.
const SINGLE_JOBS: usize = 6;
