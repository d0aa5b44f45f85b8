//! The flags of `kvtide bench`.

use super::line::Url;
use crate::cli::values::spelling;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub struct BenchFlags {
    /// The server to measure: tcp://HOST:PORT
    #[arg(long, value_parser = Url::parse)]
    pub url: Url,
    /// Another server, measured in turn with the first: A B A B ...
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    pub vs: Option<Url>,
    /// Measure a bare echo of the same bytes as well, as yardstick
    #[arg(long)]
    pub floor: bool,
    /// What to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "LIST",
        hide_possible_values = true,
        default_value = "noop,lookup,closed,open,transfer,bystander,memory"
    )]
    pub parts: Vec<Part>,
    /// Measurements of each case and server
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000),
        value_name = "COUNT")]
    pub rounds: u32,
    /// Length of a measurement
    #[arg(long, default_value_t = 2.0, value_parser = seconds, value_name = "SECONDS")]
    pub seconds: f64,
    /// Closed loop: numbers of connections
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = connections,
        value_name = "LIST")]
    pub connections: Vec<usize>,
    /// Lookups: lengths of prompts, in chunks
    #[arg(long, value_delimiter = ',', default_value = "1,16,128,512", value_parser = chunks,
        value_name = "LIST")]
    pub chunks: Vec<u64>,
    /// Open loop: requests a second; by default half of what each server does at most
    #[arg(long, value_parser = rate, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// Transfers and disks: sizes of objects, in KiB
    #[arg(long, value_delimiter = ',', default_value = "256,2048,8192", value_parser = object_kib,
        value_name = "LIST")]
    pub object_kib: Vec<u64>,
    /// Transfers: what one round moves, in requests of 64 MiB, at most 60 % of the pool
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(64..=1 << 20),
        value_name = "MIB")]
    pub transfer_mib: u64,
    /// Disks: folder of the lower tier of the first server
    #[arg(long, value_name = "DIR")]
    pub disk_dir: Option<PathBuf>,
    /// Folder of the other server's; by default the same one
    #[arg(long, value_name = "DIR", requires = "vs")]
    pub vs_disk_dir: Option<PathBuf>,
    /// Disks: what one round stores and loads, at most 60 % of the pool
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(64..=1 << 20),
        value_name = "MIB")]
    pub disk_mib: u64,
    /// Disks: lookups that wait at once; times of hits mean most with one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024),
        value_name = "COUNT")]
    pub disk_lookups: u64,
    /// Disks: run this fio on the same folder in the same rounds, as yardstick
    #[arg(long, value_name = "PATH", requires = "disk_dir")]
    pub fio: Option<PathBuf>,
    /// Its queue depth: that of the tier
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096),
        value_name = "COUNT")]
    pub disk_depth: u32,
    /// Before anything is measured: store so many objects at each server
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=FILL_OBJECTS_MAX),
        value_name = "OBJECTS")]
    pub fill: Option<u64>,
    /// Their size
    #[arg(long, default_value_t = 512, requires = "fill", value_name = "BYTES",
        value_parser = clap::value_parser!(u64).range(1..=REQUEST_KIB << 10))]
    pub fill_bytes: u64,
    /// Process of the first server, where it cannot be found by its port
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Process of the other server
    #[arg(long, value_name = "PID", requires = "vs")]
    pub vs_pid: Option<u32>,
    /// Name of the first server in tables
    #[arg(long, default_value = "url")]
    pub name: String,
    /// Name of the other server in tables
    #[arg(long, default_value = "vs", value_name = "NAME")]
    pub vs_name: String,
    /// Every figure of every round, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// A smoke test of a few seconds: one round, short measurements, small transfers
    #[arg(long)]
    pub quick: bool,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// A call that does nothing, one after the other
    Noop,
    /// Lookup and its result, one after the other; misses and hits
    Lookup,
    /// Whole requests on many connections, each after its last has ended: saturation
    Closed,
    /// Whole requests at a given rate, late ones counted from when they were due
    Open,
    /// Store and retrieve through the shared pool; clears the cache
    Transfer,
    /// Lookups of others while one connection sends prompts of a million tokens
    Bystander,
    /// Store into a lower tier and load from it; clears the cache, needs --disk-dir
    Disk,
    /// Resident memory beyond the pool, before and after
    Memory,
}

impl BenchFlags {
    /// `--quick` is a bound on the other flags.
    pub fn settled(mut self) -> BenchFlags {
        if self.quick {
            self.rounds = 1;
            self.seconds = self.seconds.min(QUICK_SECONDS);
            self.transfer_mib = QUICK_TRANSFER_MIB;
            self.disk_mib = QUICK_TRANSFER_MIB;
        }
        self
    }

    pub fn measures(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// What the figures depend on, for the JSON file.
    pub fn describe(&self) -> Value {
        let parts = self.parts.iter().map(|part| spelling(*part));
        json!({
            "parts": parts.collect::<Vec<_>>(),
            "rounds": self.rounds,
            "seconds": self.seconds,
            "connections": self.connections,
            "chunks": self.chunks,
            "rate": self.rate,
            "object_kib": self.object_kib,
            "transfer_mib": self.transfer_mib,
            "disk_dir": self.disk_dir,
            "vs_disk_dir": self.vs_disk_dir,
            "disk_mib": self.disk_mib,
            "disk_lookups": self.disk_lookups,
            "disk_depth": self.disk_depth,
            "fio": self.fio,
            "fill": self.fill,
            "fill_bytes": self.fill_bytes,
        })
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.01, 3600.0).ok_or_else(|| "is a number of seconds, 0.01 to 3600".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    within(text, 0.1, 1e6).ok_or_else(|| "is a number from 0.1 to 1000000".to_owned())
}

fn within(text: &str, least: f64, most: f64) -> Option<f64> {
    text.parse().ok().filter(|value| (least..=most).contains(value))
}

fn connections(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
    count.ok_or_else(|| format!("is a list of numbers from 1 to {CONNECTIONS_MAX}"))
}

fn chunks(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| (1..=CHUNKS_MAX).contains(count));
    count.ok_or_else(|| format!("is a list of numbers from 1 to {CHUNKS_MAX}"))
}

fn object_kib(text: &str) -> Result<u64, String> {
    let kib = text.parse().ok().filter(|kib| (1..=REQUEST_KIB).contains(kib));
    kib.ok_or_else(|| format!("is a list of numbers of KiB from 1 to {REQUEST_KIB}"))
}

const CONNECTIONS_MAX: usize = 4096;
const CHUNKS_MAX: u64 = 4096;
/// As many as a server can be told to have places for.
const FILL_OBJECTS_MAX: u64 = 1 << 28;
/// One transfer moves 64 MiB.
const REQUEST_KIB: u64 = 64 << 10;
const QUICK_SECONDS: f64 = 0.1;
const QUICK_TRANSFER_MIB: u64 = 64;
const AFTER: &str = "\
A request is what an engine's scheduler sends for a prompt: lookup, wait_prefetch_status,
free_lookup_locks, end_session. Figures are medians of the rounds; in rows with a ratio, more than 1
means that the first server is better. Wrong answers end the run with exit status 1.
docs/performance.md explains every column.";
