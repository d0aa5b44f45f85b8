//! Every row of the table, moved to a known value and read from the real page (known failure F38).

use super::page::{ReadPage, read};
use super::telemetry;
use kvtide::telemetry::{BusGauges, FactBatch, Telemetry};
use kvtide_core::effect::{Direction, Refusal};
use kvtide_core::fact::{
    Abort, AdapterGauges, AdapterState, AllocatedBlock, EarlyExit, Fact, FactKey, Gauges,
    InstanceEnd, KeyRange, L2LoadEnd, L2Removal, L2StoreEnd, LeaseEnd, LookupStop, NoRoom,
    PrefetchFailure, ReadFailure, Removal, RequestFault, StoreDrop, TransferEnd,
};
use kvtide_core::metrics::TABLE;
use kvtide_core::metrics::page::{FamilyKind, series_name};
use kvtide_core::names::{AdapterId, ChunkHash, Device, InstanceId, ScopeId, TenantId};
use kvtide_core::time::{Duration, Instant};
use std::collections::BTreeSet;

fn keys(count: u8) -> Vec<FactKey> {
    let key = |number| FactKey {
        hash: ChunkHash([number; 32]),
        bytes: 10,
        scope: ScopeId(0),
        tenant: TenantId(0),
    };
    (0..count).map(key).collect()
}

/// One fact of every kind that moves something, two seconds apart.
fn script() -> Vec<FactBatch> {
    let instance = InstanceId(5);
    let took = Duration::from_secs(2);
    let all = |count| KeyRange { start: 0, end: count };
    let gauges = Gauges {
        l1_used_bytes: 30,
        l1_total_bytes: 120,
        l1_configured_bytes: 240,
        l1_staging_bytes: 20,
        l1_condemned_bytes: 10,
        l1_leased_bytes: 11,
        l1_objects: 3,
        active_prefetch_jobs: 4,
        sessions: 5,
        instances: 6,
        tickets: 7,
        lease_units: 8,
        adapters: vec![AdapterGauges {
            adapter: 0,
            used_bytes: 4096,
            capacity_bytes: 8192,
            objects: 2,
            stores_in_flight: 3,
            loads_in_flight: 4,
            loading_bytes: 40,
            stores_waiting: 5,
            is_draining: true,
        }],
    };
    let mut facts = vec![
        Fact::TenantNamed { tenant: TenantId(0), model: "m".into(), salt: "s".into() },
        Fact::WriteFinished { keys: all(3) },
        Fact::StoreFinished { stored: all(3), failed: 0 },
        Fact::Stored { keys: all(3), bytes: 30, took },
        Fact::ReadFinished { keys: all(2), why: LeaseEnd::Retrieved },
        Fact::Retrieved { keys: all(2), bytes: 20, took },
        Fact::Evicted { keys: all(1), why: Removal::Table },
        Fact::WriteFinished { keys: all(1) },
        Fact::EvictionTick { used_bytes: 30, total_bytes: 40, triggered: true },
        Fact::EvictionTick { used_bytes: 10, total_bytes: 40, triggered: false },
        Fact::WriteRefused { keys: all(3), why: NoRoom::ObjectTable },
        Fact::WriteAborted { keys: all(2), why: Abort::Reaped },
        Fact::ReadFailed { keys: all(1), why: ReadFailure::NotFound },
        Fact::LookupTaken {
            tenant: TenantId(0),
            requested_chunks: 4,
            hit_chunks: 2,
            l1_hit_chunks: 1,
            hit_keys: 6,
            l1_hit_keys: 4,
            stop: LookupStop::InFlight,
        },
        Fact::LookupSkipped {
            model: "m".into(),
            salt: "s".into(),
            why: EarlyExit::EmptyChunkHashes,
        },
        Fact::RegistrationRefused { instance, model: "m".into(), reason: Refusal::WorldSize },
        Fact::InstanceEnded { instance, why: InstanceEnd::Unregistered },
        Fact::RequestFaulted { operation: "STORE", fault: RequestFault::BadKey },
        Fact::StaleEnding,
    ];
    facts.extend(of_tiers(all(3), took));
    facts.extend(of_engines(took));
    facts.push(Fact::Gauges(Box::new(gauges)));
    let batch = |(index, fact)| FactBatch {
        at: Instant::from_secs(2 * index as u64),
        facts: vec![fact],
        keys: keys(3),
        lost: 0,
        ..FactBatch::default()
    };
    facts.into_iter().enumerate().map(batch).collect()
}

/// Nothing here touches what is measured of keys in L1 but a store, which reads it.
fn of_tiers(keys: KeyRange, took: Duration) -> Vec<Fact> {
    let (adapter, tenant) = (AdapterId(0), TenantId(0));
    let one = KeyRange { start: 0, end: 1 };
    vec![
        Fact::AdapterNamed { adapter, name: "fs".into() },
        Fact::AdapterChanged { adapter, state: AdapterState::Ready },
        Fact::L2StoreSubmitted { adapter, keys },
        Fact::L2StoreEnded { adapter, keys: one, end: L2StoreEnd::Stored, took },
        Fact::L2StoreEnded { adapter, keys: one, end: L2StoreEnd::Io, took },
        Fact::L2StoreDropped { adapter, keys: one, why: StoreDrop::QueueFull },
        Fact::L2LookupSubmitted { tenant, keys: 7, adapters: 1 },
        Fact::L2LookupFound { tenant, keys: 6 },
        Fact::L2LoadSubmitted { adapter, keys },
        Fact::L2LoadEnded { adapter, keys, end: L2LoadEnd::Loaded, took },
        Fact::L2PrefetchFailed { keys: one, why: PrefetchFailure::L1Oom },
        Fact::L2Removed { adapter, keys, why: L2Removal::Watermark },
        Fact::L2Removed { adapter, keys: one, why: L2Removal::Digest },
        Fact::L2ScanSkipped { adapter, objects: 9 },
    ]
}

/// Two transfers, and a block that is used twice, released, used again twice and then given away.
fn of_engines(took: Duration) -> Vec<Fact> {
    let (instance, tenant) = (InstanceId(5), TenantId(0));
    let transfer = |direction, device, keys| {
        let (bytes, submitted) =
            (4_000_000_000 * u64::from(keys), Fact::TransferSubmitted { direction, device });
        let end = TransferEnd { direction, device, instance, tenant, keys, bytes, took };
        [submitted, Fact::TransferEnded(end)]
    };
    let allocated = |request, tokens| Fact::BlocksAllocated {
        instance,
        model: "m".into(),
        blocks: [AllocatedBlock { request, tokens, block: 9 }].into(),
    };
    let mut facts = Vec::new();
    facts.extend(transfer(Direction::Store, Device::Host, 1));
    facts.extend(transfer(Direction::Retrieve, Device::Card(2), 3));
    for request in 0..3 {
        facts.push(allocated(request, 1));
        facts.push(Fact::SessionEnded { request });
    }
    facts.push(allocated(3, 2));
    facts
}

fn scrape(telemetry: &Telemetry, bus: BusGauges) -> ReadPage {
    read(&telemetry.page(bus), true).expect("our page is a page")
}

/// Name, labels and value; a histogram by its sum.
type Expected = (&'static str, &'static [(&'static str, &'static str)], f64);

const L1: &[(&str, &str)] = &[("l1_tag", "_default")];
const L1_SALT: &[(&str, &str)] = &[("cache_salt", "s"), ("l1_tag", "_default")];
const L1_BACKEND: &[(&str, &str)] = &[("backend", "dram"), ("l1_tag", "_default")];
const TENANT: &[(&str, &str)] = &[("cache_salt", "s"), ("model_name", "m")];
const SALT: &[(&str, &str)] = &[("cache_salt", "s")];
const ENGINE: &[(&str, &str)] = &[("instance_id", "5"), ("model_name", "m")];
const FS: &[(&str, &str)] = &[("l2_name", "fs")];
const ADAPTER: &[(&str, &str)] = &[("adapter_index", "0"), ("l2_name", "fs")];

const EXPECTED: &[Expected] = &[
    ("lmcache_mp_l1_read_chunks_total", L1_SALT, 4.0),
    ("lmcache_mp_l1_write_chunks_total", L1_SALT, 4.0),
    ("lmcache_mp_l1_evicted_chunks_total", L1_SALT, 1.0),
    ("lmcache_mp_l1_eviction_loop_ticks_total", &[], 2.0),
    ("lmcache_mp_l1_eviction_loop_triggered_total", &[], 1.0),
    ("lmcache_mp_l1_chunk_lifetime_seconds_sum", L1, 10.0),
    ("lmcache_mp_l1_chunk_idle_before_evict_seconds_sum", L1, 4.0),
    ("lmcache_mp_l1_chunk_reuse_gap_seconds_sum", L1, 44.0),
    ("lmcache_mp_l1_chunk_evict_reuse_gap_seconds_sum", L1, 2.0),
    ("lmcache_mp_real_reuse_gap_seconds_sum", SALT, 8.0),
    ("lmcache_mp_real_reuse_gap_objects_sum", SALT, 6.0),
    (
        "lmcache_mp_l1_allocation_failure_chunks_total",
        &[("during", "l1_store"), ("model_name", "m")],
        3.0,
    ),
    (
        "lmcache_mp_l1_read_failure_chunks_total",
        &[("during", "l1_retrieve"), ("model_name", "m"), ("reason", "not_found")],
        1.0,
    ),
    ("lmcache_mp_lookup_requested_tokens_total", TENANT, 1024.0),
    ("lmcache_mp_lookup_hit_tokens_total", TENANT, 512.0),
    ("lmcache_mp_active_prefetch_jobs", &[], 4.0),
    ("lmcache_mp_l1_memory_usage_bytes", L1_BACKEND, 30.0),
    ("lmcache_mp_l1_usage_ratio", L1_BACKEND, 0.25),
    ("lmcache_mp_event_bus_queue_depth", &[], 9.0),
    ("lmcache_mp_event_bus_drain_lag_seconds", &[], 0.5),
    ("lmcache_mp_event_bus_dropped_events_total", &[], 11.0),
    ("lmcache_mp_event_bus_subscriber_exceptions_total", &[("subscriber_name", "Fold")], 1.0),
    ("lmcache_mp_lookup_hit_l1_tokens_total", TENANT, 256.0),
    ("lmcache_mp_lookup_hit_l1_keys_total", TENANT, 4.0),
    ("lmcache_mp_lookup_hit_l2_tokens_total", TENANT, 256.0),
    ("lmcache_mp_lookup_hit_l2_keys_total", TENANT, 2.0),
    ("lmcache_mp_lookups_requests_total", TENANT, 2.0),
    (
        "lmcache_mp_lookup_early_exit_requests_total",
        &[("cache_salt", "s"), ("model_name", "m"), ("reason", "empty_chunk_hashes")],
        1.0,
    ),
    ("lmcache_mp_l1_staging_bytes", L1_BACKEND, 20.0),
    ("kvtide_refused_registrations_total", &[("reason", "world_size")], 1.0),
    ("kvtide_instance_ends_total", &[("why", "unregistered")], 1.0),
    ("kvtide_request_faults_total", &[("fault", "bad_key"), ("operation", "STORE")], 1.0),
    ("kvtide_lookup_stops_total", &[("stop", "in_flight")], 1.0),
    ("kvtide_lease_ends_total", &[("why", "retrieved")], 2.0),
    ("kvtide_l1_removals_total", &[("why", "table_full")], 1.0),
    ("kvtide_l1_write_aborts_total", &[("why", "reaped")], 2.0),
    ("kvtide_l1_write_refused_total", &[("why", "object_table")], 3.0),
    ("kvtide_stale_endings_total", &[], 1.0),
    ("kvtide_stored_chunks_total", &[], 3.0),
    ("kvtide_stored_bytes_total", &[], 30.0),
    ("kvtide_store_duration_seconds_sum", &[], 2.0),
    ("kvtide_retrieved_chunks_total", &[], 2.0),
    ("kvtide_retrieved_bytes_total", &[], 20.0),
    ("kvtide_retrieve_duration_seconds_sum", &[], 2.0),
    ("kvtide_l1_used_bytes", &[], 30.0),
    ("kvtide_l1_total_bytes", &[], 120.0),
    ("kvtide_l1_configured_bytes", &[], 240.0),
    ("kvtide_l1_staging_bytes", &[], 20.0),
    ("kvtide_l1_condemned_bytes", &[], 10.0),
    ("kvtide_l1_leased_bytes", &[], 11.0),
    ("kvtide_l1_objects", &[], 3.0),
    ("kvtide_sessions", &[], 5.0),
    ("kvtide_instances", &[], 6.0),
    ("kvtide_tickets", &[], 7.0),
    ("kvtide_lease_units", &[], 8.0),
    ("lmcache_mp_l2_store_submitted_requests_total", &[], 3.0),
    ("lmcache_mp_l2_store_submitted_objects_chunks_total", SALT, 3.0),
    ("lmcache_mp_l2_store_completed_requests_total", FS, 2.0),
    ("lmcache_mp_l2_store_completed_objects_chunks_total", SALT, 1.0),
    ("lmcache_mp_l2_prefetch_lookup_requests_total", &[], 1.0),
    ("lmcache_mp_l2_prefetch_lookup_objects_chunks_total", SALT, 7.0),
    ("lmcache_mp_l2_prefetch_hit_chunks_total", &[], 6.0),
    ("lmcache_mp_l2_prefetch_load_submitted_requests_total", &[], 3.0),
    ("lmcache_mp_l2_prefetch_load_submitted_objects_chunks_total", SALT, 3.0),
    ("lmcache_mp_l2_prefetch_load_completed_chunks_total", SALT, 3.0),
    ("lmcache_mp_l2_load_completed_requests_total", FS, 3.0),
    ("lmcache_mp_l2_evicted_objects_chunks_total", SALT, 3.0),
    (
        "lmcache_mp_l2_prefetch_failure_chunks_total",
        &[("model_name", "m"), ("reason", "l1_oom")],
        1.0,
    ),
    // 10 and 30 bytes in 2 s.
    ("lmcache_mp_l2_store_throughput_GB_per_second_sum", FS, 5e-9),
    ("lmcache_mp_l2_load_throughput_GB_per_second_sum", FS, 15e-9),
    ("lmcache_mp_l2_usage_bytes", FS, 4096.0),
    ("lmcache_mp_num_inflight_l2_stores", ADAPTER, 3.0),
    ("lmcache_mp_num_inflight_l2_loads", ADAPTER, 4.0),
    ("lmcache_mp_inflight_load_memory_usage_bytes", ADAPTER, 40.0),
    ("lmcache_mp_l2_store_adapters", &[("l1_tag", "_default"), ("state", "draining")], 1.0),
    ("lmcache_mp_l2_prefetch_adapters", &[("state", "draining")], 1.0),
    ("kvtide_l2_store_ends_total", &[("end", "io"), ("l2_name", "fs")], 1.0),
    ("kvtide_l2_store_drops_total", &[("l2_name", "fs"), ("why", "queue_full")], 1.0),
    ("kvtide_l2_load_ends_total", &[("end", "loaded"), ("l2_name", "fs")], 3.0),
    ("kvtide_l2_removals_total", &[("l2_name", "fs"), ("why", "watermark")], 3.0),
    ("kvtide_l2_digest_mismatches_total", FS, 1.0),
    ("kvtide_l2_scan_skipped_total", FS, 9.0),
    ("kvtide_l2_stored_bytes_total", FS, 10.0),
    ("kvtide_l2_loaded_bytes_total", FS, 30.0),
    ("kvtide_l2_store_duration_seconds_sum", FS, 2.0),
    ("kvtide_l2_load_duration_seconds_sum", FS, 2.0),
    (
        "kvtide_l2_adapter_state",
        &[("adapter_index", "0"), ("l2_name", "fs"), ("state", "ready")],
        1.0,
    ),
    ("kvtide_l2_used_bytes", ADAPTER, 4096.0),
    ("kvtide_l2_capacity_bytes", ADAPTER, 8192.0),
    ("kvtide_l2_objects", ADAPTER, 2.0),
    ("kvtide_l2_stores_waiting", ADAPTER, 5.0),
    // Seven facts, two seconds apart: at 0, 4 and 8 for the same tokens, at 12 for others.
    ("lmcache_mp_l0_block_lifetime_seconds_sum", ENGINE, 12.0),
    ("lmcache_mp_l0_block_idle_before_evict_seconds_sum", ENGINE, 4.0),
    ("lmcache_mp_l0_block_reuse_gap_seconds_sum", ENGINE, 4.0),
    (
        "lmcache_mp_l0_l1_store_throughput_GB_per_second_sum",
        &[("device", "cpu"), ("engine_id", "5"), ("model_name", "m")],
        2.0,
    ),
    (
        "lmcache_mp_l0_l1_load_throughput_GB_per_second_sum",
        &[("device", "cuda:2"), ("engine_id", "5"), ("model_name", "m")],
        6.0,
    ),
    ("lmcache_mp_num_submitted_stores_total", &[("device", "cpu")], 1.0),
    ("lmcache_mp_num_finished_stores_total", &[("device", "cpu")], 1.0),
    ("lmcache_mp_num_submitted_retrieves_total", &[("device", "cuda:2")], 1.0),
    ("lmcache_mp_num_finished_retrieves_total", &[("device", "cuda:2")], 1.0),
    (
        "lmcache_mp_num_chunks_loaded_total",
        &[("cache_salt", "s"), ("model_name", "m"), ("worker_id", "5")],
        3.0,
    ),
];

#[test]
fn f38_every_row_is_moved_to_a_known_value() {
    let mut telemetry = telemetry();
    script().iter().for_each(|batch| telemetry.take(batch));
    telemetry.scraper().note_lost(11);
    telemetry.scraper().note_failure("Fold");
    let bus = BusGauges { queued_facts: 9, drain_lag: Duration::from_millis(500) };
    let page = scrape(&telemetry, bus);
    for (name, labels, value) in EXPECTED {
        assert_eq!(page.value(name, labels), Some(*value), "{name}");
    }

    let tested: BTreeSet<String> =
        EXPECTED.iter().map(|(name, _, _)| page.family_of(name)).collect();
    let rows: BTreeSet<String> =
        TABLE.iter().map(|row| series_name(row.name, row.unit, FamilyKind::of(row.kind))).collect();
    assert_eq!(tested, rows, "each row has a line above");
    // And nothing else is exported but who we are.
    let others: Vec<&String> = page.types.keys().filter(|name| !rows.contains(*name)).collect();
    assert!(others.iter().all(|name| *name == "target_info" || name.starts_with("process_")));
    assert_eq!(others.len(), 7);
}

#[test]
fn f36_scrapes_of_an_idle_server_are_equal() {
    let mut telemetry = telemetry();
    script().iter().for_each(|batch| telemetry.take(batch));
    let bus = BusGauges::default();
    let pages = [(); 3]
        .map(|()| scrape(&telemetry, bus).filtered(|family, _| !family.starts_with("process_")));
    assert!(pages[0].samples.len() > 100);
    assert_eq!(pages[0], pages[1]);
    assert_eq!(pages[1], pages[2]);
}

/// Nobody's label values make the page unbounded: what is over a row's bound shares one series.
#[test]
fn label_sets_over_the_bound_share_one_series() {
    let mut telemetry = telemetry();
    let most = kvtide_core::limits::TENANTS_MAX;
    let facts = (0..most + 10).map(|index| Fact::LookupSkipped {
        model: format!("m{index}").into(),
        salt: "".into(),
        why: EarlyExit::NoGpuContext,
    });
    telemetry.take(&FactBatch { facts: facts.collect(), ..FactBatch::default() });
    let page = scrape(&telemetry, BusGauges::default());
    let name = "lmcache_mp_lookups_requests_total";
    let series = page.samples.keys().filter(|(sample, _)| sample == name).count();
    assert_eq!(series, most + 1);
    assert_eq!(page.value(name, &[("otel_metric_overflow", "true")]), Some(10.0));
}
