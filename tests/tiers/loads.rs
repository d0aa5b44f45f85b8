//! What a lookup gets from below L1, and what it costs nobody else.

use crate::bed::{Bed, Order, config, digest_of, hash, prompt, setup};
use kvtide_core::config::PrefetchPolicy;
use kvtide_core::event::{Ask, Event, LoadOutcome, TierFault};
use kvtide_core::fact::{Fact, L2LoadEnd, LookupStop, Removal};
use kvtide_core::names::AdapterId;
use kvtide_core::time::Duration;

fn stop_of(bed: &Bed) -> Option<(u32, u32, LookupStop)> {
    bed.told.iter().rev().find_map(|(fact, _)| match fact {
        Fact::LookupTaken { hit_chunks, l1_hit_chunks, stop, .. } => {
            Some((*hit_chunks, *l1_hit_chunks, *stop))
        }
        _ => None,
    })
}

/// A bed above one shared disk that holds chunks `0..chunks` of prompt `a`.
fn stocked(chunks: u32) -> Bed {
    let mut bed = Bed::new(config(64), 1, &[setup("fs")]);
    bed.disks[0].extend(prompt(b'a', chunks));
    bed
}

#[test]
fn a_prefix_that_lies_on_disk_is_loaded_and_found() {
    let mut bed = stocked(20);
    bed.lookup("r", 1, &prompt(b'a', 30));
    assert_eq!(bed.query("r"), None, "it is still asked for");
    bed.end_all();
    assert_eq!(bed.query("r"), Some(20));
    assert_eq!(stop_of(&bed), Some((20, 0, LookupStop::Absent)));
}

#[test]
fn i27_what_is_in_l1_behind_a_hole_counts() {
    let mut bed = Bed::new(config(64), 1, &[setup("fs")]);
    let whole = prompt(b'a', 10);
    // Chunks 4..10 come into L1 by another lookup's load while chunks 0..4 leave it.
    bed.disks[0].extend(&whole);
    bed.lookup("other", 1, &whole);
    bed.end_all();
    assert_eq!(bed.query("other"), Some(10));
    let keys = Bed::keys("other", 1, None, &whole[..4]);
    bed.ask(Ask::FreeLookupLocks { keys });
    bed.work();
    bed.lookup("r", 1, &whole);
    bed.end_all();
    assert_eq!(bed.query("r"), Some(10));
    assert_eq!(stop_of(&bed).map(|(hit, l1, _)| (hit, l1)), Some((10, 0)));
}

#[test]
fn i34_two_lookups_of_one_chunk_share_its_load() {
    let mut bed = stocked(4);
    bed.lookup("one", 1, &prompt(b'a', 4));
    bed.end(0);
    let loads = bed.orders.len();
    assert_eq!(loads, 4, "one load for each chunk");
    bed.lookup("two", 1, &prompt(b'a', 4));
    assert_eq!(bed.orders.len(), loads, "nothing more is ordered");
    bed.end_all();
    assert_eq!((bed.query("one"), bed.query("two")), (Some(4), Some(4)));
}

#[test]
fn i25_a_chunk_that_cannot_be_read_ends_the_prefix_there() {
    let mut bed = stocked(6);
    bed.lookup("r", 1, &prompt(b'a', 6));
    bed.end(0);
    let third = bed.orders.iter().position(|order| match order {
        Order::Load { key, .. } => key.hash == hash(b'a', 2),
        _ => false,
    });
    let ticket = bed.orders.remove(third.expect("all are ordered")).ticket();
    bed.handle(Event::LoadEnded { ticket, outcome: LoadOutcome::Failed(TierFault::Io) });
    bed.end_all();
    assert_eq!(bed.query("r"), Some(2));
    assert_eq!(stop_of(&bed).map(|(_, _, stop)| stop), Some(LookupStop::TierError));
}

#[test]
fn other_bytes_than_those_stored_are_a_miss() {
    let mut bed = stocked(3);
    bed.handle(Event::AdapterScanEnded { adapter: AdapterId(0) });
    // The first load seals what is there, of which the scan has told nothing.
    bed.lookup("one", 1, &prompt(b'a', 3));
    bed.end_all();
    assert_eq!(bed.query("one"), Some(3));
    bed.ask(Ask::EndSession { request: "one", hashes: &[] });
    bed.pass(Duration::from_secs(10));
    bed.ask(Ask::Clear { force: true });
    bed.work();
    bed.lookup("two", 1, &prompt(b'a', 3));
    while let Some(at) = bed.orders.iter().position(|order| !matches!(order, Order::Digest { .. }))
    {
        bed.end(at);
    }
    let Order::Digest { ticket, key, .. } = bed.orders.remove(1) else { panic!("digests only") };
    bed.handle(Event::DigestEnded { ticket, digest: digest_of(&key) ^ 1 });
    bed.end_all();
    assert_eq!(bed.query("two"), Some(1));
    let mismatches =
        bed.find_told(|fact| matches!(fact, Fact::L2LoadEnded { end: L2LoadEnd::Digest, .. }));
    assert_eq!(mismatches, 1);
}

#[test]
fn f47_a_load_that_never_ends_costs_its_lookup_a_bounded_time_and_no_memory() {
    let mut bed = stocked(2);
    bed.lookup("r", 1, &prompt(b'a', 2));
    bed.end(0);
    let Order::Load { ticket, .. } = bed.orders[1] else { panic!("two loads") };
    bed.end(0);
    bed.end(1);
    assert_eq!(bed.query("r"), None);
    bed.pass(Duration::from_secs(6));
    assert_eq!(bed.query("r"), Some(1));
    assert!(bed.cancelled.contains(&ticket), "it is told that nobody waits");
    assert_eq!(bed.engine.status().condemned_objects, 1, "the disk may still write to it (I-2)");
    bed.end_all();
    assert_eq!(bed.engine.status().condemned_objects, 0);
}

#[test]
fn f47_an_adapter_that_never_answers_is_not_waited_for() {
    let mut bed = Bed::new(config(64), 1, &[setup("hung"), setup("fs")]);
    bed.disks[1].extend(prompt(b'a', 3));
    bed.lookup("r", 1, &prompt(b'a', 3));
    let second = bed
        .orders
        .iter()
        .position(|order| matches!(order, Order::Probe { adapter, .. } if adapter.0 == 1));
    bed.end(second.expect("both are asked"));
    bed.pass(Duration::from_secs(3));
    while let Some(at) = bed.orders.iter().position(|order| !matches!(order, Order::Probe { .. })) {
        bed.end(at);
    }
    assert_eq!(bed.query("r"), Some(3));
}

#[test]
fn r26_a_session_that_ends_while_it_loads_leaves_nothing() {
    let mut bed = stocked(8);
    bed.lookup("r", 1, &prompt(b'a', 8));
    bed.end(0);
    bed.end(0);
    bed.ask(Ask::EndSession { request: "r", hashes: &[] });
    bed.work();
    bed.end_all();
    bed.pass(Duration::from_secs(10));
    assert!(bed.engine.is_quiet());
}

#[test]
fn i12_a_new_lookup_under_the_same_id_ends_the_seek_of_the_old_one() {
    let mut bed = stocked(8);
    bed.lookup("r", 1, &prompt(b'a', 8));
    bed.end(0);
    bed.lookup("r", 1, &prompt(b'b', 8));
    bed.end_all();
    assert_eq!(bed.query("r"), Some(0));
    bed.ask(Ask::EndSession { request: "r", hashes: &[] });
    bed.pass(Duration::from_secs(10));
    assert!(bed.engine.is_quiet());
}

#[test]
fn i09_what_was_loaded_for_one_lookup_leaves_with_its_leases() {
    let mut bed = stocked(4);
    bed.lookup("r", 1, &prompt(b'a', 4));
    bed.end_all();
    assert_eq!(bed.query("r"), Some(4));
    bed.ask(Ask::FreeLookupLocks { keys: Bed::keys("r", 1, None, &prompt(b'a', 4)) });
    bed.work();
    assert_eq!(bed.engine.status().objects, 0);
    let gone = bed.find_told(|fact| matches!(fact, Fact::Evicted { why: Removal::Temporary, .. }));
    assert_eq!(gone, 4);
}

#[test]
fn what_is_wanted_a_second_time_stays() {
    let mut bed = stocked(4);
    for request in ["one", "two"] {
        bed.lookup(request, 1, &prompt(b'a', 4));
        bed.end_all();
        bed.ask(Ask::FreeLookupLocks { keys: Bed::keys(request, 1, None, &prompt(b'a', 4)) });
        bed.work();
    }
    assert_eq!(bed.engine.status().objects, 4);
}

#[test]
fn retain_keeps_what_was_loaded_once() {
    let mut config = config(64);
    config.prefetch_policy = PrefetchPolicy::Retain;
    let mut bed = Bed::new(config, 1, &[setup("fs")]);
    bed.disks[0].extend(prompt(b'a', 4));
    bed.lookup("r", 1, &prompt(b'a', 4));
    bed.end_all();
    bed.ask(Ask::FreeLookupLocks { keys: Bed::keys("r", 1, None, &prompt(b'a', 4)) });
    bed.work();
    assert_eq!(bed.engine.status().objects, 4);
}

#[test]
fn f16_the_longest_prefix_that_fits_is_loaded() {
    let mut bed = Bed::new(config(8), 1, &[setup("fs")]);
    bed.disks[0].extend(prompt(b'a', 12));
    bed.lookup("r", 1, &prompt(b'a', 12));
    bed.end_all();
    assert_eq!(bed.query("r"), Some(8));
    assert_eq!(stop_of(&bed).map(|(_, _, stop)| stop), Some(LookupStop::NoRoom));
}

#[test]
fn i32_lookups_beyond_the_limit_wait_for_their_turn() {
    let mut config = config(64);
    config.prefetch_max = 1;
    let mut bed = Bed::new(config, 1, &[setup("fs")]);
    bed.disks[0].extend(prompt(b'a', 2));
    bed.disks[0].extend(prompt(b'b', 2));
    bed.lookup("one", 1, &prompt(b'a', 2));
    bed.lookup("two", 1, &prompt(b'b', 2));
    assert_eq!(bed.orders.len(), 1, "only the first asks");
    bed.end_all();
    assert_eq!((bed.query("one"), bed.query("two")), (Some(2), Some(2)));
}

#[test]
fn i28_a_chunk_counts_only_when_every_rank_has_it() {
    let mut bed = Bed::new(config(64), 2, &[setup("fs")]);
    bed.disks[0].extend(prompt(b'a', 3));
    bed.lookup("r", 2, &prompt(b'a', 5));
    bed.end_all();
    assert_eq!(bed.query("r"), Some(3));
}

#[test]
fn f47_what_one_tier_has_is_loaded_while_another_does_not_answer() {
    for hangs in [0, 1] {
        let mut bed = Bed::new(config(64), 1, &[setup("first"), setup("second")]);
        bed.disks[1 - hangs].extend(prompt(b'a', 4));
        bed.lookup("r", 1, &prompt(b'a', 4));
        let is_probe = |order: &Order| matches!(order, Order::Probe { .. });
        assert!(bed.orders.len() == 2 && bed.orders.iter().all(is_probe), "{:?}", bed.orders);
        bed.end(1 - hangs);
        let loads = bed.orders.iter().filter(|order| !is_probe(order)).count();
        assert!(loads > 0, "the prefix is decided: {:?}", bed.orders);
        while let Some(at) = bed.orders.iter().position(|order| !is_probe(order)) {
            bed.end(at);
        }
        assert_eq!(bed.query("r"), Some(4), "nothing is left to ask for");
    }
}

#[test]
fn lower_tiers_are_asked_in_their_order() {
    let mut bed = Bed::new(config(64), 1, &[setup("first"), setup("second")]);
    bed.disks[0].extend(prompt(b'a', 2));
    bed.disks[1].extend(prompt(b'a', 4));
    bed.lookup("r", 1, &prompt(b'a', 4));
    bed.end(0);
    bed.end(0);
    let from: Vec<u16> = bed
        .orders
        .iter()
        .map(|order| match order {
            Order::Load { adapter, .. } => adapter.0,
            other => panic!("loads only: {other:?}"),
        })
        .collect();
    assert_eq!(from, [0, 0, 1, 1]);
    bed.end_all();
    assert_eq!(bed.query("r"), Some(4));
}
