//! Writers: what becomes readable, and what never does.

use crate::harness::{Worker, connection, prompt};
use crate::stage::{end, name, say, stage};
use insta::assert_snapshot;
use kvtide_core::event::BodyOutcome;
use kvtide_core::time::Duration;

#[test]
fn a_client_dies_between_prepare_and_commit() {
    let mut bench = stage(4);
    let (dying, other) = (Worker::new(1), Worker::new(2));
    let prompt = prompt('a', 2);
    bench.register(&dying);
    bench.register(&other);

    say(
        &mut bench,
        "worker 1 is lent two slots; a second writer of these chunks has nothing to do",
    );
    let lent = bench.prepare_store(&dying, &prompt, 0..2).slots();
    assert_eq!(bench.prepare_store(&other, &prompt, 0..2).slots(), []);
    assert_eq!(bench.hit(&other, "r1", &prompt), 0);
    bench.end_session("r1");

    say(&mut bench, "its process dies: nothing of it becomes readable, the slots are free");
    bench.end_connection(&dying);
    assert_eq!(bench.hit(&other, "r2", &prompt), 0);
    bench.end_session("r2");
    let again = bench.prepare_store(&other, &prompt, 0..2).slots();
    assert_eq!(again.len(), lent.len());

    say(&mut bench, "a commit from the grave, over a new connection, changes nothing");
    let risen = Worker { connection: connection(3), ..dying };
    name(&mut bench, risen.connection, "worker 1 (anew)");
    assert!(!bench.commit_store(&risen, &prompt, 0..2));
    assert!(bench.commit_store(&other, &prompt, 0..2));
    assert_eq!(bench.hit(&other, "r3", &prompt), 2);
    assert_snapshot!(end(bench));
}

#[test]
fn a_commit_after_the_write_ttl() {
    let mut bench = stage(4);
    let [slow, other] = [Worker::new(1), Worker::new(2)];
    let prompt = prompt('a', 2);
    bench.register(&slow);
    bench.register(&other);
    assert_eq!(bench.prepare_store(&slow, &prompt, 0..2).slots().len(), 2);

    say(&mut bench, "600 s pass: the chunks are others' to write, the memory is not");
    bench.outlast(Duration::from_secs(600));
    assert_eq!(bench.status().condemned_objects, 2);
    assert_eq!(bench.prepare_store(&other, &prompt, 0..2).slots().len(), 2);

    say(
        &mut bench,
        "the late commit publishes nothing, least of all what the other one is writing",
    );
    assert!(!bench.commit_store(&slow, &prompt, 0..2));
    assert_eq!(bench.status().condemned_objects, 0, "its writer is done with it");
    assert_eq!(bench.hit(&other, "r1", &prompt), 0);
    bench.end_session("r1");
    assert!(bench.commit_store(&other, &prompt, 0..2));
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}

#[test]
fn two_writers_of_one_prompt() {
    let mut bench = stage(8);
    let [first, second] = [Worker::new(1), Worker::new(2)];
    let prompt = prompt('a', 4);
    bench.register(&first);
    bench.register(&second);

    say(&mut bench, "whoever comes second gets what is left");
    assert_eq!(bench.prepare_store(&first, &prompt, 0..2).slots().len(), 2);
    assert_eq!(bench.prepare_store(&second, &prompt, 0..4).slots().len(), 2);

    say(&mut bench, "the second one is faster, but its chunks are no prefix yet");
    assert!(bench.commit_store(&second, &prompt, 0..4));
    assert_eq!(bench.hit(&first, "r1", &prompt), 0);
    bench.end_session("r1");

    say(&mut bench, "with the first one's they are");
    assert!(bench.commit_store(&first, &prompt, 0..2));
    assert_eq!(bench.hit(&first, "r2", &prompt), 4);
    bench.free(&first, "r2", &prompt);
    bench.end_session("r2");

    say(&mut bench, "what is there is never written again");
    assert_eq!(bench.store(&first, &prompt, 0..4), []);
    bench.assert_quiet();
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
    bench.end_session("r1");

    say(&mut bench, "from now on it is known as inline: payload without slots");
    assert_eq!(bench.hit(&worker, "r2", &prompt), 3);
    let ticket = bench.prepare_retrieve(&worker, "r2", &prompt, 0..3).sent();
    bench.commit_retrieve(&worker, "r2", &prompt, 0..3);
    assert_eq!(bench.status().tickets, 1, "the commit of an inline reader ends nothing");
    bench.end_send(ticket);
    bench.end_session("r2");

    say(&mut bench, "a body that is cut leaves what came whole");
    let tail = crate::harness::prompt('b', 2);
    let (ticket, _) = bench.commit_inline(&worker, &tail, 0..2).receiving();
    bench.end_connection(&worker);
    bench.end_receive(ticket, 1, BodyOutcome::Cut);
    assert_eq!(bench.hit(&worker, "r3", &tail), 1);
    bench.free(&worker, "r3", &tail);
    bench.end_session("r3");
    bench.assert_quiet();
    assert_snapshot!(end(bench));
}
