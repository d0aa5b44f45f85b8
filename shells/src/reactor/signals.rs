//! SIGINT and SIGTERM become bytes in two pipes that the reactor polls: nothing of ours runs in a
//! signal handler, and no thread is needed.

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};
use std::io::{self, Read};

/// Why the process is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
}

impl Signal {
    /// The exit status by which a shell recognises it; the peer's are the same (design §7).
    pub fn exit_code(self) -> u8 {
        match self {
            Signal::Interrupt => 130,
            Signal::Terminate => 143,
        }
    }
}

/// The reading ends of the pipes.
#[derive(Debug)]
pub struct Signals {
    pipes: [(Signal, UnixStream, SigId); 2],
}

impl Signals {
    /// From here on both signals are ours.
    pub fn install() -> io::Result<Signals> {
        let pipe = |signal, number| -> io::Result<(Signal, UnixStream, SigId)> {
            let (reads, writes) = std::os::unix::net::UnixStream::pair()?;
            reads.set_nonblocking(true)?;
            let registration = pipe::register(number, writes)?;
            Ok((signal, UnixStream::from_std(reads), registration))
        };
        let pipes = [pipe(Signal::Interrupt, SIGINT)?, pipe(Signal::Terminate, SIGTERM)?];
        Ok(Signals { pipes })
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        for (_, reads, _) in &mut self.pipes {
            registry.register(reads, token, Interest::READABLE)?;
        }
        Ok(())
    }

    /// Signals that came since the last call, each as often as it is known to have come.
    pub fn take(&mut self, mut came: impl FnMut(Signal)) {
        for (signal, reads, _) in &mut self.pipes {
            let mut bytes = [0; 16];
            while let Ok(count) = reads.read(&mut bytes) {
                (0..count).for_each(|_| came(*signal));
                if count < bytes.len() {
                    break;
                }
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (_, _, registration) in &self.pipes {
            unregister(*registration);
        }
    }
}
