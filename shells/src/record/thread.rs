//! The thread that writes: recordings frame by frame, dumps as they are asked for. Its one
//! invariant: a disk that fails costs the recording its end and nobody else anything.

use super::dump::{DumpTeller, Dumps};
use super::{Counts, Underway};
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
        underway: Underway,
    },
}

impl Letter {
    /// What it keeps in memory. The frames of a dump are the flight recorder's.
    pub fn bytes(&self) -> u64 {
        match self {
            Letter::Frame(frame) => frame.file_bytes(),
            Letter::Dump { .. } => 0,
        }
    }
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
    dumps.forget_old_panics();
    let mut taken = Vec::new();
    while letters.wait(&mut taken) {
        for letter in taken.drain(..) {
            let bytes = letter.bytes();
            match letter {
                Letter::Frame(frame) => write(&mut store, &frame, counts),
                Letter::Dump { frames, until, tell, underway } => {
                    let dumped = dumps.write(&frames, until);
                    counts.dumps.fetch_add(dumped.is_ok().into(), Ordering::Relaxed);
                    drop((frames, underway));
                    tell(dumped.map_err(|error| error.to_string()));
                }
            }
            counts.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
    if let Some(mark) = counts.last_mark().take() {
        write(&mut store, &mark, counts);
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

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::recording::Mark;
    use kvtide_core::time::Instant;
    use kvtide_lanes::lane::lane;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Mutex};

    /// A disk with room for two frames.
    struct Small(Arc<Mutex<Vec<String>>>);

    impl Store for Small {
        fn put(&mut self, frame: &Frame) -> io::Result<()> {
            let mut told = self.0.lock().expect("nobody panicked");
            if told.len() == 2 {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            told.push(format!("frame {}", frame.number));
            Ok(())
        }

        fn give_up(&mut self, lost: &Frame) {
            let mut told = self.0.lock().expect("nobody panicked");
            told.push(format!("lost {}", lost.number));
        }
    }

    #[test]
    fn a_full_disk_ends_the_recording_once_and_dumps_go_on() {
        let (mut to_thread, letters) = lane(16);
        for number in 0..5 {
            let frame = Frame::marked(Mark::Gap, number, number, Instant(number));
            assert!(to_thread.put(Letter::Frame(frame)).is_ok(), "there is room");
        }
        let (answered, dumped) =
            (Arc::new(Mutex::new(None)), Dumps::new("/no/such".into(), Arc::default(), 7));
        let answer = answered.clone();
        let tell: DumpTeller = Box::new(move |dumped| {
            *answer.lock().expect("nobody panicked") = Some(dumped);
        });
        let underway = Arc::new(AtomicBool::new(true));
        let letter = Letter::Dump {
            frames: Vec::new(),
            until: 0,
            tell,
            underway: Underway(underway.clone()),
        };
        assert!(to_thread.put(letter).is_ok(), "there is room");
        drop(to_thread);
        let (told, counts) = (Arc::new(Mutex::new(Vec::new())), Counts::default());
        keep_writing(letters, Some(Small(told.clone())), dumped, &counts);
        assert_eq!(*told.lock().expect("nobody panicked"), ["frame 0", "frame 1", "lost 2"]);
        assert_eq!(counts.frames.load(Ordering::Relaxed), 2);
        assert_eq!(counts.gaps.load(Ordering::Relaxed), 1);
        assert!(!underway.load(Ordering::Acquire), "the next one can be asked for");
        let answer = answered.lock().expect("nobody panicked").take().expect("it was answered");
        assert!(answer.expect_err("there is no folder").starts_with("/no/such/"));
    }
}
