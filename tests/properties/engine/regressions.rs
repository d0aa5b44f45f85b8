//! What the simulation has found in the engine, each with what broke, why, and what guards it now.

use super::driver::{Driver, SCHEDULER, config, instance, limits};
use kvtide_core::config::{Config, Limits};
use kvtide_core::effect::Answer;
use kvtide_core::event::BodyOutcome;
use kvtide_core::fact::{Abort, Fact};
use kvtide_core::time::Duration;
use kvtide_sim::calls::Call;
use kvtide_sim::transcript::Input;

/// A commit of slots ended a store whose body was still being received: half a body was published.
/// The commit took the oldest copy under its name, whatever that was doing. Now it takes only
/// copies whose slots are in the client's hands.
#[test]
fn i7_a_commit_of_slots_does_not_end_a_body() {
    let mut driver = Driver::new(config(), 1, 20);
    let range = driver.range("a", 0, Some(0), 0..3);
    let body = Call::CommitStore { instance: instance(0), range: range.clone(), inline_bytes: 9 };
    assert_eq!(driver.ask(1, body), None);
    let slots = Call::CommitStore { instance: instance(0), range, inline_bytes: 0 };
    assert_eq!(driver.ask(1, slots), Some(Answer::Bool(false)));
    assert_eq!(driver.lookup("b", 0, 3, 1), 0);
    driver.end_stream(0, 3, BodyOutcome::Whole);
    assert_eq!(driver.lookup("b", 0, 3, 1), 3);
}

/// A write TTL passes, the same worker stores the same range again, and the second commit took the
/// first one's slots for its own: they were given away while their writer was still at work. Now
/// nothing ends until as many commits have come as there are copies under the name.
#[test]
fn i6_a_commit_of_a_second_store_does_not_free_the_first_ones_slots() {
    let mut driver = Driver::new(config(), 1, 20);
    let range = driver.range("a", 0, Some(0), 0..3);
    let prepare = Call::PrepareStore { instance: instance(0), range };
    driver.ask(1, prepare.clone());
    driver.pass(Duration::from_secs(21));
    driver.ask(1, prepare);
    assert_eq!(driver.holdings.len(), 2);
    assert_eq!(driver.commit(1), Some(Answer::Bool(false)), "whose commit it is, nobody knows");
    assert_eq!(driver.bench.engine().status().condemned_objects, 3);
    assert_eq!(driver.lookup("b", 0, 3, 1), 0);
    assert_eq!(driver.commit(0), Some(Answer::Bool(true)), "now both have written everything");
    assert_eq!(driver.bench.engine().status().condemned_objects, 0);
    assert_eq!(driver.lookup("b", 0, 3, 1), 3);
}

/// Two retrieves under one name, a forced clear and a new store between them: the second commit
/// freed what the first reader was still reading. Readers of different objects are counted now.
#[test]
fn i2_a_commit_of_a_second_reader_does_not_free_the_first_ones_memory() {
    let mut driver = Driver::new(config(), 1, 20);
    driver.store(0, 0..3);
    let range = driver.range("a", 0, Some(0), 0..3);
    let prepare = Call::PrepareRetrieve { instance: instance(0), range };
    driver.lookup("a", 0, 3, 1);
    driver.ask(1, prepare.clone());
    driver.ask(SCHEDULER, Call::Clear { force: true });
    driver.settle();
    driver.store(0, 0..3);
    driver.lookup("a", 0, 3, 1);
    driver.ask(1, prepare);
    assert_eq!(driver.holdings.len(), 2);
    driver.commit(1);
    assert_eq!(driver.bench.engine().status().condemned_objects, 3, "still being read");
    driver.commit(0);
    assert_eq!(driver.bench.engine().status().condemned_objects, 0);
}

/// A worker that commits its slots sent one body under the same name: it ended the store whose
/// slots the worker was still writing to. A body of such a worker makes a reservation of its own.
#[test]
fn i2_a_body_does_not_take_the_slots_of_a_writer_at_work() {
    let mut driver = Driver::new(config(), 1, 20);
    driver.store(1, 0..1);
    let range = driver.range("a", 0, Some(0), 0..3);
    let prepare = Call::PrepareStore { instance: instance(0), range: range.clone() };
    driver.ask(1, prepare);
    driver.ask(1, Call::CommitStore { instance: instance(0), range, inline_bytes: 9 });
    driver.end_stream(0, 3, BodyOutcome::Whole);
    assert_eq!(driver.bench.engine().status().staged_objects, 3, "the writer has its slots");
    assert_eq!(driver.commit(0), Some(Answer::Bool(true)));
}

/// A body whose own request was refused its slots went into those of another request of the same
/// worker, which was still writing to them. Only the request's own reservation takes a body now.
#[test]
fn i2_a_body_does_not_take_another_requests_slots() {
    let mut driver = Driver::new(config(), 1, 20);
    let range = driver.range("a", 0, Some(0), 0..3);
    driver.ask(1, Call::PrepareStore { instance: instance(0), range });
    let range = driver.range("b", 0, Some(0), 0..3);
    driver.ask(1, Call::CommitStore { instance: instance(0), range, inline_bytes: 9 });
    assert!(driver.streams[0].slots.is_empty(), "its bytes have no place");
    driver.end_stream(0, 3, BodyOutcome::Whole);
    assert_eq!(driver.bench.engine().status().staged_objects, 3, "the writer has its slots");
    assert_eq!(driver.commit(0), Some(Answer::Bool(true)));
    assert_eq!(driver.lookup("c", 0, 3, 1), 3);
}

/// The leases of a long lookup ran out while its chunks were still being touched: the next turn
/// touched cells that were gone and the engine panicked. Expiry ends the touching as well.
#[test]
fn i45_leases_may_run_out_while_a_lookup_still_touches() {
    let limits = Limits { work_units: 4, ..limits() };
    let mut driver = Driver::new(Config { limits, ..config() }, 1, 20);
    driver.store(0, 0..12);
    driver.settle();
    let range = driver.range("a", 0, None, 0..12);
    driver.ask(SCHEDULER, Call::Lookup { range });
    let query = Call::Query { request: "a".into() };
    while driver.ask(SCHEDULER, query.clone()) == Some(Answer::None) {
        driver.feed(Input::Tick);
    }
    driver.now = driver.now + Duration::from_secs(11);
    driver.settle();
    assert_eq!(driver.bench.engine().status().lease_units, 0);
}

/// A forced clear, and a commit before the sweeper came by: the reservations ended without a word,
/// so that whoever adds up facts kept them for ever. They are told as aborted now.
#[test]
fn i52_a_commit_after_a_forced_clear_tells_of_its_end() {
    let mut driver = Driver::new(config(), 1, 20);
    let range = driver.range("a", 0, Some(0), 0..3);
    driver.ask(1, Call::PrepareStore { instance: instance(0), range });
    driver.ask(SCHEDULER, Call::Clear { force: true });
    assert_eq!(driver.commit(0), Some(Answer::Bool(false)));
    let told = driver.facts().iter().find_map(|fact| match fact {
        Fact::WriteAborted { keys, why } => Some((keys.len(), *why)),
        _ => None,
    });
    assert_eq!(told, Some((3, Abort::ForcedClear)));
}

/// The table of objects grew between a clear and its sweeper, which then went around a larger ring
/// with as many steps as before and left out the places it had been about. It keeps to the places
/// that had been used by the time of the clear.
#[test]
fn i49_a_sweep_reaches_every_place_of_a_table_that_grows() {
    let mut driver = Driver::new(config(), 1, 20);
    driver.store(0, 0..1);
    driver.ask(SCHEDULER, Call::Clear { force: true });
    driver.store(1, 0..3);
    driver.settle();
    assert_eq!(driver.resident_prefix(0, 0), 0);
    assert_eq!(driver.bench.engine().status().objects, 3);
}

/// Of a long lookup some leases were freed, and that was told, before anybody had been told that
/// they had begun; then the lookup was replaced, and their beginning was never told: more leases
/// ended than had begun. Now what happens to a lease first tells that it has begun.
#[test]
fn i52_leases_freed_before_they_were_told_of_begin_before_they_end() {
    let mut driver = with_an_untold_lookup();
    let range = driver.range("a", 0, None, 0..UNTOLD_CHUNKS);
    driver.free("a", 0, 0..UNTOLD_CHUNKS);
    driver.ask(SCHEDULER, Call::Lookup { range });
    driver.end("a");
    driver.pass(Duration::from_secs(6));
    assert_told_leases_add_up(&mut driver);
}

/// The same with leases that were read: nobody held the objects any more, a store evicted them, and
/// what should have been told of later was gone.
#[test]
fn i52_leases_read_before_they_were_told_of_begin_before_they_end() {
    let mut driver = with_an_untold_lookup();
    assert!(driver.retrieve("a", 0, 0, 0..2));
    let before = driver.resident_prefix(0, 0);
    let mut others = 0;
    while driver.resident_prefix(0, 0) == before {
        driver.store(1, others..others + 1);
        others += 1;
        assert!(others < 64, "the pool is full some time");
    }
    driver.settle();
    driver.end("a");
    driver.pass(Duration::from_secs(6));
    assert_told_leases_add_up(&mut driver);
}

const UNTOLD_CHUNKS: u32 = 12;

/// A lookup that has its result, and whose turn ended before it was told what it leased.
fn with_an_untold_lookup() -> Driver {
    let limits = Limits { work_units: 4, ..limits() };
    let mut driver = Driver::new(Config { limits, ..config() }, 1, 20);
    for chunk in 0..UNTOLD_CHUNKS {
        driver.store(0, chunk..chunk + 1);
        driver.settle();
    }
    driver.bench.keep_facts();
    let range = driver.range("a", 0, None, 0..UNTOLD_CHUNKS);
    driver.ask(SCHEDULER, Call::Lookup { range });
    let query = Call::Query { request: "a".into() };
    while driver.ask(SCHEDULER, query.clone()) == Some(Answer::None) {
        driver.feed(Input::Tick);
    }
    driver
}

fn assert_told_leases_add_up(driver: &mut Driver) {
    let (mut begun, mut ended) = (0, 0);
    for (facts, _) in driver.bench.take_facts() {
        for fact in facts {
            match fact {
                Fact::ReadReserved { keys, readers } => begun += keys.len() * readers as u64,
                Fact::ReadFinished { keys, .. } => ended += keys.len(),
                _ => {}
            }
            assert!(ended <= begun, "{ended} leases have ended of {begun}");
        }
    }
    assert!(ended > 0, "some were freed or read");
}
