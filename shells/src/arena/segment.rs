//! The name under which L1 lies in shared memory, and who owns it.
//!
//! The one invariant: a live server holds an exclusive `flock` on its segment, so a name whose lock
//! can be had belongs to nobody. Pids decide nothing (F49). A segment is unlinked only under its
//! lock and only while the name still leads to it.

use super::machine::SHM_DIRECTORY;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Gid, Mode, Stat};
use rustix::io::Errno;
use rustix::shm::OFlags;
use rustix::{fs, process, shm};
use std::fmt;

/// How a segment is named and who may map it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentOptions {
    /// `--shm-name`, with or without the prefix; None picks a random name.
    pub name: Option<String>,
    /// `--shm-mode`: permission bits.
    pub mode: u32,
    /// `--shm-group`: the group that owns the segment.
    pub group: Option<u32>,
}

/// A locked segment. Dropping it removes the name and, with the last mapping, the memory.
#[derive(Debug)]
pub struct Segment {
    file: OwnedFd,
    name: String,
    identity: Identity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// Another live server holds the lock.
    Held {
        name: String,
    },
    /// The name is taken by somebody else's segment.
    Foreign {
        name: String,
    },
    /// `--shm-group`, `--shm-mode`: the system refused.
    Permission {
        name: String,
        error: Errno,
    },
    System {
        name: String,
        what: &'static str,
        error: Errno,
    },
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentError::Held { name } => {
                write!(f, "--shm-name: segment {name} is held by another live server")
            }
            SegmentError::Foreign { name } => {
                write!(f, "--shm-name: segment {name} belongs to somebody else")
            }
            SegmentError::Permission { name, error } => {
                write!(f, "--shm-mode or --shm-group cannot be set on segment {name}: {error}")
            }
            SegmentError::System { name, what, error } => {
                write!(f, "cannot {what} segment {name}: {error}")
            }
        }
    }
}

impl Segment {
    /// Creates and locks a segment of its final size, without memory behind it yet. A stale one of
    /// the same name is removed first.
    pub fn create(options: &SegmentOptions, bytes: u64) -> Result<Segment, SegmentError> {
        let mut held = 0;
        for _ in 0..ATTEMPTS_MAX {
            let name = match &options.name {
                Some(name) => full_name(name),
                None => format!("{OWN_PREFIX}{:016x}", crate::entropy::seed()),
            };
            match Segment::try_create(&name, options, bytes)? {
                Attempt::Created(segment) => return Ok(segment),
                Attempt::Raced => {}
                // A server that sweeps holds the lock for an instant; a live one keeps it.
                Attempt::Held if held < HELD_RETRIES => {
                    held += 1;
                    std::thread::sleep(HELD_PAUSE);
                }
                Attempt::Held => return Err(SegmentError::Held { name }),
            }
        }
        let name = options.name.clone().unwrap_or_default();
        Err(SegmentError::System { name, what: "create", error: Errno::EXIST })
    }

    fn try_create(
        name: &str,
        options: &SegmentOptions,
        bytes: u64,
    ) -> Result<Attempt, SegmentError> {
        let failed =
            |what| move |error| SegmentError::System { name: name.to_owned(), what, error };
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let file = match shm::open(name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::EXIST) => return remove_stale(name),
            Err(error) => return Err(failed("create")(error)),
        };
        if fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            // Somebody swept between creating and locking, and is about to remove it.
            return Ok(Attempt::Raced);
        }
        let identity = Identity::of(&fs::fstat(&file).map_err(failed("inspect"))?);
        if Identity::at(name) != Some(identity) {
            return Ok(Attempt::Raced);
        }
        // From here on dropping removes the name again.
        let segment = Segment { file, name: name.to_owned(), identity };
        segment.permit(options)?;
        fs::ftruncate(&segment.file, bytes).map_err(failed("size"))?;
        Ok(Attempt::Created(segment))
    }

    fn permit(&self, options: &SegmentOptions) -> Result<(), SegmentError> {
        let refused = |error| SegmentError::Permission { name: self.name.clone(), error };
        if let Some(group) = options.group {
            fs::fchown(&self.file, None, Some(Gid::from_raw(group))).map_err(refused)?;
        }
        // The creation mask may have taken bits away, so the mode is always set.
        fs::fchmod(&self.file, Mode::from_raw_mode(options.mode)).map_err(refused)
    }

    /// The name that clients are told: without a leading slash.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // A client's cleanup may have removed the name, and another server taken it since.
        if Identity::at(&self.name) == Some(self.identity) {
            shm::unlink(self.name.as_str()).ok();
        }
    }
}

enum Attempt {
    Created(Segment),
    /// Another process was in between: try again.
    Raced,
    /// The lock of an existing segment could not be had.
    Held,
}

/// Which file a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl Identity {
    fn of(stat: &Stat) -> Identity {
        Identity { device: stat.st_dev, inode: stat.st_ino }
    }

    pub(super) fn at(name: &str) -> Option<Identity> {
        let stat = fs::lstat(format!("{SHM_DIRECTORY}/{name}")).ok()?;
        Some(Identity::of(&stat))
    }
}

/// `lmcache_l1_pool_` and the name, the prefix never doubled (spec/http-cli §4.4).
pub fn full_name(name: &str) -> String {
    let name = name.trim_start_matches('/');
    if name.starts_with(PREFIX) { name.to_owned() } else { format!("{PREFIX}{name}") }
}

/// Why a name cannot be a segment's; None when it can.
pub fn fault_of_name(name: &str) -> Option<&'static str> {
    if name.contains(['/', '\\', '\0']) {
        return Some("must not hold '/', '\\' or NUL");
    }
    (full_name(name).len() > NAME_BYTES_MAX).then_some("is longer than 255 bytes with its prefix")
}

/// Removes every segment that a server of this user, by a name of its own choosing, left behind.
/// Returns their names. Segments of the Python server share the general prefix but hold no lock
/// while they live, so only names that this server invented are swept; a name given by an operator
/// is taken over when the same name is asked for again (`take_over`).
pub fn sweep() -> Vec<String> {
    sweep_prefix(OWN_PREFIX)
}

/// Removes what is left behind under a name that an operator gives. Its full name, where there was
/// something; whatever else is in the way is told when the segment is made.
pub fn take_over(name: &str) -> Option<String> {
    if name.is_empty() || fault_of_name(name).is_some() {
        return None;
    }
    let name = full_name(name);
    Identity::at(&name)?;
    matches!(remove_stale(&name), Ok(Attempt::Raced)).then_some(name)
}

fn sweep_prefix(prefix: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(SHM_DIRECTORY) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut swept: Vec<String> = names
        .filter(|name| name.starts_with(prefix))
        .filter(|name| matches!(remove_stale(name), Ok(Attempt::Raced)))
        .collect();
    swept.sort_unstable();
    swept
}

/// Removes an existing segment whose lock can be had; `Raced` then says that the name is free.
fn remove_stale(name: &str) -> Result<Attempt, SegmentError> {
    let failed = |what| move |error| SegmentError::System { name: name.to_owned(), what, error };
    // The folder is everybody's: what lies there under such a name may be a pipe, which must not be
    // waited for, or a link, which must not be followed.
    let flags = fs::OFlags::NOFOLLOW | fs::OFlags::NONBLOCK | fs::OFlags::CLOEXEC;
    let file = match fs::open(format!("{SHM_DIRECTORY}/{name}"), flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Attempt::Raced),
        Err(Errno::ACCESS | Errno::LOOP | Errno::NXIO) => {
            return Err(SegmentError::Foreign { name: name.to_owned() });
        }
        Err(error) => return Err(failed("open")(error)),
    };
    let stat = fs::fstat(&file).map_err(failed("inspect"))?;
    let is_file = fs::FileType::from_raw_mode(stat.st_mode) == fs::FileType::RegularFile;
    if !is_file || stat.st_uid != process::geteuid().as_raw() {
        return Err(SegmentError::Foreign { name: name.to_owned() });
    }
    if fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(Attempt::Held);
    }
    if Identity::at(name) == Some(Identity::of(&stat)) {
        shm::unlink(name).map_err(failed("remove stale"))?;
    }
    Ok(Attempt::Raced)
}

/// What every segment's name begins with, so that clients' tools find it.
const PREFIX: &str = "lmcache_l1_pool_";
/// What the names that this server invents begin with.
const OWN_PREFIX: &str = "lmcache_l1_pool_kvtide_";
const NAME_BYTES_MAX: usize = 255;
const ATTEMPTS_MAX: u32 = 16;
const HELD_RETRIES: u32 = 3;
const HELD_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that no other test and no other run uses.
    fn unique(name: &str) -> String {
        format!("test_{}_{name}", std::process::id())
    }

    fn named(name: &str) -> SegmentOptions {
        SegmentOptions { name: Some(name.to_owned()), mode: 0o600, group: None }
    }

    /// What a killed server leaves: a segment without a lock.
    fn leave_behind(name: &str) -> Identity {
        let mut segment = Segment::create(&named(name), 4096).expect("the name is free");
        let identity = segment.identity;
        segment.identity = Identity { device: 0, inode: 0 };
        drop(segment);
        assert_eq!(Identity::at(&full_name(name)), Some(identity), "the name is left behind");
        identity
    }

    #[test]
    fn the_prefix_is_never_doubled_and_bad_names_are_named() {
        assert_eq!(full_name("x"), "lmcache_l1_pool_x");
        assert_eq!(full_name("lmcache_l1_pool_x"), "lmcache_l1_pool_x");
        assert_eq!(fault_of_name("x"), None);
        assert!(fault_of_name("a/b").is_some());
        assert!(fault_of_name("a\\b").is_some());
        assert!(fault_of_name(&"x".repeat(240)).is_some());
    }

    #[test]
    fn a_segment_has_its_size_and_mode_at_once_and_no_memory_and_goes_with_its_owner() {
        let name = unique("size");
        let options = SegmentOptions { mode: 0o640, ..named(&name) };
        let segment = Segment::create(&options, 1 << 30).expect("the name is free");
        assert_eq!(segment.name(), full_name(&name));
        let stat = fs::fstat(&segment).expect("the segment is open");
        assert_eq!(stat.st_size, 1 << 30);
        assert_eq!(stat.st_mode & 0o777, 0o640);
        assert_eq!(stat.st_blocks, 0);
        let name = segment.name().to_owned();
        drop(segment);
        assert_eq!(Identity::at(&name), None);
    }

    #[test]
    fn f49_a_name_held_by_a_live_server_is_refused_and_left_alone() {
        let name = unique("held");
        let segment = Segment::create(&named(&name), 4096).expect("the name is free");
        let second = Segment::create(&named(&name), 4096);
        assert_eq!(second.err(), Some(SegmentError::Held { name: full_name(&name) }));
        assert_eq!(Identity::at(segment.name()), Some(segment.identity));
    }

    #[test]
    fn f49_a_segment_left_behind_is_replaced_under_the_same_name() {
        let name = unique("stale");
        let stale = leave_behind(&name);
        let segment = Segment::create(&named(&name), 8192).expect("nobody holds it");
        assert_ne!(segment.identity, stale);
        assert_eq!(Identity::at(segment.name()), Some(segment.identity));
    }

    #[test]
    fn f49_the_sweep_takes_what_is_stale_and_leaves_what_is_held() {
        let prefix = full_name(&unique("sweep_"));
        let held = Segment::create(&named(&format!("{prefix}held")), 4096).expect("free");
        leave_behind(&format!("{prefix}stale"));
        assert_eq!(sweep_prefix(&prefix), [format!("{prefix}stale")]);
        assert_eq!(Identity::at(held.name()), Some(held.identity));
        assert_eq!(sweep_prefix(&prefix), [""; 0]);
    }

    #[test]
    fn f49_a_name_is_taken_over_from_the_dead_and_from_nobody_else() {
        let (stale, held) = (unique("dead"), unique("alive"));
        leave_behind(&stale);
        assert_eq!(take_over(&stale), Some(full_name(&stale)));
        assert_eq!(Identity::at(&full_name(&stale)), None);
        assert_eq!(take_over(&stale), None, "nothing is there any more");
        let segment = Segment::create(&named(&held), 4096).expect("the name is free");
        assert_eq!(take_over(&held), None);
        assert_eq!(Identity::at(segment.name()), Some(segment.identity));
        assert_eq!((take_over(""), take_over("../x")), (None, None));
    }

    #[test]
    fn f49_links_and_pipes_under_such_names_are_neither_followed_nor_waited_for() {
        let prefix = full_name(&unique("odd_"));
        let held = Segment::create(&named(&format!("{prefix}held")), 4096).expect("free");
        let path = |name: &str| format!("{SHM_DIRECTORY}/{prefix}{name}");
        std::os::unix::fs::symlink(path("held"), path("link")).expect("links can be made");
        fs::mknodat(fs::CWD, path("pipe"), fs::FileType::Fifo, Mode::RUSR, 0)
            .expect("so can pipes");
        assert_eq!(sweep_prefix(&prefix), [""; 0]);
        for name in ["link", "pipe"] {
            let name = format!("{prefix}{name}");
            let taken = Segment::create(&named(&name), 4096);
            assert_eq!(taken.err(), Some(SegmentError::Foreign { name }));
        }
        assert_eq!(Identity::at(held.name()), Some(held.identity));
        for name in ["link", "pipe"] {
            std::fs::remove_file(path(name)).expect("the test made it");
        }
    }

    #[test]
    fn a_name_that_now_leads_elsewhere_is_not_unlinked() {
        let name = unique("elsewhere");
        let first = Segment::create(&named(&name), 4096).expect("the name is free");
        shm::unlink(first.name()).expect("a client's cleanup removes the name");
        let second = Segment::create(&named(&name), 4096).expect("the name is free again");
        drop(first);
        assert_eq!(Identity::at(second.name()), Some(second.identity));
    }
}
