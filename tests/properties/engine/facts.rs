//! Facts: one per change, none for nothing, and sums that agree with the state.

use super::driver::{Driver, SCHEDULER, cases, config};
use super::mixed::{apply, configs, op};
use kvtide_core::fact::{Fact, FactKey, KeyRange};
use kvtide_core::time::Duration;
use kvtide_sim::calls::Call;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// What a listener knows that has heard every fact.
#[derive(Default)]
struct Listener {
    index: BTreeSet<(u32, [u8; 32])>,
    staged: BTreeSet<(u32, [u8; 32])>,
    reserved: u64,
    committed: u64,
    aborted: u64,
}

impl Listener {
    fn hear(&mut self, facts: &[Fact], keys: &[FactKey]) {
        let of = |range: &KeyRange| -> Vec<(u32, [u8; 32])> {
            range.of(keys).iter().map(|key| (key.scope.0, key.hash.0)).collect()
        };
        for fact in facts {
            match fact {
                Fact::WriteReserved { keys } => {
                    for key in of(keys) {
                        assert!(self.staged.insert(key), "I-49: reserved twice");
                        self.reserved += 1;
                    }
                }
                Fact::WriteFinished { keys } => {
                    for key in of(keys) {
                        assert!(self.staged.remove(&key), "I-49: finished without a reservation");
                        assert!(self.index.insert(key), "I-49: stored twice");
                        self.committed += 1;
                    }
                }
                Fact::WriteAborted { keys, .. } => {
                    for key in of(keys) {
                        assert!(self.staged.remove(&key), "I-49: aborted without a reservation");
                        self.aborted += 1;
                    }
                }
                Fact::Evicted { keys, .. } => {
                    for key in of(keys) {
                        assert!(self.index.remove(&key), "I-49: removed what was not there");
                    }
                }
                _ => {}
            }
            assert!(!is_empty(fact), "I-49: news of nothing: {fact:?}");
        }
    }
}

fn is_empty(fact: &Fact) -> bool {
    match fact {
        Fact::WriteReserved { keys }
        | Fact::WriteFinished { keys }
        | Fact::WriteAborted { keys, .. }
        | Fact::WriteRefused { keys, .. }
        | Fact::ReadReserved { keys, .. }
        | Fact::ReadFinished { keys, .. }
        | Fact::ReadFailed { keys, .. }
        | Fact::Accessed { keys }
        | Fact::Evicted { keys, .. }
        | Fact::Retrieved { keys, .. }
        | Fact::Stored { keys, .. } => keys.is_empty(),
        _ => false,
    }
}

proptest! {
    #![proptest_config(cases(128))]

    /// Folding the facts gives the index, at every step that has no work left over.
    #[test]
    fn i49_i52_the_facts_add_up_to_the_state(
        config in configs(),
        ops in proptest::collection::vec(op(), 1..100),
    ) {
        let mut driver = Driver::new(config, 2, 20);
        driver.bench.keep_facts();
        let mut listener = Listener::default();
        for op in &ops {
            apply(&mut driver, op);
            driver.settle();
            for (facts, keys) in driver.bench.take_facts() {
                listener.hear(&facts, &keys);
            }
            let status = driver.bench.engine().status();
            prop_assert_eq!(listener.staged.len() as u64, status.staged_objects);
            let resident = status.objects - status.staged_objects - status.condemned_objects;
            prop_assert_eq!(listener.index.len() as u64, resident);
            let ended = listener.committed + listener.aborted + status.staged_objects;
            prop_assert_eq!(listener.reserved, ended, "I-52: a reservation has one end");
        }
    }
}

/// An idle server tells of its ticks and its gauges, and both stay as they are.
#[test]
fn f36_nothing_changes_while_nothing_happens() {
    let mut driver = Driver::new(config(), 1, 20);
    driver.store(0, 0..4);
    driver.pass(Duration::from_secs(3));
    let gauges = driver.bench.engine().gauges();
    driver.bench.keep_facts();
    driver.pass(Duration::from_secs(5));
    for (facts, _) in driver.bench.take_facts() {
        for fact in facts {
            match fact {
                Fact::EvictionTick { triggered, .. } => assert!(!triggered),
                Fact::Gauges(_) => assert_eq!(fact, gauges),
                other => panic!("an idle server told of {other:?}"),
            }
        }
    }
}

/// A release, an end and a clear of nothing are no news of keys.
#[test]
fn i49_a_request_about_nothing_changes_nothing() {
    let mut driver = Driver::new(config(), 1, 20);
    driver.end("nobody");
    assert_eq!(driver.facts(), []);
    driver.ask(SCHEDULER, Call::Query { request: "nobody".into() });
    assert_eq!(driver.facts(), []);
    driver.ask(SCHEDULER, Call::Clear { force: true });
    assert_eq!(driver.facts(), [Fact::Cleared { force: true }]);
}
