//! Values of flags that are more than a number: each parser names the range it accepts, and clap
//! names the flag. A value outside its range ends in exit status 2.

use crate::paged::LANES_MAX;
use clap::ValueEnum;
use kvtide_core::config::{HashAlgorithm, PolicyKind, PrefetchPolicy, StorePolicy, TransferModes};
use std::fs;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hash {
    Blake3,
    #[value(name = "sha256_cbor")]
    Sha256Cbor,
}

impl From<Hash> for HashAlgorithm {
    fn from(hash: Hash) -> HashAlgorithm {
        match hash {
            Hash::Blake3 => HashAlgorithm::Blake3,
            Hash::Sha256Cbor => HashAlgorithm::Sha256Cbor,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    #[value(name = "LRU")]
    Lru,
    #[value(name = "ARC")]
    Arc,
    #[value(name = "IsolatedLRU")]
    IsolatedLru,
    #[value(name = "noop")]
    Noop,
}

impl From<Policy> for PolicyKind {
    fn from(policy: Policy) -> PolicyKind {
        match policy {
            Policy::Lru => PolicyKind::Lru,
            Policy::Arc => PolicyKind::Arc,
            Policy::IsolatedLru => PolicyKind::IsolatedLru,
            Policy::Noop => PolicyKind::Noop,
        }
    }
}

/// The peer's name of a policy.
pub fn policy_name(policy: PolicyKind) -> &'static str {
    match policy {
        PolicyKind::Lru => "LRU",
        PolicyKind::Arc => "ARC",
        PolicyKind::IsolatedLru => "IsolatedLRU",
        PolicyKind::Noop => "noop",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    #[value(name = "default")]
    Default,
    #[value(name = "skip_l1")]
    SkipL1,
}

impl From<Store> for StorePolicy {
    fn from(store: Store) -> StorePolicy {
        match store {
            Store::Default => StorePolicy::Default,
            Store::SkipL1 => StorePolicy::SkipL1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Prefetch {
    #[value(name = "default")]
    Default,
    #[value(name = "retain")]
    Retain,
}

impl From<Prefetch> for PrefetchPolicy {
    fn from(prefetch: Prefetch) -> PrefetchPolicy {
        match prefetch {
            Prefetch::Default => PrefetchPolicy::Default,
            Prefetch::Retain => PrefetchPolicy::Retain,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transfer {
    Auto,
    #[value(name = "engine_driven")]
    EngineDriven,
    #[value(name = "lmcache_driven")]
    ServerDriven,
}

impl From<Transfer> for TransferModes {
    fn from(transfer: Transfer) -> TransferModes {
        match transfer {
            Transfer::Auto => TransferModes::Auto,
            Transfer::EngineDriven => TransferModes::EngineDriven,
            Transfer::ServerDriven => TransferModes::ServerDriven,
        }
    }
}

/// The spelling that a flag accepts, for documents.
pub fn spelling<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A size given in GiB, as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gibibytes(pub u64);

pub fn gibibytes(text: &str) -> Result<Gibibytes, String> {
    let gib = number(text)?;
    let bytes = gib * (1_u64 << 30) as f64;
    if bytes >= MIB as f64 {
        // Saturates: no machine has 16 EiB, which is said where the machine is looked at.
        return Ok(Gibibytes(bytes as u64));
    }
    Err("a size is a number of GiB, at least 1 MiB".to_owned())
}

pub fn fraction(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err("lies in 0..1".to_owned()) }
}

/// A fraction that is not zero, nor too small for what counts in millionths.
pub fn rate(text: &str) -> Result<f64, String> {
    let value = fraction(text)?;
    if value >= 1e-6 { Ok(value) } else { Err("is at least 0.000001, at most 1".to_owned()) }
}

/// Finite or not is a rule of the configuration, not of the syntax (exit status 1).
pub fn seconds(text: &str) -> Result<f64, String> {
    number(text)
}

pub fn not_zero(text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err("is a whole number, at least 1".to_owned()),
        Ok(value) => Ok(value),
    }
}

/// The same for numbers that may be large.
pub fn positive(text: &str) -> Result<u64, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err("is a whole number, at least 1".to_owned()),
        Ok(value) => Ok(value),
    }
}

/// Threads for server-driven copies.
pub fn lanes(text: &str) -> Result<usize, String> {
    let lanes: usize = text.trim().parse().map_err(|_| "is a whole number".to_owned())?;
    if (1..=LANES_MAX).contains(&lanes) {
        return Ok(lanes);
    }
    Err(format!("lies in 1..={LANES_MAX}"))
}

pub fn align_bytes(text: &str) -> Result<u64, String> {
    let bytes: u64 = text.trim().parse().map_err(|_| "is a whole number".to_owned())?;
    if bytes.is_power_of_two() && (64..=MIB).contains(&bytes) {
        return Ok(bytes);
    }
    Err("is a power of two from 64 to 1048576".to_owned())
}

pub fn mode_bits(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    match u32::from_str_radix(digits, 8) {
        // Without both of its own bits the server could not map what it made.
        Ok(mode) if mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err("is octal and at least 0600, at most 0777".to_owned()),
    }
}

pub fn group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    group_in(&groups, text).ok_or_else(|| "is a group's number or its name".to_owned())
}

/// Lines of `/etc/group` are `name:password:number:members`.
fn group_in(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut parts = line.split(':');
        (parts.next() == Some(name)).then(|| parts.nth(1)?.parse().ok()).flatten()
    })
}

fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| "is not a number".to_owned())
}

const MIB: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f46_sizes_and_alignments_outside_their_range_are_refused() {
        assert_eq!(gibibytes("1.5"), Ok(Gibibytes(3 << 29)));
        assert_eq!(gibibytes("1e300"), Ok(Gibibytes(u64::MAX)));
        for bad in ["0", "-1", "nan", "0.0001", "ten", ""] {
            assert!(gibibytes(bad).is_err(), "{bad}");
        }
        assert_eq!(align_bytes("4096"), Ok(4096));
        for bad in ["0", "48", "32", "2097152", "-64"] {
            assert!(align_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fractions_that_the_peer_let_pass_are_refused() {
        assert_eq!(fraction("0.8"), Ok(0.8));
        assert_eq!(rate("1"), Ok(1.0));
        for bad in ["7", "-3", "nan", "inf"] {
            assert!(fraction(bad).is_err(), "{bad}");
        }
        assert!(rate("0").is_err());
        assert!(not_zero("0").is_err() && not_zero("-1").is_err() && not_zero("1.5").is_err());
    }

    #[test]
    fn permissions_are_octal_and_let_the_owner_in() {
        assert_eq!(mode_bits("0660"), Ok(0o660));
        assert_eq!(mode_bits("0o600"), Ok(0o600));
        for bad in ["0400", "1777", "9", "rw", ""] {
            assert!(mode_bits(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn groups_are_found_by_number_and_by_name() {
        assert_eq!(group("12"), Ok(12));
        let groups = "root:x:0:\nengines:x:4711:a,b\nbroken\n";
        assert_eq!(group_in(groups, "engines"), Some(4711));
        assert_eq!(group_in(groups, "engine"), None);
        assert_eq!(group_in(groups, "broken"), None);
    }
}
