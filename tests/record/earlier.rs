//! Recordings of earlier versions of the format are read for good. Whether their decisions are the
//! same is another matter: when a rule of the engine changes on purpose, the first difference moves
//! from "none" to that rule, and the expectation here with it.

use kvtide_core::recording::{Header, Reader, Replay};

/// A client that behaves, three rounds of it, and a lookup that found nothing, by version 0.1.0.
pub const VERSION_1: &[u8] = include_bytes!("version-1.recording");

#[test]
fn version_1_is_read_and_decided_as_it_was() {
    let (header, _) = Header::read(VERSION_1).expect("version 1 is known");
    assert_eq!((&*header.writer, header.tokens, header.config.chunk_size), ("0.1.0", false, 256));
    let (header, mut reader) = Reader::new(VERSION_1).expect("version 1 is known");
    let mut replay = Replay::new(header.config);
    let mut events = 0;
    while let Some(entry) = reader.next_entry().expect("version 1 is known") {
        let step = replay.step(&entry);
        step.unwrap_or_else(|difference| panic!("{difference}"));
        events = entry.number;
    }
    assert!(reader.is_marked() && events > 30, "{events} events and an end");
    let status = replay.engine().status();
    assert!(status.objects >= 6 && status.sessions == 0, "{status:?}");
}
