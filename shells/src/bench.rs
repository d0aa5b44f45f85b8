//! `kvtide bench`: a load generator for any server of this protocol, made to be doubted. It encodes
//! its requests beforehand, runs on one thread, prints what it costs itself, checks every answer,
//! and measures servers in turn so that all of them see the same machine.
//!
//! Its one invariant: a figure is printed only for work that was answered rightly; a wrong count or
//! a wrong byte ends the run.

pub mod flags;
pub mod floor;

mod answer;
mod bystander;
mod candidate;
mod case;
mod disk;
mod fault;
mod figures;
mod fill;
mod fleet;
mod latency;
mod line;
mod load;
mod message;
mod process;
mod progress;
mod report;
mod stop;
mod transfer;

use candidate::{Candidate, Instance, Kind};
use case::{Case, LOOKUP_OBJECT_BYTES, Stand};
use disk::fio::Fio;
use fault::BenchFault;
use figures::{OWN_MIB, SHARED_MIB};
use flags::{BenchFlags, Part};
use floor::Floor;
use line::Url;
use process::Process;
use progress::Progress;
use report::{Record, Report};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use stop::Stop;

/// Runs the benchmark; the exit status.
pub fn run(flags: BenchFlags) -> u8 {
    match bench(&flags.settled()) {
        Ok(()) => 0,
        Err(fault) => {
            eprintln!("kvtide bench: {fault}");
            fault.exit
        }
    }
}

fn bench(flags: &BenchFlags) -> Result<(), BenchFault> {
    let stop = Stop::install().map_err(BenchFault::new)?;
    if let Some(path) = &flags.json {
        can_be_written(path)?;
    }
    let (mut candidates, floor) = connect(flags, &stop)?;
    let fio = Fio::find(flags)?;
    let mut names: Vec<String> = candidates.iter().map(|each| each.name.clone()).collect();
    names.extend(fio.is_some().then(|| FIO.to_owned()));
    let mut report = Report::new(names);
    let measured = measure(flags, &mut candidates, fio.as_ref(), &mut report);
    // Whatever came of it: nothing of ours stays behind at a server that still answers, and what
    // was measured is kept.
    let tidied = candidates.iter_mut().map(Candidate::unregister).fold(Ok(()), Result::and);
    drop(floor);
    let ended = measured.and(tidied);
    let written = flags
        .json
        .as_ref()
        .map_or(Ok(()), |path| write(path, &report.json(about(flags, &candidates, &ended))));
    ended.and(written)
}

/// Connects to the servers, and to the yardstick last.
fn connect(flags: &BenchFlags, stop: &Stop) -> Result<(Vec<Candidate>, Option<Floor>), BenchFault> {
    let mut candidates = Vec::new();
    can_be_measured(flags)?;
    let first = (&flags.name, &flags.url, flags.server_pid, "--server-pid");
    let second = flags.vs.as_ref().map(|url| (&flags.vs_name, url, flags.vs_pid, "--vs-pid"));
    for (name, url, pid, flag) in std::iter::once(first).chain(second) {
        let process = process_of(url, pid, flag)?;
        candidates.push(Candidate::connect(name, url, Kind::Server, process, stop)?);
    }
    let folders = [flags.disk_dir.as_ref(), flags.vs_disk_dir.as_ref().or(flags.disk_dir.as_ref())];
    for (candidate, folder) in candidates.iter_mut().zip(folders) {
        candidate.folder = folder.cloned();
    }
    if !flags.floor {
        return Ok((candidates, None));
    }
    let floor = Floor::start(candidates[0].chunk_tokens)?;
    let process = Some(floor.process());
    candidates.push(Candidate::connect(FLOOR, &floor.url, Kind::Floor, process, stop)?);
    Ok((candidates, Some(floor)))
}

/// Flags that exclude or need each other, by what the parts do.
fn can_be_measured(flags: &BenchFlags) -> Result<(), BenchFault> {
    let clearing = [(Part::Transfer, "transfers"), (Part::Disk, "disks")];
    for (_, name) in clearing.into_iter().filter(|(part, _)| flags.measures(*part)) {
        if flags.fill.is_some() {
            let what =
                format!("--fill: {name} clear the cache, so they cannot be among the --parts");
            return Err(BenchFault::new(what));
        }
        if flags.vs.as_ref() == Some(&flags.url) {
            let what =
                format!("--vs: {name} clear the cache, so they need another server than --url");
            return Err(BenchFault::new(what));
        }
    }
    if flags.measures(Part::Disk) && flags.disk_dir.is_none() {
        return Err(BenchFault::new("--parts disk needs --disk-dir"));
    }
    Ok(())
}

fn process_of(url: &Url, pid: Option<u32>, flag: &str) -> Result<Option<Process>, BenchFault> {
    match pid.map(Process) {
        Some(process) if process.is_alive() => Ok(Some(process)),
        Some(Process(pid)) => Err(BenchFault::new(format!("{flag}: there is no process {pid}"))),
        None => Ok(url.loopback_port().and_then(Process::listening_at)),
    }
}

fn measure(
    flags: &BenchFlags,
    candidates: &mut [Candidate],
    fio: Option<&Fio>,
    report: &mut Report,
) -> Result<(), BenchFault> {
    let cases: Vec<(Part, Case)> = flags
        .parts
        .iter()
        .flat_map(|&part| Case::of(part, flags).into_iter().map(move |case| (part, case)))
        .collect();
    note_memory(flags, candidates, "before", report);
    for candidate in candidates.iter_mut().filter(|each| each.kind == Kind::Server) {
        if let Some(objects) = flags.fill {
            fill::fill(candidate, objects, flags.fill_bytes)?;
        }
    }
    let measurements = cases.len() as u64 * u64::from(flags.rounds) * candidates.len() as u64;
    let progress = Progress::start(measurements);
    let register = |candidate: &mut Candidate| candidate.register(LOOKUP_OBJECT_BYTES);
    let instances = candidates.iter_mut().map(register).collect::<Result<Vec<_>, _>>()?;
    for (at, &(part, case)) in cases.iter().enumerate() {
        alternate(flags, (part, case), (candidates, &instances), fio, &progress, report)?;
        if cases.get(at + 1).is_none_or(|(next, _)| *next != part) {
            progress.print(&report.table(part));
        }
    }
    note_memory(flags, candidates, "after", report);
    progress.print(&report.table(Part::Memory));
    Ok(())
}

/// Measures one case in rounds, the servers taking turns: A B A B ...
fn alternate(
    flags: &BenchFlags,
    (part, case): (Part, Case),
    (candidates, instances): (&mut [Candidate], &[Instance]),
    fio: Option<&Fio>,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), BenchFault> {
    let mut stands: Vec<Option<Box<dyn Stand>>> = Vec::new();
    for (candidate, instance) in candidates.iter_mut().zip(instances) {
        let (name, case_name) = (&candidate.name, case.name());
        progress.show(format!("{name}: {case_name}, preparing"));
        if !case.is_for(candidate.kind) {
            stands.push(None);
            continue;
        }
        let stand = case.prepare(candidate, instance, flags)?;
        if stand.is_none() {
            let name = &candidate.name;
            progress.note(&format!("{name}: no {case_name}, the server shares no pool"));
        }
        stands.push(stand);
    }
    for round in 0..flags.rounds {
        for (server, (candidate, stand)) in candidates.iter_mut().zip(&mut stands).enumerate() {
            if let Some(stand) = stand {
                progress.show(format!("{}: {}, round {}", candidate.name, case.name(), round + 1));
                let figures = stand.measure(candidate)?;
                report.add(Record { part, case: case.name(), server, round, figures });
            }
            progress.advance();
        }
        let measured = stands.iter().any(Option::is_some);
        if let (Case::Disk(size), Some(fio), true) = (case, fio, measured)
            && !size.is_prefix()
        {
            progress.show(format!("{FIO}: {}, round {}", case.name(), round + 1));
            let figures = fio.measure(size, &candidates[0].stop)?;
            let server = candidates.len();
            report.add(Record { part, case: case.name(), server, round, figures });
        }
    }
    for (candidate, stand) in candidates.iter_mut().zip(stands) {
        stand.map_or(Ok(()), |mut stand| stand.finish(candidate))?;
    }
    Ok(())
}

/// Resident memory of every server; the yardstick keeps nothing worth comparing.
fn note_memory(flags: &BenchFlags, candidates: &[Candidate], when: &str, report: &mut Report) {
    if !flags.measures(Part::Memory) {
        return;
    }
    for (server, candidate) in candidates.iter().enumerate() {
        if candidate.kind == Kind::Floor {
            continue;
        }
        let memory = candidate.process.and_then(Process::memory);
        let mib = |kib: u64| kib as f64 / 1024.0;
        let figures = vec![
            (OWN_MIB, memory.map(|memory| mib(memory.own_kib))),
            (SHARED_MIB, memory.map(|memory| mib(memory.shared_kib))),
        ];
        report.add(Record { part: Part::Memory, case: when.to_owned(), server, round: 0, figures });
    }
}

/// What was run, for readers of the JSON file.
fn about(flags: &BenchFlags, candidates: &[Candidate], ended: &Result<(), BenchFault>) -> Value {
    let servers = candidates.iter().map(|candidate| {
        json!({
            "name": candidate.name,
            "url": candidate.url.text,
            "pid": candidate.process.map(|Process(pid)| pid),
            "chunk_tokens": candidate.chunk_tokens,
        })
    });
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "generator": crate::version::KVTIDE,
        "unix_seconds": crate::clock::Clock::start().wall_nanos() / 1_000_000_000,
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": kernel.trim(),
        "load_average_after": load.split_whitespace().next(),
        "settings": flags.describe(),
        "servers": servers.collect::<Vec<_>>(),
        "fault": ended.as_ref().err().map(|fault| &fault.message),
    })
}

/// Tried first: a run of minutes whose figures cannot be kept is a pity.
fn can_be_written(path: &Path) -> Result<(), BenchFault> {
    let opened = fs::File::options().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| json_fault(path, &error))
}

fn write(path: &Path, json: &Value) -> Result<(), BenchFault> {
    let text = format!("{json:#}\n");
    fs::write(path, text).map_err(|error| json_fault(path, &error))
}

fn json_fault(path: &Path, error: &std::io::Error) -> BenchFault {
    BenchFault::new(format!("--json: {}: {error}", path.display()))
}

/// The yardsticks' names in tables.
const FLOOR: &str = "floor";
const FIO: &str = "fio";
