//! A turn is bounded (design §2): what an event concerns may be a hundred thousand things, what it
//! does is not. The harness counts the work of every event; these tests make the large ones.

use crate::harness::{Bench, Got, MIB, Worker, config, prompt};
use kvtide_core::config::Config;
use kvtide_core::effect::Answer;
use kvtide_core::event::SendOutcome;
use kvtide_core::fact::{Fact, LeaseEnd, NoRoom, Removal};
use kvtide_core::limits::WORK_UNITS;
use kvtide_core::names::{Dtype, Layout};
use kvtide_core::time::Duration;

const CHUNKS: u32 = 4000;
const BATCHES: u32 = 25;
/// What the large events are about.
const MANY: u64 = (CHUNKS * BATCHES) as u64;

/// Room for a hundred thousand objects of 512 bytes.
fn large() -> Config {
    let base = config(128);
    let mut limits = base.limits;
    (limits.lease_cells, limits.lent_ppm) = (1 << 18, 1_000_000);
    Config {
        l1_align_bytes: 512,
        l1_objects_max: 1 << 18,
        watermark_ppm: 1_000_000,
        limits,
        ..base
    }
}

fn small_layout() -> Layout {
    let dtype = Dtype::named("float16").expect("a known type");
    Layout { planes: 1, layers: 1, slots: 16, hidden: 16, dtype }
}

fn bench_of(config: Config) -> (Bench, Worker) {
    let mut bench = Bench::new(config);
    bench.audits = false;
    let worker = Worker::new(1).with_layout(small_layout());
    bench.register(&worker);
    (bench, worker)
}

fn letter(batch: u32) -> char {
    char::from(b'A' + batch as u8)
}

/// A hundred thousand slots in a client's hands.
fn reserve_many(bench: &mut Bench, worker: &Worker) {
    for batch in 0..BATCHES {
        let prompt = prompt(letter(batch), CHUNKS);
        let slots = bench.prepare_store(worker, &prompt, 0..CHUNKS).slots();
        assert_eq!(slots.len() as u32, CHUNKS);
    }
    assert_eq!(bench.status().staged_objects, MANY);
}

/// A hundred thousand objects, and leases on each.
fn lease_many(bench: &mut Bench, worker: &Worker) {
    for batch in 0..BATCHES {
        let prompt = prompt(letter(batch), CHUNKS);
        bench.store(worker, &prompt, 0..CHUNKS);
        bench.lookup(worker, &format!("r{batch}"), &prompt, 1);
        bench.settle();
    }
    assert_eq!(bench.status().lease_units, MANY);
}

/// So many turns at least, if each keeps to its units.
fn assert_took(turns: u32) {
    assert!(turns as u64 >= MANY / WORK_UNITS as u64 - 1, "{turns} turns were enough");
}

fn aborted(bench: &mut Bench) -> usize {
    let told = bench.take_told();
    let aborted = told.iter().filter(|told| matches!(told.fact, Fact::WriteAborted { .. }));
    aborted.map(|told| told.keys.len()).sum()
}

#[test]
fn an_instance_with_a_hundred_thousand_slots_leaves_over_many_turns() {
    let (mut bench, worker) = bench_of(large());
    reserve_many(&mut bench, &worker);
    bench.take_told();
    bench.unregister(&worker);

    // It counts at once: not one of them is published, whoever asks for it first.
    bench.register(&worker);
    let last = prompt(letter(BATCHES - 1), CHUNKS);
    let first = prompt(letter(0), CHUNKS);
    assert!(!bench.commit_store(&worker, &last, 0..CHUNKS));
    assert!(!bench.commit_store(&worker, &first, 0..CHUNKS));
    assert_took(bench.settle());
    assert_eq!(bench.status().staged_objects, 0);
    assert_eq!(aborted(&mut bench) as u64, MANY);
    // The memory stays with the client until it goes itself.
    assert_eq!(bench.status().condemned_objects, MANY - 2 * CHUNKS as u64);
    bench.end_connection(&worker);
    bench.settle();
    bench.audit();
    bench.assert_quiet();
}

#[test]
fn a_connection_with_a_hundred_thousand_slots_ends_over_many_turns() {
    let (mut bench, worker) = bench_of(large());
    reserve_many(&mut bench, &worker);
    bench.take_told();
    bench.end_connection(&worker);

    // No commit over another connection finds what was lent over this one.
    let other = Worker { connection: crate::harness::connection(7), ..worker };
    let first = prompt(letter(0), CHUNKS);
    assert!(!bench.commit_store(&other, &first, 0..CHUNKS));
    assert_took(bench.settle());
    assert_eq!(aborted(&mut bench) as u64, MANY);
    bench.audit();
    bench.assert_quiet();
    assert_eq!(bench.status().used_bytes, 0);
}

#[test]
fn a_reader_of_a_hundred_thousand_objects_is_cut_over_many_turns() {
    let (mut bench, worker) = bench_of(large());
    lease_many(&mut bench, &worker);
    for batch in 0..BATCHES {
        let prompt = prompt(letter(batch), CHUNKS);
        match bench.prepare_retrieve(&worker, &format!("r{batch}"), &prompt, 0..CHUNKS) {
            Got::Slots(slots) => assert_eq!(slots.len() as u32, CHUNKS),
            got => panic!("a lease is good for a read, got {got:?}"),
        }
    }
    bench.take_told();
    bench.end_connection(&worker);
    assert_took(bench.settle());
    let told = bench.take_told();
    let cut: usize = told
        .iter()
        .filter(|told| {
            matches!(told.fact, Fact::ReadFinished { why: LeaseEnd::ConnectionEnded, .. })
        })
        .map(|told| told.keys.len())
        .sum();
    assert_eq!(cut as u64, MANY);
    bench.audit();
    bench.assert_quiet();
}

#[test]
fn a_hundred_thousand_leases_are_cleared_and_ended_over_many_turns() {
    for force in [false, true] {
        let (mut bench, worker) = bench_of(large());
        lease_many(&mut bench, &worker);
        bench.clear(force);
        bench.unregister(&worker);
        assert_took(bench.settle());
        assert_eq!(bench.status().objects, if force { 0 } else { MANY });

        // All of them run out within one second.
        bench.advance(bench.engine.config().read_ttl + Duration::from_secs(1));
        bench.clear(false);
        bench.settle();
        assert_eq!(bench.status().objects, 0);
        bench.advance(Duration::from_secs(600));
        bench.audit();
        bench.assert_quiet();
    }
}

/// Sessions whose deadlines lie in one slot of the wheel.
#[test]
fn thousands_of_deadlines_pass_over_many_turns() {
    let base = config(8);
    let mut limits = base.limits;
    (limits.sessions, limits.work_units) = (8192, 64);
    let mut bench = Bench::new(Config { limits, ..base });
    bench.audits = false;
    let worker = Worker::new(1);
    bench.register(&worker);
    let asked = prompt('a', 1);
    bench.store(&worker, &asked, 0..1);
    for request in 0..8192 {
        bench.lookup(&worker, &format!("r{request}"), &asked, 1);
    }
    assert_eq!(bench.status().sessions, 8192);
    bench.advance(Duration::from_secs(1000));
    assert_eq!(bench.status().sessions, 0);
    bench.audit();
    bench.assert_quiet();
}

/// A superblock full of objects of one size, and a store of another size that needs it.
#[test]
fn f20_a_window_is_emptied_over_many_turns() {
    let base = large();
    let mut limits = base.limits;
    limits.work_units = 256;
    let (mut bench, small) = bench_of(Config { l1_bytes: 2 * MIB, limits, ..base });
    let big = Worker::new(2).with_model("other");
    bench.register(&big);
    for batch in 0..2 {
        let prompt = prompt(letter(batch), 2048);
        bench.store(&small, &prompt, 0..2048);
    }
    assert_eq!(bench.status().used_bytes, 2 * MIB);
    bench.take_told();

    let wanted = prompt('z', 1);
    assert_eq!(bench.prepare_store(&big, &wanted, 0..1), Got::Answer(Answer::NoContext));
    let told = bench.take_told();
    let busy = |fact: &Fact| matches!(fact, Fact::WriteRefused { why: NoRoom::Busy, .. });
    assert!(told.iter().any(|told| busy(&told.fact)), "room is being made: {told:?}");
    // Whoever stores the small size meanwhile does not fill what is being emptied.
    bench.handle(kvtide_core::event::Event::Tick);
    let more = prompt('y', 64);
    bench.store(&small, &more, 0..64);
    bench.settle();
    let gone = |told: &&crate::harness::Told| {
        matches!(told.fact, Fact::Evicted { why: Removal::Pressure, .. })
    };
    assert_eq!(bench.take_told().iter().filter(gone).count(), 2048 + 64);
    assert_eq!(bench.store(&big, &wanted, 0..1).len(), 1);
    bench.audit();
}

/// What is leased while its window is being emptied stays, and so does the rest of the window.
#[test]
fn i35_a_lease_stops_the_emptying_of_a_window() {
    let base = large();
    let mut limits = base.limits;
    limits.work_units = 256;
    let (mut bench, small) = bench_of(Config { l1_bytes: MIB, limits, ..base });
    let big = Worker::new(2).with_model("other");
    bench.register(&big);
    let asked = prompt('a', 2048);
    bench.store(&small, &asked, 0..2048);
    let wanted = prompt('z', 1);
    assert_eq!(bench.prepare_store(&big, &wanted, 0..1), Got::Answer(Answer::NoContext));
    bench.handle(kvtide_core::event::Event::Tick);
    let left = bench.status().objects;
    assert!(left < 2048 && left > 1024, "the job has begun: {left}");
    // The lowest offsets went first: the last chunk is still there.
    assert_eq!(bench.hit(&small, "r", &asked[2047..]), 1);
    bench.settle();
    assert_eq!(bench.status().objects, left);
    bench.audit();
    // The size that has the window goes on storing into it.
    let more = prompt('y', 64);
    assert_eq!(bench.store(&small, &more, 0..64).len(), 64);
    bench.audit();
}

/// Chunks that a store found there were the coldest of all, and went for the sake of those behind
/// them: what the client then had was a prefix without its beginning.
#[test]
fn i35_a_store_does_not_evict_its_own_beginning() {
    let mut bench = Bench::new(Config { watermark_ppm: 1_000_000, ..config(8) });
    let worker = Worker::new(1);
    bench.register(&worker);
    let (long, other) = (prompt('a', 12), prompt('b', 4));
    bench.store(&worker, &long, 0..4);
    bench.store(&worker, &other, 0..4);
    let slots = bench.prepare_store(&worker, &long, 0..12).slots();
    let chunks: Vec<u32> = slots.iter().map(|slot| slot.chunk).collect();
    assert_eq!(chunks, [4, 5, 6, 7], "the others went, and no more fits");
    assert!(bench.commit_store(&worker, &long, 0..12));
    assert_eq!(bench.hit(&worker, "r", &long), 8);
}

#[test]
fn a_name_with_too_many_copies_takes_no_more() {
    let (mut bench, worker) = bench_of(large());
    let asked = prompt('a', 2);
    for _ in 0..4 {
        assert_eq!(bench.prepare_store(&worker, &asked, 0..2).slots().len(), 2);
        // Given up, but still in the client's hands.
        bench.clear(true);
        bench.settle();
    }
    assert_eq!(bench.prepare_store(&worker, &asked, 0..2), Got::Answer(Answer::NoContext));
    bench.end_connection(&worker);
    bench.assert_quiet();
}

/// Bytes that were cut on their way counted as retrieved.
#[test]
fn f26_a_cut_send_is_no_retrieve() {
    for outcome in [SendOutcome::Sent, SendOutcome::Cut] {
        let mut bench = Bench::new(config(8));
        let (worker, asked) = (Worker::new(1), prompt('a', 3));
        bench.register(&worker);
        let (ticket, _) = bench.commit_inline(&worker, &asked, 0..3).receiving();
        bench.end_receive(ticket, 3, kvtide_core::event::BodyOutcome::Whole);
        assert_eq!(bench.hit(&worker, "r", &asked), 3);
        let ticket = bench.prepare_retrieve(&worker, "r", &asked, 0..3).sent();
        bench.take_told();
        match outcome {
            SendOutcome::Sent => bench.end_send(ticket),
            SendOutcome::Cut => bench.cut_send(ticket),
        }
        let told = bench.take_told();
        let retrieved = told.iter().any(|told| matches!(told.fact, Fact::Retrieved { .. }));
        assert_eq!(retrieved, outcome == SendOutcome::Sent);
        let why = match outcome {
            SendOutcome::Sent => LeaseEnd::Retrieved,
            SendOutcome::Cut => LeaseEnd::ConnectionEnded,
        };
        let finished = told.iter().find_map(|told| match told.fact {
            Fact::ReadFinished { why, .. } => Some((why, told.keys.len())),
            _ => None,
        });
        assert_eq!(finished, Some((why, 3)));
    }
}
