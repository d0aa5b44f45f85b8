//! One order on its way: which steps it takes next, and what came of those before.
//!
//! A job is asked for its next chain until it is over, and shown every chain that has come back.
//! Invariant: it yields exactly one ending, and not before the last chain that reads or writes the
//! arena has come back. A store's comes after what it left is cleared away; the others only close
//! their file afterwards.

use super::engine::{Chain, Step};
use super::load::Load;
use super::memory::BLOCK_BYTES;
use super::store::Store;
use super::upkeep::{Delete, Probe, Scrub};
use crate::arena::{Span, Window};
use kvtide_core::event::{DeleteOutcome, Event, Found, LoadOutcome, StoreOutcome, TierFault};
use kvtide_core::limits::GROW_STEP_BYTES;
use kvtide_core::names::Ticket;
use rustix::io::Errno;

/// How this tier's files are handled.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// By the page cache, where size and place allow.
    pub direct: bool,
    pub can_truncate: bool,
    /// The file system can rename without replacing.
    pub keeps_existing: bool,
    /// On the device before it gets its name.
    pub sync: bool,
    /// Bytes of the first buffered read.
    pub read_ahead: Option<u64>,
}

/// In which order jobs are begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Somebody waits: probes and loads.
    Load,
    Store,
    Upkeep,
}

impl Class {
    pub const ALL: [Class; 3] = [Class::Load, Class::Store, Class::Upkeep];
}

#[derive(Debug)]
pub struct Job {
    pub ticket: Ticket,
    pub work: Work,
    pub is_cancelled: bool,
    /// What came of it, until what it left is cleared away.
    owed: Option<Ending>,
    /// Interruptions that nobody had asked for.
    interruptions: u8,
}

#[derive(Debug)]
pub enum Work {
    Store(Store),
    Load(Load),
    Probe(Probe),
    Delete(Delete),
    Scrub(Scrub),
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    Probed(Option<Vec<Option<Found>>>),
    Stored(StoreOutcome),
    Loaded(LoadOutcome),
    Deleted(DeleteOutcome),
    Scrubbed(Option<u32>),
}

impl Ending {
    pub fn tell(&self, ticket: Ticket, tell: &mut dyn FnMut(Event<'_>)) {
        match self {
            Ending::Probed(found) => {
                tell(Event::ProbeEnded { ticket, found: found.as_deref() });
            }
            Ending::Stored(outcome) => tell(Event::StoreEnded { ticket, outcome: *outcome }),
            Ending::Loaded(outcome) => tell(Event::LoadEnded { ticket, outcome: *outcome }),
            Ending::Deleted(outcome) => tell(Event::DeleteEnded { ticket, outcome: *outcome }),
            Ending::Scrubbed(digest) => tell(Event::ScrubEnded { ticket, digest: *digest }),
        }
    }
}

/// What a chain that has come back means for its job.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// The next chain goes on from there.
    On,
    Ended(Ending),
    /// A step failed, and nothing of what failed is left to be done.
    Failed(Errno),
}

impl Job {
    pub fn new(ticket: Ticket, work: Work) -> Job {
        Job { ticket, work, is_cancelled: false, owed: None, interruptions: 0 }
    }

    pub fn class(&self) -> Class {
        match self.work {
            Work::Probe(_) | Work::Load(_) => Class::Load,
            Work::Store(_) => Class::Store,
            Work::Delete(_) | Work::Scrub(_) => Class::Upkeep,
        }
    }

    /// Payload that its next chain moves, if it may.
    pub fn next_bytes(&self) -> u64 {
        match &self.work {
            Work::Store(store) => store.bytes_left(),
            Work::Load(load) => load.bytes_left(),
            Work::Scrub(scrub) => scrub.bytes_left(),
            Work::Probe(_) | Work::Delete(_) => 0,
        }
    }

    /// The next steps, of at most so many payload bytes. None where it is over.
    pub fn next(&mut self, rules: &Rules, window: &Window, bytes: u64) -> Option<Chain> {
        match &mut self.work {
            Work::Store(store) => store.next(rules, window, bytes),
            Work::Load(load) => load.next(rules, bytes),
            Work::Probe(probe) => probe.next(),
            Work::Delete(delete) => delete.next(),
            Work::Scrub(scrub) => scrub.next(rules),
        }
    }

    /// A chain has come back. The ending, the one time that there is one.
    pub fn took(&mut self, chain: Chain, window: &Window) -> Option<Ending> {
        let came = match &mut self.work {
            Work::Store(store) => store.took(&chain),
            Work::Load(load) => load.took(&chain, window),
            Work::Probe(probe) => probe.took(&chain),
            Work::Delete(delete) => delete.took(&chain),
            Work::Scrub(scrub) => scrub.took(chain),
        };
        match came {
            Came::Ended(ending) => self.told(ending),
            // What is left only tidies up, and ends whether or not somebody has cancelled it.
            Came::On if self.has_ended() => self.owed.take(),
            Came::On if self.is_cancelled => self.give_up(TierFault::Cancelled),
            Came::On => None,
            Came::Failed(error) if is_interruption(error) && !self.is_cancelled => {
                self.interruptions += 1;
                let is_too_much = self.interruptions > INTERRUPTIONS_MAX;
                if is_too_much { self.give_up(TierFault::Io) } else { None }
            }
            Came::Failed(error) => self.give_up(fault(error)),
        }
    }

    /// The ending now, or after the next chain where that clears away what is left.
    fn told(&mut self, ending: Ending) -> Option<Ending> {
        let is_left = matches!(&self.work, Work::Store(store) if store.has_leftovers());
        if is_left {
            self.owed = Some(ending);
            return None;
        }
        Some(ending)
    }

    /// Ends it where it stands; no chain of it is on its way. The ending, unless something is left
    /// to be cleared away first.
    pub fn give_up(&mut self, why: TierFault) -> Option<Ending> {
        let ending = match &mut self.work {
            Work::Store(store) => {
                store.leave();
                Ending::Stored(StoreOutcome::Failed(why))
            }
            Work::Load(load) => {
                load.leave();
                Ending::Loaded(LoadOutcome::Failed(why))
            }
            Work::Probe(probe) => {
                probe.leave();
                Ending::Probed(None)
            }
            Work::Delete(delete) => {
                delete.leave();
                Ending::Deleted(DeleteOutcome::Failed(why))
            }
            Work::Scrub(scrub) => {
                scrub.leave();
                Ending::Scrubbed(None)
            }
        };
        self.told(ending)
    }

    /// Whether what came of it stands: it has yielded its ending, or owes it until what it left is
    /// cleared away.
    pub fn has_ended(&self) -> bool {
        match &self.work {
            Work::Store(store) => store.has_ended(),
            Work::Load(load) => load.has_ended(),
            Work::Probe(probe) => probe.has_ended(),
            Work::Delete(delete) => delete.has_ended(),
            Work::Scrub(scrub) => scrub.has_ended(),
        }
    }
}

/// The next part of a span to transfer: within one registered step of the arena, and not more than
/// `bytes`, which is rounded to what a direct transfer can be cut at.
pub fn next_part(span: Span, done: u64, end: u64, bytes: u64) -> Span {
    let from = span.offset() + done;
    let step_end = (from / GROW_STEP_BYTES + 1) * GROW_STEP_BYTES;
    let at_most = (bytes / BLOCK_BYTES).max(1) * BLOCK_BYTES;
    span.part(done, at_most.min(step_end - from).min(end - done))
}

/// Whether a span can be transferred by the page cache.
pub fn is_aligned(span: Span) -> bool {
    span.offset().is_multiple_of(BLOCK_BYTES)
}

/// A file is left open by a job that has ended.
pub fn closing() -> Chain {
    Chain::loose(vec![Step::Close])
}

fn is_interruption(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::AGAIN | Errno::CANCELED)
}

/// What an error of the system means to the engine.
pub fn fault(error: Errno) -> TierFault {
    match error {
        Errno::NOSPC | Errno::DQUOT => TierFault::NoSpace,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => TierFault::Denied,
        // No file can have that name, which is no fault of the device.
        Errno::NAMETOOLONG | Errno::ILSEQ => TierFault::Denied,
        Errno::CANCELED | Errno::INTR | Errno::AGAIN => TierFault::Cancelled,
        _ => TierFault::Io,
    }
}

const INTERRUPTIONS_MAX: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_and_a_full_quota_are_no_errors_of_the_device() {
        assert_eq!(fault(Errno::NOSPC), TierFault::NoSpace);
        assert_eq!(fault(Errno::DQUOT), TierFault::NoSpace);
        assert_eq!(fault(Errno::ROFS), TierFault::Denied);
        assert_eq!(fault(Errno::NAMETOOLONG), TierFault::Denied);
        assert_eq!(fault(Errno::CANCELED), TierFault::Cancelled);
        assert_eq!(fault(Errno::NOTDIR), TierFault::Io);
    }
}
