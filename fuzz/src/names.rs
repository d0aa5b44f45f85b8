//! Names of objects at rest (I-48): every name that reads is the one name of its key, every key
//! that has a name reads back as itself, and two keys never share one.
//!
//! ```text
//! input   a text, read as a name of both forms, and two keys:
//!         | group | rank, 4 | hash bytes | model bytes | hash … | model … | salt …     twice
//! ```

use kvtide_core::format::names::{HashBytes, ObjectName};
use kvtide_core::names::KvRank;
use std::borrow::Cow;

pub fn run(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        if let Ok(name) = ObjectName::parse_native(text) {
            assert_eq!(name.native().as_deref(), Ok(text), "the one name of its key");
        }
        if let Ok(name) = ObjectName::parse_file(text) {
            assert_eq!(name.file().as_deref(), Ok(text), "the one file of its key");
        }
    }
    let (first, second) = input.split_at(input.len() / 2);
    let (Some(first), Some(second)) = (key(first), key(second)) else { return };
    for each in [&first, &second] {
        if let Ok(name) = each.native() {
            assert_eq!(ObjectName::parse_native(&name).as_ref(), Ok(each));
        }
        if let Ok(name) = each.file() {
            assert_eq!(ObjectName::parse_file(&name).as_ref(), Ok(each));
            assert!(!name.contains(['/', '\0']), "a file name is one part of a path");
        }
    }
    if first != second {
        let native = (first.native(), second.native());
        assert!(native.0.is_err() || native.0 != native.1, "two keys, one name: {native:?}");
        let file = (first.file(), second.file());
        assert!(file.0.is_err() || file.0 != file.1, "two keys, one file: {file:?}");
    }
}

fn key(input: &[u8]) -> Option<ObjectName<'_>> {
    let (&[group, a, b, c, d, hash, model], rest) = input.split_first_chunk::<7>()?;
    let (hash, rest) = rest.split_at_checked(usize::from(hash))?;
    let (model, salt) = rest.split_at_checked(usize::from(model))?;
    Some(ObjectName {
        model: Cow::Borrowed(std::str::from_utf8(model).ok()?),
        rank: KvRank(u32::from_be_bytes([a, b, c, d])),
        group: u32::from(group).pow(4),
        hash: HashBytes::new(hash)?,
        salt: std::str::from_utf8(salt).ok()?,
    })
}
