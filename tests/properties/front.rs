//! The front against a simple reference: whatever the order of fields, the width of ints, the
//! budget of a turn and the history of the memo, a key gives the fields that a general decoder
//! finds and the hashes that come of hashing all of its tokens.

#[path = "../../fuzz/src/reference.rs"]
mod reference;

use kvtide_core::config::{Config, HashAlgorithm};
use kvtide_core::effect::Outbox;
use kvtide_core::front::key::{KeyReader, KeyTools, Progress};
use kvtide_core::front::memo::Memo;
use kvtide_core::front::{Body, Front, Step};
use kvtide_core::wire::operation::Operation;
use proptest::prelude::*;
use proptest::sample::select;
use reference::{Expected, chunk_hashes};
use rmpv::Value;

// The reader, brought into the same form.

struct Reading {
    frame: Vec<u8>,
    reader: KeyReader,
}

/// None while there is more to read.
fn step(
    reading: &mut Reading,
    memo: &mut Memo,
    algorithm: HashAlgorithm,
    chunk: u32,
    budget: usize,
) -> Option<Option<Expected>> {
    let mut tools = KeyTools { algorithm, chunk_tokens: chunk, memo };
    let mut left = budget;
    match reading.reader.read(&reading.frame, &mut tools, &mut left) {
        Ok(Progress::More) => {
            assert_eq!(left, 0, "only a used up budget stops a reader");
            None
        }
        Err(_) => Some(None),
        Ok(Progress::Done) => Some(reading.reader.key(&reading.frame).ok().map(|key| Expected {
            model: key.model.to_owned(),
            salt: key.salt.to_owned(),
            request: key.request.to_owned(),
            world_size: key.world_size,
            worker: key.worker,
            readers: key.readers,
            start: key.start,
            end: key.end,
            tokens: key.tokens,
            hashes: memo.hashes(key.request)[..(key.tokens / chunk as u64) as usize].to_vec(),
        })),
    }
}

// Keys, as many strange ones as legal ones.

/// One int in a chosen width.
fn int(out: &mut Vec<u8>, value: i64, width: u8) {
    let wide = value as u64;
    match width {
        0 if (0..128).contains(&value) => out.push(value as u8),
        1 if (0..256).contains(&value) => out.extend([0xcc, value as u8]),
        2 if (0..65_536).contains(&value) => {
            out.push(0xcd);
            out.extend((value as u16).to_be_bytes());
        }
        3 if (0..1 << 32).contains(&value) => {
            out.push(0xce);
            out.extend((value as u32).to_be_bytes());
        }
        4 if value >= 0 => {
            out.push(0xcf);
            out.extend(wide.to_be_bytes());
        }
        5 if (-128..128).contains(&value) => out.extend([0xd0, value as u8]),
        6 if i32::try_from(value).is_ok() => {
            out.push(0xd2);
            out.extend((value as i32).to_be_bytes());
        }
        7 => {
            out.push(0xd3);
            out.extend(value.to_be_bytes());
        }
        _ => rmpv::encode::write_value(out, &Value::from(value)).expect("written"),
    }
}

fn encoded(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, value).expect("written");
    out
}

fn token_array(tokens: &[(i64, u8)], wide_head: bool) -> Vec<u8> {
    let mut out = Vec::new();
    match tokens.len() {
        few @ 0..=15 if !wide_head => out.push(0x90 | few as u8),
        many => {
            out.push(0xdd);
            out.extend((many as u32).to_be_bytes());
        }
    }
    tokens.iter().for_each(|(token, width)| int(&mut out, *token, *width));
    out
}

fn token() -> impl Strategy<Value = i64> {
    prop_oneof![0..128i64, 0..256i64, 0..65_536i64, 0..1i64 << 32]
}

fn tokens() -> impl Strategy<Value = Vec<u8>> {
    let good = prop::collection::vec((token(), 0..9u8), 0..80);
    let bad = prop::collection::vec((prop_oneof![8 => token(), 1 => any::<i64>()], 0..9u8), 0..20);
    (prop_oneof![9 => good, 1 => bad], any::<bool>())
        .prop_map(|(tokens, wide_head)| token_array(&tokens, wide_head))
}

fn odd_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z@/]{0,200}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Binary),
        (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(code, body)| Value::Ext(code, body)),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

type Pair = (String, Vec<u8>);

fn pair(name: &str, value: &Value) -> Pair {
    (name.to_owned(), encoded(value))
}

/// Any of the three fields that have a default.
fn optional_fields() -> impl Strategy<Value = u16> {
    any::<u16>().prop_map(|bits| bits & 0b11_1000_0000)
}

prop_compose! {
    fn pairs()(
        model in prop_oneof![6 => "[a-z/]{1,20}", 1 => "[a-z@]{0,4}"],
        salt in prop_oneof![6 => "[a-zü]{0,20}", 1 => "[a-z@/\\\\]{0,3}", 1 => "ü{127,130}"],
        request in prop_oneof![9 => "[a-c]{1,2}", 1 => "r{1020,1030}"],
        numbers in [
            prop_oneof![8 => 0..9i64, 1 => any::<i64>()],
            prop_oneof![8 => 0..9i64, 1 => any::<i64>()],
            prop_oneof![8 => 0..99i64, 1 => any::<i64>()],
            prop_oneof![8 => 0..99i64, 1 => any::<i64>()],
            prop_oneof![8 => 0..9i64, 1 => any::<i64>()],
        ],
        widths in [0..9u8, 0..9u8, 0..9u8, 0..9u8, 0..9u8],
        scheduler in any::<bool>(),
        tokens in tokens(),
        configs in prop_oneof![
            Just(Value::Nil),
            Just(Value::Map(vec![(Value::from("request_id"), Value::from("b"))])),
            odd_value(),
        ],
        extra in prop::collection::vec(("[a-z_]{0,12}", odd_value()), 0..3),
        absent in prop_oneof![6 => Just(0u16), 2 => optional_fields(), 1 => any::<u16>()],
    )(
        pairs in Just({
            let ints = [0, 1, 2, 3, 4].map(|at: usize| {
                let mut out = Vec::new();
                int(&mut out, numbers[at], widths[at]);
                out
            });
            let [world_size, worker, start, end, readers] = ints;
            let worker = if scheduler { vec![0xc0] } else { worker };
            let all = [
                pair("model_name", &Value::from(model)),
                ("world_size".to_owned(), world_size),
                ("worker_id".to_owned(), worker),
                ("token_ids".to_owned(), tokens),
                ("start".to_owned(), start),
                ("end".to_owned(), end),
                pair("request_id", &Value::from(request)),
                pair("cache_salt", &Value::from(salt)),
                pair("request_configs", &configs),
                ("num_kv_readers".to_owned(), readers),
            ];
            let kept = all.into_iter().enumerate().filter(|(at, _)| absent >> at & 1 == 0);
            let mut pairs: Vec<Pair> = kept.map(|(_, pair)| pair).collect();
            pairs.extend(extra.into_iter().map(|(name, value)| pair(&name, &value)));
            pairs
        }),
    ) -> Vec<Pair> {
        pairs
    }
}

fn map_of(pairs: &[Pair]) -> Vec<u8> {
    let mut out = vec![0xde];
    out.extend((pairs.len() as u16).to_be_bytes());
    for (name, value) in pairs {
        out.extend(encoded(&Value::from(name.as_str())));
        out.extend(value);
    }
    out
}

/// A key frame: in any order, sometimes with a field twice, a wrong value, too short or too long.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let ordered = pairs().prop_map(|pairs| map_of(&pairs));
    let shuffled = pairs().prop_shuffle().prop_map(|pairs| map_of(&pairs));
    let twice = pairs().prop_map(|mut pairs| {
        pairs.extend(pairs.first().cloned());
        map_of(&pairs)
    });
    let replaced = (pairs(), any::<prop::sample::Index>(), odd_value()).prop_map(
        |(mut pairs, index, value)| {
            if !pairs.is_empty() {
                let at = index.index(pairs.len());
                pairs[at].1 = encoded(&value);
            }
            map_of(&pairs)
        },
    );
    let cut = (pairs(), any::<prop::sample::Index>()).prop_map(|(pairs, index)| {
        let mut frame = map_of(&pairs);
        frame.truncate(index.index(frame.len()));
        frame
    });
    let longer = pairs().prop_map(|pairs| {
        let mut frame = map_of(&pairs);
        frame.push(0);
        frame
    });
    prop_oneof![8 => ordered, 6 => shuffled, 1 => twice, 3 => replaced, 1 => cut, 1 => longer]
}

fn algorithm() -> impl Strategy<Value = HashAlgorithm> {
    select(vec![HashAlgorithm::Blake3, HashAlgorithm::Sha256Cbor])
}

proptest! {
    /// Any key, any budget, an empty memo.
    #[test]
    fn a_key_reads_as_a_general_decoder_reads_it(
        frame in frame(),
        chunk in 1..20u32,
        algorithm in algorithm(),
        budgets in prop::collection::vec(1..60usize, 1..8),
    ) {
        let expected = reference::key(&frame, algorithm, chunk);
        let mut memo = Memo::with_limits(1, 8, 1 << 20);
        let mut reading = Reading { frame, reader: KeyReader::new() };
        let mut turns = budgets.iter().cycle();
        let found = loop {
            let budget = *turns.next().expect("a cycle has no end");
            if let Some(found) = step(&mut reading, &mut memo, algorithm, chunk, budget) {
                break found;
            }
        };
        prop_assert_eq!(found, expected);
    }
}

// Histories of the memo.

/// One request of a history: its tokens are a path through a small tree, so that arrays extend,
/// repeat, shorten and leave each other.
#[derive(Clone, Debug)]
struct Turn {
    request: u8,
    branch: u8,
    leave_at: usize,
    length: usize,
    /// How the id stands in the frame: behind the tokens, before them, or hidden behind a decoy.
    order: u8,
}

fn turn() -> impl Strategy<Value = Turn> {
    (0..4u8, 0..3u8, 0..60usize, 0..90usize, 0..3u8).prop_map(
        |(request, branch, leave_at, length, order)| Turn {
            request,
            branch,
            leave_at,
            length,
            order,
        },
    )
}

fn tokens_of(turn: &Turn) -> Vec<u32> {
    let mut tokens: Vec<u32> = Vec::with_capacity(turn.length);
    for at in 0..turn.length as u32 {
        let branch = if (at as usize) < turn.leave_at { 0 } else { turn.branch as u32 };
        // Small and large ids, so that elements differ in width.
        tokens.push(if at % 3 == 0 { at + branch } else { 70_000 + at * 7 + branch });
    }
    tokens
}

fn frame_of(turn: &Turn) -> Vec<u8> {
    let tokens: Vec<(i64, u8)> = tokens_of(turn).iter().map(|token| (*token as i64, 9)).collect();
    let request = pair("request_id", &Value::from(format!("request {}", turn.request)));
    let decoy = Value::Map(vec![(Value::from("request_id"), Value::from("request 0"))]);
    let array = ("token_ids".to_owned(), token_array(&tokens, true));
    let mut pairs = vec![
        pair("model_name", &Value::from("m")),
        pair("world_size", &Value::from(1)),
        pair("worker_id", &Value::Nil),
        pair("start", &Value::from(0)),
        pair("end", &Value::from(0)),
    ];
    match turn.order {
        0 => pairs.extend([array, request]),
        1 => pairs.extend([request, array]),
        _ => pairs.extend([array, request, pair("request_configs", &decoy)]),
    }
    map_of(&pairs)
}

proptest! {
    /// Several connections at once, whose keys are read in turns, share one small memo.
    #[test]
    fn the_memo_never_changes_a_hash(
        turns in prop::collection::vec(turn(), 1..24),
        schedule in prop::collection::vec((0..3usize, 1..200usize), 1..40),
        chunk in 1..17u32,
        sessions in 1..5usize,
        bytes in 500..20_000usize,
        algorithm in algorithm(),
    ) {
        let mut memo = Memo::with_limits(1, sessions, bytes);
        let mut waiting = turns.iter();
        let mut lanes: [Option<(Reading, Turn)>; 3] = [None, None, None];
        let mut schedule = schedule.iter().cycle();
        let mut ended = 0;
        while ended < turns.len() {
            let (lane, budget) = schedule.next().expect("a cycle has no end");
            for lane in &mut lanes {
                if lane.is_none() && let Some(turn) = waiting.next() {
                    let reading = Reading { frame: frame_of(turn), reader: KeyReader::new() };
                    *lane = Some((reading, turn.clone()));
                }
            }
            // A lane that has nothing left gives its turn to another one.
            let lane = if lanes[*lane].is_some() { *lane } else {
                lanes.iter().position(Option::is_some).expect("not all have ended")
            };
            let (reading, turn) = lanes[lane].as_mut().expect("a lane with work");
            if let Some(found) = step(reading, &mut memo, algorithm, chunk, *budget) {
                let found = found.expect("every key of a history is legal");
                let expected = chunk_hashes(algorithm, chunk, &tokens_of(turn));
                prop_assert_eq!(found.hashes, expected);
                lanes[lane] = None;
                ended += 1;
            }
            prop_assert!(memo.sessions() <= sessions);
        }
    }

    /// What is known is compared, not hashed again: a longer array costs what it adds.
    #[test]
    fn a_known_prefix_costs_an_eighth_at_most(chunks in 1..40usize, more in 0..40usize) {
        let cost = |memo: &mut Memo, chunks: usize| {
            let turn = Turn { request: 1, branch: 0, leave_at: 0, length: chunks * 16, order: 0 };
            let frame = frame_of(&turn);
            let mut reading = Reading { frame, reader: KeyReader::new() };
            let mut tools = KeyTools { algorithm: HashAlgorithm::Blake3, chunk_tokens: 16, memo };
            let mut left = usize::MAX;
            let read = reading.reader.read(&reading.frame, &mut tools, &mut left);
            assert_eq!(read, Ok(Progress::Done));
            usize::MAX - left
        };
        let mut memo = Memo::with_limits(1, 4, 1 << 20);
        let first = cost(&mut memo, chunks);
        let again = cost(&mut memo, chunks);
        let longer = cost(&mut memo, chunks + more);
        let whole = cost(&mut Memo::with_limits(1, 4, 1 << 20), chunks + more);
        let rest = 160;
        prop_assert!(again <= first / 8 + chunks + rest, "{again} of {first}");
        prop_assert!(longer <= whole - first + first / 8 + chunks + rest, "{longer} of {whole}");
    }
}

// Whole messages.

fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let operation = prop_oneof![
        8 => select(Operation::ALL.to_vec()).prop_map(|operation| {
            match operation.legacy_id() {
                Some(id) => vec![id],
                None => encoded(&Value::from(operation.name())),
            }
        }),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ];
    let payload = prop_oneof![
        4 => frame(),
        4 => odd_value().prop_map(|value| encoded(&value)),
        2 => prop::collection::vec(any::<u8>(), 0..60),
    ];
    (operation, prop::collection::vec(payload, 0..9)).prop_map(|(operation, payloads)| {
        let mut frames = vec![b"uid".to_vec(), operation];
        frames.extend(payloads);
        frames
    })
}

/// What came of a message, in words, with the facts.
fn outcome(front: &mut Front, body: Body, frames: &[Vec<u8>], budgets: &[usize]) -> String {
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut out = Outbox::default();
    let mut job = front.begin(body);
    let mut turns = budgets.iter().cycle();
    loop {
        let mut budget = *turns.next().expect("a cycle has no end");
        let step = match front.step(&mut job, &frames, &mut budget, &mut out) {
            Step::More => continue,
            // What the memo knows depends on what came before.
            Step::Ask(kvtide_core::event::Ask::EndSession { request, .. }) => request.to_owned(),
            Step::Silent => {
                assert!(out.effects.is_empty());
                "silent".to_owned()
            }
            step => format!("{step:?}"),
        };
        assert!(out.facts.len() <= 1, "a message has one fault at most");
        return format!("{step} {:?}", out.facts);
    }
}

proptest! {
    /// Any frames at all end in one step that is not `More`, without a panic, and whatever the
    /// budget and what was read before, in the same one.
    #[test]
    fn messages_end_the_same_whatever_the_budget(
        messages in prop::collection::vec(frames(), 1..5),
        budgets in prop::collection::vec(1..40usize, 1..8),
        announced in prop::option::of(any::<u64>()),
    ) {
        let config = Config { chunk_size: 4, ..Config::default() };
        let mut whole = Front::new(&config);
        let mut pieces = Front::new(&config);
        let body = announced.map_or(Body::Here, |bytes| Body::Announced { bytes });
        for frames in &messages {
            let expected = outcome(&mut whole, body, frames, &[usize::MAX]);
            let mut fresh = Front::new(&config);
            prop_assert_eq!(&outcome(&mut pieces, body, frames, &budgets), &expected);
            prop_assert_eq!(&outcome(&mut fresh, body, frames, &[usize::MAX]), &expected);
        }
    }

    #[test]
    fn arbitrary_bytes_end_in_an_answer_or_silence(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6),
    ) {
        let mut front = Front::new(&Config::default());
        let found = outcome(&mut front, Body::Here, &frames, &[7]);
        let control = frames.len() == 3
            && frames[1].is_empty()
            && (frames[2] == b"ack" || frames[2] == b"cancel");
        prop_assert_eq!(found.starts_with("silent"), frames.len() < 2 || control);
    }
}
