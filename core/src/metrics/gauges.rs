//! Gauges of L1 and of the engine's tables: rows 41 to 43 and 62 of spec/metrics, and ours. Those
//! of lower tiers are in `tiers`.

use super::{L1_BACKEND, L1_TAG, Measurement, Metric, Value, push};
use crate::fact::Gauges;
use alloc::vec::Vec;

pub(super) fn fold_gauges(gauges: &Gauges, out: &mut Vec<Measurement>) {
    let Gauges {
        // Taken apart, so that a new gauge is not forgotten.
        l1_used_bytes,
        l1_total_bytes,
        l1_configured_bytes,
        l1_staging_bytes,
        l1_condemned_bytes,
        l1_leased_bytes,
        l1_objects,
        active_prefetch_jobs,
        sessions,
        instances,
        tickets,
        lease_units,
        adapters: _,
    } = *gauges;
    let ratio = match l1_total_bytes {
        0 => 0.0,
        total => l1_used_bytes as f64 / total as f64,
    };
    let of_l1 = [
        (Metric::L1MemoryUsage, l1_used_bytes as f64),
        (Metric::L1UsageRatio, ratio),
        (Metric::L1Staging, l1_staging_bytes as f64),
    ];
    for (metric, value) in of_l1 {
        push(out, metric, [L1_BACKEND, L1_TAG], Value::Set(value));
    }
    let plain = [
        (Metric::ActivePrefetchJobs, active_prefetch_jobs),
        (Metric::OwnL1Used, l1_used_bytes),
        (Metric::OwnL1Total, l1_total_bytes),
        (Metric::OwnL1Configured, l1_configured_bytes),
        (Metric::OwnL1Staging, l1_staging_bytes),
        (Metric::OwnL1Condemned, l1_condemned_bytes),
        (Metric::OwnL1Leased, l1_leased_bytes),
        (Metric::OwnL1Objects, l1_objects),
        (Metric::OwnSessions, sessions),
        (Metric::OwnInstances, instances),
        (Metric::OwnTickets, tickets),
        (Metric::OwnLeaseUnits, lease_units),
    ];
    for (metric, value) in plain {
        push(out, metric, [], Value::Set(value as f64));
    }
}
