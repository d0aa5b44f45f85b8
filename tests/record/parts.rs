//! Recordings in several files: those that are all there are one recording, and those that have
//! lost their beginning are shown, not judged.

use crate::folder::Folder;
use crate::runs::replay;
use kvtide::record::{PARTS, RecordOptions, part, start};
use kvtide_core::config::{Config, Limits};
use kvtide_core::effect::Outbox;
use kvtide_core::engine::Engine;
use kvtide_core::event::{Ask, Event, Keys};
use kvtide_core::names::{ChunkHash, Connection, Reply};
use kvtide_core::slots::SlotName;
use kvtide_core::time::Instant;
use std::path::Path;
use std::time::Duration;

/// Lookups of 200 chunks that nobody has seen: each takes more than 3 KiB.
fn record(file: &Path, lookups: u64) {
    let limits = Limits { sessions: 64, lease_cells: 4096, ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    let options = RecordOptions {
        file: Some(file.to_owned()),
        bytes_max: 8 << 20,
        tokens: false,
        dump_dir: file.to_owned(),
        flight: false,
    };
    let (mut recording, thread) =
        start(&options, &config).expect("the folder is ours").expect("there is one");
    let (mut engine, mut out) = (Engine::new(config), Outbox::default());
    let name = SlotName { index: 1, generation: 0 };
    let reply = Reply { connection: Connection(name), request: name };
    for lookup in 0..lookups {
        let hash = |chunk: u64| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&lookup.to_le_bytes());
            hash[8..16].copy_from_slice(&chunk.to_le_bytes());
            hash[16..24].copy_from_slice(&(lookup * 200 + chunk).to_le_bytes());
            ChunkHash(hash)
        };
        let hashes: Vec<ChunkHash> = (0..200).map(hash).collect();
        let keys = Keys {
            model: "model",
            salt: "",
            request: &format!("request-{lookup}"),
            world_size: 1,
            worker: None,
            readers: 1,
            first_chunk: 0,
            end_chunk: 200,
            hashes: &hashes,
        };
        let event = Event::Asked { reply, ask: Ask::Lookup { keys } };
        recording.handle(&mut engine, Instant(lookup * 1000), event, &mut out);
        out.clear();
    }
    recording.end(Instant(lookups * 1000), true);
    assert!(thread.within(Duration::from_secs(120)), "everything is written");
}

#[test]
fn parts_are_one_recording_until_the_first_is_gone() {
    let folder = Folder::new("parts");
    let path = folder.path().join("recording");
    let file = folder.file("recording");
    record(&path, 900);
    assert!(part(&path, 2).exists() && !part(&path, 3).exists(), "three parts");
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("Replayed 900 events: every effect and fact is the same."), "{output}");
    assert!(output.contains("recording.2, ") && output.contains("recording.1, "), "{output}");

    let (code, output) = replay(&[&folder.file("recording.1")]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("recording.2, ") && output.contains("is the same."), "{output}");

    let middle = std::fs::read(part(&path, 1)).expect("it is there");
    std::fs::remove_file(part(&path, 1)).expect("it is ours");
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("a part is missing"), "{output}");
    std::fs::write(part(&path, 1), &middle[10..]).expect("it is ours");
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("recording.1: at offset 0: "), "{output}");

    std::fs::rename(part(&path, 2), part(&path, 1)).expect("it is ours");
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("a part is missing"), "{output}");

    std::fs::write(part(&path, 1), middle).expect("it is ours");
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("begin in the midst of a run, so nothing was checked"), "{output}");

    let newest = std::fs::read(&path).expect("it is there");
    std::fs::write(&path, &newest[..newest.len() - 20]).expect("it is ours");
    let (code, output) = replay(&[&file]);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("events before it were read; none was checked."), "{output}");
}

/// The server is started again with the same file, and what it had recorded before is still one
/// recording.
#[test]
fn an_earlier_recording_of_several_parts_can_be_replayed() {
    let folder = Folder::new("earlier");
    let path = folder.path().join("recording");
    record(&path, 900);
    record(&path, 3);
    let (code, output) = replay(&[&folder.file("recording.old")]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("Replayed 900 events: every effect and fact is the same."), "{output}");
    let (code, output) = replay(&[&folder.file("recording")]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("Replayed 3 events: every effect and fact is the same."), "{output}");
}

#[test]
fn a_long_recording_stays_within_its_bound() {
    let folder = Folder::new("bound");
    let path = folder.path().join("recording");
    record(&path, 4000);
    let parts = (0..PARTS).map(|age| std::fs::metadata(part(&path, age)).expect("it is there"));
    let bytes: u64 = parts.map(|part| part.len()).sum();
    assert!(bytes <= 8 << 20, "{bytes} bytes");
    assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count() as u64, PARTS);
    let (code, output) = replay(&[&folder.file("recording")]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("begin in the midst of a run, so nothing was checked"), "{output}");
}
