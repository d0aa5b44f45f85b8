//! Lease sets: what one lookup promises to one request.
//!
//! A set counts down its own cells and nobody else's, so that free, retrieve, failed retrieve and
//! end may come in any order and number (I-3, I-13). A cell is (chunk, row); `left` is how many of
//! the declared readers have not come yet.

use super::L1;
use crate::fact::LeaseEnd;
use crate::names::{ChunkHash, ObjectId, ScopeId};
use alloc::vec::Vec;
use core::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub object: ObjectId,
    pub left: u16,
}

/// Cells in chunk order, `rows` of them per chunk.
#[derive(Clone, Debug, Default)]
pub struct LeaseSet {
    cells: Vec<Cell>,
    rows: u32,
    units: u64,
}

/// Why a range cannot be read under this set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    NotLeased,
    NotFound,
    /// The range names other chunks than the lookup did.
    OtherKey,
}

impl LeaseSet {
    pub fn new(rows: u32, cells: usize) -> LeaseSet {
        LeaseSet { cells: Vec::with_capacity(cells), rows, units: 0 }
    }

    /// Promises the next cell's object to `readers` readers.
    pub fn take(&mut self, l1: &mut L1, object: ObjectId, readers: u16) {
        assert!(readers > 0, "a lookup declares at least one reader");
        // Who finds it in L1 is the second to want it.
        l1.stay(object);
        self.cells.push(Cell { object, left: 0 });
        self.fill(l1, self.cells.len() - 1, readers);
    }

    /// A place for an object that is on its way. Nobody is promised anything yet.
    pub fn expect(&mut self, object: ObjectId) {
        self.cells.push(Cell { object, left: 0 });
    }

    /// What was expected has come, and is promised to `readers` readers.
    pub fn fill(&mut self, l1: &mut L1, at: usize, readers: u16) {
        let cell = &mut self.cells[at];
        assert!(cell.left == 0, "a cell is promised once");
        cell.left = readers;
        l1.lease(cell.object);
        l1.totals.lease_units_taken += readers as u64;
        self.units += readers as u64;
    }

    /// The first of these cells that nobody has been promised anything in, if there is one.
    pub fn first_open(&self, cells: Range<usize>) -> Option<usize> {
        let start = cells.start;
        self.cells[cells].iter().position(|cell| cell.left == 0).map(|at| start + at)
    }

    /// Takes the cells from `at` on out, with what is left of them.
    pub fn split_off(&mut self, at: usize) -> LeaseSet {
        let cells = self.cells.split_off(at.min(self.cells.len()));
        let units = cells.iter().map(|cell| u64::from(cell.left)).sum();
        self.units -= units;
        LeaseSet { cells, rows: self.rows, units }
    }

    /// Puts the cells of another set of the same rows behind its own.
    pub fn append(&mut self, mut tail: LeaseSet) {
        assert!(self.rows == tail.rows, "rows of one lookup");
        self.cells.append(&mut tail.cells);
        self.units += tail.units;
    }

    /// Whether every cell of `row` in `chunks` is there for one more reader under these hashes.
    pub fn check(
        &self,
        l1: &L1,
        row: u32,
        scope: ScopeId,
        chunks: Range<u32>,
        hashes: &[ChunkHash],
    ) -> Result<(), Unreadable> {
        for chunk in chunks {
            let cell = self.cell(chunk, row).ok_or(Unreadable::NotLeased)?;
            if cell.left == 0 {
                return Err(Unreadable::NotLeased);
            }
            let key = l1.readable(cell.object).ok_or(Unreadable::NotFound)?;
            let is_other_scope = key.scope != scope && !planted!(l1, 24);
            if is_other_scope || key.hash != hashes[chunk as usize] {
                return Err(Unreadable::OtherKey);
            }
        }
        Ok(())
    }

    /// One reader of this cell has come: its unit becomes the caller's pin.
    pub fn consume(&mut self, l1: &mut L1, chunk: u32, row: u32) -> ObjectId {
        let at = (chunk * self.rows + row) as usize;
        let cell = &mut self.cells[at];
        assert!(cell.left > 0, "checked before");
        cell.left -= 1;
        let (object, left) = (cell.object, cell.left);
        l1.pin(object);
        if left == 0 {
            l1.unlease(object);
        }
        self.count(l1, 1, LeaseEnd::Retrieved);
        object
    }

    /// Gives back all that is left of one cell. The object, where there was something.
    pub fn end_cell(&mut self, l1: &mut L1, at: usize, why: LeaseEnd) -> Option<ObjectId> {
        let cell = self.cells.get_mut(at)?;
        if cell.left == 0 {
            return None;
        }
        let (object, left) = (cell.object, cell.left);
        cell.left = 0;
        l1.unlease(object);
        self.count(l1, left as u64, why);
        Some(object)
    }

    /// Drops the cells from `len` on, all of which have been ended.
    pub fn truncate(&mut self, len: usize) {
        assert!(self.cells[len.min(self.cells.len())..].iter().all(|cell| cell.left == 0));
        self.cells.truncate(len);
    }

    fn count(&mut self, l1: &mut L1, units: u64, why: LeaseEnd) {
        assert!(self.units >= units, "a set counts down its own units only");
        self.units -= units;
        l1.totals.lease_units_ended[why as usize] += units;
    }

    /// Whether all of a cell's readers are still to come.
    pub fn is_untouched(&self, at: usize, readers: u16) -> bool {
        self.cells.get(at).is_some_and(|cell| cell.left == readers)
    }

    fn cell(&self, chunk: u32, row: u32) -> Option<&Cell> {
        self.cells.get((chunk as u64 * self.rows as u64 + row as u64) as usize)
    }

    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub fn len(&self) -> usize {
        self.cells.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Units not given back yet.
    pub fn units(&self) -> u64 {
        self.units
    }
}
