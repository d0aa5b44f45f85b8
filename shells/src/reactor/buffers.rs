//! Memory for messages in the making and for answers: a few buffers that go round, so that a
//! message costs no allocation and an idle connection holds none; and the budget that frames over
//! `SMALL_FRAME_BYTES_MAX` share (design §7).

use kvtide_core::names::Connection;
use std::collections::VecDeque;

/// Empty buffers with room in them.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Vec<Vec<u8>>,
}

impl Buffers {
    pub fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    /// Large ones are not kept: one big message must not cost memory for ever.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let useful = (1..=KEPT_BYTES_MAX).contains(&buffer.capacity());
        if useful && self.free.len() < KEPT_BUFFERS_MAX {
            buffer.clear();
            self.free.push(buffer);
        }
    }
}

/// Who may buffer large frames, and who waits to. First come, first served: a frame that does not
/// fit keeps its place, so a stream of smaller ones cannot starve it.
#[derive(Debug)]
pub struct LargeFrames {
    left_bytes: usize,
    waiting: VecDeque<(Connection, usize)>,
}

impl LargeFrames {
    pub fn new(budget_bytes: usize) -> LargeFrames {
        LargeFrames { left_bytes: budget_bytes, waiting: VecDeque::new() }
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

    pub fn is_contended(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn left_bytes(&self) -> usize {
        self.left_bytes
    }
}

/// Buffers of this capacity and below go round.
const KEPT_BYTES_MAX: usize = 256 << 10;
const KEPT_BUFFERS_MAX: usize = 64;
pub const KEPT_BYTES: usize = KEPT_BYTES_MAX * KEPT_BUFFERS_MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::slots::SlotName;

    fn connection(index: u32) -> Connection {
        Connection(SlotName { index, generation: 0 })
    }

    #[test]
    fn a_frame_that_waits_is_not_overtaken_by_a_smaller_one() {
        let mut large = LargeFrames::new(100);
        assert!(large.reserve(connection(1), 70));
        assert!(!large.reserve(connection(2), 60));
        assert!(!large.reserve(connection(3), 10), "it would fit, but it came later");
        assert_eq!(large.grant(), None);
        large.release(70);
        assert_eq!(large.grant(), Some((connection(2), 60)));
        assert_eq!(large.grant(), Some((connection(3), 10)));
        assert_eq!((large.grant(), large.left_bytes()), (None, 30));
    }

    #[test]
    fn f55_who_leaves_while_waiting_is_forgotten() {
        let mut large = LargeFrames::new(10);
        assert!(large.reserve(connection(1), 10));
        assert!(!large.reserve(connection(2), 10));
        assert!(!large.reserve(connection(3), 10));
        large.forget(connection(2));
        large.release(10);
        assert_eq!(large.grant(), Some((connection(3), 10)));
        assert!(!large.is_contended());
    }

    #[test]
    fn a_buffer_goes_round_and_a_huge_one_does_not() {
        let mut buffers = Buffers::default();
        buffers.give(vec![1; 100]);
        let again = buffers.take();
        assert_eq!((again.len(), again.capacity()), (0, 100));
        buffers.give(vec![0; KEPT_BYTES_MAX + 1]);
        assert_eq!(buffers.take().capacity(), 0);
    }
}
