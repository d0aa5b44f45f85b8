//! What is told of lower tiers: how they stand, and causes and endings by name.

/// One per adapter that has ever joined and not left, in the order of the roster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterGauges {
    pub adapter: u16,
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    pub objects: u64,
    pub stores_in_flight: u64,
    pub loads_in_flight: u64,
    /// Bytes of L1 that these loads are for.
    pub loading_bytes: u64,
    /// Objects that wait to be stored, and bytes of L1 that are held for it.
    pub stores_waiting: u64,
    pub is_draining: bool,
}

/// What a lower tier can be used for just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AdapterState {
    /// Serves; what lay in it when it joined is still being told.
    Scanning,
    Ready,
    /// It has failed again and again: nothing is asked of it but a trial now and then.
    Tripped,
    /// Takes nothing new and will leave.
    Draining,
    Gone,
}

impl AdapterState {
    pub fn label(self) -> &'static str {
        match self {
            AdapterState::Scanning => "scanning",
            AdapterState::Ready => "ready",
            AdapterState::Tripped => "tripped",
            AdapterState::Draining => "draining",
            AdapterState::Gone => "gone",
        }
    }
}

/// How one store below L1 ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum L2StoreEnd {
    Stored,
    /// It was there already.
    Present,
    NoSpace,
    Io,
    TimedOut,
}

impl L2StoreEnd {
    pub fn label(self) -> &'static str {
        match self {
            L2StoreEnd::Stored => "stored",
            L2StoreEnd::Present => "present",
            L2StoreEnd::NoSpace => "no_space",
            L2StoreEnd::Io => "io",
            L2StoreEnd::TimedOut => "timed_out",
        }
    }
}

/// Why an object is not stored below L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StoreDrop {
    /// It failed as often as it is tried.
    Failed,
    /// The adapter has no room, and nothing in it can go.
    NoRoom,
    /// Too many objects wait already.
    QueueFull,
    /// It left L1 before its turn came, as more waits than may be held.
    Evicted,
    /// The adapter is tripped.
    Tripped,
    /// The adapter leaves.
    Draining,
    /// More than may be written in a day. (What is more than a second's share waits.)
    WriteBudget,
    /// Larger than the adapter, or without a name there.
    Unfit,
}

impl StoreDrop {
    pub const ALL: [StoreDrop; 8] = [
        StoreDrop::Failed,
        StoreDrop::NoRoom,
        StoreDrop::QueueFull,
        StoreDrop::Evicted,
        StoreDrop::Tripped,
        StoreDrop::Draining,
        StoreDrop::WriteBudget,
        StoreDrop::Unfit,
    ];

    pub fn label(self) -> &'static str {
        match self {
            StoreDrop::Failed => "failed",
            StoreDrop::NoRoom => "no_room",
            StoreDrop::QueueFull => "queue_full",
            StoreDrop::Evicted => "evicted",
            StoreDrop::Tripped => "tripped",
            StoreDrop::Draining => "draining",
            StoreDrop::WriteBudget => "write_budget",
            StoreDrop::Unfit => "unfit",
        }
    }
}

/// How one load into L1 ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum L2LoadEnd {
    Loaded,
    Absent,
    OtherSize,
    Io,
    /// Its bytes are not those that were stored.
    Digest,
    TimedOut,
    /// Nobody waited for it any more.
    Cancelled,
}

impl L2LoadEnd {
    pub fn label(self) -> &'static str {
        match self {
            L2LoadEnd::Loaded => "loaded",
            L2LoadEnd::Absent => "absent",
            L2LoadEnd::OtherSize => "other_size",
            L2LoadEnd::Io => "io",
            L2LoadEnd::Digest => "digest",
            L2LoadEnd::TimedOut => "timed_out",
            L2LoadEnd::Cancelled => "cancelled",
        }
    }
}

/// Why cells of a lookup did not come from below L1 (metrics row 26).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrefetchFailure {
    /// L1 has no room for them.
    L1Oom,
    /// They could not be loaded.
    NotFound,
    TimedOut,
    SlowerThanRecompute,
}

impl PrefetchFailure {
    pub fn label(self) -> &'static str {
        match self {
            PrefetchFailure::L1Oom => "l1_oom",
            PrefetchFailure::NotFound => "not_found",
            PrefetchFailure::TimedOut => "timed_out",
            PrefetchFailure::SlowerThanRecompute => "slower_than_recompute",
        }
    }
}

/// Why an object is no longer at rest in an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum L2Removal {
    /// The adapter was above its watermark.
    Watermark,
    /// A store needed the room at once.
    Pressure,
    /// Its tenant was above its quota.
    Quota,
    /// The table of its objects was full.
    Table,
    /// Its bytes were not those that were stored; it was put aside.
    Digest,
    /// Somebody else had taken it away, or put another one there.
    Lost,
    Operator,
}

impl L2Removal {
    pub fn label(self) -> &'static str {
        match self {
            L2Removal::Watermark => "watermark",
            L2Removal::Pressure => "pressure",
            L2Removal::Quota => "quota",
            L2Removal::Table => "table_full",
            L2Removal::Digest => "digest",
            L2Removal::Lost => "lost",
            L2Removal::Operator => "operator",
        }
    }
}
