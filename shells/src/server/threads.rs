//! The telemetry thread: takes facts from the lane until the reactor is gone.

use crate::telemetry::{FactBatch, Telemetry};
use kvtide_lanes::lane::Consumer;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, JoinHandle};

/// Starts it. A batch that makes it panic is dropped and counted, and the next one is taken as if
/// nothing had happened (design §7).
pub fn telemetry(
    mut facts: Consumer<FactBatch>,
    mut telemetry: Telemetry,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
        let mut batches = Vec::new();
        while facts.wait(&mut batches) {
            for batch in &batches {
                let taken = catch_unwind(AssertUnwindSafe(|| telemetry.take(batch)));
                if taken.is_err() {
                    tracing::error!("Telemetry panicked; the facts of one turn are lost.");
                    telemetry.scraper().note_failure("telemetry");
                }
            }
        }
    })
}
