//! How much memory this process may use: what the machine has, what its control groups (version 1
//! and 2) leave of that, and what is free where shared segments live.

use rustix::fs::statvfs;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The least of the machine's memory and every limit above this process.
    pub memory_bytes: u64,
    /// Free bytes of the mount for shared segments; None where there is no such mount.
    pub shm_free_bytes: Option<u64>,
}

/// Where POSIX shared memory lives on Linux; the client looks here too.
pub const SHM_DIRECTORY: &str = "/dev/shm";

impl Machine {
    pub fn read() -> Machine {
        Machine {
            memory_bytes: memory_limit(Path::new("/")),
            shm_free_bytes: free_bytes(Path::new(SHM_DIRECTORY)),
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
/// but the walk ends at the mount, which shows the container's own group.
fn group_limits(root: &Path, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    let (mount, file) = if controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|controller| controller == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return Vec::new();
    };
    let group = PathBuf::from(path.trim_start_matches('/'));
    let walk = group.ancestors().map(|group| root.join(mount).join(group).join(file));
    // "max" in version 2 and a number near the top of 64 bits in version 1 both mean no limit.
    walk.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).collect()
}

fn free_bytes(mount: &Path) -> Option<u64> {
    let mount = statvfs(mount).ok()?;
    // A mount without a size of its own reports no blocks: the machine's memory is its limit.
    if mount.f_blocks == 0 {
        return Some(u64::MAX);
    }
    Some(mount.f_bavail.saturating_mul(mount.f_frsize))
}

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
    fn free_bytes_of_a_mount_that_is_not_there_are_unknown() {
        assert_eq!(free_bytes(Path::new("/nowhere/at/all")), None);
    }
}
