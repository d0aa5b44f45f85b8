//! A tier's index and the look through its folder, as its reactor sees them.
//!
//! Invariant: nothing here waits for the device; one batch of what was found is told in a turn, and
//! the keeper makes no more of them meanwhile.

use crate::ending::Ending;
use crate::tiers::Terms;
use crate::tiers::index::{Index, IndexError, IndexOptions, ScanNews, ScanSummary};
use crate::tiers::spec::{AdapterSpec, FilesSpec};
use kvtide_core::effect::Note;
use kvtide_core::event::{Event, Scanned};
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::AdapterId;
use kvtide_lanes::lane::{Consumer, lane};
use std::collections::VecDeque;
use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

pub struct Catalog {
    /// None in a folder that cannot be written: what lies there is found by being asked for.
    index: Option<Index>,
    uuid: String,
    found: Consumer<ScanNews>,
    taken: Vec<ScanNews>,
    waiting: VecDeque<ScanNews>,
    /// Set when it has joined the roster; nothing is told before.
    adapter: Option<AdapterId>,
    name: String,
    is_scanned: bool,
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Catalog {
    pub fn open(
        files: &FilesSpec,
        spec: &AdapterSpec,
        terms: &Terms,
    ) -> Result<Catalog, IndexError> {
        let (mut news, found) = lane(NEWS);
        let wake = terms.wake.clone();
        let on_scan = move |told| match news.put(told) {
            Ok(()) => {
                wake();
                Ok(())
            }
            Err(refused) => Err(refused.into_value()),
        };
        let options = IndexOptions {
            name: spec.name.clone(),
            objects_max: spec.objects_max as usize,
            temp_dir: files.relative_tmp_dir.clone(),
        };
        let index = match Index::open(&files.base_path, options, on_scan) {
            Ok(index) => Some(index),
            Err(error) if is_refusal(error.kind()) => None,
            Err(error) => return Err(error),
        };
        Ok(Catalog {
            uuid: index.as_ref().map_or(&*terms.server, Index::uuid).to_owned(),
            index,
            found,
            taken: Vec::new(),
            waiting: VecDeque::new(),
            adapter: None,
            name: spec.name.clone(),
            is_scanned: false,
        })
    }

    /// Tells this run's temporary files from those of others.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    pub fn note(&mut self, name: &ObjectName<'_>, note: Note) {
        if let Some(index) = &mut self.index {
            index.note(name, note);
        }
    }

    pub fn quarantined(&mut self) {
        if let Some(index) = &mut self.index {
            index.quarantined();
        }
    }

    pub fn start_scan(&mut self, adapter: AdapterId) {
        self.adapter = Some(adapter);
    }

    /// What was found since, a batch at the most. True where more can be told at once.
    pub fn collect(&mut self, tell: &mut dyn FnMut(Event<'_>)) -> bool {
        let Some(adapter) = self.adapter else { return false };
        let Some(index) = &mut self.index else {
            if !std::mem::replace(&mut self.is_scanned, true) {
                tell(Event::AdapterScanEnded { adapter });
            }
            return false;
        };
        index.flush();
        if self.is_scanned {
            return false;
        }
        let is_open = self.found.take(&mut self.taken);
        self.waiting.extend(self.taken.drain(..));
        match self.waiting.pop_front() {
            Some(ScanNews::Found(batch)) => {
                let found: Vec<Scanned<'_>> =
                    batch.objects.iter().map(|object| object.scanned()).collect();
                tell(Event::AdapterScanned { adapter, found: &found });
            }
            Some(ScanNews::Ended(summary)) => {
                self.is_scanned = true;
                announce(&self.name, &summary);
                tell(Event::AdapterScanEnded { adapter });
            }
            // The keeper is gone, which only a panic can bring about: what it has not told is found
            // by being asked for.
            None if !is_open => {
                self.is_scanned = true;
                tracing::error!("L2 {}: the look through its folder has ended early", self.name);
                tell(Event::AdapterScanEnded { adapter });
            }
            None => {}
        }
        !self.waiting.is_empty()
    }

    /// What was noted is handed over. When all of it has reached the disk the index has ended.
    pub fn close(self) -> Option<Closing> {
        let name = self.name;
        self.index.map(|index| Closing { name, ending: index.close() })
    }
}

/// An index that is being written to its end, on its own thread.
#[derive(Debug)]
pub struct Closing {
    name: String,
    ending: Ending,
}

impl Closing {
    /// Waits until it is written, unless that takes too long.
    pub fn within(self, patience: Duration) {
        if !self.ending.within(patience) {
            let name = self.name;
            tracing::warn!("L2 {name}: its index was not written to its end; a scan makes it anew");
        }
    }
}

/// The folder is there and is not ours to write to.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}

fn announce(name: &str, summary: &ScanSummary) {
    let ScanSummary { known, unknown, bytes, absent, forgotten, foreign, temps_removed, .. } =
        summary;
    let millis = summary.took.as_millis();
    tracing::info!(
        "L2 {name}: {known} objects of its index and {unknown} others lie there, {bytes} bytes; \
         {absent} are gone, {forgotten} have no room in its table, {foreign} files are not its \
         own; {temps_removed} temporary files of dead servers were removed; {millis} ms"
    );
    if let Some(example) = &summary.foreign_example {
        tracing::info!("L2 {name}: one file that is not its own is {example:?}");
    }
    if let Some(fault) = &summary.fault {
        tracing::warn!("L2 {name}: its folder was not read to the end: {fault}");
    }
}

/// Batches on their way: the keeper makes two at the most, and says that it has ended.
const NEWS: usize = 4;
