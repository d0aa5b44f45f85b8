//! What is in a request: blocks that are skipped, blocks of nothing, events that are late, many
//! requests at once and large ones; and an engine on the CPU over the same keys.

use crate::bed::Bed;
use crate::cache::Cache;
use crate::card::{Card, needs_fake};
use crate::pages::{Form, Pages, SLOTS};
use crate::worker::{BLOCKS_PER_CHUNK, Transfer, Worker};
use kvtide_core::wire::operation::Operation;

const SOURCE: [u64; 8] = [3, 1, 2, 11, 7, 8, 9, 10];
const TARGET: [u64; 8] = [5, 4, 6, 1, 2, 3, 12, 13];
const STUB: &[u8] = b"stub_ipc_handle";

fn pairs() -> Vec<(u64, u64)> {
    SOURCE.into_iter().zip(TARGET).collect()
}

#[test]
fn blocks_that_are_skipped_are_not_touched() {
    let mut card = Card::new("skip");
    let bed = Bed::start(&card);
    let pages = Pages::new(Form::BlockPlane).heads_first();
    let (one, other) = (Cache::on(&mut card, pages), Cache::on(&mut card, pages));
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    writer.register(&card, &one);
    reader.register(&card, &other);
    let event = card.event();
    assert!(writer.store(&Transfer::new(1, "s", &SOURCE, &event)));
    // Five blocks and a bit: the first chunk as a whole, of the second a block.
    let skip_tokens = 5 * SLOTS + 3;
    let transfer = Transfer { skip_tokens, ..Transfer::new(1, "r", &TARGET, &event) };
    assert!(reader.fetch(&transfer));
    other.expect(&mut card, &one, &pairs()[5..]);
    // All of it is there already: there is nothing to copy.
    let transfer = Transfer { skip_tokens: 32, ..Transfer::new(1, "q", &[1; 8], &event) };
    assert!(reader.fetch(&transfer));
    other.expect(&mut card, &one, &pairs()[5..]);
    assert!(!reader.retrieve(&Transfer::new(1, "q", &TARGET, &event)), "its leases are used up");
    drop((writer, reader));
    bed.stop_clean();
    card.finish();
}

#[test]
fn chunks_of_null_blocks_and_blocks_that_are_not_there() {
    let mut card = Card::new("null");
    let bed = Bed::start(&card);
    let cache = Cache::on(&mut card, Pages::new(Form::PlaneBlock));
    let mut worker = Worker::new(&bed, 1);
    worker.register(&card, &cache);
    let event = card.event();
    let null = [3, 1, 2, 11, 0, 0, 0, 0, 7, 8, 9, 10];
    assert!(worker.store(&Transfer::new(1, "s", &null, &event)));
    assert_eq!(worker.lookup(1, 3, "l"), 1, "the second chunk holds nothing");
    worker.end_session("l");
    for last in [14, u64::from(u32::MAX), u64::MAX >> 1] {
        let blocks = [3, 1, 2, 11, 7, 8, 9, last];
        assert!(!worker.store(&Transfer::new(2, "t", &blocks, &event)));
        assert_eq!(worker.lookup(2, 2, "m"), 0, "nothing of it is published");
    }
    // A request without a word about what to wait for, and with one that is no event.
    assert!(worker.store(&Transfer::new(3, "u", &SOURCE, b"")));
    assert!(!worker.store(&Transfer::new(4, "v", &SOURCE, STUB)));
    assert_eq!(worker.lookup(4, 2, "n"), 0);
    cache.expect(&mut card, &cache, &[]);
    drop(worker);
    bed.stop_clean();
    card.finish();
}

/// The engine is still computing what it has stored, and still using what it has fetched into.
#[test]
fn a_copy_waits_for_an_engine_that_is_late() {
    if !needs_fake() {
        return;
    }
    let mut card = Card::new("late");
    let mut bed = Bed::start(&card);
    card.stall(true);
    let pages = Pages::new(Form::PlaneBlock);
    let (one, other) = (Cache::on(&mut card, pages), Cache::on(&mut card, pages));
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    writer.register(&card, &one);
    reader.register(&card, &other);
    let event = card.event();
    let uid = writer.begin(Operation::Store, &Transfer::new(1, "s", &SOURCE, &event));
    bed.until_in_flight(1);
    assert_eq!(reader.lookup(1, 2, "early"), 0, "nothing is published before it is copied");
    card.stall(false);
    assert_eq!(writer.ended(), (uid, true));
    assert_eq!(reader.lookup(1, 2, "r"), 2);
    // The reader overwrites the blocks once more before it may be written to.
    card.stall(true);
    let again = other.allocation(0).0;
    card.fill(again.address, &other.before[0]);
    let event = card.event();
    let uid = reader.begin(Operation::Retrieve, &Transfer::new(1, "r", &TARGET, &event));
    bed.until_in_flight(1);
    card.stall(false);
    assert_eq!(reader.ended(), (uid, true));
    other.expect(&mut card, &one, &pairs());
    drop((writer, reader));
    bed.stop_clean();
    card.finish();
}

/// One stores from the card, another on the CPU reads it with its heads first, and the other way.
#[test]
fn engines_on_the_card_and_on_the_cpu_read_each_others_blocks() {
    let mut card = Card::new("cross");
    let bed = Bed::start(&card);
    let slots = Pages::new(Form::PlaneBlock);
    let device = Cache::on(&mut card, slots.heads_first());
    let target = Cache::on(&mut card, slots);
    let (host, source) = (Cache::on_host(slots), Cache::on_host(slots.heads_first()));
    let mut workers = [1, 2, 3, 4].map(|instance| Worker::new(&bed, instance));
    for (worker, cache) in workers.iter_mut().zip([&device, &target, &host, &source]) {
        worker.register(&card, cache);
    }
    let event = card.event();
    assert!(workers[0].store(&Transfer::new(1, "s", &SOURCE, &event)));
    assert!(workers[2].fetch(&Transfer::new(1, "r", &TARGET, STUB)));
    assert!(host.is_on_host() && source.is_on_host());
    host.expect(&mut card, &device, &pairs());
    assert!(workers[3].store(&Transfer::new(2, "t", &SOURCE, STUB)));
    assert!(workers[1].fetch(&Transfer::new(2, "q", &TARGET, &event)));
    target.expect(&mut card, &source, &pairs());
    drop(workers);
    bed.stop_clean();
    card.finish();
}

#[test]
fn many_requests_in_flight_end_each_for_itself() {
    let mut card = Card::new("many");
    let mut bed = Bed::start(&card);
    let pages = Pages { blocks: 40, ..Pages::new(Form::PlaneBlock) };
    let fake = needs_fake();
    if fake {
        card.stall(true);
    }
    let (one, other) = (Cache::on(&mut card, pages), Cache::on(&mut card, pages));
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    writer.register(&card, &one);
    reader.register(&card, &other);
    let event = card.event();
    let names: Vec<String> = (0..COUNT).map(|at| format!("r{at}")).collect();
    let blocks: Vec<Vec<u64>> = (0..COUNT).map(|at| (at * 4..at * 4 + 4).collect()).collect();
    let stores: Vec<u64> = (0..COUNT as usize)
        .map(|at| {
            // The first blocks have id 0, which is that of no block.
            let blocks: Vec<u64> = blocks[at].iter().map(|block| block + 1).collect();
            writer
                .begin(Operation::Store, &Transfer::new(at as u32 + 1, &names[at], &blocks, &event))
        })
        .collect();
    if fake {
        bed.until_in_flight(COUNT);
        card.stall(false);
    }
    let ended: Vec<(u64, bool)> = stores.iter().map(|_| writer.ended()).collect();
    assert_eq!(ended, stores.iter().map(|uid| (*uid, true)).collect::<Vec<_>>(), "in order");
    for (seed, name) in (1..).zip(&names) {
        assert_eq!(reader.lookup(seed, 1, name), 1);
    }
    let mut fetches: Vec<u64> = (0..COUNT as usize)
        .map(|at| {
            // Into the blocks of another one.
            let blocks = &blocks[COUNT as usize - 1 - at];
            reader.begin(
                Operation::Retrieve,
                &Transfer::new(at as u32 + 1, &names[at], blocks, &event),
            )
        })
        .collect();
    while !fetches.is_empty() {
        let (uid, whole) = reader.ended();
        assert!(whole);
        fetches.retain(|each| *each != uid);
    }
    let pairs = (0..COUNT)
        .flat_map(|at| (0..4).map(move |block| (at * 4 + block + 1, (COUNT - 1 - at) * 4 + block)));
    other.expect(&mut card, &one, &pairs.collect::<Vec<_>>());
    drop((writer, reader));
    bed.stop_clean();
    card.finish();
}

const COUNT: u64 = 9;

#[test]
fn a_request_with_more_copies_than_the_driver_is_given_at_once() {
    let mut card = Card::new("large");
    let bed = Bed::start(&card);
    let pages = Pages { blocks: 1 + CHUNKS * BLOCKS_PER_CHUNK, ..Pages::new(Form::PlaneBlock) };
    let (one, other) = (Cache::on(&mut card, pages), Cache::on(&mut card, pages));
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    writer.register(&card, &one);
    reader.register(&card, &other);
    let event = card.event();
    // No two blocks follow one another, so each is a copy of its own, per layer and plane.
    let source: Vec<u64> = (1..pages.blocks).rev().collect();
    let odd = (1..pages.blocks).filter(|block| block % 2 == 1);
    let target: Vec<u64> = odd.chain((1..pages.blocks).filter(|block| block % 2 == 0)).collect();
    assert!(writer.store(&Transfer::new(1, "s", &source, &event)));
    assert!(reader.fetch(&Transfer::new(1, "r", &target, &event)));
    let pairs: Vec<(u64, u64)> = source.into_iter().zip(target).collect();
    other.expect(&mut card, &one, &pairs);
    drop((writer, reader));
    let report = bed.stop_clean();
    if needs_fake() {
        assert_eq!(report.calls("cuMemcpyBatchAsync"), 4, "two parts for each of two requests");
        // The parts behind the first lie behind its event.
        assert_eq!(report.calls("cuIpcOpenEventHandle"), 2);
    }
    card.finish();
}

/// Of 24 copies each: more than 4096.
const CHUNKS: u64 = 180;
