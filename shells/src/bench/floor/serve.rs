//! The yardstick's own process.

use super::tokens::read_tokens;
use kvtide_core::config::HashAlgorithm;
use kvtide_core::front::hash::ChunkHasher;
use kvtide_core::names::ChunkHash;
use kvtide_core::wire::answer::append_frame;
use kvtide_core::wire::msgpack::Writer;
use kvtide_core::wire::operation::{Operation, decode_operation};
use kvtide_core::wire::zmtp::{FLAG_COMMAND, FLAG_LONG, FLAG_MORE, GREETING, READY_ROUTER};
use kvtide_core::{Map, map_with_capacity};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io::{self, ErrorKind, Read, Write};

/// Serves until standard input is closed; the exit status.
pub fn serve(chunk_tokens: u32) -> u8 {
    match run(chunk_tokens) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("kvtide bench: --floor: {error}");
            1
        }
    }
}

fn run(chunk_tokens: u32) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(([127, 0, 0, 1], 0).into())?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    poll.registry().register(&mut SourceFd(&0), PARENT, Interest::READABLE)?;
    println!("tcp://{}", listener.local_addr()?);
    let mut index = Index::new(chunk_tokens);
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Events::with_capacity(256);
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &events {
            match event.token() {
                PARENT => return Ok(()),
                LISTENER => accept(&listener, &poll, &mut connections)?,
                Token(number) => {
                    let Some(Some(connection)) = connections.get_mut(number) else { continue };
                    if connection.turn(&mut index).is_err() {
                        connections[number] = None;
                    }
                }
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    poll: &Poll,
    connections: &mut Vec<Option<Connection>>,
) -> io::Result<()> {
    loop {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        stream.set_nodelay(true)?;
        let both = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut stream, Token(connections.len()), both)?;
        let out = [&GREETING[..], READY_ROUTER].concat();
        connections.push(Some(Connection {
            stream,
            input: vec![0; INPUT_BYTES],
            filled: 0,
            greeted: false,
            out,
            hits: 0,
        }));
    }
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    filled: usize,
    greeted: bool,
    out: Vec<u8>,
    /// What the last lookup has found: the generator asks for it next.
    hits: u64,
}

impl Connection {
    /// Reads what there is, answers what is whole.
    fn turn(&mut self, index: &mut Index) -> io::Result<()> {
        loop {
            if self.filled == self.input.len() {
                self.input.resize(2 * self.filled, 0);
            }
            let room = self.input.len() - self.filled;
            let count = match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            self.filled += count;
            self.answer_whole(index)?;
            if count < room {
                break;
            }
        }
        self.flush()
    }

    fn answer_whole(&mut self, index: &mut Index) -> io::Result<()> {
        let mut at = 0;
        if !self.greeted {
            if self.filled < GREETING.len() {
                return Ok(());
            }
            self.greeted = true;
            at = GREETING.len();
        }
        let input = &self.input[..self.filled];
        while let Some((frames, bytes)) = split_message(&input[at..])? {
            if let [Some(uid), Some(operation), payloads @ ..] = frames {
                answer(uid, operation, &payloads, &mut self.hits, index, &mut self.out);
            }
            at += bytes;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

type Frames<'i> = [Option<&'i [u8]>; FRAMES_MAX];

/// The frames of the first message and its bytes, once it is whole. A command has no frames.
fn split_message(input: &[u8]) -> io::Result<Option<(Frames<'_>, usize)>> {
    let mut frames = [None; FRAMES_MAX];
    let mut at = 0;
    for frame in &mut frames {
        let Some(&flags) = input.get(at) else { return Ok(None) };
        let (body, bytes) = if flags & FLAG_LONG == 0 {
            let Some(&bytes) = input.get(at + 1) else { return Ok(None) };
            (at + 2, usize::from(bytes))
        } else {
            let Some(bytes) = input[at + 1..].first_chunk::<8>() else { return Ok(None) };
            (at + 9, u64::from_be_bytes(*bytes) as usize)
        };
        let end = body.checked_add(bytes).ok_or(ErrorKind::InvalidData)?;
        let Some(body) = input.get(body..end) else { return Ok(None) };
        at = end;
        if flags & FLAG_COMMAND == 0 {
            *frame = Some(body);
        }
        if flags & FLAG_MORE == 0 {
            return Ok(Some((frames, at)));
        }
    }
    Err(ErrorKind::InvalidData.into())
}

fn answer(
    uid: &[u8],
    operation_frame: &[u8],
    payloads: &[Option<&[u8]>],
    hits: &mut u64,
    index: &mut Index,
    out: &mut Vec<u8>,
) {
    // Taken out, so that it can be filled while the index is in use.
    let mut value = std::mem::take(&mut index.value);
    value.clear();
    match (decode_operation(operation_frame), payloads) {
        (Some(Operation::Lookup), [Some(key), ..]) => *hits = index.find(key),
        (Some(Operation::WaitPrefetchStatus), _) => Writer::new(&mut value).u64(*hits),
        (Some(Operation::PrepareStore), [Some(key), ..]) => stored(index.insert(key), &mut value),
        (Some(Operation::ChunkSize), _) => {
            Writer::new(&mut value).u64(u64::from(index.chunk_tokens));
        }
        (Some(Operation::CommitStore), _) => Writer::new(&mut value).bool(true),
        (Some(Operation::Noop), _) => Writer::new(&mut value).str("OK"),
        (Some(Operation::RegisterEngineDriven), _) => {
            value.extend_from_slice(b"\x82\xa8shm_name\xa0\xa9pool_size\x00");
        }
        _ => {}
    }
    append_frame(true, uid, out);
    append_frame(!value.is_empty(), operation_frame, out);
    if !value.is_empty() {
        append_frame(false, &value, out);
    }
    index.value = value;
}

/// As many places as there are chunks, all of them nowhere.
fn stored(chunks: u64, value: &mut Vec<u8>) {
    let mut writer = Writer::new(value);
    writer.map(1);
    writer.str("context");
    writer.map(1);
    writer.str("slots");
    writer.array(chunks as usize);
    for _ in 0..chunks {
        writer.map(2);
        writer.str("offset");
        writer.u64(0);
        writer.str("length");
        writer.u64(0);
    }
}

/// Hashes of the chunks that were stored.
struct Index {
    chunk_tokens: u32,
    hasher: ChunkHasher,
    tokens: Vec<u32>,
    hashes: Vec<ChunkHash>,
    known: Map<ChunkHash, ()>,
    /// Room for the value of an answer.
    value: Vec<u8>,
}

impl Index {
    fn new(chunk_tokens: u32) -> Index {
        Index {
            chunk_tokens,
            hasher: ChunkHasher::new(HashAlgorithm::Blake3, chunk_tokens),
            tokens: Vec::new(),
            hashes: Vec::new(),
            known: map_with_capacity(1024, 1),
            value: Vec::new(),
        }
    }

    fn hash(&mut self, key: &[u8]) {
        self.tokens.clear();
        self.hashes.clear();
        // A key that cannot be read has no chunks: the generator finds that out.
        if read_tokens(key, &mut self.tokens).is_some() {
            self.hasher.restart(None);
            self.hasher.feed(&self.tokens, |hash| self.hashes.push(hash));
        }
    }

    /// All chunks of the prompt or none: one look.
    fn find(&mut self, key: &[u8]) -> u64 {
        self.hash(key);
        match self.hashes.last() {
            Some(last) if self.known.contains_key(last) => self.hashes.len() as u64,
            _ => 0,
        }
    }

    fn insert(&mut self, key: &[u8]) -> u64 {
        self.hash(key);
        self.known.extend(self.hashes.iter().map(|hash| (*hash, ())));
        self.hashes.len() as u64
    }
}

const LISTENER: Token = Token(usize::MAX);
const PARENT: Token = Token(usize::MAX - 1);
const INPUT_BYTES: usize = 256 << 10;
/// Number, operation, and at most three payloads.
const FRAMES_MAX: usize = 5;
