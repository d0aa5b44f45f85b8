//! Replays every input of `fuzz/seeds` through its fuzz target, and small changes of each: a byte
//! flipped, the end cut off. What a fuzzer once found stays found without one.

#[path = "../fuzz/src/lib.rs"]
mod targets;

use std::fs;
use std::path::{Path, PathBuf};

fn seeds(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{target}: {error}"));
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_seed_passes_its_target() {
    for (target, run) in targets::TARGETS {
        let seeds = seeds(target);
        assert!(!seeds.is_empty(), "{target} has seeds");
        for path in seeds {
            let seed = fs::read(&path).expect("a seed can be read");
            // Printed with a failure only: the seed that was running.
            println!("{}", path.display());
            run(&seed);
        }
    }
}

#[test]
fn neighbours_of_seeds_pass_too() {
    for (target, run) in targets::TARGETS {
        for path in seeds(target) {
            let seed = fs::read(&path).expect("a seed can be read");
            println!("{}", path.display());
            let most = neighbours_max(target);
            for at in (0..seed.len()).step_by(seed.len().div_ceil(most).max(1)) {
                run(&seed[..at]);
                for flip in [0x01, 0x80, 0xff] {
                    let mut changed = seed.clone();
                    changed[at] ^= flip;
                    run(&changed);
                }
            }
        }
    }
}

/// Of how many places of a seed neighbours are tried: whole runs of the engine take their time.
fn neighbours_max(target: &str) -> usize {
    if target == "engine" { 6 } else { 256 }
}

#[test]
fn the_committed_corpus_stays_small() {
    let mut bytes = 0;
    for (target, _) in targets::TARGETS {
        for path in seeds(target) {
            let seed = fs::metadata(&path).expect("a seed can be read").len();
            assert!(seed <= SEED_BYTES_MAX, "{}: {seed} bytes", path.display());
            bytes += seed;
        }
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "{bytes} bytes of seeds");
}

const SEED_BYTES_MAX: u64 = 16 << 10;
const CORPUS_BYTES_MAX: u64 = 300_000;

#[test]
fn every_folder_of_seeds_has_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let name = entry.expect("the folder can be read").file_name();
        let known = targets::TARGETS.iter().any(|(target, _)| name == *target);
        assert!(known, "{name:?} is replayed by nobody");
    }
}
