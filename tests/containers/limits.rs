//! Memory limits of control groups, as the release binary reads them. The groups are files on a
//! mount of the test's own: nothing of this machine's is touched.

use crate::launch::{contained, fails, started, status, stop, warning};
use std::process::Command;

/// Shows the process a group of its own choosing and these files below `/sys/fs/cgroup`.
fn groups(line: &str, files: &[(&str, &str)]) -> Option<Box<dyn Fn() -> Command>> {
    let mut script = String::from("mount -t tmpfs none /sys/fs/cgroup\n");
    for (path, text) in files {
        script += &format!("mkdir -p $(dirname /sys/fs/cgroup/{path})\n");
        script += &format!("echo {text} > /sys/fs/cgroup/{path}\n");
    }
    script += &format!("printf '{line}\\n' > /sys/fs/cgroup/line\n");
    script += "mount --bind /sys/fs/cgroup/line /proc/$$/cgroup\n";
    contained(&["--mount"], &script)
}

/// 512 MiB in all: more is refused with both sizes, and the default is half of it.
fn is_bound_by_512_mib(launch: &dyn Fn() -> Command) {
    let (code, output) = fails(launch(), &["--l1-size-gb", "0.75"]);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("768.0 MiB") && output.contains("512.0 MiB"), "{output}");
    let server = started(launch, &[]);
    let bytes = status(&server)["kvtide"]["pool"]["configured_bytes"].as_u64();
    assert!(bytes.is_some_and(|bytes| bytes <= 256 << 20), "{bytes:?}");
    stop(server);
}

const BYTES: &str = "536870912";

#[test]
fn f24_a_version_2_group_above_ours_bounds_l1() {
    let files = [
        ("memory.max", "max"),
        ("pods/memory.max", BYTES),
        ("pods/memory.high", "max"),
        ("pods/engine/memory.max", "max"),
    ];
    if let Some(launch) = groups("0::/pods/engine", &files) {
        is_bound_by_512_mib(&launch);
    }
}

#[test]
fn f24_the_threshold_of_a_version_2_group_bounds_l1() {
    let files = [("memory.max", "1073741824"), ("memory.high", BYTES)];
    if let Some(launch) = groups("0::/only/the/host/sees/this", &files) {
        is_bound_by_512_mib(&launch);
    }
}

#[test]
fn f24_a_version_1_group_bounds_l1() {
    let files = [
        ("memory/docker/memory.limit_in_bytes", BYTES),
        ("memory/memory.limit_in_bytes", "9223372036854771712"),
    ];
    if let Some(launch) = groups("4:memory:/docker/c\\n0::/", &files) {
        is_bound_by_512_mib(&launch);
    }
}

#[test]
fn f24_l1_that_leaves_no_room_for_tables_is_warned_of() {
    let Some(launch) = groups("0::/", &[("memory.max", BYTES)]) else { return };
    let mut server = started(&launch, &["--l1-size-gb", "0.25"]);
    let warning = warning(&mut server);
    assert!(warning.contains("--print-memory lists the tables"), "{warning}");
    stop(server);
}
