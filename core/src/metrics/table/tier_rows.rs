//! The rows of lower tiers.

use super::rows::{DEFAULT_BUCKETS, FIXED_SERIES_MAX, SALT, TRANSFER_BUCKETS};
use super::rows::{counter, gauge, row, seconds};
use super::{Definition, Kind, Metric};
use crate::limits::{ADAPTERS_MAX, TENANTS_MAX};

const NAME: &[&str] = &["l2_name"];
const ADAPTER: &[&str] = &["adapter_index", "l2_name"];
const END: &[&str] = &["end", "l2_name"];
const WHY: &[&str] = &["l2_name", "why"];
/// Adapters times causes.
const CAUSE_SERIES_MAX: usize = 8 * ADAPTERS_MAX;

pub(super) const TIER_ROWS: [Definition; 36] = [
    // Rows 12 to 17.
    counter(
        Metric::L2StoreSubmitted,
        "lmcache.l2",
        "lmcache_mp.l2_store_submitted",
        "requests",
        "Stores handed to adapters: one for each object.",
    ),
    counter(
        Metric::L2StoreSubmittedObjects,
        "lmcache.l2",
        "lmcache_mp.l2_store_submitted_objects",
        "chunks",
        "Object keys of stores handed to adapters.",
    )
    .by(SALT, TENANTS_MAX),
    counter(
        Metric::L2StoreCompleted,
        "lmcache.l2",
        "lmcache_mp.l2_store_completed",
        "requests",
        "Stores that adapters have ended, well or not; kvtide_l2_store_ends_total tells how.",
    )
    .by(NAME, ADAPTERS_MAX),
    counter(
        Metric::L2StoreCompletedObjects,
        "lmcache.l2",
        "lmcache_mp.l2_store_completed_objects",
        "chunks",
        "Object keys that adapters have stored, or had already.",
    )
    .by(SALT, TENANTS_MAX),
    counter(
        Metric::L2PrefetchLookup,
        "lmcache.l2",
        "lmcache_mp.l2_prefetch_lookup",
        "requests",
        "Lookups that went on below L1.",
    ),
    counter(
        Metric::L2PrefetchLookupObjects,
        "lmcache.l2",
        "lmcache_mp.l2_prefetch_lookup_objects",
        "chunks",
        "Object keys that lookups wanted from below L1.",
    )
    .by(SALT, TENANTS_MAX),
    // Row 18, which the peer no longer has (spec/metrics §11).
    counter(
        Metric::L2PrefetchHit,
        "lmcache.l2",
        "lmcache_mp.l2_prefetch_hit",
        "chunks",
        "Object keys of hits that lower tiers had.",
    ),
    // Rows 19 to 23.
    counter(
        Metric::L2LoadSubmitted,
        "lmcache.l2",
        "lmcache_mp.l2_prefetch_load_submitted",
        "requests",
        "Loads asked of adapters: one for each object.",
    ),
    counter(
        Metric::L2LoadSubmittedObjects,
        "lmcache.l2",
        "lmcache_mp.l2_prefetch_load_submitted_objects",
        "chunks",
        "Object keys of loads asked of adapters.",
    )
    .by(SALT, TENANTS_MAX),
    counter(
        Metric::L2LoadCompletedObjects,
        "lmcache.l2",
        "lmcache_mp.l2_prefetch_load_completed",
        "chunks",
        "Object keys that were loaded into L1.",
    )
    .by(SALT, TENANTS_MAX),
    counter(
        Metric::L2LoadCompleted,
        "lmcache.l2",
        "lmcache_mp.l2_load_completed",
        "requests",
        "Loads that have ended, well or not; kvtide_l2_load_ends_total tells how.",
    )
    .by(NAME, ADAPTERS_MAX),
    counter(
        Metric::L2EvictedObjects,
        "lmcache.l2",
        "lmcache_mp.l2_evicted_objects",
        "chunks",
        "Object keys that adapters gave up for room; kvtide_l2_removals_total tells all causes.",
    )
    .by(SALT, TENANTS_MAX),
    // Row 26.
    counter(
        Metric::L2PrefetchFailure,
        "lmcache_mp.health",
        "lmcache_mp.l2_prefetch_failure",
        "chunks",
        "Object keys that a lookup did not get from below L1, by reason.",
    )
    .by(&["model_name", "reason"], TENANTS_MAX),
    // Rows 38 and 39.
    row(
        Metric::L2StoreThroughput,
        "lmcache_mp.perf",
        "lmcache_mp.l2_store_throughput",
        "GB/s",
        Kind::Histogram(DEFAULT_BUCKETS),
        "Speed of one store, from its order to its end.",
    )
    .by(NAME, ADAPTERS_MAX),
    row(
        Metric::L2LoadThroughput,
        "lmcache_mp.perf",
        "lmcache_mp.l2_load_throughput",
        "GB/s",
        Kind::Histogram(DEFAULT_BUCKETS),
        "Speed of one load, from its order to its end.",
    )
    .by(NAME, ADAPTERS_MAX),
    // Rows 44 to 47.
    gauge(
        Metric::L2Usage,
        "lmcache.l2",
        "lmcache_mp.l2_usage_bytes",
        "Bytes that adapters of this name hold or have on their way, all together.",
    )
    .by(NAME, ADAPTERS_MAX),
    gauge(
        Metric::L2StoresInFlight,
        "lmcache.l2_store",
        "lmcache_mp.num_inflight_l2_stores",
        "Stores on their way to this adapter.",
    )
    .by(ADAPTER, ADAPTERS_MAX),
    gauge(
        Metric::L2LoadsInFlight,
        "lmcache.l2_prefetch",
        "lmcache_mp.num_inflight_l2_loads",
        "Loads on their way from this adapter.",
    )
    .by(ADAPTER, ADAPTERS_MAX),
    gauge(
        Metric::L2LoadMemory,
        "lmcache.l2_prefetch",
        "lmcache_mp.inflight_load_memory_usage_bytes",
        "Bytes of L1 that the loads on their way from this adapter are for.",
    )
    .by(ADAPTER, ADAPTERS_MAX),
    // Rows 63 and 64.
    gauge(
        Metric::L2StoreAdapters,
        "lmcache.l2_store",
        "lmcache_mp.l2_store_adapters",
        "Adapters that are stored to, by whether they are about to leave.",
    )
    .by(&["l1_tag", "state"], FIXED_SERIES_MAX),
    gauge(
        Metric::L2PrefetchAdapters,
        "lmcache.l2_prefetch",
        "lmcache_mp.l2_prefetch_adapters",
        "Adapters that are loaded from, by whether they are about to leave.",
    )
    .by(&["state"], FIXED_SERIES_MAX),
    // Ours.
    counter(
        Metric::OwnL2StoreEnds,
        "kvtide",
        "kvtide.l2_store_ends",
        "",
        "Stores that have ended, by how.",
    )
    .by(END, CAUSE_SERIES_MAX),
    counter(
        Metric::OwnL2StoreDrops,
        "kvtide",
        "kvtide.l2_store_drops",
        "",
        "Objects that were not stored in an adapter, by cause.",
    )
    .by(WHY, CAUSE_SERIES_MAX),
    counter(
        Metric::OwnL2ScanSkipped,
        "kvtide",
        "kvtide.l2_scan_skipped",
        "",
        "Objects that lay in an adapter when it joined and are not served.",
    ),
    counter(
        Metric::OwnL2LoadEnds,
        "kvtide",
        "kvtide.l2_load_ends",
        "",
        "Loads that have ended, by how.",
    )
    .by(END, CAUSE_SERIES_MAX),
    counter(
        Metric::OwnL2Removals,
        "kvtide",
        "kvtide.l2_removals",
        "",
        "Objects that left an adapter, by cause.",
    )
    .by(WHY, CAUSE_SERIES_MAX),
    counter(
        Metric::OwnL2DigestMismatches,
        "kvtide",
        "kvtide.l2_digest_mismatches",
        "",
        "Objects at rest whose bytes were not those that were stored: never, or a disk is failing.",
    )
    .by(NAME, ADAPTERS_MAX),
    counter(
        Metric::OwnL2StoredBytes,
        "kvtide",
        "kvtide.l2_stored_bytes",
        "By",
        "Bytes that adapters have written.",
    )
    .by(NAME, ADAPTERS_MAX),
    counter(
        Metric::OwnL2LoadedBytes,
        "kvtide",
        "kvtide.l2_loaded_bytes",
        "By",
        "Bytes that were loaded into L1.",
    )
    .by(NAME, ADAPTERS_MAX),
    seconds(
        Metric::OwnL2StoreDuration,
        "kvtide",
        "kvtide.l2_store_duration",
        TRANSFER_BUCKETS,
        "Time of one store that went well, from its order to its end.",
    )
    .by(NAME, ADAPTERS_MAX),
    seconds(
        Metric::OwnL2LoadDuration,
        "kvtide",
        "kvtide.l2_load_duration",
        TRANSFER_BUCKETS,
        "Time of one load that went well, from its order to its end.",
    )
    .by(NAME, ADAPTERS_MAX),
    gauge(
        Metric::OwnL2State,
        "kvtide",
        "kvtide.l2_adapter_state",
        "1 for what the adapter can be used for just now, 0 for the other states.",
    )
    .by(&["adapter_index", "l2_name", "state"], 8 * ADAPTERS_MAX),
    gauge(
        Metric::OwnL2Used,
        "kvtide",
        "kvtide.l2_used_bytes",
        "Bytes that this adapter holds or has on their way.",
    )
    .by(ADAPTER, ADAPTERS_MAX),
    gauge(
        Metric::OwnL2Capacity,
        "kvtide",
        "kvtide.l2_capacity_bytes",
        "Bytes that this adapter may hold.",
    )
    .by(ADAPTER, ADAPTERS_MAX),
    gauge(
        Metric::OwnL2Objects,
        "kvtide",
        "kvtide.l2_objects",
        "Objects that this adapter is known to hold.",
    )
    .by(ADAPTER, ADAPTERS_MAX),
    gauge(
        Metric::OwnL2StoresWaiting,
        "kvtide",
        "kvtide.l2_stores_waiting",
        "Objects that wait to be stored in this adapter.",
    )
    .by(ADAPTER, ADAPTERS_MAX),
];
