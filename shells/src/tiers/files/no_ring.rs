//! Why there is no ring, and what would change that (F43, F44). Its one invariant: each reason is a
//! sentence that an operator can act on.

use rustix::io::Errno;
use std::fmt;

/// Why there is no ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRing {
    Setup(Errno),
    /// The kernel is too old: it lacks this.
    Lacks(&'static str),
}

impl fmt::Display for NoRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoRing::Setup(Errno::PERM | Errno::ACCESS) => f.write_str(
                "io_uring is not permitted here: allow io_uring_setup, io_uring_enter and \
                 io_uring_register in the container's seccomp profile and set \
                 kernel.io_uring_disabled to 0",
            ),
            NoRing::Setup(Errno::NOSYS) => f.write_str(
                "the kernel offers no io_uring: it is older than 5.1, or a seccomp profile hides \
                 io_uring_setup",
            ),
            NoRing::Setup(Errno::NOMEM) => f.write_str(
                "no memory for even a small io_uring: raise the limit on locked memory \
                 (ulimit -l, LimitMEMLOCK=, --ulimit memlock=)",
            ),
            NoRing::Setup(error) => write!(f, "io_uring cannot be set up: {error}"),
            NoRing::Lacks(what) => {
                write!(f, "io_uring of this kernel has no {what}; it came with Linux 5.19")
            }
        }
    }
}
