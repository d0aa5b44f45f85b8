//! How copies are cut, merged and submitted, judged by the bytes and by the calls that were made.

use crate::engine::{Engine, pattern};
use crate::support::{ARENA_BYTES, Fake, SLICE_BYTES, Server};
use kvtide_gpu::cuda::{Direction, InstanceSpec, Outcome, Refused, Rows, Run, Work};
use kvtide_gpu::host::OutsideRegion;

const BYTES: u64 = 256 << 10;
const SPEC: InstanceSpec = InstanceSpec { events: 4, isolated: false };
const SINGLE: [&str; 2] = ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"];

fn run(offset: u64, host: u64, bytes: u64) -> Run {
    Run { region: 0, offset, host, bytes }
}

/// An engine with one filled allocation, and its event.
fn filled(fake: &Fake) -> (Engine, Vec<u8>) {
    let mut engine = Engine::start(fake);
    engine.allocate(BYTES);
    engine.fill(0, 0, BYTES, 7);
    let event = engine.record();
    (engine, event)
}

#[test]
fn neighbours_become_one_copy_and_slices_are_not_crossed() {
    let fake = Fake::load("merge");
    let (engine, event) = filled(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    // Six neighbours of 1 KiB inside one slice: one copy, so no batch.
    let runs: Vec<Run> = (0..6).map(|at| run(at << 10, at << 10, 1 << 10)).collect();
    server.copy(Direction::Store, &event, &runs);
    assert_eq!((fake.calls(SINGLE[0]), fake.calls("cuMemcpyBatchAsync")), (1, 0));
    // One run over two and a half slices, from the middle of one: three copies in one batch.
    let (bytes, host) = (5 * SLICE_BYTES as u64 / 2, SLICE_BYTES as u64 / 2);
    server.copy(Direction::Store, &event, &[run(100, host, bytes)]);
    assert_eq!((fake.calls(SINGLE[0]), fake.calls("cuMemcpyBatchAsync")), (1, 1));
    let expected = &pattern(7, BYTES)[100..][..bytes as usize];
    assert!(server.memory.read(host, bytes) == expected);
    // Neighbours whose border is that of a slice are not merged, or the driver would refuse.
    let border = SLICE_BYTES as u64;
    let runs = [run(0, border - 512, 512), run(512, border, 512)];
    server.copy(Direction::Store, &event, &runs);
    assert_eq!(fake.calls("cuMemcpyBatchAsync"), 2);
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn a_batch_that_is_not_served_becomes_single_copies() {
    let fake = Fake::load("unserved");
    let (engine, event) = filled(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    fake.fail("cuMemcpyBatchAsync", 1, 801);
    let runs: Vec<Run> = (0..8).map(|at| run(at * 8192, at * 4096, 4096)).collect();
    for _ in 0..2 {
        server.copy(Direction::Store, &event, &runs);
    }
    let counted = (fake.calls(SINGLE[0]), fake.calls("cuMemcpyBatchAsync"));
    assert_eq!(counted, (16, 1), "asked once and never again");
    for at in 0..8 {
        let expected = &pattern(7, BYTES)[at as usize * 8192..][..4096];
        assert!(server.memory.read(at * 4096, 4096) == expected, "run {at}");
    }
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn a_block_that_is_named_twice_is_written_in_order() {
    let fake = Fake::load("twice");
    let (mut engine, event) = filled(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    server.memory.write(0, &pattern(1, 4096));
    server.memory.write(8192, &pattern(2, 4096));
    let runs = [run(0, 0, 4096), run(65536, 0, 4096), run(0, 8192, 4096)];
    let loaded = server.copy(Direction::Load, &event, &runs);
    assert_eq!((fake.calls(SINGLE[1]), fake.calls("cuMemcpyBatchAsync")), (3, 0));
    engine.wait(loaded.as_bytes());
    assert!(engine.read(0, 0, 4096) == pattern(2, 4096), "the later one stays");
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

/// Head-major pages, `[heads, slots, head size]`, to token-major objects, as rows and as runs.
#[test]
fn rows_and_runs_agree_on_head_major_pages() {
    const HEADS: u64 = 4;
    const SLOTS: u64 = 16;
    const HEAD: u64 = 64;
    const PAGE: u64 = HEADS * SLOTS * HEAD;
    let fake = Fake::load("rows");
    let (mut engine, event) = filled(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    // Pages side by side from the middle of a row's slice on, so that rows are cut, too.
    let (pages, rows_at, runs_at) = (8, SLICE_BYTES as u64 / 2 + 32, ARENA_BYTES / 2 + 32);
    let place = |page, head| page * PAGE + head * HEAD;
    let heads = (0..pages).flat_map(|page| (0..HEADS).map(move |head| (page, head)));
    let rows = |at| {
        let row = move |(page, head)| Rows {
            region: 0,
            offset: page * PAGE + head * SLOTS * HEAD,
            host: at + place(page, head),
            row_bytes: HEAD,
            rows: SLOTS,
            device_pitch: HEAD,
            host_pitch: HEADS * HEAD,
        };
        heads.clone().map(row).collect::<Vec<Rows>>()
    };
    let run = |rows: Rows| {
        let row = move |row| run(rows.offset + row * HEAD, rows.host + row * HEADS * HEAD, HEAD);
        (0..SLOTS).map(row)
    };
    let runs: Vec<Run> = rows(runs_at).into_iter().flat_map(run).collect();
    let rows = rows(rows_at);
    let work = Work { runs: &runs, rows: &rows };
    let (ticket, submitted) = server.submit(Direction::Store, &event, &work);
    assert_eq!((submitted.failed, server.ended()), (None, (ticket, Outcome::Copied)));
    let (by_rows, by_runs) =
        (server.memory.read(rows_at, 8 * PAGE), server.memory.read(runs_at, 8 * PAGE));
    assert!(by_rows == by_runs, "one layout");
    let source = pattern(7, BYTES);
    let slot_1_of_head_2 = &source[(2 * SLOTS * HEAD + HEAD) as usize..][..HEAD as usize];
    assert_eq!(&by_rows[(HEADS * HEAD + 2 * HEAD) as usize..][..HEAD as usize], slot_1_of_head_2);
    // And back, to other pages.
    let moved: Vec<Rows> =
        rows.iter().map(|rows| Rows { offset: rows.offset + 64 * 1024, ..*rows }).collect();
    let work = Work { runs: &[], rows: &moved };
    let (ticket, submitted) = server.submit(Direction::Load, &event, &work);
    assert_eq!((submitted.failed, server.ended()), (None, (ticket, Outcome::Copied)));
    engine.wait(submitted.event.expect("an event").as_bytes());
    assert!(engine.read(0, 64 * 1024, 8 * PAGE) == source[..8 * PAGE as usize]);
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}

#[test]
fn what_would_leave_its_memory_is_refused_before_anything_is_queued() {
    let fake = Fake::load("bounds");
    let (engine, event) = filled(&fake);
    let card = fake.card();
    let mut server = Server::open(&card, &engine, SPEC);
    let good = run(0, 0, 4096);
    let rows = Rows {
        region: 0,
        offset: 0,
        host: 0,
        row_bytes: 64,
        rows: 8,
        device_pitch: 64,
        host_pitch: 128,
    };
    let outside = |offset, bytes, region_bytes| OutsideRegion { offset, bytes, region_bytes };
    let in_region = |at, bytes| Refused::OutsideRegion(outside(at, bytes, BYTES));
    let in_arena = |at, bytes| Refused::OutsidePinned(outside(at, bytes, ARENA_BYTES));
    let runs = [
        (run(BYTES - 1, 0, 2), in_region(BYTES - 1, 2)),
        (run(u64::MAX, 0, 2), in_region(u64::MAX, 2)),
        (run(0, ARENA_BYTES, 1), in_arena(ARENA_BYTES, 1)),
        (run(0, u64::MAX, 1), in_arena(u64::MAX, 1)),
        (Run { region: 1, ..good }, Refused::NoRegion { index: 1 }),
    ];
    for (run, refused) in runs {
        let work = Work { runs: &[good, run], rows: &[] };
        let answer = server.instance().submit(9, Direction::Load, &event, &work);
        assert_eq!(answer, Err(refused), "{run:?}");
    }
    let planes = [
        (Rows { device_pitch: 63, ..rows }, Refused::Pitch),
        (Rows { host_pitch: u64::MAX / 2, ..rows }, Refused::Pitch),
        (Rows { offset: BYTES - 511, ..rows }, in_region(BYTES - 511, 512)),
        (Rows { host: ARENA_BYTES - 959, ..rows }, in_arena(ARENA_BYTES - 959, 960)),
        (Rows { region: 7, ..rows }, Refused::NoRegion { index: 7 }),
    ];
    for (rows, refused) in planes {
        let work = Work { runs: &[good], rows: &[rows] };
        let answer = server.instance().submit(9, Direction::Load, &event, &work);
        assert_eq!(answer, Err(refused), "{rows:?}");
    }
    for bytes in [1, 63, 65, 81] {
        let work = Work { runs: &[good], rows: &[] };
        let answer = server.instance().submit(9, Direction::Load, &vec![0; bytes], &work);
        assert_eq!(answer, Err(Refused::EventForm { bytes }));
    }
    assert_eq!(server.instance().in_flight(), 0);
    assert_eq!(fake.calls("cuLaunchHostFunc"), 0);
    server.close();
    engine.finish();
    drop((server, card));
    fake.finish();
}
