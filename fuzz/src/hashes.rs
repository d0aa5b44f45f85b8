//! Token ids in any pieces, hashed as they come and in the most naive way that there is.
//!
//! ```text
//! input   | algorithm | tokens of a chunk | tokens of a piece | u32be | u32be | …
//! ```
//!
//! The chain does not depend on where the list is cut, and it goes on from any known chunk.

use super::reference::chunk_hashes;
use kvtide_core::config::HashAlgorithm;
use kvtide_core::front::hash::ChunkHasher;
use kvtide_core::names::ChunkHash;

pub fn run(input: &[u8]) {
    let Some((&[algorithm, chunk, piece], tokens)) = input.split_first_chunk::<3>() else { return };
    let algorithm = match algorithm % 2 {
        0 => HashAlgorithm::Blake3,
        _ => HashAlgorithm::Sha256Cbor,
    };
    let chunk = 1 + u32::from(chunk);
    let (tokens, _) = tokens.as_chunks::<4>();
    let tokens: Vec<u32> = tokens.iter().map(|token| u32::from_be_bytes(*token)).collect();
    let naive = chunk_hashes(algorithm, chunk, &tokens);
    let mut hasher = ChunkHasher::new(algorithm, chunk);
    assert_eq!(chain(&mut hasher, &tokens, usize::from(piece)), naive, "in pieces");
    let left = tokens.len() as u32 % chunk;
    assert_eq!(hasher.room(), chunk - left, "what is missing of the last chunk");
    let known = usize::from(piece) % (naive.len() + 1);
    hasher.restart(known.checked_sub(1).map(|last| naive[last]));
    let rest = chain(&mut hasher, &tokens[known * chunk as usize..], usize::from(piece) / 3);
    assert_eq!(rest, naive[known..], "after {known} known chunks");
}

/// The hashes of a list that comes in pieces.
fn chain(hasher: &mut ChunkHasher, tokens: &[u32], piece: usize) -> Vec<ChunkHash> {
    let mut hashes = Vec::new();
    for piece in tokens.chunks(piece.max(1)) {
        hasher.feed(piece, |hash| hashes.push(hash));
    }
    hashes
}
