//! What a key frame says and which hashes its tokens have, in the slow and obvious way: a general
//! decoder, then one hash after the other over bytes that are put together for it. Properties and
//! fuzz targets hold the front to this.

use kvtide_core::config::HashAlgorithm;
use kvtide_core::names::ChunkHash;
use rmpv::Value;
use sha2::{Digest, Sha256};

/// A key that obeys every rule, and the hashes of its whole chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub model: String,
    pub salt: String,
    pub request: String,
    pub world_size: u32,
    pub worker: Option<u32>,
    pub readers: u64,
    pub start: u64,
    pub end: u64,
    pub tokens: u64,
    pub hashes: Vec<ChunkHash>,
}

/// Every field that a key may have.
const FIELDS: [&str; 10] = [
    "model_name",
    "world_size",
    "worker_id",
    "token_ids",
    "start",
    "end",
    "request_id",
    "cache_salt",
    "request_configs",
    "num_kv_readers",
];

/// None for every key that breaks a rule.
pub fn key(mut frame: &[u8], algorithm: HashAlgorithm, chunk: u32) -> Option<Expected> {
    let value = rmpv::decode::read_value(&mut frame).ok()?;
    let pairs = value.as_map()?;
    if !frame.is_empty() || pairs.iter().any(|(name, _)| !matches!(name, Value::String(_))) {
        return None;
    }
    let all = |wanted: &str| -> Vec<&Value> {
        let named = pairs.iter().filter(|(name, _)| name.as_str() == Some(wanted));
        named.map(|(_, value)| value).collect()
    };
    if FIELDS.iter().any(|name| all(name).len() > 1) {
        return None;
    }
    let field = |name: &str| all(name).first().copied();
    if field("request_configs").is_some_and(|value| !value.is_map() && !value.is_nil()) {
        return None;
    }
    let model = text(field("model_name")?)?;
    let salt = field("cache_salt").map_or(Some(String::new()), text)?;
    let request = text(field("request_id")?)?;
    let worker = field("worker_id")?;
    let tokens: Option<Vec<u32>> = field("token_ids")?
        .as_array()?
        .iter()
        .map(|token| number(token).and_then(|token| u32::try_from(token).ok()))
        .collect();
    let tokens = tokens?;
    let bad_model = model.is_empty() || model.len() > 1024 || model.contains('@');
    let bad_salt = salt.chars().count() > 128 || salt.contains(['@', '/', '\\', '\0']);
    if bad_model || bad_salt || request.len() > 1024 {
        return None;
    }
    Some(Expected {
        world_size: number(field("world_size")?).and_then(|size| u32::try_from(size).ok())?,
        worker: match worker {
            Value::Nil => None,
            worker => Some(number(worker).and_then(|worker| u32::try_from(worker).ok())?),
        },
        readers: field("num_kv_readers").map_or(Some(0), number)?,
        start: number(field("start")?)?,
        end: number(field("end")?)?,
        tokens: tokens.len() as u64,
        hashes: chunk_hashes(algorithm, chunk, &tokens),
        model,
        salt,
        request,
    })
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().filter(|number| *number <= i64::MAX as u64)
}

/// The hashes of all whole chunks (spec/transfer §1.2, §1.3).
pub fn chunk_hashes(algorithm: HashAlgorithm, chunk: u32, tokens: &[u32]) -> Vec<ChunkHash> {
    let mut previous: [u8; 32] = match algorithm {
        HashAlgorithm::Blake3 => *blake3::hash(&[0; 12]).as_bytes(),
        HashAlgorithm::Sha256Cbor => Sha256::digest(b"\x6evllm-none-hash").into(),
    };
    let hash = |tokens: &[u32]| {
        previous = match algorithm {
            HashAlgorithm::Blake3 => {
                let mut bytes = previous.to_vec();
                tokens.iter().for_each(|token| bytes.extend(token.to_be_bytes()));
                *blake3::hash(&bytes).as_bytes()
            }
            HashAlgorithm::Sha256Cbor => Sha256::digest(cbor(&previous, tokens)).into(),
        };
        ChunkHash(previous)
    };
    tokens.chunks_exact(chunk as usize).map(hash).collect()
}

/// `[previous, [token, …], null]`.
fn cbor(previous: &[u8; 32], tokens: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0x83, 0x58, 0x20];
    bytes.extend(previous);
    bytes.extend(cbor_head(0x80, tokens.len() as u32));
    tokens.iter().for_each(|token| bytes.extend(cbor_head(0x00, *token)));
    bytes.push(0xf6);
    bytes
}

/// A major type with its number, in as few bytes as hold it.
fn cbor_head(major: u8, number: u32) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    match number {
        0..=23 => vec![major + number as u8],
        24..=255 => vec![major + 24, bytes[3]],
        256..=65_535 => vec![major + 25, bytes[2], bytes[3]],
        _ => [&[major + 26], &bytes[..]].concat(),
    }
}
