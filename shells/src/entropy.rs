//! Seeds and identities from the operating system. Read at start only: a run is a function of its
//! configuration afterwards (design P6).

use crate::clock::Clock;
use std::fs::File;
use std::io::{self, Read};

/// Sixty-four bits that nobody can guess.
pub fn seed() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// A key that nobody can guess. Unlike the others it fails where the system has no random device.
pub fn secret() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open(RANDOM).and_then(|mut device| device.read_exact(&mut bytes))?;
    Ok(bytes)
}

/// A random UUID (version 4) in its usual spelling.
pub fn uuid() -> String {
    let mut bytes = [0; 16];
    fill(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A system without a random device still starts: time and process id tell two servers apart, and
/// nothing secret is made from these bytes.
fn fill(bytes: &mut [u8]) {
    let read = File::open(RANDOM).and_then(|mut device| device.read_exact(bytes));
    if read.is_ok() {
        return;
    }
    let mut state = Clock::start().wall_nanos() ^ u64::from(std::process::id()).rotate_left(32);
    for byte in bytes {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8;
    }
}

const RANDOM: &str = "/dev/urandom";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ_and_look_like_what_they_are() {
        let (one, two) = (uuid(), uuid());
        assert_ne!(one, two);
        let dashes: Vec<_> = one.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!((one.len(), dashes), (36, vec![8, 13, 18, 23]));
        assert_eq!(&one[14..15], "4");
        assert_ne!(seed(), seed());
        assert_ne!(secret().expect("there is a device"), secret().expect("there is a device"));
    }
}
