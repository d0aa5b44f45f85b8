//! The peer's recorded events, told as our facts. What we have no fact for is left out, and the
//! comparison leaves out what it moved.

use kvtide::telemetry::FactBatch;
use kvtide_core::fact::{
    EarlyExit, Fact, FactKey, Gauges, KeyRange, LeaseEnd, LookupStop, NoRoom, PrefetchFailure,
    ReadFailure, Removal,
};
use kvtide_core::names::{ChunkHash, ScopeId, TenantId};
use kvtide_core::time::Instant;
use serde_json::Value;
use std::collections::BTreeMap;

pub const CHUNK_SIZE: u32 = 256;

#[path = "metrics_replay_engines.rs"]
mod engines;
#[path = "metrics_replay_tiers.rs"]
mod tiers;

/// Interns the names of a scene and collects its facts.
#[derive(Default)]
pub struct Replay {
    tenants: BTreeMap<(String, String), TenantId>,
    scopes: BTreeMap<(TenantId, u64, u64), ScopeId>,
    batches: Vec<FactBatch>,
    tasks: tiers::Tasks,
    engines: engines::Engines,
}

/// The facts of a scene, of the L1 that bears `tag`. Events without a tag belong to every L1.
pub fn replay(scene: &Value, tag: &str) -> Vec<FactBatch> {
    let mut replay = Replay::default();
    for event in scene["events"].as_array().expect("a scene has events") {
        let is_l1 = event["type"].as_str().is_some_and(|kind| {
            ["l1.write", "l1.read.finished", "l1.keys"].iter().any(|l1| kind.starts_with(l1))
        });
        if !is_l1 || event["metadata"]["l1_tag"] == tag {
            replay.event(event);
        }
    }
    replay.loaded(&Value::Null);
    if let Some(gauges) = scene.get("gauges") {
        replay.gauges(gauges);
    }
    replay.batches
}

impl Replay {
    fn event(&mut self, event: &Value) {
        let seconds = event["t"].as_f64().expect("an event has a time");
        let mut batch = FactBatch { at: Instant((seconds * 1e9) as u64), ..FactBatch::default() };
        let metadata = &event["metadata"];
        let fact = match event["type"].as_str().expect("an event has a type") {
            "l1.write.finished" | "l1.write_finished_and_read_reserved" => {
                Fact::WriteFinished { keys: self.keys(&metadata["keys"], &mut batch) }
            }
            "l1.read.finished" => {
                let keys = self.keys(&metadata["keys"], &mut batch);
                Fact::ReadFinished { keys, why: LeaseEnd::Retrieved }
            }
            "l1.keys.evicted" => {
                let keys = self.keys(&metadata["keys"], &mut batch);
                Fact::Evicted { keys, why: Removal::Watermark }
            }
            "l1.eviction.loop_tick" => Fact::EvictionTick {
                used_bytes: 0,
                total_bytes: 0,
                triggered: metadata["triggered"].as_bool().unwrap_or(false),
            },
            "l1.allocation.failed" => {
                let keys = self.keys(&metadata["keys"], &mut batch);
                Fact::WriteRefused { keys, why: NoRoom::Held }
            }
            "l1.read.failed" if metadata["during"] == "l1_retrieve" => {
                assert_eq!(metadata["reason"], "not_found", "the only reason we share");
                let keys = self.keys(&metadata["keys"], &mut batch);
                Fact::ReadFailed { keys, why: ReadFailure::NotFound }
            }
            "sm.write.finished" => {
                let stored = self.keys(&metadata["succeeded_keys"], &mut batch);
                Fact::StoreFinished { stored, failed: 0 }
            }
            "sm.read.prefetched_finished" => {
                let keys = self.keys(&metadata["succeeded_keys"], &mut batch);
                Fact::ReadFinished { keys, why: LeaseEnd::Retrieved }
            }
            "mp.lookup_prefetch.end" if metadata.get("model_name").is_some() => {
                self.lookup(metadata, &mut batch)
            }
            "l2.prefetch.failed" if metadata["reason"] != "l1_contended" => {
                let keys = self.keys(&metadata["keys"], &mut batch);
                let why = match metadata["reason"].as_str() {
                    Some("l1_oom") => PrefetchFailure::L1Oom,
                    Some("not_found") => PrefetchFailure::NotFound,
                    other => panic!("a reason that we do not know: {other:?}"),
                };
                Fact::L2PrefetchFailed { keys, why }
            }
            kind if kind.starts_with("mp.") => return self.engine_event(event, batch),
            _ => return self.tier_event(event, batch),
        };
        batch.facts.push(fact);
        self.batches.push(batch);
    }

    fn lookup(&mut self, metadata: &Value, batch: &mut FactBatch) -> Fact {
        let text = |name: &str| metadata[name].as_str().expect("it is a text").to_string();
        let number = |name: &str| metadata[name].as_u64().expect("it is a number") as u32;
        let (model, salt) = (text("model_name"), text("cache_salt"));
        let why = match text("early_exit_reason").as_str() {
            "" => {
                return Fact::LookupTaken {
                    tenant: self.tenant(&model, &salt, batch),
                    requested_chunks: number("requested_tokens") / CHUNK_SIZE,
                    hit_chunks: number("hit_tokens") / CHUNK_SIZE,
                    l1_hit_chunks: number("l1_hit_tokens") / CHUNK_SIZE,
                    hit_keys: number("l1_hit_keys") + number("l2_hit_keys"),
                    l1_hit_keys: number("l1_hit_keys"),
                    stop: LookupStop::Absent,
                };
            }
            "no_gpu_context" => EarlyExit::NoGpuContext,
            "empty_chunk_hashes" => EarlyExit::EmptyChunkHashes,
            other => panic!("an early exit that we do not know: {other}"),
        };
        Fact::LookupSkipped { model: model.into(), salt: salt.into(), why }
    }

    fn keys(&mut self, list: &Value, batch: &mut FactBatch) -> KeyRange {
        let start = batch.keys.len() as u32;
        for key in list.as_array().expect("keys are a list") {
            let key = &key["$key"];
            let text = |name: &str| key[name].as_str().expect("it is a text").to_string();
            let number = |name: &str| key[name].as_u64().expect("it is a number");
            let tenant = self.tenant(&text("model_name"), &text("cache_salt"), batch);
            let next = ScopeId(self.scopes.len() as u32);
            let scope = (tenant, number("kv_rank"), number("object_group_id"));
            let scope = *self.scopes.entry(scope).or_insert(next);
            // The goldens' hashes are four bytes, written as hexadecimal digits.
            let mut hash = [0; 32];
            let digits = text("chunk_hash");
            hash[..digits.len()].copy_from_slice(digits.as_bytes());
            batch.keys.push(FactKey { hash: ChunkHash(hash), bytes: 1, scope, tenant });
        }
        KeyRange { start, end: batch.keys.len() as u32 }
    }

    fn tenant(&mut self, model: &str, salt: &str, batch: &mut FactBatch) -> TenantId {
        let names = (model.to_string(), salt.to_string());
        if let Some(tenant) = self.tenants.get(&names) {
            return *tenant;
        }
        let tenant = TenantId(self.tenants.len() as u32);
        let named = Fact::TenantNamed { tenant, model: model.into(), salt: salt.into() };
        batch.facts.push(named);
        self.tenants.insert(names, tenant);
        tenant
    }

    fn gauges(&mut self, list: &Value) {
        let value = |name: &str| {
            let gauge = list.as_array().expect("gauges are a list");
            let gauge = gauge.iter().find(|gauge| gauge["name"] == name)?;
            match &gauge["value"] {
                Value::Array(samples) => samples[0][0].as_f64(),
                plain => plain.as_f64(),
            }
        };
        let value = |name| value(name).unwrap_or(0.0);
        let used = value("lmcache_mp.l1_memory_usage_bytes");
        let gauges = Gauges {
            l1_used_bytes: used as u64,
            l1_total_bytes: (used / value("lmcache_mp.l1_usage_ratio")) as u64,
            l1_staging_bytes: value("lmcache_mp.l1_staging_bytes") as u64,
            active_prefetch_jobs: value("lmcache_mp.active_prefetch_jobs") as u64,
            ..Gauges::default()
        };
        let (mut facts, adapters) = tiers::adapters(list);
        facts.push(Fact::Gauges(Box::new(Gauges { adapters, ..gauges })));
        self.batches.push(FactBatch { facts, ..FactBatch::default() });
    }
}
