//! The inline body of a `commit_store`, whole and cut into single bytes: both put the same payload
//! into the same places, all of them within a chunk of the range.
//!
//! ```text
//! input   | chunks of the range | element type | shape | body …     one byte each before the body
//! ```

use kvtide_core::event::BodyOutcome;
use kvtide_core::format::pickle::PickleReader;
use kvtide_core::names::{Dtype, Layout};

pub fn run(input: &[u8]) {
    let Some((&[chunks, dtype, shape], body)) = input.split_first_chunk::<3>() else { return };
    let names = ["float16", "bfloat16", "uint8", "float32"];
    let dtype = Dtype::named(names[usize::from(dtype) % names.len()]).expect("a torch type");
    let (planes, layers, slots, hidden) = [(2, 2, 3, 5), (1, 3, 4, 5)][usize::from(shape) % 2];
    let layout = Layout { planes, layers, slots, hidden, dtype };
    let chunks = u32::from(chunks % 8);
    let whole = read(layout, chunks, [body]);
    let bytes = read(layout, chunks, body.chunks(1));
    assert_eq!(whole, bytes, "where a body is cut changes nothing");
}

/// Every byte of payload with its chunk and offset, and how the body ended.
type Read = (Vec<(u32, u64, u8)>, u32, BodyOutcome);

fn read<'i>(layout: Layout, chunks: u32, pieces: impl IntoIterator<Item = &'i [u8]>) -> Read {
    let chunk_bytes = layout.bytes().expect("the layouts have a size");
    let mut reader = PickleReader::new(layout, chunks);
    let mut payload = Vec::new();
    for piece in pieces {
        reader.feed(piece, |span| {
            assert!(span.chunk < chunks, "payload belongs to a chunk of the range");
            assert!(span.offset + span.bytes.len() as u64 <= chunk_bytes, "and ends with it");
            let offsets = span.offset..;
            payload.extend(offsets.zip(span.bytes).map(|(at, byte)| (span.chunk, at, *byte)));
        });
    }
    let (complete, outcome) = reader.end();
    assert!(complete <= chunks);
    assert!(outcome != BodyOutcome::Whole || complete == chunks, "whole means all of it");
    let filled = u64::from(complete) * chunk_bytes;
    assert!(payload.len() as u64 >= filled, "a complete chunk has all its bytes");
    (payload, complete, outcome)
}
