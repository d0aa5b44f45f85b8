//! The fields of a key and the rules that each must obey (spec/transfer §1.1, spec/storage §1).
//!
//! The one invariant: a name that passes here can be written into an object's name at rest and read
//! back from it (I-48), which is why `@` is nobody's character.

use crate::fact::RequestFault;
use crate::limits::{MODEL_BYTES_MAX, REQUEST_ID_BYTES_MAX, SALT_CHARS_MAX};
use crate::wire::msgpack::Malformed;

/// The rule that a key broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    Malformed(Malformed),
    Missing(Field),
    Twice(Field),
    /// A token id that does not fit 32 bits, or is negative.
    Token,
    Negative(Field),
    /// Empty, too long, or holds `@`.
    Model,
    /// Too long, or holds one of `@ / \ NUL`.
    Salt,
    TooLong(Field),
    /// Does not fit 32 bits.
    WorldSize,
    Worker,
}

impl KeyError {
    pub fn fault(self) -> RequestFault {
        match self {
            KeyError::Malformed(_) | KeyError::Missing(_) | KeyError::Twice(_) => {
                RequestFault::Malformed
            }
            _ => RequestFault::BadKey,
        }
    }
}

impl From<Malformed> for KeyError {
    fn from(malformed: Malformed) -> KeyError {
        KeyError::Malformed(malformed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Model,
    WorldSize,
    Worker,
    Tokens,
    Start,
    End,
    Request,
    Salt,
    Configs,
    Readers,
}

impl Field {
    pub const REQUIRED: [Field; 7] = [
        Field::Model,
        Field::WorldSize,
        Field::Worker,
        Field::Tokens,
        Field::Start,
        Field::End,
        Field::Request,
    ];

    pub fn named(name: &[u8]) -> Option<Field> {
        Some(match name {
            b"model_name" => Field::Model,
            b"world_size" => Field::WorldSize,
            b"worker_id" => Field::Worker,
            b"token_ids" => Field::Tokens,
            b"start" => Field::Start,
            b"end" => Field::End,
            b"request_id" => Field::Request,
            b"cache_salt" => Field::Salt,
            b"request_configs" => Field::Configs,
            b"num_kv_readers" => Field::Readers,
            _ => return None,
        })
    }

    pub fn bit(self) -> u16 {
        1 << self as u16
    }
}

pub fn check_model(model: &str) -> Result<(), KeyError> {
    if model.is_empty() || model.len() > MODEL_BYTES_MAX || model.contains('@') {
        return Err(KeyError::Model);
    }
    Ok(())
}

pub fn check_salt(salt: &str) -> Result<(), KeyError> {
    if salt.contains(['@', '/', '\\', '\0']) || salt.chars().count() > SALT_CHARS_MAX {
        return Err(KeyError::Salt);
    }
    Ok(())
}

pub fn check_request(request: &str) -> Result<(), KeyError> {
    if request.len() > REQUEST_ID_BYTES_MAX {
        return Err(KeyError::TooLong(Field::Request));
    }
    Ok(())
}
