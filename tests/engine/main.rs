//! The engine's rules, one by one: tests named by the known failure or the invariant they guard.

mod bounds;
mod fold;
mod harness;
mod keys;
mod leases;
mod lookups;
mod readers;
mod room;
mod runs;
mod script;
mod stopped;
mod transcript;
mod writers;
