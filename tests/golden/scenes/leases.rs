//! Leases: what a hit promises, to whom, and how each promise ends.

use crate::harness::{Got, Worker, prompt};
use crate::stage::{end, say, stage, stage_without_watermark};
use insta::assert_snapshot;
use kvtide_core::effect::Answer;
use kvtide_core::time::Duration;

#[test]
fn leases_linger_for_a_late_worker_and_then_end() {
    let mut bench = stage(4);
    let worker = Worker::new(1);
    let prompt = prompt('a', 3);
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..3);
    assert_eq!(bench.hit(&worker, "r1", &prompt), 3);

    say(&mut bench, "the scheduler ends the session before its worker has come");
    bench.end_session("r1");
    bench.advance(Duration::from_secs(3));
    assert_eq!(bench.status().lease_units, 3);

    say(&mut bench, "the worker comes within the linger of 5 s, for two chunks");
    assert_eq!(bench.prepare_retrieve(&worker, "r1", &prompt, 0..2).slots().len(), 2);
    bench.commit_retrieve(&worker, "r1", &prompt, 0..2);

    say(&mut bench, "the third lease ends with the linger; after it there is a miss");
    bench.advance(Duration::from_secs(3));
    assert_eq!(bench.status().lease_units, 0);
    let late = bench.prepare_retrieve(&worker, "r1", &prompt, 2..3);
    assert_eq!(late, Got::Answer(Answer::RetrieveMiss));
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn an_abandoned_lookup() {
    let mut bench = stage_without_watermark(4);
    let worker = Worker::new(1);
    let (promised, other) = (prompt('a', 3), prompt('b', 4));
    bench.register(&worker);
    bench.store(&worker, &promised, 0..3);
    assert_eq!(bench.hit(&worker, "r1", &promised), 3);

    say(&mut bench, "the scheduler is never heard of again; meanwhile a store finds little room");
    bench.advance(Duration::from_secs(10));
    assert_eq!(bench.store(&worker, &other, 0..4).len(), 1);

    say(&mut bench, "the pool is full, and what is not promised makes room in advance");
    bench.until_eviction_tick();

    say(&mut bench, "300 s after the result its leases end, and what they held may go");
    bench.outlast(Duration::from_secs(290));
    assert_eq!(bench.status().lease_units, 0);
    assert_eq!(bench.store(&worker, &other, 0..4).len(), 4);

    say(&mut bench, "300 s later nobody remembers the request");
    bench.advance(Duration::from_secs(301));
    assert_eq!(bench.status().sessions, 0);
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn a_free_that_comes_twice() {
    let mut bench = stage(4);
    let worker = Worker::new(1);
    let prompt = prompt('a', 2);
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..2);

    say(&mut bench, "two requests are promised the same chunks");
    assert_eq!(bench.hit(&worker, "r1", &prompt), 2);
    assert_eq!(bench.hit(&worker, "r2", &prompt), 2);

    say(&mut bench, "the first one gives back twice, and once more under an id that nobody knows");
    bench.free(&worker, "r1", &prompt);
    bench.free(&worker, "r1", &prompt);
    bench.free(&worker, "r3", &prompt);
    bench.end_session("r1");
    bench.end_session("r1");

    say(&mut bench, "what the second one holds is still there");
    assert_eq!(bench.status().lease_units, 2);
    assert!(bench.retrieve(&worker, "r2", &prompt, 0..2));
    bench.end_session("r2");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn two_tenants_with_the_same_prompt() {
    let mut bench = stage(8);
    let prompt = prompt('a', 2);
    let [blue, green] = [("blue", 1), ("green", 2)].map(|(salt, number)| {
        let worker = Worker::new(number).with_salt(salt);
        bench.register(&worker);
        worker
    });

    say(&mut bench, "blue stores; green asks for the very same tokens");
    bench.store(&blue, &prompt, 0..2);
    assert_eq!(bench.hit(&green, "r1", &prompt), 0);
    bench.end_session("r1");

    say(&mut bench, "a release under the wrong salt names nothing");
    assert_eq!(bench.hit(&blue, "r2", &prompt), 2);
    bench.free(&green, "r2", &prompt);
    assert_eq!(bench.status().lease_units, 2);
    bench.free(&blue, "r2", &prompt);
    bench.end_session("r2");

    say(&mut bench, "green stores its own");
    assert_eq!(bench.store(&green, &prompt, 0..2).len(), 2);
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}
