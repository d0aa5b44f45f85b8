//! Operation lists on the engine, judged by the simulation's model after every event.
//!
//! Every test lets the bench check everything; its name says which invariant of spec/storage §8.2,
//! or which known failure, it leans on, and its own assertions say what that means to a client.

mod driver;
mod eviction;
mod facts;
mod fold;
mod leases;
mod lookups;
mod memory;
mod mixed;
mod regressions;
mod seeds;
