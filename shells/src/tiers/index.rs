//! The index of a directory of objects (`.kvtide/<uuid>.idx`), and the scan that tells what lies
//! there when its adapter joins.

use kvtide_core::effect::Note;
use kvtide_core::event::Event;
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::AdapterId;

/// Owned by the tier whose directory it is about. Invariant: no method waits for the device.
#[derive(Debug, Default)]
pub struct Index {
    scans: Option<AdapterId>,
}

impl Index {
    /// Bytes of objects that lay there at the last shutdown, as far as is known without looking.
    pub fn held_bytes(&self) -> u64 {
        0
    }

    /// A line about one object.
    pub fn note(&mut self, _name: &ObjectName<'_>, _note: Note) {}

    /// The adapter has joined: begin to tell what lies there.
    pub fn start_scan(&mut self, adapter: AdapterId) {
        self.scans = Some(adapter);
    }

    /// What the scan has found since: `AdapterScanned`, and in the end `AdapterScanEnded`.
    pub fn collect(&mut self, tell: &mut dyn FnMut(Event<'_>)) {
        if let Some(adapter) = self.scans.take() {
            tell(Event::AdapterScanEnded { adapter });
        }
    }
}
