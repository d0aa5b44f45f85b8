//! What is stored comes back as it was, under the peer's name, and what is not as it should be is
//! told apart.

use super::bed::{Bed, Folder, Told, files, key, may_lock_memory, name_of, pattern, spec};
use kvtide_core::effect::Note;
use kvtide_core::event::{DeleteOutcome, Found, LoadOutcome, StoreOutcome};
use kvtide_core::limits::GROW_STEP_BYTES;
use kvtide_core::names::{AdapterId, Seal};

/// Direct and buffered, on a ring and on threads.
const WAYS: [(bool, bool); 4] = [(true, false), (true, true), (false, false), (false, true)];
const SIZES: [u64; 8] = [1, 4095, 4096, 4097, 100_000, 256 << 10, 2 << 20, (9 << 20) + 1];

fn stored(outcome: StoreOutcome) -> Told {
    Told::Stored(outcome)
}

#[test]
fn i29_every_size_comes_back_on_every_way_and_leaves_no_temporary_file() {
    for (direct, without_ring) in WAYS {
        let mut bed = Bed::new("sizes", direct, without_ring);
        for (at, bytes) in SIZES.into_iter().enumerate() {
            let (key, seed) = (key(at as u8), at as u8 + 1);
            let (from, to) = (bed.place(0, bytes), bed.place(12 << 20, bytes));
            bed.fill(from, seed);
            let ticket = bed.store(key, from);
            assert_eq!(bed.end(ticket), stored(StoreOutcome::Stored), "{bytes} {direct}");
            let file = std::fs::read(bed.path(&key)).expect("the file has its name");
            assert!(file == pattern(bytes, seed), "{bytes} bytes, {direct}, {without_ring}");

            // What lies behind the place belongs to somebody else.
            let behind = bed.place(to.offset + bytes, 4096);
            bed.fill(behind, 99);
            let ticket = bed.load(key, to);
            assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Loaded), "{bytes} {direct}");
            assert!(bed.bytes(to) == pattern(bytes, seed), "{bytes} bytes, {direct}");
            assert!(bed.bytes(behind) == pattern(4096, 99), "a neighbour's bytes are his");
        }
        bed.settle();
        assert_eq!(bed.names().len(), SIZES.len(), "{:?}", bed.names());
    }
}

#[test]
fn where_the_kernel_allows_it_no_payload_byte_takes_a_way_round() {
    let mut bed = Bed::new("ways", true, false);
    let (bytes, count) = (256 << 10, 40);
    let tickets: Vec<_> = (0..count)
        .map(|at| {
            let place = bed.place(u64::from(at) * bytes, bytes);
            bed.fill(place, at);
            bed.store(key(at), place)
        })
        .collect();
    for ticket in tickets {
        assert_eq!(bed.end(ticket), stored(StoreOutcome::Stored));
    }
    for at in 0..count {
        let place = bed.place(u64::from(at) * bytes, bytes);
        bed.fill(place, 255);
        let ticket = bed.load(key(at), place);
        assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Loaded));
        assert!(bed.bytes(place) == pattern(bytes, at));
    }
    let status = bed.status();
    if status.engine != "io_uring" || !may_lock_memory() {
        eprintln!("skipped: {}", status.reason);
        return;
    }
    assert_eq!((status.direct, status.registered, &*status.reason), (true, true, ""));
    assert_eq!(status.registered_direct_bytes, 2 * u64::from(count) * bytes);
    assert_eq!((status.direct_bytes, status.buffered_bytes, status.thread_bytes), (0, 0, 0));
}

#[test]
fn memory_that_clients_map_is_registered_and_digested_too() {
    let mut bed = Bed::shared("shared", 8 << 20);
    let bytes = (1 << 20) + 5000;
    let (from, to) = (bed.place(0, bytes), bed.place(4 << 20, bytes));
    bed.fill(from, 4);
    let (store, digest) = (bed.store(key(1), from), bed.digest(key(1), from));
    assert_eq!(bed.end(store), stored(StoreOutcome::Stored));
    let ticket = bed.load(key(1), to);
    assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Loaded));
    assert!(bed.bytes(to) == pattern(bytes, 4));
    let (wanted, again) = (bed.end(digest), bed.digest(key(1), to));
    assert_eq!(bed.end(again), wanted);
    let status = bed.status();
    if status.engine == "io_uring" && may_lock_memory() {
        // The last part of a block goes through a block of its own.
        assert!(status.registered && status.registered_direct_bytes >= 2 << 20, "{status:?}");
        assert_eq!(status.buffered_bytes, 0);
    }
}

#[test]
fn an_object_across_two_registered_steps_is_split() {
    let folder = Folder::new("steps");
    let spec = spec(&folder.0, true, false);
    let mut bed = Bed::with(folder, spec, 2 * GROW_STEP_BYTES);
    let place = bed.place(GROW_STEP_BYTES - (1 << 20) - 4096, 3 << 20);
    bed.fill(place, 1);
    let ticket = bed.store(key(1), place);
    assert_eq!(bed.end(ticket), stored(StoreOutcome::Stored));
    bed.fill(place, 2);
    let ticket = bed.load(key(1), place);
    assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Loaded));
    assert!(bed.bytes(place) == pattern(3 << 20, 1));
    let status = bed.status();
    if status.engine == "io_uring" && may_lock_memory() {
        assert_eq!(status.registered_direct_bytes, 6 << 20);
    }
}

#[test]
fn what_is_there_stays_as_it_is() {
    for (direct, without_ring) in WAYS {
        let mut bed = Bed::new("present", direct, without_ring);
        std::fs::write(bed.path(&key(1)), b"theirs").expect("the folder is ours");
        let place = bed.place(0, 8192);
        let ticket = bed.store(key(1), place);
        assert_eq!(bed.end(ticket), stored(StoreOutcome::Present { bytes: 6 }));
        bed.settle();
        let file = std::fs::read(bed.path(&key(1))).expect("it is there");
        assert_eq!((file, bed.names().len()), (b"theirs".to_vec(), 1), "{:?}", bed.names());
    }
}

#[test]
fn a_file_of_another_size_is_not_loaded_and_a_padded_one_is() {
    for (direct, without_ring) in WAYS {
        let mut bed = Bed::new("other-sizes", direct, without_ring);
        let mut load = |wanted: u64, there: Option<u64>| {
            let path = bed.path(&key(1));
            match there {
                Some(bytes) => {
                    let mut content = pattern(wanted.min(bytes), 5);
                    content.resize(bytes as usize, 0);
                    std::fs::write(path, content).expect("the folder is ours");
                }
                None => drop(std::fs::remove_file(path)),
            }
            let place = bed.place(0, wanted);
            let ticket = bed.load(key(1), place);
            let told = bed.end(ticket);
            if told == Told::Loaded(LoadOutcome::Loaded) {
                assert!(bed.bytes(place) == pattern(wanted, 5));
            }
            told
        };
        let other = |bytes| Told::Loaded(LoadOutcome::OtherSize { bytes });
        assert_eq!(load(8192, None), Told::Loaded(LoadOutcome::Absent));
        for (wanted, there) in
            [(8192, 0), (8192, 4096), (8192, 8191), (8192, 8193), (8192, 12_288), (8192, 99_999)]
        {
            assert_eq!(load(wanted, Some(there)), other(there), "{direct} {without_ring}");
        }
        for there in [0, 100, 4096, 5999, 6001, 8191, 8193, 12_288, 99_999] {
            assert_eq!(load(6000, Some(there)), other(there), "{direct} {without_ring}");
        }
        for there in [6000, 8192] {
            assert_eq!(load(6000, Some(there)), Told::Loaded(LoadOutcome::Loaded), "{there}");
        }
    }
}

#[test]
fn r34_two_servers_that_store_one_key_leave_one_whole_object() {
    for (direct, without_ring) in WAYS {
        let mut one = Bed::new("one", direct, without_ring);
        let shared = Folder(one.folder.0.clone());
        let spec = spec(&shared.0, direct, without_ring);
        let mut other = Bed::with(shared, spec, 24 << 20);
        let keys: Vec<_> = (0..30).map(key).collect();
        let bytes = 300_000;
        let (mine, theirs) = (one.place(0, bytes), other.place(0, bytes));
        one.fill(mine, 1);
        other.fill(theirs, 2);
        let pairs: Vec<_> =
            keys.iter().map(|key| (one.store(*key, mine), other.store(*key, theirs))).collect();
        one.turn();
        other.turn();
        for (key, (here, there)) in keys.iter().zip(pairs) {
            let present = Told::Stored(StoreOutcome::Present { bytes });
            let seed = match (one.end(here), other.end(there)) {
                (Told::Stored(StoreOutcome::Stored), told) if told == present => 1,
                (told, Told::Stored(StoreOutcome::Stored)) if told == present => 2,
                told => panic!("one of them is the first: {told:?}"),
            };
            let file = std::fs::read(one.path(key)).expect("it was stored");
            assert!(file == pattern(bytes, seed), "the first one's bytes, and all of them");
        }
        one.settle();
        other.settle();
        assert_eq!(one.names().len(), keys.len(), "{:?}", one.names());
    }
}

#[test]
fn objects_are_taken_away_or_out_of_the_way() {
    for (direct, without_ring) in WAYS {
        let mut bed = Bed::new("deletes", direct, without_ring);
        for number in [1, 2] {
            std::fs::write(bed.path(&key(number)), b"object").expect("the folder is ours");
        }
        let ticket = bed.delete(key(1), false);
        assert_eq!(bed.end(ticket), Told::Deleted(DeleteOutcome::Deleted));
        let ticket = bed.delete(key(1), false);
        assert_eq!(bed.end(ticket), Told::Deleted(DeleteOutcome::Absent));
        let ticket = bed.delete(key(2), true);
        assert_eq!(bed.end(ticket), Told::Deleted(DeleteOutcome::Deleted));
        assert_eq!(bed.names(), [""; 0]);
        let name = name_of(&key(2)).file().expect("it has a name");
        let kept = std::fs::read(bed.folder.0.join(".kvtide/quarantine").join(name));
        assert_eq!(kept.expect("it was put there"), b"object");
    }
}

#[test]
fn a_probe_tells_every_size_in_the_order_asked() {
    for (direct, without_ring) in WAYS {
        let mut bed = Bed::new("probes", direct, without_ring);
        let keys: Vec<_> = (0..100).map(key).collect();
        for at in (0..100).step_by(3) {
            std::fs::write(bed.path(&keys[at]), vec![7; at]).expect("the folder is ours");
        }
        std::fs::create_dir(bed.path(&keys[1])).expect("the folder is ours");
        let wanted = (0..100).map(|at| (at % 3 == 0).then(|| Found::of(at))).collect();
        let ticket = bed.probe(&keys);
        assert_eq!(bed.end(ticket), Told::Probed(Some(wanted)));
        let ticket = bed.probe(&[]);
        assert_eq!(bed.end(ticket), Told::Probed(Some(Vec::new())));
    }
}

#[test]
fn digests_are_of_the_native_name_and_the_bytes_wherever_they_lie() {
    for (direct, without_ring) in WAYS {
        let mut bed = Bed::new("digests", direct, without_ring);
        let bytes = (1 << 20) + 77;
        let place = bed.place(4096, bytes);
        bed.fill(place, 8);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(name_of(&key(3)).native().expect("it has a name").as_bytes());
        hasher.update(&pattern(bytes, 8));
        let wanted = hasher.finalize();
        let (store, digest) = (bed.store(key(3), place), bed.digest(key(3), place));
        assert_eq!(bed.end(digest), Told::Digested(wanted));
        assert_eq!(bed.end(store), stored(StoreOutcome::Stored));
        let scrub = bed.scrub(key(3), bytes);
        assert_eq!(bed.end(scrub), Told::Scrubbed(Some(wanted)));

        let mut file = std::fs::read(bed.path(&key(3))).expect("it was stored");
        file[500_000] ^= 4;
        std::fs::write(bed.path(&key(3)), &file).expect("the folder is ours");
        let scrub = bed.scrub(key(3), bytes);
        assert_ne!(bed.end(scrub), Told::Scrubbed(Some(wanted)), "a bit has flipped");
        std::fs::write(bed.path(&key(3)), &file[..9000]).expect("the folder is ours");
        let scrub = bed.scrub(key(3), bytes);
        assert_ne!(bed.end(scrub), Told::Scrubbed(Some(wanted)), "it was cut");
        let scrub = bed.scrub(key(4), bytes);
        assert_eq!(bed.end(scrub), Told::Scrubbed(None), "there is none");
    }
}

#[test]
fn durable_objects_and_a_folder_for_temporary_files() {
    for without_ring in [false, true] {
        let folder = Folder::new("durable");
        let mut spec = spec(&folder.0, true, without_ring);
        files(&mut spec).sync = true;
        files(&mut spec).relative_tmp_dir = Some("tmp".into());
        let mut bed = Bed::with(folder, spec, 4 << 20);
        let place = bed.place(0, 300_000);
        bed.fill(place, 1);
        let ticket = bed.store(key(1), place);
        assert_eq!(bed.end(ticket), stored(StoreOutcome::Stored));
        bed.settle();
        let left = std::fs::read_dir(bed.folder.0.join("tmp")).expect("it was made").count();
        assert_eq!((left, bed.names().len()), (0, 2), "{:?}", bed.names());
    }
}

/// Broke: with a depth of one, a store waited for as long as loads came. Guards: each kind of work
/// goes on beside the others.
#[test]
fn f48_stores_get_their_turn_however_many_loads_come() {
    let folder = Folder::new("turns");
    let mut spec = spec(&folder.0, true, false);
    spec.queue_depth = 1;
    let mut bed = Bed::with(folder, spec, 8 << 20);
    let (place, other) = (bed.place(0, 8192), bed.place(1 << 20, 8192));
    let mut loads = [bed.load(key(1), other), bed.load(key(1), other)];
    let (store, delete) = (bed.store(key(2), place), bed.delete(key(3), false));
    let mut turn = 0;
    while !(bed.has_ended(store) && bed.has_ended(delete)) {
        let at = turn % loads.len();
        assert_eq!(bed.end(loads[at]), Told::Loaded(LoadOutcome::Absent));
        loads[at] = bed.load(key(1), other);
        turn += 1;
        assert!(turn < 100_000, "neither has had its turn");
    }
}

#[test]
fn f46_any_depth_is_deep_enough() {
    for (depth, workers) in [(0, 0), (1, 1), (2, 3), (1 << 20, 1 << 20)] {
        for without_ring in [false, true] {
            let folder = Folder::new("depths");
            let mut spec = spec(&folder.0, true, without_ring);
            spec.queue_depth = depth;
            files(&mut spec).num_workers = workers;
            let mut bed = Bed::with(folder, spec, 8 << 20);
            let keys: Vec<_> = (0..50).map(key).collect();
            let place = bed.place(0, 5000);
            let stores: Vec<_> = keys.iter().map(|key| bed.store(*key, place)).collect();
            let probe = bed.probe(&keys);
            for ticket in stores {
                assert_eq!(bed.end(ticket), stored(StoreOutcome::Stored));
            }
            assert!(matches!(bed.end(probe), Told::Probed(Some(_))));
        }
    }
}

#[test]
fn a_tier_tells_when_all_that_lay_there_has_been_told() {
    let mut bed = Bed::new("scans", true, false);
    bed.note(key(1), Note::Used);
    while bed.heard.scans_ended.is_empty() {
        bed.wait();
        bed.turn();
    }
    assert_eq!(bed.heard.scans_ended, [AdapterId(0)]);
}

/// Broke: an object that was asked for before the look through the folder had come to it was told
/// without its digest. Guards: until all was told, a probe tells what the index knows.
#[test]
fn f32_what_is_asked_for_before_the_scan_has_ended_is_told_with_its_seal() {
    let stored = Folder::new("seals");
    let of = |folder: &Folder| {
        let inside = Folder(folder.0.join("store"));
        let spec = spec(&inside.0, true, false);
        Bed::with(inside, spec, 4 << 20)
    };
    let seal = Some(Seal { digest: 77, layout: 3 });
    let (bytes, keys) = (64 << 10, [key(1), key(2)]);
    {
        let mut bed = of(&stored);
        let place = bed.place(0, bytes);
        for key in keys {
            let ticket = bed.store(key, place);
            assert_eq!(bed.end(ticket), Told::Stored(StoreOutcome::Stored));
        }
        bed.note(keys[0], Note::Stored { bytes, seal });
        std::mem::forget(std::mem::replace(&mut bed.folder, Folder::new("seals-again")));
    }
    let mut bed = of(&stored);
    let is_scanned = !bed.heard.scans_ended.is_empty();
    let ticket = bed.probe(&keys);
    let sealed = Found { bytes, seal };
    let told = bed.end(ticket);
    let is_scanned = is_scanned || !bed.heard.scans_ended.is_empty();
    let wanted = if is_scanned { Found::of(bytes) } else { sealed };
    assert_eq!(told, Told::Probed(Some(vec![Some(wanted), Some(Found::of(bytes))])));
}
