//! A server on a thread, and clients that speak to it byte by byte where they have to.

use kvtide::arena::Arena;
use kvtide::clock::Clock;
use kvtide::reactor::{Desk, LastTurn, ListenAddress, Note, Parts, Reactor, ReactorStatus, Signal};
use kvtide_core::config::Config;
use kvtide_core::effect::{Answer, Outbox};
use kvtide_core::engine::Engine;
use kvtide_core::event::Event;
use kvtide_core::front::Front;
use kvtide_core::limits::{LARGE_FRAME_BUDGET_BYTES, MEDIUM_FRAME_BUDGET_BYTES};
use kvtide_core::names::{Reply, Ticket};
use kvtide_core::slots::SlotName;
use kvtide_core::time::Instant;
use kvtide_core::wire::client::{Inbox, append_message};
use kvtide_core::wire::zmtp::{GREETING, READY_DEALER};
use kvtide_lanes::mailbox::Sender;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The two frames of a `noop` and of its answer's head.
pub const NOOP: &[u8] = b"\x18";
pub const PING: &[u8] = b"\x16";
pub const NIL: &[u8] = b"\xc0";
pub const ARENA_BYTES: u64 = 4 << 20;

/// Far more turns than anything takes.
const LOOKS_MAX: usize = 2_000_000;

pub struct Server<E: Desk> {
    pub address: SocketAddr,
    pub last_turn: LastTurn,
    sender: Sender<Note<E>>,
    thread: JoinHandle<io::Result<Signal>>,
}

impl Server<Engine> {
    /// The real engine, its memory private and wholly grown.
    pub fn start() -> Server<Engine> {
        Server::with(Engine::new(config()))
    }
}

pub fn config() -> Config {
    Config {
        l1_bytes: ARENA_BYTES,
        chunk_size: 16,
        pool: kvtide_core::config::PoolKind::Private,
        ..Config::default()
    }
}

impl<E: Desk + Send + 'static> Server<E> {
    pub fn with(engine: E) -> Server<E> {
        let address = ListenAddress::parse("tcp://127.0.0.1:0").expect("an address");
        let (server, address) = Server::at(engine, &address);
        let ListenAddress::Tcp(address) = address else { unreachable!("a tcp address stays one") };
        Server { address, ..server }
    }

    /// A server at a unix socket whose file is named after the test.
    pub fn at_path(engine: E, test: &str) -> (Server<E>, PathBuf) {
        let name = format!("kvtide-loopback-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (server, _) = Server::at(engine, &ListenAddress::Path(path.clone()));
        (server, path)
    }

    fn at(engine: E, address: &ListenAddress) -> (Server<E>, ListenAddress) {
        let (mut reactor, sender) = reactor(engine);
        let bound = reactor.listen(address).expect("the address is free");
        let last_turn = reactor.last_turn();
        let thread = std::thread::spawn(move || reactor.run());
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        (Server { address: nowhere, last_turn, sender, thread }, bound)
    }

    pub fn status(&self) -> ReactorStatus {
        self.look(|_, status| status.clone())
    }

    pub fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&E, &ReactorStatus) -> T + Send + 'static,
    ) -> T {
        let (tell, told) = mpsc::channel();
        let note = Note::Look(Box::new(move |engine, status| {
            tell.send(look(engine, status)).expect("the test waits");
        }));
        assert!(self.sender.put(note).is_ok(), "the reactor reads its mailbox");
        told.recv().expect("the reactor is alive")
    }

    /// Looks, turn by turn, until the state is as wanted.
    pub fn until(&self, wanted: impl Fn(&ReactorStatus) -> bool) -> ReactorStatus {
        for _ in 0..LOOKS_MAX {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            std::thread::yield_now();
        }
        panic!("it does not come to what is wanted: {:?}", self.status());
    }

    pub fn note(&self, note: Note<E>) {
        assert!(self.sender.put(note).is_ok(), "the mailbox has room");
    }

    /// Has the server find all of these signals in one turn.
    pub fn stop_in_one_turn(&self, signals: &[Signal]) {
        let (sender, signals) = (self.sender.clone(), signals.to_vec());
        // While the mailbox is being emptied, what is put there waits for the next turn.
        self.look(move |_, _| {
            for signal in signals {
                assert!(sender.put(Note::Stop(signal)).is_ok(), "the mailbox has room");
            }
        });
    }

    /// Ends the server and says by which signal it ended.
    pub fn stop(self, signal: Signal) -> Signal {
        self.note(Note::Stop(signal));
        self.join()
    }

    pub fn join(self) -> Signal {
        self.thread.join().expect("the reactor does not panic").expect("polling works")
    }

    /// Everything that clients brought is gone again (P4). Whoever connected must have been
    /// accepted by now: a client that was served later has seen to that.
    pub fn expect_empty(&self) {
        let status = self.until(|status| (status.connections, status.ready) == (0, 0));
        assert_eq!(status.requests, 0);
        assert_eq!(status.large_frame_bytes_left, LARGE_FRAME_BUDGET_BYTES);
        assert_eq!(status.medium_frame_bytes_left, MEDIUM_FRAME_BUDGET_BYTES);
        assert_eq!(status.buffered_bytes, 0);
        assert_eq!(status.counters.ended, status.counters.accepted);
    }
}

/// A reactor with nothing to listen to yet.
pub fn reactor<E: Desk>(engine: E) -> (Reactor<E>, Sender<Note<E>>) {
    let (arena, mut grower) = Arena::private(ARENA_BYTES).expect("four megabytes can be mapped");
    let parts =
        Parts { engine, front: Front::new(&config()), arena, clock: Clock::start(), facts: None };
    let reactor = Reactor::new(parts).expect("a poll can be made");
    let sender = reactor.sender();
    grower.run(|growth| {
        let bytes = growth.usable();
        assert!(sender.put(Note::ArenaGrown { bytes }).is_ok(), "the mailbox has room");
        ControlFlow::Continue(())
    });
    (reactor, sender)
}

type Act = fn(&mut Script, Event<'_>, &mut Outbox);

/// An engine that does as a test wants and keeps the names of its events.
pub struct Script {
    pub events: Vec<String>,
    /// Questions without an answer; the end of the server answers them.
    pub held: Vec<Reply>,
    /// Questions whose body is on its way.
    pub receiving: Vec<Reply>,
    pub issued: u32,
    act: Act,
}

impl Script {
    pub fn new(act: Act) -> Script {
        let (held, receiving) = (Vec::new(), Vec::new());
        Script { events: Vec::new(), held, receiving, issued: 0, act }
    }

    pub fn ticket(&mut self) -> Ticket {
        self.issued += 1;
        Ticket(SlotName { index: self.issued, generation: 0 })
    }
}

impl Desk for Script {
    fn handle(&mut self, _now: Instant, event: Event<'_>, out: &mut Outbox) {
        self.events.push(match &event {
            Event::SendEnded { ticket, .. } => format!("sent {}", ticket.0.index),
            Event::ReceiveEnded { complete, outcome, .. } => format!("{outcome:?} {complete}"),
            Event::ConnectionEnded { .. } => "ended".to_owned(),
            Event::Asked { .. } => "asked".to_owned(),
            _ => "other".to_owned(),
        });
        (self.act)(self, event, out);
    }

    fn next_tick(&self) -> Option<Instant> {
        None
    }

    fn retell(&mut self, _out: &mut Outbox) {}

    fn finish(&mut self, _now: Instant, out: &mut Outbox) {
        self.held.drain(..).for_each(|reply| out.answer(reply, Answer::Count(0)));
    }
}

/// A client that waits for what it reads, at most half a minute.
pub struct Client {
    pub stream: TcpStream,
    inbox: Inbox,
    messages: VecDeque<Vec<Vec<u8>>>,
}

impl Client {
    /// Connects and shakes hands.
    pub fn open(address: SocketAddr) -> Client {
        let mut client = Client::connect(address);
        client.write(&GREETING);
        client.write(READY_DEALER);
        while !client.inbox.is_ready() {
            client.read_some();
        }
        client
    }

    /// Connects and says nothing.
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("it is a TCP socket");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("it is not zero");
        Client { stream, inbox: Inbox::new(), messages: VecDeque::new() }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub fn send(&mut self, frames: &[&[u8]]) {
        self.write(&message(frames));
    }

    /// The next message of the server.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return message;
            }
            self.read_some();
        }
    }

    /// The next message of the server; None when it has closed its side instead.
    pub fn receive_or_end(&mut self) -> Option<Vec<Vec<u8>>> {
        while self.messages.is_empty() {
            if !self.read_or_end() {
                return None;
            }
        }
        self.messages.pop_front()
    }

    pub fn call(&mut self, frames: &[&[u8]]) -> Vec<Vec<u8>> {
        self.send(frames);
        self.receive()
    }

    /// Asks something that every server answers.
    pub fn expect_served(&mut self) {
        assert_eq!(self.call(&[b"alive", NOOP]), [&b"alive"[..], NOOP, b"\xa2OK"]);
    }

    fn read_some(&mut self) {
        assert!(self.read_or_end(), "the server closed the connection");
    }

    /// False at the end of the stream.
    fn read_or_end(&mut self) -> bool {
        let mut bytes = [0; 64 << 10];
        let count = self.stream.read(&mut bytes).expect("the server answers in time");
        let (mut messages, mut output) = (Vec::new(), Vec::new());
        self.inbox.feed(&bytes[..count], &mut messages, &mut output).expect("it speaks ZMTP");
        self.messages.extend(messages);
        if !output.is_empty() {
            self.write(&output);
        }
        count > 0
    }

    /// Waits for the server to close its side.
    pub fn expect_closed(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                // What the server had not read makes its end a reset.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the server closes in time: {error}"),
            }
        }
    }

    /// Writes one request again and again, reading nothing, until everything between the two ends
    /// is full: socket buffers, then the server's queue. Returns the bytes it took.
    pub fn stuff<E: Desk + Send + 'static>(&mut self, server: &Server<E>, request: &[u8]) -> usize {
        self.stream.set_nonblocking(true).expect("it is a socket");
        let (mut sent, mut full) = (0, 0);
        while full < 3 {
            match self.stream.write(&request[sent % request.len()..]) {
                Ok(count) => (sent, full) = (sent + count, 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The server has taken what it will take once it has nothing to do.
                    server.until(|status| status.ready == 0);
                    full += 1;
                }
                Err(error) => panic!("{error}"),
            }
            assert!(sent < 1 << 28, "the server reads on although nobody takes its answers");
        }
        self.stream.set_nonblocking(false).expect("it is a socket");
        sent
    }
}

pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_message(frames, &mut bytes);
    bytes
}

/// What a client says before its first request.
pub fn opening() -> Vec<u8> {
    [&GREETING[..], READY_DEALER].concat()
}
