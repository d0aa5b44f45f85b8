//! A worker of an engine, as it speaks on the wire.

use crate::bed::Bed;
use crate::cache::{Cache, frame};
use crate::card::Card;
use kvtide_core::wire::client::{Inbox, Key, append_message, operation_frame};
use kvtide_core::wire::operation::Operation;
use kvtide_core::wire::zmtp::{GREETING, READY_DEALER};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Worker {
    stream: TcpStream,
    inbox: Inbox,
    messages: VecDeque<Vec<Vec<u8>>>,
    instance: u64,
    sent: u64,
}

/// One transfer: so many chunks of the document `seed`, between L1 and these blocks.
#[derive(Clone, Copy)]
pub struct Transfer<'a> {
    pub seed: u32,
    pub request: &'a str,
    pub blocks: &'a [u64],
    pub skip_tokens: u64,
    pub event: &'a [u8],
}

impl<'a> Transfer<'a> {
    pub fn new(seed: u32, request: &'a str, blocks: &'a [u64], event: &'a [u8]) -> Transfer<'a> {
        Transfer { seed, request, blocks, skip_tokens: 0, event }
    }
}

const CHUNK_TOKENS: u64 = 16;
pub const BLOCKS_PER_CHUNK: u64 = CHUNK_TOKENS / crate::pages::SLOTS;

impl Worker {
    pub fn new(bed: &Bed, instance: u64) -> Worker {
        Worker::at(bed.server.request, instance)
    }

    pub fn at(address: SocketAddr, instance: u64) -> Worker {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("it is a TCP socket");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("it is not zero");
        let (inbox, messages) = (Inbox::new(), VecDeque::new());
        let mut worker = Worker { stream, inbox, messages, instance, sent: 0 };
        worker.write(&GREETING);
        worker.write(READY_DEALER);
        while !worker.inbox.is_ready() {
            worker.read_some();
        }
        worker
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn read_some(&mut self) {
        let mut bytes = [0; 64 << 10];
        let count = self.stream.read(&mut bytes).expect("the server answers in time");
        assert!(count > 0, "the server closed the connection");
        let (mut messages, mut output) = (Vec::new(), Vec::new());
        self.inbox.feed(&bytes[..count], &mut messages, &mut output).expect("it speaks ZMTP");
        self.messages.extend(messages);
        if !output.is_empty() {
            self.write(&output);
        }
    }

    /// Sends a request and gives its number.
    fn send(&mut self, operation: Operation, payloads: &[Vec<u8>]) -> u64 {
        self.sent += 1;
        let (uid, operation) = (frame(|w| w.u64(self.sent)), operation_frame(operation));
        let mut frames: Vec<&[u8]> = vec![&uid, &operation];
        frames.extend(payloads.iter().map(Vec::as_slice));
        let mut bytes = Vec::new();
        append_message(&frames, &mut bytes);
        self.write(&bytes);
        self.sent
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return message;
            }
            self.read_some();
        }
    }

    fn call(&mut self, operation: Operation, payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let uid = self.send(operation, payloads);
        let answer = self.receive();
        assert_eq!(answer[0], frame(|w| w.u64(uid)), "nothing else was asked");
        answer
    }

    pub fn register(&mut self, card: &Card, cache: &Cache) {
        let refused = self.register_as(&cache.descriptors(card), cache.pages.hint());
        assert_eq!(refused, None);
    }

    /// None where it is taken, else the reason.
    pub fn register_as(&mut self, descriptors: &[Vec<u8>], hint: &str) -> Option<String> {
        let caches = frame(|w| {
            w.array(descriptors.len());
            descriptors.iter().for_each(|body| w.ext(1, body));
        });
        let text = |text: &str| frame(|w| w.str(text));
        let hints = frame(|w| {
            w.map(1);
            w.str("kv_layout");
            w.str(hint);
        });
        let (instance, one) = (frame(|w| w.u64(self.instance)), frame(|w| w.u64(1)));
        let groups = frame(|w| w.array(0));
        let payloads = [instance, caches, text("m"), one, text("vllm"), hints, groups];
        let answer = self.call(Operation::RegisterKvCache, &payloads);
        if answer.len() == 2 && answer[1] == operation_frame(Operation::RegisterKvCache) {
            return None;
        }
        Some(String::from_utf8_lossy(&answer[1]).into_owned())
    }

    pub fn unregister(&mut self) {
        let instance = frame(|w| w.u64(self.instance));
        self.call(Operation::UnregisterKvCache, &[instance]);
    }

    fn key(seed: u32, chunks: u64, worker: Option<u32>, request: &str) -> Vec<u8> {
        let end = chunks * CHUNK_TOKENS;
        let tokens: Vec<u32> = (0..end as u32).map(|at| seed * 100_000 + at).collect();
        let (model, world_size, start, salt, readers) = ("m", 1, 0, "", 1);
        let tokens = &tokens;
        let key = Key { model, world_size, worker, tokens, start, end, request, salt, readers };
        let mut bytes = Vec::new();
        key.encode(&mut bytes);
        bytes
    }

    /// Sends it and gives its number.
    pub fn begin(&mut self, operation: Operation, transfer: &Transfer<'_>) -> u64 {
        let Transfer { seed, request, blocks, skip_tokens, event } = *transfer;
        let ids = frame(|w| {
            w.array(1);
            w.array(blocks.len());
            blocks.iter().for_each(|id| w.u64(*id));
        });
        let key = Worker::key(seed, blocks.len() as u64 / BLOCKS_PER_CHUNK, Some(0), request);
        let mut payloads = vec![key, frame(|w| w.u64(self.instance)), ids, frame(|w| w.bin(event))];
        if operation == Operation::Retrieve {
            payloads.push(frame(|w| w.u64(skip_tokens)));
        }
        self.send(operation, &payloads)
    }

    /// The number of the next transfer that ended, and whether all of it was copied.
    pub fn ended(&mut self) -> (u64, bool) {
        let answer = self.receive();
        let mut uid = 0;
        assert!((1..=self.sent).any(|each| {
            uid = each;
            answer[0] == frame(|w| w.u64(each))
        }));
        match &answer[2][..] {
            b"\x92\xc4\x00\xc3" => (uid, true),
            b"\x92\xc4\x00\xc2" => (uid, false),
            other => panic!("no answer to a transfer: {other:?}"),
        }
    }

    fn transfer(&mut self, operation: Operation, transfer: &Transfer<'_>) -> bool {
        let uid = self.begin(operation, transfer);
        let (ended, whole) = self.ended();
        assert_eq!(ended, uid);
        whole
    }

    pub fn store(&mut self, transfer: &Transfer<'_>) -> bool {
        self.transfer(Operation::Store, transfer)
    }

    /// Looks the chunks up, which must all be there, and retrieves them.
    pub fn fetch(&mut self, transfer: &Transfer<'_>) -> bool {
        let chunks = transfer.blocks.len() as u64 / BLOCKS_PER_CHUNK;
        let hits = self.lookup(transfer.seed, chunks, transfer.request);
        assert_eq!(hits, chunks, "all of it is there");
        self.retrieve(transfer)
    }

    pub fn retrieve(&mut self, transfer: &Transfer<'_>) -> bool {
        self.transfer(Operation::Retrieve, transfer)
    }

    /// Chunks from the start that are there.
    pub fn lookup(&mut self, seed: u32, chunks: u64, request: &str) -> u64 {
        let payloads = [Worker::key(seed, chunks, None, request), frame(|w| w.u64(1))];
        self.call(Operation::Lookup, &payloads);
        let answer = self.call(Operation::QueryPrefetchStatus, &[frame(|w| w.str(request))]);
        let hits = (0..=chunks).find(|hits| answer[2] == frame(|w| w.u64(*hits)));
        hits.unwrap_or_else(|| panic!("no count: {:?}", answer[2]))
    }

    /// What was looked up and not fetched is not wanted any more.
    pub fn end_session(&mut self, request: &str) {
        self.call(Operation::EndSession, &[frame(|w| w.str(request))]);
    }
}
