//! What is asked of objects while the look through the folder goes on.

use super::*;
use crate::tiers::index::{Known, Question, told};
use kvtide_core::event::Found;
use kvtide_core::limits::SCANNED_PER_EVENT;
use kvtide_core::names::Ticket;
use kvtide_core::slots::SlotName;
use std::sync::atomic::AtomicUsize;

const TICKET: Ticket = Ticket(SlotName { index: 7, generation: 1 });

fn numbered(number: u32) -> ObjectName<'static> {
    let mut hash = [9; 32];
    hash[..4].copy_from_slice(&number.to_be_bytes());
    ObjectName { hash: ChunkHash(hash).into(), ..name(0) }
}

/// Broke: an object that was asked for before the look had told it was taken by its name and size
/// alone. Guards: the index answers with its seal, behind what it has told by then.
#[test]
fn what_is_not_told_yet_is_told_to_who_asks() {
    let folder = Folder::new("questions");
    let count = 3 * SCANNED_PER_EVENT as u32;
    let mut run = Run::start(folder.path());
    let note = Note::Stored { bytes: 8192, seal: seal(3) };
    for number in 0..count {
        let file = numbered(number).file().expect("it has a name");
        fs::write(folder.path().join(file), b"").expect("there is room");
        run.index.note(&numbered(number), note);
    }
    run.end();
    // Nothing is taken until the question was heard, which it is at each rest.
    let (tell, news) = channel();
    let refusals_left = Arc::new(AtomicUsize::new(usize::MAX));
    let gate = refusals_left.clone();
    let options = IndexOptions { name: "test".into(), objects_max: 10_000, temp_dir: None };
    let opened = Index::open(folder.path(), options, move |told| {
        if gate.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        {
            return Err(told);
        }
        tell.send(told).map_err(|back| back.0)
    });
    let mut index = opened.expect("the folder is ours");
    let asked = [numbered(count - 1), numbered(count), numbered(count - 2)];
    index.ask(Question::new(TICKET, &asked));
    refusals_left.store(3, Ordering::SeqCst);
    let mut told_before = Vec::new();
    let known = loop {
        match news.recv_timeout(PATIENCE).expect("it is answered") {
            ScanNews::Found(batch) => {
                told_before.extend(batch.objects.iter().map(|object| object.hash));
            }
            ScanNews::Known(known) => break known,
            ScanNews::Ended(_) => panic!("it is answered before the end"),
        }
    };
    let there = Some(Found { bytes: 8192, seal: seal(3) });
    assert_eq!(known, Known { ticket: TICKET, found: vec![there, None, there] });
    let is_told = |name: &ObjectName<'_>| {
        let hash = name.hash.chunk_hash().expect("of this length");
        told_before.contains(&hash)
    };
    assert!(!asked.iter().any(is_told), "what is told is not asked for");
    drop(news);
    assert!(index.close().within(PATIENCE), "the keeper ends");
}

#[test]
fn an_index_is_believed_of_a_file_of_its_size_only() {
    let known = Some(Found { bytes: 5000, seal: seal(1) });
    assert_eq!(told(Found::of(5000), known).seal, seal(1));
    let padded = Found { bytes: 5000, seal: seal(1) };
    assert_eq!(told(Found::of(8192), known), padded, "another server left it in whole blocks");
    assert_eq!(told(Found::of(5001), known), Found::of(5001));
    assert_eq!(told(Found::of(5000), None), Found::of(5000));
}
