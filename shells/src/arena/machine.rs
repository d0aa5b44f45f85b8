//! How much memory this process may use: what the machine has, what its control groups (version 1
//! and 2) leave of that, and what is free where shared segments live.

use rustix::fs::{Access, AtFlags, CWD, accessat, statfs, statvfs};
use rustix::io::Errno;
use std::fs;
use std::path::{Component, Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The least of the machine's memory and every limit above this process.
    pub memory_bytes: u64,
    pub shm: SharedMount,
    /// 2 MiB pages that nobody has reserved.
    pub huge_free_bytes: u64,
}

/// The mount on which segments live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedMount {
    /// It takes segments, of so many bytes in all.
    Free(u64),
    Absent,
    /// Read-only, or closed to this user.
    Unwritable(Errno),
    /// A folder on a disk: a segment there would be written back to it.
    NotInMemory,
}

/// Where POSIX shared memory lives on Linux; the client looks here too.
pub const SHM_DIRECTORY: &str = "/dev/shm";
/// The only huge pages that are used.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

impl Machine {
    pub fn read() -> Machine {
        let root = Path::new("/");
        Machine {
            memory_bytes: memory_limit(root),
            shm: shared_mount(Path::new(SHM_DIRECTORY)),
            huge_free_bytes: huge_free_bytes(root),
        }
    }
}

impl SharedMount {
    /// Bytes that segments can still have.
    pub fn free_bytes(self) -> u64 {
        match self {
            SharedMount::Free(bytes) => bytes,
            SharedMount::Absent | SharedMount::Unwritable(_) | SharedMount::NotInMemory => 0,
        }
    }
}

/// The least limit found under `root`, which is `/` outside of tests.
fn memory_limit(root: &Path) -> u64 {
    let machine = machine_memory(root).unwrap_or(u64::MAX);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups.lines().flat_map(|line| group_limits(root, line)).fold(machine, u64::min)
}

/// `MemTotal` of `/proc/meminfo`, which counts in KiB.
fn machine_memory(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The limits of one line of `/proc/self/cgroup` (`number:controllers:path`): that of the group and
/// of every group above it. Inside a container the path may name a group that only the host sees,
/// but the walk ends at the mount, which shows the container's own group. Version 2 has a hard
/// limit and one above which every allocation is slowed to a crawl; neither is to be reached.
fn group_limits(root: &Path, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    let together = format!("sys/fs/cgroup/{controllers}");
    let (mounts, files): ([&str; 2], &[&str]) = if controllers.is_empty() {
        // The second one is where both versions are mounted side by side.
        (["sys/fs/cgroup", "sys/fs/cgroup/unified"], &["memory.max", "memory.high"])
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (["sys/fs/cgroup/memory", &together], &["memory.limit_in_bytes"])
    } else {
        return Vec::new();
    };
    let group = group_path(path);
    let mut limits = Vec::new();
    for mount in mounts {
        for group in group.ancestors() {
            let texts = files.iter().map(|file| root.join(mount).join(group).join(file));
            let texts = texts.filter_map(|file| fs::read_to_string(file).ok());
            // "max" in version 2 and a number near the top of 64 bits in version 1 mean no limit.
            limits.extend(texts.filter_map(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits
}

/// A group below its mount. A process outside of its namespace's root is shown `/../…`: then only
/// the mount itself says something.
fn group_path(path: &str) -> PathBuf {
    let path = Path::new(path.trim_start_matches('/'));
    if path.components().all(|part| matches!(part, Component::Normal(_))) {
        return path.to_owned();
    }
    PathBuf::new()
}

fn shared_mount(mount: &Path) -> SharedMount {
    let Ok(kind) = statfs(mount) else { return SharedMount::Absent };
    if kind.f_type != TMPFS_MAGIC && kind.f_type != RAMFS_MAGIC {
        return SharedMount::NotInMemory;
    }
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    if let Err(error) = accessat(CWD, mount, wanted, AtFlags::EACCESS) {
        return SharedMount::Unwritable(error);
    }
    match statvfs(mount) {
        // A mount without a size of its own reports no blocks: the machine's memory is its limit.
        Ok(mount) if mount.f_blocks == 0 => SharedMount::Free(u64::MAX),
        Ok(mount) => SharedMount::Free(mount.f_bavail.saturating_mul(mount.f_frsize)),
        Err(_) => SharedMount::Absent,
    }
}

fn huge_free_bytes(root: &Path) -> u64 {
    let folder = root.join("sys/kernel/mm/hugepages/hugepages-2048kB");
    let count = |file: &str| -> u64 {
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    // What is reserved is still counted as free until it is touched.
    let free = count("free_hugepages").saturating_sub(count("resv_hugepages"));
    free.saturating_mul(HUGE_PAGE_BYTES)
}

/// Which segments the kernel backs with large pages by itself: the mount's own word, unless the
/// system's setting overrules it.
pub fn transparent_pages(root: &Path) -> String {
    let setting = root.join("sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let setting = fs::read_to_string(setting).unwrap_or_default();
    // The one in force stands in brackets.
    let in_force = setting.split(['[', ']']).nth(1).unwrap_or_default();
    if in_force == "force" || in_force == "deny" {
        return in_force.to_owned();
    }
    let mounts = fs::read_to_string(root.join("proc/self/mounts")).unwrap_or_default();
    // The last line of a mount point is the one that is seen.
    let shm = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some(SHM_DIRECTORY));
    let options = shm.and_then(|line| line.split(' ').nth(3)).unwrap_or_default();
    let huge = options.split(',').find_map(|option| option.strip_prefix("huge="));
    huge.unwrap_or("never").to_owned()
}

const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
const RAMFS_MAGIC: rustix::fs::FsWord = 0x8584_58f6;

#[cfg(test)]
mod tests {
    use super::*;

    /// A root directory with the given files, removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn with(name: &str, files: &[(&str, &str)]) -> Root {
            let root = std::env::temp_dir().join(format!("kvtide-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                let folder = path.parent().expect("a file lies in a folder");
                fs::create_dir_all(folder).expect("the temporary folder can be written");
                fs::write(path, text).expect("the temporary folder can be written");
            }
            Root(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:       32768 kB\nMemFree: 1 kB\n");

    #[test]
    fn without_groups_the_machine_is_the_limit() {
        let root = Root::with("plain", &[MACHINE]);
        assert_eq!(memory_limit(&root.0), 32 << 20);
        assert_eq!(memory_limit(Path::new("/nowhere/at/all")), u64::MAX);
    }

    #[test]
    fn f24_a_version_2_limit_counts_wherever_it_stands_above_us() {
        let root = Root::with(
            "two",
            &[
                MACHINE,
                ("proc/self/cgroup", "0::/pods/engine\n"),
                ("sys/fs/cgroup/pods/engine/memory.max", "max\n"),
                ("sys/fs/cgroup/pods/memory.max", "8388608\n"),
            ],
        );
        assert_eq!(memory_limit(&root.0), 8 << 20);
    }

    #[test]
    fn f24_inside_a_container_the_mount_shows_our_own_limit() {
        let root = Root::with(
            "inside",
            &[
                MACHINE,
                ("proc/self/cgroup", "0::/only/the/host/sees/this\n"),
                ("sys/fs/cgroup/memory.max", "4194304\n"),
            ],
        );
        assert_eq!(memory_limit(&root.0), 4 << 20);
    }

    #[test]
    fn f24_a_version_1_limit_counts_and_its_huge_number_does_not() {
        let files = [
            MACHINE,
            ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/a\nnonsense\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "16777216\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let root = Root::with("one", &files);
        assert_eq!(memory_limit(&root.0), 16 << 20);
    }

    #[test]
    fn f24_the_threshold_that_slows_a_version_2_group_counts_like_its_limit() {
        let files = [
            MACHINE,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "16777216\n"),
            ("sys/fs/cgroup/a/b/memory.high", "max\n"),
            ("sys/fs/cgroup/a/memory.high", "12582912\n"),
        ];
        let root = Root::with("high", &files);
        assert_eq!(memory_limit(&root.0), 12 << 20);
    }

    #[test]
    fn f24_both_versions_side_by_side_and_the_least_of_them() {
        let files = [
            MACHINE,
            ("proc/self/cgroup", "4:memory:/a\n0::/b\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "16777216\n"),
            ("sys/fs/cgroup/unified/b/memory.max", "8388608\n"),
        ];
        let root = Root::with("both", &files);
        assert_eq!(memory_limit(&root.0), 8 << 20);
    }

    #[test]
    fn a_path_that_leaves_the_mount_is_not_followed() {
        let files = [
            MACHINE,
            ("proc/self/cgroup", "0::/../../proc\n"),
            ("proc/memory.max", "4096\n"),
            ("sys/fs/cgroup/memory.max", "8388608\n"),
        ];
        let root = Root::with("leaves", &files);
        assert_eq!(memory_limit(&root.0), 8 << 20);
    }

    #[test]
    fn a_folder_that_is_no_memory_takes_no_segment() {
        assert_eq!(shared_mount(Path::new("/nowhere/at/all")), SharedMount::Absent);
        assert_eq!(shared_mount(Path::new("/proc")), SharedMount::NotInMemory);
        assert_eq!(SharedMount::NotInMemory.free_bytes(), 0);
    }

    #[test]
    fn huge_pages_that_are_reserved_are_not_free() {
        let folder = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let (free, reserved) =
            (format!("{folder}/free_hugepages"), format!("{folder}/resv_hugepages"));
        let root = Root::with("huge", &[(&free, "5\n"), (&reserved, "2\n")]);
        assert_eq!(huge_free_bytes(&root.0), 3 * HUGE_PAGE_BYTES);
        assert_eq!(huge_free_bytes(Path::new("/nowhere/at/all")), 0);
    }

    #[test]
    fn transparent_pages_follow_the_mount_unless_the_system_overrules_it() {
        let setting = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
        let mounts = "tmpfs /dev/shm tmpfs rw 0 0\ntmpfs /dev/shm tmpfs rw,huge=advise 0 0\n";
        let advised = "always within_size advise [never] deny force\n";
        let root = Root::with("thp", &[(setting, advised), ("proc/self/mounts", mounts)]);
        assert_eq!(transparent_pages(&root.0), "advise");
        let denied = "always within_size advise never [deny] force\n";
        let root = Root::with("thp-deny", &[(setting, denied), ("proc/self/mounts", mounts)]);
        assert_eq!(transparent_pages(&root.0), "deny");
        assert_eq!(transparent_pages(Path::new("/nowhere/at/all")), "never");
    }
}
