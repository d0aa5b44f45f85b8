//! Which layout a lookup for (model, world size) means: the one registered last and still in use.

use crate::Map;
use crate::config::Limits;
use crate::engine::memory::{TEXT_BYTES, map_bytes};
use crate::limits;
use crate::map_with_capacity;
use crate::names::Layout;
use alloc::sync::Arc;
use smallvec::SmallVec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    world_size: u32,
    layout: Layout,
    instances: u32,
}

#[derive(Clone, Debug)]
pub struct Layouts {
    /// Newest last.
    by_model: Map<Arc<str>, SmallVec<[Use; 1]>>,
}

impl Layouts {
    pub fn new(seed: u64) -> Layouts {
        Layouts { by_model: map_with_capacity(limits::INSTANCES_MAX, seed ^ 10) }
    }

    /// A model, a list and a layout for every instance.
    pub(crate) fn table_bytes(limits: &Limits) -> u64 {
        let text = TEXT_BYTES + limits::MODEL_BYTES_MAX;
        // Lists double as they grow, and do not shrink while they have an entry.
        let uses = 4 * size_of::<Use>();
        map_bytes::<Arc<str>, SmallVec<[Use; 1]>>(limits.instances.max(limits::INSTANCES_MAX))
            + (limits.instances * (text + uses)) as u64
    }

    pub fn retain(&mut self, model: &Arc<str>, world_size: u32, layout: Layout) {
        let uses = self.by_model.entry(model.clone()).or_default();
        let known = uses.iter().position(|u| u.world_size == world_size && u.layout == layout);
        let mut entry = match known {
            Some(at) => uses.remove(at),
            None => Use { world_size, layout, instances: 0 },
        };
        entry.instances += 1;
        uses.push(entry);
    }

    pub fn release(&mut self, model: &Arc<str>, world_size: u32, layout: Layout) {
        let uses = self.by_model.get_mut(model).expect("released once per instance");
        let known = uses.iter().position(|u| u.world_size == world_size && u.layout == layout);
        let at = known.expect("released once per instance");
        uses[at].instances -= 1;
        if uses[at].instances == 0 {
            uses.remove(at);
            uses.shrink_to_fit();
        }
        if uses.is_empty() {
            self.by_model.remove(model);
        }
    }

    pub fn find(&self, model: &str, world_size: u32) -> Option<Layout> {
        let uses = self.by_model.get(model)?;
        uses.iter().rev().find(|u| u.world_size == world_size).map(|u| u.layout)
    }

    /// Instances that have this layout, for the audit.
    pub(crate) fn uses(&self, model: &str, world_size: u32, layout: Layout) -> u32 {
        let uses = self.by_model.get(model).map_or(&[][..], |uses| &uses[..]);
        let mut uses = uses.iter().filter(|u| u.world_size == world_size && u.layout == layout);
        let first = uses.next().map_or(0, |u| u.instances);
        first + uses.map(|u| u.instances).sum::<u32>()
    }

    /// Instances counted over all layouts, for the audit.
    pub fn instances(&self) -> u32 {
        self.by_model.values().flatten().map(|u| u.instances).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Dtype;

    fn layout(layers: u32) -> Layout {
        let dtype = Dtype::named("float16").expect("a known type");
        Layout { planes: 2, layers, slots: 16, hidden: 8, dtype }
    }

    #[test]
    fn the_last_registration_wins_while_it_lasts() {
        let mut layouts = Layouts::new(0);
        let model: Arc<str> = "m".into();
        layouts.retain(&model, 1, layout(1));
        layouts.retain(&model, 1, layout(2));
        layouts.retain(&model, 2, layout(3));
        assert_eq!(layouts.find("m", 1), Some(layout(2)));
        layouts.release(&model, 1, layout(2));
        assert_eq!(layouts.find("m", 1), Some(layout(1)));
        layouts.release(&model, 1, layout(1));
        assert_eq!(layouts.find("m", 1), None);
        assert_eq!(layouts.find("m", 2), Some(layout(3)));
    }
}
