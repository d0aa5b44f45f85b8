//! Lower tiers themselves: what goes from them and when, whom they trust, how they join and leave.

use crate::bed::{Bed, OBJECT_BYTES, Order, config, prompt, setup};
use crate::stores::{ONE, bed, drops, end_store, is_delete, is_store, orders, own, status, store};
use kvtide_core::config::{AdapterSetup, PolicyKind};
use kvtide_core::effect::{Effect, OperatorAnswer};
use kvtide_core::event::{
    Ask, DeleteOutcome, Event, OperatorAsk, Scanned, StoreOutcome, TierFault,
};
use kvtide_core::fact::{AdapterState, Fact, L2Removal, StoreDrop};
use kvtide_core::limits::FAILURES_MAX;
use kvtide_core::names::{AdapterId, ChunkHash, KvRank, Operator, Seal};
use kvtide_core::time::Duration;

pub const SECOND: Duration = Duration::from_millis(1100);

fn removed(bed: &Bed, why: L2Removal) -> usize {
    bed.find_told(|fact| matches!(fact, Fact::L2Removed { why: other, .. } if *other == why))
}

pub fn scan<'a>(hashes: &[ChunkHash], salt: &'a str, seal: Option<Seal>) -> Vec<Scanned<'a>> {
    let rank = KvRank::of(1, 0).expect("a world of one");
    let found = |hash: &ChunkHash| Scanned {
        model: "llama",
        salt,
        rank,
        group: 0,
        hash: *hash,
        bytes: OBJECT_BYTES,
        seal,
    };
    hashes.iter().map(found).collect()
}

pub fn operate(bed: &mut Bed, ask: OperatorAsk<'_>) {
    bed.handle(Event::OperatorAsked { operator: Operator(1), ask });
}

#[test]
fn f19_a_tier_stays_within_its_bound_and_the_oldest_goes() {
    let mut bed = bed(config(64), &[own("one", 10)]);
    for letter in b'a'..b'h' {
        store(&mut bed, &prompt(letter, 4));
        bed.end_all();
        assert!(status(&bed, ONE).used_bytes <= 10 * OBJECT_BYTES);
    }
    assert!(bed.disks[0].len() <= 10);
    assert!(prompt(b'g', 4).iter().all(|hash| bed.disks[0].contains(hash)), "the newest is there");
    assert!(prompt(b'a', 4).iter().all(|hash| !bed.disks[0].contains(hash)), "the oldest is not");
    assert!(removed(&bed, L2Removal::Pressure) > 0);
}

#[test]
fn f16_a_store_takes_what_it_lacks_and_nothing_where_that_does_not_do() {
    let mut bed = bed(config(32), &[AdapterSetup { watermark_ppm: 1_000_000, ..own("one", 4) }]);
    store(&mut bed, &prompt(b'a', 3));
    bed.end_all();
    store(&mut bed, &prompt(b'b', 2));
    // One fits, the other lacks one place.
    let deletes = orders(&bed, is_delete);
    assert_eq!(deletes.len(), 1);
    bed.end_all();
    assert_eq!(removed(&bed, L2Removal::Pressure), 1);
    assert_eq!(status(&bed, ONE).objects, 4);
}

#[test]
fn f19_what_cannot_go_is_told_and_nothing_is_stored() {
    let noop = AdapterSetup { policy: PolicyKind::Noop, ..own("one", 2) };
    let mut bed = bed(config(16), &[noop]);
    store(&mut bed, &prompt(b'a', 4));
    bed.end_all();
    assert_eq!(status(&bed, ONE).objects, 2);
    assert_eq!(drops(&bed, ONE, StoreDrop::NoRoom), 2);
    assert!(bed.engine.is_quiet());
}

#[test]
fn i37_a_tick_frees_the_ratio_above_the_watermark() {
    let mut bed = bed(config(32), &[own("one", 10)]);
    store(&mut bed, &prompt(b'a', 8));
    bed.end_all();
    assert_eq!(status(&bed, ONE).objects, 8);
    bed.pass(SECOND);
    bed.end_all();
    // A fifth of eight, rounded up to whole objects, and below the mark of eight.
    assert_eq!(status(&bed, ONE).objects, 6);
    assert_eq!(removed(&bed, L2Removal::Watermark), 2);
    bed.pass(SECOND);
    assert!(orders(&bed, is_delete).is_empty(), "below the mark nothing goes (F20)");
}

#[test]
fn i30_an_object_is_charged_until_the_device_has_let_go_of_it() {
    let mut bed = bed(config(32), &[own("one", 10)]);
    store(&mut bed, &prompt(b'a', 8));
    bed.end_all();
    bed.pass(SECOND);
    assert_eq!(orders(&bed, is_delete).len(), 2);
    assert_eq!(status(&bed, ONE).used_bytes, 8 * OBJECT_BYTES);
    let ticket = bed.orders.remove(orders(&bed, is_delete)[0]).ticket();
    let outcome = DeleteOutcome::Failed(TierFault::Io);
    bed.handle(Event::DeleteEnded { ticket, outcome });
    bed.handle(Event::DeleteEnded { ticket, outcome });
    assert_eq!(status(&bed, ONE).care.counts.deletes_failed, 1);
    bed.end_all();
    assert_eq!(status(&bed, ONE).used_bytes, 7 * OBJECT_BYTES);
    assert_eq!(bed.disks[0].len(), 7, "what failed to go is still there");
}

#[test]
fn f10_usage_tenants_and_order_are_rebuilt_by_the_scan() {
    let mut bed = Bed::new(config(32), 1, &[own("one", 10)]);
    bed.disks[0].extend(prompt(b'a', 4));
    bed.disks[0].extend(prompt(b'b', 4));
    let (old, young) = (scan(&prompt(b'a', 4), "", None), scan(&prompt(b'b', 4), "x", None));
    bed.handle(Event::AdapterScanned { adapter: ONE, found: &old });
    bed.handle(Event::AdapterScanned { adapter: ONE, found: &young });
    bed.pass(SECOND);
    assert!(orders(&bed, is_delete).is_empty(), "nothing goes before the order is known");
    bed.handle(Event::AdapterScanEnded { adapter: ONE });
    assert_eq!(status(&bed, ONE).state, AdapterState::Ready);
    assert_eq!(status(&bed, ONE).used_bytes, 8 * OBJECT_BYTES);
    assert_eq!(status(&bed, ONE).tenants, 2);
    bed.pass(SECOND);
    bed.end_all();
    let gone = prompt(b'a', 4).iter().filter(|hash| !bed.disks[0].contains(*hash)).count();
    assert_eq!((gone, bed.disks[0].len()), (2, 6), "the oldest went");
}

#[test]
fn f10_what_cannot_be_taken_in_is_counted_and_told() {
    let mut bed = Bed::new(config(8), 1, &[AdapterSetup { objects_max: 2, ..own("one", 10) }]);
    let mut found = scan(&prompt(b'a', 3), "", None);
    found.push(Scanned { model: "", ..found[0] });
    found.push(Scanned { bytes: 0, hash: prompt(b'z', 1)[0], ..found[0] });
    bed.handle(Event::AdapterScanned { adapter: ONE, found: &found });
    assert_eq!((status(&bed, ONE).objects, status(&bed, ONE).care.counts.scan_skipped), (2, 3));
    let told = |fact: &Fact| matches!(fact, Fact::L2ScanSkipped { objects: 3, .. });
    assert_eq!(bed.find_told(told), 1);
}

#[test]
fn i40_a_quota_takes_objects_of_its_own_salt_only_and_unset_means_unlimited() {
    let isolated = AdapterSetup { policy: PolicyKind::IsolatedLru, ..own("one", 100) };
    let mut bed = Bed::new(config(8), 1, &[isolated]);
    for salt in ["a", "b"] {
        bed.disks[0].extend(prompt(salt.as_bytes()[0], 10));
        let found = scan(&prompt(salt.as_bytes()[0], 10), salt, None);
        bed.handle(Event::AdapterScanned { adapter: ONE, found: &found });
    }
    bed.handle(Event::AdapterScanEnded { adapter: ONE });
    bed.pass(SECOND);
    assert!(orders(&bed, is_delete).is_empty(), "without a quota nothing goes");
    operate(&mut bed, OperatorAsk::QuotaSet { salt: "a", bytes: 5 * OBJECT_BYTES });
    bed.pass(SECOND);
    bed.end_all();
    bed.pass(SECOND);
    bed.end_all();
    let left = |letter| prompt(letter, 10).iter().filter(|h| bed.disks[0].contains(*h)).count();
    assert_eq!((left(b'a'), left(b'b')), (3, 10), "below 0.8 of five");
    assert!(removed(&bed, L2Removal::Quota) > 0);
}

#[test]
fn i39_bytes_by_tenant_follow_what_was_there_already() {
    // The audit compares sums after every event; a foreign object of another size counts as it is.
    let mut bed = bed(config(8), &[own("one", 10)]);
    store(&mut bed, &prompt(b'a', 2));
    end_store(&mut bed, StoreOutcome::Present { bytes: 3 * OBJECT_BYTES });
    end_store(&mut bed, StoreOutcome::Present { bytes: OBJECT_BYTES });
    bed.end_all();
    assert_eq!(status(&bed, ONE).used_bytes, 4 * OBJECT_BYTES);
}

fn fail_stores(bed: &mut Bed, letter: u8) {
    store(bed, &prompt(letter, FAILURES_MAX));
    for _ in 0..FAILURES_MAX {
        end_store(bed, StoreOutcome::Failed(TierFault::Io));
    }
}

fn probe_at(bed: &Bed) -> Option<usize> {
    bed.orders.iter().position(|order| matches!(order, Order::Probe { .. }))
}

#[test]
fn f47_a_tier_that_fails_again_and_again_is_left_alone_until_a_trial_succeeds() {
    let mut bed = bed(config(64), &[own("one", 64)]);
    fail_stores(&mut bed, b'a');
    assert_eq!(status(&bed, ONE).state, AdapterState::Tripped);
    assert!(drops(&bed, ONE, StoreDrop::Tripped) >= 5, "nobody waits for it");
    store(&mut bed, &prompt(b'b', 3));
    assert!(orders(&bed, is_store).is_empty());
    assert_eq!(drops(&bed, ONE, StoreDrop::Tripped), 8);
    bed.orders.clear();
    bed.pass(SECOND);
    let at = probe_at(&bed).expect("one trial");
    let ticket = bed.orders.remove(at).ticket();
    bed.handle(Event::ProbeEnded { ticket, found: None });
    bed.pass(SECOND);
    assert_eq!(probe_at(&bed), None, "the second wait is longer");
    bed.pass(SECOND);
    let at = probe_at(&bed).expect("the second trial");
    let ticket = bed.orders.remove(at).ticket();
    bed.handle(Event::ProbeEnded { ticket, found: Some(&[]) });
    assert_eq!(status(&bed, ONE).state, AdapterState::Ready);
    store(&mut bed, &prompt(b'c', 2));
    assert_eq!(orders(&bed, is_store).len(), 2);
    // At the edge: one more failure is enough.
    end_store(&mut bed, StoreOutcome::Failed(TierFault::Io));
    assert_eq!(status(&bed, ONE).state, AdapterState::Tripped);
}

#[test]
fn f47_a_full_device_is_no_broken_one() {
    let mut bed = bed(config(64), &[own("one", 64)]);
    store(&mut bed, &prompt(b'a', 10));
    bed.end_all();
    store(&mut bed, &prompt(b'b', 1));
    end_store(&mut bed, StoreOutcome::Failed(TierFault::NoSpace));
    assert_eq!(status(&bed, ONE).state, AdapterState::Ready);
    assert_eq!(status(&bed, ONE).care.counts.no_space, 1);
    assert!(orders(&bed, is_store).is_empty(), "it stores nothing while it makes room");
    assert!(!orders(&bed, is_delete).is_empty());
    bed.end_all();
    assert!(bed.disks[0].contains(&prompt(b'b', 1)[0]), "it was tried once more");
    store(&mut bed, &prompt(b'c', 1));
    for _ in 0..2 {
        end_store(&mut bed, StoreOutcome::Failed(TierFault::NoSpace));
        while let Some(at) = orders(&bed, is_delete).first() {
            bed.end(*at);
        }
    }
    assert_eq!(drops(&bed, ONE, StoreDrop::NoRoom), 1);
    bed.end_all();
    assert!(bed.engine.is_quiet());
}

#[test]
fn i33_an_adapter_leaves_when_its_last_order_has_ended() {
    let mut bed = bed(config(64), &[AdapterSetup { stores_max: 1, ..own("one", 64) }]);
    store(&mut bed, &prompt(b'a', 4));
    operate(&mut bed, OperatorAsk::AdapterRemove { adapter: ONE });
    bed.work();
    assert_eq!(status(&bed, ONE).state, AdapterState::Draining);
    assert_eq!(drops(&bed, ONE, StoreDrop::Draining), 3);
    store(&mut bed, &prompt(b'b', 4));
    assert_eq!(orders(&bed, is_store).len(), 1, "no new task");
    bed.end_all();
    bed.work();
    assert!(bed.engine.adapters_status().is_empty());
    let gone = |fact: &Fact| matches!(fact, Fact::AdapterChanged { state: AdapterState::Gone, .. });
    assert_eq!(bed.find_told(gone), 1);
    assert_eq!(bed.closed, [ONE]);
    assert!(bed.engine.is_quiet());
    operate(&mut bed, OperatorAsk::AdapterRemove { adapter: ONE });
    assert_eq!(bed.operator_answers.last(), Some(&OperatorAnswer::Removed(false)));
    bed.handle(Event::AdapterAdded { adapter: AdapterId(1), setup: own("next", 64) });
    bed.disks.push(Default::default());
    store(&mut bed, &prompt(b'c', 1));
    bed.end_all();
    assert_eq!(status(&bed, AdapterId(1)).objects, 1);
}

#[test]
fn r29_an_adapter_that_is_read_from_does_not_leave_before_that_ends() {
    let mut bed = Bed::new(config(8), 1, &[setup("one")]);
    let hashes = prompt(b'a', 2);
    bed.disks[0].extend(hashes.iter().copied());
    bed.lookup("reader", 1, &hashes);
    bed.end(0);
    assert!(bed.orders.iter().any(|order| matches!(order, Order::Load { .. })));
    operate(&mut bed, OperatorAsk::AdapterRemove { adapter: ONE });
    bed.work();
    assert_eq!(bed.closed, []);
    bed.end_all();
    bed.pass(SECOND);
    assert_eq!(bed.closed, [ONE]);
    assert_eq!(bed.query("reader"), Some(2), "what was on its way has come");
}

#[test]
fn a_scrub_puts_aside_what_is_not_what_it_was() {
    let scrubbed = AdapterSetup { scrub_bytes_per_second: 2 * OBJECT_BYTES, ..own("one", 64) };
    let mut bed = Bed::new(config(8), 1, &[scrubbed]);
    let hashes = prompt(b'a', 3);
    bed.disks[0].extend(hashes.iter().copied());
    let found = scan(&hashes, "", Some(Seal { digest: 7, layout: 1 }));
    bed.handle(Event::AdapterScanned { adapter: ONE, found: &found });
    bed.handle(Event::AdapterScanEnded { adapter: ONE });
    bed.pass(SECOND);
    let scrubs = orders(&bed, |effect| matches!(effect, Effect::Scrub { .. }));
    assert_eq!(scrubs.len(), 2, "no more than may be read in a second");
    let ticket = bed.orders.remove(scrubs[1]).ticket();
    bed.handle(Event::ScrubEnded { ticket, digest: Some(8) });
    let ticket = bed.orders.remove(scrubs[0]).ticket();
    bed.handle(Event::ScrubEnded { ticket, digest: Some(7) });
    let aside =
        orders(&bed, |effect| matches!(effect, Effect::DeleteObject { quarantine: true, .. }));
    assert_eq!(aside.len(), 1);
    assert_eq!(status(&bed, ONE).care.counts.quarantined, 1);
    // The device cannot put it aside: it is not served all the same, and tried again.
    let ticket = bed.orders.remove(aside[0]).ticket();
    bed.handle(Event::DeleteEnded { ticket, outcome: DeleteOutcome::Failed(TierFault::Io) });
    bed.lookup("reader", 1, &hashes[1..2]);
    assert_eq!(bed.query("reader"), Some(0));
    bed.pass(SECOND);
    bed.end_all();
    assert_eq!(removed(&bed, L2Removal::Digest), 1);
    bed.ask(Ask::EndSession { request: "reader", hashes: &[] });
}
