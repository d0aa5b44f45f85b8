//! What the reactor asks its keeper about objects before the look through the folder has ended.
//!
//! Invariant: a question names no scope that the index does not know already: whoever asks for what
//! is not there takes up no room.

use kvtide_core::event::Found;
use kvtide_core::format::index::{Replay, ScopeName, ScopeRef};
use kvtide_core::format::names::ObjectName;
use kvtide_core::limits::PADDED_TO_BYTES;
use kvtide_core::names::{ChunkHash, Ticket};

/// The keys of one probe.
#[derive(Clone, Debug)]
pub struct Question {
    ticket: Ticket,
    scopes: Vec<ScopeName>,
    /// None where no index can name the key.
    keys: Vec<Option<(u32, ChunkHash)>>,
}

/// What the index tells of the keys of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub ticket: Ticket,
    pub found: Vec<Option<Found>>,
}

impl Question {
    pub fn new(ticket: Ticket, names: &[ObjectName<'_>]) -> Question {
        let mut scopes: Vec<ScopeName> = Vec::new();
        let key = |name: &ObjectName<'_>| {
            let (hash, group) = (name.hash.chunk_hash()?, u16::try_from(name.group).ok()?);
            let scope = ScopeRef { model: &name.model, salt: name.salt, rank: name.rank, group };
            let at = scopes.iter().position(|known| known.borrowed() == scope);
            let at = at.unwrap_or_else(|| {
                scopes.push(scope.kept());
                scopes.len() - 1
            });
            Some((at as u32, hash))
        };
        let keys = names.iter().map(key).collect();
        Question { ticket, scopes, keys }
    }

    /// What this table tells.
    pub fn answered(&self, replay: &Replay) -> Known {
        let found = self.keys.iter().map(|key| {
            let (scope, hash) = key.as_ref()?;
            let scope = self.scopes[*scope as usize].borrowed();
            let object = replay.object(&scope, hash)?;
            Some(Found { bytes: object.bytes, seal: object.seal })
        });
        Known { ticket: self.ticket, found: found.collect() }
    }
}

/// What is to be told of a file: what the index tells, where that is about a file of this size, or
/// of one that another server left in whole blocks.
pub fn told(file: Found, known: Option<Found>) -> Found {
    let is_of_it = |known: &Found| {
        known.bytes == file.bytes
            || known.bytes.checked_next_multiple_of(PADDED_TO_BYTES) == Some(file.bytes)
    };
    known.filter(is_of_it).unwrap_or(file)
}
