//! What other threads put into the reactor's mailbox. Replies leave by a closure, so that this file
//! knows neither HTTP nor an async runtime. A closure runs on the reactor thread: it hands a small
//! value on and returns.

use super::signals::Signal;
use super::status::ReactorStatus;
use crate::arena::PoolNews;
use crate::object_key::ObjectKey;
use crate::paged::{SumTeller, Wanted};
use crate::record::DumpTeller;
use crate::tiers::Opened;
use kvtide_core::effect::OperatorAnswer;
use kvtide_core::event::OperatorAsk;
use kvtide_core::names::{AdapterId, InstanceId};
use std::io;

/// One letter to the reactor.
pub enum Note<E> {
    /// The helper has grown the arena to so many bytes.
    ArenaGrown { bytes: u64 },
    /// Something about the pool is out of order, or in order again.
    Pool(PoolNews),
    /// An operator wants something changed. `answer` is called once, unless the server ends first.
    Operator { ask: OperatorRequest, answer: OperatorTeller },
    /// An operator wants these objects gone: out of L1, out of a lower tier, forced or not.
    /// `answer` is called once, with the sum.
    Delete { keys: Vec<ObjectKey>, how: (bool, Option<AdapterId>, bool), answer: OperatorTeller },
    /// A lower tier that was opened while serving. The teller is called once.
    Tier { opened: Box<Opened>, answer: TierTeller },
    /// Somebody wants to look at the state.
    Look(Look<E>),
    /// Somebody wants sums over an engine's blocks. The teller is called once, on a lane or here.
    Sum { instance: InstanceId, wanted: Wanted, answer: SumTeller },
    /// Write down the last minute. The teller is called once, on another thread or here.
    Dump(DumpTeller),
    /// The server shall end as if it had been sent this signal.
    Stop(Signal),
}

/// Takes the answer to an operator.
pub type OperatorTeller = Box<dyn FnOnce(OperatorAnswer) + Send>;

/// Takes the place that a tier was given; None where there are as many as can be.
pub type TierTeller = Box<dyn FnOnce(io::Result<Option<AdapterId>>) + Send>;

/// Sees the state between two turns.
pub type Look<E> = Box<dyn FnOnce(&E, &ReactorStatus) + Send>;

/// `OperatorAsk` that owns its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorRequest {
    Clear { force: bool },
    QuotaSet { salt: String, bytes: u64 },
    QuotaRemove { salt: String },
    Delete { key: ObjectKey, from_l1: bool, adapter: Option<AdapterId>, force: bool },
}

impl OperatorRequest {
    pub fn ask(&self) -> OperatorAsk<'_> {
        match self {
            OperatorRequest::Clear { force } => OperatorAsk::Clear { force: *force },
            OperatorRequest::QuotaSet { salt, bytes } => {
                OperatorAsk::QuotaSet { salt, bytes: *bytes }
            }
            OperatorRequest::QuotaRemove { salt } => OperatorAsk::QuotaRemove { salt },
            OperatorRequest::Delete { key, from_l1, adapter, force } => OperatorAsk::Delete {
                key: key.named(),
                from_l1: *from_l1,
                adapter: *adapter,
                force: *force,
            },
        }
    }
}
