//! Who of the many that connect is served. Connections have a number, so nobody outside can make
//! the admin thread hold more than a few hundred sockets (design P3), and whoever holds one without
//! using it makes way for whoever comes.
//!
//! The one invariant: a newcomer is turned away only while every place is held by a request that
//! came whole and is being answered, and then those for probes are left.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The places at one listener. Clones are the same places.
#[derive(Clone, Debug)]
pub struct Places {
    table: Arc<Mutex<Table>>,
    most: usize,
    /// More of them, for probes, when all others are busy.
    for_probes: usize,
}

#[derive(Debug, Default)]
struct Table {
    /// By the turn in which its connection became idle or busy last: the first one that is idle
    /// has been so for longest.
    held: BTreeMap<u64, Holder>,
    turn: u64,
}

#[derive(Debug)]
struct Holder {
    busy: bool,
    /// Dropped when the place is taken away.
    _keeps: oneshot::Sender<()>,
}

/// A place, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    at: Mutex<u64>,
    pub probes_only: bool,
}

/// Comes when the place is taken away.
pub type TakenAway = oneshot::Receiver<()>;

impl Places {
    pub fn new(most: usize, for_probes: usize) -> Places {
        Places { table: Arc::default(), most, for_probes }
    }

    /// A place for a newcomer; None when there is none.
    pub fn take(&self) -> Option<(Place, TakenAway)> {
        let mut table = self.lock();
        let mut probes_only = false;
        if table.held.len() >= self.most {
            let idle = table.held.iter().find(|(_, holder)| !holder.busy).map(|(at, _)| *at);
            match idle {
                Some(at) => drop(table.held.remove(&at)),
                None if table.held.len() < self.most + self.for_probes => probes_only = true,
                None => return None,
            }
        }
        let (keeps, taken_away) = oneshot::channel();
        let at = table.add(Holder { busy: false, _keeps: keeps });
        let place = Place { places: self.clone(), at: Mutex::new(at), probes_only };
        Some((place, taken_away))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while it holds the lock; and if it did, the table would still be one.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn add(&mut self, holder: Holder) -> u64 {
        self.turn += 1;
        self.held.insert(self.turn, holder);
        self.turn
    }
}

impl Place {
    /// A request is being answered: it is not taken away.
    pub fn is_busy(&self) {
        self.becomes(true);
    }

    /// Its answer is made. Writing it is the reader's matter.
    pub fn is_idle(&self) {
        self.becomes(false);
    }

    fn becomes(&self, busy: bool) {
        let mut table = self.places.lock();
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = table.held.remove(&at) {
            *at = table.add(Holder { busy, ..holder });
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        self.places.lock().held.remove(&at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    #[test]
    fn the_one_that_has_been_idle_for_longest_makes_way() {
        let places = Places::new(2, 0);
        let (first, mut first_away) = places.take().expect("there are two");
        let (_second, mut second_away) = places.take().expect("there are two");
        first.is_busy();
        first.is_idle();
        let third = places.take().expect("the second makes way");
        assert_eq!(second_away.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(first_away.try_recv(), Err(TryRecvError::Empty));
        drop(third);
        drop(first);
        assert_eq!(places.lock().held.len(), 0, "a place that was taken away is not given back");
    }

    #[test]
    fn while_all_are_busy_only_probes_get_in_and_not_many() {
        let places = Places::new(1, 1);
        let (busy, mut away) = places.take().expect("there is one");
        busy.is_busy();
        let (probe, _) = places.take().expect("there is one for probes");
        assert!(probe.probes_only && !busy.probes_only);
        probe.is_busy();
        assert!(places.take().is_none());
        assert_eq!(away.try_recv(), Err(TryRecvError::Empty));
        drop(probe);
        busy.is_idle();
        let (next, _) = places.take().expect("the first makes way");
        assert!(!next.probes_only);
    }
}
