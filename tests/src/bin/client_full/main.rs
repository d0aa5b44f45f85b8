//! `cargo client-full`: the parts of the real client that need all of its 6 GB, against the
//! release binary. Part of `.ci/run`, not of `cargo test`.
//!
//! Scenarios `pickle` and `engine` (vLLM's own adapters) run on a server with a shared pool and on
//! one with private memory, where every byte travels in the messages; so do those of server-driven
//! transfer, where the server moves them itself, and the peer's bench client in both modes. Then
//! the peer's own server shares folders of objects with ours, and answers over HTTP what ours does.
//! The closing line counts runs, and the exit status is 1 when one failed. A word as argument runs
//! only those whose names contain it.

mod peer;

use kvtide_tests::binary;
use kvtide_tests::child::{Finished, tail};
use kvtide_tests::client::{Client, Install};
use kvtide_tests::server::Server;
use std::path::Path;
use std::process::ExitCode;

/// What one run does with a server, and how it shows that it did.
enum Task {
    Scenario(&'static str),
    /// All scenarios of server-driven transfer. One of them stores so often, and looks up each
    /// object at once.
    ServerDriven(u32),
    /// Requests that the bench client makes in a mode of transfer: each is stored, found, read back
    /// and compared.
    Bench(&'static str, u32),
}

const SHARED: &[&str] = &["--l1-size-gb", "0.5", "--eviction-policy", "LRU"];
const PRIVATE: &[&str] = &["--l1-size-gb", "0.5", "--eviction-policy", "LRU", "--isolated-ipc"];
/// For engines whose memory the server copies.
const LANES: &[&str] = &["--copy-lanes", "2"];
const SHORT_CHUNKS: &[&str] = &["--copy-lanes", "2", "--chunk-size", "16"];

const RUNS: &[(&str, [&[&str]; 2], Task)] = &[
    ("pickle, shared pool", [SHARED, &[]], Task::Scenario("pickle")),
    ("pickle, private memory", [PRIVATE, &[]], Task::Scenario("pickle")),
    ("engine, shared pool", [SHARED, &[]], Task::Scenario("engine")),
    ("engine, private memory", [PRIVATE, &[]], Task::Scenario("engine")),
    ("bench, shared pool", [SHARED, &[]], Task::Bench("engine_driven", 8)),
    ("bench, private memory", [PRIVATE, &[]], Task::Bench("engine_driven", 8)),
    ("server-driven, shared pool", [SHARED, SHORT_CHUNKS], Task::ServerDriven(2_000)),
    ("server-driven, private memory", [PRIVATE, SHORT_CHUNKS], Task::ServerDriven(2_000)),
    ("server-driven bench, shared pool", [SHARED, LANES], Task::Bench("lmcache_driven", 8)),
    ("server-driven bench, private memory", [PRIVATE, LANES], Task::Bench("lmcache_driven", 8)),
];

fn main() -> ExitCode {
    let prepared = Client::have(Install::Full).and_then(|client| Ok((client, binary::release()?)));
    let (client, binary) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let only = std::env::args().nth(1).unwrap_or_default();
    let (mut passed, mut failed) = (0, 0);
    let mut play = |name: &str, run: &dyn Fn() -> Result<(), String>| {
        if !name.contains(&only) {
            return;
        }
        println!("== {name}");
        match run() {
            Ok(()) => {
                passed += 1;
                println!("{name}: ok");
            }
            Err(why) => {
                failed += 1;
                println!("{why}\n{name}: FAILED");
            }
        }
    };
    for (name, arguments, task) in RUNS {
        play(name, &|| run(&client, &binary, &arguments.concat(), task));
    }
    for (name, run) in peer::RUNS {
        play(name, &|| peer::run(&client, &binary, *run));
    }
    println!("client-full: {passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(client: &Client, binary: &Path, arguments: &[&str], task: &Task) -> Result<(), String> {
    let server = Server::start(binary, arguments)?;
    let finished = match task {
        Task::Scenario(name) => client.drive(&server, name)?,
        Task::ServerDriven(stores) => client.server_driven(&server, "", *stores)?,
        // The server answers a store when its objects are there, so nobody has to wait for them.
        Task::Bench("lmcache_driven", requests) => {
            client.bench(&server, "lmcache_driven", *requests, "0")?
        }
        Task::Bench(mode, requests) => client.bench(&server, mode, *requests, "0.05")?,
    };
    println!("{}", tail(&finished.output, 60));
    if let Err(why) = judge(&finished, task) {
        return Err(format!("{why}; the server says:\n{}", server.log()));
    }
    let stopped = server.stop()?;
    if stopped.code != 143 {
        return Err(format!("SIGTERM ends it with {}, not 143:\n{}", stopped.code, stopped.log));
    }
    if !stopped.segments_left.is_empty() {
        return Err(format!("left behind: {:?}", stopped.segments_left));
    }
    Ok(())
}

fn judge(finished: &Finished, task: &Task) -> Result<(), String> {
    if finished.code != 0 || finished.out_of_time {
        return Err(format!("ended with {}, out of time: {}", finished.code, finished.out_of_time));
    }
    let count = |what: &str| finished.output.matches(what).count();
    match task {
        // A scenario that this install cannot run says so and ends with 0: not good enough here.
        Task::Scenario(_) if count(" passed, 0 failed  [") != 1 => Err("no verdict".to_string()),
        Task::Scenario(_) => Ok(()),
        Task::ServerDriven(_) if count("server-driven: 8 scenarios, 0 failures") != 1 => {
            Err("no verdict".to_string())
        }
        Task::ServerDriven(_) => Ok(()),
        Task::Bench(_, requests) => {
            let matches = count("CHECKSUM MATCH OK");
            if matches == *requests as usize && count("2/2 chunks hit") == matches {
                Ok(())
            } else {
                Err(format!("{matches} of {requests} requests came back whole"))
            }
        }
    }
}
