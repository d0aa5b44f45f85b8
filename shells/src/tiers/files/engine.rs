//! What a tier of files asks of the system, whoever carries it out: a chain of steps on one file.
//!
//! Two engines do the same work: a ring, and worker threads where there is no ring to be had. The
//! one invariant: a chain that was begun comes back exactly once, with an outcome for every step,
//! and whatever the system reads or writes belongs to the engine until then.

use super::folders::Folder;
use super::memory::{Memory, Seen};
use super::ring::Ring;
use super::threads::Threads;
use mio::{Registry, Token};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What a step came to: what the system call would have returned.
pub type Outcome = Result<u32, Errno>;

/// One system call. A chain has one file, which `Open` opens and all others but those that name a
/// file are about.
#[derive(Debug)]
pub enum Step {
    Open {
        folder: Folder,
        name: Arc<CStr>,
        how: How,
    },
    /// Where `may_end` is set, fewer bytes than were asked for do not end the chain.
    Read {
        into: Memory,
        offset: u64,
        direct: bool,
        may_end: bool,
    },
    Write {
        from: Memory,
        offset: u64,
        direct: bool,
    },
    Truncate {
        bytes: u64,
    },
    Sync,
    Rename {
        from: (Folder, Arc<CStr>),
        to: (Folder, Arc<CStr>),
        replace: bool,
    },
    Remove {
        folder: Folder,
        name: Arc<CStr>,
    },
    /// What is there under a name.
    Look {
        folder: Folder,
        name: Arc<CStr>,
        seen: Box<Seen>,
    },
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Read {
        direct: bool,
    },
    /// There must be nothing under this name.
    Create {
        direct: bool,
    },
}

/// Steps that are taken one after the other.
#[derive(Debug, Default)]
pub struct Chain {
    pub steps: Vec<Step>,
    /// Once it has come back: one for each step. `Errno::CANCELED` where it was not taken, because
    /// one before it failed or fell short.
    pub outcomes: Vec<Outcome>,
    /// Every step is taken, whatever came of the others, in any order.
    pub is_loose: bool,
}

impl Chain {
    pub fn of(steps: Vec<Step>) -> Chain {
        Chain { steps, outcomes: Vec::new(), is_loose: false }
    }

    pub fn loose(steps: Vec<Step>) -> Chain {
        Chain { steps, outcomes: Vec::new(), is_loose: true }
    }
}

/// Payload that was moved, by the way it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub registered_direct_bytes: u64,
    pub direct_bytes: u64,
    pub buffered_bytes: u64,
}

impl Moved {
    pub fn add(&mut self, bytes: u32, direct: bool, registered: bool) {
        let sum = match (direct, registered) {
            (true, true) => &mut self.registered_direct_bytes,
            (true, false) => &mut self.direct_bytes,
            (false, _) => &mut self.buffered_bytes,
        };
        *sum += u64::from(bytes);
    }
}

#[derive(Debug)]
pub enum Engine {
    Ring(Box<Ring>),
    Threads(Threads),
}

impl Engine {
    /// Whether a chain of so many steps can be begun now.
    pub fn has_room(&mut self, steps: usize) -> bool {
        match self {
            Engine::Ring(ring) => ring.has_room(steps),
            Engine::Threads(threads) => threads.has_room(),
        }
    }

    /// Begins a chain on the file of a place, which has none under way.
    pub fn begin(&mut self, place: usize, chain: Chain) {
        match self {
            Engine::Ring(ring) => ring.begin(place, chain),
            Engine::Threads(threads) => threads.begin(place, chain),
        }
    }

    /// Ends the chain of a place early if that can be done.
    pub fn cancel(&mut self, place: usize) {
        match self {
            Engine::Ring(ring) => ring.cancel(place),
            Engine::Threads(_) => {}
        }
    }

    /// Hands over what was begun. False where some of it has to wait for another turn.
    pub fn flush(&mut self) -> bool {
        match self {
            Engine::Ring(ring) => ring.flush(),
            Engine::Threads(_) => true,
        }
    }

    /// Appends the chains that have come back, with their places.
    pub fn collect(&mut self, back: &mut Vec<(usize, Chain)>) {
        match self {
            Engine::Ring(ring) => ring.collect(back),
            Engine::Threads(threads) => threads.collect(back),
        }
    }

    /// Waits until there may be something to collect. For the start only.
    pub fn wait(&mut self, at_most: Duration) {
        match self {
            Engine::Ring(ring) => ring.wait(at_most),
            Engine::Threads(threads) => threads.wait(at_most),
        }
    }

    /// What wakes the poll.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Engine::Ring(ring) => ring.register(registry, token),
            // They call `Terms::wake`.
            Engine::Threads(_) => Ok(()),
        }
    }

    /// Whether files can be cut on their way.
    pub fn can_truncate(&self) -> bool {
        match self {
            Engine::Ring(ring) => ring.can_truncate(),
            Engine::Threads(_) => true,
        }
    }

    pub fn moved(&self) -> Moved {
        match self {
            Engine::Ring(ring) => ring.moved(),
            Engine::Threads(threads) => threads.moved(),
        }
    }

    /// Counts from here on.
    pub fn forget_moved(&mut self) {
        match self {
            Engine::Ring(ring) => ring.forget_moved(),
            Engine::Threads(threads) => threads.forget_moved(),
        }
    }

    pub fn is_idle(&self) -> bool {
        match self {
            Engine::Ring(ring) => ring.is_idle(),
            Engine::Threads(threads) => threads.is_idle(),
        }
    }
}
