//! Recordings of earlier versions of the format are read for good. Whether their decisions are the
//! same is another matter: when a rule of the engine changes on purpose, the first difference moves
//! from "none" to that rule, and the expectation here with it.

use kvtide_core::recording::{Reader, Replay};
use std::collections::BTreeMap;

/// A client that behaves, three rounds of it, and a lookup that found nothing, by version 0.1.0.
pub const VERSION_1: &[u8] = include_bytes!("version-1.recording");

/// The same work with a lower tier that everything leaves L1 for and comes back from.
const VERSION_2: &[u8] = include_bytes!("version-2.recording");

/// The real client on the CPU that has the server copy: two chunks stored, found and read back.
const VERSION_3: &[u8] = include_bytes!("version-3.recording");

/// Runs a recording again: the engine at its end, and how often each kind of entry came.
fn decided(recording: &[u8]) -> (Replay, BTreeMap<&'static str, u32>) {
    let (header, mut reader) = Reader::new(recording).expect("its version is known");
    let header_is_right = (&*header.writer, header.tokens, header.config.chunk_size);
    assert_eq!(header_is_right, ("0.1.0", false, 256));
    let mut replay = Replay::new(header.config);
    let mut kinds = BTreeMap::new();
    while let Some(entry) = reader.next_entry().expect("its version is known") {
        let step = replay.step(&entry);
        step.unwrap_or_else(|difference| panic!("{difference}"));
        *kinds.entry(entry.kind).or_default() += 1;
    }
    assert!(reader.is_marked(), "it has an end");
    (replay, kinds)
}

#[test]
fn version_1_is_read_and_decided_as_it_was() {
    let (replay, kinds) = decided(VERSION_1);
    let status = replay.engine().status();
    assert!(kinds["tick"] > 0 && kinds["lookup"] == 7, "{kinds:?}");
    assert!(status.objects >= 6 && status.sessions == 0, "{status:?}");
}

#[test]
fn version_2_is_read_and_decided_as_it_was() {
    let (replay, kinds) = decided(VERSION_2);
    let status = replay.engine().status();
    assert_eq!((kinds["store ended"], kinds["load ended"]), (6, 8), "{kinds:?}");
    assert!(status.objects <= 2 && status.sessions == 0, "{status:?}");
}

#[test]
fn version_3_is_read_and_decided_as_it_was() {
    let (replay, kinds) = decided(VERSION_3);
    let status = replay.engine().status();
    assert_eq!((kinds["register memory"], kinds["copy ended"]), (1, 2), "{kinds:?}");
    assert_eq!((status.objects, status.instances.len()), (2, 0), "{status:?}");
}
