//! What `--print-memory` promises, against what the kernel counts.

use crate::client::{Client, Prompt, Shape};
use crate::launch::{release, start, status, stop, until};
use kvtide::clock::Clock;
use kvtide_core::limits::{INSTANCES_MAX, SESSIONS_MAX};
use kvtide_core::time::Instant;
use kvtide_core::wire::request::{KeyFrame, Request};
use kvtide_tests::child;
use kvtide_tests::server::Server;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Objects of 512 bytes, one token each.
const SHAPE: Shape = Shape { model: "m", chunk_size: 1, layers: 1, hidden: 128 };
const OBJECTS: u32 = 200_000;
/// Chunks of one request.
const CHUNKS: u32 = 4000;
/// Leases of one session: all of them fill the table of leases, but for a few.
const LEASES: u32 = 60;
/// Requests on their way at once.
const BATCH: usize = 256;
/// The program itself, its threads and what the allocator keeps.
const PROGRAM_BYTES: u64 = 32 * MIB;
const PATIENCE: Duration = Duration::from_secs(60);

/// Resident bytes that are not the shared pool's.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id()));
    let status = status.expect("the server runs");
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it is told");
        line.trim().trim_end_matches("kB").trim().parse().expect("a number")
    };
    (kib("VmRSS:") - kib("RssShmem:")) << 10
}

/// The list, by name.
fn list(arguments: &[&str]) -> BTreeMap<String, u64> {
    let mut command = Command::new(release());
    command.env("LMCACHE_DISABLE_BANNER", "1").args(["server", "--print-memory"]).args(arguments);
    let ended = child::run(&mut command, PATIENCE).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(ended.code, 0, "{}", ended.output);
    let entry = |line: &str| -> Option<(String, u64)> {
        let (name, rest) = line.split_at_checked(24)?;
        Some((name.trim().to_owned(), rest.split_whitespace().next()?.parse().ok()?))
    };
    ended.output.lines().filter_map(entry).collect()
}

fn fill_objects(client: &mut Client) {
    for number in 0..OBJECTS.div_ceil(CHUNKS) {
        let prompt = Prompt::new(number, CHUNKS, SHAPE);
        assert!(client.prepare_store(&prompt).is_some_and(|slots| !slots.is_empty()));
        assert!(client.commit_store(&prompt, b""));
    }
}

fn fill_instances(client: &mut Client) {
    for instance in 1..INSTANCES_MAX as i64 {
        client.register(instance);
    }
}

/// As many sessions as there can be, with request ids as long as they can be.
fn fill_sessions(client: &mut Client, prompt: &Prompt) {
    let prompts = 0..SESSIONS_MAX;
    let mut frames =
        prompts.map(|number| prompt.beginning(LEASES, format!("{number:x>1000}")).frame(None));
    loop {
        let batch: Vec<Vec<u8>> = frames.by_ref().take(BATCH).collect();
        for frame in &batch {
            client.send(&Request::Lookup { key: KeyFrame(frame), tp_size: 1 });
        }
        for _ in &batch {
            client.receive();
        }
        if batch.is_empty() {
            return;
        }
    }
}

#[test]
fn p3_resident_memory_is_l1_and_the_list() {
    let objects = OBJECTS.to_string();
    let arguments =
        ["--l1-size-gb", "0.25", "--l1-objects-max", &objects, "--l1-align-bytes", "64"];
    let arguments = [&arguments[..], &["--chunk-size", "1"]].concat();
    let list = list(&arguments);
    let clock = Clock::start();
    let mut server = start(&arguments);
    println!("start to first answer: {:?}", clock.now().since(Instant::ZERO));
    until(&mut server, |status| status["kvtide"]["pool"]["usable_bytes"] == 256 * MIB);
    let before = resident(&server);
    println!("before data, beyond the pool: {:.1} MiB", before as f64 / MIB as f64);
    assert!(before < 64 * MIB, "{before}");

    let (mut client, _) = Client::registered(server.request, 0, SHAPE);
    fill_objects(&mut client);
    let with_objects = resident(&server);
    let engine = status(&server);
    let count = engine["storage_manager"]["l1_manager"]["total_object_count"].as_u64();
    assert!(count.is_some_and(|count| count > u64::from(OBJECTS) * 9 / 10), "{engine}");
    fill_instances(&mut client);
    fill_sessions(&mut client, &Prompt::new(0, CHUNKS, SHAPE));
    let full = resident(&server);
    let engine = status(&server);
    println!("full, beyond the pool: {:.1} MiB", full as f64 / MIB as f64);

    // Budgets for what is under way hold nothing by now and would hide what is not listed.
    let budgets = ["connection buffers", "medium frames", "large frames", "HTTP", "log lines"];
    let bound = list["all tables"] - budgets.map(|name| list[name]).iter().sum::<u64>();
    let bound = bound + PROGRAM_BYTES;
    assert!(full <= bound, "{full} bytes are resident, {bound} were promised");
    // The tables that are full now, and what came to be resident with them.
    let share = |names: &[&str]| names.iter().map(|name| list[*name]).sum::<u64>();
    let listed = share(&["objects", "eviction policy"]);
    let taken = with_objects - before;
    println!("objects: {taken} bytes resident, {listed} listed");
    assert!(taken <= listed + PROGRAM_BYTES && taken * 2 >= listed, "{taken} of {listed}");
    assert!(taken / u64::from(OBJECTS) <= 256, "{taken} bytes for {OBJECTS} objects");
    let listed = share(&["sessions", "lease cells", "instances", "alarms", "token memo"]);
    let taken = full - with_objects;
    println!("sessions and instances: {taken} bytes resident, {listed} listed; {engine}");
    assert_eq!(engine["active_sessions"], SESSIONS_MAX, "{engine}");
    assert!(taken <= listed + PROGRAM_BYTES && taken * 3 >= listed, "{taken} of {listed}");
    drop(client);
    stop(server);
}
