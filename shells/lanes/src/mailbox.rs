//! Many threads put, one reactor takes. Taking empties the mailbox, so one wake-up is enough for
//! everything that was put before it.

use crate::queue::{Queue, Refused};
use crate::sync::Arc;

/// A mailbox for `capacity` values. `wake` is called after a put into an empty mailbox and after
/// the last sender is gone; it must not wait.
pub fn mailbox<T>(
    capacity: usize,
    wake: impl Fn() + Send + Sync + 'static,
) -> (Sender<T>, Mailbox<T>) {
    let queue = Queue::new(capacity, Some(Box::new(wake)));
    (Sender { queue: queue.clone() }, Mailbox { queue })
}

/// Puts values in. Clone one per thread.
pub struct Sender<T> {
    queue: Arc<Queue<T>>,
}

impl<T> Sender<T> {
    /// Never waits: without room the value comes back.
    pub fn put(&self, value: T) -> Result<(), Refused<T>> {
        self.queue.put(value)
    }

    /// Whether nobody takes any more.
    pub fn is_closed(&self) -> bool {
        !self.queue.is_receiving()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.queue.add_sender();
        Sender { queue: self.queue.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.queue.remove_sender();
    }
}

/// The reactor's end.
pub struct Mailbox<T> {
    queue: Arc<Queue<T>>,
}

impl<T> Mailbox<T> {
    /// Replaces what is in `into` by everything that was put. False when every sender is gone and
    /// nothing will come after what is now in `into`. A reactor that does not handle all of it at
    /// once must come back by itself: nobody wakes it for what it has already taken.
    pub fn take(&mut self, into: &mut Vec<T>) -> bool {
        self.queue.take(into)
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.queue.stop_receiving();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn counted(capacity: usize) -> (Sender<u32>, Mailbox<u32>, std::sync::Arc<AtomicUsize>) {
        let wakes = std::sync::Arc::new(AtomicUsize::new(0));
        let seen = wakes.clone();
        let (sender, mailbox) = mailbox(capacity, move || {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        (sender, mailbox, wakes)
    }

    #[test]
    fn one_wake_up_for_everything_put_before_it() {
        let (sender, mut mailbox, wakes) = counted(4);
        for value in 0..3 {
            assert_eq!(sender.put(value), Ok(()));
        }
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        let mut taken = Vec::new();
        assert!(mailbox.take(&mut taken));
        assert_eq!(taken, [0, 1, 2]);
        assert_eq!(sender.put(3), Ok(()));
        assert_eq!(wakes.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn full_hands_the_value_back_and_room_comes_with_taking() {
        let (sender, mut mailbox, _) = counted(2);
        assert_eq!(sender.put(1), Ok(()));
        assert_eq!(sender.put(2), Ok(()));
        assert_eq!(sender.put(3), Err(Refused::Full(3)));
        let mut taken = vec![99];
        assert!(mailbox.take(&mut taken));
        assert_eq!(taken, [1, 2], "what was left in the list is not told twice");
        assert_eq!(sender.put(3), Ok(()));
    }

    #[test]
    fn both_sides_see_the_end_of_the_other() {
        let (sender, mut mailbox, wakes) = counted(2);
        let second = sender.clone();
        assert_eq!(second.put(7), Ok(()));
        drop(sender);
        assert_eq!(wakes.load(Ordering::Relaxed), 1, "one sender is left");
        drop(second);
        assert_eq!(wakes.load(Ordering::Relaxed), 2, "the last sender wakes");
        let mut taken = Vec::new();
        assert!(!mailbox.take(&mut taken), "the end is told beside the last value");
        assert_eq!(taken, [7], "what was accepted before the end is still taken");

        let (sender, mailbox, _) = counted(2);
        drop(mailbox);
        assert!(sender.is_closed());
        assert_eq!(sender.put(1), Err(Refused::Closed(1)));
    }

    #[test]
    fn a_value_may_own_a_sender_of_its_own_mailbox() {
        struct Letter(#[allow(dead_code)] Sender<Letter>);
        let (sender, mailbox) = mailbox(2, || {});
        assert!(sender.put(Letter(sender.clone())).is_ok());
        drop(mailbox);
        assert!(sender.is_closed());
    }
}
