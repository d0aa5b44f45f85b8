//! What the world did. Variants say what happened; the engine decides what it means.

/// What events say of an adapter.
pub use crate::config::{AdapterSetup, PolicyKind};
use crate::effect::Refusal;
use crate::names::{AdapterId, Attachment, ChunkHash, Connection, InstanceId, KvRank, Layout};
use crate::names::{Operator, Reply, Seal, Ticket};
use crate::pages::Pages;
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
    /// The end of an `Effect::Attach`.
    AttachEnded { attachment: Attachment, outcome: Result<(), AttachFault> },
    /// The end of an `Effect::Copy`: neither side is touched any more. Unless `whole`, some of the
    /// bytes did not get where they belong.
    CopyEnded { ticket: Ticket, whole: bool },
    /// The first `bytes` of the arena are usable now. Never shrinks.
    ArenaGrown { bytes: u64 },
    /// A lower tier joins the roster under the next free id, behind all others.
    AdapterAdded { adapter: AdapterId, setup: AdapterSetup<'a> },
    /// Objects that lay in an adapter when it joined, the least recently used first; at most
    /// `limits::SCANNED_PER_EVENT`.
    AdapterScanned { adapter: AdapterId, found: &'a [Scanned<'a>] },
    /// All of what lay there has been told.
    AdapterScanEnded { adapter: AdapterId },
    /// The end of an `Effect::Probe`: the bytes of each key that is there, in the order asked.
    /// None for all where the adapter could not be asked.
    ProbeEnded { ticket: Ticket, found: Option<&'a [Option<u64>]> },
    /// The end of an `Effect::StoreObject`. Its place is no longer read.
    StoreEnded { ticket: Ticket, outcome: StoreOutcome },
    /// The end of an `Effect::LoadObject`. Its place is no longer written.
    LoadEnded { ticket: Ticket, outcome: LoadOutcome },
    /// The end of an `Effect::DeleteObject`.
    DeleteEnded { ticket: Ticket, outcome: DeleteOutcome },
    /// The end of an `Effect::Digest`. Its place is no longer read.
    DigestEnded { ticket: Ticket, digest: u32 },
    /// The end of an `Effect::Scrub`: what the bytes at rest come to, None where they could not
    /// be read.
    ScrubEnded { ticket: Ticket, digest: Option<u32> },
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

/// Why an engine's memory could not be attached. The text ends up in the engine's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttachFault {
    Absent,
    Denied,
    /// Smaller than the registration says.
    Short,
    /// Too many segments or descriptors are in use.
    Full,
    Failed,
    /// There is no CUDA driver, or none that can be used.
    NoDriver,
    /// The engine's card is none of those that the server sees.
    NoCard,
    /// The driver does not open the memory.
    Device,
}

impl AttachFault {
    pub fn text(self) -> &'static str {
        match self {
            AttachFault::Absent => {
                "a shared memory segment of the engine is not there (do engine and server share \
                 one /dev/shm?)"
            }
            AttachFault::Denied => {
                "a shared memory segment of the engine may not be opened (run engine and server \
                 as the same user)"
            }
            AttachFault::Short => "a shared memory segment is smaller than its tensors",
            AttachFault::Full => "too many shared memory segments are in use by this server",
            AttachFault::Failed => "a shared memory segment of the engine could not be opened",
            AttachFault::NoDriver => {
                "the server has no usable CUDA driver (its log says what it lacks); give it the \
                 card, or set lmcache.mp.mp_transfer_mode=engine_driven in \
                 kv_connector_extra_config"
            }
            AttachFault::NoCard => {
                "the server does not see this engine's card; its log lists those that it sees"
            }
            AttachFault::Device => {
                "the driver does not open the engine's device memory; the server's log says why"
            }
        }
    }
}

/// One object that lay in an adapter when it joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned<'a> {
    pub model: &'a str,
    pub salt: &'a str,
    pub rank: KvRank,
    pub group: u16,
    pub hash: ChunkHash,
    pub bytes: u64,
    /// From the adapter's own index; None for what others have written.
    pub seal: Option<Seal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    Stored,
    /// An object under this name was there already, with so many bytes, and stays as it is.
    Present {
        bytes: u64,
    },
    Failed(TierFault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadOutcome {
    Loaded,
    Absent,
    /// There is an object under this name, and it has another size.
    OtherSize {
        bytes: u64,
    },
    Failed(TierFault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    Deleted,
    Absent,
    Failed(TierFault),
}

/// Why an adapter could not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TierFault {
    /// The device or a disk quota is full.
    NoSpace,
    /// The device or the file system reported an error.
    Io,
    /// The file system does not let us.
    Denied,
    /// Cancelled before it had an effect.
    Cancelled,
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

/// A server-driven registration: where the engine's pages lie within the memory that it describes.
#[derive(Clone, Copy, Debug)]
pub struct PagedRegistration<'a> {
    pub instance: InstanceId,
    pub model: &'a str,
    pub world_size: u32,
    pub pages: Pages,
}

/// What a client asks, decoded, checked and hashed.
#[derive(Clone, Copy, Debug)]
pub enum Ask<'a> {
    Register(Registration<'a>),
    RegisterPaged(PagedRegistration<'a>),
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
    /// `blocks`: the ids of every chunk of the range, one chunk behind the other.
    Store {
        instance: InstanceId,
        keys: Keys<'a>,
        blocks: &'a [u32],
    },
    /// The blocks of the first `skip_tokens` of the range are not written.
    Retrieve {
        instance: InstanceId,
        keys: Keys<'a>,
        blocks: &'a [u32],
        skip_tokens: u64,
    },
}

/// What an operator asks that changes state. Reading state is `Engine::status`.
#[derive(Clone, Copy, Debug)]
pub enum OperatorAsk<'a> {
    Clear {
        force: bool,
    },
    QuotaSet {
        salt: &'a str,
        bytes: u64,
    },
    QuotaRemove {
        salt: &'a str,
    },
    /// Takes no more work, and leaves when its last ticket has ended.
    AdapterRemove {
        adapter: AdapterId,
    },
    /// Takes an object out of L1, out of a lower tier, or out of both. What somebody holds in L1
    /// stays, unless `force`.
    Delete {
        key: Named<'a>,
        from_l1: bool,
        adapter: Option<AdapterId>,
        force: bool,
    },
}

/// An object by its name, which says nothing of its layout (spec/transfer §1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    pub model: &'a str,
    pub salt: &'a str,
    pub rank: KvRank,
    pub group: u16,
    pub hash: ChunkHash,
}
