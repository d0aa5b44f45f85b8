//! Every seed that once failed, again, in short; and what a seed promises: the same run
//! everywhere. CI runs the whole of them in release.

use kvtide_sim::profile::Profile;
use kvtide_sim::run_profile;

#[test]
fn seeds_that_failed_once_pass() {
    let list = include_str!("../../seeds.txt");
    let seeds = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut replayed = 0;
    for line in seeds {
        let seed = line.split(' ').next().and_then(|word| word.parse().ok());
        let seed = seed.expect("a line begins with its seed");
        if let Err(failure) = run_profile(Profile::short(seed), 200) {
            panic!("{line}\n{}\n{}", failure.tail.join("\n"), failure.rule);
        }
        replayed += 1;
    }
    assert!(replayed > 0, "the list names seeds");
}

/// The number is the same in debug and in release, and on every machine. A change of the
/// simulation or of the engine's decisions changes it.
#[test]
fn i44_a_seed_is_the_same_run_every_time() {
    let run = |seed| run_profile(Profile::short(seed), 0);
    let hashes = |seed| run(seed).map(|run| (run.events, run.transcript)).ok();
    let first = hashes(7);
    assert!(first.is_some(), "seed 7 passes");
    assert_eq!(first, hashes(7));
    assert_ne!(first, hashes(8));
}

/// CI does the same in release.
#[test]
fn i44_seeds_are_the_runs_that_are_listed() {
    if let Err(rule) = kvtide_sim::hashes::check() {
        panic!("{rule}; after a change of decisions: cargo sim --hashes > sim/hashes.txt");
    }
}
