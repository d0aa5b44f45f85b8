//! The same core under a virtual clock, with faults and an independent model.
//!
//! A seed decides everything: how large the world is, which clients there are, what goes wrong and
//! when. `bench` feeds one event to the engine, audits it and lets `model` judge the answers;
//! `world` is the clients, the network and the clock. Act one is to survive; act two is to heal:
//! then everything ends and nothing leaks (design P4).

pub mod bench;
pub mod calls;
pub mod driver;
pub mod memory;
pub mod model;
pub mod planted;
pub mod profile;
pub mod reach;
pub mod transcript;
pub mod world;

use profile::Profile;
use reach::Reach;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

/// A run that kept every promise.
#[derive(Clone, Debug)]
pub struct Run {
    pub seed: u64,
    pub events: u64,
    pub transcript: u64,
    pub reach: Reach,
}

/// A run that did not.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub events: u64,
    pub rule: String,
    /// The last lines of the transcript.
    pub tail: Vec<String>,
}

/// Runs one seed. A panic of the engine is a failure like any other.
pub fn run(seed: u64) -> Result<Run, Box<Failure>> {
    run_profile(Profile::of(seed), LINES_KEPT)
}

/// Runs a profile; `lines_kept` bounds the transcript that a failure shows.
pub fn run_profile(profile: Profile, lines_kept: usize) -> Result<Run, Box<Failure>> {
    let seed = profile.seed;
    let mut world = World::new(profile, lines_kept);
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let bench = world.bench();
    let rule = match outcome {
        Ok(Ok(())) => {
            return Ok(Run {
                seed,
                events: bench.events,
                transcript: bench.transcript.hash(),
                reach: bench.reach.clone(),
            });
        }
        Ok(Err(rule)) => rule,
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(words) => format!("panic: {words}"),
            None => match panic.downcast_ref::<&str>() {
                Some(words) => format!("panic: {words}"),
                None => "panic".into(),
            },
        },
    };
    let tail = bench.transcript.lines().map(String::from).collect();
    Err(Box::new(Failure { seed, events: bench.events, rule, tail }))
}

/// Lines of transcript that a failure shows.
pub const LINES_KEPT: usize = 200;
