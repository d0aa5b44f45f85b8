//! Quotas by tenant salt. They act on lower tiers whose policy tells tenants apart (spec/storage
//! §3.3); a salt without one is not limited.

use crate::limits;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Quota {
    bytes: BTreeMap<Box<str>, u64>,
}

impl Quota {
    /// All quotas, salts included.
    pub(crate) fn table_bytes() -> u64 {
        // Nodes of the tree are at least half full.
        let entry = 2 * size_of::<(Box<str>, u64)>() + size_of::<[usize; 2]>();
        (limits::QUOTAS_MAX * (entry + limits::QUOTA_SALT_BYTES_MAX)) as u64
    }

    /// False where the table is full.
    pub fn set(&mut self, salt: &str, bytes: u64) -> bool {
        if self.bytes.len() >= limits::QUOTAS_MAX && !self.bytes.contains_key(salt) {
            return false;
        }
        self.bytes.insert(salt.into(), bytes);
        true
    }

    pub fn remove(&mut self, salt: &str) -> bool {
        self.bytes.remove(salt).is_some()
    }

    pub fn find(&self, salt: &str) -> Option<u64> {
        self.bytes.get(salt).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.bytes.iter().map(|(salt, bytes)| (&**salt, *bytes))
    }
}
