//! The client that behaves: it registers, stores, looks up and reads back over shared memory, and
//! compares every byte.

use crate::harness::Client;
use kvtide_core::names::InstanceId;
use kvtide_core::wire::client::{Key, append_request};
use kvtide_core::wire::fields::Opaque;
use kvtide_core::wire::request::{EngineDrivenRegistration, KeyFrame, Request};
use rmpv::Value;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::time::Duration;

pub const CHUNK_TOKENS: u64 = 256;
/// Two planes of two layers of 256 slots of 32 halves.
pub const CHUNK_BYTES: usize = 2 * 2 * 256 * 32 * 2;
/// Chunks of one round.
const CHUNKS: u64 = 2;

/// A place in the pool that the server has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub offset: u64,
    pub bytes: u64,
}

pub struct Bystander {
    pub client: Client,
    pub instance: InstanceId,
    pool: File,
    rounds: u64,
    /// The round whose prompt is found in every later one.
    first: u64,
    uids: u64,
}

/// One request's range, from the first token on.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub request: String,
}

impl Prompt {
    /// Prompts of different seeds share no prefix.
    pub fn new(seed: u64, chunks: u64) -> Prompt {
        let first = (seed as u32).wrapping_mul(2_654_435_761) % 100_000;
        let tokens = (0..chunks * CHUNK_TOKENS).map(|at| first + at as u32).collect();
        Prompt { tokens, request: format!("prompt-{seed}") }
    }

    pub fn renamed(&self, request: &str) -> Prompt {
        Prompt { request: request.to_owned(), ..self.clone() }
    }

    pub fn key(&self, worker: Option<u32>) -> Vec<u8> {
        let key = Key {
            model: MODEL,
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

    /// What belongs under one of its chunks.
    pub fn bytes(&self, chunk: usize) -> Vec<u8> {
        let seed = u64::from(self.tokens[0]) << 16 | chunk as u64;
        let words = 0..CHUNK_BYTES as u64 / 8;
        words.flat_map(|at| (at << 40 ^ seed.wrapping_mul(0x9e37_79b9)).to_le_bytes()).collect()
    }
}

impl Bystander {
    pub fn join(address: SocketAddr, instance: i64) -> Bystander {
        let mut client = Client::open(address);
        let answer = call(&mut client, 0, &registration(instance));
        let name = field(&answer, "shm_name").as_str().expect("a pool has a name").to_owned();
        let pool = File::options().read(true).write(true).open(format!("/dev/shm/{name}"));
        let pool = pool.expect("the pool is ours to map");
        Bystander { client, instance: InstanceId(instance), pool, rounds: 0, first: 0, uids: 1 }
    }

    /// Stores a new prompt, finds it and the first one of all, and reads both back.
    pub fn round(&mut self) {
        let seed = 1000 * self.instance.0 as u64;
        let stored = Prompt::new(seed + self.rounds, CHUNKS);
        self.store(&stored);
        self.expect_cached(&stored);
        let first = Prompt::new(seed + self.first, CHUNKS);
        self.expect_cached(&first.renamed(&format!("again-{}", self.rounds)));
        self.rounds += 1;
    }

    /// What it stored so far may be evicted.
    pub fn forget(&mut self) {
        self.first = self.rounds;
    }

    pub fn store(&mut self, prompt: &Prompt) {
        let slots = self.prepare_store(prompt);
        assert_eq!(slots.len(), prompt.tokens.len() / CHUNK_TOKENS as usize, "all of it is new");
        for (chunk, slot) in slots.iter().enumerate() {
            self.write(*slot, &prompt.bytes(chunk));
        }
        assert!(self.commit_store(prompt), "what was prepared and written is stored");
    }

    pub fn prepare_store(&mut self, prompt: &Prompt) -> Vec<Slot> {
        let (key, instance) = (prompt.key(Some(0)), self.instance);
        let answer = self.ask(&Request::PrepareStore { key: KeyFrame(&key), instance });
        slots(field(&answer, "context"))
    }

    pub fn commit_store(&mut self, prompt: &Prompt) -> bool {
        let (key, instance) = (prompt.key(Some(0)), self.instance);
        let data = Opaque(b"");
        let answer = self.ask(&Request::CommitStore { key: KeyFrame(&key), instance, data });
        answer.as_bool().expect("a commit is answered with a bool")
    }

    /// Chunks that hit.
    pub fn lookup(&mut self, prompt: &Prompt) -> u64 {
        let key = prompt.key(None);
        self.ask(&Request::Lookup { key: KeyFrame(&key), tp_size: 1 });
        let wait = Duration::from_secs(5);
        let found = self.ask(&Request::WaitPrefetchStatus { request: &prompt.request, wait });
        found.as_u64().expect("a result is a number")
    }

    /// Looks it up, reads it back and compares.
    pub fn expect_cached(&mut self, prompt: &Prompt) {
        let chunks = prompt.tokens.len() as u64 / CHUNK_TOKENS;
        assert_eq!(self.lookup(prompt), chunks, "{}", prompt.request);
        self.expect_retrieved(prompt);
        self.end_session(&prompt.request);
    }

    /// Reads back what its lookup has promised, and compares.
    pub fn expect_retrieved(&mut self, prompt: &Prompt) {
        let chunks = prompt.tokens.len() / CHUNK_TOKENS as usize;
        let (key, instance) = (prompt.key(Some(0)), self.instance);
        let answer = self.ask(&Request::PrepareRetrieve { key: KeyFrame(&key), instance });
        assert_eq!(field(&answer, "success").as_bool(), Some(true));
        let slots = slots(field(&answer, "context"));
        assert_eq!(slots.len(), chunks);
        for (chunk, slot) in slots.iter().enumerate() {
            assert!(self.read(*slot) == prompt.bytes(chunk), "wrong bytes under chunk {chunk}");
        }
        let done = self.ask(&Request::CommitRetrieve { key: KeyFrame(&key), instance });
        assert_eq!(done.as_bool(), Some(true));
    }

    pub fn end_session(&mut self, request: &str) {
        self.ask(&Request::EndSession { request });
    }

    pub fn write(&self, slot: Slot, bytes: &[u8]) {
        assert_eq!(slot.bytes, bytes.len() as u64);
        self.pool.write_all_at(bytes, slot.offset).expect("the slot lies in the pool");
    }

    pub fn read(&self, slot: Slot) -> Vec<u8> {
        let mut bytes = vec![0; slot.bytes as usize];
        self.pool.read_exact_at(&mut bytes, slot.offset).expect("the slot lies in the pool");
        bytes
    }

    pub fn leave(mut self) {
        let instance = self.instance;
        self.ask(&Request::UnregisterEngineDriven { instance });
    }

    pub fn ask(&mut self, request: &Request<'_>) -> Value {
        self.uids += 1;
        call(&mut self.client, self.uids, request)
    }
}

pub fn registration(instance: i64) -> Request<'static> {
    Request::RegisterEngineDriven(EngineDrivenRegistration {
        instance_id: instance,
        model_name: MODEL,
        world_size: 1,
        block_size: 16,
        num_layers: 2,
        hidden_dim_size: 32,
        dtype_str: "float16",
        use_mla: false,
        num_physical_slots: None,
    })
}

/// The value of the answer; nil where it has none.
fn call(client: &mut Client, uid: u64, request: &Request<'_>) -> Value {
    let mut bytes = Vec::new();
    append_request(uid, request, &mut bytes);
    client.write(&bytes);
    let answer = client.receive();
    assert_eq!(answer[0], kvtide_core::wire::client::uid_frame(uid), "answers come in order");
    answer.get(2).map_or(Value::Nil, |value| decoded(value))
}

pub fn decoded(mut frame: &[u8]) -> Value {
    rmpv::decode::read_value(&mut frame).expect("an answer is msgpack")
}

fn field<'v>(value: &'v Value, name: &str) -> &'v Value {
    let fields = value.as_map().unwrap_or_else(|| panic!("not a map: {value}"));
    let found = fields.iter().find(|(key, _)| key.as_str() == Some(name));
    &found.unwrap_or_else(|| panic!("no {name} in {value}")).1
}

fn slots(context: &Value) -> Vec<Slot> {
    let number = |slot: &Value, name| field(slot, name).as_u64().expect("a number");
    let all = field(context, "slots").as_array().expect("slots are an array");
    all.iter()
        .map(|slot| Slot { offset: number(slot, "offset"), bytes: number(slot, "length") })
        .collect()
}

pub const MODEL: &str = "bystander";
