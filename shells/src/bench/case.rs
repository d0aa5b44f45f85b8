//! What is measured, case by case. A case is prepared once for each server and then measured in
//! rounds, the servers taking turns.

use super::bystander::Bystander;
use super::candidate::{Candidate, Instance, Kind};
use super::disk::{Disk, Size};
use super::fault::BenchFault;
use super::figures::Figures;
use super::flags::{BenchFlags, Part};
use super::latency::{Lookup, Noop};
use super::load::{Closed, Crowd, Open};
use super::transfer::{Retrieve, Store};

/// A case that stands ready at one server.
pub trait Stand {
    fn measure(&mut self, candidate: &mut Candidate) -> Result<Figures, BenchFault>;

    /// After the last round.
    fn finish(&mut self, _: &mut Candidate) -> Result<(), BenchFault> {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Noop,
    Lookup { hit: bool, chunks: u64 },
    Closed { connections: usize },
    Open,
    Store { object_bytes: u64 },
    Retrieve { object_bytes: u64 },
    Bystander,
    Disk(Size),
}

impl Case {
    pub fn of(part: Part, flags: &BenchFlags) -> Vec<Case> {
        match part {
            Part::Noop => vec![Case::Noop],
            Part::Lookup => {
                let both = [false, true].into_iter();
                let chunks = |hit| flags.chunks.iter().map(move |&chunks| (hit, chunks));
                both.flat_map(chunks).map(|(hit, chunks)| Case::Lookup { hit, chunks }).collect()
            }
            Part::Closed => {
                let connections = flags.connections.iter();
                connections.map(|&connections| Case::Closed { connections }).collect()
            }
            Part::Open => vec![Case::Open],
            Part::Transfer => {
                let sizes = flags.object_kib.iter().map(|kib| kib << 10);
                let both =
                    |object_bytes| [Case::Store { object_bytes }, Case::Retrieve { object_bytes }];
                sizes.flat_map(both).collect()
            }
            Part::Bystander => vec![Case::Bystander],
            Part::Disk => Size::of(flags).into_iter().map(Case::Disk).collect(),
            // Read before and after everything else.
            Part::Memory => Vec::new(),
        }
    }

    pub fn name(self) -> String {
        match self {
            Case::Noop => "noop".to_owned(),
            Case::Lookup { hit, chunks } => {
                format!("{} {chunks}", if hit { "hit" } else { "miss" })
            }
            Case::Closed { connections: 1 } => "1 connection".to_owned(),
            Case::Closed { connections } => format!("{connections} connections"),
            Case::Open => format!("{OPEN_CONNECTIONS} connections"),
            Case::Store { object_bytes } => format!("store {}", size(object_bytes)),
            Case::Retrieve { object_bytes } => format!("retrieve {}", size(object_bytes)),
            Case::Bystander => "16 chunks".to_owned(),
            Case::Disk(wanted) => {
                let Size { chunks, object_bytes } = wanted;
                let objects = size(object_bytes);
                if wanted.is_prefix() { format!("{chunks} x {objects}") } else { objects }
            }
        }
    }

    /// Whether the yardstick knows this case.
    pub fn is_for(self, kind: Kind) -> bool {
        kind == Kind::Server
            || matches!(self, Case::Noop | Case::Lookup { .. } | Case::Closed { .. } | Case::Open)
    }

    /// None: this server does not offer what the case needs.
    pub fn prepare(
        self,
        candidate: &mut Candidate,
        instance: &Instance,
        flags: &BenchFlags,
    ) -> Result<Option<Box<dyn Stand>>, BenchFault> {
        let nanos = (flags.seconds * 1e9) as u64;
        let transfer_bytes = flags.transfer_mib << 20;
        Ok(Some(match self {
            Case::Noop => Box::new(Noop::new(nanos)),
            Case::Lookup { hit, chunks } => {
                Box::new(Lookup::new(candidate, instance, chunks, hit, nanos)?)
            }
            Case::Closed { connections } => {
                Box::new(Closed(Crowd::new(candidate, instance, connections, nanos)?))
            }
            Case::Open => {
                let crowd = Crowd::new(candidate, instance, OPEN_CONNECTIONS, nanos)?;
                Box::new(Open::new(candidate, crowd, flags.rate)?)
            }
            Case::Store { object_bytes } => {
                let store = Store::new(candidate, object_bytes, transfer_bytes)?;
                return Ok(store.map(|store| Box::new(store) as Box<dyn Stand>));
            }
            Case::Retrieve { object_bytes } => {
                let retrieve = Retrieve::new(candidate, object_bytes, transfer_bytes)?;
                return Ok(retrieve.map(|retrieve| Box::new(retrieve) as Box<dyn Stand>));
            }
            Case::Bystander => Box::new(Bystander::new(candidate, instance, nanos)?),
            Case::Disk(size) => {
                let disk = Disk::new(candidate, size, flags)?;
                return Ok(disk.map(|disk| Box::new(disk) as Box<dyn Stand>));
            }
        }))
    }
}

fn size(bytes: u64) -> String {
    let kib = bytes >> 10;
    if kib.is_multiple_of(1024) { format!("{} MiB", kib >> 10) } else { format!("{kib} KiB") }
}

/// The title of a part's table.
pub fn title(part: Part) -> &'static str {
    match part {
        Part::Noop => "noop: one call after the other on one connection",
        Part::Lookup => "lookup: lookup and its result on one connection, by chunks of the prompt",
        Part::Closed => "closed loop: whole requests of 16 chunks that hit, as many as come out",
        Part::Open => "open loop: the same requests at a given rate, timed from when they were due",
        Part::Transfer => "transfer: 64 MiB per request through the shared pool",
        Part::Bystander => "bystander: others' lookups beside prompts of a million tokens",
        Part::Disk => "disk: 64 MiB per request into a lower tier and back",
        Part::Memory => "memory: resident beyond the pool",
    }
}

const OPEN_CONNECTIONS: usize = 16;
/// Lookups touch no payload: their objects are small.
pub const LOOKUP_OBJECT_BYTES: u64 = 8 << 10;
