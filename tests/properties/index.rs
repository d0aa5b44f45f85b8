//! The index of an adapter's files against a plain list.
//!
//! The list is told the same and knows nothing of bytes; the index is written, cut, changed,
//! compacted and read again in between.

use kvtide_core::effect::Note;
use kvtide_core::format::index::{
    Fault, Found, HEADER_BYTES, Header, Log, Object, Record, Replay, ScopeRef, Writer,
};
use kvtide_core::names::{ChunkHash, KvRank, Seal};
use kvtide_core::rng::Rng;
use std::collections::BTreeMap;

const HEADER: Header = Header { id: [9; 16], created_nanos: 1_000_000_000_000 };
const LIMIT: usize = 4096;

/// What an index should tell, by the time of its last use.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    lines: BTreeMap<u64, Line>,
    used: BTreeMap<(usize, ChunkHash), u64>,
    notes: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Line {
    scope: usize,
    hash: ChunkHash,
    bytes: u64,
    seal: Option<Seal>,
}

impl Model {
    fn tell(&mut self, scope: usize, hash: &ChunkHash, note: Note) {
        let used = self.used.remove(&(scope, *hash));
        let before = used.and_then(|used| self.lines.remove(&used));
        let after = match note {
            Note::Stored { bytes, seal } => Some(Line { scope, hash: *hash, bytes, seal }),
            Note::Used => before,
            Note::Removed => None,
        };
        self.notes += 1;
        if let Some(line) = after {
            self.lines.insert(self.notes, line);
            self.used.insert((scope, *hash), self.notes);
        }
    }

    /// The least recently used first.
    fn lines(&self) -> Vec<Line> {
        self.lines.values().cloned().collect()
    }
}

const SCOPES: [ScopeRef<'static>; 4] = [
    ScopeRef { model: "m", salt: "", rank: KvRank(0x0100_0100), group: 0 },
    ScopeRef { model: "org/m", salt: "tenant", rank: KvRank(0x0201_0201), group: 3 },
    ScopeRef { model: "org/m", salt: "tenant", rank: KvRank(0x0200_0201), group: 3 },
    ScopeRef { model: "ü", salt: "", rank: KvRank(0x0100_0100), group: u16::MAX },
];

/// A log, its writer and the number of each scope that it has told.
struct Written {
    bytes: Vec<u8>,
    writer: Writer,
    numbers: [Option<u32>; 4],
}

impl Written {
    fn new() -> Written {
        let mut bytes = Vec::new();
        let writer = Writer::begin(&HEADER, &mut bytes);
        Written { bytes, writer, numbers: [None; 4] }
    }

    /// How many records it took.
    fn tell(&mut self, scope: usize, hash: ChunkHash, note: Note) -> usize {
        let mut records = 1;
        let number = *self.numbers[scope].get_or_insert_with(|| {
            records += 1;
            let number = self.writer.scopes();
            self.writer.push(&Record::Scope(SCOPES[scope]), &mut self.bytes);
            number
        });
        let record = match note {
            Note::Stored { bytes, seal } => Record::Stored { scope: number, hash, bytes, seal },
            Note::Used => Record::Used { scope: number, hash },
            Note::Removed => Record::Removed { scope: number, hash },
        };
        self.writer.push(&record, &mut self.bytes);
        records
    }

    fn compact(&mut self) {
        let (replay, _, fault) = read(&self.bytes);
        assert_eq!(fault, None);
        self.bytes.clear();
        let put = |piece: &mut Vec<u8>| {
            self.bytes.extend_from_slice(piece);
            Ok::<(), ()>(())
        };
        let compacted = replay.compact(&HEADER, put).expect("memory takes everything");
        self.writer = compacted.writer;
        assert_eq!(self.writer.bytes(), self.bytes.len() as u64);
        self.numbers = SCOPES.map(|scope| compacted.scopes.find(&scope));
    }
}

fn random_note(rng: &mut Rng) -> Note {
    match rng.below(10) {
        0..4 => {
            let digest = rng.below(1 << 32) as u32;
            let seal = (rng.below(4) > 0).then_some(Seal { digest, layout: 77 });
            Note::Stored { bytes: rng.below(1 << 40), seal }
        }
        4..7 => Note::Used,
        _ => Note::Removed,
    }
}

fn hash(number: u64) -> ChunkHash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    hash[31] = 1;
    ChunkHash(hash)
}

fn read(bytes: &[u8]) -> (Replay, Log, Option<Fault>) {
    let header = Header::read(bytes).expect("the header is right");
    let mut replay = Replay::new(LIMIT, 5);
    let mut log = replay.log(&header);
    let (_, fault) = replay.fold(&mut log, &bytes[HEADER_BYTES..]);
    (replay, log, fault)
}

fn lines(replay: &Replay) -> Vec<Line> {
    let line = |object: &Object| {
        let name = replay.scope(object.scope).borrowed();
        let scope = SCOPES.iter().position(|scope| *scope == name).expect("it was told");
        Line { scope, hash: object.hash, bytes: object.bytes, seal: object.seal }
    };
    replay.iter().map(line).collect()
}

#[test]
fn an_index_read_in_pieces_is_the_same() {
    let mut rng = Rng::new(1);
    let (mut written, mut model) = (Written::new(), Model::default());
    for _ in 0..500 {
        let (scope, hash, note) =
            (rng.below(4) as usize, hash(rng.below(40)), random_note(&mut rng));
        written.tell(scope, hash, note);
        model.tell(scope, &hash, note);
    }
    for piece in [1, 2, 3, 7, 64, 1000] {
        let mut replay = Replay::new(LIMIT, 5);
        let mut log = replay.log(&HEADER);
        let mut held = Vec::new();
        for bytes in written.bytes[HEADER_BYTES..].chunks(piece) {
            held.extend_from_slice(bytes);
            let (taken, fault) = replay.fold(&mut log, &held);
            assert_eq!(fault, None);
            held.drain(..taken);
        }
        assert!(held.is_empty());
        assert_eq!(lines(&replay), model.lines());
        assert_eq!(Writer::resume(log.reader()), written.writer);
    }
}

#[test]
fn f11_any_prefix_tells_the_state_at_its_last_whole_record() {
    let mut rng = Rng::new(2);
    let (mut written, mut model) = (Written::new(), Model::default());
    // The state after each record, and where that record ends. A scope changes nothing.
    let mut states = vec![(written.bytes.len(), model.lines())];
    for _ in 0..60 {
        let (scope, hash, note) =
            (rng.below(4) as usize, hash(rng.below(12)), random_note(&mut rng));
        written.tell(scope, hash, note);
        model.tell(scope, &hash, note);
        states.push((written.bytes.len(), model.lines()));
    }
    for end in HEADER_BYTES..=written.bytes.len() {
        let (replay, log, fault) = read(&written.bytes[..end]);
        assert_eq!(fault, None, "cut off, not changed");
        let (_, expected) = states.iter().rfind(|(at, _)| *at <= end).expect("the first is empty");
        assert_eq!(lines(&replay), *expected, "{end} bytes");
        assert!(log.reader().bytes() <= end as u64);
    }
}

#[test]
fn any_flipped_bit_is_noticed_and_what_precedes_it_is_kept() {
    let mut rng = Rng::new(3);
    let (mut written, mut model) = (Written::new(), Model::default());
    let mut states = vec![(written.bytes.len(), model.lines())];
    for _ in 0..25 {
        let (scope, hash, note) =
            (rng.below(4) as usize, hash(rng.below(6)), random_note(&mut rng));
        written.tell(scope, hash, note);
        model.tell(scope, &hash, note);
        states.push((written.bytes.len(), model.lines()));
    }
    for at in 0..written.bytes.len() {
        for bit in 0..8 {
            let mut changed = written.bytes.clone();
            changed[at] ^= 1 << bit;
            if at < HEADER_BYTES {
                assert!(Header::read(&changed).is_err(), "byte {at} bit {bit}");
                continue;
            }
            let (replay, log, fault) = read(&changed);
            let is_whole = fault.is_none() && log.reader().bytes() == changed.len() as u64;
            assert!(!is_whole, "byte {at} bit {bit}");
            let (_, expected) = states.iter().rfind(|(end, _)| *end <= at).expect("there is one");
            assert_eq!(lines(&replay), *expected, "byte {at} bit {bit}");
        }
    }
}

/// A region that never reached the disk reads as zeros after a power loss; one that went elsewhere
/// leaves a hole in the order. Both end the reading there.
#[test]
fn f11_lost_and_swapped_records_end_the_reading() {
    let mut written = Written::new();
    written.tell(0, hash(0), Note::Used);
    let before = written.bytes.len();
    for number in 0..8 {
        written.tell(0, hash(number), Note::Stored { bytes: 4096, seal: None });
    }
    let record = (written.bytes.len() - before) / 8;
    let mut zeroed = written.bytes.clone();
    zeroed[before + 2 * record..before + 5 * record].fill(0);
    let (replay, _, fault) = read(&zeroed);
    assert_eq!((replay.len(), fault), (2, Some(Fault::Kind)));
    let mut swapped = written.bytes.clone();
    let (first, second) = swapped[before + 2 * record..].split_at_mut(record);
    first.swap_with_slice(&mut second[..record]);
    let (replay, _, fault) = read(&swapped);
    assert_eq!((replay.len(), fault), (2, Some(Fault::Checksum)));
    let mut other = Header { id: [8; 16], ..HEADER }.bytes().to_vec();
    other.extend_from_slice(&written.bytes[HEADER_BYTES..]);
    let (replay, _, fault) = read(&other);
    assert_eq!((replay.len(), fault), (0, Some(Fault::Checksum)), "records of another index");
}

/// A restart that works on a young index may fail on an old one (memcached/memcached#631). A
/// million random notes, with compactions, restarts and torn ends in between.
#[test]
fn f12_an_aged_index_equals_the_model_at_every_restart() {
    let mut rng = Rng::new(4);
    let (mut written, mut model) = (Written::new(), Model::default());
    let mut restarts = 0;
    for step in 0..1_000_000_u64 {
        // The range of names moves, so that most of what was ever stored is gone.
        let name = step / 5000 + rng.below(96);
        let (scope, hash, note) = (rng.below(4) as usize, hash(name), random_note(&mut rng));
        written.tell(scope, hash, note);
        model.tell(scope, &hash, note);
        if rng.below(10_000) == 0 || step == 999_999 {
            let whole = written.bytes.len();
            let torn = rng.below(RECORD_BYTES) as usize;
            written.bytes.extend((0..torn).map(|_| rng.below(256) as u8));
            let (replay, log, _) = read(&written.bytes);
            assert_eq!(lines(&replay), model.lines(), "after {step} notes");
            assert_eq!(log.reader().bytes(), whole as u64);
            written.bytes.truncate(whole);
            written.writer = Writer::resume(log.reader());
            restarts += 1;
        }
        if written.bytes.len() > 4 * 50 * model.lines.len().max(2000) {
            written.compact();
            assert_eq!(
                lines(&read(&written.bytes).0),
                model.lines(),
                "compacted after {step} notes"
            );
        }
    }
    assert!(restarts > 50, "{restarts} restarts");
}

/// About what a record takes.
const RECORD_BYTES: u64 = 50;

#[test]
fn p3_no_index_makes_the_table_grow_beyond_its_limit() {
    let mut written = Written::new();
    for number in 0..100 {
        written.tell(0, hash(number), Note::Stored { bytes: 1, seal: None });
    }
    written.tell(0, hash(95), Note::Used);
    let mut replay = Replay::new(10, 5);
    let mut log = replay.log(&HEADER);
    assert_eq!(replay.fold(&mut log, &written.bytes[HEADER_BYTES..]).1, None);
    let kept: Vec<ChunkHash> = replay.iter().map(|object| object.hash).collect();
    let expected = [90, 91, 92, 93, 94, 96, 97, 98, 99, 95];
    assert_eq!(kept, expected.map(hash), "the most recently used ones");
    assert_eq!((replay.forgotten(), replay.bytes()), (90, 10));
}

#[test]
fn files_take_their_places_among_known_objects_by_time() {
    let mut replay = Replay::new(6, 5);
    let mut bytes = Vec::new();
    let mut writer = Writer::begin(&HEADER, &mut bytes);
    writer.push(&Record::Scope(SCOPES[0]), &mut bytes);
    for (number, seconds) in [(1, 2000), (2, 3000), (3, 4000)] {
        writer.push(&Record::Time { seconds }, &mut bytes);
        let hash = hash(number);
        writer.push(&Record::Stored { scope: 0, hash, bytes: 10, seal: None }, &mut bytes);
    }
    let mut log = replay.log(&HEADER);
    replay.fold(&mut log, &bytes[HEADER_BYTES..]);
    for number in [1, 3] {
        assert!(replay.see(0, &hash(number)));
    }
    assert!(!replay.see(0, &hash(9)));
    assert_eq!(replay.drop_unseen(), 1, "what is not there any more");
    let found = [(9, 2500), (8, 1500), (7, 5000), (6, 100), (5, 2500), (3, 1)];
    let found =
        found.map(|(number, seconds)| Found { scope: 0, hash: hash(number), bytes: 7, seconds });
    replay.admit(found.to_vec());
    let order: Vec<ChunkHash> = replay.iter().map(|object| object.hash).collect();
    assert_eq!(order, [8, 1, 5, 9, 3, 7].map(hash), "the oldest of seven had no room");
    assert_eq!((replay.forgotten(), replay.bytes()), (1, 2 * 10 + 4 * 7));
}

/// Two servers wrote into one folder and both are dead: their objects are one list by time, and
/// where they disagree about the bytes of one name, nobody's seal is believed.
#[test]
fn indexes_of_several_servers_are_one_list() {
    let mut replay = Replay::new(LIMIT, 5);
    let seal = |digest| Some(Seal { digest, layout: 1 });
    for (id, stored) in [
        (1, [(1, 2000, 11), (2, 3000, 22), (3, 6000, 33)]),
        (2, [(4, 1000, 44), (2, 4000, 99), (5, 5000, 55)]),
    ] {
        let header = Header { id: [id; 16], created_nanos: 0 };
        let mut bytes = Vec::new();
        let mut writer = Writer::begin(&header, &mut bytes);
        writer.push(&Record::Scope(SCOPES[id as usize]), &mut bytes);
        writer.push(&Record::Scope(SCOPES[0]), &mut bytes);
        for (number, seconds, digest) in stored {
            writer.push(&Record::Time { seconds }, &mut bytes);
            let (hash, seal) = (hash(number), seal(digest));
            writer.push(&Record::Stored { scope: 1, hash, bytes: 8, seal }, &mut bytes);
        }
        let mut log = replay.log(&header);
        assert_eq!(replay.fold(&mut log, &bytes[HEADER_BYTES..]), (bytes.len() - 40, None));
    }
    replay.sort_by_time();
    let told: Vec<(ChunkHash, Option<Seal>)> =
        replay.iter().map(|object| (object.hash, object.seal)).collect();
    let expected = [(4, seal(44)), (1, seal(11)), (2, None), (5, seal(55)), (3, seal(33))];
    assert_eq!(told, expected.map(|(number, seal)| (hash(number), seal)));
}
