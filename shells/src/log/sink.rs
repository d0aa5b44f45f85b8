//! Where finished lines go. A thread of its own writes them to standard error, so that a terminal
//! that scrolls, a pipe that nobody reads or a full disk costs lines and never a turn of the
//! reactor.
//!
//! The one invariant: whoever logs hands a line over or loses it, and never waits for its reader.
//! Lines that are lost are counted, and told once there is room again.

use kvtide_lanes::mailbox::{Mailbox, Sender, mailbox};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// The end into which lines are put. Clones are the same end.
#[derive(Clone)]
pub struct Sink {
    sender: Sender<Vec<u8>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Lines handed over and not written yet.
    waiting: AtomicU64,
    /// Lines for which there was no room, or that could not be written.
    dropped: AtomicU64,
}

impl Sink {
    /// Starts the thread that writes to `out`. `told` is called on it when lines were lost and
    /// there is room again, with how many they were since start.
    pub fn start(
        out: impl Write + Send + 'static,
        told: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Sink> {
        let writer: Arc<OnceLock<Thread>> = Arc::default();
        let woken = writer.clone();
        let (sender, lines) = mailbox(LINES_MAX, move || {
            if let Some(thread) = woken.get() {
                thread.unpark();
            }
        });
        let counts = Arc::new(Counts::default());
        let sink = Sink { sender, counts: counts.clone() };
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            // A line that was put before this found nobody to wake, and is taken below.
            writer.set(thread::current()).ok();
            write_out(lines, out, &counts, told);
        })?;
        Ok(sink)
    }

    /// Lines lost since start.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything that was handed over is written, but not for ever. Whether it is.
    pub fn flush(&self, patience: Duration) -> bool {
        for _ in 0..patience.as_millis() {
            if self.counts.waiting.load(Ordering::Acquire) == 0 {
                return true;
            }
            thread::sleep(FLUSH_PAUSE);
        }
        self.counts.waiting.load(Ordering::Acquire) == 0
    }

    fn put(&self, line: &[u8]) {
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        let mut kept = line[..line.len().min(LINE_BYTES_MAX)].to_vec();
        if kept.len() < line.len()
            && let Some(last) = kept.last_mut()
        {
            *last = b'\n';
        }
        if self.sender.put(kept).is_err() {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_out(
    mut lines: Mailbox<Vec<u8>>,
    mut out: impl Write,
    counts: &Counts,
    told: impl Fn(u64),
) {
    let (mut taken, mut text, mut known) = (Vec::new(), Vec::new(), 0);
    while lines.take(&mut taken) || !taken.is_empty() {
        if taken.is_empty() {
            thread::park();
            continue;
        }
        for some in taken.chunks(LINES_PER_WRITE) {
            text.clear();
            some.iter().for_each(|line| text.extend_from_slice(line));
            // A reader that has gone away does not come back, but a disk may have room again.
            if out.write_all(&text).and_then(|()| out.flush()).is_err() {
                counts.dropped.fetch_add(some.len() as u64, Ordering::Relaxed);
                known += some.len() as u64;
            }
            counts.waiting.fetch_sub(some.len() as u64, Ordering::Release);
        }
        taken.clear();
        let dropped = counts.dropped.load(Ordering::Relaxed);
        if dropped > known {
            known = dropped;
            told(dropped);
        }
    }
}

/// One line, as `tracing` writes it: in one piece.
pub struct Line<'a>(&'a Sink);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// Lines that wait to be written.
pub const LINES_MAX: usize = 1024;
/// Bytes of one of them, its end of line included; what is longer is cut. Values are cut before
/// (`log::cut`), so only a line with several long ones, or with much to escape, comes to this.
pub const LINE_BYTES_MAX: usize = 16 << 10;
/// Few enough that a reader which takes little keeps `waiting` honest.
const LINES_PER_WRITE: usize = 64;
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender as Channel};

    /// Writes only what it is let.
    struct Held {
        permits: Receiver<()>,
        written: Channel<String>,
    }

    impl Write for Held {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Without a holder everything passes.
            self.permits.recv().ok();
            self.written.send(String::from_utf8_lossy(bytes).into_owned()).ok();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_and_nobody_waits() {
        let (permit, permits) = mpsc::channel();
        let (written, lines) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let sink = Sink::start(Held { permits, written }, move |dropped| {
            tell.send(dropped).expect("the test listens");
        });
        let sink = sink.expect("a thread can be had");
        sink.put(b"first\n");
        for _ in 0..3 * LINES_MAX {
            sink.put(b"more\n");
        }
        let dropped = sink.dropped();
        assert!(dropped >= LINES_MAX as u64, "{dropped}");
        assert!(!sink.flush(Duration::ZERO));
        drop(permit);
        assert_eq!(told.recv(), Ok(dropped), "the loss is told once there is room");
        assert!(sink.flush(Duration::from_secs(60)));
        drop(sink);
        let text: String = lines.iter().collect();
        assert!(text.starts_with("first\nmore\n"), "{text}");
        assert_eq!(text.lines().count() as u64, 1 + 3 * LINES_MAX as u64 - dropped);
    }

    #[test]
    fn a_line_has_a_bound_and_still_its_end() {
        let (permit, permits) = mpsc::channel();
        let (written, lines) = mpsc::channel();
        drop(permit);
        let sink = Sink::start(Held { permits, written }, |_| {}).expect("a thread can be had");
        let longest = [&[b'x'; LINE_BYTES_MAX - 1][..], b"\n"].concat();
        let longer = [&[b'x'; 3 * LINE_BYTES_MAX][..], b"\n"].concat();
        for line in [&longest, &longer] {
            sink.put(line);
            let written = lines.recv().expect("it is written");
            assert_eq!(written.as_bytes(), longest);
        }
    }

    /// A pipe whose reader has gone.
    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_is_gone_is_counted_and_not_talked_to_about_it() {
        let sink = Sink::start(Gone, |_| panic!("nobody would hear it"));
        let sink = sink.expect("a thread can be had");
        for _ in 0..10 {
            sink.put(b"line\n");
        }
        assert!(sink.flush(Duration::from_secs(60)), "what cannot be written does not wait");
        assert_eq!(sink.dropped(), 10);
    }
}
