//! Requests that wait for their answer, and what an answer must repeat: the uid and the operation
//! frame, byte for byte (spec/wire §1.3). Invariant: each entry hangs in the list of exactly one
//! connection and leaves it once, by its answer or with its connection.

use kvtide_core::names::{Connection, Reply};
use kvtide_core::slots::Slots;
use smallvec::SmallVec;

/// One request without an answer.
#[derive(Debug)]
struct Outstanding {
    envelope: Envelope,
    connection: Connection,
    previous: Option<u32>,
    next: Option<u32>,
}

/// The two frames that an answer repeats. The usual ones (a counter and an id) fit inline.
#[derive(Debug)]
pub struct Envelope {
    bytes: SmallVec<[u8; 24]>,
    uid_bytes: u32,
}

impl Envelope {
    pub fn new(uid: &[u8], operation: &[u8]) -> Envelope {
        let mut bytes = SmallVec::with_capacity(uid.len() + operation.len());
        bytes.extend_from_slice(uid);
        bytes.extend_from_slice(operation);
        Envelope { bytes, uid_bytes: uid.len() as u32 }
    }

    pub fn uid(&self) -> &[u8] {
        &self.bytes[..self.uid_bytes as usize]
    }

    pub fn operation(&self) -> &[u8] {
        &self.bytes[self.uid_bytes as usize..]
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// A connection's end of the list of its requests.
#[derive(Debug, Default)]
pub struct OwnRequests {
    head: Option<u32>,
    count: usize,
    envelope_bytes: usize,
}

impl OwnRequests {
    pub fn len(&self) -> usize {
        self.count
    }

    /// Memory that the requests of this connection hold while they wait.
    pub fn envelope_bytes(&self) -> usize {
        self.envelope_bytes
    }
}

/// The table of all outstanding requests.
pub struct Requests {
    slots: Slots<Outstanding>,
}

impl Requests {
    pub fn with_limit(limit: usize) -> Requests {
        Requests { slots: Slots::with_limit(limit) }
    }

    /// None when the table is full.
    pub fn open(
        &mut self,
        own: &mut OwnRequests,
        connection: Connection,
        envelope: Envelope,
    ) -> Option<Reply> {
        let bytes = envelope.bytes();
        let entry = Outstanding { envelope, connection, previous: None, next: own.head };
        let request = self.slots.insert(entry).ok()?;
        if let Some(head) = own.head {
            self.slots.at_mut(head).expect("a linked request exists").previous =
                Some(request.index);
        }
        own.head = Some(request.index);
        own.count += 1;
        own.envelope_bytes += bytes;
        Some(Reply { connection, request })
    }

    /// Takes a request out to be answered. None when its connection ended first, or when it was
    /// answered already.
    pub fn close(&mut self, own: &mut OwnRequests, reply: Reply) -> Option<Envelope> {
        if self.slots.find(reply.request)?.connection != reply.connection {
            return None;
        }
        let entry = self.slots.remove(reply.request).expect("it was just found");
        match entry.previous {
            Some(previous) => {
                self.slots.at_mut(previous).expect("a neighbour exists").next = entry.next;
            }
            None => own.head = entry.next,
        }
        if let Some(next) = entry.next {
            self.slots.at_mut(next).expect("a neighbour exists").previous = entry.previous;
        }
        own.count -= 1;
        own.envelope_bytes -= entry.envelope.bytes();
        Some(entry.envelope)
    }

    /// Whether it still waits for its answer.
    pub fn is_open(&self, reply: Reply) -> bool {
        self.slots.find(reply.request).is_some_and(|entry| entry.connection == reply.connection)
    }

    /// Forgets every request of a connection; late answers to them find nothing.
    pub fn drop_all(&mut self, own: &mut OwnRequests) {
        while let Some(index) = own.head {
            let (request, entry) = self.slots.at(index).expect("a linked request exists");
            own.head = entry.next;
            self.slots.remove(request);
        }
        *own = OwnRequests::default();
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Requests for which there are places yet.
    pub fn room(&self) -> usize {
        self.slots.limit() - self.slots.len()
    }
}

/// A request with its place in the table and in the list of free places. Longer envelopes lie
/// beside it and count as output of their connection.
pub const ENTRY_BYTES: usize = size_of::<Outstanding>() + 12;

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::slots::SlotName;

    fn connection(index: u32) -> Connection {
        Connection(SlotName { index, generation: 0 })
    }

    fn open(requests: &mut Requests, own: &mut OwnRequests, owner: u32, uid: &[u8]) -> Reply {
        let envelope = Envelope::new(uid, b"\x18");
        requests.open(own, connection(owner), envelope).expect("the table has room")
    }

    #[test]
    fn every_request_is_closed_once_in_any_order() {
        let mut requests = Requests::with_limit(4);
        let mut own = OwnRequests::default();
        let replies: Vec<Reply> =
            (0..4u8).map(|uid| open(&mut requests, &mut own, 7, &[uid])).collect();
        let full = requests.open(&mut own, connection(7), Envelope::new(b"x", b"y"));
        assert_eq!((full, own.len(), own.envelope_bytes()), (None, 4, 8));
        for index in [1, 3, 0, 2] {
            let envelope = requests.close(&mut own, replies[index]).expect("it is open");
            assert_eq!((envelope.uid(), envelope.operation()), (&[index as u8][..], &b"\x18"[..]));
            assert!(requests.close(&mut own, replies[index]).is_none(), "answered once");
        }
        assert_eq!((requests.len(), own.len(), own.envelope_bytes()), (0, 0, 0));
    }

    #[test]
    fn f55_a_connection_takes_only_its_own_requests_along() {
        let mut requests = Requests::with_limit(8);
        let (mut leaver, mut stayer) = (OwnRequests::default(), OwnRequests::default());
        let lost = open(&mut requests, &mut leaver, 1, b"a");
        let kept = open(&mut requests, &mut stayer, 2, b"");
        open(&mut requests, &mut leaver, 1, b"b");
        requests.drop_all(&mut leaver);
        assert_eq!((requests.len(), leaver.len()), (1, 0));
        assert!(!requests.is_open(lost));
        assert!(requests.close(&mut leaver, lost).is_none(), "a late answer finds nothing");
        assert_eq!(requests.close(&mut stayer, kept).expect("it is open").uid(), b"");
    }

    #[test]
    fn long_and_empty_envelopes_come_back_byte_for_byte() {
        for (uid, operation) in [(&b""[..], &b""[..]), (&[7; 4096], b"\xb2"), (b"\xc1", &[9; 100])]
        {
            let envelope = Envelope::new(uid, operation);
            assert_eq!((envelope.uid(), envelope.operation()), (uid, operation));
        }
    }
}
