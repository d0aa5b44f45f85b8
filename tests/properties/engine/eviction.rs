//! What goes when room is needed, how much of it, and what never goes.

use super::driver::{Driver, SCHEDULER, cases, config, hash, instance};
use kvtide_core::config::{Config, PolicyKind};
use kvtide_core::effect::Answer;
use kvtide_core::fact::{Fact, FactKey, NoRoom, Removal};
use kvtide_core::time::Duration;
use kvtide_sim::calls::Call;
use kvtide_sim::transcript::Input;
use proptest::prelude::*;

/// 28 objects of this size fill a pool of 1 MiB.
const GRAINS_OF_28: u64 = 36;

fn evicted(driver: &Driver) -> Vec<FactKey> {
    let keys = &driver.bench.outbox().keys;
    let of = |fact: &Fact| match fact {
        Fact::Evicted { keys: range, .. } => range.of(keys).to_vec(),
        _ => Vec::new(),
    };
    driver.facts().iter().flat_map(of).collect()
}

proptest! {
    #![proptest_config(cases(96))]

    /// A tick at or above the watermark ends below it, or with nothing left that can go.
    #[test]
    fn i37_a_pass_ends_below_the_watermark(
        stores in proptest::collection::vec((0..6u64, 1..9u32), 1..14),
        leased in 0..9u32,
        watermark_ppm in prop_oneof![Just(0u64), 100_000..=1_000_000u64],
        ratio_ppm in prop_oneof![Just(0u64), 1..=1_000_000u64],
        policy in proptest::sample::select(vec![
            PolicyKind::Lru, PolicyKind::Arc, PolicyKind::IsolatedLru,
        ]),
    ) {
        let config = Config { watermark_ppm, ratio_ppm, policy, ..config() };
        let mut driver = Driver::new(config, 1, GRAINS_OF_28);
        for (document, chunks) in stores {
            driver.store(document, 0..chunks);
        }
        driver.lookup("holder", 0, leased, 1);
        driver.pass(Duration::from_millis(1_010));
        driver.settle();
        let status = driver.bench.engine().status();
        let mark = status.configured_bytes as u128 * watermark_ppm as u128 / 1_000_000;
        let is_below = (status.used_bytes as u128) < mark;
        let nothing_can_go = status.objects == status.leased_objects;
        prop_assert!(is_below || nothing_can_go, "{:?}", status);
    }

    /// One pass frees what it set out to free and at most one object more.
    #[test]
    fn f20_a_pass_frees_the_deficit_and_at_most_one_object_more(
        stores in proptest::collection::vec((0..6u64, 1..9u32), 1..14),
        watermark_ppm in 0..=1_000_000u64,
        ratio_ppm in 0..=1_000_000u64,
    ) {
        let config = Config { watermark_ppm, ratio_ppm, ..config() };
        let mut driver = Driver::new(config, 1, GRAINS_OF_28);
        for (document, chunks) in stores {
            driver.store(document, 0..chunks);
        }
        let before = driver.bench.engine().status();
        let mark = before.configured_bytes * watermark_ppm / 1_000_000;
        driver.pass(Duration::from_millis(1_010));
        driver.settle();
        let freed = before.used_bytes - driver.bench.engine().status().used_bytes;
        let share = (before.used_bytes * ratio_ppm / 1_000_000).max(1);
        let deficit = share.max((before.used_bytes + 1).saturating_sub(mark));
        let most = if before.used_bytes >= mark { deficit + GRAINS_OF_28 * 1024 } else { 0 };
        prop_assert!(freed <= most, "{} bytes freed, {} at most", freed, most);
    }

    /// A store evicts by need: nothing while there is room, one object per slot without.
    #[test]
    fn f16_a_store_evicts_just_enough(resident in 0..=28u32, wanted in 1..=28u32) {
        let mut driver = Driver::new(config(), 1, GRAINS_OF_28);
        driver.store(0, 0..resident);
        let range = driver.range("store", 1, Some(0), 0..wanted);
        driver.ask(1, Call::PrepareStore { instance: instance(0), range });
        let need = (resident + wanted).saturating_sub(28);
        prop_assert_eq!(evicted(&driver).len(), need as usize);
        prop_assert_eq!(driver.holdings[0].slots.len(), wanted as usize);
    }

    /// Without room for all, the longest prefix that fits is kept, the rest is counted, and a
    /// second store fills the hole.
    #[test]
    fn f18_no_room_keeps_the_longest_prefix(held in 1..28u32, more in 1..20u32) {
        let fits = 28 - held;
        let wanted = fits + more;
        let mut driver = Driver::new(config(), 1, GRAINS_OF_28);
        driver.store(0, 0..held);
        prop_assert_eq!(driver.lookup("holder", 0, held, 1), held as u64);
        let range = driver.range("store", 1, Some(0), 0..wanted);
        driver.ask(1, Call::PrepareStore { instance: instance(0), range });
        let dropped = |wanted: NoRoom| -> u64 {
            driver.facts().iter().map(|fact| match fact {
                Fact::WriteRefused { keys, why } if *why == wanted => keys.len(),
                _ => 0,
            }).sum()
        };
        prop_assert_eq!(dropped(NoRoom::Held), 1);
        prop_assert_eq!(dropped(NoRoom::Trimmed), more as u64 - 1);
        let granted: Vec<u32> = driver.holdings[0].slots.iter().map(|slot| slot.chunk).collect();
        prop_assert_eq!(granted, (0..fits).collect::<Vec<u32>>());
        driver.commit(0);
        prop_assert_eq!(driver.lookup("reader", 1, wanted, 1), fits as u64);
        driver.free("reader", 1, 0..fits);
        driver.free("holder", 0, 0..held);
        driver.store(1, 0..wanted.min(28));
        prop_assert_eq!(driver.lookup("reader", 1, wanted, 1), wanted.min(28) as u64);
    }

    /// Of what can go, the least recently used goes first, a request's tail before its head.
    #[test]
    fn i35_the_tail_of_the_oldest_request_goes_first(
        lengths in proptest::collection::vec(1..7u32, 4),
        held in 0..4usize,
    ) {
        let mut driver = Driver::new(config(), 1, GRAINS_OF_28);
        for (document, length) in lengths.iter().enumerate() {
            driver.store(document as u64, 0..*length);
        }
        driver.lookup("holder", held as u64, lengths[held], 1);
        let mut expected = Vec::new();
        for document in (0..lengths.len()).filter(|document| *document != held) {
            expected.extend((0..lengths[document]).rev().map(|chunk| hash(document as u64, chunk)));
        }
        let range = driver.range("store", 9, Some(0), 0..28);
        driver.ask(1, Call::PrepareStore { instance: instance(0), range });
        let victims: Vec<_> = evicted(&driver).iter().map(|key| key.hash).collect();
        prop_assert_eq!(victims, expected);
    }
}

/// Everything is held: nothing is evicted, the refusal says why; one release, and there is room.
#[test]
fn f17_a_full_pool_recovers_with_the_first_release() {
    let mut driver = Driver::new(config(), 1, GRAINS_OF_28);
    driver.store(0, 0..28);
    driver.lookup("holder", 0, 28, 1);
    let range = driver.range("store", 1, Some(0), 0..1);
    let call = Call::PrepareStore { instance: instance(0), range };
    assert_eq!(driver.ask(1, call.clone()), Some(Answer::NoContext));
    let refused = |fact: &Fact| matches!(fact, Fact::WriteRefused { why: NoRoom::Held, .. });
    assert!(driver.facts().iter().any(refused));
    assert_eq!(evicted(&driver).len(), 0);
    driver.free("holder", 0, 27..28);
    driver.ask(1, call);
    assert_eq!(driver.holdings[0].slots.len(), 1);
    assert_eq!(evicted(&driver).len(), 1);
}

/// Removals say why.
#[test]
fn f37_every_removal_has_its_cause() {
    let mut driver = Driver::new(Config { watermark_ppm: 0, ..config() }, 1, GRAINS_OF_28);
    driver.store(0, 0..4);
    driver.ask(SCHEDULER, Call::Clear { force: false });
    driver.settle();
    let causes = |driver: &Driver| -> Vec<Removal> {
        let cause = |fact: &Fact| match fact {
            Fact::Evicted { why, .. } => Some(*why),
            _ => None,
        };
        driver.facts().iter().filter_map(cause).collect()
    };
    assert_eq!(causes(&driver), [Removal::Clear; 4]);
    driver.store(0, 0..4);
    driver.lookup("holder", 0, 1, 1);
    driver.ask(SCHEDULER, Call::Clear { force: true });
    driver.feed(Input::Tick);
    assert_eq!(causes(&driver), [Removal::ForcedClear; 4]);
    driver.store(0, 0..4);
    driver.pass(Duration::from_millis(1_010));
    driver.settle();
    assert_eq!(driver.bench.engine().status().objects, 0);
}
