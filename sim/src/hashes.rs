//! A seed is the same run everywhere: in debug and in release, on every machine. A few short runs
//! and the hashes of their transcripts are committed in `sim/hashes.txt`; `cargo test` compares
//! them as it is built, CI once more in release.
//!
//! A change of the simulation, or of the engine's decisions, changes the list:
//! `cargo sim --hashes > sim/hashes.txt`.

use crate::profile::Profile;
use crate::run_profile;
use std::fmt::Write;

const LIST: &str = include_str!("../hashes.txt");

/// The list as this build makes it.
pub fn make() -> Result<String, String> {
    let mut list =
        String::from("# Seed, events and transcript hash of short runs: sim/src/hashes.rs.\n");
    for seed in 0..SEEDS {
        let run = run_profile(Profile::short(seed), 0)
            .map_err(|failure| format!("seed {seed}: {}", failure.rule))?;
        writeln!(list, "{seed} {} {:016x}", run.events, run.transcript)
            .expect("a string takes everything");
    }
    Ok(list)
}

/// Compares this build with the committed list.
pub fn check() -> Result<(), String> {
    let made = make()?;
    for (made, listed) in made.lines().zip(LIST.lines()) {
        if made != listed {
            return Err(format!("{made} is listed as {listed}"));
        }
    }
    if made == LIST { Ok(()) } else { Err("the list has another length".into()) }
}

const SEEDS: u64 = 6;
