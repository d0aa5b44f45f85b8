//! Lookups that take several turns: their results, their waits, and what may come in between.

use crate::harness::{Bench, Got, Worker, config, connection, prompt, scheduler};
use kvtide_core::config::Config;
use kvtide_core::effect::Answer;
use kvtide_core::effect::Outbox;
use kvtide_core::event::{Ask, Event};
use kvtide_core::fact::Fact;
use kvtide_core::names::ChunkHash;
use kvtide_core::time::Duration;

const CHUNKS: u32 = 60;
/// Cells per turn: a lookup of `CHUNKS` takes several, and so does its touching.
const WORK_UNITS: usize = 8;

fn slow(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config(64);
    config.limits.work_units = WORK_UNITS;
    config.watermark_ppm = 1_000_000;
    change(&mut config);
    config
}

/// A bench on which `CHUNKS` chunks are stored.
fn stocked(config: Config) -> (Bench, Worker, Vec<ChunkHash>) {
    let mut bench = Bench::new(config);
    let worker = Worker::new(1);
    let prompt = prompt('a', CHUNKS);
    bench.register(&worker);
    bench.store(&worker, &prompt, 0..CHUNKS);
    bench.take_told();
    (bench, worker, prompt)
}

fn wait(bench: &mut Bench, request: &str, secs: u64) -> Got {
    bench.ask(scheduler(), Ask::WaitPrefetch { request, wait: Duration::from_secs(secs) })
}

fn late(bench: &mut Bench) -> Vec<Answer> {
    std::mem::take(&mut bench.late).into_iter().map(|(_, answer)| answer).collect()
}

// Ending a request during its prefetch dropped the only reference to the job; when it completed,
// its result stayed for ever. Here, after whatever number of turns the end comes, nothing is left.
#[test]
fn f03_a_session_that_ends_during_its_lookup_leaves_nothing() {
    let mut unfinished = 0;
    for turns in 0..20 {
        let (mut bench, worker, prompt) = stocked(slow(|_| {}));
        bench.lookup(&worker, "r", &prompt, 1);
        for _ in 0..turns {
            bench.handle(Event::Tick);
        }
        unfinished += u32::from(bench.query("r").is_none());
        bench.end_session("r");
        assert_eq!(bench.query("r"), Some(0), "ended after {turns} turns");
        bench.settle();
        bench.outlast(Duration::from_secs(5));
        bench.assert_quiet();
        let status = bench.status();
        assert_eq!((status.sessions, status.active_prefetch_jobs), (0, 0), "after {turns} turns");
        assert_eq!(status.staged_bytes, 0);
        let keys_of = |why: fn(&Fact) -> bool| -> usize {
            bench.told.iter().filter(|told| why(&told.fact)).map(|told| told.keys.len()).sum()
        };
        let begun = keys_of(|fact| matches!(fact, Fact::ReadReserved { .. }));
        let ended = keys_of(|fact| matches!(fact, Fact::ReadFinished { .. }));
        assert_eq!(begun, ended, "what is told to end was told to begin, after {turns} turns");
    }
    assert!((1..20).contains(&unfinished), "both kinds are met: {unfinished}");
}

#[test]
fn i14_a_result_is_given_once_and_then_zero() {
    let (mut bench, worker, prompt) = stocked(slow(|_| {}));
    bench.lookup(&worker, "r", &prompt, 1);
    assert_eq!(bench.query("r"), None, "still loading");
    bench.settle();
    let polls = [bench.query("r"), bench.query("r"), bench.query("r")];
    assert_eq!(polls, [Some(CHUNKS as u64), Some(0), Some(0)]);
    let taken =
        bench.take_told().into_iter().filter(|told| matches!(told.fact, Fact::LookupTaken { .. }));
    assert_eq!(taken.count(), 1);
}

#[test]
fn i10_a_wait_is_parked_until_its_lookup_is_decided() {
    let (mut bench, worker, prompt) = stocked(slow(|_| {}));
    bench.lookup(&worker, "r", &prompt, 1);
    assert_eq!(wait(&mut bench, "r", 5), Got::Nothing);
    assert_eq!(wait(&mut bench, "r", 0), Got::Answer(Answer::None), "a wait of nothing is a poll");
    assert_eq!(bench.status().parked_waits, 1);
    bench.settle();
    assert_eq!(late(&mut bench), [Answer::Count(CHUNKS as u64)]);
    assert_eq!(bench.status().parked_waits, 0);
    assert_eq!(wait(&mut bench, "r", 5), Got::Answer(Answer::Count(0)), "it was taken");
    assert_eq!(bench.unanswered(), 0);
}

// A wait outlived its connection and was given the result: the scheduler that came back and asked
// again was told 0, and the request computed what was cached.
#[test]
fn i14_a_wait_whose_connection_has_ended_takes_no_result() {
    let (mut bench, worker, prompt) = stocked(slow(|_| {}));
    bench.lookup(&worker, "r", &prompt, 1);
    assert_eq!(wait(&mut bench, "r", 5), Got::Nothing);
    let ask = Ask::WaitPrefetch { request: "r", wait: Duration::from_secs(5) };
    assert_eq!(bench.ask(connection(8), ask), Got::Nothing);
    assert_eq!(bench.status().parked_waits, 2);
    bench.handle(Event::ConnectionEnded { connection: scheduler() });
    bench.settle();
    assert_eq!(late(&mut bench), [Answer::Count(CHUNKS as u64)], "the other one is there");
    assert_eq!(bench.status().parked_waits, 0);

    bench.lookup(&worker, "s", &prompt, 1);
    let ask = Ask::WaitPrefetch { request: "s", wait: Duration::from_secs(5) };
    assert_eq!(bench.ask(connection(8), ask), Got::Nothing);
    bench.handle(Event::ConnectionEnded { connection: connection(8) });
    bench.settle();
    assert_eq!(late(&mut bench), [], "nobody is told");
    assert_eq!([bench.query("s"), bench.query("s")], [Some(CHUNKS as u64), Some(0)]);
}

#[test]
fn i10_a_wait_whose_connection_has_ended_runs_out_in_silence() {
    let (mut bench, worker, prompt) = stocked(slow(|_| {}));
    bench.lookup(&worker, "r", &prompt, 1);
    assert_eq!(wait(&mut bench, "r", 2), Got::Nothing);
    bench.handle(Event::ConnectionEnded { connection: scheduler() });
    bench.now = bench.now + Duration::from_secs(3);
    bench.handle(Event::Tick);
    assert_eq!(bench.status().parked_waits, 0);
    assert_eq!(late(&mut bench), []);
}

#[test]
fn i10_a_wait_that_runs_out_is_answered_with_still_loading() {
    let (mut bench, worker, prompt) = stocked(slow(|_| {}));
    bench.lookup(&worker, "r", &prompt, 1);
    assert_eq!(wait(&mut bench, "r", 2), Got::Nothing);
    // The server was held up for longer than the wait: the lookup has not gone on meanwhile.
    bench.now = bench.now + Duration::from_secs(3);
    bench.handle(Event::Tick);
    assert_eq!(late(&mut bench), [Answer::None]);
    bench.settle();
    assert_eq!([bench.query("r"), bench.query("r")], [Some(CHUNKS as u64), Some(0)]);
}

#[test]
fn i10_whatever_ends_a_lookup_answers_who_waits_for_it() {
    type End = fn(&mut Bench, &Worker);
    let ends: [(&str, End); 3] = [
        ("end of session", |bench, _| bench.end_session("r")),
        ("replacement", |bench, worker| bench.lookup(worker, "r", &prompt('x', 1), 1)),
        ("shutdown", |bench, _| {
            let mut out = Outbox::default();
            bench.engine.finish(bench.now, &mut out);
            assert_eq!(out.effects.len(), 1);
            bench.late.extend(out.effects.iter().map(|effect| match effect {
                kvtide_core::effect::Effect::Answer { reply, answer } => (*reply, *answer),
                other => panic!("expected an answer, got {other:?}"),
            }));
        }),
    ];
    for (how, end) in ends {
        let (mut bench, worker, prompt) = stocked(slow(|_| {}));
        bench.lookup(&worker, "r", &prompt, 1);
        assert_eq!(wait(&mut bench, "r", 5), Got::Nothing);
        end(&mut bench, &worker);
        assert_eq!(late(&mut bench), [Answer::Count(0)], "{how}");
        assert_eq!(bench.status().parked_waits, 0, "{how}");
    }
}

#[test]
fn i12_a_lookup_that_is_replaced_while_it_looks_leaves_nothing() {
    let (mut bench, worker, asked) = stocked(slow(|_| {}));
    bench.lookup(&worker, "r", &asked, 1);
    bench.handle(Event::Tick);
    bench.lookup(&worker, "r", &asked[..2], 1);
    bench.settle();
    assert_eq!(bench.status().lease_units, 2);
    assert_eq!([bench.query("r"), bench.query("r")], [Some(2), Some(0)]);
}

// Found by reading: a lookup that still touched its cells when its leases expired went on to touch
// cells that were no longer there.
#[test]
fn i11_leases_may_expire_while_their_chunks_are_still_touched() {
    let (mut bench, worker, prompt) = stocked(slow(|_| {}));
    bench.lookup(&worker, "r", &prompt, 1);
    while bench.query("r").is_none() {
        bench.handle(Event::Tick);
    }
    assert_eq!(bench.status().lease_units, CHUNKS as u64);
    bench.now = bench.now + bench.engine.config().read_ttl + Duration::from_millis(2);
    bench.handle(Event::Tick);
    bench.settle();
    assert_eq!(bench.status().lease_units, 0);
    bench.assert_quiet();
}

// Found by reading: lookups that went on side by side were each promised all the room there was.
#[test]
fn i11_lookups_side_by_side_keep_to_the_bound_of_lease_cells() {
    let bound = CHUNKS as usize + 20;
    let (mut bench, worker, prompt) = stocked(slow(|config| config.limits.lease_cells = bound));
    for request in ["r1", "r2", "r3"] {
        bench.lookup(&worker, request, &prompt, 1);
    }
    bench.settle();
    let hits = ["r1", "r2", "r3"].map(|request| bench.query(request).expect("all are decided"));
    assert_eq!(bench.status().lease_units, hits.iter().sum::<u64>());
    assert!(hits.iter().sum::<u64>() <= bound as u64, "{hits:?}");
    bench.lookup(&worker, "r4", &prompt, 1);
    bench.settle();
    assert!(bench.status().lease_units <= bound as u64);
}

// Found by reading: every session may leave an orphan behind, and lookups were let in while there
// was a place for one, though other sessions were to end as well.
#[test]
fn i11_every_session_has_a_place_for_what_it_leaves_behind() {
    let (mut bench, worker, prompt) = stocked(slow(|config| config.limits.sessions = 3));
    let large = &prompt[..20];
    for request in ["a", "b", "c"] {
        bench.lookup(&worker, request, large, 1);
        bench.settle();
    }
    // Each of the three leaves more cells than one turn gives back, and no turn comes in between.
    bench.lookup(&worker, "a", large, 1);
    bench.lookup(&worker, "b", large, 1);
    bench.end_session("a");
    bench.lookup(&worker, "d", large, 1);
    bench.lookup(&worker, "c", large, 1);
    bench.end_session("d");
    bench.settle();
    for request in ["a", "b", "c", "d"] {
        bench.end_session(request);
    }
    bench.outlast(Duration::from_secs(5));
    bench.assert_quiet();
    assert_eq!(bench.status().sessions, 0);
}
