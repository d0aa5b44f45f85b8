//! Requests encoded ahead of time. What differs between two requests of a kind has a fixed place
//! and a fixed width (number, request id, first token), so that sending one is a copy and three
//! patches: the generator encodes nothing while it measures.

use kvtide_core::wire::client::{Key, append_message, operation_frame};
use kvtide_core::wire::msgpack::Writer;
use kvtide_core::wire::operation::Operation;

/// A request id: as long as those of engines, unique over all runs of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId([u8; ID_BYTES]);

impl RequestId {
    /// Stands where no request id is needed.
    pub const NONE: RequestId = RequestId([b'-'; ID_BYTES]);
}

/// Hands out request ids: a random part per run and a count.
#[derive(Clone, Debug)]
pub struct Ids {
    run: u64,
    next: u64,
    last: Option<RequestId>,
}

impl Ids {
    pub fn new(run: u64) -> Ids {
        Ids { run, next: 0, last: None }
    }

    pub fn next_id(&mut self) -> RequestId {
        self.next += 1;
        let mut id = [0; ID_BYTES];
        hex(self.run >> 24, &mut id[..10]);
        id[10] = b'-';
        hex(self.next, &mut id[11..]);
        self.last = Some(RequestId(id));
        RequestId(id)
    }

    /// The one that was handed out last.
    pub fn last(&self) -> Option<RequestId> {
        self.last
    }

    /// A text of its own for this run, for the names of models.
    pub fn run_name(&self) -> String {
        format!("{:016x}", self.run)
    }

    /// A first token that no other request has had, for prompts that must miss.
    pub fn next_token(&mut self) -> u32 {
        self.next += 1;
        FIRST_TOKEN_MIN + (self.next % (FIRST_TOKENS as u64)) as u32
    }
}

/// The low digits of a number, as many as there is room for.
fn hex(mut value: u64, out: &mut [u8]) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
    }
}

/// A whole message, framed, with places to fill in.
#[derive(Clone, Debug)]
pub struct Message {
    operation: Operation,
    bytes: Vec<u8>,
    id_at: Option<usize>,
    token_at: Option<usize>,
}

impl Message {
    /// Payloads are complete frames. A payload that holds `RequestId::NONE` gets the id there.
    pub fn new(operation: Operation, payloads: &[&[u8]]) -> Message {
        let mut uid = vec![UID_MARKER];
        uid.extend_from_slice(&UID_MIN.to_be_bytes());
        let operation_frame = operation_frame(operation);
        let mut frames: Vec<&[u8]> = vec![&uid, &operation_frame];
        frames.extend_from_slice(payloads);
        let mut bytes = Vec::new();
        append_message(&frames, &mut bytes);
        // From the end: behind the tokens, which could look like anything.
        let id_at = bytes.windows(ID_BYTES).rposition(|part| part == RequestId::NONE.0);
        Message { operation, bytes, id_at, token_at: None }
    }

    /// A message about a key: its payloads are the key and an int.
    pub fn with_key(operation: Operation, key: &Key<'_>, int: u64) -> Message {
        let mut key_frame = Vec::new();
        key.encode(&mut key_frame);
        let int = frame(|writer| writer.u64(int));
        let extra = frame(|writer| writer.bin(&[]));
        let payloads: &[&[u8]] = &[&key_frame, &int, &extra];
        let mut message = Message::new(operation, &payloads[..operation.payload_count()]);
        message.token_at = token_at(&message.bytes);
        message
    }

    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Writes the message over `out`, with this number and this request id.
    pub fn stamp(&self, uid: Uid, id: RequestId, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.bytes);
        self.patch(uid, id, out);
    }

    /// Likewise, over a copy of the same message that was stamped before.
    pub fn patch(&self, uid: Uid, id: RequestId, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes.len(), "it is a copy of this message");
        out[UID_AT..UID_AT + UID_BYTES].copy_from_slice(&uid.frame());
        if let Some(at) = self.id_at {
            out[at..at + ID_BYTES].copy_from_slice(&id.0);
        }
    }

    /// Gives the prompt in a stamped message another first token, and so every chunk another hash.
    pub fn stamp_token(&self, token: u32, out: &mut [u8]) {
        let at = self.token_at.expect("only keys with a wide first token are made to differ");
        out[at..at + 4].copy_from_slice(&token.to_be_bytes());
    }
}

/// Where the four bytes of the first token lie, where it is written as such.
fn token_at(bytes: &[u8]) -> Option<usize> {
    let name = b"\xa9token_ids";
    let array = bytes.windows(name.len()).position(|part| part == name)? + name.len();
    let first = match bytes.get(array)? {
        0x91..=0x9f => array + 1,
        0xdc => array + 3,
        0xdd => array + 5,
        _ => return None,
    };
    (bytes.get(first) == Some(&UID_MARKER)).then_some(first + 1)
}

/// One value, encoded.
pub fn frame(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut frame = Vec::new();
    write(&mut Writer::new(&mut frame));
    frame
}

/// The text that request ids replace, as a payload.
pub fn id_frame() -> Vec<u8> {
    frame(|writer| writer.str(id_place()))
}

/// The text that request ids replace, inside a key.
pub fn id_place() -> &'static str {
    std::str::from_utf8(&PLACE).expect("dashes are text")
}

/// Numbers of requests. All of them take five bytes, so that they can be patched in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uid(u32);

impl Uid {
    pub const FIRST: Uid = Uid(UID_MIN);

    pub fn next(self) -> Uid {
        Uid(self.0.checked_add(1).unwrap_or(UID_MIN))
    }

    pub fn frame(self) -> [u8; UID_BYTES] {
        let [a, b, c, d] = self.0.to_be_bytes();
        [UID_MARKER, a, b, c, d]
    }
}

const ID_BYTES: usize = 24;
const PLACE: [u8; ID_BYTES] = RequestId::NONE.0;
/// An int of 32 bits in MessagePack.
const UID_MARKER: u8 = 0xce;
const UID_MIN: u32 = 0x1_0000;
const UID_BYTES: usize = 5;
/// Behind the two bytes of a short frame's header.
const UID_AT: usize = 2;

/// Tokens from here on are written with four bytes.
pub const FIRST_TOKEN_MIN: u32 = 0x1_0000;
/// First tokens repeat after so many requests; prompts that missed are not stored, so a repetition
/// misses, too.
const FIRST_TOKENS: u32 = 0x4000_0000;

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::wire::client::Inbox;
    use kvtide_core::wire::msgpack::Reader;
    use kvtide_core::wire::request::Request;
    use kvtide_core::wire::zmtp::{GREETING, READY_ROUTER};

    fn key<'a>(tokens: &'a [u32]) -> Key<'a> {
        Key {
            model: "m",
            world_size: 1,
            worker: None,
            tokens,
            start: 0,
            end: tokens.len() as u64,
            request: id_place(),
            salt: "",
            readers: 1,
        }
    }

    /// The frames of a stamped message as the other side sees them.
    fn frames(stamped: &[u8]) -> Vec<Vec<u8>> {
        let mut inbox = Inbox::new();
        let (mut messages, mut output) = (Vec::new(), Vec::new());
        let stream = [&GREETING[..], READY_ROUTER, stamped].concat();
        inbox.feed(&stream, &mut messages, &mut output).expect("a right stream");
        messages.pop().expect("a whole message")
    }

    #[test]
    fn number_id_and_first_token_are_patched_in_and_nothing_else_changes() {
        for count in [1, 15, 16, 300, 70_000] {
            let tokens = vec![FIRST_TOKEN_MIN; count];
            let message = Message::with_key(Operation::Lookup, &key(&tokens), 1);
            let mut ids = Ids::new(7);
            let (id, uid) = (ids.next_id(), Uid::FIRST.next());
            let mut out = Vec::new();
            message.stamp(uid, id, &mut out);
            message.stamp_token(0x0002_0304, &mut out);
            let frames = frames(&out);
            assert_eq!(frames[0], uid.frame());
            let mut changed = tokens.clone();
            changed[0] = 0x0002_0304;
            let text = std::str::from_utf8(&id.0).expect("hex is text");
            let mut expected = Vec::new();
            Key { request: text, ..key(&changed) }.encode(&mut expected);
            assert_eq!(frames[2], expected);
            let payloads: Vec<&[u8]> = frames[2..].iter().map(Vec::as_slice).collect();
            let request = Request::decode(Operation::Lookup, &payloads);
            assert!(matches!(request, Ok(Request::Lookup { tp_size: 1, .. })), "{request:?}");
        }
    }

    #[test]
    fn ids_and_numbers_do_not_repeat_and_keep_their_width() {
        let mut ids = Ids::new(1);
        let mut seen: Vec<_> = (0..1000).map(|_| ids.next_id().0).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1000);
        assert_ne!(Ids::new(u64::MAX).next_id(), Ids::new(0).next_id());
        let last = Uid(u32::MAX);
        assert_eq!(last.next(), Uid::FIRST, "numbers of fewer bytes are never used");
        let mut reader = Reader::new(&[0xce, 0, 1, 0, 0]);
        assert_eq!(reader.read_u64(), Ok(0x1_0000));
        assert_eq!(Uid::FIRST.frame(), [0xce, 0, 1, 0, 0]);
    }
}
