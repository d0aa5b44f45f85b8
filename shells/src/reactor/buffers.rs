//! Memory for messages in the making and for answers: a few buffers that go round, so that a
//! message costs no allocation and an idle connection holds none; and the budgets that frames share
//! which are more than a small request (design §7).

use kvtide_core::limits::{
    LARGE_FRAME_BUDGET_BYTES, MEDIUM_FRAME_BUDGET_BYTES, SMALL_FRAME_BYTES_MAX,
};
use kvtide_core::names::Connection;
use kvtide_core::time::Instant;
use std::collections::VecDeque;

/// Empty buffers with room in them.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Vec<Vec<u8>>,
    /// A large one, for the next long prompt: memory that the system has to make present takes
    /// longer than the prompt's bytes take to copy.
    large: Vec<u8>,
}

impl Buffers {
    pub fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    /// Of large ones one is kept, and no huge one: big messages must not cost memory for ever.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        match buffer.capacity() {
            0 => {}
            1..=KEPT_BYTES_MAX if self.free.len() < KEPT_BUFFERS_MAX => self.free.push(buffer),
            ..=LARGE_BYTES_MAX if buffer.capacity() > self.large.capacity() => self.large = buffer,
            _ => {}
        }
    }

    /// The large one, where it has room for `bytes` and little more: what a message was granted is
    /// what it takes.
    pub fn take_large(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let room = self.large.capacity();
        let fits = (bytes..=bytes + bytes / EXCESS_PART).contains(&room);
        fits.then(|| std::mem::take(&mut self.large))
    }
}

/// Which budget a frame that is no small request belongs to. Two, so that nobody's 60 MB hold up
/// somebody's long prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Up to `SMALL_FRAME_BYTES_MAX`.
    Medium,
    /// Up to `LARGE_FRAME_BYTES_MAX`.
    Large,
}

impl Class {
    pub const ALL: [Class; 2] = [Class::Medium, Class::Large];

    /// The class of a frame that makes its message as long as that.
    pub fn of(message_bytes: usize) -> Class {
        if message_bytes <= SMALL_FRAME_BYTES_MAX { Class::Medium } else { Class::Large }
    }
}

/// The budgets of both classes.
#[derive(Debug)]
pub struct Budgets([Budget; 2]);

impl Budgets {
    pub fn new() -> Budgets {
        let budgets = [MEDIUM_FRAME_BUDGET_BYTES, LARGE_FRAME_BUDGET_BYTES];
        Budgets(budgets.map(Budget::new))
    }

    pub fn of(&mut self, class: Class) -> &mut Budget {
        &mut self.0[class as usize]
    }

    /// The next that is granted what it waits for, if there is room for any.
    pub fn grant(&mut self) -> Option<(Connection, Class, usize)> {
        Class::ALL.into_iter().find_map(|class| {
            self.of(class).grant().map(|(connection, bytes)| (connection, class, bytes))
        })
    }

    /// A connection that ended no longer waits.
    pub fn forget(&mut self, connection: Connection) {
        self.0.iter_mut().for_each(|budget| budget.forget(connection));
    }

    /// Gives back all that a connection was granted.
    pub fn release(&mut self, granted: &mut Granted) {
        for class in Class::ALL {
            self.of(class).release(std::mem::take(&mut granted.bytes[class as usize]));
        }
    }

    pub fn is_contended(&self, class: Class) -> bool {
        self.0[class as usize].is_contended()
    }

    pub fn left_bytes(&self, class: Class) -> usize {
        self.0[class as usize].left_bytes
    }
}

/// What one connection was granted for its message.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    bytes: [usize; 2],
    /// When it was granted the first of it, and what the message had by then.
    pub since: Instant,
    pub had: usize,
}

impl Granted {
    pub fn nothing() -> Granted {
        Granted { bytes: [0; 2], since: Instant::ZERO, had: 0 }
    }

    pub fn add(&mut self, class: Class, bytes: usize, (now, message_bytes): (Instant, usize)) {
        if self.total() == 0 {
            (self.since, self.had) = (now, message_bytes);
        }
        self.bytes[class as usize] += bytes;
    }

    pub fn of(&self, class: Class) -> usize {
        self.bytes[class as usize]
    }

    pub fn total(&self) -> usize {
        self.bytes[0] + self.bytes[1]
    }
}

/// Who may buffer frames of one class, and who waits to. First come, first served: a frame that
/// does not fit keeps its place, so a stream of smaller ones cannot starve it.
#[derive(Debug)]
pub struct Budget {
    left_bytes: usize,
    waiting: VecDeque<(Connection, usize)>,
}

impl Budget {
    fn new(budget_bytes: usize) -> Budget {
        Budget { left_bytes: budget_bytes, waiting: VecDeque::new() }
    }

    /// True when the bytes are granted. Else the connection waits, and `grant` names it later.
    pub fn reserve(&mut self, connection: Connection, bytes: usize) -> bool {
        if self.waiting.is_empty() && bytes <= self.left_bytes {
            self.left_bytes -= bytes;
            return true;
        }
        self.waiting.push_back((connection, bytes));
        false
    }

    /// Gives granted bytes back.
    pub fn release(&mut self, bytes: usize) {
        self.left_bytes += bytes;
    }

    /// The next in the queue, once there is room: it is granted what it asked for.
    pub fn grant(&mut self) -> Option<(Connection, usize)> {
        let (connection, bytes) = *self.waiting.front()?;
        if bytes > self.left_bytes {
            return None;
        }
        self.left_bytes -= bytes;
        self.waiting.pop_front();
        Some((connection, bytes))
    }

    /// A connection that ended no longer waits.
    pub fn forget(&mut self, connection: Connection) {
        self.waiting.retain(|(waiting, _)| *waiting != connection);
    }

    fn is_contended(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// Buffers of this capacity and below go round.
const KEPT_BYTES_MAX: usize = 256 << 10;
const KEPT_BUFFERS_MAX: usize = 64;
/// As long as a prompt of a million tokens.
const LARGE_BYTES_MAX: usize = 8 << 20;
/// A message's buffer is larger than what it was granted by at most this part.
pub const EXCESS_PART: usize = 8;
pub const KEPT_BYTES: usize = KEPT_BYTES_MAX * KEPT_BUFFERS_MAX + LARGE_BYTES_MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::slots::SlotName;

    fn connection(index: u32) -> Connection {
        Connection(SlotName { index, generation: 0 })
    }

    #[test]
    fn a_frame_that_waits_is_not_overtaken_by_a_smaller_one() {
        let mut large = Budget::new(100);
        assert!(large.reserve(connection(1), 70));
        assert!(!large.reserve(connection(2), 60));
        assert!(!large.reserve(connection(3), 10), "it would fit, but it came later");
        assert_eq!(large.grant(), None);
        large.release(70);
        assert_eq!(large.grant(), Some((connection(2), 60)));
        assert_eq!(large.grant(), Some((connection(3), 10)));
        assert_eq!((large.grant(), large.left_bytes), (None, 30));
    }

    #[test]
    fn f55_who_leaves_while_waiting_is_forgotten() {
        let mut large = Budget::new(10);
        assert!(large.reserve(connection(1), 10));
        assert!(!large.reserve(connection(2), 10));
        assert!(!large.reserve(connection(3), 10));
        large.forget(connection(2));
        large.release(10);
        assert_eq!(large.grant(), Some((connection(3), 10)));
        assert!(!large.is_contended());
    }

    #[test]
    fn a_buffer_goes_round_one_large_one_does_and_a_huge_one_does_not() {
        let mut buffers = Buffers::default();
        buffers.give(vec![1; 100]);
        let again = buffers.take();
        assert_eq!((again.len(), again.capacity()), (0, 100));
        let large = KEPT_BYTES_MAX + 1;
        buffers.give(vec![0; large]);
        buffers.give(vec![0; large]);
        buffers.give(vec![0; LARGE_BYTES_MAX + 1]);
        assert_eq!(buffers.take().capacity(), 0);
        assert_eq!(buffers.take_large(large + 1), None);
        assert_eq!(buffers.take_large(large / 2), None);
        let again = buffers.take_large(large - 1).expect("one of that size is kept");
        assert_eq!((again.len(), again.capacity()), (0, large));
        assert_eq!(buffers.take_large(large), None);
    }
}
