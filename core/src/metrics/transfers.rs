//! Server-driven transfers: rows 32 to 37 and 40 of spec/metrics, by the rules of its §3.5.
//!
//! The one invariant: an end counts whether or not its beginning was heard of, and only what has
//! moved bytes in some time is a sample of speed.

use super::tenants::Tenants;
use super::{Measurement, Metric, Text, add, observe, seconds};
use crate::effect::Direction;
use crate::fact::TransferEnd;
use crate::names::Device;
use alloc::format;
use alloc::vec::Vec;
use core::fmt::Display;

pub(super) fn submitted(direction: Direction, device: Device, out: &mut Vec<Measurement>) {
    let metric = match direction {
        Direction::Store => Metric::SubmittedStores,
        Direction::Retrieve => Metric::SubmittedRetrieves,
    };
    add(out, metric, [("device", name_of(device))], 1);
}

pub(super) fn ended(end: &TransferEnd, tenants: &mut Tenants, out: &mut Vec<Measurement>) {
    let (finished, speed) = match end.direction {
        Direction::Store => (Metric::FinishedStores, Metric::L0StoreThroughput),
        Direction::Retrieve => (Metric::FinishedRetrieves, Metric::L0LoadThroughput),
    };
    let device = name_of(end.device);
    add(out, finished, [("device", device.clone())], 1);
    let is_speed = end.bytes > 0 && end.took > crate::time::Duration::ZERO;
    let is_loaded = end.direction == Direction::Retrieve && end.keys > 0;
    if !is_speed && !is_loaded {
        return;
    }
    let instance = number(end.instance.0);
    let names = tenants.find(end.tenant);
    if is_speed {
        let speed_of = end.bytes as f64 / seconds(end.took) / 1e9;
        let engine = ("engine_id", instance.clone());
        let model = ("model_name", names.model.clone());
        observe(out, speed, [("device", device), engine, model], speed_of);
    }
    if is_loaded {
        let [salt, model] = names.labels();
        let worker = ("worker_id", instance);
        add(out, Metric::ChunksLoaded, [salt, model, worker], end.keys.into());
    }
}

/// As the peer's framework calls it.
fn name_of(device: Device) -> Text {
    match device {
        Device::Host => Text::Fixed("cpu"),
        Device::Card(card) => Text::Shared(format!("cuda:{card}").into()),
    }
}

pub(super) fn number(number: impl Display) -> Text {
    Text::Shared(format!("{number}").into())
}
