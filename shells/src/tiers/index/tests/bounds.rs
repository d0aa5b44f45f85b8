//! Bounds of queue, index, batches, table and quarantine.

use super::*;

/// A keeper that stands still does not make the reactor wait: notes are lost and counted, and when
/// it goes on, it finds in the folder what it was not told.
#[test]
fn notes_that_find_no_room_are_counted_and_made_good() {
    let folder = Folder::new("room");
    let base = folder.path();
    let (release, held) = channel::<()>();
    let options = IndexOptions { name: "test".into(), objects_max: 10, temp_dir: None };
    let opened = Index::open(base, options, move |_| {
        held.recv().ok();
        Ok(())
    });
    let mut index = opened.expect("the folder is ours");
    let counts = index.counts().clone();
    let mut notes = 0_u64;
    while counts.missed.load(Ordering::Relaxed) == 0 {
        index.note(&name((notes % 7) as u8), Note::Used);
        notes += 1;
        assert!(notes < 4 * (LINES * BATCHES) as u64, "there is a bound");
    }
    (1..4).for_each(|number| write(base, number));
    drop(release);
    // Until the keeper has taken what waits, these are lost, too.
    while counts.compactions.load(Ordering::Relaxed) == 0 {
        index.note(&name(1), stored(1));
        index.flush();
        std::thread::yield_now();
    }
    assert!(index.close().within(PATIENCE));
    let run = Run::start(base);
    let (objects, summary) = run.scanned();
    assert_eq!((summary.known, summary.unknown, summary.gaps), (3, 0, 0));
    let last = objects.last().expect("there are three");
    assert_eq!((last.hash, last.seal), (hash(1), seal(1)));
    run.end();
}

#[test]
fn an_index_that_grows_is_made_anew_and_tells_the_same() {
    let folder = Folder::new("grows");
    let base = folder.path();
    let mut run = Run::start(base);
    run.scanned();
    (0..9).for_each(|number| run.store(base, number));
    let counts = run.index.counts().clone();
    let mut round = 0_u32;
    while counts.compactions.load(Ordering::Relaxed) == 0 {
        run.note((round % 9) as u8, Note::Used);
        round += 1;
        if round.is_multiple_of(50_000) {
            std::thread::yield_now();
        }
        assert!(round < 1 << 28, "it is made anew");
    }
    (0..9).rev().for_each(|number| run.note(number, Note::Used));
    run.end();
    let bytes = fs::metadata(base.join(FOLDER).join(&indexes(base)[0])).expect("it is there").len();
    assert!(bytes < 16 << 20, "{bytes} bytes");
    let run = Run::start(base);
    assert_eq!(run.numbers(), [8, 7, 6, 5, 4, 3, 2, 1, 0]);
    run.end();
}

/// The reactor has two batches at most, however many there are.
#[test]
fn batches_are_made_as_they_are_taken() {
    let folder = Folder::new("batches");
    let base = folder.path();
    let per_event = kvtide_core::limits::SCANNED_PER_EVENT;
    for number in 0..5 * per_event {
        let hash = format!("{number:064x}");
        fs::write(base.join(format!("m@0x01000100@0@{hash}.data")), "x").expect("ours");
    }
    let made = Arc::new(AtomicU64::new(0));
    let (counting, (tell, news)) = (made.clone(), channel());
    let options = IndexOptions { name: "test".into(), objects_max: 1 << 20, temp_dir: None };
    let mut refusals = 0;
    let opened = Index::open(base, options, move |told| {
        // Every other one comes at a bad time.
        refusals += 1;
        if refusals % 2 == 1 {
            return Err(told);
        }
        counting.fetch_add(1, Ordering::SeqCst);
        tell.send(told).map_err(|back| back.0)
    });
    let index = opened.expect("the folder is ours");
    let (mut dropped, mut objects) = (0, BTreeSet::new());
    loop {
        match news.recv_timeout(PATIENCE).expect("the scan ends") {
            ScanNews::Found(batch) => {
                assert!(made.load(Ordering::SeqCst) - dropped <= 2, "after {dropped}");
                objects.extend(batch.objects.iter().map(|object| object.hash));
                dropped += 1;
            }
            ScanNews::Known(known) => panic!("nothing was asked: {known:?}"),
            ScanNews::Ended(summary) => {
                assert_eq!(summary.unknown, 5 * per_event as u64);
                break;
            }
        }
    }
    assert_eq!(objects.len(), 5 * per_event, "each once");
    assert!(index.close().within(PATIENCE));
}

#[test]
fn the_oldest_objects_have_no_room_in_a_small_table() {
    let folder = Folder::new("small");
    let base = folder.path();
    for number in 0..9_u8 {
        write(base, number);
        age(&base.join(file_name(number)), 1000 - u64::from(number));
    }
    let run = Run::bounded(base, 4);
    let (objects, summary) = run.scanned();
    assert_eq!(objects.iter().map(|object| object.hash.0[0]).collect::<Vec<_>>(), [5, 6, 7, 8]);
    assert_eq!((summary.unknown, summary.forgotten), (9, 5));
    run.end();
    assert_eq!(names(base).len(), 10, "their files stay");
}

#[test]
fn the_quarantine_keeps_the_newest_ones() {
    let folder = Folder::new("quarantine");
    let base = folder.path();
    let mut run = Run::start(base);
    run.scanned();
    let quarantine = run.index.quarantine().to_owned();
    for number in 0..70_u64 {
        let path = quarantine.join(format!("{number:02}"));
        fs::write(&path, "bad").expect("ours");
        age(&path, 1000 - number);
        run.index.quarantined();
    }
    run.end();
    let left = names(&quarantine);
    assert_eq!(left.len(), scan::QUARANTINE_FILES);
    assert!(left.contains("69") && !left.contains("05"));
}

#[test]
fn f24_what_a_folder_holds_is_measured_beside_what_is_free() {
    let folder = Folder::new("space");
    let base = folder.path();
    (0..5).for_each(|number| write(base, number));
    fs::write(base.join("thesis"), "not an object").expect("ours");
    let held = held_bytes(base).expect("it can be read");
    assert_eq!(held, (0..5).map(bytes).sum::<u64>());
    let free = free_bytes(base).expect("it can be asked");
    let given = capacity(None, free, held).expect("nothing was asked for");
    assert!(given.bytes > held && given.bytes < free + held);
    assert!(capacity(Some(u64::MAX), free, held).is_err());
}
