//! Real folders: restarts, torn indexes, other servers, what is left behind.

mod bounds;
mod questions;

use super::folder::Folder;
use super::*;
use kvtide_core::names::KvRank;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::sync::mpsc::{Receiver, channel};
use std::time::{SystemTime, UNIX_EPOCH};

/// An index and what its keeper tells.
struct Run {
    index: Index,
    news: Receiver<ScanNews>,
}

impl Run {
    fn start(base: &Path) -> Run {
        Run::bounded(base, 10_000)
    }

    fn bounded(base: &Path, objects_max: usize) -> Run {
        let (tell, news) = channel();
        let temp_dir = Some(PathBuf::from("temps"));
        let options = IndexOptions { name: "test".into(), objects_max, temp_dir };
        let index = Index::open(base, options, move |told| tell.send(told).map_err(|back| back.0));
        Run { index: index.expect("the folder is ours"), news }
    }

    /// Everything that lies there, the least recently used first.
    fn scanned(&self) -> (Vec<FoundObject>, ScanSummary) {
        let mut objects = Vec::new();
        loop {
            match self.news.recv_timeout(PATIENCE).expect("the scan ends") {
                ScanNews::Found(mut batch) => {
                    assert!(batch.objects.len() <= kvtide_core::limits::SCANNED_PER_EVENT);
                    objects.append(&mut batch.objects);
                }
                ScanNews::Known(known) => panic!("nothing was asked: {known:?}"),
                ScanNews::Ended(summary) => {
                    return (objects, ScanSummary { took: Duration::ZERO, ..*summary });
                }
            }
        }
    }

    fn numbers(&self) -> Vec<u8> {
        self.scanned().0.iter().map(|object| object.hash.0[0]).collect()
    }

    fn end(self) {
        assert!(self.index.close().within(PATIENCE), "the keeper ends");
    }

    fn note(&mut self, number: u8, note: Note) {
        self.index.note(&name(number), note);
    }

    /// A file and its note, as a store has them.
    fn store(&mut self, base: &Path, number: u8) {
        write(base, number);
        self.note(number, stored(number));
    }

    fn remove(&mut self, base: &Path, number: u8) {
        fs::remove_file(base.join(file_name(number))).expect("it was written");
        self.note(number, Note::Removed);
    }
}

fn hash(number: u8) -> ChunkHash {
    ChunkHash([number; 32])
}

fn name(number: u8) -> ObjectName<'static> {
    ObjectName {
        model: "org/m".into(),
        rank: KvRank(0x0100_0100),
        group: u32::from(number % 3),
        hash: hash(number).into(),
        salt: if number.is_multiple_of(2) { "" } else { "tenant" },
    }
}

fn file_name(number: u8) -> String {
    name(number).file().expect("it has a name")
}

fn seal(number: u8) -> Option<Seal> {
    Some(Seal { digest: u32::from(number) << 20, layout: 7 })
}

fn stored(number: u8) -> Note {
    Note::Stored { bytes: bytes(number), seal: seal(number) }
}

fn bytes(number: u8) -> u64 {
    100 + u64::from(number)
}

fn write(base: &Path, number: u8) {
    let content = vec![number; bytes(number) as usize];
    fs::write(base.join(file_name(number)), content).expect("there is room");
}

/// Makes a file as old as it says.
fn age(path: &Path, seconds: u64) {
    let file = File::options().write(true).open(path).expect("it is there");
    file.set_modified(SystemTime::now_as_told() - Duration::from_secs(seconds)).expect("ours");
}

/// The wall clock, from the one place that reads it.
trait Told {
    fn now_as_told() -> SystemTime;
}

impl Told for SystemTime {
    fn now_as_told() -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(crate::clock::Clock::start().wall_nanos())
    }
}

/// Names in `.kvtide` that begin or end so.
fn indexes(base: &Path) -> Vec<String> {
    let entries = fs::read_dir(base.join(FOLDER)).expect("it is there");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().expect("plain")).collect();
    names.retain(|name| name.contains(".idx"));
    names.sort_unstable();
    names
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("it is there");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    names.map(|name| name.into_string().expect("plain")).collect()
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Old files were served and counted as nothing after a restart, so the disk filled
/// (LMCache/LMCache#4564). Usage, tenants, seals and the order of use come back.
#[test]
fn f10_a_restart_keeps_usage_seals_and_order() {
    let folder = Folder::new("restart");
    let base = folder.path();
    let mut run = Run::start(base);
    assert_eq!(run.scanned(), (Vec::new(), ScanSummary::default()));
    (0..10).for_each(|number| run.store(base, number));
    [3, 0, 3].into_iter().for_each(|number| run.note(number, Note::Used));
    [5, 6].into_iter().for_each(|number| run.remove(base, number));
    run.store(base, 5);
    run.end();
    for _ in 0..3 {
        let run = Run::start(base);
        let (objects, summary) = run.scanned();
        let order = [1, 2, 4, 7, 8, 9, 0, 3, 5];
        assert_eq!(objects.iter().map(|object| object.hash.0[0]).collect::<Vec<_>>(), order);
        for object in &objects {
            let number = object.hash.0[0];
            let scanned = object.scanned();
            assert_eq!((scanned.bytes, scanned.seal), (bytes(number), seal(number)));
            assert_eq!((scanned.model, scanned.salt), ("org/m", name(number).salt));
            assert_eq!(u32::from(scanned.group), name(number).group);
        }
        let used = order.into_iter().map(bytes).sum();
        let expected = ScanSummary { known: 9, bytes: used, ..ScanSummary::default() };
        assert_eq!(summary, expected);
        assert_eq!(indexes(base).len(), 1);
        run.end();
    }
}

/// Whatever byte the last write of a server came to, what it had told before is kept, nothing of
/// the files is lost, and the index can be gone on with.
#[test]
fn f11_an_index_torn_at_any_byte_is_gone_on_with() {
    let folder = Folder::new("torn");
    let base = folder.path();
    let mut run = Run::start(base);
    run.scanned();
    (0..5).for_each(|number| run.store(base, number));
    let path = base.join(FOLDER).join(format!("{}.idx", run.index.uuid()));
    run.end();
    let whole = fs::read(&path).expect("it was written");
    let mut sealed_before = 0;
    for end in 0..=whole.len() {
        for left in indexes(base) {
            fs::remove_file(base.join(FOLDER).join(left)).expect("it is there");
        }
        fs::write(&path, &whole[..end]).expect("there is room");
        let mut run = Run::start(base);
        let (objects, summary) = run.scanned();
        assert_eq!((objects.len(), summary.absent), (5, 0), "{end} bytes");
        let sealed = objects.iter().filter(|object| object.seal.is_some()).count();
        assert!(sealed >= sealed_before, "{end} bytes");
        sealed_before = sealed;
        run.note(4, stored(4));
        run.end();
        let run = Run::start(base);
        let (objects, summary) = run.scanned();
        assert_eq!((summary.known, summary.damaged), (5, 0), "{end} bytes");
        let last = objects.last().expect("there are five");
        assert_eq!((last.hash, last.seal), (hash(4), seal(4)), "{end} bytes");
        run.end();
    }
    assert_eq!(sealed_before, 5);
}

/// The new index is written beside the old one. A server that ends at any step of that leaves the
/// old one to be read.
#[test]
fn f11_a_compaction_cut_short_leaves_the_old_index() {
    let folder = Folder::new("compaction");
    let base = folder.path();
    let mut run = Run::start(base);
    run.scanned();
    (0..4).for_each(|number| run.store(base, number));
    run.end();
    let whole = fs::read(base.join(FOLDER).join(&indexes(base)[0])).expect("it was written");
    for end in [0, 10, 40, 60, whole.len()] {
        let beside = "00000000-0000-4000-8000-000000000000.idx.new";
        fs::write(base.join(FOLDER).join(beside), &whole[..end]).expect("there is room");
        let run = Run::start(base);
        let (objects, _) = run.scanned();
        assert!(objects.iter().all(|object| object.seal == seal(object.hash.0[0])));
        assert_eq!((objects.len(), indexes(base).len()), (4, 1), "the one beside is gone");
        run.end();
    }
}

#[test]
fn a_lost_index_is_made_anew_from_the_files() {
    let folder = Folder::new("lost");
    let base = folder.path();
    for (number, seconds) in [(1, 300), (2, 100), (3, 200)] {
        write(base, number);
        age(&base.join(file_name(number)), seconds);
    }
    let mut run = Run::start(base);
    let (objects, summary) = run.scanned();
    assert!(objects.iter().all(|object| object.seal.is_none()));
    assert_eq!(objects.iter().map(|object| object.hash.0[0]).collect::<Vec<_>>(), [1, 3, 2]);
    assert_eq!((summary.known, summary.unknown, summary.bytes), (0, 3, 306));
    run.note(1, Note::Used);
    run.end();
    let run = Run::start(base);
    let (objects, summary) = run.scanned();
    assert_eq!(objects.iter().map(|object| object.hash.0[0]).collect::<Vec<_>>(), [3, 2, 1]);
    assert_eq!((summary.known, summary.unknown), (3, 0), "no file has to be looked at again");
    run.end();
}

/// Usage that stays high after files have gone would refuse every write (dragonflydb#8149).
#[test]
fn f21_files_deleted_by_hand_are_not_counted_any_more() {
    let folder = Folder::new("drift");
    let base = folder.path();
    let mut run = Run::start(base);
    run.scanned();
    (0..20).for_each(|number| run.store(base, number));
    run.end();
    (0..18).for_each(|number| fs::remove_file(base.join(file_name(number))).expect("ours"));
    let run = Run::start(base);
    let (objects, summary) = run.scanned();
    assert_eq!((objects.len(), summary.absent), (2, 18));
    assert_eq!(summary.bytes, bytes(18) + bytes(19));
    run.end();
    let run = Run::start(base);
    assert_eq!(run.scanned().1.absent, 0, "told once");
    run.end();
}

#[test]
fn a_folder_of_the_peer_is_taken_in_and_nothing_foreign_is_touched() {
    let folder = Folder::new("peer");
    let base = folder.path();
    let hash = "ab".repeat(32);
    let day = 24 * 60 * 60;
    fs::create_dir(base.join("temps")).expect("ours");
    let object = format!("org-SEP-model@0x01000100@0@{hash}.data");
    let salted = format!("org-SEP-model@0x08030803@1f@{hash}@tenant.data");
    let files = [
        (object.as_str(), 1000, 8),
        (&salted, 500, 16),
        // Being written, left behind, and the work of somebody else.
        (&format!("org-SEP-model@0x01000100@1@{hash}.tmp"), 60, 3),
        (&format!("org-SEP-model@0x01000100@2@{hash}.tmp"), day + 60, 3),
        (&format!("temps/{object}"), day + 60, 3),
        (&format!("temps/{salted}"), 60, 3),
        ("temps/thesis.doc", 9 * day, 3),
        ("thesis.tmp", 9 * day, 3),
        ("org-SEP-model@0x01000100@0@0123456789abcdef.data", 60, 3),
        (&format!("org-SEP-empty@0x01000100@0@{hash}.data"), 60, 0),
        ("a-SEP-SEP-b@0x01000100@0@ab.data", 60, 3),
    ];
    for (name, seconds, bytes) in files {
        fs::write(base.join(name), vec![1; bytes]).expect("ours");
        age(&base.join(name), seconds);
    }
    let before = (names(base), names(&base.join("temps")));
    let run = Run::start(base);
    let (objects, summary) = run.scanned();
    let told: Vec<_> = objects.iter().map(FoundObject::scanned).collect();
    assert_eq!(told.len(), 2);
    assert_eq!((told[0].model, told[0].salt, told[0].bytes), ("org/model", "", 8));
    assert_eq!((told[1].rank, told[1].group), (KvRank(0x0803_0803), 0x1f));
    assert_eq!((told[1].salt, told[1].bytes, told[1].seal), ("tenant", 16, None));
    assert_eq!((summary.unknown, summary.temps_removed, summary.foreign), (2, 2, 5));
    assert!(summary.foreign_example.is_some());
    let gone = |before: BTreeSet<String>, after: BTreeSet<String>| {
        before.difference(&after).cloned().collect::<Vec<_>>()
    };
    assert_eq!(gone(before.0, names(base)), [files[3].0]);
    assert_eq!(gone(before.1, names(&base.join("temps"))), [object.as_str()]);
    run.end();
}

/// Two servers in one folder have an index each; what both leave behind becomes one.
#[test]
fn two_servers_have_an_index_each_and_the_next_one_takes_both() {
    let folder = Folder::new("two");
    let base = folder.path();
    let (mut first, mut second) = (Run::start(base), Run::start(base));
    first.scanned();
    second.scanned();
    assert_eq!(indexes(base).len(), 2);
    first.store(base, 1);
    second.store(base, 2);
    first.end();
    second.store(base, 3);
    // The first comes back while the second lives.
    let third = Run::start(base);
    let (objects, summary) = third.scanned();
    assert_eq!((objects.len(), summary.known, summary.unknown), (3, 1, 2));
    assert_eq!(indexes(base).len(), 2);
    second.end();
    third.end();
    let last = Run::start(base);
    let (objects, summary) = last.scanned();
    assert_eq!((objects.len(), summary.known), (3, 3));
    assert_eq!(indexes(base).len(), 1);
    let of = |number| objects.iter().find(|object| object.hash == hash(number));
    assert_eq!(of(1).and_then(|object| object.seal), seal(1), "both say so, or one knows");
    last.end();
    let run = Run::start(base);
    assert_eq!(run.numbers().len(), 3);
    run.end();
}

#[test]
fn a_temp_goes_when_its_server_is_dead_and_stays_while_it_lives() {
    let folder = Folder::new("temps");
    let base = folder.path();
    let put = |uuid: &str, counter| {
        let name = temp_name(&file_name(1), uuid, counter);
        fs::write(base.join(&name), "half").expect("ours");
        name
    };
    let live = Run::start(base);
    live.scanned();
    let of_live = put(live.index.uuid(), 1);
    age(&base.join(&of_live), 9 * 24 * 60 * 60);
    let dead = Run::start(base);
    dead.scanned();
    let of_dead = put(dead.index.uuid(), 2);
    let of_nobody = put("ffffffff-0000-4000-8000-000000000000", 3);
    dead.end();
    let next = Run::start(base);
    assert_eq!(next.scanned().1.temps_removed, 2);
    let left = names(base);
    assert!(left.contains(&of_live));
    assert!(!left.contains(&of_dead) && !left.contains(&of_nobody));
    next.end();
    live.end();
}

#[test]
fn an_index_of_a_later_version_stays_where_it_is() {
    let folder = Folder::new("later");
    let base = folder.path();
    let path = base.join(FOLDER).join("00000000-0000-4000-8000-000000000000.idx");
    fs::create_dir(base.join(FOLDER)).expect("ours");
    let mut later = b"KVTIDIDX".to_vec();
    later.extend([9, 0, 1, 2, 3]);
    fs::write(&path, &later).expect("ours");
    write(base, 1);
    let run = Run::start(base);
    assert_eq!(run.numbers(), [1]);
    run.end();
    assert_eq!(fs::read(&path).expect("it is there"), later);
}
