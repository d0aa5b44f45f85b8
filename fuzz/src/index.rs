//! The index of an adapter's files: any bytes as a file, and any bytes as the fields of records
//! behind right checks.
//!
//! Reading ends at the file's end or at a fault, within the file, with no more objects than the
//! table may hold. What was read can be compacted and is read again as the same objects in the same
//! order; a log that is cut off at any of its records is a log.

use kvtide_core::format::index::{
    Fault, HEADER_BYTES, Header, Log, Object, RECORD_BYTES_MAX, Reader, Replay, ScopeName, Step,
    Writer,
};
use kvtide_core::names::Seal;

pub fn run(input: &[u8]) {
    if let Ok(header) = Header::read(input) {
        assert_eq!(header.bytes(), input[..HEADER_BYTES], "a header has one form");
        check(&header, &input[HEADER_BYTES..]);
    }
    check(&HEADER, &checked(input));
}

fn check(header: &Header, records: &[u8]) {
    let (replay, log, taken, fault) = fold(header, records);
    assert!(replay.len() <= LIMIT);
    assert_eq!(log.reader().bytes(), (HEADER_BYTES + taken) as u64);
    if fault.is_none() {
        assert!(records.len() - taken < RECORD_BYTES_MAX, "only a part of a record is left");
    }
    // What was read is a log by itself, and can be gone on with.
    let (again, log, whole, fault) = fold(header, &records[..taken]);
    assert_eq!((whole, fault), (taken, None));
    assert_eq!(objects(&again), objects(&replay));
    assert_eq!(Writer::resume(log.reader()).bytes(), log.reader().bytes());
    let mut compact = Vec::new();
    let put = |piece: &mut Vec<u8>| {
        compact.extend_from_slice(piece);
        Ok::<(), ()>(())
    };
    let compacted = replay.compact(header, put).expect("memory takes everything");
    assert_eq!(compacted.writer.bytes(), compact.len() as u64);
    let (second, log, _, fault) = fold(header, &compact[HEADER_BYTES..]);
    assert_eq!((fault, log.reader().bytes()), (None, compact.len() as u64));
    assert_eq!(objects(&second), objects(&replay), "a compacted index tells the same");
}

fn fold(header: &Header, records: &[u8]) -> (Replay, Log, usize, Option<Fault>) {
    let mut replay = Replay::new(LIMIT, 3);
    let mut log = replay.log(header);
    let (taken, fault) = replay.fold(&mut log, records);
    (replay, log, taken, fault)
}

type Told = (ScopeName, [u8; 32], u64, Option<Seal>, u64);

fn objects(replay: &Replay) -> Vec<Told> {
    let told = |object: &Object| {
        let name = replay.scope(object.scope).clone();
        (name, object.hash.0, object.bytes, object.seal, object.seconds)
    };
    replay.iter().map(told).collect()
}

/// Bodies of records, each behind its length in one byte, with the checks that belong to them: a
/// body is appended as it stands, and its check is the one that the reader wants.
fn checked(mut input: &[u8]) -> Vec<u8> {
    let mut log = Vec::new();
    let mut reader = Reader::new(&HEADER);
    while let Some((&bytes, rest)) = input.split_first() {
        let (body, rest) = rest.split_at(usize::from(bytes).min(rest.len()));
        input = rest;
        let start = log.len();
        log.extend_from_slice(body);
        log.extend_from_slice(&reader.check_of(body).to_le_bytes());
        if !matches!(reader.next(&mut &log[start..]), Step::Record(_)) {
            break;
        }
    }
    log
}

const HEADER: Header = Header { id: [1; 16], created_nanos: 7_000_000_000 };
/// Few, so that tables that are full are met.
const LIMIT: usize = 5;
