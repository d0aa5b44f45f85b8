//! One object of L1.

use crate::engine::space::Extent;
use crate::fact::Removal;
use crate::names::{ChunkHash, ScopeId, Seal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Reserved for one writer; invisible to readers.
    Staged,
    /// Committed; readable.
    Resident,
    /// Its key is gone; its memory waits for the last pin.
    Condemned,
}

#[derive(Clone, Debug)]
pub struct Object {
    pub hash: ChunkHash,
    pub scope: ScopeId,
    pub extent: Extent,
    /// What `space` counts for it.
    pub aligned: u64,
    pub state: State,
    /// Cells of lease sets that promise this object.
    pub leases: u32,
    /// Tickets under which its memory may still be read or written.
    pub pins: u32,
    /// `space` and `policy` were told that it cannot go.
    pub held: bool,
    /// It leaves L1 as soon as nothing holds it, and for this reason.
    pub leaves: Option<Removal>,
    /// The epoch of `clear` in which it was published, or survived the last one.
    pub epoch: u32,
    /// What its bytes come to, once somebody has found out.
    pub seal: Option<Seal>,
}
