//! How a server is put into a container: namespaces by `unshare`, a few mounts by a shell, then the
//! binary in the shell's place.

use kvtide_tests::server::Server;
use kvtide_tests::{binary, child, http};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A pool of 64 MiB.
pub const SMALL: [&str; 2] = ["--l1-size-gb", "0.0625"];
const END_TIME_MAX: Duration = Duration::from_secs(60);
/// Pause between two looks, spent waiting for the server to end.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
const LOOKS_MAX: usize = 6000;

pub fn release() -> PathBuf {
    binary::release().unwrap_or_else(|why| panic!("{why}"))
}

pub fn start(arguments: &[&str]) -> Server {
    started(&|| Command::new(release()), arguments)
}

pub fn started(launch: &dyn Fn() -> Command, arguments: &[&str]) -> Server {
    Server::start_by(launch, arguments).unwrap_or_else(|why| panic!("{why}"))
}

/// Runs a start that fails: its exit code and everything that it said.
pub fn fails(mut command: Command, arguments: &[&str]) -> (i32, String) {
    command.args(["server", "--port", "0", "--http-port", "0"]).args(arguments);
    let ended = child::run(&mut command, END_TIME_MAX).unwrap_or_else(|why| panic!("{why}"));
    assert!(!ended.out_of_time, "a start that must fail goes on:\n{}", ended.output);
    (ended.code, ended.output)
}

/// Namespaces of these kinds for the binary, set up by a script; None, and a line that says so,
/// where this machine allows none.
pub fn contained(kinds: &'static [&'static str], script: &str) -> Option<Box<dyn Fn() -> Command>> {
    let Some(privileges) = privileges() else {
        left_out("`unshare` makes no namespaces here");
        return None;
    };
    let script = format!("set -e\n{script}\nexec \"$0\" \"$@\"");
    Some(Box::new(move || {
        let mut command = Command::new("unshare");
        command.args(privileges).args(kinds).args(["sh", "-c", &script]).arg(release());
        command
    }))
}

/// Says that something cannot be tried here. Where `KVTIDE_MUST_CONTAIN` is set, as it is in CI,
/// that is a failure: nobody reads what a test that passes prints.
pub fn left_out(why: &str) {
    assert!(std::env::var_os("KVTIDE_MUST_CONTAIN").is_none(), "left out: {why}");
    println!("left out: {why}");
}

/// What `unshare` needs to be allowed to mount: nothing as root, else a user namespace.
fn privileges() -> Option<&'static [&'static str]> {
    const WAYS: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    WAYS.into_iter().find(|way| {
        let mut command = Command::new("unshare");
        command.args(*way).args(["--mount", "sh", "-c", "mount -t tmpfs none /dev/shm"]);
        child::run(&mut command, END_TIME_MAX).is_ok_and(|ended| ended.code == 0)
    })
}

/// A script that lets the machine's control groups show this limit.
pub fn memory_limit(mib: u64) -> String {
    let bytes = mib << 20;
    format!(
        "mount -t tmpfs none /sys/fs/cgroup\n\
         mkdir /sys/fs/cgroup/memory\n\
         echo {bytes} > /sys/fs/cgroup/memory.max\n\
         echo {bytes} > /sys/fs/cgroup/memory/memory.limit_in_bytes\n"
    )
}

pub fn status(server: &Server) -> Value {
    let response = http::get(server.admin, "/status").expect("the admin side answers");
    serde_json::from_str(&response.body).expect("it is JSON")
}

/// Looks at `/status` until it is as wanted.
pub fn until(server: &mut Server, wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..LOOKS_MAX {
        let status = status(server);
        if wanted(&status) {
            return status;
        }
        let ended = server.wait(LOOK_PAUSE).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(ended, None, "it ended meanwhile:\n{}", server.log());
    }
    panic!("it does not come to what is wanted: {}\n{}", status(server), server.log());
}

/// Waits until L1 has its full size.
pub fn grown(server: &mut Server) {
    until(server, |status| {
        let pool = &status["kvtide"]["pool"];
        pool["usable_bytes"] == pool["configured_bytes"]
    });
}

/// The one warning of a server. Lines are written by a thread of their own and may come late.
pub fn warning(server: &mut Server) -> String {
    let mut looks = 0;
    while warnings(&server.log()).is_empty() && looks < LOOKS_MAX {
        let ended = server.wait(LOOK_PAUSE).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(ended, None, "it ended without a warning:\n{}", server.log());
        looks += 1;
    }
    let log = server.log();
    let [warning] = warnings(&log)[..] else { panic!("one warning:\n{log}") };
    warning.to_owned()
}

pub fn warnings(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("LMCache WARNING")).collect()
}

/// The name of the pool that a server tells.
pub fn pool_name(server: &Server) -> Option<String> {
    status(server)["kvtide"]["pool"]["name"].as_str().map(str::to_owned)
}

pub fn segment(name: &str) -> PathBuf {
    Path::new("/dev/shm").join(name)
}

/// A name that no other test and no other run uses.
pub fn unique(test: &str) -> String {
    format!("lmcache_l1_pool_test_{}_{test}", std::process::id())
}

pub fn stop(server: Server) {
    let stopped = server.stop().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(stopped.code, 143, "{}", stopped.log);
    assert!(stopped.segments_left.is_empty(), "left behind: {:?}", stopped.segments_left);
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
