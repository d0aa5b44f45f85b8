//! Scenes of lower tiers.

use super::page::{Labels, ReadPage, assert_same, read};
use super::replay::replay;
use super::{Scene, pure_page, sdk_page};
use kvtide::telemetry::FactBatch;
use kvtide_core::fact::{AdapterGauges, Fact, Gauges};
use kvtide_core::names::AdapterId;
use serde_json::{Value, json};

/// Rows 12, 14, 19 and 22. The peer counts tasks, we count objects (docs/compatibility.md).
const BY_TASK: [&str; 4] = [
    "lmcache_mp_l2_store_submitted_requests_total",
    "lmcache_mp_l2_store_completed_requests_total",
    "lmcache_mp_l2_prefetch_load_submitted_requests_total",
    "lmcache_mp_l2_load_completed_requests_total",
];

/// All but what was told of an adapter without a name.
fn of_tiers(family: &str, labels: &Labels) -> bool {
    let is_named = family != BY_TASK[1] || labels.contains_key("l2_name");
    family.starts_with("lmcache_mp_l2_") && is_named
}

/// A load that brought nothing is no sample of how fast loads are.
fn is_speed_of_nothing(family: &str, labels: &Labels) -> bool {
    family == "lmcache_mp_l2_load_throughput_GB_per_second" && labels["l2_name"] != "fs"
}

#[test]
fn golden_04_l2_counters() {
    let mut scene = scene!("04_l2_counters");
    scene.check("04", |family, labels| {
        let by_task = BY_TASK.contains(&family);
        of_tiers(family, labels) && !by_task && !is_speed_of_nothing(family, labels)
    });
    // With one object to each task the numbers of tasks are those of objects.
    for event in scene.events["events"].as_array_mut().expect("a scene has events") {
        let tasks = tasks_of(&event["type"]);
        if let Some(salts) = event["metadata"].get_mut("key_count_per_salt") {
            let is_nothing = salts.as_object().is_some_and(|salts| salts.is_empty());
            *salts = if is_nothing { json!({}) } else { json!({ "": tasks }) };
        }
        if event["type"] == "l2.store.completed" {
            event["metadata"]["failed_count"] = json!(1);
        }
    }
    scene
        .check("04, tasks", |family, labels| BY_TASK.contains(&family) && of_tiers(family, labels));
}

/// Tasks that an event of scene 04 speaks of.
fn tasks_of(kind: &Value) -> u64 {
    if kind == "l2.prefetch.load.submitted" { 2 } else { 1 }
}

#[test]
fn golden_09_l2_throughput() {
    // What a load brought is not told in this scene.
    scene!("09_l2_throughput").check("09", |family, labels| {
        of_tiers(family, labels) && family != "lmcache_mp_l2_prefetch_load_completed_chunks_total"
    });
}

/// The peer shows the last of several adapters of one name; their sum is what a dashboard wants.
#[test]
fn golden_15_adapters_of_one_name_are_summed() {
    let scene = scene!("15_gauge_duplicates");
    let batches = replay(&scene.events, "_default");
    let is_usage = |family: &str, _: &Labels| family == "lmcache_mp_l2_usage_bytes";
    let mut theirs = scene.page.filtered(is_usage);
    let name = "lmcache_mp_l2_usage_bytes".to_string();
    let labels: Labels = [("l2_name".to_string(), "fs".to_string())].into();
    let last = theirs.samples.insert((name, labels), 107.0);
    assert_eq!(last, Some(7.0));
    for ours in [pure_page(&batches), sdk_page(&batches)] {
        assert_same(&ours.filtered(is_usage), &theirs, "15");
        assert!(!ours.types.contains_key("lmcache_mp_num_inflight_l2_stores"), "none is at work");
    }
}

#[test]
fn golden_14_usage_and_roster() {
    let scene = scene!("14_gauges");
    let batches = replay(&scene.events, "_default");
    let adapters = "lmcache_mp_l2_";
    for ours in [pure_page(&batches), sdk_page(&batches)] {
        let wanted = |family: &str, _: &Labels| family.starts_with(adapters);
        let (ours, theirs) = (ours.filtered(wanted), scene.page.filtered(wanted));
        assert_eq!(ours.types, theirs.types);
        assert!(ours.samples.keys().eq(theirs.samples.keys()), "{:?}", ours.samples.keys());
    }
}

/// A server with one adapter that has done nothing yet.
#[test]
fn golden_idle_with_an_adapter() {
    let theirs = include_str!("metrics/real_server_idle_l2fs.txt");
    let theirs = read(theirs, false).expect("the peer's page is a page");
    let adapter = AdapterId(0);
    let idle = AdapterGauges { capacity_bytes: 1 << 30, ..AdapterGauges::default() };
    let facts = vec![
        Fact::AdapterNamed { adapter, name: "fs".into() },
        Fact::Gauges(Box::new(Gauges { adapters: vec![idle], ..Gauges::default() })),
    ];
    let batches = [FactBatch { facts, ..FactBatch::default() }];
    let wanted = |family: &str, _: &Labels| {
        ["_l2_", "_l1_memory", "_l1_usage", "_l1_staging", "_active_prefetch", "_inflight_"]
            .iter()
            .any(|part| family.starts_with("lmcache_mp") && family.contains(part))
    };
    let theirs = theirs.filtered(wanted);
    assert!(theirs.samples.len() >= 9, "{:?}", theirs.samples);
    assert_same(&pure_page(&batches).filtered(wanted), &theirs, "idle");
    assert_same(&sdk_page(&batches).filtered(wanted), &theirs, "idle");
}

/// The peer's storage manager at work. Its events come with lengths in place of keys.
#[test]
fn golden_real_storage_run() {
    let scene = include_str!("metrics/real_storage_run.json");
    let mut scene: Value = serde_json::from_str(scene).expect("the scene is JSON");
    let events = scene["events"].as_array_mut().expect("a scene has events");
    // Its reads are told twice, of L1 and of the storage manager; ours are one fact.
    events.retain(|event| event["type"].as_str().is_some_and(|kind| !kind.starts_with("sm.read")));
    // A store of the peer's holds a lease on L1 and gives it back; ours says so with its end.
    let stored = events.iter().position(|event| event["type"] == "l2.keys.stored");
    events.remove(stored.expect("there was a store") + 1);
    for (at, event) in events.iter_mut().enumerate() {
        event["t"] = json!(1000 + at);
        let model = if event["type"] == "l1.allocation.failed" { "m2" } else { "m1" };
        for value in event["metadata"].as_object_mut().expect("it is a map").values_mut() {
            let text = value.as_str().expect("every value is described").to_string();
            *value = of_description(&text, model);
        }
    }
    let batches = replay(&scene, "_default");
    let theirs = include_str!("metrics/real_storage_run.txt");
    let theirs = read(theirs, false).expect("the peer's page is a page");
    let wanted = |family: &str, _: &Labels| {
        let counted = ["_l1_write_", "_l1_read_", "_l1_evicted_", "_l2_", "_allocation_"];
        let is_counted = counted.iter().any(|part| family.contains(part));
        // A lookup of two tenants, as the peer's second one here, is none of ours.
        let others = ["_usage_", "_adapters", "_prefetch_lookup_requests", "kvtide_"];
        let is_other = others.iter().any(|part| family.contains(part));
        is_counted && !is_other && !BY_TASK.contains(&family)
    };
    let without_times = |page: &ReadPage| {
        let mut page = page.filtered(wanted);
        page.samples.retain(|(name, _), _| !name.ends_with("_sum") && !name.ends_with("_bucket"));
        page
    };
    let theirs = without_times(&theirs);
    assert!(theirs.samples.len() > 12, "{:?}", theirs.samples);
    assert_same(&without_times(&pure_page(&batches)), &theirs, "the real run");
    assert_same(&without_times(&sdk_page(&batches)), &theirs, "the real run");
}

/// What a description such as `int:4` or `list[ObjectKey]x4` stands for.
fn of_description(text: &str, model: &str) -> Value {
    if let Some((_, count)) = text.split_once("]x") {
        let count: u32 = count.parse().expect("a length");
        let key = |number: u32| {
            json!({ "$key": {
                "chunk_hash": format!("{number:08x}"), "model_name": model, "kv_rank": 0,
                "object_group_id": 0, "cache_salt": "t-a",
            } })
        };
        return Value::Array((0..count).map(key).collect());
    }
    let (kind, value) = text.split_once(':').expect("a description names a type");
    match kind {
        "int" => json!(value.parse::<u64>().expect("a number")),
        "Counter" => {
            let inner = value.trim_start_matches("Counter(").trim_end_matches(')');
            serde_json::from_str(&inner.replace('\'', "\"")).expect("counts by salt")
        }
        "bool" => json!(value == "True"),
        _ => json!(value),
    }
}
