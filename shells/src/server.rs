//! From a command line to a server that stands: settings, addresses, memory, helper threads. What
//! serves on that ground, the reactor, is handed in, so this file knows neither sockets of clients
//! nor the engine.
//!
//! The one invariant: whatever can make a start fail is tried before anybody is let in, so a port
//! that accepts means a server that answers (spec/http-cli §4.1, §4.3).

pub mod grow;
pub mod memory;
pub mod news;
pub mod threads;

use crate::admin::bind_metrics;
use crate::arena::machine::transparent_pages;
use crate::arena::sizing::Bytes;
use crate::arena::{Arena, ArenaError, Grower, Machine, segment};
use crate::cli::coordinator::is_yes;
use crate::cli::{Asked, ConfigFault, EXIT_CONFIG, EXIT_STARTUP, Settings, Start, parse};
use crate::clock::Clock;
use crate::reactor::Signals;
use crate::sockets::{BindError, Bound};
use crate::{bench, entropy, log, replay, version};
use grow::BrokenOff;
use kvtide_core::config::PoolKind;
use kvtide_core::time::Instant;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// What a server stands on. All of it is ours; nobody is let in yet.
#[derive(Debug)]
pub struct Ground {
    pub settings: Settings,
    pub clock: Clock,
    /// Taken before memory is, so that no signal leaves a segment behind.
    pub signals: Signals,
    pub arena: Arena,
    /// Grows what is not there yet while serving, and looks after the segment.
    pub grower: Grower,
    /// Holds the engines' address until whoever serves it takes over: dropping it frees the port.
    pub request: Bound,
    pub http: Bound,
    /// `--prometheus-port`.
    pub metrics: Option<Bound>,
}

/// Why there is no server, and the exit status that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFault {
    pub exit: u8,
    pub message: String,
}

impl StartFault {
    /// Something that this machine does not allow.
    pub fn world(message: impl fmt::Display) -> StartFault {
        StartFault { exit: EXIT_STARTUP, message: message.to_string() }
    }
}

impl fmt::Display for StartFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ConfigFault> for StartFault {
    fn from(fault: ConfigFault) -> StartFault {
        StartFault { exit: fault.exit, message: fault.to_string() }
    }
}

impl From<BindError> for StartFault {
    fn from(error: BindError) -> StartFault {
        StartFault::world(error)
    }
}

impl From<ArenaError> for StartFault {
    fn from(error: ArenaError) -> StartFault {
        match error {
            // As the peer does (spec/http-cli §1.2).
            ArenaError::HugePages { .. } => {
                StartFault { exit: EXIT_CONFIG, message: format!("ValueError: {error}") }
            }
            ArenaError::Segment(_) | ArenaError::Map { .. } => StartFault::world(error),
        }
    }
}

impl From<BrokenOff> for StartFault {
    fn from(why: BrokenOff) -> StartFault {
        match why {
            BrokenOff::NotWhole(why) => StartFault::world(why),
            BrokenOff::Signalled(signal) => StartFault {
                exit: signal.exit_code(),
                message: "Told to end before L1 was allocated".to_owned(),
            },
        }
    }
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub exit: u8,
    /// For how long the log may look for its reader.
    pub until: Instant,
}

/// Time until then.
pub fn left(clock: Clock, until: Instant) -> Duration {
    let now = clock.now();
    until.max(now).since(now)
}

/// Runs the program. `serve` serves until it is told to end, and says how that was.
pub fn run(args: Vec<OsString>, serve: impl FnOnce(Ground) -> Result<Ended, StartFault>) -> u8 {
    let clock = Clock::start();
    let ended = match parse(args) {
        Ok(Asked::Print { text, to_stdout, exit }) => return print(&text, to_stdout, exit),
        Ok(Asked::Bench(flags)) => return bench::run(*flags),
        Ok(Asked::Replay(flags)) => return replay::run(&flags),
        Ok(Asked::BenchFloor { chunk_tokens }) => return bench::floor::serve(chunk_tokens),
        Ok(Asked::Serve { flags, warnings }) => {
            let form = flags.observe.log_format;
            if let Err(error) = log::start(clock, variable("LMCACHE_LOG_LEVEL").as_deref(), form) {
                return complain(&StartFault::world(format!("no thread for the log: {error}")));
            }
            // Whoever reads objects wants nothing else.
            if form == log::Form::Text {
                show_banner();
            }
            raise_descriptor_limit();
            let settled = settle(&flags, warnings, clock);
            if let Ok((settings, _)) = &settled
                && settings.print_memory
            {
                return print(&memory::page(settings), true, 0);
            }
            settled.and_then(Ground::lay).and_then(serve)
        }
        Err(fault) => Err(fault.into()),
    };
    let ended = ended.unwrap_or_else(|fault| {
        // The reason is the last line (spec/http-cli §1.2).
        log::flush(LOG_PATIENCE);
        Ended { exit: complain(&fault), until: clock.now() + LOG_PATIENCE }
    });
    log::flush(left(clock, ended.until));
    ended.exit
}

/// What the flags come to on this machine, and now.
fn settle(
    flags: &crate::cli::flags::ServerFlags,
    warnings: Vec<String>,
    clock: Clock,
) -> Result<(Settings, Clock), StartFault> {
    // A list is printed and nothing touched.
    if !flags.memory.print_memory {
        remove_stale_segments(flags.memory.shm_name.as_deref().unwrap_or_default());
    }
    let start = Start {
        environment: &variable,
        machine: Machine::read(),
        seed: entropy::seed(),
        random_id: &entropy::uuid(),
        wall_nanos: clock.wall_nanos_at_start(),
    };
    let settings = Settings::resolve(flags, start)?;
    for warning in warnings.iter().chain(&settings.warnings) {
        tracing::warn!("{warning}");
    }
    Ok((settings, clock))
}

/// What killed servers left behind holds memory that L1 is to have, so it goes before anybody looks
/// how much there is (F49).
fn remove_stale_segments(wanted_name: &str) {
    for stale in segment::sweep().into_iter().chain(segment::take_over(wanted_name)) {
        tracing::info!("Removed segment {stale}, which a server of this user left behind.");
    }
}

impl Ground {
    /// Takes every address, then memory.
    fn lay((settings, clock): (Settings, Clock)) -> Result<Ground, StartFault> {
        let request = Bound::bind(&settings.request_host, settings.request_port)?;
        let http = Bound::bind(&settings.http_host, settings.http_port)?;
        let metrics = settings.metrics_port.and_then(|port| metrics_address(&settings, port));
        if let Some(warning) = exposure(request.address(), http.address()) {
            tracing::warn!("{warning}");
        }
        let mut signals = Signals::install().map_err(StartFault::world)?;
        let bytes = settings.engine.l1_bytes;
        let (mut arena, mut grower) = match settings.engine.pool {
            PoolKind::Shared => Arena::shared(&settings.segment, bytes)?,
            PoolKind::Private if settings.huge_pages => Arena::huge(bytes)?,
            PoolKind::Private => Arena::private(bytes)?,
        };
        announce_memory(&arena, settings.huge_pages);
        let terminal = io::stderr().is_terminal() && !settings.log_json;
        let mut stderr = io::stderr();
        let terminal = terminal.then_some(&mut stderr as &mut dyn Write);
        let first = settings.first_bytes;
        grow::before_serving(&mut arena, &mut grower, first, terminal, || signals.first())?;
        Ok(Ground { settings, clock, signals, arena, grower, request, http, metrics })
    }
}

/// The lines that users wait for (spec/http-cli §4.1). Called when clients are let in.
pub fn announce_serving(settings: &Settings, port: u16) {
    let host = &settings.request_host;
    tracing::info!("LMCache zmq cache server is running on {host}:{port}");
    tracing::info!("LMCache cache server is running...");
}

/// Likewise, when the HTTP thread listens.
pub fn announce_http(http: &Settings, port: u16) {
    tracing::info!("LMCache HTTP server initialized on {}:{port}", http.http_host);
}

/// F24: the whole size is told, once, in words.
fn announce_memory(arena: &Arena, huge_pages: bool) {
    let size = Bytes(arena.bytes());
    match arena.pool_name() {
        Some(name) => {
            let large = transparent_pages(Path::new("/"));
            tracing::info!(
                "L1 is {size} of shared memory, segment {name} (transparent huge pages: {large})"
            );
        }
        None if huge_pages => tracing::info!("L1 is {size} of private memory in pages of 2 MiB"),
        None => tracing::info!("L1 is {size} of private memory"),
    }
}

/// What it means to be reachable from other machines, where this server is. It is meant to be, in
/// most containers: hence one line, and no refusal.
fn exposure(request: SocketAddr, http: SocketAddr) -> Option<String> {
    let beyond: Vec<String> = [("--host", request), ("--http-host", http)]
        .iter()
        .filter(|(_, address)| !address.ip().is_loopback())
        .map(|(flag, address)| format!("{flag} {address}"))
        .collect();
    (!beyond.is_empty()).then(|| {
        format!(
            "Listening beyond this machine ({}): whoever reaches that can read, replace and clear \
             what is cached, for nothing is authenticated or encrypted; let the network decide \
             who reaches it",
            beyond.join(", ")
        )
    })
}

/// The peer opens nothing at this port, so servers that share a host are often told the same one.
fn metrics_address(settings: &Settings, port: u16) -> Option<Bound> {
    match bind_metrics(&settings.http_host, port) {
        Ok(bound) => Some(bound),
        Err(error) => {
            let http = settings.http_port;
            tracing::warn!("--prometheus-port: {error}; /metrics is on port {http} only");
            None
        }
    }
}

/// Every client is a descriptor, and the usual soft limit is meant for programs that use `select`.
/// Where it cannot be raised, clients beyond it are turned away and counted.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).ok();
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn show_banner() {
    if variable("LMCACHE_DISABLE_BANNER").is_some_and(|text| is_yes(&text)) {
        return;
    }
    let version = version::KVTIDE;
    let peer = version::LMCACHE;
    eprintln!("  ~~~~  kvtide {version}\n ~~  ~~~~  serves clients of lmcache {peer}");
}

fn print(text: &str, to_stdout: bool, exit: u8) -> u8 {
    // A reader that has gone away wants no more text.
    if to_stdout {
        io::stdout().write_all(text.as_bytes()).ok();
    } else {
        io::stderr().write_all(text.as_bytes()).ok();
    }
    exit
}

/// A faulty configuration ends in a bare last line, which scripts read; a start that failed is told
/// in the log.
fn complain(fault: &StartFault) -> u8 {
    if fault.exit == EXIT_CONFIG {
        eprintln!("{fault}");
    } else if fault.exit > EXIT_SIGNALLED {
        tracing::info!("{fault}");
    } else {
        tracing::error!("The server cannot start: {fault}");
        // Before the log is set up, and for whoever filters it.
        if !tracing::enabled!(tracing::Level::ERROR) {
            eprintln!("{fault}");
        }
    }
    fault.exit
}

/// How long the last log lines may take to find their reader.
pub const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// Above it, exit statuses name the signal that ended the process.
const EXIT_SIGNALLED: u8 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn being_reachable_from_elsewhere_is_said_once_with_what_it_means() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        assert_eq!(exposure(at("127.0.0.1:5555"), at("[::1]:8080")), None);
        let one = exposure(at("0.0.0.0:5555"), at("127.0.0.1:8080")).expect("engines can come");
        assert!(one.contains("--host 0.0.0.0:5555") && !one.contains("--http-host"), "{one}");
        let both = exposure(at("10.0.0.7:1"), at("[::]:2")).expect("both can be reached");
        assert!(both.contains("--host 10.0.0.7:1, --http-host [::]:2"), "{both}");
        assert!(both.contains("read, replace and clear"), "{both}");
    }

    #[test]
    fn as_many_clients_as_the_system_allows_find_a_descriptor() {
        raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
