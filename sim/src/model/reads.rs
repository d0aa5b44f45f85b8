//! What a retrieve may find under the leases of its own request (I-1, I-3, I-26).

use super::{Model, ObjectNumber, Scope, Sure, Verdict, check};
use crate::calls::Range;

impl Model {
    /// Whether a retrieve of this range may, or must, find everything.
    pub(super) fn may_read(&self, range: &Range, scope: &Scope) -> Sure {
        let Some(session) = self.sessions.get(&*range.request) else { return Sure::No };
        if range.is_empty() || !session.speaks_of(range) {
            return Sure::No;
        }
        if !session.is_decided {
            return Sure::Maybe;
        }
        if session.is_over(self) {
            return Sure::No;
        }
        let mut sure = if session.is_alive(self) { Sure::Yes } else { Sure::Maybe };
        for chunk in range.first_chunk..range.end_chunk {
            let at = chunk as usize * session.rows.len() + scope.rank as usize;
            let Some(cell) = session.cells.get(at) else { return Sure::No };
            let hash = range.hashes[chunk as usize];
            if *cell.key.scope != *scope || cell.key.hash != hash || cell.most == 0 {
                return Sure::No;
            }
            let readable = cell.object.map_or(Sure::Maybe, |number| {
                let object = self.object(number);
                if self.is_resident(number) && !object.forced { Sure::Yes } else { Sure::No }
            });
            let left = if cell.least > 0 { Sure::Yes } else { Sure::Maybe };
            sure = sure.min(readable).min(left).min(cell.leased);
        }
        sure
    }

    /// Whether a forced clear may have taken something that the leases of a range name.
    pub(super) fn may_be_taken(&self, range: &Range, scope: &Scope) -> bool {
        let Some(session) = self.sessions.get(&*range.request) else { return false };
        if !session.is_decided || session.is_vague {
            return !self.taken.is_empty();
        }
        (range.first_chunk..range.end_chunk).any(|chunk| {
            let at = chunk as usize * session.rows.len() + scope.rank as usize;
            session.cells.get(at).is_some_and(|cell| match cell.object {
                Some(number) => self.object(number).forced,
                None => self.taken.contains(&cell.key),
            })
        })
    }

    /// Whether a range names what its request has looked up, as far as that is known.
    pub(super) fn is_looked_up(&self, range: &Range, scope: &Scope) -> bool {
        let Some(session) = self.sessions.get(&*range.request) else { return false };
        (range.first_chunk..range.end_chunk).all(|chunk| {
            let at = chunk as usize * session.rows.len() + scope.rank as usize;
            session.cells.get(at).is_some_and(|cell| {
                *cell.key.scope == *scope && cell.key.hash == range.hashes[chunk as usize]
            })
        })
    }

    /// Whether leases of a range were there and every one of them has been given back.
    pub fn has_given_back(&self, range: &Range) -> bool {
        let Some(session) = self.sessions.get(&*range.request) else { return false };
        let rows = session.rows.len();
        let end = (range.end_chunk as usize * rows).min(session.cells.len());
        let first = (range.first_chunk as usize * rows).min(end);
        let mut cells = session.cells[first..end].iter();
        session.is_decided && first < end && cells.all(|cell| cell.most == 0)
    }

    /// A retrieve found everything: one reader of every cell has come.
    pub(super) fn consume(
        &mut self,
        range: &Range,
        rank: u32,
        objects: &[ObjectNumber],
    ) -> Verdict {
        let now = self.now;
        let session = self.sessions.get_mut(&*range.request).expect("asked for before");
        session.used(now);
        if !session.is_decided {
            session.is_vague = true;
            return Ok(());
        }
        for (chunk, number) in (range.first_chunk..range.end_chunk).zip(objects) {
            let at = chunk as usize * session.rows.len() + rank as usize;
            let cell = &mut session.cells[at];
            let same = cell.object.is_none_or(|object| object == *number);
            check(same, "I-1: a lease was answered with another object")?;
            cell.object = Some(*number);
            cell.least = cell.least.saturating_sub(1);
            cell.most -= 1;
        }
        Ok(())
    }
}
