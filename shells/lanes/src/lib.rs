//! The only two structures that cross threads (design §2).
//!
//! * [`mailbox`]: many threads put, the reactor takes. A put into an empty mailbox wakes the
//!   reactor through a closure that its owner gave.
//! * [`lane`]: one thread puts, one takes. The taking side sleeps in [`lane::Consumer::wait`], or
//!   is woken by a closure where it has a poll of its own.
//!
//! Both are bounded, and full is an answer: a put never waits for room, it hands the value back.
//! Both sides see the end of the other. The one invariant: a value that was accepted is taken or
//! dropped with the receiver, and whoever takes is woken after it was put.
//!
//! Wakers are called without the lock held, so there is no order of locks to keep (F06).
#![forbid(unsafe_code)]

pub mod lane;
pub mod mailbox;

mod queue;
mod sync;

pub use queue::Refused;
