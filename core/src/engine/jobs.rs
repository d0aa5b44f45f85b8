//! Work that does not fit one turn: continued by `Alarm::Work`, first come first served.

use crate::engine::copies::Ending;
use crate::slots::SlotName;
use alloc::collections::VecDeque;

/// One piece of unfinished work. What it works on may be gone when its turn comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// A lookup that still probes or touches.
    Lookup { session: SlotName },
    /// Lease cells that nobody owns any more.
    EndLeases { orphan: SlotName },
    /// Locks given back over a long range.
    FreeRange { session: SlotName },
    /// A copy whose objects are let go.
    EndCopy { copy: SlotName, how: Ending },
    /// `clear` gives memory back.
    Sweep,
    /// The eviction tick frees this many bytes more.
    Evict { bytes: u64 },
}

#[derive(Clone, Debug, Default)]
pub struct Jobs {
    queue: VecDeque<Job>,
}

impl Jobs {
    /// A sweep or an eviction pass under way takes in the new reason.
    pub fn push(&mut self, job: Job) {
        match job {
            Job::Sweep if self.queue.contains(&Job::Sweep) => {}
            Job::Evict { bytes } => {
                let running = self.queue.iter_mut().find_map(|job| match job {
                    Job::Evict { bytes } => Some(bytes),
                    _ => None,
                });
                match running {
                    Some(running) => *running = (*running).max(bytes),
                    None => self.queue.push_back(job),
                }
            }
            job => self.queue.push_back(job),
        }
    }

    pub fn take(&mut self) -> Option<Job> {
        self.queue.pop_front()
    }

    /// The job stopped half-way and goes on after the others, so that a long one holds up nobody.
    pub fn resume(&mut self, job: Job) {
        self.queue.push_back(job);
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }
}
