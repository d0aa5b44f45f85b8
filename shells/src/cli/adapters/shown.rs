//! What an adapter's settings came to, for `GET /config`: the peer's names with the values in
//! force, and ours beside them.

use crate::cli::values::policy_name;
use crate::tiers::spec::{AdapterSpec, FaultSpec, FilesSpec, Kind};
use serde_json::{Map, Value, json};

pub fn adapter(spec: &AdapterSpec) -> Value {
    let mut shown = match &spec.kind {
        Kind::Files(files) => file_keys(files),
        Kind::Mock(mock) => object(json!({
            "max_size_gb": spec.capacity_bytes.map(gib),
            "mock_bandwidth_gb": gib(mock.bytes_per_second),
        })),
        Kind::Faulty(fault) => fault_keys(fault),
    };
    shown.extend(object(json!({
        "type": spec.name,
        "affinity_tag": "_default",
        "shared": spec.shared,
        "eviction_config": {
            "eviction_policy": policy_name(spec.eviction.policy),
            "trigger_watermark": share(spec.eviction.watermark_ppm),
            "eviction_ratio": share(spec.eviction.ratio_ppm),
        },
        // The peer's own spelling, which is Python's.
        "persist_config": format!(
            "PersistConfig(persist_enabled={})",
            if spec.persist_enabled { "True" } else { "False" }
        ),
        "serde_config": null,
        "exclusive": spec.exclusive,
        "max_capacity_gb": spec.capacity_bytes.map(gib),
        "max_objects": spec.objects_max,
        "queue_depth": spec.queue_depth,
        "probe_deadline_ms": spec.probe_deadline.as_millis() as u64,
        "load_deadline_ms": spec.load_deadline.as_millis() as u64,
        "store_deadline_ms": spec.store_deadline.as_millis() as u64,
        "store_on_second_touch": spec.on_second_touch,
        "write_mb_per_second": spec.write_bytes_per_second as f64 / MIB,
        "write_gb_per_day": gib(spec.write_bytes_per_day),
        "scrub_mb_per_second": spec.scrub_bytes_per_second as f64 / MIB,
        "verify": spec.verify,
    })));
    Value::Object(shown)
}

fn file_keys(files: &FilesSpec) -> Map<String, Value> {
    object(json!({
        "base_path": files.base_path.display().to_string(),
        "relative_tmp_dir": files.relative_tmp_dir.as_ref().map(|path| path.display().to_string()),
        "read_ahead_size": files.read_ahead_bytes,
        "use_odirect": files.use_odirect,
        "num_workers": files.num_workers,
        "sync": files.sync,
        "use_io_uring": !files.without_ring,
    }))
}

fn fault_keys(fault: &FaultSpec) -> Map<String, Value> {
    let tails: Vec<f64> = fault.gap_tails_ppm.iter().map(|ppm| share((*ppm).into())).collect();
    object(json!({
        "inner": adapter(&fault.inner),
        "rate": share(fault.lost_ppm.into()),
        "seed": fault.seed,
        "gap_indices": fault.gap_indices,
        "gap_tail_ratios": tails,
        "latency_ms": fault.latency.as_millis() as u64,
        "hang_rate": share(fault.hang_ppm.into()),
        "error_rate": share(fault.error_ppm.into()),
        "torn_rate": share(fault.torn_ppm.into()),
        "flip_rate": share(fault.flip_ppm.into()),
    }))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was just made as one"),
    }
}

fn share(ppm: u64) -> f64 {
    ppm as f64 / 1e6
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB
}

const MIB: f64 = (1 << 20) as f64;
const GIB: f64 = (1 << 30) as f64;
