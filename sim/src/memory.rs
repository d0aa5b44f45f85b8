//! The arena as clients see it: every grain of it holds the number of the object whose bytes were
//! last written there. A reader that finds another number has read a wrong byte (design P1).

use crate::model::ObjectNumber;
use kvtide_core::names::Place;

/// Bytes that one number stands for. Every layout of a simulation is a whole number of grains.
pub const GRAIN_BYTES: u64 = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Grain {
    /// Whose bytes lie here.
    content: Option<ObjectNumber>,
    /// To whom the grain was given last.
    owner: Option<ObjectNumber>,
}

pub struct Memory {
    grains: Vec<Grain>,
}

impl Memory {
    pub fn new(bytes: u64) -> Memory {
        Memory { grains: vec![Grain::default(); (bytes / GRAIN_BYTES) as usize] }
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
        let grains = self.grains_of(place)?;
        self.grains[grains.start + grain as usize].content = Some(object);
        Ok(())
    }

    /// Reads a whole place: every grain must hold this object's bytes.
    pub fn check(&self, place: Place, object: ObjectNumber) -> Result<(), String> {
        for at in self.grains_of(place)? {
            let content = self.grains[at].content;
            if content != Some(object) {
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
