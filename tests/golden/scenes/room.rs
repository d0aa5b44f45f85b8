//! Room: what goes when something new comes, and what never goes.

use crate::harness::{Got, MIB, Worker, config, layout_of, prompt};
use crate::stage::{end, say, stage, stage_of, stage_without_watermark};
use insta::assert_snapshot;
use kvtide_core::config::Config;
use kvtide_core::effect::{Answer, Refusal};
use kvtide_core::event::Ask;

#[test]
fn no_room_keeps_the_longest_prefix() {
    let mut bench = stage(6);
    let worker = Worker::new(1);
    let (held, cold, long) = (prompt('h', 3), prompt('c', 1), prompt('l', 5));
    bench.register(&worker);
    bench.store(&worker, &cold, 0..1);
    bench.store(&worker, &held, 0..3);
    assert_eq!(bench.hit(&worker, "holder", &held), 3);

    say(&mut bench, "two slots are free and one object may go: room for three of five");
    assert_eq!(bench.prepare_store(&worker, &long, 0..5).slots().len(), 3);
    bench.commit_store(&worker, &long, 0..5);
    assert_eq!(bench.hit(&worker, "r1", &long), 3);

    say(&mut bench, "the holder leaves; a second store fills the rest");
    bench.free(&worker, "holder", &held);
    assert_eq!(bench.store(&worker, &long, 0..5).len(), 2);
    assert_eq!(bench.hit(&worker, "r2", &long), 5);
    assert_snapshot!(end(bench));
}

#[test]
fn memory_pressure() {
    let mut bench = stage_without_watermark(6);
    let worker = Worker::new(1);
    let [old, used, new] = ['a', 'b', 'c'].map(|letter| prompt(letter, 3));
    bench.register(&worker);
    bench.store(&worker, &old, 0..3);
    bench.store(&worker, &used, 0..3);

    say(
        &mut bench,
        "the pool is full; the older prompt is used once more, so the other one is colder",
    );
    assert_eq!(bench.hit(&worker, "r1", &old), 3);
    assert!(bench.retrieve(&worker, "r1", &old, 0..3));
    bench.end_session("r1");

    say(
        &mut bench,
        "a store of two chunks takes as much as it needs, from the tail of the colder one",
    );
    assert_eq!(bench.store(&worker, &new[..2], 0..2).len(), 2);
    assert_eq!(bench.hit(&worker, "r2", &used), 1, "its first chunk is still good");
    bench.end_session("r2");
    assert_eq!(bench.hit(&worker, "r3", &old), 3);

    say(&mut bench, "what is leased does not go, whoever asks");
    let large = prompt('d', 6);
    assert_eq!(bench.store(&worker, &large, 0..6).len(), 2);
    assert!(bench.retrieve(&worker, "r3", &old, 0..3));
    bench.end_session("r3");
    assert_snapshot!(end(bench));
}

#[test]
fn a_watermark_pass() {
    let mut bench = stage(10);
    let worker = Worker::new(1);
    let [old, new] = ['a', 'b'].map(|letter| prompt(letter, 4));
    bench.register(&worker);
    bench.store(&worker, &old, 0..4);
    bench.store(&worker, &new[..3], 0..3);

    say(&mut bench, "7 of 10 MiB: below the watermark of 80 % nothing goes");
    bench.until_eviction_tick();
    assert_eq!(bench.status().objects, 7);

    say(
        &mut bench,
        "with 8 MiB the next look at it frees a fifth of what is used, the coldest first",
    );
    bench.store(&worker, &new, 3..4);
    bench.until_eviction_tick();
    assert_eq!(bench.status().objects, 6);
    assert_eq!(bench.hit(&worker, "r1", &old), 2, "from its tail, so that its head still hits");
    bench.free(&worker, "r1", &old);
    bench.end_session("r1");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn an_object_larger_than_the_pool() {
    let mut bench = stage(2);
    let worker = Worker::new(1).with_layout(layout_of(4 * MIB));

    say(&mut bench, "one chunk of this layout never fits: the worker is told at once");
    let got = bench.ask(worker.connection, Ask::Register(worker.registration()));
    assert_eq!(got, Got::Answer(Answer::Refused(Refusal::LayoutTooLarge)));

    say(&mut bench, "whatever it asks all the same is answered, and stored nowhere");
    let prompt = prompt('a', 1);
    let refused = bench.prepare_store(&worker, &prompt, 0..1);
    assert_eq!(refused, Got::Answer(Answer::NoContext));
    assert!(!bench.commit_store(&worker, &prompt, 0..1));
    assert_eq!(bench.hit(&worker, "r1", &prompt), 0);
    bench.end_session("r1");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn writers_may_not_hold_everything() {
    let mut config = config(8);
    config.limits.lent_ppm = 500_000;
    let mut bench = stage_of(Config { watermark_ppm: 1_000_000, ..config });
    let [slow, other] = [Worker::new(1), Worker::new(2)];
    let [first, second] = ['a', 'b'].map(|letter| prompt(letter, 3));
    bench.register(&slow);
    bench.register(&other);

    say(
        &mut bench,
        "writers hold at most half of the pool, here 4 MiB; one of them takes its time",
    );
    assert_eq!(bench.prepare_store(&slow, &first, 0..3).slots().len(), 3);
    assert_eq!(bench.prepare_store(&other, &second, 0..3).slots().len(), 1);
    assert!(bench.commit_store(&other, &second, 0..3));

    say(&mut bench, "with its commit the rest finds its place");
    assert!(bench.commit_store(&slow, &first, 0..3));
    assert_eq!(bench.store(&other, &second, 0..3).len(), 2);
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}
