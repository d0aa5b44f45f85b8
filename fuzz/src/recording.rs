//! Recordings: a file that is anything at all, and one whose frames hold anything at all behind
//! right checksums, which no fuzzer would find.
//!
//! ```text
//! input   | flags of a frame | u16be length | entries | flags | u16be length | entries | …
//! ```
//!
//! Reading ends in entries and at most one fault, which lies within the file. Events that were read
//! can be recorded again, and are read again as the same ones at the same times.

use kvtide_core::config::Config;
use kvtide_core::effect::Outbox;
use kvtide_core::recording::{Frame, Mark};
use kvtide_core::recording::{
    Happened, Header, Malformed, Part, Reader, Recorder, Secret, decode, hashes_of,
};
use kvtide_core::time::Instant;

pub fn run(input: &[u8]) {
    if let Err(fault) = decode(input) {
        assert!(fault.offset <= input.len() as u64, "{fault} lies outside of the file");
    }
    let file = file(input);
    let again = recorded(&file);
    let (first, fault) = read(&file);
    if let Some(fault) = fault {
        assert!(fault.offset <= file.len() as u64, "{fault} lies outside of the file");
    }
    assert_eq!(read(&again), (first, None), "what was read can be recorded");
}

/// A right header, and frames that hold what the input says.
fn file(mut input: &[u8]) -> Vec<u8> {
    let mut file = header().bytes();
    let (mut number, mut began) = (0, Instant::ZERO);
    while let Some((&[flags, high, low], rest)) = input.split_first_chunk::<3>() {
        let bytes = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
        let (entries, rest) = rest.split_at(bytes);
        input = rest;
        let (events, fault) = read(&file);
        if fault.is_some() {
            break;
        }
        began = events.last().map_or(began, |last| last.1);
        let mark = [Mark::None, Mark::None, Mark::Gap, Mark::End][usize::from(flags >> 6)];
        let first_event = events.len() as u64;
        let is_fresh = number == 0 || flags & 1 == 1;
        let entries = entries.into();
        let frame = Frame { number, first_event, began, is_fresh, mark, entries };
        push(&mut file, &frame);
        number += 1;
    }
    file
}

fn header() -> Header {
    let config = Config::default();
    Header { recording: 7, tokens: true, writer: "a fuzzer".into(), config }
}

fn push(file: &mut Vec<u8>, frame: &Frame) {
    let (head, entries) = frame.bytes();
    file.extend_from_slice(&head);
    file.extend_from_slice(entries);
}

/// Every event that can be read, with its time, and what ended the reading.
fn read(file: &[u8]) -> (Vec<(&'static str, Instant)>, Option<Malformed>) {
    let (_, mut reader) = Reader::new(file).expect("the header is right");
    let mut events: Vec<(&str, Instant)> = Vec::new();
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => {
                assert!(events.last().is_none_or(|last| last.1 <= entry.at), "time goes on");
                if is_event(&entry.happened) {
                    assert_eq!(entry.number, events.len() as u64, "events are counted");
                    events.push((entry.kind, entry.at));
                }
            }
            Ok(None) => return (events, None),
            Err(fault) => return (events, Some(fault)),
        }
    }
}

fn is_event(happened: &Happened<'_>) -> bool {
    matches!(happened, Happened::Event(_) | Happened::Finish)
}

/// The events of a file, written by the recorder.
fn recorded(file: &[u8]) -> Vec<u8> {
    let (header, mut reader) = Reader::new(file).expect("the header is right");
    let mut recorder = Recorder::new(Secret::new([7; 16]));
    let mut bytes = header.bytes();
    let out = Outbox::default();
    while let Ok(Some(entry)) = reader.next_entry() {
        match &entry.happened {
            Happened::Event(event) => {
                recorder.begins(entry.at, event);
                recorder.ended(hashes_of(event), &Part::since((0, 0), &out));
            }
            Happened::Finish => {
                recorder.begins_finish(entry.at);
                recorder.ended(&[], &Part::since((0, 0), &out));
            }
            _ => {}
        }
        if recorder.is_due(entry.at) {
            recorder.close().iter().for_each(|frame| push(&mut bytes, frame));
        }
    }
    recorder.close().iter().for_each(|frame| push(&mut bytes, frame));
    bytes
}
