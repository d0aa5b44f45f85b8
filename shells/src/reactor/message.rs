//! One message in the making. Frames lie one behind the other in a buffer that goes round between
//! connections. Invariant: at most `FRAMES_MAX` frames are kept, however many a peer sends; their
//! number alone already says that the request is wrong.

use super::buffers::Buffers;
use kvtide_core::limits::{FRAMES_MAX, SMALL_MESSAGE_BYTES_MAX};

#[derive(Debug, Default)]
pub struct Message {
    bytes: Vec<u8>,
    /// Where each kept frame ends within `bytes`.
    ends: [usize; FRAMES_MAX],
    /// Frames begun, those that are not kept included.
    frames: usize,
}

impl Message {
    /// Begins a frame and says which it is, from 0 on.
    pub fn begin_frame(&mut self) -> usize {
        self.frames += 1;
        if let Some(end) = self.ends.get_mut(self.frames - 1) {
            *end = self.bytes.len();
        }
        self.frames - 1
    }

    /// Appends to the frame begun last, which must be one that is kept.
    pub fn append(&mut self, part: &[u8]) {
        assert!(self.frames <= FRAMES_MAX, "only kept frames have bytes");
        self.bytes.extend_from_slice(part);
        self.ends[self.frames - 1] = self.bytes.len();
    }

    /// Forgets the last frame, as if it had not begun.
    pub fn drop_frame(&mut self) {
        self.truncate_frame(0);
        self.frames -= 1;
    }

    /// Keeps the first bytes of the last frame only.
    pub fn truncate_frame(&mut self, bytes: usize) {
        let last = self.frame(self.frames - 1).len();
        self.bytes.truncate(self.bytes.len() - last.saturating_sub(bytes));
        self.ends[self.frames - 1] = self.bytes.len();
    }

    /// One of the kept frames.
    pub fn frame(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// The kept frames from `first` on, in an array on the caller's stack.
    pub fn kept<'m>(&'m self, into: &mut [&'m [u8]; FRAMES_MAX]) -> usize {
        let count = self.frames.min(FRAMES_MAX);
        (0..count).for_each(|index| into[index] = self.frame(index));
        count
    }

    /// Whether a frame has begun.
    pub fn is_begun(&self) -> bool {
        self.frames > 0
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Memory that it holds.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Room for a frame whose bytes are known to be granted, and for the small frames that may
    /// come beside it: growing for one of those would double what was granted.
    pub fn reserve(&mut self, bytes: usize, buffers: &mut Buffers) {
        let bytes = bytes + SMALL_MESSAGE_BYTES_MAX;
        let needed = self.bytes.len() + bytes;
        if self.bytes.capacity() >= needed {
            return;
        }
        if let Some(mut large) = buffers.take_large(needed) {
            large.extend_from_slice(&self.bytes);
            buffers.give(std::mem::replace(&mut self.bytes, large));
        }
        self.bytes.reserve_exact(bytes);
    }

    /// Takes a buffer where there is none, so that an idle connection holds no memory.
    pub fn lend_buffer(&mut self, buffer: impl FnOnce() -> Vec<u8>) {
        if self.bytes.capacity() == 0 {
            self.bytes = buffer();
            assert!(self.bytes.is_empty(), "a lent buffer is empty");
        }
    }

    /// Forgets the message and hands the buffer back.
    pub fn reset(&mut self) -> Vec<u8> {
        self.frames = 0;
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were_sent_empty_ones_too() {
        let mut message = Message::default();
        for (index, frame) in [&b"uid"[..], b"", b"payload", b""].iter().enumerate() {
            assert_eq!(message.begin_frame(), index);
            frame.chunks(2).for_each(|part| message.append(part));
        }
        let mut frames = [&[][..]; FRAMES_MAX];
        assert_eq!(message.kept(&mut frames), 4);
        assert_eq!(frames[..4], [&b"uid"[..], b"", b"payload", b""]);
        assert_eq!(message.bytes(), 10);
        let buffer = message.reset();
        assert!(buffer.capacity() >= 10);
        assert_eq!((message.begin_frame(), message.bytes()), (0, 0));
    }

    #[test]
    fn the_last_frame_can_be_taken_back() {
        let mut message = Message::default();
        for frame in [&b"ab"[..], b"cde"] {
            message.begin_frame();
            message.append(frame);
        }
        message.truncate_frame(7);
        assert_eq!(message.frame(1), b"cde");
        message.truncate_frame(1);
        assert_eq!((message.frame(1), message.bytes()), (&b"c"[..], 3));
        message.drop_frame();
        assert_eq!((message.bytes(), message.frame(0)), (2, &b"ab"[..]));
        assert_eq!(message.begin_frame(), 1);
    }

    #[test]
    fn frames_beyond_the_bound_are_counted_only() {
        let mut message = Message::default();
        for index in 0..200 {
            assert_eq!(message.begin_frame(), index);
            if index < FRAMES_MAX {
                message.append(&[index as u8]);
            }
        }
        let mut frames = [&[][..]; FRAMES_MAX];
        assert_eq!(message.kept(&mut frames), FRAMES_MAX);
        assert_eq!(message.bytes(), FRAMES_MAX);
        assert_eq!(frames[FRAMES_MAX - 1], [FRAMES_MAX as u8 - 1]);
    }
}
