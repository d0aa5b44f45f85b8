//! Who owns a segment's name: the lock decides, whatever the pids are.

use crate::launch::{SMALL, contained, fails, pool_name, release, segment, start, started};
use crate::launch::{stop, unique};
use kvtide_tests::server::Server;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn killed(mut server: Server) {
    server.signal(Signal::KILL).expect("it runs");
    assert_eq!(server.wait(PATIENCE), Ok(Some(137)));
}

#[test]
fn f49_the_name_of_a_live_server_is_refused_and_that_of_a_killed_one_taken_over() {
    let name = unique("taken_over");
    let named = ["--shm-name", &name];
    let arguments = [&SMALL[..], &named].concat();
    let first = start(&arguments);
    assert!(segment(&name).exists());
    let (code, output) = fails(Command::new(release()), &arguments);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains(&name) && output.contains("live server"), "{output}");
    assert!(segment(&name).exists(), "it is left alone");
    killed(first);
    assert!(segment(&name).exists(), "nobody removes it");
    let second = start(&arguments);
    assert_eq!(pool_name(&second), Some(name));
    stop(second);
}

#[test]
fn f49_after_a_kill_the_next_start_leaves_one_segment_and_others_alone() {
    let stranger = segment(&unique("stranger"));
    fs::write(&stranger, b"of the peer, which holds no lock").expect("it is a folder of all");
    let first = start(&SMALL);
    let stale = segment(&pool_name(&first).expect("it is shared"));
    killed(first);
    assert!(stale.exists());
    let second = start(&SMALL);
    let own = segment(&pool_name(&second).expect("it is shared"));
    assert_ne!(own, stale, "names are never used twice");
    // Another start of this user may have been first.
    assert!(!stale.exists(), "{}", second.log());
    let third = start(&SMALL);
    assert!(own.exists(), "a live server keeps its segment");
    stop(third);
    stop(second);
    assert!(stranger.exists());
    fs::remove_file(stranger).expect("the test made it");
}

/// Both servers are process 1 of their namespace.
#[test]
fn f49_two_pid_namespaces_on_one_mount_know_each_other_by_the_lock() {
    let kinds = &["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let Some(launch) = contained(kinds, "") else { return };
    let name = unique("pids");
    let named = [&SMALL[..], &["--shm-name", &name]].concat();
    let mut first = started(&launch, &named);
    let mut second = started(&launch, &SMALL);
    let (code, output) = fails(launch(), &named);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains(&name), "{output}");
    let other = pool_name(&second).expect("it is shared");
    assert!(segment(&name).exists() && segment(&other).exists(), "neither took the other's");

    // The other's end leaves the first one's segment alone, and a third start both of them.
    let third = started(&launch, &SMALL);
    assert!(segment(&name).exists() && segment(&other).exists());
    drop(third);
    end(&mut second, Signal::TERM);
    assert!(segment(&name).exists() && !segment(&other).exists());
    end(&mut first, Signal::KILL);
    assert!(segment(&name).exists());
    let mut next = started(&launch, &named);
    assert_eq!(pool_name(&next), Some(name.clone()));
    end(&mut next, Signal::TERM);
    assert!(!segment(&name).exists());
}

/// Signals the server behind `unshare`, which waits for it.
fn end(server: &mut Server, signal: Signal) {
    let id = server.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.expect("the kernel lists children");
    let child = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
    let child = child.and_then(Pid::from_raw).expect("the server is its child");
    kill_process(child, signal).expect("it runs");
    assert!(server.wait(PATIENCE).expect("it can be waited for").is_some());
}
