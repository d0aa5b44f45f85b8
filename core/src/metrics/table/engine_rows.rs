//! The rows of engines' own memory (L0), and of the transfers between it and L1 that the server
//! drives.

use super::rows::{DEFAULT_BUCKETS, FIXED_SERIES_MAX};
use super::rows::{counter, row, seconds};
use super::{Definition, Kind, Metric};
use crate::limits::INSTANCES_MAX;

const ENGINE: &[&str] = &["instance_id", "model_name"];
const DEVICE: &[&str] = &["device"];
const TRANSFER: &[&str] = &["device", "engine_id", "model_name"];

pub(super) const ENGINE_ROWS: [Definition; 10] = [
    // Rows 29 to 31, of sampled blocks.
    seconds(
        Metric::L0BlockLifetime,
        "lmcache.l0",
        "lmcache_mp.l0_block_lifetime",
        DEFAULT_BUCKETS,
        "Time from the allocation of a sampled block of an engine until other tokens were put in.",
    )
    .by(ENGINE, INSTANCES_MAX),
    seconds(
        Metric::L0BlockIdle,
        "lmcache.l0",
        "lmcache_mp.l0_block_idle_before_evict",
        DEFAULT_BUCKETS,
        "Time from the last access of a sampled block of an engine until other tokens were put in.",
    )
    .by(ENGINE, INSTANCES_MAX),
    seconds(
        Metric::L0BlockReuseGap,
        "lmcache.l0",
        "lmcache_mp.l0_block_reuse_gap",
        DEFAULT_BUCKETS,
        "Time between accesses of a sampled block of an engine, told when other tokens are put in.",
    )
    .by(ENGINE, INSTANCES_MAX),
    // Rows 32 to 37.
    row(
        Metric::L0StoreThroughput,
        "lmcache_mp.perf",
        "lmcache_mp.l0_l1_store_throughput",
        "GB/s",
        Kind::Histogram(DEFAULT_BUCKETS),
        "Speed of one server-driven store, from its order to its end.",
    )
    .by(TRANSFER, INSTANCES_MAX),
    row(
        Metric::L0LoadThroughput,
        "lmcache_mp.perf",
        "lmcache_mp.l0_l1_load_throughput",
        "GB/s",
        Kind::Histogram(DEFAULT_BUCKETS),
        "Speed of one server-driven retrieve, from its order to its end.",
    )
    .by(TRANSFER, INSTANCES_MAX),
    counter(
        Metric::SubmittedStores,
        "lmcache_mp.transfer",
        "lmcache_mp.num_submitted_stores",
        "",
        "Server-driven stores that passed their checks, those without anything to copy included.",
    )
    .by(DEVICE, FIXED_SERIES_MAX),
    counter(
        Metric::FinishedStores,
        "lmcache_mp.transfer",
        "lmcache_mp.num_finished_stores",
        "",
        "Server-driven stores that have ended, well or not.",
    )
    .by(DEVICE, FIXED_SERIES_MAX),
    counter(
        Metric::SubmittedRetrieves,
        "lmcache_mp.transfer",
        "lmcache_mp.num_submitted_retrieves",
        "",
        "Server-driven retrieves that passed their checks, misses included.",
    )
    .by(DEVICE, FIXED_SERIES_MAX),
    counter(
        Metric::FinishedRetrieves,
        "lmcache_mp.transfer",
        "lmcache_mp.num_finished_retrieves",
        "",
        "Server-driven retrieves that have ended, well or not.",
    )
    .by(DEVICE, FIXED_SERIES_MAX),
    // Row 40.
    counter(
        Metric::ChunksLoaded,
        "lmcache_mp.engine",
        "lmcache_mp.num_chunks_loaded",
        "",
        "Object keys that server-driven retrieves have brought to engines.",
    )
    .by(&["cache_salt", "model_name", "worker_id"], INSTANCES_MAX),
];
