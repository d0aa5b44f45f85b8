//! An engine-driven client, as small as these tests need it, over a plain socket.

use kvtide_core::format::pickle::writer as pickle;
use kvtide_core::names::{Dtype, InstanceId, Layout};
use kvtide_core::wire::client::{Inbox, Key, append_request};
use kvtide_core::wire::fields::Opaque;
use kvtide_core::wire::request::{EngineDrivenRegistration, KeyFrame, Request};
use kvtide_core::wire::zmtp::{GREETING, READY_DEALER};
use rmpv::Value;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// One worker of one model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub model: &'static str,
    pub chunk_size: u32,
    pub layers: u32,
    pub hidden: u32,
}

/// Two of its chunks are what a real torch wrote into the sample that `store_inline` sends.
pub const SAMPLE: Shape = Shape { model: "sample", chunk_size: 64, layers: 1, hidden: 300 };
/// For servers that serve this shape.
pub const SAMPLE_CHUNKS: [&str; 2] = ["--chunk-size", "64"];

impl Shape {
    pub fn layout(self) -> Layout {
        let dtype = Dtype::named("bfloat16").expect("a torch type");
        let (layers, slots, hidden) = (self.layers, self.chunk_size, self.hidden);
        Layout { planes: 2, layers, slots, hidden, dtype }
    }

    pub fn chunk_bytes(self) -> usize {
        self.layout().bytes().expect("it is not empty") as usize
    }
}

pub struct Client {
    stream: TcpStream,
    inbox: Inbox,
    messages: VecDeque<Vec<Vec<u8>>>,
    uid: u64,
    pub instance: i64,
    pub shape: Shape,
}

impl Client {
    pub fn open(address: SocketAddr, instance: i64, shape: Shape) -> Client {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("it is a TCP socket");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("it is not zero");
        let (inbox, messages) = (Inbox::new(), VecDeque::new());
        let mut client = Client { stream, inbox, messages, uid: 0, instance, shape };
        client.write(&[&GREETING[..], READY_DEALER].concat());
        while !client.inbox.is_ready() {
            client.read_some();
        }
        client
    }

    /// Opens and registers. The pool's name, empty where there is none to map.
    pub fn registered(address: SocketAddr, instance: i64, shape: Shape) -> (Client, String) {
        let mut client = Client::open(address, instance, shape);
        let name = client.register(instance);
        (client, name)
    }

    pub fn register(&mut self, instance: i64) -> String {
        let registration = EngineDrivenRegistration {
            instance_id: instance,
            model_name: self.shape.model,
            world_size: 1,
            block_size: 16,
            num_layers: self.shape.layers.into(),
            hidden_dim_size: self.shape.hidden.into(),
            dtype_str: "bfloat16",
            use_mla: false,
            num_physical_slots: None,
        };
        let answer = self.ask(&Request::RegisterEngineDriven(registration));
        field(&answer, "shm_name").as_str().expect("a text").to_owned()
    }

    /// Puts a request on its way; its answer is `receive`d later.
    pub fn send(&mut self, request: &Request<'_>) {
        let mut bytes = Vec::new();
        self.uid += 1;
        append_request(self.uid, request, &mut bytes);
        self.write(&bytes);
    }

    /// The value of the next answer; nil where it has none.
    pub fn receive(&mut self) -> Value {
        while self.messages.is_empty() {
            self.read_some();
        }
        let message = self.messages.pop_front().expect("one is there");
        match message.get(2) {
            Some(frame) => rmpv::decode::read_value(&mut &frame[..]).expect("it is msgpack"),
            None => Value::Nil,
        }
    }

    pub fn ask(&mut self, request: &Request<'_>) -> Value {
        self.send(request);
        self.receive()
    }

    /// Slots for the first chunks of a prompt; None is a context without slots.
    pub fn prepare_store(&mut self, prompt: &Prompt) -> Option<Vec<u64>> {
        let instance = InstanceId(self.instance);
        let frame = prompt.frame(Some(0));
        let answer = self.ask(&Request::PrepareStore { key: KeyFrame(&frame), instance });
        offsets(field(&answer, "context"))
    }

    pub fn commit_store(&mut self, prompt: &Prompt, data: &[u8]) -> bool {
        let instance = InstanceId(self.instance);
        let frame = prompt.frame(Some(0));
        let (key, data) = (KeyFrame(&frame), Opaque(data));
        self.ask(&Request::CommitStore { key, instance, data }) == Value::Boolean(true)
    }

    /// Stores two chunks of `SAMPLE` inside the message.
    pub fn store_inline(&mut self, prompt: &Prompt) -> bool {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/pickle");
        let data = std::fs::read(folder.join("bfloat16-2x1x64x300.pickle"));
        self.commit_store(prompt, &data.expect("the sample is in the folder"))
    }

    pub fn lookup(&mut self, prompt: &Prompt) -> u64 {
        let frame = prompt.frame(None);
        self.ask(&Request::Lookup { key: KeyFrame(&frame), tp_size: 1 });
        let (request, wait) = (&*prompt.request, Duration::from_secs(30));
        self.ask(&Request::WaitPrefetchStatus { request, wait }).as_u64().expect("a count")
    }

    /// Looks up, retrieves inside the message and compares with what `store_inline` wrote.
    pub fn expect_inline(&mut self, prompt: &Prompt) {
        assert_eq!(self.lookup(prompt), u64::from(prompt.chunks));
        let instance = InstanceId(self.instance);
        let frame = prompt.frame(Some(0));
        let answer = self.ask(&Request::PrepareRetrieve { key: KeyFrame(&frame), instance });
        assert_eq!(field(&answer, "success"), &Value::Boolean(true));
        let data = field(&answer, "data").as_slice().expect("bytes").to_vec();
        let layout = self.shape.layout();
        let whole = pickle::total_bytes(&layout, prompt.chunks).expect("it fits") as usize;
        assert_eq!(data.len(), whole);
        let mut head = Vec::new();
        pickle::head(&layout, &mut head);
        let mut at = head.len();
        for chunk in 0..prompt.chunks {
            at += pickle::TENSOR_HEAD_BYTES;
            let bytes = &data[at..at + self.shape.chunk_bytes()];
            let want = (0..bytes.len()).map(|at| (at * 31 + chunk as usize * 101 + 7) as u8);
            assert!(bytes.iter().copied().eq(want), "chunk {chunk} has its own bytes");
            at += bytes.len() + pickle::TENSOR_TAIL.len();
        }
        self.ask(&Request::CommitRetrieve { key: KeyFrame(&frame), instance });
        self.ask(&Request::EndSession { request: &prompt.request });
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn read_some(&mut self) {
        let mut bytes = vec![0; 256 << 10];
        let count = self.stream.read(&mut bytes).expect("the server answers in time");
        assert!(count > 0, "the server closed the connection");
        let (mut messages, mut output) = (Vec::new(), Vec::new());
        self.inbox.feed(&bytes[..count], &mut messages, &mut output).expect("it speaks ZMTP");
        self.messages.extend(messages);
        self.write(&output);
    }
}

/// Tokens that belong to nobody else, and the request that they come under.
pub struct Prompt {
    pub request: String,
    pub chunks: u32,
    tokens: Vec<u32>,
    model: &'static str,
}

impl Prompt {
    pub fn new(number: u32, chunks: u32, shape: Shape) -> Prompt {
        let tokens = (0..chunks * shape.chunk_size).map(|at| at ^ (number << 16)).collect();
        Prompt { request: format!("request-{number}"), chunks, tokens, model: shape.model }
    }

    /// The same prompt, shorter and of another request; one token is a chunk.
    pub fn beginning(&self, chunks: u32, request: String) -> Prompt {
        Prompt { request, chunks, tokens: self.tokens[..chunks as usize].to_vec(), ..*self }
    }

    pub fn frame(&self, worker: Option<u32>) -> Vec<u8> {
        let key = Key {
            model: self.model,
            world_size: 1,
            worker,
            tokens: &self.tokens,
            start: 0,
            end: self.tokens.len() as u64,
            request: &self.request,
            salt: "",
            readers: 1,
        };
        let mut frame = Vec::new();
        key.encode(&mut frame);
        frame
    }
}

pub fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    let map = value.as_map().unwrap_or_else(|| panic!("a map: {value}"));
    let found = map.iter().find(|(key, _)| key.as_str() == Some(name));
    &found.unwrap_or_else(|| panic!("it has {name}: {value}")).1
}

fn offsets(context: &Value) -> Option<Vec<u64>> {
    let context = context.as_map().expect("a map");
    let slots = context.iter().find(|(key, _)| key.as_str() == Some("slots"))?;
    let slots = slots.1.as_array().expect("an array").iter();
    Some(slots.map(|slot| field(slot, "offset").as_u64().expect("a number")).collect())
}
