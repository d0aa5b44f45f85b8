//! Which files belong to a recording. Its one invariant: parts of another recording, which an
//! earlier run left beside it, are not taken for its own.

use super::header_of;
use crate::record::{PARTS, part};
use kvtide_core::recording::Header;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One file, oldest first in a list.
#[derive(Clone, Debug)]
pub struct Part {
    pub path: PathBuf,
    pub header: Header,
    pub bytes: Vec<u8>,
}

/// The newest part must be there and begin as a recording does.
pub fn find_parts(path: &Path) -> io::Result<Vec<Part>> {
    let newest = read(path)?;
    let mut parts = vec![newest];
    for age in 1..PARTS {
        let Ok(older) = read(&part(path, age)) else { break };
        if older.header.recording != parts[0].header.recording {
            break;
        }
        parts.insert(0, older);
    }
    Ok(parts)
}

fn read(path: &Path) -> io::Result<Part> {
    let named =
        |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
    let bytes = fs::read(path).map_err(|error| named(&error))?;
    let header = header_of(&bytes).map_err(|fault| named(&fault))?;
    Ok(Part { path: path.to_owned(), header, bytes })
}
