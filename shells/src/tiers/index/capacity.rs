//! How many bytes an adapter may hold where nobody said so. The one invariant: no bound is above
//! what the file system can give beside what the folder holds already (F24).

use super::scan;
use std::fmt;
use std::io;
use std::path::Path;

/// What an adapter may hold, and how that came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub bytes: u64,
    pub free_bytes: u64,
    pub held_bytes: u64,
    pub was_asked: bool,
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Capacity { bytes, free_bytes, held_bytes, was_asked } = self;
        let why =
            if *was_asked { "as it was told" } else { "0.9 of what is free and what is held" };
        write!(f, "{bytes} bytes, {why} ({free_bytes} free, {held_bytes} held)")
    }
}

/// More was asked for than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub asked_bytes: u64,
    pub free_bytes: u64,
    pub held_bytes: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLarge { asked_bytes, free_bytes, held_bytes } = self;
        write!(
            f,
            "a capacity of {asked_bytes} bytes is more than the file system has: {free_bytes} \
             bytes are free and the folder holds {held_bytes}"
        )
    }
}

/// Without a bound: 0.9 of what is free, and what the folder holds already.
pub fn capacity(
    asked_bytes: Option<u64>,
    free_bytes: u64,
    held_bytes: u64,
) -> Result<Capacity, TooLarge> {
    let bytes = match asked_bytes {
        Some(asked) if asked > free_bytes.saturating_add(held_bytes) => {
            return Err(TooLarge { asked_bytes: asked, free_bytes, held_bytes });
        }
        Some(asked) => asked,
        None => (free_bytes - free_bytes / 10).saturating_add(held_bytes),
    };
    Ok(Capacity { bytes, free_bytes, held_bytes, was_asked: asked_bytes.is_some() })
}

/// What the file system still gives to this user.
pub fn free_bytes(base: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(base)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Bytes of all objects in the folder. Looks at each of them: a million files take some seconds.
pub fn held_bytes(base: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    scan::each_entry(base, |folder, entry| {
        if entry.object().is_some()
            && let Some((size, _)) = folder.file(entry.name)
        {
            bytes = bytes.saturating_add(size);
        }
        true
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f24_a_bound_above_free_space_is_refused_with_both_numbers() {
        assert_eq!(capacity(Some(1500), 1000, 500).map(|given| given.bytes), Ok(1500));
        let refused = capacity(Some(1501), 1000, 500).expect_err("it is more than there is");
        let text = refused.to_string();
        assert!(text.contains("1501 bytes") && text.contains("1000 bytes"), "{text}");
        assert_eq!(capacity(None, 1000, 500).map(|given| given.bytes), Ok(1400));
        assert_eq!(
            capacity(None, u64::MAX, 500).map(|given| given.bytes),
            Ok(u64::MAX - u64::MAX / 10 + 500)
        );
    }
}
