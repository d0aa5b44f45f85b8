//! The telemetry thread: takes facts from the lane until the reactor is gone.

use super::news::News;
use crate::ending::Ending;
use crate::telemetry::{FactReceiver, Telemetry};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

/// Starts it. A batch that makes it panic is dropped and counted, and the next one is taken as if
/// nothing had happened (design §7).
pub fn telemetry(
    mut facts: FactReceiver,
    mut telemetry: Telemetry,
    mut news: Option<News>,
) -> io::Result<Ending> {
    Ending::spawn("telemetry", move || {
        let mut batches = Vec::new();
        while facts.wait(&mut batches) || !batches.is_empty() {
            for batch in batches.drain(..) {
                facts.begins(&batch);
                let taken = catch_unwind(AssertUnwindSafe(|| {
                    if let Some(news) = &mut news {
                        news.tell(&batch);
                    }
                    telemetry.take(&batch);
                }));
                if taken.is_err() {
                    tracing::error!("Telemetry panicked; the facts of one turn are lost.");
                    telemetry.scraper().note_failure("telemetry");
                }
                facts.ends(batch);
            }
            // A batch that made it panic, or one that was lost, may have been the one with names.
            if telemetry.names_are_missing() {
                facts.want_names();
            }
            thread::sleep(GATHER);
        }
    })
}

/// How long facts may gather before they are looked at again. Without it every turn of a busy
/// reactor wakes this thread: two switches and a system call for a handful of facts. The lane has
/// room for many times as many turns.
const GATHER: Duration = Duration::from_millis(5);
