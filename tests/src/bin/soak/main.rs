//! `cargo soak KIND`: what proves more the longer it runs, and takes too long for `.ci/run`. Each
//! kind prints what it found as it goes and ends with 1 where that is a fault (docs/testing.md).

mod fuzz;
mod mutants;
mod options;
mod planted;
mod steps;

use options::Options;
use std::process::ExitCode;
use steps::Step;

const HELP: &str = "\
cargo soak KIND [OPTIONS]

  fuzz     every fuzz target, one after the other: speed, coverage by minute, crashes
             --minutes M   for each target (10)
             --target T    this one alone
  sim      many seeds of the simulator
             --seeds N     how many (10000)
             --from S      the first one (0)
  crash    clients and servers killed at random points, under the real client
             --rounds N    how often (50)
  planted  every other test suite under each planted bug: they pass, the simulator alone fails
             [NUMBER…]     these bugs only
  mutants  a sample of mutants of the engine, under its tests and the simulator
             --sample N    how many (300)
             --seed S      of the sample (1)
             --seeds N     of the simulator (20)
  miri     core, mailbox and lane under miri
  tsan     the tests of the shells under ThreadSanitizer

Fuzz, miri and tsan need a nightly toolchain; fuzz needs cargo-fuzz, too.
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((kind, rest)) = words.split_first() else {
        eprint!("{HELP}");
        return ExitCode::from(WRONG_USE);
    };
    if words.iter().any(|word| ["-h", "--help", "help"].contains(&word.as_str())) {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match soak(kind, rest) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(WRONG_USE)
        }
    }
}

/// Whether all went well. An error says why nothing was tried.
fn soak(kind: &str, words: &[String]) -> Result<bool, String> {
    match kind {
        "fuzz" => {
            let options = Options::read(words, &["--minutes", "--target"])?;
            fuzz::run(&options)
        }
        "sim" => {
            let options = Options::read(words, &["--seeds", "--from"])?;
            let (seeds, from) = (options.number("--seeds", 10_000)?, options.number("--from", 0)?);
            Ok(steps::run([sim(seeds, from)]))
        }
        "crash" => {
            let rounds = Options::read(words, &["--rounds"])?.number("--rounds", 50)?;
            Ok(steps::run([crash(rounds)]))
        }
        "miri" => Options::read(words, &[]).map(|_| steps::run(miri())),
        "tsan" => Options::read(words, &[]).map(|_| steps::run(tsan())),
        "planted" => planted::run(words),
        "mutants" => mutants::run(words),
        other => Err(format!("{other}: no such soak; `cargo soak --help` lists them")),
    }
}

fn sim(seeds: u64, from: u64) -> Step {
    let (seeds, from) = (seeds.to_string(), from.to_string());
    let words = ["run", "--release", "-q", "-p", "kvtide-sim", "--", "--seeds", &seeds];
    let words = [&words[..], &["--from", &from]].concat();
    Step::cargo("simulation", &words)
}

fn crash(rounds: u64) -> Step {
    let words = ["test", "-p", "kvtide-tests", "--test", "crash", "--", "--nocapture"];
    Step::cargo("crashes", &words).with("KVTIDE_CRASH_ROUNDS", &rounds.to_string())
}

/// Smaller sizes stand beside the tests, under `cfg!(miri)`.
fn miri() -> Vec<Step> {
    let miri = |name, package| {
        let words = ["+nightly", "miri", "test", "--target-dir", "target/miri", "-p", package];
        Step::cargo(name, &words)
    };
    vec![miri("miri, mailbox and lane", "kvtide-lanes"), miri("miri, core", "kvtide-core")]
}

/// The standard library is built along, so that its locks are seen, too.
fn tsan() -> Vec<Step> {
    let tests: [(&str, &[&str]); 3] = [
        ("threads, mailbox and lane", &["-p", "kvtide-lanes", "--lib"]),
        ("threads, shells", &["-p", "kvtide", "--lib"]),
        ("threads, loopback", &["-p", "kvtide-tests", "--test", "loopback"]),
    ];
    let tsan = |(name, tests): &(&str, &[&str])| {
        let head = ["+nightly", "test", "-Zbuild-std", "--target", TSAN_TARGET];
        let words = [&head[..], &["--target-dir", "target/tsan"], tests].concat();
        let options = concat!("suppressions=", env!("CARGO_MANIFEST_DIR"), "/tsan.txt");
        Step::cargo(name, &words)
            .with("RUSTFLAGS", "-Zsanitizer=thread")
            .with("TSAN_OPTIONS", options)
    };
    tests.iter().map(tsan).collect()
}

const TSAN_TARGET: &str = "x86_64-unknown-linux-gnu";
/// The exit status of a command that was not understood, as that of the other binaries.
const WRONG_USE: u8 = 2;
