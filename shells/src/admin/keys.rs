//! Bodies that name objects (`EncodedObjectKey`, spec/http-cli §2.1), with the words of the peer's
//! framework for what is wrong with them.

use super::answer::Wrong;
use super::cache::{read_force, read_tier};
use kvtide_core::names::ChunkHash;
use serde_json::{Map, Value, json};

/// `DELETE /cache/objects`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeleteBody {
    pub keys: Vec<Key>,
    pub tier: &'static str,
    pub force: bool,
    pub adapter: Option<String>,
}

/// The fields of a key, of the right kind and otherwise unchecked.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub hash: String,
    pub model: String,
    pub rank: i64,
    pub group: i64,
    pub salt: String,
}

impl DeleteBody {
    pub fn read(body: &[u8]) -> Result<DeleteBody, Vec<Wrong>> {
        if body.is_empty() {
            return Err(vec![missing(json!(["body"]), Value::Null)]);
        }
        let value: Value =
            serde_json::from_slice(body).map_err(|error| vec![Wrong::json(&error, body)])?;
        let Value::Object(mut map) = value else {
            return Err(vec![no_object(json!(["body"]), value)]);
        };
        let mut wrongs = Vec::new();
        // Taken out, so that it is not copied into what is told of the rest.
        let keys = match map.remove("keys") {
            Some(Value::Array(keys)) => keys,
            Some(other) => {
                let message = "Input should be a valid list";
                wrongs.push(wrong("list_type", json!(["body", "keys"]), message, other));
                Vec::new()
            }
            None => {
                wrongs.push(missing(json!(["body", "keys"]), Value::Object(map.clone())));
                Vec::new()
            }
        };
        let mut read = Vec::with_capacity(keys.len());
        for (at, key) in keys.into_iter().enumerate() {
            match Key::read(at, key) {
                Ok(key) => read.push(key),
                // So many are told that nobody reads more.
                Err(more) if wrongs.len() < WRONGS_MAX => wrongs.extend(more),
                Err(_) => {}
            }
        }
        let tier = map.get("tier").map_or(Ok("l2"), read_tier);
        let force = map.get("force").map_or(Ok(false), read_force);
        let adapter = match map.remove("adapter") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(name)) => Ok(Some(name)),
            Some(other) => Err(Box::new(no_text(json!(["body", "adapter"]), other))),
        };
        match (tier, force, adapter) {
            (Ok(tier), Ok(force), Ok(adapter)) if wrongs.is_empty() => {
                Ok(DeleteBody { keys: read, tier, force, adapter })
            }
            (tier, force, adapter) => {
                let more = tier.err().into_iter().chain(force.err()).chain(adapter.err());
                wrongs.extend(more.map(|wrong| *wrong));
                Err(wrongs)
            }
        }
    }
}

impl Key {
    fn read(at: usize, value: Value) -> Result<Key, Vec<Wrong>> {
        let Value::Object(map) = &value else {
            return Err(vec![no_object(json!(["body", "keys", at]), value)]);
        };
        let mut wrongs = Vec::new();
        let mut fields = Fields { at, map, wrongs: &mut wrongs };
        let hash = fields.text("chunk_hash_hex", None);
        let model = fields.text("model_name", None);
        let rank = fields.whole("kv_rank", None);
        let group = fields.whole("object_group_id", Some(0));
        let salt = fields.text("cache_salt", Some(""));
        match (hash, model, rank, group, salt) {
            (Some(hash), Some(model), Some(rank), Some(group), Some(salt)) => {
                Ok(Key { hash, model, rank, group, salt })
            }
            _ => Err(wrongs),
        }
    }
}

struct Fields<'a> {
    at: usize,
    map: &'a Map<String, Value>,
    wrongs: &'a mut Vec<Wrong>,
}

impl Fields<'_> {
    fn text(&mut self, name: &str, default: Option<&str>) -> Option<String> {
        match (self.map.get(name), default) {
            (Some(Value::String(text)), _) => Some(text.clone()),
            (None, Some(default)) => Some(default.to_owned()),
            (Some(other), _) => self.is(no_text(self.place(name), other.clone())),
            (None, None) => self.is(missing(self.place(name), Value::Object(self.map.clone()))),
        }
    }

    fn whole(&mut self, name: &str, default: Option<i64>) -> Option<i64> {
        match (self.map.get(name), default) {
            (Some(value), _) => match value.as_i64() {
                Some(number) => Some(number),
                None => {
                    let message = "Input should be a valid integer";
                    self.is(wrong("int_type", self.place(name), message, value.clone()))
                }
            },
            (None, Some(default)) => Some(default),
            (None, None) => self.is(missing(self.place(name), Value::Object(self.map.clone()))),
        }
    }

    fn is<T>(&mut self, wrong: Wrong) -> Option<T> {
        self.wrongs.push(wrong);
        None
    }

    fn place(&self, name: &str) -> Value {
        json!(["body", "keys", self.at, name])
    }
}

/// A chunk hash; None for the shorter or longer ones of other servers, which none of ours has. The
/// words are Python's.
pub fn read_hash(text: &str) -> Result<Option<ChunkHash>, String> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let bad = digits.iter().position(|byte| !byte.is_ascii_hexdigit());
    if let Some(at) = bad.or((!digits.len().is_multiple_of(2)).then_some(digits.len())) {
        let words = "non-hexadecimal number found in fromhex() arg at position";
        return Err(format!("{words} {at}"));
    }
    let Ok(digits) = <[u8; 64]>::try_from(digits) else { return Ok(None) };
    let value = |digit: u8| (digit as char).to_digit(16).unwrap_or_default() as u8;
    let (pairs, _) = digits.as_chunks::<2>();
    let mut hash = [0; 32];
    for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
        *byte = value(*high) << 4 | value(*low);
    }
    Ok(Some(ChunkHash(hash)))
}

fn missing(location: Value, input: Value) -> Wrong {
    wrong("missing", location, "Field required", input)
}

fn no_text(location: Value, input: Value) -> Wrong {
    wrong("string_type", location, "Input should be a valid string", input)
}

fn no_object(location: Value, input: Value) -> Wrong {
    let message = "Input should be a valid dictionary or object to extract fields from";
    wrong("model_attributes_type", location, message, input)
}

fn wrong(kind: &'static str, location: Value, message: &str, input: Value) -> Wrong {
    Wrong { kind, location, message: message.to_owned(), input, context: None }
}

const WRONGS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(body: &str) -> Vec<&'static str> {
        let wrongs = DeleteBody::read(body.as_bytes()).expect_err(body);
        wrongs.iter().map(|wrong| wrong.kind).collect()
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let body = r#"{"keys": [{"chunk_hash_hex": "00", "model_name": "m", "kv_rank": 1}]}"#;
        let read = DeleteBody::read(body.as_bytes()).expect("nothing is wrong with it");
        assert_eq!((read.tier, read.force, read.adapter), ("l2", false, None));
        let (hash, model) = ("00".to_owned(), "m".to_owned());
        assert_eq!(read.keys, [Key { hash, model, rank: 1, group: 0, salt: String::new() }]);
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once_and_not_without_end() {
        assert_eq!(kinds(r#"{"tier": 1}"#), ["missing", "enum"]);
        assert_eq!(kinds(r#"{"keys": 7, "adapter": 7}"#), ["list_type", "string_type"]);
        assert_eq!(kinds(r#"{"keys": [7]}"#), ["model_attributes_type"]);
        let body = r#"{"keys": [{"chunk_hash_hex": 1, "model_name": "m", "kv_rank": "x"}]}"#;
        assert_eq!(kinds(body), ["string_type", "int_type"]);
        let many = format!(r#"{{"keys": [{}]}}"#, vec!["7"; 10_000].join(","));
        assert_eq!(kinds(&many).len(), WRONGS_MAX);
    }

    #[test]
    fn hashes_of_other_lengths_are_no_objects_of_ours() {
        assert_eq!(read_hash(&"ab".repeat(32)), Ok(Some(ChunkHash([0xab; 32]))));
        assert_eq!(read_hash("abcd"), Ok(None));
        let words = "non-hexadecimal number found in fromhex() arg at position";
        assert_eq!(read_hash("zz"), Err(format!("{words} 0")));
        assert_eq!(read_hash("abc"), Err(format!("{words} 3")));
    }
}
