//! One thread puts, one thread takes, everything at once and in order. The producer never waits;
//! the consumer sleeps in [`Consumer::wait`], or has a poll of its own that a closure wakes.

use crate::queue::{Queue, Refused};
use crate::sync::Arc;
use std::time::Duration;

/// A lane for `capacity` values (often batches) whose consumer sleeps in `wait`.
pub fn lane<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    ends(Queue::new(capacity, None))
}

/// The same for a consumer with a poll of its own: `wake` is called after a put into an empty lane
/// and when the producer is gone; it must not wait.
pub fn lane_waking<T>(
    capacity: usize,
    wake: impl Fn() + Send + Sync + 'static,
) -> (Producer<T>, Consumer<T>) {
    ends(Queue::new(capacity, Some(Box::new(wake))))
}

fn ends<T>(queue: Arc<Queue<T>>) -> (Producer<T>, Consumer<T>) {
    (Producer { queue: queue.clone() }, Consumer { queue })
}

/// The putting end. There is one; it can move to another thread.
pub struct Producer<T> {
    queue: Arc<Queue<T>>,
}

impl<T> Producer<T> {
    /// Never waits: without room the value comes back.
    pub fn put(&mut self, value: T) -> Result<(), Refused<T>> {
        self.queue.put(value)
    }

    /// Whether nobody takes any more.
    pub fn is_closed(&self) -> bool {
        !self.queue.is_receiving()
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.queue.remove_sender();
    }
}

/// The taking end.
pub struct Consumer<T> {
    queue: Arc<Queue<T>>,
}

impl<T> Consumer<T> {
    /// Replaces what is in `into` by everything that was put. False when the producer is gone and
    /// nothing will come after what is now in `into`.
    pub fn take(&mut self, into: &mut Vec<T>) -> bool {
        self.queue.take(into)
    }

    /// Sleeps until there is something and takes it. False when there was nothing and nothing more
    /// can come, so `while consumer.wait(&mut taken)` sees every value.
    pub fn wait(&mut self, into: &mut Vec<T>) -> bool {
        self.queue.wait(into)
    }

    /// Like `wait`, but no longer than about `at_most`; `into` may then be empty although more can
    /// come. For consumers with something to do now and then.
    pub fn wait_at_most(&mut self, into: &mut Vec<T>, at_most: Duration) -> bool {
        self.queue.wait_at_most(into, at_most)
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.queue.stop_receiving();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn batches_cross_threads_in_order_and_none_is_lost() {
        let (mut producer, mut consumer) = lane::<Vec<u32>>(3);
        let taking = std::thread::spawn(move || {
            let (mut all, mut taken) = (Vec::new(), Vec::new());
            while consumer.wait(&mut taken) {
                all.extend(taken.drain(..).flatten());
            }
            all
        });
        let mut refused = 0_u32;
        for start in (0..300).step_by(3) {
            let mut batch = vec![start, start + 1, start + 2];
            while let Err(back) = producer.put(batch) {
                refused += 1;
                batch = back.into_value();
                std::thread::yield_now();
            }
        }
        drop(producer);
        let all = taking.join().expect("the consumer does not panic");
        assert_eq!(all, (0..300).collect::<Vec<_>>(), "after {refused} refusals");
    }

    #[test]
    fn full_and_closed_are_answers() {
        let (mut producer, mut consumer) = lane(1);
        assert_eq!(producer.put('a'), Ok(()));
        assert_eq!(producer.put('b'), Err(Refused::Full('b')));
        let mut taken = Vec::new();
        assert!(consumer.wait(&mut taken));
        assert_eq!(taken, ['a']);
        drop(consumer);
        assert!(producer.is_closed());
        assert_eq!(producer.put('c'), Err(Refused::Closed('c')));
    }

    #[test]
    fn a_wait_with_a_limit_comes_back_empty_handed_while_more_can_come() {
        let (producer, mut consumer) = lane::<u8>(1);
        let mut taken = vec![1];
        assert!(consumer.wait_at_most(&mut taken, Duration::from_millis(1)));
        assert!(taken.is_empty());
        drop(producer);
        assert!(!consumer.wait_at_most(&mut taken, Duration::from_secs(3600)));
    }
}
