//! A directory with one file per object (`fs`, `fs_native`).

pub mod status;

use super::index::Index;
use super::spec::{AdapterSpec, FilesSpec};
use super::{Order, Terms};
use crate::arena::Span;
use kvtide_core::effect::Note;
use kvtide_core::event::Event;
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::{AdapterId, Ticket};
use mio::{Registry, Token};
use status::TierStatus;
use std::io;

#[derive(Debug)]
pub struct FileTier {
    index: Index,
}

/// How much a tier can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub capacity_bytes: u64,
    pub charge_bytes: u32,
}

impl FileTier {
    pub fn open(
        _files: &FilesSpec,
        _spec: &AdapterSpec,
        _terms: &Terms,
    ) -> io::Result<(FileTier, Room)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn probe<'a>(&mut self, _ticket: Ticket, _names: impl Iterator<Item = ObjectName<'a>>) {}

    pub fn store(&mut self, _order: Order<'_>, _span: Span) {}

    pub fn load(&mut self, _order: Order<'_>, _span: Span) {}

    pub fn delete(&mut self, _order: Order<'_>, _quarantine: bool) {}

    pub fn scrub(&mut self, _order: Order<'_>, _bytes: u64) {}

    pub fn cancel(&mut self, _ticket: Ticket) {}

    pub fn note(&mut self, name: &ObjectName<'_>, note: Note) {
        self.index.note(name, note);
    }

    pub fn added(&mut self, adapter: AdapterId) {
        self.index.start_scan(adapter);
    }

    pub fn register(&mut self, _registry: &Registry, _token: Token) -> io::Result<()> {
        Ok(())
    }

    pub fn collect(&mut self, tell: &mut dyn FnMut(Event<'_>)) {
        self.index.collect(tell);
    }

    pub fn submit(&mut self, _budget: &mut u64) -> bool {
        false
    }

    pub fn is_idle(&self) -> bool {
        true
    }

    pub fn close(self) {}

    pub fn status(&self) -> TierStatus {
        TierStatus::default()
    }
}
