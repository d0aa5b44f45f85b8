//! `GET /status` under the peer's keys (spec/http-cli §2.2): its command line and viewers read them
//! by name. What the peer's threads would report is constant here, as there are no such threads;
//! what only we know stands under `kvtide`.

use super::reach::{ReactorSeen, Seen};
use super::{formats, tiers};
use crate::cli::values::policy_name;
use crate::tiers::files::status::TierStatus;
use crate::tiers::spec::AdapterSpec;
use crate::version;
use kvtide_core::config::{Config, HashAlgorithm, PoolKind, TransferModes};
use kvtide_core::engine::Status;
use kvtide_core::engine::adapters::operator::AdapterStatus;
use kvtide_core::engine::clients::Mode;
use kvtide_core::engine::status::{InstanceStatus, RefusedRegistration};
use kvtide_core::names::{AdapterId, InstanceId};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// What `/status` says beside the state: the configuration, as far as it is shown.
#[derive(Clone, Debug)]
pub struct View {
    config: Config,
    /// By the number that each got.
    adapters: Vec<AdapterSpec>,
}

impl View {
    pub fn new(config: Config, adapters: Vec<AdapterSpec>) -> View {
        View { config, adapters }
    }

    /// Whether the operator has said that other servers see the same objects (`shared`).
    pub fn is_shared(&self, adapter: AdapterId) -> bool {
        self.adapters.get(usize::from(adapter.0)).is_some_and(|spec| spec.shared)
    }

    /// Whether no engine's memory is ever known.
    pub fn is_engine_driven(&self) -> bool {
        self.config.transfer_modes == TransferModes::EngineDriven
    }

    pub fn document(&self, seen: &Seen) -> Value {
        let engine = &seen.engine;
        let mut document = json!({
            "is_healthy": tiers::is_healthy(engine),
            "engine_type": "MPCacheServer",
            "chunk_size": self.config.chunk_size,
            "hash_algorithm": self.hash_algorithm(),
            "active_sessions": engine.sessions,
            "storage_manager": self.storage_manager(seen),
            "active_prefetch_jobs": engine.active_prefetch_jobs,
            "active_p2p_lookup_jobs": 0,
            "p2p_enabled": false,
            "p2p_state": "unregistered",
            "p2p_peer_count": 0,
            "p2p_peers": [],
            "worker_liveness": {
                "enabled": !self.config.reap_after.is_zero(),
                "reap_timeout_seconds": self.config.reap_after.as_secs_f64(),
                "registration_grace_seconds": self.config.registration_grace.as_secs_f64(),
                "tracked_instances": engine.instances.len(),
            },
            "kv_events": self.kv_events(),
        });
        let map = document.as_object_mut().expect("it was just made as one");
        let instances = engine.instances.iter();
        // A family that is not served omits its keys, as the peer's does.
        if !self.is_engine_driven() {
            let meta = instances
                .clone()
                .filter_map(|each| Some((each.id, formats::context(each, each.pages.as_ref()?))));
            insert_family(map, ["registered_gpu_ids", "cache_context_meta"], meta);
        }
        if self.config.transfer_modes != TransferModes::ServerDriven {
            let meta = instances.filter(|each| each.pages.is_none());
            let meta = meta.map(|each| (each.id, instance(each)));
            let keys = ["registered_non_cuda_instance_ids", "non_cuda_context_meta"];
            insert_family(map, keys, meta);
        }
        map.insert("kvtide".to_owned(), self.own(seen));
        document
    }

    fn storage_manager(&self, seen: &Seen) -> Value {
        let engine = &seen.engine;
        let l1 = self.l1_manager(engine);
        let eviction = self.eviction_controller();
        let store = tiers::store_controller(engine);
        let adapters: Vec<Value> =
            engine.adapters.iter().map(|adapter| self.adapter(adapter, &seen.tiers)).collect();
        json!({
            "is_healthy": tiers::is_healthy(engine),
            "l1_managers": { "_default": l1 },
            "store_controllers": { "_default": store },
            "l1_eviction_controllers": { "_default": eviction },
            "prefetch_controller": tiers::prefetch_controller(engine, self.config.prefetch_max),
            "l2_eviction_controller": tiers::eviction_controller(engine),
            "l2_adapters": adapters,
            "num_l2_adapters": engine.adapters.len(),
            "l1_usage": [engine.used_bytes, engine.total_bytes],
            "l1_capacity_bytes_by_backend": { "dram": engine.configured_bytes },
            "l1_manager": l1,
            "store_controller": store,
            "l1_eviction_controller": eviction,
            // Where the peer's command line looks for the policy, in vain with the peer.
            "eviction_controller": eviction,
        })
    }

    fn adapter(&self, adapter: &AdapterStatus, tiers: &[Option<TierStatus>]) -> Value {
        let at = usize::from(adapter.id.0);
        let tier = tiers.get(at).and_then(Option::as_ref);
        tiers::adapter(adapter, self.adapters.get(at), tier)
    }

    fn l1_manager(&self, engine: &Status) -> Value {
        let ratio = match engine.total_bytes {
            0 => 0.0,
            total => engine.used_bytes as f64 / total as f64,
        };
        json!({
            "is_healthy": true,
            "total_object_count": engine.objects,
            "write_locked_count": engine.staged_objects,
            "read_locked_count": engine.leased_objects,
            "temporary_count": 0,
            "staging_object_count": engine.staged_objects,
            "staging_bytes": engine.staged_bytes,
            "memory_used_bytes": engine.used_bytes,
            "memory_total_bytes": engine.total_bytes,
            "memory_configured_bytes": engine.configured_bytes,
            "capacity_bytes_by_backend": { "dram": engine.configured_bytes },
            "memory_usage_ratio": ratio,
            "write_ttl_seconds": self.config.write_ttl.as_secs(),
            "read_ttl_seconds": self.config.read_ttl.as_secs(),
        })
    }

    fn eviction_controller(&self) -> Value {
        json!({
            "is_healthy": true,
            "thread_alive": true,
            "eviction_policy": policy_name(self.config.policy),
            "trigger_watermark": ratio(self.config.watermark_ppm),
            "eviction_ratio": ratio(self.config.ratio_ppm),
        })
    }

    /// Not served yet: subscribers are told so at once.
    fn kv_events(&self) -> Value {
        json!({
            "enabled": false,
            "incarnation": self.config.incarnation,
            "log_depth": 0,
            "log_capacity": 0,
            "next_seq": 1,
            "lost_markers": 0,
            "unbound_stores": 0,
            "subscribers": 0,
        })
    }

    fn hash_algorithm(&self) -> &'static str {
        match self.config.hash_algorithm {
            HashAlgorithm::Blake3 => "blake3",
            HashAlgorithm::Sha256Cbor => "sha256_cbor",
        }
    }

    fn own(&self, seen: &Seen) -> Value {
        let Seen { engine, reactor, .. } = seen;
        let modes: Map<String, Value> = engine.instances.iter().map(transfer).collect();
        let refusals: Vec<Value> =
            engine.refused_registrations.iter().map(|refused| self.refusal(refused)).collect();
        json!({
            "version": version::KVTIDE,
            "instance_id": self.config.server_id,
            "pool": self.pool(engine, reactor),
            "bytes": {
                "resident": engine.resident_bytes,
                "staged": engine.staged_bytes,
                "leased": engine.leased_bytes,
                "condemned": engine.condemned_bytes,
                "lent": engine.lent_bytes,
                "lent_max": engine.lent_bytes_max,
            },
            "condemned_objects": engine.condemned_objects,
            "evicted_objects": engine.evicted_objects,
            "lease_units": engine.lease_units,
            "tickets": engine.tickets,
            "jobs": engine.jobs,
            "parked_waits": engine.parked_waits,
            "stale_endings": engine.stale_endings,
            "instances": modes,
            "refused_registrations": {
                "total": engine.refused_registrations_total,
                "last": refusals,
            },
            "reactor": own_reactor(reactor),
        })
    }

    fn pool(&self, engine: &Status, reactor: &ReactorSeen) -> Value {
        let kind = match self.config.pool {
            PoolKind::Shared => "shared",
            PoolKind::Private => "private",
        };
        json!({
            "kind": kind,
            "name": reactor.pool_name,
            "configured_bytes": engine.configured_bytes,
            "usable_bytes": reactor.usable_bytes,
            "waits_for_memory": reactor.pool_waits,
            "name_removed": reactor.pool_is_unnamed,
        })
    }

    fn refusal(&self, refused: &RefusedRegistration) -> Value {
        let wall = Duration::from_nanos(self.config.wall_nanos.saturating_add(refused.at.0));
        json!({
            "time": wall.as_secs_f64(),
            "instance_id": refused.instance.0,
            "model_name": refused.model,
            "reason": refused.reason.label(),
            "text": refused.reason.to_string(),
        })
    }
}

/// The instances of one way of transfer: their ids, and what is told of each.
fn insert_family(
    map: &mut Map<String, Value>,
    [ids_key, meta_key]: [&str; 2],
    family: impl Iterator<Item = (InstanceId, Value)>,
) {
    let (mut ids, mut meta) = (Vec::new(), Map::new());
    for (id, shown) in family {
        ids.push(id.0);
        meta.insert(id.0.to_string(), shown);
    }
    map.insert(ids_key.to_owned(), json!(ids));
    map.insert(meta_key.to_owned(), json!(meta));
}

fn instance(instance: &InstanceStatus) -> Value {
    json!({
        "model_name": instance.model,
        "world_size": instance.world_size,
        "block_size": instance.block_size,
        "use_mla": instance.layout.planes == 1,
    })
}

fn transfer(instance: &InstanceStatus) -> (String, Value) {
    let mode = match instance.mode {
        Mode::Unknown => "unknown",
        Mode::SharedMemory => "shared_memory",
        Mode::Inline => "inline",
        Mode::ServerDriven => "server_driven",
    };
    let shown = json!({
        "transfer": mode,
        "pinged": instance.pinged,
        "silent_seconds": instance.silent_for.as_secs_f64(),
        "dtype": instance.layout.dtype.name(),
        "bytes_per_chunk": instance.layout.bytes(),
    });
    (instance.id.0.to_string(), shown)
}

pub(super) fn ratio(parts_per_million: u64) -> f64 {
    parts_per_million as f64 / 1e6
}

fn own_reactor(reactor: &ReactorSeen) -> Value {
    let named = |counts: &[(&'static str, u64)]| -> Map<String, Value> {
        counts.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect()
    };
    let turns = reactor.turns_by_duration.iter().enumerate().filter(|(_, turns)| **turns > 0);
    let turns: Vec<Value> = turns
        .map(|(at, turns)| json!({ "below_nanoseconds": 2_u64 << at, "turns": turns }))
        .collect();
    json!({
        "connections": reactor.connections,
        "requests": reactor.requests,
        "stopping": reactor.stopping,
        "stalls": reactor.stalls,
        "turns": reactor.turns,
        "longest_turn_seconds": reactor.longest_turn.as_secs_f64(),
        "longest_turn_event": reactor.longest_event,
        "turns_by_duration": turns,
        "medium_frame_bytes_left": reactor.medium_frame_bytes_left,
        "large_frame_bytes_left": reactor.large_frame_bytes_left,
        "buffered_bytes": reactor.buffered_bytes,
        "totals": named(&reactor.totals),
        "closed_by_us": named(&reactor.closings),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reactors_counters_are_shown_by_name() {
        let reactor = ReactorSeen {
            totals: vec![("accepted", 3), ("answers_dropped", 2)],
            closings: vec![("protocol", 1)],
            turns_by_duration: vec![0, 0, 5, 0],
            large_frame_bytes_left: 9,
            ..ReactorSeen::default()
        };
        let shown = own_reactor(&reactor);
        assert_eq!(shown["totals"], json!({ "accepted": 3, "answers_dropped": 2 }));
        assert_eq!(shown["closed_by_us"], json!({ "protocol": 1 }));
        assert_eq!(shown["turns_by_duration"], json!([{ "below_nanoseconds": 8, "turns": 5 }]));
        assert_eq!(shown["large_frame_bytes_left"], 9);
    }
}
