//! Every interleaving, up to a bounded number of preemptions, of the four ways in which a queue
//! between threads goes wrong: a lost wake-up, a full queue, a shutdown, a dropped end.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kvtide-lanes --release`.
#![cfg(loom)]

use kvtide_lanes::Refused;
use kvtide_lanes::lane::{lane, lane_waking};
use kvtide_lanes::mailbox::mailbox;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

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
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        loop {
            bell.wait();
            let more = mailbox.take(&mut taken);
            all.append(&mut taken);
            if !more {
                break;
            }
        }
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
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        loop {
            bell.wait();
            let more = mailbox.take(&mut taken);
            all.append(&mut taken);
            if !more {
                break;
            }
        }
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
