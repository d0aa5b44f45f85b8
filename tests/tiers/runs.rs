//! Many lookups above disks that fail in every way, by chance: the audit holds after every event,
//! and when all has ended nothing is left (P4).

use crate::bed::{Bed, OBJECT_BYTES, Order, config, digest_of, prompt, setup};
use kvtide_core::config::PrefetchPolicy;
use kvtide_core::event::{Ask, Event, Found, LoadOutcome, TierFault};
use kvtide_core::names::L2Key;
use kvtide_core::rng::Rng;
use kvtide_core::time::Duration;

const RUNS: u64 = 40;
const STEPS: u32 = 300;

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut config = config(12 + rng.below(30));
    config.limits.work_units = [8, 64, 4096][rng.below(3) as usize];
    config.prefetch_max = 1 + rng.below(4) as usize;
    if rng.below(2) == 0 {
        config.prefetch_policy = PrefetchPolicy::Retain;
    }
    config.seed = seed;
    let ranks = 1 + rng.below(2) as u32;
    let mut few = setup("few");
    few.loads_max = 2;
    few.objects_max = 16;
    let adapters = [setup("fs"), few];
    let mut bed = Bed::new(config, ranks, &adapters[..1 + rng.below(2) as usize]);
    for disk in &mut bed.disks {
        for letter in b'a'..b'd' {
            let chunks = rng.below(16) as u32;
            disk.extend(prompt(letter, chunks));
        }
    }
    for _ in 0..STEPS {
        step(&mut bed, &mut rng, ranks);
    }
    bed.end_all();
    bed.pass(Duration::from_secs(40));
    bed.end_all();
    for request in ["r0", "r1", "r2", "r3", "r4", "r5"] {
        bed.ask(Ask::EndSession { request, hashes: &[] });
        bed.work();
    }
    bed.end_all();
    bed.pass(Duration::from_secs(10));
    bed.end_all();
    assert!(bed.engine.is_quiet(), "something is left after seed {seed}");
}

fn step(bed: &mut Bed, rng: &mut Rng, ranks: u32) {
    let request = format!("r{}", rng.below(6));
    let hashes = prompt(b'a' + rng.below(4) as u8, 1 + rng.below(20) as u32);
    let keys = Bed::keys(&request, ranks, None, &hashes);
    match rng.below(20) {
        0..=3 => bed.lookup(&request, ranks, &hashes),
        4..=5 => {
            bed.query(&request);
        }
        6 => {
            bed.ask(Ask::FreeLookupLocks { keys });
        }
        7 => {
            bed.ask(Ask::EndSession { request: &request, hashes: &hashes });
        }
        8 => {
            bed.ask(Ask::Clear { force: rng.below(2) == 0 });
        }
        9 => bed.pass(Duration::from_millis(rng.below(8000))),
        10 => {
            let wait = Duration::from_secs(rng.below(20));
            bed.ask(Ask::WaitPrefetch { request: &request, wait });
        }
        _ if bed.orders.is_empty() => {}
        11..=16 => bed.end(rng.below(bed.orders.len() as u64) as usize),
        _ => {
            let at = rng.below(bed.orders.len() as u64) as usize;
            fail(bed, rng, at);
        }
    }
    if rng.below(3) > 0 {
        bed.work();
    }
}

/// Ends an order in some bad way.
fn fail(bed: &mut Bed, rng: &mut Rng, at: usize) {
    match bed.orders.remove(at) {
        Order::Probe { ticket, keys, .. } => {
            let lies = |_: &L2Key| (rng.below(3) == 0).then_some(Found::of(OBJECT_BYTES));
            let found: Vec<_> = keys.iter().map(lies).collect();
            let found = (rng.below(2) == 0).then_some(&*found);
            bed.handle(Event::ProbeEnded { ticket, found });
        }
        Order::Load { ticket, .. } => {
            let outcome = match rng.below(3) {
                0 => LoadOutcome::Absent,
                1 => LoadOutcome::OtherSize { bytes: 1 },
                _ => LoadOutcome::Failed(TierFault::Io),
            };
            bed.handle(Event::LoadEnded { ticket, outcome });
            // It ends once: saying so again changes nothing.
            bed.handle(Event::LoadEnded { ticket, outcome });
        }
        Order::Digest { ticket, key, .. } => {
            bed.handle(Event::DigestEnded { ticket, digest: digest_of(&key) ^ 1 });
        }
        other => {
            bed.orders.push(other);
            bed.end(bed.orders.len() - 1);
        }
    }
}

#[test]
fn p4_nothing_is_left_whatever_the_disks_did() {
    (0..RUNS).for_each(run);
}
