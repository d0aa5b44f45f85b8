//! Everything of an object's name but its hash, told once and then by number.
//!
//! The one invariant: numbers are given in order and keep their meaning, so whoever knows how many
//! there are knows which one comes next.

use crate::front::key::rules::{check_model, check_salt};
use crate::limits;
use crate::names::KvRank;
use crate::{Map, map_with_capacity};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

/// As [`ScopeRef`], kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeName {
    pub model: Arc<str>,
    pub salt: Arc<str>,
    pub rank: KvRank,
    pub group: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScopeRef<'a> {
    pub model: &'a str,
    pub salt: &'a str,
    pub rank: KvRank,
    pub group: u16,
}

impl ScopeName {
    pub fn borrowed(&self) -> ScopeRef<'_> {
        let (rank, group) = (self.rank, self.group);
        ScopeRef { model: &self.model, salt: &self.salt, rank, group }
    }
}

impl ScopeRef<'_> {
    /// Whether an object's name at rest can hold it.
    pub fn is_legal(&self) -> bool {
        check_model(self.model).is_ok() && check_salt(self.salt).is_ok()
    }

    pub fn kept(&self) -> ScopeName {
        let (rank, group) = (self.rank, self.group);
        ScopeName { model: self.model.into(), salt: self.salt.into(), rank, group }
    }
}

impl Hash for ScopeName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.borrowed().hash(state);
    }
}

impl hashbrown::Equivalent<ScopeName> for ScopeRef<'_> {
    fn equivalent(&self, name: &ScopeName) -> bool {
        *self == name.borrowed()
    }
}

/// Names by number and numbers by name, at most `limits::SCOPES_MAX`.
#[derive(Clone, Debug)]
pub struct Scopes {
    list: Vec<ScopeName>,
    numbers: Map<ScopeName, u32>,
    /// The one that was asked for last: neighbours mostly share it.
    last: u32,
}

impl Scopes {
    pub fn new(seed: u64) -> Scopes {
        Scopes { list: Vec::new(), numbers: map_with_capacity(0, seed), last: 0 }
    }

    pub fn find(&self, scope: &ScopeRef<'_>) -> Option<u32> {
        if self.list.get(self.last as usize).is_some_and(|last| last.borrowed() == *scope) {
            return Some(self.last);
        }
        self.numbers.get(scope).copied()
    }

    /// Its number, a new one where it has none yet. None where there is no room for another.
    pub fn intern(&mut self, scope: &ScopeRef<'_>) -> Option<u32> {
        if let Some(number) = self.find(scope) {
            self.last = number;
            return Some(number);
        }
        if self.list.len() == limits::SCOPES_MAX {
            return None;
        }
        let number = self.list.len() as u32;
        let name = scope.kept();
        self.list.push(name.clone());
        self.numbers.insert(name, number);
        self.last = number;
        Some(number)
    }

    pub fn name(&self, number: u32) -> &ScopeName {
        &self.list[number as usize]
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
