//! When L1 grows: before anybody is served, or behind the backs of those who are. The same helper
//! then looks after the segment, which others can reach.

use crate::arena::sizing::Bytes;
use crate::arena::{Arena, Condition, Grower, Growth, PoolNews};
use crate::reactor::Signal;
use std::fmt;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Memory ended before L1 was as large as the operator wanted it before serving. Both sizes are
/// named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotWhole {
    pub usable: u64,
    pub wanted: u64,
    pub error: rustix::io::Errno,
}

impl fmt::Display for NotWhole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (usable, wanted) = (Bytes(self.usable), Bytes(self.wanted));
        write!(
            f,
            "only {usable} of L1 can be allocated and {wanted} are to be there before serving \
             (--no-l1-use-lazy, --l1-init-size-gb, --l1-use-hugepages): {}",
            self.error
        )
    }
}

/// Why L1 is not there before serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenOff {
    NotWhole(NotWhole),
    /// The operator does not want the server any more.
    Signalled(Signal),
}

/// Grows `wanted` bytes of it now, in whole steps. `terminal` shows how far it is; `signalled` is
/// asked between any two steps.
pub fn before_serving(
    arena: &mut Arena,
    grower: &mut Grower,
    wanted: u64,
    mut terminal: Option<&mut dyn Write>,
    mut signalled: impl FnMut() -> Option<Signal>,
) -> Result<(), BrokenOff> {
    let mut ended = Ok(());
    if wanted == 0 {
        return ended;
    }
    grower.run(|growth| {
        arena.grown_to(growth.usable());
        let enough = growth.usable() >= wanted;
        if let Some(terminal) = &mut terminal {
            let over = enough || matches!(growth, Growth::Stopped { .. });
            show(*terminal, growth.usable(), wanted, over);
        }
        if let Growth::Stopped { usable, error } = growth {
            ended = Err(BrokenOff::NotWhole(NotWhole { usable, wanted, error }));
        }
        match signalled() {
            Some(signal) => {
                ended = Err(BrokenOff::Signalled(signal));
                ControlFlow::Break(())
            }
            None if enough => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    });
    ended
}

/// One line that is written over and over; its end starts a new one. A terminal that cannot be
/// written to is no reason not to start.
fn show(terminal: &mut dyn Write, usable: u64, wanted: u64, over: bool) {
    let (usable, wanted) = (Bytes(usable), Bytes(wanted));
    let end = if over { "\n" } else { "" };
    write!(terminal, "\rAllocating L1: {usable} of {wanted}  {end}").ok();
    terminal.flush().ok();
}

/// What the helper has to say. Every word is absolute: one that does not get through is made up for
/// by the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// So many bytes are usable.
    Grown(u64),
    Pool(PoolNews),
    /// Stored bytes are lost: whatever is served from now on may be wrong.
    Torn,
}

/// How a word was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Taken,
    /// The mailbox is full.
    NotNow,
    /// Nobody wants to know any more.
    Ended,
}

/// Grows on a thread of its own and looks after the segment until nobody listens; private memory
/// needs nobody once it is whole. `pause` waits.
pub fn while_serving(
    grower: Grower,
    wanted: u64,
    tell: impl FnMut(Word) -> Received + Send + 'static,
    pause: impl FnMut(Duration) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let helper = Helper { grower, wanted, tell, pause, news: PoolNews::default() };
    thread::Builder::new().name("grower".to_owned()).spawn(move || {
        // Either way there is nothing left to do.
        let _ = helper.run();
    })
}

struct Helper<T, P> {
    grower: Grower,
    wanted: u64,
    tell: T,
    pause: P,
    news: PoolNews,
}

impl<T: FnMut(Word) -> Received, P: FnMut(Duration)> Helper<T, P> {
    /// Breaks where nobody listens any more.
    fn run(mut self) -> ControlFlow<()> {
        let mut patience = RETRY_FIRST;
        loop {
            match self.grow()? {
                true => break,
                false => {
                    self.watch_for(patience)?;
                    patience = (patience * 2).min(RETRY_LAST);
                }
            }
        }
        while self.grower.is_shared() {
            self.watch_for(WATCH_EVERY)?;
        }
        ControlFlow::Continue(())
    }

    /// As far as there is memory. True when L1 is whole.
    fn grow(&mut self) -> ControlFlow<(), bool> {
        loop {
            let growth = self.grower.step();
            // Growing takes as long as there is memory to fill, and clients are served meanwhile.
            self.look()?;
            let waits = match growth {
                Growth::Grown { usable } => {
                    // The next step says the same and more.
                    match (self.tell)(Word::Grown(usable)) {
                        Received::Ended => return ControlFlow::Break(()),
                        Received::Taken | Received::NotNow => continue,
                    }
                }
                Growth::Whole { usable } => {
                    let (usable, wanted) = (Bytes(usable), Bytes(self.wanted));
                    tracing::info!("L1 has its full size, {usable} of {wanted}");
                    None
                }
                Growth::Stopped { error, .. } => Some(error),
            };
            self.say(Word::Grown(growth.usable()))?;
            self.announce(PoolNews { waits, ..self.news })?;
            return ControlFlow::Continue(waits.is_none());
        }
    }

    /// Looks at the segment now and then, for this long.
    fn watch_for(&mut self, patience: Duration) -> ControlFlow<()> {
        let mut left = patience;
        while !left.is_zero() {
            let time = left.min(WATCH_EVERY);
            (self.pause)(time);
            left -= time;
            self.look()?;
        }
        ControlFlow::Continue(())
    }

    /// What has become of the segment, told where it is news.
    fn look(&mut self) -> ControlFlow<()> {
        let condition = self.grower.condition();
        if condition == Condition::Torn {
            // Who hears it ends the process where it stands.
            self.grower.remove_name();
            self.say(Word::Torn)?;
        }
        let is_unnamed = condition != Condition::Sound;
        self.announce(PoolNews { is_unnamed, ..self.news })
    }

    fn announce(&mut self, news: PoolNews) -> ControlFlow<()> {
        if news == self.news {
            return ControlFlow::Continue(());
        }
        self.news = news;
        self.say(Word::Pool(news))
    }

    /// Until it is heard.
    fn say(&mut self, word: Word) -> ControlFlow<()> {
        loop {
            match (self.tell)(word) {
                Received::Taken => return ControlFlow::Continue(()),
                Received::NotNow => (self.pause)(FULL_PAUSE),
                Received::Ended => return ControlFlow::Break(()),
            }
        }
    }
}

/// A reactor that is behind with its letters gets this long to catch up.
const FULL_PAUSE: Duration = Duration::from_millis(10);
/// How often the segment is looked at. What was stored in it may be served for so long after it was
/// lost.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// The first and the longest wait for memory to come back.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::SegmentOptions;
    use kvtide_core::limits::GROW_STEP_BYTES;
    use std::sync::mpsc;

    const BYTES: u64 = 1 << 20;

    #[test]
    fn growing_before_serving_leaves_a_whole_arena_and_a_line_that_says_so() {
        let (mut arena, mut grower) = Arena::private(BYTES).expect("a MiB can be mapped");
        let mut line = Vec::new();
        let grown = before_serving(&mut arena, &mut grower, BYTES, Some(&mut line), || None);
        assert_eq!(grown, Ok(()));
        assert_eq!(arena.usable_bytes(), BYTES);
        let line = String::from_utf8(line).expect("the line is text");
        assert_eq!(line, "\rAllocating L1: 1.0 MiB of 1.0 MiB  \n");
    }

    #[test]
    fn as_much_as_is_wanted_before_serving_is_there_and_no_step_more() {
        let bytes = 3 * GROW_STEP_BYTES;
        for (wanted, usable) in [(0, 0), (1, GROW_STEP_BYTES)] {
            let (mut arena, mut grower) = Arena::private(bytes).expect("space can be mapped");
            let grown = before_serving(&mut arena, &mut grower, wanted, None, || None);
            assert_eq!((grown, arena.usable_bytes()), (Ok(()), usable));
        }
    }

    #[test]
    fn a_signal_while_growing_ends_it_after_the_step() {
        let bytes = 3 * GROW_STEP_BYTES;
        let (mut arena, mut grower) = Arena::private(bytes).expect("address space can be mapped");
        let signal = || Some(Signal::Terminate);
        let ended = before_serving(&mut arena, &mut grower, bytes, None, signal);
        assert_eq!(ended, Err(BrokenOff::Signalled(Signal::Terminate)));
        assert_eq!(arena.usable_bytes(), GROW_STEP_BYTES);
    }

    #[test]
    fn the_last_report_is_made_until_it_is_taken() {
        let (_arena, grower) = Arena::private(BYTES).expect("a MiB can be mapped");
        let (told, heard) = mpsc::channel();
        let mut refusals = 3;
        let tell = move |word| {
            refusals -= 1;
            told.send((word, refusals)).ok();
            if refusals > 0 { Received::NotNow } else { Received::Taken }
        };
        let thread = while_serving(grower, BYTES, tell, |_| {});
        thread.expect("a thread can be had").join().expect("the grower does not panic");
        let grown = Word::Grown(BYTES);
        assert_eq!(heard.iter().collect::<Vec<_>>(), [(grown, 2), (grown, 1), (grown, 0)]);
    }

    #[test]
    fn a_server_that_ended_ends_the_grower() {
        let (_arena, grower) = Arena::private(3 * GROW_STEP_BYTES).expect("space can be mapped");
        let thread = while_serving(grower, 0, |_| Received::Ended, |_| {});
        thread.expect("a thread can be had").join().expect("the grower does not panic");
    }

    /// Everything that a helper says of a segment on which `act` is called before each look.
    fn words_while(test: &str, mut act: impl FnMut(&str, usize) + Send + 'static) -> Vec<Word> {
        let name = format!("test_{}_{test}", std::process::id());
        let options = SegmentOptions { name: Some(name), mode: 0o600, group: None };
        let (arena, grower) = Arena::shared(&options, BYTES).expect("a MiB can be mapped");
        let name = arena.pool_name().expect("the arena is shared");
        let path = format!("{}/{name}", crate::arena::machine::SHM_DIRECTORY);
        let (told, heard) = mpsc::channel();
        let mut left = 2;
        let tell = move |word| {
            left -= 1;
            told.send(word).ok();
            if left == 0 { Received::Ended } else { Received::Taken }
        };
        let mut looks = 0;
        let pause = move |_| {
            act(&path, looks);
            looks += 1;
            assert!(looks < 100, "the helper ends when nobody listens");
        };
        let thread = while_serving(grower, BYTES, tell, pause).expect("a thread can be had");
        thread.join().expect("the grower does not panic");
        heard.iter().collect()
    }

    #[test]
    fn f49_a_name_that_was_removed_is_told_once() {
        let words = words_while("unnamed", |path, look| {
            if look == 3 {
                std::fs::remove_file(path).expect("the segment is ours");
            }
        });
        let news = PoolNews { waits: None, is_unnamed: true };
        assert_eq!(words, [Word::Grown(BYTES), Word::Pool(news)]);
    }

    #[test]
    fn f49_a_segment_that_was_cut_short_is_told_at_the_next_look() {
        let words = words_while("torn", |path, look| {
            let file = std::fs::File::options().write(true).open(path).expect("it is ours");
            file.set_len(if look == 0 { BYTES } else { 0 }).expect("the segment can be cut");
        });
        assert_eq!(words, [Word::Grown(BYTES), Word::Torn]);
    }

    #[test]
    fn f49_a_segment_that_was_cut_short_is_told_while_l1_still_grows() {
        let name = format!("test_{}_growing", std::process::id());
        let options = SegmentOptions { name: Some(name), mode: 0o600, group: None };
        let bytes = 4 * GROW_STEP_BYTES;
        let (arena, grower) = Arena::shared(&options, bytes).expect("address space can be mapped");
        let name = arena.pool_name().expect("the arena is shared");
        let path = format!("{}/{name}", crate::arena::machine::SHM_DIRECTORY);
        let (told, heard) = mpsc::channel();
        let tell = move |word| {
            told.send(word).ok();
            if word == Word::Torn {
                return Received::Ended;
            }
            let file = std::fs::File::options().write(true).open(&path).expect("it is ours");
            file.set_len(4096).expect("the segment can be cut");
            Received::Taken
        };
        let pause = |_| panic!("it is told before anybody waits");
        let thread = while_serving(grower, bytes, tell, pause).expect("a thread can be had");
        thread.join().expect("the grower does not panic");
        assert_eq!(heard.iter().collect::<Vec<_>>(), [Word::Grown(GROW_STEP_BYTES), Word::Torn]);
    }

    #[test]
    fn both_sizes_are_named_where_memory_is_missing() {
        let error = rustix::io::Errno::NOSPC;
        let text = NotWhole { usable: 1 << 30, wanted: 3 << 30, error }.to_string();
        assert!(text.contains("1.00 GiB") && text.contains("3.00 GiB"), "{text}");
    }
}
