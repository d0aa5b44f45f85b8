//! A driver that fails, in the server's process.

use crate::bed::Bed;
use crate::cache::Cache;
use crate::card::{Card, needs_fake};
use crate::pages::{Form, Pages};
use crate::worker::{Transfer, Worker};
use kvtide_core::wire::operation::Operation;
use kvtide_tests::http;

const SOURCE: [u64; 8] = [3, 1, 2, 11, 7, 8, 9, 10];
const TARGET: [u64; 8] = [5, 4, 6, 1, 2, 3, 12, 13];
const STUB: &[u8] = b"stub_ipc_handle";

#[test]
fn a_copy_that_fails_publishes_nothing_and_the_next_one_is_served() {
    if !needs_fake() {
        return;
    }
    let mut card = Card::new("fails");
    let faults = "cuMemcpyBatchAsync:1:1,cuMemcpyBatchAsync:2:1,cuIpcOpenEventHandle:4:400";
    let mut bed = Bed::start_with(&card, &[("FAKECUDA_FAIL", faults)]);
    let pages = Pages::new(Form::PlaneBlock);
    let (one, other) = (Cache::on(&mut card, pages), Cache::on(&mut card, pages));
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    writer.register(&card, &one);
    reader.register(&card, &other);
    let event = card.event();
    assert!(!writer.store(&Transfer::new(1, "s", &SOURCE, &event)), "the first batch fails");
    assert_eq!(reader.lookup(1, 2, "l"), 0, "nothing of it is published");
    assert!(writer.store(&Transfer::new(1, "t", &SOURCE, &event)), "it is stored again");
    assert!(!reader.fetch(&Transfer::new(1, "r", &TARGET, &event)), "the third one fails");
    assert!(!reader.fetch(&Transfer::new(1, "q", &TARGET, &event)), "its event does not open");
    assert!(reader.fetch(&Transfer::new(1, "p", &TARGET, &event)));
    let pairs: Vec<(u64, u64)> = SOURCE.into_iter().zip(TARGET).collect();
    other.expect(&mut card, &one, &pairs);
    let log = bed.server.log();
    assert!(log.contains("A copy of an engine's blocks failed: cuMemcpyBatchAsync"), "{log}");
    drop((writer, reader));
    bed.idle();
    bed.stop_clean();
    card.finish();
}

/// No host function is called any more once the context is lost. Whoever waits is answered all the
/// same, and what needs no card goes on.
#[test]
fn a_lost_context_fails_what_is_in_flight_and_nothing_beside_it() {
    if !needs_fake() {
        return;
    }
    let mut card = Card::new("lost");
    let fault = "cuMemcpyBatchAsync:2:700:breaks";
    let mut bed = Bed::start_with(&card, &[("FAKECUDA_FAIL", fault)]);
    let pages = Pages::new(Form::PlaneBlock);
    let (one, other) = (Cache::on(&mut card, pages), Cache::on(&mut card, pages));
    let (host, target) = (Cache::on_host(pages), Cache::on_host(pages));
    let mut workers = [1, 2, 3, 4].map(|instance| Worker::new(&bed, instance));
    for (worker, cache) in workers.iter_mut().zip([&one, &other, &host, &target]) {
        worker.register(&card, cache);
    }
    let [writer, reader, on_host, beside] = &mut workers;
    let event = card.event();
    assert!(writer.store(&Transfer::new(1, "s", &SOURCE, &event)));
    // The second batch breaks the context, with others behind it.
    let seeds = [2, 3, 4];
    let sent = seeds
        .map(|seed| writer.begin(Operation::Store, &Transfer::new(seed, "t", &SOURCE, &event)));
    // Those that the driver refuses end before those that it had taken.
    let mut ended = sent.map(|_| writer.ended());
    ended.sort_unstable();
    assert_eq!(ended, sent.map(|uid| (uid, false)));
    for seed in seeds {
        assert_eq!(on_host.lookup(seed, 2, "l"), 0, "nothing of {seed} is published");
    }
    assert!(!reader.fetch(&Transfer::new(1, "r", &TARGET, &event)), "another engine on that card");
    assert_eq!(http::get(bed.server.admin, "/livez").expect("it answers").status, 200);
    // What was stored before the loss is whole, and served to those who need no card.
    assert!(on_host.fetch(&Transfer::new(1, "q", &TARGET, STUB)));
    let pairs: Vec<(u64, u64)> = SOURCE.into_iter().zip(TARGET).collect();
    host.expect(&mut card, &one, &pairs);
    assert!(on_host.store(&Transfer::new(5, "u", &SOURCE, STUB)));
    assert!(beside.fetch(&Transfer::new(5, "v", &TARGET, STUB)));
    let stored = host.now(&mut card);
    target.expect_of(&mut card, (&pages, &stored), &pairs);
    let refused = Worker::new(&bed, 5).register_as(&one.descriptors(&card), "NHD");
    assert!(refused.is_some_and(|why| why.contains("device memory")), "the card is lost for good");
    drop(workers);
    bed.idle();
    bed.stop_clean();
    card.finish();
}
