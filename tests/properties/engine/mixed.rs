//! Everything at once: whatever clients do, in whatever order, the model agrees.

use super::driver::{Driver, SCHEDULER, cases, config, instance, limits};
use kvtide_core::config::{Config, Limits, PolicyKind, PoolKind};
use kvtide_core::event::BodyOutcome;
use kvtide_core::fact::{Abort, Fact, LeaseEnd};
use kvtide_core::time::Duration;
use kvtide_sim::calls::Call;
use kvtide_sim::transcript::Input;
use proptest::prelude::*;

/// One thing that a client, the clock or an operator does. Numbers are taken modulo what exists.
#[derive(Clone, Debug)]
pub enum Op {
    Register { rank: u32 },
    Unregister { rank: u32 },
    Ping { rank: u32 },
    Disconnect { connection: u32 },
    Lookup { request: u8, document: u64, chunks: u32, readers: u16 },
    Query { request: u8 },
    Wait { request: u8, millis: u64 },
    Free { request: u8, document: u64, first: u32, end: u32 },
    End { request: u8 },
    PrepareStore { rank: u32, document: u64, first: u32, end: u32 },
    Inline { rank: u32, document: u64, first: u32, end: u32 },
    PrepareRetrieve { rank: u32, request: u8, document: u64, first: u32, end: u32 },
    Commit { nth: usize },
    EndStream { nth: usize, complete: u32, outcome: BodyOutcome },
    Clear { force: bool },
    Pass { millis: u64 },
    Tick,
}

const RANKS: u32 = 2;
const CHUNKS: u32 = 6;
const DOCUMENTS: u64 = 4;

pub fn op() -> impl Strategy<Value = Op> {
    let rank = 0..RANKS;
    let document = 0..DOCUMENTS;
    let request = 0..3u8;
    let part = (0..CHUNKS, 0..=CHUNKS).prop_map(|(a, b)| (a.min(b), b));
    let outcome = prop_oneof![
        4 => Just(BodyOutcome::Whole),
        1 => Just(BodyOutcome::Short),
        1 => Just(BodyOutcome::Malformed),
        1 => Just(BodyOutcome::Cut),
    ];
    prop_oneof![
        1 => rank.clone().prop_map(|rank| Op::Register { rank }),
        1 => rank.clone().prop_map(|rank| Op::Unregister { rank }),
        1 => rank.clone().prop_map(|rank| Op::Ping { rank }),
        1 => (0..=RANKS).prop_map(|connection| Op::Disconnect { connection }),
        6 => (request.clone(), document.clone(), 0..=CHUNKS, 1..3u16).prop_map(
            |(request, document, chunks, readers)| Op::Lookup { request, document, chunks, readers }
        ),
        4 => request.clone().prop_map(|request| Op::Query { request }),
        1 => (request.clone(), 0..2000u64)
            .prop_map(|(request, millis)| Op::Wait { request, millis }),
        3 => (request.clone(), document.clone(), part.clone()).prop_map(
            |(request, document, (first, end))| Op::Free { request, document, first, end }
        ),
        2 => request.clone().prop_map(|request| Op::End { request }),
        8 => (rank.clone(), document.clone(), part.clone()).prop_map(
            |(rank, document, (first, end))| Op::PrepareStore { rank, document, first, end }
        ),
        2 => (rank.clone(), document.clone(), part.clone()).prop_map(
            |(rank, document, (first, end))| Op::Inline { rank, document, first, end }
        ),
        5 => (rank, request, document, part).prop_map(
            |(rank, request, document, (first, end))| Op::PrepareRetrieve {
                rank, request, document, first, end
            }
        ),
        10 => any::<usize>().prop_map(|nth| Op::Commit { nth }),
        4 => (any::<usize>(), 0..=CHUNKS, outcome)
            .prop_map(|(nth, complete, outcome)| Op::EndStream { nth, complete, outcome }),
        1 => any::<bool>().prop_map(|force| Op::Clear { force }),
        3 => prop_oneof![0..500u64, 4_000..6_000u64, 9_000..31_000u64]
            .prop_map(|millis| Op::Pass { millis }),
        4 => Just(Op::Tick),
    ]
}

pub fn apply(driver: &mut Driver, op: &Op) {
    match op.clone() {
        Op::Register { rank } => driver.register(rank),
        Op::Unregister { rank } => {
            driver.ask(rank + 1, Call::Unregister { instance: instance(rank) });
        }
        Op::Ping { rank } => {
            driver.ask(rank + 1, Call::Ping { instance: Some(instance(rank)) });
        }
        Op::Disconnect { connection } => driver.disconnect(connection),
        Op::Lookup { request, document, chunks, readers } => {
            let mut range = driver.range(&name(request), document, None, 0..chunks);
            range.readers = readers;
            driver.ask(SCHEDULER, Call::Lookup { range });
        }
        Op::Query { request } => {
            driver.ask(SCHEDULER, Call::Query { request: name(request).into() });
        }
        Op::Wait { request, millis } => {
            let wait = Duration::from_millis(millis);
            driver.ask(SCHEDULER, Call::Wait { request: name(request).into(), wait });
        }
        Op::Free { request, document, first, end } => {
            driver.free(&name(request), document, first..end);
        }
        Op::End { request } => driver.end(&name(request)),
        Op::PrepareStore { rank, document, first, end } => {
            let range = driver.range("store", document, Some(rank), first..end);
            driver.ask(rank + 1, Call::PrepareStore { instance: instance(rank), range });
        }
        Op::Inline { rank, document, first, end } => {
            let range = driver.range("store", document, Some(rank), first..end);
            let instance = instance(rank);
            let commit = Call::CommitStore { instance, range: range.clone(), inline_bytes: 1000 };
            // A client that is at work on its slots does not send their bytes as well.
            let is_at_work = driver.holdings.iter().any(|holding| match &holding.commit {
                Call::CommitStore { range: held, .. } => *held == range,
                _ => false,
            });
            if !is_at_work {
                driver.ask(rank + 1, commit);
            }
        }
        Op::PrepareRetrieve { rank, request, document, first, end } => {
            let range = driver.range(&name(request), document, Some(rank), first..end);
            driver.ask(rank + 1, Call::PrepareRetrieve { instance: instance(rank), range });
        }
        Op::Commit { nth } if !driver.holdings.is_empty() => {
            driver.commit(nth % driver.holdings.len());
        }
        Op::EndStream { nth, complete, outcome } if !driver.streams.is_empty() => {
            driver.end_stream(nth % driver.streams.len(), complete, outcome);
        }
        Op::Commit { .. } | Op::EndStream { .. } => {}
        Op::Clear { force } => {
            driver.ask(SCHEDULER, Call::Clear { force });
        }
        Op::Pass { millis } => driver.pass(Duration::from_millis(millis)),
        Op::Tick => {
            driver.feed(Input::Tick);
        }
    }
}

fn name(request: u8) -> String {
    format!("request-{request}")
}

pub fn configs() -> impl Strategy<Value = Config> {
    let policy = prop_oneof![
        Just(PolicyKind::Lru),
        Just(PolicyKind::Arc),
        Just(PolicyKind::IsolatedLru),
        Just(PolicyKind::Noop),
    ];
    let pool = prop_oneof![3 => Just(PoolKind::Shared), 1 => Just(PoolKind::Private)];
    let work_units = prop_oneof![Just(3usize), Just(4096usize)];
    (policy, pool, work_units, 4..40usize).prop_map(|(policy, pool, work_units, objects)| Config {
        policy,
        pool,
        l1_objects_max: objects,
        limits: Limits { work_units, ..limits() },
        ..config()
    })
}

proptest! {
    #![proptest_config(cases(192))]

    /// Pool of 16 objects of 64 KiB at most: pressure from the first documents on.
    #[test]
    fn i45_whatever_clients_do_the_model_agrees_and_nothing_is_left(
        config in configs(),
        grains in prop_oneof![Just(1u64), Just(20), Just(64)],
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut driver = Driver::new(config, RANKS, grains);
        for op in &ops {
            apply(&mut driver, op);
        }
        driver.leave();
    }

    /// The same list gives the same transcript, and another hash seed changes nothing either.
    #[test]
    fn i44_equal_lists_give_equal_transcripts(
        config in configs(),
        seed in any::<u64>(),
        ops in proptest::collection::vec(op(), 1..80),
    ) {
        let run = |config: Config| {
            let mut driver = Driver::new(config, RANKS, 20);
            ops.iter().for_each(|op| apply(&mut driver, op));
            driver.bench.transcript.hash()
        };
        let first = run(config.clone());
        prop_assert_eq!(run(config.clone()), first);
        prop_assert_eq!(run(Config { seed, ..config }), first);
    }

    /// Nobody but the clock ends anything: while it stands still, no deadline passes.
    #[test]
    fn i44_a_frozen_clock_expires_nothing(
        config in configs(),
        ops in proptest::collection::vec(op(), 1..100),
    ) {
        let mut driver = Driver::new(config, RANKS, 20);
        for op in ops.iter().filter(|op| !matches!(op, Op::Pass { .. } | Op::End { .. })) {
            apply(&mut driver, op);
            let expired = driver.facts().iter().any(|fact| matches!(
                fact,
                Fact::ReadFinished { why: LeaseEnd::Expired | LeaseEnd::SessionEnded, .. }
                    | Fact::WriteAborted { why: Abort::WriteTtl, .. }
            ));
            prop_assert!(!expired, "something ran out");
        }
    }
}
