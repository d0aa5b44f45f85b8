//! What one connection still has to be sent. Small answers are gathered into one run of bytes;
//! payload is named by its place and leaves the arena without a copy. Invariant: every ticket that
//! was put in comes out exactly once, when its last byte is written or when the queue is dropped.

use super::requests::Envelope;
use kvtide_core::effect::Slot;
use kvtide_core::format::pickle::writer as pickle;
use kvtide_core::names::{Layout, Place, Ticket};
use kvtide_core::wire::answer::{retrieve_head, retrieve_tail};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

/// Queued output of one connection, in order.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Encoded bytes of all `Piece::Bytes`, first in first out, from `start` on.
    bytes: Vec<u8>,
    start: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of all `Piece::Payload`.
    payload_bytes: u64,
}

/// What an answer with payload carries.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'s> {
    pub slots: &'s [Slot],
    pub layout: Layout,
    /// Whether the places are told as well.
    pub with_slots: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// The next so many bytes of `bytes`.
    Bytes(usize),
    /// Bytes that lie in an arena.
    Payload(Place),
    /// Everything this ticket covers has been written.
    End(Ticket),
}

/// How a write ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is left.
    Empty,
    /// The socket takes no more for now.
    Full,
    /// This turn's share is used up; the socket may take more.
    Share,
}

impl Outgoing {
    /// Lets `encode` append bytes; they follow everything queued so far.
    pub fn encode(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        encode(&mut self.bytes);
        let added = self.bytes.len() - before;
        match self.pieces.back_mut() {
            _ if added == 0 => {}
            Some(Piece::Bytes(last)) => *last += added,
            _ => self.pieces.push_back(Piece::Bytes(added)),
        }
    }

    pub fn payload(&mut self, place: Place) {
        if place.bytes > 0 {
            self.payload_bytes += place.bytes;
            self.pieces.push_back(Piece::Payload(place));
        }
    }

    /// Queues the whole answer of a `prepare_retrieve` with its payload; `ticket` covers it. False,
    /// and nothing queued, where the payload is longer than an answer can be, or not all there.
    #[must_use]
    pub fn retrieved(&mut self, envelope: &Envelope, ticket: Ticket, payload: &Payload) -> bool {
        let Payload { slots, layout, with_slots } = *payload;
        let Some(data_bytes) = pickle::total_bytes(&layout, slots.len() as u32) else {
            return false;
        };
        if slots.iter().any(|slot| slot.place.is_none()) {
            return false;
        }
        let mut tail = Vec::new();
        retrieve_tail(slots, layout, with_slots, &mut tail);
        let mut begun = false;
        self.encode(|bytes| {
            let (uid, operation) = (envelope.uid(), envelope.operation());
            begun = retrieve_head(uid, operation, data_bytes, tail.len(), bytes);
            if begun {
                pickle::head(&layout, bytes);
            }
        });
        if !begun {
            return false;
        }
        let tensor_head = pickle::tensor_head(&layout);
        for place in slots.iter().filter_map(|slot| slot.place) {
            self.encode(|bytes| bytes.extend_from_slice(&tensor_head));
            self.payload(place);
            self.encode(|bytes| bytes.extend_from_slice(pickle::TENSOR_TAIL));
        }
        self.encode(|bytes| {
            bytes.extend_from_slice(pickle::TAIL);
            bytes.extend_from_slice(&tail);
        });
        self.end(ticket);
        true
    }

    /// `ticket` ends once everything queued so far is written.
    pub fn end(&mut self, ticket: Ticket) {
        self.pieces.push_back(Piece::End(ticket));
    }

    /// Bytes that wait to be sent, payload included: a client that does not read may not pin more
    /// and more memory.
    pub fn queued_bytes(&self) -> u64 {
        (self.bytes.len() - self.start) as u64 + self.payload_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Memory that it holds, beside the few pieces that every queue may keep.
    pub fn buffer_bytes(&self) -> usize {
        let pieces = self.pieces.capacity().saturating_sub(PIECES_KEPT);
        self.bytes.capacity() + pieces * size_of::<Piece>()
    }

    /// Forgets everything; the tickets are no longer read for.
    pub fn drop_all(&mut self, ended: &mut Vec<Ticket>) {
        ended.extend(self.pieces.drain(..).filter_map(|piece| match piece {
            Piece::End(ticket) => Some(ticket),
            Piece::Bytes(_) | Piece::Payload(_) => None,
        }));
        self.pieces = VecDeque::new();
        (self.bytes, self.start, self.payload_bytes) = (Vec::new(), 0, 0);
    }

    /// Takes a buffer to encode into, so that a queue that is empty holds no memory.
    pub fn lend_buffer(&mut self, buffer: impl FnOnce() -> Vec<u8>) {
        if self.bytes.capacity() == 0 {
            self.bytes = buffer();
            assert!(self.bytes.is_empty(), "a lent buffer is empty");
        }
    }

    /// The buffer of an empty queue, to be used by another.
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        if self.is_empty() && self.pieces.capacity() > PIECES_KEPT {
            self.pieces = VecDeque::new();
        }
        let spare = self.is_empty() && self.bytes.capacity() > 0;
        spare.then(|| std::mem::take(&mut self.bytes))
    }

    /// Writes at most about `share` bytes with gathered writes. `view` turns a place into memory.
    /// Tickets whose last byte was written are appended to `ended`.
    pub fn write<'m>(
        &mut self,
        socket: &mut impl Write,
        share: usize,
        view: impl Fn(Place) -> &'m [u8],
        ended: &mut Vec<Ticket>,
    ) -> io::Result<Progress> {
        let mut written = 0;
        loop {
            self.end_front(ended);
            if self.pieces.is_empty() {
                return Ok(Progress::Empty);
            }
            if written >= share {
                return Ok(Progress::Share);
            }
            let (sent, offered) = match self.write_once(socket, share - written, &view) {
                Ok(counts) => counts,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Progress::Full);
                }
                Err(error) => return Err(error),
            };
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.advance(sent, ended);
            written += sent;
            // A stream socket that takes less than it was offered is full; its next edge says more.
            if sent < offered {
                self.end_front(ended);
                return Ok(Progress::Full);
            }
        }
    }

    fn write_once<'m>(
        &self,
        socket: &mut impl Write,
        share: usize,
        view: &impl Fn(Place) -> &'m [u8],
    ) -> io::Result<(usize, usize)> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (mut count, mut offered, mut at) = (0, 0, self.start);
        for piece in &self.pieces {
            let slice = match *piece {
                Piece::Bytes(bytes) => {
                    at += bytes;
                    &self.bytes[at - bytes..at]
                }
                Piece::Payload(place) => view(place),
                Piece::End(_) => continue,
            };
            let slice = &slice[..slice.len().min(share - offered)];
            slices[count] = IoSlice::new(slice);
            (count, offered) = (count + 1, offered + slice.len());
            if count == SLICES_MAX || offered == share {
                break;
            }
        }
        let sent = match &slices[..count] {
            // The plain call is cheaper, and nearly every answer is one run of bytes.
            [one] => socket.write(one)?,
            many => socket.write_vectored(many)?,
        };
        Ok((sent, offered))
    }

    /// Takes `sent` bytes off the front.
    fn advance(&mut self, mut sent: usize, ended: &mut Vec<Ticket>) {
        while sent > 0 {
            match self.pieces.front_mut().expect("no more is sent than was queued") {
                Piece::Bytes(bytes) => {
                    let taken = sent.min(*bytes);
                    *bytes -= taken;
                    (self.start, sent) = (self.start + taken, sent - taken);
                    if *bytes > 0 {
                        break;
                    }
                }
                Piece::Payload(place) => {
                    let taken = (sent as u64).min(place.bytes);
                    place.offset += taken;
                    place.bytes -= taken;
                    self.payload_bytes -= taken;
                    sent -= taken as usize;
                    if place.bytes > 0 {
                        break;
                    }
                }
                // Everything before it is written by now.
                Piece::End(ticket) => ended.push(*ticket),
            }
            self.pieces.pop_front();
        }
        self.compact();
    }

    fn end_front(&mut self, ended: &mut Vec<Ticket>) {
        while let Some(Piece::End(ticket)) = self.pieces.front() {
            ended.push(*ticket);
            self.pieces.pop_front();
        }
    }

    /// Gives the room of written bytes back, at most one move per `COMPACT_BYTES` written.
    fn compact(&mut self) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start >= COMPACT_BYTES && self.start * 2 >= self.bytes.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
            if self.bytes.capacity() / 4 >= self.bytes.len().max(COMPACT_BYTES) {
                self.bytes.shrink_to(2 * self.bytes.len());
            }
        }
    }
}

/// Slices of one gathered write.
const SLICES_MAX: usize = 64;
const COMPACT_BYTES: usize = 64 << 10;
/// Pieces for which an empty queue keeps the room.
const PIECES_KEPT: usize = 64;
pub const KEPT_BYTES: usize = PIECES_KEPT * size_of::<Piece>();

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::names::ArenaId;
    use kvtide_core::slots::SlotName;

    /// Takes a few bytes per call, then would block.
    struct Slow {
        taken: Vec<u8>,
        calls: Vec<usize>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(bytes)])
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let Some(room) = self.calls.pop() else { return Err(io::ErrorKind::WouldBlock.into()) };
            let all = slices.iter().flat_map(|slice| slice.iter().copied());
            let before = self.taken.len();
            self.taken.extend(all.take(room));
            Ok(self.taken.len() - before)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const ARENA: &[u8] = b"0123456789";

    fn view(place: Place) -> &'static [u8] {
        &ARENA[place.offset as usize..(place.offset + place.bytes) as usize]
    }

    fn place(offset: u64, bytes: u64) -> Place {
        Place { arena: ArenaId(0), offset, bytes }
    }

    fn ticket(index: u32) -> Ticket {
        Ticket(SlotName { index, generation: 0 })
    }

    fn two_sends() -> Outgoing {
        let mut queue = Outgoing::default();
        queue.encode(|bytes| bytes.extend(b"head "));
        queue.payload(place(2, 3));
        queue.encode(|bytes| bytes.extend(b" tail"));
        queue.end(ticket(1));
        queue.encode(|bytes| bytes.extend(b" next "));
        queue.payload(place(0, 1));
        queue.end(ticket(2));
        queue
    }

    const TWO_SENDS: &[u8] = b"head 234 tail next 0";

    #[test]
    fn any_split_of_writes_keeps_order_and_ends_each_ticket_once() {
        for step in 1..=TWO_SENDS.len() {
            let mut queue = two_sends();
            let mut socket = Slow { taken: Vec::new(), calls: Vec::new() };
            let mut ended = Vec::new();
            while !queue.is_empty() {
                socket.calls.push(step);
                queue.write(&mut socket, 1 << 20, view, &mut ended).expect("it only blocks");
                let first_is_out = socket.taken.len() >= b"head 234 tail".len();
                assert_eq!(ended.contains(&ticket(1)), first_is_out, "step {step}");
            }
            assert_eq!(socket.taken, TWO_SENDS);
            assert_eq!(ended, [ticket(1), ticket(2)]);
            assert_eq!(queue.queued_bytes(), 0);
            assert!(queue.take_buffer().is_some(), "an empty queue gives its buffer back");
        }
    }

    #[test]
    fn a_share_bounds_what_one_turn_writes() {
        let mut queue = two_sends();
        let mut socket = Slow { taken: Vec::new(), calls: vec![100; 10] };
        let mut ended = Vec::new();
        let progress = queue.write(&mut socket, 7, view, &mut ended);
        assert_eq!(progress.expect("the socket has room"), Progress::Share);
        assert_eq!(socket.taken, b"head 23");
        assert_eq!(queue.queued_bytes(), TWO_SENDS.len() as u64 - 7);
    }

    #[test]
    fn p4_a_dropped_queue_ends_every_ticket() {
        let mut queue = two_sends();
        let mut socket = Slow { taken: Vec::new(), calls: vec![14] };
        let mut ended = Vec::new();
        queue.write(&mut socket, 1 << 20, view, &mut ended).expect("it only blocks");
        assert_eq!(ended, [ticket(1)]);
        queue.drop_all(&mut ended);
        assert_eq!(ended, [ticket(1), ticket(2)]);
        assert_eq!((queue.queued_bytes(), queue.is_empty()), (0, true));
    }
}
