//! From L1 to lower tiers: who is stored where, who waits, who is given up and why.

use crate::bed::{Bed, OBJECT_BYTES, Order, config, digest_of, prompt, setup};
use kvtide_core::config::{AdapterSetup, Config, StorePolicy};
use kvtide_core::effect::{Answer, Effect, Note};
use kvtide_core::engine::adapters::operator::AdapterStatus;
use kvtide_core::event::{Ask, Event, StoreOutcome, TierFault};
use kvtide_core::fact::{Fact, L2StoreEnd, Removal, StoreDrop};
use kvtide_core::names::{AdapterId, ChunkHash, InstanceId};
use kvtide_core::time::Duration;

pub const ONE: AdapterId = AdapterId(0);
pub const TWO: AdapterId = AdapterId(1);

/// A disk of its own, for so many objects.
pub fn own(name: &str, objects: u64) -> AdapterSetup<'_> {
    AdapterSetup { is_shared: false, capacity_bytes: objects * OBJECT_BYTES, ..setup(name) }
}

/// An engine of one worker above disks that have been scanned.
pub fn bed(config: Config, adapters: &[AdapterSetup<'_>]) -> Bed {
    let mut bed = Bed::new(config, 1, adapters);
    for adapter in 0..adapters.len() as u16 {
        bed.handle(Event::AdapterScanEnded { adapter: AdapterId(adapter) });
    }
    bed
}

/// The worker stores what of a prompt is not in L1.
pub fn store(bed: &mut Bed, hashes: &[ChunkHash]) {
    let (instance, keys) = (InstanceId(0), Bed::keys("store", 1, Some(0), hashes));
    let prepared = bed.ask(Ask::PrepareStore { instance, keys });
    if matches!(bed.answers[&prepared], Answer::StoreSlots { slots, .. } if slots.start < slots.end)
    {
        bed.ask(Ask::CommitStore { instance, keys, inline_bytes: 0 });
    }
    bed.work();
}

pub fn status(bed: &Bed, adapter: AdapterId) -> AdapterStatus {
    let found = bed.engine.adapters_status().into_iter().find(|status| status.id == adapter);
    found.expect("the adapter has not left")
}

pub fn drops(bed: &Bed, adapter: AdapterId, why: StoreDrop) -> u64 {
    let drops = status(bed, adapter).care.drops;
    drops.iter().find(|(reason, _)| *reason == why).expect("all reasons are listed").1
}

/// Places of the orders of this kind.
pub fn orders(bed: &Bed, is_it: fn(&Effect) -> bool) -> Vec<usize> {
    let found = |order: &Order| matches!(order, Order::Other { effect, .. } if is_it(effect));
    (0..bed.orders.len()).filter(|at| found(&bed.orders[*at])).collect()
}

pub fn is_store(effect: &Effect) -> bool {
    matches!(effect, Effect::StoreObject { .. })
}

pub fn is_delete(effect: &Effect) -> bool {
    matches!(effect, Effect::DeleteObject { .. })
}

/// Ends the first store in this way.
pub fn end_store(bed: &mut Bed, outcome: StoreOutcome) {
    let at = orders(bed, is_store)[0];
    let ticket = bed.orders.remove(at).ticket();
    bed.handle(Event::StoreEnded { ticket, outcome });
    bed.work();
}

fn objects_in_l1(bed: &Bed) -> u64 {
    bed.engine.status().objects
}

#[test]
fn i18_what_is_committed_comes_to_rest_in_every_adapter() {
    let mut bed = bed(config(16), &[own("one", 64), own("two", 64)]);
    let hashes = prompt(b'a', 5);
    store(&mut bed, &hashes);
    bed.end_all();
    for adapter in [ONE, TWO] {
        assert_eq!(status(&bed, adapter).objects, 5);
        assert_eq!(status(&bed, adapter).used_bytes, 5 * OBJECT_BYTES);
        assert!(hashes.iter().all(|hash| bed.disks[usize::from(adapter.0)].contains(hash)));
    }
    let stored = |fact: &Fact| matches!(fact, Fact::L2Stored { .. });
    assert_eq!(bed.find_told(stored), 10);
    let dropped = |fact: &Fact| matches!(fact, Fact::L2StoreDropped { .. });
    assert_eq!(bed.find_told(dropped), 0);
    assert!(bed.engine.is_quiet());
    assert_eq!(objects_in_l1(&bed), 5, "the default keeps them in L1");
}

#[test]
fn i18_a_store_that_fails_for_good_is_told_of_once_for_each_adapter() {
    let mut bed = bed(config(16), &[own("one", 64)]);
    store(&mut bed, &prompt(b'a', 1));
    for tries in 1..=3 {
        let store = orders(&bed, is_store);
        assert_eq!(store.len(), 1, "try {tries}");
        end_store(&mut bed, StoreOutcome::Failed(TierFault::Io));
        assert_eq!(status(&bed, ONE).used_bytes, 0, "a failed store takes nothing (F25)");
        bed.pass(Duration::from_secs(10));
    }
    assert!(orders(&bed, is_store).is_empty());
    assert_eq!(drops(&bed, ONE, StoreDrop::Failed), 1);
    let dropped = |fact: &Fact| matches!(fact, Fact::L2StoreDropped { why: StoreDrop::Failed, .. });
    assert_eq!(bed.find_told(dropped), 1);
    bed.end_all();
    assert!(bed.engine.is_quiet(), "its memory is let go (I-19)");
}

/// between commit and store the object was unlocked in the peer, and eviction won.
#[test]
fn r10_an_object_waits_for_its_store_in_l1() {
    let mut config = config(8);
    config.limits.demoting_ppm = 1_000_000;
    let mut bed = bed(config, &[AdapterSetup { stores_max: 1, ..own("one", 64) }]);
    let first = prompt(b'a', 8);
    store(&mut bed, &first);
    // L1 is full of what waits: a second prompt finds no room, and takes none of the first.
    store(&mut bed, &prompt(b'b', 8));
    bed.end_all();
    assert!(first.iter().all(|hash| bed.disks[0].contains(hash)));
    assert_eq!(drops(&bed, ONE, StoreDrop::Evicted), 0);
}

#[test]
fn f48_beyond_the_budget_an_object_waits_at_its_own_risk() {
    let mut config = config(8);
    config.limits.demoting_ppm = 125_000;
    let mut bed = bed(config, &[AdapterSetup { stores_max: 1, ..own("one", 64) }]);
    store(&mut bed, &prompt(b'a', 8));
    // One is on its way, and one of those that wait is kept.
    assert_eq!(status(&bed, ONE).stores_waiting, 7);
    assert_eq!(status(&bed, ONE).care.waiting_bytes, OBJECT_BYTES);
    store(&mut bed, &prompt(b'b', 4));
    bed.end_all();
    assert!(drops(&bed, ONE, StoreDrop::Evicted) > 0);
    let stored = status(&bed, ONE).objects;
    assert_eq!(stored + drops(&bed, ONE, StoreDrop::Evicted), 12, "each is answered for once");
}

#[test]
fn i19_a_store_that_stalls_is_answered_and_keeps_its_memory_until_its_end() {
    let mut bed = bed(config(8), &[own("one", 64)]);
    store(&mut bed, &prompt(b'a', 1));
    let digest = bed.orders.iter().position(|order| matches!(order, Order::Digest { .. }));
    bed.end(digest.expect("the digest is made beside the store"));
    bed.pass(Duration::from_secs(31));
    let timed_out =
        |fact: &Fact| matches!(fact, Fact::L2StoreEnded { end: L2StoreEnd::TimedOut, .. });
    assert_eq!(bed.find_told(timed_out), 1);
    assert_eq!(drops(&bed, ONE, StoreDrop::Failed), 1);
    assert_eq!(bed.cancelled.len(), 1);
    bed.ask(Ask::Clear { force: true });
    bed.work();
    assert_eq!(bed.engine.status().condemned_objects, 1, "the device may still read it (R-2)");
    end_store(&mut bed, StoreOutcome::Stored);
    assert_eq!(bed.engine.status().condemned_objects, 0);
    assert_eq!(status(&bed, ONE).objects, 1, "it came to rest after all");
    assert_eq!(bed.find_told(timed_out), 1);
    assert!(bed.engine.is_quiet());
}

#[test]
fn r02_a_cleared_object_is_not_reused_while_it_is_stored() {
    let mut bed = bed(config(8), &[own("one", 64)]);
    store(&mut bed, &prompt(b'a', 2));
    bed.ask(Ask::Clear { force: true });
    bed.work();
    assert_eq!(bed.engine.status().condemned_objects, 2);
    bed.end_all();
    assert_eq!(bed.engine.status().used_bytes, 0);
    assert_eq!(status(&bed, ONE).objects, 2);
}

#[test]
fn i21_under_skip_l1_an_object_leaves_when_all_have_answered() {
    let config = Config { store_policy: StorePolicy::SkipL1, ..config(8) };
    let mut bed = bed(config, &[own("one", 64), own("two", 64)]);
    store(&mut bed, &prompt(b'a', 1));
    let digest = bed.orders.iter().position(|order| matches!(order, Order::Digest { .. }));
    bed.end(digest.expect("there is one"));
    end_store(&mut bed, StoreOutcome::Stored);
    assert_eq!(objects_in_l1(&bed), 1, "the second has not answered");
    end_store(&mut bed, StoreOutcome::Stored);
    assert_eq!(objects_in_l1(&bed), 0);
    let demoted = |fact: &Fact| matches!(fact, Fact::Evicted { why: Removal::Demoted, .. });
    assert_eq!(bed.find_told(demoted), 1);
}

#[test]
fn i22_r13_the_only_copy_does_not_leave_l1() {
    let config = Config { store_policy: StorePolicy::SkipL1, ..config(8) };
    let says_so = AdapterSetup { keeps_data: false, ..own("says so", 64) };
    let mut bed = bed(config, &[says_so, own("two", 64)]);
    store(&mut bed, &prompt(b'a', 1));
    for adapter in [ONE, TWO] {
        let stores = orders(&bed, is_store);
        let of = |at: &usize| match &bed.orders[*at] {
            Order::Other { effect: Effect::StoreObject { adapter: of, .. }, .. } => *of == adapter,
            _ => false,
        };
        let at = stores.into_iter().find(of).expect("each adapter has its store");
        let ticket = bed.orders.remove(at).ticket();
        let outcome = match adapter {
            ONE => StoreOutcome::Stored,
            _ => StoreOutcome::Failed(TierFault::Denied),
        };
        bed.handle(Event::StoreEnded { ticket, outcome });
    }
    for _ in 1..3 {
        bed.pass(Duration::from_secs(10));
        end_store(&mut bed, StoreOutcome::Failed(TierFault::Denied));
    }
    bed.end_all();
    assert_eq!(objects_in_l1(&bed), 1, "nobody who keeps it has it");
    assert!(bed.engine.is_quiet());
}

/// a reader held the object when it was to leave, and it stayed for ever.
#[test]
fn r12_what_is_leased_when_it_is_to_leave_leaves_with_its_lease() {
    let config = Config { store_policy: StorePolicy::SkipL1, ..config(8) };
    let mut bed = bed(config, &[own("one", 64)]);
    let hashes = prompt(b'a', 1);
    store(&mut bed, &hashes);
    bed.lookup("reader", 1, &hashes);
    assert_eq!(bed.query("reader"), Some(1));
    bed.end_all();
    assert_eq!(objects_in_l1(&bed), 1);
    bed.ask(Ask::FreeLookupLocks { keys: Bed::keys("reader", 1, None, &hashes) });
    bed.work();
    assert_eq!(objects_in_l1(&bed), 0);
}

#[test]
fn i20_the_seal_of_a_stored_object_is_what_its_bytes_came_to() {
    let mut bed = bed(config(8), &[own("one", 64)]);
    store(&mut bed, &prompt(b'a', 1));
    let key = bed.orders.iter().find_map(|order| match order {
        Order::Digest { key, .. } => Some(*key),
        _ => None,
    });
    let digest = digest_of(&key.expect("the digest is made beside the store"));
    end_store(&mut bed, StoreOutcome::Stored);
    assert_eq!(bed.notes.len(), 0, "the index is told when both have ended");
    bed.end_all();
    let sealed = |note: &Note| match note {
        Note::Stored { seal, .. } => *seal,
        Note::Used | Note::Removed => None,
    };
    let seals: Vec<_> = bed.notes.iter().filter_map(sealed).collect();
    assert_eq!(seals.iter().map(|seal| seal.digest).collect::<Vec<_>>(), [digest]);
}

#[test]
fn what_was_loaded_is_not_stored_again_and_what_is_there_is_not_either() {
    let mut bed = bed(config(8), &[own("one", 64)]);
    let hashes = prompt(b'a', 4);
    store(&mut bed, &hashes);
    bed.end_all();
    bed.ask(Ask::Clear { force: false });
    bed.work();
    bed.lookup("reader", 1, &hashes);
    bed.end_all();
    assert_eq!(bed.query("reader"), Some(4));
    let submitted = |fact: &Fact| matches!(fact, Fact::L2StoreSubmitted { .. });
    let before = bed.find_told(submitted);
    bed.ask(Ask::Clear { force: true });
    bed.work();
    store(&mut bed, &hashes);
    assert_eq!(bed.find_told(submitted), before);
    assert!(orders(&bed, is_store).is_empty());
}

#[test]
fn f18_a_full_queue_drops_the_tail_and_a_later_store_fills_the_hole() {
    let mut config = config(16);
    config.limits.demotions = 4;
    let mut bed = bed(config, &[AdapterSetup { stores_max: 1, ..own("one", 64) }]);
    let hashes = prompt(b'a', 10);
    store(&mut bed, &hashes);
    assert!(drops(&bed, ONE, StoreDrop::QueueFull) > 0);
    bed.end_all();
    let there: Vec<bool> = hashes.iter().map(|hash| bed.disks[0].contains(hash)).collect();
    let prefix = there.iter().take_while(|is_there| **is_there).count();
    assert!(prefix >= 4);
    assert!(there[prefix..].iter().all(|is_there| !is_there), "what is there is a prefix");
    while bed.disks[0].len() < hashes.len() {
        let before = bed.disks[0].len();
        bed.ask(Ask::Clear { force: true });
        bed.work();
        store(&mut bed, &hashes);
        bed.end_all();
        assert!(bed.disks[0].len() > before, "every store fills some of it");
    }
}

#[test]
fn f48_a_slow_tier_neither_grows_nor_holds_up_another() {
    let mut config = config(64);
    config.limits.demotions = 16;
    let mut bed = bed(config, &[own("slow", 64), own("fast", 64)]);
    for letter in b'a'..b'f' {
        store(&mut bed, &prompt(letter, 8));
        // The slow one never ends anything.
        loop {
            let is_fast = |order: &Order| match order {
                Order::Other { effect: Effect::StoreObject { adapter, .. }, .. } => *adapter == TWO,
                Order::Digest { .. } => true,
                _ => false,
            };
            let Some(at) = bed.orders.iter().position(is_fast) else { break };
            bed.end(at);
        }
    }
    let (slow, fast) = (status(&bed, ONE), status(&bed, TWO));
    assert!(slow.stores_waiting + slow.stores_in_flight <= 16);
    assert!(drops(&bed, ONE, StoreDrop::QueueFull) > 0);
    assert!(fast.objects > slow.objects);
    assert!(slow.stores_in_flight <= 8, "its credits");
    bed.end_all();
    assert!(bed.engine.is_quiet());
}

#[test]
fn stores_wait_for_the_budget_of_their_second_and_a_day_bounds_them() {
    let budget = AdapterSetup {
        write_bytes_per_second: 2 * OBJECT_BYTES,
        write_bytes_per_day: 5 * OBJECT_BYTES,
        ..own("one", 64)
    };
    let mut bed = bed(config(16), &[budget]);
    store(&mut bed, &prompt(b'a', 8));
    bed.end_all();
    assert_eq!(status(&bed, ONE).objects, 2);
    bed.pass(Duration::from_millis(1100));
    bed.end_all();
    assert_eq!(status(&bed, ONE).objects, 4);
    bed.pass(Duration::from_millis(1100));
    bed.end_all();
    assert_eq!(status(&bed, ONE).objects, 5);
    assert_eq!(drops(&bed, ONE, StoreDrop::WriteBudget), 3);
}

#[test]
fn with_a_second_touch_filter_only_what_comes_again_is_stored() {
    let filtered = AdapterSetup { on_second_touch: true, ..own("one", 64) };
    let mut bed = bed(config(16), &[filtered]);
    let hashes = prompt(b'a', 4);
    store(&mut bed, &hashes);
    bed.end_all();
    assert_eq!((status(&bed, ONE).objects, status(&bed, ONE).care.first_touches), (0, 4));
    bed.ask(Ask::Clear { force: true });
    bed.work();
    store(&mut bed, &hashes);
    bed.end_all();
    assert_eq!(status(&bed, ONE).objects, 4);
}
