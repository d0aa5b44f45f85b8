//! How an engine names its memory, and how it says when that is ready.

use crate::bed::Bed;
use crate::cache::{ALLOCATION_BYTES, Cache, descriptor};
use crate::card::{Card, needs_fake};
use crate::pages::{Form, Pages};
use crate::worker::{Transfer, Worker};
use kvtide_core::wire::operation::Operation;
use rustix::fs::Mode;
use rustix::shm;
use std::os::unix::fs::FileExt;

const SOURCE: [u64; 8] = [3, 1, 2, 11, 7, 8, 9, 10];
const TARGET: [u64; 8] = [5, 4, 6, 1, 2, 3, 12, 13];

fn pairs() -> Vec<(u64, u64)> {
    SOURCE.into_iter().zip(TARGET).collect()
}

/// The file in which PyTorch counts who uses a storage, with a number for each of two.
struct Counter {
    name: String,
    file: std::fs::File,
}

impl Counter {
    fn new() -> Counter {
        let name = format!("/torch_{}_kvtide_card", std::process::id());
        let flags = shm::OFlags::RDWR | shm::OFlags::CREATE | shm::OFlags::EXCL;
        let file = shm::open(name.as_str(), flags, Mode::RUSR | Mode::WUSR).expect("a segment");
        let file = std::fs::File::from(file);
        let counts = [1_i64, 5, 7, 9].map(i64::to_ne_bytes).concat();
        file.write_all_at(&counts, 0).expect("a segment takes bytes");
        Counter { name, file }
    }

    fn counts(&self) -> [i64; 4] {
        let mut bytes = [0; 32];
        self.file.read_exact_at(&mut bytes, 0).expect("it is as long");
        let count = |at: usize| i64::from_ne_bytes(bytes[at * 8..][..8].try_into().expect("eight"));
        [0, 1, 2, 3].map(count)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = shm::unlink(self.name.as_str());
    }
}

/// PyTorch's own form, of a newer version: storages that begin within the allocation, tensors that
/// begin within their storage.
fn torch(cache: &Cache, card: &Card, counter: &Counter, event: Option<&[u8]>) -> Vec<Vec<u8>> {
    let pages = &cache.pages;
    let layer = |layer: usize| {
        let (memory, start) = cache.allocation(layer);
        let handle = [&[3, b'c'][..], &memory.handle].concat();
        // The tensor begins 96 values into its storage.
        descriptor("cuda", pages, 96, &card.uuid, |w| {
            w.str("handle");
            w.array(8);
            w.u64(5);
            w.bin(&handle);
            w.u64(192 + pages.tensor_bytes());
            w.u64(start - 192);
            w.bin(counter.name.as_bytes());
            w.u64(layer as u64 + 1);
            w.bin(event.unwrap_or_default());
            w.bool(event.is_some());
            1
        })
    };
    (0..pages.layers as usize).map(layer).collect()
}

#[test]
fn many_layers_in_one_allocation_open_it_once() {
    let mut card = Card::new("one-allocation");
    let bed = Bed::start(&card);
    let pages = Pages { layers: 9, ..Pages::new(Form::PlaneBlock) };
    let (one, other) = (Cache::in_one(&mut card, pages), Cache::in_one(&mut card, pages));
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    writer.register(&card, &one);
    reader.register(&card, &other);
    let event = card.event();
    assert!(writer.store(&Transfer::new(1, "s", &SOURCE, &event)));
    assert!(reader.fetch(&Transfer::new(1, "r", &TARGET, &event)));
    other.expect(&mut card, &one, &pairs());
    drop((writer, reader));
    let report = bed.stop_clean();
    if needs_fake() {
        assert_eq!(report.calls("cuIpcOpenMemHandle_v2"), 2, "one for each engine");
        assert_eq!(report.calls("cuIpcCloseMemHandle"), 2);
    }
    card.finish();
}

#[test]
fn storages_of_pytorch_are_counted_down_and_their_event_is_waited_for() {
    let mut card = Card::new("torch");
    let (mut bed, counter) = (Bed::start(&card), Counter::new());
    let fake = needs_fake();
    if fake {
        card.stall(true);
    }
    let one = Cache::in_one(&mut card, Pages::new(Form::PlaneBlock));
    let other = Cache::on(&mut card, Pages::new(Form::PlaneBlock));
    let event = card.event();
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    let torch = torch(&one, &card, &counter, Some(&event));
    assert_eq!(writer.register_as(&torch, "NHD"), None);
    reader.register(&card, &other);
    // The cache is not filled yet, and the request itself brings no event.
    let uid = writer.begin(Operation::Store, &Transfer::new(1, "s", &SOURCE, b""));
    if fake {
        bed.until_in_flight(1);
        card.stall(false);
    }
    assert_eq!(writer.ended(), (uid, true));
    assert!(reader.fetch(&Transfer::new(1, "r", &TARGET, &event)));
    other.expect(&mut card, &one, &pairs());
    assert_eq!(counter.counts(), [1, 5, 7, 9], "in use");
    writer.unregister();
    drop((writer, reader));
    bed.idle();
    bed.stop_clean();
    assert_eq!(counter.counts(), [1, 4, 6, 8], "one user less of each");
    card.finish();
}

#[test]
fn isolated_events_are_numbers_in_memory() {
    let mut card = Card::new("isolated");
    let bed = Bed::start(&card);
    let pages = Pages::new(Form::PlaneBlock);
    let (one, other) = (Cache::on(&mut card, pages), Cache::on(&mut card, pages));
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    writer.register(&card, &one);
    reader.register(&card, &other);
    let event = card.number();
    assert!(writer.store(&Transfer::new(1, "s", &SOURCE, &event)));
    let event = card.number();
    assert!(reader.fetch(&Transfer::new(1, "r", &TARGET, &event)));
    other.expect(&mut card, &one, &pairs());
    drop((writer, reader));
    bed.stop_clean();
    card.finish();
}

/// The allocation is not let go with the first of two engines that are on it, but with the second.
#[test]
fn f09_memory_is_closed_with_the_last_engine_on_it() {
    let mut card = Card::new("last-use");
    let mut bed = Bed::start(&card);
    let cache = Cache::in_one(&mut card, Pages::new(Form::Latent));
    let (mut one, mut other) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    one.register(&card, &cache);
    other.register(&card, &cache);
    let event = card.event();
    one.unregister();
    assert!(other.store(&Transfer::new(1, "s", &SOURCE, &event)));
    assert!(!one.store(&Transfer::new(2, "t", &SOURCE, &event)), "it is not registered");
    // Registered again, in place of itself.
    other.register(&card, &cache);
    assert!(other.store(&Transfer::new(3, "u", &SOURCE, &event)));
    drop((one, other));
    bed.idle();
    bed.stop_clean();
    cache.expect(&mut card, &cache, &[]);
    card.free(cache.allocation(0).0);
    card.finish();
    assert!(cache.pages.tensor_bytes() < ALLOCATION_BYTES);
}
