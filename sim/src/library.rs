//! The documents that requests are about: token ids, and the hashes that a server makes of them.
//!
//! The first half of every document is shared with the one before it. The invariant: a chunk's
//! hash is what `front` makes of the tokens up to its end, so that a request may travel as tokens
//! or as hashes and means the same.

use kvtide_core::config::Config;
use kvtide_core::front::hash::ChunkHasher;
use kvtide_core::names::ChunkHash;
use kvtide_core::rng::Rng;
use std::collections::BTreeMap;
use std::rc::Rc;

pub struct Library {
    documents: Vec<Document>,
    /// Document and number of chunks by the hash of the last of them.
    by_last: BTreeMap<ChunkHash, (usize, usize)>,
    chunk_tokens: usize,
}

struct Document {
    tokens: Vec<u32>,
    hashes: Vec<ChunkHash>,
}

impl Library {
    pub fn new(config: &Config, documents: u64, chunks: u64) -> Library {
        let chunk_tokens = config.chunk_size as usize;
        let mut library = Library { documents: Vec::new(), by_last: BTreeMap::new(), chunk_tokens };
        for number in 0..documents {
            let tokens = tokens(number, chunks, chunk_tokens);
            let mut hashes = Vec::new();
            ChunkHasher::new(config.hash_algorithm, config.chunk_size)
                .feed(&tokens, |hash| hashes.push(hash));
            for (chunk, hash) in hashes.iter().enumerate() {
                library.by_last.insert(*hash, (number as usize, chunk + 1));
            }
            library.documents.push(Document { tokens, hashes });
        }
        library
    }

    /// Hashes of the first chunks of a document.
    pub fn hashes(&self, document: u64, chunks: u64) -> Rc<[ChunkHash]> {
        self.documents[document as usize].hashes[..chunks as usize].into()
    }

    /// The tokens that such hashes were made of.
    pub fn tokens(&self, hashes: &[ChunkHash]) -> &[u32] {
        let Some(last) = hashes.last() else { return &[] };
        let (document, chunks) = self.by_last[last];
        &self.documents[document].tokens[..chunks * self.chunk_tokens]
    }

    /// Whether these are the hashes of the beginning of some document.
    pub fn knows(&self, hashes: &[ChunkHash]) -> bool {
        let Some(last) = hashes.last() else { return true };
        self.by_last.get(last).is_some_and(|(document, chunks)| {
            self.documents[*document].hashes[..*chunks] == *hashes
        })
    }
}

fn tokens(number: u64, chunks: u64, chunk_tokens: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    for chunk in 0..chunks {
        let owner = if chunk < chunks / 2 { number / 2 } else { number };
        let mut rng = Rng::new(owner << 32 | chunk);
        // Of every size on the wire.
        tokens.extend((0..chunk_tokens).map(|_| (rng.next_u64() as u32) >> rng.below(32)));
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_lead_back_to_their_tokens() {
        let config = Config { chunk_size: 4, ..Config::default() };
        let library = Library::new(&config, 4, 6);
        assert_eq!(library.tokens(&library.hashes(3, 5)).len(), 20);
        assert_eq!(library.hashes(2, 3), library.hashes(3, 3));
        assert_ne!(library.hashes(2, 4)[3], library.hashes(3, 4)[3]);
        assert!(library.knows(&library.hashes(1, 6)));
        assert!(!library.knows(&library.hashes(1, 6)[1..]));
    }
}
