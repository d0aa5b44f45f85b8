//! Leases: who may see what, until when. Nobody's release touches what another one holds.

use crate::harness::{Bench, Got, Told, Worker, config, prompt};
use kvtide_core::effect::Answer;
use kvtide_core::fact::{Fact, LeaseEnd, RequestFault};
use kvtide_core::rng::Rng;
use kvtide_core::time::Duration;

const MISS: Got = Got::Answer(Answer::RetrieveMiss);

fn faults(told: &[Told]) -> Vec<RequestFault> {
    let fault = |told: &Told| match told.fact {
        Fact::RequestFaulted { operation: "free_lookup_locks", fault } => Some(fault),
        _ => None,
    };
    told.iter().filter_map(fault).collect()
}

// In multi-tenant use a release left out the tenant's salt: it looked for other keys, was
// swallowed, and the holds lasted until their time limit. Here a release that names nothing of its
// request is counted, and what the request holds stays.
#[test]
fn f01_a_release_under_another_salt_is_counted_and_releases_nothing() {
    let mut bench = Bench::new(config(8));
    let worker = Worker::new(1).with_salt("a");
    let prompt = prompt('a', 3);
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..3);
    assert_eq!(bench.hit(&worker, "r", &prompt), 3);
    bench.take_told();
    let strangers = [worker.with_salt(""), worker.with_model("mistral"), worker.with_rank(0, 2)];
    for stranger in strangers {
        bench.free(&stranger, "r", &prompt);
        assert_eq!(faults(&bench.take_told()), [RequestFault::NoSuchHold]);
        assert_eq!(bench.status().lease_units, 3);
    }
    bench.free(&worker, "another request", &prompt);
    assert_eq!(faults(&bench.take_told()), [RequestFault::NoSuchHold]);
    assert_eq!(bench.status().lease_units, 3);

    bench.free(&worker, "r", &prompt);
    let told = bench.take_told();
    assert_eq!(faults(&told), []);
    assert_eq!(told[0].keys.len(), 3);
    assert_eq!(bench.status().lease_units, 0);
}

// With MLA under tensor parallelism all ranks read one object, but one hold was taken: the second
// rank found nothing. Here the lookup says how many readers come, and each of them, no more, is
// served.
#[test]
fn f02_as_many_readers_as_declared_are_served() {
    let mut bench = Bench::new(config(8));
    let ranks = [1, 2, 3, 4, 5].map(Worker::new);
    let prompt = prompt('a', 3);
    ranks.iter().for_each(|rank| bench.register(rank));
    bench.store(&ranks[0], &prompt, 0..3);
    bench.lookup(&ranks[0], "r", &prompt, 4);
    assert_eq!(bench.query("r"), Some(3));
    for (served, rank) in ranks[..4].iter().enumerate() {
        assert_eq!(bench.status().lease_units, 12 - 3 * served as u64);
        assert!(bench.retrieve(rank, "r", &prompt, 0..3));
    }
    assert_eq!(bench.prepare_retrieve(&ranks[4], "r", &prompt, 0..3), MISS);
    bench.assert_quiet();
}

// Repeated or overlapping releases of one client stripped other readers of their locks. Here a
// request counts down its own set, whatever comes in whatever order and number.
#[test]
fn i3_i13_no_order_of_endings_touches_another_requests_leases() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut bench = Bench::new(config(8));
        let worker = Worker::new(1);
        let prompt = prompt('a', 4);
        bench.register(&worker);
        bench.store(&worker, &prompt, 0..4);
        bench.lookup(&worker, "mine", &prompt, 2);
        bench.lookup(&worker, "theirs", &prompt, 1);
        let mut mine = 8;
        for _ in 0..rng.below(8) {
            let first = rng.below(4) as u32;
            let end = first + 1 + rng.below(4 - first as u64) as u32;
            match rng.below(4) {
                0 => bench.end_session("mine"),
                1 => bench.free(&worker, "mine", &prompt[..end as usize]),
                2 => {
                    bench.prepare_retrieve(&worker, "mine", &prompt, first..end);
                    bench.commit_retrieve(&worker, "mine", &prompt, first..end);
                }
                _ => bench.commit_retrieve(&worker, "mine", &prompt, first..end),
            }
            let units = bench.status().lease_units;
            assert!((4..=4 + mine).contains(&units), "seed {seed}: {units} after {mine}");
            mine = units - 4;
        }
        bench.end_session("mine");
        bench.outlast(Duration::from_secs(5));
        assert_eq!(bench.status().lease_units, 4, "seed {seed}");
        assert!(bench.retrieve(&worker, "theirs", &prompt, 0..4));
        bench.assert_quiet();
    }
}

#[test]
fn i13_a_second_end_of_session_does_not_prolong_the_linger() {
    let mut bench = Bench::new(config(4));
    let worker = Worker::new(1);
    let prompt = prompt('a', 2);
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..2);
    bench.hit(&worker, "r", &prompt);
    bench.end_session("r");
    bench.advance(Duration::from_secs(4));
    bench.end_session("r");
    bench.outlast(Duration::from_secs(1));
    assert_eq!(bench.status().lease_units, 0);
    assert_eq!(bench.status().sessions, 0);
}

#[test]
fn i3_a_release_after_expiry_changes_nothing() {
    let mut bench = Bench::new(config(4));
    let worker = Worker::new(1);
    let prompt = prompt('a', 2);
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..2);
    bench.hit(&worker, "late", &prompt);
    bench.outlast(bench.engine.config().read_ttl);
    assert_eq!(bench.status().lease_units, 0);
    bench.hit(&worker, "fresh", &prompt);
    bench.take_told();
    bench.free(&worker, "late", &prompt);
    bench.end_session("late");
    assert_eq!(bench.prepare_retrieve(&worker, "late", &prompt, 0..2), MISS);
    assert_eq!(bench.status().lease_units, 2);
    let ended =
        bench.take_told().into_iter().filter(|told| matches!(told.fact, Fact::ReadFinished { .. }));
    assert_eq!(ended.count(), 0);
}

#[test]
fn i12_a_second_lookup_under_one_id_ends_the_first_one_whole() {
    let mut bench = Bench::new(config(8));
    let worker = Worker::new(1);
    let (first, second) = (prompt('a', 4), prompt('b', 2));
    bench.register(&worker);
    bench.store(&worker, &first, 0..4);
    bench.store(&worker, &second, 0..2);
    bench.lookup(&worker, "r", &first, 1);
    bench.take_told();
    bench.lookup(&worker, "r", &second, 1);
    let told = bench.take_told();
    assert_eq!(told[0].fact, replaced(&told[0]));
    assert_eq!(told[0].keys.len(), 4);
    assert_eq!(bench.status().lease_units, 2);
    assert_eq!(bench.prepare_retrieve(&worker, "r", &first, 0..2), MISS, "other chunks by now");
    assert_eq!([bench.query("r"), bench.query("r")], [Some(2), Some(0)]);
    assert_eq!(bench.status().sessions, 1);
    assert_eq!(bench.status().active_prefetch_jobs, 0);
}

fn replaced(told: &Told) -> Fact {
    match told.fact {
        Fact::ReadFinished { keys, .. } => Fact::ReadFinished { keys, why: LeaseEnd::Replaced },
        ref other => panic!("expected leases to end, got {other:?}"),
    }
}

#[test]
fn i26_a_hit_is_leased_for_every_rank_and_reader() {
    let mut bench = Bench::new(config(8));
    let ranks = [Worker::new(1).with_rank(0, 2), Worker::new(2).with_rank(1, 2)];
    let (prompt, flood) = (prompt('a', 3), prompt('f', 8));
    for rank in &ranks {
        bench.register(rank);
        bench.store(rank, &prompt, 0..3);
    }
    bench.lookup(&ranks[0], "r", &prompt, 2);
    assert_eq!(bench.query("r"), Some(3));
    assert_eq!(bench.status().lease_units, 3 * 2 * 2);
    for rank in [0, 1, 0, 1].map(|rank| ranks[rank]) {
        bench.store(&rank, &flood, 0..8);
        bench.advance(Duration::from_secs(1));
        assert!(bench.retrieve(&rank, "r", &prompt, 0..3));
    }
    assert_eq!(bench.status().lease_units, 0);
}

// Under eviction pressure the hit length given at lookup no longer held at allocation, and the
// engine stopped on an assertion. Here a promise is leased: asking again gives the same, and the
// retrieve delivers it.
#[test]
fn f57_a_promised_hit_stays_while_everything_else_is_evicted() {
    let mut bench = Bench::new(config(8));
    let worker = Worker::new(1);
    let (asked, holder) = (prompt('a', 5), prompt('h', 8));
    bench.register(&worker);
    bench.store(&worker, &asked, 0..4);
    let first = bench.hit(&worker, "r", &asked);
    assert_eq!(first, 4);
    for round in ['A', 'B', 'C', 'D', 'E'] {
        let flood = prompt(round, 8);
        assert_eq!(bench.store(&worker, &flood, 0..8).len(), 4, "what is not leased goes");
        bench.advance(Duration::from_secs(2));
        assert_eq!(bench.hit(&worker, "r", &asked), first);
    }
    assert!(bench.retrieve(&worker, "r", &asked, 0..4));

    bench.store(&worker, &holder, 0..8);
    assert_eq!(bench.hit(&worker, "holder", &holder), 8);
    let refused = bench.prepare_store(&worker, &asked, 0..4);
    assert_eq!(refused, Got::Answer(Answer::NoContext), "a full cache is a normal answer");
}
