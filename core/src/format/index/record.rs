//! Records of an index as bytes. The one invariant: what a writer has appended a reader reads as
//! it was, and whatever else is there ends the reading.

use super::{Fault, HEADER_BYTES, Header, ScopeRef};
use crate::limits::{MODEL_BYTES_MAX, SALT_CHARS_MAX, SCOPES_MAX};
use crate::names::{ChunkHash, KvRank, Seal};
use alloc::vec::Vec;

/// What an index tells. `scope` is the number of an earlier `Scope` record of the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Scope(ScopeRef<'a>),
    Stored { scope: u32, hash: ChunkHash, bytes: u64, seal: Option<Seal> },
    Used { scope: u32, hash: ChunkHash },
    Removed { scope: u32, hash: ChunkHash },
    Time { seconds: u64 },
    Gap,
}

/// Appends records. Knows what the next check continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    check: u32,
    scopes: u32,
    bytes: u64,
}

impl Writer {
    /// A new index: its header goes to `out`.
    pub fn begin(header: &Header, out: &mut Vec<u8>) -> Writer {
        out.extend_from_slice(&header.bytes());
        Writer { check: header.check(), scopes: 0, bytes: HEADER_BYTES as u64 }
    }

    /// Goes on after everything that a reader has read.
    pub fn resume(reader: &Reader) -> Writer {
        Writer { check: reader.check, scopes: reader.scopes, bytes: reader.bytes }
    }

    pub fn push(&mut self, record: &Record<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        match record {
            Record::Scope(scope) => {
                assert!(scope.is_legal(), "a scope of an object that has a name");
                assert!((self.scopes as usize) < SCOPES_MAX, "scopes are interned");
                self.scopes += 1;
                out.push(SCOPE);
                out.extend_from_slice(&scope.rank.0.to_le_bytes());
                number(scope.group.into(), out);
                for text in [scope.model, scope.salt] {
                    number(text.len() as u64, out);
                    out.extend_from_slice(text.as_bytes());
                }
            }
            Record::Stored { scope, hash, bytes, seal } => {
                self.object(if seal.is_some() { SEALED } else { STORED }, *scope, hash, out);
                number(*bytes, out);
                if let Some(seal) = seal {
                    out.extend_from_slice(&seal.digest.to_le_bytes());
                    out.extend_from_slice(&seal.layout.to_le_bytes());
                }
            }
            Record::Used { scope, hash } => self.object(USED, *scope, hash, out),
            Record::Removed { scope, hash } => self.object(REMOVED, *scope, hash, out),
            Record::Time { seconds } => {
                out.push(TIME);
                number(*seconds, out);
            }
            Record::Gap => out.push(GAP),
        }
        self.check = continued(self.check, &out[start..]);
        out.extend_from_slice(&self.check.to_le_bytes());
        self.bytes += (out.len() - start) as u64;
    }

    fn object(&self, kind: u8, scope: u32, hash: &ChunkHash, out: &mut Vec<u8>) {
        assert!(scope < self.scopes, "a scope is told before it is used");
        out.push(kind);
        number(scope.into(), out);
        out.extend_from_slice(&hash.0);
    }

    /// The number that the next scope record will have.
    pub fn scopes(&self) -> u32 {
        self.scopes
    }

    /// Of the whole index so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Reads records one after another from pieces that the caller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    check: u32,
    scopes: u32,
    bytes: u64,
}

/// What is at the front of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    Record(Record<'a>),
    /// The piece ends before the record does. With `RECORD_BYTES_MAX` bytes it cannot.
    More,
    /// Nothing from here on can be believed.
    Bad(Fault),
}

impl Reader {
    /// Begins behind the header.
    pub fn new(header: &Header) -> Reader {
        Reader { check: header.check(), scopes: 0, bytes: HEADER_BYTES as u64 }
    }

    /// Takes one record off the front of `input`; what is no whole, right record is left there.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Step<'a> {
        match self.record(input) {
            Ok((record, rest, check)) => {
                self.bytes += (input.len() - rest.len()) as u64;
                self.check = check;
                self.scopes += u32::from(matches!(record, Record::Scope(_)));
                *input = rest;
                Step::Record(record)
            }
            Err(Fault::Truncated) => Step::More,
            Err(fault) => Step::Bad(fault),
        }
    }

    /// Bytes of the header and of all records that were read: where the index is to be cut off.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the check of a record with this kind and these fields would have to be here.
    pub fn check_of(&self, body: &[u8]) -> u32 {
        continued(self.check, body)
    }

    fn record<'a>(&self, input: &'a [u8]) -> Result<(Record<'a>, &'a [u8], u32), Fault> {
        let mut fields = Fields(input);
        let kind = fields.take(1)?[0];
        let record = match kind {
            SCOPE => Record::Scope(self.scope(&mut fields)?),
            SEALED | STORED => {
                let (scope, hash) = self.object(&mut fields)?;
                let bytes = fields.number()?;
                let seal = match kind {
                    SEALED => Some(Seal { digest: fields.fixed()?, layout: fields.fixed()? }),
                    _ => None,
                };
                Record::Stored { scope, hash, bytes, seal }
            }
            USED | REMOVED => {
                let (scope, hash) = self.object(&mut fields)?;
                if kind == USED {
                    Record::Used { scope, hash }
                } else {
                    Record::Removed { scope, hash }
                }
            }
            TIME => Record::Time { seconds: fields.number()? },
            GAP => Record::Gap,
            _ => return Err(Fault::Kind),
        };
        let body = &input[..input.len() - fields.0.len()];
        let check = fields.fixed()?;
        if self.check_of(body) != check {
            return Err(Fault::Checksum);
        }
        Ok((record, fields.0, check))
    }

    fn scope<'a>(&self, fields: &mut Fields<'a>) -> Result<ScopeRef<'a>, Fault> {
        if self.scopes as usize == SCOPES_MAX {
            return Err(Fault::Value);
        }
        let rank = KvRank(fields.fixed()?);
        let group = u16::try_from(fields.number()?).map_err(|_| Fault::Value)?;
        let model = fields.text(MODEL_BYTES_MAX)?;
        let salt = fields.text(SALT_BYTES_MAX)?;
        let scope = ScopeRef { model, salt, rank, group };
        if scope.is_legal() { Ok(scope) } else { Err(Fault::Value) }
    }

    fn object(&self, fields: &mut Fields<'_>) -> Result<(u32, ChunkHash), Fault> {
        let scope = fields.number()?;
        if scope >= self.scopes.into() {
            return Err(Fault::Value);
        }
        let hash = fields.take(32)?.try_into().expect("as many bytes were taken");
        Ok((scope as u32, ChunkHash(hash)))
    }
}

/// Takes fields off its front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Fault::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed(&mut self) -> Result<u32, Fault> {
        let bytes = self.take(4)?.try_into().expect("as many bytes were taken");
        Ok(u32::from_le_bytes(bytes))
    }

    fn number(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Fault::Value)
    }

    fn text(&mut self, bytes_max: usize) -> Result<&'a str, Fault> {
        let bytes = self.number()?;
        if bytes > bytes_max as u64 {
            return Err(Fault::Value);
        }
        core::str::from_utf8(self.take(bytes as usize)?).map_err(|_| Fault::Value)
    }
}

fn number(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The CRC32 of what `check` is the CRC32 of, and `bytes` behind it.
fn continued(check: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(check);
    hasher.update(bytes);
    hasher.finalize()
}

const SCOPE: u8 = 1;
const SEALED: u8 = 2;
const STORED: u8 = 3;
const USED: u8 = 4;
const REMOVED: u8 = 5;
const TIME: u8 = 6;
const GAP: u8 = 7;

/// A character takes at most four bytes.
const SALT_BYTES_MAX: usize = 4 * SALT_CHARS_MAX;
/// No record is longer.
pub const RECORD_BYTES_MAX: usize = 4096;
const _: () = assert!(
    1 + 4 + 3 * 10 + MODEL_BYTES_MAX + SALT_BYTES_MAX + 4 <= RECORD_BYTES_MAX,
    "the longest scope fits"
);
