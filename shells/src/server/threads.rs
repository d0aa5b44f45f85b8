//! The telemetry thread: takes facts from the lane until the reactor is gone.

use super::news::News;
use crate::clock::Clock;
use crate::telemetry::{BusGauges, FactBatch, Telemetry};
use kvtide_core::time::Instant;
use kvtide_lanes::lane::Consumer;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// What the thread has taken from the lane and not worked off yet.
#[derive(Debug, Default)]
pub struct Backlog {
    batches: AtomicU64,
    /// When the oldest of them was made.
    oldest: AtomicU64,
}

impl Backlog {
    fn is(&self, batches: usize, oldest: Instant) {
        self.oldest.store(oldest.0, Ordering::Relaxed);
        self.batches.store(batches as u64, Ordering::Relaxed);
    }

    pub fn gauges(&self, now: Instant) -> BusGauges {
        let queued_batches = self.batches.load(Ordering::Relaxed);
        let oldest = Instant(self.oldest.load(Ordering::Relaxed));
        let drain_lag = if queued_batches == 0 { Default::default() } else { now.since(oldest) };
        BusGauges { queued_batches, drain_lag }
    }
}

/// Starts it. A batch that makes it panic is dropped and counted, and the next one is taken as if
/// nothing had happened (design §7).
pub fn telemetry(
    mut facts: Consumer<FactBatch>,
    mut telemetry: Telemetry,
    mut news: Option<News>,
    backlog: Arc<Backlog>,
    clock: Clock,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
        let mut batches = Vec::new();
        while facts.wait(&mut batches) || !batches.is_empty() {
            for (at, batch) in batches.iter().enumerate() {
                backlog.is(batches.len() - at, batch.at);
                let taken = catch_unwind(AssertUnwindSafe(|| {
                    if let Some(news) = &mut news {
                        news.tell(batch);
                    }
                    telemetry.take(batch);
                }));
                if taken.is_err() {
                    tracing::error!("Telemetry panicked; the facts of one turn are lost.");
                    telemetry.scraper().note_failure("telemetry");
                }
            }
            batches.clear();
            backlog.is(0, clock.now());
        }
    })
}
