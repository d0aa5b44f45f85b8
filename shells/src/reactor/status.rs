//! A plain copy of what the reactor knows of itself, made into JSON and metrics elsewhere.

use super::counters::Counters;
use super::turns::TurnTimes;

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
    pub turns: TurnTimes,
    pub counters: Counters,
}
