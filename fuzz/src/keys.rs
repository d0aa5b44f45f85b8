//! Key frames of one server, one after the other, against a general decoder and a naive hash.
//!
//! ```text
//! input   | algorithm | tokens of a chunk | budget | u16be length | frame | u16be length | …
//! ```
//!
//! Whatever the budget of a turn and whatever earlier frames left in the memo, a key has the fields
//! and the hashes that decoding all of it gives, or it is refused where that is. The chunks of a
//! request lie within those that are hashed.

use super::frames;
use super::reference::{self, Expected};
use kvtide_core::config::HashAlgorithm;
use kvtide_core::front::key::{Key, KeyReader, KeyTools, Progress};
use kvtide_core::front::memo::Memo;
use kvtide_core::front::range;
use kvtide_core::wire::msgpack::Reader;

pub fn run(input: &[u8]) {
    let Some((&[algorithm, chunk, budget], rest)) = input.split_first_chunk::<3>() else { return };
    let algorithm = match algorithm % 2 {
        0 => HashAlgorithm::Blake3,
        _ => HashAlgorithm::Sha256Cbor,
    };
    let chunk = 1 + u32::from(chunk % 32);
    let budget = 1 + usize::from(budget);
    // Two sessions are few: the third request pushes one of them out.
    let mut memo = Memo::with_limits(0, 2, 4096);
    for frame in frames(rest) {
        // A value that is no msgpack has no second opinion, nor has one that is nested deeper than
        // the general decoder follows.
        let is_plain = Reader::new(frame).read_raw().is_ok() && frame.len() <= FRAME_BYTES_MAX;
        let expected = if is_plain { reference::key(frame, algorithm, chunk) } else { None };
        for budget in [usize::MAX, budget] {
            let mut tools = KeyTools { algorithm, chunk_tokens: chunk, memo: &mut memo };
            let found = read(frame, &mut tools, budget);
            if is_plain || found.is_none() {
                assert_eq!(found, expected, "with {budget} bytes a turn");
            }
        }
    }
}

fn read(frame: &[u8], tools: &mut KeyTools<'_>, budget: usize) -> Option<Expected> {
    let mut reader = KeyReader::new();
    for _ in 0..=frame.len() + 1 {
        let mut left = budget;
        if reader.read(frame, tools, &mut left).ok()? == Progress::More {
            assert_eq!(left, 0, "only a used up budget stops a reader");
            continue;
        }
        let key = reader.key(frame).ok()?;
        check_ranges(&key, tools.chunk_tokens);
        let chunks = (key.tokens / u64::from(tools.chunk_tokens)) as usize;
        let known = tools.memo.hashes(key.request);
        return Some(Expected {
            model: key.model.to_owned(),
            salt: key.salt.to_owned(),
            request: key.request.to_owned(),
            world_size: key.world_size,
            worker: key.worker,
            readers: key.readers,
            start: key.start,
            end: key.end,
            tokens: key.tokens,
            hashes: known[..chunks].to_vec(),
        });
    }
    panic!("a turn reads at least a byte");
}

/// No request is about more than the whole chunks of its tokens.
fn check_ranges(key: &Key<'_>, chunk: u32) {
    let whole = key.tokens / u64::from(chunk);
    let transfer = range::transfer(key, chunk);
    for range in [range::lookup(key, chunk), range::free(key, chunk), transfer.clone()] {
        let Ok(range) = range else { continue };
        assert!(u64::from(range.end) <= whole, "{range:?} of {whole} chunks");
        assert!(range.start <= range.end, "{range:?} runs backwards");
    }
    if let Ok(range) = transfer {
        assert_eq!(u64::from(range.end) * u64::from(chunk), key.end, "all that was asked for");
        assert!(range.is_empty() || u64::from(range.start) * u64::from(chunk) == key.start);
    }
}

/// The general decoder follows fewer levels than this.
const FRAME_BYTES_MAX: usize = 1000;
