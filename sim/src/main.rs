//! `kvtide-sim SEED` runs one seed and, where it fails, looks for the shortest list of events that
//! still fails; `--seeds` and `--minutes` run many over all cores. See docs/testing.md.

use kvtide_sim::many::{Totals, run_many, run_these, seed_of, seeds_in};
use kvtide_sim::profile::Profile;
use kvtide_sim::reach::State;
use kvtide_sim::shrink::shrink;
use kvtide_sim::tally::Tally;
use kvtide_sim::{Failure, LINES_KEPT, hashes, run_profile};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--planted") {
        return kvtide_sim::planted::run(&words[1..]);
    }
    match Order::parse(&words) {
        Some(Order::One { seed, all }) => one(seed, all),
        Some(Order::Many { from, until }) => many(from, until),
        Some(Order::Listed { file }) => listed(&file),
        Some(Order::MakeHashes) => match hashes::make() {
            Ok(list) => {
                print!("{list}");
                ExitCode::SUCCESS
            }
            Err(rule) => complain(&rule),
        },
        Some(Order::CheckHashes) => match hashes::check() {
            Ok(()) => ExitCode::SUCCESS,
            Err(rule) => complain(&format!("another run than committed: {rule}")),
        },
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

const USAGE: &str = "\
usage: kvtide-sim SEED [--all]
       kvtide-sim --seeds N | --minutes M [--from SEED | --seeds-of TEXT]
       kvtide-sim --list FILE
       kvtide-sim --hashes | --check-hashes";

enum Order {
    One { seed: u64, all: bool },
    Many { from: u64, until: Until },
    Listed { file: String },
    MakeHashes,
    CheckHashes,
}

#[derive(Clone, Copy)]
enum Until {
    Seeds(u64),
    Minutes(u64),
}

impl Order {
    fn parse(words: &[String]) -> Option<Order> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["--hashes"] => return Some(Order::MakeHashes),
            ["--check-hashes"] => return Some(Order::CheckHashes),
            ["--list", file] => return Some(Order::Listed { file: file.into() }),
            [seed] => return Some(Order::One { seed: seed.parse().ok()?, all: false }),
            [seed, "--all"] => return Some(Order::One { seed: seed.parse().ok()?, all: true }),
            _ => {}
        }
        let (mut from, mut until) = (0, None);
        for pair in words.chunks(2) {
            match *pair {
                ["--seeds", count] => until = Some(Until::Seeds(count.parse().ok()?)),
                ["--minutes", minutes] => until = Some(Until::Minutes(minutes.parse().ok()?)),
                ["--from", seed] => from = seed.parse().ok()?,
                ["--seeds-of", text] => from = seed_of(text),
                _ => return None,
            }
        }
        Some(Order::Many { from, until: until? })
    }
}

fn complain(rule: &str) -> ExitCode {
    eprintln!("{rule}");
    ExitCode::FAILURE
}

fn one(seed: u64, all: bool) -> ExitCode {
    let profile = Profile::of(seed);
    println!("{profile:#?}");
    let lines_kept = if all { usize::MAX } else { LINES_KEPT };
    match run_profile(profile.clone(), lines_kept) {
        Ok(run) => {
            print_faults(&run.faults);
            println!("seed {seed}: {} events, transcript {:016x}", run.events, run.transcript);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            print_faults(&failure.faults);
            tell(&failure, usize::MAX);
            match shrink(profile) {
                Some(shrunk) => {
                    let (left, of) = (shrunk.left, shrunk.of);
                    eprintln!("\nthe shortest that still fails, {left} of {of} deeds:");
                    shrunk.lines.iter().for_each(|line| eprintln!("{line}"));
                    eprintln!("{}", shrunk.rule);
                }
                None => eprintln!("\nwhat its clients did does not fail again without them"),
            }
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, until: Until) -> ExitCode {
    let cores = cores();
    let began = now();
    let totals = run_many(from, cores, |nth| match until {
        Until::Seeds(count) => nth < count,
        Until::Minutes(minutes) => began.elapsed() < Duration::from_secs(60 * minutes),
    });
    let seconds = began.elapsed().as_secs_f64();
    print_totals(from, &totals, seconds * cores as f64);
    if let Some(failure) = totals.failure {
        tell(&failure, 40);
        return ExitCode::FAILURE;
    }
    let missed = totals.reach.missed();
    if totals.seeds >= SEEDS_THAT_REACH_ALL && !missed.is_empty() {
        missed.iter().for_each(|state| eprintln!("never: {}", state.name()));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Every seed of a list, whole.
fn listed(file: &str) -> ExitCode {
    let Some(seeds) = std::fs::read_to_string(file).ok().and_then(|list| seeds_in(&list)) else {
        return complain(&format!("{file} is no list of seeds"));
    };
    let totals = run_these(|nth| seeds.get(nth as usize).copied(), cores());
    match totals.failure {
        Some(failure) => {
            tell(&failure, 40);
            ExitCode::FAILURE
        }
        None => {
            println!("{} seeds of {file}: {} events", totals.seeds, totals.sum());
            ExitCode::SUCCESS
        }
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn print_totals(from: u64, totals: &Totals, core_seconds: f64) {
    print_faults(&totals.faults);
    println!("states met:");
    for state in State::ALL {
        println!("{:>9}  {}", totals.reach.count(*state), state.name());
    }
    let (seeds, median, sum) = (totals.seeds, totals.median(), totals.sum());
    println!("{seeds} seeds from {from}: {sum} events, {median} each (median)");
    println!("{:.0} events per second and core", sum as f64 / core_seconds);
}

fn print_faults(faults: &Tally) {
    println!("faults that came:");
    faults.iter().for_each(|(what, count)| println!("{count:>9}  {what}"));
}

fn tell(failure: &Failure, lines: usize) {
    let from = failure.tail.len().saturating_sub(lines);
    failure.tail[from..].iter().for_each(|line| eprintln!("{line}"));
    eprintln!("{:#?}", Profile::of(failure.seed));
    let Failure { seed, events, transcript, rule, .. } = failure;
    eprintln!("seed {seed} failed after {events} events, transcript {transcript:016x}: {rule}");
    eprintln!("replay: cargo sim {seed}");
}

#[expect(clippy::disallowed_methods, reason = "how long a run takes is the real clock's to say")]
fn now() -> Instant {
    Instant::now()
}

/// So many runs must have met every named state.
const SEEDS_THAT_REACH_ALL: u64 = 200;
