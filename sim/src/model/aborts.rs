//! Why a reservation may go without its commit (I-7, I-44): the reason that is told must be true of
//! the very copy that holds the slot. A right reason for somebody else's slot is a wrong one.

use super::transfers::{Copy, Kind};
use super::{Aborted, Key, Model, News, ObjectNumber, Over, State, Verdict, check};

impl Model {
    pub(super) fn aborted(&mut self, key: &Key, why: Aborted, news: &News, over: Over) -> Verdict {
        let number = self.index.remove(key).ok_or("I-49: aborted what was not reserved")?;
        let object = self.object(number);
        check(object.state == State::Staged, "I-49: aborted what was committed")?;
        let instance_ended = |copy: &Copy| {
            news.instances_ended.iter().any(|(ended, _)| *ended == copy.name.instance)
        };
        // What an instance leaves behind goes over several turns.
        let has_left = |copy: &Copy| self.holds.copies.iter().any(|left| std::ptr::eq(left, copy));
        let is_orphan = |copy: &Copy| copy.is_given_up || instance_ended(copy) || has_left(copy);
        match why {
            Aborted::WriteTtl => {
                let due = object.reserved_at + self.rules.write_ttl;
                check(self.now >= due, "I-44: the write TTL passed early")?;
            }
            Aborted::Forced => check(object.forced, "a forced clear that nobody asked for")?,
            Aborted::StreamEnded => {
                // Memory goes with the connection that it was registered over.
                let has_ended = |copy: &Copy| {
                    let of_memory = copy.attachment.is_some() && is_orphan(copy);
                    of_memory || self.ended.contains(&copy.connection)
                };
                let right = self.writers_are(number, has_ended);
                check(right, "I-7: aborted for a connection that has not ended")?;
            }
            Aborted::InstanceEnded => {
                let right = self.writers_are(number, is_orphan);
                check(right, "I-7: aborted for an instance that has not ended")?;
            }
            Aborted::Body => {
                let is_lost = |copy: &Copy| {
                    let is_missing = |(ticket, complete)| {
                        let at = copy.objects.iter().find(|(_, object)| *object == number);
                        copy.stream == Some(ticket) && at.is_some_and(|(at, _)| *at >= complete)
                    };
                    over.body.is_some_and(is_missing)
                };
                let right = self.writers_are(number, is_lost);
                check(right, "I-7: aborted for a body that is not its own")?;
            }
        }
        self.objects[number.0 as usize].state = State::Gone;
        Ok(())
    }

    /// Whether this holds of whoever writes an object, and somebody does.
    fn writers_are(&self, number: ObjectNumber, holds: impl Fn(&Copy) -> bool) -> bool {
        let copies = self.copies.values().chain(&self.holds.copies);
        let mut writers =
            copies.filter(|copy| copy.kind() == Kind::Store && copy.names(number)).peekable();
        writers.peek().is_some() && writers.all(holds)
    }
}
