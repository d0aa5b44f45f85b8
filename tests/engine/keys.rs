//! Keys, names and registrations: who is meant by what.

use crate::harness::{Bench, Worker, config, connection, layout_of, prompt};
use kvtide_core::effect::Answer;
use kvtide_core::event::{Ask, Event};
use kvtide_core::fact::{Fact, InstanceEnd};
use kvtide_core::names::InstanceId;
use kvtide_core::time::Duration;

// A restart that fitted between two heartbeats left clients believing all is well while the new
// server knew nothing of them. Here whoever is not registered is told so by one `false`, and by
// one only: a client registers once per answer.
#[test]
fn f07_who_is_not_registered_is_told_so_once() {
    let mut bench = Bench::new(config(4));
    let worker = Worker::new(1);
    assert_eq!(
        [bench.ping(&worker), bench.ping(&worker), bench.ping(&worker)],
        [false, true, true]
    );
    let told = bench.take_told();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].fact, Fact::InstanceTold { instance: worker.instance });
    let early = bench.prepare_store(&worker, &prompt('a', 1), 0..1);
    assert_eq!(early, crate::harness::Got::Answer(Answer::NoContext), "refused cleanly");
    bench.register(&worker);
    assert_eq!(bench.store(&worker, &prompt('a', 1), 0..1).len(), 1, "after that it succeeds");
    assert_eq!([bench.ping(&worker), bench.ping(&worker)], [true, true]);
    bench.unregister(&worker);
    assert_eq!([bench.ping(&worker), bench.ping(&worker)], [false, true]);
}

#[test]
fn f07_the_told_are_bounded_and_the_oldest_is_told_again() {
    let mut config = config(4);
    config.limits.told = 2;
    let mut bench = Bench::new(config);
    let [first, second, third] = [1, 2, 3].map(Worker::new);
    assert_eq!([first, second, third].map(|worker| bench.ping(&worker)), [false; 3]);
    assert_eq!([second, third].map(|worker| bench.ping(&worker)), [true; 2]);
    assert!(!bench.ping(&first));
}

// An engine that died during warm-up left the server holding its memory for the long grace time.
// Here the end of the connection frees what it held at once, and the idle timer of an instance
// touches nobody else.
#[test]
fn f09_the_end_of_a_connection_frees_its_pins_and_leaves_others_registered() {
    let mut bench = Bench::new(config(8));
    let (dying, idle) = (Worker::new(1), Worker::new(2));
    let (old, new) = (prompt('o', 2), prompt('n', 3));
    [dying, idle].iter().for_each(|worker| bench.register(worker));
    bench.ping(&dying);
    bench.store(&dying, &old, 0..2);
    assert_eq!(bench.hit(&dying, "r", &old), 2);
    bench.prepare_retrieve(&dying, "r", &old, 0..2).slots();
    bench.prepare_store(&dying, &new, 0..3).slots();
    assert_eq!(bench.status().tickets, 2);
    bench.end_connection(&dying);
    bench.assert_quiet();
    let registered = |bench: &Bench| -> Vec<InstanceId> {
        bench.status().instances.iter().map(|instance| instance.id).collect()
    };
    assert_eq!(registered(&bench), [dying.instance, idle.instance]);
    bench.take_told();
    bench.outlast(bench.engine.config().reap_after);
    assert_eq!(registered(&bench), [idle.instance], "it never pinged: the long grace counts");
    let ended = Fact::InstanceEnded { instance: dying.instance, why: InstanceEnd::Reaped };
    assert!(bench.take_told().iter().any(|told| told.fact == ended));
}

// One engine isolates tenants in its own tree but named its external keys by tokens alone: a
// second tenant got the first one's prefix. Here the salt is part of every key.
#[test]
fn f33_the_same_tokens_under_another_salt_are_a_miss() {
    let mut bench = Bench::new(config(8));
    let first = Worker::new(1).with_salt("first");
    let second = Worker::new(2).with_salt("second");
    let prompt = prompt('a', 3);
    [first, second].iter().for_each(|worker| bench.register(worker));
    let slots = bench.store(&first, &prompt, 0..3);
    assert_eq!(bench.hit(&second, "r2", &prompt), 0);
    assert_eq!(bench.hit(&second.with_salt(""), "r3", &prompt), 0);
    assert_eq!(bench.hit(&first, "r1", &prompt), 3);
    let others = bench.store(&second, &prompt, 0..3);
    assert!(others.iter().all(|slot| slots.iter().all(|other| other.place != slot.place)));
    // A request id is no key: the second tenant cannot retrieve under the first one's leases.
    let stolen = bench.prepare_retrieve(&second, "r1", &prompt, 0..3);
    assert_eq!(stolen, crate::harness::Got::Answer(Answer::RetrieveMiss));
}

#[test]
fn i48_every_part_of_a_key_tells_objects_apart() {
    let mut bench = Bench::new(config(16));
    let base = Worker::new(1).with_rank(0, 2);
    let others = [
        Worker::new(2).with_rank(0, 2).with_salt("salt"),
        Worker::new(3).with_rank(0, 2).with_model("mistral"),
        Worker::new(4).with_rank(1, 2),
        Worker::new(5).with_rank(0, 1),
        Worker::new(6).with_rank(0, 2).with_layout(layout_of(2 << 20)),
    ];
    let prompt = prompt('a', 1);
    bench.register(&base);
    let slot = bench.store(&base, &prompt, 0..1)[0];
    for other in &others {
        bench.register(other);
        assert_eq!(bench.hit(other, "r", &prompt), 0, "{other:?}");
        let stored = bench.store(other, &prompt, 0..1);
        assert_eq!(stored.len(), 1, "what {other:?} stores is new");
        assert_ne!(stored[0].place, slot.place);
    }
    let objects = bench.status().objects;
    assert_eq!(objects, 1 + others.len() as u64);
    assert_eq!(bench.store(&base, &prompt, 0..1), [], "what was there is there");
}

#[test]
fn i48_a_layout_is_what_was_registered_last_and_is_still_used() {
    let mut bench = Bench::new(config(16));
    let (small, large) = (Worker::new(1), Worker::new(2).with_layout(layout_of(2 << 20)));
    let prompt = prompt('a', 2);
    bench.register(&small);
    bench.store(&small, &prompt, 0..2);
    assert_eq!(bench.hit(&small, "r", &prompt), 2);
    bench.register(&large);
    assert_eq!(bench.hit(&small, "r", &prompt), 0, "the layout of the lookup is the new one");
    bench.unregister(&large);
    assert_eq!(bench.hit(&small, "r", &prompt), 2);
}

#[test]
fn i49_what_changes_nothing_tells_nothing() {
    let mut bench = Bench::new(config(8));
    let worker = Worker::new(1);
    let (prompt, absent) = (prompt('a', 2), prompt('x', 1));
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..2);
    assert_eq!(bench.hit(&worker, "r", &prompt), 2);
    bench.free(&worker, "r", &prompt);
    bench.take_told();
    let before = bench.status();

    bench.register(&worker);
    assert!(bench.ping(&worker));
    assert_eq!(bench.query("r"), Some(0));
    assert_eq!(bench.query("unknown"), Some(0));
    bench.free(&worker, "r", &prompt);
    bench.end_session("unknown");
    assert_eq!(bench.store(&worker, &prompt, 0..2), []);
    assert!(!bench.commit_store(&worker, &prompt, 0..2), "nothing is pending");
    assert!(!bench.commit_store(&worker, &absent, 0..1));
    bench.commit_retrieve(&worker, "r", &prompt, 0..2);
    bench.unregister(&Worker::new(9));
    bench.handle(Event::ConnectionEnded { connection: connection(7) });
    bench.handle(Event::ArenaGrown { bytes: before.total_bytes });
    bench.handle(Event::Tick);
    bench.advance(Duration::from_millis(900));
    let told = bench.take_told();
    assert!(told.is_empty(), "{told:#?}");
    assert_eq!(bench.status().used_bytes, before.used_bytes);

    bench.ask(worker.connection, Ask::EndSession { request: "r", hashes: &[] });
    bench.ask(worker.connection, Ask::EndSession { request: "r", hashes: &prompt });
    assert!(bench.take_told().is_empty(), "nothing was left to give back");
}
