//! The pure core of kvtide.
//!
//! Events come in, effects and facts go out; nothing here waits, fails, asks the time or touches a
//! byte of payload. `engine` decides, `front` turns requests into what the engine understands,
//! `wire` and `format` read and write other people's bytes, `metrics` turns facts into
//! measurements, `recording` keeps a run so that it can be run again.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[macro_use]
pub mod planted;

pub mod bits;
pub mod chains;
pub mod config;
pub mod effect;
pub mod engine;
pub mod event;
pub mod fact;
pub mod format;
pub mod front;
pub mod limits;
pub mod lists;
pub mod metrics;
pub mod names;
pub mod pages;
pub mod policy;
pub mod recording;
pub mod rng;
pub mod slots;
pub mod time;
pub mod wire;

mod map;

pub use map::{Map, SeededHash, map_with_capacity};
