//! From a key's tokens to the chunks that a request is about (spec/transfer §1.4).
//!
//! The one invariant: a range never passes the chunks that are hashed, which are the whole chunks
//! of the token array, at most `REQUEST_CHUNKS_MAX` of them.

use crate::fact::RequestFault;
use crate::front::key::Key;
use crate::limits::REQUEST_CHUNKS_MAX;
use crate::names::KvRank;
use core::ops::Range;

/// A lookup begins at the first token whatever `start` says. A longer prefix is clipped.
pub fn lookup(key: &Key<'_>, chunk_tokens: u32) -> Result<Range<u32>, RequestFault> {
    check_readers(key)?;
    Ok(0..hashed(key.end.min(key.tokens), chunk_tokens))
}

/// Whole chunks within `[start, end)`.
pub fn free(key: &Key<'_>, chunk_tokens: u32) -> Result<Range<u32>, RequestFault> {
    check_readers(key)?;
    let end = hashed(key.end.min(key.tokens), chunk_tokens);
    let first = key.start.div_ceil(chunk_tokens as u64).min(end as u64);
    Ok(first as u32..end)
}

/// A store or a retrieve names one rank and whole chunks of what it sends the tokens of. A range
/// that is empty or runs backwards is legal and covers nothing.
pub fn transfer(key: &Key<'_>, chunk_tokens: u32) -> Result<Range<u32>, RequestFault> {
    let worker = key.worker.ok_or(RequestFault::NoWorker)?;
    if KvRank::of(key.world_size, worker).is_none() {
        return Err(RequestFault::BadKey);
    }
    let chunk = chunk_tokens as u64;
    let aligned = key.start.is_multiple_of(chunk) && key.end.is_multiple_of(chunk);
    if !aligned || key.end > key.tokens {
        return Err(RequestFault::Misaligned);
    }
    let end = key.end / chunk;
    if end > REQUEST_CHUNKS_MAX as u64 {
        return Err(RequestFault::TableFull);
    }
    let first = (key.start / chunk).min(end);
    Ok(first as u32..end as u32)
}

fn check_readers(key: &Key<'_>) -> Result<(), RequestFault> {
    if key.readers == 0 { Err(RequestFault::BadKey) } else { Ok(()) }
}

fn hashed(tokens: u64, chunk_tokens: u32) -> u32 {
    (tokens / chunk_tokens as u64).min(REQUEST_CHUNKS_MAX as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 16;

    fn key(start: u64, end: u64, tokens: u64) -> Key<'static> {
        Key {
            model: "m",
            salt: "",
            request: "r",
            world_size: 1,
            worker: Some(0),
            readers: 1,
            start,
            end,
            tokens,
        }
    }

    #[test]
    fn lookups_are_rounded_down_and_clipped() {
        assert_eq!(lookup(&key(32, 40, 100), CHUNK), Ok(0..2));
        assert_eq!(lookup(&key(0, 999, 40), CHUNK), Ok(0..2));
        assert_eq!(lookup(&key(0, 0, 40), CHUNK), Ok(0..0));
        assert_eq!(lookup(&key(0, u64::MAX, u64::MAX), CHUNK), Ok(0..REQUEST_CHUNKS_MAX as u32));
        assert_eq!(lookup(&Key { readers: 0, ..key(0, 16, 16) }, CHUNK), Err(RequestFault::BadKey));
    }

    #[test]
    fn frees_cover_whole_chunks_only() {
        assert_eq!(free(&key(0, 31, 100), CHUNK), Ok(0..1));
        assert_eq!(free(&key(1, 48, 100), CHUNK), Ok(1..3));
        assert_eq!(free(&key(90, 16, 100), CHUNK), Ok(1..1));
        assert_eq!(free(&key(u64::MAX, u64::MAX, 100), CHUNK), Ok(6..6));
    }

    #[test]
    fn transfers_are_aligned_and_name_one_rank() {
        assert_eq!(transfer(&key(16, 48, 50), CHUNK), Ok(1..3));
        assert_eq!(transfer(&key(16, 0, 50), CHUNK), Ok(0..0));
        assert_eq!(transfer(&key(0, 0, 0), CHUNK), Ok(0..0));
        assert_eq!(transfer(&key(1, 16, 50), CHUNK), Err(RequestFault::Misaligned));
        assert_eq!(transfer(&key(0, 20, 50), CHUNK), Err(RequestFault::Misaligned));
        assert_eq!(transfer(&key(0, 64, 63), CHUNK), Err(RequestFault::Misaligned));
        let nobody = Key { worker: None, ..key(0, 16, 16) };
        assert_eq!(transfer(&nobody, CHUNK), Err(RequestFault::NoWorker));
        let outside = Key { worker: Some(1), ..key(0, 16, 16) };
        assert_eq!(transfer(&outside, CHUNK), Err(RequestFault::BadKey));
        let crowded = Key { world_size: 256, ..key(0, 16, 16) };
        assert_eq!(transfer(&crowded, CHUNK), Err(RequestFault::BadKey));
        let long = (REQUEST_CHUNKS_MAX as u64 + 1) * CHUNK as u64;
        assert_eq!(transfer(&key(0, long, long), CHUNK), Err(RequestFault::TableFull));
    }
}
