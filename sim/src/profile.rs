//! What a seed chooses: the size of the world, and which faults exist in it and how strong they
//! are. Most runs have some faults and not others (swarm testing): a fault that is always there
//! hides what happens without it.

use crate::memory::GRAIN_BYTES;
use crate::tierprofile::{TierProfile, draw_tiers};
use kvtide_core::config::{Config, HashAlgorithm, Limits, PolicyKind, PoolKind};
use kvtide_core::names::{Dtype, Layout};
use kvtide_core::pages::{Format, Pages};
use kvtide_core::rng::Rng;
use kvtide_core::time::Duration;

/// Strengths are chances in a million, per occasion; zero means that the fault does not exist.
#[derive(Clone, Debug)]
pub struct Faults {
    /// A client's connection ends, whatever it is doing.
    pub crash: u64,
    /// A copy, body or answer stays unfinished until its connection ends.
    pub stall: u64,
    /// A writer sleeps for longer than the write TTL, then goes on.
    pub sleep: u64,
    /// An ending is reported once more.
    pub stale: u64,
    /// The clock jumps over one of the TTLs.
    pub jump: u64,
    /// A request is dropped by its scheduler without a word.
    pub abandon: u64,
    /// A request takes the id of another one.
    pub reuse: u64,
    /// Releases and ends come twice.
    pub repeat: u64,
    /// Requests that make no sense where they come.
    pub stray: u64,
    pub clear: u64,
    pub forced_clear: u64,
    /// An instance leaves, or comes back as another one.
    pub unregister: u64,
    /// A body is short, malformed or cut.
    pub bad_body: u64,
    /// Ticks come late.
    pub late_tick: u64,
    /// A process stops for longer than every TTL and its reap, and then goes on where it was.
    pub stop: u64,
    /// A worker commits what others hold, or another number of chunks than it was lent.
    pub lie: u64,
    /// A session is ended before its workers have begun to read.
    pub early_end: u64,
    /// Workers read one after the other, each when the session would soon be forgotten.
    pub dawdle: u64,
    /// The server is gone, and another one is there; a chance per event.
    pub restart: u64,
    /// A client comes back without a word to the server about who it is.
    pub unknown_return: u64,
    /// A message of a client that speaks bytes is broken, or ends with its connection.
    pub damage: u64,
    /// A body or an answer rests for longer than one of the TTLs, and then goes on.
    pub slow: u64,
    /// Clients have something to say just when the server has work left over.
    pub rush: u64,
    /// Two requests with the same prompt, which want the same at the same time.
    pub twins: u64,
    /// A client that goes has bytes on their way for a while after that.
    pub trailing: u64,
    /// A commit comes under another request's id.
    pub foreign: u64,
    /// A copy of an engine's blocks fails, or its memory cannot be attached.
    pub copy_fails: u64,
    /// A request names blocks that are not there.
    pub bad_blocks: u64,
    /// An instance registers its memory, or other memory, anew.
    pub anew: u64,
}

#[derive(Clone, Debug)]
pub struct Profile {
    pub seed: u64,
    pub config: Config,
    pub faults: Faults,
    /// Lower tiers, the preferred one first.
    pub tiers: Vec<TierProfile>,
    /// Engine processes: world size, workers per rank, layout.
    pub groups: Vec<GroupProfile>,
    pub documents: u64,
    pub chunks_max: u64,
    /// Shares of a million of workers that send their bytes inline.
    pub inline: u64,
    /// Shares of a million of processes whose requests travel as frames.
    pub bytes: u64,
    /// How far the arena ever grows, and how long a step of it may take.
    pub grown_bytes_max: u64,
    pub grow_step_bytes: u64,
    pub grow_gap: Duration,
    /// Longest ordinary delay of anything.
    pub latency: Duration,
    pub gap: Duration,
    /// Events of act one.
    pub events: u64,
}

#[derive(Clone, Debug)]
pub struct GroupProfile {
    pub model: &'static str,
    pub salt: &'static str,
    pub world_size: u32,
    pub replicas: u32,
    pub layout: Layout,
    /// How the server finds its objects in memory of engines; one engine's blocks are not counted.
    pub pages: Option<Pages>,
    /// Shares of a million of workers whose bytes the server copies.
    pub paged: u64,
}

impl Profile {
    pub fn of(seed: u64) -> Profile {
        let mut rng = Rng::new(seed);
        let faults = Faults::draw(&mut rng.fork(1));
        let mut config = draw_config(seed, &mut rng.fork(2));
        let mut world = rng.fork(3);
        // Where objects are small there are many, and passes over them take several turns.
        let share = [12, 12, 60][rng.fork(5).below(3) as usize];
        let biggest = config.l1_bytes / share / GRAIN_BYTES;
        let groups = (0..1 + world.below(3)).map(|_| draw_group(&mut world, biggest)).collect();
        let mut growth = rng.fork(4);
        let steps = config.l1_bytes >> 20;
        let steps = if growth.below(6) == 0 { 1 + growth.below(steps) } else { steps };
        let mut paged = rng.fork(7);
        let documents = 2 + world.below(8);
        let chunks_max = 2 + world.below(14);
        let mut groups: Vec<GroupProfile> = groups;
        // In a third of the worlds nobody's bytes are copied by the server.
        if paged.below(3) > 0 {
            for group in &mut groups {
                share_memory(&mut paged, group, (&config, biggest, chunks_max));
            }
        }
        if paged.below(4) == 0 {
            config.null_block = None;
        }
        let tiers = draw_tiers(&mut rng.fork(6), &mut config);
        Profile {
            seed,
            tiers,
            faults,
            groups,
            documents,
            chunks_max,
            inline: [0, 0, 300_000, 1_000_000][world.below(4) as usize],
            latency: Duration::from_micros(100 + world.below(20_000)),
            gap: Duration::from_millis(5 + world.below(400)),
            events: 19_500 + world.below(2_000),
            bytes: [0, 0, 500_000, 1_000_000][world.below(4) as usize],
            grown_bytes_max: steps << 20,
            grow_gap: Duration::from_secs([3, 3, 3, 90][growth.below(4) as usize]),
            grow_step_bytes: [1 << 20, 1 << 20, 640 << 10][growth.below(3) as usize],
            config,
        }
    }

    /// The same with fewer events, where many of them are not needed.
    pub fn short(seed: u64) -> Profile {
        Profile { events: 3_000, ..Profile::of(seed) }
    }
}

impl Faults {
    pub fn none() -> Faults {
        Faults {
            crash: 0,
            stall: 0,
            sleep: 0,
            stale: 0,
            jump: 0,
            abandon: 0,
            reuse: 0,
            repeat: 0,
            stray: 0,
            clear: 0,
            forced_clear: 0,
            unregister: 0,
            bad_body: 0,
            late_tick: 0,
            stop: 0,
            lie: 0,
            early_end: 0,
            dawdle: 0,
            restart: 0,
            unknown_return: 0,
            damage: 0,
            slow: 0,
            rush: 0,
            twins: 0,
            trailing: 0,
            foreign: 0,
            copy_fails: 0,
            bad_blocks: 0,
            anew: 0,
        }
    }

    fn draw(rng: &mut Rng) -> Faults {
        // Half of the faults are absent from a run, the others are weak or strong.
        let mut draw = |strongest: u64| {
            if rng.below(2) == 0 { 0 } else { strongest >> rng.below(5) }
        };
        Faults {
            crash: draw(20_000),
            stall: draw(150_000),
            sleep: draw(100_000),
            stale: draw(300_000),
            jump: draw(30_000),
            abandon: draw(200_000),
            reuse: draw(600_000),
            repeat: draw(400_000),
            stray: draw(300_000),
            clear: draw(15_000),
            forced_clear: draw(10_000),
            unregister: draw(15_000),
            bad_body: draw(400_000),
            late_tick: draw(800_000),
            stop: draw(30_000),
            lie: draw(300_000),
            early_end: draw(300_000),
            restart: draw(400),
            unknown_return: draw(800_000),
            damage: draw(100_000),
            slow: draw(100_000),
            rush: draw(600_000),
            twins: draw(400_000),
            trailing: draw(1_000_000),
            foreign: draw(200_000),
            dawdle: draw(200_000),
            copy_fails: draw(200_000),
            bad_blocks: draw(200_000),
            anew: draw(60_000),
        }
    }
}

fn draw_config(seed: u64, rng: &mut Rng) -> Config {
    let policies = [
        PolicyKind::Lru,
        PolicyKind::Lru,
        PolicyKind::Arc,
        PolicyKind::IsolatedLru,
        PolicyKind::Noop,
    ];
    let work_units = [4, 16, 64, 4096][rng.below(4) as usize];
    // The audit walks some tables as large as they may become.
    let mut limits = Limits { work_units, tickets: 2_048, waits: 1_024, ..Limits::default() };
    if rng.below(8) == 0 {
        limits.sessions = 4 + rng.below(12) as usize;
        limits.lease_cells = 16 + rng.below(64) as usize;
        limits.instances = 2 + rng.below(4) as usize;
        limits.told = 1 + rng.below(4) as usize;
        limits.tickets = 4 + rng.below(12) as usize;
        limits.waits = 1 + rng.below(4) as usize;
    }
    let reap_after = [0, 30, 60][rng.below(3) as usize];
    // Some writers are given more time than they may be silent for.
    let write_ttl = (1 + rng.below(20)) * if reap_after > 0 && seed % 4 == 3 { 5 } else { 1 };
    let longest = [3, 20, 20][rng.below(3) as usize];
    let session_ttl = 1 + rng.below(longest);
    let algorithms = [HashAlgorithm::Blake3, HashAlgorithm::Sha256Cbor];
    Config {
        chunk_size: 1 + rng.below(8) as u32,
        hash_algorithm: algorithms[rng.below(2) as usize],
        pool: if rng.below(5) == 0 { PoolKind::Private } else { PoolKind::Shared },
        l1_bytes: (1 + rng.below(4)) << 20,
        l1_align_bytes: [1024, 4096, 65536][rng.below(3) as usize],
        l1_objects_max: 16 + rng.below(240) as usize,
        policy: policies[rng.below(policies.len() as u64) as usize],
        watermark_ppm: [300_000, 800_000, 1_000_000][rng.below(3) as usize],
        ratio_ppm: [10_000, 200_000, 1_000_000][rng.below(3) as usize],
        write_ttl: Duration::from_secs(write_ttl),
        read_ttl: Duration::from_secs(1 + rng.below(10)),
        session_ttl: Duration::from_secs(session_ttl),
        reap_after: Duration::from_secs(reap_after),
        registration_grace: Duration::from_secs(reap_after.max(20 + rng.below(100))),
        seed,
        limits,
        ..Config::default()
    }
}

fn draw_group(rng: &mut Rng, biggest: u64) -> GroupProfile {
    let models = ["model/a", "model/b"];
    let salts = ["", "tenant"];
    let grains = 1 + rng.below(biggest.max(1));
    // With MLA every worker reads the one object of a chunk, which has one plane.
    let is_mla = rng.below(4) == 0;
    let (world_size, replicas) = if is_mla {
        (1, 2 + rng.below(3) as u32)
    } else {
        (1 + rng.below(3) as u32, 1 + (rng.below(3) == 0) as u32)
    };
    let layout = layout_of(grains);
    GroupProfile {
        model: models[rng.below(2) as usize],
        salt: salts[rng.below(2) as usize],
        world_size,
        replicas,
        layout: if is_mla { Layout { planes: 1, hidden: 32, ..layout } } else { layout },
        pages: None,
        paged: 0,
    }
}

/// Some or all workers of a group have memory that the server copies from and to; the others have
/// objects of the same layout.
fn share_memory(rng: &mut Rng, group: &mut GroupProfile, of: (&Config, u64, u64)) {
    let (config, biggest, chunks_max) = of;
    let chunk = config.chunk_size;
    let mut divisor = |of: u32| {
        let all: Vec<u32> = (1..=of).filter(|some| of.is_multiple_of(*some)).collect();
        all[rng.below(all.len() as u64) as usize]
    };
    let tokens_per_block = divisor(chunk);
    // Some store fewer slots than tokens.
    let slots_per_block = tokens_per_block / divisor(tokens_per_block);
    let heads = divisor(4);
    let per_chunk = chunk / tokens_per_block;
    let is_cut = per_chunk > 1 && rng.below(3) == 0;
    let cut = 1 + rng.below(u64::from(per_chunk)) as u32;
    let per_object = if is_cut { cut } else { per_chunk };
    let object_slots = per_object * slots_per_block;
    let planes = group.layout.planes;
    let formats: &[Format] = match planes {
        1 => &[Format::Latent, Format::PackedHead, Format::PackedSlot],
        _ => &[
            Format::CrossLayer,
            Format::PlaneBlockSlot,
            Format::BlockPlaneSlot,
            Format::PlaneBlockHead,
            Format::BlockPlaneHead,
        ],
    };
    let format = formats[rng.below(formats.len() as u64) as usize];
    let most = (biggest / u64::from(object_slots)).max(1);
    let layers = 1 + rng.below(most) as u32;
    let mut pages = Pages {
        format,
        layers,
        tensors: if format == Format::CrossLayer { 1 } else { layers },
        // Every range fits twice, and the null block.
        blocks: 1 + per_chunk * (2 * chunks_max as u32 + rng.below(8) as u32),
        slots_per_block,
        tokens_per_block,
        heads,
        width: 512 / u32::from(planes) / heads,
        planes,
        dtype: group.layout.dtype,
        block_stride_bytes: 0,
        chunk_tokens: chunk,
        object_slots,
    };
    // A grain a slot and layer.
    pages.block_stride_bytes = pages.block_bytes()
        * match format {
            Format::CrossLayer => 2 * u64::from(layers),
            Format::BlockPlaneSlot | Format::BlockPlaneHead => 2,
            _ => 1,
        };
    group.layout = pages.layout();
    group.pages = Some(pages);
    group.paged = [300_000, 700_000, 1_000_000][rng.below(3) as usize];
}

/// A layout of this many grains.
pub fn layout_of(grains: u64) -> Layout {
    let dtype = Dtype::named("bfloat16").expect("a known type");
    Layout { planes: 2, layers: grains as u32, slots: 16, hidden: 16, dtype }
}
