//! The peer's events of lower tiers, told as our facts. A task of the peer, with all of its keys,
//! is one fact; what it counts by task we count by object.

use super::Replay;
use kvtide::telemetry::FactBatch;
use kvtide_core::fact::{AdapterGauges, Fact, FactKey, KeyRange, L2LoadEnd, L2Removal, L2StoreEnd};
use kvtide_core::names::{AdapterId, ChunkHash, ScopeId};
use kvtide_core::time::Instant;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What was submitted and has not ended, by adapter and by task or request.
#[derive(Default)]
pub struct Tasks {
    stores: BTreeMap<(u64, u64), (Instant, u64)>,
    loads: BTreeMap<(u64, u64), (Instant, u64)>,
    /// The load that has just ended: the event after it says what came of it.
    ended: Option<Ended>,
    named: BTreeMap<AdapterId, String>,
    keys: u64,
}

struct Ended {
    adapter: AdapterId,
    at: Instant,
    submitted: (Instant, u64),
}

impl Replay {
    pub(super) fn tier_event(&mut self, event: &Value, mut batch: FactBatch) {
        let metadata = &event["metadata"];
        let number = |name: &str| metadata[name].as_u64();
        let task = number("adapter_index").zip(number("task_id"));
        let load = number("adapter_index").zip(number("request_id"));
        let bytes = number("total_bytes").unwrap_or(0);
        let adapter = self.adapter(metadata, &mut batch);
        let salts = &metadata["key_count_per_salt"];
        let fact = match event["type"].as_str().expect("an event has a type") {
            "l2.store.submitted" => {
                let task = task.expect("a store has a task");
                self.tasks.stores.insert(task, (batch.at, bytes));
                let adapter = adapter.expect("a store has an adapter");
                Fact::L2StoreSubmitted { adapter, keys: self.salted(salts, 0, &mut batch) }
            }
            "l2.store.completed" => {
                // An adapter without a name is no adapter of ours, and what was never submitted
                // never ends.
                let submitted = task.and_then(|task| self.tasks.stores.remove(&task));
                let Some(adapter) = adapter else { return };
                let (at, bytes) = submitted.unwrap_or((batch.at, 0));
                let bytes = number("bytes_transferred").unwrap_or(bytes);
                let (end, keys) = match salts {
                    Value::Null => {
                        let failed = json!({ "": number("failed_count") });
                        (L2StoreEnd::Io, self.salted(&failed, 0, &mut batch))
                    }
                    salts => (L2StoreEnd::Stored, self.salted(salts, bytes, &mut batch)),
                };
                Fact::L2StoreEnded { adapter, keys, end, took: batch.at.since(at) }
            }
            "l2.prefetch.lookup.submitted" => {
                let adapters = number("adapter_count").expect("it is a number") as u32;
                for (salt, keys) in salts.as_object().expect("it is a map") {
                    let tenant = self.tenant("m", salt, &mut batch);
                    let keys = keys.as_u64().expect("it is a number") as u32;
                    batch.facts.push(Fact::L2LookupSubmitted { tenant, keys, adapters });
                }
                self.batches.push(batch);
                return;
            }
            "l2.load_task.submitted" => {
                let load = load.expect("a load has a request");
                self.tasks.loads.insert(load, (batch.at, bytes));
                self.batches.push(batch);
                return;
            }
            // Told once for all adapters of a request.
            "l2.prefetch.load.submitted" => {
                let keys = self.salted(salts, 0, &mut batch);
                Fact::L2LoadSubmitted { adapter: AdapterId(0), keys }
            }
            "l2.load_task.completed" => {
                let submitted = load.and_then(|load| self.tasks.loads.remove(&load));
                let submitted = submitted.expect("every load of the scenes was submitted");
                let adapter = adapter.expect("a load has an adapter");
                let at = batch.at;
                self.batches.push(batch);
                self.loaded(&Value::Null);
                self.tasks.ended = Some(Ended { adapter, at, submitted });
                return;
            }
            "l2.prefetch.load.completed" => return self.loaded(metadata),
            "l2.keys.evicted" => {
                let keys = self.salted(salts, 0, &mut batch);
                Fact::L2Removed { adapter: AdapterId(0), keys, why: L2Removal::Watermark }
            }
            _ => return,
        };
        batch.facts.push(fact);
        self.batches.push(batch);
    }

    /// The end of the last load. A scene of throughput alone does not say what came of it.
    pub(super) fn loaded(&mut self, completed: &Value) {
        let Some(Ended { adapter, at, submitted: (then, bytes) }) = self.tasks.ended.take() else {
            return;
        };
        let mut batch = FactBatch { at, ..FactBatch::default() };
        let salts = match completed {
            Value::Null => json!({ "": 1 }),
            completed => completed["key_count_per_salt"].clone(),
        };
        let took = at.since(then);
        let (end, keys) = match salts.as_object().is_some_and(Map::is_empty) {
            true => {
                let failed = json!({ "": completed["failed_count"] });
                (L2LoadEnd::Absent, self.salted(&failed, 0, &mut batch))
            }
            false => (L2LoadEnd::Loaded, self.salted(&salts, bytes, &mut batch)),
        };
        batch.facts.push(Fact::L2LoadEnded { adapter, keys, end, took });
        self.batches.push(batch);
    }

    /// So many keys of each salt, which have so many bytes together.
    fn salted(&mut self, salts: &Value, bytes: u64, batch: &mut FactBatch) -> KeyRange {
        let start = batch.keys.len() as u32;
        for (salt, count) in salts.as_object().expect("counts by salt are a map") {
            let tenant = self.tenant("m", salt, batch);
            for _ in 0..count.as_u64().expect("a count is a number") {
                self.tasks.keys += 1;
                let mut hash = [0xee; 32];
                hash[..8].copy_from_slice(&self.tasks.keys.to_le_bytes());
                let scope = ScopeId(u32::MAX);
                batch.keys.push(FactKey { hash: ChunkHash(hash), bytes: 0, scope, tenant });
            }
        }
        if let Some(first) = batch.keys.get_mut(start as usize) {
            first.bytes = bytes;
        }
        KeyRange { start, end: batch.keys.len() as u32 }
    }

    fn adapter(&mut self, metadata: &Value, batch: &mut FactBatch) -> Option<AdapterId> {
        let adapter = AdapterId(metadata["adapter_index"].as_u64()? as u16);
        let name = metadata["l2_name"].as_str()?;
        let before = self.tasks.named.insert(adapter, name.into());
        if before.as_deref() != Some(name) {
            batch.facts.push(Fact::AdapterNamed { adapter, name: name.into() });
        }
        Some(adapter)
    }
}

/// The adapters that gauges speak of: by index where there is one, and as many as bear a name.
pub fn adapters(list: &Value) -> (Vec<Fact>, Vec<AdapterGauges>) {
    let mut named: Vec<(String, AdapterGauges)> = Vec::new();
    for (name, value, own, index) in samples(list) {
        let place = named.iter().position(|(known, gauges)| match index {
            Some(index) => u64::from(gauges.adapter) == index,
            None => known == own && gauges.used_bytes == 0,
        });
        let place = place.unwrap_or_else(|| {
            let adapter = named.len() as u16;
            named.push((own.into(), AdapterGauges { adapter, ..AdapterGauges::default() }));
            named.len() - 1
        });
        let gauges = &mut named[place].1;
        match name {
            "lmcache_mp.l2_usage_bytes" => gauges.used_bytes = value,
            "lmcache_mp.num_inflight_l2_stores" => gauges.stores_in_flight = value,
            "lmcache_mp.num_inflight_l2_loads" => gauges.loads_in_flight = value,
            "lmcache_mp.inflight_load_memory_usage_bytes" => gauges.loading_bytes = value,
            other => panic!("a gauge that we do not know: {other}"),
        }
    }
    let facts = named.iter().map(|(name, gauges)| Fact::AdapterNamed {
        adapter: AdapterId(gauges.adapter),
        name: name.as_str().into(),
    });
    (facts.collect(), named.iter().map(|(_, gauges)| gauges.clone()).collect())
}

/// Name, value, adapter's name and index of every sample: first those with an index, in its order.
fn samples(list: &Value) -> Vec<(&str, u64, &str, Option<u64>)> {
    let mut all = Vec::new();
    for gauge in list.as_array().expect("gauges are a list") {
        let name = gauge["name"].as_str().expect("it is a text");
        for sample in gauge["value"].as_array().into_iter().flatten() {
            let value = sample[0].as_f64().expect("a gauge is a number") as u64;
            if let Some(adapter) = sample[1]["l2_name"].as_str() {
                all.push((name, value, adapter, sample[1]["adapter_index"].as_u64()));
            }
        }
    }
    all.sort_by_key(|(_, _, _, index)| index.unwrap_or(u64::MAX));
    all
}
