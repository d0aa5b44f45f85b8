//! Registrations that cannot be served are refused at once, with a sentence for the engine's log.

use crate::bed::Bed;
use crate::cache::{ALLOCATION_BYTES, Cache, descriptor, raw};
use crate::card::{Card, real_driver};
use crate::pages::{Form, Pages};
use crate::worker::{Transfer, Worker};

fn assert_refused(worker: &mut Worker, descriptors: &[Vec<u8>], part: &str) {
    let why = worker.register_as(descriptors, "NHD").expect("it is refused");
    assert!(why.contains(part), "{part}: {why}");
}

#[test]
fn without_a_driver_the_engine_is_told_what_to_do() {
    // SAFETY: asks whether such a library is there; a driver's initialisers do no harm.
    let found = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) };
    if !found.is_null() || real_driver().is_some() {
        println!("left out: this machine has a driver");
        return;
    }
    let mut card = Card::new("no-driver");
    let mut bed = Bed::without_driver(&card);
    let cache = Cache::on(&mut card, Pages::new(Form::PlaneBlock));
    let mut worker = Worker::new(&bed, 1);
    let part = "the server has no usable CUDA driver";
    assert_refused(&mut worker, &cache.descriptors(&card), part);
    let log = bed.server.log();
    assert!(log.contains("no CUDA driver: libcuda.so.1 cannot be opened"), "{log}");
    // Others are served.
    let host = Cache::on_host(Pages::new(Form::PlaneBlock));
    worker.register(&card, &host);
    assert!(worker.store(&Transfer::new(1, "s", &[1, 2, 3, 4], b"stub_ipc_handle")));
    drop(worker);
    bed.idle();
    bed.stop();
    card.finish();
}

#[test]
fn memory_that_cannot_be_served_is_refused_with_a_sentence() {
    let mut card = Card::new("refusals");
    let mut bed = Bed::start(&card);
    let pages = Pages::new(Form::PlaneBlock);
    let cache = Cache::on(&mut card, pages);
    let (memory, bytes) = (cache.allocation(0).0, pages.tensor_bytes());
    let mut worker = Worker::new(&bed, 1);

    let unknown = raw(&memory, (0, bytes), &pages, "00000000-0000-0000-0000-000000000000");
    assert_refused(&mut worker, &[unknown], "does not see this engine's card");
    let log = bed.server.log();
    let seen = format!("is not visible to the server, which sees {}", card.uuid);
    assert!(log.contains(&seen), "{log}");

    let short = raw(&memory, (0, bytes - 2), &pages, &card.uuid);
    assert_refused(&mut worker, &[short], "a tensor reaches beyond its storage");
    // A storage that is not as long as it says: the driver knows how long the allocation is.
    let first = raw(&memory, (0, bytes), &pages, &card.uuid);
    let beyond = raw(&memory, (ALLOCATION_BYTES - bytes + 8, bytes), &pages, &card.uuid);
    assert_refused(&mut worker, &[first.clone(), beyond], "does not open the engine's device");
    let log = bed.server.log();
    assert!(log.contains("a storage is not within its allocation"), "{log}");
    let mut other = memory;
    other.handle = [9; 64];
    let nothing = raw(&other, (0, bytes), &pages, &card.uuid);
    assert_refused(&mut worker, &[first.clone(), nothing], "does not open the engine's device");

    let mapped = descriptor("cuda_vmm", &pages, 0, &card.uuid, |w| {
        w.str("export_id");
        w.bin(&[1; 16]);
        w.str("kind");
        w.str("posix_fd");
        w.str("fabric_blob");
        w.nil();
        for (name, size) in [("alloc_size", bytes), ("alloc_offset", 0), ("nbytes", bytes)] {
            w.str(name);
            w.u64(size);
        }
        6
    });
    assert_refused(&mut worker, &[mapped], "virtual memory handles (cuda_vmm)");
    let segmented = descriptor("cuda", &pages, 0, &card.uuid, |w| {
        w.str("handle");
        w.array(8);
        w.u64(0);
        w.bin(&[&[3, b'e'][..], &memory.handle].concat());
        w.u64(bytes);
        w.u64(0);
        w.bin(b"/torch_1_1_0");
        w.u64(0);
        w.bin(b"");
        w.bool(false);
        1
    });
    assert_refused(&mut worker, &[segmented], "expandable_segments:False");
    let indexer = Cache::indexer(&memory, &card);
    assert_refused(&mut worker, &[indexer], "pages of an indexer");
    // Card and host in one registration.
    let host = Cache::on_host(pages).descriptors(&card).remove(0);
    assert_refused(&mut worker, &[first, host], "virtual memory handles (cuda_vmm)");

    // And nothing of all that is kept.
    let file = format!("objects/{}-", std::process::id());
    assert!(!bed.maps(&file));
    worker.register(&card, &cache);
    let event = card.event();
    assert!(worker.store(&Transfer::new(1, "s", &[1, 2, 3, 4], &event)));
    drop(worker);
    bed.idle();
    bed.stop_clean();
    card.finish();
}
