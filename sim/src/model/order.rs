//! In which order objects go, and how far the tick's pass has to get (I-35 … I-37).
//!
//! The order of last use is kept as plainly as it can be: a number for every use, and whatever goes
//! first must have the least of all that could go.

use super::{Model, News, ObjectNumber, Refused, Removed, State, Use, Verdict, check};
use crate::calls::Range;
use crate::model::Key;
use std::collections::BTreeSet;

impl Model {
    /// Uses and removals, as they came one after the other.
    pub(super) fn hear_uses(&mut self, news: &News, asked: Option<&Range>) -> Verdict {
        if news.uses.is_empty() {
            return Ok(());
        }
        let (surely, mut maybe) = self.held();
        // What was on its way below L1 may have held it until the end of this event.
        maybe.extend(&self.below.before);
        let size = asked.and_then(|_| self.size_asked_for(news));
        for (key, what) in &news.uses {
            match what {
                Use::Touched => self.touched(key),
                Use::Reserved => self.stage_load(key)?,
                Use::Published => self.publish_load(key)?,
                Use::GivenUp => self.load_given_up(key)?,
                Use::Removed(why) => {
                    if *why == Removed::InOrder {
                        self.check_order(key, &maybe, asked, None)?;
                    }
                    if let (Removed::ForRoom, Some(size)) = (why, size) {
                        self.check_room(key, size, (&surely, &maybe), asked)?;
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

    /// Nothing that could have gone, of this size if one is named, was used longer ago.
    fn check_order(
        &self,
        key: &Key,
        maybe_held: &BTreeSet<ObjectNumber>,
        asked: Option<&Range>,
        size: Option<u64>,
    ) -> Verdict {
        let Some(picked) = self.index.get(key) else { return Ok(()) };
        if !self.rules.is_lru || self.object(*picked).is_heir {
            return Ok(());
        }
        let used = self.object(*picked).used;
        let mut could_go = self.could_go(maybe_held, asked, size);
        let older = could_go.any(|number| {
            let object = self.object(number);
            object.used < used && !object.is_heir
        });
        check(!older, "I-36: something that could go was used longer ago")
    }

    /// Something went for the sake of an object of this size: the first in order of its own size,
    /// if one of those can go. With more in the order than the engine looks past, any of them does.
    fn check_room(
        &self,
        key: &Key,
        size: u64,
        (surely, maybe): (&BTreeSet<ObjectNumber>, &BTreeSet<ObjectNumber>),
        asked: Option<&Range>,
    ) -> Verdict {
        let Some(picked) = self.index.get(key) else { return Ok(()) };
        if self.slot_bytes(*picked) != size {
            let own = self.could_go(maybe, asked, Some(size)).next();
            return check(own.is_none(), "I-35: another size went, and its own could");
        }
        let can_go = self
            .residents()
            .filter(|(_, number)| !surely.contains(number) || self.object(*number).forced);
        if can_go.count() > LOOKED_PAST {
            return Ok(());
        }
        self.check_order(key, maybe, asked, Some(size))
    }

    /// What surely could go, of one size or of any, for a store of this range.
    fn could_go(
        &self,
        maybe_held: &BTreeSet<ObjectNumber>,
        asked: Option<&Range>,
        size: Option<u64>,
    ) -> impl Iterator<Item = ObjectNumber> {
        let is_asked = move |key: &Key| asked.is_some_and(|range| range.hashes.contains(&key.hash));
        self.residents()
            .filter(move |(key, number)| !maybe_held.contains(number) && !is_asked(key))
            .map(|(_, number)| number)
            .filter(move |number| size.is_none_or(|size| self.slot_bytes(*number) == size))
    }

    /// The size that a store asks room for. None where what goes may go for an earlier one, whose
    /// stretch is being emptied.
    fn size_asked_for(&self, news: &News) -> Option<u64> {
        let is_put_off = news.refused.iter().any(|(_, why)| *why == Refused::Busy);
        if is_put_off || self.kept_for > 0 || self.before.is_working {
            return None;
        }
        let key = news.reserved.first().or(news.refused.first().map(|(key, _)| key))?;
        Some(self.rules.arena.slot_bytes(key.scope.layout.bytes()?))
    }

    fn slot_bytes(&self, number: ObjectNumber) -> u64 {
        let bytes = self.layout(number).bytes();
        bytes.map_or(0, |bytes| self.rules.arena.slot_bytes(bytes))
    }

    /// The watermark was looked at.
    pub(super) fn hear_watermark(&mut self, news: &News) -> Verdict {
        let Some((used, triggered)) = news.watermark else { return Ok(()) };
        if !self.before.is_working {
            self.kept_for = self.kept_for.saturating_sub(1);
        }
        let reached = used >= self.rules.watermark_bytes;
        check(triggered == reached, "I-37: the pass begins at the watermark")?;
        // What has gone holds its memory until nobody below L1 needs it.
        let mut of_below = self.below.before.iter().copied().chain(self.below.demoting());
        let is_known = !of_below.any(|number| self.is_gone(number));
        if !self.before.is_working && self.holds.copies.is_empty() && is_known {
            let known = self.used_bytes();
            check(used == known, "I-15: bytes in use are not those of what was handed out")?;
        }
        // A pass over several turns may end before the last of what held something has gone.
        self.is_passing = triggered && !self.before.is_working && !self.turn.is_spent;
        self.passed_over.clone_from(&self.below.before);
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
        // A store that ended with this event may have held it while the pass went on.
        let (_, mut maybe) = self.held();
        maybe.extend(self.below.before.iter().chain(&self.passed_over));
        let mut residents = self.residents().filter(|(_, number)| !maybe.contains(number));
        check(residents.next().is_none(), "I-37: a pass left what could go, above the watermark")
    }

    fn is_gone(&self, number: ObjectNumber) -> bool {
        self.object(number).state == State::Gone
    }

    /// Bytes of the arena that are handed out.
    fn used_bytes(&self) -> u64 {
        self.placed().iter().map(|number| self.slot_bytes(*number)).sum()
    }
}

/// Objects in order that a full size class looks past before it asks for its coldest run.
const LOOKED_PAST: usize = 64;
