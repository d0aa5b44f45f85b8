//! Recordings: a file that is anything at all, and one whose frames hold anything at all behind
//! right checksums, which no fuzzer would find.
//!
//! ```text
//! input   | flags of a frame | u16be length | entries | flags | u16be length | entries | …
//! flags   1 fresh, 2 eight bytes of entries are its number, 4 the next eight its first event's,
//!         64 gap, 128 end
//! ```
//!
//! The same input is also the body of a header, behind a right checksum.
//!
//! Reading ends in entries and at most one fault, which lies within the file. Events that were read
//! can be recorded again, and are read again as the same ones at the same times.

use kvtide_core::config::Config;
use kvtide_core::effect::Outbox;
use kvtide_core::recording::digest::Digest;
use kvtide_core::recording::{Frame, Mark};
use kvtide_core::recording::{
    Happened, Header, Malformed, Part, Reader, Recorder, Secret, decode, hashes_of,
};
use kvtide_core::time::Instant;

pub fn run(input: &[u8]) {
    if let Err(fault) = decode(input) {
        assert!(fault.offset <= input.len() as u64, "{fault} lies outside of the file");
    }
    read_header(input);
    let file = file(input);
    let again = recorded(&file);
    let (first, fault) = read(&file);
    if let Some(fault) = fault {
        assert!(fault.offset <= file.len() as u64, "{fault} lies outside of the file");
    }
    assert_eq!(read(&again), (first, None), "what was read can be recorded");
}

/// A header that holds what the input says. What is read has a configuration that an engine takes,
/// and comes back.
fn read_header(body: &[u8]) {
    let mut file = header().bytes();
    file.truncate(MAGIC_AND_VERSION);
    file.extend_from_slice(&(body.len() as u32).to_le_bytes());
    file.extend_from_slice(body);
    let mut digest = Digest::START;
    digest.bytes(&file);
    file.extend_from_slice(&digest.value().to_le_bytes());
    match Header::read(&file) {
        Ok((read, bytes)) => {
            assert_eq!(bytes, file.len());
            assert_eq!(read.config.check(), Ok(()));
            let again = read.bytes();
            let (second, _) = Header::read(&again).expect("what was read can be written");
            assert_eq!(second.bytes(), again);
        }
        Err(fault) => {
            assert!(fault.offset <= file.len() as u64, "{fault} lies outside of the file");
        }
    }
}

/// A right header, and frames that hold what the input says.
fn file(mut input: &[u8]) -> Vec<u8> {
    let mut file = header().bytes();
    let mut next = (0, 0, Instant::ZERO);
    let mut frames = 0;
    while let Some((&[flags, high, low], rest)) = input.split_first_chunk::<3>() {
        let bytes = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
        let (mut entries, rest) = rest.split_at(bytes);
        input = rest;
        let (mut number, mut first_event, began) = next;
        for (flag, field) in [(2, &mut number), (4, &mut first_event)] {
            if flags & flag != 0
                && let Some((bytes, rest)) = entries.split_first_chunk::<8>()
            {
                (*field, entries) = (u64::from_be_bytes(*bytes), rest);
            }
        }
        let mark = [Mark::None, Mark::None, Mark::Gap, Mark::End][usize::from(flags >> 6)];
        let is_fresh = frames == 0 || flags & 1 == 1;
        let entries = entries.into();
        push(&mut file, &Frame { number, first_event, began, is_fresh, mark, entries });
        frames += 1;
        let (events, fault) = read(&file);
        if fault.is_some() {
            break;
        }
        let first = first_event_of(&file).unwrap_or(first_event);
        let last = events.last().map_or(began, |last| last.1);
        next = (number.wrapping_add(1), first.wrapping_add(events.len() as u64), last);
    }
    file
}

/// The number that the first event of a file has.
fn first_event_of(file: &[u8]) -> Option<u64> {
    let (_, mut reader) = Reader::new(file).expect("the header is right");
    Some(reader.next_entry().ok()??.number)
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
    let first = first_event_of(file).unwrap_or(0);
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => {
                assert!(events.last().is_none_or(|last| last.1 <= entry.at), "time goes on");
                if entry.happened.is_event() {
                    assert_eq!(entry.number, first + events.len() as u64, "events are counted");
                    events.push((entry.kind, entry.at));
                }
            }
            Ok(None) => return (events, None),
            Err(fault) => return (events, Some(fault)),
        }
    }
}

/// The events of a file, written by the recorder.
fn recorded(file: &[u8]) -> Vec<u8> {
    let (header, mut reader) = Reader::new(file).expect("the header is right");
    let mut recorder = Recorder::new(Secret::new([7; 16]));
    let mut bytes = header.bytes();
    let out = Outbox::default();
    while let Ok(Some(entry)) = reader.next_entry() {
        let told = entry.happened.with_event(|event| {
            recorder.begins(entry.at, event);
            recorder.ended(hashes_of(event), &Part::since((0, 0), &out));
        });
        if told.is_none() && matches!(entry.happened, Happened::Finish) {
            recorder.begins_finish(entry.at);
            recorder.ended(&[], &Part::since((0, 0), &out));
        }
        if recorder.is_due(entry.at) {
            recorder.close().iter().for_each(|frame| push(&mut bytes, frame));
        }
    }
    recorder.close().iter().for_each(|frame| push(&mut bytes, frame));
    bytes
}

/// What every header begins with.
const MAGIC_AND_VERSION: usize = 10;
