//! What an operator asks for with one `--l2-adapter` (spec/storage §6.3), after its JSON was read
//! and checked.

use kvtide_core::config::{AdapterSetup, PolicyKind};
use kvtide_core::time::Duration;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSpec {
    /// What metrics and status call it.
    pub name: String,
    pub kind: Kind,
    /// Other servers see the same objects (`shared`): told to the coordinator.
    pub shared: bool,
    /// Nobody else stores there: what the table does not name need not be asked for.
    pub exclusive: bool,
    /// Bytes that it may hold (`max_capacity_gb`); None: as much as there is room for.
    pub capacity_bytes: Option<u64>,
    /// Objects that its table can name.
    pub objects_max: u32,
    /// Objects stay when the server ends (`persist_enabled`). False only where they go anyway.
    pub persist_enabled: bool,
    pub eviction: Eviction,
    /// Objects on their way at once, loads and stores together.
    pub queue_depth: u32,
    pub probe_deadline: Duration,
    pub load_deadline: Duration,
    pub store_deadline: Duration,
    pub on_second_touch: bool,
    /// Bytes it may be given; 0: no limit.
    pub write_bytes_per_second: u64,
    pub write_bytes_per_day: u64,
    /// Bytes at rest that are checked; 0: none.
    pub scrub_bytes_per_second: u64,
    /// The digest of what is loaded is compared where it is known.
    pub verify: bool,
}

/// `eviction{eviction_policy,trigger_watermark,eviction_ratio}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub policy: PolicyKind,
    pub watermark_ppm: u64,
    pub ratio_ppm: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Files(FilesSpec),
    Mock(MockSpec),
    Faulty(Box<FaultSpec>),
}

/// `mock`: memory of this process, as slow as a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MockSpec {
    /// What passes in a second (`mock_bandwidth_gb`). Its size is `AdapterSpec::capacity_bytes`.
    pub bytes_per_second: u64,
}

/// `fault_inject`: another tier with faults. Shares are in parts per million.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSpec {
    pub inner: AdapterSpec,
    pub seed: i64,
    /// Objects that are never loaded, by their name (the peer's `rate`).
    pub lost_ppm: u32,
    /// Places in a batch of loads that fail, from its beginning.
    pub gap_indices: Vec<u32>,
    /// The same from its end, as a share of its length.
    pub gap_tails_ppm: Vec<u32>,
    /// Every order ends so much later.
    pub latency: Duration,
    /// Orders that never end.
    pub hang_ppm: u32,
    /// Orders that fail without having reached the tier.
    pub error_ppm: u32,
    /// Stores of which only a part is written, and loads of which only a part is read.
    pub torn_ppm: u32,
    /// Objects with a flipped bit at rest, and loads that flip one on the way.
    pub flip_ppm: u32,
}

/// `fs` and `fs_native`: one file per object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesSpec {
    /// `fs_native`: its files may be padded to whole blocks.
    pub native: bool,
    pub base_path: PathBuf,
    /// Below `base_path`; None: temporary files lie beside the others.
    pub relative_tmp_dir: Option<PathBuf>,
    pub use_odirect: bool,
    /// Bytes read first, and alone, so that the system reads ahead what follows. Without effect on
    /// direct reads.
    pub read_ahead_bytes: Option<u64>,
    /// Threads where there is no ring.
    pub num_workers: u32,
    /// An object is on the device before it gets its name (`sync`).
    pub sync: bool,
    /// Threads, even where a ring could be had.
    pub without_ring: bool,
}

impl AdapterSpec {
    /// `fs` at a path, everything else as the defaults are.
    pub fn files(base_path: PathBuf) -> AdapterSpec {
        let files = FilesSpec {
            native: false,
            base_path,
            relative_tmp_dir: None,
            use_odirect: USE_ODIRECT,
            read_ahead_bytes: None,
            num_workers: NUM_WORKERS,
            sync: false,
            without_ring: false,
        };
        AdapterSpec::new("fs", Kind::Files(files))
    }

    /// What the engine is told of a tier that was opened like this.
    pub fn setup(
        &self,
        capacity_bytes: u64,
        charge_bytes: u32,
        keeps_data: bool,
    ) -> AdapterSetup<'_> {
        let depth = self.queue_depth.max(1);
        AdapterSetup {
            name: &self.name,
            is_shared: !self.exclusive,
            keeps_data,
            capacity_bytes,
            objects_max: self.objects_max,
            charge_bytes,
            policy: self.eviction.policy,
            watermark_ppm: self.eviction.watermark_ppm,
            ratio_ppm: self.eviction.ratio_ppm,
            stores_max: depth,
            loads_max: depth,
            probe_deadline: self.probe_deadline,
            load_deadline: self.load_deadline,
            store_deadline: self.store_deadline,
            on_second_touch: self.on_second_touch,
            write_bytes_per_second: self.write_bytes_per_second,
            write_bytes_per_day: self.write_bytes_per_day,
            scrub_bytes_per_second: self.scrub_bytes_per_second,
            verify: self.verify,
        }
    }

    /// A tier of this kind, everything else as the defaults are.
    pub fn new(name: &str, kind: Kind) -> AdapterSpec {
        AdapterSpec {
            name: name.to_owned(),
            kind,
            shared: false,
            exclusive: false,
            capacity_bytes: None,
            objects_max: OBJECTS_MAX,
            persist_enabled: true,
            eviction: Eviction {
                policy: PolicyKind::Lru,
                watermark_ppm: WATERMARK_PPM,
                ratio_ppm: RATIO_PPM,
            },
            queue_depth: QUEUE_DEPTH,
            probe_deadline: PROBE_DEADLINE,
            load_deadline: LOAD_DEADLINE,
            store_deadline: STORE_DEADLINE,
            on_second_touch: false,
            write_bytes_per_second: 0,
            write_bytes_per_day: 0,
            scrub_bytes_per_second: 0,
            verify: true,
        }
    }
}

/// Direct where the file system lets us: payload should not pass by, and fill, a page cache that
/// competes with L1 for the container's memory. The peer's default is buffered.
pub const USE_ODIRECT: bool = true;
/// The peer's, of `fs_native`.
pub const NUM_WORKERS: u32 = 4;
pub const QUEUE_DEPTH: u32 = 32;
pub const OBJECTS_MAX: u32 = 1 << 20;
/// The peer's, where an `eviction` block leaves them out; every tier has one here (F19).
pub const WATERMARK_PPM: u64 = 800_000;
pub const RATIO_PPM: u64 = 200_000;
/// A lookup waits for these two; the engine behind it computes as well as waits.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(1);
pub const LOAD_DEADLINE: Duration = Duration::from_secs(5);
/// Nobody waits for this one, but for the memory that it holds.
pub const STORE_DEADLINE: Duration = Duration::from_secs(30);
