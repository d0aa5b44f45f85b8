//! The real client, lmcache 0.5.6 as its users install it, against the release binary.
//!
//! One test per scenario of `drive.py`, each with a server of its own on free ports, stopped with
//! SIGTERM at the end. A scenario passes when the client finds every answer and every byte right,
//! and the server then ends as the peer does and leaves no segment behind. Where the client cannot
//! be had these tests fail: a suite that proves nothing must not be green.

use kvtide_tests::client::{Client, Install, switched_off};
use kvtide_tests::server::Server;
use kvtide_tests::{binary, http};

/// Drives one scenario on a pool of 256 MiB.
fn scenario(name: &str) {
    if switched_off() {
        println!("left out: KVTIDE_WITHOUT_CLIENT=1");
        return;
    }
    let client = Client::have(Install::Lean).unwrap_or_else(|why| panic!("{why}"));
    let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
    let server = Server::start(&binary, &["--l1-size-gb", "0.25", "--eviction-policy", "LRU"])
        .unwrap_or_else(|why| panic!("{why}"));

    let segments = server.segments();
    assert_eq!(segments.len(), 1, "one pool is mapped: {segments:?}");
    let run = client.drive(&server, name).unwrap_or_else(|why| panic!("{why}"));
    println!("{}", run.output);
    assert!(!run.out_of_time, "{name} does not end; the server says:\n{}", server.log());
    assert_eq!(run.code, 0, "{name} failed; the server says:\n{}", server.log());
    assert!(verdict(&run.output, name), "{name} has no verdict");
    let live = http::get(server.admin, "/livez").expect("the admin side answers");
    assert_eq!(live.status, 200, "alive after {name}");

    let stopped = server.stop().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(stopped.code, 143, "a clean stop on SIGTERM ends like the peer's:\n{}", stopped.log);
    assert!(stopped.segments_left.is_empty(), "left behind: {:?}", stopped.segments_left);
}

/// The driver's own closing line: something passed, nothing failed, nothing was skipped.
fn verdict(output: &str, name: &str) -> bool {
    output.lines().any(|line| {
        line.starts_with(&format!("{name}: "))
            && !line.starts_with(&format!("{name}: 0 passed"))
            && line.contains(" passed, 0 failed  [")
    })
}

#[test]
fn f07_smoke() {
    scenario("smoke");
}

#[test]
fn prefix() {
    scenario("prefix");
}

#[test]
fn f33_tenants() {
    scenario("tenants");
}

#[test]
fn concurrent() {
    scenario("concurrent");
}

#[test]
fn f02_abandoned() {
    scenario("abandoned");
}

#[test]
fn f18_no_room() {
    scenario("no-room");
}

#[test]
fn f55_bad_input() {
    scenario("bad-input");
}

#[test]
fn short_frame() {
    scenario("short-frame");
}

#[test]
fn a_verdict_needs_checks_that_ran() {
    assert!(verdict("== x\nsmoke: 71 passed, 0 failed  [0.9 s]\n", "smoke"));
    for output in [
        "",
        "smoke: 70 passed, 1 failed  [0.9 s]",
        "smoke: 0 passed, 0 failed  [0.9 s]",
        "smoke: 3 passed, 0 failed, 1 skipped  [0.9 s]",
        "prefix: 71 passed, 0 failed  [0.9 s]",
    ] {
        assert!(!verdict(output, "smoke"), "{output}");
    }
}
