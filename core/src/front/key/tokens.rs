//! The token ids of a key: compared with what the memo knows, then decoded and hashed.
//!
//! The one invariant: no list of tokens is ever built. A block on the stack is as much as is
//! decoded at once, and the raw bytes of the frame are what a session keeps.

use super::KeyTools;
use super::rules::KeyError;
use crate::front::hash::ChunkHasher;
use crate::front::memo::Session;
use crate::limits::REQUEST_CHUNKS_MAX;
use crate::wire::msgpack::{Malformed, Reader};

/// An array of token ids, being read.
#[derive(Clone, Debug)]
pub struct TokenArray {
    /// Where the first element stands.
    start: usize,
    /// Elements that have not been read.
    left: usize,
    /// Chunks that have been read and whose hash is known.
    chunks: usize,
    /// None while everything so far is what the session knows.
    hashing: Option<Hashing>,
}

#[derive(Clone, Debug)]
struct Hashing {
    hasher: ChunkHasher,
    /// Where the unfinished chunk begins.
    chunk_start: usize,
}

impl TokenArray {
    /// An array of `left` elements whose first one stands at `start`.
    pub fn new(start: usize, left: usize) -> TokenArray {
        TokenArray { start, left, chunks: 0, hashing: None }
    }

    /// Goes on by one known chunk or one block of tokens. True when the array has ended.
    pub fn read_block(
        &mut self,
        frame: &[u8],
        at: &mut usize,
        session: &mut Session,
        tools: &KeyTools<'_>,
        budget: &mut usize,
    ) -> Result<bool, KeyError> {
        let chunk_tokens = tools.chunk_tokens as usize;
        let whole_left = self.left >= chunk_tokens && self.chunks < REQUEST_CHUNKS_MAX;
        if self.hashing.is_none() && whole_left {
            if let Some(bytes) = session.matches(self.chunks, &frame[self.start..]) {
                *at += bytes;
                self.left -= chunk_tokens;
                self.chunks += 1;
                *budget = budget.saturating_sub(bytes.div_ceil(COMPARED_PER_DECODED));
                return Ok(false);
            }
            self.begin_hashing(frame, *at, session, tools);
        }
        let mut block = [0; BLOCK_TOKENS];
        let room = match &self.hashing {
            // Tokens of an unfinished chunk at the end count as room, too: they cannot fill it.
            Some(hashing) if self.chunks < REQUEST_CHUNKS_MAX => hashing.hasher.room() as usize,
            _ => BLOCK_TOKENS,
        };
        let count = self.left.min(room).min(BLOCK_TOKENS);
        let bytes = decode_tokens(&frame[*at..], &mut block[..count])?;
        *at += bytes;
        self.left -= count;
        *budget = budget.saturating_sub(bytes);
        if self.chunks < REQUEST_CHUNKS_MAX
            && let Some(hashing) = &mut self.hashing
        {
            let chunks = &mut self.chunks;
            hashing.hasher.feed(&block[..count], |hash| {
                session.push(&frame[hashing.chunk_start..*at], hash);
                hashing.chunk_start = *at;
                *chunks += 1;
            });
        }
        Ok(self.left == 0)
    }

    /// The array leaves what is known: from here on it is the session.
    fn begin_hashing(
        &mut self,
        frame: &[u8],
        at: usize,
        session: &mut Session,
        tools: &KeyTools<'_>,
    ) {
        session.truncate(self.chunks);
        let more = (self.left / tools.chunk_tokens as usize).min(REQUEST_CHUNKS_MAX - self.chunks);
        session.reserve(frame.len() - at, more);
        let mut hasher = ChunkHasher::new(tools.algorithm, tools.chunk_tokens);
        hasher.restart(session.hashes().last().copied());
        self.hashing = Some(Hashing { hasher, chunk_start: at });
    }
}

/// Decodes `out.len()` token ids and says how many bytes they took.
fn decode_tokens(bytes: &[u8], out: &mut [u32]) -> Result<usize, KeyError> {
    let mut at = 0;
    for token in out {
        // Eight bytes hold every short form; the last tokens of a frame go the long way.
        let Some(window) = bytes[at..].first_chunk::<8>() else {
            at += decode_token(&bytes[at..], token)?;
            continue;
        };
        let word = u64::from_be_bytes(*window);
        match window[0] {
            0xcd => {
                *token = (word >> 40) as u32 & 0xffff;
                at += 3;
            }
            0xce => {
                *token = (word >> 24) as u32;
                at += 5;
            }
            small @ 0x00..=0x7f => {
                *token = small as u32;
                at += 1;
            }
            0xcc => {
                *token = (word >> 48) as u32 & 0xff;
                at += 2;
            }
            _ => at += decode_token(&bytes[at..], token)?,
        }
    }
    Ok(at)
}

#[cold]
fn decode_token(bytes: &[u8], token: &mut u32) -> Result<usize, KeyError> {
    let mut reader = Reader::new(bytes);
    let value = match reader.read_i64() {
        Err(Malformed::IntOutOfRange) => return Err(KeyError::Token),
        value => value?,
    };
    *token = u32::try_from(value).map_err(|_| KeyError::Token)?;
    Ok(reader.position())
}

/// Token ids that are decoded before they are hashed: one chunk of the default size.
const BLOCK_TOKENS: usize = 256;
/// Comparing a byte costs this much less than decoding and hashing it.
const COMPARED_PER_DECODED: usize = 8;
