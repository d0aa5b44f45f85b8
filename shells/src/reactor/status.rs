//! A plain copy of what the reactor knows of itself, made into JSON and metrics elsewhere.

use super::counters::Counters;
use super::turns::TurnTimes;
use super::{buffers, connection, requests};
use crate::arena::PoolNews;
use kvtide_core::limits;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorStatus {
    pub connections: usize,
    /// Requests that wait for their answer.
    pub requests: usize,
    /// Connections that had more to do than one turn allowed.
    pub ready: usize,
    /// Left of the budget that large frames share.
    pub large_frame_bytes_left: usize,
    pub stopping: bool,
    /// Name of the segment that clients map; None when memory is private.
    pub pool_name: Option<String>,
    /// Bytes of L1 that have memory behind them.
    pub usable_bytes: u64,
    pub pool_news: PoolNews,
    pub turns: TurnTimes,
    pub counters: Counters,
}

/// Most bytes that each table and buffer of the reactor can take, for `--print-memory`. The last
/// one is for each connection that sends and is sent as much as it may; what it sent is let go of
/// once its message has stood still for half a minute, so that only those at work keep it.
pub fn table_bytes() -> [(&'static str, u64); 6] {
    let buffered = limits::SMALL_FRAME_BYTES_MAX + limits::OUTPUT_BYTES_MAX;
    [
        ("connections", (limits::CONNECTIONS_MAX * connection::ENTRY_BYTES) as u64),
        ("requests", (limits::REQUESTS_MAX * requests::ENTRY_BYTES) as u64),
        ("read buffer", limits::INPUT_BYTES_PER_TURN as u64),
        ("spare buffers", buffers::KEPT_BYTES as u64),
        ("large frames", limits::LARGE_FRAME_BUDGET_BYTES as u64),
        ("buffered per connection", buffered as u64),
    ]
}
