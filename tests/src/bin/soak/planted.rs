//! Every other suite under each planted bug. A bug that a unit, property or golden test finds says
//! nothing about the simulator: it is too crude for the list (docs/planted.md).

use kvtide_core::planted::{BUGS, Bug};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the suites under the bugs that are named, or under all. Whether every suite passes.
pub fn run(words: &[String]) -> Result<bool, String> {
    let numbers: Result<Vec<u32>, _> = words.iter().map(|word| word.parse()).collect();
    let numbers = numbers.map_err(|_| "cargo soak planted [NUMBER…]".to_string())?;
    let regressions = Regressions::keep();
    let is_meant = |bug: &&Bug| numbers.is_empty() || numbers.contains(&bug.number);
    let mut is_good = true;
    if let Err(test) = suites(0) {
        return Err(format!("without a bug: {test}"));
    }
    println!("  no  race   bug: what the suites say");
    for Bug { number, race, name, .. } in BUGS.iter().filter(is_meant) {
        let verdict = suites(*number);
        // What a property has found is no regression of the tree.
        regressions.put_back();
        is_good &= verdict.is_ok();
        let verdict = match verdict {
            Ok(()) => "passes".to_string(),
            Err(test) => format!("CAUGHT by {test}"),
        };
        println!("{number:>4}  {race:<5}  {name}: {verdict}");
    }
    Ok(is_good)
}

/// Runs the suites with one bug planted. An error names what has failed.
fn suites(number: u32) -> Result<(), String> {
    let mut words = vec!["test", "-q", "--no-fail-fast", "--features", FEATURES];
    words.extend(["-p", "kvtide-core", "-p", "kvtide-sim", "-p", "kvtide-tests", "--lib"]);
    words.extend(TESTS.iter().flat_map(|test| ["--test", test]));
    // Whole seeds are the simulator.
    words.extend(["--", "--skip", "seeds::"]);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let ended = Command::new(cargo)
        .args(words)
        .current_dir(root())
        .env("KVTIDE_PLANTED", number.to_string())
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .output()
        .map_err(|error| error.to_string())?;
    if ended.status.success() {
        return Ok(());
    }
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let mut failed: Vec<&str> = said.lines().filter_map(failed_test).collect();
    failed.sort_unstable();
    failed.dedup();
    let last = said.lines().last().unwrap_or_default();
    Err(if failed.is_empty() { last.to_string() } else { failed.join(", ") })
}

/// `---- runs::f55_nothing_is_left stdout ----`
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files in which properties keep what once failed, as they were.
struct Regressions(Vec<(PathBuf, String)>);

impl Regressions {
    fn keep() -> Regressions {
        let files = Regressions::files().into_iter();
        Regressions(files.map(|file| (file.clone(), read(&file))).collect())
    }

    fn put_back(&self) {
        for file in Regressions::files() {
            let known = self.0.iter().find(|(known, _)| *known == file);
            let done = match known {
                Some((_, text)) if read(&file) == *text => Ok(()),
                Some((_, text)) => fs::write(&file, text),
                None => fs::remove_file(&file),
            };
            done.unwrap_or_else(|error| eprintln!("{}: {error}", file.display()));
        }
    }

    fn files() -> Vec<PathBuf> {
        let mut files = Vec::new();
        for folder in ["tests/engine", "tests/properties", "tests/properties/engine"] {
            let Ok(entries) = fs::read_dir(root().join(folder)) else { continue };
            let paths = entries.flatten().map(|entry| entry.path());
            files.extend(paths.filter(|path| path.extension().is_some_and(|end| end == KEPT)));
        }
        files
    }
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

const FEATURES: &str = "kvtide-core/planted,kvtide-sim/planted,kvtide-tests/planted";
const KEPT: &str = "regressions";
/// Everything that needs the core alone.
const TESTS: &[&str] = &[
    "engine",
    "golden_hash",
    "golden_pickle",
    "golden_scenes",
    "golden_wire",
    "policy",
    "properties_engine",
    "properties_front",
    "properties_front_answers",
    "properties_pickle",
    "space",
];
