//! What holds over whole runs, whatever happened in them.

use crate::harness::{Bench, Worker, config, prompt, scheduler};
use crate::script::{Script, tiny};
use kvtide_core::config::PolicyKind;
use kvtide_core::event::{Ask, Event};
use kvtide_core::fact::{Fact, LeaseEnd};
use kvtide_core::time::Duration;

const POLICIES: [PolicyKind; 4] =
    [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::IsolatedLru, PolicyKind::Noop];

/// Keys told of by kind.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    reserved: u64,
    finished: u64,
    aborted: u64,
    evicted: u64,
    leased: u64,
    released: u64,
}

fn sums(bench: &mut Bench) -> Sums {
    let mut sums = Sums::default();
    for told in bench.take_told() {
        let keys = told.keys.len() as u64;
        match told.fact {
            Fact::WriteReserved { .. } => sums.reserved += keys,
            Fact::WriteFinished { .. } => sums.finished += keys,
            Fact::WriteAborted { .. } => sums.aborted += keys,
            Fact::Evicted { .. } => sums.evicted += keys,
            Fact::ReadReserved { .. } => sums.leased += keys,
            // Retrieved units are told when the reader is done; with more than one reader a cell
            // may be told of more than once.
            Fact::ReadFinished { why, .. } if why != LeaseEnd::Retrieved => sums.released += keys,
            _ => {}
        }
    }
    sums
}

#[test]
fn f55_i11_when_everybody_has_left_nothing_is_left() {
    for seed in 0..200 {
        let mut script = Script::new(tiny(seed, POLICIES[seed as usize % 4]), seed);
        script.run(150);
        script.leave();
        script.bench.assert_quiet();
        let status = script.bench.status();
        assert_eq!((status.sessions, status.parked_waits), (0, 0), "seed {seed}");
        assert_eq!(status.active_prefetch_jobs, 0, "seed {seed}");
    }
}

#[test]
fn i52_what_was_reserved_is_finished_or_aborted() {
    for seed in 0..200 {
        let mut script = Script::new(tiny(seed, POLICIES[seed as usize % 4]), seed);
        script.run(150);
        script.leave();
        let objects = script.bench.status().objects;
        let sums = sums(&mut script.bench);
        assert_eq!(sums.reserved, sums.finished + sums.aborted, "seed {seed}: {sums:?}");
        assert_eq!(sums.finished, sums.evicted + objects, "seed {seed}: {sums:?}");
    }
}

#[test]
fn i52_no_lease_is_told_to_end_that_was_not_told_to_begin() {
    for seed in 0..200 {
        let mut script = Script::new(tiny(seed, POLICIES[seed as usize % 4]), seed);
        script.run(150);
        script.leave();
        let sums = sums(&mut script.bench);
        assert!(sums.released <= sums.leased, "seed {seed}: {sums:?}");
    }
}

#[test]
fn i44_the_same_events_give_the_same_effects_and_facts() {
    for seed in 0..12 {
        for policy in POLICIES {
            let transcript = |hasher_seed| {
                let mut script = Script::new(tiny(hasher_seed, policy), seed);
                script.run(120);
                script.leave();
                script.text().to_string()
            };
            let first = transcript(7);
            assert!(first.lines().count() > 100);
            assert_eq!(first, transcript(7), "seed {seed}, {policy:?}");
            // No walk over a hash map reaches an effect: another hasher changes nothing.
            assert_eq!(first, transcript(8), "seed {seed}, {policy:?}, another hasher");
        }
    }
}

#[test]
fn i44_a_frozen_clock_expires_nothing() {
    let mut bench = Bench::new(config(16));
    let (worker, asked) = (Worker::new(1), prompt('a', 3));
    bench.register(&worker);
    bench.ping(&worker);
    bench.store(&worker, &asked, 0..3);
    bench.hit(&worker, "leased", &asked);
    bench.hit(&worker, "lingering", &asked);
    bench.end_session("lingering");
    bench.prepare_store(&worker, &prompt('s', 2), 0..2).slots();
    bench.ask(scheduler(), Ask::QueryPrefetch { request: "leased" });
    bench.now = bench.now + Duration::from_millis(900);
    bench.handle(Event::Tick);
    let before = bench.status();
    bench.take_told();
    for _ in 0..10_000 {
        bench.handle(Event::Tick);
    }
    assert_eq!(bench.status(), before);
    assert!(bench.take_told().is_empty());
    assert_eq!((before.lease_units, before.staged_objects), (6, 2));
    bench.outlast(bench.engine.config().write_ttl);
    let after = bench.status();
    assert_eq!((after.lease_units, after.staged_objects, after.instances.len()), (0, 0, 0));
}
