//! What may come between two steps of a load, of a store below L1 or of a delete there, and must
//! not matter.

use crate::bed::{Bed, OBJECT_BYTES, Order, config, digest_of, layout, prompt, setup};
use crate::shelves::{SECOND, operate, scan};
use crate::stores::{ONE, bed, end_store, is_delete, is_store, orders, own, status, store};
use kvtide_core::config::AdapterSetup;
use kvtide_core::effect::{Answer, Effect, Note, OperatorAnswer};
use kvtide_core::event::{
    Ask, Event, Found, LoadOutcome, Named, OperatorAsk, StoreOutcome, TierFault,
};
use kvtide_core::fact::{Fact, FactKey, L2LoadEnd, L2Removal, PrefetchFailure};
use kvtide_core::names::{ChunkHash, InstanceId, KvRank, Seal};
use kvtide_core::time::Duration;

/// A bed above one disk of its own that holds these objects, the first of them the oldest.
fn scanned(objects: u64, setup: AdapterSetup<'_>, hashes: &[ChunkHash]) -> Bed {
    let mut bed = Bed::new(config(objects), 1, &[setup]);
    bed.disks[0].extend(hashes);
    bed.handle(Event::AdapterScanned { adapter: ONE, found: &scan(hashes, "", None) });
    bed.handle(Event::AdapterScanEnded { adapter: ONE });
    bed
}

/// What is being read from below.
fn loads(bed: &Bed) -> Vec<ChunkHash> {
    let read = bed.orders.iter().filter_map(|order| match order {
        Order::Load { key, .. } => Some(key.hash),
        _ => None,
    });
    read.collect()
}

/// What is being taken away below.
fn deletes(bed: &Bed) -> Vec<ChunkHash> {
    let gone = bed.orders.iter().filter_map(|order| match order {
        Order::Other { effect: Effect::DeleteObject { key, .. }, .. } => Some(key.hash),
        _ => None,
    });
    gone.collect()
}

fn first(bed: &Bed, is_it: fn(&Order) -> bool) -> usize {
    bed.orders.iter().position(is_it).expect("there is such an order")
}

fn is_load(order: &Order) -> bool {
    matches!(order, Order::Load { .. })
}

fn is_probe(order: &Order) -> bool {
    matches!(order, Order::Probe { .. })
}

fn is_digest(order: &Order) -> bool {
    matches!(order, Order::Digest { .. })
}

/// Ends every load that is on its way in this way.
fn end_loads(bed: &mut Bed, outcome: LoadOutcome) {
    for _ in 0..loads(bed).len() {
        let ticket = bed.orders.remove(first(bed, is_load)).ticket();
        bed.handle(Event::LoadEnded { ticket, outcome });
    }
    bed.work();
}

fn end_deletes(bed: &mut Bed) {
    while let Some(at) = orders(bed, is_delete).first() {
        bed.end(*at);
    }
}

/// A request is over, and L1 keeps nothing of it.
fn leave(bed: &mut Bed, request: &str) {
    bed.ask(Ask::EndSession { request, hashes: &[] });
    bed.pass(Duration::from_secs(10));
    bed.ask(Ask::Clear { force: false });
    bed.work();
    assert_eq!(bed.engine.status().objects, 0);
}

/// An operator wants an object below to go. How many do, and how many are held.
fn delete_below(bed: &mut Bed, hash: ChunkHash) -> (u32, u32) {
    let rank = KvRank::of(1, 0).expect("a world of one");
    let key = Named { model: "llama", salt: "", rank, group: 0, hash };
    operate(bed, OperatorAsk::Delete { key, from_l1: false, adapter: Some(ONE), force: false });
    bed.work();
    match bed.operator_answers.last() {
        Some(OperatorAnswer::Deleted { deleted, skipped }) => (*deleted, *skipped),
        other => panic!("no answer of a delete: {other:?}"),
    }
}

fn leased_objects(bed: &Bed) -> u64 {
    match bed.engine.gauges() {
        Fact::Gauges(gauges) => gauges.l1_leased_bytes / OBJECT_BYTES,
        other => panic!("no gauges: {other:?}"),
    }
}

fn stored_notes(bed: &Bed) -> Vec<Option<Seal>> {
    let stored = bed.notes.iter().filter_map(|note| match note {
        Note::Stored { seal, .. } => Some(*seal),
        Note::Used | Note::Removed => None,
    });
    stored.collect()
}

/// R-20: what had been loaded was published first and leased in a second step, and eviction came in
/// between.
#[test]
fn i8_r20_what_was_loaded_is_leased_in_the_step_that_publishes_it() {
    let mut bed = Bed::new(config(4), 1, &[setup("fs")]);
    let hashes = prompt(b'a', 4);
    bed.disks[0].extend(&hashes);
    bed.lookup("r", 1, &hashes);
    bed.end(0);
    while !loads(&bed).is_empty() {
        bed.end(first(&bed, is_load));
    }
    for published in 1..=4 {
        let Order::Digest { ticket, key, .. } = bed.orders.remove(0) else {
            panic!("digests only")
        };
        let before = bed.told.len();
        bed.handle(Event::DigestEnded { ticket, digest: digest_of(&key) });
        assert_eq!(leased_objects(&bed), published, "in the same event");
        let is_of = |keys: &[FactKey]| keys.iter().any(|found| found.hash == key.hash);
        let told = bed.told[before..].iter().filter(|(_, keys)| is_of(keys));
        let told: Vec<&Fact> = told.map(|(fact, _)| fact).collect();
        assert!(told.iter().any(|fact| matches!(fact, Fact::WriteFinished { .. })));
        // Leases are told of with the result, which stands with the last one.
        let is_told = told.iter().any(|fact| matches!(fact, Fact::ReadReserved { .. }));
        assert_eq!(is_told, published == 4);
        // L1 is full, a writer wants room, and a tick wants to be below the mark.
        store(&mut bed, &prompt(b'b', 1));
        bed.pass(SECOND);
    }
    assert_eq!(bed.find_told(|fact| matches!(fact, Fact::Evicted { .. })), 0);
    assert_eq!(bed.query("r"), Some(4));
}

/// R-22: what a lookup was promised from below was evicted there before it was read.
#[test]
fn i23_r22_what_a_lookup_is_to_load_is_not_evicted_below_before_it_has_come() {
    let (old, young) = (prompt(b'a', 4), prompt(b'b', 4));
    let tier = AdapterSetup { loads_max: 1, ..own("one", 8) };
    let mut bed = scanned(32, tier, &[old.clone(), young.clone()].concat());
    bed.lookup("r", 1, &old);
    assert_eq!(loads(&bed), old[..1], "three wait for a credit");
    // The oldest of a full tier: for the watermark, and for a store that lacks room.
    bed.pass(SECOND);
    store(&mut bed, &prompt(b'c', 8));
    for _ in 0..2 {
        end_deletes(&mut bed);
        bed.pass(SECOND);
    }
    assert!(old.iter().all(|hash| bed.disks[0].contains(hash)));
    assert!(young.iter().any(|hash| !bed.disks[0].contains(hash)), "something had to go");
    // What an operator takes away goes when it has been read.
    end_deletes(&mut bed);
    assert_eq!(delete_below(&mut bed, old[3]), (1, 0));
    assert_eq!(deletes(&bed), []);
    bed.end_all();
    assert_eq!(bed.query("r"), Some(4));
    assert!(!bed.disks[0].contains(&old[3]));
}

/// I-24: in the peer, locks that a request had taken below outlived it, and its tier filled up with
/// what could not go.
#[test]
fn i24_nothing_below_stays_held_after_a_lookup_however_it_ends() {
    let hashes = prompt(b'a', 6);
    for way in ["loaded", "failed", "stalled", "ended", "replaced", "forced"] {
        let tier = AdapterSetup { watermark_ppm: 1_000_000, loads_max: 4, ..own("one", 7) };
        let mut bed = scanned(32, tier, &hashes);
        bed.lookup("r", 1, &hashes);
        assert_eq!(loads(&bed).len(), 4, "two wait for a credit");
        match way {
            "loaded" => bed.end_all(),
            "failed" => end_loads(&mut bed, LoadOutcome::Failed(TierFault::Cancelled)),
            "stalled" => bed.pass(Duration::from_secs(6)),
            "ended" => drop(bed.ask(Ask::EndSession { request: "r", hashes: &[] })),
            "replaced" => bed.lookup("r", 1, &prompt(b'z', 1)),
            _ => drop(bed.ask(Ask::Clear { force: true })),
        }
        bed.end_all();
        bed.ask(Ask::EndSession { request: "r", hashes: &[] });
        bed.pass(Duration::from_secs(10));
        assert!(bed.engine.is_quiet(), "{way}");
        let others = prompt(b'b', 7);
        store(&mut bed, &others);
        bed.end_all();
        let left = others.iter().filter(|hash| bed.disks[0].contains(*hash)).count();
        assert_eq!((left, bed.disks[0].len()), (7, 7), "{way}: all of it could go");
    }
}

/// R-24: a load that was given up had unlocked its object below at once; the next one took its
/// place there while the device was still reading.
#[test]
fn i31_r24_what_is_read_below_for_nobody_is_not_deleted_before_its_ticket_has_ended() {
    let hashes = prompt(b'a', 1);
    let mut bed = scanned(8, own("one", 4), &hashes);
    bed.lookup("r", 1, &hashes);
    bed.ask(Ask::EndSession { request: "r", hashes: &[] });
    assert_eq!((loads(&bed).len(), bed.cancelled.len()), (1, 1), "given up, and not ended");
    assert_eq!(delete_below(&mut bed, hashes[0]), (1, 0));
    bed.pass(Duration::from_secs(4));
    assert_eq!(deletes(&bed), [], "it is being read");
    bed.lookup("next", 1, &hashes);
    assert_eq!(bed.query("next"), Some(0), "it is not offered any more");
    end_loads(&mut bed, LoadOutcome::Loaded);
    assert_eq!(deletes(&bed), hashes);
    bed.end_all();
    assert_eq!((bed.disks[0].len(), status(&bed, ONE).objects), (0, 0));
}

/// The same for a load that took too long, and for eviction.
#[test]
fn i31_r24_what_a_stalled_load_reads_below_is_not_evicted_before_its_ticket_has_ended() {
    let hashes = prompt(b'a', 2);
    let mut bed = scanned(8, own("one", 2), &hashes);
    bed.lookup("r", 1, &hashes[..1]);
    bed.pass(Duration::from_secs(6));
    assert_eq!((bed.query("r"), bed.cancelled.len()), (Some(0), 1));
    store(&mut bed, &prompt(b'b', 2));
    for _ in 0..4 {
        assert!(!deletes(&bed).contains(&hashes[0]), "it is being read");
        end_deletes(&mut bed);
        bed.pass(SECOND);
    }
    assert!(bed.disks[0].contains(&hashes[0]));
    assert!(!bed.disks[0].contains(&hashes[1]), "the other one, which is younger, went");
    end_loads(&mut bed, LoadOutcome::Loaded);
    for _ in 0..4 {
        bed.end_all();
        bed.pass(SECOND);
    }
    assert!(!bed.disks[0].contains(&hashes[0]));
}

/// F29: after a load that had found nothing, the tier was still believed to have it, and every
/// lookup tried anew.
#[test]
fn i47_f29_what_is_gone_or_of_another_size_is_a_miss_until_it_is_stored_anew() {
    let hashes = prompt(b'a', 3);
    for outcome in [LoadOutcome::Absent, LoadOutcome::OtherSize { bytes: 4096 }] {
        let mut bed = scanned(8, own("one", 64), &hashes);
        bed.disks[0].remove(&hashes[1]);
        bed.lookup("one", 1, &hashes);
        let second = |order: &Order| matches!(order, Order::Load { key, .. } if key.hash.0[4] == 1);
        let ticket = bed.orders.remove(first(&bed, second)).ticket();
        bed.handle(Event::LoadEnded { ticket, outcome });
        bed.end_all();
        assert_eq!(bed.query("one"), Some(1));
        leave(&mut bed, "one");
        bed.lookup("two", 1, &hashes);
        assert_eq!(loads(&bed), hashes[..1], "it is not tried again");
        bed.end_all();
        assert_eq!(bed.query("two"), Some(1));
        leave(&mut bed, "two");
        store(&mut bed, &hashes);
        bed.end_all();
        assert!(bed.disks[0].contains(&hashes[1]));
        bed.ask(Ask::Clear { force: false });
        bed.work();
        bed.lookup("three", 1, &hashes);
        bed.end_all();
        assert_eq!(bed.query("three"), Some(3));
    }
}

/// A tier that others write to as well is asked again, and believed once for every lookup.
#[test]
fn f29_after_a_load_that_found_nothing_a_tier_is_asked_first_and_tried_once() {
    let mut bed = bed(config(8), &[setup("fs")]);
    let hashes = prompt(b'a', 2);
    bed.disks[0].extend(&hashes);
    bed.lookup("one", 1, &hashes);
    bed.end(0);
    bed.disks[0].clear();
    bed.end_all();
    assert_eq!(bed.query("one"), Some(0));
    // It says that it is there, and it is not.
    bed.lookup("two", 1, &hashes);
    assert_eq!(loads(&bed), [], "it is asked first");
    let ticket = bed.orders.remove(first(&bed, is_probe)).ticket();
    let found = [Some(Found::of(OBJECT_BYTES)); 2];
    bed.handle(Event::ProbeEnded { ticket, found: Some(&found) });
    bed.work();
    assert_eq!(loads(&bed), hashes);
    end_loads(&mut bed, LoadOutcome::Absent);
    assert_eq!(bed.orders, [], "it is not tried again for the same lookup");
    assert_eq!(bed.query("two"), Some(0));
    // It says that nothing is there.
    bed.lookup("three", 1, &hashes);
    assert_eq!(loads(&bed), []);
    bed.end_all();
    assert_eq!(bed.query("three"), Some(0));
    let read = |fact: &Fact| matches!(fact, Fact::L2LoadSubmitted { .. });
    assert_eq!(bed.find_told(read), 2, "once for each time that it said so");
}

#[test]
fn i47_a_file_that_a_crash_cut_short_is_not_offered() {
    let hashes = prompt(b'a', 3);
    let mut bed = Bed::new(config(8), 1, &[own("one", 64)]);
    bed.disks[0].extend(&hashes);
    let mut found = scan(&hashes, "", None);
    found[1].bytes = OBJECT_BYTES / 2;
    bed.handle(Event::AdapterScanned { adapter: ONE, found: &found });
    bed.handle(Event::AdapterScanEnded { adapter: ONE });
    bed.lookup("r", 1, &hashes);
    assert_eq!(loads(&bed), hashes[..1]);
    bed.end_all();
    assert_eq!(bed.query("r"), Some(1));
}

/// R-7: a reservation had a deadline of its own, ran out while it was being loaded, and a hit was
/// told of what nobody held.
#[test]
fn r07_no_deadline_publishes_or_finds_what_is_still_being_loaded() {
    let mut config = config(8);
    config.write_ttl = Duration::from_secs(1);
    let slow = AdapterSetup { load_deadline: Duration::from_secs(600), ..own("one", 64) };
    let hashes = prompt(b'a', 1);
    let mut bed = Bed::new(config, 1, &[slow]);
    bed.disks[0].extend(&hashes);
    bed.handle(Event::AdapterScanned { adapter: ONE, found: &scan(&hashes, "", None) });
    bed.handle(Event::AdapterScanEnded { adapter: ONE });
    bed.lookup("one", 1, &hashes);
    bed.pass(Duration::from_secs(10));
    bed.lookup("two", 1, &hashes);
    assert_eq!((bed.query("one"), bed.query("two")), (None, None));
    let aborted = |fact: &Fact| matches!(fact, Fact::WriteAborted { .. });
    assert_eq!(bed.find_told(aborted), 0, "its reservation lasts as long as its load");
    bed.pass(Duration::from_secs(31));
    assert_eq!((bed.query("one"), bed.query("two")), (Some(0), Some(0)));
    assert_eq!((bed.find_told(aborted), bed.engine.status().condemned_objects), (1, 1));
    // It comes for nobody.
    end_loads(&mut bed, LoadOutcome::Loaded);
    let published = |fact: &Fact| matches!(fact, Fact::WriteFinished { .. });
    assert_eq!(bed.find_told(published), 0);
    bed.lookup("three", 1, &hashes);
    assert_eq!((bed.query("three"), loads(&bed)), (None, hashes), "L1 has nothing of it");
}

/// R-8: buffers of loads were given back when their request was aborted, and the disk wrote into
/// whatever lay there next.
#[test]
fn r08_memory_that_is_loaded_into_for_nobody_is_not_given_away_before_that_ends() {
    let hashes = prompt(b'a', 4);
    let mut bed = scanned(4, own("one", 64), &hashes);
    bed.lookup("r", 1, &hashes);
    // One is being read by whoever makes its digest, three are being written by the disk.
    bed.end(0);
    assert_eq!((loads(&bed).len(), bed.orders.iter().any(is_digest)), (3, true));
    bed.ask(Ask::EndSession { request: "r", hashes: &[] });
    for in_use in (1..=4).rev() {
        bed.pass(SECOND);
        assert_eq!(bed.engine.status().condemned_objects, in_use);
        let (instance, other) = (InstanceId(0), prompt(b'b', 4));
        let keys = Bed::keys("store", 1, Some(0), &other[..(5 - in_use) as usize]);
        let prepared = bed.ask(Ask::PrepareStore { instance, keys });
        match bed.answers[&prepared] {
            Answer::NoContext if in_use == 4 => {}
            Answer::StoreSlots { slots, .. } if in_use < 4 => {
                assert_eq!(slots.end - slots.start, 1)
            }
            other => panic!("{in_use} in use: {other:?}"),
        }
        bed.end(bed.orders.len() - 1);
    }
    assert_eq!(bed.engine.status().condemned_objects, 0);
    assert_eq!(bed.find_told(|fact| matches!(fact, Fact::WriteFinished { .. })), 0);
}

/// R-9: a lookup below that ended after its request took locks that nobody gave back.
#[test]
fn r09_a_session_that_ends_while_tiers_are_asked_leaves_nothing() {
    let mut bed = Bed::new(config(8), 1, &[setup("one"), setup("two")]);
    let hashes = prompt(b'a', 4);
    bed.disks[1].extend(&hashes);
    bed.lookup("r", 1, &hashes);
    assert_eq!(bed.orders.len(), 2, "both are asked");
    bed.end(0);
    bed.ask(Ask::EndSession { request: "r", hashes: &[] });
    assert!(bed.cancelled.contains(&bed.orders[0].ticket()));
    bed.end(0);
    assert_eq!(bed.orders, [], "nothing is loaded for nobody");
    assert_eq!((bed.engine.status().objects, bed.engine.status().used_bytes), (0, 0));
    bed.pass(Duration::from_secs(10));
    assert!(bed.engine.is_quiet());
    operate(&mut bed, OperatorAsk::AdapterRemove { adapter: ONE });
    bed.work();
    assert_eq!(bed.closed, [ONE], "nothing of it is held");
}

/// R-21: a key that came into L1 between plan and reservation was refused there, and the hit ended
/// before it.
#[test]
fn r21_a_key_that_is_stored_while_a_load_is_planned_is_there_once_for_both() {
    let hashes = prompt(b'a', 2);
    let objects = |bed: &Bed| bed.engine.status().objects;
    // The load is first: the writer has nothing to do.
    let mut loading = bed(config(8), &[setup("fs")]);
    loading.disks[0].extend(&hashes);
    loading.lookup("r", 1, &hashes);
    loading.end(0);
    store(&mut loading, &hashes);
    assert_eq!((objects(&loading), loads(&loading)), (2, hashes.clone()));
    loading.end_all();
    assert_eq!((loading.query("r"), objects(&loading)), (Some(2), 2));
    // The writer is first: the lookup does not wait for it, and loads nothing under its key.
    let mut writing = bed(config(8), &[setup("fs")]);
    writing.disks[0].extend(&hashes);
    let (instance, keys) = (InstanceId(0), Bed::keys("store", 1, Some(0), &hashes));
    writing.ask(Ask::PrepareStore { instance, keys });
    writing.lookup("r", 1, &hashes);
    writing.end_all();
    assert_eq!((writing.query("r"), objects(&writing)), (Some(0), 2));
    writing.ask(Ask::CommitStore { instance, keys, inline_bytes: 0 });
    writing.lookup("next", 1, &hashes);
    assert_eq!((writing.query("next"), loads(&writing)), (Some(2), vec![]));
    // The writer has come to its end by the time the tier says that it has them.
    let mut asking = bed(config(8), &[setup("fs")]);
    asking.disks[0].extend(&hashes);
    asking.lookup("r", 1, &hashes);
    store(&mut asking, &hashes);
    asking.end(first(&asking, is_probe));
    assert_eq!((asking.query("r"), loads(&asking)), (Some(2), vec![]));
    asking.end_all();
    assert_eq!(objects(&asking), 2);
}

/// R-23: a slot below was given back by a delete while it was still being written.
#[test]
fn r23_what_is_being_stored_below_is_neither_deleted_nor_read_before_it_is_whole() {
    let hashes = prompt(b'a', 1);
    let mut bed = bed(config(8), &[own("one", 1)]);
    store(&mut bed, &hashes);
    assert_eq!(orders(&bed, is_store).len(), 1);
    assert_eq!(delete_below(&mut bed, hashes[0]), (0, 1), "an operator is told that it is held");
    // Another one wants its place, and a tick wants the tier below its mark.
    store(&mut bed, &prompt(b'b', 1));
    bed.pass(SECOND);
    assert_eq!((deletes(&bed), orders(&bed, is_store).len()), (vec![], 1));
    bed.ask(Ask::Clear { force: true });
    bed.work();
    bed.lookup("early", 1, &hashes);
    assert_eq!((bed.query("early"), loads(&bed)), (Some(0), vec![]), "it is not whole");
    end_store(&mut bed, StoreOutcome::Stored);
    bed.disks[0].extend(&hashes);
    bed.lookup("late", 1, &hashes);
    assert_eq!(loads(&bed), hashes);
    bed.end_all();
    assert_eq!(bed.query("late"), Some(1));
}

/// The other way round: what is stored again while it is being taken away.
#[test]
fn r23_a_store_waits_for_the_delete_of_its_own_key() {
    let hashes = prompt(b'a', 1);
    let mut bed = scanned(8, own("one", 4), &hashes);
    assert_eq!(delete_below(&mut bed, hashes[0]), (1, 0));
    store(&mut bed, &hashes);
    assert_eq!((deletes(&bed), orders(&bed, is_store)), (hashes.clone(), vec![]));
    bed.end_all();
    assert!(bed.disks[0].is_empty());
    bed.pass(Duration::from_secs(3));
    bed.end_all();
    assert!(bed.disks[0].contains(&hashes[0]));
    assert_eq!(status(&bed, ONE).objects, 1);
}

#[test]
fn r30_what_waits_for_a_tier_that_leaves_is_not_loaded_and_its_lookup_is_answered() {
    let hashes = prompt(b'a', 3);
    let tier = AdapterSetup { loads_max: 1, ..own("one", 64) };
    let mut bed = scanned(8, tier, &hashes);
    bed.lookup("r", 1, &hashes);
    assert_eq!(loads(&bed), hashes[..1]);
    operate(&mut bed, OperatorAsk::AdapterRemove { adapter: ONE });
    bed.end(0);
    assert_eq!(loads(&bed), [], "it takes nothing new");
    bed.end_all();
    bed.pass(SECOND);
    assert_eq!(bed.query("r"), Some(1), "what was on its way has come");
    assert_eq!(bed.find_told(|fact| matches!(fact, Fact::L2LoadSubmitted { .. })), 1);
    bed.work();
    assert_eq!(bed.closed, [ONE]);
    leave(&mut bed, "r");
    assert!(bed.engine.is_quiet());
}

#[test]
fn r36_a_lookup_that_waits_when_the_last_tier_leaves_gets_what_l1_has() {
    let mut config = config(16);
    config.prefetch_max = 1;
    let mut bed = bed(config, &[setup("fs")]);
    let hashes = prompt(b'a', 4);
    store(&mut bed, &hashes[..2]);
    bed.end_all();
    bed.disks[0].extend(&hashes);
    bed.lookup("asks", 1, &prompt(b'b', 2));
    bed.lookup("waits", 1, &hashes);
    operate(&mut bed, OperatorAsk::AdapterRemove { adapter: ONE });
    bed.work();
    assert_eq!((bed.query("asks"), bed.query("waits")), (None, None));
    bed.end_all();
    assert_eq!((bed.query("asks"), bed.query("waits")), (Some(0), Some(2)));
    assert_eq!(bed.closed, [ONE]);
    bed.lookup("later", 1, &hashes);
    assert_eq!(bed.query("later"), Some(2));
}

/// F30: a hit was announced for what lay below though there was no room to load it to.
#[test]
fn f30_what_cannot_be_loaded_is_not_promised_and_says_why() {
    let mut bed = bed(config(4), &[setup("fs")]);
    let (held, below) = (prompt(b'a', 4), prompt(b'b', 2));
    store(&mut bed, &held);
    bed.end_all();
    bed.lookup("holds", 1, &held);
    assert_eq!(bed.query("holds"), Some(4));
    bed.disks[0].extend(&below);
    bed.lookup("r", 1, &below);
    bed.end_all();
    assert_eq!(bed.query("r"), Some(0));
    let why = bed.told.iter().find_map(|(fact, keys)| match fact {
        Fact::L2PrefetchFailed { why, .. } => Some((*why, keys[0].hash)),
        _ => None,
    });
    assert_eq!(why, Some((PrefetchFailure::L1Oom, below[0])));
}

/// An object that was found by asking, before the scan had told of it.
fn found_before_the_scan(hashes: &[ChunkHash]) -> Bed {
    let mut bed = Bed::new(config(8), 1, &[setup("fs")]);
    bed.disks[0].extend(hashes);
    bed.lookup("r", 1, hashes);
    bed.end(0);
    assert_eq!(loads(&bed), hashes);
    bed
}

/// F32: a load noted what it had found as the truth, over the digest that the scan was about to
/// tell.
#[test]
fn f32_a_seal_that_a_scan_tells_while_its_object_is_loaded_counts() {
    let hashes = prompt(b'a', 1);
    for (damage, hit) in [(0, 1), (1, 0)] {
        let mut bed = found_before_the_scan(&hashes);
        let Order::Load { key, .. } = bed.orders[0] else { panic!("one load") };
        let layout = layout().fingerprint();
        let seal = Seal { digest: digest_of(&key) ^ damage, layout };
        let found = scan(&hashes, "", Some(seal));
        bed.handle(Event::AdapterScanned { adapter: ONE, found: &found });
        bed.end(0);
        bed.end(first(&bed, is_digest));
        assert_eq!(bed.query("r"), Some(hit));
        let is_aside =
            |effect: &Effect| matches!(effect, Effect::DeleteObject { quarantine: true, .. });
        let damaged = (1 - hit) as usize;
        assert_eq!(orders(&bed, is_aside).len(), damaged);
        let mismatch =
            |fact: &Fact| matches!(fact, Fact::L2LoadEnded { end: L2LoadEnd::Digest, .. });
        assert_eq!(bed.find_told(mismatch), damaged);
        bed.end_all();
        let removed = |fact: &Fact| matches!(fact, Fact::L2Removed { why: L2Removal::Digest, .. });
        assert_eq!(bed.find_told(removed), damaged);
        assert_eq!(stored_notes(&bed), [], "what is known is not noted anew");
    }
}

#[test]
fn f32_a_load_notes_its_own_seal_only_after_a_scan_that_told_all() {
    let hashes = prompt(b'a', 2);
    let whole = || AdapterSetup { is_shared: true, ..own("one", 64) };
    let small = || AdapterSetup { objects_max: 2, ..whole() };
    for (tier, is_told_all) in [(whole(), true), (small(), false)] {
        let mut bed = Bed::new(config(8), 1, &[tier]);
        bed.disks[0].extend(&hashes);
        bed.lookup("early", 1, &hashes[..1]);
        bed.end_all();
        assert_eq!(bed.query("early"), Some(1));
        assert_eq!(stored_notes(&bed), [], "what is at rest is not known yet");
        let found = scan(&[hashes.clone(), prompt(b'b', 1)].concat(), "", None);
        bed.handle(Event::AdapterScanned { adapter: ONE, found: &found });
        bed.handle(Event::AdapterScanEnded { adapter: ONE });
        assert_eq!(status(&bed, ONE).care.counts.scan_skipped, u64::from(!is_told_all));
        leave(&mut bed, "early");
        bed.lookup("late", 1, &hashes);
        let keys = bed.orders.iter().filter_map(|order| match order {
            Order::Load { key, .. } => Some(*key),
            _ => None,
        });
        let layout = layout().fingerprint();
        let seals = keys.map(|key| Some(Seal { digest: digest_of(&key), layout }));
        let seals: Vec<_> = seals.filter(|_| is_told_all).collect();
        bed.end_all();
        assert_eq!(bed.query("late"), Some(2));
        assert_eq!(stored_notes(&bed), seals);
    }
}
