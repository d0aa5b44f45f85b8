//! One running server: started on free loopback ports, ready when `/readyz` says so, stopped the
//! way a supervisor stops it.

use crate::child::{Watched, shell_code, tail};
use crate::http;
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub struct Server {
    child: Watched,
    /// Where engines connect.
    pub request: SocketAddr,
    /// Where operators ask.
    pub admin: SocketAddr,
}

/// What is left to say about a server that was stopped.
pub struct Stopped {
    /// As a shell reports it.
    pub code: i32,
    /// Shared-memory segments that it had mapped and that still have their name.
    pub segments_left: Vec<PathBuf>,
    pub log: String,
}

/// Attempts to start on ports that another process may take between our look and the bind.
const ATTEMPTS: u32 = 8;
/// Pause between two looks at `/readyz`, spent waiting for the process to end.
const READY_POLL: Duration = Duration::from_millis(20);
/// Looks at `/readyz`: 180 s and more, for the peer on a busy machine.
const READY_POLLS: u32 = 9000;
/// Looks at `/status`: 60 s and more.
const STATUS_POLLS: u32 = 3000;
/// How long a stop may take: outstanding work has 10 s, the last flush 2 s (design §7).
const STOP_TIME_MAX: Duration = Duration::from_secs(60);
/// The exit code of a start that failed, a port being taken among the reasons (spec/http-cli §1.1).
const START_FAILED: i32 = 3;
/// Of whom SIGKILL has ended, as a shell shows it.
const KILLED: i32 = 137;

impl Server {
    /// Starts `binary server` with these arguments beside the ports, and waits until it is ready.
    pub fn start(binary: &Path, arguments: &[&str]) -> Result<Server, String> {
        Server::start_by(&|| Command::new(binary), arguments)
    }

    /// The same where `launch` makes the command that the server's arguments are appended to: one
    /// that puts the binary into a namespace first, say.
    pub fn start_by(launch: &dyn Fn() -> Command, arguments: &[&str]) -> Result<Server, String> {
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let (request, admin) = free_ports()?;
            let mut command = launch();
            append_arguments(&mut command, request, admin, arguments);
            let name = command.get_program().to_string_lossy().into_owned();
            let child = Watched::start(&mut command).map_err(|error| format!("{name}: {error}"))?;
            let mut server = Server { child, request, admin };
            match server.until_ready()? {
                None => return Ok(server),
                Some(START_FAILED) => last = server.log(),
                Some(code) => {
                    return Err(format!("the server ended with {code}:\n{}", server.log()));
                }
            }
        }
        Err(format!("the server did not start in {ATTEMPTS} attempts, at last:\n{last}"))
    }

    /// Starts it on these addresses and no others: those that one before it had.
    pub fn start_at(
        binary: &Path,
        request: SocketAddr,
        admin: SocketAddr,
        arguments: &[&str],
    ) -> Result<Server, String> {
        let mut command = Command::new(binary);
        append_arguments(&mut command, request, admin, arguments);
        let child = Watched::start(&mut command);
        let child = child.map_err(|error| format!("{}: {error}", binary.display()))?;
        let mut server = Server { child, request, admin };
        match server.until_ready()? {
            None => Ok(server),
            Some(code) => Err(format!("the server ended with {code}:\n{}", server.log())),
        }
    }

    /// Likewise, after a shell has set limits: `ulimits` is what follows `ulimit`.
    pub fn start_within(
        ulimits: &str,
        binary: &Path,
        arguments: &[&str],
    ) -> Result<Server, String> {
        let script = format!("ulimit {ulimits} && exec \"$0\" \"$@\"");
        let shell = || {
            let mut command = Command::new("sh");
            command.args(["-c", &script]).arg(binary);
            command
        };
        Server::start_by(&shell, arguments)
    }

    /// None when ready, else the code with which the server has ended.
    fn until_ready(&mut self) -> Result<Option<i32>, String> {
        for _ in 0..READY_POLLS {
            let ended = self.child.wait(READY_POLL).map_err(|error| error.to_string())?;
            if let Some(status) = ended {
                return Ok(Some(shell_code(status)));
            }
            if self.is_ready() {
                return Ok(None);
            }
        }
        Err(format!("the server is not ready and has not ended:\n{}", self.log()))
    }

    /// Refused until the socket listens, 503 until everything behind it is up. The peer, which has
    /// no such page, is asked whether it is healthy.
    fn is_ready(&self) -> bool {
        let status = |page| http::get(self.admin, page).ok().map(|response| response.status);
        match status("/readyz") {
            Some(404) => status("/healthcheck") == Some(200),
            ready => ready == Some(200),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end, at most this long. The code with which it has ended, as a shell shows it.
    pub fn wait(&mut self, at_most: Duration) -> Result<Option<i32>, String> {
        let ended = self.child.wait(at_most).map_err(|error| error.to_string())?;
        Ok(ended.map(shell_code))
    }

    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        self.child.signal(signal).map_err(|error| error.to_string())
    }

    /// The address as clients spell it.
    pub fn url(&self) -> String {
        format!("tcp://{}", self.request)
    }

    pub fn log(&self) -> String {
        tail(&self.child.output(), 200)
    }

    /// What `/status` says.
    pub fn status(&self) -> Result<Value, String> {
        let answer =
            http::get(self.admin, "/status").map_err(|error| format!("/status: {error}"))?;
        serde_json::from_str(&answer.body).map_err(|error| format!("/status: {error}"))
    }

    /// What `/metrics` says.
    pub fn metrics(&self) -> Result<String, String> {
        let answer = http::get(self.admin, "/metrics");
        Ok(answer.map_err(|error| format!("/metrics: {error}"))?.body)
    }

    /// Looks at `/status` until it is as wanted.
    pub fn until(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Result<Value, String> {
        let mut last = Value::Null;
        for _ in 0..STATUS_POLLS {
            last = self.status()?;
            if wanted(&last) {
                return Ok(last);
            }
            if self.child.wait(READY_POLL).map_err(|error| error.to_string())?.is_some() {
                return Err(format!("the server has ended:\n{}", self.log()));
            }
        }
        Err(format!("it does not come to what is wanted: {last:#}"))
    }

    /// Bytes of its own that the process has in memory: not those of segments and files.
    pub fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        kibibytes.unwrap_or(0_u64) << 10
    }

    /// Waits for the end and says how it ended, without a signal of ours. `segments` are those that
    /// it had.
    pub fn ended(mut self, segments: Vec<PathBuf>) -> Result<Stopped, String> {
        let ended = self.child.wait(STOP_TIME_MAX).map_err(|error| error.to_string())?;
        let Some(status) = ended else {
            return Err(format!("the server does not end:\n{}", self.log()));
        };
        let segments_left = segments.into_iter().filter(|path| path.exists()).collect();
        Ok(Stopped { code: shell_code(status), segments_left, log: self.log() })
    }

    /// The named shared-memory segments that the server maps now.
    pub fn segments(&self) -> Vec<PathBuf> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id()));
        segments_of(&maps.unwrap_or_default())
    }

    /// Sends SIGKILL and waits for the end: an error where it has ended of something else before.
    pub fn kill(self) -> Result<(), String> {
        let segments = self.segments();
        self.signal(Signal::KILL)?;
        match self.ended(segments)? {
            Stopped { code: KILLED, .. } => Ok(()),
            Stopped { code, log, .. } => Err(format!("killed, it ends with {code}:\n{log}")),
        }
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(self) -> Result<Stopped, String> {
        let segments = self.segments();
        self.signal(Signal::TERM)?;
        self.ended(segments)
    }
}

fn append_arguments(
    command: &mut Command,
    request: SocketAddr,
    admin: SocketAddr,
    arguments: &[&str],
) {
    command
        .arg("server")
        .args(["--host", &request.ip().to_string(), "--port", &request.port().to_string()])
        .args(["--http-host", &admin.ip().to_string(), "--http-port", &admin.port().to_string()])
        .args(arguments);
}

/// Two ports that were free a moment ago. The command line knows no port 0.
fn free_ports() -> Result<(SocketAddr, SocketAddr), String> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let pair = bind().and_then(|one| Ok((one, bind()?)));
    let addresses = pair.and_then(|(one, other)| Ok((one.local_addr()?, other.local_addr()?)));
    addresses.map_err(|error| format!("no free loopback port: {error}"))
}

fn segments_of(maps: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.find("/dev/shm/").map(|at| PathBuf::from(&line[at..])))
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

/// What `/status` still counts though nobody is there: by name, with its value.
pub fn left_behind(status: &Value) -> Vec<String> {
    let own = &status["kvtide"];
    let zeros = [
        ("tickets", &own["tickets"]),
        ("lease_units", &own["lease_units"]),
        ("jobs", &own["jobs"]),
        ("parked_waits", &own["parked_waits"]),
        ("condemned_objects", &own["condemned_objects"]),
        ("staged", &own["bytes"]["staged"]),
        ("leased", &own["bytes"]["leased"]),
        ("condemned", &own["bytes"]["condemned"]),
        ("lent", &own["bytes"]["lent"]),
        ("connections", &own["reactor"]["connections"]),
        ("requests", &own["reactor"]["requests"]),
        ("buffered_bytes", &own["reactor"]["buffered_bytes"]),
        ("active_sessions", &status["active_sessions"]),
    ];
    let not_zero = zeros.into_iter().filter(|(_, value)| value.as_u64() != Some(0));
    not_zero.map(|(name, value)| format!("{name}: {value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_segments_are_read_from_the_map() {
        let maps = "7f00-7f10 rw-s 00000000 00:1a 5 /dev/shm/lmcache_l1_pool_a\n\
                    7f10-7f20 rw-s 00100000 00:1a 5 /dev/shm/lmcache_l1_pool_a\n\
                    7f20-7f30 r-xp 00000000 08:01 9 /usr/lib/libc.so.6\n";
        assert_eq!(segments_of(maps), [PathBuf::from("/dev/shm/lmcache_l1_pool_a")]);
    }

    #[test]
    fn a_program_that_ends_at_once_is_an_error_with_its_code() {
        let error = Server::start(Path::new("/bin/false"), &[]).err().expect("false is no server");
        assert!(error.starts_with("the server ended with 1:"), "{error}");
    }
}
