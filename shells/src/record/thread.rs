//! The thread that writes: recordings frame by frame, dumps as they are asked for. Its one
//! invariant: a disk that fails costs the recording its end and nobody else anything.

use super::Counts;
use super::dump::{DumpTeller, Dumps};
use kvtide_core::recording::Frame;
use kvtide_lanes::lane::Consumer;
use std::io;
use std::sync::atomic::Ordering;

/// What the reactor wants written.
pub enum Letter {
    Frame(Frame),
    /// These frames, which end before event `until`.
    Dump {
        frames: Vec<Frame>,
        until: u64,
        tell: DumpTeller,
    },
}

/// Where frames go.
pub trait Store {
    fn put(&mut self, frame: &Frame) -> io::Result<()>;

    /// This frame could not be written: nothing more will come.
    fn give_up(&mut self, lost: &Frame);
}

/// Runs until the reactor's end is gone and everything is written.
pub fn keep_writing(
    mut letters: Consumer<Letter>,
    mut store: Option<impl Store>,
    mut dumps: Dumps,
    counts: &Counts,
) {
    let mut taken = Vec::new();
    while letters.wait(&mut taken) {
        for letter in taken.drain(..) {
            match letter {
                Letter::Frame(frame) => write(&mut store, &frame, counts),
                Letter::Dump { frames, until, tell } => {
                    let dumped = dumps.write(&frames, until);
                    counts.dumps.fetch_add(dumped.is_ok().into(), Ordering::Relaxed);
                    tell(dumped.map_err(|error| error.to_string()));
                }
            }
        }
    }
}

fn write(store: &mut Option<impl Store>, frame: &Frame, counts: &Counts) {
    let Some(files) = store else { return };
    match files.put(frame) {
        Ok(()) => {
            counts.frames.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => {
            counts.gaps.fetch_add(1, Ordering::Relaxed);
            let event = frame.first_event;
            tracing::warn!("--record: {error}; the recording ends before event {event}");
            files.give_up(frame);
            *store = None;
        }
    }
}
