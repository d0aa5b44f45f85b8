//! Which lower tiers a seed gives its server, and what goes wrong with them.

use crate::orders::Setup;
use kvtide_core::config::{Config, PolicyKind, PrefetchPolicy, StorePolicy};
use kvtide_core::rng::Rng;
use kvtide_core::time::Duration;

/// Strengths are chances in a million, per order or occasion; zero means that the fault does not
/// exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierFaults {
    /// An order fails: the device or the file system reports an error.
    pub error: u64,
    /// A store finds no room.
    pub full: u64,
    /// An order rests for longer than its deadline, and then goes on.
    pub late: u64,
    /// An order never ends, but for a cancellation or the end of its server.
    pub hang: u64,
    /// Everything hangs for a while.
    pub outage: u64,
    /// Everything fails for a while.
    pub broken: u64,
    /// A cancellation is not heard.
    pub deaf: u64,
    /// An ending is reported once more.
    pub twice: u64,
    /// What is loaded is not what is at rest.
    pub flip: u64,
    /// What is at rest changes.
    pub rot: u64,
    /// Somebody else stores or deletes in the same place.
    pub peer: u64,
    /// Power is lost with the server.
    pub power: u64,
    /// What the device said was safe is torn after that.
    pub lies: bool,
    /// The index is lost with the server.
    pub index_lost: u64,
    /// A scan tells of what is there no more.
    pub stale_scan: u64,
    /// The tier is taken off the roster.
    pub remove: u64,
    /// A tier that was taken off comes back.
    pub rejoin: u64,
}

#[derive(Clone, Debug)]
pub struct TierProfile {
    pub setup: Setup,
    pub faults: TierFaults,
    /// Longest ordinary time of one order.
    pub latency: Duration,
    /// Longest pause between two batches of a scan, and most objects of one.
    pub scan_gap: Duration,
    pub scan_batch: u64,
    /// It joins within this time after its server's start.
    pub joins_within: Duration,
    /// What is done is durable within this time.
    pub flush_within: Duration,
}

/// None, or one to three. What the engine does with them is drawn along.
pub fn draw_tiers(rng: &mut Rng, config: &mut Config) -> Vec<TierProfile> {
    if rng.below(2) == 0 {
        return Vec::new();
    }
    let count = [1, 1, 1, 2, 2, 3][rng.below(6) as usize];
    config.store_policy =
        if rng.below(3) == 0 { StorePolicy::SkipL1 } else { StorePolicy::Default };
    config.prefetch_policy =
        if rng.below(3) == 0 { PrefetchPolicy::Retain } else { PrefetchPolicy::Default };
    config.prefetch_max = [1, 2, 8, 8][rng.below(4) as usize];
    // Per second: from far below what a tier does to far above it.
    config.prefill_tokens_per_second = [0, 0, 0, 50, 5_000][rng.below(5) as usize];
    config.limits.flights = 2_048;
    config.limits.demotions = 512;
    config.limits.loads = 512;
    if rng.below(8) == 0 {
        config.limits.flights = 4 + rng.below(12) as usize;
        config.limits.demotions = 2 + rng.below(12) as usize;
        config.limits.loads = 2 + rng.below(12) as usize;
    }
    config.limits.demoting_ppm = [250_000, 250_000, 20_000, 1_000_000][rng.below(4) as usize];
    (0..count).map(|number| draw_tier(number, rng, config)).collect()
}

fn draw_tier(number: u64, rng: &mut Rng, config: &Config) -> TierProfile {
    let faults = TierFaults::draw(rng);
    let policies = [
        PolicyKind::Lru,
        PolicyKind::Lru,
        PolicyKind::Lru,
        PolicyKind::Arc,
        PolicyKind::IsolatedLru,
        PolicyKind::IsolatedLru,
        PolicyKind::Noop,
    ];
    // Where everything fits, everything is stored once and stays.
    let is_tiny = rng.below(3) > 0;
    let capacity_bytes =
        if is_tiny { config.l1_bytes / (1 + rng.below(4)) } else { config.l1_bytes * 16 };
    let latency = [1_000, 10_000, 60_000][rng.below(3) as usize];
    let deadline =
        |rng: &mut Rng| Duration::from_millis([30, 200, 1_000, 10_000][rng.below(4) as usize]);
    let may_be_wrong = faults.flip > 0 || faults.rot > 0 || faults.lies;
    let credits = |rng: &mut Rng| {
        let most = [3, 64][rng.below(2) as usize];
        1 + rng.below(most) as u32
    };
    let budget = |rng: &mut Rng, of: u64| if rng.below(6) == 0 { of } else { 0 };
    let setup = Setup {
        name: format!("tier-{number}"),
        is_shared: faults.peer > 0,
        keeps_data: rng.below(6) > 0,
        capacity_bytes: capacity_bytes.max(64 << 10),
        objects_max: if rng.below(3) == 0 { 2 + rng.below(30) as u32 } else { 2_048 },
        charge_bytes: [1, 512, 4096][rng.below(3) as usize],
        policy: policies[rng.below(7) as usize],
        watermark_ppm: [300_000, 800_000, 1_000_000][rng.below(3) as usize],
        ratio_ppm: [10_000, 200_000, 1_000_000][rng.below(3) as usize],
        stores_max: credits(rng),
        loads_max: credits(rng),
        probe_deadline: deadline(rng),
        load_deadline: deadline(rng),
        store_deadline: deadline(rng),
        on_second_touch: rng.below(6) == 0,
        write_bytes_per_second: budget(rng, config.l1_bytes / 16),
        write_bytes_per_day: budget(rng, config.l1_bytes * 2),
        scrub_bytes_per_second: if rng.below(3) == 0 { config.l1_bytes / 8 } else { 0 },
        // Where bytes may be wrong they are looked at.
        verify: may_be_wrong || rng.below(4) > 0,
    };
    TierProfile {
        setup,
        faults,
        latency: Duration::from_micros(latency),
        scan_gap: Duration::from_millis([1, 100, 3_000][rng.below(3) as usize]),
        scan_batch: [1, 3, 1_000][rng.below(3) as usize],
        joins_within: Duration::from_secs([0, 0, 1, 30][rng.below(4) as usize]),
        flush_within: Duration::from_millis([1, 500, 20_000][rng.below(3) as usize]),
    }
}

impl TierFaults {
    fn draw(rng: &mut Rng) -> TierFaults {
        // As elsewhere, half of the faults are absent from a run.
        let mut draw = |strongest: u64| {
            if rng.below(2) == 0 { 0 } else { strongest >> rng.below(5) }
        };
        let mut faults = TierFaults {
            error: draw(200_000),
            full: draw(150_000),
            late: draw(150_000),
            hang: draw(60_000),
            outage: draw(10_000),
            broken: draw(10_000),
            deaf: draw(800_000),
            twice: draw(600_000),
            flip: draw(300_000),
            rot: draw(300_000),
            peer: draw(200_000),
            power: draw(1_000_000),
            lies: draw(16) > 0,
            index_lost: draw(600_000),
            stale_scan: draw(600_000),
            remove: draw(30_000),
            rejoin: draw(1_000_000),
        };
        // Nothing tells wrong bytes from right ones where nobody has kept what they were.
        if faults.flip > 0 || faults.rot > 0 || faults.lies {
            faults.index_lost = 0;
        }
        faults
    }
}
