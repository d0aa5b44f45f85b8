//! Lower tiers in `/status`, under the peer's keys (spec/http-cli §2.2). What only we know of an
//! adapter stands under `kvtide` within its entry.

use super::status::ratio;
use crate::cli::values::policy_name;
use crate::tiers::files::status::TierStatus;
use crate::tiers::spec::{AdapterSpec, FaultSpec, Kind};
use kvtide_core::engine::Status;
use kvtide_core::engine::adapters::operator::AdapterStatus;
use kvtide_core::fact::AdapterState;
use serde_json::{Value, json};

/// A tier that has failed again and again is not used, and whoever watches is to know.
pub fn is_healthy(engine: &Status) -> bool {
    engine.adapters.iter().all(works)
}

pub fn store_controller(engine: &Status) -> Value {
    let sum = |count: fn(&AdapterStatus) -> u64| engine.adapters.iter().map(count).sum::<u64>();
    let mut shown = json!({
        "is_healthy": true,
        "thread_alive": true,
        "pending_keys_count": sum(|adapter| adapter.stores_waiting),
        "in_flight_task_count": sum(|adapter| adapter.stores_in_flight),
    });
    count_adapters(engine, &mut shown);
    shown
}

pub fn prefetch_controller(engine: &Status, in_flight_max: usize) -> Value {
    let prefetches = engine.prefetches;
    let mut shown = json!({
        "is_healthy": true,
        "thread_alive": true,
        "max_in_flight": in_flight_max,
        "submission_queue_size": 0,
        "pending_queue_size": prefetches.waiting,
        "in_flight_request_count": prefetches.asking + prefetches.loading,
        "lookup_phase_count": prefetches.asking,
        "load_phase_count": prefetches.loading,
        "completed_results_count": engine.active_prefetch_jobs,
    });
    count_adapters(engine, &mut shown);
    shown
}

pub fn eviction_controller(engine: &Status) -> Value {
    let adapters: Vec<Value> = engine.adapters.iter().map(eviction).collect();
    json!({ "is_healthy": true, "thread_alive": true, "adapters": adapters })
}

/// One entry of `l2_adapters`. The spec is missing for what joined while serving.
pub fn adapter(
    adapter: &AdapterStatus,
    spec: Option<&AdapterSpec>,
    tier: Option<&TierStatus>,
) -> Value {
    let mut shown = json!({ "is_healthy": works(adapter), "type": adapter.name });
    if let Some(spec) = spec {
        kind(&mut shown, adapter, spec);
    }
    shown["kvtide"] = own(adapter, tier);
    shown
}

/// The keys that the peer has for each type.
fn kind(shown: &mut Value, adapter: &AdapterStatus, spec: &AdapterSpec) {
    match &spec.kind {
        Kind::Files(files) => {
            shown["base_path"] = json!(files.base_path.display().to_string());
            shown["use_odirect"] = json!(files.use_odirect);
            if files.native {
                shown["type"] = json!("FSNativeL2Adapter");
                shown["num_workers"] = json!(files.num_workers);
                shown["read_ahead_size"] = json!(files.read_ahead_bytes);
                // Ours are cut to their length before they get their name.
                shown["pad_buffers_to_alignment"] = json!(false);
            } else {
                shown["type"] = json!("FSL2Adapter");
                shown["event_loop_alive"] = json!(true);
            }
        }
        Kind::Mock(_) => {
            shown["type"] = json!("MockL2Adapter");
            shown["stored_object_count"] = json!(adapter.objects);
            shown["locked_key_count"] = json!(adapter.loads_in_flight);
            shown["current_size_bytes"] = json!(adapter.used_bytes);
            shown["max_capacity_bytes"] = json!(adapter.capacity_bytes);
        }
        Kind::Faulty(fault) => {
            kind(shown, adapter, &fault.inner);
            shown["fault_inject"] = faults(fault);
        }
    }
}

fn faults(fault: &FaultSpec) -> Value {
    let share = |ppm: u32| ratio(ppm.into());
    let tails: Vec<f64> = fault.gap_tails_ppm.iter().map(|ppm| share(*ppm)).collect();
    json!({
        "rate": share(fault.lost_ppm),
        "seed": fault.seed,
        "gap_indices": fault.gap_indices,
        "gap_tail_ratios": tails,
        "latency_ms": fault.latency.as_millis() as u64,
        "hang_rate": share(fault.hang_ppm),
        "error_rate": share(fault.error_ppm),
        "torn_rate": share(fault.torn_ppm),
        "flip_rate": share(fault.flip_ppm),
    })
}

fn eviction(adapter: &AdapterStatus) -> Value {
    json!({
        "eviction_policy": policy_name(adapter.policy),
        "trigger_watermark": ratio(adapter.watermark_ppm),
        "eviction_ratio": ratio(adapter.ratio_ppm),
        "current_usage": usage(adapter),
        "total_bytes_used": adapter.used_bytes,
        "total_capacity_bytes": adapter.capacity_bytes,
        "num_cache_salt_buckets": adapter.tenants,
    })
}

fn own(adapter: &AdapterStatus, tier: Option<&TierStatus>) -> Value {
    let io = tier.map(|tier| {
        json!({
            "engine": tier.engine,
            "direct": tier.direct,
            "registered": tier.registered,
            "queue_depth": tier.queue_depth,
            "reason": tier.reason,
            "orders": tier.orders,
            "registered_direct_bytes": tier.registered_direct_bytes,
            "direct_bytes": tier.direct_bytes,
            "buffered_bytes": tier.buffered_bytes,
            "thread_bytes": tier.thread_bytes,
        })
    });
    json!({
        "adapter_index": adapter.id.0,
        "state": adapter.state.label(),
        "scanned": adapter.is_scanned,
        "asked_for_unknown_names": adapter.is_asked,
        "objects": adapter.objects,
        "objects_max": adapter.objects_max,
        "used_bytes": adapter.used_bytes,
        "capacity_bytes": adapter.capacity_bytes,
        "current_usage": usage(adapter),
        "stores_waiting": adapter.stores_waiting,
        "stores_in_flight": adapter.stores_in_flight,
        "loads_in_flight": adapter.loads_in_flight,
        "orders_in_flight": adapter.flights,
        "io": io,
    })
}

/// The peer's number for a tier without a size.
fn usage(adapter: &AdapterStatus) -> f64 {
    match adapter.capacity_bytes {
        0 => -1.0,
        capacity => adapter.used_bytes as f64 / capacity as f64,
    }
}

fn works(adapter: &AdapterStatus) -> bool {
    adapter.state != AdapterState::Tripped
}

fn count_adapters(engine: &Status, shown: &mut Value) {
    let all = engine.adapters.len();
    let drains = |adapter: &&AdapterStatus| adapter.state == AdapterState::Draining;
    let draining = engine.adapters.iter().filter(drains).count();
    shown["num_l2_adapters"] = json!(all);
    shown["num_active_adapters"] = json!(all - draining);
    shown["num_draining_adapters"] = json!(draining);
}
