//! What a restart costs: reading an index, and looking through the folder that it is for.
//!
//!     cargo bench -p kvtide-tests --bench index [-- OBJECTS [FOLDER]]
//!
//! Prints rates in processor time of this process (medians of the rounds) and what passed on the
//! wall; nothing is asserted. The folder, by default one of its own where temporary files go, gets
//! a fifth as many files of one byte; they are listed once before, so that their names are warm.

use kvtide::tiers::index::{Index, IndexOptions, ScanNews};
use kvtide_core::effect::Note;
use kvtide_core::format::index::{HEADER_BYTES, Header, Record, Replay, ScopeRef, Writer};
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::{ChunkHash, KvRank, Seal};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

const ROUNDS: usize = 7;
const HEADER: Header = Header { id: [3; 16], created_nanos: 1 };
const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    let objects = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(1_000_000);
    let given = arguments.next().map(PathBuf::from);
    replay(objects);
    let own = std::env::temp_dir().join(format!("kvtide-bench-{}", std::process::id()));
    let base = given.unwrap_or(own);
    fs::create_dir(&base).expect("the folder is not there yet");
    folder(&base, objects / 5);
    fs::remove_dir_all(&base).expect("it was made here");
}

/// Each object is stored, and half of them are used afterwards.
fn replay(objects: u64) {
    let mut log = Vec::new();
    let mut writer = Writer::begin(&HEADER, &mut log);
    let scope = ScopeRef { model: MODEL, salt: "", rank: KvRank(0x0100_0100), group: 0 };
    writer.push(&Record::Scope(scope), &mut log);
    for number in 0..objects {
        let seal = Some(Seal { digest: number as u32, layout: 7 });
        let record = Record::Stored { scope: 0, hash: hash(number), bytes: 2 << 20, seal };
        writer.push(&record, &mut log);
    }
    for number in (0..objects).step_by(2) {
        let number = number.wrapping_mul(7919) % objects;
        writer.push(&Record::Used { scope: 0, hash: hash(number) }, &mut log);
    }
    let records = 1 + objects + objects.div_ceil(2);
    let (mut reading, mut writing) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let started = now();
        let mut replay = Replay::new(objects as usize, 1);
        let mut reader = replay.log(&HEADER);
        let (taken, fault) = replay.fold(&mut reader, &log[HEADER_BYTES..]);
        reading.push(started.elapsed());
        assert_eq!((taken, fault), (log.len() - HEADER_BYTES, None));
        let started = now();
        let mut bytes = 0;
        let put = |piece: &mut Vec<u8>| {
            bytes += piece.len();
            Ok::<(), ()>(())
        };
        replay.compact(&HEADER, put).expect("nothing refuses it");
        writing.push(started.elapsed());
        assert!(bytes > 0);
    }
    println!("index of {} MB, {objects} objects", log.len() / 1_000_000);
    print_rate("replay, records", records, median(reading));
    print_rate("compact, objects", objects, median(writing));
}

/// Twice: the folder as if another server had written it, and as our own.
fn folder(base: &Path, files: u64) {
    for number in 0..files {
        fs::write(base.join(file(number)), "x").expect("there is room");
    }
    let warm = fs::read_dir(base).expect("it is there").count() as u64;
    assert_eq!(warm, files);
    let (mut unknown, mut known) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        fs::remove_dir_all(base.join(".kvtide")).ok();
        unknown.push(look(base, (0, files)));
        known.push(look(base, (files, 0)));
    }
    println!("folder of {files} files, from the start of the keeper to the last batch");
    print_rate("no index, names", files, median(unknown));
    print_rate("index, names", files, median(known));
}

fn look(base: &Path, expected: (u64, u64)) -> Took {
    let (tell, news) = channel();
    let options = IndexOptions { name: "bench".into(), objects_max: 1 << 24, temp_dir: None };
    let started = now();
    let index = Index::open(base, options, move |told| tell.send(told).map_err(|back| back.0));
    let mut index = index.expect("the folder is ours");
    let summary = loop {
        match news.recv().expect("the scan ends") {
            ScanNews::Found(batch) => drop(batch),
            ScanNews::Known(_) => {}
            ScanNews::Ended(summary) => break *summary,
        }
    };
    let took = started.elapsed();
    assert_eq!((summary.known, summary.unknown), expected);
    index.note(&name(0), Note::Used);
    assert!(index.close().within(Duration::from_secs(60)));
    took
}

fn name(number: u64) -> ObjectName<'static> {
    let (rank, group, hash) = (KvRank(0x0100_0100), 0, hash(number).into());
    ObjectName { model: MODEL.into(), rank, group, hash, salt: "" }
}

fn file(number: u64) -> String {
    name(number).file().expect("it has a name")
}

/// As spread out as real ones.
fn hash(number: u64) -> ChunkHash {
    ChunkHash(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

/// Processor time, and time on the wall.
type Took = (Duration, Duration);

fn median(mut took: Vec<Took>) -> Took {
    took.sort_unstable();
    took[took.len() / 2]
}

fn print_rate(what: &str, count: u64, (processor, wall): Took) {
    let rate = count as f64 / processor.as_secs_f64() / 1e6;
    let [processor, wall] = [processor, wall].map(|time| time.as_secs_f64() * 1e3);
    println!(
        "  {what:<20} {rate:>7.2} million/s   {processor:>8.1} ms   {wall:>8.1} ms on the wall"
    );
}

struct Stopwatch(Took);

impl Stopwatch {
    fn elapsed(&self) -> Took {
        let Stopwatch((processor, wall)) = now();
        (processor - self.0.0, wall - self.0.1)
    }
}

fn now() -> Stopwatch {
    let read = |clock| {
        let time = rustix::time::clock_gettime(clock);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let processor = read(rustix::time::ClockId::ProcessCPUTime);
    Stopwatch((processor, read(rustix::time::ClockId::Monotonic)))
}
