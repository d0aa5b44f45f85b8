//! Recordings of the whole server: what it did can be run again, and nothing that was asked can be
//! read from the file.

use crate::bystander::{Bystander, MODEL, Prompt};
use crate::folder::Folder;
use kvtide_core::event::{Ask, Event};
use kvtide_core::limits::WORK_UNITS;
use kvtide_core::recording::{Happened, Reader, VERSION};
use kvtide_core::wire::client::Key;
use kvtide_core::wire::request::{KeyFrame, Request};
use kvtide_tests::server::Server;
use kvtide_tests::{binary, child};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SALT: &str = "tenant-with-a-secret";

pub fn start(arguments: &[&str]) -> Server {
    let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
    let pool = ["--l1-size-gb", "0.25"];
    let server = Server::start(&binary, &[&pool, arguments].concat());
    let mut server = server.unwrap_or_else(|why| panic!("{why}"));
    let grown = server.until(|status| {
        let pool = &status["kvtide"]["pool"];
        pool["usable_bytes"] == pool["configured_bytes"]
    });
    grown.unwrap_or_else(|why| panic!("{why}"));
    server
}

/// Exit status and output of `kvtide replay`.
pub fn replay(arguments: &[&str]) -> (i32, String) {
    let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
    let mut command = Command::new(&binary);
    let finished = child::run(command.arg("replay").args(arguments), Duration::from_secs(300));
    let finished = finished.unwrap_or_else(|why| panic!("{why}"));
    assert!(!finished.out_of_time, "{}", finished.output);
    (finished.code, finished.output)
}

pub fn stop(server: Server) -> String {
    let stopped = server.stop().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(stopped.code, 143, "{}", stopped.log);
    stopped.log
}

pub fn work(server: &Server, rounds: usize) {
    let mut client = Bystander::join(server.request, 0x1234_5678_9abc);
    for _ in 0..rounds {
        client.round();
    }
    lookup_of_a_tenant(&mut client, &Prompt::new(77, 2));
    client.leave();
}

fn lookup_of_a_tenant(client: &mut Bystander, prompt: &Prompt) {
    let mut key = Vec::new();
    let (tokens, request) = (&*prompt.tokens, &*prompt.request);
    let end = tokens.len() as u64;
    let (worker, world_size, readers) = (None, 1, 1);
    let salt = SALT;
    Key { model: MODEL, world_size, worker, tokens, start: 0, end, request, salt, readers }
        .encode(&mut key);
    client.ask(&Request::Lookup { key: KeyFrame(&key), tp_size: 1 });
    let wait = Duration::from_secs(5);
    client.ask(&Request::WaitPrefetchStatus { request, wait });
    client.end_session(request);
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

#[test]
fn a_run_is_decided_again_as_it_was() {
    let folder = Folder::new("run");
    let file = folder.file("recording");
    let server = start(&["--record", &file]);
    work(&server, 5);
    stop(server);
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("every effect and fact is the same.\n"), "{output}");
    for (kind, count) in [("prepare store", 5), ("commit retrieve", 10), ("lookup", 11)] {
        let line = format!("{count:>12} {kind}");
        assert!(output.lines().any(|each| each == line), "{line}: {output}");
    }
    assert!(output.contains("10 objects"), "two chunks a round: {output}");
}

/// Writes what `earlier.rs` keeps of a version: run it once when the version of the format changes,
/// and never again.
#[test]
#[ignore = "writes into the tree"]
fn write_the_recording_of_this_version() {
    let folder = Folder::new("version");
    let file = folder.file("recording");
    // Under skip_l1 what was stored leaves L1, and the lookups that follow bring it back.
    let tier = r#"{"type": "mock", "max_size_gb": 0.01, "mock_bandwidth_gb": 1}"#;
    let policy = ["--l2-adapter", tier, "--l2-store-policy", "skip_l1"];
    let record = ["--record", &file, "--l1-objects-max", "64"];
    let mut server = start(&[&record[..], &policy[..]].concat());
    work(&server, 3);
    let written = server.until(|status| {
        status["kvtide"]["reactor"]["totals"]["recording_frames"].as_u64() >= Some(4)
    });
    written.unwrap_or_else(|why| panic!("{why}"));
    stop(server);
    let kept = format!("{}/record/version-{VERSION}.recording", env!("CARGO_MANIFEST_DIR"));
    assert!(!std::path::Path::new(&kept).exists(), "{kept} is kept for good");
    std::fs::copy(&file, kept).expect("the tree can be written");
}

#[test]
fn the_transcript_shows_a_time_or_a_request() {
    let folder = Folder::new("transcript");
    let file = folder.file("recording");
    let server = start(&["--record", &file]);
    work(&server, 2);
    stop(server);
    let bytes = std::fs::read(&file).expect("it was recorded");
    let (request, at) = last_lookup(&bytes);
    let (code, output) = replay(&[&file, "--request", &request]);
    assert_eq!(code, 0, "{output}");
    let lines: Vec<&str> = output.lines().filter(|line| line.contains(&request)).collect();
    assert_eq!(lines.len(), 3, "lookup, wait and end: {output}");
    assert!(lines[0].contains(" lookup ") && lines[2].contains(" end session "), "{output}");
    let seconds = format!("{}.{:09}", at / 1_000_000_000, at % 1_000_000_000);
    let (code, output) = replay(&[&file, "--around", &seconds, "--lines", "5"]);
    assert_eq!(code, 0, "{output}");
    let shown = output.lines().filter(|line| line.contains(" -> ")).count();
    assert_eq!(shown, 5, "{output}");
    assert!(output.contains(&request), "{output}");
    let (code, output) = replay(&[&file, "--around", "soon"]);
    assert_eq!(code, 2, "{output}");
}

/// The last lookup that was recorded, as `--request` takes it, and its time in nanoseconds.
fn last_lookup(bytes: &[u8]) -> (String, u64) {
    let (_, mut reader) = Reader::new(bytes).expect("it was recorded");
    let mut last = None;
    while let Some(entry) = reader.next_entry().expect("it is whole") {
        if let Happened::Event(Event::Asked { ask: Ask::Lookup { keys }, .. }) = entry.happened {
            last = Some((keys.request.to_owned(), entry.at.0));
        }
    }
    last.expect("there was a lookup")
}

#[test]
fn no_token_no_salt_no_request_and_no_hash_is_in_it() {
    let folder = Folder::new("privacy");
    let file = folder.file("recording");
    let server = start(&["--record", &file, "--dump-dir", &folder.file(".")]);
    work(&server, 3);
    server.signal(Signal::USR2).unwrap_or_else(|why| panic!("{why}"));
    let dumped = folder.file(&format!("kvtide-{}-0.dump", server.id()));
    stop(server);
    let seed = 1000 * 0x1234_5678_9abc;
    let prompts = [Prompt::new(seed, 2), Prompt::new(seed + 1, 2), Prompt::new(77, 2)];
    for path in [&file, &dumped] {
        let bytes = std::fs::read(path).expect("it was recorded");
        assert!(contains(&bytes, MODEL.as_bytes()), "names of models can be read");
        let texts =
            [SALT, &SALT[..6], "prompt-", "again-", &prompts[0].request, &prompts[2].request];
        for text in texts {
            assert!(!contains(&bytes, text.as_bytes()), "{path}: {text}");
        }
        for prompt in &prompts {
            let pair = &prompt.tokens[..2];
            let little: Vec<u8> = pair.iter().flat_map(|token| token.to_le_bytes()).collect();
            let big: Vec<u8> = pair.iter().flat_map(|token| token.to_be_bytes()).collect();
            let wide: Vec<u8> = pair.iter().flat_map(|t| u64::from(*t).to_le_bytes()).collect();
            let packed: Vec<u8> =
                pair.iter().flat_map(|t| [&[0xce], &t.to_be_bytes()[..]].concat()).collect();
            for tokens in [little, big, wide, packed] {
                assert!(!contains(&bytes, &tokens), "{path}: {pair:?}");
            }
            for hash in hashes_of(prompt) {
                assert!(!contains(&bytes, &hash[..8]), "{path}: the hash of a prompt");
                let turned: Vec<u8> = hash[..8].iter().rev().copied().collect();
                assert!(!contains(&bytes, &turned), "{path}: the hash of a prompt");
            }
        }
    }
}

/// What the server names these chunks.
fn hashes_of(prompt: &Prompt) -> Vec<[u8; 32]> {
    use kvtide_core::config::Config;
    use kvtide_core::effect::Outbox;
    use kvtide_core::front::{Body, Front, Step};
    let mut front = Front::new(&Config::default());
    let mut job = front.begin(Body::Here);
    let key = prompt.key(None);
    let mut frames = vec![b"uid".to_vec()];
    let request = Request::Lookup { key: KeyFrame(&key), tp_size: 1 };
    frames.push(kvtide_core::wire::client::operation_frame(request.operation()));
    frames.extend(kvtide_core::wire::client::encode_payloads(&request));
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let (mut budget, mut out) = (WORK_UNITS << 10, Outbox::default());
    match front.step(&mut job, &frames, &mut budget, &mut out) {
        Step::Ask(Ask::Lookup { keys }) => keys.hashes.iter().map(|hash| hash.0).collect(),
        other => panic!("a lookup is asked: {other:?}"),
    }
}

#[test]
fn tokens_are_in_it_where_that_was_asked_for() {
    let folder = Folder::new("tokens");
    let file = folder.file("recording");
    let server = start(&["--record", &file, "--record-tokens"]);
    work(&server, 1);
    stop(server);
    let bytes = std::fs::read(&file).expect("it was recorded");
    let prompt = Prompt::new(77, 2);
    let encoded = prompt.key(None);
    let (mut at, mut told) = (0, 0);
    let (_, mut reader) = Reader::new(&bytes).expect("it was recorded");
    while let Some(entry) = reader.next_entry().expect("it is whole") {
        if let Happened::Tokens { first_chunk, encoded: chunk, .. } = entry.happened
            && contains(&encoded, chunk)
        {
            assert_eq!(first_chunk, told);
            at += chunk.len();
            told += 1;
        }
    }
    assert_eq!(told, 2, "both chunks of the prompt");
    assert!(at > 2 * 256, "{at} bytes");
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("holds token ids"), "{output}");
    assert!(output.contains("every effect and fact is the same."), "{output}");
}

/// Nothing is flushed at the end: what a second has passed for is there.
#[test]
fn a_server_that_was_killed_leaves_what_it_had_recorded() {
    let folder = Folder::new("killed");
    let file = folder.file("recording");
    let mut server = start(&["--record", &file]);
    work(&server, 2);
    let written = server.until(|status| {
        let totals = &status["kvtide"]["reactor"]["totals"];
        let events = std::fs::read(&file).map_or(0, |bytes| events_of(&bytes));
        events > 40 && totals["recording_frames"].as_u64() >= Some(1)
    });
    written.unwrap_or_else(|why| panic!("{why}"));
    server.signal(Signal::KILL).unwrap_or_else(|why| panic!("{why}"));
    server.wait(Duration::from_secs(60)).unwrap_or_else(|why| panic!("{why}"));
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 0, "{output}");
    assert!(
        output.contains("every effect and fact is the same.\nThere is no end mark"),
        "{output}"
    );
    let server = start(&["--record", &file]);
    stop(server);
    let older = folder.file("recording.old");
    assert!(Path::new(&older).exists(), "what the killed server left is kept");
    let (code, output) = replay(&[&file]);
    assert_eq!((code, output.contains("recording.old")), (0, false), "{output}");
    let (code, output) = replay(&[&older]);
    assert_eq!(code, 0, "{output}");
}

/// Of a file that is being written.
fn events_of(bytes: &[u8]) -> u64 {
    let Ok((_, mut reader)) = Reader::new(bytes) else { return 0 };
    let mut events = 0;
    while let Ok(Some(entry)) = reader.next_entry() {
        events = entry.number;
    }
    events
}

#[test]
fn a_file_that_cannot_be_written_ends_the_start_and_is_named() {
    let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
    let folder = Folder::new("nowhere");
    let own = folder.file(".");
    for file in ["/no/such/folder/recording", "/dev/full", &*own] {
        let mut command = Command::new(&binary);
        command.args(["server", "--port", "0", "--http-port", "0"]).args(POOL_SMALL);
        let finished =
            child::run(command.args(["--record", file]), Duration::from_secs(60)).expect("it runs");
        assert_eq!(finished.code, 3, "{}", finished.output);
        assert!(finished.output.contains(&format!("--record {file}: ")), "{}", finished.output);
    }
}

const POOL_SMALL: [&str; 2] = ["--l1-size-gb", "0.01"];
