//! Opening a directory of objects: which engine can be had, what the file system can do, and how
//! much there is room for. Found out by doing it: a file is written, renamed and read back through
//! the very path that objects will take (F27).
//!
//! Invariant: whatever falls short of what was asked for has one sentence that says why, and what
//! would change it.

use super::catalog::Catalog;
use super::engine::{Chain, Engine, How, Step};
use super::folders::{Folder, Folders, Temporaries, own_name};
use super::job::{Class, Rules};
use super::memory::{BLOCK_BYTES, Blocks, Memory};
use super::ring::Ring;
use super::threads::Threads;
use super::{FileTier, Room, unregistered};
use crate::arena::sizing::Bytes;
use crate::tiers::Terms;
use crate::tiers::index::{IndexError, capacity, free_bytes, held_bytes};
use crate::tiers::spec::{AdapterSpec, FilesSpec};
use rustix::fs::fstatvfs;
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What was found out.
struct Found {
    engine: Engine,
    rules: Rules,
    reasons: Vec<String>,
}

impl FileTier {
    /// Opens the directory and creates what is missing. Waits for the device.
    pub fn open(
        files: &FilesSpec,
        spec: &AdapterSpec,
        terms: &Terms,
    ) -> io::Result<(FileTier, Room)> {
        // Each kind of work has a place where others never leave off.
        let places = spec.queue_depth.clamp(Class::ALL.len() as u32, PLACES_MAX) as usize;
        let temporary = files.relative_tmp_dir.as_deref();
        let mut folders = Arc::new(Folders::open(&files.base_path, temporary)?);
        let mut temporaries = Temporaries::new(&terms.server);
        let mut found = find(files, places, terms, &folders)?;
        loop {
            match found.try_out(&mut temporaries, &terms.server)? {
                Trial::Passed => break,
                Trial::Again => {}
                Trial::TemporaryElsewhere => {
                    found.reasons.push(
                        "relative_tmp_dir is on another file system, so temporary files lie \
                         beside the objects"
                            .to_owned(),
                    );
                    folders = Arc::new(Folders::open(&files.base_path, None)?);
                    let reasons = std::mem::take(&mut found.reasons);
                    found = find(files, places, terms, &folders)?;
                    found.reasons.extend(reasons);
                }
            }
        }
        found.engine.forget_moved();
        let room = room(files, &folders, spec)?;
        let other = |error: IndexError| io::Error::other(error.to_string());
        let catalog = Catalog::open(files, spec, terms).map_err(other)?;
        let temporaries = Temporaries::new(catalog.uuid());
        let Found { engine, rules, reasons } = found;
        let tier = FileTier::of(engine, (rules, places), folders, terms, (catalog, temporaries));
        let tier = tier.with_reasons(reasons);
        announce(&tier, files, spec, room);
        Ok((tier, room))
    }
}

fn find(
    files: &FilesSpec,
    places: usize,
    terms: &Terms,
    folders: &Arc<Folders>,
) -> io::Result<Found> {
    let mut reasons = Vec::new();
    let ring = match files.without_ring {
        true => {
            reasons.push("io_uring is switched off for this adapter".to_owned());
            None
        }
        false => match Ring::open(places, terms.window.clone(), folders.clone()) {
            Ok(ring) => {
                if let Some(error) = ring.refused_buffers() {
                    reasons.push(unregistered(error, terms.window.mapped_bytes()));
                }
                Some(ring)
            }
            Err(why) => {
                reasons.push(why.to_string());
                None
            }
        },
    };
    let engine = match ring {
        Some(ring) => Engine::Ring(Box::new(ring)),
        None => {
            let workers = files.num_workers.clamp(1, WORKERS_MAX) as usize;
            let wake = terms.wake.clone();
            Engine::Threads(Threads::start(workers, places, &terms.window, folders, wake)?)
        }
    };
    let rules = Rules {
        direct: files.use_odirect,
        can_truncate: engine.can_truncate(),
        keeps_existing: true,
        sync: files.sync,
        read_ahead: files.read_ahead_bytes.filter(|bytes| *bytes > 0),
    };
    Ok(Found { engine, rules, reasons })
}

enum Trial {
    Passed,
    /// A rule was relaxed: try again under it.
    Again,
    TemporaryElsewhere,
}

impl Found {
    fn try_out(&mut self, temporaries: &mut Temporaries, server: &str) -> io::Result<Trial> {
        let name = own_name(&format!("trial.{server}"));
        let temporary = temporaries.name(c"kvtide-trial");
        let trial = self.write_and_read(&name, &temporary, server);
        if trial.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            // What was begun has not come back, so nothing more is begun with that file.
            return trial;
        }
        let remove = |folder, name| Step::Remove { folder, name };
        self.run(Chain::loose(vec![
            remove(Folder::Temporary, temporary),
            remove(Folder::Own, name),
        ]))?;
        trial
    }

    fn write_and_read(
        &mut self,
        name: &Arc<CStr>,
        temporary: &Arc<CStr>,
        server: &str,
    ) -> io::Result<Trial> {
        let direct = self.rules.direct;
        let mut pattern = Blocks::new(BLOCK_BYTES);
        let text = server.as_bytes().iter().cycle();
        pattern.bytes_mut().iter_mut().zip(text).for_each(|(byte, letter)| *byte = *letter);
        let wanted = pattern.bytes().to_vec();
        let length = BLOCK_BYTES as usize;
        let write = Chain::of(vec![
            Step::Open {
                folder: Folder::Temporary,
                name: temporary.clone(),
                how: How::Create { direct },
            },
            Step::Write { from: Memory::Blocks(pattern, length), offset: 0, direct },
            Step::Rename {
                from: (Folder::Temporary, temporary.clone()),
                to: (Folder::Own, name.clone()),
                replace: !self.rules.keeps_existing,
            },
            Step::Close,
        ]);
        let written = self.run(write)?;
        if let Some(trial) = self.judge_writing(&written) {
            return Ok(trial);
        }
        let into = Memory::Blocks(Blocks::new(BLOCK_BYTES), length);
        let read = Chain::of(vec![
            Step::Open { folder: Folder::Own, name: name.clone(), how: How::Read { direct } },
            Step::Read { into, offset: 0, direct, may_end: true },
            Step::Close,
        ]);
        let read = self.run(read)?;
        let is_same = read.steps.iter().any(|step| {
            matches!(step, Step::Read { into: Memory::Blocks(blocks, _), .. }
                if blocks.bytes() == wanted)
        });
        if is_same && read.outcomes.iter().all(Result::is_ok) {
            return Ok(Trial::Passed);
        }
        let error = read.outcomes.iter().find_map(|outcome| outcome.err());
        if direct {
            self.relax_direct(error);
            return Ok(Trial::Again);
        }
        let why = error.map_or("it reads back other bytes".to_owned(), |error| error.to_string());
        Err(io::Error::other(format!("what was written cannot be read: {why}")))
    }

    /// None where it was written.
    fn judge_writing(&mut self, written: &Chain) -> Option<Trial> {
        let (step, error) = written
            .steps
            .iter()
            .zip(&written.outcomes)
            .find_map(|(step, outcome)| outcome.err().map(|error| (step, error)))?;
        let is_open = written.outcomes.first().is_some_and(Result::is_ok);
        if is_open {
            // Nobody waits for how that ends.
            self.run(Chain::loose(vec![Step::Close])).ok();
        }
        match (step, error) {
            (Step::Open { .. } | Step::Write { .. }, Errno::INVAL | Errno::OPNOTSUPP)
                if self.rules.direct =>
            {
                self.relax_direct(Some(error));
                Some(Trial::Again)
            }
            (Step::Rename { .. }, Errno::XDEV) => Some(Trial::TemporaryElsewhere),
            (Step::Rename { .. }, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
                if self.rules.keeps_existing =>
            {
                self.rules.keeps_existing = false;
                Some(Trial::Again)
            }
            // What lies there can be read, perhaps; each store will fail and be counted.
            _ => {
                self.reasons.push(format!("nothing can be written there: {error}"));
                Some(Trial::Passed)
            }
        }
    }

    fn relax_direct(&mut self, error: Option<Errno>) {
        self.rules.direct = false;
        let error = error.map_or(String::new(), |error| format!(" ({error})"));
        self.reasons.push(format!(
            "use_odirect: the file system takes no direct transfers{error}, so they go through \
             the page cache"
        ));
    }

    fn run(&mut self, chain: Chain) -> io::Result<Chain> {
        self.engine.begin(0, chain);
        let mut back = Vec::new();
        for _ in 0..TRIAL_WAITS {
            self.engine.flush();
            self.engine.collect(&mut back);
            if let Some((_, chain)) = back.pop() {
                return Ok(chain);
            }
            self.engine.wait(TRIAL_WAIT);
        }
        let seconds = TRIAL_WAIT.as_secs() * u64::from(TRIAL_WAITS);
        let text = format!("the file system has not answered for {seconds} s");
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }
}

fn room(files: &FilesSpec, folders: &Folders, spec: &AdapterSpec) -> io::Result<Room> {
    let system = fstatvfs(folders.descriptor(Folder::Base))?;
    let free = free_bytes(&files.base_path)?;
    // What lies there is looked at only where it matters: a million files take some seconds.
    let held = match spec.capacity_bytes {
        Some(asked) if asked <= free => 0,
        _ => held_bytes(&files.base_path)?,
    };
    let bound = capacity(spec.capacity_bytes, free, held);
    let bound = bound.map_err(|error| io::Error::other(format!("max_capacity_gb: {error}")))?;
    Ok(Room {
        capacity_bytes: bound.bytes,
        charge_bytes: u32::try_from(system.f_frsize).unwrap_or(1).max(1),
    })
}

fn announce(tier: &FileTier, files: &FilesSpec, spec: &AdapterSpec, room: Room) {
    let (name, path) = (&spec.name, files.base_path.display());
    let status = tier.status();
    let engine = status.engine;
    let way = if status.direct { "direct" } else { "buffered" };
    let bytes = Bytes(room.capacity_bytes);
    let bound = match spec.capacity_bytes {
        Some(_) => "",
        None => ", nine tenths of what is free and all that it holds",
    };
    let depth = status.queue_depth;
    let line = format!(
        "L2 {name} at {path}: {engine}, {way}, {depth} objects at once, up to {bytes}{bound}"
    );
    match status.reason.is_empty() {
        true => tracing::info!("{line}"),
        false => tracing::warn!("{line}; {}", status.reason),
    }
}

/// Objects on their way at once: the kernel's tables for files and completions have bounds.
const PLACES_MAX: u32 = 1024;
const WORKERS_MAX: u32 = 256;
/// How long a file system may take at the start before it counts as dead.
const TRIAL_WAIT: Duration = Duration::from_secs(1);
const TRIAL_WAITS: u32 = 20;
