//! Memory of engines that the server may copy from and to (server-driven transfer).
//!
//! The invariant: what is here is being attached, for a registration that waits for it, or it is
//! attached, for exactly one registration that lives. Whatever leaves is let go by one
//! `Effect::Detach`, except what never came.

use crate::config::Limits;
use crate::effect::{Effect, Outbox};
use crate::engine::audit::{Violation, check};
use crate::engine::clients::Clients;
use crate::engine::memory::{TEXT_BYTES, map_bytes, slots_bytes};
use crate::event::PagedRegistration;
use crate::limits::MODEL_BYTES_MAX;
use crate::names::{Attachment, Connection, Device, InstanceId, Reply};
use crate::pages::Pages;
use crate::slots::{SlotName, Slots};
use crate::{Map, map_with_capacity};
use alloc::sync::Arc;
use smallvec::SmallVec;

/// An instance's memory, as its registration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub attachment: Attachment,
    pub pages: Pages,
    pub device: Device,
}

/// A registration whose memory has been attached.
#[derive(Clone, Debug)]
pub struct Pending {
    pub reply: Reply,
    pub instance: InstanceId,
    pub model: Arc<str>,
    pub world_size: u32,
    pub pages: Pages,
    /// Its instance has left since, or has registered anew: what was said last holds, whichever
    /// memory is attached first.
    pub is_outdated: bool,
}

#[derive(Clone, Debug)]
enum State {
    Attaching(Pending),
    /// Its connection has ended meanwhile.
    Unwanted,
    Attached(InstanceId),
}

#[derive(Clone, Debug)]
struct Entry {
    connection: Connection,
    state: State,
}

#[derive(Clone, Debug)]
pub struct Attachments {
    entries: Slots<Entry>,
    by_connection: Map<Connection, SmallVec<[SlotName; 1]>>,
    pub stale_endings: u64,
}

impl Attachments {
    pub fn new(limits: &Limits, seed: u64) -> Attachments {
        Attachments {
            entries: Slots::with_limit(limits.instances),
            by_connection: map_with_capacity(limits.instances, seed ^ 13),
            stale_endings: 0,
        }
    }

    pub(crate) fn table_bytes(limits: &Limits) -> u64 {
        // Lists double as they grow.
        let each = TEXT_BYTES + MODEL_BYTES_MAX + 2 * size_of::<SlotName>();
        slots_bytes::<Entry>(limits.instances)
            + map_bytes::<Connection, SmallVec<[SlotName; 1]>>(limits.instances)
            + (limits.instances * each) as u64
    }

    /// Whether somebody waits for memory to be attached.
    pub fn is_attaching(&self) -> bool {
        self.entries.iter().any(|(_, entry)| !matches!(entry.state, State::Attached(_)))
    }

    pub fn is_full(&self) -> bool {
        self.entries.is_full()
    }

    /// Orders the memory of a registration to be attached.
    pub fn begin(&mut self, reply: Reply, registration: &PagedRegistration, out: &mut Outbox) {
        let PagedRegistration { instance, model, world_size, pages } = *registration;
        let (model, is_outdated) = (model.into(), false);
        let pending = Pending { reply, instance, model, world_size, pages, is_outdated };
        let connection = reply.connection;
        let entry = Entry { connection, state: State::Attaching(pending) };
        let name = self.entries.insert(entry).expect("the caller has looked for room");
        self.by_connection.entry(connection).or_default().push(name);
        out.effects.push(Effect::Attach { attachment: Attachment(name), reply, pages });
    }

    /// An instance has said something else since it asked for its memory to be attached.
    pub fn outdate(&mut self, instance: InstanceId) {
        for index in 0..self.entries.high_water() {
            if let Some(entry) = self.entries.at_mut(index)
                && let State::Attaching(pending) = &mut entry.state
            {
                pending.is_outdated |= pending.instance == instance;
            }
        }
    }

    /// The end of an `Attach`: the registration that waited for it, if it is still wanted. One that
    /// has ended before changes nothing and is counted.
    pub fn ended(&mut self, attachment: Attachment, is_good: bool, out: &mut Outbox) -> Ended {
        let entry = self.entries.find_mut(attachment.0);
        let Some(entry) = entry.filter(|entry| !matches!(entry.state, State::Attached(_))) else {
            self.stale_endings += 1;
            return Ended::Stale;
        };
        let State::Attaching(pending) = &entry.state else {
            if is_good {
                self.detach(attachment, out);
            } else {
                self.forget(attachment);
            }
            return Ended::Unwanted;
        };
        let pending = pending.clone();
        if is_good && pending.is_outdated {
            self.detach(attachment, out);
        } else if is_good {
            entry.state = State::Attached(pending.instance);
        } else {
            self.forget(attachment);
        }
        Ended::Of(pending)
    }

    /// Its registration has ended, or never came about.
    pub fn detach(&mut self, attachment: Attachment, out: &mut Outbox) {
        self.forget(attachment);
        out.effects.push(Effect::Detach { attachment });
    }

    /// End of stream: whoever registered memory over this connection is gone, and holding it would
    /// keep it from the next engine (F09). Whose registrations have to end.
    pub fn connection_ended(&mut self, connection: Connection) -> SmallVec<[InstanceId; 1]> {
        let mut ended = SmallVec::new();
        for name in self.by_connection.get(&connection).into_iter().flatten() {
            let entry = self.entries.find_mut(*name).expect("a connection lists what there is");
            match entry.state {
                State::Attached(instance) => ended.push(instance),
                _ => entry.state = State::Unwanted,
            }
        }
        ended
    }

    fn forget(&mut self, attachment: Attachment) {
        let entry = self.entries.remove(attachment.0).expect("forgotten once");
        let names = self.by_connection.get_mut(&entry.connection);
        let names = names.expect("every attachment is listed");
        names.retain(|name| *name != attachment.0);
        if names.is_empty() {
            self.by_connection.remove(&entry.connection);
        }
    }

    /// Registrations and attachments belong together one by one.
    pub(crate) fn audit(&self, clients: &Clients) -> Result<(), Violation> {
        let listed: usize = self.by_connection.values().map(|names| names.len()).sum();
        check(listed == self.entries.len(), "I-6", "attachments are listed wrongly")?;
        let mut attached = 0;
        for (name, entry) in self.entries.iter() {
            let listed = self.by_connection.get(&entry.connection);
            let is_listed = listed.is_some_and(|names| names.contains(&name));
            check(is_listed, "I-6", "a connection does not list its attachment")?;
            let State::Attached(instance) = entry.state else { continue };
            attached += 1;
            let memory = clients.find(instance).and_then(|known| known.memory);
            let is_its = memory.is_some_and(|memory| memory.attachment == Attachment(name));
            check(is_its, "I-6", "memory is attached for nobody")?;
        }
        let registered = clients.iter().filter(|known| known.memory.is_some()).count();
        check(registered == attached, "I-6", "an instance's memory is not attached")
    }
}

/// What the end of an `Attach` is about.
pub enum Ended {
    Stale,
    Unwanted,
    Of(Pending),
}
