//! A running server and what its `/status` says of clients.

use crate::bystander::Bystander;
use crate::harness::Client;
use kvtide_core::limits::{LARGE_FRAME_BUDGET_BYTES, MEDIUM_FRAME_BUDGET_BYTES};
use kvtide_tests::binary;
use kvtide_tests::server::{Server, left_behind};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

/// Short lifetimes, so that what a client left behind is seen to go.
const ARGUMENTS: [&str; 8] = [
    "--l1-size-gb",
    "0.25",
    "--l1-read-ttl-seconds",
    "2",
    "--l1-write-ttl-seconds",
    "2",
    "--session-ttl-seconds",
    "2",
];

pub fn start() -> Server {
    start_with(&[])
}

pub fn start_with(more: &[&str]) -> Server {
    let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
    grown(Server::start(&binary, &[&ARGUMENTS, more].concat()))
}

/// After a shell has set these limits.
pub fn start_within(ulimits: &str) -> Server {
    let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
    grown(Server::start_within(ulimits, &binary, &ARGUMENTS))
}

/// A store before the pool has grown would find no room.
fn grown(server: Result<Server, String>) -> Server {
    let mut server = server.unwrap_or_else(|why| panic!("{why}"));
    until(&mut server, |status| {
        let pool = &status["kvtide"]["pool"];
        pool["usable_bytes"] == pool["configured_bytes"]
    });
    server
}

pub fn until(server: &mut Server, wanted: impl FnMut(&Value) -> bool) -> Value {
    server.until(wanted).unwrap_or_else(|why| panic!("{why}"))
}

/// One of the numbers that the reactor tells of itself.
pub fn reactor(status: &Value, name: &str) -> u64 {
    status["kvtide"]["reactor"][name].as_u64().unwrap_or_else(|| panic!("{name} is missing"))
}

pub fn total(status: &Value, name: &str) -> u64 {
    status["kvtide"]["reactor"]["totals"][name].as_u64().unwrap_or_else(|| panic!("no {name}"))
}

pub fn closed(status: &Value, why: &str) -> u64 {
    status["kvtide"]["reactor"]["closed_by_us"][why].as_u64().unwrap_or_else(|| panic!("no {why}"))
}

/// Whoever behaves is still served, then leaves; nothing of anybody is left, and the server ends in
/// order. Returns its log.
pub fn expect_unharmed(mut server: Server, mut bystander: Bystander) -> String {
    bystander.round();
    bystander.leave();
    until(&mut server, |status| left(status).is_empty());
    let stopped = server.stop().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(stopped.code, 143, "{}", stopped.log);
    assert!(stopped.segments_left.is_empty(), "{:?}", stopped.segments_left);
    for word in ["ERROR", "panicked"] {
        assert!(!stopped.log.contains(word), "{}", stopped.log);
    }
    stopped.log
}

/// What clients have left behind, by name.
fn left(status: &Value) -> Vec<String> {
    let mut left = left_behind(status);
    for (name, whole) in [
        ("medium_frame_bytes_left", MEDIUM_FRAME_BUDGET_BYTES),
        ("large_frame_bytes_left", LARGE_FRAME_BUDGET_BYTES),
    ] {
        if reactor(status, name) != whole as u64 {
            left.push(format!("{name}: {}", reactor(status, name)));
        }
    }
    left
}

/// As many descriptors for this process as the system allows, and at least so many.
pub fn raise_own_descriptors(wanted: u64) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("it is allowed");
    let enough = limit.maximum.is_none_or(|maximum| maximum >= wanted);
    assert!(enough, "this test needs {wanted} descriptors (ulimit -Hn)");
}

/// A client that has shaken hands and reads what it is sent.
pub fn stranger(server: &Server) -> Client {
    Client::open(server.request)
}
