//! Threads that are waited for at the end of the server, but not for ever: what hangs in a system
//! call or a library is no reason not to end.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The end of a thread, to be waited for.
#[derive(Debug)]
pub struct Ending {
    /// Closed when the thread has ended, in whichever way.
    over: Receiver<()>,
}

impl Ending {
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Ending> {
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
