//! `kvtide bench`: a load generator for any server of this protocol, made to be doubted. It encodes
//! its requests beforehand, runs on one thread, prints what it costs itself, checks every answer,
//! and measures two servers in turn so that both see the same machine.
//!
//! Its one invariant: a figure is printed only for work that was answered rightly; a wrong count or
//! a wrong byte ends the run.

pub mod flags;

mod answer;
mod candidate;
mod case;
mod fault;
mod figures;
mod fleet;
mod latency;
mod line;
mod load;
mod message;
mod process;
mod progress;
mod report;
mod stop;

use candidate::{Candidate, Instance, Kind};
use case::{Case, LOOKUP_OBJECT_BYTES, Stand};
use fault::BenchFault;
use flags::{BenchFlags, Part};
use line::Url;
use process::Process;
use progress::Progress;
use report::{Record, Report};
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
    let mut candidates = connect(flags, &stop)?;
    let measured = measure(flags, &mut candidates);
    // Whatever came of it: nothing of ours stays behind at a server that still answers.
    let tidied = candidates.iter_mut().map(Candidate::unregister).fold(Ok(()), Result::and);
    measured.and(tidied)
}

fn connect(flags: &BenchFlags, stop: &Stop) -> Result<Vec<Candidate>, BenchFault> {
    let mut candidates = Vec::new();
    let first = (&flags.name, &flags.url, flags.server_pid, "--server-pid");
    let second = flags.vs.as_ref().map(|url| (&flags.vs_name, url, flags.vs_pid, "--vs-pid"));
    for (name, url, pid, flag) in std::iter::once(first).chain(second) {
        let process = process_of(url, pid, flag)?;
        candidates.push(Candidate::connect(name, url, Kind::Server, process, stop)?);
    }
    Ok(candidates)
}

fn process_of(url: &Url, pid: Option<u32>, flag: &str) -> Result<Option<Process>, BenchFault> {
    match pid.map(Process) {
        Some(process) if process.is_alive() => Ok(Some(process)),
        Some(Process(pid)) => Err(BenchFault::new(format!("{flag}: there is no process {pid}"))),
        None => Ok(url.loopback_port().and_then(Process::listening_at)),
    }
}

fn measure(flags: &BenchFlags, candidates: &mut [Candidate]) -> Result<(), BenchFault> {
    let mut report = Report::new(candidates.iter().map(|each| each.name.clone()).collect());
    let cases: Vec<(Part, Case)> = flags
        .parts
        .iter()
        .flat_map(|&part| Case::of(part, flags).into_iter().map(move |case| (part, case)))
        .collect();
    let measurements = cases.len() as u64 * u64::from(flags.rounds) * candidates.len() as u64;
    let progress = Progress::start(measurements);
    let register = |candidate: &mut Candidate| candidate.register(LOOKUP_OBJECT_BYTES);
    let instances = candidates.iter_mut().map(register).collect::<Result<Vec<_>, _>>()?;
    for (at, &(part, case)) in cases.iter().enumerate() {
        alternate(flags, (part, case), (candidates, &instances), &progress, &mut report)?;
        if cases.get(at + 1).is_none_or(|(next, _)| *next != part) {
            progress.print(&report.table(part));
        }
    }
    Ok(())
}

/// Measures one case in rounds, the servers taking turns: A B A B ...
fn alternate(
    flags: &BenchFlags,
    (part, case): (Part, Case),
    (candidates, instances): (&mut [Candidate], &[Instance]),
    progress: &Progress,
    report: &mut Report,
) -> Result<(), BenchFault> {
    let mut stands: Vec<Option<Box<dyn Stand>>> = Vec::new();
    for (candidate, instance) in candidates.iter_mut().zip(instances) {
        progress.show(format!("{}: {}, preparing", candidate.name, case.name()));
        stands.push(match case.is_for(candidate.kind) {
            true => Some(case.prepare(candidate, instance, flags)?),
            false => None,
        });
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
    }
    Ok(())
}
