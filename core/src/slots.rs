//! A table of things in flight. An index says where, a generation says which: a stale name finds
//! nothing. Sized at start, never grows; freed places are used again last-in first-out.

use alloc::vec::Vec;

/// `index` and `generation` of one entry; wrapped in a newtype by every user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotName {
    pub index: u32,
    pub generation: u32,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Clone, Debug)]
pub struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    limit: usize,
    used: usize,
}

impl<T> Slots<T> {
    /// What one entry takes.
    pub const ENTRY_BYTES: usize = size_of::<Entry<T>>();

    /// A table of at most `limit` entries, with memory for all of them.
    pub fn with_limit(limit: usize) -> Slots<T> {
        assert!(limit <= u32::MAX as usize, "a slot index has 32 bits");
        Slots {
            entries: Vec::with_capacity(limit),
            free: Vec::with_capacity(limit),
            limit,
            used: 0,
        }
    }

    /// Gives the entry a name, or hands the value back when the table is full.
    pub fn insert(&mut self, value: T) -> Result<SlotName, T> {
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            assert!(entry.value.is_none(), "a free slot is empty");
            entry.value = Some(value);
            self.used += 1;
            return Ok(SlotName { index, generation: entry.generation });
        }
        if self.entries.len() == self.limit {
            return Err(value);
        }
        let index = self.entries.len() as u32;
        self.entries.push(Entry { generation: 0, value: Some(value) });
        self.used += 1;
        Ok(SlotName { index, generation: 0 })
    }

    pub fn remove(&mut self, name: SlotName) -> Option<T> {
        let entry = self.entries.get_mut(name.index as usize)?;
        if entry.generation != name.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(name.index);
        self.used -= 1;
        Some(value)
    }

    pub fn find(&self, name: SlotName) -> Option<&T> {
        let entry = self.entries.get(name.index as usize)?;
        if entry.generation != name.generation { None } else { entry.value.as_ref() }
    }

    pub fn find_mut(&mut self, name: SlotName) -> Option<&mut T> {
        let entry = self.entries.get_mut(name.index as usize)?;
        if entry.generation != name.generation { None } else { entry.value.as_mut() }
    }

    /// The entry at an index, whatever its generation, with its full name.
    pub fn at(&self, index: u32) -> Option<(SlotName, &T)> {
        let entry = self.entries.get(index as usize)?;
        let value = entry.value.as_ref()?;
        Some((SlotName { index, generation: entry.generation }, value))
    }

    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// One past the highest index ever used: the end of a sweep.
    pub fn high_water(&self) -> u32 {
        self.entries.len() as u32
    }

    /// In index order, which is the same on every run.
    pub fn iter(&self) -> impl Iterator<Item = (SlotName, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let name = SlotName { index: index as u32, generation: entry.generation };
            entry.value.as_ref().map(|value| (name, value))
        })
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn is_full(&self) -> bool {
        self.used == self.limit
    }

    /// Bytes taken at start.
    pub fn memory_bytes(&self) -> u64 {
        let entries = self.entries.capacity() * Self::ENTRY_BYTES;
        (entries + self.free.capacity() * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_name_finds_nothing() {
        let mut slots = Slots::with_limit(1);
        let first = slots.insert('a').expect("there is room for one");
        assert_eq!(slots.insert('b'), Err('b'));
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('c').expect("the place is free again");
        assert_eq!(second.index, first.index);
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.find(second), Some(&'c'));
        assert_eq!(slots.len(), 1);
    }
}
