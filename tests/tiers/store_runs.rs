//! Stores above disks that fail in every way, by chance, with lookups between them: the audit holds
//! after every event, and when all has ended nothing is left (P4).

use crate::bed::{Bed, OBJECT_BYTES, Order, config, prompt, setup};
use crate::stores::store;
use kvtide_core::config::{AdapterSetup, PolicyKind, StorePolicy};
use kvtide_core::effect::Effect;
use kvtide_core::event::{
    Ask, DeleteOutcome, Event, LoadOutcome, OperatorAsk, Scanned, StoreOutcome, TierFault,
};
use kvtide_core::fact::{AdapterState, Fact};
use kvtide_core::names::{AdapterId, KvRank, Operator, Seal};
use kvtide_core::rng::Rng;
use kvtide_core::time::Duration;

const RUNS: u64 = 40;
const STEPS: u32 = 300;

fn adapter(rng: &mut Rng) -> AdapterSetup<'static> {
    let policies = [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::IsolatedLru, PolicyKind::Noop];
    AdapterSetup {
        is_shared: rng.below(2) == 0,
        keeps_data: rng.below(3) > 0,
        capacity_bytes: (1 + rng.below(40)) * OBJECT_BYTES,
        objects_max: 1 + rng.below(40) as u32,
        policy: policies[rng.below(4) as usize],
        stores_max: 1 + rng.below(4) as u32,
        loads_max: 1 + rng.below(4) as u32,
        on_second_touch: rng.below(4) == 0,
        write_bytes_per_second: rng.below(2) * 3 * OBJECT_BYTES,
        write_bytes_per_day: rng.below(3) / 2 * 40 * OBJECT_BYTES,
        scrub_bytes_per_second: rng.below(2) * 2 * OBJECT_BYTES,
        ..setup("disk")
    }
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut config = config(6 + rng.below(30));
    config.limits.work_units = [8, 64, 4096][rng.below(3) as usize];
    config.limits.demotions = [1, 4, 64][rng.below(3) as usize];
    config.limits.flights = [2, 16, 256][rng.below(3) as usize];
    config.limits.demoting_ppm = [100_000, 500_000, 1_000_000][rng.below(3) as usize];
    if rng.below(2) == 0 {
        config.store_policy = StorePolicy::SkipL1;
    }
    config.seed = seed;
    let setups: Vec<_> = (0..1 + rng.below(3)).map(|_| adapter(&mut rng)).collect();
    let mut bed = Bed::new(config, 1, &setups);
    for _ in 0..STEPS {
        step(&mut bed, &mut rng);
    }
    for adapter in 0..bed.disks.len() as u16 {
        remove(&mut bed, adapter);
    }
    for request in ["r0", "r1", "r2"] {
        bed.ask(Ask::EndSession { request, hashes: &[] });
    }
    for _ in 0..8 {
        bed.work();
        bed.end_all();
        bed.pass(Duration::from_secs(20));
    }
    assert!(bed.engine.adapters_status().is_empty(), "an adapter stays after seed {seed}");
    assert!(bed.engine.is_quiet(), "something is left after seed {seed}");
    balance(&bed, seed);
}

/// I-52: every store that was submitted has ended once.
fn balance(bed: &Bed, seed: u64) {
    let (mut submitted, mut ended) = (0, 0);
    for (fact, _) in &bed.told {
        match fact {
            Fact::L2StoreSubmitted { keys, .. } => submitted += keys.len(),
            Fact::L2StoreEnded { keys, .. } => ended += keys.len(),
            _ => {}
        }
    }
    assert_eq!(submitted, ended, "stores after seed {seed}");
}

fn remove(bed: &mut Bed, adapter: u16) {
    let ask = OperatorAsk::AdapterRemove { adapter: AdapterId(adapter) };
    bed.handle(Event::OperatorAsked { operator: Operator(1), ask });
}

fn step(bed: &mut Bed, rng: &mut Rng) {
    let hashes = prompt(b'a' + rng.below(5) as u8, 1 + rng.below(12) as u32);
    let request = format!("r{}", rng.below(3));
    match rng.below(24) {
        0..=5 => store(bed, &hashes),
        6 => bed.lookup(&request, 1, &hashes),
        7 => {
            bed.ask(Ask::EndSession { request: &request, hashes: &hashes });
        }
        8 => {
            bed.ask(Ask::Clear { force: rng.below(2) == 0 });
        }
        9 => bed.pass(Duration::from_millis(rng.below(40_000))),
        10 => bed.pass(Duration::from_millis(rng.below(2_000))),
        11 => tell_of(bed, rng),
        12 if rng.below(20) == 0 => remove(bed, rng.below(bed.disks.len() as u64) as u16),
        12 => {
            let bytes = rng.below(10) * OBJECT_BYTES;
            let ask = OperatorAsk::QuotaSet { salt: "", bytes };
            bed.handle(Event::OperatorAsked { operator: Operator(1), ask });
        }
        _ if bed.orders.is_empty() => {}
        13..=19 => bed.end(rng.below(bed.orders.len() as u64) as usize),
        _ => fail(bed, rng),
    }
    if rng.below(3) > 0 {
        bed.work();
    }
}

/// A part of a scan, or its end.
fn tell_of(bed: &mut Bed, rng: &mut Rng) {
    let adapter = AdapterId(rng.below(bed.disks.len() as u64) as u16);
    let is_scanning = |status: &kvtide_core::engine::adapters::operator::AdapterStatus| {
        status.id == adapter && status.state != AdapterState::Gone && !status.is_scanned
    };
    if !bed.engine.adapters_status().iter().any(is_scanning) {
        return;
    }
    if rng.below(3) == 0 {
        return bed.handle(Event::AdapterScanEnded { adapter });
    }
    let hashes = prompt(b'a' + rng.below(5) as u8, 1 + rng.below(6) as u32);
    let found: Vec<_> = hashes
        .iter()
        .map(|hash| Scanned {
            model: "llama",
            salt: ["", "x"][rng.below(2) as usize],
            rank: KvRank::of(1, 0).expect("a world of one"),
            group: 0,
            hash: *hash,
            bytes: OBJECT_BYTES,
            seal: (rng.below(2) == 0).then_some(Seal { digest: 1, layout: 2 }),
        })
        .collect();
    bed.disks[usize::from(adapter.0)].extend(hashes);
    bed.handle(Event::AdapterScanned { adapter, found: &found });
}

fn fault(rng: &mut Rng) -> TierFault {
    [TierFault::Io, TierFault::NoSpace, TierFault::Denied, TierFault::Cancelled]
        [rng.below(4) as usize]
}

/// Ends an order in some bad way, and says so twice.
fn fail(bed: &mut Bed, rng: &mut Rng) {
    let at = rng.below(bed.orders.len() as u64) as usize;
    let fault = fault(rng);
    let event = match bed.orders.remove(at) {
        Order::Probe { ticket, .. } => Event::ProbeEnded { ticket, found: None },
        Order::Load { ticket, .. } => {
            Event::LoadEnded { ticket, outcome: LoadOutcome::Failed(fault) }
        }
        Order::Digest { ticket, .. } => {
            Event::DigestEnded { ticket, digest: rng.below(1 << 32) as u32 }
        }
        Order::Other { ticket, effect: Effect::StoreObject { .. } } => {
            let bytes = (1 + rng.below(3)) * OBJECT_BYTES;
            let outcome = match rng.below(4) {
                0 => StoreOutcome::Present { bytes },
                _ => StoreOutcome::Failed(fault),
            };
            Event::StoreEnded { ticket, outcome }
        }
        Order::Other { ticket, effect: Effect::DeleteObject { .. } } => {
            let outcome = match rng.below(3) {
                0 => DeleteOutcome::Absent,
                _ => DeleteOutcome::Failed(fault),
            };
            Event::DeleteEnded { ticket, outcome }
        }
        Order::Other { ticket, .. } => {
            let digest = (rng.below(2) == 0).then(|| rng.below(1 << 32) as u32);
            Event::ScrubEnded { ticket, digest }
        }
    };
    bed.handle(event.clone());
    bed.handle(event);
}

#[test]
fn p4_nothing_is_left_of_stores_whatever_the_disks_did() {
    (0..RUNS).for_each(run);
}
