//! What must hold of instances: their layouts are counted, their silence is watched.

use super::{Clients, allowed_silence};
use crate::engine::alarms::Alarm;
use crate::engine::audit::{Claims, View, Violation, check};
use crate::engine::layouts::Layouts;
use crate::names::InstanceId;
use crate::slots::SlotName;

impl Clients {
    /// Adds the alarms that instances wait for.
    pub(crate) fn audit(
        &self,
        view: &View,
        layouts: &Layouts,
        claims: &mut Claims,
    ) -> Result<(), Violation> {
        for (name, instance) in self.instances.iter() {
            let named = self.index.get(&instance.id) == Some(&name);
            check(named, "I-45", "an instance is not the one under its id")?;
            check(instance.registration == name, "I-45", "an instance has another's name")?;
            let told = self.told_set.contains_key(&instance.id);
            check(!told, "I-45", "an instance is registered and told that it is not")?;
            let same = self.instances.iter().filter(|(_, other)| {
                other.model == instance.model
                    && (other.world_size, other.layout) == (instance.world_size, instance.layout)
            });
            let uses = layouts.uses(&instance.model, instance.world_size, instance.layout);
            check(uses as usize == same.count(), "I-45", "a layout's instances are miscounted")?;
            let Some(allowed) = allowed_silence(view.config, instance) else {
                check(instance.timer.is_none(), "I-44", "silence is watched though it may last")?;
                continue;
            };
            let (timer, until) = (instance.timer, instance.last_seen + allowed);
            let watched = view.alarms.will_fire(timer, Alarm::InstanceSilence, name, until);
            check(watched, "I-11", "a silent instance would stay for ever")?;
            claims.timers += 1;
        }
        let indexed = self.index.len() == self.instances.len();
        check(indexed, "I-45", "an instance id names nothing")?;
        let counted = layouts.instances() as usize;
        check(counted == self.instances.len(), "I-45", "layouts do not match the instances")?;
        let told = self.told.len() == self.told_set.len();
        check(told, "I-45", "those that were told are listed and counted differently")?;
        check(self.told.len() <= view.config.limits.told, "P3", "more are told than may be")
    }

    /// Whether this registration is the one that an instance has now.
    pub(crate) fn is_registered(&self, instance: InstanceId, registration: SlotName) -> bool {
        self.instances.find(registration).is_some_and(|entry| entry.id == instance)
    }
}
