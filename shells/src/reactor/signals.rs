//! SIGINT, SIGTERM and SIGHUP become bytes in pipes that the reactor polls: nothing of ours runs in
//! a signal handler, and no thread is needed. A hangup ends the server as SIGTERM does, unless who
//! started it (`nohup`) wants hangups ignored. SIGUSR2 asks for a dump of the last minute.
//!
//! The one invariant: no signal is lost on the way to the end. Once nobody reads the pipes any
//! more, a signal ends the process where it stands.

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::flag::register_conditional_shutdown;
use signal_hook::low_level::{pipe, unregister};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    pipes: Vec<(Signal, UnixStream, SigId)>,
    dumps: (UnixStream, SigId),
    unread: Unread,
}

/// Said once nobody reads the pipes any more. Clones say the same.
#[derive(Clone, Debug, Default)]
pub struct Unread(Arc<AtomicBool>);

impl Unread {
    /// From now on a signal ends the process at once, with the exit status that names it.
    pub fn say(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Signals {
    /// From here on these signals are ours.
    pub fn install() -> io::Result<Signals> {
        let unread = Unread::default();
        let open = |number| -> io::Result<(UnixStream, SigId)> {
            let (reads, writes) = std::os::unix::net::UnixStream::pair()?;
            reads.set_nonblocking(true)?;
            let registration = pipe::register(number, writes)?;
            Ok((UnixStream::from_std(reads), registration))
        };
        let pipe = |signal: Signal, number| -> io::Result<(Signal, UnixStream, SigId)> {
            // Stays for the rest of the process: who takes a signal over cannot give it back.
            let status = signal.exit_code().into();
            register_conditional_shutdown(number, status, unread.0.clone())?;
            let (reads, registration) = open(number)?;
            Ok((signal, reads, registration))
        };
        let mut pipes = vec![pipe(Signal::Interrupt, SIGINT)?, pipe(Signal::Terminate, SIGTERM)?];
        if !is_ignored(SIGHUP) {
            pipes.push(pipe(Signal::Terminate, SIGHUP)?);
        }
        let dumps = open(SIGUSR2)?;
        Ok(Signals { pipes, dumps, unread })
    }

    pub fn unread(&self) -> Unread {
        self.unread.clone()
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        for (_, reads, _) in &mut self.pipes {
            registry.register(reads, token, Interest::READABLE)?;
        }
        registry.register(&mut self.dumps.0, token, Interest::READABLE)
    }

    /// One signal that came since the last call, if any did.
    pub fn first(&mut self) -> Option<Signal> {
        let mut first = None;
        self.take(|signal| first = first.or(Some(signal)));
        first
    }

    /// Whether a dump was asked for since the last call.
    pub fn take_dump(&mut self) -> bool {
        let (mut came, mut bytes) = (false, [0; 16]);
        while let Ok(1..) = self.dumps.0.read(&mut bytes) {
            came = true;
        }
        came
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

/// Whether this process was started with that signal ignored. Where the system does not tell, it
/// was not.
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_in_mask(&status, number)
}

fn is_in_mask(status: &str, number: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (_, _, registration) in &self.pipes {
            unregister(*registration);
        }
        unregister(self.dumps.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hangup_that_nohup_ignores_is_found_in_the_mask() {
        assert!(is_in_mask("Name:\tkvtide\nSigIgn:\t0000000000000001\n", SIGHUP));
        assert!(!is_in_mask("SigIgn:\t0000000000001000\n", SIGHUP));
        assert!(!is_in_mask("", SIGHUP));
    }
}
