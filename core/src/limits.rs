//! Every bound in one place. Constants are checked at compile time, sizes from the configuration
//! together at start (`Limits::check`). Full is an answer, not a longer queue.

/// Cells (chunk x row) that one `handle` may visit (design §2), beside those of the request or
/// ticket that it is about: its one answer names all of them.
pub const WORK_UNITS: usize = 4096;
/// So far may a turn get beyond its units: rows of one chunk are visited together, and a session
/// that ends takes its rows and parked waits with it, and a late commit or body is looked for among
/// the copies of its connection.
pub const WORK_OVERSHOOT: usize =
    3 * WORLD_SIZE_MAX as usize + WAITS_PER_SESSION_MAX + LATE_COPIES_CELLS;
/// Copies of one connection that a late commit is looked for among, newest first: far more than an
/// engine has in flight.
pub const LATE_COPIES_MAX: usize = 512;
/// What looking through them counts for.
pub const LATE_COPIES_CELLS: usize = LATE_COPIES_MAX / 16;
/// Chunks of one request: a million tokens at 256. A longer prompt hits this far; a transfer that
/// ends beyond it is refused.
pub const REQUEST_CHUNKS_MAX: usize = 4096;
/// Bytes of one request id. Longer ids are refused.
pub const REQUEST_ID_BYTES_MAX: usize = 1024;
/// Bytes of a model name.
pub const MODEL_BYTES_MAX: usize = 1024;
/// Characters of a tenant salt (spec/transfer §1.1).
pub const SALT_CHARS_MAX: usize = 128;
/// Largest world size that fits a KV rank (spec/transfer §1.5).
pub const WORLD_SIZE_MAX: u32 = 255;
/// Sessions with a lookup, lingering ones included.
pub const SESSIONS_MAX: usize = 65_536;
/// Lease cells over all sessions: chunks x ranks that lookups hold.
pub const LEASE_CELLS_MAX: usize = 4 << 20;
/// Registered instances.
pub const INSTANCES_MAX: usize = 4096;
/// Instances told once that they are not registered (design §7, fast restart).
pub const TOLD_MAX: usize = 4096;
/// Pairs of (model, salt) with a name.
pub const TENANTS_MAX: usize = 4096;
/// Interned scopes: tenant x rank x group x layout.
pub const SCOPES_MAX: usize = 65_536;
/// Effects and client copies in flight.
pub const TICKETS_MAX: usize = 65_536;
/// Share of L1 whose slots clients may hold for writing at once, parts per million. It bounds what
/// clients that have stopped can turn into condemned memory.
pub const LENT_PPM_MAX: u64 = 500_000;
/// Client copies under one name: a worker that has so many of one range has lost track of them.
pub const COPIES_PER_NAME_MAX: usize = 4;
/// Parked waits of one session; more are answered "still loading" at once.
pub const WAITS_PER_SESSION_MAX: usize = 64;
/// Parked `wait_prefetch_status` calls.
pub const WAITS_MAX: usize = 65_536;
/// Lower tiers that a roster can name in one run.
pub const ADAPTERS_MAX: usize = 64;
/// Bytes of an adapter's name.
pub const ADAPTER_NAME_BYTES_MAX: usize = 64;
/// Objects that one event tells of an adapter's scan.
pub const SCANNED_PER_EVENT: usize = 1024;
/// Effects of lower tiers in flight: stores, loads, probes, deletes, digests.
pub const FLIGHTS_MAX: usize = 16_384;
/// Objects between their commit and the end of their last store below L1.
pub const DEMOTIONS_MAX: usize = 65_536;
/// Share of L1 that objects may keep from being evicted while they wait for that, parts per
/// million.
pub const DEMOTING_PPM_MAX: u64 = 250_000;
/// Objects on their way into L1.
pub const LOADS_MAX: usize = 16_384;
/// Longest that a lookup waits for lower tiers, seconds.
pub const SEEK_SECS_MAX: u64 = 30;
/// Objects of other servers may be followed by nothing of worth up to a multiple of this, where
/// those write whole blocks (spec/storage §6.3, `fs_native`).
pub const PADDED_TO_BYTES: u64 = 4096;
/// Keys of one probe.
pub const PROBE_KEYS_MAX: usize = 1024;
/// Tries of one store below L1.
pub const STORE_TRIES_MAX: u8 = 3;
/// Bytes of L1 that the loads of one adapter are for at once; a larger object is loaded alone.
pub const LOADING_BYTES_MAX: u64 = 1 << 30;
/// Orders of one adapter that fail one after another before it is tripped.
pub const FAILURES_MAX: u32 = 5;
/// How long a tripped adapter is left alone, seconds: at first, and at the most.
pub const TRIP_SECS_MIN: u64 = 1;
pub const TRIP_SECS_MAX: u64 = 64;
/// Objects of one adapter that are being taken away at once.
pub const DELETES_MAX: u32 = 64;
/// Objects of one adapter that wait to be put aside.
pub const QUARANTINES_MAX: usize = 64;
/// Objects of one adapter that wait to be taken away for an operator: more than one request names.
pub const UNWANTED_MAX: usize = 16_384;
/// Objects of one adapter that are being checked at once.
pub const SCRUBS_MAX: u32 = 4;
/// How long a failed store below L1 waits for its next try, seconds: after its first try; twice as
/// long after every other.
pub const STORE_RETRY_SECS: u64 = 2;
/// Keys that one adapter remembers to have seen once.
pub const TOUCHES_MAX: usize = 65_536;
/// Objects that one event can publish: whole requests, as often as one name has copies.
pub const COMMITTED_MAX: usize = COPIES_PER_NAME_MAX * REQUEST_CHUNKS_MAX;
/// Bytes whose transfer to or from lower tiers begins in one turn (design §8).
pub const DISK_BYTES_PER_TURN: u64 = 4 << 20;
/// Tenant quotas.
pub const QUOTAS_MAX: usize = 4096;
/// Bytes of the salt that a quota is for.
pub const QUOTA_SALT_BYTES_MAX: usize = 1024;
/// Refusals kept for `/status`, newest last.
pub const REFUSALS_KEPT: usize = 64;
/// Tensors of one server-driven registration.
pub const TENSORS_MAX: usize = 1024;
/// Server-driven copies in flight, and the block ids that they name together.
pub const PAGE_COPIES_MAX: usize = 4096;
pub const BLOCKS_IN_FLIGHT_MAX: usize = 1 << 20;
/// Block ids of one transfer: a million tokens in blocks of 4.
pub const REQUEST_BLOCKS_MAX: usize = 262_144;
/// Blocks of one `report_block_allocation`: a quarter of a million tokens in blocks of 16, which
/// no scheduler gives out in one step. A larger report is refused.
pub const ALLOCATED_BLOCKS_MAX: usize = 16_384;
/// Runs that the copy of one object may be cut into.
pub const RUNS_PER_OBJECT_MAX: u64 = 65_536;
/// Longest `wait_prefetch_status`, seconds (design §7).
pub const WAIT_SECS_MAX: u64 = 300;
/// How long leases outlive `end_session`, seconds (design §7).
pub const LINGER_SECS: u64 = 5;

/// Connections at once.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Requests of one connection that wait for an answer; more are read when some have ended.
pub const REQUESTS_PER_CONNECTION_MAX: usize = 4096;
/// Requests without an answer over all connections.
pub const REQUESTS_MAX: usize = 262_144;
/// Frames of one message.
pub const FRAMES_MAX: usize = 16;
/// What a message may take without asking: small requests are always read (design §7).
pub const SMALL_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Messages up to this size wait their turn for the budget of medium frames where it is used up.
pub const SMALL_FRAME_BYTES_MAX: usize = 4 << 20;
/// Bytes of medium frames being buffered over all connections.
pub const MEDIUM_FRAME_BUDGET_BYTES: usize = 128 << 20;
/// Frames up to this size wait their turn for the budget of large ones; beyond it, a frame closes
/// its connection.
pub const LARGE_FRAME_BYTES_MAX: usize = 64 << 20;
/// All frames of a message together: the largest one, what names it, and small ones beside it.
pub const MESSAGE_BYTES_MAX: usize = LARGE_FRAME_BYTES_MAX + 4 * SMALL_MESSAGE_BYTES_MAX;
/// Bytes of large frames being buffered over all connections.
pub const LARGE_FRAME_BUDGET_BYTES: usize = 128 << 20;
/// Messages of one connection in one turn.
pub const MESSAGES_PER_TURN: usize = 64;
/// Input bytes of one connection in one turn: read, decoded and hashed.
pub const INPUT_BYTES_PER_TURN: usize = 64 << 10;
/// Bytes of answers queued for one connection before its requests are no longer read.
pub const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Everything that connections buffer beside what the two budgets of frames granted them: small
/// messages, bytes not decoded yet, queued answers. When half of it is used, who leaves more than
/// `SMALL_MESSAGE_BYTES_MAX` of answers unread is not read either; when all of it is, those who
/// stand still are closed, the stillest first.
pub const BUFFER_BUDGET_BYTES: usize = 256 << 20;
/// Who buffers less is not closed for it.
pub const BUFFER_BYTES_MIN: usize = 8 << 10;

/// Token memo: raw bytes and hashes over all sessions.
pub const MEMO_BYTES_MAX: usize = 64 << 20;
/// Sessions in the token memo.
pub const MEMO_SESSIONS_MAX: usize = 16_384;

/// Smallest and largest superblock (design §4).
pub const SUPERBLOCK_BYTES_MIN: u64 = 1 << 20;
pub const SUPERBLOCK_BYTES_MAX: u64 = 64 << 20;
/// Size classes of the arena: one per distinct aligned object size.
pub const SIZE_CLASSES_MAX: usize = 256;
/// The arena is grown in steps of this size.
pub const GROW_STEP_BYTES: u64 = 64 << 20;
/// Where memory is short, steps shrink to this.
pub const GROW_STEP_BYTES_MIN: u64 = 2 << 20;

/// Sampled chunks whose life in L1 is followed (spec/metrics §3.2).
pub const LIFECYCLE_KEYS_MAX: usize = 100_000;
/// Sampled chunks remembered after they left L1, each for 300 s.
pub const EVICTED_KEYS_MAX: usize = 100_000;
/// Sampled chunks whose reuse over all tiers is followed (spec/metrics §3.4).
pub const REUSE_KEYS_MAX: usize = 100_000;

/// Sampled blocks of engines whose life is followed (spec/metrics §3.7).
pub const L0_BLOCKS_MAX: usize = 32_768;
/// Requests that are remembered to use one of them, the latest ones.
pub const L0_OWNERS_MAX: usize = 16;
/// Names of models that these blocks bear. Blocks of others are not followed.
pub const L0_MODELS_MAX: usize = 256;

/// Facts in the lane to telemetry.
pub const FACT_LANE_BATCHES: usize = 1024;

const _: () = assert!(SUPERBLOCK_BYTES_MIN.is_power_of_two(), "superblocks are powers of two");
const _: () = assert!(SUPERBLOCK_BYTES_MAX.is_power_of_two(), "superblocks are powers of two");
const _: () = assert!(REQUEST_BLOCKS_MAX <= BLOCKS_IN_FLIGHT_MAX, "one transfer can be made");
const _: () = assert!(REQUEST_CHUNKS_MAX <= WORK_UNITS, "one row of a request fits one turn");
const _: () = assert!(INPUT_BYTES_PER_TURN <= SMALL_FRAME_BYTES_MAX, "a turn reads a part");
const _: () = assert!(REQUEST_CHUNKS_MAX <= LEASE_CELLS_MAX, "one request can be leased whole");
const _: () = assert!(REQUESTS_PER_CONNECTION_MAX <= REQUESTS_MAX, "one connection has its share");
const _: () =
    assert!(MEMO_SESSIONS_MAX <= SESSIONS_MAX, "the memo remembers no more than there is");
const _: () = assert!(GROW_STEP_BYTES.is_multiple_of(GROW_STEP_BYTES_MIN), "steps halve evenly");
const _: () = assert!(GROW_STEP_BYTES_MIN >= SUPERBLOCK_BYTES_MIN, "a step can be published");
const _: () = assert!(LENT_PPM_MAX <= 1_000_000, "a share is a part");
const _: () = assert!(SMALL_MESSAGE_BYTES_MAX < SMALL_FRAME_BYTES_MAX, "small, medium and");
const _: () = assert!(SMALL_FRAME_BYTES_MAX < LARGE_FRAME_BYTES_MAX, "large in this order");
const _: () = assert!(SMALL_FRAME_BYTES_MAX <= MEDIUM_FRAME_BUDGET_BYTES, "the largest is granted");
const _: () = assert!(MESSAGE_BYTES_MAX <= LARGE_FRAME_BUDGET_BYTES, "the largest is granted");
const _: () =
    assert!(2 * OUTPUT_BYTES_MAX <= BUFFER_BUDGET_BYTES, "one client alone is no shortage");
const _: () =
    assert!(CONNECTIONS_MAX * BUFFER_BYTES_MIN <= BUFFER_BUDGET_BYTES, "some can be closed");
