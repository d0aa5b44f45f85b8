//! Releases end what their own request holds, and nothing else.

use super::driver::{Driver, SCHEDULER, cases, config, instance};
use kvtide_core::fact::{Fact, RequestFault};
use kvtide_core::time::Duration;
use kvtide_sim::calls::Call;
use proptest::prelude::*;

const GRAINS: u64 = 20;
const CHUNKS: u32 = 5;

/// Something that gives back what the request `a` holds, or tries to.
#[derive(Clone, Debug)]
enum Release {
    Free { first: u32, end: u32 },
    Retrieve { first: u32, end: u32 },
    End,
    Query,
}

fn release() -> impl Strategy<Value = Release> {
    let part = (0..CHUNKS, 0..=CHUNKS).prop_map(|(a, b)| (a.min(b), b));
    prop_oneof![
        part.clone().prop_map(|(first, end)| Release::Free { first, end }),
        part.prop_map(|(first, end)| Release::Retrieve { first, end }),
        Just(Release::End),
        Just(Release::Query),
    ]
}

fn give_back(driver: &mut Driver, request: &str, release: &Release) {
    match release {
        Release::Free { first, end } => driver.free(request, 0, *first..*end),
        Release::Retrieve { first, end } => {
            driver.retrieve(request, 0, 0, *first..*end);
        }
        Release::End => driver.end(request),
        Release::Query => {
            driver.query(request);
        }
    }
}

proptest! {
    #![proptest_config(cases(128))]

    /// Whatever one request gives back, and how often, another one still has all of its readers.
    #[test]
    fn i3_a_release_lowers_nobody_elses_count(
        releases in proptest::collection::vec(release(), 0..12),
        readers in 1..4u16,
    ) {
        let mut driver = Driver::new(config(), 1, GRAINS);
        driver.store(0, 0..CHUNKS);
        driver.lookup("a", 0, CHUNKS, 1);
        driver.lookup("b", 0, CHUNKS, readers);
        releases.iter().for_each(|release| give_back(&mut driver, "a", release));
        for reader in 0..readers {
            prop_assert!(driver.retrieve("b", 0, 0, 0..CHUNKS), "reader {} of {}", reader, readers);
        }
        prop_assert!(!driver.retrieve("b", 0, 0, 0..CHUNKS), "one reader more than declared");
    }

    /// Twice is once: the order and number of releases do not matter in the end.
    #[test]
    fn i13_releases_are_idempotent(releases in proptest::collection::vec(release(), 0..8)) {
        let run = |times: usize| {
            let mut driver = Driver::new(config(), 1, GRAINS);
            driver.store(0, 0..CHUNKS);
            driver.lookup("a", 0, CHUNKS, 1);
            for release in &releases {
                (0..times).for_each(|_| give_back(&mut driver, "a", release));
            }
            driver.end("a");
            driver.pass(Duration::from_secs(6));
            let status = driver.bench.engine().status();
            (status.lease_units, status.leased_bytes, status.sessions, status.objects)
        };
        let once = run(1);
        prop_assert_eq!(once, run(2));
        prop_assert_eq!(once, (0, 0, 0, CHUNKS as u64));
    }

    /// A leased object is never taken by a store, the tick or a plain clear.
    #[test]
    fn i1_a_leased_object_stays_where_it_is(
        others in proptest::collection::vec((1..5u64, 1..8u32), 1..12),
        clears in 0..3usize,
    ) {
        let mut driver = Driver::new(config(), 1, 60);
        driver.store(0, 0..CHUNKS);
        prop_assert_eq!(driver.lookup("a", 0, CHUNKS, 1), CHUNKS as u64);
        for (nth, (document, chunks)) in others.iter().enumerate() {
            driver.store(*document, 0..*chunks);
            if nth < clears {
                driver.ask(SCHEDULER, Call::Clear { force: false });
            }
            driver.pass(Duration::from_millis(700));
            if driver.now.0 > 9_000_000_000 {
                break;
            }
        }
        prop_assert_eq!(driver.resident_prefix(0, 0), CHUNKS);
        prop_assert!(driver.retrieve("a", 0, 0, 0..CHUNKS));
    }
}

/// A release under another tenant's salt is called wrong and gives nothing back.
#[test]
fn f01_a_release_that_names_another_key_is_told() {
    let mut driver = Driver::new(config(), 1, GRAINS);
    driver.store(0, 0..CHUNKS);
    driver.lookup("a", 0, CHUNKS, 1);
    let mut range = driver.range("a", 0, None, 0..CHUNKS);
    range.salt = "other".into();
    driver.ask(SCHEDULER, Call::Free { range });
    let told =
        Fact::RequestFaulted { operation: "free_lookup_locks", fault: RequestFault::NoSuchHold };
    assert_eq!(driver.facts(), [told]);
    assert_eq!(driver.bench.engine().status().lease_units, CHUNKS as u64);
    driver.free("a", 0, 0..CHUNKS);
    assert_eq!(driver.bench.engine().status().lease_units, 0);
}

/// Four readers of one object: four fetches, then a miss, and no hold is left.
#[test]
fn f02_as_many_fetches_as_readers_were_declared() {
    let mut driver = Driver::new(config(), 1, GRAINS);
    driver.store(0, 0..CHUNKS);
    driver.lookup("a", 0, CHUNKS, 4);
    for left in [3, 2, 1, 0] {
        assert!(driver.retrieve("a", 0, 0, 0..CHUNKS));
        assert_eq!(driver.bench.engine().status().lease_units, left * CHUNKS as u64);
    }
    assert!(!driver.retrieve("a", 0, 0, 0..CHUNKS));
}

/// A failed retrieve gives nothing back: a narrower one still succeeds (spec/transfer §4.5).
#[test]
fn i13_a_failed_retrieve_keeps_what_is_left() {
    let mut driver = Driver::new(config(), 1, GRAINS);
    driver.store(0, 0..3);
    assert_eq!(driver.lookup("a", 0, CHUNKS, 1), 3);
    assert!(!driver.retrieve("a", 0, 0, 0..4));
    assert!(driver.retrieve("a", 0, 0, 0..3));
}

/// The end of a session leaves a late worker five seconds, once, however often it is ended.
#[test]
fn i11_leases_linger_once_and_for_five_seconds() {
    let mut driver = Driver::new(config(), 1, GRAINS);
    driver.store(0, 0..CHUNKS);
    driver.lookup("a", 0, CHUNKS, 2);
    driver.end("a");
    driver.pass(Duration::from_secs(4));
    assert!(driver.retrieve("a", 0, 0, 0..CHUNKS), "within the linger");
    driver.end("a");
    driver.pass(Duration::from_millis(1_100));
    assert!(!driver.retrieve("a", 0, 0, 0..CHUNKS), "after the linger");
    assert_eq!(driver.bench.engine().status().lease_units, 0);
    let range = driver.range("a", 0, Some(0), 0..CHUNKS);
    let call = Call::CommitRetrieve { instance: instance(0), range };
    driver.ask(1, call);
    assert!(driver.bench.engine().is_quiet());
}
