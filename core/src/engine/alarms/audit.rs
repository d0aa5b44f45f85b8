//! What must hold of deadlines: every entry stands where the wheel looks for it (I-44).

use super::{Alarm, Alarms, SLOT_BITS, SLOT_MASK, SLOTS, TICK_BITS, TICK_MAX, Timer};
use crate::engine::audit::{Violation, check};
use crate::slots::SlotName;
use crate::time::Instant;

impl Alarms {
    /// Whether this timer wakes this subject for this reason.
    pub(crate) fn is_armed(&self, timer: Option<Timer>, alarm: Alarm, subject: SlotName) -> bool {
        self.will_fire(timer, alarm, subject, Instant::FAR)
    }

    /// The same, at `by` at the latest, or at the next tick where that is over.
    pub(crate) fn will_fire(
        &self,
        timer: Option<Timer>,
        alarm: Alarm,
        subject: SlotName,
        by: Instant,
    ) -> bool {
        let Some(entry) = timer.and_then(|timer| self.entries.find(timer.0)) else { return false };
        let tick = by.0.div_ceil(1 << TICK_BITS).max(self.elapsed + 1).min(TICK_MAX);
        (entry.alarm, entry.subject) == (alarm, subject) && entry.tick <= tick
    }

    pub(crate) fn audit(&self) -> Result<(), Violation> {
        let mut linked = 0;
        for (level, lists) in self.lists.iter().enumerate() {
            let mut occupied = self.occupied[level];
            while occupied != 0 {
                let slot = occupied.trailing_zeros() as usize;
                occupied &= occupied - 1;
                let (mut next, mut last) = (lists[slot].head, None);
                check(next.is_some(), "I-44", "a slot without alarms counts as occupied")?;
                while let Some(index) = next {
                    let entry = self.entries.at(index).map(|(_, entry)| entry);
                    let gone =
                        Violation { invariant: "I-44", found: "an alarm is linked and gone" };
                    let entry = entry.ok_or(gone)?;
                    let placed = (entry.level as usize, entry.slot as usize) == (level, slot);
                    check(placed, "I-44", "an alarm stands in another list than it says")?;
                    check(entry.prev == last, "I-44", "an alarm's list is broken")?;
                    let due = ((entry.tick.max(self.elapsed + 1) >> (level * SLOT_BITS))
                        & SLOT_MASK) as usize;
                    check(due == slot, "I-44", "an alarm would be found too late or too early")?;
                    linked += 1;
                    (last, next) = (Some(index), entry.next);
                }
                check(lists[slot].tail == last, "I-44", "a list of alarms ends elsewhere")?;
            }
        }
        const { assert!(SLOTS == 64, "one bit for every slot of a level") };
        check(linked == self.entries.len(), "I-44", "an alarm stands in no list: it never fires")
    }
}
