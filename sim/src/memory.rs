//! The arena as clients see it: every grain of it holds the number of the object whose bytes were
//! last written there. A reader that finds another number has read a wrong byte (design P1).
//!
//! Bytes outlive the server that took them in: at rest they are known by a `Tag`.

use crate::model::ObjectNumber;
use kvtide_core::names::Place;
use std::collections::BTreeMap;

/// Bytes that one number stands for. Every layout of a simulation is a whole number of grains.
pub const GRAIN_BYTES: u64 = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Grain {
    /// Whose bytes lie here.
    content: Option<Tag>,
    /// To whom the grain was given last.
    owner: Option<ObjectNumber>,
}

/// Whose bytes: an object of one server, or what never was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// What nobody has ever stored.
    pub fn garbage(number: u64) -> Tag {
        Tag(1 << 63 | number)
    }

    /// What an engine has computed in its own memory.
    pub fn computed(number: u64) -> Tag {
        Tag(1 << 61 | number)
    }

    /// What somebody else has stored in a tier.
    pub fn foreign(number: u64) -> Tag {
        Tag(1 << 62 | number)
    }
}

pub struct Memory {
    grains: Vec<Grain>,
    /// Which server this is the memory of.
    server: u64,
    /// What was loaded has the bytes of what was once stored.
    origins: BTreeMap<ObjectNumber, Tag>,
}

impl Memory {
    pub fn new(bytes: u64, server: u64) -> Memory {
        let grains = vec![Grain::default(); (bytes / GRAIN_BYTES) as usize];
        Memory { grains, server, origins: BTreeMap::new() }
    }

    /// Whose bytes an object has.
    pub fn tag(&self, object: ObjectNumber) -> Tag {
        let own = Tag(self.server << 40 | object.0);
        self.origins.get(&object).copied().unwrap_or(own)
    }

    /// An object was loaded, with these bytes.
    pub fn set_origin(&mut self, object: ObjectNumber, tag: Tag) {
        self.origins.insert(object, tag);
    }

    /// What a place holds, grain after grain.
    pub fn content(&self, place: Place) -> Result<impl Iterator<Item = Option<Tag>>, String> {
        Ok(self.grains_of(place)?.map(|at| self.grains[at].content))
    }

    /// Gives a place to a new object. An error where `is_in_use` says of an earlier owner that
    /// somebody may still read or write it (I-2, I-17).
    pub fn lend(
        &mut self,
        place: Place,
        object: ObjectNumber,
        is_in_use: impl Fn(ObjectNumber) -> bool,
    ) -> Result<(), String> {
        for at in self.grains_of(place)? {
            let owner = self.grains[at].owner;
            if let Some(owner) = owner.filter(|owner| is_in_use(*owner)) {
                return Err(format!("I-2: {place:?} of object {} is in use", owner.0));
            }
            self.grains[at].owner = Some(object);
        }
        Ok(())
    }

    /// The object that a whole place was given to last.
    pub fn owner(&self, place: Place) -> Result<Option<ObjectNumber>, String> {
        let grains = self.grains_of(place)?;
        let owner = self.grains[grains.start].owner;
        let is_whole = grains.clone().all(|at| self.grains[at].owner == owner);
        if is_whole { Ok(owner) } else { Err(format!("I-17: {place:?} spans two objects")) }
    }

    /// Writes one grain of a place.
    pub fn write(&mut self, place: Place, grain: u64, object: ObjectNumber) -> Result<(), String> {
        let tag = self.tag(object);
        self.fill(place, grain, tag)
    }

    /// The same with bytes that come from elsewhere.
    pub fn fill(&mut self, place: Place, grain: u64, tag: Tag) -> Result<(), String> {
        let grains = self.grains_of(place)?;
        self.grains[grains.start + grain as usize].content = Some(tag);
        Ok(())
    }

    /// Reads a whole place: every grain must hold this object's bytes.
    pub fn check(&self, place: Place, object: ObjectNumber) -> Result<(), String> {
        for at in self.grains_of(place)? {
            let content = self.grains[at].content;
            if content != Some(self.tag(object)) {
                let offset = at as u64 * GRAIN_BYTES;
                let found = content.map(|number| number.0);
                return Err(format!(
                    "P1: wrong bytes at {offset}: {found:?} instead of object {}",
                    object.0
                ));
            }
        }
        Ok(())
    }

    fn grains_of(&self, place: Place) -> Result<core::ops::Range<usize>, String> {
        let is_whole = place.offset.is_multiple_of(GRAIN_BYTES)
            && place.bytes.is_multiple_of(GRAIN_BYTES)
            && place.bytes > 0;
        let end = (place.offset + place.bytes).div_ceil(GRAIN_BYTES) as usize;
        if !is_whole || end > self.grains.len() || place.arena.0 != 0 {
            return Err(format!("I-17: {place:?} is no place of the arena"));
        }
        Ok((place.offset / GRAIN_BYTES) as usize..end)
    }
}

pub fn grains(place: Place) -> u64 {
    place.bytes / GRAIN_BYTES
}
