//! Somebody else's pings: one a millisecond on a connection of their own, while the server is busy
//! with others. Those that could not be sent while one was waited for count as well, each from when
//! it was due until that one was answered: a server that stalls is not asked less often for it.

use crate::bench::candidate::{Candidate, Instance};
use crate::bench::fault::BenchFault;
use crate::bench::figures::{latencies, note_every};
use crate::bench::line::Line;
use crate::bench::message::{Message, RequestId, frame};
use crate::clock::Clock;
use hdrhistogram::Histogram;
use kvtide_core::wire::operation::Operation;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub struct Pings {
    clock: Clock,
    line: Line,
    ping: Message,
}

impl Pings {
    pub fn connect(candidate: &Candidate, instance: &Instance) -> Result<Pings, BenchFault> {
        let line = Line::connect(&candidate.url, &candidate.stop)?;
        let number = frame(|writer| writer.u64(instance.number));
        Ok(Pings { clock: Clock::start(), line, ping: Message::new(Operation::Ping, &[&number]) })
    }

    /// Sends pings while `work` runs; what that came to, and their times.
    pub fn beside<T>(
        &mut self,
        work: impl FnOnce() -> T,
    ) -> Result<(T, Histogram<u64>), BenchFault> {
        let over = AtomicBool::new(false);
        let (worked, times) = thread::scope(|scope| {
            let pinging = scope.spawn(|| self.until(&over));
            // Also where `work` panics: a scope ends when all of its threads have.
            let raise = Raise(&over);
            let worked = work();
            drop(raise);
            (worked, pinging.join().expect("a thread that pings does not panic"))
        });
        Ok((worked, times?))
    }

    fn until(&mut self, over: &AtomicBool) -> Result<Histogram<u64>, BenchFault> {
        let mut times = latencies();
        let mut due = self.clock.now().0;
        while !over.load(Ordering::Relaxed) {
            let now = self.clock.now().0;
            if due > now {
                thread::sleep(Duration::from_nanos(due - now));
            }
            // What the generator overslept is not the server's.
            let sent = self.clock.now().0;
            self.line.call(&self.ping, RequestId::NONE)?.done()?;
            let answered = self.clock.now().0;
            note_every(&mut times, answered - sent, EVERY_NANOS);
            due = (due + EVERY_NANOS).max(answered);
        }
        Ok(times)
    }
}

/// Raises its flag when it is dropped.
struct Raise<'f>(&'f AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const EVERY_NANOS: u64 = 1_000_000;
