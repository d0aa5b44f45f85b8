use super::aggregate::Aggregate;
use super::*;
use crate::effect::Refusal;
use crate::fact::Gauges;
use crate::fact::{Abort, AdapterGauges, AdapterState, EarlyExit, KeyRange, L2LoadEnd, L2Removal};
use crate::fact::{L2StoreEnd, LookupStop, PrefetchFailure, RequestFault, StoreDrop};
use crate::names::{AdapterId, ChunkHash, InstanceId, ScopeId};
use alloc::boxed::Box;
use alloc::vec;

fn key(number: u8, tenant: u32) -> FactKey {
    FactKey {
        hash: ChunkHash([number; 32]),
        bytes: 100,
        scope: ScopeId(tenant),
        tenant: TenantId(tenant),
    }
}

fn all(keys: &[FactKey]) -> KeyRange {
    KeyRange { start: 0, end: keys.len() as u32 }
}

/// A fold with two tenants, and what became of its measurements.
struct Bench {
    fold: Fold,
    sums: Aggregate,
}

impl Bench {
    fn new() -> Bench {
        let config = FoldConfig { chunk_size: 256, sample_rate: SampleRate::ALL, seed: 1 };
        let mut bench = Bench { fold: Fold::new(config), sums: Aggregate::default() };
        let names = [(1, "m1", ""), (2, "m2", "s")];
        for (tenant, model, salt) in names {
            let tenant = TenantId(tenant);
            bench.tell(Fact::TenantNamed { tenant, model: model.into(), salt: salt.into() }, &[]);
        }
        bench
    }

    fn tell(&mut self, fact: Fact, keys: &[FactKey]) {
        self.tell_at(0, fact, keys);
    }

    fn tell_at(&mut self, secs: u64, fact: Fact, keys: &[FactKey]) {
        let mut out = Vec::new();
        self.fold.fold(Instant::from_secs(secs), &fact, keys, &mut out);
        for one in &out {
            let definition = one.metric.definition();
            assert!(one.labels.is_sorted(), "{one:?}");
            assert!(one.labels.iter().all(|(name, _)| definition.labels.contains(name)), "{one:?}");
            self.sums.record(one);
        }
    }

    fn number(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.sums.page().number(name, labels)
    }
}

#[test]
fn keys_are_counted_by_salt() {
    let mut bench = Bench::new();
    let keys = [key(1, 1), key(2, 2), key(3, 1), key(4, 3)];
    bench.tell(Fact::WriteFinished { keys: all(&keys) }, &keys);
    let name = "lmcache_mp_l1_write_chunks_total";
    assert_eq!(bench.number(name, &[("l1_tag", "_default")]), 2.0);
    assert_eq!(bench.number(name, &[("cache_salt", "s"), ("l1_tag", "_default")]), 1.0);
    assert_eq!(bench.number(name, &[("cache_salt", "_unknown"), ("l1_tag", "_default")]), 1.0);
    assert!(bench.fold.names_are_missing());
}

#[test]
fn f35_asked_found_and_delivered_are_apart() {
    let mut bench = Bench::new();
    for lookup in 0..10 {
        let hit = if lookup < 3 { 10 } else { 0 };
        bench.tell(
            Fact::LookupTaken {
                tenant: TenantId(1),
                requested_chunks: 10,
                hit_chunks: hit,
                l1_hit_chunks: hit.min(6),
                hit_keys: hit,
                l1_hit_keys: hit.min(7),
                stop: if hit > 0 { LookupStop::Complete } else { LookupStop::Absent },
            },
            &[],
        );
    }
    let keys = [key(1, 1), key(2, 1)];
    bench.tell(
        Fact::Retrieved { keys: all(&keys), bytes: 200, took: Duration::from_millis(3) },
        &keys,
    );
    let m1 = [("model_name", "m1")];
    assert_eq!(bench.number("lmcache_mp_lookup_requested_tokens_total", &m1), 100.0 * 256.0);
    assert_eq!(bench.number("lmcache_mp_lookup_hit_tokens_total", &m1), 30.0 * 256.0);
    assert_eq!(bench.number("lmcache_mp_lookup_hit_l1_tokens_total", &m1), 18.0 * 256.0);
    assert_eq!(bench.number("lmcache_mp_lookup_hit_l2_tokens_total", &m1), 12.0 * 256.0);
    assert_eq!(bench.number("lmcache_mp_lookup_hit_l1_keys_total", &m1), 21.0);
    assert_eq!(bench.number("lmcache_mp_lookup_hit_l2_keys_total", &m1), 9.0);
    assert_eq!(bench.number("lmcache_mp_lookups_requests_total", &m1), 10.0);
    assert_eq!(bench.number("kvtide_lookup_stops_total", &[("stop", "complete")]), 3.0);
    assert_eq!(bench.number("kvtide_lookup_stops_total", &[("stop", "absent")]), 7.0);
    assert_eq!(bench.number("kvtide_retrieved_chunks_total", &[]), 2.0);
    assert_eq!(bench.number("kvtide_retrieved_bytes_total", &[]), 200.0);
}

#[test]
fn a_lookup_that_did_not_look_makes_its_series_appear() {
    let mut bench = Bench::new();
    let skipped =
        Fact::LookupSkipped { model: "m9".into(), salt: "".into(), why: EarlyExit::NoGpuContext };
    bench.tell(skipped, &[]);
    let page = bench.sums.page();
    let family = page.family("lmcache_mp_lookup_hit_l2_tokens_total").expect("it appeared");
    assert_eq!(family.series.len(), 1);
    let labels = [("model_name", "m9"), ("reason", "no_gpu_context")];
    assert_eq!(page.number("lmcache_mp_lookup_early_exit_requests_total", &labels), 1.0);
    assert_eq!(page.number("lmcache_mp_lookups_requests_total", &[("model_name", "m9")]), 1.0);
}

#[test]
fn f37_chunks_that_were_not_tried_are_no_failures() {
    let mut bench = Bench::new();
    let keys = [key(1, 1), key(2, 1), key(3, 2)];
    bench.tell(Fact::WriteRefused { keys: all(&keys), why: NoRoom::Held }, &keys);
    bench.tell(Fact::WriteRefused { keys: all(&keys), why: NoRoom::Trimmed }, &keys);
    let failed = |model| {
        let labels = [("during", "l1_store"), ("model_name", model)];
        bench.number("lmcache_mp_l1_allocation_failure_chunks_total", &labels)
    };
    assert_eq!(failed("m1"), 2.0);
    assert_eq!(failed("m2"), 1.0);
    assert_eq!(bench.number("kvtide_l1_write_refused_total", &[("why", "held")]), 3.0);
    assert_eq!(bench.number("kvtide_l1_write_refused_total", &[("why", "trimmed")]), 3.0);
}

#[test]
fn a_lease_that_ran_out_is_no_read() {
    let mut bench = Bench::new();
    let keys = [key(1, 1), key(1, 1)];
    for why in LeaseEnd::ALL {
        bench.tell(Fact::ReadFinished { keys: all(&keys), why }, &keys);
        assert_eq!(bench.number("kvtide_lease_ends_total", &[("why", why.label())]), 2.0);
    }
    let read = bench.number("lmcache_mp_l1_read_chunks_total", &[("l1_tag", "_default")]);
    assert_eq!(read, 14.0);
}

#[test]
fn causes_and_faults_are_labels() {
    let mut bench = Bench::new();
    let keys = [key(1, 1), key(2, 2)];
    let range = all(&keys);
    bench.tell(Fact::WriteAborted { keys: range, why: Abort::WriteTtl }, &keys);
    bench.tell(Fact::Evicted { keys: range, why: Removal::Pressure }, &keys);
    bench.tell(Fact::ReadFailed { keys: range, why: ReadFailure::NotLeased }, &keys);
    bench.tell(Fact::StaleEnding, &[]);
    let instance = InstanceId(1);
    bench.tell(Fact::InstanceEnded { instance, why: InstanceEnd::Reaped }, &[]);
    let reason = Refusal::QueryCache;
    bench.tell(Fact::RegistrationRefused { instance, model: "m".into(), reason }, &[]);
    let fault = RequestFault::Malformed;
    bench.tell(Fact::RequestFaulted { operation: "LOOKUP", fault }, &[]);
    bench.tell(Fact::Stored { keys: range, bytes: 7, took: Duration::from_secs(1) }, &keys);

    assert_eq!(bench.number("kvtide_l1_write_aborts_total", &[("why", "write_ttl")]), 2.0);
    assert_eq!(bench.number("kvtide_l1_removals_total", &[("why", "pressure")]), 2.0);
    let failure = [("during", "l1_retrieve"), ("model_name", "m2"), ("reason", "not_leased")];
    assert_eq!(bench.number("lmcache_mp_l1_read_failure_chunks_total", &failure), 1.0);
    assert_eq!(bench.number("kvtide_stale_endings_total", &[]), 1.0);
    assert_eq!(bench.number("kvtide_instance_ends_total", &[("why", "reaped")]), 1.0);
    let reason = [("reason", "query_cache")];
    assert_eq!(bench.number("kvtide_refused_registrations_total", &reason), 1.0);
    let fault = [("fault", "malformed"), ("operation", "LOOKUP")];
    assert_eq!(bench.number("kvtide_request_faults_total", &fault), 1.0);
    assert_eq!(bench.number("kvtide_stored_chunks_total", &[]), 2.0);
    assert_eq!(bench.number("kvtide_stored_bytes_total", &[]), 7.0);
}

#[test]
fn f41_capacity_used_held_and_in_flight_are_apart() {
    let mut bench = Bench::new();
    let gauges = Gauges {
        l1_used_bytes: 512,
        l1_total_bytes: 1024,
        l1_configured_bytes: 2048,
        l1_staging_bytes: 16,
        l1_condemned_bytes: 8,
        l1_leased_bytes: 4,
        l1_objects: 3,
        active_prefetch_jobs: 2,
        sessions: 5,
        instances: 6,
        tickets: 7,
        lease_units: 9,
        adapters: Vec::new(),
    };
    bench.tell(Fact::Gauges(Box::default()), &[]);
    let place = [("backend", "dram"), ("l1_tag", "_default")];
    assert_eq!(bench.number("lmcache_mp_l1_usage_ratio", &place), 0.0);
    bench.tell(Fact::Gauges(Box::new(gauges)), &[]);
    assert_eq!(bench.number("lmcache_mp_l1_memory_usage_bytes", &place), 512.0);
    assert_eq!(bench.number("lmcache_mp_l1_usage_ratio", &place), 0.5);
    assert_eq!(bench.number("lmcache_mp_l1_staging_bytes", &place), 16.0);
    let plain = [
        ("lmcache_mp_active_prefetch_jobs", 2.0),
        ("kvtide_l1_used_bytes", 512.0),
        ("kvtide_l1_total_bytes", 1024.0),
        ("kvtide_l1_configured_bytes", 2048.0),
        ("kvtide_l1_staging_bytes", 16.0),
        ("kvtide_l1_condemned_bytes", 8.0),
        ("kvtide_l1_leased_bytes", 4.0),
        ("kvtide_l1_objects", 3.0),
        ("kvtide_sessions", 5.0),
        ("kvtide_instances", 6.0),
        ("kvtide_tickets", 7.0),
        ("kvtide_lease_units", 9.0),
    ];
    for (name, value) in plain {
        assert_eq!(bench.number(name, &[]), value, "{name}");
    }
}

#[test]
fn f36_news_that_moves_nothing_measures_nothing() {
    let mut bench = Bench::new();
    let (none, adapter, took) = (KeyRange::default(), AdapterId(0), Duration::ZERO);
    let quiet = vec![
        Fact::WriteFinished { keys: none },
        Fact::StoreFinished { stored: none, failed: 3 },
        Fact::ReadFinished { keys: none, why: LeaseEnd::Freed },
        Fact::Evicted { keys: none, why: Removal::Clear },
        Fact::WriteRefused { keys: none, why: NoRoom::Held },
        Fact::WriteAborted { keys: none, why: Abort::Body },
        Fact::InstanceTold { instance: InstanceId(1) },
        Fact::Cleared { force: false },
        Fact::QuotaChanged,
        Fact::AdapterNamed { adapter, name: "fs".into() },
        Fact::L2StoreSubmitted { adapter, keys: none },
        Fact::L2StoreEnded { adapter, keys: none, end: L2StoreEnd::Stored, took },
        Fact::L2StoreDropped { adapter, keys: none, why: StoreDrop::Evicted },
        Fact::L2LoadSubmitted { adapter, keys: none },
        Fact::L2LoadEnded { adapter, keys: none, end: L2LoadEnd::Loaded, took },
        Fact::L2PrefetchFailed { keys: none, why: PrefetchFailure::TimedOut },
        Fact::L2Stored { adapter, keys: none },
        Fact::L2Accessed { adapter, keys: none },
        Fact::L2Removed { adapter, keys: none, why: L2Removal::Digest },
    ];
    for fact in quiet {
        bench.tell(fact, &[]);
    }
    assert_eq!(bench.sums.page().families().count(), 0);
}

/// A read, once by two ranks, counts as one access; a fact of another salt does not matter.
#[test]
fn reuse_counts_a_chunk_once_per_fact() {
    let mut bench = Bench::new();
    let mut other_rank = key(1, 2);
    other_rank.scope = ScopeId(9);
    let keys = [key(1, 2), other_rank, key(1, 1), key(2, 2)];
    let read = |range| Fact::ReadFinished { keys: range, why: LeaseEnd::Retrieved };
    bench.tell_at(10, read(KeyRange { start: 0, end: 2 }), &keys);
    bench.tell_at(11, read(KeyRange { start: 2, end: 4 }), &keys);
    bench.tell_at(15, read(KeyRange { start: 0, end: 2 }), &keys);
    let page = bench.sums.page();
    let spread = |name: &str| {
        let family = page.family(name).expect("it appeared");
        let labels = vec![("cache_salt".into(), "s".into())];
        match &family.series[&labels] {
            page::SeriesValue::Spread(spread) => (spread.count(), spread.sum),
            other => panic!("a histogram, not {other:?}"),
        }
    };
    assert_eq!(spread("lmcache_mp_real_reuse_gap_seconds"), (1, 5.0));
    assert_eq!(spread("lmcache_mp_real_reuse_gap_objects"), (1, 2.0));
}

fn with_adapters(names: &[&'static str]) -> Bench {
    let mut bench = Bench::new();
    for (id, name) in names.iter().enumerate() {
        let adapter = AdapterId(id as u16);
        bench.tell(Fact::AdapterNamed { adapter, name: (*name).into() }, &[]);
    }
    bench
}

fn of_adapters(adapters: &[AdapterGauges]) -> Fact {
    Fact::Gauges(Box::new(Gauges { adapters: adapters.into(), ..Gauges::default() }))
}

/// One store below L1 is one object: what was submitted less what has ended is on its way, however
/// the engine tells of them.
#[test]
fn stores_below_l1_are_counted_by_object_and_only_good_ones_have_a_speed() {
    let mut bench = with_adapters(&["fs"]);
    let (keys, adapter) = ([key(1, 1), key(2, 2), key(3, 2)], AdapterId(0));
    bench.tell(Fact::L2StoreSubmitted { adapter, keys: all(&keys) }, &keys);
    let ends = [L2StoreEnd::Stored, L2StoreEnd::Present, L2StoreEnd::NoSpace];
    for (at, end) in ends.into_iter().enumerate() {
        let keys = &keys[at..=at];
        let took = Duration::from_nanos(50);
        bench.tell(Fact::L2StoreEnded { adapter, keys: all(keys), end, took }, keys);
    }
    let fs = [("l2_name", "fs")];
    assert_eq!(bench.number("lmcache_mp_l2_store_submitted_requests_total", &[]), 3.0);
    assert_eq!(bench.number("lmcache_mp_l2_store_completed_requests_total", &fs), 3.0);
    let completed = "lmcache_mp_l2_store_completed_objects_chunks_total";
    assert_eq!(bench.number(completed, &[]), 1.0);
    assert_eq!(bench.number(completed, &[("cache_salt", "s")]), 1.0, "no space is no store");
    assert_eq!(bench.number("kvtide_l2_stored_bytes_total", &fs), 100.0);
    let page = bench.sums.page();
    let family = page.family("lmcache_mp_l2_store_throughput_GB_per_second").expect("one speed");
    let page::SeriesValue::Spread(spread) = &family.series[&vec![("l2_name".into(), "fs".into())]]
    else {
        panic!("a histogram");
    };
    assert_eq!((spread.count(), spread.sum), (1, 2.0));
    let read = "lmcache_mp_l1_read_chunks_total";
    let salt = [("cache_salt", "s"), ("l1_tag", "_default")];
    assert_eq!(bench.number(read, &salt), 2.0, "a store reads L1");
}

#[test]
fn an_object_that_left_l1_before_its_store_is_a_failed_read() {
    let mut bench = with_adapters(&["fs"]);
    let (keys, adapter) = ([key(1, 1), key(2, 2)], AdapterId(0));
    for why in [StoreDrop::Evicted, StoreDrop::WriteBudget] {
        bench.tell(Fact::L2StoreDropped { adapter, keys: all(&keys), why }, &keys);
        let labels = [("l2_name", "fs"), ("why", why.label())];
        assert_eq!(bench.number("kvtide_l2_store_drops_total", &labels), 2.0);
    }
    let labels = [("during", "l2_store"), ("model_name", "m2"), ("reason", "not_found")];
    assert_eq!(bench.number("lmcache_mp_l1_read_failure_chunks_total", &labels), 1.0);
}

#[test]
fn only_what_was_evicted_counts_as_evicted_and_changed_bytes_are_told_apart() {
    let mut bench = with_adapters(&["fs"]);
    let (keys, adapter) = ([key(1, 1)], AdapterId(0));
    let causes = [
        L2Removal::Watermark,
        L2Removal::Pressure,
        L2Removal::Quota,
        L2Removal::Table,
        L2Removal::Digest,
        L2Removal::Lost,
        L2Removal::Operator,
    ];
    for why in causes {
        bench.tell(Fact::L2Removed { adapter, keys: all(&keys), why }, &keys);
        let labels = [("l2_name", "fs"), ("why", why.label())];
        assert_eq!(bench.number("kvtide_l2_removals_total", &labels), 1.0);
    }
    assert_eq!(bench.number("lmcache_mp_l2_evicted_objects_chunks_total", &[]), 4.0);
    assert_eq!(bench.number("kvtide_l2_digest_mismatches_total", &[("l2_name", "fs")]), 1.0);
}

/// Two adapters of one name: the peer shows one of them (spec/metrics §3.12).
#[test]
fn gauges_of_one_name_are_summed_and_those_of_an_adapter_that_left_are_zero() {
    let mut bench = with_adapters(&["fs", "mock", "fs"]);
    let adapter = |adapter, used_bytes, loads_in_flight| AdapterGauges {
        adapter,
        used_bytes,
        loads_in_flight,
        is_draining: adapter == 2,
        ..AdapterGauges::default()
    };
    bench.tell(of_adapters(&[adapter(0, 100, 0), adapter(1, 1, 0), adapter(2, 7, 3)]), &[]);
    let usage =
        |bench: &Bench, name| bench.number("lmcache_mp_l2_usage_bytes", &[("l2_name", name)]);
    assert_eq!((usage(&bench, "fs"), usage(&bench, "mock")), (107.0, 1.0));
    let loads = "lmcache_mp_num_inflight_l2_loads";
    let of_last = [("adapter_index", "2"), ("l2_name", "fs")];
    assert_eq!(bench.number(loads, &of_last), 3.0);
    let page = bench.sums.page();
    assert_eq!(
        page.family(loads).map(|family| family.series.len()),
        Some(1),
        "idle ones have none"
    );
    let active = [("l1_tag", "_default"), ("state", "active")];
    assert_eq!(bench.number("lmcache_mp_l2_store_adapters", &active), 2.0);
    assert_eq!(bench.number("lmcache_mp_l2_prefetch_adapters", &[("state", "draining")]), 1.0);

    bench.tell(of_adapters(&[adapter(1, 1, 0)]), &[]);
    assert_eq!((usage(&bench, "fs"), usage(&bench, "mock")), (0.0, 1.0));
    assert_eq!(bench.number(loads, &of_last), 0.0);
    assert_eq!(bench.number("kvtide_l2_used_bytes", &of_last), 0.0);
}

#[test]
fn an_adapter_is_in_one_state_and_one_without_a_name_is_asked_for() {
    let mut bench = with_adapters(&["fs"]);
    let adapter = AdapterId(0);
    for state in [AdapterState::Scanning, AdapterState::Tripped] {
        bench.tell(Fact::AdapterChanged { adapter, state }, &[]);
        let page = bench.sums.page();
        let family = page.family("kvtide_l2_adapter_state").expect("it was told");
        let ones = family.series.iter().filter(
            |(_, value)| matches!(value, page::SeriesValue::Number(value) if *value == 1.0),
        );
        let ones: Vec<_> = ones.map(|(labels, _)| labels[2].1.clone()).collect();
        assert_eq!(ones, [state.label()]);
        assert_eq!(family.series.len(), 5);
    }
    assert!(!bench.fold.names_are_missing());
    let (keys, took) = ([key(1, 1)], Duration::ZERO);
    let (adapter, end) = (AdapterId(4), L2LoadEnd::Io);
    bench.tell(Fact::L2LoadEnded { adapter, keys: all(&keys), end, took }, &keys);
    let unknown = [("l2_name", "_unknown")];
    assert_eq!(bench.number("lmcache_mp_l2_load_completed_requests_total", &unknown), 1.0);
    assert!(bench.fold.names_are_missing());
    bench.tell(Fact::AdapterNamed { adapter, name: "late".into() }, &[]);
    assert!(!bench.fold.names_are_missing());
}

#[test]
fn the_tables_of_a_full_fold_are_counted() {
    let bytes = Fold::memory_bytes_max();
    assert!(bytes > 10 << 20, "{bytes}");
    assert!(bytes < 128 << 20, "{bytes}");
}
