//! Facts about lower tiers become measurements: rows 12 to 23, 26, 38, 39, 44 to 47, 63 and 64 of
//! spec/metrics, and ours.
//!
//! What the peer calls a task is one object here, in what is submitted and in what has ended, so
//! the difference of the two is what is on its way. The one invariant: a gauge of an adapter that
//! has left reads 0, for no series can be taken back.

use super::tenants::Tenants;
use super::{L1_TAG, Label, Measurement, Metric, Text, Value, add, observe, push, runs, seconds};
use crate::fact::{AdapterGauges, AdapterState, FactKey, L2LoadEnd, L2Removal, L2StoreEnd};
use crate::fact::{PrefetchFailure, StoreDrop};
use crate::limits::{ADAPTER_NAME_BYTES_MAX, ADAPTERS_MAX};
use crate::names::{AdapterId, TenantId};
use crate::time::Duration;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

#[derive(Clone, Debug, Default)]
pub(super) struct Tiers {
    /// By id; None while a name was not told.
    adapters: Vec<Option<Adapter>>,
    missing: bool,
}

#[derive(Clone, Debug)]
struct Adapter {
    name: Arc<str>,
    /// Its place in the roster, as a label.
    index: Arc<str>,
    /// Which of `IN_FLIGHT` have ever been more than 0: as long as one has not, the peer has no
    /// series for it.
    was_busy: [bool; IN_FLIGHT.len()],
}

const UNKNOWN: Text = Text::Fixed("_unknown");
const IN_FLIGHT: [Metric; 3] =
    [Metric::L2StoresInFlight, Metric::L2LoadsInFlight, Metric::L2LoadMemory];

impl Tiers {
    /// The id means this adapter from now on. Ids over the bound are not the engine's.
    pub(super) fn name(&mut self, id: AdapterId, name: &Arc<str>) {
        let at = usize::from(id.0);
        if at >= ADAPTERS_MAX {
            return;
        }
        if at >= self.adapters.len() {
            self.adapters.resize(at + 1, None);
        }
        let was_busy = self.adapters[at].as_ref().map_or([false; 3], |known| known.was_busy);
        let index = Arc::from(id.0.to_string());
        self.adapters[at] = Some(Adapter { name: name.clone(), index, was_busy });
        self.missing = false;
    }

    pub(super) fn names_are_missing(&self) -> bool {
        self.missing
    }

    pub(super) const fn memory_bytes_max() -> u64 {
        (ADAPTERS_MAX * (2 * size_of::<Option<Adapter>>() + ADAPTER_NAME_BYTES_MAX + 64)) as u64
    }

    pub(super) fn changed(
        &mut self,
        id: AdapterId,
        state: AdapterState,
        out: &mut Vec<Measurement>,
    ) {
        let Some(adapter) = self.find(id) else { return };
        for each in STATES {
            let value = Value::Set(if each == state { 1.0 } else { 0.0 });
            let [index, name] = adapter.labels();
            let label = ("state", Text::Fixed(each.label()));
            push(out, Metric::OwnL2State, [index, name, label], value);
        }
    }

    pub(super) fn store_ended(
        &mut self,
        (id, keys): (AdapterId, &[FactKey]),
        end: L2StoreEnd,
        took: Duration,
        tenants: &mut Tenants,
        out: &mut Vec<Measurement>,
    ) {
        let name = self.name_of(id);
        let objects = keys.len() as u64;
        if objects == 0 {
            return;
        }
        add(out, Metric::L2StoreCompleted, [("l2_name", name.clone())], objects);
        let how = [("end", Text::Fixed(end.label())), ("l2_name", name.clone())];
        add(out, Metric::OwnL2StoreEnds, how, objects);
        if matches!(end, L2StoreEnd::Stored | L2StoreEnd::Present) {
            by_salt(Metric::L2StoreCompletedObjects, keys, tenants, out);
        }
        if end == L2StoreEnd::Stored {
            moved(&STORED, name, keys, took, out);
        }
    }

    pub(super) fn scan_skipped(&mut self, id: AdapterId, objects: u32, out: &mut Vec<Measurement>) {
        let labels = [("l2_name", self.name_of(id))];
        add(out, Metric::OwnL2ScanSkipped, labels, objects.into());
    }

    pub(super) fn store_dropped(
        &mut self,
        (id, keys): (AdapterId, &[FactKey]),
        why: StoreDrop,
        tenants: &mut Tenants,
        out: &mut Vec<Measurement>,
    ) {
        if keys.is_empty() {
            return;
        }
        let labels = [("l2_name", self.name_of(id)), ("why", Text::Fixed(why.label()))];
        add(out, Metric::OwnL2StoreDrops, labels, keys.len() as u64);
        // The peer's store finds that its object has left L1 when it comes to read it (row 25).
        if why != StoreDrop::Evicted {
            return;
        }
        for (tenant, count) in runs(keys) {
            let during = ("during", Text::Fixed("l2_store"));
            let model = ("model_name", tenants.find(tenant).model);
            let reason = ("reason", Text::Fixed("not_found"));
            add(out, Metric::L1ReadFailure, [during, model, reason], count);
        }
    }

    pub(super) fn load_ended(
        &mut self,
        (id, keys): (AdapterId, &[FactKey]),
        end: L2LoadEnd,
        took: Duration,
        tenants: &mut Tenants,
        out: &mut Vec<Measurement>,
    ) {
        let name = self.name_of(id);
        let objects = keys.len() as u64;
        if objects == 0 {
            return;
        }
        add(out, Metric::L2LoadCompleted, [("l2_name", name.clone())], objects);
        let how = [("end", Text::Fixed(end.label())), ("l2_name", name.clone())];
        add(out, Metric::OwnL2LoadEnds, how, objects);
        if end == L2LoadEnd::Loaded {
            by_salt(Metric::L2LoadCompletedObjects, keys, tenants, out);
            moved(&LOADED, name, keys, took, out);
        }
    }

    pub(super) fn removed(
        &mut self,
        (id, keys): (AdapterId, &[FactKey]),
        why: L2Removal,
        tenants: &mut Tenants,
        out: &mut Vec<Measurement>,
    ) {
        if keys.is_empty() {
            return;
        }
        let name = self.name_of(id);
        let labels = [("l2_name", name.clone()), ("why", Text::Fixed(why.label()))];
        add(out, Metric::OwnL2Removals, labels, keys.len() as u64);
        match why {
            L2Removal::Watermark | L2Removal::Pressure | L2Removal::Quota | L2Removal::Table => {
                by_salt(Metric::L2EvictedObjects, keys, tenants, out);
            }
            L2Removal::Digest => {
                let mismatches = Metric::OwnL2DigestMismatches;
                add(out, mismatches, [("l2_name", name)], keys.len() as u64);
            }
            // Nobody evicted these.
            L2Removal::Lost | L2Removal::Operator => {}
        }
    }

    /// What all adapters hold and have on their way. Who is not among them has left.
    pub(super) fn gauges(&mut self, gauges: &[AdapterGauges], out: &mut Vec<Measurement>) {
        let draining = gauges.iter().filter(|gauges| gauges.is_draining).count();
        for (state, count) in [("active", gauges.len() - draining), ("draining", draining)] {
            let (state, count) = (("state", Text::Fixed(state)), Value::Set(count as f64));
            push(out, Metric::L2StoreAdapters, [L1_TAG, state.clone()], count);
            push(out, Metric::L2PrefetchAdapters, [state], count);
        }
        let named = |id: u16| self.adapters.get(usize::from(id)).is_some_and(Option::is_some);
        self.missing |= !gauges.iter().all(|gauges| named(gauges.adapter));
        for (id, adapter) in self.adapters.iter_mut().enumerate() {
            let Some(adapter) = adapter else { continue };
            let now = gauges.iter().find(|gauges| usize::from(gauges.adapter) == id);
            adapter.gauges(&now.cloned().unwrap_or_default(), out);
        }
        self.usage_by_name(gauges, out);
    }

    /// Adapters of the same name share a series: their sum, where the peer shows one of them
    /// (spec/metrics §3.12).
    fn usage_by_name(&self, gauges: &[AdapterGauges], out: &mut Vec<Measurement>) {
        let known = || {
            self.adapters
                .iter()
                .enumerate()
                .filter_map(|(id, known)| known.as_ref().map(|known| (id, &known.name)))
        };
        for (id, name) in known() {
            let is_first = known().all(|(other, same)| same != name || other >= id);
            if !is_first {
                continue;
            }
            let used = gauges.iter().filter(|gauges| {
                let bears = |known: &&Adapter| known.name == *name;
                let known = self.adapters.get(usize::from(gauges.adapter));
                known.and_then(Option::as_ref).filter(bears).is_some()
            });
            let used: u64 = used.map(|gauges| gauges.used_bytes).sum();
            let label = ("l2_name", Text::Shared(name.clone()));
            push(out, Metric::L2Usage, [label], Value::Set(used as f64));
        }
    }

    fn find(&mut self, id: AdapterId) -> Option<&Adapter> {
        let found = self.adapters.get(usize::from(id.0)).and_then(Option::as_ref);
        self.missing |= found.is_none();
        found
    }

    fn name_of(&mut self, id: AdapterId) -> Text {
        self.find(id).map_or(UNKNOWN, |adapter| Text::Shared(adapter.name.clone()))
    }
}

impl Adapter {
    fn labels(&self) -> [Label; 2] {
        let (index, name) = (self.index.clone(), self.name.clone());
        [("adapter_index", Text::Shared(index)), ("l2_name", Text::Shared(name))]
    }

    fn gauges(&mut self, gauges: &AdapterGauges, out: &mut Vec<Measurement>) {
        let AdapterGauges {
            // Taken apart, so that a new gauge is not forgotten.
            adapter: _,
            used_bytes,
            capacity_bytes,
            objects,
            stores_in_flight,
            loads_in_flight,
            loading_bytes,
            stores_waiting,
            is_draining: _,
        } = *gauges;
        let in_flight = [stores_in_flight, loads_in_flight, loading_bytes];
        for (at, (metric, value)) in IN_FLIGHT.into_iter().zip(in_flight).enumerate() {
            self.was_busy[at] |= value > 0;
            if self.was_busy[at] {
                push(out, metric, self.labels(), Value::Set(value as f64));
            }
        }
        let own = [
            (Metric::OwnL2Used, used_bytes),
            (Metric::OwnL2Capacity, capacity_bytes),
            (Metric::OwnL2Objects, objects),
            (Metric::OwnL2StoresWaiting, stores_waiting),
        ];
        for (metric, value) in own {
            push(out, metric, self.labels(), Value::Set(value as f64));
        }
    }
}

pub(super) fn submitted(
    [requests, objects]: [Metric; 2],
    keys: &[FactKey],
    tenants: &mut Tenants,
    out: &mut Vec<Measurement>,
) {
    if !keys.is_empty() {
        add(out, requests, [], keys.len() as u64);
        by_salt(objects, keys, tenants, out);
    }
}

pub(super) fn looked_up(
    tenant: TenantId,
    keys: u32,
    tenants: &mut Tenants,
    out: &mut Vec<Measurement>,
) {
    add(out, Metric::L2PrefetchLookup, [], 1);
    add_by_salt(Metric::L2PrefetchLookupObjects, (tenant, keys.into()), tenants, out);
}

pub(super) fn prefetch_failed(
    keys: &[FactKey],
    why: PrefetchFailure,
    tenants: &mut Tenants,
    out: &mut Vec<Measurement>,
) {
    for (tenant, count) in runs(keys) {
        let model = ("model_name", tenants.find(tenant).model);
        let reason = ("reason", Text::Fixed(why.label()));
        add(out, Metric::L2PrefetchFailure, [model, reason], count);
    }
}

/// Rows of what an adapter has moved in one direction.
struct Moved {
    bytes: Metric,
    duration: Metric,
    throughput: Metric,
}

const STORED: Moved = Moved {
    bytes: Metric::OwnL2StoredBytes,
    duration: Metric::OwnL2StoreDuration,
    throughput: Metric::L2StoreThroughput,
};
const LOADED: Moved = Moved {
    bytes: Metric::OwnL2LoadedBytes,
    duration: Metric::OwnL2LoadDuration,
    throughput: Metric::L2LoadThroughput,
};

/// What took no time has no speed (spec/metrics §3.6).
fn moved(rows: &Moved, name: Text, keys: &[FactKey], took: Duration, out: &mut Vec<Measurement>) {
    let bytes: u64 = keys.iter().map(|key| key.bytes).sum();
    let label = ("l2_name", name);
    add(out, rows.bytes, [label.clone()], bytes);
    observe(out, rows.duration, [label.clone()], seconds(took));
    if bytes > 0 && !took.is_zero() {
        observe(out, rows.throughput, [label], bytes as f64 / seconds(took) / 1e9);
    }
}

fn by_salt(metric: Metric, keys: &[FactKey], tenants: &mut Tenants, out: &mut Vec<Measurement>) {
    runs(keys).for_each(|run| add_by_salt(metric, run, tenants, out));
}

/// The peer leaves `cache_salt` out where there is none.
fn add_by_salt(
    metric: Metric,
    (tenant, count): (TenantId, u64),
    tenants: &mut Tenants,
    out: &mut Vec<Measurement>,
) {
    let salt = tenants.find(tenant).salt;
    match salt.as_str() {
        "" => add(out, metric, [], count),
        _ => add(out, metric, [("cache_salt", salt)], count),
    }
}

const STATES: [AdapterState; 5] = [
    AdapterState::Scanning,
    AdapterState::Ready,
    AdapterState::Tripped,
    AdapterState::Draining,
    AdapterState::Gone,
];
