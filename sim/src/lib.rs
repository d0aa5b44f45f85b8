//! The same core under a virtual clock, with faults and an independent model.
//!
//! A seed decides everything: how large the world is, which clients there are, what goes wrong and
//! when. `bench` feeds one event to the engine, audits it and lets `model` judge the answers;
//! `world` is the clients, the network and the clock. Act one is to survive; act two is to heal:
//! then everything ends and nothing leaks (design P4). A run that fails is made as short as it can
//! be by `shrink`.

pub mod bench;
pub mod calls;
pub mod deeds;
pub mod devices;
pub mod driver;
pub mod hashes;
pub mod ledger;
pub mod library;
pub mod many;
pub mod memory;
pub mod model;
pub mod orders;
pub mod panics;
pub mod planted;
pub mod profile;
pub mod reach;
pub mod rest;
pub mod shrink;
pub mod tally;
pub mod tierprofile;
pub mod transcript;
pub mod world;

use kvtide_core::config::Config;
use profile::Profile;
use reach::Reach;
use tally::Tally;
use world::World;

/// A run that kept every promise.
#[derive(Clone, Debug)]
pub struct Run {
    pub seed: u64,
    pub events: u64,
    pub transcript: u64,
    pub reach: Reach,
    /// How often each fault has come.
    pub faults: Tally,
}

/// A run that did not.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub events: u64,
    pub transcript: u64,
    pub rule: String,
    pub faults: Tally,
    /// The last lines of the transcript.
    pub tail: Vec<String>,
}

/// Runs one seed. A panic of the engine is a failure like any other.
pub fn run(seed: u64) -> Result<Run, Box<Failure>> {
    run_profile(Profile::of(seed), LINES_KEPT)
}

/// Runs one seed on a configuration that differs in something.
pub fn run_changed(seed: u64, change: impl FnOnce(&mut Config)) -> Result<Run, Box<Failure>> {
    let mut profile = Profile::of(seed);
    change(&mut profile.config);
    run_profile(profile, LINES_KEPT)
}

/// Runs a profile; `lines_kept` bounds the transcript that a failure shows. Prints nothing.
pub fn run_profile(profile: Profile, lines_kept: usize) -> Result<Run, Box<Failure>> {
    let seed = profile.seed;
    let mut world = World::new(profile, lines_kept);
    let outcome = panics::caught(|| world.run());
    let (bench, faults) = (world.bench(), world.tally.clone());
    let (events, transcript) = (bench.events, bench.transcript.hash());
    match outcome {
        Ok(()) => Ok(Run { seed, events, transcript, reach: bench.reach.clone(), faults }),
        Err(rule) => {
            let tail = bench.transcript.lines().map(String::from).collect();
            Err(Box::new(Failure { seed, events, transcript, rule, faults, tail }))
        }
    }
}

/// Lines of transcript that a failure shows.
pub const LINES_KEPT: usize = 200;
