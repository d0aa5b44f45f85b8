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
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

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

/// A thread that is waited for at the end, but not for ever: it may hang in a write to a log that
/// nobody reads.
#[derive(Debug)]
pub struct Ending {
    /// Closed when the thread has ended, in whichever way.
    over: Receiver<()>,
}

impl Ending {
    fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Ending> {
        let (running, over) = mpsc::channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _running = running;
            work();
        })?;
        Ok(Ending { over })
    }

    /// Whether it has ended within this time.
    pub fn within(&self, patience: Duration) -> bool {
        self.over.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
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
) -> io::Result<Ending> {
    Ending::spawn("telemetry", move || {
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
            thread::sleep(GATHER);
        }
    })
}

/// How long facts may gather before they are looked at again. Without it every turn of a busy
/// reactor wakes this thread: two switches and a system call for a handful of facts. The lane has
/// room for many times as many turns.
const GATHER: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_hangs_is_not_waited_for_for_ever() {
        let (release, held) = mpsc::channel::<()>();
        let ending = Ending::spawn("hangs", move || assert!(held.recv().is_err()));
        let ending = ending.expect("a thread can be had");
        assert!(!ending.within(Duration::ZERO));
        drop(release);
        assert!(ending.within(Duration::from_secs(60)));
    }
}
