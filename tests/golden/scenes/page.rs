//! `docs/scenes.md` and the snapshots say the same.

use std::collections::BTreeSet;
use std::path::Path;

fn snapshots() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/scenes/snapshots");
    let mut found: Vec<(String, String)> = std::fs::read_dir(folder)
        .expect("the snapshots are beside their tests")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "snap"))
        .map(|path| {
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).expect("a snapshot is text");
            // Two lines of dashes close the part that is insta's.
            let body = text.splitn(3, "---\n").nth(2).expect("a snapshot has a head");
            (name, body.to_string())
        })
        .collect();
    found.sort();
    found
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/scenes.md");
    std::fs::read_to_string(path).expect("the page is there")
}

/// What is quoted between fences, in order.
fn quoted(section: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for line in section.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if inside {
            text += line;
            text.push('\n');
        }
    }
    assert!(!inside, "every fence is closed");
    text
}

#[test]
fn the_page_walks_through_three_scenes_word_by_word() {
    let page = page();
    let snapshots = snapshots();
    let mut walked = 0;
    for section in page.split("\n## ") {
        let quoted = quoted(section);
        if quoted.is_empty() {
            continue;
        }
        let named: Vec<_> =
            snapshots.iter().filter(|(name, _)| section.contains(name.as_str())).collect();
        let [(name, text)] = named[..] else {
            panic!("a section that quotes names its snapshot: {}", &section[..40]);
        };
        assert_eq!(quoted.trim_end(), text.trim_end(), "docs/scenes.md quotes {name}");
        walked += 1;
    }
    assert!(walked >= 3, "{walked} scenes are gone through");
}

#[test]
fn the_page_names_every_scene() {
    let page = page();
    let names: BTreeSet<String> = snapshots().into_iter().map(|(name, _)| name).collect();
    assert!(names.len() >= 15, "{} scenes", names.len());
    let missing: Vec<_> = names.iter().filter(|name| !page.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "not in docs/scenes.md: {missing:#?}");
}
