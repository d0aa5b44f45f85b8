//! Objects in exact order of their last renewal, in one or two lists, with holds.
//!
//! ```text
//! position   head                                            tail
//! log          7   .   3   .   .   9   2   4   .   1   8   5        . = hole
//! eligible     1   0   0   0   0   1   1   1   0   1   0   1        3 and 8 are held
//! ```
//!
//! A position is never given to a newer object than one behind it, so walking positions is walking
//! the order. The log is a ring of twice as many positions as objects: renewals move to the tail
//! and leave holes. When three quarters of the ring are in use, a *pass* goes from the tail of
//! that moment towards the head and shifts objects up into the holes, a few positions per push. It
//! ends, and moves the head, long before the ring is full.
//!
//! Invariant: `log` and `places` are each other's inverse, every position in use lies between head
//! and tail, and an eligible bit is set exactly where an object of that list stands that is not
//! held.

use super::holds;
use crate::bits::BitTree;
use alloc::vec;
use alloc::vec::Vec;

/// The only list of an LRU, T1 of ARC.
pub(super) const RECENT: usize = 0;
/// T2 of ARC.
pub(super) const FREQUENT: usize = 1;

/// Positions that one push closes or passes over while a pass is going on. A pass over 3/4 of the
/// ring then ends within 3/4 / 8 of the ring, less than the quarter that is left.
const STEPS_PER_PUSH: usize = 8;
/// Room to move in for tables of a handful of objects.
const SPARE_POSITIONS: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Order {
    /// Position modulo its length to object index plus one; 0 is a hole.
    log: Vec<u32>,
    /// By object index.
    places: Vec<Place>,
    /// Bits by position modulo `log.len()`, one tree per list.
    eligible: Vec<BitTree>,
    lens: [usize; 2],
    /// Virtual positions: they only grow.
    head: u64,
    tail: u64,
    pass: Option<Pass>,
}

/// Positions in `read + 1 ..= write` are holes, those above `write` are done.
#[derive(Clone, Copy, Debug)]
struct Pass {
    read: u64,
    write: u64,
}

/// Ring position plus one in the low 30 bits, 0 where the object is not tracked; above them
/// whether it is in the second list and whether it is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place(u32);

const SECOND: u32 = 1 << 31;
const HELD: u32 = 1 << 30;
const POSITION: u32 = HELD - 1;

impl Place {
    fn at(position: usize, list: usize) -> Place {
        let second = if list == FREQUENT { SECOND } else { 0 };
        Place((position as u32 + 1) | second)
    }

    fn position(self) -> Option<usize> {
        (self.0 & POSITION).checked_sub(1).map(|position| position as usize)
    }

    fn list(self) -> usize {
        if self.0 & SECOND == 0 { RECENT } else { FREQUENT }
    }

    fn is_held(self) -> bool {
        self.0 & HELD != 0
    }
}

impl Order {
    /// `lists` is 1 or 2.
    pub(super) fn new(objects_max: usize, lists: usize) -> Order {
        let positions = 2 * objects_max + SPARE_POSITIONS;
        assert!(positions < POSITION as usize, "a position has 30 bits");
        Order {
            log: vec![0; positions],
            places: vec![Place::default(); objects_max],
            eligible: vec![BitTree::new(positions); lists],
            lens: [0; 2],
            head: 0,
            tail: 0,
            pass: None,
        }
    }

    /// Appends an object that is not tracked; it is not held.
    pub(super) fn push(&mut self, index: u32, list: usize) {
        assert!(!self.contains(index), "an object is admitted once");
        self.append(index, list, false);
        self.lens[list] += 1;
    }

    /// Moves a tracked object to the end, into `list`. A hold stays.
    pub(super) fn renew(&mut self, index: u32, list: usize) {
        let place = self.take(index);
        self.lens[place.list()] -= 1;
        self.append(index, list, place.is_held());
        self.lens[list] += 1;
    }

    pub(super) fn remove(&mut self, index: u32) {
        let place = self.take(index);
        self.lens[place.list()] -= 1;
        if self.len() == 0 {
            self.head = self.tail;
            self.pass = None;
        }
    }

    pub(super) fn hold(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        place.0 |= HELD;
        let position = place.position().expect("only tracked objects are held");
        self.eligible[place.list()].remove(position);
    }

    pub(super) fn unhold(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        place.0 &= !HELD;
        let position = place.position().expect("only tracked objects are held");
        self.eligible[place.list()].insert(position);
    }

    pub(super) fn contains(&self, index: u32) -> bool {
        self.position(index).is_some()
    }

    pub(super) fn is_held(&self, index: u32) -> bool {
        self.places[index as usize].is_held()
    }

    /// The list that a tracked object is in.
    pub(super) fn list_of(&self, index: u32) -> usize {
        self.places[index as usize].list()
    }

    /// The oldest object of a list that is not held.
    pub(super) fn first(&self, list: usize) -> Option<u32> {
        let bits = &self.eligible[list];
        // All bits lie in one window of the ring, so what lies before the head lies after the end.
        let found = bits.next_from(self.slot(self.head)).or_else(|| bits.first())?;
        Some(self.log[found] - 1)
    }

    /// The next object of the same list that is not held.
    pub(super) fn next_after(&self, index: u32) -> Option<u32> {
        let bits = &self.eligible[self.list_of(index)];
        let from = self.position(index).expect("the walk stands on a tracked object") + 1;
        let head = self.slot(self.head);
        let found = match from > head {
            true => bits.next_from(from).or_else(|| bits.first().filter(|at| *at < head)),
            false => bits.next_from(from).filter(|at| *at < head),
        };
        Some(self.log[found?] - 1)
    }

    /// Whether a tracked object was renewed before another one.
    pub(super) fn is_older(&self, index: u32, than: u32) -> bool {
        self.age(index) < self.age(than)
    }

    /// Objects in a list, held ones included.
    pub(super) fn list_len(&self, list: usize) -> usize {
        self.lens[list]
    }

    pub(super) fn len(&self) -> usize {
        self.lens[RECENT] + self.lens[FREQUENT]
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let tables =
            self.log.capacity() * size_of::<u32>() + self.places.capacity() * size_of::<Place>();
        tables as u64 + self.eligible.iter().map(BitTree::memory_bytes).sum::<u64>()
    }

    pub(super) fn audit(&self) -> Result<(), &'static str> {
        let length = self.log.len() as u64;
        holds(self.tail - self.head <= length, "I-38: the log fits its ring")?;
        let mut lens = [0; 2];
        for (index, place) in self.places.iter().enumerate() {
            let Some(position) = place.position() else { continue };
            lens[place.list()] += 1;
            holds(self.log[position] == index as u32 + 1, "I-38: a place names its object")?;
            holds(self.age(index as u32) < self.tail - self.head, "I-38: places are in use")?;
            for (list, bits) in self.eligible.iter().enumerate() {
                let is_eligible = list == place.list() && !place.is_held();
                let rule = "I-35: eligible is tracked and not held";
                holds(bits.contains(position) == is_eligible, rule)?;
            }
        }
        holds(lens == self.lens, "I-38: lists count their objects")?;
        let in_log = self.log.iter().filter(|entry| **entry != 0).count();
        holds(in_log == self.len(), "I-38: every place in use has a tracked object")?;
        let bits: usize =
            self.eligible.iter().map(|bits| bits.count_range(0, self.log.len())).sum();
        let held = self.places.iter().filter(|place| place.is_held()).count();
        holds(bits + held == self.len(), "I-35: no bit without an object")
    }

    fn position(&self, index: u32) -> Option<usize> {
        self.places[index as usize].position()
    }

    fn slot(&self, position: u64) -> usize {
        (position % self.log.len() as u64) as usize
    }

    /// Distance of a tracked object from the head.
    fn age(&self, index: u32) -> u64 {
        let position = self.position(index).expect("only tracked objects have an age");
        let length = self.log.len();
        ((position + length - self.slot(self.head)) % length) as u64
    }

    /// Leaves a hole.
    fn take(&mut self, index: u32) -> Place {
        let place = core::mem::take(&mut self.places[index as usize]);
        let position = place.position().expect("only tracked objects move or leave");
        self.log[position] = 0;
        self.eligible[place.list()].remove(position);
        place
    }

    fn append(&mut self, index: u32, list: usize, is_held: bool) {
        self.close_holes();
        assert!(self.tail - self.head < self.log.len() as u64, "holes are closed in time");
        let position = self.slot(self.tail);
        self.tail += 1;
        self.stand(index, position, list, is_held);
    }

    fn stand(&mut self, index: u32, position: usize, list: usize, is_held: bool) {
        assert!(self.log[position] == 0, "an object stands where a hole was");
        self.log[position] = index + 1;
        self.places[index as usize] = Place::at(position, list);
        match is_held {
            true => self.places[index as usize].0 |= HELD,
            false => self.eligible[list].insert(position),
        }
    }

    /// A few steps towards a log without holes; paid by every push.
    fn close_holes(&mut self) {
        for _ in 0..STEPS_PER_PUSH {
            let is_hole = self.head < self.tail && self.log[self.slot(self.head)] == 0;
            if !is_hole {
                break;
            }
            self.head += 1;
        }
        let in_use = self.tail - self.head;
        if self.pass.is_none() && in_use >= self.log.len() as u64 / 4 * 3 {
            self.pass = Some(Pass { read: self.tail, write: self.tail });
        }
        for _ in 0..STEPS_PER_PUSH {
            self.step();
        }
    }

    /// Moves at most one object of the pass, or ends the pass at the head.
    fn step(&mut self) {
        let Some(pass) = self.pass else { return };
        if pass.read <= self.head {
            self.head = self.head.max(pass.write);
            self.pass = None;
            return;
        }
        let read = pass.read - 1;
        let entry = self.log[self.slot(read)];
        if entry == 0 {
            self.pass = Some(Pass { read, ..pass });
            return;
        }
        let write = pass.write - 1;
        if write != read {
            let place = self.take(entry - 1);
            self.stand(entry - 1, self.slot(write), place.list(), place.is_held());
        }
        self.pass = Some(Pass { read, write });
    }
}
