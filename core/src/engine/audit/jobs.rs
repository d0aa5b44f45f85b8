//! Which unfinished work is in the queue, by what it is about.
//!
//! What a job works on may be gone when its turn comes, so a job about nothing is no fault. Two
//! jobs about one thing are, and a thing that is left half done without a job would stay so.

use super::{Violation, at, check};
use crate::engine::Engine;
use crate::engine::jobs::Job;
use crate::names::Connection;
use crate::slots::{SlotName, Slots};
use alloc::vec::Vec;

/// What is to be done for a session.
pub(crate) mod of_session {
    pub(crate) const LOOKUP: u8 = 1;
    pub(crate) const FREE: u8 = 2;
}

/// What is to be done for a copy.
pub(crate) mod of_copy {
    pub(crate) const END: u8 = 1;
    pub(crate) const CONDEMN: u8 = 2;
}

#[derive(Clone, Debug, Default)]
pub(crate) struct JobsSeen {
    sessions: Vec<u8>,
    seeks: Vec<u8>,
    orphans: Vec<u8>,
    copies: Vec<u8>,
    connections: Vec<(Connection, u32)>,
    registrations: Vec<(SlotName, u32)>,
    singles: u8,
}

impl JobsSeen {
    pub(super) fn see(&mut self, engine: &Engine) -> Result<(), Violation> {
        let (sessions, copies) = (&engine.sessions, &engine.copies.copies);
        reset(&mut self.sessions, &sessions.sessions);
        reset(&mut self.seeks, &engine.promote.seeks);
        reset(&mut self.orphans, &sessions.orphans);
        reset(&mut self.copies, copies);
        self.connections.clear();
        self.registrations.clear();
        self.singles = 0;
        for job in engine.jobs.iter() {
            let is_new = match *job {
                Job::Lookup { session } => {
                    let table = &sessions.sessions;
                    mark(&mut self.sessions, table, session, of_session::LOOKUP)
                }
                Job::FreeRange { session } => {
                    mark(&mut self.sessions, &sessions.sessions, session, of_session::FREE)
                }
                Job::EndLeases { orphan } => mark(&mut self.orphans, &sessions.orphans, orphan, 1),
                Job::EndCopy { copy, .. } => mark(&mut self.copies, copies, copy, of_copy::END),
                Job::Condemn { copy } => mark(&mut self.copies, copies, copy, of_copy::CONDEMN),
                // An end that is reported twice is gone over twice.
                Job::EndConnection { connection, left } => {
                    self.connections.push((connection, left));
                    true
                }
                Job::EndInstance { registration, left } => {
                    self.registrations.push((registration, left));
                    true
                }
                Job::Seek { seek } => {
                    mark(&mut self.seeks, &engine.promote.seeks, seek, 1);
                    // A seek may be told to go on by an answer while it waits for its turn.
                    true
                }
                Job::Leave => self.mark_single(LEAVE),
                Job::EmptyWindow => self.mark_single(EMPTY_WINDOW),
                Job::Sweep => self.mark_single(SWEEP),
                Job::Evict => self.mark_single(EVICT),
                Job::Tiers => self.mark_single(TIERS),
                Job::Loads => self.mark_single(LOADS),
            };
            check(is_new, "P3", "two jobs do the same")?;
        }
        let is_evicting = engine.jobs.evict_bytes() > 0;
        check(self.has(EVICT) == is_evicting, "I-37", "a pass and its job do not go together")?;
        let is_sweeping = engine.jobs.is_sweeping();
        let leaves = self.has(LEAVE) || !engine.l1.is_leaving();
        check(leaves, "I-9", "what nothing holds any more stays in L1")?;
        check(self.has(SWEEP) == is_sweeping, "I-49", "a sweep and its job do not go together")
    }

    fn mark_single(&mut self, bit: u8) -> bool {
        let is_new = self.singles & bit == 0;
        self.singles |= bit;
        is_new
    }

    fn has(&self, bit: u8) -> bool {
        self.singles & bit != 0
    }

    pub(crate) fn empties_window(&self) -> bool {
        self.has(EMPTY_WINDOW)
    }

    pub(crate) fn loads(&self) -> bool {
        self.has(LOADS)
    }

    pub(crate) fn sweeps(&self) -> bool {
        self.has(SWEEP)
    }

    pub(crate) fn session(&self, name: SlotName, what: u8) -> bool {
        at(&self.sessions, name) & what != 0
    }

    pub(crate) fn seek(&self, name: SlotName) -> bool {
        at(&self.seeks, name) != 0
    }

    pub(crate) fn orphan(&self, name: SlotName) -> bool {
        at(&self.orphans, name) != 0
    }

    pub(crate) fn copy(&self, name: SlotName, what: u8) -> bool {
        at(&self.copies, name) & what != 0
    }

    /// Whether the copy at this place of an ended connection's list will still be visited.
    pub(crate) fn ends_connection(&self, connection: Connection, place: u32) -> bool {
        self.connections.iter().any(|(other, left)| *other == connection && place < *left)
    }

    /// The same for an ended registration.
    pub(crate) fn ends_registration(&self, registration: SlotName, place: u32) -> bool {
        self.registrations.iter().any(|(other, left)| *other == registration && place < *left)
    }
}

fn reset<T>(flags: &mut Vec<u8>, table: &Slots<T>) {
    flags.clear();
    flags.resize(table.high_water() as usize, 0);
}

/// False where the same was marked before. What is gone is not marked.
fn mark<T>(flags: &mut [u8], table: &Slots<T>, name: SlotName, bit: u8) -> bool {
    if table.find(name).is_none() {
        return true;
    }
    let flag = &mut flags[name.index as usize];
    let is_new = *flag & bit == 0;
    *flag |= bit;
    is_new
}

const EMPTY_WINDOW: u8 = 1;
const SWEEP: u8 = 2;
const EVICT: u8 = 4;
const LEAVE: u8 = 8;
const TIERS: u8 = 16;
const LOADS: u8 = 32;
