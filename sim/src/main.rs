//! `kvtide-sim SEED [--all]` replays one run, with its whole transcript where that is asked for;
//! `kvtide-sim --seeds N [--from S]` runs many.

use kvtide_sim::profile::Profile;
use kvtide_sim::reach::{Reach, State};
use kvtide_sim::{Failure, LINES_KEPT, Run, run, run_profile};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--planted") {
        return kvtide_sim::planted::run(&words[1..]);
    }
    match Order::parse(&words) {
        Some(Order::One { seed, all }) => replay(seed, all),
        Some(Order::Many { from, count }) => many(from, count),
        None => {
            eprintln!("usage: kvtide-sim SEED [--all] | kvtide-sim --seeds N [--from S]");
            ExitCode::from(2)
        }
    }
}

enum Order {
    One { seed: u64, all: bool },
    Many { from: u64, count: u64 },
}

impl Order {
    fn parse(words: &[String]) -> Option<Order> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["--seeds", count] => Some(Order::Many { from: 0, count: count.parse().ok()? }),
            ["--seeds", count, "--from", from] | ["--from", from, "--seeds", count] => {
                Some(Order::Many { from: from.parse().ok()?, count: count.parse().ok()? })
            }
            [seed] => Some(Order::One { seed: seed.parse().ok()?, all: false }),
            [seed, "--all"] => Some(Order::One { seed: seed.parse().ok()?, all: true }),
            _ => None,
        }
    }
}

fn replay(seed: u64, all: bool) -> ExitCode {
    let lines_kept = if all { usize::MAX } else { LINES_KEPT };
    match run_profile(Profile::of(seed), lines_kept) {
        Ok(run) => {
            println!("{:#?}", Profile::of(seed));
            println!("seed {seed}: {} events, transcript {:016x}", run.events, run.transcript);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            tell(&failure, usize::MAX);
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, count: u64) -> ExitCode {
    let mut reach = Reach::default();
    let mut events = Vec::new();
    for seed in from..from + count {
        match run(seed) {
            Ok(Run { events: handled, reach: met, .. }) => {
                reach.add(&met);
                events.push(handled);
            }
            Err(failure) => {
                tell(&failure, 40);
                return ExitCode::FAILURE;
            }
        }
    }
    events.sort_unstable();
    let median = events.get(events.len() / 2).copied().unwrap_or_default();
    println!("{count} seeds from {from}: {median} events each (median)");
    for state in State::ALL {
        println!("{:>9}  {}", reach.count(*state), state.name());
    }
    let missed = reach.missed();
    if count >= SEEDS_THAT_REACH_ALL && !missed.is_empty() {
        missed.iter().for_each(|state| eprintln!("never: {}", state.name()));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn tell(failure: &Failure, lines: usize) {
    let from = failure.tail.len().saturating_sub(lines);
    failure.tail[from..].iter().for_each(|line| eprintln!("{line}"));
    eprintln!("{:#?}", Profile::of(failure.seed));
    eprintln!("seed {} failed after {} events: {}", failure.seed, failure.events, failure.rule);
    eprintln!("replay: cargo sim {}", failure.seed);
}

/// So many runs must have met every named state.
const SEEDS_THAT_REACH_ALL: u64 = 200;
