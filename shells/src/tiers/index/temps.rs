//! Files that are being written. The one invariant: a temp is removed only if it is named as one of
//! an object, and the lock of the server that it names can be had or, where nobody can be asked, it
//! is older than a day.
//!
//! ```text
//! kvtide      <object>.<first 8 of the uuid>.<counter>.tmp
//! the peer    <object>.tmp
//! ```

use super::locks::{Claim, claim};
use super::log::{indexes, is_uuid};
use kvtide_core::format::names::ObjectName;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The name under which an object is written before it is renamed to `file_name`.
pub fn temp_name(file_name: &str, uuid: &str, counter: u64) -> String {
    let stem = file_name.strip_suffix(FILE_SUFFIX).unwrap_or(file_name);
    format!("{stem}.{}.{counter}{TEMP_SUFFIX}", &uuid[..TAG_CHARS])
}

/// Whose a temp is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temp<'a> {
    /// Of a kvtide: the beginning of its uuid.
    Ours(&'a str),
    /// Of a server that puts no name on them.
    Peers,
}

impl<'a> Temp<'a> {
    /// None where this is not the temp of an object.
    pub fn parse(name: &'a str) -> Option<Temp<'a>> {
        let stem = name.strip_suffix(TEMP_SUFFIX)?;
        if let Some((rest, counter)) = stem.rsplit_once('.')
            && let Some((object, tag)) = rest.rsplit_once('.')
            && !counter.is_empty()
            && counter.bytes().all(|byte| byte.is_ascii_digit())
            && is_tag(tag)
            && (is_object(object) || name.len() == NAME_BYTES_MAX && begins_as_object(object))
        {
            return Some(Temp::Ours(tag));
        }
        is_object(stem).then_some(Temp::Peers)
    }
}

fn is_tag(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == TAG_CHARS && text.bytes().all(is_hex)
}

fn is_object(stem: &str) -> bool {
    ObjectName::parse_file(&format!("{stem}{FILE_SUFFIX}")).is_ok()
}

/// A name that would be too long is cut where the object's ends: in its salt or its hash.
fn begins_as_object(stem: &str) -> bool {
    let mut fields = stem.splitn(4, '@');
    let mut next = || fields.next().unwrap_or_default();
    let (model, rank, group, hash) = (next(), next(), next(), next());
    let hash = hash.split('@').next().unwrap_or_default();
    let even = hash.get(..hash.len() & !1).unwrap_or_default();
    is_object(&format!("{model}@{rank}@{group}@{even}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Alive,
    Dead,
    /// Files cannot be locked here, or the temp names nobody.
    Unknown,
}

/// Finds out who is alive, each once.
#[derive(Debug)]
pub struct Owners {
    /// `.kvtide`.
    folder: PathBuf,
    own: String,
    known: BTreeMap<String, Owner>,
}

impl Owners {
    pub fn new(folder: PathBuf, uuid: &str) -> Owners {
        Owners { folder, own: uuid[..TAG_CHARS].to_owned(), known: BTreeMap::new() }
    }

    pub fn of(&mut self, temp: Temp<'_>) -> Owner {
        let Temp::Ours(tag) = temp else { return Owner::Unknown };
        if tag == self.own {
            return Owner::Alive;
        }
        if let Some(owner) = self.known.get(tag) {
            return *owner;
        }
        let owner = self.ask(tag);
        self.known.insert(tag.to_owned(), owner);
        owner
    }

    /// A server has an index under its name before it writes its first temp.
    fn ask(&self, tag: &str) -> Owner {
        let Ok(uuids) = indexes(&self.folder) else { return Owner::Unknown };
        let mut owner = Owner::Dead;
        for uuid in uuids.iter().filter(|uuid| uuid.starts_with(tag) && is_uuid(uuid)) {
            match claim(&self.folder.join(format!("{uuid}.idx"))) {
                Ok(Claim::Ours(_) | Claim::Gone) => {}
                Ok(Claim::Held) => return Owner::Alive,
                Ok(Claim::NoLocks(_)) | Err(_) => owner = Owner::Unknown,
            }
        }
        owner
    }
}

const TEMP_SUFFIX: &str = ".tmp";
pub const FILE_SUFFIX: &str = ".data";
/// Older than this, seconds, a temp without a known owner is nobody's.
pub const OLD_SECONDS: u64 = 24 * 60 * 60;
const TAG_CHARS: usize = 8;
/// A name in a folder is no longer (Linux).
const NAME_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str = "org-SEP-m.v2@0x01000100@0@ab.data";

    #[test]
    fn only_temps_of_objects_are_temps() {
        let uuid = "0123abcd-0000-4000-8000-000000000000";
        let ours = temp_name(OBJECT, uuid, 17);
        assert_eq!(ours, "org-SEP-m.v2@0x01000100@0@ab.0123abcd.17.tmp");
        assert_eq!(Temp::parse(&ours), Some(Temp::Ours("0123abcd")));
        let peers = OBJECT.replace(".data", ".tmp");
        assert_eq!(Temp::parse(&peers), Some(Temp::Peers));
        for other in ["thesis.tmp", ".tmp", "a.0123abcd.1.tmp", OBJECT, "x@0x01000100@0@zz.tmp"] {
            assert_eq!(Temp::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_temp_whose_object_was_cut_is_still_ours() {
        let tail = ".0123abcd.17.tmp";
        for object in [
            format!("{}@0x01000100@0@{}", "m".repeat(172), "ab".repeat(32)),
            format!("{}@0x01000100@0@{}@{}", "m".repeat(80), "ab".repeat(32), "s".repeat(90)),
        ] {
            assert!(is_object(&object) && object.len() <= 250);
            let name = format!("{}{tail}", &object[..255 - tail.len()]);
            assert_eq!(Temp::parse(&name), Some(Temp::Ours("0123abcd")), "{name}");
        }
        let thesis = format!("{}{tail}", "t".repeat(255 - tail.len()));
        assert_eq!(Temp::parse(&thesis), None);
    }
}
