//! Names of objects at rest (spec/transfer §1.6), as the peer writes them.
//!
//! ```text
//! native   <model>@<kv_rank, 8 hex>@<group, hex>@<hash, hex>[@<salt>]
//! file     <model, "/" as "-SEP-">@0x<kv_rank, 8 hex>@<group, hex>@<hash, hex>[@<salt>].data
//! ```
//!
//! The one invariant (I-48): two keys never share a name. Every legal key reads back from its name
//! as itself, and every name that reads at all is the one name of its key. What cannot keep that,
//! such as a model name that really contains `-SEP-`, has no name.

use crate::front::key::rules::{check_model, check_salt};
use crate::names::{ChunkHash, KvRank};
use alloc::borrow::Cow;
use alloc::string::String;
use core::fmt::{self, Write};

/// What an object's name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName<'a> {
    pub model: Cow<'a, str>,
    pub rank: KvRank,
    pub group: u32,
    pub hash: HashBytes,
    pub salt: &'a str,
}

/// A chunk hash of any algorithm: other servers' files may hold shorter ones than ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashBytes {
    bytes: [u8; 32],
    len: u8,
}

/// Why a key has no name, or a name no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    Model,
    /// Would read back as another model.
    ModelSeparator,
    Salt,
    /// Neither four nor five fields, or not the form's prefix and suffix.
    Form,
    Rank,
    Group,
    Hash,
}

impl HashBytes {
    /// 1 to 32 bytes.
    pub fn new(bytes: &[u8]) -> Option<HashBytes> {
        let mut hash = HashBytes { bytes: [0; 32], len: bytes.len() as u8 };
        hash.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        (!bytes.is_empty()).then_some(hash)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// None for the shorter hashes of algorithms that we do not serve.
    pub fn chunk_hash(&self) -> Option<ChunkHash> {
        (self.len == 32).then_some(ChunkHash(self.bytes))
    }

    fn parse(text: &str) -> Option<HashBytes> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if !rest.is_empty() || pairs.len() > bytes.len() {
            return None;
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = hex_digit(*high)? << 4 | hex_digit(*low)?;
        }
        HashBytes::new(&bytes[..pairs.len()])
    }
}

impl From<ChunkHash> for HashBytes {
    fn from(hash: ChunkHash) -> HashBytes {
        HashBytes { bytes: hash.0, len: 32 }
    }
}

impl fmt::Display for HashBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<'a> ObjectName<'a> {
    /// The name used by native backends and object stores.
    pub fn native(&self) -> Result<String, NameError> {
        self.check()?;
        Ok(self.write(&self.model, "", ""))
    }

    /// The file name, without a folder.
    pub fn file(&self) -> Result<String, NameError> {
        self.check()?;
        let model = self.model.replace('/', SEPARATOR);
        if model.contains('\0') || model.replace(SEPARATOR, "/") != self.model {
            return Err(NameError::ModelSeparator);
        }
        Ok(self.write(&model, RANK_PREFIX, FILE_SUFFIX))
    }

    pub fn parse_native(name: &'a str) -> Result<ObjectName<'a>, NameError> {
        let (model, parsed) = ObjectName::parse(name, "")?;
        let parsed = ObjectName { model: Cow::Borrowed(model), ..parsed };
        parsed.check()?;
        Ok(parsed)
    }

    pub fn parse_file(name: &'a str) -> Result<ObjectName<'a>, NameError> {
        let stem = name.strip_suffix(FILE_SUFFIX).ok_or(NameError::Form)?;
        let (model, parsed) = ObjectName::parse(stem, RANK_PREFIX)?;
        if model.contains(['/', '\0']) {
            return Err(NameError::Model);
        }
        let real = model.replace(SEPARATOR, "/");
        if real.replace('/', SEPARATOR) != model {
            return Err(NameError::ModelSeparator);
        }
        let parsed = ObjectName { model: Cow::Owned(real), ..parsed };
        parsed.check()?;
        Ok(parsed)
    }

    /// The model field as it stands, and everything else.
    fn parse(name: &'a str, prefix: &str) -> Result<(&'a str, ObjectName<'a>), NameError> {
        let mut fields = name.split('@');
        let mut next = || fields.next().ok_or(NameError::Form);
        let (model, rank, group, hash) = (next()?, next()?, next()?, next()?);
        let salt = fields.next();
        if fields.next().is_some() {
            return Err(NameError::Form);
        }
        let rank = rank.strip_prefix(prefix).filter(|digits| digits.len() == RANK_DIGITS);
        let rank = rank.and_then(parse_hex).ok_or(NameError::Rank)?;
        let canonical = group == "0" || !group.starts_with('0');
        let parsed = ObjectName {
            model: Cow::Borrowed(""),
            rank: KvRank(rank),
            group: parse_hex(group).filter(|_| canonical).ok_or(NameError::Group)?,
            hash: HashBytes::parse(hash).ok_or(NameError::Hash)?,
            salt: salt.unwrap_or(""),
        };
        // An empty fifth field would be a second name of the unsalted key.
        if salt == Some("") { Err(NameError::Salt) } else { Ok((model, parsed)) }
    }

    fn check(&self) -> Result<(), NameError> {
        check_model(&self.model).map_err(|_| NameError::Model)?;
        check_salt(self.salt).map_err(|_| NameError::Salt)
    }

    fn write(&self, model: &str, prefix: &str, suffix: &str) -> String {
        let (rank, group, hash) = (self.rank.0, self.group, self.hash);
        let mut name = String::with_capacity(model.len() + self.salt.len() + FIXED_BYTES);
        let salt_mark = if self.salt.is_empty() { "" } else { "@" };
        write!(name, "{model}@{prefix}{rank:08x}@{group:x}@{hash}{salt_mark}{}{suffix}", self.salt)
            .expect("writing to a string cannot fail");
        name
    }
}

/// Lower-case digits only, at most eight.
fn parse_hex(text: &str) -> Option<u32> {
    if text.is_empty() || text.len() > 8 {
        return None;
    }
    text.bytes().try_fold(0, |number, digit| Some(number << 4 | hex_digit(digit)? as u32))
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

const SEPARATOR: &str = "-SEP-";
const RANK_PREFIX: &str = "0x";
const RANK_DIGITS: usize = 8;
const FILE_SUFFIX: &str = ".data";
/// Room for marks, rank, group and hash.
const FIXED_BYTES: usize = 96;

#[cfg(test)]
mod tests {
    use super::*;

    fn named(model: &str) -> ObjectName<'_> {
        ObjectName {
            model: Cow::Borrowed(model),
            rank: KvRank(0x0201_0201),
            group: 17,
            hash: HashBytes::from(ChunkHash([0xab; 32])),
            salt: "",
        }
    }

    #[test]
    fn i48_names_that_would_collide_are_refused() {
        assert!(named("a/b").file().is_ok());
        assert_eq!(named("a-SEP-b").file(), Err(NameError::ModelSeparator));
        assert_eq!(named("a-SEP/-b").file(), Err(NameError::ModelSeparator));
        assert!(named("a-SEP-b").native().is_ok());
        assert_eq!(named("a@b").native(), Err(NameError::Model));
        assert_eq!(named("").native(), Err(NameError::Model));
    }

    #[test]
    fn i48_each_key_has_one_name() {
        let hash = "ab".repeat(32);
        let name = |rank: &str, group: &str, tail: &str| alloc::format!("m@{rank}@{group}@{tail}");
        let parse = |name: &str| ObjectName::parse_native(name).map(|parsed| parsed.group);
        assert_eq!(parse(&name("02010201", "11", &hash)), Ok(17));
        assert_eq!(parse(&name("02010201", "011", &hash)), Err(NameError::Group));
        assert_eq!(parse(&name("2010201", "11", &hash)), Err(NameError::Rank));
        assert_eq!(parse(&name("0201020A", "11", &hash)), Err(NameError::Rank));
        assert_eq!(parse(&name("100ff00ff", "0", &hash)), Err(NameError::Rank));
        assert_eq!(parse(&name("02010201", "11", "abc")), Err(NameError::Hash));
        assert_eq!(parse(&name("02010201", "11", "")), Err(NameError::Hash));
        assert_eq!(
            parse(&name("02010201", "11", &alloc::format!("{hash}@"))),
            Err(NameError::Salt)
        );
        assert_eq!(parse("m@02010201@11"), Err(NameError::Form));
    }

    #[test]
    fn shorter_hashes_of_other_servers_are_read() {
        let name = "m@01000100@0@0123456789abcdef";
        let parsed = ObjectName::parse_native(name).expect("an 8 byte hash is a hash");
        assert_eq!(parsed.hash.chunk_hash(), None);
        assert_eq!(parsed.native().as_deref(), Ok(name));
    }
}
