//! Every interleaving, up to a bounded number of preemptions, of the four ways in which a queue
//! between threads goes wrong: a lost wake-up, a full queue, a shutdown, a dropped end.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kvtide-lanes --release`.
#![cfg(loom)]

use kvtide_lanes::Refused;
use kvtide_lanes::lane::{lane, lane_waking};
use kvtide_lanes::mailbox::{Mailbox, mailbox};
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::time::Duration;

fn explore(scene: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(scene);
}

/// Stands for the poll of a reactor: a flag that stays up until it was waited for. A wake-up that
/// is lost leaves the waiting thread asleep, which loom reports as a deadlock.
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn new() -> Bell {
        Bell(Arc::new((Mutex::new(false), Condvar::new())))
    }

    fn ring(&self) {
        *self.0.0.lock().expect("nobody panics with the lock held") = true;
        self.0.1.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.0.0.lock().expect("nobody panics with the lock held");
        while !*rung {
            rung = self.0.1.wait(rung).expect("nobody panics with the lock held");
        }
        *rung = false;
    }
}

/// Takes whatever comes until the end is told, asleep between two rings.
fn take_all<T>(mailbox: &mut Mailbox<T>, bell: &Bell) -> Vec<T> {
    let (mut all, mut taken) = (Vec::new(), Vec::new());
    loop {
        bell.wait();
        let more = mailbox.take(&mut taken);
        all.append(&mut taken);
        if !more {
            return all;
        }
    }
}

/// A value that counts where it ends.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn f06_no_wake_up_of_the_mailbox_is_lost_with_two_senders() {
    explore(|| {
        let bell = Bell::new();
        let ringing = bell.clone();
        let (first, mut mailbox) = mailbox(4, move || ringing.ring());
        let second = first.clone();
        let senders = [(first, 1_u32), (second, 2)].map(|(sender, value)| {
            thread::spawn(move || sender.put(value).expect("there is room for four"))
        });
        let mut all = take_all(&mut mailbox, &bell);
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        for sender in senders {
            sender.join().expect("a sender ends");
        }
    });
}

#[test]
fn a_full_mailbox_hands_back_and_what_it_accepted_arrives_once() {
    explore(|| {
        let bell = Bell::new();
        let ringing = bell.clone();
        let (sender, mut mailbox) = mailbox(1, move || ringing.ring());
        let sending = thread::spawn(move || {
            let accepted: Vec<u32> = (1..=2).filter(|value| sender.put(*value) == Ok(())).collect();
            accepted
        });
        let all = take_all(&mut mailbox, &bell);
        let accepted = sending.join().expect("the sender ends");
        assert_eq!(all, accepted);
        assert!(accepted.contains(&1), "the first put found room");
    });
}

#[test]
fn a_mailbox_that_goes_away_takes_its_values_with_it() {
    explore(|| {
        let (sender, mailbox) = mailbox(2, || {});
        let value = Arc::new(());
        let put = value.clone();
        let sending = thread::spawn(move || match sender.put(put) {
            Ok(()) => true,
            Err(Refused::Closed(_)) => false,
            Err(Refused::Full(_)) => panic!("there is room for two"),
        });
        drop(mailbox);
        sending.join().expect("the sender ends");
        assert_eq!(Arc::strong_count(&value), 1, "nobody keeps a value that nobody will take");
    });
}

#[test]
fn a_sleeping_consumer_wakes_for_every_value_and_for_the_end() {
    explore(|| {
        let (mut producer, mut consumer) = lane(2);
        let taking = thread::spawn(move || {
            let (mut all, mut taken) = (Vec::new(), Vec::new());
            while consumer.wait(&mut taken) {
                all.append(&mut taken);
            }
            all
        });
        producer.put(1).expect("there is room for two");
        producer.put(2).expect("there is room for two");
        drop(producer);
        assert_eq!(taking.join().expect("the consumer ends"), [1, 2]);
    });
}

#[test]
fn a_full_lane_hands_back_and_keeps_the_order() {
    explore(|| {
        let (mut producer, mut consumer) = lane(1);
        let taking = thread::spawn(move || {
            let (mut all, mut taken) = (Vec::new(), Vec::new());
            while consumer.wait(&mut taken) {
                all.append(&mut taken);
            }
            all
        });
        let accepted: Vec<u32> = (1..=3).filter(|value| producer.put(*value) == Ok(())).collect();
        drop(producer);
        assert_eq!(taking.join().expect("the consumer ends"), accepted);
    });
}

#[test]
fn a_waking_lane_loses_no_wake_up_and_rings_at_the_end() {
    explore(|| {
        let bell = Bell::new();
        let ringing = bell.clone();
        let (mut producer, mut consumer) = lane_waking(2, move || ringing.ring());
        let putting = thread::spawn(move || {
            producer.put(1).expect("there is room for two");
            producer.put(2).expect("there is room for two");
        });
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        loop {
            bell.wait();
            let more = consumer.take(&mut taken);
            all.append(&mut taken);
            if !more {
                break;
            }
        }
        assert_eq!(all, [1, 2]);
        putting.join().expect("the producer ends");
    });
}

#[test]
fn a_consumer_that_goes_away_is_seen_and_leaves_nothing() {
    explore(|| {
        let (mut producer, consumer) = lane(1);
        let gone = Arc::new(AtomicBool::new(false));
        let seen = gone.clone();
        let leaving = thread::spawn(move || {
            drop(consumer);
            seen.store(true, Ordering::Release);
        });
        let value = Arc::new(());
        let was_gone = gone.load(Ordering::Acquire);
        let put = producer.put(value.clone());
        assert!(!was_gone || put.is_err(), "after the end nothing is accepted");
        drop(put);
        leaving.join().expect("the consumer ends");
        assert!(producer.is_closed());
        assert_eq!(Arc::strong_count(&value), 1, "nobody keeps a value that nobody will take");
    });
}

#[test]
fn the_end_is_told_once_the_last_of_the_senders_is_gone_also_of_one_made_late() {
    explore(|| {
        let bell = Bell::new();
        let ringing = bell.clone();
        let (first, mut mailbox) = mailbox(4, move || ringing.ring());
        let sending = thread::spawn(move || {
            let second = first.clone();
            drop(first);
            second.put(1).expect("there is room for four");
        });
        assert_eq!(take_all(&mut mailbox, &bell), [1], "no end is told while a sender is left");
        sending.join().expect("the senders end");
    });
}

#[test]
fn two_senders_at_a_full_mailbox_lose_nothing_and_room_comes_with_taking() {
    explore(|| {
        let bell = Bell::new();
        let ringing = bell.clone();
        let (first, mut mailbox) = mailbox(1, move || ringing.ring());
        let second = first.clone();
        let sending = [(first, 1_u32), (second, 2)].map(|(sender, value)| {
            thread::spawn(move || match sender.put(value) {
                Ok(()) => None,
                Err(refused) => Some(refused.into_value()),
            })
        });
        let mut all = take_all(&mut mailbox, &bell);
        all.extend(sending.map(|sending| sending.join().expect("a sender ends")).iter().flatten());
        all.sort_unstable();
        assert_eq!(all, [1, 2], "a value is taken or comes back");
    });
}

#[test]
fn what_lies_in_a_mailbox_ends_once_with_whichever_end_goes_last() {
    explore(|| {
        let ended = Arc::new(AtomicUsize::new(0));
        let (sender, mut mailbox) = mailbox(2, || {});
        let values = [Counted(ended.clone()), Counted(ended.clone())];
        let leaving = thread::spawn(move || {
            // Accepted or handed back: here or there, it ends.
            values.into_iter().for_each(|value| drop(sender.put(value)));
        });
        let mut taken = Vec::new();
        mailbox.take(&mut taken);
        drop(mailbox);
        drop(taken);
        leaving.join().expect("the sender ends");
        assert_eq!(ended.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn what_lies_in_a_lane_ends_once_with_whichever_end_goes_last() {
    explore(|| {
        let ended = Arc::new(AtomicUsize::new(0));
        let (mut producer, mut consumer) = lane(2);
        producer.put(Counted(ended.clone())).map_err(|_| ()).expect("there is room for two");
        let value = Counted(ended.clone());
        let leaving = thread::spawn(move || drop(producer.put(value)));
        let mut taken = Vec::new();
        assert!(consumer.wait(&mut taken), "one value is there from the first");
        drop(consumer);
        drop(taken);
        leaving.join().expect("the producer ends");
        assert_eq!(ended.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_consumer_asleep_at_an_empty_lane_wakes_when_its_producer_goes() {
    explore(|| {
        let (producer, mut consumer) = lane::<u32>(1);
        let taking = thread::spawn(move || {
            let mut taken = Vec::new();
            consumer.wait(&mut taken)
        });
        drop(producer);
        assert!(!taking.join().expect("the consumer ends"), "nothing more can come");
    });
}

/// The time is never up under loom, so only a value or the end can wake it.
#[test]
fn a_wait_with_a_limit_wakes_for_a_value_and_for_the_end() {
    explore(|| {
        let (mut producer, mut consumer) = lane(2);
        let taking = thread::spawn(move || {
            let (mut all, mut taken) = (Vec::new(), Vec::new());
            while consumer.wait_at_most(&mut taken, Duration::from_secs(1)) {
                all.append(&mut taken);
            }
            all
        });
        producer.put(1).expect("there is room for two");
        drop(producer);
        assert_eq!(taking.join().expect("the consumer ends"), [1]);
    });
}

#[test]
fn a_sender_learns_that_the_reactor_is_gone_and_gets_its_value_back() {
    explore(|| {
        let (sender, mailbox) = mailbox(1, || {});
        let leaving = thread::spawn(move || drop(mailbox));
        let was_closed = sender.is_closed();
        let put = sender.put(7);
        assert!(!was_closed || put == Err(Refused::Closed(7)), "nobody comes back");
        leaving.join().expect("the reactor ends");
        assert_eq!(sender.put(8), Err(Refused::Closed(8)));
    });
}
