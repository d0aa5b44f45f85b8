//! The rows, in the order of `Metric`: those of L1 and of everything else, then those of lower
//! tiers, then those of engines' own memory.

use super::engine_rows::ENGINE_ROWS;
use super::tier_rows::TIER_ROWS;
use super::{Definition, Kind, Metric};
use crate::limits::TENANTS_MAX;

/// `D` of spec/metrics §1.5: what the SDKs take when nobody says otherwise.
pub(super) const DEFAULT_BUCKETS: &[f64] = &[
    0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0,
    10000.0,
];
/// `L`: seconds in the life of a chunk.
const LIFE_BUCKETS: &[f64] =
    &[1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0];
/// `L300`: the same, where nothing is older than 300 s.
const LIFE_BUCKETS_CAPPED: &[f64] = &[1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0];
/// Seconds of one transfer, from memory speed to a stuck client.
pub(super) const TRANSFER_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Label sets of a row whose labels come from fixed lists.
pub(super) const FIXED_SERIES_MAX: usize = 64;
/// Operations times faults.
const FAULT_SERIES_MAX: usize = 1024;

const L1: &[&str] = &["l1_tag"];
const L1_SALT: &[&str] = &["cache_salt", "l1_tag"];
const L1_BACKEND: &[&str] = &["backend", "l1_tag"];
pub(super) const SALT: &[&str] = &["cache_salt"];
const TENANT: &[&str] = &["cache_salt", "model_name"];
const WHY: &[&str] = &["why"];

/// A row without labels; the others are made from it.
pub(super) const fn row(
    metric: Metric,
    meter: &'static str,
    name: &'static str,
    unit: &'static str,
    kind: Kind,
    help: &'static str,
) -> Definition {
    Definition { metric, meter, name, unit, kind, labels: &[], series_max: 1, help }
}

impl Definition {
    pub(super) const fn by(self, labels: &'static [&'static str], series_max: usize) -> Definition {
        Definition { labels, series_max, ..self }
    }
}

pub(super) const fn counter(
    metric: Metric,
    meter: &'static str,
    name: &'static str,
    unit: &'static str,
    help: &'static str,
) -> Definition {
    row(metric, meter, name, unit, Kind::Counter, help)
}

pub(super) const fn gauge(
    metric: Metric,
    meter: &'static str,
    name: &'static str,
    help: &'static str,
) -> Definition {
    row(metric, meter, name, "", Kind::Gauge, help)
}

pub(super) const fn seconds(
    metric: Metric,
    meter: &'static str,
    name: &'static str,
    buckets: &'static [f64],
    help: &'static str,
) -> Definition {
    row(metric, meter, name, "s", Kind::Histogram(buckets), help)
}

/// The table. "Chunks" of the `lmcache_*` rows are object keys: one per chunk, rank and group.
pub static TABLE: [Definition; LOWER + ENGINE_ROWS.len()] = {
    let mut all = [UPPER_ROWS[0]; LOWER + ENGINE_ROWS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < UPPER_ROWS.len() {
            UPPER_ROWS[at]
        } else if at < LOWER {
            TIER_ROWS[at - UPPER_ROWS.len()]
        } else {
            ENGINE_ROWS[at - LOWER]
        };
        at += 1;
    }
    all
};

/// Rows before those of engines' own memory.
const LOWER: usize = UPPER_ROWS.len() + TIER_ROWS.len();

const UPPER_ROWS: [Definition; 55] = [
    // Rows 1 to 5.
    counter(
        Metric::L1Read,
        "lmcache.l1",
        "lmcache_mp.l1_read",
        "chunks",
        "Object keys whose read leases in L1 were given back, unused leases of lookups included, \
         and those that were read to be stored below L1.",
    )
    .by(L1_SALT, TENANTS_MAX),
    counter(
        Metric::L1Write,
        "lmcache.l1",
        "lmcache_mp.l1_write",
        "chunks",
        "Object keys that became readable in L1.",
    )
    .by(L1_SALT, TENANTS_MAX),
    counter(
        Metric::L1Evicted,
        "lmcache.l1",
        "lmcache_mp.l1_evicted",
        "chunks",
        "Object keys that left L1, for whatever reason; kvtide_l1_removals_total tells the reason.",
    )
    .by(L1_SALT, TENANTS_MAX),
    counter(
        Metric::L1EvictionTicks,
        "lmcache.l1",
        "lmcache_mp.l1_eviction_loop_ticks",
        "",
        "Looks at the fill of L1, one a second.",
    ),
    counter(
        Metric::L1EvictionTriggered,
        "lmcache.l1",
        "lmcache_mp.l1_eviction_loop_triggered",
        "",
        "Looks at the fill of L1 that found it above the watermark.",
    ),
    // Rows 6 to 9, of sampled keys.
    seconds(
        Metric::L1ChunkLifetime,
        "lmcache.l1",
        "lmcache_mp.l1_chunk_lifetime",
        LIFE_BUCKETS,
        "Time from the last write of a sampled object to its removal from L1.",
    )
    .by(L1, 1),
    seconds(
        Metric::L1ChunkIdle,
        "lmcache.l1",
        "lmcache_mp.l1_chunk_idle_before_evict",
        LIFE_BUCKETS,
        "Time from the last read or write of a sampled object to its removal from L1.",
    )
    .by(L1, 1),
    seconds(
        Metric::L1ChunkReuseGap,
        "lmcache.l1",
        "lmcache_mp.l1_chunk_reuse_gap",
        LIFE_BUCKETS,
        "Time between two reads or writes of a sampled object in L1.",
    )
    .by(L1, 1),
    seconds(
        Metric::L1ChunkEvictReuseGap,
        "lmcache.l1",
        "lmcache_mp.l1_chunk_evict_reuse_gap",
        LIFE_BUCKETS_CAPPED,
        "Time from the removal of a sampled object to its next write; 300 when none came by then.",
    )
    .by(L1, 1),
    // Rows 10 and 11.
    seconds(
        Metric::RealReuseGap,
        "lmcache.sm",
        "lmcache_mp.real_reuse_gap",
        DEFAULT_BUCKETS,
        "Time from the last access of a sampled chunk to a read of it.",
    )
    .by(SALT, TENANTS_MAX),
    row(
        Metric::RealReuseGapObjects,
        "lmcache.sm",
        "lmcache_mp.real_reuse_gap_objects",
        "{chunks}",
        Kind::Histogram(DEFAULT_BUCKETS),
        "Chunk accesses of the same tenant since the last access of a sampled chunk, at a read.",
    )
    .by(SALT, TENANTS_MAX),
    // Rows 24 and 25.
    counter(
        Metric::L1AllocationFailure,
        "lmcache_mp.health",
        "lmcache_mp.l1_allocation_failure",
        "chunks",
        "Object keys for which L1 had no room; kvtide_l1_write_refused_total tells the reason.",
    )
    .by(&["during", "model_name"], TENANTS_MAX),
    counter(
        Metric::L1ReadFailure,
        "lmcache_mp.health",
        "lmcache_mp.l1_read_failure",
        "chunks",
        "Object keys that could not be read: by a retrieve, or for a store below L1.",
    )
    .by(&["during", "model_name", "reason"], TENANTS_MAX),
    // Rows 27 and 28.
    counter(
        Metric::LookupRequested,
        "lmcache.lookup",
        "lmcache_mp.lookup_requested",
        "tokens",
        "Tokens that lookups asked for: whole chunks only.",
    )
    .by(TENANT, TENANTS_MAX),
    counter(
        Metric::LookupHit,
        "lmcache.lookup",
        "lmcache_mp.lookup_hit",
        "tokens",
        "Tokens that lookups found, over all tiers.",
    )
    .by(TENANT, TENANTS_MAX),
    // Rows 41 to 43.
    gauge(
        Metric::ActivePrefetchJobs,
        "lmcache.mp_server",
        "lmcache_mp.active_prefetch_jobs",
        "Lookups whose result nobody has taken yet.",
    ),
    gauge(
        Metric::L1MemoryUsage,
        "lmcache.l1_manager",
        "lmcache_mp.l1_memory_usage_bytes",
        "Allocated bytes of L1, the same as kvtide_l1_used_bytes.",
    )
    .by(L1_BACKEND, 1),
    gauge(
        Metric::L1UsageRatio,
        "lmcache.l1_manager",
        "lmcache_mp.l1_usage_ratio",
        "kvtide_l1_used_bytes / kvtide_l1_total_bytes, 0 while the total is 0.",
    )
    .by(L1_BACKEND, 1),
    // Rows 48 to 51. Unlike the peer's these tell the truth (spec/metrics §5.4).
    gauge(
        Metric::BusQueueDepth,
        "lmcache.event_bus",
        "lmcache_mp.event_bus.queue_depth",
        "Facts that wait for telemetry.",
    ),
    gauge(
        Metric::BusDrainLag,
        "lmcache.event_bus",
        "lmcache_mp.event_bus.drain_lag_seconds",
        "Age of the oldest batch of facts that waits for telemetry, 0 when none waits.",
    ),
    counter(
        Metric::BusDroppedEvents,
        "lmcache.event_bus",
        "lmcache_mp.event_bus.dropped_events_total",
        "",
        "Facts lost because telemetry did not keep up; the counters of this page miss them.",
    ),
    counter(
        Metric::BusSubscriberExceptions,
        "lmcache.event_bus",
        "lmcache_mp.event_bus.subscriber_exceptions",
        "",
        "Failures of a part that works on facts; it was started again.",
    )
    .by(&["subscriber_name"], FIXED_SERIES_MAX),
    // Rows 52 to 57.
    counter(
        Metric::LookupHitL1,
        "lmcache.lookup",
        "lmcache_mp.lookup_hit_l1",
        "tokens",
        "Tokens that lookups found in L1.",
    )
    .by(TENANT, TENANTS_MAX),
    counter(
        Metric::LookupHitL2,
        "lmcache.lookup",
        "lmcache_mp.lookup_hit_l2",
        "tokens",
        "Tokens that lookups found in L2 and not in L1.",
    )
    .by(TENANT, TENANTS_MAX),
    counter(
        Metric::LookupHitL1Keys,
        "lmcache.lookup",
        "lmcache_mp.lookup_hit_l1_keys",
        "keys",
        "Object keys that lookups found in L1.",
    )
    .by(TENANT, TENANTS_MAX),
    counter(
        Metric::LookupHitL2Keys,
        "lmcache.lookup",
        "lmcache_mp.lookup_hit_l2_keys",
        "keys",
        "Object keys that lookups found in L2 and not in L1.",
    )
    .by(TENANT, TENANTS_MAX),
    counter(
        Metric::Lookups,
        "lmcache.lookup",
        "lmcache_mp.lookups",
        "requests",
        "Lookups whose result was taken.",
    )
    .by(TENANT, TENANTS_MAX),
    counter(
        Metric::LookupEarlyExit,
        "lmcache.lookup",
        "lmcache_mp.lookup_early_exit",
        "requests",
        "Lookups that ended before they looked, by reason.",
    )
    .by(&["cache_salt", "model_name", "reason"], TENANTS_MAX),
    // Row 62.
    gauge(
        Metric::L1Staging,
        "lmcache.l1_manager",
        "lmcache_mp.l1_staging_bytes",
        "Bytes of L1 reserved for writing and not yet readable, as kvtide_l1_staging_bytes.",
    )
    .by(L1_BACKEND, 1),
    // Ours.
    counter(
        Metric::RefusedRegistrations,
        "kvtide",
        "kvtide.refused_registrations",
        "",
        "Registrations that were refused, by reason.",
    )
    .by(&["reason"], FIXED_SERIES_MAX),
    counter(
        Metric::InstanceEnds,
        "kvtide",
        "kvtide.instance_ends",
        "",
        "Engine instances that are gone, by cause.",
    )
    .by(WHY, FIXED_SERIES_MAX),
    counter(
        Metric::RequestFaults,
        "kvtide",
        "kvtide.request_faults",
        "",
        "Requests answered with the negative value of their type, by operation and fault.",
    )
    .by(&["fault", "operation"], FAULT_SERIES_MAX),
    counter(
        Metric::LookupStops,
        "kvtide",
        "kvtide.lookup_stops",
        "",
        "Lookups by what ended the prefix they found.",
    )
    .by(&["stop"], FIXED_SERIES_MAX),
    counter(
        Metric::LeaseEnds,
        "kvtide",
        "kvtide.lease_ends",
        "",
        "Lease units that ended, by cause.",
    )
    .by(WHY, FIXED_SERIES_MAX),
    counter(
        Metric::L1Removals,
        "kvtide",
        "kvtide.l1_removals",
        "",
        "Objects that left L1, by cause.",
    )
    .by(WHY, FIXED_SERIES_MAX),
    counter(
        Metric::L1WriteAborts,
        "kvtide",
        "kvtide.l1_write_aborts",
        "",
        "Reserved slots that were never published, by cause.",
    )
    .by(WHY, FIXED_SERIES_MAX),
    counter(
        Metric::L1WriteRefused,
        "kvtide",
        "kvtide.l1_write_refused",
        "",
        "Slots asked for and not granted, by cause; request_limit was not tried.",
    )
    .by(WHY, FIXED_SERIES_MAX),
    counter(
        Metric::StaleEndings,
        "kvtide",
        "kvtide.stale_endings",
        "",
        "Endings of work that had ended already; they changed nothing.",
    ),
    counter(
        Metric::StoredChunks,
        "kvtide",
        "kvtide.stored_chunks",
        "chunks",
        "Object keys of completed stores.",
    ),
    counter(
        Metric::StoredBytes,
        "kvtide",
        "kvtide.stored_bytes",
        "By",
        "Bytes of completed stores.",
    ),
    seconds(
        Metric::StoreDuration,
        "kvtide",
        "kvtide.store_duration",
        TRANSFER_BUCKETS,
        "Time of one store, from the reservation to the commit.",
    ),
    counter(
        Metric::RetrievedChunks,
        "kvtide",
        "kvtide.retrieved_chunks",
        "chunks",
        "Object keys delivered to engines; lookups count what they found apart from this.",
    ),
    counter(
        Metric::RetrievedBytes,
        "kvtide",
        "kvtide.retrieved_bytes",
        "By",
        "Bytes delivered to engines.",
    ),
    seconds(
        Metric::RetrieveDuration,
        "kvtide",
        "kvtide.retrieve_duration",
        TRANSFER_BUCKETS,
        "Time of one retrieve, from its preparation to its end.",
    ),
    gauge(
        Metric::OwnL1Used,
        "kvtide",
        "kvtide.l1_used_bytes",
        "Allocated bytes of L1: resident, staging and condemned.",
    ),
    gauge(
        Metric::OwnL1Total,
        "kvtide",
        "kvtide.l1_total_bytes",
        "Bytes of L1 that can be allocated now; grows up to kvtide_l1_configured_bytes.",
    ),
    gauge(
        Metric::OwnL1Configured,
        "kvtide",
        "kvtide.l1_configured_bytes",
        "Bytes of L1 when fully grown.",
    ),
    gauge(
        Metric::OwnL1Staging,
        "kvtide",
        "kvtide.l1_staging_bytes",
        "Bytes of L1 reserved for writing and not yet readable.",
    ),
    gauge(
        Metric::OwnL1Condemned,
        "kvtide",
        "kvtide.l1_condemned_bytes",
        "Bytes of L1 whose key is gone and that somebody may still touch.",
    ),
    gauge(
        Metric::OwnL1Leased,
        "kvtide",
        "kvtide.l1_leased_bytes",
        "Bytes of L1 that a lookup or retrieve holds, each object once.",
    ),
    gauge(Metric::OwnL1Objects, "kvtide", "kvtide.l1_objects", "Objects in the L1 table."),
    gauge(Metric::OwnSessions, "kvtide", "kvtide.sessions", "Sessions, lingering ones included."),
    gauge(Metric::OwnInstances, "kvtide", "kvtide.instances", "Registered engine instances."),
    gauge(Metric::OwnTickets, "kvtide", "kvtide.tickets", "Work in flight."),
    gauge(Metric::OwnLeaseUnits, "kvtide", "kvtide.lease_units", "Lease units held."),
];
