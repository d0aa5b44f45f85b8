//! Our pages against the peer's own (spec/metrics §10): its events are told as our facts, once to
//! the pure aggregator and once to the SDK and our encoder. Only rows that this server serves are
//! compared; each scene says which.

// Above the modules that use it.
macro_rules! scene {
    ($name:literal) => {
        Scene::load(
            include_str!(concat!("metrics/", $name, ".json")),
            include_str!(concat!("metrics/", $name, ".txt")),
        )
    };
}

#[path = "metrics_page.rs"]
mod page;
#[path = "metrics_random.rs"]
mod random;
#[path = "metrics_replay.rs"]
mod replay;
#[path = "metrics_rows.rs"]
mod rows;
#[path = "metrics_tiers.rs"]
mod tiers;

use kvtide::telemetry::{BusGauges, FactBatch, Telemetry, TelemetryConfig};
use kvtide_core::metrics::aggregate::Aggregate;
use kvtide_core::metrics::{Fold, FoldConfig, SampleRate};
use page::{Labels, ReadPage, assert_same, read};
use replay::{CHUNK_SIZE, replay};

const FOLD: FoldConfig =
    FoldConfig { chunk_size: CHUNK_SIZE, sample_rate: SampleRate::ALL, seed: 7 };

fn telemetry() -> Telemetry {
    Telemetry::new(TelemetryConfig { fold: FOLD, instance_id: "golden-instance".into() })
}

/// The page of the SDK and our encoder, read strictly.
fn sdk_page(batches: &[FactBatch]) -> ReadPage {
    let mut telemetry = telemetry();
    batches.iter().for_each(|batch| telemetry.take(batch));
    read(&telemetry.page(BusGauges::default()), true).expect("our page is a page")
}

/// The page of the pure aggregator, read strictly.
fn pure_page(batches: &[FactBatch]) -> ReadPage {
    let mut fold = Fold::new(FOLD);
    let mut sums = Aggregate::default();
    for batch in batches {
        for fact in &batch.facts {
            let mut measurements = Vec::new();
            fold.fold(batch.at, fact, &batch.keys, &mut measurements);
            measurements.iter().for_each(|one| sums.record(one));
        }
    }
    match sums.page().render().as_str() {
        "" => ReadPage::default(),
        text => read(text, true).expect("our page is a page"),
    }
}

struct Scene {
    events: serde_json::Value,
    page: ReadPage,
}

impl Scene {
    fn load(events: &str, page: &str) -> Scene {
        Scene {
            events: serde_json::from_str(events).expect("the scene is JSON"),
            page: read(page, false).expect("the peer's page is a page"),
        }
    }

    /// Compares what `wanted` wants of both our pages with the peer's.
    fn check(&self, what: &str, wanted: impl Fn(&str, &Labels) -> bool) {
        let batches = replay(&self.events, "_default");
        let theirs = self.page.filtered(&wanted);
        assert!(!theirs.samples.is_empty(), "{what} compares something");
        assert_same(&pure_page(&batches).filtered(&wanted), &theirs, what);
        assert_same(&sdk_page(&batches).filtered(&wanted), &theirs, what);
    }
}

/// Rows 1 to 9.
const L1_FAMILIES: [&str; 9] = [
    "lmcache_mp_l1_read_chunks_total",
    "lmcache_mp_l1_write_chunks_total",
    "lmcache_mp_l1_evicted_chunks_total",
    "lmcache_mp_l1_eviction_loop_ticks_total",
    "lmcache_mp_l1_eviction_loop_triggered_total",
    "lmcache_mp_l1_chunk_lifetime_seconds",
    "lmcache_mp_l1_chunk_idle_before_evict_seconds",
    "lmcache_mp_l1_chunk_reuse_gap_seconds",
    "lmcache_mp_l1_chunk_evict_reuse_gap_seconds",
];

/// Rows 1 to 9 of the L1 that bears `tag`. Rows 4 and 5 bear none.
fn of_l1(tag: &str) -> impl Fn(&str, &Labels) -> bool {
    move |family, labels| {
        let without = family.contains("_eviction_loop_");
        L1_FAMILIES.contains(&family)
            && (without || labels.get("l1_tag").is_some_and(|own| own == tag))
    }
}

#[test]
fn golden_00_idle() {
    let scene = scene!("00_no_events");
    let ours = sdk_page(&replay(&scene.events, "_default"));
    let plain = |page: &ReadPage| {
        // Process series are not in the goldens, and the SDK names itself.
        let mut page = page.filtered(|family, _| !family.starts_with("process_"));
        page.samples = page
            .samples
            .into_iter()
            .map(|((name, mut labels), value)| {
                labels.retain(|label, _| !label.starts_with("telemetry_sdk_"));
                ((name, labels), value)
            })
            .collect();
        page
    };
    assert_same(&plain(&ours), &plain(&scene.page), "00");
}

#[test]
fn golden_01_l1_counters() {
    scene!("01_l1_counters").check("01", of_l1("_default"));
}

#[test]
fn golden_02_l1_lifecycle() {
    let scene = scene!("02_l1_lifecycle");
    scene.check("02", of_l1("_default"));

    // The peer's second L1 in this scene: a server of its own for us, under the peer's name for it.
    let mut ours = pure_page(&replay(&scene.events, "fast"));
    ours.samples = ours
        .samples
        .into_iter()
        .map(|((name, mut labels), value)| {
            labels.entry("l1_tag".into()).and_modify(|tag| *tag = "fast".into());
            ((name, labels), value)
        })
        .collect();
    let wanted = of_l1("fast");
    assert_same(&ours.filtered(&wanted), &scene.page.filtered(&wanted), "02, the second L1");
}

#[test]
fn golden_03_reuse() {
    scene!("03_sm_reuse").check("03", |family, _| family.contains("_real_reuse_gap"));
}

#[test]
fn golden_05_failures() {
    scene!("05_failures").check("05", |family, labels| {
        match family {
            "lmcache_mp_l1_allocation_failure_chunks_total" => true,
            "lmcache_mp_l1_read_failure_chunks_total" => labels["during"] == "l1_retrieve",
            // An object that becomes resident meanwhile is a hit of ours.
            "lmcache_mp_l2_prefetch_failure_chunks_total" => labels["reason"] != "l1_contended",
            _ => false,
        }
    });
}

#[test]
fn golden_06_lookup() {
    let scene = scene!("06_lookup");
    // A lookup without names is an older client's event, not one of ours.
    scene.check("06", |family, labels| {
        family.starts_with("lmcache_mp_lookup") && labels.contains_key("model_name")
    });
}

/// Rows 29 to 31.
fn of_blocks(family: &str) -> bool {
    family.starts_with("lmcache_mp_l0_block_")
}

/// Rows 32 to 37 and 40. Every transfer of ours has a device.
fn of_transfers(family: &str, labels: &Labels) -> bool {
    let counted = [
        "lmcache_mp_num_submitted_stores_total",
        "lmcache_mp_num_finished_stores_total",
        "lmcache_mp_num_submitted_retrieves_total",
        "lmcache_mp_num_finished_retrieves_total",
    ];
    match family {
        "lmcache_mp_l0_l1_store_throughput_GB_per_second"
        | "lmcache_mp_l0_l1_load_throughput_GB_per_second"
        | "lmcache_mp_num_chunks_loaded_total" => true,
        family => counted.contains(&family) && labels.contains_key("device"),
    }
}

#[test]
fn golden_07_blocks_of_engines() {
    scene!("07_l0_lifecycle").check("07", |family, _| of_blocks(family));
}

#[test]
fn golden_08_transfers() {
    scene!("08_transfers").check("08", of_transfers);
}

/// Everything at once; the rows of the scenes above that no other one of them moves.
#[test]
fn golden_99_all() {
    scene!("99_all")
        .check("99", |family, labels| of_blocks(family) || of_transfers(family, labels));
}

#[test]
fn golden_14_gauges() {
    scene!("14_gauges").check("14", |family, _| {
        [
            "lmcache_mp_active_prefetch_jobs",
            "lmcache_mp_l1_memory_usage_bytes",
            "lmcache_mp_l1_usage_ratio",
            "lmcache_mp_l1_staging_bytes",
            "lmcache_mp_num_inflight_l2_stores",
            "lmcache_mp_num_inflight_l2_loads",
            "lmcache_mp_inflight_load_memory_usage_bytes",
        ]
        .contains(&family)
    });
}
