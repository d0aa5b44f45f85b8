//! The way of the facts from the reactor to the telemetry thread: the lane, with a bound on the
//! bytes that wait in it, and one on the facts where the operator gives it
//! (`--event-bus-queue-size`).
//!
//! The one invariant: what waits is counted from the put to the end of the work on it, so the
//! bounds hold for the batch in hand, too.

use super::{BusGauges, FactBatch};
use kvtide_core::limits::FACT_LANE_BATCHES;
use kvtide_core::time::Instant;
use kvtide_lanes::lane::{Consumer, Producer, lane};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Makes both ends. Without `facts_max` facts are bounded by their bytes and, in batches, by the
/// lane.
pub fn facts(facts_max: Option<u64>) -> (FactSender, FactReceiver) {
    let (producer, consumer) = lane(FACT_LANE_BATCHES);
    let backlog = Arc::new(Backlog::default());
    let facts_max = facts_max.unwrap_or(u64::MAX);
    let sender = FactSender { producer, backlog: backlog.clone(), facts_max };
    (sender, FactReceiver { consumer, backlog })
}

/// The reactor's end.
pub struct FactSender {
    producer: Producer<FactBatch>,
    backlog: Arc<Backlog>,
    facts_max: u64,
}

/// The batch found no room; its facts are lost, newest first as with the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

impl FactSender {
    /// Whether telemetry has met numbers whose names it does not know, since this was asked last.
    pub fn are_names_wanted(&self) -> bool {
        self.backlog.names_wanted.swap(false, Ordering::Relaxed)
    }

    /// Never waits.
    pub fn put(&mut self, batch: FactBatch) -> Result<(), Lost> {
        let (facts, bytes, at) = (batch.facts.len() as u64, batch.bytes(), batch.at);
        let waiting = self.backlog.facts.load(Ordering::Relaxed);
        // One batch always fits: a bound smaller than it would lose everything for ever.
        if waiting > 0 && waiting.saturating_add(facts) > self.facts_max {
            return Err(Lost);
        }
        // No turn makes as much as this, all names told anew included.
        if self.backlog.bytes.load(Ordering::Relaxed) + bytes > FACT_BYTES_MAX {
            return Err(Lost);
        }
        if waiting == 0 {
            self.backlog.oldest.store(at.0, Ordering::Relaxed);
        }
        self.backlog.add(facts, bytes);
        self.producer.put(batch).map_err(|_| {
            self.backlog.subtract(facts, bytes);
            Lost
        })
    }
}

/// The telemetry thread's end.
pub struct FactReceiver {
    consumer: Consumer<FactBatch>,
    backlog: Arc<Backlog>,
}

impl FactReceiver {
    pub fn backlog(&self) -> Arc<Backlog> {
        self.backlog.clone()
    }

    /// Sleeps until there is something and takes it. False when nothing more can come.
    pub fn wait(&mut self, into: &mut Vec<FactBatch>) -> bool {
        self.consumer.wait(into)
    }

    /// This batch is about to be worked on.
    pub fn begins(&self, batch: &FactBatch) {
        self.backlog.oldest.store(batch.at.0, Ordering::Relaxed);
    }

    /// Names are to be told again: those who had them are gone.
    pub fn want_names(&self) {
        self.backlog.names_wanted.store(true, Ordering::Relaxed);
    }

    /// It is done with, and gone.
    pub fn ends(&self, batch: FactBatch) {
        let (facts, bytes) = (batch.facts.len() as u64, batch.bytes());
        drop(batch);
        self.backlog.subtract(facts, bytes);
    }
}

/// Most bytes of facts that wait, for `--print-memory`.
pub const FACT_BYTES_MAX: u64 = 32 << 20;

/// What is on its way.
#[derive(Debug, Default)]
pub struct Backlog {
    facts: AtomicU64,
    bytes: AtomicU64,
    /// When the oldest of them was made.
    oldest: AtomicU64,
    /// The way back: names are to be told again.
    names_wanted: AtomicBool,
}

impl Backlog {
    fn add(&self, facts: u64, bytes: u64) {
        self.facts.fetch_add(facts, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn subtract(&self, facts: u64, bytes: u64) {
        self.facts.fetch_sub(facts, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn gauges(&self, now: Instant) -> BusGauges {
        let queued_facts = self.facts.load(Ordering::Relaxed);
        let oldest = Instant(self.oldest.load(Ordering::Relaxed));
        // The reactor may have put one since `now` was read.
        let drain_lag = match queued_facts {
            0 => Default::default(),
            _ => now.max(oldest).since(oldest),
        };
        BusGauges { queued_facts, drain_lag }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::fact::{Fact, FactKey};
    use kvtide_core::names::{ChunkHash, ScopeId, TenantId};
    use kvtide_core::time::Duration;

    fn batch(facts: usize, second: u64) -> FactBatch {
        let facts = vec![Fact::QuotaChanged; facts];
        FactBatch { at: Instant::from_secs(second), facts, ..FactBatch::default() }
    }

    #[test]
    fn the_newest_facts_are_dropped_above_the_bound_and_taken_again_below_it() {
        let (mut sender, mut receiver) = facts(Some(5));
        assert_eq!(sender.put(batch(3, 1)), Ok(()));
        assert_eq!(sender.put(batch(3, 2)), Err(Lost));
        assert_eq!(sender.put(batch(2, 3)), Ok(()));
        let gauges = receiver.backlog().gauges(Instant::from_secs(4));
        assert_eq!((gauges.queued_facts, gauges.drain_lag), (5, Duration::from_secs(3)));
        let mut taken = Vec::new();
        assert!(receiver.wait(&mut taken));
        assert_eq!(sender.put(batch(1, 5)), Err(Lost), "what is in hand counts");
        for batch in taken {
            receiver.begins(&batch);
            receiver.ends(batch);
        }
        assert_eq!(receiver.backlog().gauges(Instant::from_secs(9)), BusGauges::default());
        assert_eq!(sender.put(batch(9, 6)), Ok(()), "one batch always fits");
    }

    #[test]
    fn bytes_have_a_bound_with_and_without_one_on_facts() {
        let keys = |bytes: usize| {
            let key = FactKey {
                hash: ChunkHash([0; 32]),
                bytes: 1,
                scope: ScopeId(0),
                tenant: TenantId(0),
            };
            FactBatch { keys: vec![key; bytes / size_of::<FactKey>()], ..batch(1, 1) }
        };
        let named = || {
            let text = || "x".repeat(1 << 20).into();
            let fact = Fact::TenantNamed { tenant: TenantId(0), model: text(), salt: text() };
            FactBatch { facts: vec![fact], ..batch(0, 1) }
        };
        for facts_max in [None, Some(1_000_000)] {
            let (mut sender, mut receiver) = facts(facts_max);
            assert_eq!(sender.put(keys(20 << 20)), Ok(()));
            assert_eq!(sender.put(keys(20 << 20)), Err(Lost));
            for _ in 0..5 {
                assert_eq!(sender.put(named()), Ok(()));
            }
            assert_eq!(sender.put(named()), Err(Lost), "names have their length");
            let mut taken = Vec::new();
            assert!(receiver.wait(&mut taken));
            taken.into_iter().for_each(|batch| receiver.ends(batch));
            assert_eq!(sender.put(keys(20 << 20)), Ok(()), "what is done with leaves room");
        }
    }

    #[test]
    fn without_a_bound_the_lane_is_one() {
        let (mut sender, receiver) = facts(None);
        for _ in 0..FACT_LANE_BATCHES {
            assert_eq!(sender.put(batch(100, 1)), Ok(()));
        }
        assert_eq!(sender.put(batch(1, 1)), Err(Lost));
        let queued = 100 * FACT_LANE_BATCHES as u64;
        assert_eq!(receiver.backlog().gauges(Instant::from_secs(1)).queued_facts, queued);
    }
}
