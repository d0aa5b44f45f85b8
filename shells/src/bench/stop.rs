//! Ctrl-C asks, and whoever measures looks: sessions and instances are ended before the program is.

use super::fault::BenchFault;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Copies hear the same.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From here on SIGINT and SIGTERM only raise this flag; a second one ends the process.
    pub fn install() -> io::Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM] {
            let again = Arc::clone(&stop.0);
            signal_hook::flag::register_conditional_default(signal, again)?;
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// An error once somebody asked.
    pub fn check(&self) -> Result<(), BenchFault> {
        if self.0.load(Ordering::Relaxed) { Err(BenchFault::interrupted()) } else { Ok(()) }
    }
}
