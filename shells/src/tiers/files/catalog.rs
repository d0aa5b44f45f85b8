//! A tier's index and the look through its folder, as its reactor sees them.
//!
//! Until that look has ended, a probe is told what the index says of the files that it finds.
//! Invariant: nothing here waits for the device; one batch of what was found is told in a turn, and
//! the keeper makes no more of them meanwhile.

use crate::ending::Ending;
use crate::tiers::Terms;
use crate::tiers::index::told;
use crate::tiers::index::{
    Index, IndexError, IndexOptions, Known, Question, ScanNews, ScanSummary,
};
use crate::tiers::spec::{AdapterSpec, FilesSpec};
use kvtide_core::effect::Note;
use kvtide_core::event::{Event, Found, Scanned};
use kvtide_core::format::names::ObjectName;
use kvtide_core::names::{AdapterId, Ticket};
use kvtide_lanes::lane::{Consumer, lane};
use std::collections::{BTreeMap, VecDeque};
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
    /// Probes of which the index was asked.
    asked: BTreeMap<Ticket, Asked>,
    /// Probes that both have answered by now.
    answered: Vec<(Ticket, Vec<Option<Found>>)>,
}

/// Which half of a probe's answer has come first.
enum Asked {
    Neither,
    /// The index has told.
    Known(Vec<Option<Found>>),
    /// Its files were looked at.
    Looked(Vec<Option<Found>>),
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
            asked: BTreeMap::new(),
            answered: Vec::new(),
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

    /// A probe begins: what does the index say? What it was told of by then is in the engine's
    /// table.
    pub fn ask(&mut self, ticket: Ticket, names: &[ObjectName<'_>]) {
        let Some(index) = self.index.as_mut().filter(|_| !self.is_scanned) else { return };
        index.ask(Question::new(ticket, names));
        self.asked.insert(ticket, Asked::Neither);
    }

    /// A probe's look at its files has ended. What is to be told of it, unless the index is still
    /// being asked.
    pub fn looked(
        &mut self,
        ticket: Ticket,
        found: Option<Vec<Option<Found>>>,
    ) -> Option<Option<Vec<Option<Found>>>> {
        let asked = self.asked.remove(&ticket);
        let Some(found) = found else { return Some(None) };
        match asked {
            Some(Asked::Known(known)) => Some(Some(both(found, known))),
            Some(_) if found.iter().any(Option::is_some) => {
                self.asked.insert(ticket, Asked::Looked(found));
                None
            }
            Some(_) | None => Some(Some(found)),
        }
    }

    /// True where only the index was waited for.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let is_it = matches!(self.asked.get(&ticket), Some(Asked::Looked(_)));
        is_it && self.asked.remove(&ticket).is_some()
    }

    /// Probes that have ended since.
    pub fn answered(&mut self) -> impl Iterator<Item = (Ticket, Vec<Option<Found>>)> {
        self.answered.drain(..)
    }

    fn known(&mut self, Known { ticket, found: known }: Known) {
        match self.asked.remove(&ticket) {
            Some(Asked::Looked(found)) => self.answered.push((ticket, both(found, known))),
            Some(_) => drop(self.asked.insert(ticket, Asked::Known(known))),
            None => {}
        }
    }

    /// All that the index could tell was told.
    fn end_scan(&mut self, adapter: AdapterId, tell: &mut dyn FnMut(Event<'_>)) {
        self.is_scanned = true;
        for (ticket, asked) in std::mem::take(&mut self.asked) {
            if let Asked::Looked(found) = asked {
                self.answered.push((ticket, found));
            }
        }
        tell(Event::AdapterScanEnded { adapter });
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
        while matches!(self.waiting.front(), Some(ScanNews::Known(_))) {
            if let Some(ScanNews::Known(known)) = self.waiting.pop_front() {
                self.known(known);
            }
        }
        match self.waiting.pop_front() {
            Some(ScanNews::Known(known)) => self.known(known),
            Some(ScanNews::Found(batch)) => {
                let found: Vec<Scanned<'_>> =
                    batch.objects.iter().map(|object| object.scanned()).collect();
                tell(Event::AdapterScanned { adapter, found: &found });
            }
            Some(ScanNews::Ended(summary)) => {
                announce(&self.name, &summary);
                self.end_scan(adapter, tell);
            }
            // The keeper is gone, which only a panic can bring about: what it has not told is found
            // by being asked for.
            None if !is_open => {
                tracing::error!("L2 {}: the look through its folder has ended early", self.name);
                self.end_scan(adapter, tell);
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

/// What was found, with what the index tells of it.
fn both(found: Vec<Option<Found>>, known: Vec<Option<Found>>) -> Vec<Option<Found>> {
    let each = found.into_iter().zip(known);
    each.map(|(file, known)| file.map(|file| told(file, known))).collect()
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
