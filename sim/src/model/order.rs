//! In which order objects go, and how far the tick's pass has to get (I-35 … I-37).
//!
//! The order of last use is kept as plainly as it can be: a number for every use, and whatever goes
//! first must have the least of all that could go.

use super::{Model, News, ObjectNumber, Removed, State, Use, Verdict, check};
use crate::calls::Range;
use crate::model::Key;
use std::collections::BTreeSet;

impl Model {
    /// Uses and removals, as they came one after the other.
    pub(super) fn hear_uses(&mut self, uses: &[(Key, Use)], asked: Option<&Range>) -> Verdict {
        if uses.is_empty() {
            return Ok(());
        }
        let (surely, maybe) = self.held();
        for (key, what) in uses {
            match what {
                Use::Touched => self.touched(key),
                Use::Removed(why) => {
                    if *why == Removed::InOrder {
                        self.check_order(key, &maybe, asked)?;
                    }
                    self.removed(key, *why, &surely)?;
                }
            }
        }
        Ok(())
    }

    fn touched(&mut self, key: &Key) {
        if let Some(number) = self.index.get(key) {
            self.used(*number);
        }
    }

    /// From now on this object is the one that was used last.
    pub(super) fn used(&mut self, number: ObjectNumber) {
        self.uses += 1;
        self.objects[number.0 as usize].used = self.uses;
    }

    /// Nothing that could have gone was used longer ago.
    fn check_order(
        &self,
        key: &Key,
        maybe_held: &BTreeSet<ObjectNumber>,
        asked: Option<&Range>,
    ) -> Verdict {
        // After a forced clear a lease may be told of whose object has gone and come again.
        if !self.rules.is_lru || self.was_forced {
            return Ok(());
        }
        let Some(picked) = self.index.get(key) else { return Ok(()) };
        let used = self.object(*picked).used;
        let is_asked = |key: &Key| asked.is_some_and(|range| range.hashes.contains(&key.hash));
        let mut older = self.index.iter().filter(|(key, number)| {
            let object = self.object(**number);
            object.used < used
                && object.state == State::Resident
                && !maybe_held.contains(number)
                && !is_asked(key)
        });
        check(older.next().is_none(), "I-36: something that could go was used longer ago")
    }

    /// The watermark was looked at.
    pub(super) fn hear_watermark(&mut self, news: &News) -> Verdict {
        let Some((used, triggered)) = news.watermark else { return Ok(()) };
        if !self.before.is_working {
            self.kept_for = self.kept_for.saturating_sub(1);
        }
        let reached = used >= self.rules.watermark_bytes;
        check(triggered == reached, "I-37: the pass begins at the watermark")?;
        if !self.before.is_working && self.holds.copies.is_empty() {
            let known = self.used_bytes();
            check(used == known, "I-15: bytes in use are not those of what was handed out")?;
        }
        // A pass over several turns may end before the last of what held something has gone.
        self.is_passing = triggered && !self.before.is_working && !self.turn.is_spent;
        Ok(())
    }

    /// A pass has ended: usage is below the watermark, or nothing is left that can go.
    pub(super) fn settle_pass(&mut self) -> Verdict {
        if !std::mem::take(&mut self.is_passing) || !self.rules.evicts {
            return Ok(());
        }
        if self.used_bytes() < self.rules.watermark_bytes {
            return Ok(());
        }
        let (_, maybe) = self.held();
        let mut residents = self.residents().filter(|(_, number)| !maybe.contains(number));
        check(residents.next().is_none(), "I-37: a pass left what could go, above the watermark")
    }

    /// Bytes of the arena that are handed out.
    fn used_bytes(&self) -> u64 {
        let bytes = |number: &ObjectNumber| {
            let layout = self.object(*number).key.scope.layout;
            layout.bytes().map_or(0, |bytes| self.rules.arena.slot_bytes(bytes))
        };
        self.placed().iter().map(bytes).sum()
    }
}
