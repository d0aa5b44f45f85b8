//! Events: two counters on a page, which other processes may map. Recording counts at once, and
//! the stream follows when it gets there; a wait captures what was recorded when it was called.
//! So an event that nobody recorded yet holds up nobody, as on a card.

use crate::abi::{self, put};
use crate::gate::{CURRENT, entries};
use crate::ipc::Shared;
use crate::stream::{self, Op};
use crate::world::{self, World};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

pub struct Event {
    pub context: usize,
    pub page: Arc<Shared>,
    pub interprocess: bool,
    pub imported: bool,
}

impl Shared {
    fn recorded(&self) -> &AtomicU64 {
        self.word(2)
    }

    pub fn complete(&self, number: u64) {
        self.word(3).fetch_max(number, Ordering::AcqRel);
    }

    /// Whether that record is done, or nobody is left to do it: what a card makes of a wait for a
    /// process that died is not known, and here the wait ends.
    pub fn reached(&self, number: u64) -> bool {
        self.word(3).load(Ordering::Acquire) >= number
            || !Path::new(&format!("/proc/{}", self.named.process)).exists()
    }

    fn pending(&self) -> bool {
        self.word(3).load(Ordering::Acquire) < self.recorded().load(Ordering::Acquire)
    }
}

impl World {
    /// A handle that is known. Using what its exporter has destroyed is undefined.
    pub fn event(&mut self, handle: usize) -> Result<&Event, u32> {
        let Some(found) = self.events.get(&handle) else {
            self.violation(format!("{handle:#x} is no event, or one that was destroyed"));
            return Err(abi::INVALID_HANDLE);
        };
        if found.imported && found.page.gone() {
            self.violation("an event is used after its exporter destroyed it".to_string());
        }
        Ok(&self.events[&handle])
    }
}

entries! {
    /// An event for other processes must not measure time.
    Context cuEventCreate(out: *mut usize, flags: u32) {
        if flags > 7 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(abi::INVALID_VALUE);
        }
        let mut world = world::lock();
        let made = world.handle();
        let page = Arc::new(Shared::create(world.directory(), made as u64, 8)?);
        let (context, interprocess) = (CURRENT.get(), flags & INTERPROCESS != 0);
        world.events.insert(made, Event { context, page, interprocess, imported: false });
        put(out, made)
    }

    /// Event and stream must be of one context.
    Context cuEventRecord(event: usize, stream: usize) {
        let mut world = world::lock();
        let found = world.event(event)?;
        let (page, context) = (Arc::clone(&found.page), found.context);
        let queue = stream::of(&mut world, stream)?;
        if context != CURRENT.get() {
            world.violation("event and stream are of different contexts".to_string());
            return Err(abi::INVALID_HANDLE);
        }
        let number = page.recorded().fetch_add(1, Ordering::AcqRel) + 1;
        queue.push(&mut world, Op::Record { page, number });
        Ok(())
    }

    /// What was never recorded counts as done.
    Context cuEventQuery(event: usize) {
        let pending = world::lock().event(event)?.page.pending();
        if pending { Err(abi::NOT_READY) } else { Ok(()) }
    }

    /// May be destroyed before it is complete where it is local. For an opened one nothing says
    /// so, and its queued waits look at the exporter's page.
    Cleanup cuEventDestroy_v2(event: usize) {
        let mut world = world::lock();
        let Some(found) = world.events.get(&event) else {
            world.violation(format!("{event:#x} is no event that could be destroyed"));
            return Err(abi::INVALID_HANDLE);
        };
        if found.imported && Arc::strong_count(&found.page) > 1 {
            world.violation_in_flight("an opened event is destroyed while a wait for it is queued");
        }
        let found = world.events.remove(&event).expect("looked up above");
        if !found.imported {
            found.page.retire();
        }
        Ok(())
    }

    /// Captures the newest record. A wait for what was never recorded passes at once, which is
    /// nearly always a mistake in the order of two calls.
    Context cuStreamWaitEvent(stream: usize, event: usize, flags: u32) {
        if flags > 1 {
            return Err(abi::INVALID_VALUE);
        }
        let mut world = world::lock();
        let queue = stream::of(&mut world, stream)?;
        let found = world.event(event)?;
        let page = Arc::clone(&found.page);
        let number = page.recorded().load(Ordering::Acquire);
        if number == 0 {
            world.violation("a wait for an event that was never recorded".to_string());
        }
        queue.push(&mut world, Op::Wait { page, number });
        Ok(())
    }
}
