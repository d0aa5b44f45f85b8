//! When L1 grows: before anybody is served, or behind the backs of those who are.

use crate::arena::sizing::Bytes;
use crate::arena::{Arena, Grower, Growth};
use crate::reactor::Signal;
use std::fmt;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Memory ended before L1 was whole, and the operator wanted it whole. Both sizes are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotWhole {
    pub usable: u64,
    pub wanted: u64,
    pub error: rustix::io::Errno,
}

impl fmt::Display for NotWhole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (usable, wanted) = (Bytes(self.usable), Bytes(self.wanted));
        write!(f, "--no-l1-use-lazy: only {usable} of {wanted} can be allocated: {}", self.error)
    }
}

/// Why L1 is not whole before serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenOff {
    NotWhole(NotWhole),
    /// The operator does not want the server any more.
    Signalled(Signal),
}

/// Grows all of it now (`--no-l1-use-lazy`). `terminal` shows how far it is; `signalled` is asked
/// between any two steps.
pub fn before_serving(
    arena: &mut Arena,
    grower: Grower,
    mut terminal: Option<&mut dyn Write>,
    mut signalled: impl FnMut() -> Option<Signal>,
) -> Result<(), BrokenOff> {
    let wanted = arena.bytes();
    let mut ended = Ok(());
    grower.run(|growth| {
        arena.grown_to(growth.usable());
        if let Some(terminal) = &mut terminal {
            show(*terminal, growth, wanted);
        }
        if let Growth::Stopped { usable, error } = growth {
            ended = Err(BrokenOff::NotWhole(NotWhole { usable, wanted, error }));
        }
        match signalled() {
            Some(signal) => {
                ended = Err(BrokenOff::Signalled(signal));
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    });
    ended
}

/// One line that is written over and over; its end starts a new one. A terminal that cannot be
/// written to is no reason not to start.
fn show(terminal: &mut dyn Write, growth: Growth, wanted: u64) {
    let (usable, wanted) = (Bytes(growth.usable()), Bytes(wanted));
    let end = if matches!(growth, Growth::Grown { .. }) { "" } else { "\n" };
    write!(terminal, "\rAllocating L1: {usable} of {wanted}  {end}").ok();
    terminal.flush().ok();
}

/// How a report of growth was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Taken,
    /// The mailbox is full.
    NotNow,
    /// Nobody wants to know any more.
    Ended,
}

/// Grows on a thread of its own. `tell` is given the bytes usable so far, an absolute number: a
/// report that does not get through is made up for by the next, and the last one is tried until it
/// does.
pub fn while_serving(
    grower: Grower,
    wanted: u64,
    tell: impl FnMut(u64) -> Received + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let mut tell = tell;
    thread::Builder::new().name("grower".to_owned()).spawn(move || {
        grower.run(|growth| {
            report(growth, wanted);
            let last = !matches!(growth, Growth::Grown { .. });
            loop {
                match tell(growth.usable()) {
                    Received::Ended => return ControlFlow::Break(()),
                    Received::NotNow if last => thread::sleep(RETRY_PAUSE),
                    Received::Taken | Received::NotNow => return ControlFlow::Continue(()),
                }
            }
        });
    })
}

fn report(growth: Growth, wanted: u64) {
    let (usable, wanted) = (Bytes(growth.usable()), Bytes(wanted));
    match growth {
        Growth::Grown { .. } => {}
        Growth::Whole { .. } => tracing::info!("L1 has grown to its full size, {usable}"),
        Growth::Stopped { error, .. } => {
            tracing::warn!("L1 stays at {usable} of {wanted}: no more memory ({error})");
        }
    }
}

/// A reactor that is behind with its letters gets this long to catch up.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const BYTES: u64 = 1 << 20;

    #[test]
    fn growing_before_serving_leaves_a_whole_arena_and_a_line_that_says_so() {
        let (mut arena, grower) = Arena::private(BYTES).expect("a MiB can be mapped");
        let mut line = Vec::new();
        assert_eq!(before_serving(&mut arena, grower, Some(&mut line), || None), Ok(()));
        assert_eq!(arena.usable_bytes(), BYTES);
        let line = String::from_utf8(line).expect("the line is text");
        assert_eq!(line, "\rAllocating L1: 1.0 MiB of 1.0 MiB  \n");
    }

    #[test]
    fn a_signal_while_growing_ends_it_after_the_step() {
        let bytes = 3 * kvtide_core::limits::GROW_STEP_BYTES;
        let (mut arena, grower) = Arena::private(bytes).expect("address space can be mapped");
        let ended = before_serving(&mut arena, grower, None, || Some(Signal::Terminate));
        assert_eq!(ended, Err(BrokenOff::Signalled(Signal::Terminate)));
        assert_eq!(arena.usable_bytes(), kvtide_core::limits::GROW_STEP_BYTES);
    }

    #[test]
    fn the_last_report_is_made_until_it_is_taken() {
        let (_arena, grower) = Arena::private(BYTES).expect("a MiB can be mapped");
        let (told, heard) = mpsc::channel();
        let mut refusals = 3;
        let thread = while_serving(grower, BYTES, move |bytes| {
            refusals -= 1;
            told.send((bytes, refusals)).ok();
            if refusals > 0 { Received::NotNow } else { Received::Taken }
        });
        thread.expect("a thread can be had").join().expect("the grower does not panic");
        assert_eq!(heard.iter().collect::<Vec<_>>(), [(BYTES, 2), (BYTES, 1), (BYTES, 0)]);
    }

    #[test]
    fn a_server_that_ended_ends_the_grower() {
        let (_arena, grower) = Arena::private(BYTES).expect("a MiB can be mapped");
        let thread = while_serving(grower, BYTES, |_| Received::Ended);
        thread.expect("a thread can be had").join().expect("the grower does not panic");
    }

    #[test]
    fn both_sizes_are_named_where_memory_is_missing() {
        let error = rustix::io::Errno::NOSPC;
        let text = NotWhole { usable: 1 << 30, wanted: 3 << 30, error }.to_string();
        assert!(text.contains("1.00 GiB") && text.contains("3.00 GiB"), "{text}");
    }
}
