//! The answer to `GET /config`: the whole resolved configuration under the peer's names
//! (spec/http-cli §2.2). Values that could be credentials are replaced, whoever put them there.

use super::adapters::shown;
use super::coordinator::Coordinator;
use super::flags::ServerFlags;
use super::values::spelling;
use crate::tiers::spec::AdapterSpec;
use kvtide_core::config::Config;
use serde_json::{Map, Value, json};

pub fn of(
    flags: &ServerFlags,
    (engine, adapters): (&Config, &[AdapterSpec]),
    fleet: &Coordinator,
    metrics: bool,
) -> Value {
    let mut document = json!({
        "mp": mp(flags, engine),
        "storage_manager": storage_manager(flags, engine, adapters),
        "observability": observability(flags, engine, metrics),
        "http": { "http_host": flags.http.http_host, "http_port": flags.http.http_port },
        "coordinator": coordinator(flags, fleet),
    });
    redact(&mut document);
    document
}

fn mp(flags: &ServerFlags, engine: &Config) -> Value {
    let ServerFlags { request, memory, others, .. } = flags;
    let extra: Value = serde_json::from_str(&others.runtime_plugin_config).unwrap_or_default();
    let locations: Vec<_> =
        others.runtime_plugin_locations.iter().map(|path| path.to_string_lossy()).collect();
    let modules: Vec<Value> =
        others.server_module.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
    json!({
        "transport": others.transport,
        "host": request.host,
        "port": request.port,
        "chunk_size": engine.chunk_size,
        "max_workers": others.max_workers,
        "max_gpu_workers": others.max_gpu_workers.unwrap_or(others.max_workers),
        "max_cpu_workers": others.max_cpu_workers.unwrap_or(others.max_workers),
        "grpc_server_workers": others.grpc_server_workers,
        "hash_algorithm": spelling(request.hash_algorithm),
        "engine_type": others.engine_type,
        "separate_object_groups": others.separate_object_groups,
        "enable_segmented_prefix": others.enable_segmented_prefix,
        "enable_dedup_content": others.enable_dedup_content,
        "enable_blend_reorder": others.enable_blend_reorder,
        "supported_transfer_mode": spelling(request.supported_transfer_mode),
        "isolated_ipc": memory.isolated_ipc,
        "runtime_plugin_config": { "locations": locations, "extra_config": extra },
        "p2p_config": p2p(flags),
        "shm_name": memory.shm_name.as_deref().unwrap_or_default(),
        "script_allowed_imports": others.script_allowed_imports,
        "run_script_api_enabled": false,
        "instance_id": engine.server_id,
        "worker_reap_timeout_seconds": request.worker_reap_timeout_seconds,
        "session_ttl_seconds": request.session_ttl_seconds,
        "worker_registration_grace_seconds": request.worker_registration_grace_seconds,
        "enable": others.enable,
        "kv_event_log_size": others.kv_event_log_size,
        "null_block_id": others.null_block_id,
        "server_modules": modules,
    })
}

fn p2p(flags: &ServerFlags) -> Value {
    let others = &flags.others;
    json!({
        "advertise_url": others.p2p_advertise_url.as_deref().unwrap_or_default(),
        "listen_url": others.p2p_listen_url.as_deref().unwrap_or_default(),
        "lookup_timeout": others.p2p_lookup_timeout.unwrap_or(30.0),
        "load_timeout": others.p2p_load_timeout.unwrap_or(30.0),
        "transfer_engine": others.p2p_transfer_engine.as_deref().unwrap_or("nixl"),
    })
}

fn storage_manager(flags: &ServerFlags, engine: &Config, adapters: &[AdapterSpec]) -> Value {
    let ServerFlags { tiers, others, observe, .. } = flags;
    let adapters: Vec<Value> = adapters.iter().map(shown::adapter).collect();
    let eviction = json!({
        "eviction_policy": spelling(flags.memory.eviction_policy),
        "trigger_watermark": flags.memory.eviction_trigger_watermark,
        "eviction_ratio": flags.memory.eviction_ratio,
        "extra_logging_enabled": observe.enable_extra_logging,
        "extra_logging_interval": observe.extra_logging_interval,
    });
    let huge = flags.memory.l1_use_hugepages;
    let lazy = !flags.memory.no_l1_use_lazy && !huge;
    let first = flags.memory.l1_init_size_gb.unwrap_or(20).saturating_mul(1 << 30);
    let l1 = json!({
        "memory_config": {
            "size_in_bytes": engine.l1_bytes,
            "use_lazy": lazy,
            "init_size_in_bytes": if lazy { engine.l1_bytes.min(first) } else { engine.l1_bytes },
            "align_bytes": engine.l1_align_bytes,
            "shm_name": flags.memory.shm_name.as_deref().unwrap_or_default(),
            "use_hugepages": huge,
            "devdax_path": null,
            "devdax_size_in_bytes": 0,
        },
        "gds_l1_config": null,
        "write_ttl_seconds": flags.memory.l1_write_ttl_seconds,
        "read_ttl_seconds": flags.memory.l1_read_ttl_seconds,
        "tag": "_default",
        "eviction": eviction,
    });
    json!({
        "l1_manager_config": l1,
        "eviction_config": eviction,
        "l2_adapter_config": { "adapters": adapters },
        "store_policy": spelling(tiers.l2_store_policy),
        "prefetch_policy": spelling(tiers.l2_prefetch_policy),
        "prefetch_max_in_flight": tiers.l2_prefetch_max_in_flight,
        "prefill_tokens_per_second": tiers.prefill_tokens_per_second,
        "periodic_notifier_interval_ms": others.periodic_notifier_interval_ms,
        "l1_manager_configs": [l1],
    })
}

fn observability(flags: &ServerFlags, engine: &Config, metrics: bool) -> Value {
    let ServerFlags { observe, others, http, .. } = flags;
    json!({
        "enabled": !observe.disable_observability,
        "max_queue_size": observe.event_bus_queue_size.unwrap_or(10_000),
        "metrics_enabled": metrics,
        "grpc_metrics_enabled": false,
        "logging_enabled": !observe.disable_logging,
        "tracing_enabled": false,
        "otlp_endpoint": null,
        "prometheus_port": http.prometheus_port.unwrap_or(9090),
        "metrics_sample_rate": observe.metrics_sample_rate,
        "lookup_hash_log": {
            "output_dir": others.lookup_hash_log_dir,
            "rotation_interval_sec": others.lookup_hash_log_rotation_interval,
            "rotation_max_size": others.lookup_hash_log_rotation_max_size,
            "max_files": others.lookup_hash_log_max_files,
        },
        "gc_monitor": {
            "enabled": false,
            "min_pause_ms": others.gc_monitor_min_pause_ms,
            "top_objects": others.gc_monitor_top_objects,
        },
        "extra_logging_enabled": observe.enable_extra_logging,
        "extra_logging_interval": observe.extra_logging_interval,
        "trace_level": null,
        "trace_output": null,
        "service_instance_id": engine.server_id,
    })
}

fn coordinator(flags: &ServerFlags, fleet: &Coordinator) -> Value {
    let others = &flags.others;
    json!({
        "url": "",
        "advertise_ip": fleet.advertise_ip,
        "heartbeat_interval": fleet.heartbeat_seconds,
        "event_reporting": fleet.event_reporting,
        "event_flush_interval": fleet.event_flush_seconds,
        "event_sink_config": {},
        "blend_timeout": others.coordinator_blend_timeout,
        "blend_match_concurrency": others.coordinator_blend_match_concurrency,
    })
}

/// Replaces every value whose key sounds like a credential, at any depth.
fn redact(value: &mut Value) {
    match value {
        Value::Object(map) => redact_map(map),
        Value::Array(values) => values.iter_mut().for_each(redact),
        _ => {}
    }
}

fn redact_map(map: &mut Map<String, Value>) {
    for (key, value) in map {
        let key = key.to_ascii_lowercase();
        if SECRETS.iter().any(|secret| key.contains(secret)) && !value.is_null() {
            *value = json!("(not shown)");
        } else {
            redact(value);
        }
    }
}

const SECRETS: &[&str] =
    &["password", "passwd", "secret", "token", "credential", "access_key", "api_key", "username"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown_at_any_depth() {
        let mut value = json!({
            "url": "x",
            "extra": [{ "AWS_SECRET_ACCESS_KEY": "s", "deep": { "Password": "p", "port": 1 } }],
            "token": null,
        });
        redact(&mut value);
        let expected = json!({
            "url": "x",
            "extra": [{
                "AWS_SECRET_ACCESS_KEY": "(not shown)",
                "deep": { "Password": "(not shown)", "port": 1 },
            }],
            "token": null,
        });
        assert_eq!(value, expected);
    }
}
