//! An error belongs to one order, and says what kind it is.

use super::bed::{Bed, Folder, Told, files, key, name_of, pattern, spec};
use kvtide_core::event::{DeleteOutcome, LoadOutcome, StoreOutcome, TierFault};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::path::Path;
use std::process::Command;

const BYTES: u64 = 64 << 10;

/// Broke: one failed completion stayed at the head of the ring, and every later look met it again.
/// Why: the error was returned before the completion was consumed. Guards: of a hundred orders one
/// fails, in the middle of the others, and the queue goes on.
#[test]
fn f45_one_order_of_a_hundred_fails_and_the_others_do_not() {
    for without_ring in [false, true] {
        let mut bed = Bed::new("one-fails", true, without_ring);
        std::fs::create_dir(bed.path(&key(50))).expect("the folder is ours");
        for round in 0..2 {
            let orders: Vec<_> = (0..100)
                .map(|number| {
                    let place = bed.place(u64::from(number) * BYTES, BYTES);
                    bed.fill(place, number);
                    match round {
                        0 => bed.store(key(number), place),
                        _ => bed.load(key(number), place),
                    }
                })
                .collect();
            for (number, ticket) in orders.into_iter().enumerate() {
                let wanted = match (number, round) {
                    (50, 0) => Told::Stored(StoreOutcome::Failed(TierFault::Io)),
                    (50, _) => Told::Loaded(LoadOutcome::Failed(TierFault::Io)),
                    (_, 0) => Told::Stored(StoreOutcome::Stored),
                    _ => Told::Loaded(LoadOutcome::Loaded),
                };
                assert_eq!(bed.end(ticket), wanted, "{number}");
            }
        }
        bed.settle();
        assert_eq!(bed.names().len(), 100, "no temporary file is left");
    }
}

/// Broke: a link with the name of an object led out of the folder, to whatever has the right size.
/// Guards: only regular files are objects, as the look through the folder has it.
#[test]
fn a_link_is_no_object() {
    for without_ring in [false, true] {
        let mut bed = Bed::new("link", true, without_ring);
        let elsewhere = Folder::new("elsewhere");
        let secret = elsewhere.0.join("secret");
        std::fs::write(&secret, pattern(BYTES, 9)).expect("the folder is ours");
        std::os::unix::fs::symlink(&secret, bed.path(&key(1))).expect("the name is free");
        let ticket = bed.probe(&[key(1)]);
        assert_eq!(bed.end(ticket), Told::Probed(Some(vec![None])));
        let place = bed.place(0, BYTES);
        bed.fill(place, 1);
        let ticket = bed.load(key(1), place);
        assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Absent));
        assert!(bed.bytes(place) == pattern(BYTES, 1));
        let ticket = bed.store(key(1), place);
        assert_eq!(bed.end(ticket), Told::Stored(StoreOutcome::Failed(TierFault::Io)));
        let there = std::fs::read(&secret).expect("it is there");
        assert!(there == pattern(BYTES, 9), "what a link leads to is not ours");
    }
}

/// Pages of a file that the page cache holds.
fn cached_pages(path: &Path) -> u64 {
    let file = File::open(path).expect("it was stored");
    let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
    let mut pages = [0_u8; BYTES as usize / 4096];
    // SAFETY: a new mapping at an address of the kernel's choosing, which is only asked about, not
    // read, and then removed again; the file is as long as the list of pages says.
    let refused = unsafe {
        let map = mmap(std::ptr::null_mut(), BYTES as usize, access, flags, &file, 0);
        let map = map.expect("a file can be mapped");
        let refused = libc::mincore(map, BYTES as usize, pages.as_mut_ptr());
        munmap(map, BYTES as usize).expect("it was just mapped");
        refused
    };
    assert_eq!(refused, 0, "the owner of a file may ask");
    pages.iter().map(|page| u64::from(page & 1)).sum()
}

#[test]
fn f42_direct_transfers_leave_nothing_in_the_page_cache() {
    for without_ring in [false, true] {
        for direct in [true, false] {
            let mut bed = Bed::new("cache", direct, without_ring);
            let place = bed.place(0, BYTES);
            bed.fill(place, 1);
            let ticket = bed.store(key(1), place);
            assert_eq!(bed.end(ticket), Told::Stored(StoreOutcome::Stored));
            let ticket = bed.load(key(1), place);
            assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Loaded));
            assert_eq!(bed.status().direct, direct, "{}", bed.status().reason);
            let cached = cached_pages(&bed.path(&key(1)));
            let wanted = if direct { 0 } else { BYTES / 4096 };
            assert_eq!(cached, wanted, "direct: {direct}");
        }
    }
}

#[test]
fn a_path_that_is_no_folder_is_named() {
    let folder = Folder::new("file");
    let file = folder.0.join("file");
    std::fs::write(&file, b"").expect("the folder is ours");
    let terms = Bed::new("other", true, false);
    let opened = kvtide::tiers::open(spec(&file, true, false), terms.tiers.terms());
    let error = opened.expect_err("a file is no folder").to_string();
    assert!(error.contains(&*file.to_string_lossy()), "{error}");
}

/// A mount that goes with its test. None where this user may not mount.
struct Mount(Folder);

impl Mount {
    fn tmpfs(test: &str, options: &str) -> Option<Mount> {
        let folder = Folder::new(test);
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "kvtide-test"])
            .arg(&folder.0)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Mount(folder)),
            other => {
                eprintln!("skipped: no file system can be mounted here ({other:?})");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0.0).status().ok();
    }
}

#[test]
fn a_full_disk_is_told_as_such_and_has_room_again_after_a_delete() {
    for (direct, without_ring) in [(true, false), (false, false), (false, true)] {
        let Some(mount) = Mount::tmpfs("full", "size=256k") else { return };
        let inside = Folder(mount.0.0.join("store"));
        let spec = spec(&inside.0, direct, without_ring);
        let mut bed = Bed::with(inside, spec, 8 << 20);
        let store = |bed: &mut Bed, number: u8| {
            let place = bed.place(0, BYTES);
            bed.fill(place, number);
            let ticket = bed.store(key(number), place);
            bed.end(ticket)
        };
        let mut kept = 0;
        while store(&mut bed, kept) == Told::Stored(StoreOutcome::Stored) {
            kept += 1;
            assert!(kept < 10, "a quarter of a MiB is full by now");
        }
        let full = Told::Stored(StoreOutcome::Failed(TierFault::NoSpace));
        assert_eq!(store(&mut bed, 90), full);
        assert_eq!(bed.names().len(), usize::from(kept), "nothing is left of what failed");
        let ticket = bed.delete(key(0), false);
        assert_eq!(bed.end(ticket), Told::Deleted(DeleteOutcome::Deleted));
        let stored = Told::Stored(StoreOutcome::Stored);
        assert_eq!(store(&mut bed, 91), stored, "what was deleted gives its room back");
        let place = bed.place(0, BYTES);
        let ticket = bed.load(key(1), place);
        assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Loaded));
        assert!(bed.bytes(place) == pattern(BYTES, 1));
        drop(bed);
    }
}

#[test]
fn f27_a_folder_that_cannot_be_written_is_told_and_still_read() {
    for without_ring in [false, true] {
        let Some(mount) = Mount::tmpfs("read-only", "size=4m") else { return };
        let inside = Folder(mount.0.0.join("store"));
        std::fs::create_dir(&inside.0).expect("there is room");
        let name = name_of(&key(1)).file().expect("it has a name");
        std::fs::write(inside.0.join(name), pattern(BYTES, 1)).expect("there is room");
        let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&mount.0.0).status();
        assert!(remounted.is_ok_and(|status| status.success()), "what was mounted can be again");
        let spec = spec(&inside.0, true, without_ring);
        let mut bed = Bed::with(inside, spec, 4 << 20);
        let reason = bed.status().reason;
        assert!(reason.contains("nothing can be written there"), "{reason}");
        let place = bed.place(0, BYTES);
        let ticket = bed.load(key(1), place);
        assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Loaded));
        assert!(bed.bytes(place) == pattern(BYTES, 1));
        let ticket = bed.store(key(2), place);
        assert_eq!(bed.end(ticket), Told::Stored(StoreOutcome::Failed(TierFault::Denied)));
        drop(bed);
    }
}

#[test]
fn temporary_files_on_another_file_system_lie_beside_the_objects_instead() {
    let Some(mount) = Mount::tmpfs("elsewhere", "size=4m") else { return };
    let folder = Folder::new("base");
    std::os::unix::fs::symlink(&mount.0.0, folder.0.join("tmp")).expect("a link can be made");
    let mut spec = spec(&folder.0, true, false);
    files(&mut spec).relative_tmp_dir = Some("tmp".into());
    let mut bed = Bed::with(folder, spec, 4 << 20);
    assert!(bed.status().reason.contains("relative_tmp_dir"), "{}", bed.status().reason);
    let place = bed.place(0, BYTES);
    let ticket = bed.store(key(1), place);
    assert_eq!(bed.end(ticket), Told::Stored(StoreOutcome::Stored));
    drop(bed);
}
