//! What must hold of stores below L1 (I-18, I-19, I-30).

use super::queue::{At, Queue};
use super::{Demote, Demotion, Digest, demoting_share};
use crate::engine::adapters::flights::Flight;
use crate::engine::adapters::shelf::Stage;
use crate::engine::adapters::{Adapter, Adapters, health_subject};
use crate::engine::alarms::Alarm;
use crate::engine::audit::{Claims, View, Violation, check};

impl Demote {
    /// Adds what demotions claim of objects, names and alarms.
    pub(crate) fn audit(
        &self,
        view: &View,
        adapters: &Adapters,
        claims: &mut Claims,
    ) -> Result<(), Violation> {
        let (mut targets, mut charged, mut digests) = (0, 0, 0);
        for (name, demotion) in self.demotions.iter() {
            let found = self.find(&demotion.key);
            check(found == Some(name), "I-18", "a demotion is not the one under its key")?;
            claims.scopes[demotion.key.scope.0 as usize] += 1;
            let is_due = demotion.targets > 0 || demotion.digest == Digest::OnItsWay;
            check(is_due, "I-19", "a demotion waits for nobody")?;
            targets += demotion.targets as usize;
            charged += demotion.charged as usize;
            digests += (demotion.digest == Digest::OnItsWay) as usize;
            demotion.claim(view, claims)?;
        }
        let same = self.by_key.len() == self.demotions.len();
        check(same, "I-18", "the index names demotions that are gone")?;
        let asked = adapters.flights.iter().filter(|(_, found)| {
            let Flight::StoreDigest { demotion } = found.flight else { return false };
            let found = self.demotions.find(demotion);
            found.is_some_and(|demotion| demotion.digest == Digest::OnItsWay)
        });
        check(asked.count() == digests, "I-19", "a digest is waited for that is not on its way")?;
        let (mut open, mut kept) = (0, 0);
        check(self.queues.len() == adapters.list.len(), "I-18", "an adapter has no queue")?;
        for (queue, adapter) in self.queues.iter().zip(&adapters.list) {
            let (tasks, charges) = self.audit_queue(queue, adapter, view, claims)?;
            open += tasks;
            kept += charges;
        }
        check(open == targets, "I-18", "a demotion waits for a task that is over")?;
        check(kept == charged, "I-19", "a demotion is kept for nobody")
    }

    /// Tasks of a queue whose demotion waits for them, and those that keep their object.
    fn audit_queue(
        &self,
        queue: &Queue,
        adapter: &Adapter,
        view: &View,
        claims: &mut Claims,
    ) -> Result<(usize, usize), Violation> {
        let (mut standing, mut later, mut flying) = (0, 0, 0);
        let (mut open, mut charges, mut charged_bytes) = (0, 0, 0);
        for (_, task) in queue.tasks.iter() {
            let demotion = self.demotions.find(task.demotion);
            let is_stalled = matches!(task.at, At::Stalled(_));
            check(is_stalled || demotion.is_some(), "I-18", "a task without its demotion")?;
            open += !is_stalled as usize;
            charges += task.charge.is_some() as usize;
            charged_bytes += task.charge.unwrap_or_default();
            match task.at {
                At::Line => standing += 1,
                At::Later(_) => later += 1,
                At::Flight(entry) | At::Stalled(entry) => {
                    flying += 1;
                    claims.of(task.object).1 += 1;
                    let entry = adapter.shelf.entry(entry);
                    let is_charged = entry.is_some_and(|entry| entry.stage == Stage::Storing);
                    check(is_charged, "I-30", "what is on its way is not charged")?;
                    check(task.charge.is_none(), "I-19", "what is on its way waits")?;
                }
            }
        }
        check(queue.count() == (standing, later), "I-18", "a task stands in no line")?;
        check(queue.waiting == standing + later, "I-18", "waiting tasks are miscounted")?;
        check(flying == adapter.stores as usize, "I-19", "a store has no task, or the reverse")?;
        check(charged_bytes == queue.charged_bytes, "I-19", "kept bytes are miscounted")?;
        let is_armed = queue.timer.is_some() == (later > 0);
        check(is_armed, "I-18", "a next try has no alarm, or the reverse")?;
        let (timer, subject) = (queue.timer, health_subject(adapter.id));
        if timer.is_some() {
            claims.timers += 1;
            let due = queue.due().unwrap_or_default();
            let fires = view.alarms.will_fire(timer, Alarm::StoreRetry, subject, due);
            check(fires, "I-18", "a next try comes too late")?;
        }
        Ok((open, charges))
    }

    /// What waits keeps no more of L1 than it may, but for one object of each adapter.
    pub(crate) fn audit_budget(&self, view: &View, adapters: &Adapters) -> Result<(), Violation> {
        // An adapter that joins makes everybody's share smaller, and what is kept stays so.
        let whole = view.config.demoting_bytes_max().max(demoting_share(view.config, adapters));
        for queue in &self.queues {
            let is_one = queue.tasks.iter().filter(|(_, task)| task.charge.is_some()).count() <= 1;
            check(is_one || queue.charged_bytes <= whole, "F48", "too much of L1 waits")?;
        }
        Ok(())
    }
}

impl Demotion {
    fn claim(&self, view: &View, claims: &mut Claims) -> Result<(), Violation> {
        let pins = (self.charged > 0) as u32 + (self.digest == Digest::OnItsWay) as u32;
        if pins > 0 {
            let found = "a demotion pins memory that was given back";
            let exists = view.l1.objects.find(self.object.0).is_some();
            check(exists, "I-2", found)?;
            claims.of(self.object).1 += pins;
        }
        Ok(())
    }
}
