//! Why requests were not served, and why who made them is gone.

/// Lookups that end before they look (spec/storage §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EarlyExit {
    NoGpuContext,
    EmptyChunkHashes,
}

impl EarlyExit {
    pub fn label(self) -> &'static str {
        match self {
            EarlyExit::NoGpuContext => "no_gpu_context",
            EarlyExit::EmptyChunkHashes => "empty_chunk_hashes",
        }
    }
}

/// Why a read of L1 failed (metrics row 25).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReadFailure {
    NotFound,
    /// Resident, but this request holds no lease on it.
    NotLeased,
    /// The object has another layout than the instance.
    Layout,
}

impl ReadFailure {
    pub fn label(self) -> &'static str {
        match self {
            ReadFailure::NotFound => "not_found",
            ReadFailure::NotLeased => "not_leased",
            ReadFailure::Layout => "layout",
        }
    }
}

/// Why an instance is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InstanceEnd {
    Unregistered,
    Reaped,
    Replaced,
    /// The connection over which it had registered its memory has ended.
    ConnectionEnded,
}

/// A request that was answered with the negative value of its type, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestFault {
    OneFrame,
    UnknownOperation,
    PayloadCount,
    Malformed,
    BadKey,
    UnknownInstance,
    NotServed,
    Misaligned,
    NoWorker,
    TableFull,
    /// A release that names nothing this request holds (F01).
    NoSuchHold,
    /// Block ids that do not match the range or the registered memory.
    BadBlocks,
    /// A server-driven transfer of an instance that has registered no memory.
    NoMemory,
}

impl RequestFault {
    pub fn label(self) -> &'static str {
        match self {
            RequestFault::OneFrame => "one_frame",
            RequestFault::UnknownOperation => "unknown_operation",
            RequestFault::PayloadCount => "payload_count",
            RequestFault::Malformed => "malformed",
            RequestFault::BadKey => "bad_key",
            RequestFault::UnknownInstance => "unknown_instance",
            RequestFault::NotServed => "not_served",
            RequestFault::Misaligned => "misaligned",
            RequestFault::NoWorker => "no_worker",
            RequestFault::TableFull => "table_full",
            RequestFault::NoSuchHold => "no_such_hold",
            RequestFault::BadBlocks => "bad_blocks",
            RequestFault::NoMemory => "no_memory",
        }
    }
}
