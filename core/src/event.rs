//! What the world did. Variants say what happened; the engine decides what it means.

use crate::effect::Refusal;
use crate::names::{ChunkHash, Connection, InstanceId, Layout, Operator, Reply, Ticket};
use crate::time::Duration;
use core::ops::Range;

/// One thing that happened. Borrowed: the engine copies what it keeps.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// `Engine::deadline` is due. Early and doubled ticks are harmless.
    Tick,
    /// A client asks; `reply` gets exactly one answer.
    Asked { reply: Reply, ask: Ask<'a> },
    /// End of stream: every slot lent over this connection is no longer written.
    ConnectionEnded { connection: Connection },
    /// The places of an `Effect::Send` are no longer read.
    SendEnded { ticket: Ticket, outcome: SendOutcome },
    /// The inline body of an `Effect::Receive` has ended. Chunks `0..complete` of the request's
    /// range arrived whole and of the right shape; `outcome` speaks of the body as a whole.
    ReceiveEnded { ticket: Ticket, complete: u32, outcome: BodyOutcome },
    /// The first `bytes` of the arena are usable now. Never shrinks.
    ArenaGrown { bytes: u64 },
    /// An operator asks over HTTP; `operator` gets exactly one answer.
    OperatorAsked { operator: Operator, ask: OperatorAsk<'a> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// All of the answer was handed to the connection's socket.
    Sent,
    /// The connection ended before that, or the answer never began.
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyOutcome {
    /// The pickle ended, and held as many tensors as the range has chunks.
    Whole,
    /// The pickle ended early or held another number of tensors, or some of another shape.
    Short,
    /// Not a pickle that we read.
    Malformed,
    /// The connection ended inside the body.
    Cut,
}

/// A checked key. The engine sees hashes, never token ids.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    pub model: &'a str,
    pub salt: &'a str,
    /// Names the session; not part of identity.
    pub request: &'a str,
    pub world_size: u32,
    /// None: all ranks (lookup, free).
    pub worker: Option<u32>,
    /// Readers per object, at least 1 on lookup and free.
    pub readers: u16,
    /// Chunks that `[start, end)` covers. For a lookup `start` is 0.
    pub first_chunk: u32,
    pub end_chunk: u32,
    /// Hashes of chunks `0..end_chunk`, from the first chunk on.
    pub hashes: &'a [ChunkHash],
}

impl<'a> Keys<'a> {
    pub fn chunks(&self) -> Range<u32> {
        self.first_chunk..self.end_chunk.max(self.first_chunk)
    }
}

/// An engine-driven registration (spec/wire §2.1, `RegisterEngineDrivenContextPayload`).
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    pub instance: InstanceId,
    pub model: &'a str,
    pub world_size: u32,
    pub block_size: u32,
    pub layout: Layout,
}

/// What a client asks, decoded, checked and hashed.
#[derive(Clone, Copy, Debug)]
pub enum Ask<'a> {
    Register(Registration<'a>),
    /// A registration that is not served: answered with `Answer::Refused`, counted and kept for
    /// status.
    RegisterRefused {
        instance: InstanceId,
        model: &'a str,
        reason: Refusal,
    },
    Unregister {
        instance: InstanceId,
    },
    Ping {
        instance: Option<InstanceId>,
    },
    Lookup {
        keys: Keys<'a>,
    },
    QueryPrefetch {
        request: &'a str,
    },
    /// `wait` is already within 0..=300 s.
    WaitPrefetch {
        request: &'a str,
        wait: Duration,
    },
    /// Gives back what this session still holds of whole chunks within the range.
    FreeLookupLocks {
        keys: Keys<'a>,
    },
    /// `hashes`: what the token memo knows of this request, for recency; may be empty.
    EndSession {
        request: &'a str,
        hashes: &'a [ChunkHash],
    },
    PrepareStore {
        instance: InstanceId,
        keys: Keys<'a>,
    },
    /// `inline_bytes`: 0 for a shared-memory commit, else the size of the pickle that follows.
    CommitStore {
        instance: InstanceId,
        keys: Keys<'a>,
        inline_bytes: u64,
    },
    PrepareRetrieve {
        instance: InstanceId,
        keys: Keys<'a>,
    },
    CommitRetrieve {
        instance: InstanceId,
        keys: Keys<'a>,
    },
    Clear {
        force: bool,
    },
}

/// What an operator asks that changes state. Reading state is `Engine::status`.
#[derive(Clone, Copy, Debug)]
pub enum OperatorAsk<'a> {
    Clear { force: bool },
    QuotaSet { salt: &'a str, bytes: u64 },
    QuotaRemove { salt: &'a str },
}
