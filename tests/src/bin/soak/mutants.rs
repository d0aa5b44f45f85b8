//! Mutants of the engine: small changes that a machine makes. One that no test and no simulated
//! seed notices is a rule that nothing guards, or no rule at all (docs/mutants.md).
//!
//! The sample is the same for the same tree and seed. Every mutant is tried in the working tree
//! itself, so that one build serves all; whatever happens, the file is put back.

use kvtide_core::rng::Rng;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tries a sample of mutants. Whether none survived.
pub fn run(words: &[String]) -> Result<bool, String> {
    let order =
        Order::parse(words).ok_or("cargo soak mutants [--sample N] [--seed S] [--seeds N]")?;
    let mut mutants = list()?;
    let all = mutants.len();
    shuffle(&mut mutants, order.seed);
    mutants.truncate(order.sample);
    println!("{} of {all} mutants, sample {}", mutants.len(), order.seed);
    if let Some(step) = first_failure(order.seeds)? {
        return Err(format!("without a mutant: {step} fails"));
    }
    let mut survivors = 0;
    for mutant in &mutants {
        let verdict = mutant.try_out(order.seeds)?;
        survivors += verdict.is_none() as usize;
        println!("{}: {}", verdict.as_deref().unwrap_or("SURVIVED"), mutant.name);
    }
    println!("{survivors} of {} survived", mutants.len());
    Ok(survivors == 0)
}

struct Order {
    sample: usize,
    seed: u64,
    seeds: u64,
}

impl Order {
    fn parse(words: &[String]) -> Option<Order> {
        let mut order = Order { sample: 300, seed: 1, seeds: 20 };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let number: u64 = words.next()?.parse().ok()?;
            match word.as_str() {
                "--sample" => order.sample = number as usize,
                "--seed" => order.seed = number,
                "--seeds" => order.seeds = number,
                _ => return None,
            }
        }
        Some(order)
    }
}

/// A part of a file, and what stands there instead.
struct Mutant {
    name: String,
    file: PathBuf,
    /// Line and column of the first character, and of the one after the last; from 1.
    from: (usize, usize),
    to: (usize, usize),
    with: String,
}

impl Mutant {
    /// As `cargo mutants --list --json` describes it.
    fn read(value: &Value) -> Option<Mutant> {
        let place = |end: &str| {
            let end = &value["span"][end];
            Some((end["line"].as_u64()? as usize, end["column"].as_u64()? as usize))
        };
        Some(Mutant {
            name: value["name"].as_str()?.to_string(),
            file: root().join(value["file"].as_str()?),
            from: place("start")?,
            to: place("end")?,
            with: value["replacement"].as_str()?.to_string(),
        })
    }

    /// What notices it; none where it survives.
    fn try_out(&self, seeds: u64) -> Result<Option<String>, String> {
        let source = fs::read_to_string(&self.file).map_err(|error| error.to_string())?;
        let _kept = Kept { file: &self.file, source: &source };
        let (from, to) = (offset(&source, self.from), offset(&source, self.to));
        let changed = [&source[..from], &self.with, &source[to..]].concat();
        fs::write(&self.file, changed).map_err(|error| error.to_string())?;
        first_failure(seeds)
    }
}

/// Puts a file back when it goes, also where the soak ends half-way with a panic.
struct Kept<'a> {
    file: &'a Path,
    source: &'a str,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.file, self.source) {
            eprintln!("{} could not be put back: {error}", self.file.display());
        }
    }
}

/// The first step that fails, cheapest first.
fn first_failure(seeds: u64) -> Result<Option<String>, String> {
    let seeds = seeds.to_string();
    let steps: [(&str, &[&str]); 4] = [
        ("does not build", &["check", "-q", "-p", "kvtide-core"]),
        ("core", &["test", "-q", "-p", "kvtide-core"]),
        ("simulation", &["run", "-q", "-p", "kvtide-sim", "--", "--seeds", &seeds]),
        (
            "tests",
            &[
                "test",
                "-q",
                "-p",
                "kvtide-tests",
                "--test",
                "engine",
                "--test",
                "space",
                "--test",
                "policy",
                "--test",
                "properties_engine",
            ],
        ),
    ];
    for (name, words) in steps {
        // A mutant may go round for ever.
        let ended = Command::new("timeout")
            .args(["-k", "5", MINUTES, "cargo"])
            .args(words)
            .current_dir(root())
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("PROPTEST_FAILURE_PERSISTENCE", "off")
            .output()
            .map_err(|error| error.to_string())?;
        if !ended.status.success() {
            return Ok(Some(name.to_string()));
        }
    }
    Ok(None)
}

fn list() -> Result<Vec<Mutant>, String> {
    let mut words = vec!["mutants", "--list", "--json", "--package", "kvtide-core"];
    words.extend(ROOMS.iter().flat_map(|room| ["--file", room]));
    let listed = Command::new("cargo").args(words).current_dir(root()).output();
    let listed = listed.map_err(|error| error.to_string())?;
    if !listed.status.success() {
        let said = String::from_utf8_lossy(&listed.stderr);
        return Err(format!("cargo install cargo-mutants --locked\n{said}"));
    }
    let listed: Vec<Value> =
        serde_json::from_slice(&listed.stdout).map_err(|error| error.to_string())?;
    listed.iter().map(|value| Mutant::read(value).ok_or(format!("unknown: {value}"))).collect()
}

fn shuffle(mutants: &mut [Mutant], seed: u64) {
    let mut rng = Rng::new(seed);
    for at in (1..mutants.len()).rev() {
        mutants.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

/// Where a line and column lie in a text.
fn offset(text: &str, (line, column): (usize, usize)) -> usize {
    let begins = text.split_inclusive('\n').take(line - 1).map(str::len).sum::<usize>();
    let chars = text[begins..].char_indices().nth(column - 1);
    begins + chars.map_or(text.len() - begins, |(at, _)| at)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Objects, leases, space, fold and sessions.
const ROOMS: &[&str] = &[
    "core/src/engine/l1.rs",
    "core/src/engine/l1/*.rs",
    "core/src/engine/space.rs",
    "core/src/engine/space/*.rs",
    "core/src/engine/fold.rs",
    "core/src/engine/sessions.rs",
    "core/src/engine/sessions/*.rs",
];
/// How long one step may take.
const MINUTES: &str = "20m";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one() {
        let text = "ab\nüc\n";
        assert_eq!(offset(text, (1, 1)), 0);
        assert_eq!(offset(text, (2, 1)), 3);
        assert_eq!(offset(text, (2, 2)), 5);
        assert_eq!(offset(text, (2, 3)), 6);
    }
}
