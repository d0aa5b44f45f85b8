//! Holds the tree to the rules that no compiler and no lint checks: sizes, directions between
//! parts, words, links, and that what the docs claim is there.

use kvtide_tests::tidy;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files that may be longer than `FILE_LINES_MAX`, and why.
const LONG_FILES: &[(&str, &str)] = &[];
/// Functions that may be longer than `FUNCTION_LINES_MAX`, and why.
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[];
/// Lines that may be wider than `COLUMNS_MAX`: the files that hold them, and why.
const WIDE_FILES: &[(&str, &str)] = &[];

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 100;

/// What may lie at the top level, beside names that begin with a dot.
const TOP_LEVEL: &[&str] = &[
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "clippy.toml",
    "core",
    "deny.toml",
    "docs",
    "fuzz",
    "gpu",
    "rustfmt.toml",
    "shells",
    "sim",
    "tests",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file of the tree that is tracked or about to be, relative to the root.
fn files() -> Vec<String> {
    let arguments =
        ["-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").args(arguments).current_dir(root()).output();
    let listed = listed.expect("git lists the tree");
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let text = String::from_utf8(listed.stdout).expect("names are UTF-8");
    let mut files: Vec<String> = text.lines().map(str::to_string).collect();
    files.retain(|file| root().join(file).is_file());
    assert!(files.len() > 10, "the tree is where it is looked for: {files:?}");
    files
}

fn read(file: &str) -> String {
    let bytes = std::fs::read(root().join(file)).expect("a listed file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn rust_files() -> impl Iterator<Item = (String, String)> {
    let files = files().into_iter().filter(|file| file.ends_with(".rs"));
    files.map(|file| (read(&file), file)).map(|(source, file)| (file, source))
}

/// Rust that is not a test as a whole: what the budgets of lines are for.
fn shipped(file: &str) -> bool {
    !file.starts_with("fuzz/") && (!file.starts_with("tests/") || file.starts_with("tests/src/"))
}

fn assert_none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn files_keep_their_budget_of_lines() {
    let mut found = Vec::new();
    for (file, source) in rust_files().filter(|(file, _)| shipped(file)) {
        let lines = tidy::lines_without_tests(&source);
        let excepted = LONG_FILES.iter().any(|(name, _)| *name == file);
        if lines > FILE_LINES_MAX && !excepted {
            found.push(format!("{file}: {lines} lines without tests"));
        } else if lines <= FILE_LINES_MAX && excepted {
            found.push(format!("{file}: needs no exception any more"));
        }
    }
    assert_none("longer than 500 lines", found);
}

#[test]
fn functions_keep_their_budget_of_lines() {
    let mut found = Vec::new();
    for (file, source) in rust_files().filter(|(file, _)| shipped(file)) {
        let code = tidy::without_tests(&tidy::code(&source));
        for (name, line, lines) in tidy::functions(&code) {
            let mut exceptions = LONG_FUNCTIONS.iter();
            let excepted = exceptions.any(|(path, function, _)| *path == file && *function == name);
            if lines > FUNCTION_LINES_MAX && !excepted {
                found.push(format!("{file}:{line}: {name} has {lines} lines"));
            }
        }
    }
    assert_none("longer than 70 lines", found);
}

#[test]
fn lines_keep_to_a_hundred_columns() {
    let mut found = Vec::new();
    for (file, source) in rust_files() {
        if WIDE_FILES.iter().any(|(name, _)| *name == file) {
            continue;
        }
        for (at, line) in source.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                found.push(format!("{file}:{}: {columns} columns", at + 1));
            }
        }
    }
    assert_none("wider than 100 columns", found);
}

#[test]
fn the_core_knows_no_operating_system() {
    let lib = read("core/src/lib.rs");
    for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
        assert!(lib.contains(attribute), "core/src/lib.rs says {attribute}");
    }
    let mut found = Vec::new();
    let is_core = |file: &str| file.starts_with("core/src/");
    for (file, source) in rust_files().filter(|(file, _)| is_core(file)) {
        let code = tidy::without_tests(&tidy::code(&source));
        for (at, line) in code.lines().enumerate() {
            let words =
                ["std::", "extern crate std", "println!", "eprintln!", "dbg!", "f32", "f64"];
            // `f64` is a word of the wire (a wait in seconds, a histogram), never of a decision.
            let floats = file.starts_with("core/src/engine") || file.starts_with("core/src/policy");
            let mut used = words.iter().filter(|word| floats || !word.starts_with('f'));
            if let Some(word) = used.find(|word| holds_word(line, word)) {
                found.push(format!("{file}:{}: {word}", at + 1));
            }
        }
    }
    assert_none("core reaches outside, or decides with floats", found);
}

/// Whether `word` stands in the line and does not end a longer word.
fn holds_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|each| each.is_alphanumeric() || each == '_')
    })
}

#[test]
fn nothing_is_unwrapped_outside_tests() {
    let mut found = Vec::new();
    for (file, source) in rust_files().filter(|(file, _)| shipped(file)) {
        let code = tidy::without_tests(&tidy::code(&source));
        for (at, line) in code.lines().enumerate().filter(|(_, line)| line.contains(".unwrap()")) {
            found.push(format!("{file}:{}: {}", at + 1, line.trim()));
        }
    }
    assert_none("use expect(\"why it holds\")", found);
}

#[test]
fn nothing_is_left_for_later() {
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("to", "do!"),
        concat!("unimpl", "emented!"),
    ];
    let mut found = Vec::new();
    for (file, source) in rust_files() {
        for (at, line) in source.lines().enumerate() {
            if let Some(word) = words.iter().find(|word| holds_word(line, word)) {
                found.push(format!("{file}:{}: {word}", at + 1));
            }
        }
    }
    assert_none("to be done", found);
}

#[test]
fn tests_wait_for_conditions() {
    let word = concat!("sl", "eep(");
    let mut found = Vec::new();
    for (file, source) in rust_files() {
        let code = tidy::code(&source);
        let kept = if shipped(&file) { tidy::without_tests(&code) } else { String::new() };
        let kept: Vec<&str> = kept.lines().collect();
        for (at, line) in code.lines().enumerate().filter(|(_, line)| line.contains(word)) {
            if kept.get(at).is_none_or(|kept| !kept.contains(word)) {
                found.push(format!("{file}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    assert_none("a test that waits for time to pass", found);
}

#[test]
fn unsafe_says_why_it_is_safe() {
    let mut found = Vec::new();
    for (file, source) in rust_files() {
        let code = tidy::code(&source);
        let lines: Vec<&str> = source.lines().collect();
        for (at, line) in code.lines().enumerate().filter(|(_, line)| line.contains("unsafe {")) {
            let before = lines[at.saturating_sub(8)..=at].iter();
            if !before.clone().any(|line| line.contains("SAFETY:")) {
                found.push(format!("{file}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    assert_none("an unsafe block without its SAFETY: sentence", found);
}

#[test]
fn the_model_shares_no_logic_with_what_it_judges() {
    // Names, events and time are vocabulary; whatever decides would make the same mistakes twice.
    let vocabulary = ["event", "names", "time"];
    let mut found = Vec::new();
    for (file, source) in rust_files().filter(|(file, _)| file.starts_with("sim/src/model")) {
        let code = tidy::without_tests(&tidy::code(&source));
        for module in tidy::modules_used(&code, "kvtide_core") {
            if !vocabulary.contains(&module.as_str()) {
                found.push(format!("{file}: kvtide_core::{module}"));
            }
        }
    }
    assert_none("the model uses more of core than its vocabulary", found);
    // Nor may it learn from its neighbours what they have learnt from the engine.
    let neighbours = ["calls", "orders", "model"];
    let mut found = Vec::new();
    for (file, source) in rust_files().filter(|(file, _)| file.starts_with("sim/src/model")) {
        let code = tidy::without_tests(&tidy::code(&source));
        for module in tidy::modules_used(&code, "crate") {
            if !neighbours.contains(&module.as_str()) {
                found.push(format!("{file}: crate::{module}"));
            }
        }
    }
    for file in ["sim/src/calls.rs", "sim/src/orders.rs"] {
        let code = tidy::without_tests(&tidy::code(&read(file)));
        let used = tidy::modules_used(&code, "kvtide_core");
        let more = used.iter().filter(|module| !vocabulary.contains(&module.as_str()));
        found.extend(more.map(|module| format!("{file}: kvtide_core::{module}")));
    }
    assert_none("the model learns from more than what was asked", found);
}

/// Names of all functions of the tree that are tests or could be.
fn function_names() -> BTreeSet<String> {
    let sources = rust_files().map(|(_, source)| tidy::code(&source));
    sources.flat_map(|code| tidy::functions(&code)).map(|(name, _, _)| name).collect()
}

/// `f07_…`: the name of a test that guards a known failure.
fn guards_a_failure(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.len() > 4
        && bytes[0] == b'f'
        && bytes[1].is_ascii_digit()
        && bytes[2].is_ascii_digit()
        && bytes[3] == b'_'
}

#[test]
fn the_list_of_known_failures_is_true() {
    let page = read("docs/known-failures.md");
    let functions = function_names();
    let named: BTreeSet<String> = tidy::names_in_code_spans(&page)
        .into_iter()
        .filter(|name| guards_a_failure(name))
        .collect();
    let absent = named.iter().filter(|name| !functions.contains(*name));
    assert_none("named in docs/known-failures.md and not in the tree", absent.cloned().collect());
    let guards = functions.iter().filter(|name| guards_a_failure(name) && !named.contains(*name));
    assert_none("guards a failure; name it in docs/known-failures.md", guards.cloned().collect());
    let rows = (1..=57).map(|number| format!("| F{number:02} |"));
    let rows = rows.filter(|row| page.lines().filter(|line| line.starts_with(row)).count() != 1);
    assert_none("has not exactly one row in docs/known-failures.md", rows.collect());
}

#[test]
fn tests_that_are_left_out_are_named() {
    let page = read("docs/testing.md");
    let mark = concat!("#[ign", "ore");
    let mut found = Vec::new();
    for (file, source) in rust_files() {
        let code = tidy::code(&source);
        for (at, _) in code.match_indices(mark) {
            let name = tidy::functions(&code[at..]).into_iter().next().map(|(name, _, _)| name);
            if !name.as_ref().is_some_and(|name| page.contains(name)) {
                found.push(format!("{file}: {name:?}"));
            }
        }
    }
    assert_none("left out by default and not in docs/testing.md with its command", found);
}

#[test]
fn links_lead_somewhere() {
    let mut found = Vec::new();
    for page in files().into_iter().filter(|file| file.ends_with(".md")) {
        let text = read(&page);
        let elsewhere = |link: &String| link.contains("://") || link.starts_with("mailto:");
        for link in tidy::links(&text).into_iter().filter(|link| !elsewhere(link)) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(&page).parent().expect("a file has a folder");
            let target = if file.is_empty() { page.clone().into() } else { folder.join(file) };
            let there = root().join(&target);
            let anchored = || {
                let text = std::fs::read_to_string(&there).unwrap_or_default();
                tidy::anchors(&text).iter().any(|each| each == anchor)
            };
            if !there.exists() || (!anchor.is_empty() && !anchored()) {
                found.push(format!("{page}: {link}"));
            }
        }
    }
    assert_none("links without a target", found);
}

#[test]
fn no_machine_and_no_registry_is_named() {
    let words = [
        concat!("crat", "es.io"),
        concat!("py", "pi.org"),
        concat!("python", "hosted"),
        concat!("npm", "js.com"),
        concat!("npm", "js.org"),
        concat!("deb.deb", "ian.org"),
        concat!("/wo", "rk/"),
        concat!("/fa", "rm/"),
        concat!("/ro", "ot/"),
        concat!("/var", "/tmp/"),
    ];
    let mut found = Vec::new();
    for file in files().into_iter().filter(|file| !file.ends_with("Cargo.lock")) {
        let text = read(&file);
        for (at, line) in text.lines().enumerate() {
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                found.push(format!("{file}:{}: {word}", at + 1));
            }
        }
    }
    assert_none("hosts of registries, or paths of one machine", found);
}

#[test]
fn the_top_level_is_what_the_layout_names() {
    let tops: BTreeSet<String> =
        files().iter().filter_map(|file| Some(file.split('/').next()?.to_string())).collect();
    let named = |top: &String| top.starts_with('.') || TOP_LEVEL.contains(&top.as_str());
    assert_none("not in the layout", tops.iter().filter(|top| !named(top)).cloned().collect());
    let absent =
        TOP_LEVEL.iter().filter(|name| !tops.contains(**name)).map(|name| name.to_string());
    assert_none("missing from the layout", absent.collect());
}
