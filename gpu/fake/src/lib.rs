//! A CUDA driver for machines without a card: device memory is host memory behind addresses that
//! cannot be read, streams are threads, and handles cross processes as files in one directory.
//!
//! Its one invariant: what the documentation forbids never passes in silence. Documented errors
//! return their code; what is undefined succeeds, as it may on a card, and counts as a violation.
//! It shows that calls come in legal order with legal arguments, and that bytes are right; it says
//! nothing about speed, nor about what a card does where the documentation is silent.

#![allow(non_snake_case)]

pub mod abi;
pub mod control;
pub mod copy;
pub mod event;
pub mod gate;
pub mod ipc;
pub mod mem;
pub mod stream;
mod world;
