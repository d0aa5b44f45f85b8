//! Pickled tensors against samples made by a real torch (`pickle/make.py`), and our own against
//! samples that a real torch has read.

use kvtide_core::event::BodyOutcome;
use kvtide_core::format::pickle::{PickleReader, writer};
use kvtide_core::names::{Dtype, Layout};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/pickle")
}

fn sample(name: &str) -> Vec<u8> {
    let path = folder().join(format!("{name}.pickle"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn layout(dtype: &str, shape: &[u32]) -> Layout {
    let dtype = Dtype::named(dtype).expect("a torch type");
    match *shape {
        [2, layers, slots, hidden] => Layout { planes: 2, layers, slots, hidden, dtype },
        [layers, slots, hidden] => Layout { planes: 1, layers, slots, hidden, dtype },
        _ => panic!("no layout has the shape {shape:?}"),
    }
}

/// The bytes that `make.py` gave tensor `index`.
fn pattern(layout: &Layout, index: u32) -> Vec<u8> {
    let bytes = layout.bytes().expect("a size");
    (0..bytes).map(|at| (at * 31 + index as u64 * 101 + 7) as u8).collect()
}

/// Everything that a reader made of a body that came in `pieces`.
fn read(layout: Layout, chunks: u32, pieces: &[&[u8]]) -> (Vec<Vec<u8>>, u32, BodyOutcome) {
    let mut reader = PickleReader::new(layout, chunks);
    let mut payload = vec![Vec::new(); chunks as usize];
    for piece in pieces {
        reader.feed(piece, |span| {
            let chunk = &mut payload[span.chunk as usize];
            assert_eq!(chunk.len() as u64, span.offset, "payload comes in order");
            chunk.extend_from_slice(span.bytes);
        });
    }
    let (complete, outcome) = reader.end();
    (payload, complete, outcome)
}

fn outcome(layout: Layout, chunks: u32, body: &[u8]) -> (u32, BodyOutcome) {
    let (_, complete, outcome) = read(layout, chunks, &[body]);
    (complete, outcome)
}

/// Name, type and shape of the samples that are two whole chunks.
const WHOLE: &[(&str, &str, &[u32])] = &[
    ("float16-2x2x3x5", "float16", &[2, 2, 3, 5]),
    ("bfloat16-2x2x3x5", "bfloat16", &[2, 2, 3, 5]),
    ("float32-2x2x3x5", "float32", &[2, 2, 3, 5]),
    ("float64-2x2x3x5", "float64", &[2, 2, 3, 5]),
    ("uint8-2x2x3x5", "uint8", &[2, 2, 3, 5]),
    ("int8-2x2x3x5", "int8", &[2, 2, 3, 5]),
    ("int16-2x2x3x5", "int16", &[2, 2, 3, 5]),
    ("int64-2x2x3x5", "int64", &[2, 2, 3, 5]),
    ("uint16-2x2x3x5", "uint16", &[2, 2, 3, 5]),
    ("float8_e4m3fn-2x2x3x5", "float8_e4m3fn", &[2, 2, 3, 5]),
    ("float8_e5m2-2x2x3x5", "float8_e5m2", &[2, 2, 3, 5]),
    ("float8_e8m0fnu-2x2x3x5", "float8_e8m0fnu", &[2, 2, 3, 5]),
    ("complex64-2x2x3x5", "complex64", &[2, 2, 3, 5]),
    ("float16-3x4x5-protocol3", "float16", &[3, 4, 5]),
    ("float16-3x4x5-protocol5", "float16", &[3, 4, 5]),
    ("bfloat16-2x1x64x300", "bfloat16", &[2, 1, 64, 300]),
];

#[test]
fn tensors_of_every_type_are_read_byte_for_byte() {
    for (name, dtype, shape) in WHOLE {
        let layout = layout(dtype, shape);
        let body = sample(name);
        let expected = vec![pattern(&layout, 0), pattern(&layout, 1)];
        let result = read(layout, 2, &[&body]);
        assert_eq!(result, (expected, 2, BodyOutcome::Whole), "{name}");
    }
}

#[test]
fn every_split_reads_the_same() {
    for (name, dtype, shape) in WHOLE {
        let layout = layout(dtype, shape);
        let body = sample(name);
        let whole = read(layout, 2, &[&body]);
        // Every place in small samples, and the places around payload in large ones.
        let step = if body.len() > 4096 { 257 } else { 1 };
        for at in (0..body.len()).step_by(step) {
            let (head, tail) = body.split_at(at);
            assert_eq!(read(layout, 2, &[head, tail]), whole, "{name} cut at {at}");
        }
        let single: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(read(layout, 2, &single), whole, "{name} byte by byte");
    }
}

#[test]
fn every_truncation_is_short_and_keeps_what_is_whole() {
    let layout = layout("float16", &[2, 2, 3, 5]);
    let body = sample("float16-2x2x3x5");
    let mut before = 0;
    for bytes in 0..body.len() {
        let (complete, ending) = outcome(layout, 2, &body[..bytes]);
        assert_eq!(ending, BodyOutcome::Short, "{bytes} bytes");
        assert!(complete >= before, "what is complete stays complete");
        before = complete;
    }
    assert_eq!(before, 2);
}

#[test]
fn another_number_of_tensors_is_short() {
    let layout = layout("float16", &[2, 2, 3, 5]);
    let body = sample("float16-2x2x3x5");
    assert_eq!(outcome(layout, 3, &body), (2, BodyOutcome::Short));
    assert_eq!(outcome(layout, 1, &body), (1, BodyOutcome::Short));
    assert_eq!(outcome(layout, 0, &body), (0, BodyOutcome::Short));
}

/// The same bytes under another shape or type are another object.
#[test]
fn another_shape_or_type_is_short_even_with_as_many_bytes() {
    let body = sample("float16-2x2x3x5");
    for (dtype, shape) in [
        ("float16", &[2, 3, 2, 5][..]),
        ("float16", &[4, 3, 5]),
        ("float16", &[2, 2, 5, 3]),
        ("bfloat16", &[2, 2, 3, 5]),
        ("uint16", &[2, 2, 3, 5]),
        ("float32", &[2, 2, 3, 5]),
        ("float16", &[2, 2, 3, 4]),
        ("float16", &[2, 2, 3, 6]),
    ] {
        let result = outcome(layout(dtype, shape), 2, &body);
        assert_eq!(result, (0, BodyOutcome::Short), "{dtype} {shape:?}");
    }
    // Float8 travels without a type of its storage.
    let body = sample("float8_e4m3fn-2x2x3x5");
    let result = outcome(layout("float8_e5m2", &[2, 2, 3, 5]), 2, &body);
    assert_eq!(result, (0, BodyOutcome::Short));
}

#[test]
fn views_that_are_not_chunks_are_refused() {
    let result = outcome(layout("float16", &[3, 4, 5]), 2, &sample("not-contiguous"));
    assert_eq!(result, (0, BodyOutcome::Short));
    let result = outcome(layout("float16", &[3, 4, 5]), 2, &sample("one-shared-storage"));
    assert_eq!(result, (0, BodyOutcome::Short));
    let result = outcome(layout("float16", &[3, 4, 5]), 2, &sample("same-tensor-twice"));
    assert_eq!(result, (1, BodyOutcome::Short));
}

#[test]
fn anything_but_a_list_of_tensors_is_malformed() {
    let layout = layout("float16", &[3, 4, 5]);
    assert_eq!(outcome(layout, 2, &sample("tuple")).1, BodyOutcome::Malformed);
    assert_eq!(outcome(layout, 2, &sample("other-objects")).1, BodyOutcome::Malformed);
    // Protocol 2 has no binaries: payload would come as text. No client sends it.
    assert_eq!(outcome(layout, 2, &sample("float16-3x4x5-protocol2")).1, BodyOutcome::Malformed);
    assert_eq!(outcome(layout, 2, b"not a pickle"), (0, BodyOutcome::Malformed));
    assert_eq!(outcome(layout, 2, b"cos\nsystem\n(S'true'\ntR."), (0, BodyOutcome::Malformed));
    assert_eq!(outcome(layout, 2, b""), (0, BodyOutcome::Short));
}

/// What kvtide sends, as a real torch has read it (`make.py --check`).
#[test]
fn ours_is_what_torch_has_read() {
    for (dtype, shape) in OURS {
        let layout = layout(dtype, shape);
        let dims: Vec<String> = shape.iter().map(u32::to_string).collect();
        let name = format!("ours-{dtype}-{}", dims.join("x"));
        let mut bytes = Vec::new();
        writer::head(&layout, &mut bytes);
        for index in 0..2 {
            bytes.extend_from_slice(&writer::tensor_head(&layout));
            bytes.extend_from_slice(&pattern(&layout, index));
            bytes.extend_from_slice(writer::TENSOR_TAIL);
        }
        bytes.extend_from_slice(writer::TAIL);
        assert_eq!(Some(bytes.len() as u64), writer::total_bytes(&layout, 2));
        if std::env::var_os("KVTIDE_WRITE_SAMPLES").is_some() {
            std::fs::write(folder().join(format!("{name}.pickle")), &bytes).expect("written");
        }
        assert!(bytes == sample(&name), "{name} differs");
    }
}

const OURS: &[(&str, &[u32])] = &[
    ("float16", &[2, 2, 3, 5]),
    ("bfloat16", &[2, 2, 3, 5]),
    ("float32", &[3, 4, 5]),
    ("uint8", &[3, 4, 5]),
    ("float8_e4m3fn", &[2, 2, 3, 5]),
    ("float8_e5m2", &[3, 4, 5]),
];
