//! Who is registered, with which layout, and since when it has been silent.

use super::{Geometry, Model, Verdict, check};
use kvtide_core::names::{Attachment, InstanceId, Layout};
use kvtide_core::time::{Duration, Instant};
use std::rc::Rc;

/// How an instance has been seen to move its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Unknown,
    Slots,
    Inline,
}

/// Why a registration is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    WorldSize,
    Layout,
    Full,
    /// For a reason that no simulated client gives.
    Other,
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub model: Rc<str>,
    pub world_size: u32,
    pub layout: Layout,
    pub way: Way,
    /// What it has registered, if the server copies.
    pub memory: Option<(Attachment, Geometry)>,
    last_seen: Instant,
    has_pinged: bool,
}

impl Model {
    /// `register`. A known instance with the same layout only shows that it is alive.
    pub fn register(
        &mut self,
        instance: InstanceId,
        (model, world_size, layout): (&Rc<str>, u32, Layout),
        memory: Option<(Attachment, Geometry)>,
        rejected: Option<Rejected>,
    ) -> Verdict {
        let is_full =
            !self.instances.contains_key(&instance) && self.instances.len() >= self.rules.instances;
        let full = is_full.then_some(Rejected::Full);
        let expected = self.unfit(world_size, layout).or(full);
        check(rejected == expected, "P7: a registration was refused without that reason")?;
        if expected.is_some() {
            return Ok(());
        }
        let now = self.now;
        if let Some(known) = self.instances.get_mut(&instance) {
            known.last_seen = now;
            let same =
                known.model == *model && known.world_size == world_size && known.layout == layout;
            // Memory that is registered again may be other memory.
            let same = same && known.memory.is_none() && memory.is_none();
            self.outdate(instance);
            return check(same, "a registration with another layout replaced nothing");
        }
        if memory.is_none() {
            self.outdate(instance);
        }
        self.told.retain(|told| *told != instance);
        self.registrations += 1;
        let layouts = self.layouts.entry((model.clone(), world_size)).or_default();
        layouts.retain(|(other, _)| *other != layout);
        layouts.push((layout, self.registrations));
        let entry = Instance {
            model: model.clone(),
            world_size,
            layout,
            way: Way::Unknown,
            memory,
            last_seen: now,
            has_pinged: false,
        };
        self.instances.insert(instance, entry);
        self.reaped.remove(&instance);
        Ok(())
    }

    /// Why nobody of this world can store objects of this layout.
    pub(super) fn unfit(&self, world_size: u32, layout: Layout) -> Option<Rejected> {
        let bytes = layout.bytes().filter(|bytes| *bytes <= self.rules.arena.bytes);
        let slot = bytes.map(|bytes| bytes.next_multiple_of(self.rules.arena.align_bytes));
        if world_size == 0 || world_size > 255 {
            return Some(Rejected::WorldSize);
        }
        let fits = slot.is_some_and(|slot| slot <= self.rules.arena.bytes);
        (!fits).then_some(Rejected::Layout)
    }

    /// Whether an instance is unknown because it was silent for too long.
    pub fn was_reaped(&self, instance: InstanceId) -> bool {
        self.reaped.contains(&instance)
    }

    /// News that an instance is gone. Its uncommitted slots must have been given up with it.
    pub(super) fn instance_ended(&mut self, instance: InstanceId, by_silence: bool) -> Verdict {
        let gone = self.instances.remove(&instance).ok_or("I-49: an unknown instance ended")?;
        if by_silence {
            let silence = self.now.since(gone.last_seen);
            check(Some(silence) >= self.allowed(&gone), "reaped although it was heard of")?;
            self.reaped.insert(instance);
        }
        let in_use = |layout: &Layout| {
            self.instances.values().any(|other| {
                other.model == gone.model
                    && other.world_size == gone.world_size
                    && other.layout == *layout
            })
        };
        if !in_use(&gone.layout)
            && let Some(layouts) = self.layouts.get_mut(&(gone.model.clone(), gone.world_size))
        {
            layouts.retain(|(layout, _)| *layout != gone.layout);
        }
        self.give_up_stores_of(instance, gone.way);
        Ok(())
    }

    pub fn unregister(&mut self, instance: InstanceId) -> Verdict {
        self.outdate(instance);
        check(!self.instances.contains_key(&instance), "unregistered and still there")
    }

    /// An instance that is not registered hears `false` once (F07).
    pub fn ping(&mut self, instance: Option<InstanceId>, got: bool) -> Verdict {
        let Some(instance) = instance else { return check(got, "a prober is answered true") };
        if let Some(known) = self.instances.get_mut(&instance) {
            known.last_seen = self.now;
            known.has_pinged = true;
            return check(got, "a registered instance is answered true");
        }
        let known = self.told.contains(&instance);
        if !known {
            if self.told.len() >= self.rules.told {
                self.told.pop_front();
            }
            self.told.push_back(instance);
        }
        check(got == known, "F07: an unknown instance is told so once")
    }

    pub(super) fn settle_instances(&self) -> Verdict {
        for known in self.instances.values() {
            let overdue = self
                .allowed(known)
                .is_some_and(|allowed| known.last_seen + allowed + SLACK <= self.settled);
            check(!overdue, "P4: a silent instance was not reaped")?;
        }
        Ok(())
    }

    /// The layout that a lookup for this model means: the one registered last and still in use.
    pub(super) fn layout_of(&self, model: &Rc<str>, world_size: u32) -> Option<Layout> {
        let layouts = self.layouts.get(&(model.clone(), world_size))?;
        layouts.iter().max_by_key(|(_, number)| *number).map(|(layout, _)| *layout)
    }

    fn allowed(&self, instance: &Instance) -> Option<Duration> {
        let rules = &self.rules;
        let allowed = if instance.has_pinged { rules.reap_after } else { rules.registration_grace };
        (!rules.reap_after.is_zero()).then_some(allowed)
    }

    pub(super) fn seen(&mut self, instance: InstanceId) -> Option<&mut Instance> {
        let known = self.instances.get_mut(&instance)?;
        known.last_seen = self.now;
        Some(known)
    }
}

/// The silence alarm is armed anew when it fires, so it may come two ticks late.
const SLACK: Duration = Duration::from_millis(3);
