//! The real client, lmcache 0.5.6 as its users install it, against the release binary.
//!
//! One test per scenario of `drive.py`, each with a server of its own on free ports, stopped with
//! SIGTERM at the end. A scenario passes when the client finds every answer and every byte right,
//! and the server then ends as the peer does and leaves no segment behind. Where the client cannot
//! be had these tests fail: a suite that proves nothing must not be green.

mod tiers;

use kvtide_tests::client::{Client, Install, switched_off};
use kvtide_tests::server::Server;
use kvtide_tests::{binary, child, http};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Drives one scenario on a pool of 256 MiB.
fn scenario(name: &str) {
    scenario_on(name, |binary| Server::start(binary, POOL));
}

/// The same on a server that is started in a way of its own.
fn scenario_on(name: &str, start: impl FnOnce(&Path) -> Result<Server, String>) {
    if switched_off() {
        println!("left out: KVTIDE_WITHOUT_CLIENT=1");
        return;
    }
    let client = Client::have(Install::Lean).unwrap_or_else(|why| panic!("{why}"));
    let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
    let server = start(&binary).unwrap_or_else(|why| panic!("{why}"));

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

const POOL: &[&str] = &["--l1-size-gb", "0.25", "--eviction-policy", "LRU"];

/// Another user's process without any capability: nothing that the server does needs more. Where
/// the suite is not root it is such a process itself.
#[test]
fn smoke_as_any_user_without_capabilities() {
    if !rustix::process::geteuid().is_root() {
        return scenario("smoke");
    }
    let folder = std::env::temp_dir().join(format!("kvtide-any-user-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("the name is free");
    let own = |path: &Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("it is ours");
    };
    own(&folder, 0o755);
    scenario_on("smoke", |binary| {
        // The build may lie where only its owner can look.
        let copy = folder.join("kvtide");
        std::fs::copy(binary, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
        own(&copy, 0o755);
        let launch = || {
            let mut command = Command::new("setpriv");
            command.args(ANY_USER).arg(&copy);
            command
        };
        let server = Server::start_by(&launch, POOL)?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id()));
        let status = status.map_err(|error| error.to_string())?;
        for line in ["Uid:\t65534\t65534", "CapEff:\t0000000000000000"] {
            assert!(status.contains(line), "{line} in {status}");
        }
        Ok(server)
    });
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

const ANY_USER: &[&str] = &[
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--bounding-set=-all",
    "--inh-caps=-all",
    "--no-new-privs",
    "--",
];

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

/// What the real client had done is decided again as it was, and what it asked is not in the file.
#[test]
fn a_recorded_run_is_replayed_and_holds_no_salt_and_no_request() {
    if switched_off() {
        println!("left out: KVTIDE_WITHOUT_CLIENT=1");
        return;
    }
    let name = format!("kvtide-client-{}.recording", std::process::id());
    let file = std::env::temp_dir().join(name);
    let path = file.to_str().expect("temporary folders have plain names");
    for name in ["tenants", "abandoned", "concurrent"] {
        scenario_on(name, |binary| Server::start(binary, &[POOL, &["--record", path]].concat()));
        let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
        let mut command = Command::new(&binary);
        let replayed = child::run(command.args(["replay", path]), Duration::from_secs(300));
        let replayed = replayed.unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(replayed.code, 0, "{name}: {}", replayed.output);
        let same = "every effect and fact is the same.\n";
        assert!(replayed.output.contains(same), "{name}: {}", replayed.output);
        let bytes = std::fs::read(&file).expect("it was recorded");
        for text in ["tenant-b", "with space", "never-seen", "xxxxxxxx", "req-"] {
            let found = bytes.windows(text.len()).any(|window| window == text.as_bytes());
            assert!(!found, "{name}: {text}");
        }
        std::fs::remove_file(&file).expect("it was read above");
    }
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
