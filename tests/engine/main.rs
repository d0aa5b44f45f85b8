//! The engine's rules, one by one: tests named by the known failure or the invariant they guard.

mod harness;
mod transcript;
