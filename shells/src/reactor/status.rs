//! A plain copy of what the reactor knows of itself, made into JSON and metrics elsewhere.

use super::counters::Counters;
use super::turns::TurnTimes;
use super::{CONNECTIONS_PER_TURN, SLOTS_PER_TURN, buffers, connection, requests};
use crate::arena::PoolNews;
use crate::tiers::files::status::TierStatus;
use kvtide_core::limits;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorStatus {
    pub connections: usize,
    /// Requests that wait for their answer.
    pub requests: usize,
    /// Connections that had more to do than one turn allowed.
    pub ready: usize,
    /// Left of the budgets that medium and large frames share.
    pub medium_frame_bytes_left: usize,
    pub large_frame_bytes_left: usize,
    /// What connections buffer beside that.
    pub buffered_bytes: usize,
    pub stopping: bool,
    /// Name of the segment that clients map; None when memory is private.
    pub pool_name: Option<String>,
    /// Bytes of L1 that have memory behind them.
    pub usable_bytes: u64,
    pub pool_news: PoolNews,
    /// How often the watchdog found the reactor standing still.
    pub stalls: u64,
    pub turns: TurnTimes,
    pub counters: Counters,
    pub recording: RecordingStatus,
    /// How the bytes of each lower tier move, by its number; None for those that have left.
    pub tiers: Vec<Option<TierStatus>>,
}

/// Recorded since the start, by `--record` and the flight recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingStatus {
    pub events: u64,
    /// Frames that were written to the file.
    pub frames: u64,
    /// Recordings that ended before the server did.
    pub gaps: u64,
    pub dumps: u64,
}

/// Most bytes that each table and buffer of the reactor can take, for `--print-memory`. However
/// many connections there are, what they buffer shares three budgets.
pub fn table_bytes() -> [(&'static str, u64); 7] {
    [
        ("connections", (limits::CONNECTIONS_MAX * connection::ENTRY_BYTES) as u64),
        ("requests", (limits::REQUESTS_MAX * requests::ENTRY_BYTES) as u64),
        ("read buffer", limits::INPUT_BYTES_PER_TURN as u64),
        ("spare buffers", buffers::KEPT_BYTES as u64),
        ("connection buffers", (limits::BUFFER_BUDGET_BYTES + TURN_BUFFER_BYTES) as u64),
        ("medium frames", frame_bytes(limits::MEDIUM_FRAME_BUDGET_BYTES)),
        ("large frames", frame_bytes(limits::LARGE_FRAME_BUDGET_BYTES)),
    ]
}

fn frame_bytes(budget: usize) -> u64 {
    (budget + budget / buffers::EXCESS_PART) as u64
}

/// What one turn may add to the buffers before those who stand still give way: of each connection
/// that is served, its input, grown by doubling, and an answer to it; and the slots of all answers.
const TURN_BUFFER_BYTES: usize =
    CONNECTIONS_PER_TURN * 4 * limits::INPUT_BYTES_PER_TURN + TURN_SLOTS * SLOT_BYTES;
/// One request more than what ends a turn.
const TURN_SLOTS: usize = SLOTS_PER_TURN + limits::REQUEST_CHUNKS_MAX;
/// A slot in an answer: its place told, the head and tail of its tensor, the pieces of the queue;
/// in buffers that grow by doubling.
const SLOT_BYTES: usize = 1 << 10;
