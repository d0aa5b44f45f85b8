//! What a run is a function of, beside its events (design P6).

use crate::limits;
use crate::time::Duration;
use alloc::string::String;

/// L1 eviction order (`--eviction-policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    Lru,
    Arc,
    IsolatedLru,
    Noop,
}

/// Chunk hash (`--hash-algorithm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    Blake3,
    Sha256Cbor,
}

/// How clients reach L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// A named segment that clients map.
    Shared,
    /// Private memory: payload travels in the messages (pickle).
    Private,
}

/// Which transfer families are served (`--supported-transfer-mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferModes {
    Auto,
    EngineDriven,
    ServerDriven,
}

/// What happens to an object in L1 when a lower tier has it (`--l2-store-policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorePolicy {
    /// It goes to every adapter and stays in L1.
    Default,
    /// It leaves L1 when every adapter has answered and one that keeps data has it.
    SkipL1,
}

/// What happens to an object that was loaded from a lower tier (`--l2-prefetch-policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchPolicy {
    /// It leaves L1 with its last lease, unless it is wanted a second time.
    Default,
    Retain,
}

/// What the engine is told of one lower tier when it joins the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterSetup<'a> {
    /// What metrics call it (`l2_name`).
    pub name: &'a str,
    /// Its files are other servers' too: names that are not in its table are asked for.
    pub is_shared: bool,
    /// It keeps what it is given. A tier that only says so may not cost L1 its copy (I-22).
    pub keeps_data: bool,
    /// Bytes that it may hold.
    pub capacity_bytes: u64,
    /// Objects that its table can name.
    pub objects_max: u32,
    /// Bytes at rest are whole multiples of this.
    pub charge_bytes: u32,
    pub policy: PolicyKind,
    /// Start evicting at this fill, parts per million; then free this share of what is held.
    pub watermark_ppm: u64,
    pub ratio_ppm: u64,
    /// Objects and bytes on their way at once.
    pub stores_max: u32,
    pub loads_max: u32,
    /// An answer that takes longer is a miss, a failed store or a failed load.
    pub probe_deadline: Duration,
    pub load_deadline: Duration,
    pub store_deadline: Duration,
    /// Objects are stored when they are stored into L1 for the second time.
    pub on_second_touch: bool,
    /// Bytes it may be given in a second and in a day; 0: no limit.
    pub write_bytes_per_second: u64,
    pub write_bytes_per_day: u64,
    /// Bytes at rest that are read again in a second to be checked; 0: none.
    pub scrub_bytes_per_second: u64,
    /// The digest of what is loaded is compared where it is known.
    pub verify: bool,
}

/// Bounds of the engine's tables. Production uses the defaults from `limits.rs`; simulation and
/// tests choose small ones, so that full tables and work over several turns are met often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cells that one `handle` may visit.
    pub work_units: usize,
    pub sessions: usize,
    pub lease_cells: usize,
    pub instances: usize,
    pub told: usize,
    pub tickets: usize,
    pub waits: usize,
    /// Share of L1 that clients may hold for writing at once, parts per million.
    pub lent_ppm: u64,
    /// Effects of lower tiers in flight.
    pub flights: usize,
    /// Objects between their commit and the end of their last store below L1.
    pub demotions: usize,
    /// Share of L1 that these may keep from being evicted, parts per million.
    pub demoting_ppm: u64,
    /// Objects on their way into L1.
    pub loads: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            work_units: limits::WORK_UNITS,
            sessions: limits::SESSIONS_MAX,
            lease_cells: limits::LEASE_CELLS_MAX,
            instances: limits::INSTANCES_MAX,
            told: limits::TOLD_MAX,
            tickets: limits::TICKETS_MAX,
            waits: limits::WAITS_MAX,
            lent_ppm: limits::LENT_PPM_MAX,
            flights: limits::FLIGHTS_MAX,
            demotions: limits::DEMOTIONS_MAX,
            demoting_ppm: limits::DEMOTING_PPM_MAX,
            loads: limits::LOADS_MAX,
        }
    }
}

impl Limits {
    /// Every table holds something, and its entries and its timers have 32-bit names.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Limits {
            // Taken apart, so that a new limit is not forgotten.
            work_units,
            sessions,
            lease_cells,
            instances,
            told,
            tickets,
            waits,
            lent_ppm,
            flights,
            demotions,
            demoting_ppm,
            loads,
        } = *self;
        let tables = [
            ("limits.work_units", work_units, 2),
            ("limits.sessions", sessions, 1),
            ("limits.lease_cells", lease_cells, 1),
            ("limits.instances", instances, 1),
            ("limits.told", told, 1),
            ("limits.tickets", tickets, 1),
            ("limits.waits", waits, 1),
            ("limits.flights", flights, 1),
            ("limits.demotions", demotions, 1),
            ("limits.loads", loads, 1),
        ];
        for (field, entries, least) in tables {
            if entries < least {
                let rule = if least == 1 { "is at least 1" } else { "is at least 2" };
                return Err(ConfigError { field, rule });
            }
            if entries > TABLE_ENTRIES_MAX {
                return Err(ConfigError { field, rule: "is at most 268435456" });
            }
        }
        for (field, ppm) in [("limits.lent_ppm", lent_ppm), ("limits.demoting_ppm", demoting_ppm)] {
            if ppm == 0 || ppm > 1_000_000 {
                return Err(ConfigError { field, rule: "lies in 1..=1000000" });
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct Config {
    pub chunk_size: u32,
    pub hash_algorithm: HashAlgorithm,
    pub transfer_modes: TransferModes,
    pub pool: PoolKind,
    /// L1 bytes when fully grown: a whole number of superblocks.
    pub l1_bytes: u64,
    /// Allocations are rounded up to this; a power of two.
    pub l1_align_bytes: u64,
    /// Entries of the object table (`--l1-objects-max`).
    pub l1_objects_max: usize,
    pub policy: PolicyKind,
    /// Start evicting at this fill, parts per million.
    pub watermark_ppm: u64,
    /// Share of allocated bytes freed per pass, parts per million.
    pub ratio_ppm: u64,
    pub write_ttl: Duration,
    pub read_ttl: Duration,
    pub session_ttl: Duration,
    /// Silence after which an instance that has pinged is dropped; zero turns it off.
    pub reap_after: Duration,
    /// The same for an instance that never pinged.
    pub registration_grace: Duration,
    pub store_policy: StorePolicy,
    pub prefetch_policy: PrefetchPolicy,
    /// Lookups that load from lower tiers at once (`--l2-prefetch-max-in-flight`).
    pub prefetch_max: usize,
    /// A load that would take longer than computing its tokens anew is not made; 0: every load is
    /// (`--prefill-tokens-per-second`).
    pub prefill_tokens_per_second: u64,
    /// Chunks all of whose blocks have this id hold nothing (`--null-block-id`).
    pub null_block: Option<u32>,
    /// Seed of every hasher and sampler.
    pub seed: u64,
    /// Changes at each start.
    pub incarnation: u64,
    /// Wall clock at `Instant::ZERO`, nanoseconds since 1970, for facts that leave the process.
    pub wall_nanos: u64,
    /// `--instance-id`, shown in `target_info`.
    pub server_id: String,
    pub limits: Limits,
    /// The bug that is planted; 0: none.
    #[cfg(feature = "planted")]
    pub planted: u32,
}

impl Default for Config {
    /// The peer's defaults (spec/http-cli §1.2) on a 64 MiB pool.
    fn default() -> Config {
        Config {
            chunk_size: 256,
            hash_algorithm: HashAlgorithm::Blake3,
            transfer_modes: TransferModes::Auto,
            pool: PoolKind::Shared,
            l1_bytes: 64 << 20,
            l1_align_bytes: 4096,
            l1_objects_max: 1024,
            policy: PolicyKind::Lru,
            watermark_ppm: 800_000,
            ratio_ppm: 200_000,
            write_ttl: Duration::from_secs(600),
            read_ttl: Duration::from_secs(300),
            session_ttl: Duration::from_secs(600),
            reap_after: Duration::from_secs(120),
            registration_grace: Duration::from_secs(3600),
            store_policy: StorePolicy::Default,
            prefetch_policy: PrefetchPolicy::Default,
            prefetch_max: 8,
            prefill_tokens_per_second: 0,
            null_block: Some(0),
            seed: 0,
            incarnation: 1,
            wall_nanos: 0,
            server_id: String::new(),
            limits: Limits::default(),
            #[cfg(feature = "planted")]
            planted: crate::planted::DEFAULT,
        }
    }
}

/// A configuration field that cannot be, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub field: &'static str,
    pub rule: &'static str,
}

impl Config {
    pub fn check(&self) -> Result<(), ConfigError> {
        let rules: &[(bool, &str, &str)] = &[
            (self.chunk_size >= 1, "--chunk-size", "is at least 1"),
            (self.l1_align_bytes.is_power_of_two(), "--l1-align-bytes", "is a power of two"),
            (self.l1_align_bytes >= 64, "--l1-align-bytes", "is at least 64"),
            (self.l1_align_bytes <= 1 << 20, "--l1-align-bytes", "is at most 1 MiB"),
            (self.l1_bytes >= 1 << 20, "--l1-size-gb", "is at least 1 MiB"),
            (self.l1_bytes <= 1 << 50, "--l1-size-gb", "is at most 1 PiB"),
            (self.l1_objects_max >= 1, "--l1-objects-max", "is at least 1"),
            (self.l1_objects_max <= TABLE_ENTRIES_MAX, "--l1-objects-max", "is at most 268435456"),
            (self.watermark_ppm <= 1_000_000, "--eviction-trigger-watermark", "lies in 0..1"),
            (self.ratio_ppm <= 1_000_000, "--eviction-ratio", "lies in 0..1"),
            (!self.write_ttl.is_zero(), "--l1-write-ttl-seconds", "is more than 0"),
            (!self.read_ttl.is_zero(), "--l1-read-ttl-seconds", "is more than 0"),
            (!self.session_ttl.is_zero(), "--session-ttl-seconds", "is more than 0"),
            (self.prefetch_max >= 1, "--l2-prefetch-max-in-flight", "is at least 1"),
            (
                self.reap_after.is_zero() || self.reap_after >= Duration::from_secs(30),
                "--worker-reap-timeout-seconds",
                "is 0 or at least 30",
            ),
            (
                self.registration_grace >= self.reap_after,
                "--worker-registration-grace-seconds",
                "is at least the reap timeout",
            ),
        ];
        match rules.iter().find(|(holds, _, _)| !holds) {
            Some((_, field, rule)) => Err(ConfigError { field, rule }),
            None => self.limits.check(),
        }
    }

    /// Bytes of L1 that may wait for their store below it without being evicted.
    pub fn demoting_bytes_max(&self) -> u64 {
        (self.l1_bytes as u128 * self.limits.demoting_ppm as u128 / 1_000_000) as u64
    }

    /// Bytes of L1 that clients may hold for writing at once.
    pub fn lent_bytes_max(&self) -> u64 {
        (self.l1_bytes as u128 * self.limits.lent_ppm as u128 / 1_000_000) as u64
    }
}

/// Entries of any one table: two tickets per copy and all timers together still have 32-bit names.
const TABLE_ENTRIES_MAX: usize = 1 << 28;

#[cfg(test)]
mod tests {
    use super::*;

    type Break = fn(&mut Config, usize);

    #[test]
    fn p3_every_limit_is_checked_and_named() {
        let breaks: [(&str, Break); 12] = [
            ("limits.work_units", |config, value| config.limits.work_units = value),
            ("limits.sessions", |config, value| config.limits.sessions = value),
            ("limits.lease_cells", |config, value| config.limits.lease_cells = value),
            ("limits.instances", |config, value| config.limits.instances = value),
            ("limits.told", |config, value| config.limits.told = value),
            ("limits.tickets", |config, value| config.limits.tickets = value),
            ("limits.waits", |config, value| config.limits.waits = value),
            ("limits.lent_ppm", |config, value| config.limits.lent_ppm = value as u64),
            ("limits.flights", |config, value| config.limits.flights = value),
            ("limits.demotions", |config, value| config.limits.demotions = value),
            ("limits.demoting_ppm", |config, value| config.limits.demoting_ppm = value as u64),
            ("limits.loads", |config, value| config.limits.loads = value),
        ];
        assert_eq!(Config::default().check(), Ok(()));
        for (field, set) in breaks {
            for value in [0, usize::MAX] {
                let mut config = Config::default();
                set(&mut config, value);
                let named = config.check().expect_err("no table has this size").field;
                assert_eq!(named, field, "{value}");
            }
        }
    }

    #[test]
    fn f46_sizes_that_no_table_can_have_are_named_by_their_flag() {
        let breaks: [(&str, Break, usize); 7] = [
            ("--chunk-size", |config, value| config.chunk_size = value as u32, 0),
            ("--l1-align-bytes", |config, value| config.l1_align_bytes = value as u64, 96),
            ("--l1-align-bytes", |config, value| config.l1_align_bytes = value as u64, 2 << 20),
            ("--l1-size-gb", |config, value| config.l1_bytes = value as u64, 4096),
            ("--l1-size-gb", |config, value| config.l1_bytes = value as u64, usize::MAX),
            ("--l1-objects-max", |config, value| config.l1_objects_max = value, 0),
            ("--l1-objects-max", |config, value| config.l1_objects_max = value, 1 << 29),
        ];
        for (field, set, value) in breaks {
            let mut config = Config::default();
            set(&mut config, value);
            assert_eq!(config.check().map_err(|error| error.field), Err(field), "{value}");
        }
    }
}
