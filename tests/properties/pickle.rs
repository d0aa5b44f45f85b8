//! The reader of pickled tensors against anything: damaged samples of a real torch, instructions in
//! any order, arbitrary bytes. It never panics, never hands out payload that belongs nowhere, and
//! never counts a chunk whose bytes have not all come.

use kvtide_core::event::BodyOutcome;
use kvtide_core::format::names::{HashBytes, NameError, ObjectName};
use kvtide_core::format::pickle::PickleReader;
use kvtide_core::names::{Dtype, KvRank, Layout};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::borrow::Cow;

fn layout(dtype: &str, planes: u8, [layers, slots, hidden]: [u32; 3]) -> Layout {
    Layout { planes, layers, slots, hidden, dtype: Dtype::named(dtype).expect("a torch type") }
}

/// A sample and the layout that it was made for.
fn sample() -> impl Strategy<Value = (Vec<u8>, Layout)> {
    select(vec![
        (
            &include_bytes!("../golden/pickle/float16-2x2x3x5.pickle")[..],
            layout("float16", 2, [2, 3, 5]),
        ),
        (
            &include_bytes!("../golden/pickle/float8_e4m3fn-2x2x3x5.pickle")[..],
            layout("float8_e4m3fn", 2, [2, 3, 5]),
        ),
        (
            &include_bytes!("../golden/pickle/float16-3x4x5-protocol3.pickle")[..],
            layout("float16", 1, [3, 4, 5]),
        ),
        (
            &include_bytes!("../golden/pickle/one-shared-storage.pickle")[..],
            layout("float16", 1, [3, 4, 5]),
        ),
        (
            &include_bytes!("../golden/pickle/same-tensor-twice.pickle")[..],
            layout("float16", 1, [3, 4, 5]),
        ),
    ])
    .prop_map(|(body, layout)| (body.to_vec(), layout))
}

#[derive(Debug, PartialEq)]
struct Read {
    payload: Vec<Vec<u8>>,
    complete: u32,
    outcome: BodyOutcome,
}

/// Reads a body in pieces of the given sizes and checks what must hold for every body.
fn read(layout: Layout, chunks: u32, mut body: &[u8], sizes: &[usize]) -> Read {
    let chunk_bytes = layout.bytes().expect("a size") as usize;
    let mut reader = PickleReader::new(layout, chunks);
    let mut payload = vec![Vec::new(); chunks as usize];
    let mut sizes = sizes.iter().cycle();
    while !body.is_empty() {
        let size = sizes.next().expect("a cycle has no end");
        let (now, later) = body.split_at(body.len().min(*size));
        body = later;
        reader.feed(now, |span| {
            let chunk = &mut payload[span.chunk as usize];
            assert_eq!(span.offset, chunk.len() as u64, "payload comes in order");
            chunk.extend_from_slice(span.bytes);
            assert!(chunk.len() <= chunk_bytes, "payload stays within its chunk");
        });
    }
    let (complete, outcome) = reader.end();
    assert!(complete <= chunks);
    assert!(payload[..complete as usize].iter().all(|chunk| chunk.len() == chunk_bytes));
    assert!(outcome != BodyOutcome::Whole || complete == chunks);
    Read { payload, complete, outcome }
}

#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (any::<Index>(), fragment()).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (any::<Index>(), 1..9usize).prop_map(|(at, bytes)| Damage::Remove(at, bytes)),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Damage::Repeat(from, to)),
    ]
}

fn damaged(mut body: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        match damage {
            _ if body.is_empty() => {}
            Damage::Set(at, byte) => {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            Damage::Insert(at, bytes) => {
                let at = at.index(body.len());
                body.splice(at..at, bytes.iter().copied());
            }
            Damage::Remove(at, bytes) => {
                let at = at.index(body.len());
                let end = body.len().min(at + bytes);
                body.drain(at..end);
            }
            Damage::Repeat(from, to) => {
                let (from, to) = (from.index(body.len()), to.index(body.len()));
                let part = body[from.min(to)..from.max(to)].to_vec();
                body.splice(to..to, part);
            }
        }
    }
    body
}

/// An instruction that the reader knows, with some argument.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let fixed: Vec<&'static [u8]> = vec![
        b"\x80\x04",
        b".",
        b"(",
        b"0",
        b"1",
        b"]",
        b")",
        b"}",
        b"a",
        b"e",
        b"t",
        b"\x85",
        b"\x86",
        b"\x87",
        b"R",
        b"s",
        b"u",
        b"\x94",
        b"N",
        b"\x88",
        b"\x89",
        b"\x93",
        b"Q",
        b"q\x00",
        b"h\x00",
        b"h\x03",
        b"K\x00",
        b"M\x01\x02",
        b"J\xff\xff\xff\xff",
        b"\x8a\x01\x05",
        b"\x95\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x8c\x0ctorch._utils",
        b"\x8c\x12_rebuild_tensor_v2",
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ctorch.storage\n_load_from_bytes\n",
        b"ccollections\nOrderedDict\n",
        b"ctorch\nfloat16\n",
        b"X\x07\x00\x00\x00storage",
        b"C\x03abc",
        b"B\x04\x00\x00\x00\x80\x02K.",
        b"\x8e\x02\x00\x00\x00\x00\x00\x00\x00ab",
        b"B\xff\xff\xff\xff",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff",
        b"r\xff\xff\xff\xff",
        b"j\xff\xff\xff\xff",
    ];
    select(fixed).prop_map(<[u8]>::to_vec)
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..90usize, 1..6)
}

proptest! {
    #[test]
    fn damaged_samples_read_the_same_in_all_pieces(
        (body, layout) in sample(),
        damages in prop::collection::vec(damage(), 0..4),
        chunks in 0..4u32,
        sizes in sizes(),
    ) {
        let body = damaged(body, &damages);
        let whole = read(layout, chunks, &body, &[usize::MAX]);
        prop_assert_eq!(read(layout, chunks, &body, &sizes), whole);
    }

    #[test]
    fn instructions_in_any_order_never_panic(
        fragments in prop::collection::vec(fragment(), 0..60),
        chunks in 0..3u32,
        sizes in sizes(),
    ) {
        let layout = layout("float16", 1, [1, 2, 3]);
        let body = fragments.concat();
        let whole = read(layout, chunks, &body, &[usize::MAX]);
        prop_assert_eq!(read(layout, chunks, &body, &sizes), whole);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        body in prop::collection::vec(any::<u8>(), 0..200),
        sizes in sizes(),
    ) {
        let layout = layout("float16", 1, [1, 2, 3]);
        let whole = read(layout, 2, &body, &[usize::MAX]);
        prop_assert_eq!(read(layout, 2, &body, &sizes), whole);
    }

    /// A pickle that never ends costs no more memory than its limits: what is pushed and memoized
    /// for ever is refused.
    #[test]
    fn endless_pickles_are_refused(part in fragment(), memoized in any::<bool>()) {
        let layout = layout("float16", 1, [1, 2, 3]);
        let mut reader = PickleReader::new(layout, 1);
        reader.feed(b"\x80\x04", |_| {});
        let part = if memoized { [&part[..], b"\x94"].concat() } else { part };
        for _ in 0..20_000 {
            reader.feed(&part, |_| {});
        }
        let (complete, outcome) = reader.end();
        let passive: [&[u8]; 6] =
            [b"\x80\x04", b"\x95", b"q\x00", b"(", b"B\xff\xff\xff\xff", b"\x8e"];
        if !passive.iter().any(|passive| part.starts_with(passive)) {
            prop_assert_eq!(outcome, BodyOutcome::Malformed);
        }
        prop_assert_eq!(complete, 0);
    }

    /// I-48: every legal key reads back from its names, and two keys never share one.
    #[test]
    fn i48_names_read_back_and_never_collide(
        models in ["[a-z/.:SEP-]{1,12}", "[a-z/.:SEP-]{1,12}"],
        ranks in [any::<u32>(), any::<u32>()],
        groups in [0..300u32, 0..300u32],
        hashes in [
            prop::collection::vec(any::<u8>(), 1..33),
            prop::collection::vec(any::<u8>(), 1..33),
        ],
        salts in ["(|[a-z.:ü]{1,9}|x\\.data)", "(|[a-z.:ü]{1,9}|x\\.data)"],
        same in any::<u8>(),
    ) {
        let pick = |at: usize, bit: u8| if same >> bit & 1 == 0 { at } else { 0 };
        let name = |at: usize| ObjectName {
            model: Cow::Borrowed(models[pick(at, 0)].as_str()),
            rank: KvRank(ranks[pick(at, 1)]),
            group: groups[pick(at, 2)],
            hash: HashBytes::new(&hashes[pick(at, 3)]).expect("1 to 32 bytes"),
            salt: salts[pick(at, 4)].as_str(),
        };
        let (first, second) = (name(0), name(1));
        let native = [first.native(), second.native()].map(|name| name.expect("a legal key"));
        prop_assert_eq!(ObjectName::parse_native(&native[0]), Ok(first.clone()));
        prop_assert_eq!(native[0] == native[1], first == second);
        match (first.file(), second.file()) {
            (Ok(one), Ok(other)) => {
                prop_assert_eq!(ObjectName::parse_file(&one), Ok(first.clone()));
                prop_assert_eq!(one == other, first == second);
            }
            (one, other) => for (refused, name) in [(one, &first), (other, &second)] {
                if let Err(reason) = refused {
                    prop_assert_eq!(reason, NameError::ModelSeparator);
                    prop_assert!(name.model.contains("-SEP"));
                }
            }
        }
    }

    /// Whatever parses is the one name of what it says.
    #[test]
    fn i48_a_name_that_parses_is_written_the_same(
        head in "[a-c/]{1,3}@(0x)?[0-9a-fA]{7,9}@[0-9a-f]{1,3}@[0-9a-f]{0,6}",
        tail in "(@[a-z]{0,3}){0,2}(\\.data)?",
    ) {
        let name = head + &tail;
        if let Ok(parsed) = ObjectName::parse_native(&name) {
            prop_assert_eq!(parsed.native(), Ok(name.clone()));
        }
        if let Ok(parsed) = ObjectName::parse_file(&name) {
            prop_assert_eq!(parsed.file(), Ok(name.clone()));
        }
    }
}
