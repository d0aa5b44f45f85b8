//! What is worth telling. Metrics, spans, cache events and log lines are made from facts alone.
//! A fact carries its cause: every removal says why, every lookup that ends short says why.

mod paged;
mod requests;
mod tiers;

pub use paged::{AllocatedBlock, TransferEnd};
pub use requests::{EarlyExit, InstanceEnd, ReadFailure, RequestFault};
pub use tiers::{
    AdapterGauges, AdapterState, L2LoadEnd, L2Removal, L2StoreEnd, PrefetchFailure, StoreDrop,
};

use crate::effect::{Direction, Outbox, Refusal};
use crate::names::{AdapterId, ChunkHash, Device, InstanceId, ScopeId, TenantId};
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// One key of a fact: 48 bytes (design §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactKey {
    pub hash: ChunkHash,
    pub bytes: u64,
    pub scope: ScopeId,
    pub tenant: TenantId,
}

const _: () = assert!(size_of::<FactKey>() == 48, "a fact key is 48 bytes");

/// A part of `Outbox::keys`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    pub start: u32,
    pub end: u32,
}

impl KeyRange {
    pub fn of(self, keys: &[FactKey]) -> &[FactKey] {
        &keys[self.start as usize..self.end as usize]
    }

    pub fn len(self) -> u64 {
        (self.end - self.start) as u64
    }

    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// Why an object left L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Removal {
    /// The 1 s tick found L1 above its watermark.
    Watermark,
    /// A store needed the room at once.
    Pressure,
    /// The object table was full.
    Table,
    /// `clear` by a client or an operator.
    Clear,
    ForcedClear,
    /// Loaded for leases that have ended (`--l2-prefetch-policy default`).
    Temporary,
    /// A lower tier has it (`--l2-store-policy skip_l1`).
    Demoted,
    /// `DELETE /cache/objects`.
    Operator,
}

impl Removal {
    pub fn label(self) -> &'static str {
        match self {
            Removal::Watermark => "watermark",
            Removal::Pressure => "pressure",
            Removal::Table => "table_full",
            Removal::Clear => "clear",
            Removal::ForcedClear => "forced_clear",
            Removal::Temporary => "temporary",
            Removal::Demoted => "demoted",
            Removal::Operator => "operator",
        }
    }
}

/// Why a reserved slot was never published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Abort {
    WriteTtl,
    ConnectionEnded,
    Unregistered,
    Reaped,
    ForcedClear,
    /// The inline body was cut, malformed or of another shape.
    Body,
    /// The same instance registered anew with another layout.
    Replaced,
    /// It could not be loaded from the lower tier that was said to have it.
    Load,
    /// The bytes that were loaded are not those that were stored.
    Digest,
    /// It could not be copied from the engine's memory.
    Copy,
}

impl Abort {
    pub fn label(self) -> &'static str {
        match self {
            Abort::WriteTtl => "write_ttl",
            Abort::ConnectionEnded => "connection_ended",
            Abort::Unregistered => "unregistered",
            Abort::Reaped => "reaped",
            Abort::ForcedClear => "forced_clear",
            Abort::Body => "body",
            Abort::Replaced => "replaced",
            Abort::Load => "load",
            Abort::Digest => "digest",
            Abort::Copy => "copy",
        }
    }
}

/// Why chunks of a store found no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NoRoom {
    /// Everything that could go is leased or pinned.
    Held,
    /// The arena has not grown this far yet.
    Growing,
    ObjectTable,
    SizeClasses,
    /// Writers hold as much as they may in all.
    Lent,
    /// Room is being made for it, which takes more than this turn; a later store finds it.
    Busy,
    /// Behind the first chunk without room, and so not tried (F37).
    Trimmed,
}

impl NoRoom {
    pub fn label(self) -> &'static str {
        match self {
            NoRoom::Held => "held",
            NoRoom::Growing => "growing",
            NoRoom::ObjectTable => "object_table",
            NoRoom::SizeClasses => "size_classes",
            NoRoom::Lent => "lent",
            NoRoom::Busy => "busy",
            NoRoom::Trimmed => "trimmed",
        }
    }
}

/// How a lease unit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseEnd {
    Retrieved,
    Freed,
    SessionEnded,
    /// A new lookup came under the same request id.
    Replaced,
    Expired,
    /// Taken while counting, beyond the hit.
    Trimmed,
    ForcedClear,
    /// The reader's connection ended before it said that it was done.
    ConnectionEnded,
    /// It could not be copied into the engine's memory.
    CopyFailed,
}

impl LeaseEnd {
    pub const ALL: [LeaseEnd; 9] = [
        LeaseEnd::Retrieved,
        LeaseEnd::Freed,
        LeaseEnd::SessionEnded,
        LeaseEnd::Replaced,
        LeaseEnd::Expired,
        LeaseEnd::Trimmed,
        LeaseEnd::ForcedClear,
        LeaseEnd::ConnectionEnded,
        LeaseEnd::CopyFailed,
    ];

    pub fn label(self) -> &'static str {
        match self {
            LeaseEnd::Retrieved => "retrieved",
            LeaseEnd::Freed => "freed",
            LeaseEnd::SessionEnded => "session_ended",
            LeaseEnd::Replaced => "replaced",
            LeaseEnd::Expired => "expired",
            LeaseEnd::Trimmed => "trimmed",
            LeaseEnd::ForcedClear => "forced_clear",
            LeaseEnd::ConnectionEnded => "connection_ended",
            LeaseEnd::CopyFailed => "copy_failed",
        }
    }
}

/// Why a lookup found less than it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LookupStop {
    /// It found everything.
    Complete,
    /// The chunk is in no rank's memory.
    Absent,
    /// Reserved by a store, not committed yet.
    InFlight,
    /// There for some ranks only.
    RankMissing,
    /// A windowed row has a hole.
    WindowHole,
    /// The lease or session table is full, or L1 is.
    NoRoom,
    /// A lower tier failed.
    TierError,
    /// A lower tier did not answer in time.
    TimedOut,
    /// Loading it would have taken longer than computing it.
    SlowerThanRecompute,
}

impl LookupStop {
    pub fn label(self) -> &'static str {
        match self {
            LookupStop::Complete => "complete",
            LookupStop::Absent => "absent",
            LookupStop::InFlight => "in_flight",
            LookupStop::RankMissing => "rank_missing",
            LookupStop::WindowHole => "window_hole",
            LookupStop::NoRoom => "no_room",
            LookupStop::TierError => "tier_error",
            LookupStop::TimedOut => "timed_out",
            LookupStop::SlowerThanRecompute => "slower_than_recompute",
        }
    }
}

/// News. Every variant happens after the change it tells of; none is made for a no-op (I-49).
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// `tenant` means this pair from now on. Sent before its first use, and again on request.
    TenantNamed {
        tenant: TenantId,
        model: Arc<str>,
        salt: Arc<str>,
    },
    InstanceRegistered {
        instance: InstanceId,
        model: Arc<str>,
        world_size: u32,
        layers: u32,
    },
    InstanceEnded {
        instance: InstanceId,
        why: InstanceEnd,
    },
    /// Told `false` once, so that it registers anew (design §7).
    InstanceTold {
        instance: InstanceId,
    },
    RegistrationRefused {
        instance: InstanceId,
        model: Arc<str>,
        reason: Refusal,
    },
    /// `operation` is the wire name, `""` where there is none.
    RequestFaulted {
        operation: &'static str,
        fault: RequestFault,
    },

    WriteReserved {
        keys: KeyRange,
    },
    /// Newly resident.
    WriteFinished {
        keys: KeyRange,
    },
    WriteAborted {
        keys: KeyRange,
        why: Abort,
    },
    /// Slots asked for and not granted.
    WriteRefused {
        keys: KeyRange,
        why: NoRoom,
    },
    /// A client's store: `stored` became readable, `failed` of its slots did not.
    StoreFinished {
        stored: KeyRange,
        failed: u32,
    },
    ReadReserved {
        keys: KeyRange,
        readers: u16,
    },
    /// Leases given back, one per key, with how: of one reader where he has come or gone, else of
    /// all that had not come yet at once.
    ReadFinished {
        keys: KeyRange,
        why: LeaseEnd,
    },
    ReadFailed {
        keys: KeyRange,
        why: ReadFailure,
    },
    Accessed {
        keys: KeyRange,
    },
    Evicted {
        keys: KeyRange,
        why: Removal,
    },
    EvictionTick {
        used_bytes: u64,
        total_bytes: u64,
        triggered: bool,
    },

    /// A lookup's result was taken by a poll or a release (spec/metrics §3.10).
    LookupTaken {
        tenant: TenantId,
        requested_chunks: u32,
        hit_chunks: u32,
        /// Of these, those that L1 alone would have served.
        l1_hit_chunks: u32,
        hit_keys: u32,
        l1_hit_keys: u32,
        stop: LookupStop,
    },
    /// The same for a lookup that did not look; both names as given.
    LookupSkipped {
        model: Arc<str>,
        salt: Arc<str>,
        why: EarlyExit,
    },
    /// Retrieved over shared memory or inline: one instance, one range.
    Retrieved {
        keys: KeyRange,
        bytes: u64,
        took: Duration,
    },
    Stored {
        keys: KeyRange,
        bytes: u64,
        took: Duration,
    },

    /// A server-driven transfer has passed its checks: `TransferEnded` follows, in the same turn
    /// where there is nothing to copy.
    TransferSubmitted {
        direction: Direction,
        device: Device,
    },
    TransferEnded(TransferEnd),
    /// An engine has given blocks of its own memory to requests.
    BlocksAllocated {
        instance: InstanceId,
        model: Arc<str>,
        blocks: Box<[AllocatedBlock]>,
    },
    /// A request has ended, by `SeededHash::of_requests`. Told only after blocks were.
    SessionEnded {
        request: u64,
    },

    /// `adapter` means this tier from now on. Sent before its first use, and again on request.
    AdapterNamed {
        adapter: AdapterId,
        name: Arc<str>,
    },
    AdapterChanged {
        adapter: AdapterId,
        state: AdapterState,
    },
    /// Objects that lay in an adapter when it joined and are not served: they have no name here, or
    /// its table is full.
    L2ScanSkipped {
        adapter: AdapterId,
        objects: u32,
    },
    /// Stores below L1 were handed to an adapter.
    L2StoreSubmitted {
        adapter: AdapterId,
        keys: KeyRange,
    },
    /// One of them has ended.
    L2StoreEnded {
        adapter: AdapterId,
        keys: KeyRange,
        end: L2StoreEnd,
        took: Duration,
    },
    /// Objects that will not be stored in this adapter.
    L2StoreDropped {
        adapter: AdapterId,
        keys: KeyRange,
        why: StoreDrop,
    },
    /// A lookup went on below L1: cells that L1 did not have, and adapters that could be asked.
    L2LookupSubmitted {
        tenant: TenantId,
        keys: u32,
        adapters: u32,
    },
    /// Cells of a lookup that lower tiers have.
    L2LookupFound {
        tenant: TenantId,
        keys: u32,
    },
    L2LoadSubmitted {
        adapter: AdapterId,
        keys: KeyRange,
    },
    L2LoadEnded {
        adapter: AdapterId,
        keys: KeyRange,
        end: L2LoadEnd,
        took: Duration,
    },
    /// Cells that a lookup did not get from below L1.
    L2PrefetchFailed {
        keys: KeyRange,
        why: PrefetchFailure,
    },
    /// Newly at rest in this adapter.
    L2Stored {
        adapter: AdapterId,
        keys: KeyRange,
    },
    L2Accessed {
        adapter: AdapterId,
        keys: KeyRange,
    },
    /// No longer at rest in this adapter.
    L2Removed {
        adapter: AdapterId,
        keys: KeyRange,
        why: L2Removal,
    },

    /// An ending for something that had ended already: changed nothing.
    StaleEnding,
    Cleared {
        force: bool,
    },
    QuotaChanged,
    /// Absolute, never a sum of facts.
    Gauges(Box<Gauges>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    pub l1_used_bytes: u64,
    pub l1_total_bytes: u64,
    pub l1_configured_bytes: u64,
    pub l1_staging_bytes: u64,
    pub l1_condemned_bytes: u64,
    pub l1_leased_bytes: u64,
    pub l1_objects: u64,
    pub active_prefetch_jobs: u64,
    pub sessions: u64,
    pub instances: u64,
    pub tickets: u64,
    pub lease_units: u64,
    pub adapters: Vec<AdapterGauges>,
}

impl Outbox {
    /// Opens a key range; close it with `keys_since`.
    pub fn mark(&self) -> u32 {
        self.keys.len() as u32
    }

    pub fn keys_since(&self, mark: u32) -> KeyRange {
        KeyRange { start: mark, end: self.keys.len() as u32 }
    }

    pub fn tell(&mut self, fact: Fact) {
        self.facts.push(fact);
    }
}
