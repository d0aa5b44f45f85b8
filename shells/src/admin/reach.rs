//! How the admin thread reaches the rest of the server. A trait, so that this folder knows neither
//! the reactor nor telemetry, and tests can stand in for both.

use crate::object_key::ObjectKey;
use crate::paged::{SumFault, Summed, Wanted as SumWanted};
use crate::tiers::files::status::TierStatus;
use kvtide_core::effect::OperatorAnswer;
use kvtide_core::engine::Status;
use kvtide_core::engine::adapters::operator::{AdapterStatus, Page};
use kvtide_core::engine::status::QuotaStatus;
use kvtide_core::names::{AdapterId, InstanceId};
use std::time::Duration;
use tokio::sync::oneshot;

/// Called once, on the reactor's thread, with a small value; returns at once.
pub type Teller<T> = Box<dyn FnOnce(T) + Send>;

/// What an operator wants changed: `kvtide_core::event::OperatorAsk` that owns its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Clear {
        force: bool,
    },
    QuotaSet {
        salt: String,
        bytes: u64,
    },
    QuotaRemove {
        salt: String,
    },
    /// A few keys at a time: nobody else is served meanwhile.
    Delete {
        keys: Vec<ObjectKey>,
        from_l1: bool,
        adapter: Option<AdapterId>,
        force: bool,
    },
}

/// A part of the list of what lies in a lower tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub adapter: AdapterId,
    /// Where the part begins.
    pub from: u32,
    pub most: usize,
    pub model: Option<String>,
}

/// A dump of the flight recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    pub path: String,
    pub bytes: u64,
    pub events: u64,
    /// It begins with the server.
    pub is_whole: bool,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The mailbox is full, or nothing came back in time.
    Busy,
    /// The server is ending.
    Ended,
}

/// A look at the state, taken between two events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub engine: Status,
    pub reactor: ReactorSeen,
    /// How the bytes of each lower tier move, by its number; None for those that have left.
    pub tiers: Vec<Option<TierStatus>>,
}

/// What the reactor knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReactorSeen {
    pub connections: u64,
    /// Requests that wait for their answer.
    pub requests: u64,
    pub stopping: bool,
    /// Lower tiers of which not all has been told yet.
    pub scanning: u64,
    /// How often the reactor was found standing still.
    pub stalls: u64,
    pub turns: u64,
    /// All of them together.
    pub turns_total: Duration,
    pub longest_turn: Duration,
    /// The slowest event of the longest turn; `""` where it held none.
    pub longest_event: &'static str,
    /// Name of the segment; None when memory is private.
    pub pool_name: Option<String>,
    /// Bytes of L1 that have memory behind them.
    pub usable_bytes: u64,
    /// Why it has not its full size and is not growing.
    pub pool_waits: Option<String>,
    /// Somebody has removed the segment's name.
    pub pool_is_unnamed: bool,
    /// Left of the budgets that medium and large frames share.
    pub medium_frame_bytes_left: u64,
    pub large_frame_bytes_left: u64,
    /// What connections buffer beside that.
    pub buffered_bytes: u64,
    /// Counted since start, by name.
    pub totals: Vec<(&'static str, u64)>,
    /// Connections that the server closed, by reason.
    pub closings: Vec<(&'static str, u64)>,
    /// The `i`th counts turns of `2^i` up to `2^(i+1)` nanoseconds.
    pub turns_by_duration: Vec<u64>,
}

/// The way to the reactor's mailbox, to its pulse, and to the telemetry's page.
pub trait Reach: Send + Sync + 'static {
    /// Puts a question into the mailbox. `answer` is called once, or dropped where the server ends
    /// first.
    fn ask(&self, ask: Ask, answer: Teller<OperatorAnswer>) -> Result<(), Unreachable>;

    /// Asks for a look at the state, likewise.
    fn look(&self, answer: Teller<Seen>) -> Result<(), Unreachable>;

    /// Asks the reactor about itself alone: no state of the engine is copied.
    fn pulse(&self, answer: Teller<ReactorSeen>) -> Result<(), Unreachable>;

    /// Asks for the limit of one tenant, likewise.
    fn quota_of(&self, salt: String, answer: Teller<QuotaStatus>) -> Result<(), Unreachable>;

    /// Asks for the limits of all tenants alone, likewise.
    fn quotas(&self, answer: Teller<Vec<QuotaStatus>>) -> Result<(), Unreachable>;

    /// Asks for the roster of lower tiers, likewise.
    fn adapters(&self, answer: Teller<Vec<AdapterStatus>>) -> Result<(), Unreachable>;

    /// Asks for a part of the list of what lies in one of them, likewise. None where it has left.
    fn objects(&self, wanted: Wanted, answer: Teller<Option<Page>>) -> Result<(), Unreachable>;

    /// Asks for sums over the blocks of an engine whose memory the server knows. `answer` is called
    /// once, on another thread perhaps; dropped where the server ends first.
    fn sum(
        &self,
        _instance: InstanceId,
        _wanted: SumWanted,
        _answer: Teller<Result<Summed, SumFault>>,
    ) -> Result<(), Unreachable> {
        Err(Unreachable::Ended)
    }

    /// Asks for a dump of the flight recorder. `answer` is called when it is written, or hears why
    /// there is none.
    fn dump(&self, _answer: Teller<Result<Dump, String>>) -> Result<(), Unreachable> {
        Err(Unreachable::Ended)
    }

    /// Time since the last turn ended. Read without asking anybody.
    fn last_turn_age(&self) -> Duration;

    /// Called about once a second by the admin thread, to look after the reactor.
    fn watch(&self) {}

    /// The page for Prometheus, with what the reactor says of itself where it does, and how often
    /// the admin thread began anew.
    fn metrics_page(&self, reactor: Option<&ReactorSeen>, restarts: u64) -> String;
}

/// Waits for what `put` makes the reactor tell, at most `patience`.
pub async fn told<T: Send + 'static>(
    patience: Duration,
    put: impl FnOnce(Teller<T>) -> Result<(), Unreachable>,
) -> Result<T, Unreachable> {
    let (tell, hear) = oneshot::channel();
    // Whoever asked may have left: then the answer is dropped.
    put(Box::new(move |value| drop(tell.send(value))))?;
    match tokio::time::timeout(patience, hear).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(Unreachable::Ended),
        Err(_) => Err(Unreachable::Busy),
    }
}
