//! Completions that come late wake the poll, and what never comes back holds nobody else up.

use super::bed::{Bed, Told, key, pattern};
use kvtide_core::event::{LoadOutcome, StoreOutcome, TierFault};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::io::Write;
use std::path::Path;

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a fifo can be made");
}

/// Waits until the thread sleeps in the poll: the third field of its state is `S`, and the number
/// of its system call one of epoll's.
fn until_it_polls(thread: i32) {
    let path = format!("/proc/self/task/{thread}/syscall");
    loop {
        let text = std::fs::read_to_string(&path).expect("threads of ours can be looked at");
        let number = text.split(' ').next().and_then(|number| number.parse::<i64>().ok());
        if number
            .is_some_and(|number| [libc::SYS_epoll_wait, libc::SYS_epoll_pwait].contains(&number))
        {
            return;
        }
        std::thread::yield_now();
    }
}

/// A pipe under an object's name is a device that answers when the test wants it to.
#[test]
fn a_completion_that_comes_while_the_reactor_sleeps_wakes_it() {
    for without_ring in [false, true] {
        let mut bed = Bed::new("late", false, without_ring);
        let without_ring = bed.status().engine != "io_uring";
        let path = bed.path(&key(1));
        make_fifo(&path);
        let place = bed.place(0, 8192);
        let ticket = bed.load(key(1), place);
        bed.turn();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let writer = std::thread::spawn(move || {
            until_it_polls(thread);
            let mut fifo = std::fs::File::options().write(true).open(path).expect("it is there");
            if !without_ring {
                until_it_polls(thread);
                fifo.write_all(&pattern(8192, 3)).expect("it is read");
            }
        });
        let told = bed.end(ticket);
        if without_ring {
            // The call of a thread that reads at an offset does not work on pipes; its end is late
            // all the same.
            assert_eq!(told, Told::Loaded(LoadOutcome::Failed(TierFault::Io)));
        } else {
            assert_eq!(told, Told::Loaded(LoadOutcome::Loaded));
            assert!(bed.bytes(place) == pattern(8192, 3));
        }
        writer.join().expect("the writer has written");
    }
}

#[test]
fn f47_an_object_that_never_comes_holds_nobody_up_and_ends_when_it_is_cancelled() {
    let mut bed = Bed::new("hangs", true, false);
    if bed.status().engine != "io_uring" {
        eprintln!("skipped: {}", bed.status().reason);
        return;
    }
    let hung: Vec<_> = (100..108)
        .map(|number| {
            make_fifo(&bed.path(&key(number)));
            let place = bed.place((16 << 20) + u64::from(number) * 8192, 8192);
            bed.load(key(number), place)
        })
        .collect();
    for number in 0..40 {
        let place = bed.place(u64::from(number) * 65_536, 65_536);
        bed.fill(place, number);
        let ticket = bed.store(key(number), place);
        assert_eq!(bed.end(ticket), Told::Stored(StoreOutcome::Stored));
        let ticket = bed.load(key(number), place);
        assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Loaded));
    }
    for ticket in hung {
        assert!(!bed.has_ended(ticket), "its memory is the device's");
        bed.cancel(ticket);
        assert_eq!(bed.end(ticket), Told::Loaded(LoadOutcome::Failed(TierFault::Cancelled)));
    }
    bed.settle();
}

#[test]
fn f47_a_ring_that_hangs_is_given_up_at_the_end() {
    let mut bed = Bed::new("abandoned", false, false);
    make_fifo(&bed.path(&key(1)));
    let place = bed.place(0, 8192);
    let ticket = bed.load(key(1), place);
    bed.turn();
    assert!(!bed.has_ended(ticket));
    assert!(!bed.tiers.is_idle());
    drop(bed);
}

#[test]
fn what_was_not_begun_is_cancelled_at_once() {
    for without_ring in [false, true] {
        let mut bed = Bed::new("queued", true, without_ring);
        let place = bed.place(0, 8192);
        let tickets: Vec<_> = (0..200).map(|number| bed.store(key(number), place)).collect();
        let last = tickets[199];
        bed.cancel(last);
        assert_eq!(bed.end(last), Told::Stored(StoreOutcome::Failed(TierFault::Cancelled)));
        for ticket in &tickets[..199] {
            assert_eq!(bed.end(*ticket), Told::Stored(StoreOutcome::Stored));
        }
        bed.settle();
        assert_eq!(bed.names().len(), 199);
    }
}
