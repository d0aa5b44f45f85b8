//! The bytes of answers (spec/wire §1.3, §2.1), and which answer says no (design §6).
//!
//! Maps are written in the order of the peer's declarations and ints in their shortest form, so
//! an answer is the same to the byte. Its one invariant: every answer ends the request that it
//! belongs to; nothing here can fail on what a peer sent.

use crate::effect::{Answer, Outbox, Refusal, Slot};
use crate::limits::REQUEST_CHUNKS_MAX;
use crate::names::Layout;
use crate::wire::msgpack::Writer;
use crate::wire::operation::Operation;
use crate::wire::request::{Fault, Request};
use crate::wire::zmtp::frame_header;
use alloc::string::ToString;
use alloc::vec::Vec;

/// What the shell knows and the engine does not. Both empty where the pool is private.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context<'a> {
    pub pool_name: &'a str,
    pub pool_bytes: u64,
}

/// How the value of an answer travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envelope {
    /// `uid`, `operation`: there is no value.
    Echo,
    /// `uid`, `operation`, value.
    Value,
    /// `uid`, and the value in place of the operation.
    Reason,
    /// `uid`, `operation`, value, and then the two-frame end of the stream.
    ValueThenEcho,
}

/// Appends the value of an answer to `out`, without any framing.
pub fn encode_value(
    answer: Answer,
    context: &Context<'_>,
    outbox: &Outbox,
    out: &mut Vec<u8>,
) -> Envelope {
    let mut writer = Writer::new(out);
    let w = &mut writer;
    match answer {
        Answer::None => return Envelope::Echo,
        Answer::Bool(value) => w.bool(value),
        Answer::Count(value) => w.u64(value),
        Answer::Text(text) => w.str(text),
        Answer::NoTexts | Answer::EmptyArray => w.array(0),
        Answer::Registered => registered(context, w),
        Answer::Refused(refusal) => {
            w.str(&refusal.to_string());
            return Envelope::Reason;
        }
        Answer::StoreSlots { slots, layout } => store_slots(outbox.slots(slots), layout, out),
        Answer::NoContext => {
            w.map(1);
            w.str("context");
            w.map(0);
        }
        Answer::RetrieveSlots { slots, layout } => {
            value_before_data(0, w);
            retrieve_tail(outbox.slots(slots), layout, true, out);
        }
        Answer::RetrieveMiss => retrieve_miss(w),
        Answer::EventFlag(flag) => {
            w.array(2);
            w.bin(&[]);
            w.bool(flag);
        }
        Answer::BlendMiss => blend_miss(w),
        Answer::HandshakeRefused => {
            w.array(2);
            w.u64(BLEND_VERSION);
            w.bool(false);
        }
        Answer::PeerMisses { keys } => {
            w.array(keys as usize);
            (0..keys).for_each(|_| not_found(w));
        }
        Answer::EventsOff { incarnation } => {
            events_off(incarnation, w);
            return Envelope::ValueThenEcho;
        }
        Answer::ModuleRefused => module_refused(w),
    }
    Envelope::Value
}

/// Appends the whole answer, framed for ZMTP. `uid` and `operation` are the request's own frames,
/// echoed byte for byte.
pub fn append_answer(
    answer: Answer,
    uid: &[u8],
    operation: &[u8],
    context: &Context<'_>,
    outbox: &Outbox,
    out: &mut Vec<u8>,
) {
    if answer == Answer::None {
        append_echo(uid, operation, out);
        return;
    }
    append_frame(true, uid, out);
    let reason = matches!(answer, Answer::Refused(_));
    if !reason {
        append_frame(true, operation, out);
    }
    // The value is written behind a short header, which nearly always fits; else it moves up.
    let header_at = out.len();
    out.extend_from_slice(&frame_header(false, 0));
    let value_at = out.len();
    let envelope = encode_value(answer, context, outbox, out);
    let header = frame_header(false, (out.len() - value_at) as u64);
    out.splice(header_at..value_at, header.iter().copied());
    assert_eq!(envelope == Envelope::Reason, reason, "only a refusal takes the operation's place");
    if envelope == Envelope::ValueThenEcho {
        append_echo(uid, operation, out);
    }
}

/// The answer without a value: void operations, the end of a stream, and whatever names no
/// operation.
pub fn append_echo(uid: &[u8], operation: &[u8], out: &mut Vec<u8>) {
    append_frame(true, uid, out);
    append_frame(false, operation, out);
}

/// Appends one frame with its header.
#[inline]
pub fn append_frame(more: bool, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&frame_header(more, body.len() as u64));
    out.extend_from_slice(body);
}

/// Appends everything of a `prepare_retrieve` answer that stands before its data: the payload is
/// then written from where it lies, and `tail_bytes` made by `retrieve_tail` follow.
/// False, and nothing appended, where the payload is longer than a binary can be.
#[must_use]
pub fn retrieve_head(
    uid: &[u8],
    operation: &[u8],
    payload_bytes: u64,
    tail_bytes: usize,
    out: &mut Vec<u8>,
) -> bool {
    let Ok(payload_bytes) = u32::try_from(payload_bytes) else { return false };
    let mut before = Vec::with_capacity(VALUE_HEAD_BYTES);
    value_before_data(payload_bytes as usize, &mut Writer::new(&mut before));
    let value_bytes = before.len() as u64 + payload_bytes as u64 + tail_bytes as u64;
    append_frame(true, uid, out);
    append_frame(true, operation, out);
    out.extend_from_slice(&frame_header(false, value_bytes));
    out.extend_from_slice(&before);
    true
}

/// Appends what stands after the data of a successful `prepare_retrieve`: the context, with the
/// places of the chunks where the client may read them itself.
pub fn retrieve_tail(slots: &[Slot], layout: Layout, with_slots: bool, out: &mut Vec<u8>) {
    let mut writer = Writer::new(out);
    writer.str("context");
    if !with_slots {
        writer.map(0);
        return;
    }
    writer.map(1);
    writer.str("slots");
    slot_array(slots, layout, out);
}

/// The answer to a request that could not be decoded.
pub fn fault_answer(operation: Operation, fault: Fault, incarnation: u64) -> Answer {
    match operation {
        Operation::RegisterKvCache
        | Operation::RegisterQCache
        | Operation::RegisterRope
        | Operation::RegisterEngineDriven => Answer::Refused(Refusal::Malformed(fault.sentence())),
        _ => negative_answer(operation, incarnation),
    }
}

/// The answer to a request that was decoded and is not served.
pub fn unserved_answer(request: &Request<'_>, incarnation: u64) -> Answer {
    match request {
        // The task id is the number of keys, so the query that follows needs no memory of it.
        Request::PeerLookupAndLock { keys, .. } => {
            Answer::Count(keys.len().min(PEER_KEYS_MAX) as u64)
        }
        Request::PeerQueryLookupResults { task } => {
            let keys = u32::try_from(*task).unwrap_or(0);
            Answer::PeerMisses { keys: if keys as usize > PEER_KEYS_MAX { 0 } else { keys } }
        }
        other => negative_answer(other.operation(), incarnation),
    }
}

/// The negative value of every operation (design §6, binding).
pub fn negative_answer(operation: Operation, incarnation: u64) -> Answer {
    match operation {
        Operation::RegisterKvCache => Answer::Refused(Refusal::ServerDriven),
        Operation::RegisterQCache => Answer::Refused(Refusal::QueryCache),
        Operation::RegisterRope => Answer::Refused(Refusal::Rope),
        Operation::RegisterEngineDriven => Answer::Refused(Refusal::EngineDrivenOff),
        // Nil would mean "still loading".
        Operation::QueryPrefetchStatus
        | Operation::WaitPrefetchStatus
        | Operation::PeerLookupAndLock => Answer::Count(0),
        Operation::StoreQ
        | Operation::Store
        | Operation::Retrieve
        | Operation::RetrievePreComputed => Answer::EventFlag(false),
        Operation::PrepareRetrieve => Answer::RetrieveMiss,
        // Empty slots would mean "all of it is here already".
        Operation::PrepareStore => Answer::NoContext,
        Operation::CommitStore | Operation::CommitRetrieve | Operation::Ping => Answer::Bool(false),
        Operation::UnifiedLookup => Answer::BlendMiss,
        Operation::ProtocolHandshake => Answer::HandshakeRefused,
        Operation::PeerQueryLookupResults => Answer::PeerMisses { keys: 0 },
        Operation::ReorderPlan => Answer::EmptyArray,
        Operation::Experimental => Answer::NoTexts,
        Operation::SubscribeKvEvents => Answer::EventsOff { incarnation },
        Operation::ServerModuleCall => Answer::ModuleRefused,
        Operation::UnregisterKvCache
        | Operation::UnregisterQCache
        | Operation::Lookup
        | Operation::FreeLookupLocks
        | Operation::EndSession
        | Operation::UnregisterEngineDriven
        | Operation::Clear
        | Operation::ChunkSize
        | Operation::ReportBlockAllocation
        | Operation::Noop
        | Operation::UnregisterRope
        | Operation::PeerUnlockObjects => Answer::None,
    }
}

/// `PrepareRetrieveResponse` up to where its data begins.
fn value_before_data(payload_bytes: usize, writer: &mut Writer<'_>) {
    writer.map(3);
    writer.str("success");
    writer.bool(true);
    writer.str("data");
    writer.bin_head(payload_bytes);
}

fn store_slots(slots: &[Slot], layout: Layout, out: &mut Vec<u8>) {
    let mut writer = Writer::new(out);
    writer.map(1);
    writer.str("context");
    writer.map(2);
    writer.str("slots");
    slot_array(slots, layout, out);
    let mut writer = Writer::new(out);
    writer.str("chunk_indices");
    writer.array(slots.len());
    slots.iter().for_each(|slot| writer.u64(slot.chunk as u64));
}

/// All slots of an answer have one layout: its bytes are made once and copied.
fn slot_array(slots: &[Slot], layout: Layout, out: &mut Vec<u8>) {
    out.reserve(slots.len() * SLOT_BYTES_ABOUT);
    Writer::new(out).array(slots.len());
    let mut layout_at = None;
    for slot in slots {
        let place = slot.place.expect("a slot that a client is told of has a place");
        let mut writer = Writer::new(out);
        writer.map(4);
        writer.str("offset");
        writer.u64(place.offset);
        writer.str("length");
        writer.u64(place.bytes);
        match layout_at.clone() {
            Some(range) => out.extend_from_within(range),
            None => {
                let start = out.len();
                slot_layout(layout, &mut Writer::new(out));
                layout_at = Some(start..out.len());
            }
        }
    }
}

fn slot_layout(layout: Layout, writer: &mut Writer<'_>) {
    let (shape, rank) = layout.shape();
    writer.str("shape");
    writer.array(rank);
    shape[..rank].iter().for_each(|size| writer.u64(*size));
    writer.str("dtype");
    writer.str(layout.dtype.name());
}

/// `RegisterEngineDrivenContextResponse`.
fn registered(context: &Context<'_>, writer: &mut Writer<'_>) {
    writer.map(2);
    writer.str("shm_name");
    writer.str(context.pool_name);
    writer.str("pool_size");
    writer.u64(context.pool_bytes);
}

/// `PrepareRetrieveResponse` without anything.
fn retrieve_miss(writer: &mut Writer<'_>) {
    writer.map(3);
    writer.str("success");
    writer.bool(false);
    writer.str("data");
    writer.bin(&[]);
    writer.str("context");
    writer.map(0);
}

/// `CBUnifiedLookupResult` that covers nothing.
fn blend_miss(writer: &mut Writer<'_>) {
    writer.map(3);
    writer.str("prefix_coverage_tokens");
    writer.u64(0);
    writer.str("non_prefix_segments");
    writer.array(0);
    writer.str("segmented_prefix_segments");
    writer.array(0);
}

/// `ServerModuleCallResponse`.
fn module_refused(writer: &mut Writer<'_>) {
    writer.map(3);
    writer.str("success");
    writer.bool(false);
    writer.str("payload");
    writer.bin(&[]);
    writer.str("error");
    writer.str("this server has no modules");
}

/// `TransferChannelAddress` of an object that is not here.
fn not_found(writer: &mut Writer<'_>) {
    writer.map(2);
    writer.str("offset");
    writer.i64(-1);
    writer.str("size");
    writer.u64(0);
}

/// `KVEventBatch` that tells the client to stop.
fn events_off(incarnation: u64, writer: &mut Writer<'_>) {
    writer.map(5);
    writer.str("enabled");
    writer.bool(false);
    writer.str("incarnation");
    writer.u64(incarnation);
    writer.str("next_cursor");
    writer.u64(0);
    writer.str("lost");
    writer.bool(false);
    writer.str("events");
    writer.array(0);
}

/// The peer's version of the blend protocol (spec/wire §2.2, 33).
const BLEND_VERSION: u64 = 1;
/// Misses told to another server in one answer: each takes 15 bytes, however short the question.
const PEER_KEYS_MAX: usize = REQUEST_CHUNKS_MAX;
/// `success`, `data` and the head of the binary.
const VALUE_HEAD_BYTES: usize = 32;
/// Names, two numbers of five bytes, a shape of rank four and a type name.
const SLOT_BYTES_ABOUT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::SlotRange;
    use crate::names::{ArenaId, Dtype, Place};
    use crate::wire::fields::Broken;
    use crate::wire::msgpack::{Malformed, Reader};
    use alloc::vec;

    fn layout() -> Layout {
        let dtype = Dtype::named("bfloat16").expect("a torch type");
        Layout { planes: 2, layers: 1, slots: 16, hidden: 4, dtype }
    }

    fn outbox(count: u32) -> Outbox {
        let place =
            |chunk: u32| Place { arena: ArenaId(0), offset: chunk as u64 * 256, bytes: 256 };
        let slots = (0..count).map(|chunk| Slot { chunk, place: Some(place(chunk)) }).collect();
        Outbox { slots, ..Outbox::default() }
    }

    fn appended(answer: Answer, outbox: &Outbox) -> Vec<u8> {
        let mut out = Vec::new();
        append_answer(answer, b"\x07", b"\x10", &Context::default(), outbox, &mut out);
        out
    }

    #[test]
    fn a_void_answer_is_two_frames() {
        assert_eq!(appended(Answer::None, &outbox(0)), b"\x01\x01\x07\x00\x01\x10");
        assert_eq!(appended(Answer::Count(5), &outbox(0)), b"\x01\x01\x07\x01\x01\x10\x00\x01\x05");
    }

    #[test]
    fn a_refusal_takes_the_place_of_the_operation() {
        let out = appended(Answer::Refused(Refusal::UnknownDtype), &outbox(0));
        let reason = "refused: dtype_str is not a torch element type";
        let frame = [&[0, 2 + reason.len() as u8, 0xd9, reason.len() as u8][..], reason.as_bytes()];
        assert_eq!(out, [b"\x01\x01\x07", &frame.concat()[..]].concat());
    }

    #[test]
    fn switched_off_events_are_one_batch_and_the_end() {
        let out = appended(Answer::EventsOff { incarnation: 1 }, &outbox(0));
        assert!(out.ends_with(b"\xa6events\x90\x01\x01\x07\x00\x01\x10"));
        assert_eq!(out[7], out.len() as u8 - 8 - 6, "the batch has a frame of its own");
    }

    #[test]
    fn values_beyond_255_bytes_get_a_long_header() {
        for count in [0, 1, 3, 4, 5, 2000] {
            let slots = SlotRange { start: 0, end: count };
            let answer = Answer::StoreSlots { slots, layout: layout() };
            let outbox = outbox(count);
            let mut value = Vec::new();
            let envelope = encode_value(answer, &Context::default(), &outbox, &mut value);
            assert_eq!(envelope, Envelope::Value);
            let header = frame_header(false, value.len() as u64);
            let want = [b"\x01\x01\x07\x01\x01\x10", &header[..], &value].concat();
            assert_eq!(appended(answer, &outbox), want);
            let mut reader = Reader::new(&value);
            assert_eq!(reader.skip(), Ok(()));
            assert_eq!(reader.finish(), Ok(()));
        }
    }

    #[test]
    fn a_gathered_answer_is_the_same_as_a_written_one() {
        let outbox = outbox(3);
        let slots = SlotRange { start: 0, end: 3 };
        let mut tail = Vec::new();
        retrieve_tail(outbox.slots(slots), layout(), true, &mut tail);
        let mut gathered = Vec::new();
        assert!(retrieve_head(b"\x07", b"\x10", 0, tail.len(), &mut gathered));
        gathered.extend_from_slice(&tail);
        let written = appended(Answer::RetrieveSlots { slots, layout: layout() }, &outbox);
        assert_eq!(gathered, written);
    }

    #[test]
    fn a_payload_beyond_four_gibibytes_has_no_answer() {
        let mut out = vec![1];
        assert!(!retrieve_head(b"", b"", 1 << 32, 0, &mut out));
        assert_eq!(out, [1]);
    }

    #[test]
    fn every_negative_answer_is_one_value_or_none() {
        for operation in Operation::ALL {
            let mut value = Vec::new();
            let answer = negative_answer(*operation, 9);
            let envelope = encode_value(answer, &Context::default(), &outbox(0), &mut value);
            assert_eq!(envelope == Envelope::Echo, value.is_empty(), "{}", operation.name());
            if !value.is_empty() {
                let mut reader = Reader::new(&value);
                assert_eq!(reader.skip(), Ok(()), "{}", operation.name());
                assert_eq!(reader.finish(), Ok(()), "{}", operation.name());
            }
        }
    }

    #[test]
    fn a_malformed_registration_is_refused_with_its_field() {
        let broken = Broken { field: "use_mla", rule: Malformed::MissingField };
        let fault = Fault::Malformed { payload: 0, broken };
        let answer = fault_answer(Operation::RegisterEngineDriven, fault, 1);
        assert_eq!(answer, Answer::Refused(Refusal::Malformed("use_mla is missing")));
        let answer = fault_answer(Operation::PrepareStore, fault, 1);
        assert_eq!(answer, Answer::NoContext);
    }

    #[test]
    fn a_peer_gets_as_many_misses_as_it_asked_for() {
        let query = |task| unserved_answer(&Request::PeerQueryLookupResults { task }, 1);
        assert_eq!(query(3), Answer::PeerMisses { keys: 3 });
        assert_eq!(query(-1), Answer::PeerMisses { keys: 0 });
        assert_eq!(query(i64::MAX), Answer::PeerMisses { keys: 0 });
        assert_eq!(query(1 << 20), Answer::PeerMisses { keys: 0 });
    }
}
