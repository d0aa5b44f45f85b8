//! Readers: memory stays as it is while somebody reads it.

use crate::harness::{Bench, Got, Worker, config, prompt};
use kvtide_core::effect::{Answer, Slot};
use kvtide_core::names::{ChunkHash, Ticket};
use kvtide_core::time::Duration;

/// What is given to a store that asks for more than the whole pool.
fn flood(bench: &mut Bench, worker: &Worker, letter: char) -> Vec<Slot> {
    bench.store(worker, &prompt(letter, 12), 0..12)
}

fn overlap(some: &[Slot], others: &[Slot]) -> bool {
    some.iter().any(|slot| others.iter().any(|other| slot.place == other.place))
}

type Disaster = fn(&mut Bench);

/// How the source of a running read goes away meanwhile.
const DISASTERS: [(&str, Disaster); 5] = [
    ("eviction", |_| {}),
    ("clear", |bench| bench.clear(false)),
    ("forced clear", |bench| bench.clear(true)),
    ("forced clear, twice", |bench| {
        bench.clear(true);
        bench.settle();
        bench.clear(true);
    }),
    ("expiry", |bench| bench.advance(bench.engine.config().read_ttl + Duration::from_secs(300))),
];

fn reading(inline: bool) -> (Bench, Worker, Vec<ChunkHash>, Vec<Slot>, Option<Ticket>) {
    let mut bench = Bench::new(config(8));
    let (worker, asked) = (Worker::new(1), prompt('a', 3));
    bench.register(&worker);
    let slots = if inline {
        let (ticket, slots) = bench.commit_inline(&worker, &asked, 0..3).receiving();
        bench.end_receive(ticket, 3, kvtide_core::event::BodyOutcome::Whole);
        slots
    } else {
        bench.store(&worker, &asked, 0..3)
    };
    assert_eq!(bench.hit(&worker, "r", &asked), 3);
    let ticket = match bench.prepare_retrieve(&worker, "r", &asked, 0..3) {
        Got::Slots(read) => {
            assert_eq!(read, slots);
            None
        }
        got => Some(got.sent()),
    };
    (bench, worker, asked, slots, ticket)
}

// A read slower than its lease saw its source evicted and reused, and returned mixed bytes. Here a
// reader's pin keeps the memory, whatever becomes of the key, until that reader is done.
#[test]
fn f28_memory_is_not_used_again_while_it_is_read() {
    for (what, disaster) in DISASTERS {
        for inline in [false, true] {
            let (mut bench, worker, asked, read, ticket) = reading(inline);
            let writer = Worker::new(2);
            bench.register(&writer);
            disaster(&mut bench);
            bench.settle();
            for letter in ['f', 'g', 'h'] {
                bench.register(&writer);
                let written = flood(&mut bench, &writer, letter);
                assert_eq!(written.len(), 5, "{what}: all but what is read");
                assert!(!overlap(&read, &written), "{what}");
                bench.advance(Duration::from_secs(2));
            }
            match ticket {
                Some(ticket) => bench.end_send(ticket),
                None => bench.commit_retrieve(&worker, "r", &asked, 0..3),
            }
            bench.assert_quiet();
            assert!(overlap(&read, &flood(&mut bench, &writer, 'i')), "{what}: free again");
        }
    }
}

#[test]
fn f28_after_a_forced_clear_the_key_misses_at_once() {
    let (mut bench, worker, asked, _, _) = reading(false);
    bench.lookup(&worker, "other", &asked, 1);
    bench.clear(true);
    assert_eq!(bench.hit(&worker, "fresh", &asked), 0);
    let leased_before = bench.prepare_retrieve(&worker, "other", &asked, 0..3);
    assert_eq!(leased_before, Got::Answer(Answer::RetrieveMiss));
    bench.settle();
    assert_eq!(bench.status().condemned_objects, 3);
    assert_eq!(bench.store(&worker, &asked, 0..3).len(), 3, "the key can be stored anew");
    bench.commit_retrieve(&worker, "r", &asked, 0..3);
    assert_eq!(bench.status().condemned_objects, 0);
}

#[test]
fn i1_a_plain_clear_keeps_what_is_leased_and_a_reader_finds_it() {
    let mut bench = Bench::new(config(8));
    let (worker, held, loose) = (Worker::new(1), prompt('h', 2), prompt('l', 2));
    bench.register(&worker);
    bench.store(&worker, &held, 0..2);
    bench.store(&worker, &loose, 0..2);
    bench.hit(&worker, "r", &held);
    bench.clear(false);
    assert_eq!(bench.hit(&worker, "gone", &loose), 0, "at once, before anything is swept");
    bench.settle();
    assert_eq!(bench.status().objects, 2);
    assert_eq!(bench.prepare_retrieve(&worker, "r", &held, 0..2).slots().len(), 2);
    bench.commit_retrieve(&worker, "r", &held, 0..2);
    assert_eq!(bench.hit(&worker, "again", &held), 2, "what survived is as good as new");
}

#[test]
fn i2_a_reader_with_slots_and_payload_is_done_when_both_are() {
    for commit_first in [false, true] {
        let mut bench = Bench::new(config(8));
        let (writer, reader, asked) = (Worker::new(1), Worker::new(2), prompt('a', 2));
        bench.register(&writer);
        bench.register(&reader);
        bench.store(&writer, &asked, 0..2);
        bench.hit(&reader, "r", &asked);
        let got = bench.prepare_retrieve(&reader, "r", &asked, 0..2);
        assert!(matches!(got, Got::Sent { with_slots: true, .. }), "its mode is not known yet");
        let ticket = got.sent();
        let mut ends: [&dyn Fn(&mut Bench); 2] = [&|bench| bench.end_send(ticket), &|bench| {
            bench.commit_retrieve(&reader, "r", &asked, 0..2)
        }];
        if commit_first {
            ends.reverse();
        }
        assert_eq!(bench.status().tickets, 2);
        ends[0](&mut bench);
        assert_eq!(bench.status().tickets, 1);
        assert!(!bench.engine.is_quiet(), "one of the two still reads");
        ends[1](&mut bench);
        bench.assert_quiet();
    }
}
