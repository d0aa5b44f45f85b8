//! What must hold of seeks and loads (I-2, I-10, I-11, I-24, I-25, I-32, I-34).

use super::loads::Stage;
use super::{Promote, Seek};
use crate::engine::adapters::Adapters;
use crate::engine::adapters::flights::Flight;
use crate::engine::alarms::Alarm;
use crate::engine::audit::{Claims, View, Violation, check};
use crate::engine::l1::objects::State;
use crate::engine::sessions::claim_set;
use crate::limits::ADAPTERS_MAX;
use crate::names::AdapterId;
use crate::slots::SlotName;
use alloc::collections::BTreeMap;

impl Promote {
    /// Adds what seeks and loads claim of objects, names, entries and alarms.
    pub(crate) fn audit(
        &self,
        view: &View,
        adapters: &Adapters,
        claims: &mut Claims,
    ) -> Result<(), Violation> {
        let is_handed_on = self.done.is_empty() || view.jobs.loads();
        check(is_handed_on, "I-10", "a lookup's result stands and is not handed on")?;
        let mut active = 0;
        for (name, seek) in self.seeks.iter() {
            active += seek.is_active as usize;
            let listed = self.by_session.get(&seek.session) == Some(&name);
            check(listed, "I-12", "a seek is not the one of its session")?;
            claim_set(&seek.set, view, claims)?;
            seek.rows.iter().for_each(|row| claims.scopes[row.below.0 as usize] += 1);
            let ends = view.alarms.is_armed(seek.timer, Alarm::SeekExpiry, name);
            // What has run out is handed on, at once or by the next turn.
            let has_run_out = seek.is_done && seek.timer.is_none();
            check(ends || has_run_out, "I-10", "a seek has no deadline")?;
            claims.timers += seek.timer.is_some() as usize;
            self.audit_seek(name, seek, view, adapters)?;
        }
        check(self.by_session.len() == self.seeks.len(), "I-12", "a session names no seek")?;
        check(active == self.active, "I-32", "loading lookups are miscounted")?;
        check(active <= view.config.prefetch_max, "I-32", "too many lookups load at once")?;
        let (mut named, mut waiting) = (0, 0);
        for (name, load) in self.loads.iter() {
            claims.of(load.object).1 += 1;
            let object = view.l1.objects.find(load.object.0);
            let state = object.map(|object| object.state);
            check(state.is_some(), "I-2", "what a load writes to is gone")?;
            let is_named = self.by_object.get(&load.object) == Some(&name);
            named += is_named as usize;
            if load.stage == Stage::GivenUp {
                check(state == Some(State::Condemned), "I-6", "a load given up keeps its key")?;
                check(load.waiters.is_empty(), "I-10", "somebody waits for a load given up")?;
                continue;
            }
            check(is_named, "I-34", "two loads bring one object")?;
            if load.stage == Stage::Waiting {
                waiting += 1;
                let line = self.waiting.get(usize::from(load.adapter.0));
                let stands = line.and_then(|line| line.loads.get(&load.arrival)) == Some(&name);
                check(stands, "I-10", "a load waits and does not stand in line")?;
            }
            check(!load.waiters.is_empty(), "I-11", "nobody waits for a load")?;
            for (seek, at) in &load.waiters {
                let cell =
                    self.seeks.find(*seek).and_then(|seek| seek.set.cells().get(*at as usize));
                let waits = cell.is_some_and(|cell| cell.left == 0 && cell.object == load.object);
                check(waits, "I-25", "a load is for a cell that does not wait for it")?;
            }
        }
        check(named == self.by_object.len(), "I-34", "an object is brought by no load")?;
        let standing: usize = self.waiting.iter().map(|line| line.loads.len()).sum();
        check(waiting == standing, "P3", "what does not wait stands in line")?;
        self.audit_holds(adapters)?;
        let queued = self.seeks.len() - self.active;
        check(queued == self.queue.len(), "P3", "lookups that have ended stand in line")
    }

    /// What an adapter holds of its objects is held for loads, checks and trials that go on, once
    /// for each.
    fn audit_holds(&self, adapters: &Adapters) -> Result<(), Violation> {
        let mut holds: BTreeMap<(AdapterId, SlotName), u32> = BTreeMap::new();
        let of_loads = self.loads.iter().map(|(_, load)| (load.adapter, load.entry));
        let of_flights = adapters.flights.iter().filter_map(|(_, found)| match found.flight {
            Flight::Scrub { adapter, entry } | Flight::Trial { adapter, entry: Some(entry) } => {
                Some((adapter, entry))
            }
            _ => None,
        });
        for held in of_loads.chain(of_flights) {
            *holds.entry(held).or_default() += 1;
        }
        let mut held = [0; ADAPTERS_MAX];
        for ((adapter, name), count) in holds {
            // What is lost meanwhile is not there to be held.
            let Some(entry) = adapters.get(adapter).shelf.entry(name) else { continue };
            check(
                entry.holds == count,
                "I-24",
                "an object below L1 is held for others than read it",
            )?;
            held[usize::from(adapter.0)] += 1;
        }
        for (adapter, held) in adapters.list.iter().zip(held) {
            check(adapter.shelf.held == held, "I-24", "an object below L1 is held for nobody")?;
        }
        Ok(())
    }

    fn audit_seek(
        &self,
        name: SlotName,
        seek: &Seek,
        view: &View,
        adapters: &Adapters,
    ) -> Result<(), Violation> {
        let rows = seek.rows.len();
        let whole = seek.planned as usize * rows;
        check(seek.set.len() >= whole, "I-25", "a planned chunk lacks a cell")?;
        check(seek.set.len() < whole + rows.max(1), "I-25", "a cell is planned twice")?;
        for probing in &seek.probing {
            let found = adapters.flights.find(probing.ticket.0);
            check(found.is_some(), "I-10", "a seek waits for a question that has ended")?;
        }
        for cell in seek.set.cells().iter().take(seek.end as usize * rows) {
            let comes = cell.left > 0 || self.by_object.contains_key(&cell.object);
            check(comes, "I-26", "a cell waits for nothing")?;
        }
        let waits = !seek.probing.is_empty() || seek.planned >= seek.end;
        let queued = !seek.is_active && self.queue.get(&seek.arrival) == Some(&name);
        let goes_on = waits || queued || view.jobs.seek(name);
        check(goes_on, "I-10", "a seek neither waits nor goes on")
    }
}
