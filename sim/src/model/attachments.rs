//! Memory of engines: attached for one registration, and let go once (I-6, F09).

use super::clients::Rejected;
use super::{Geometry, Model, Verdict, check};
use kvtide_core::names::{Attachment, Connection, InstanceId, Layout};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A registration whose memory is being attached.
#[derive(Clone, Debug)]
struct Attaching {
    connection: Connection,
    instance: InstanceId,
    /// The instance has left since, or registered anew.
    is_outdated: bool,
}

/// What the end of an attach means for the registration that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It is answered as any other.
    Registration,
    /// It is refused: the instance has said something else since.
    Outdated,
    /// Nobody waits any more.
    Nothing,
}

#[derive(Default)]
pub(super) struct Attachments {
    attaching: BTreeMap<Attachment, Attaching>,
    /// Over which connection each was registered.
    attached: BTreeMap<Attachment, Connection>,
}

/// What a server-driven registration says.
#[derive(Clone, Copy, Debug)]
pub struct Says<'a> {
    pub instance: InstanceId,
    pub model: &'a Rc<str>,
    pub world_size: u32,
    pub layout: Layout,
    pub geometry: Geometry,
}

impl Model {
    /// A registration with memory was refused at once, or its memory is to be attached.
    pub fn attach_asked(&mut self, says: &Says, rejected: Option<Rejected>) -> Verdict {
        let tables = self.attachments.attaching.len() + self.attachments.attached.len();
        let expected = match self.unfit(says.world_size, says.layout) {
            None if tables >= self.rules.instances => Some(Rejected::Full),
            unfit => unfit,
        };
        check(rejected == expected, "P7: a registration was refused without that reason")
    }

    pub fn attach_ordered(
        &mut self,
        says: &Says,
        attachment: Attachment,
        connection: Connection,
    ) -> Verdict {
        self.attach_asked(says, None)?;
        let instance = says.instance;
        self.outdate(instance);
        let attaching = Attaching { connection, instance, is_outdated: false };
        let known = self.attachments.attaching.insert(attachment, attaching).is_some();
        let known = known || self.attachments.attached.contains_key(&attachment);
        check(!known, "I-6: two attachments have one name")
    }

    /// The instance has said something else since it registered memory.
    pub(super) fn outdate(&mut self, instance: InstanceId) {
        let attaching = self.attachments.attaching.values_mut();
        attaching.filter(|each| each.instance == instance).for_each(|each| each.is_outdated = true);
    }

    /// The end of an attach, before its answer. None: it is stale.
    pub fn attach_ended(&mut self, attachment: Attachment, is_good: bool) -> Option<Due> {
        let ended = self.attachments.attaching.remove(&attachment)?;
        if is_good {
            self.attachments.attached.insert(attachment, ended.connection);
        }
        Some(match self.ended.contains(&ended.connection) {
            true => Due::Nothing,
            false if ended.is_outdated => Due::Outdated,
            false => Due::Registration,
        })
    }

    /// Detached in this event. What is attached from then on is what somebody has registered.
    pub fn detached(&mut self, detached: &[Attachment]) -> Verdict {
        for attachment in detached {
            let known = self.attachments.attached.remove(attachment).is_some();
            check(known, "I-6: detached twice, or what was never attached")?;
        }
        let registered = self.instances.values().filter_map(|known| known.memory);
        let mut registered: Vec<Attachment> = registered.map(|(of, _)| of).collect();
        registered.sort();
        let attached = self.attachments.attached.keys();
        check(
            attached.eq(&registered),
            "I-6: memory is attached for nobody, or somebody's is not",
        )?;
        let is_over = |connection: &Connection| self.ended.contains(connection);
        let over = self.attachments.attached.values().any(is_over);
        check(!over, "F09: memory outlives the connection that it was registered over")
    }

    /// Attachments under way and in use.
    pub fn attachments(&self) -> (usize, usize) {
        (self.attachments.attaching.len(), self.attachments.attached.len())
    }
}
