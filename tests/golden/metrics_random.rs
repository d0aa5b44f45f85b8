//! Any stream of facts gives the same page through the SDK and through the pure aggregator, and a
//! strict reader takes it.

use super::page::assert_same;
use super::{pure_page, sdk_page};
use kvtide::telemetry::FactBatch;
use kvtide_core::fact::{
    Abort, AdapterGauges, AdapterState, EarlyExit, Fact, FactKey, Gauges, InstanceEnd, KeyRange,
    L2LoadEnd, L2Removal, L2StoreEnd, LeaseEnd, LookupStop, NoRoom, PrefetchFailure, ReadFailure,
    Removal, RequestFault, StoreDrop,
};
use kvtide_core::names::{AdapterId, ChunkHash, InstanceId, ScopeId, TenantId};
use kvtide_core::time::{Duration, Instant};
use proptest::prelude::*;

/// Names that a client may send, as unpleasant as they come.
const NAMES: [&str; 6] = ["", "m", "a\"b", "line\nfeed", "back\\slash", "überlang {x=\"y\"} 1.0"];

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

/// Few chunks and tenants, so that they come back. Nobody names the last tenant.
fn key() -> impl Strategy<Value = FactKey> {
    (0..12_u8, 0..5_u32, 0..2_u32).prop_map(|(hash, tenant, rank)| FactKey {
        hash: ChunkHash([hash; 32]),
        bytes: 64,
        scope: ScopeId(tenant * 2 + rank),
        tenant: TenantId(tenant),
    })
}

fn of_keys(keys: KeyRange) -> impl Strategy<Value = Fact> {
    let lease_end = prop::sample::select(&LeaseEnd::ALL[..]);
    prop_oneof![
        Just(Fact::WriteFinished { keys }),
        Just(Fact::StoreFinished { stored: keys, failed: 1 }),
        lease_end.prop_map(move |why| Fact::ReadFinished { keys, why }),
        Just(Fact::Evicted { keys, why: Removal::Pressure }),
        Just(Fact::Evicted { keys, why: Removal::Clear }),
        Just(Fact::WriteRefused { keys, why: NoRoom::Growing }),
        Just(Fact::WriteAborted { keys, why: Abort::ConnectionEnded }),
        Just(Fact::ReadFailed { keys, why: ReadFailure::Layout }),
        (any::<u32>(), 0..90_000_u64).prop_map(move |(bytes, millis)| Fact::Stored {
            keys,
            bytes: bytes.into(),
            took: Duration::from_millis(millis),
        }),
        (any::<u32>(), 0..90_000_000_u64).prop_map(move |(bytes, micros)| Fact::Retrieved {
            keys,
            bytes: bytes.into(),
            took: Duration::from_micros(micros),
        }),
    ]
}

/// Three adapters, of which nobody names the last one.
fn of_tiers(keys: KeyRange) -> impl Strategy<Value = Fact> {
    let took = Duration::from_millis(7);
    (0..3_u16, 0..12_u8).prop_map(move |(adapter, kind)| {
        let adapter = AdapterId(adapter);
        match kind {
            0 => Fact::L2StoreSubmitted { adapter, keys },
            1 => Fact::L2StoreEnded { adapter, keys, end: L2StoreEnd::Stored, took },
            2 => Fact::L2StoreEnded { adapter, keys, end: L2StoreEnd::Io, took },
            3 => Fact::L2StoreDropped { adapter, keys, why: StoreDrop::Evicted },
            4 => Fact::L2LoadSubmitted { adapter, keys },
            5 => Fact::L2LoadEnded { adapter, keys, end: L2LoadEnd::Loaded, took },
            6 => Fact::L2LoadEnded { adapter, keys, end: L2LoadEnd::Absent, took },
            7 => Fact::L2PrefetchFailed { keys, why: PrefetchFailure::L1Oom },
            8 => Fact::L2Removed { adapter, keys, why: L2Removal::Pressure },
            9 => Fact::L2Removed { adapter, keys, why: L2Removal::Digest },
            10 => Fact::L2LookupSubmitted { tenant: TenantId(1), keys: 5, adapters: 2 },
            _ => Fact::L2LookupFound { tenant: TenantId(1), keys: 3 },
        }
    })
}

fn of_adapters() -> impl Strategy<Value = Fact> {
    let gauges = prop::collection::vec((0..3_u16, 0..5_u64, any::<bool>()), 0..4);
    prop_oneof![
        (0..2_u16, name()).prop_map(|(adapter, name)| Fact::AdapterNamed {
            adapter: AdapterId(adapter),
            name: name.into(),
        }),
        (0..3_u16, any::<bool>()).prop_map(|(adapter, ready)| Fact::AdapterChanged {
            adapter: AdapterId(adapter),
            state: if ready { AdapterState::Ready } else { AdapterState::Tripped },
        }),
        gauges.prop_map(|gauges| {
            let adapters = gauges.into_iter().map(|(adapter, busy, is_draining)| AdapterGauges {
                adapter,
                used_bytes: busy * 10,
                stores_in_flight: busy,
                loads_in_flight: busy / 2,
                is_draining,
                ..AdapterGauges::default()
            });
            Fact::Gauges(Box::new(Gauges { adapters: adapters.collect(), ..Gauges::default() }))
        }),
    ]
}

fn other() -> impl Strategy<Value = Fact> {
    prop_oneof![
        (0..4_u32, name(), name()).prop_map(|(tenant, model, salt)| Fact::TenantNamed {
            tenant: TenantId(tenant),
            model: model.into(),
            salt: salt.into(),
        }),
        (0..5_u32, 0..9_u32, 0..9_u32).prop_map(|(tenant, requested, hit)| Fact::LookupTaken {
            tenant: TenantId(tenant),
            requested_chunks: requested + hit,
            hit_chunks: hit,
            l1_hit_chunks: hit / 2,
            hit_keys: hit * 2,
            l1_hit_keys: hit,
            stop: LookupStop::WindowHole,
        }),
        (name(), name()).prop_map(|(model, salt)| Fact::LookupSkipped {
            model: model.into(),
            salt: salt.into(),
            why: EarlyExit::NoGpuContext,
        }),
        any::<bool>().prop_map(|triggered| Fact::EvictionTick {
            used_bytes: 1,
            total_bytes: 2,
            triggered,
        }),
        Just(Fact::InstanceEnded { instance: InstanceId(1), why: InstanceEnd::Replaced }),
        Just(Fact::RequestFaulted { operation: "PING", fault: RequestFault::TableFull }),
        Just(Fact::StaleEnding),
        (any::<u64>(), any::<u32>()).prop_map(|(used, total)| {
            Fact::Gauges(Box::new(Gauges {
                l1_used_bytes: used,
                l1_total_bytes: total.into(),
                l1_objects: 1,
                ..Gauges::default()
            }))
        }),
    ]
}

/// A batch, and the seconds since the one before. Sweeps of what was evicted need long ones.
fn batch() -> impl Strategy<Value = (u64, FactBatch)> {
    let keys = prop::collection::vec(key(), 0..10);
    let wait = prop_oneof![0..20_u64, 250..350_u64];
    (wait, keys).prop_flat_map(|(wait, keys)| {
        let all = KeyRange { start: 0, end: keys.len() as u32 };
        let some = KeyRange { start: all.end / 2, end: all.end };
        let fact = prop_oneof![of_keys(all), of_keys(some), of_tiers(all), other(), of_adapters()];
        prop::collection::vec(fact, 0..4).prop_map(move |facts| {
            (wait, FactBatch { facts, keys: keys.clone(), ..FactBatch::default() })
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_sdk_and_the_pure_aggregator_agree(timed in prop::collection::vec(batch(), 0..40)) {
        let mut now = 0;
        let batches: Vec<FactBatch> = timed
            .into_iter()
            .map(|(wait, batch)| {
                now += wait;
                FactBatch { at: Instant::from_secs(now), ..batch }
            })
            .collect();
        let ours = sdk_page(&batches).filtered(|family, _| {
            !["target_info", "process_", "lmcache_mp_event_bus"]
                .iter()
                .any(|beginning| family.starts_with(beginning))
        });
        assert_same(&ours, &pure_page(&batches), "the SDK's page");
    }
}
