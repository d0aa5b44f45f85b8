//! What mailbox and lane have in common: a bounded list under a lock that is held for the time of
//! one push or one swap.

use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::fmt;
use std::mem;
use std::sync::PoisonError;
use std::time::Duration;

/// A value that was not accepted comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Refused<T> {
    /// There is no room now.
    Full(T),
    /// Nobody takes any more.
    Closed(T),
}

impl<T> Refused<T> {
    pub fn into_value(self) -> T {
        match self {
            Refused::Full(value) | Refused::Closed(value) => value,
        }
    }
}

impl<T> fmt::Debug for Refused<T> {
    /// The value is often a payload without a text form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Full(_) => f.write_str("Full"),
            Refused::Closed(_) => f.write_str("Closed"),
        }
    }
}

/// Wakes the taking side. Called by whoever puts, never with the lock held.
pub(crate) type Wake = Box<dyn Fn() + Send + Sync>;

pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    wake: Option<Wake>,
    capacity: usize,
}

struct State<T> {
    items: Vec<T>,
    senders: usize,
    receiving: bool,
}

impl<T> Queue<T> {
    /// A queue with one sender and one receiver.
    pub(crate) fn new(capacity: usize, wake: Option<Wake>) -> Arc<Queue<T>> {
        assert!(capacity > 0, "a queue without room would refuse everything");
        Arc::new(Queue {
            state: Mutex::new(State {
                items: Vec::with_capacity(capacity),
                senders: 1,
                receiving: true,
            }),
            filled: Condvar::new(),
            wake,
            capacity,
        })
    }

    /// Only the put that finds the queue empty wakes: whoever takes, takes everything, so later
    /// puts are seen by the same taking.
    pub(crate) fn put(&self, value: T) -> Result<(), Refused<T>> {
        let mut state = self.lock();
        if !state.receiving {
            return Err(Refused::Closed(value));
        }
        if state.items.len() == self.capacity {
            return Err(Refused::Full(value));
        }
        let was_empty = state.items.is_empty();
        state.items.push(value);
        drop(state);
        if was_empty {
            self.wake();
        }
        Ok(())
    }

    /// Swaps the whole list into `into`, which is emptied first. False when nothing more can come,
    /// also beside the last values: the wake-ups for them and for the end may have been one.
    pub(crate) fn take(&self, into: &mut Vec<T>) -> bool {
        self.make_ready(into);
        let mut state = self.lock();
        mem::swap(&mut state.items, into);
        state.senders > 0
    }

    /// Sleeps until there is something to take or nobody to send it, then takes everything.
    /// False when nothing was taken and nothing more can come.
    pub(crate) fn wait(&self, into: &mut Vec<T>) -> bool {
        self.make_ready(into);
        let mut state = self.lock();
        while state.items.is_empty() && state.senders > 0 {
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        mem::swap(&mut state.items, into);
        !into.is_empty()
    }

    /// Like `wait`, but no longer than `at_most`. Wakes early now and then, with nothing taken.
    pub(crate) fn wait_at_most(&self, into: &mut Vec<T>, at_most: Duration) -> bool {
        self.make_ready(into);
        let mut state = self.lock();
        if state.items.is_empty() && state.senders > 0 {
            let waited = self.filled.wait_timeout(state, at_most);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        mem::swap(&mut state.items, into);
        state.senders > 0 || !into.is_empty()
    }

    pub(crate) fn is_receiving(&self) -> bool {
        self.lock().receiving
    }

    pub(crate) fn add_sender(&self) {
        self.lock().senders += 1;
    }

    /// The last sender wakes the receiver, so that it sees the end.
    pub(crate) fn remove_sender(&self) {
        let mut state = self.lock();
        state.senders -= 1;
        let last = state.senders == 0;
        drop(state);
        if last {
            self.wake();
        }
    }

    /// Drops what nobody will take, outside the lock: a value may own a sender of this very queue.
    pub(crate) fn stop_receiving(&self) {
        let mut state = self.lock();
        state.receiving = false;
        let left = mem::take(&mut state.items);
        drop(state);
        drop(left);
    }

    /// Old values are dropped and memory is made ready before the lock is taken.
    fn make_ready(&self, into: &mut Vec<T>) {
        into.clear();
        into.reserve(self.capacity);
    }

    fn wake(&self) {
        self.filled.notify_one();
        if let Some(wake) = &self.wake {
            wake();
        }
    }

    /// Nothing under the lock can panic halfway, so a poisoned lock guards a whole state.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
