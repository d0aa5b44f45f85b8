//! What an operator asks for with one `--l2-adapter` (spec/storage §6.3), after its JSON was read
//! and checked.

use kvtide_core::config::PolicyKind;
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
    /// Objects stay when the server ends (`persist_enabled`).
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
        AdapterSpec {
            name: "fs".to_owned(),
            kind: Kind::Files(FilesSpec {
                native: false,
                base_path,
                relative_tmp_dir: None,
                use_odirect: false,
                read_ahead_bytes: None,
                num_workers: 4,
                sync: false,
                without_ring: false,
            }),
            shared: false,
            exclusive: false,
            capacity_bytes: None,
            objects_max: 1 << 20,
            persist_enabled: true,
            eviction: Eviction {
                policy: PolicyKind::Lru,
                watermark_ppm: 900_000,
                ratio_ppm: 100_000,
            },
            queue_depth: 32,
            probe_deadline: Duration::from_secs(5),
            load_deadline: Duration::from_secs(10),
            store_deadline: Duration::from_secs(30),
            on_second_touch: false,
            write_bytes_per_second: 0,
            write_bytes_per_day: 0,
            scrub_bytes_per_second: 0,
            verify: true,
        }
    }
}
