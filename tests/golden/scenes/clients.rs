//! Clients that go away, come back, or go on when nobody expects them any more.

use crate::harness::{Got, Worker, config, connection, prompt};
use crate::stage::{end, name, restart, say, show_instances, stage, stage_of};
use insta::assert_snapshot;
use kvtide_core::config::Config;
use kvtide_core::effect::Answer;
use kvtide_core::time::Duration;

#[test]
fn a_fast_restart() {
    let mut bench = stage(4);
    let worker = Worker::new(1);
    let prompt = prompt('a', 2);
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..2);
    assert!(bench.ping(&worker));

    say(&mut bench, "the server is killed and is back before the next ping");
    let mut bench = restart(bench);
    let back = Worker { connection: connection(2), ..worker };
    name(&mut bench, back.connection, "worker 1 (reconnected)");

    say(&mut bench, "the worker has noticed nothing; nothing of it is served");
    let refused = bench.prepare_store(&back, &prompt, 0..2);
    assert_eq!(refused, Got::Answer(Answer::NoContext));
    assert_eq!(bench.hit(&back, "r1", &prompt), 0);
    bench.end_session("r1");

    say(&mut bench, "its ping is answered with false, once; with the next true it registers anew");
    assert_eq!([bench.ping(&back), bench.ping(&back)], [false, true]);
    bench.register(&back);
    assert_eq!(bench.store(&back, &prompt, 0..2).len(), 2);
    assert_eq!(bench.hit(&back, "r2", &prompt), 2);
    assert!(bench.retrieve(&back, "r2", &prompt, 0..2));
    bench.end_session("r2");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn an_unknown_instance_is_told_once() {
    let mut bench = stage(4);
    let (unknown, other) = (Worker::new(1), Worker::new(2));

    say(&mut bench, "a worker that never registered here, or was forgotten");
    assert_eq!([bench.ping(&unknown), bench.ping(&unknown)], [false, true]);
    assert!(bench.ping(&unknown), "an engine registers on a true only");

    say(&mut bench, "it registers, leaves, and may be told once more");
    bench.register(&unknown);
    assert!(bench.ping(&unknown));
    bench.unregister(&unknown);
    assert_eq!([bench.ping(&unknown), bench.ping(&unknown)], [false, true]);

    say(&mut bench, "others are told for themselves");
    assert_eq!([bench.ping(&other), bench.ping(&other)], [false, true]);
    assert_snapshot!(end(bench));
}

#[test]
fn a_stopped_client_writes_on_after_it_was_reaped() {
    let mut bench = stage_of(Config { watermark_ppm: 1_000_000, ..config(6) });
    let [stopped, other] = [Worker::new(1), Worker::new(2)];
    let prompt = prompt('a', 2);
    bench.register(&stopped);
    bench.register(&other);
    assert!(bench.ping(&stopped));

    say(&mut bench, "worker 1 is lent two slots; then its process is stopped");
    let lent = bench.prepare_store(&stopped, &prompt, 0..2).slots();

    say(
        &mut bench,
        "120 s without a ping: it is forgotten, but it may still write where it was let",
    );
    bench.outlast(Duration::from_secs(120));
    bench.settle();
    show_instances(&mut bench);
    assert_eq!(bench.status().condemned_objects, 2);

    say(&mut bench, "others store the same chunks and fill the pool, all around these two slots");
    let mut written = bench.store(&other, &prompt, 0..2);
    written.extend(bench.store(&other, &crate::harness::prompt('b', 4), 0..4));
    assert_eq!(written.len(), 6);
    let is_shared = lent.iter().any(|slot| written.iter().any(|other| slot.place == other.place));
    assert!(!is_shared, "nothing else lies there");

    say(&mut bench, "it goes on, writes, and commits: too late, but now its slots are free");
    assert!(!bench.commit_store(&stopped, &prompt, 0..2));
    assert_eq!(bench.status().condemned_objects, 0);

    say(&mut bench, "it pings, is told, and registers anew");
    assert_eq!([bench.ping(&stopped), bench.ping(&stopped)], [false, true]);
    bench.register(&stopped);
    assert_eq!(bench.hit(&stopped, "r1", &crate::harness::prompt('b', 4)), 4);
    assert!(bench.retrieve(&stopped, "r1", &crate::harness::prompt('b', 4), 0..4));
    bench.end_session("r1");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn a_forced_clear_under_a_reader() {
    let mut bench = stage(6);
    let worker = Worker::new(1);
    let [read, promised, loose] = ['a', 'b', 'c'].map(|letter| prompt(letter, 1));
    bench.register(&worker);
    for prompt in [&read, &promised, &loose] {
        bench.store(&worker, prompt, 0..1);
    }
    assert_eq!(bench.hit(&worker, "r1", &read), 1);
    assert_eq!(bench.prepare_retrieve(&worker, "r1", &read, 0..1).slots().len(), 1);
    assert_eq!(bench.hit(&worker, "r2", &promised), 1);

    say(&mut bench, "a clear takes what nobody holds");
    bench.clear(false);
    bench.settle();
    assert_eq!(bench.status().objects, 2);

    say(&mut bench, "by force also what is promised, and what is being read: it stays where it is");
    bench.clear(true);
    bench.settle();
    assert_eq!(bench.status().condemned_objects, 1);
    let cleared = bench.prepare_retrieve(&worker, "r2", &promised, 0..1);
    assert_eq!(cleared, Got::Answer(Answer::RetrieveMiss));
    assert_eq!(bench.hit(&worker, "r3", &read), 0);

    say(&mut bench, "the chunk is stored anew, elsewhere");
    assert_eq!(bench.store(&worker, &read, 0..1).len(), 1);

    say(&mut bench, "with the reader's last word the old bytes go");
    bench.commit_retrieve(&worker, "r1", &read, 0..1);
    assert_eq!(bench.status().condemned_objects, 0);
    for request in ["r1", "r2", "r3"] {
        bench.end_session(request);
    }
    bench.outlast(Duration::from_secs(5));
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}
