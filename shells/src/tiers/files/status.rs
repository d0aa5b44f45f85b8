//! What a tier of files tells of itself: how its bytes move, and why not better.

/// For `/status`, and for tests that count by which way bytes went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierStatus {
    /// `io_uring` or `threads`; for tiers without files their own word.
    pub engine: &'static str,
    /// Payload passes by the page cache (O_DIRECT).
    pub direct: bool,
    /// The arena's steps are registered with the ring.
    pub registered: bool,
    pub queue_depth: u32,
    /// Why it is not io_uring, direct and registered, and what would change that; empty where it
    /// is.
    pub reason: String,
    /// Orders taken on that have not ended.
    pub orders: u64,
    /// Payload that was moved, by the way it went.
    pub registered_direct_bytes: u64,
    pub direct_bytes: u64,
    pub buffered_bytes: u64,
    /// Beside one of the above: moved by worker threads.
    pub thread_bytes: u64,
}
