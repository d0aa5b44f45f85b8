//! Facts become measurements, by one table. Nothing here adds anything up over time: the
//! OpenTelemetry SDK does that in the shells, `aggregate` does it in tests and in the simulator.
//!
//! The one invariant: a measurement comes from a fact. An idle server measures nothing, so its
//! counters stand still (known failure F36), and a gauge is never a sum of facts.

pub mod aggregate;
mod blocks;
mod gauges;
mod lifecycle;
pub mod page;
mod reuse;
mod sample;
pub mod table;
mod tenants;
mod tiers;
mod transfers;

pub use sample::SampleRate;
pub use table::{Definition, Kind, Metric, TABLE};

use crate::fact::{Fact, FactKey, InstanceEnd, LeaseEnd, NoRoom, ReadFailure, Removal};
use crate::names::TenantId;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use alloc::sync::Arc;
use alloc::vec::Vec;
use blocks::Blocks;
use gauges::fold_gauges;
use lifecycle::Lifecycle;
use reuse::Reuse;
use smallvec::SmallVec;
use tenants::{Names, Tenants};
use tiers::Tiers;

/// What the fold is a function of, beside its facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldConfig {
    /// Tokens of one chunk: lookups are measured in tokens.
    pub chunk_size: u32,
    /// Share of the keys whose life is followed (`--metrics-sample-rate`).
    pub sample_rate: SampleRate,
    pub seed: u64,
}

/// One change of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    pub metric: Metric,
    pub labels: Labels,
    pub value: Value,
}

/// Sorted by name.
pub type Labels = SmallVec<[(&'static str, Text); 3]>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// To a counter. Zero is a measurement too: it makes the series appear.
    Add(u64),
    /// To a histogram.
    Observe(f64),
    /// To a gauge.
    Set(f64),
}

/// The value of a label: ours, or a name that a client gave. Compared by what it says.
#[derive(Clone, Debug)]
pub enum Text {
    Fixed(&'static str),
    Shared(Arc<str>),
}

impl Text {
    pub fn as_str(&self) -> &str {
        match self {
            Text::Fixed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> core::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

/// Turns facts into measurements. Its state is bounded by `limits`: names of tenants and sampled
/// keys.
#[derive(Clone, Debug)]
pub struct Fold {
    chunk_size: u64,
    tenants: Tenants,
    lifecycle: Lifecycle,
    reuse: Reuse,
    blocks: Blocks,
    tiers: Tiers,
}

/// The one L1 of this server, by the peer's default tag, and what it is made of.
const L1_TAG: (&str, Text) = ("l1_tag", Text::Fixed("_default"));
const L1_BACKEND: (&str, Text) = ("backend", Text::Fixed("dram"));

impl Fold {
    pub fn new(config: FoldConfig) -> Fold {
        let mut rng = Rng::new(config.seed);
        Fold {
            chunk_size: config.chunk_size as u64,
            tenants: Tenants::new(config.seed),
            lifecycle: Lifecycle::new(config.sample_rate, config.seed, rng.fork(1)),
            reuse: Reuse::new(config.sample_rate, config.seed, rng.fork(2)),
            blocks: Blocks::new(config.sample_rate, config.seed, rng.fork(3)),
            tiers: Tiers::default(),
        }
    }

    /// Appends to `out` what `fact` changes. `keys` are those that its ranges point into.
    pub fn fold(&mut self, at: Instant, fact: &Fact, keys: &[FactKey], out: &mut Vec<Measurement>) {
        match fact {
            Fact::TenantNamed { tenant, model, salt } => self.tenants.name(*tenant, model, salt),
            Fact::WriteFinished { keys: range } => self.written(at, range.of(keys), out),
            Fact::StoreFinished { stored, .. } => {
                self.reuse.written(at, stored.of(keys), &mut self.tenants);
            }
            Fact::ReadFinished { keys: range, why } => self.read(at, range.of(keys), *why, out),
            Fact::Evicted { keys: range, why } => self.evicted(at, range.of(keys), *why, out),
            Fact::WriteRefused { keys: range, why } => self.refused(range.of(keys), *why, out),
            Fact::WriteAborted { keys, why } => {
                count(out, Metric::L1WriteAborts, "why", why.label(), keys.len());
            }
            Fact::ReadFailed { keys: range, why } => self.read_failed(range.of(keys), *why, out),
            Fact::Stored { keys, bytes, took } => stored(keys.len(), *bytes, *took, out),
            Fact::Retrieved { keys, bytes, took } => retrieved(keys.len(), *bytes, *took, out),
            Fact::LookupTaken { .. } | Fact::LookupSkipped { .. } => self.fold_lookup(fact, out),
            Fact::TransferSubmitted { direction, device } => {
                transfers::submitted(*direction, *device, out);
            }
            Fact::TransferEnded(end) => transfers::ended(end, &mut self.tenants, out),
            Fact::BlocksAllocated { instance, model, blocks } => {
                self.blocks.allocated(at, (*instance, model), blocks, out);
            }
            Fact::SessionEnded { request } => self.blocks.session_ended(*request),
            Fact::EvictionTick { .. }
            | Fact::RegistrationRefused { .. }
            | Fact::InstanceEnded { .. }
            | Fact::RequestFaulted { .. }
            | Fact::StaleEnding => fold_plain(fact, out),
            Fact::Gauges(gauges) => {
                fold_gauges(gauges, out);
                self.tiers.gauges(&gauges.adapters, out);
            }
            // Told by gauges, by the facts about their keys, or only to logs and cache events.
            Fact::InstanceRegistered { .. }
            | Fact::InstanceTold { .. }
            | Fact::WriteReserved { .. }
            | Fact::ReadReserved { .. }
            | Fact::Accessed { .. }
            | Fact::Cleared { .. }
            | Fact::QuotaChanged => {}
            Fact::AdapterNamed { .. }
            | Fact::AdapterChanged { .. }
            | Fact::L2StoreSubmitted { .. }
            | Fact::L2StoreEnded { .. }
            | Fact::L2StoreDropped { .. }
            | Fact::L2LookupSubmitted { .. }
            | Fact::L2LookupFound { .. }
            | Fact::L2LoadSubmitted { .. }
            | Fact::L2LoadEnded { .. }
            | Fact::L2PrefetchFailed { .. }
            | Fact::L2Stored { .. }
            | Fact::L2Accessed { .. }
            | Fact::L2Removed { .. }
            | Fact::L2ScanSkipped { .. } => self.fold_tier(at, fact, keys, out),
        }
    }

    fn fold_lookup(&mut self, fact: &Fact, out: &mut Vec<Measurement>) {
        match fact {
            Fact::LookupTaken {
                tenant,
                requested_chunks,
                hit_chunks,
                l1_hit_chunks,
                hit_keys,
                l1_hit_keys,
                stop,
            } => {
                add(out, Metric::LookupStops, [("stop", Text::Fixed(stop.label()))], 1);
                let names = self.tenants.find(*tenant);
                let (chunks, keys) = ([*hit_chunks, *l1_hit_chunks], [*hit_keys, *l1_hit_keys]);
                self.looked_up(names, *requested_chunks, (chunks, keys), out);
            }
            Fact::LookupSkipped { model, salt, why } => {
                let names =
                    Names { model: Text::Shared(model.clone()), salt: Text::Shared(salt.clone()) };
                let reason = ("reason", Text::Fixed(why.label()));
                let [salt, model] = names.clone().labels();
                add(out, Metric::LookupEarlyExit, [salt, model, reason], 1);
                self.looked_up(names, 0, Default::default(), out);
            }
            _ => {}
        }
    }

    fn fold_tier(
        &mut self,
        at: Instant,
        fact: &Fact,
        keys: &[FactKey],
        out: &mut Vec<Measurement>,
    ) {
        let Fold { tiers, tenants, .. } = self;
        match fact {
            Fact::AdapterNamed { adapter, name } => tiers.name(*adapter, name),
            Fact::AdapterChanged { adapter, state } => tiers.changed(*adapter, *state, out),
            Fact::L2StoreSubmitted { adapter: _, keys: range } => {
                let rows = [Metric::L2StoreSubmitted, Metric::L2StoreSubmittedObjects];
                tiers::submitted(rows, range.of(keys), tenants, out);
            }
            Fact::L2StoreEnded { adapter, keys: range, end, took } => {
                let stored = range.of(keys);
                tiers.store_ended((*adapter, stored), *end, *took, tenants, out);
                // Like the peer's, a store reads L1 (spec/metrics §3.1).
                self.count_by_salt(Metric::L1Read, stored, out);
                self.lifecycle.read(at, stored, out);
            }
            Fact::L2StoreDropped { adapter, keys: range, why } => {
                tiers.store_dropped((*adapter, range.of(keys)), *why, tenants, out);
            }
            Fact::L2LookupSubmitted { tenant, keys, adapters: _ } => {
                tiers::looked_up(*tenant, *keys, tenants, out);
            }
            Fact::L2LookupFound { tenant: _, keys } => {
                add(out, Metric::L2PrefetchHit, [], (*keys).into());
            }
            Fact::L2LoadSubmitted { adapter: _, keys: range } => {
                let rows = [Metric::L2LoadSubmitted, Metric::L2LoadSubmittedObjects];
                tiers::submitted(rows, range.of(keys), tenants, out);
            }
            Fact::L2LoadEnded { adapter, keys: range, end, took } => {
                tiers.load_ended((*adapter, range.of(keys)), *end, *took, tenants, out);
            }
            Fact::L2PrefetchFailed { keys: range, why } => {
                tiers::prefetch_failed(range.of(keys), *why, tenants, out);
            }
            Fact::L2Removed { adapter, keys: range, why } => {
                tiers.removed((*adapter, range.of(keys)), *why, tenants, out);
            }
            Fact::L2ScanSkipped { adapter, objects } => {
                tiers.scan_skipped(*adapter, *objects, out);
            }
            // Told by the ends of stores and loads; only cache events need these.
            _ => {}
        }
    }

    /// Whether keys came whose tenant has no name: the fact that named it was lost. Ask for the
    /// names again; until then such keys count under `_unknown`.
    pub fn names_are_missing(&self) -> bool {
        self.tenants.names_are_missing() || self.tiers.names_are_missing()
    }

    /// Bytes that the tables of a fold take when they are full.
    pub fn memory_bytes_max() -> u64 {
        let of_keys = Lifecycle::memory_bytes_max() + Reuse::memory_bytes_max();
        let of_keys = of_keys + Blocks::memory_bytes_max();
        Tenants::memory_bytes_max() + Tiers::memory_bytes_max() + of_keys
    }

    fn written(&mut self, at: Instant, keys: &[FactKey], out: &mut Vec<Measurement>) {
        self.count_by_salt(Metric::L1Write, keys, out);
        self.lifecycle.written(at, keys, out);
    }

    fn read(&mut self, at: Instant, keys: &[FactKey], why: LeaseEnd, out: &mut Vec<Measurement>) {
        count(out, Metric::LeaseEnds, "why", why.label(), keys.len() as u64);
        if is_read(why) {
            self.count_by_salt(Metric::L1Read, keys, out);
            self.lifecycle.read(at, keys, out);
            self.reuse.read(at, keys, &mut self.tenants, out);
        }
    }

    fn evicted(&mut self, at: Instant, keys: &[FactKey], why: Removal, out: &mut Vec<Measurement>) {
        count(out, Metric::L1Removals, "why", why.label(), keys.len() as u64);
        self.count_by_salt(Metric::L1Evicted, keys, out);
        self.lifecycle.evicted(at, keys, out);
    }

    fn refused(&mut self, keys: &[FactKey], why: NoRoom, out: &mut Vec<Measurement>) {
        count(out, Metric::L1WriteRefused, "why", why.label(), keys.len() as u64);
        // Chunks behind the first one without room were not tried (known failure F37).
        if why == NoRoom::Trimmed {
            return;
        }
        for (tenant, count) in runs(keys) {
            let during = ("during", Text::Fixed("l1_store"));
            let model = ("model_name", self.tenants.find(tenant).model);
            add(out, Metric::L1AllocationFailure, [during, model], count);
        }
    }

    fn read_failed(&mut self, keys: &[FactKey], why: ReadFailure, out: &mut Vec<Measurement>) {
        for (tenant, count) in runs(keys) {
            let during = ("during", Text::Fixed("l1_retrieve"));
            let model = ("model_name", self.tenants.find(tenant).model);
            let reason = ("reason", Text::Fixed(why.label()));
            add(out, Metric::L1ReadFailure, [during, model, reason], count);
        }
    }

    /// Zeros are told too: they make the series of this tenant appear. Of chunks and of keys: all
    /// that were found, and those that L1 alone would have served.
    fn looked_up(
        &self,
        names: Names,
        requested: u32,
        (chunks, keys): ([u32; 2], [u32; 2]),
        out: &mut Vec<Measurement>,
    ) {
        let tokens = |chunks: u64| chunks * self.chunk_size;
        let [hit, hit_l1] = chunks.map(u64::from);
        let [hit_keys, hit_l1_keys] = keys.map(u64::from);
        let amounts = [
            (Metric::LookupRequested, tokens(requested.into())),
            (Metric::LookupHit, tokens(hit)),
            (Metric::LookupHitL1, tokens(hit_l1)),
            (Metric::LookupHitL2, tokens(hit.saturating_sub(hit_l1))),
            (Metric::LookupHitL1Keys, hit_l1_keys),
            (Metric::LookupHitL2Keys, hit_keys.saturating_sub(hit_l1_keys)),
            (Metric::Lookups, 1),
        ];
        for (metric, amount) in amounts {
            add(out, metric, names.clone().labels(), amount);
        }
    }

    /// The peer leaves `cache_salt` out where there is none (spec/metrics §3.1).
    fn count_by_salt(&mut self, metric: Metric, keys: &[FactKey], out: &mut Vec<Measurement>) {
        for (tenant, count) in runs(keys) {
            let salt = self.tenants.find(tenant).salt;
            if salt.as_str().is_empty() {
                add(out, metric, [L1_TAG], count);
            } else {
                add(out, metric, [("cache_salt", salt), L1_TAG], count);
            }
        }
    }
}

/// An ended lease is a read for the peer's counters when somebody gave it back. One that ran out
/// or was taken away by force was never read.
fn is_read(why: LeaseEnd) -> bool {
    match why {
        LeaseEnd::Retrieved
        | LeaseEnd::Freed
        | LeaseEnd::SessionEnded
        | LeaseEnd::Replaced
        | LeaseEnd::Trimmed
        | LeaseEnd::CopyFailed
        | LeaseEnd::ConnectionEnded => true,
        LeaseEnd::Expired | LeaseEnd::ForcedClear => false,
    }
}

fn instance_end(why: InstanceEnd) -> &'static str {
    match why {
        InstanceEnd::Unregistered => "unregistered",
        InstanceEnd::Reaped => "reaped",
        InstanceEnd::Replaced => "replaced",
        InstanceEnd::ConnectionEnded => "connection_ended",
    }
}

/// Facts without keys.
fn fold_plain(fact: &Fact, out: &mut Vec<Measurement>) {
    match fact {
        Fact::EvictionTick { triggered, .. } => {
            add(out, Metric::L1EvictionTicks, [], 1);
            if *triggered {
                add(out, Metric::L1EvictionTriggered, [], 1);
            }
        }
        Fact::RegistrationRefused { reason, .. } => {
            count(out, Metric::RefusedRegistrations, "reason", reason.label(), 1);
        }
        Fact::InstanceEnded { why, .. } => {
            count(out, Metric::InstanceEnds, "why", instance_end(*why), 1);
        }
        Fact::RequestFaulted { operation, fault } => {
            let fault = ("fault", Text::Fixed(fault.label()));
            let operation = ("operation", Text::Fixed(operation));
            add(out, Metric::RequestFaults, [fault, operation], 1);
        }
        Fact::StaleEnding => add(out, Metric::StaleEndings, [], 1),
        _ => {}
    }
}

fn stored(chunks: u64, bytes: u64, took: Duration, out: &mut Vec<Measurement>) {
    add(out, Metric::StoredChunks, [], chunks);
    add(out, Metric::StoredBytes, [], bytes);
    observe(out, Metric::StoreDuration, [], seconds(took));
}

fn retrieved(chunks: u64, bytes: u64, took: Duration, out: &mut Vec<Measurement>) {
    add(out, Metric::RetrievedChunks, [], chunks);
    add(out, Metric::RetrievedBytes, [], bytes);
    observe(out, Metric::RetrieveDuration, [], seconds(took));
}

/// How many keys in a row belong to the same tenant: mostly all of a fact.
fn runs(keys: &[FactKey]) -> impl Iterator<Item = (TenantId, u64)> {
    keys.chunk_by(|one, next| one.tenant == next.tenant)
        .map(|run| (run[0].tenant, run.len() as u64))
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

type Label = (&'static str, Text);

fn push<const N: usize>(
    out: &mut Vec<Measurement>,
    metric: Metric,
    labels: [Label; N],
    value: Value,
) {
    out.push(Measurement { metric, labels: labels.into_iter().collect(), value });
}

fn add<const N: usize>(
    out: &mut Vec<Measurement>,
    metric: Metric,
    labels: [Label; N],
    amount: u64,
) {
    push(out, metric, labels, Value::Add(amount));
}

/// Adds under one label of ours, unless there is nothing to add.
fn count(
    out: &mut Vec<Measurement>,
    metric: Metric,
    label: &'static str,
    text: &'static str,
    amount: u64,
) {
    if amount > 0 {
        add(out, metric, [(label, Text::Fixed(text))], amount);
    }
}

fn observe<const N: usize>(
    out: &mut Vec<Measurement>,
    metric: Metric,
    labels: [Label; N],
    value: f64,
) {
    push(out, metric, labels, Value::Observe(value));
}

#[cfg(test)]
mod tests;
