//! One server under test, and what the generator keeps there: a control connection, registered
//! instances, stored prompts.

use super::fault::BenchFault;
use super::line::{Line, Url};
use super::message::{FIRST_TOKEN_MIN, Ids, Message, RequestId, frame, id_frame, id_place};
use super::process::Process;
use super::stop::Stop;
use kvtide_core::rng::Rng;
use kvtide_core::wire::client::Key;
use kvtide_core::wire::fields::{FreeMap, Wire};
use kvtide_core::wire::msgpack::Reader;
use kvtide_core::wire::operation::Operation;
use kvtide_core::wire::request::EngineDrivenRegistration;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// What the candidate is measured as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Server,
    /// The yardstick: knows no transfers and keeps nothing.
    Floor,
}

pub struct Candidate {
    pub name: String,
    pub url: Url,
    pub kind: Kind,
    pub process: Option<Process>,
    /// Of its lower tier.
    pub folder: Option<PathBuf>,
    pub stop: Stop,
    pub control: Line,
    pub ids: Ids,
    pub session: SessionMessages,
    pub chunk_tokens: u64,
    /// Requests that are open beside the last one.
    pub held: Vec<RequestId>,
    rng: Rng,
    instances: Vec<u64>,
}

/// An engine that the server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub number: u64,
    pub model: String,
    /// Empty where there is no pool to map.
    pub pool_name: String,
    pub pool_bytes: u64,
}

/// Requests that are the same for every prompt.
#[derive(Clone, Debug)]
pub struct SessionMessages {
    pub wait: Message,
    pub end: Message,
}

/// A prompt as a scheduler asks for it.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub lookup: Message,
    pub free: Message,
    /// What the lookup has to find. Zero: the prompt is made to differ each time.
    pub hits: u64,
}

/// Where one object lies in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub offset: u64,
    pub bytes: u64,
}

impl Candidate {
    pub fn connect(
        name: &str,
        url: &Url,
        kind: Kind,
        process: Option<Process>,
        stop: &Stop,
    ) -> Result<Candidate, BenchFault> {
        let mut control = Line::connect(url, stop)?;
        let chunk_size = Message::new(Operation::ChunkSize, &[]);
        let chunk_tokens = control.call(&chunk_size, RequestId::NONE)?.count()?.unwrap_or(0);
        if !(1..=CHUNK_TOKENS_MAX).contains(&chunk_tokens) {
            return Err(url.fault(format!("chunks of {chunk_tokens} tokens")));
        }
        let wait_s = frame(|writer| writer.f64(WAIT_SECONDS));
        let id = id_frame();
        Ok(Candidate {
            name: name.to_owned(),
            url: url.clone(),
            kind,
            process,
            folder: None,
            stop: stop.clone(),
            control,
            ids: Ids::new(crate::entropy::seed()),
            session: SessionMessages {
                wait: Message::new(Operation::WaitPrefetchStatus, &[&id, &wait_s]),
                end: Message::new(Operation::EndSession, &[&id]),
            },
            chunk_tokens,
            held: Vec::new(),
            rng: Rng::new(PROMPT_SEED),
            instances: Vec::new(),
        })
    }

    /// Makes an engine known whose objects have this size.
    pub fn register(&mut self, object_bytes: u64) -> Result<Instance, BenchFault> {
        self.register_as("", object_bytes)
    }

    /// Likewise, for a model of its own, so that what is stored for it can be told from the rest.
    pub fn register_as(&mut self, what: &str, object_bytes: u64) -> Result<Instance, BenchFault> {
        let (planes, layers, hidden) = shape(object_bytes, self.chunk_tokens).ok_or_else(|| {
            let tokens = self.chunk_tokens;
            self.url
                .fault(format!("no object of {object_bytes} bytes has chunks of {tokens} tokens"))
        })?;
        let number = crate::entropy::seed() >> 1;
        let model = format!("kvtide-bench-{}-{object_bytes}{what}", self.ids.run_name());
        let registration = EngineDrivenRegistration {
            instance_id: number as i64,
            model_name: &model,
            world_size: 1,
            block_size: BLOCK_TOKENS,
            num_layers: layers,
            hidden_dim_size: hidden,
            dtype_str: "float16",
            use_mla: planes == 1,
            num_physical_slots: Some(self.chunk_tokens as i64),
        };
        let payload = frame(|writer| registration.write(writer));
        let register = Message::new(Operation::RegisterEngineDriven, &[&payload]);
        let value = self.control.call(&register, RequestId::NONE)?.value()?;
        let (pool_name, pool_bytes) = value.and_then(pool_of).ok_or_else(|| {
            self.url.fault("a registration is answered with something else than a pool")
        })?;
        self.instances.push(number);
        Ok(Instance { number, model, pool_name, pool_bytes })
    }

    /// Ends everything that was registered, and the requests that may have been cut off. Over a
    /// connection of its own: on the old one an answer may be due still, and once somebody has
    /// pressed Ctrl-C every wait there ends. A second Ctrl-C ends this one, too.
    pub fn unregister(&mut self) -> Result<(), BenchFault> {
        if self.instances.is_empty() {
            return Ok(());
        }
        let mut line = Line::connect(&self.url, &Stop::default())?;
        for id in std::mem::take(&mut self.held).into_iter().chain(self.ids.last()) {
            line.call(&self.session.end, id)?.done()?;
        }
        for number in std::mem::take(&mut self.instances) {
            let number = frame(|writer| writer.u64(number));
            let unregister = Message::new(Operation::UnregisterEngineDriven, &[&number]);
            line.call(&unregister, RequestId::NONE)?.done()?;
        }
        Ok(())
    }

    /// Token ids of whole chunks: never the same again, the same in every run.
    pub fn tokens(&mut self, chunks: u64) -> Vec<u32> {
        let mut tokens: Vec<u32> = (0..chunks * self.chunk_tokens)
            .map(|_| 1 + self.rng.below(u64::from(TOKENS_MAX)) as u32)
            .collect();
        // Wide, so that another one can be put in its place.
        tokens[0] = FIRST_TOKEN_MIN + tokens[0] % FIRST_TOKEN_MIN;
        tokens
    }

    pub fn key<'a>(instance: &'a Instance, tokens: &'a [u32], worker: Option<u32>) -> Key<'a> {
        Key {
            model: &instance.model,
            world_size: 1,
            worker,
            tokens,
            start: 0,
            end: tokens.len() as u64,
            request: id_place(),
            salt: "",
            readers: 1,
        }
    }

    /// A prompt that is not stored.
    pub fn missing(&mut self, instance: &Instance, chunks: u64) -> Prompt {
        let tokens = self.tokens(chunks);
        Prompt::of(instance, &tokens, 0)
    }

    /// A prompt that is stored whole, with whatever the pool holds. A server that has just been
    /// started may still be growing its pool, and one that is full evicts in its own time.
    pub fn stored(&mut self, instance: &Instance, chunks: u64) -> Result<Prompt, BenchFault> {
        let mut found = 0;
        for _ in 0..STORE_ATTEMPTS {
            self.stop.check()?;
            let tokens = self.tokens(chunks);
            found = self.store(instance, &tokens)?;
            if found == chunks {
                return Ok(Prompt::of(instance, &tokens, chunks));
            }
            thread::sleep(STORE_PAUSE);
        }
        Err(self.url.fault(format!(
            "prepare_store gives {found} of {chunks} slots; is its pool too small?"
        )))
    }

    /// Stores as many chunks as the server has room for; how many.
    fn store(&mut self, instance: &Instance, tokens: &[u32]) -> Result<u64, BenchFault> {
        let key = Candidate::key(instance, tokens, Some(0));
        let prepare = Message::with_key(Operation::PrepareStore, &key, instance.number);
        let commit = Message::with_key(Operation::CommitStore, &key, instance.number);
        let id = self.ids.next_id();
        let slots = slots_of(self.control.call(&prepare, id)?.value()?);
        let found = slots.map_or(0, |slots| slots.len() as u64);
        if found > 0 && self.control.call(&commit, id)?.value()? != Some(&[MSGPACK_TRUE]) {
            return Err(self.url.fault("commit_store does not say true"));
        }
        self.control.call(&self.session.end, id)?.done()?;
        Ok(found)
    }
}

impl Prompt {
    fn of(instance: &Instance, tokens: &[u32], hits: u64) -> Prompt {
        let key = Candidate::key(instance, tokens, None);
        let message = |operation| Message::with_key(operation, &key, 1);
        Prompt {
            lookup: message(Operation::Lookup),
            free: message(Operation::FreeLookupLocks),
            hits,
        }
    }

    /// A sentence where a lookup has found something else than it must.
    pub fn judge(&self, found: Option<u64>) -> Result<(), String> {
        let hits = self.hits;
        match found {
            Some(found) if found == hits => Ok(()),
            Some(found) => Err(format!("a lookup finds {found} chunks where {hits} are stored")),
            None => Err(format!("wait_prefetch_status has no result after {WAIT_SECONDS} s")),
        }
    }
}

/// Planes, layers and hidden size of an object of that many bytes: two planes of 16-bit numbers, or
/// one where two are too many.
fn shape(object_bytes: u64, chunk_tokens: u64) -> Option<(u64, i64, i64)> {
    [2, 1].into_iter().find_map(|planes| {
        let per_token = object_bytes / (planes * chunk_tokens * NUMBER_BYTES);
        let hidden = per_token.min(HIDDEN_MAX);
        let layers = per_token.checked_div(hidden)?;
        let bytes = planes * layers * chunk_tokens * hidden * NUMBER_BYTES;
        (bytes == object_bytes).then_some((planes, layers as i64, hidden as i64))
    })
}

fn pool_of(value: &[u8]) -> Option<(String, u64)> {
    let map = FreeMap::read(&mut Reader::new(value)).ok()?;
    let name = map.find("shm_name")?.read_str().ok()?.to_owned();
    Some((name, map.find("pool_size")?.read_u64().ok()?))
}

/// The places that an answer to `prepare_store` or `prepare_retrieve` names.
pub fn slots_of(value: Option<&[u8]>) -> Option<Vec<Slot>> {
    let map = FreeMap::read(&mut Reader::new(value?)).ok()?;
    let context = FreeMap::read(&mut map.find("context")?).ok()?;
    let mut slots = context.find("slots")?;
    let count = slots.read_array_len().ok()?;
    let each = (0..count).map(|_| {
        let slot = FreeMap::read(&mut slots).ok()?;
        let offset = slot.find("offset")?.read_u64().ok()?;
        Some(Slot { offset, bytes: slot.find("length")?.read_u64().ok()? })
    });
    each.collect()
}

/// Ten seconds and more.
pub const STORE_ATTEMPTS: u32 = 200;
pub const STORE_PAUSE: Duration = Duration::from_millis(50);
const MSGPACK_TRUE: u8 = 0xc3;
const NUMBER_BYTES: u64 = 2;
const HIDDEN_MAX: u64 = 128;
const BLOCK_TOKENS: i64 = 16;
/// Prompts look like those of a model with a vocabulary of this size.
const TOKENS_MAX: u32 = 150_000;
const PROMPT_SEED: u64 = 1;
const CHUNK_TOKENS_MAX: u64 = 1 << 16;
/// How long a server may wait before it says that a lookup has not ended.
const WAIT_SECONDS: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_the_wished_size_have_a_shape_or_none() {
        assert_eq!(shape(8 << 10, 256), Some((2, 1, 8)));
        assert_eq!(shape(256 << 10, 256), Some((2, 2, 128)));
        assert_eq!(shape(8 << 20, 256), Some((2, 64, 128)));
        assert_eq!(shape(512, 256), Some((1, 1, 1)));
        assert_eq!(shape(512, 16), Some((2, 1, 8)));
        assert_eq!(shape(100, 256), None, "less than a number per token");
        assert_eq!(shape(8 << 10, 300), None);
    }

    #[test]
    fn slots_are_read_where_there_are_some() {
        let value = frame(|writer| {
            writer.map(1);
            writer.str("context");
            writer.map(2);
            writer.str("slots");
            writer.array(1);
            writer.map(3);
            writer.str("offset");
            writer.u64(4096);
            writer.str("length");
            writer.u64(512);
            writer.str("dtype");
            writer.str("float16");
            writer.str("chunk_indices");
            writer.array(1);
            writer.u64(0);
        });
        assert_eq!(slots_of(Some(&value)), Some(vec![Slot { offset: 4096, bytes: 512 }]));
        let inline = frame(|writer| {
            writer.map(1);
            writer.str("context");
            writer.map(0);
        });
        assert_eq!(slots_of(Some(&inline)), None);
        assert_eq!(slots_of(None), None);
        assert_eq!(slots_of(Some(&[0xc1])), None);
    }
}
