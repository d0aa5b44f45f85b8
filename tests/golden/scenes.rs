//! Scenes: short stories of a server's life, as the engine sees and tells them.
//!
//! A transcript shows every event with its effects and facts, so that a change of any decision is
//! seen, and seen as a whole. `INSTA_UPDATE=always` writes them anew; the difference is the review.

#[path = "../engine/harness.rs"]
mod harness;
#[path = "../engine/transcript.rs"]
mod transcript;

use harness::{Bench, Got, Worker, config, prompt};
use insta::assert_snapshot;
use kvtide_core::effect::Answer;
use kvtide_core::event::BodyOutcome;
use kvtide_core::time::Duration;
use transcript::Transcript;

/// A pool of so many objects of 1 MiB, with everything written down from here on.
fn stage(objects: u64) -> Bench {
    let mut bench = Bench::new(config(objects));
    bench.transcript = Some(Transcript::default());
    bench
}

fn say(bench: &mut Bench, text: &str) {
    bench.transcript.as_mut().expect("a scene is written down").say(text);
}

fn end(bench: Bench) -> String {
    bench.transcript.expect("a scene is written down").text
}

#[test]
fn store_hit_and_retrieve_over_shared_memory() {
    let mut bench = stage(8);
    let ranks = [Worker::new(1).with_rank(0, 2), Worker::new(2).with_rank(1, 2)];
    let prompt = prompt('a', 3);
    ranks.iter().for_each(|rank| bench.register(rank));

    say(&mut bench, "nothing is stored yet");
    assert_eq!(bench.hit(&ranks[0], "r1", &prompt), 0);
    bench.end_session("r1");

    say(&mut bench, "both ranks store; the first one alone is no hit");
    bench.store(&ranks[0], &prompt, 0..3);
    assert_eq!(bench.hit(&ranks[0], "r2", &prompt), 0);
    bench.end_session("r2");
    bench.store(&ranks[1], &prompt, 0..3);

    say(&mut bench, "a hit of all three chunks, retrieved by both ranks");
    bench.advance(Duration::from_millis(1500));
    assert_eq!(bench.hit(&ranks[0], "r3", &prompt), 3);
    for rank in &ranks {
        assert_eq!(bench.prepare_retrieve(rank, "r3", &prompt, 0..3).slots().len(), 3);
        bench.advance(Duration::from_millis(2));
        bench.commit_retrieve(rank, "r3", &prompt, 0..3);
    }
    bench.end_session("r3");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn a_client_dies_between_prepare_and_commit() {
    let mut bench = stage(4);
    let (dying, other) = (Worker::new(1), Worker::new(2));
    let prompt = prompt('a', 2);
    bench.register(&dying);
    bench.register(&other);

    say(&mut bench, "two slots are lent; a second writer of the same keys has nothing to do");
    let lent = bench.prepare_store(&dying, &prompt, 0..2).slots();
    assert_eq!(bench.prepare_store(&other, &prompt, 0..2).slots(), []);
    assert_eq!(bench.hit(&other, "r1", &prompt), 0);

    say(&mut bench, "the connection ends: nothing of it becomes readable, the slots are free");
    bench.end_connection(&dying);
    assert_eq!(bench.hit(&other, "r2", &prompt), 0);
    let again = bench.prepare_store(&other, &prompt, 0..2).slots();
    assert_eq!(again.len(), lent.len());

    say(&mut bench, "a commit from the grave, over a new connection, changes nothing");
    let risen = Worker { connection: harness::connection(3), ..dying };
    assert!(!bench.commit_store(&risen, &prompt, 0..2));
    assert!(bench.commit_store(&other, &prompt, 0..2));
    assert_eq!(bench.hit(&other, "r3", &prompt), 2);
    assert_snapshot!(end(bench));
}

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

    say(&mut bench, "the worker comes within the linger, for two chunks");
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
fn an_inline_client_on_a_shared_pool() {
    let mut bench = stage(4);
    let worker = Worker::new(1);
    let prompt = prompt('a', 3);
    bench.register(&worker);

    say(&mut bench, "slots are offered, and ignored: the body goes into the reservation");
    let offered = bench.prepare_store(&worker, &prompt, 0..3).slots();
    let (ticket, slots) = bench.commit_inline(&worker, &prompt, 0..3).receiving();
    assert_eq!(slots, offered);
    assert_eq!(bench.hit(&worker, "r1", &prompt), 0);
    bench.advance(Duration::from_millis(4));
    bench.end_receive(ticket, 3, BodyOutcome::Whole);

    say(&mut bench, "from now on it is known as inline: payload without slots");
    assert_eq!(bench.hit(&worker, "r2", &prompt), 3);
    let ticket = bench.prepare_retrieve(&worker, "r2", &prompt, 0..3).sent();
    bench.commit_retrieve(&worker, "r2", &prompt, 0..3);
    assert_eq!(bench.status().tickets, 1, "the commit of an inline reader ends nothing");
    bench.end_send(ticket);
    bench.end_session("r2");

    say(&mut bench, "a body that is cut leaves what came whole");
    let (tail, worker) = (harness::prompt('b', 2), worker);
    let (ticket, _) = bench.commit_inline(&worker, &tail, 0..2).receiving();
    bench.end_connection(&worker);
    bench.end_receive(ticket, 1, BodyOutcome::Cut);
    assert_eq!(bench.hit(&worker, "r3", &tail), 1);
    bench.free(&worker, "r3", &tail);
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}
