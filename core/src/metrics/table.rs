//! Every metric in one table: name, meter, unit, kind, buckets, labels, bound and help.
//!
//! The one invariant: a metric has one row, and no two rows share a series name. `lmcache_*` rows
//! carry the peer's names (spec/metrics §2.1 and §2.2, by number), so that its dashboards work
//! unchanged; `kvtide_*` rows are ours.

mod engine_rows;
mod rows;
mod tier_rows;

pub use rows::TABLE;

/// The names of the rows. The discriminant is the row's index in `TABLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    L1Read,
    L1Write,
    L1Evicted,
    L1EvictionTicks,
    L1EvictionTriggered,
    L1ChunkLifetime,
    L1ChunkIdle,
    L1ChunkReuseGap,
    L1ChunkEvictReuseGap,
    RealReuseGap,
    RealReuseGapObjects,
    L1AllocationFailure,
    L1ReadFailure,
    LookupRequested,
    LookupHit,
    ActivePrefetchJobs,
    L1MemoryUsage,
    L1UsageRatio,
    BusQueueDepth,
    BusDrainLag,
    BusDroppedEvents,
    BusSubscriberExceptions,
    LookupHitL1,
    LookupHitL2,
    LookupHitL1Keys,
    LookupHitL2Keys,
    Lookups,
    LookupEarlyExit,
    L1Staging,
    RefusedRegistrations,
    InstanceEnds,
    RequestFaults,
    LookupStops,
    LeaseEnds,
    L1Removals,
    L1WriteAborts,
    L1WriteRefused,
    StaleEndings,
    StoredChunks,
    StoredBytes,
    StoreDuration,
    RetrievedChunks,
    RetrievedBytes,
    RetrieveDuration,
    OwnL1Used,
    OwnL1Total,
    OwnL1Configured,
    OwnL1Staging,
    OwnL1Condemned,
    OwnL1Leased,
    OwnL1Objects,
    OwnSessions,
    OwnInstances,
    OwnTickets,
    OwnLeaseUnits,
    L2StoreSubmitted,
    L2StoreSubmittedObjects,
    L2StoreCompleted,
    L2StoreCompletedObjects,
    L2PrefetchLookup,
    L2PrefetchLookupObjects,
    L2PrefetchHit,
    L2LoadSubmitted,
    L2LoadSubmittedObjects,
    L2LoadCompletedObjects,
    L2LoadCompleted,
    L2EvictedObjects,
    L2PrefetchFailure,
    L2StoreThroughput,
    L2LoadThroughput,
    L2Usage,
    L2StoresInFlight,
    L2LoadsInFlight,
    L2LoadMemory,
    L2StoreAdapters,
    L2PrefetchAdapters,
    OwnL2StoreEnds,
    OwnL2StoreDrops,
    OwnL2ScanSkipped,
    OwnL2LoadEnds,
    OwnL2Removals,
    OwnL2DigestMismatches,
    OwnL2StoredBytes,
    OwnL2LoadedBytes,
    OwnL2StoreDuration,
    OwnL2LoadDuration,
    OwnL2State,
    OwnL2Used,
    OwnL2Capacity,
    OwnL2Objects,
    OwnL2StoresWaiting,
    L0BlockLifetime,
    L0BlockIdle,
    L0BlockReuseGap,
    L0StoreThroughput,
    L0LoadThroughput,
    SubmittedStores,
    FinishedStores,
    SubmittedRetrieves,
    FinishedRetrieves,
    ChunksLoaded,
}

/// What becomes of the measurements of one series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// They are added up.
    Counter,
    /// The last one stands.
    Gauge,
    /// They are counted by size; a value equal to a boundary lies below it.
    Histogram(&'static [f64]),
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Definition {
    pub metric: Metric,
    /// OTLP scope; invisible on the page.
    pub meter: &'static str,
    /// Instrument name, as OTLP shows it. `page::series_name` makes the page's name of it.
    pub name: &'static str,
    pub unit: &'static str,
    pub kind: Kind,
    /// Label names that its measurements may carry, sorted.
    pub labels: &'static [&'static str],
    /// Label sets kept apart; more go into one series marked as overflow.
    pub series_max: usize,
    pub help: &'static str,
}

impl Metric {
    pub fn definition(self) -> &'static Definition {
        &TABLE[self as usize]
    }
}

const _: () = {
    let mut index = 0;
    while index < TABLE.len() {
        assert!(TABLE[index].metric as usize == index, "a row stands at its metric's index");
        assert!(TABLE[index].series_max > 0, "every metric has at least one series");
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::page::{FamilyKind, series_name};
    use alloc::collections::BTreeSet;

    #[test]
    fn f40_no_two_rows_share_a_series_name() {
        let mut names = BTreeSet::new();
        for row in &TABLE {
            let name = series_name(row.name, row.unit, FamilyKind::of(row.kind));
            assert!(names.insert(name.clone()), "{name} stands twice");
        }
    }

    #[test]
    fn labels_are_sorted_and_buckets_rise() {
        for row in &TABLE {
            assert!(row.labels.is_sorted(), "{}", row.name);
            if let Kind::Histogram(buckets) = row.kind {
                assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]), "{}", row.name);
            }
            assert!(row.help.ends_with('.'), "{} has a sentence", row.name);
        }
    }
}
