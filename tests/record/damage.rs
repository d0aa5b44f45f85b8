//! Recordings that were cut off or changed: what is left is read, and the place is named.

use crate::earlier::VERSION_1;
use crate::folder::Folder;
use kvtide_core::effect::Outbox;
use kvtide_core::event::Event;
use kvtide_core::recording::frame::HEAD_BYTES;
use kvtide_core::recording::{
    Fault, Frame, Header, Malformed, Part, Reader, Recorder, Secret, decode,
};
use kvtide_core::time::Instant;
use kvtide_tests::{binary, child};
use std::process::Command;
use std::time::Duration;

#[test]
fn wherever_it_is_cut_off_the_offset_is_named() {
    let whole = decode(VERSION_1).expect("it is committed as it was written");
    let (_, header_bytes) = Header::read(VERSION_1).expect("it has a header");
    let mut ends = 0;
    for end in 0..VERSION_1.len() {
        match decode(&VERSION_1[..end]) {
            Ok(events) => {
                assert!(end >= header_bytes && events <= whole, "{end}");
                ends += 1;
            }
            Err(Malformed { offset, fault }) => {
                let expected = matches!(fault, Fault::Truncated { .. } | Fault::NotARecording);
                assert!(expected, "{end}: {fault:?}");
                assert!(offset <= end as u64, "{end}: {offset}");
            }
        }
    }
    let mut frames = 0;
    let (_, mut reader) = Reader::new(VERSION_1).expect("it has a header");
    while let Some(entry) = reader.next_entry().expect("it is whole") {
        frames = entry.frame + 1;
    }
    assert_eq!(ends, frames, "only between frames can it end unnoticed");
}

#[test]
fn no_byte_can_be_changed_unnoticed() {
    for at in 0..VERSION_1.len() {
        let mut changed = VERSION_1.to_vec();
        changed[at] ^= 0x20;
        let fault = decode(&changed).expect_err("something is wrong");
        // At the latest where what a changed length speaks of would have begun.
        assert!(fault.offset <= (at + HEAD_BYTES) as u64, "{at}: {fault}");
    }
}

#[test]
fn a_frame_that_is_missing_is_missed() {
    let mut frames = Vec::new();
    let magic = b"KVFR";
    for (at, window) in VERSION_1.windows(4).enumerate() {
        if window == magic {
            frames.push(at);
        }
    }
    assert!(frames.len() >= 3, "{frames:?}");
    let without = [&VERSION_1[..frames[1]], &VERSION_1[frames[2]..]].concat();
    let fault = decode(&without).expect_err("the second frame is not there");
    let expected = Fault::Order { expected: 1, found: 2 };
    assert_eq!(fault, Malformed { offset: frames[1] as u64, fault: expected });
}

#[test]
fn the_command_names_file_and_offset() {
    let folder = Folder::new("damage");
    let binary = binary::release().unwrap_or_else(|why| panic!("{why}"));
    let replay = |bytes: &[u8]| {
        let file = folder.file("recording");
        std::fs::write(&file, bytes).expect("the folder is ours");
        let mut command = Command::new(&binary);
        let finished = child::run(command.args(["replay", &file]), Duration::from_secs(60));
        let finished = finished.unwrap_or_else(|why| panic!("{why}"));
        assert!(finished.output.contains(&file), "{}", finished.output);
        (finished.code, finished.output)
    };
    let (code, output) = replay(&VERSION_1[..VERSION_1.len() - 60]);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("offset ") && output.contains("it ends within "), "{output}");
    let mut changed = VERSION_1.to_vec();
    let last = changed.len() - 100;
    changed[last] ^= 1;
    let (code, output) = replay(&changed);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("the checksum of a frame is wrong"), "{output}");
    let (code, output) = replay(b"GIF89a");
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("at offset 0: this is no recording of kvtide"), "{output}");
}

/// Right checksums around numbers that cannot be counted on.
#[test]
fn numbers_at_the_end_of_counting_are_faults() {
    let (header, _) = Header::read(VERSION_1).expect("it has a header");
    let mut recorder = Recorder::new(Secret::new([7; 16]));
    recorder.begins(Instant(1), &Event::Tick);
    recorder.ended(&[], &Part::since((0, 0), &Outbox::default()));
    let frame = recorder.close().expect("it holds an event");
    let file = |frames: &[Frame]| {
        let mut file = header.bytes();
        for frame in frames {
            let (head, entries) = frame.bytes();
            file.extend_from_slice(&head);
            file.extend_from_slice(entries);
        }
        file
    };
    let last = Frame { number: u64::MAX, ..frame.clone() };
    let fault = decode(&file(&[last, frame.clone()])).expect_err("no frame comes after that");
    assert_eq!(fault.fault, Fault::Order { expected: u64::MAX, found: 0 });
    let last = Frame { first_event: u64::MAX, ..frame };
    let fault = decode(&file(&[last])).expect_err("no event comes after that");
    assert_eq!(fault.fault, Fault::Value { what: "the number of an event" });
}
