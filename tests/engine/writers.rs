//! Writers: only bytes whose writer has reported completion become readable.

use crate::harness::{Bench, Got, MIB, Worker, config, connection, layout_of, prompt};
use kvtide_core::effect::{Answer, Slot};
use kvtide_core::event::{Ask, BodyOutcome};
use kvtide_core::fact::{Abort, Fact, NoRoom, RequestFault};
use kvtide_core::limits;
use kvtide_core::names::ChunkHash;
use kvtide_core::time::Duration;

fn pair(objects: u64) -> (Bench, [Worker; 2], Vec<ChunkHash>) {
    let mut bench = Bench::new(config(objects));
    let workers = [Worker::new(1), Worker::new(2)];
    workers.iter().for_each(|worker| bench.register(worker));
    (bench, workers, prompt('a', 3))
}

fn overlap(some: &[Slot], others: &[Slot]) -> bool {
    some.iter().any(|slot| others.iter().any(|other| slot.place == other.place))
}

fn aborts(bench: &mut Bench) -> Vec<(Abort, usize)> {
    let of = |told: &crate::harness::Told| match told.fact {
        Fact::WriteAborted { why, .. } => Some((why, told.keys.len())),
        _ => None,
    };
    bench.take_told().iter().filter_map(of).collect()
}

// Stores that failed were only logged; their keys stayed findable and later reads gave gibberish.
// Here a chunk whose bytes did not come whole is never published, and may be stored again.
#[test]
fn f25_chunks_of_a_body_that_fails_stay_invisible() {
    let outcomes = [BodyOutcome::Short, BodyOutcome::Malformed, BodyOutcome::Cut];
    for (outcome, complete) in
        outcomes.into_iter().flat_map(|outcome| (0..3).map(move |complete| (outcome, complete)))
    {
        for reserved_before in [false, true] {
            let (mut bench, [worker, other], prompt) = pair(8);
            if reserved_before {
                bench.prepare_store(&worker, &prompt, 0..3).slots();
            }
            let (ticket, slots) = bench.commit_inline(&worker, &prompt, 0..3).receiving();
            assert_eq!(slots.len(), 3);
            bench.take_told();
            bench.end_receive(ticket, complete, outcome);
            let answers: Vec<Answer> = bench.late.drain(..).map(|(_, answer)| answer).collect();
            assert_eq!(answers, [Answer::Bool(false)], "{outcome:?} after {complete}");
            assert_eq!(aborts(&mut bench), [(Abort::Body, 3 - complete as usize)]);
            assert_eq!(bench.hit(&other, "r", &prompt), complete as u64);
            bench.free(&other, "r", &prompt);
            bench.assert_quiet();
            assert_eq!(bench.store(&other, &prompt, 0..3).len(), 3 - complete as usize);
            assert_eq!(bench.hit(&other, "r", &prompt), 3);
        }
    }
}

#[test]
fn f25_an_ending_that_comes_twice_is_counted_and_changes_nothing() {
    let (mut bench, [worker, _], prompt) = pair(8);
    let (ticket, _) = bench.commit_inline(&worker, &prompt, 0..3).receiving();
    bench.end_receive(ticket, 1, BodyOutcome::Cut);
    bench.take_told();
    bench.end_receive(ticket, 3, BodyOutcome::Whole);
    let told = bench.take_told();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].fact, Fact::StaleEnding);
    assert_eq!(bench.hit(&worker, "r", &prompt), 1);
}

// An ending that named the ticket of another kind took the ticket away: the copy that it belonged
// to was pinned for good, and its client never answered.
#[test]
fn i6_an_ending_of_another_kind_is_stale_and_ends_nothing() {
    let (mut bench, [worker, _], prompt) = pair(8);
    let (ticket, _) = bench.commit_inline(&worker, &prompt, 0..3).receiving();
    bench.take_told();
    let stale = |bench: &mut Bench| {
        let told = bench.take_told();
        assert_eq!(told.iter().map(|told| &told.fact).collect::<Vec<_>>(), [&Fact::StaleEnding]);
        assert!(bench.late.is_empty(), "nobody is answered");
        bench.status().stale_endings
    };
    bench.end_send(ticket);
    assert_eq!(stale(&mut bench), 1);
    bench.end_receive(ticket, 3, BodyOutcome::Whole);
    let answers: Vec<Answer> = bench.late.drain(..).map(|(_, answer)| answer).collect();
    assert_eq!(answers, [Answer::Bool(true)], "the body ends by its own ending");

    assert_eq!(bench.hit(&worker, "r", &prompt), 3);
    let ticket = bench.prepare_retrieve(&worker, "r", &prompt, 0..3).sent();
    bench.take_told();
    bench.end_receive(ticket, 3, BodyOutcome::Whole);
    assert_eq!(stale(&mut bench), 2);
    bench.end_send(ticket);
    let told = bench.take_told();
    assert!(told.iter().any(|told| matches!(told.fact, Fact::Retrieved { .. })));
    bench.end_session("r");
    bench.assert_quiet();
}

#[test]
fn i6_a_late_commit_publishes_neither_its_own_bytes_nor_the_next_writers() {
    let (mut bench, [slow, other], prompt) = pair(8);
    let lent = bench.prepare_store(&slow, &prompt, 0..3).slots();
    bench.take_told();
    bench.outlast(bench.engine.config().write_ttl);
    assert_eq!(aborts(&mut bench), [(Abort::WriteTtl, 3)]);
    assert_eq!(bench.status().condemned_bytes, 3 * MIB, "the slow writer may still write there");
    let next = bench.prepare_store(&other, &prompt, 0..3).slots();
    assert!(!overlap(&lent, &next));
    assert!(!bench.commit_store(&slow, &prompt, 0..3));
    assert_eq!(bench.status().condemned_bytes, 0, "now it has said that it is done");
    assert_eq!(bench.hit(&other, "r1", &prompt), 0);
    assert!(bench.commit_store(&other, &prompt, 0..3));
    assert_eq!(bench.hit(&other, "r2", &prompt), 3);
}

#[test]
fn p3_clients_that_stop_hold_no_more_than_the_share_of_writers() {
    let mut config = config(8);
    config.limits.lent_ppm = 500_000;
    let mut bench = Bench::new(config);
    let workers = [1, 2, 3].map(Worker::new);
    workers.iter().for_each(|worker| bench.register(worker));
    let [stopped, other, third] = &workers;
    let prompts = ['a', 'b', 'c'].map(|letter| prompt(letter, 8));
    assert_eq!(bench.prepare_store(stopped, &prompts[0], 0..3).slots().len(), 3);
    assert_eq!(bench.prepare_store(other, &prompts[1], 0..8).slots().len(), 1, "what is left");
    let told = bench.take_told();
    let refused = told.iter().filter_map(|told| match told.fact {
        Fact::WriteRefused { why, .. } => Some((why, told.keys.len())),
        _ => None,
    });
    assert_eq!(refused.collect::<Vec<_>>(), [(NoRoom::Lent, 1), (NoRoom::Trimmed, 6)]);

    bench.outlast(bench.engine.config().write_ttl);
    let status = bench.status();
    assert_eq!((status.condemned_bytes, status.lent_bytes), (4 * MIB, 4 * MIB));
    assert_eq!(status.lent_bytes_max, 4 * MIB);
    let none = bench.prepare_store(third, &prompts[2], 0..1);
    assert!(matches!(none, Got::Answer(Answer::NoContext)), "{none:?}");
    // Bytes inside messages are received by us and held by no client.
    let (ticket, _) = bench.commit_inline(third, &prompts[2], 0..4).receiving();
    bench.end_receive(ticket, 4, BodyOutcome::Whole);
    assert_eq!(bench.hit(third, "r", &prompts[2]), 4);

    // What is there already needs no slot.
    assert_eq!(bench.prepare_store(third, &prompts[2], 0..4).slots().len(), 0);
    bench.end_connection(stopped);
    assert_eq!((bench.status().condemned_bytes, bench.status().lent_bytes), (MIB, MIB));
    assert_eq!(bench.prepare_store(third, &prompts[0], 0..8).slots().len(), 3);
}

#[test]
fn an_object_larger_than_the_share_is_written_while_nobody_else_writes() {
    let mut config = config(8);
    config.limits.lent_ppm = 1;
    let mut bench = Bench::new(config);
    let worker = Worker::new(1);
    bench.register(&worker);
    let prompt = prompt('a', 3);
    assert_eq!(bench.prepare_store(&worker, &prompt, 0..3).slots().len(), 1);
    assert_eq!(bench.store(&worker, &prompt, 1..2), [], "not beside the first");
    assert!(bench.commit_store(&worker, &prompt, 0..3));
    assert_eq!(bench.store(&worker, &prompt, 1..2).len(), 1);
}

#[test]
fn i6_a_second_commit_finds_nothing_to_publish() {
    let (mut bench, [worker, _], prompt) = pair(8);
    bench.prepare_store(&worker, &prompt, 0..3).slots();
    let commits = [(); 3].map(|()| bench.commit_store(&worker, &prompt, 0..3));
    assert_eq!(commits, [true, false, false]);
    assert_eq!(bench.hit(&worker, "r", &prompt), 3);
}

#[test]
fn i6_a_commit_after_a_forced_clear_publishes_nothing() {
    for is_swept in [false, true] {
        let (mut bench, [worker, other], prompt) = pair(8);
        let lent = bench.prepare_store(&worker, &prompt, 0..3).slots();
        bench.take_told();
        bench.clear(true);
        if is_swept {
            bench.settle();
        }
        let next = bench.prepare_store(&other, &prompt, 0..3).slots();
        assert!(!overlap(&lent, &next));
        assert!(!bench.commit_store(&worker, &prompt, 0..3));
        assert_eq!(bench.hit(&other, "r1", &prompt), 0);
        bench.settle();
        let aborted: usize = aborts(&mut bench).iter().map(|(_, keys)| keys).sum();
        assert_eq!(aborted, 3, "told once, swept: {is_swept}");
        assert!(bench.commit_store(&other, &prompt, 0..3));
        assert_eq!(bench.hit(&other, "r2", &prompt), 3);
    }
}

// Found by reading: the commit, not the sweeper, met the dead reservation first, and nobody was
// told that it was given up.
#[test]
fn i6_i52_a_commit_that_comes_before_the_sweeper_tells_of_the_abort() {
    let (mut bench, [worker, _], prompt) = pair(8);
    bench.prepare_store(&worker, &prompt, 0..3).slots();
    bench.clear(true);
    bench.take_told();
    assert!(!bench.commit_store(&worker, &prompt, 0..3));
    bench.settle();
    assert_eq!(aborts(&mut bench), [(Abort::ForcedClear, 3)]);
    bench.assert_quiet();
}

#[test]
fn i7_an_instance_that_unregisters_between_prepare_and_commit_publishes_nothing() {
    let (mut bench, [worker, other], prompt) = pair(8);
    let lent = bench.prepare_store(&worker, &prompt, 0..3).slots();
    bench.take_told();
    bench.unregister(&worker);
    assert_eq!(aborts(&mut bench), [(Abort::Unregistered, 3)]);
    let next = bench.prepare_store(&other, &prompt, 0..3).slots();
    assert!(!overlap(&lent, &next), "it may still write");
    assert!(!bench.commit_store(&worker, &prompt, 0..3));
    let faulted = bench.take_told().into_iter().any(|told| {
        matches!(told.fact, Fact::RequestFaulted { fault: RequestFault::UnknownInstance, .. })
    });
    assert!(faulted);
    assert_eq!(bench.status().condemned_bytes, 0, "it has said that it is done");
    bench.register(&worker);
    assert!(!bench.commit_store(&worker, &prompt, 0..3), "registered anew, it is still too late");
    assert_eq!(bench.hit(&other, "r", &prompt), 0);
    assert!(bench.commit_store(&other, &prompt, 0..3));
    bench.assert_quiet();
}

// Found by reading: a late commit without a registration was matched by its range alone, so a
// double commit of one row ended the other row's copy while its worker was still writing.
#[test]
fn i6_a_late_commit_ends_the_copies_of_its_own_row_and_tenant_only() {
    let mut bench = Bench::new(config(8));
    let first = Worker::new(1).with_rank(0, 2);
    // One connection and one instance for both rows, as an engine with one client has it.
    let others = [first.with_rank(1, 2), first.with_salt("other")];
    bench.register(&first);
    let prompt = prompt('a', 2);
    bench.prepare_store(&first, &prompt, 0..2).slots();
    others.iter().for_each(|other| drop(bench.prepare_store(other, &prompt, 0..2).slots()));
    bench.unregister(&first);
    assert_eq!(bench.status().condemned_bytes, 6 * MIB);
    for _ in 0..3 {
        assert!(!bench.commit_store(&first, &prompt, 0..2));
        assert_eq!(bench.status().condemned_bytes, 4 * MIB, "the others still write");
    }
    assert!(!bench.commit_store(&others[0], &prompt, 0..2));
    assert_eq!(bench.status().condemned_bytes, 2 * MIB);
    assert!(!bench.commit_store(&first.with_model("gemma"), &prompt, 0..2));
    assert_eq!(bench.status().condemned_bytes, 2 * MIB);
    assert!(!bench.commit_store(&others[1], &prompt, 0..2));
    bench.assert_quiet();
}

// Copies of one range under many registrations share no name, so nothing else bounds how many a
// late commit could end at once.
#[test]
fn i6_a_late_commit_ends_no_more_copies_than_one_name_has() {
    for layouts in [limits::COPIES_PER_NAME_MAX as u64, limits::COPIES_PER_NAME_MAX as u64 + 1] {
        let mut bench = Bench::new(config(16));
        let worker = Worker::new(1);
        let prompt = prompt('a', 1);
        for step in 1..=layouts {
            let worker = worker.with_layout(layout_of(step * 4096));
            bench.register(&worker);
            bench.prepare_store(&worker, &prompt, 0..1).slots();
        }
        bench.unregister(&worker);
        for _ in 0..=layouts {
            assert!(!bench.commit_store(&worker, &prompt, 0..1));
        }
        let is_bounded = layouts <= limits::COPIES_PER_NAME_MAX as u64;
        assert_eq!(bench.status().condemned_bytes == 0, is_bounded, "{layouts} layouts");
        bench.end_connection(&worker);
        bench.assert_quiet();
    }
}

// Found by reading: a commit that came after its instance had registered anew with another layout
// found nothing under its name, and its slots stayed lent until its connection ended.
#[test]
fn i6_a_late_commit_after_another_layout_gives_its_slots_back() {
    let (mut bench, [worker, _], prompt) = pair(8);
    bench.store(&worker, &prompt, 0..1);
    assert_eq!(bench.hit(&worker, "r", &prompt[..1]), 1);
    bench.prepare_retrieve(&worker, "r", &prompt, 0..1).slots();
    bench.prepare_store(&worker, &prompt, 1..3).slots();
    let anew = worker.with_layout(layout_of(2 * MIB));
    bench.register(&anew);
    assert_eq!(bench.status().condemned_bytes, 2 * MIB);
    assert!(!bench.commit_store(&anew, &prompt, 1..3), "nothing of it is published");
    assert_eq!(bench.status().condemned_bytes, 0);
    let lent = bench.prepare_store(&anew, &prompt, 1..3).slots();
    assert_eq!(lent.len(), 2);
    assert!(bench.commit_store(&anew, &prompt, 1..3));
    bench.commit_retrieve(&anew, "r", &prompt, 0..1);
    bench.end_session("r");
    bench.outlast(Duration::from_secs(5));
    bench.assert_quiet();
}

// Found by reading: the body of a client that sends its bytes went past a reservation of the same
// request that had been given up, and its slots stayed lent until the end of the connection.
#[test]
fn i2_a_body_gives_back_what_its_client_never_writes_to() {
    type Way = fn(&mut Bench, &Worker);
    let ways: [(&str, Way); 5] = [
        ("write TTL", |bench, _| bench.outlast(bench.engine.config().write_ttl)),
        ("forced clear", |bench, _| bench.clear(true)),
        ("registered anew", |bench, worker| {
            bench.unregister(worker);
            bench.register(worker);
        }),
        ("another layout", |bench, worker| {
            let layout = layout_of(2 * MIB);
            bench.register(&worker.with_layout(layout));
        }),
        ("not registered", |bench, worker| bench.unregister(worker)),
    ];
    for (name, way) in ways {
        for writes_slots in [false, true] {
            let mut config = config(8);
            config.reap_after = Duration::ZERO;
            let mut bench = Bench::new(config);
            let (worker, prompt) = (Worker::new(1), prompt('a', 2));
            bench.register(&worker);
            if writes_slots {
                bench.store(&worker, &crate::harness::prompt('b', 1), 0..1);
            }
            bench.prepare_store(&worker, &prompt, 0..2).slots();
            way(&mut bench, &worker);
            let other = Worker { connection: connection(9), ..worker };
            for (asker, range) in [(&worker, 0..1), (&other, 0..2)] {
                let got = bench.commit_inline(asker, &prompt, range);
                if let Got::Receiving { ticket, .. } = got {
                    bench.end_receive(ticket, 0, BodyOutcome::Malformed);
                }
            }
            bench.settle();
            assert_eq!(bench.status().lent_bytes, 2 * MIB, "{name}: not theirs");
            if let Got::Receiving { ticket, .. } = bench.commit_inline(&worker, &prompt, 0..2) {
                bench.end_receive(ticket, 2, BodyOutcome::Whole);
            }
            bench.settle();
            let left = if writes_slots { 2 * MIB } else { 0 };
            assert_eq!(bench.status().lent_bytes, left, "{name}");
            bench.end_connection(&worker);
            bench.assert_quiet();
        }
    }
}

// Found by reading: a commit over shared memory under the key of a body that was still arriving
// published what had not come yet, and the body's own answer was lost.
#[test]
fn i7_a_commit_does_not_publish_a_body_that_is_still_arriving() {
    let (mut bench, [worker, other], prompt) = pair(8);
    let (ticket, _) = bench.commit_inline(&worker, &prompt, 0..3).receiving();
    let twin = Worker { connection: connection(3), ..worker };
    assert!(!bench.commit_store(&twin, &prompt, 0..3));
    assert_eq!(bench.hit(&other, "r1", &prompt), 0);
    bench.end_receive(ticket, 3, BodyOutcome::Whole);
    assert_eq!(bench.late.len(), 1);
    assert_eq!(bench.late[0].1, Answer::Bool(true));
    assert_eq!(bench.hit(&other, "r2", &prompt), 3);
    assert_eq!(bench.unanswered(), 0);
}

#[test]
fn i4_a_second_writer_of_a_key_has_nothing_to_do() {
    let (mut bench, [first, second], prompt) = pair(8);
    bench.prepare_store(&first, &prompt, 0..2).slots();
    let slots = bench.prepare_store(&second, &prompt, 0..3).slots();
    assert_eq!(slots.iter().map(|slot| slot.chunk).collect::<Vec<_>>(), [2]);
    assert!(bench.commit_store(&second, &prompt, 0..3));
    assert_eq!(bench.hit(&first, "r1", &prompt), 0, "the first two are not written yet");
    assert!(bench.commit_store(&first, &prompt, 0..2));
    assert_eq!(bench.hit(&first, "r2", &prompt), 3);
    assert_eq!(bench.status().objects, 3);
}

#[test]
fn i2_no_timer_frees_memory_in_a_clients_hands() {
    let (mut bench, [worker, other], prompt) = pair(4);
    let lent = bench.prepare_store(&worker, &prompt, 0..3).slots();
    let ways: [fn(&mut Bench, &Worker); 4] = [
        |bench, _| bench.advance(Duration::from_secs(601)),
        |bench, worker| bench.unregister(worker),
        |bench, _| bench.clear(true),
        |bench, _| bench.advance(Duration::from_secs(4000)),
    ];
    for way in ways {
        way(&mut bench, &worker);
        bench.settle();
        bench.register(&other);
        let flood = bench.prepare_store(&other, &crate::harness::prompt('f', 4), 0..4);
        if let Got::Slots(slots) = flood {
            assert!(!overlap(&lent, &slots));
        }
    }
    assert_eq!(bench.status().condemned_bytes, 3 * MIB + MIB, "both clients still hold theirs");
    bench.end_connection(&worker);
    bench.end_connection(&other);
    assert_eq!(bench.status().used_bytes, 0);
    bench.assert_quiet();
}

// The store crashed after a while around client disconnects. Here a client may leave in any state:
// everything that was done for it ends with its connection and the endings of what is under way.
#[test]
fn f55_a_client_may_leave_in_any_state() {
    type State = fn(&mut Bench, &Worker, &[ChunkHash]);
    let states: [(&str, State); 9] = [
        ("registered", |_, _, _| {}),
        ("slots lent for writing", |bench, worker, prompt| {
            bench.prepare_store(worker, &prompt[..2], 0..2).slots();
        }),
        ("two reservations of one key", |bench, worker, prompt| {
            bench.prepare_store(worker, prompt, 0..3).slots();
            bench.outlast(bench.engine.config().write_ttl);
            bench.prepare_store(worker, prompt, 0..3).slots();
        }),
        ("stored and leased", |bench, worker, prompt| {
            bench.store(worker, prompt, 0..3);
            bench.lookup(worker, "r", prompt, 1);
            bench.settle();
        }),
        ("slots lent for reading, and its payload on the way", |bench, worker, prompt| {
            let body = bench.commit_inline(worker, prompt, 0..3).receiving().0;
            bench.end_receive(body, 3, BodyOutcome::Malformed);
            bench.lookup(worker, "r", prompt, 1);
            bench.settle();
            let send = bench.prepare_retrieve(worker, "r", prompt, 0..3).sent();
            bench.end_connection(worker);
            assert_eq!(bench.status().tickets, 1, "the payload may still be read");
            bench.end_send(send);
        }),
        ("a body on its way", |bench, worker, prompt| {
            let body = bench.commit_inline(worker, prompt, 0..3).receiving().0;
            bench.end_connection(worker);
            assert_eq!(bench.status().tickets, 1, "the body may still be written");
            bench.end_receive(body, 0, BodyOutcome::Cut);
        }),
        ("condemned by a forced clear", |bench, worker, prompt| {
            bench.prepare_store(worker, prompt, 0..3).slots();
            bench.clear(true);
        }),
        ("condemned by its own end", |bench, worker, prompt| {
            bench.prepare_store(worker, prompt, 0..3).slots();
            bench.unregister(worker);
        }),
        ("a lookup under way", |bench, worker, prompt| {
            bench.store(worker, prompt, 0..3);
            bench.lookup(worker, "r", prompt, 1);
            let wait = Duration::from_secs(2);
            bench.ask(worker.connection, Ask::WaitPrefetch { request: "r", wait });
        }),
    ];
    for (name, state) in states {
        let mut config = config(8);
        config.limits.work_units = 2;
        let mut bench = Bench::new(config);
        let worker = Worker::new(1);
        bench.register(&worker);
        state(&mut bench, &worker, &prompt('a', 3));
        bench.end_connection(&worker);
        bench.settle();
        assert_eq!(bench.status().tickets, 0, "{name}");
        assert_eq!(bench.status().staged_bytes + bench.status().condemned_bytes, 0, "{name}");
        bench.outlast(bench.engine.config().read_ttl);
        bench.assert_quiet();
        bench.outlast(bench.engine.config().registration_grace);
        assert_eq!(bench.status().instances, [], "{name}");
        assert_eq!(bench.status().sessions, 0, "{name}");
    }
}
