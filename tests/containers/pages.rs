//! Pages of 2 MiB.

use crate::client::{Client, Prompt, SAMPLE, SAMPLE_CHUNKS};
use crate::launch::{SMALL, fails, release, start, status};
use std::fs;
use std::process::Command;

const COUNT: &str = "/proc/sys/vm/nr_hugepages";

/// Sets pages apart and gives them back.
struct Pages(String);

impl Pages {
    fn raised(by: u64) -> Option<Pages> {
        let before = fs::read_to_string(COUNT).ok()?.trim().to_owned();
        let count: u64 = before.parse().ok()?;
        fs::write(COUNT, (count + by).to_string()).ok()?;
        let pages = Pages(before);
        let reached: u64 = fs::read_to_string(COUNT).ok()?.trim().parse().ok()?;
        (reached == count + by).then_some(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        fs::write(COUNT, &self.0).ok();
    }
}

#[test]
fn too_few_huge_pages_end_in_1_and_both_sizes_are_named() {
    let arguments = ["--l1-use-hugepages", "--l1-size-gb", "1.5"];
    let (code, output) = fails(Command::new(release()), &arguments);
    let last = output.lines().last().unwrap_or_default();
    assert_eq!(code, 1, "{output}");
    assert!(last.starts_with("ValueError: --l1-use-hugepages"), "{output}");
    assert!(last.contains("1.50 GiB") && last.contains("of them is free"), "{output}");
}

#[test]
fn huge_pages_are_not_shared() {
    let arguments = ["--l1-use-hugepages", "--shm-name", "x", "--l1-size-gb", "0.0625"];
    let (code, output) = fails(Command::new(release()), &arguments);
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("--shm-name"), "{output}");
}

#[test]
fn l1_lies_in_huge_pages_where_there_are_enough() {
    let Some(_pages) = Pages::raised(32) else {
        println!("left out: vm.nr_hugepages cannot be raised here");
        return;
    };
    let server = start(&[&["--l1-use-hugepages"][..], &SMALL, &SAMPLE_CHUNKS].concat());
    let pool = &status(&server)["kvtide"]["pool"];
    assert_eq!((&pool["kind"], &pool["usable_bytes"]), (&"private".into(), &(64 << 20).into()));
    let usage = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
    let huge = usage.lines().find_map(|line| line.strip_prefix("HugetlbPages:"));
    assert_eq!(huge.map(str::trim), Some("65536 kB"), "{usage}");
    let (mut client, _) = Client::registered(server.request, 1, SAMPLE);
    let prompt = Prompt::new(1, 2, SAMPLE);
    assert!(client.store_inline(&prompt));
    client.expect_inline(&prompt);
    let stopped = server.stop().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(stopped.code, 143, "{}", stopped.log);
    assert!(stopped.log.contains("pages of 2 MiB"), "{}", stopped.log);
}
