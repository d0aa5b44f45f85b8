//! Other people's bytes at rest and inside messages: names of objects, pickled tensors.
//!
//! The one invariant: what is read here was written by somebody else, so nothing in it makes this
//! panic, and nothing in it decides how much memory is used.

pub mod index;
pub mod names;
pub mod pickle;
