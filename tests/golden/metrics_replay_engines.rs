//! The peer's events of server-driven transfers and of engines' own blocks, told as our facts. A
//! report goes through our front: what becomes of token ids is decided there.

use super::Replay;
use kvtide::telemetry::FactBatch;
use kvtide_core::SeededHash;
use kvtide_core::effect::Direction;
use kvtide_core::fact::{Fact, TransferEnd};
use kvtide_core::front::allocated::Allocated;
use kvtide_core::names::{Device, InstanceId, TenantId};
use kvtide_core::time::{Duration, Instant};
use kvtide_core::wire::fields::{List, Wire};
use kvtide_core::wire::msgpack::{Reader, Writer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::BuildHasher;

const SEED: u64 = 7;

/// Transfers that have started and not ended, by session and device.
#[derive(Default)]
pub struct Engines {
    started: BTreeMap<(Direction, String, String), Instant>,
}

impl Replay {
    pub(super) fn engine_event(&mut self, event: &Value, mut batch: FactBatch) {
        let metadata = &event["metadata"];
        let (direction, what) = match event["type"].as_str().expect("an event has a type") {
            "mp.vllm.block_allocation" => {
                batch.facts.push(allocated(metadata));
                return self.batches.push(batch);
            }
            "mp.vllm.end_session" => {
                // One without a request ends none.
                let Some(request) = metadata["request_id"].as_str() else { return };
                let request = SeededHash::of_requests(SEED).hash_one(request);
                batch.facts.push(Fact::SessionEnded { request });
                return self.batches.push(batch);
            }
            kind => match kind.strip_prefix("mp.").and_then(|kind| kind.split_once('.')) {
                Some(("store", what)) => (Direction::Store, what),
                Some(("retrieve", what)) => (Direction::Retrieve, what),
                _ => return,
            },
        };
        // Every transfer of ours is between L1 and some device.
        let Some(device) = metadata["device"].as_str() else { return };
        let session = event["session_id"].as_str().expect("it is a text");
        let key = (direction, session.to_string(), device.to_string());
        match what {
            "submitted" => {
                let device = device_of(device);
                batch.facts.push(Fact::TransferSubmitted { direction, device });
            }
            "start" => {
                self.engines.started.insert(key, batch.at);
            }
            "end" => {
                let started = self.engines.started.remove(&key);
                let took = started.map_or(Duration::ZERO, |started| batch.at.since(started));
                let end = self.ended(metadata, (direction, device, took), &mut batch);
                batch.facts.push(Fact::TransferEnded(end));
            }
            _ => return,
        }
        self.batches.push(batch);
    }

    fn ended(
        &mut self,
        metadata: &Value,
        (direction, device, took): (Direction, &str, Duration),
        batch: &mut FactBatch,
    ) -> TransferEnd {
        let number = |name: &str| metadata[name].as_u64().expect("it is a number");
        let keys = match direction {
            Direction::Store => number("stored_count"),
            Direction::Retrieve => number("retrieved_count"),
        };
        let model = metadata["model_name"].as_str().expect("it is a text");
        let salt = metadata["cache_salt"].as_str().unwrap_or_default();
        let tenant: TenantId = self.tenant(model, salt, batch);
        TransferEnd {
            direction,
            device: device_of(device),
            instance: InstanceId(number("engine_id") as i64),
            tenant,
            keys: keys as u32,
            bytes: number("total_bytes"),
            took,
        }
    }
}

fn device_of(name: &str) -> Device {
    match name.strip_prefix("cuda:") {
        Some(card) => Device::Card(card.parse().expect("cards have numbers")),
        None => Device::Host,
    }
}

fn allocated(metadata: &Value) -> Fact {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes);
    let records = metadata["records"].as_array().expect("records are a list");
    writer.array(records.len());
    for record in records {
        let record = &record["$alloc"];
        writer.map(3);
        writer.str("req_id");
        writer.str(record["req_id"].as_str().expect("it is a text"));
        for name in ["new_block_ids", "new_token_ids"] {
            let numbers = record[name].as_array().expect("it is a list");
            writer.str(name);
            writer.array(numbers.len());
            numbers.iter().for_each(|one| writer.i64(one.as_i64().expect("it is a number")));
        }
    }
    let mut allocated = Allocated::new(SEED);
    let records = List::read(&mut Reader::new(&bytes)).expect("it is a list of records");
    assert!(allocated.read(&records), "the peer's reports are reports");
    Fact::BlocksAllocated {
        instance: InstanceId(metadata["instance_id"].as_i64().expect("it is a number")),
        model: metadata["model_name"].as_str().expect("it is a text").into(),
        blocks: allocated.blocks().into(),
    }
}
