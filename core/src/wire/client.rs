//! The other side of the wire, as small as load generator and tests need it.
//!
//! Opening: send `zmtp::GREETING` and `zmtp::READY_DEALER`, feed what comes to an `Inbox`, and
//! write requests once it is ready. Its one invariant: what this module encodes, the server side
//! of `wire` decodes to the same values.

use crate::wire::answer::append_frame;
use crate::wire::fields::Wire;
use crate::wire::msgpack::Writer;
use crate::wire::operation::Operation;
use crate::wire::request::{KeyFrame, Request, ServerDrivenTransfer};
use crate::wire::zmtp::{Decoder, Role, Token, ZmtpFault, pong};
use alloc::vec::Vec;

/// An `IPCCacheServerKey` (spec/wire §2.1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    pub model: &'a str,
    pub world_size: u32,
    /// None: all ranks (lookup, free).
    pub worker: Option<u32>,
    /// From position 0 on, whatever `start` is.
    pub tokens: &'a [u32],
    pub start: u64,
    pub end: u64,
    pub request: &'a str,
    pub salt: &'a str,
    pub readers: u32,
}

impl Key<'_> {
    /// Appends the frame of the key, byte for byte as the peer's client writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut w = Writer::new(out);
        w.map(10);
        w.str("model_name");
        w.str(self.model);
        w.str("world_size");
        w.u64(self.world_size as u64);
        w.str("worker_id");
        match self.worker {
            Some(worker) => w.u64(worker as u64),
            None => w.nil(),
        }
        w.str("token_ids");
        w.array(self.tokens.len());
        self.tokens.iter().for_each(|token| w.u64(*token as u64));
        w.str("start");
        w.u64(self.start);
        w.str("end");
        w.u64(self.end);
        w.str("request_id");
        w.str(self.request);
        w.str("cache_salt");
        w.str(self.salt);
        w.str("request_configs");
        w.nil();
        w.str("num_kv_readers");
        w.u64(self.readers as u64);
    }
}

/// The frame that names an operation: its number, or its name where it has none.
pub fn operation_frame(operation: Operation) -> Vec<u8> {
    let mut frame = Vec::new();
    match operation.legacy_id() {
        Some(id) => Writer::new(&mut frame).u64(id as u64),
        None => Writer::new(&mut frame).str(operation.name()),
    }
    frame
}

/// The frame of a request's number.
pub fn uid_frame(uid: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    Writer::new(&mut frame).u64(uid);
    frame
}

/// Appends a request, framed for ZMTP.
pub fn append_request(uid: u64, request: &Request<'_>, out: &mut Vec<u8>) {
    let mut frames = Vec::with_capacity(2 + request.operation().payload_count());
    frames.push(uid_frame(uid));
    frames.push(operation_frame(request.operation()));
    frames.extend(encode_payloads(request));
    append_message(&frames, out);
}

/// Encodes the payload frames of a request, one vector each: what a client sends.
pub fn encode_payloads(request: &Request<'_>) -> Vec<Vec<u8>> {
    let mut frames = Frames(Vec::with_capacity(request.operation().payload_count()));
    let f = &mut frames;
    match request {
        Request::RegisterKvCache(all) | Request::RegisterQCache(all) => {
            f.int(all.instance.0).value(&all.kv_cache).value(&all.model).int(all.world_size);
            f.value(&all.engine).value(&all.layout_hints).value(&all.groups);
        }
        Request::UnregisterKvCache { instance }
        | Request::UnregisterQCache { instance }
        | Request::UnregisterEngineDriven { instance }
        | Request::UnregisterRope { instance } => drop(f.int(instance.0)),
        Request::StoreQ(transfer) | Request::Store(transfer) => drop(f.transfer(transfer)),
        Request::Retrieve { transfer, skip_first_tokens } => {
            f.transfer(transfer).int(*skip_first_tokens);
        }
        Request::Lookup { key, tp_size }
        | Request::FreeLookupLocks { key, tp_size }
        | Request::UnifiedLookup { key, tp_size } => drop(f.key(key).int(*tp_size)),
        Request::QueryPrefetchStatus { request } | Request::EndSession { request } => {
            f.value(request);
        }
        Request::WaitPrefetchStatus { request, wait } => {
            f.value(request).push(|writer| writer.f64(wait.as_secs_f64()));
        }
        Request::RegisterEngineDriven(payload) => drop(f.value(payload)),
        Request::PrepareStore { key, instance }
        | Request::PrepareRetrieve { key, instance }
        | Request::CommitRetrieve { key, instance } => drop(f.key(key).int(instance.0)),
        Request::CommitStore { key, instance, data } => {
            f.key(key).int(instance.0).value(data);
        }
        Request::Clear { force } => drop(f.value(force)),
        Request::ChunkSize | Request::Noop | Request::Experimental => {}
        Request::Ping { instance } => drop(f.value(&instance.map(|instance| instance.0))),
        Request::ReportBlockAllocation { instance, model, records } => {
            f.int(instance.0).value(model).value(records);
        }
        Request::RegisterRope(rope) => {
            f.int(rope.instance.0).value(&rope.caches).int(rope.head_size);
            f.value(&rope.is_neox_style).value(&rope.group_to_cache).value(&rope.group_rot);
            f.value(&rope.group_head_size).value(&rope.kv_quant);
        }
        Request::RetrievePreComputed(blend) => {
            f.key(&blend.key).value(&blend.matches).value(&blend.block_ids);
            f.int(blend.instance.0).value(&blend.event_handle);
        }
        Request::PeerLookupAndLock { keys, layouts } => drop(f.value(keys).value(layouts)),
        Request::PeerQueryLookupResults { task } => drop(f.int(*task)),
        Request::PeerUnlockObjects { keys } => drop(f.value(keys)),
        Request::ProtocolHandshake { version } => drop(f.int(*version)),
        Request::ReorderPlan { key, keep_prefix, budget_ms } => {
            f.key(key).int(*keep_prefix).int(*budget_ms);
        }
        Request::SubscribeKvEvents { instance, model, cursor, events_max } => {
            f.int(instance.0).value(model).int(*cursor).int(*events_max);
        }
        Request::ServerModuleCall(call) => drop(f.value(call)),
    }
    frames.0
}

struct Frames(Vec<Vec<u8>>);

impl Frames {
    fn push(&mut self, write: impl FnOnce(&mut Writer<'_>)) -> &mut Frames {
        let mut frame = Vec::new();
        write(&mut Writer::new(&mut frame));
        self.0.push(frame);
        self
    }

    fn value<'a>(&mut self, value: &impl Wire<'a>) -> &mut Frames {
        self.push(|writer| value.write(writer))
    }

    fn int(&mut self, value: i64) -> &mut Frames {
        self.push(|writer| writer.i64(value))
    }

    fn key(&mut self, key: &KeyFrame<'_>) -> &mut Frames {
        self.push(|writer| writer.raw(key.0))
    }

    fn transfer(&mut self, transfer: &ServerDrivenTransfer<'_>) -> &mut Frames {
        self.key(&transfer.key).int(transfer.instance.0).value(&transfer.block_ids);
        self.value(&transfer.event_handle)
    }
}

/// Appends any frames as one message.
pub fn append_message(frames: &[impl AsRef<[u8]>], out: &mut Vec<u8>) {
    for (index, frame) in frames.iter().enumerate() {
        append_frame(index + 1 < frames.len(), frame.as_ref(), out);
    }
}

/// Gathers whole messages from what a server sends. It keeps whatever the server sends: for
/// servers that are trusted, not for a server's own side.
#[derive(Clone, Debug)]
pub struct Inbox {
    decoder: Decoder,
    frame: Vec<u8>,
    frames: Vec<Vec<u8>>,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox::new()
    }
}

impl Inbox {
    pub fn new() -> Inbox {
        Inbox { decoder: Decoder::new(Role::Dealer), frame: Vec::new(), frames: Vec::new() }
    }

    /// Whether the server's READY has come.
    pub fn is_ready(&self) -> bool {
        self.decoder.is_ready()
    }

    /// Takes bytes in and appends the messages they complete. PONGs to be sent go to `output`.
    pub fn feed(
        &mut self,
        mut input: &[u8],
        messages: &mut Vec<Vec<Vec<u8>>>,
        output: &mut Vec<u8>,
    ) -> Result<(), ZmtpFault> {
        while let Some(token) = self.decoder.step(&mut input)? {
            match token {
                Token::Greeted | Token::Ready | Token::FrameStarted { .. } => {}
                Token::Ping(context) => output.extend_from_slice(&pong(context)),
                Token::FrameBytes(bytes) => self.frame.extend_from_slice(bytes),
                Token::FrameEnded { more } => {
                    self.frames.push(core::mem::take(&mut self.frame));
                    if !more {
                        messages.push(core::mem::take(&mut self.frames));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::operation::decode_operation;
    use crate::wire::zmtp::{GREETING, PingContext, READY_ROUTER, ping};
    use alloc::vec;

    #[test]
    fn every_operation_is_named_as_the_server_reads_it() {
        for operation in Operation::ALL {
            assert_eq!(decode_operation(&operation_frame(*operation)), Some(*operation));
        }
    }

    #[test]
    fn messages_come_back_whole_however_they_are_cut() {
        let large = vec![9; 300];
        let sent = [vec![vec![1], vec![], large], vec![vec![2]]];
        let mut stream = [&GREETING[..], READY_ROUTER].concat();
        append_message(&sent[0], &mut stream);
        stream.extend_from_slice(&ping(0, PingContext::new(b"xy")));
        append_message(&sent[1], &mut stream);
        for size in [1, 7, stream.len()] {
            let (mut inbox, mut messages, mut output) = (Inbox::new(), Vec::new(), Vec::new());
            for part in stream.chunks(size) {
                inbox.feed(part, &mut messages, &mut output).expect("a right stream");
            }
            assert!(inbox.is_ready());
            assert_eq!(messages, sent);
            assert_eq!(output, b"\x04\x07\x04PONGxy");
        }
    }
}
