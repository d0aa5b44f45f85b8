//! Instances: engine workers that have registered, and how long they may be silent.
//!
//! The invariant: an instance is in the table exactly while its layout is counted in `layouts`; a
//! transfer of an instance that is not in the table is refused at once.

mod audit;

use crate::config::{Config, Limits, PoolKind};
use crate::engine::alarms::{Alarm, Timer};
use crate::engine::attachments::Memory;
use crate::engine::layouts::Layouts;
use crate::engine::memory::{TEXT_BYTES, map_bytes, slots_bytes};
use crate::engine::turn::Turn;
use crate::event::Registration;
use crate::fact::{Fact, InstanceEnd};

use crate::names::{InstanceId, Layout};
use crate::slots::{SlotName, Slots};
use crate::time::Instant;
use crate::{Map, map_with_capacity};
use alloc::collections::VecDeque;
use alloc::sync::Arc;

/// How an instance has been seen to move its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not seen yet: retrieves are answered with slots and payload (design §7).
    Unknown,
    SharedMemory,
    Inline,
    /// The server copies: the instance has registered its memory.
    ServerDriven,
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub id: InstanceId,
    /// Its place in the table: the same id that registers anew is another one.
    pub registration: SlotName,
    pub model: Arc<str>,
    pub world_size: u32,
    pub block_size: u32,
    pub layout: Layout,
    /// Where its pages are, if it is the server that copies.
    pub memory: Option<Memory>,
    pub mode: Mode,
    pub registered: Instant,
    pub last_seen: Instant,
    /// Has pinged: silence counts from then on.
    pub pinged: bool,
    timer: Option<Timer>,
}

impl Instance {
    /// Whether slots and payload are offered to it.
    pub fn offers(&self, pool: PoolKind) -> (bool, bool) {
        match (pool, self.mode) {
            (PoolKind::Private, _) | (_, Mode::Inline) => (false, true),
            (PoolKind::Shared, Mode::SharedMemory) => (true, false),
            (PoolKind::Shared, Mode::Unknown | Mode::ServerDriven) => (true, true),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Clients {
    instances: Slots<Instance>,
    index: Map<InstanceId, SlotName>,
    /// Told once that they are not registered, oldest first.
    told: VecDeque<InstanceId>,
    told_set: Map<InstanceId, ()>,
}

/// What became of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    New,
    Known,
    /// The same id came with another model or layout: the old registration has ended.
    Replaced(Ended),
    Full,
}

/// A registration that has ended, and how its instance had been seen to move its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub registration: SlotName,
    pub mode: Mode,
    pub memory: Option<Memory>,
}

impl Clients {
    pub fn new(limits: &Limits, seed: u64) -> Clients {
        Clients {
            instances: Slots::with_limit(limits.instances),
            index: map_with_capacity(limits.instances, seed ^ 8),
            told: VecDeque::with_capacity(limits.told),
            told_set: map_with_capacity(limits.told, seed ^ 9),
        }
    }

    /// All instances at their bounds, model names included.
    pub(crate) fn table_bytes(limits: &Limits) -> u64 {
        slots_bytes::<Instance>(limits.instances)
            + map_bytes::<InstanceId, SlotName>(limits.instances)
            + map_bytes::<InstanceId, ()>(limits.told)
            + (limits.told * size_of::<InstanceId>()) as u64
            + (limits.instances * (TEXT_BYTES + crate::limits::MODEL_BYTES_MAX)) as u64
    }

    pub fn register(
        &mut self,
        turn: &mut Turn,
        layouts: &mut Layouts,
        registration: &Registration,
        memory: Option<Memory>,
    ) -> Registered {
        let mut outcome = Registered::New;
        if let Some(known) = self.seen(turn.now, registration.instance) {
            let same = *known.model == *registration.model
                && known.world_size == registration.world_size
                && known.layout == registration.layout
                // Memory that is registered again may be other memory.
                && known.memory.is_none()
                && memory.is_none();
            if same {
                return Registered::Known;
            }
            let ended = self.end(turn, layouts, registration.instance, InstanceEnd::Replaced);
            outcome = Registered::Replaced(ended.expect("it was seen above"));
        }
        if self.instances.is_full() {
            return Registered::Full;
        }
        let model: Arc<str> = registration.model.into();
        let instance = Instance {
            id: registration.instance,
            registration: SlotName { index: 0, generation: 0 },
            model: model.clone(),
            world_size: registration.world_size,
            block_size: registration.block_size,
            layout: registration.layout,
            memory,
            mode: match outcome {
                _ if memory.is_some() => Mode::ServerDriven,
                Registered::Replaced(ended) if planted!(turn.config, 20) => ended.mode,
                _ => Mode::Unknown,
            },
            registered: turn.now,
            last_seen: turn.now,
            pinged: false,
            timer: None,
        };
        let name = self.instances.insert(instance).expect("there is room, checked above");
        self.instances.find_mut(name).expect("inserted above").registration = name;
        self.index.insert(registration.instance, name);
        if self.told_set.remove(&registration.instance).is_some() {
            self.told.retain(|told| *told != registration.instance);
        }
        layouts.retain(&model, registration.world_size, registration.layout);
        self.watch(turn, name);
        turn.out.tell(Fact::InstanceRegistered {
            instance: registration.instance,
            model,
            world_size: registration.world_size,
            layers: registration.layout.layers,
        });
        outcome
    }

    /// Takes an instance off the table. Names its registration, where it was there.
    pub fn end(
        &mut self,
        turn: &mut Turn,
        layouts: &mut Layouts,
        instance: InstanceId,
        why: InstanceEnd,
    ) -> Option<Ended> {
        let name = self.index.remove(&instance)?;
        let entry = self.instances.remove(name).expect("the index names live instances");
        if let Some(timer) = entry.timer {
            turn.alarms.cancel(timer);
        }
        layouts.release(&entry.model, entry.world_size, entry.layout);
        turn.out.tell(Fact::InstanceEnded { instance, why });
        Some(Ended { registration: name, mode: entry.mode, memory: entry.memory })
    }

    /// The answer to a ping. An instance that is not registered is told so once, so that it
    /// registers anew; the next ping is true again, else it never would (spec/wire §1.7).
    pub fn ping(&mut self, turn: &mut Turn, instance: InstanceId) -> bool {
        if let Some(&name) = self.index.get(&instance) {
            let entry = self.instances.find_mut(name).expect("the index names live instances");
            entry.last_seen = turn.now;
            if !entry.pinged {
                entry.pinged = true;
                self.watch(turn, name);
            }
            return true;
        }
        if self.told_set.contains_key(&instance) {
            return true;
        }
        while self.told.len() >= turn.config.limits.told {
            let oldest = self.told.pop_front().expect("it is full, so not empty");
            self.told_set.remove(&oldest);
        }
        self.told.push_back(instance);
        self.told_set.insert(instance, ());
        turn.out.tell(Fact::InstanceTold { instance });
        false
    }

    /// The instance, with its silence counted anew.
    pub fn seen(&mut self, now: Instant, instance: InstanceId) -> Option<&mut Instance> {
        let name = *self.index.get(&instance)?;
        let entry = self.instances.find_mut(name)?;
        entry.last_seen = now;
        Some(entry)
    }

    /// When an instance that asks for a transfer was last heard of.
    pub fn heard(&self, config: &Config, now: Instant, instance: InstanceId) -> Instant {
        match planted!(config, 18) {
            true => self.find(instance).map_or(now, |known| known.last_seen),
            false => now,
        }
    }

    /// An instance has shown how it moves its bytes.
    pub fn has_mode(&mut self, instance: InstanceId, mode: Mode) {
        let entry = self.index.get(&instance).and_then(|name| self.instances.find_mut(*name));
        if let Some(entry) = entry.filter(|entry| entry.memory.is_none()) {
            entry.mode = mode;
        }
    }

    /// A silence alarm: the instance that is to be reaped, or none where it was heard of.
    pub fn silence(&mut self, turn: &mut Turn, name: SlotName) -> Option<InstanceId> {
        let entry = self.instances.find_mut(name)?;
        entry.timer = None;
        let allowed = allowed_silence(turn.config, entry)?;
        if turn.now.since(entry.last_seen) >= allowed {
            return Some(entry.id);
        }
        if planted!(turn.config, 19) && entry.pinged {
            let at = turn.now + allowed;
            entry.timer = Some(turn.alarms.arm(at, Alarm::InstanceSilence, name));
            return None;
        }
        self.watch(turn, name);
        None
    }

    /// Arms the silence alarm anew.
    fn watch(&mut self, turn: &mut Turn, name: SlotName) {
        let entry = self.instances.find_mut(name).expect("watched while it exists");
        if let Some(timer) = entry.timer.take() {
            turn.alarms.cancel(timer);
        }
        if let Some(allowed) = allowed_silence(turn.config, entry) {
            let at = entry.last_seen + allowed;
            entry.timer = Some(turn.alarms.arm(at, Alarm::InstanceSilence, name));
        }
    }

    pub fn find(&self, instance: InstanceId) -> Option<&Instance> {
        self.instances.find(*self.index.get(&instance)?)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().map(|(_, instance)| instance)
    }

    pub fn len(&self) -> usize {
        self.instances.len()
    }

    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }
}

/// How long this instance may be silent. None: for ever.
fn allowed_silence(config: &Config, instance: &Instance) -> Option<core::time::Duration> {
    if config.reap_after.is_zero() {
        return None;
    }
    Some(if instance.pinged { config.reap_after } else { config.registration_grace })
}
