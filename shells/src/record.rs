//! Recording on the server's side: what happens to the frames that `kvtide_core::recording` makes.
//!
//! ```text
//! reactor: event -> Recorder -> frame -+-> flight recorder (a ring in memory)
//!                                      +-> lane -> thread -> FILE, FILE.1, ..
//!          dump: the ring ---------------> lane -> thread -> DIR/kvtide-PID-N.dump
//! ```
//!
//! The one invariant: the reactor never waits for a disk. Where the thread does not keep up,
//! recording ends with a mark that says so, and the server goes on. Whoever asks for dumps as fast
//! as he can gets one a second, and none while one is being written.

mod dump;
mod files;
mod flight;
#[cfg(test)]
mod folder;
mod thread;

pub use dump::{DumpTeller, Dumped};
pub use files::{PARTS, part};

use crate::ending::Ending;
use crate::entropy;
use crate::reactor::Desk;
use crate::version;
use dump::Dumps;
use files::Files;
use flight::Flight;
use kvtide_core::config::Config;
use kvtide_core::effect::Outbox;
use kvtide_core::event::{Ask, Event};
use kvtide_core::front::memo::Memo;
use kvtide_core::recording::{
    Frame, Header, Mark, Part, RECORDER_BYTES_MAX, Recorder, Secret, hashes_of,
};
use kvtide_core::time::{Duration, Instant};
use kvtide_lanes::Refused;
use kvtide_lanes::lane::{Producer, lane};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use thread::{Letter, keep_writing};

/// What the flags come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// `--record`.
    pub file: Option<PathBuf>,
    /// `--record-max-mb`: all parts together.
    pub bytes_max: u64,
    /// `--record-tokens`.
    pub tokens: bool,
    pub dump_dir: PathBuf,
    /// Whether the last minute is kept.
    pub flight: bool,
}

/// Counted by the thread, read by the reactor for `/status` and `/metrics`.
#[derive(Debug, Default)]
pub struct Counts {
    pub frames: AtomicU64,
    /// Recordings that ended before the server did.
    pub gaps: AtomicU64,
    pub dumps: AtomicU64,
    /// Bytes of frames that wait for the disk, the one being written included.
    waiting_bytes: AtomicU64,
    /// A mark that found no room in the lane before the server ended.
    last_mark: Mutex<Option<Frame>>,
}

impl Counts {
    fn last_mark(&self) -> std::sync::MutexGuard<'_, Option<Frame>> {
        // Whoever panicked with it left it whole.
        self.last_mark.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One dump on its way. Gone with its letter, whatever becomes of that.
#[derive(Debug)]
pub struct Underway(Arc<AtomicBool>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The reactor's end. Everything that the engine is told goes through it.
pub struct Recording {
    recorder: Recorder,
    flight: Option<Flight>,
    thread: Option<Producer<Letter>>,
    file: FileState,
    tokens: bool,
    dumps: Dumps,
    is_dumping: Arc<AtomicBool>,
    /// When the last dump was asked for that was begun.
    dumped: Option<Instant>,
    counts: Arc<Counts>,
}

/// How things stand with `--record`.
#[derive(Debug)]
enum FileState {
    /// Not wanted, or over.
    Off,
    On,
    /// Over; this mark is to be written when there is room for it.
    Gap(Frame),
}

/// Opens the file, if there is to be one, and starts the thread. None where nothing is recorded.
pub fn start(options: &RecordOptions, config: &Config) -> io::Result<Option<(Recording, Ending)>> {
    if options.file.is_none() && !options.flight {
        return Ok(None);
    }
    let secret = Secret::new(entropy::secret()?);
    let header = Header {
        recording: entropy::seed(),
        tokens: options.tokens,
        writer: version::KVTIDE.to_owned(),
        config: config.clone(),
    };
    let header = Arc::new(header.bytes());
    let files = match &options.file {
        Some(path) => Some(Files::open(path, options.bytes_max, header.clone())?),
        None => None,
    };
    let file = if files.is_some() { FileState::On } else { FileState::Off };
    let counts = Arc::new(Counts::default());
    let dumps = Dumps::new(options.dump_dir.clone(), header, entropy::seed());
    let (to_thread, letters) = lane(LETTERS);
    let (by_thread, theirs) = (counts.clone(), dumps.clone());
    let ending = Ending::spawn("record", move || keep_writing(letters, files, theirs, &by_thread))?;
    let recording = Recording {
        recorder: Recorder::new(secret),
        flight: options.flight.then(Flight::default),
        thread: Some(to_thread),
        file,
        tokens: options.tokens,
        dumps,
        is_dumping: Arc::default(),
        dumped: None,
        counts,
    };
    Ok(Some((recording, ending)))
}

impl Recording {
    /// Has the engine handle an event and records both.
    pub fn handle<E: Desk>(
        &mut self,
        engine: &mut E,
        now: Instant,
        event: Event<'_>,
        out: &mut Outbox,
    ) {
        self.recorder.begins(now, &event);
        let (hashes, before) = (hashes_of(&event), (out.effects.len(), out.facts.len()));
        engine.handle(now, event, out);
        self.recorder.ended(hashes, &Part::since(before, out));
        if self.recorder.is_full() {
            self.close(now);
        }
    }

    /// The same for the end of the server.
    pub fn finish<E: Desk>(&mut self, engine: &mut E, now: Instant, out: &mut Outbox) {
        self.recorder.begins_finish(now);
        let before = (out.effects.len(), out.facts.len());
        engine.finish(now, out);
        self.recorder.ended(&[], &Part::since(before, out));
    }

    /// Whose tokens are to be recorded with this question, if anybody's.
    pub fn speaker(&self, ask: &Ask<'_>) -> Option<String> {
        let keys = match ask {
            Ask::Lookup { keys } | Ask::FreeLookupLocks { keys } => keys,
            Ask::PrepareStore { keys, .. } | Ask::CommitStore { keys, .. } => keys,
            Ask::PrepareRetrieve { keys, .. } | Ask::CommitRetrieve { keys, .. } => keys,
            _ => return None,
        };
        self.tokens.then(|| keys.request.to_owned())
    }

    /// The token ids of those chunks that the last question told for the first time.
    pub fn tokens(&mut self, now: Instant, request: &str, memo: &Memo) {
        for chunk in self.recorder.fresh_chunks() {
            if let Some(encoded) = memo.tokens(request, chunk..chunk + 1) {
                self.recorder.tokens(now, chunk..chunk + 1, encoded);
            }
            // A long prompt has more tokens than a frame holds.
            if self.recorder.is_full() {
                self.close(now);
            }
        }
    }

    /// Called once a turn: what has waited long enough goes on its way.
    pub fn turn_ended(&mut self, now: Instant) {
        if self.recorder.is_due(now) {
            self.close(now);
        }
        if matches!(self.file, FileState::Gap(_))
            && let FileState::Gap(mark) = std::mem::replace(&mut self.file, FileState::Off)
            && let Err(Refused::Full(Letter::Frame(mark))) = self.put(Letter::Frame(mark))
        {
            self.file = FileState::Gap(mark);
        }
    }

    /// Writes what is kept of the last minute to a file, on the thread. `tell` hears of it there,
    /// or here why there will be none: taking the frames costs the reactor time, and writing them
    /// keeps the thread from others.
    pub fn dump(&mut self, now: Instant, tell: DumpTeller) {
        if self.flight.is_none() {
            return tell(Err("the flight recorder is off (--no-flight-recorder)".to_owned()));
        }
        if self.is_dumping.load(Ordering::Acquire) {
            return tell(Err("a dump is being written; ask again when it is there".to_owned()));
        }
        if self.dumped.is_some_and(|last| now.since(last) < DUMP_PAUSE) {
            return tell(Err("the last dump is less than a second old".to_owned()));
        }
        self.dumped = Some(now);
        self.close(now);
        let Some(flight) = &self.flight else { return };
        let (frames, until) = (flight.frames(), self.recorder.events());
        self.is_dumping.store(true, Ordering::Release);
        let underway = Underway(self.is_dumping.clone());
        let letter = Letter::Dump { frames, until, tell, underway };
        if let Err(refused) = self.put(letter)
            && let Letter::Dump { tell, .. } = refused.into_value()
        {
            tell(Err("the disk does not follow".to_owned()));
        }
    }

    /// The engine has panicked: the same at once. None where nothing is kept. Written by a thread
    /// of its own, for which nobody waits long: the other one may hang in the same disk.
    pub fn dump_after_panic(&mut self) -> Option<io::Result<Dumped>> {
        let frame = self.recorder.close();
        let flight = self.flight.as_mut()?;
        if let Some(frame) = frame {
            flight.keep(frame.clone(), frame.began);
            self.write(frame);
        }
        let frames = self.flight.as_ref()?.frames();
        let (until, dumps) = (self.recorder.events(), self.dumps.clone());
        let (answer, answered) = mpsc::channel();
        let writing = Ending::spawn("dump", move || {
            answer.send(dumps.write_panic(&frames, until)).ok();
        });
        Some(writing.and_then(|_| {
            let hangs = || io::Error::new(io::ErrorKind::TimedOut, "the disk does not answer");
            answered.recv_timeout(PANIC_PATIENCE).unwrap_or_else(|_| Err(hangs()))
        }))
    }

    /// The last frame is on its way; the thread ends when it has written it. `mark` says that the
    /// server ended in order.
    pub fn end(&mut self, now: Instant, mark: bool) {
        self.close(now);
        if mark && matches!(self.file, FileState::On) {
            let end = self.recorder.marked(Mark::End);
            self.write(end);
        }
        if let FileState::Gap(mark) = std::mem::replace(&mut self.file, FileState::Off) {
            // The thread looks for it when it has written everything else.
            *self.counts.last_mark() = Some(mark);
        }
        self.thread = None;
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    pub fn events(&self) -> u64 {
        self.recorder.events()
    }

    fn close(&mut self, now: Instant) {
        let Some(frame) = self.recorder.close() else { return };
        if let Some(flight) = &mut self.flight {
            flight.keep(frame.clone(), now);
        }
        self.write(frame);
    }

    fn write(&mut self, frame: Frame) {
        if !matches!(self.file, FileState::On) {
            return;
        }
        if self.counts.gaps.load(Ordering::Relaxed) > 0 {
            // The thread could not write, and has said so.
            self.file = FileState::Off;
            return;
        }
        let Err(refused) = self.put(Letter::Frame(frame)) else { return };
        self.file = FileState::Off;
        if let Refused::Full(Letter::Frame(frame)) = refused {
            self.counts.gaps.fetch_add(1, Ordering::Relaxed);
            let (event, at) = (frame.first_event, frame.began);
            self.file = FileState::Gap(Frame::marked(Mark::Gap, frame.number, event, at));
            tracing::warn!(
                "--record: the disk does not follow; the recording ends before event {event}"
            );
        }
    }

    /// Frames are counted by their bytes: a lane holds letters, small and large.
    fn put(&mut self, letter: Letter) -> Result<(), Refused<Letter>> {
        let Some(thread) = &mut self.thread else { return Err(Refused::Closed(letter)) };
        let bytes = letter.bytes();
        let waiting = &self.counts.waiting_bytes;
        if bytes > 0 && waiting.load(Ordering::Relaxed) + bytes > WAITING_BYTES_MAX {
            return Err(Refused::Full(letter));
        }
        // Before the thread can have it, which takes them off again.
        waiting.fetch_add(bytes, Ordering::Relaxed);
        let put = thread.put(letter);
        if put.is_err() {
            waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
        put
    }
}

/// Most bytes that it takes, for `--print-memory`: the last minute, what a dump that is being
/// written keeps of an earlier one, and what waits for the disk.
pub fn memory_bytes_max() -> [(&'static str, u64); 3] {
    [
        ("flight recorder", flight::BYTES_MAX + RECORDER_BYTES_MAX),
        ("dump being written", flight::BYTES_MAX),
        ("recording buffer", WAITING_BYTES_MAX),
    ]
}

/// Letters that may wait for the disk.
const LETTERS: usize = 256;
/// Bytes of their frames, which the flight recorder shares as long as it keeps them.
const WAITING_BYTES_MAX: u64 = 16 << 20;
/// From the beginning of one dump to that of the next.
const DUMP_PAUSE: Duration = Duration::from_secs(1);
/// How long a server that has panicked waits for its dump.
const PANIC_PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_lanes::lane::Consumer;

    /// Decides nothing.
    struct Nobody;

    impl Desk for Nobody {
        fn handle(&mut self, _now: Instant, _event: Event<'_>, _out: &mut Outbox) {}

        fn next_tick(&self) -> Option<Instant> {
            None
        }

        fn retell(&mut self, _out: &mut Outbox) {}

        fn finish(&mut self, _now: Instant, _out: &mut Outbox) {}
    }

    /// A recording whose thread has room for so many letters and takes none by itself.
    fn recording(letters: usize) -> (Recording, Consumer<Letter>) {
        let (to_thread, consumer) = lane(letters);
        let recording = Recording {
            recorder: Recorder::new(Secret::new([7; 16])),
            flight: Some(Flight::default()),
            thread: Some(to_thread),
            file: FileState::On,
            tokens: false,
            dumps: Dumps::new(std::env::temp_dir(), Arc::default(), 7),
            is_dumping: Arc::default(),
            dumped: None,
            counts: Arc::default(),
        };
        (recording, consumer)
    }

    /// Frame numbers with their marks.
    fn taken(consumer: &mut Consumer<Letter>) -> Vec<(u64, Mark)> {
        let mut letters = Vec::new();
        consumer.take(&mut letters);
        let frames = letters.into_iter().map(|letter| match letter {
            Letter::Frame(frame) => (frame.number, frame.mark),
            Letter::Dump { .. } => panic!("no dump was asked for"),
        });
        frames.collect()
    }

    fn second(recording: &mut Recording, second: u64) {
        let now = Instant::from_secs(second);
        recording.handle(&mut Nobody, now, Event::Tick, &mut Outbox::default());
        recording.turn_ended(now + kvtide_core::recording::recorder::FRAME_TIME);
    }

    #[test]
    fn a_disk_that_does_not_follow_ends_the_recording_with_a_mark_and_nothing_else() {
        let (mut recording, mut consumer) = recording(2);
        for at in 0..5 {
            second(&mut recording, 2 * at);
        }
        assert_eq!(recording.counts().gaps.load(Ordering::Relaxed), 1, "told once");
        assert_eq!(taken(&mut consumer), [(0, Mark::None), (1, Mark::None)]);
        second(&mut recording, 10);
        assert_eq!(taken(&mut consumer), [(2, Mark::Gap)], "as soon as there is room");
        second(&mut recording, 12);
        recording.end(Instant::from_secs(14), true);
        assert_eq!(taken(&mut consumer), [], "it is over");
        let kept = recording.flight.expect("it is on").frames();
        assert_eq!(kept.len(), 7, "the flight recorder goes on");
    }

    #[test]
    fn what_the_thread_could_not_write_is_not_told_twice() {
        let (mut recording, mut consumer) = recording(8);
        second(&mut recording, 0);
        recording.counts.gaps.fetch_add(1, Ordering::Relaxed);
        second(&mut recording, 2);
        second(&mut recording, 4);
        assert_eq!(taken(&mut consumer), [(0, Mark::None)]);
        assert_eq!(recording.counts().gaps.load(Ordering::Relaxed), 1);
    }

    /// A recording that has fallen behind says so at the latest when the server ends.
    #[test]
    fn a_mark_that_found_no_room_is_left_for_the_thread() {
        let (mut recording, mut consumer) = recording(1);
        second(&mut recording, 0);
        second(&mut recording, 2);
        recording.end(Instant::from_secs(4), true);
        assert_eq!(taken(&mut consumer), [(0, Mark::None)]);
        let mark = recording.counts().last_mark().take().expect("it is left");
        assert_eq!((mark.number, mark.mark), (1, Mark::Gap));
    }

    #[test]
    fn what_waits_is_bounded_by_its_bytes() {
        let (mut recording, mut consumer) = recording(LETTERS);
        let mut frame = Frame::marked(Mark::None, 0, 0, Instant(0));
        frame.entries = vec![0; 3 << 20].into();
        for _ in 0..5 {
            recording.write(frame.clone());
            assert!(matches!(recording.file, FileState::On));
        }
        let waiting = recording.counts.waiting_bytes.load(Ordering::Relaxed);
        assert_eq!(waiting, 5 * frame.file_bytes());
        recording.write(frame);
        assert!(matches!(recording.file, FileState::Gap(_)), "a sixth would be too much");
        assert_eq!(taken(&mut consumer).len(), 5);
        assert_eq!(recording.counts.waiting_bytes.load(Ordering::Relaxed), waiting);
    }

    /// Two hundred dumps a second once cost a recording its end.
    #[test]
    fn one_dump_a_second_and_none_while_one_is_written() {
        let (mut recording, mut consumer) = recording(8);
        let refusals: Arc<Mutex<Vec<String>>> = Arc::default();
        let ask = |recording: &mut Recording, at| {
            let theirs = refusals.clone();
            let tell: DumpTeller = Box::new(move |told: Result<Dumped, String>| {
                theirs.lock().expect("nobody panicked").extend(told.err());
            });
            recording.dump(at, tell);
            std::mem::take(&mut *refusals.lock().expect("nobody panicked"))
        };
        let start = Instant::from_secs(9);
        assert_eq!(ask(&mut recording, start), Vec::<String>::new());
        let refused = ask(&mut recording, start + Duration::from_secs(7));
        assert_eq!(refused, ["a dump is being written; ask again when it is there"]);
        let mut letters = Vec::new();
        consumer.take(&mut letters);
        assert!(matches!(letters[..], [Letter::Dump { .. }]), "one letter for two questions");
        letters.clear();
        let early = ask(&mut recording, start + Duration::from_millis(999));
        assert_eq!(early, ["the last dump is less than a second old"]);
        assert!(ask(&mut recording, start + DUMP_PAUSE).is_empty(), "it is on its way");
    }

    #[test]
    fn the_end_is_marked_behind_the_last_frame() {
        let (mut recording, mut consumer) = recording(8);
        second(&mut recording, 0);
        recording.handle(&mut Nobody, Instant(7), Event::Tick, &mut Outbox::default());
        recording.finish(&mut Nobody, Instant(8), &mut Outbox::default());
        recording.end(Instant(9), true);
        assert_eq!(taken(&mut consumer), [(0, Mark::None), (1, Mark::None), (2, Mark::End)]);
    }
}
