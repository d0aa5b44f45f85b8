//! Where the system refuses a ring, or memory for it, objects come and go all the same, and the
//! status says what would change it.

use super::bed::{Bed, Told, key, pattern};
use kvtide_core::event::{LoadOutcome, StoreOutcome};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Runs on a thread of its own, which takes what was forbidden to it along when it ends.
fn apart(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work).join().expect("the test passes");
}

fn round_trip(bed: &mut Bed) {
    for number in 0..10 {
        let place = bed.place(u64::from(number) * 100_000 / 4096 * 4096, 70_000);
        bed.fill(place, number);
        let ticket = bed.store(key(number), place);
        assert_eq!(bed.end(ticket), Told::Stored(StoreOutcome::Stored));
        bed.fill(place, 255);
        let ticket = bed.load(key(number), place);
        assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Loaded));
        assert!(bed.bytes(place) == pattern(70_000, number));
    }
}

/// From here on this thread, and those it starts, get `error` from `io_uring_setup`.
fn forbid_rings(error: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        // The number of the system call is the first word.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: neither call keeps the program, which is a whole and valid one; both concern only
    // this thread and its children.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
    };
    assert_eq!(refused, 0, "a thread may restrict itself");
}

#[test]
fn f43_without_permission_for_a_ring_threads_do_the_work() {
    for (error, word) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "kernel")] {
        apart(move || {
            forbid_rings(error);
            let mut bed = Bed::new("forbidden", true, false);
            let status = bed.status();
            assert_eq!((status.engine, status.registered), ("threads", false));
            assert!(status.reason.contains(word), "{}", status.reason);
            round_trip(&mut bed);
            let status = bed.status();
            assert_eq!(status.thread_bytes, status.direct_bytes + status.buffered_bytes);
            assert!(status.direct_bytes > 0 && status.registered_direct_bytes == 0, "{status:?}");
        });
    }
}

#[test]
fn f44_with_little_memory_to_lock_transfers_are_unregistered() {
    apart(|| {
        let mut sets = capabilities(None).expect("they can be asked for");
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).expect("a thread may give up what it has");
        let limit = getrlimit(Resource::Memlock);
        let small = Rlimit { current: Some(64 << 10), ..limit };
        setrlimit(Resource::Memlock, small).expect("a limit can be lowered");
        let mut bed = Bed::new("locked", true, false);
        round_trip(&mut bed);
        let status = bed.status();
        if status.engine == "io_uring" {
            assert!(!status.registered, "{status:?}");
            let reason = &status.reason;
            assert!(reason.contains("24.0 MiB") && reason.contains("64 KiB"), "{reason}");
            assert_eq!(status.registered_direct_bytes, 0);
            assert!(status.direct_bytes > 0, "{status:?}");
        }
    });
}
