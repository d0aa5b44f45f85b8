//! Which files belong to a recording. Its one invariant: what is there and cannot be read is an
//! error, never taken for the beginning of the recording; parts of another recording are not taken
//! for its own.

use crate::record::{PARTS, part};
use kvtide_core::recording::Header;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// One file, oldest first in a list.
#[derive(Clone, Debug)]
pub struct Part {
    pub path: PathBuf,
    pub header: Header,
}

impl Part {
    /// All of it. Only one part is kept at a time.
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        fs::read(&self.path)
    }
}

/// The newest part must be there and begin as a recording does. One that is missing between others
/// is left out here: whoever reads on finds that a frame is missing.
pub fn find_parts(path: &Path) -> io::Result<Vec<Part>> {
    let mut parts = vec![read(path)?];
    for path in older(path) {
        match read(&path) {
            Ok(older) if older.header.recording == parts[0].header.recording => {
                parts.insert(0, older);
            }
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(parts)
}

/// Where older parts would be. Whoever names FILE.1 means that one and FILE.2 and so on, unless
/// there are parts of a recording of just that name.
fn older(path: &Path) -> Vec<PathBuf> {
    let own: Vec<PathBuf> = (1..PARTS).map(|age| part(path, age)).collect();
    if own.iter().any(|part| part.exists()) {
        return own;
    }
    let named = (1..PARTS).find_map(|age| {
        let newest = path.to_str()?.strip_suffix(&format!(".{age}"))?;
        Some((age + 1..PARTS).map(|age| part(Path::new(newest), age)).collect())
    });
    named.unwrap_or(own)
}

fn read(path: &Path) -> io::Result<Part> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut beginning = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(HEADER_BYTES_MAX).read_to_end(&mut beginning));
    read.map_err(named)?;
    let header = Header::read(&beginning);
    let (header, _) = header
        .map_err(|fault| named(io::Error::new(io::ErrorKind::InvalidData, fault.to_string())))?;
    Ok(Part { path: path.to_owned(), header })
}

/// A header has a few hundred bytes.
const HEADER_BYTES_MAX: u64 = 64 << 10;
