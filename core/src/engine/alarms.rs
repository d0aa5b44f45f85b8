//! Deadlines. Every one says why it exists, so that a busy loop explains itself in one line.
//!
//! A hierarchical wheel: arming, cancelling and firing cost the same however many deadlines are
//! armed. A tick of the wheel is 2^20 ns, about a millisecond; a deadline is rounded up to the next
//! one, so an alarm may be late by a millisecond and is never early.
//!
//! The invariant: every entry stands in the list of the level and slot that it names, and nothing
//! fires before a slot that has been opened is empty, however many turns that takes.

mod audit;

use crate::engine::memory::slots_bytes;
use crate::engine::turn::Work;
use crate::slots::{SlotName, Slots};
use crate::time::Instant;
use alloc::vec::Vec;

/// What a tick is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Alarm {
    /// A job goes on that did not fit one turn.
    Work,
    /// The watermark is looked at once a second.
    EvictionTick,
    /// The read TTL of a session's leases, or the linger after its end.
    LeaseExpiry,
    /// An idle session.
    SessionExpiry,
    /// The write TTL of slots lent to a client.
    WriteExpiry,
    /// A parked `wait_prefetch_status`.
    WaitTimeout,
    /// An instance that may be gone.
    InstanceSilence,
    /// A lower tier takes longer than it may.
    FlightStall,
    /// A lookup has waited for lower tiers as long as it may.
    SeekExpiry,
    /// A failed store below L1 is tried again.
    StoreRetry,
    /// A tripped adapter is tried again.
    AdapterRetry,
}

/// One armed deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer(SlotName);

#[derive(Clone, Debug)]
struct Entry {
    tick: u64,
    alarm: Alarm,
    subject: SlotName,
    prev: Option<u32>,
    next: Option<u32>,
    level: u8,
    slot: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct List {
    head: Option<u32>,
    tail: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct Alarms {
    entries: Slots<Entry>,
    lists: Vec<[List; SLOTS]>,
    occupied: [u64; LEVELS],
    /// Every tick before this one has fired.
    elapsed: u64,
    /// A slot of a higher level whose time has begun and which is not empty yet.
    opened: Option<(usize, usize)>,
}

impl Alarms {
    /// A wheel for at most `limit` deadlines.
    pub fn with_limit(limit: usize) -> Alarms {
        Alarms {
            entries: Slots::with_limit(limit),
            lists: alloc::vec![[List::default(); SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            elapsed: 0,
            opened: None,
        }
    }

    /// What a wheel for so many deadlines takes.
    pub(crate) fn table_bytes(limit: usize) -> u64 {
        slots_bytes::<Entry>(limit) + (LEVELS * size_of::<[List; SLOTS]>()) as u64
    }

    /// Arms a deadline. The owner's own bound keeps the table from filling; a full table is ours.
    pub fn arm(&mut self, at: Instant, alarm: Alarm, subject: SlotName) -> Timer {
        let tick = (at.0.div_ceil(1 << TICK_BITS)).max(self.elapsed + 1).min(TICK_MAX);
        let entry = Entry { tick, alarm, subject, prev: None, next: None, level: 0, slot: 0 };
        let name = self.entries.insert(entry).expect("limits give every owner its timers");
        self.link(name.index);
        Timer(name)
    }

    /// Cancelling what has fired is harmless.
    pub fn cancel(&mut self, timer: Timer) {
        if self.entries.find(timer.0).is_some() {
            self.unlink(timer.0.index);
            self.entries.remove(timer.0);
        }
    }

    /// The next alarm that is due, in deadline order. None also where the turn's units ended
    /// before it was found; then `next` says that there is work.
    pub fn pop(&mut self, now: Instant, work: &mut Work) -> Option<(Alarm, SlotName)> {
        let now_tick = now.0 >> TICK_BITS;
        loop {
            if !self.close_opened(work) {
                return None;
            }
            let (level, slot, tick) = self.first().filter(|(_, _, tick)| *tick <= now_tick)?;
            self.elapsed = self.elapsed.max(tick.saturating_sub(1));
            if level > 0 {
                self.opened = Some((level, slot));
                continue;
            }
            let head = self.lists[level][slot].head.expect("an occupied slot has a head");
            self.unlink(head);
            let (name, _) = self.entries.at(head).expect("a linked entry exists");
            let entry = self.entries.remove(name).expect("a linked entry exists");
            return Some((entry.alarm, entry.subject));
        }
    }

    /// When the wheel wants to be looked at next. May be earlier than the deadline itself.
    pub fn next(&self) -> Option<(Instant, Alarm)> {
        if self.opened.is_some() {
            return Some((Instant(self.elapsed << TICK_BITS), Alarm::Work));
        }
        let (level, slot, tick) = self.first()?;
        let head = self.lists[level][slot].head.expect("an occupied slot has a head");
        let (_, entry) = self.entries.at(head).expect("a linked entry exists");
        Some((Instant(tick << TICK_BITS), entry.alarm))
    }

    pub fn armed(&self) -> usize {
        self.entries.len()
    }

    /// The first occupied slot and the tick at which it is to be opened.
    fn first(&self) -> Option<(usize, usize, u64)> {
        let base = self.elapsed + 1;
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = level * SLOT_BITS;
            let here = ((base >> shift) & SLOT_MASK) as u32;
            let ahead = self.occupied[level].rotate_right(here).trailing_zeros();
            let slot = (here + ahead) as usize % SLOTS;
            let turn = (base >> shift) + ahead as u64;
            return Some((level, slot, (turn << shift).max(base)));
        }
        None
    }

    /// Moves the entries of an opened slot down, now that its time range has begun. True when
    /// none is left. Each goes to a lower level, so the slot only shrinks.
    fn close_opened(&mut self, work: &mut Work) -> bool {
        let Some((level, slot)) = self.opened else { return true };
        while let Some(head) = self.lists[level][slot].head {
            if work.is_spent() {
                return false;
            }
            work.spend(1);
            self.unlink(head);
            self.link(head);
        }
        self.opened = None;
        true
    }

    fn link(&mut self, index: u32) {
        let base = self.elapsed + 1;
        let tick = self.entries.at(index).expect("linked after insertion").1.tick.max(base);
        let differing = 63 - ((tick ^ base) | 1).leading_zeros() as usize;
        let level = (differing / SLOT_BITS).min(LEVELS - 1);
        let slot = ((tick >> (level * SLOT_BITS)) & SLOT_MASK) as usize;
        let tail = self.lists[level][slot].tail;
        match tail {
            Some(tail) => {
                let last = self.entries.at_mut(tail).expect("a tail exists");
                last.next = Some(index);
            }
            None => self.lists[level][slot].head = Some(index),
        }
        self.lists[level][slot].tail = Some(index);
        self.occupied[level] |= 1 << slot;
        let entry = self.entries.at_mut(index).expect("linked after insertion");
        (entry.prev, entry.next) = (tail, None);
        (entry.level, entry.slot) = (level as u8, slot as u8);
    }

    fn unlink(&mut self, index: u32) {
        let (_, entry) = self.entries.at(index).expect("only linked entries are unlinked");
        let (prev, next, level, slot) =
            (entry.prev, entry.next, entry.level as usize, entry.slot as usize);
        match prev {
            Some(prev) => self.entries.at_mut(prev).expect("a neighbour exists").next = next,
            None => self.lists[level][slot].head = next,
        }
        match next {
            Some(next) => self.entries.at_mut(next).expect("a neighbour exists").prev = prev,
            None => self.lists[level][slot].tail = prev,
        }
        if self.lists[level][slot].head.is_none() {
            self.occupied[level] &= !(1 << slot);
        }
    }
}

const TICK_BITS: u32 = 20;
const SLOT_BITS: usize = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_MASK: u64 = SLOTS as u64 - 1;
const LEVELS: usize = 8;
/// Farther deadlines than the wheel reaches wait at its rim: 2^44 ticks are over 500 years.
const TICK_MAX: u64 = 1 << 44;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn subject(index: u32) -> SlotName {
        SlotName { index, generation: 0 }
    }

    fn pop(alarms: &mut Alarms, now: Instant) -> Option<(Alarm, SlotName)> {
        alarms.pop(now, &mut Work::new(usize::MAX))
    }

    #[test]
    fn fires_in_order_and_never_early() {
        let mut rng = Rng::new(7);
        let mut alarms = Alarms::with_limit(2000);
        let mut armed = Vec::new();
        for index in 0..2000 {
            let bits = 20 + rng.below(25);
            let at = Instant(rng.below(1 << bits));
            let timer = alarms.arm(at, Alarm::SessionExpiry, subject(index));
            armed.push((at, timer));
        }
        for (index, (_, timer)) in armed.iter().enumerate().filter(|(index, _)| index % 3 == 0) {
            assert_eq!(index % 3, 0);
            alarms.cancel(*timer);
        }
        let mut now = Instant::ZERO;
        let mut last = Instant::ZERO;
        let mut fired = 0;
        while let Some((at, _)) = alarms.next() {
            now = now.max(at);
            while let Some((_, subject)) = pop(&mut alarms, now) {
                let deadline = armed[subject.index as usize].0;
                assert!(deadline <= now, "early: {deadline:?} at {now:?}");
                assert!(subject.index % 3 != 0, "a cancelled alarm fired");
                assert!(deadline.0 + (2 << TICK_BITS) >= last.0, "out of order");
                assert!(now.0 <= deadline.0 + (1 << TICK_BITS), "late by more than a tick");
                last = last.max(deadline);
                fired += 1;
            }
        }
        assert_eq!(fired, 2000 - 667);
        assert_eq!(alarms.armed(), 0);
    }

    #[test]
    fn an_alarm_in_the_past_fires_on_the_next_tick() {
        let mut alarms = Alarms::with_limit(1);
        let now = Instant::from_secs(5);
        assert_eq!(pop(&mut alarms, now), None);
        alarms.arm(Instant::ZERO, Alarm::WaitTimeout, subject(0));
        assert_eq!(pop(&mut alarms, now), Some((Alarm::WaitTimeout, subject(0))));
        assert_eq!(alarms.next(), None);
    }

    /// A hundred thousand deadlines of one hour stood in one slot, and opening it was one turn.
    #[test]
    fn a_slot_is_opened_over_several_turns() {
        let mut alarms = Alarms::with_limit(3000);
        let mut timers = Vec::new();
        for index in 0..2000 {
            let at = Instant::from_secs(300 + index as u64 % 7);
            timers.push(alarms.arm(at, Alarm::SessionExpiry, subject(index)));
        }
        let mut now = Instant::from_secs(299);
        let (mut fired, mut turns) = (Vec::new(), 0);
        while alarms.armed() > 0 {
            turns += 1;
            let mut work = Work::new(64);
            while let Some((_, subject)) = alarms.pop(now, &mut work) {
                work.spend(1);
                fired.push(subject.index % 7);
                if work.is_spent() {
                    break;
                }
            }
            assert!(work.counted <= 64, "{work:?}");
            match alarms.next() {
                Some((at, Alarm::Work)) => assert!(at <= now, "work is due at once"),
                Some((at, _)) => now = now.max(at),
                None => {}
            }
            if turns == 3 {
                // Arming and cancelling go on while a slot is half open.
                alarms.cancel(timers[1999]);
                alarms.arm(now, Alarm::SessionExpiry, subject(6));
            }
        }
        assert_eq!(fired.len(), 2000);
        assert!(turns >= 2000 / 64, "{turns}");
        let late = fired.iter().position(|second| *second == 1).expect("some fired then");
        assert!(fired[late..].iter().all(|second| *second != 0), "out of order");
    }
}
