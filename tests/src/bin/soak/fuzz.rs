//! Every fuzz target for a while, with what it reached by the minute: a target whose coverage still
//! grows in its last minutes has not run for long enough.

use crate::options::Options;
use crate::steps::nice_cargo;
use kvtide_tests::child::{Finished, Watched, run as run_to_end, tail};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether no target found anything.
pub fn run(options: &Options) -> Result<bool, String> {
    let minutes = options.number("--minutes", 10)?.max(1);
    let mut targets = targets()?;
    if let Some(wanted) = options.text("--target") {
        if !targets.iter().any(|target| target == wanted) {
            return Err(format!("{wanted}: no such target; there are {}", targets.join(", ")));
        }
        targets.retain(|target| target == wanted);
    }
    build()?;
    let mut found = Vec::new();
    for target in &targets {
        println!("== {target}, {minutes} minutes");
        match soak(target, minutes) {
            Ok(report) => {
                println!("{target}: {}", report.shown());
                if !report.is_clean() {
                    found.push(target.as_str());
                }
            }
            Err(why) => {
                println!("{target}: {why}");
                found.push(target);
            }
        }
    }
    match found.is_empty() {
        true => println!("fuzz: {} targets found nothing", targets.len()),
        false => println!("fuzz: look at {}", found.join(", ")),
    }
    Ok(found.is_empty())
}

/// Every target by the name of its file.
fn targets() -> Result<Vec<String>, String> {
    let mut targets: Vec<String> = names(&folder("fuzz_targets"))
        .into_iter()
        .filter_map(|name| Some(name.to_str()?.strip_suffix(".rs")?.to_string()))
        .collect();
    targets.sort();
    if targets.is_empty() { Err("fuzz/fuzz_targets holds no target".into()) } else { Ok(targets) }
}

fn build() -> Result<(), String> {
    println!("== build");
    let mut command = nice_cargo();
    let built = run_to_end(command.args(["+nightly", "fuzz", "build"]), BUILD_TIME_MAX)?;
    if built.code != 0 || built.out_of_time {
        let end = tail(&built.output, 40);
        return Err(format!("{end}\ncargo +nightly fuzz build ended with {}", built.code));
    }
    Ok(())
}

/// What came of one target.
struct Report {
    /// Where it stood after each minute, and in the end.
    pulses: Vec<Pulse>,
    corpus_before: usize,
    corpus_after: usize,
    /// Inputs that broke something.
    crashes: Vec<PathBuf>,
    finished: Finished,
}

/// One line of the fuzzer's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pulse {
    executions: u64,
    coverage: u64,
    features: u64,
}

fn soak(target: &str, minutes: u64) -> Result<Report, String> {
    let (corpus, seeds) = (folder("corpus").join(target), folder("seeds").join(target));
    let artifacts = folder("artifacts").join(target);
    fs::create_dir_all(&corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
    let known = names(&artifacts);
    let corpus_before = names(&corpus).len();
    let mut command = nice_cargo();
    command.args(["+nightly", "fuzz", "run", target]).args([&corpus, &seeds]).arg("--");
    command.arg(format!("-max_total_time={}", minutes * 60));
    command.args(["-print_final_stats=1", "-timeout=60", "-rss_limit_mb=4096"]);
    command.arg(format!("-max_len={}", longest(target)));
    let mut child = Watched::start(&mut command).map_err(|error| format!("cargo: {error}"))?;
    let mut pulses = Vec::new();
    let mut ended = false;
    while !ended && (pulses.len() as u64) < minutes + PATIENCE_MINUTES {
        ended = child.wait(MINUTE).map_err(|error| format!("cargo: {error}"))?.is_some();
        let pulse = last_pulse(&child.output()).unwrap_or_default();
        println!("{:>3} min  {}", pulses.len() + 1, pulse.shown());
        pulses.push(pulse);
    }
    let finished = child.finish(Duration::ZERO).map_err(|error| format!("cargo: {error}"))?;
    let crashes = names(&artifacts).difference(&known).map(|name| artifacts.join(name)).collect();
    let corpus_after = names(&corpus).len();
    Ok(Report { pulses, corpus_before, corpus_after, crashes, finished })
}

impl Report {
    fn is_clean(&self) -> bool {
        self.crashes.is_empty() && self.finished.code == 0 && !self.finished.out_of_time
    }

    fn shown(&self) -> String {
        let last = self.pulses.last().copied().unwrap_or_default();
        // A minute in which nothing new was reached lies on the plateau.
        let grew = self.pulses.windows(2).rposition(|two| two[0].coverage < two[1].coverage);
        let plateau = match grew {
            Some(at) => format!("new coverage until minute {}", at + 2),
            None => "no new coverage after the first minute".to_string(),
        };
        let mut text = format!(
            "{} executions, {} a second; coverage {}, {plateau}; corpus {} (+{}); {} crashes",
            last.executions,
            stat(&self.finished.output, "average_exec_per_sec").unwrap_or_default(),
            last.coverage,
            self.corpus_after,
            self.corpus_after.saturating_sub(self.corpus_before),
            self.crashes.len(),
        );
        for crash in &self.crashes {
            text.push_str(&format!("\n  {}", crash.display()));
        }
        if !self.is_clean() {
            text.push_str(&format!("\n{}", tail(&self.finished.output, 60)));
        }
        text
    }
}

impl Pulse {
    /// `#4096 pulse cov: 312 ft: 901 corp: 45/2kb lim: 80 exec/s: 2048 rss: 41Mb`
    fn of(line: &str) -> Option<Pulse> {
        let executions = line.trim_start().strip_prefix('#')?;
        let words: Vec<&str> = executions.split_whitespace().collect();
        let after = |name: &str| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1)?.parse().ok()
        };
        Some(Pulse {
            executions: words.first()?.trim_end_matches(':').parse().ok()?,
            coverage: after("cov:")?,
            features: after("ft:")?,
        })
    }

    fn shown(&self) -> String {
        let Pulse { executions, coverage, features } = self;
        format!("{executions:>10} executions, coverage {coverage}, features {features}")
    }
}

fn last_pulse(output: &str) -> Option<Pulse> {
    output.lines().rev().find_map(Pulse::of)
}

/// A number of the closing statistics.
fn stat(output: &str, name: &str) -> Option<u64> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("stat::"));
    let named = lines.filter_map(|line| line.split_once(':')).find(|(each, _)| *each == name);
    named.and_then(|(_, number)| number.trim().parse().ok())
}

/// Longest input: a list of events has an end, a decoder is given more.
fn longest(target: &str) -> usize {
    if target == "engine" { 4 + 4 * 400 } else { 8192 }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(name)
}

/// What lies in a folder; nothing where there is none.
fn names(folder: &Path) -> BTreeSet<OsString> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}

const MINUTE: Duration = Duration::from_secs(60);
/// Ten targets with the instrumented core, on two cores that do other things as well.
const BUILD_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// For reading the corpus, before the fuzzer counts its time, and for its last input.
const PATIENCE_MINUTES: u64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzzers_lines_are_read() {
        let output = concat!(
            "INFO: seed corpus: files: 9\n",
            "#10\tINITED cov: 300 ft: 800 corp: 9/1kb exec/s: 0 rss: 40Mb\n",
            "#4096\tpulse  cov: 312 ft: 901 corp: 45/2kb lim: 80 exec/s: 2048 rss: 41Mb\n",
            "Done 5000 runs in 3 second(s)\n",
            "stat::number_of_executed_units: 5000\n",
            "stat::average_exec_per_sec:     1666\n",
        );
        let last = Pulse { executions: 4096, coverage: 312, features: 901 };
        assert_eq!(last_pulse(output), Some(last));
        assert_eq!(stat(output, "average_exec_per_sec"), Some(1666));
        assert_eq!(stat(output, "slowest_unit_time_sec"), None);
    }

    #[test]
    fn every_target_is_found() {
        let targets = targets().expect("there are targets");
        assert!(targets.iter().any(|target| target == "engine"), "{targets:?}");
    }
}
