//! Objects that are asked for before the adapter's folder was looked through.

use crate::bed::{Bed, OBJECT_BYTES, Order, config, digest_of, layout, prompt, setup};
use crate::shelves::scan;
use crate::stores::{ONE, orders};
use kvtide_core::effect::{Effect, Note};
use kvtide_core::event::{Event, Found};
use kvtide_core::fact::{Fact, L2LoadEnd, L2Removal};
use kvtide_core::names::{ChunkHash, L2Key, Seal};

/// A lookup of what a probe has found, with this seal of each.
fn probed(hashes: &[ChunkHash], seal: impl Fn(&L2Key) -> Option<Seal>) -> Bed {
    let mut bed = Bed::new(config(8), 1, &[setup("fs")]);
    bed.disks[0].extend(hashes);
    bed.lookup("r", 1, hashes);
    let Order::Probe { ticket, keys, .. } = bed.orders.remove(0) else { panic!("one probe") };
    let found: Vec<_> =
        keys.iter().map(|key| Some(Found { bytes: OBJECT_BYTES, seal: seal(key) })).collect();
    bed.handle(Event::ProbeEnded { ticket, found: Some(&found) });
    bed
}

fn is_aside(effect: &Effect) -> bool {
    matches!(effect, Effect::DeleteObject { quarantine: true, .. })
}

/// Broke: what was asked for before its scan was taken by its name and size, so that bytes that had
/// rotted were served. Guards: what the index tells to who asks is compared as what a scan tells.
#[test]
fn i47_f32_what_a_probe_finds_is_loaded_with_the_digest_that_it_tells() {
    let hashes = prompt(b'a', 2);
    let layout = layout().fingerprint();
    for (damage, hit) in [(0, 2), (1, 1)] {
        let mut bed = probed(&hashes, |key| {
            let is_last = u32::from(key.hash == hashes[1]);
            Some(Seal { digest: digest_of(key) ^ (damage * is_last), layout })
        });
        let loaded = bed.orders.iter().filter(|order| matches!(order, Order::Load { .. })).count();
        assert_eq!(loaded, 2);
        while let Some(at) = bed
            .orders
            .iter()
            .position(|order| matches!(order, Order::Load { .. } | Order::Digest { .. }))
        {
            bed.end(at);
        }
        assert_eq!(bed.query("r"), Some(hit));
        assert_eq!(orders(&bed, is_aside).len(), damage as usize);
        let mismatch =
            |fact: &Fact| matches!(fact, Fact::L2LoadEnded { end: L2LoadEnd::Digest, .. });
        assert_eq!(bed.find_told(mismatch), damage as usize);
        bed.end_all();
        let removed = |fact: &Fact| matches!(fact, Fact::L2Removed { why: L2Removal::Digest, .. });
        assert_eq!(bed.find_told(removed), damage as usize);
        assert_eq!(
            bed.notes.iter().filter(|note| matches!(note, Note::Stored { .. })).count(),
            0,
            "it is known"
        );
    }
}

#[test]
fn i48_what_a_probe_finds_of_another_layout_is_a_miss_and_not_read() {
    let hashes = prompt(b'a', 1);
    let other = layout().fingerprint() ^ 1;
    let mut bed = probed(&hashes, |key| Some(Seal { digest: digest_of(key), layout: other }));
    assert_eq!(bed.orders, [], "nothing is read");
    assert_eq!(bed.query("r"), Some(0));
}

#[test]
fn what_others_have_written_is_taken_by_its_size() {
    let hashes = prompt(b'a', 1);
    let mut bed = probed(&hashes, |_| None);
    bed.end_all();
    assert_eq!(bed.query("r"), Some(1));
}

/// A scan that tells, while an object is loaded, that it is of another layout: it is a miss, and
/// stays where it is for those whose it is.
#[test]
fn i48_a_scan_that_tells_of_another_layout_during_a_load_makes_it_a_miss() {
    let hashes = prompt(b'a', 1);
    let mut bed = probed(&hashes, |_| None);
    let Order::Load { key, .. } = bed.orders[0] else { panic!("one load") };
    let seal = Seal { digest: digest_of(&key), layout: layout().fingerprint() ^ 1 };
    let found = scan(&hashes, "", Some(seal));
    bed.handle(Event::AdapterScanned { adapter: ONE, found: &found });
    bed.end_all();
    assert_eq!(bed.query("r"), Some(0));
    assert_eq!(orders(&bed, is_aside).len(), 0, "its bytes are what they were");
    let other = |fact: &Fact| matches!(fact, Fact::L2LoadEnded { end: L2LoadEnd::OtherSize, .. });
    assert_eq!(bed.find_told(other), 1);
    let removed = |fact: &Fact| matches!(fact, Fact::L2Removed { .. });
    assert_eq!(bed.find_told(removed), 0);
}
