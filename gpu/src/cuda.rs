//! The CUDA driver: cards, memory that other processes export, streams, events and copies.
//!
//! [`probe`] says in one sentence why there is no driver, or gives a [`Driver`]. A [`Card`] is
//! found by its uuid. An engine's tensors become [`Region`]s, host memory becomes [`Pinned`], and
//! an [`Instance`] copies between the two on a stream for each direction.
//!
//! Its one invariant: no address is made of a number that a peer sent before that number was
//! checked against memory that is open, and no memory is let go while a ticket is in flight on it.
//!
//! Nothing here panics because of a driver: entry points are looked up once, as optional functions
//! that return plain numbers. No type of the binding leaves this module.

mod copy;
mod driver;
mod event;
mod instance;
mod memory;
mod probe;
mod stream;

pub use copy::{Direction, Rows, Run, Work};
pub use event::{EventForm, EventHandle};
pub use instance::{Instance, InstanceSpec, Outcome, Refused, Sink, StillInFlight, Submitted};
pub use memory::{MemoryFault, Pinned, Region, RegionSource, TorchCounter};
pub use probe::{Absent, Card, CardFault, CardInfo, Driver, probe};

use std::fmt;

/// A call into the driver that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    pub call: &'static str,
    pub code: u32,
}

impl Failed {
    /// What the code means, where it is one that we meet. Asking the driver would be one more call
    /// into something that has just failed.
    pub fn meaning(self) -> &'static str {
        match self.code {
            1 => "invalid value",
            2 => "out of memory",
            3 => "not initialized",
            34 => "a stub library",
            100 => "no device",
            101 => "invalid device",
            201 => "invalid context",
            205 => "map failed",
            208 => "already mapped",
            400 => "invalid handle",
            600 => "not ready",
            700 => "illegal address",
            712 => "host memory already registered",
            713 => "host memory not registered",
            800 => "not permitted",
            801 => "not supported",
            _ => "see the driver's list",
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with {} ({})", self.call, self.code, self.meaning())
    }
}

impl std::error::Error for Failed {}

const NOT_READY: u32 = 600;
const NOT_SUPPORTED: u32 = 801;
