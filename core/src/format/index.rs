//! The index that a server keeps beside the files of an adapter (`.kvtide/<uuid>.idx`): seals,
//! sizes and the order of use, so that a restart need not read or even look at every file.
//!
//! ```text
//! header, 40 bytes                         record
//!   0   8  "KVTIDIDX"                        0  1  kind
//!   8   2  version                           1  n  fields
//!  10  16  id, random                        .  4  check
//!  26   8  nanoseconds since 1970
//!  34   2  zero                            1 scope    rank(4) group model salt
//!  36   4  check                           2 stored   scope hash(32) bytes digest(4) layout(4)
//!                                          3 stored   scope hash(32) bytes
//! A field without a width is a number in   4 used     scope hash(32)
//! LEB128; a text is its length and UTF-8.  5 removed  scope hash(32)
//! All else is little endian.               6 time     seconds since 1970
//!                                          7 gap
//! ```
//!
//! The n-th scope record, from 0, is what later records call scope n. A time record says when what
//! follows happened. A gap says that notes were lost before it.
//!
//! The one invariant: `check` is the CRC32 of everything before it in the file but the checks, so a
//! record is believed only as the one that was written there, after exactly those before it. What
//! is read of a log that was cut off, changed or mixed with another is the state that it told at
//! some earlier time, never another one; and reading it never panics and takes no more memory than
//! the caller allows.

mod names;
mod record;
mod replay;

pub use names::{ScopeName, ScopeRef, Scopes};
pub use record::{RECORD_BYTES_MAX, Reader, Record, Step, Writer};
pub use replay::{Compacted, Found, Log, Object, Replay};

use core::fmt;

/// What every index begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Random: no record of another index fits into this one.
    pub id: [u8; 16],
    /// When it was begun, nanoseconds since 1970.
    pub created_nanos: u64,
}

/// Why bytes are not the index that they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not begin as an index does.
    NotAnIndex,
    /// Written by a version that this one does not know.
    Version {
        found: u16,
    },
    /// It ends within the header or a record.
    Truncated,
    Checksum,
    /// A kind of record that there is not.
    Kind,
    /// A value that no writer writes.
    Value,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotAnIndex => f.write_str("it does not begin as an index of kvtide"),
            Fault::Version { found } => {
                write!(f, "its version is {found}; this kvtide reads up to {VERSION}")
            }
            Fault::Truncated => f.write_str("it is cut off"),
            Fault::Checksum => f.write_str("a checksum is wrong"),
            Fault::Kind => f.write_str("there is no such record"),
            Fault::Value => f.write_str("a record holds a value that cannot be"),
        }
    }
}

impl Header {
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..26].copy_from_slice(&self.id);
        bytes[26..34].copy_from_slice(&self.created_nanos.to_le_bytes());
        let check = crc32fast::hash(&bytes[..CHECK_AT]);
        bytes[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The header at the front of a file.
    pub fn read(file: &[u8]) -> Result<Header, Fault> {
        let magic = &file[..file.len().min(MAGIC.len())];
        if magic != &MAGIC[..magic.len()] {
            return Err(Fault::NotAnIndex);
        }
        // Another version may have another header, but no other place for the version.
        let version = file.get(8..10).ok_or(Fault::Truncated)?;
        let found = u16::from_le_bytes([version[0], version[1]]);
        if found != VERSION {
            return Err(Fault::Version { found });
        }
        let bytes = file.first_chunk::<HEADER_BYTES>().ok_or(Fault::Truncated)?;
        let (body, check) = bytes.split_at(CHECK_AT);
        if crc32fast::hash(body).to_le_bytes() != check {
            return Err(Fault::Checksum);
        }
        let id = body[10..26].try_into().expect("sixteen bytes were taken");
        let created = body[26..34].try_into().expect("eight bytes were taken");
        Ok(Header { id, created_nanos: u64::from_le_bytes(created) })
    }

    /// The check that the first record continues.
    fn check(&self) -> u32 {
        crc32fast::hash(&self.bytes()[..CHECK_AT])
    }
}

pub const HEADER_BYTES: usize = 40;
pub const VERSION: u16 = 1;
const MAGIC: &[u8; 8] = b"KVTIDIDX";
const CHECK_AT: usize = HEADER_BYTES - 4;

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { id: [7; 16], created_nanos: 1 << 60 };

    #[test]
    fn a_header_comes_back() {
        assert_eq!(Header::read(&HEADER.bytes()), Ok(HEADER));
        assert_eq!(Header::read(&[]), Err(Fault::Truncated));
        assert_eq!(Header::read(b"my thesis"), Err(Fault::NotAnIndex));
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        let mut bytes = HEADER.bytes();
        bytes[8] = 2;
        assert_eq!(Header::read(&bytes), Err(Fault::Version { found: 2 }));
        bytes[8] = 1;
        bytes[12] ^= 1;
        assert_eq!(Header::read(&bytes), Err(Fault::Checksum));
        assert_eq!(Header::read(&bytes[..39]), Err(Fault::Truncated));
    }
}
