//! How large L1 becomes and of which kind, decided before anything is mapped. Pure: the machine is
//! an argument.
//!
//! The one invariant: a pool that was asked for by size or by name, for clients that need it, is
//! either that pool or a refusal; only what nobody asked for is replaced, with a warning that names
//! both sizes (F49).

use super::machine::{HUGE_PAGE_BYTES, Machine, SharedMount};
use kvtide_core::config::{PoolKind, TransferModes};
use kvtide_core::limits::{SUPERBLOCK_BYTES_MAX, SUPERBLOCK_BYTES_MIN};
use std::fmt;

/// What the operator asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// `--l1-size-gb`, in bytes.
    pub bytes: Option<u64>,
    /// Whether `--shm-name` was given.
    pub named: bool,
    pub modes: TransferModes,
    /// `--isolated-ipc`: clients see no segment of ours.
    pub isolated: bool,
    /// `--l1-use-hugepages`: private memory in pages of 2 MiB.
    pub huge: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizing {
    pub pool: PoolKind,
    /// A whole number of superblocks.
    pub bytes: u64,
    /// What the operator should know, one sentence each.
    pub warnings: Vec<String>,
}

/// Why there is no L1. Both sizes are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPool {
    AboveMemoryLimit { wanted: u64, limit: u64 },
    MountTooSmall { wanted: u64, free: u64 },
    NoMount(SharedMount),
    HugePagesTooFew { wanted: u64, free: u64 },
}

impl fmt::Display for NoPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPool::AboveMemoryLimit { wanted, limit } => write!(
                f,
                "--l1-size-gb asks for {} but this process may use {} of memory in all",
                Bytes(*wanted),
                Bytes(*limit)
            ),
            NoPool::MountTooSmall { wanted, free } => write!(
                f,
                "L1 needs {} of /dev/shm and {} is free; --supported-transfer-mode engine_driven \
                 with an explicit size or name does not fall back to private memory",
                Bytes(*wanted),
                Bytes(*free)
            ),
            NoPool::NoMount(mount) => write!(
                f,
                "{}; --supported-transfer-mode engine_driven with an explicit size or name does \
                 not fall back to private memory",
                Shortcoming(*mount)
            ),
            NoPool::HugePagesTooFew { wanted, free } => write!(
                f,
                "--l1-use-hugepages: L1 needs {} in pages of 2 MiB and {} of them is free \
                 (vm.nr_hugepages)",
                Bytes(*wanted),
                Bytes(*free)
            ),
        }
    }
}

impl Wanted {
    pub fn decide(&self, machine: Machine) -> Result<Sizing, NoPool> {
        let half = machine.memory_bytes / 2;
        let asked = self.bytes.unwrap_or(half);
        if asked > machine.memory_bytes {
            return Err(NoPool::AboveMemoryLimit { wanted: asked, limit: machine.memory_bytes });
        }
        if self.huge {
            return self.in_huge_pages(half, machine.huge_free_bytes);
        }
        if self.isolated || self.modes == TransferModes::ServerDriven {
            return Ok(Sizing::new(PoolKind::Private, asked));
        }
        let free = machine.shm.free_bytes();
        let usable = free / 10 * 9;
        let (bytes, enough) = match self.bytes {
            Some(bytes) => (bytes, bytes <= free),
            None => (half.min(usable), usable >= half.min(MOUNT_BYTES_MIN)),
        };
        if enough && free > 0 {
            return Ok(Sizing::new(PoolKind::Shared, bytes));
        }
        let explicit = self.bytes.is_some() || self.named;
        if explicit && self.modes == TransferModes::EngineDriven {
            return Err(match machine.shm {
                SharedMount::Free(free) => NoPool::MountTooSmall { wanted: asked, free },
                other => NoPool::NoMount(other),
            });
        }
        let mut sizing = Sizing::new(PoolKind::Private, asked);
        sizing.warnings.push(format!(
            "{}, too little for an L1 of {}: L1 is private memory and payload travels in \
             messages, which is slower; give the container a larger /dev/shm (docker: --shm-size) \
             to share it",
            Shortcoming(machine.shm),
            Bytes(asked)
        ));
        Ok(sizing)
    }

    /// Pages of 2 MiB are set apart for programs that ask for them, and are all there or not.
    fn in_huge_pages(&self, half: u64, free: u64) -> Result<Sizing, NoPool> {
        let wanted = self.bytes.unwrap_or(half.min(free));
        let sizing = Sizing::in_units(PoolKind::Private, wanted, HUGE_PAGE_BYTES);
        if sizing.bytes > free || sizing.bytes == 0 {
            let wanted = self.bytes.unwrap_or(half);
            return Err(NoPool::HugePagesTooFew { wanted, free });
        }
        Ok(sizing)
    }
}

impl Sizing {
    /// Rounds down to whole superblocks (F46), and says so where somebody could miss the rest.
    fn new(pool: PoolKind, asked: u64) -> Sizing {
        Sizing::in_units(pool, asked, SUPERBLOCK_BYTES_MIN)
    }

    /// The same for memory that comes in units of its own, a power of two.
    fn in_units(pool: PoolKind, asked: u64, unit: u64) -> Sizing {
        let unit = superblock_bytes(asked).max(unit);
        Sizing { pool, bytes: asked / unit * unit, warnings: Vec::new() }
    }
}

/// What is wrong with a mount that cannot hold L1.
struct Shortcoming(SharedMount);

impl fmt::Display for Shortcoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SharedMount::Free(free) => write!(f, "/dev/shm has {} free", Bytes(free)),
            SharedMount::Absent => f.write_str("there is no /dev/shm"),
            SharedMount::Unwritable(error) => write!(f, "/dev/shm takes no segment ({error})"),
            SharedMount::NotInMemory => f.write_str("/dev/shm is a folder on a disk"),
        }
    }
}

/// The unit in which a pool of about this size is cut: a power of two, about a 256th of it. Rounded
/// up, so that a pool of whole units is whole in any smaller power of two as well.
pub fn superblock_bytes(pool_bytes: u64) -> u64 {
    let part = pool_bytes.clamp(1, u64::MAX / 2) / 256;
    part.max(1).next_power_of_two().clamp(SUPERBLOCK_BYTES_MIN, SUPERBLOCK_BYTES_MAX)
}

/// A number of bytes as an operator reads it: GiB, or MiB below one.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 1 << 30 {
            write!(f, "{:.2} GiB", self.0 as f64 / (1_u64 << 30) as f64)
        } else {
            write!(f, "{:.1} MiB", self.0 as f64 / (1_u64 << 20) as f64)
        }
    }
}

/// A mount with less than this is the default of a container engine and not meant for a cache: a
/// pool of the default size does not shrink into it.
const MOUNT_BYTES_MIN: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    const NOTHING: Wanted = Wanted {
        bytes: None,
        named: false,
        modes: TransferModes::Auto,
        isolated: false,
        huge: false,
    };

    fn machine(memory_bytes: u64, shm_free_bytes: u64) -> Machine {
        let shm = SharedMount::Free(shm_free_bytes);
        Machine { memory_bytes, shm, huge_free_bytes: 0 }
    }

    fn kind_and_bytes(wanted: Wanted, machine: Machine) -> Result<(PoolKind, u64, usize), NoPool> {
        wanted.decide(machine).map(|sizing| (sizing.pool, sizing.bytes, sizing.warnings.len()))
    }

    const UNUSABLE: [SharedMount; 3] = [
        SharedMount::Absent,
        SharedMount::NotInMemory,
        SharedMount::Unwritable(rustix::io::Errno::ROFS),
    ];

    #[test]
    fn the_default_is_the_least_of_half_the_memory_and_nine_tenths_of_the_mount() {
        let half = kind_and_bytes(NOTHING, machine(64 * GIB, 64 * GIB));
        assert_eq!(half, Ok((PoolKind::Shared, 32 * GIB, 0)));
        let mount = kind_and_bytes(NOTHING, machine(64 * GIB, 10 * GIB));
        assert_eq!(mount, Ok((PoolKind::Shared, 9 * GIB, 0)));
        let small = kind_and_bytes(NOTHING, machine(512 * MIB, 512 * MIB));
        assert_eq!(small, Ok((PoolKind::Shared, 256 * MIB, 0)));
    }

    #[test]
    fn f49_a_mount_that_is_too_small_means_private_memory_and_one_warning_with_both_sizes() {
        let sizing = NOTHING.decide(machine(8 * GIB, 64 * MIB)).expect("nothing was asked for");
        assert_eq!((sizing.pool, sizing.bytes), (PoolKind::Private, 4 * GIB));
        let [warning] = &sizing.warnings[..] else { panic!("one warning: {sizing:?}") };
        assert!(warning.contains("64.0 MiB") && warning.contains("4.00 GiB"), "{warning}");

        let sized = Wanted { bytes: Some(2 * GIB), ..NOTHING };
        let private = kind_and_bytes(sized, machine(8 * GIB, GIB));
        assert_eq!(private, Ok((PoolKind::Private, 2 * GIB, 1)));
        let named = Wanted { named: true, ..NOTHING };
        let private = kind_and_bytes(named, machine(8 * GIB, 64 * MIB));
        assert_eq!(private, Ok((PoolKind::Private, 4 * GIB, 1)));
        for shm in UNUSABLE {
            let gone = kind_and_bytes(NOTHING, Machine { shm, ..machine(GIB, 0) });
            assert_eq!(gone, Ok((PoolKind::Private, 512 * MIB, 1)), "{shm:?}");
        }
    }

    #[test]
    fn f49_what_was_asked_for_explicitly_with_engine_driven_is_refused_with_both_sizes() {
        let engine = Wanted { modes: TransferModes::EngineDriven, ..NOTHING };
        let small = machine(8 * GIB, 64 * MIB);
        assert_eq!(kind_and_bytes(engine, small), Ok((PoolKind::Private, 4 * GIB, 1)));
        let named = Wanted { named: true, ..engine };
        let refusal = NoPool::MountTooSmall { wanted: 4 * GIB, free: 64 * MIB };
        assert_eq!(named.decide(small), Err(refusal));
        let text = refusal.to_string();
        assert!(text.contains("4.00 GiB") && text.contains("64.0 MiB"), "{text}");
        let sized = Wanted { bytes: Some(GIB), ..engine };
        let refusal = NoPool::MountTooSmall { wanted: GIB, free: 64 * MIB };
        assert_eq!(sized.decide(small), Err(refusal));
        for shm in UNUSABLE {
            let gone = Machine { shm, ..machine(8 * GIB, 0) };
            assert_eq!(sized.decide(gone), Err(NoPool::NoMount(shm)));
        }
    }

    #[test]
    fn f24_more_than_the_limit_is_refused_with_both_sizes() {
        let sized = Wanted { bytes: Some(9 * GIB), ..NOTHING };
        let refusal = NoPool::AboveMemoryLimit { wanted: 9 * GIB, limit: 8 * GIB };
        assert_eq!(sized.decide(machine(8 * GIB, 64 * GIB)), Err(refusal));
    }

    #[test]
    fn clients_that_cannot_map_a_segment_get_none() {
        let isolated = Wanted { isolated: true, ..NOTHING };
        let plenty = machine(8 * GIB, 8 * GIB);
        assert_eq!(kind_and_bytes(isolated, plenty), Ok((PoolKind::Private, 4 * GIB, 0)));
        let server = Wanted { modes: TransferModes::ServerDriven, ..NOTHING };
        assert_eq!(kind_and_bytes(server, plenty), Ok((PoolKind::Private, 4 * GIB, 0)));
    }

    #[test]
    fn huge_pages_are_private_whole_and_all_there_or_refused_with_both_sizes() {
        let huge = Wanted { huge: true, ..NOTHING };
        let pages = |free| Machine { huge_free_bytes: free, ..machine(8 * GIB, 8 * GIB) };
        assert_eq!(kind_and_bytes(huge, pages(GIB)), Ok((PoolKind::Private, GIB, 0)));
        assert_eq!(kind_and_bytes(huge, pages(6 * GIB)), Ok((PoolKind::Private, 4 * GIB, 0)));
        let sized = Wanted { bytes: Some(5 * MIB), ..huge };
        assert_eq!(kind_and_bytes(sized, pages(4 * MIB)), Ok((PoolKind::Private, 4 * MIB, 0)));
        let refusal = NoPool::HugePagesTooFew { wanted: 5 * MIB, free: 2 * MIB };
        assert_eq!(sized.decide(pages(2 * MIB)), Err(refusal));
        let text = refusal.to_string();
        assert!(text.contains("5.0 MiB") && text.contains("2.0 MiB"), "{text}");
        let refusal = NoPool::HugePagesTooFew { wanted: 4 * GIB, free: 0 };
        assert_eq!(huge.decide(pages(0)), Err(refusal));
    }

    #[test]
    fn f46_any_size_becomes_whole_superblocks_and_loses_less_than_one() {
        let mut asked: u64 = 1 << 20;
        while asked < 1 << 44 {
            let sizing = Sizing::new(PoolKind::Private, asked);
            let unit = superblock_bytes(asked);
            assert!(unit.is_power_of_two());
            assert_eq!(sizing.bytes % unit, 0);
            assert!(asked - sizing.bytes < unit && sizing.bytes > 0, "{asked}");
            asked = asked * 17 / 13 + 4097;
        }
    }
}
