//! Blocks go from one engine through L1 into other blocks of another engine, whichever way their
//! pages lie: every byte of both caches is as worked out from the rows, and no other has changed.

use crate::bed::Bed;
use crate::cache::Cache;
use crate::card::Card;
use crate::pages::{Form, Pages};
use crate::worker::{Transfer, Worker};

const SOURCE: [u64; 8] = [3, 1, 2, 11, 7, 8, 9, 10];
const TARGET: [u64; 8] = [5, 4, 6, 1, 2, 3, 12, 13];

fn pairs() -> Vec<(u64, u64)> {
    SOURCE.into_iter().zip(TARGET).collect()
}

fn there_and_back(test: &str, from: Pages, to: Pages) {
    let mut card = Card::new(test);
    let bed = Bed::start(&card);
    let (one, other) = (Cache::on(&mut card, from), Cache::on(&mut card, to));
    let (mut writer, mut reader) = (Worker::new(&bed, 1), Worker::new(&bed, 2));
    writer.register(&card, &one);
    reader.register(&card, &other);
    let event = card.event();
    assert!(writer.store(&Transfer::new(1, "s", &SOURCE, &event)));
    let event = card.event();
    assert!(reader.fetch(&Transfer::new(1, "r", &TARGET, &event)));
    other.expect(&mut card, &one, &pairs());
    one.expect(&mut card, &one, &[]);
    drop((writer, reader));
    bed.stop_clean();
    card.finish();
}

#[test]
fn planes_of_blocks() {
    let pages = Pages::new(Form::PlaneBlock);
    there_and_back("planes", pages, pages);
}

#[test]
fn planes_of_blocks_with_heads_first() {
    let pages = Pages::new(Form::PlaneBlock).heads_first();
    there_and_back("planes-heads", pages, pages);
}

#[test]
fn blocks_of_planes() {
    let pages = Pages::new(Form::BlockPlane);
    there_and_back("blocks", pages, pages);
}

/// What lies in L1 is the same for all of them, so one may read what another has stored.
#[test]
fn slots_first_and_heads_first_read_each_others_blocks() {
    let heads = Pages::new(Form::BlockPlane).heads_first();
    let slots = Pages { blocks: 20, ..Pages::new(Form::PlaneBlock) };
    there_and_back("heads-to-slots", heads, slots);
    there_and_back("slots-to-heads", slots, heads);
}

#[test]
fn packed_pages_with_heads_first() {
    let pages = Pages::new(Form::Packed { padding: 0 }).heads_first();
    there_and_back("packed-heads", pages, Pages::new(Form::Packed { padding: 64 }));
}

#[test]
fn packed_pages_with_bytes_between_the_blocks() {
    let pages = |padding| Pages::new(Form::Packed { padding });
    there_and_back("packed", pages(128), pages(32));
}

#[test]
fn latent_pages() {
    let pages = Pages::new(Form::Latent);
    there_and_back("latent", pages, pages);
}
