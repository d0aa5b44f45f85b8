//! Who waits to be stored in one adapter, in a fair order over tenants.
//!
//! The invariant: a task stands in one line, waits for its next try, or is on its way; a line has
//! somebody in it and takes its turn once in every round.

use super::budget::{Touches, WriteBudget};
use crate::config::{AdapterSetup, Limits};
use crate::engine::adapters::health_subject;
use crate::engine::alarms::{Alarm, Alarms, Timer};
use crate::engine::memory::slots_bytes;
use crate::fact::StoreDrop;
use crate::limits;
use crate::names::{AdapterId, ObjectId, TenantId};
use crate::slots::{SlotName, Slots};
use crate::time::Instant;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Line,
    /// It has failed, and is tried again then.
    Later(Instant),
    /// The entry of the shelf that it fills.
    Flight(SlotName),
    /// Nobody waits for it any more. Its memory does.
    Stalled(SlotName),
}

/// One object that is to be stored in one adapter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) demotion: SlotName,
    /// What is being written, while it is.
    pub(crate) object: ObjectId,
    pub(crate) tenant: TenantId,
    pub(crate) tries: u8,
    /// While it waits it keeps its object in L1, and counts for these bytes.
    pub(crate) charge: Option<u64>,
    /// The device was full at its last try.
    pub(crate) met_full: bool,
    pub(crate) at: At,
    /// Behind it in its line.
    next: Option<SlotName>,
}

impl Task {
    pub(crate) fn new(demotion: SlotName, object: ObjectId, tenant: TenantId) -> Task {
        Task {
            demotion,
            object,
            tenant,
            tries: 0,
            charge: None,
            met_full: false,
            at: At::Line,
            next: None,
        }
    }
}

/// Tasks of one tenant, first come first served.
#[derive(Clone, Copy, Debug)]
struct Line {
    tenant: TenantId,
    head: SlotName,
    tail: SlotName,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) tasks: Slots<Task>,
    lines: Slots<Line>,
    by_tenant: BTreeMap<TenantId, SlotName>,
    /// Whose turn it is.
    turns: VecDeque<SlotName>,
    later: BTreeSet<(Instant, SlotName)>,
    pub(super) timer: Option<Timer>,
    /// Tasks that stand in a line or wait for their next try.
    pub(crate) waiting: usize,
    /// Bytes of L1 that they keep.
    pub(crate) charged_bytes: u64,
    /// Tasks that found the budget used up, oldest first; some of them may be over.
    unkept: VecDeque<SlotName>,
    pub(crate) drops: [u64; StoreDrop::ALL.len()],
    /// Objects that were seen for the first time, and are stored when they come again.
    pub(crate) first_touches: u64,
    pub(super) budget: WriteBudget,
    pub(super) touches: Touches,
}

impl Queue {
    pub(super) fn new(setup: &AdapterSetup<'_>, tasks: usize, now: Instant) -> Queue {
        let lines = tasks.min(limits::TENANTS_MAX);
        let touches = if setup.on_second_touch { setup.objects_max as usize } else { 0 };
        Queue {
            tasks: Slots::with_limit(tasks),
            lines: Slots::with_limit(lines),
            by_tenant: BTreeMap::new(),
            turns: VecDeque::with_capacity(lines),
            later: BTreeSet::new(),
            timer: None,
            waiting: 0,
            charged_bytes: 0,
            unkept: VecDeque::new(),
            drops: [0; StoreDrop::ALL.len()],
            first_touches: 0,
            budget: WriteBudget::new(setup, now),
            touches: Touches::with_limit(touches.min(limits::TOUCHES_MAX)),
        }
    }

    /// An adapter that has left keeps nothing but its counts.
    pub(super) fn close(&mut self, setup: &AdapterSetup<'_>) {
        assert!(self.tasks.is_empty(), "it leaves when nothing waits for it");
        assert!(self.timer.is_none(), "nothing is tried again");
        let (drops, first_touches) = (self.drops, self.first_touches);
        let none = AdapterSetup { on_second_touch: false, ..*setup };
        *self = Queue { drops, first_touches, ..Queue::new(&none, 0, Instant::ZERO) };
    }

    /// What the queue of an adapter takes.
    pub(super) fn table_bytes(limits: &Limits, setup: &AdapterSetup<'_>) -> u64 {
        let (tasks, lines) = (limits.demotions, limits.demotions.min(limits::TENANTS_MAX));
        let touches = if setup.on_second_touch { setup.objects_max as usize } else { 0 };
        // Nodes of the trees are at least half full.
        let of_tree = 2 * size_of::<(Instant, SlotName)>() + size_of::<[usize; 2]>();
        slots_bytes::<Task>(tasks)
            + slots_bytes::<Line>(lines)
            + (tasks * (of_tree + 2 * size_of::<SlotName>())) as u64
            + (lines * (of_tree + size_of::<SlotName>())) as u64
            + Touches::bytes(touches.min(limits::TOUCHES_MAX))
    }

    /// The task takes its place at the end of its tenant's line.
    pub(super) fn push_back(&mut self, name: SlotName) {
        let task = self.stands(name);
        let tenant = task.tenant;
        match self.by_tenant.get(&tenant) {
            Some(line) => {
                let line = self.lines.find_mut(*line).expect("a listed line exists");
                let last = core::mem::replace(&mut line.tail, name);
                self.tasks.find_mut(last).expect("a tail exists").next = Some(name);
            }
            None => self.open_line(tenant, name),
        }
    }

    /// It is the first of its line again.
    pub(super) fn push_front(&mut self, name: SlotName) {
        let tenant = self.stands(name).tenant;
        match self.by_tenant.get(&tenant) {
            Some(line) => {
                let line = self.lines.find_mut(*line).expect("a listed line exists");
                let first = core::mem::replace(&mut line.head, name);
                self.tasks.find_mut(name).expect("it stands in line").next = Some(first);
            }
            None => self.open_line(tenant, name),
        }
    }

    fn stands(&mut self, name: SlotName) -> &mut Task {
        self.waiting += 1;
        let task = self.tasks.find_mut(name).expect("only what exists stands in line");
        (task.at, task.next) = (At::Line, None);
        task
    }

    fn open_line(&mut self, tenant: TenantId, name: SlotName) {
        let line = Line { tenant, head: name, tail: name };
        let line = self.lines.insert(line).expect("there are no more lines than tenants");
        self.by_tenant.insert(tenant, line);
        self.turns.push_back(line);
    }

    /// The one whose turn it is.
    pub(super) fn head(&self) -> Option<SlotName> {
        let line = self.lines.find(*self.turns.front()?).expect("a line in turn exists");
        Some(line.head)
    }

    /// It has had its turn and leaves its line; the next turn is another tenant's.
    pub(super) fn take_head(&mut self) -> SlotName {
        let name = self.turns.pop_front().expect("the caller has seen the head");
        let line = self.lines.find_mut(name).expect("a line in turn exists");
        let (head, tenant) = (line.head, line.tenant);
        let task = self.tasks.find_mut(head).expect("a head exists");
        match task.next.take() {
            Some(next) => {
                line.head = next;
                self.turns.push_back(name);
            }
            None => {
                self.lines.remove(name);
                self.by_tenant.remove(&tenant);
            }
        }
        self.waiting -= 1;
        head
    }

    /// The budget is used up: the task is kept when there is some again, if it still waits then.
    pub(super) fn push_unkept(&mut self, name: SlotName) {
        if self.unkept.len() < self.tasks.limit() {
            self.unkept.push_back(name);
        }
    }

    /// The next that is to be kept. What does not wait any more is passed over.
    pub(super) fn next_unkept(&mut self) -> Option<SlotName> {
        loop {
            let name = *self.unkept.front()?;
            let waits = |task: &Task| matches!(task.at, At::Line | At::Later(_));
            let task = self.tasks.find(name).filter(|task| waits(task));
            if task.is_some_and(|task| task.charge.is_none()) {
                return Some(name);
            }
            self.unkept.pop_front();
        }
    }

    pub(super) fn pop_unkept(&mut self) {
        self.unkept.pop_front();
    }

    /// The task is tried again at `at`.
    pub(super) fn push_later(&mut self, name: SlotName, at: Instant) {
        self.waiting += 1;
        self.tasks.find_mut(name).expect("only what exists waits").at = At::Later(at);
        self.later.insert((at, name));
    }

    /// Somebody who is due by then.
    pub(super) fn take_later(&mut self, by: Instant) -> Option<SlotName> {
        let (at, name) = *self.later.first()?;
        if at > by {
            return None;
        }
        self.later.pop_first();
        self.waiting -= 1;
        Some(name)
    }

    /// One alarm for whoever is due first, and none for nobody.
    pub(super) fn rearm(&mut self, id: AdapterId, alarms: &mut Alarms) {
        if let Some(timer) = self.timer.take() {
            alarms.cancel(timer);
        }
        let first = self.later.first().map(|(at, _)| *at);
        self.timer = first.map(|at| alarms.arm(at, Alarm::StoreRetry, health_subject(id)));
    }

    /// When the next try is due, for the audit.
    pub(super) fn due(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Tasks of all lines in turn, and how many wait for their next try, for the audit.
    pub(super) fn count(&self) -> (usize, usize) {
        let mut standing = 0;
        for line in &self.turns {
            let mut next = self.lines.find(*line).map(|line| line.head);
            while let Some(task) = next.and_then(|name| self.tasks.find(name)) {
                standing += 1;
                next = task.next;
            }
        }
        (standing, self.later.len())
    }
}
