//! Lookups: how much they answer, how often, and what ends them.

use super::driver::{Driver, SCHEDULER, cases, config, limits};
use super::mixed::{apply, op};
use kvtide_core::config::{Config, Limits};
use kvtide_core::effect::{Answer, Effect};
use kvtide_core::time::Duration;
use kvtide_sim::calls::Call;
use proptest::prelude::*;

const GRAINS: u64 = 20;

proptest! {
    #![proptest_config(cases(96))]

    /// Exactly what every rank has, whatever happened before.
    #[test]
    fn i27_the_hit_is_as_long_as_what_is_there(
        ops in proptest::collection::vec(op(), 1..60),
        document in 0..4u64,
    ) {
        let mut driver = Driver::new(config(), 2, GRAINS);
        ops.iter().for_each(|op| apply(&mut driver, op));
        (0..2).for_each(|rank| driver.register(rank));
        driver.settle();
        let expected = (0..2).map(|rank| driver.resident_prefix(document, rank)).min();
        let hit = driver.lookup("last", document, 6, 1);
        prop_assert_eq!(Some(hit as u32), expected);
    }

    /// A hit is held: neither pressure nor a plain clear nor what others give back takes it away.
    #[test]
    fn i26_a_hit_stays_readable_until_it_is_read(
        ops in proptest::collection::vec(op(), 1..60),
        stored in 1..6u32,
    ) {
        let mut driver = Driver::new(config(), 2, GRAINS);
        driver.store(9, 0..stored);
        let hit = driver.lookup("mine", 9, stored, 1) as u32;
        prop_assert_eq!(hit, stored);
        for op in ops.iter().filter(|op| is_peaceful(op)) {
            apply(&mut driver, op);
        }
        (0..2).for_each(|rank| driver.register(rank));
        for rank in 0..2 {
            prop_assert!(driver.retrieve("mine", 9, rank, 0..hit), "rank {} lost its chunks", rank);
        }
    }

    /// Every query and every wait is answered once, also those whose lookup is replaced or ended.
    #[test]
    fn i10_every_request_gets_one_answer(
        ops in proptest::collection::vec(op(), 1..100),
        work_units in 2..9usize,
    ) {
        let limits = Limits { work_units, ..limits() };
        let mut driver = Driver::new(Config { limits, ..config() }, 2, GRAINS);
        ops.iter().for_each(|op| apply(&mut driver, op));
        driver.leave();
    }

    /// The second of two lookups under one id owns everything, the first nothing.
    #[test]
    fn i12_a_new_lookup_ends_the_old_one(stored in 1..6u32, readers in 1..4u16, again in 0..6u32) {
        let mut driver = Driver::new(config(), 1, GRAINS);
        driver.store(0, 0..stored);
        driver.lookup("id", 0, stored, readers);
        prop_assert_eq!(units(&driver), (stored * readers as u32) as u64);
        driver.lookup("id", 0, again, 1);
        prop_assert_eq!(units(&driver), again.min(stored) as u64);
        driver.end("id");
        driver.pass(Duration::from_secs(6));
        prop_assert_eq!(units(&driver), 0);
    }

    /// A result is handed out once; from then on, and after the end, the answer is 0.
    #[test]
    fn i14_a_result_is_delivered_once(stored in 1..6u32, polls in 1..5usize, ended: bool) {
        let mut driver = Driver::new(config(), 1, GRAINS);
        driver.store(0, 0..stored);
        let range = driver.range("id", 0, None, 0..stored);
        driver.ask(SCHEDULER, Call::Lookup { range });
        if ended {
            driver.end("id");
        } else {
            prop_assert_eq!(driver.query("id"), stored as u64);
        }
        for _ in 0..polls {
            prop_assert_eq!(driver.query("id"), 0);
        }
    }

    /// After the end of a session nothing of it is left once the linger is over.
    #[test]
    fn i11_an_ended_session_owns_nothing(
        ops in proptest::collection::vec(op(), 1..80),
    ) {
        let mut driver = Driver::new(config(), 2, GRAINS);
        ops.iter().for_each(|op| apply(&mut driver, op));
        for request in 0..3 {
            driver.end(&format!("request-{request}"));
        }
        driver.pass(Duration::from_millis(5_100));
        prop_assert_eq!(units(&driver), 0);
        prop_assert_eq!(driver.bench.engine().status().active_prefetch_jobs, 0);
    }

    /// Under pressure a repeated lookup never promises more than the first, and keeps its word.
    #[test]
    fn f57_a_repeated_lookup_never_promises_more(
        stored in 1..8u32,
        others in proptest::collection::vec((1..4u64, 1..6u32), 5),
    ) {
        let mut driver = Driver::new(config(), 1, 100);
        driver.store(0, 0..stored);
        let mut last = u64::MAX;
        for (document, chunks) in others {
            let hit = driver.lookup("id", 0, stored, 1);
            prop_assert!(hit <= last, "{} chunks after {}", hit, last);
            driver.store(document, 0..chunks);
            prop_assert!(hit == 0 || driver.retrieve("id", 0, 0, 0..hit as u32));
            last = hit;
        }
    }
}

/// A full cache refuses a store with an answer, and takes nothing from those that hold it.
#[test]
fn f57_a_store_that_finds_no_room_is_answered() {
    let mut driver = Driver::new(config(), 1, 100);
    driver.store(0, 0..10);
    let hit = driver.lookup("id", 0, 10, 1);
    assert_eq!(hit, 10);
    let range = driver.range("other", 1, Some(0), 0..3);
    let call = Call::PrepareStore { instance: kvtide_sim::driver::instance(0), range };
    assert_eq!(driver.ask(1, call), Some(Answer::NoContext));
    assert!(driver.retrieve("id", 0, 0, 0..10));
}

/// A lookup over several turns: nothing until it is decided, then the whole hit, at once.
#[test]
fn i10_a_parked_wait_is_answered_when_its_lookup_ends() {
    let limits = Limits { work_units: 3, ..limits() };
    let mut driver = Driver::new(Config { limits, ..config() }, 1, GRAINS);
    driver.store(0, 0..6);
    driver.settle();
    let range = driver.range("id", 0, None, 0..6);
    driver.ask(SCHEDULER, Call::Lookup { range });
    let wait = Call::Wait { request: "id".into(), wait: Duration::from_secs(1) };
    assert_eq!(driver.ask(SCHEDULER, wait), None, "the lookup is still under way");
    let query = Call::Query { request: "id".into() };
    assert_eq!(driver.ask(SCHEDULER, query), Some(Answer::None));
    let mut answers = Vec::new();
    while driver.bench.engine().deadline().is_some_and(|(at, _)| at <= driver.now) {
        driver.feed(kvtide_sim::transcript::Input::Tick);
        answers.extend(driver.effects().iter().filter_map(|effect| match effect {
            Effect::Answer { answer, .. } => Some(*answer),
            _ => None,
        }));
    }
    assert_eq!(answers, [Answer::Count(6)]);
    assert_eq!(driver.query("id"), 0, "the wait has taken the result");
}

fn units(driver: &Driver) -> u64 {
    driver.bench.engine().status().lease_units
}

/// What others may do without breaking a promise: everything but force, time and this request's
/// own words.
fn is_peaceful(op: &super::mixed::Op) -> bool {
    use super::mixed::Op;
    !matches!(
        op,
        Op::Clear { force: true } | Op::Pass { .. } | Op::Unregister { .. } | Op::Disconnect { .. }
    )
}
