//! Model names, which a recording keeps readable: each is told once in a fresh frame and then by
//! its place. Its one invariant: writer and reader fill the places in the same order.

use super::bytes::{Fault, Input, Malformed, Write};
use super::digest::clip;
use crate::limits::MODEL_BYTES_MAX;
use alloc::string::String;
use alloc::vec::Vec;

#[derive(Clone, Debug, Default)]
pub(super) struct Models {
    places: [String; PLACES],
    /// Names told since the last fresh frame.
    told: usize,
}

impl Models {
    pub fn reset(&mut self) {
        self.told = 0;
    }

    pub fn write(&mut self, model: &str, bytes: &mut Vec<u8>) {
        let model = clip(model);
        let known = &self.places[..self.told.min(PLACES)];
        match known.iter().position(|known| known == model) {
            Some(place) => bytes.number(place as u64 + 1),
            None => {
                bytes.number(0);
                bytes.text(model);
                self.keep(model);
            }
        }
    }

    /// Replaces what is in `model`.
    pub fn read(&mut self, input: &mut Input<'_>, model: &mut String) -> Result<(), Malformed> {
        let start = *input;
        model.clear();
        match input.number(WHAT)? {
            0 => {
                let text = input.text(MODEL_BYTES_MAX, WHAT)?;
                self.keep(text);
                model.push_str(text);
            }
            number => {
                let known = &self.places[..self.told.min(PLACES)];
                let found = usize::try_from(number - 1).ok().and_then(|place| known.get(place));
                let found = found.ok_or_else(|| start.fault(Fault::Value { what: WHAT }))?;
                model.push_str(found);
            }
        }
        Ok(())
    }

    /// In the place of the one that has been there longest.
    fn keep(&mut self, model: &str) {
        let place = &mut self.places[self.told % PLACES];
        place.clear();
        place.push_str(model);
        self.told += 1;
    }
}

pub(super) const MEMORY_BYTES: u64 = (PLACES * (MODEL_BYTES_MAX + size_of::<String>())) as u64;
const PLACES: usize = 16;
const WHAT: &str = "a model name";

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn names_come_back_when_there_are_more_than_places_and_after_a_reset() {
        let (mut writer, mut reader) = (Models::default(), Models::default());
        let mut read = String::new();
        for step in 0..100_usize {
            if step == 60 {
                writer.reset();
                reader.reset();
            }
            let model = format!("model-{}", step * 7 % 23);
            let mut bytes = Vec::new();
            writer.write(&model, &mut bytes);
            reader.read(&mut Input::new(&bytes, 0), &mut read).expect("it was just written");
            assert_eq!(read, model);
        }
        let mut bytes = Vec::new();
        writer.write(&read, &mut bytes);
        assert_eq!(bytes.len(), 1, "told already");
    }

    #[test]
    fn a_place_that_nothing_was_told_for_is_a_fault() {
        let mut read = String::new();
        assert!(Models::default().read(&mut Input::new(&[1], 0), &mut read).is_err());
    }
}
