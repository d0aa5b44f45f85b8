//! The name of an object on its way from an operator to the engine, from one thread to another.

use kvtide_core::event::Named;
use kvtide_core::names::{ChunkHash, KvRank};

/// `Named` that owns its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectKey {
    pub model: String,
    pub salt: String,
    pub rank: KvRank,
    pub group: u16,
    pub hash: ChunkHash,
}

impl ObjectKey {
    pub fn named(&self) -> Named<'_> {
        let ObjectKey { model, salt, rank, group, hash } = self;
        Named { model, salt, rank: *rank, group: *group, hash: *hash }
    }
}
