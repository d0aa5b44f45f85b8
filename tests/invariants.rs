//! Keeps `docs/invariants.md` true: every number has its row, every name in it is a function of the
//! tree, and whatever checks or carries a number is named in that number's row.

use kvtide_tests::tidy;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const INVARIANTS: u32 = 52;
const RACES: u32 = 40;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/invariants.md")).expect("the page is there")
}

/// Every Rust file of the tree below these folders, with its source.
fn sources() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let parts = ["core/src", "gpu/src", "shells", "sim", "tests", "fuzz"];
    let mut folders: Vec<PathBuf> = parts.iter().map(|part| root().join(part)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the tree can be read") {
            let path = entry.expect("an entry can be read").path();
            let is_built = path.file_name().is_some_and(|name| name == "target");
            if path.is_dir() && !is_built {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let name = path.strip_prefix(root()).expect("it lies below the root");
                let source = std::fs::read_to_string(&path).expect("a source is text");
                found.insert(name.to_string_lossy().into_owned(), source);
            }
        }
    }
    assert!(found.len() > 100, "the tree is where it is looked for");
    found
}

fn functions(source: &str) -> Vec<String> {
    tidy::functions(&tidy::code(source)).into_iter().map(|(name, _, _)| name).collect()
}

fn is_audit(file: &str) -> bool {
    let of_rooms = file.starts_with("core/src/") && file.contains("audit");
    of_rooms || file.starts_with("core/src/policy")
}

fn is_model(file: &str) -> bool {
    file.starts_with("sim/src/")
}

/// The cells of the row that begins with this number.
fn row(page: &str, number: &str) -> Vec<String> {
    let start = format!("| {number} |");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with(&start)).collect();
    assert_eq!(rows.len(), 1, "{number} has exactly one row");
    let cells = rows[0].trim_matches('|').split('|');
    cells.map(|cell| cell.trim().to_string()).collect()
}

/// Numbers such as `I-17` that stand in a text.
fn numbers(text: &str) -> BTreeSet<u32> {
    let after = text.match_indices("I-").map(|(at, _)| &text[at + 2..]);
    let digits =
        after.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    digits.filter_map(|digits| digits.parse().ok()).collect()
}

/// Numbers that the name of a test carries: `i15_i16_…` guards two, `i23_r22_…` one of each kind.
fn carried(name: &str, letter: char) -> Vec<u32> {
    let Some((numbers, _)) = name.rsplit_once('_') else { return Vec::new() };
    let of_kind = |part: &str| {
        let kind = part.chars().next().filter(|kind| "firp".contains(*kind))?;
        Some((kind, part[1..].parse().ok()?))
    };
    let parts = numbers.split('_').map(of_kind).take_while(Option::is_some).flatten();
    parts.filter(|(kind, _)| *kind == letter).map(|(_, number)| number).collect()
}

#[test]
fn every_number_has_its_row() {
    let page = page();
    let invariants = (1..=INVARIANTS).map(|number| format!("I-{number}"));
    let races = (1..=RACES).map(|number| format!("R-{number}"));
    let known = std::fs::read_to_string(root().join("docs/known-failures.md"));
    let known = known.expect("the list of known failures is there");
    let failures: Vec<String> = known
        .lines()
        .filter_map(|line| line.strip_prefix("| F"))
        .map(|rest| format!("F{}", &rest[..2]))
        .collect();
    assert!(failures.len() >= 57, "known failures are numbered");
    for number in invariants.chain(races).chain(failures) {
        let cells = row(&page, &number);
        let says = cells.iter().skip(1).any(|cell| !cell.is_empty());
        let guards = cells.last().expect("a row has cells");
        let named = cells.iter().any(|cell| cell.contains('`'));
        let kinds = ["to come with: ", "cannot happen: ", "struck", "its tests alone"];
        let explained = kinds.iter().any(|kind| guards.starts_with(kind));
        assert!(says && (named || explained), "{number}: {cells:?}");
    }
}

#[test]
fn every_name_is_a_function_of_the_tree() {
    let page = page();
    let sources = sources();
    let of = |is_wanted: fn(&str) -> bool| -> BTreeSet<String> {
        let files = sources.iter().filter(|(file, _)| is_wanted(file));
        files.flat_map(|(_, source)| functions(source)).collect()
    };
    let (all, audits, models) = (of(|_| true), of(is_audit), of(is_model));
    for number in 1..=INVARIANTS {
        let cells = row(&page, &format!("I-{number}"));
        for (cell, place) in [(&cells[2], &audits), (&cells[3], &models)] {
            for name in tidy::names_in_code_spans(cell) {
                assert!(place.contains(&name), "I-{number}: {name} is no function there");
            }
        }
        for name in tidy::names_in_code_spans(&cells[4]) {
            assert!(all.contains(&name) || name == "space", "I-{number}: {name} is no function");
        }
    }
    let numbered = (1..=RACES).map(|number| format!("R-{number}"));
    for number in numbered.chain((1..=57).map(|number| format!("F{number:02}"))) {
        let cells = row(&page, &number);
        for name in tidy::names_in_code_spans(cells.last().expect("a row has cells")) {
            let word = ["handle", "skip_l1"].contains(&name.as_str());
            assert!(word || all.contains(&name), "{number}: {name} is no function");
        }
    }
}

#[test]
fn what_audit_and_model_check_is_said() {
    let page = page();
    for (file, source) in sources() {
        let is_named = |number: u32, column: usize| {
            let cells = row(&page, &format!("I-{number}"));
            !cells[column].is_empty()
        };
        let words = tidy::without_tests(&source);
        if is_audit(&file) {
            let strings: String = words.lines().filter(|line| !is_comment(line)).collect();
            for number in numbers(&strings) {
                assert!(is_named(number, 2), "{file} checks I-{number}; say so on the page");
            }
        } else if is_model(&file) {
            let strings: String = words.lines().filter(|line| !is_comment(line)).collect();
            for number in numbers(&strings) {
                assert!(is_named(number, 3), "{file} checks I-{number}; say so on the page");
            }
        }
    }
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

#[test]
fn every_test_that_carries_a_number_stands_in_its_row() {
    let page = page();
    for (file, source) in sources() {
        for name in functions(&source) {
            for number in carried(&name, 'i') {
                let cells = row(&page, &format!("I-{number}"));
                let span = format!("`{name}`");
                assert!(
                    cells[4].contains(&span),
                    "{file}: {name} belongs in the row of I-{number}"
                );
            }
            for number in carried(&name, 'r') {
                let cells = row(&page, &format!("R-{number}"));
                let span = format!("`{name}`");
                assert!(
                    cells[2].contains(&span),
                    "{file}: {name} belongs in the row of R-{number}"
                );
            }
        }
    }
}

#[test]
fn names_and_numbers_are_read() {
    assert_eq!(carried("i15_i16_space", 'i'), [15, 16]);
    assert_eq!(carried("i6_i52_a_commit", 'i'), [6, 52]);
    assert_eq!(carried("i23_r22_a_hit", 'r'), [22]);
    assert!(carried("is_alive", 'i').is_empty());
    assert!(carried("i64", 'i').is_empty(), "a name that is nothing but a number");
    assert!(carried("r_1", 'r').is_empty());
    assert_eq!(numbers("I-1, I-52 and I-x"), BTreeSet::from([1, 52]));
}
