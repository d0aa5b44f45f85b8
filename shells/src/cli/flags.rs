//! The flags of `kvtide server` as clap sees them: the peer's names, types and defaults
//! (spec/http-cli §1.2), and a few of our own. What a flag means is settled in `settings.rs`; which
//! ones are not served is a table in `unserved.rs`.

use super::values::{
    Gibibytes, Hash, Policy, Prefetch, Store, Transfer, align_bytes, fraction, gibibytes, group,
    lanes, mode_bits, not_zero, positive, rate, seconds,
};
use crate::log::Form;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub struct ServerFlags {
    #[command(flatten)]
    pub request: RequestFlags,
    #[command(flatten)]
    pub memory: MemoryFlags,
    #[command(flatten)]
    pub tiers: TierFlags,
    #[command(flatten)]
    pub http: HttpFlags,
    #[command(flatten)]
    pub observe: ObserveFlags,
    #[command(flatten)]
    pub record: RecordFlags,
    #[command(flatten)]
    pub others: super::others::OtherFlags,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Serving engines")]
pub struct RequestFlags {
    /// Address that engines connect to; 0.0.0.0 in containers
    #[arg(long, default_value = "localhost")]
    pub host: String,
    /// Port that engines connect to
    #[arg(long, default_value_t = 5555)]
    pub port: u16,
    /// Also serve engines on this machine through a unix socket (engines: ipc://PATH)
    #[arg(long, value_name = "PATH")]
    pub ipc_path: Option<PathBuf>,
    /// Identity of this server; random unless given
    #[arg(long, value_name = "ID")]
    pub instance_id: Option<String>,
    /// Tokens per cached chunk; the same on all servers that share a cache
    #[arg(long, default_value_t = 256, value_parser = not_zero,
        value_name = "TOKENS")]
    pub chunk_size: u32,
    /// How chunks are named; must match the engines
    #[arg(long, value_enum, default_value_t = Hash::Blake3)]
    pub hash_algorithm: Hash,
    /// Which ways of moving payload are offered
    #[arg(long, value_enum, default_value_t = Transfer::Auto, value_name = "MODE")]
    pub supported_transfer_mode: Transfer,
    /// Forget a worker after this silence, once it has pinged; 0 never does, else at least 30
    #[arg(long, default_value = "120", value_parser = seconds, value_name = "SECONDS")]
    pub worker_reap_timeout_seconds: f64,
    /// Threads that copy between engines' memory and L1, where it is the server that copies
    #[arg(long, default_value_t = 2, value_parser = lanes, value_name = "THREADS")]
    pub copy_lanes: usize,
    /// The same for workers that never pinged
    #[arg(long, default_value = "3600", value_parser = seconds, value_name = "SECONDS")]
    pub worker_registration_grace_seconds: f64,
    /// Forget an idle request after this time
    #[arg(long, default_value = "600", value_parser = seconds, value_name = "SECONDS")]
    pub session_ttl_seconds: f64,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Memory")]
pub struct MemoryFlags {
    /// Size of L1 in GiB; by default half of this container's memory, if /dev/shm has the room
    #[arg(long, value_parser = gibibytes, value_name = "GIB")]
    pub l1_size_gb: Option<Gibibytes>,
    /// Entries of the object table; by default one per 64 KiB of L1
    #[arg(long, value_name = "OBJECTS")]
    pub l1_objects_max: Option<usize>,
    /// Objects begin at multiples of this; a power of two
    #[arg(long, default_value = "4096", value_parser = align_bytes, value_name = "BYTES")]
    pub l1_align_bytes: u64,
    /// Grow L1 in the background while serving (the default)
    #[arg(long, overrides_with = "no_l1_use_lazy")]
    pub l1_use_lazy: bool,
    /// Allocate all of L1 before serving
    #[arg(long, overrides_with = "l1_use_lazy")]
    pub no_l1_use_lazy: bool,
    /// Allocate this much of L1 before serving, the rest while serving; by default all of it then
    #[arg(long, value_name = "GIB")]
    pub l1_init_size_gb: Option<u64>,
    /// Keep L1 in pages of 2 MiB that are set apart (vm.nr_hugepages); private, allocated at start
    #[arg(long, overrides_with = "no_l1_use_hugepages")]
    pub l1_use_hugepages: bool,
    #[arg(long, overrides_with = "l1_use_hugepages", hide = true)]
    pub no_l1_use_hugepages: bool,
    /// Name of the segment that engines map; random unless given
    #[arg(long, value_name = "NAME")]
    pub shm_name: Option<String>,
    /// Permissions of the segment, for engines of another user
    #[arg(long, default_value = "0600", value_parser = mode_bits, value_name = "OCTAL")]
    pub shm_mode: u32,
    /// Group of the segment, by number or name
    #[arg(long, value_parser = group, value_name = "GROUP")]
    pub shm_group: Option<u32>,
    /// Engines see neither our segments nor our /dev/shm
    #[arg(long, overrides_with = "no_isolated_ipc")]
    pub isolated_ipc: bool,
    #[arg(long, overrides_with = "isolated_ipc", hide = true)]
    pub no_isolated_ipc: bool,
    /// What L1 forgets first
    #[arg(long, value_enum, default_value_t = Policy::Lru)]
    pub eviction_policy: Policy,
    /// Start evicting at this fill
    #[arg(long, default_value = "0.8", value_parser = fraction, value_name = "0..1")]
    pub eviction_trigger_watermark: f64,
    /// Share of allocated memory freed per pass
    #[arg(long, default_value = "0.2", value_parser = fraction, value_name = "0..1")]
    pub eviction_ratio: f64,
    /// How long an uncommitted write stays reserved
    #[arg(long, default_value_t = 600, value_parser = not_zero,
        value_name = "SECONDS")]
    pub l1_write_ttl_seconds: u32,
    /// How long a looked-up chunk stays held for its reader
    #[arg(long, default_value_t = 300, value_parser = not_zero,
        value_name = "SECONDS")]
    pub l1_read_ttl_seconds: u32,
    /// Print what every table costs in memory, and exit
    #[arg(long)]
    pub print_memory: bool,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Lower tiers")]
pub struct TierFlags {
    /// A tier below L1, such as {"type":"fs","base_path":"/data"}; repeat it for more, best first
    #[arg(long, value_name = "JSON")]
    pub l2_adapter: Vec<String>,
    /// Whether L1 keeps what a lower tier has stored
    #[arg(long, value_enum, default_value_t = Store::Default, value_name = "POLICY")]
    pub l2_store_policy: Store,
    /// Whether L1 keeps what was loaded from a lower tier; default: on its second use
    #[arg(long, value_enum, default_value_t = Prefetch::Default, value_name = "POLICY")]
    pub l2_prefetch_policy: Prefetch,
    /// Lookups that load from lower tiers at once
    #[arg(long, default_value_t = 8, value_parser = positive, value_name = "LOOKUPS",
        hide_short_help = true)]
    pub l2_prefetch_max_in_flight: u64,
    /// Do not load what engines compute sooner, at this speed; 0 loads everything
    #[arg(long, default_value_t = 0, value_name = "TOKENS", hide_short_help = true)]
    pub prefill_tokens_per_second: u64,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Operators")]
pub struct HttpFlags {
    /// Address of the HTTP API and of /metrics; 0.0.0.0 for probes from outside
    #[arg(long, default_value = "127.0.0.1", value_name = "HOST")]
    pub http_host: String,
    /// Port of the HTTP API and of /metrics
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub http_port: u16,
    /// Serve /metrics on this port, too
    #[arg(long, value_name = "PORT")]
    pub prometheus_port: Option<u16>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Observability")]
pub struct ObserveFlags {
    /// Form of log lines: the peer's, or one JSON object a line
    #[arg(long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    pub log_format: Form,
    /// No metrics, no log lines about engines and their traffic
    #[arg(long)]
    pub disable_observability: bool,
    /// No metrics
    #[arg(long, alias = "disable-prometheus")]
    pub disable_metrics: bool,
    /// No log lines about engines and their traffic
    #[arg(long)]
    pub disable_logging: bool,
    /// Share of objects whose life is measured in histograms
    #[arg(long, default_value = "0.01", value_parser = rate, value_name = "0..1")]
    pub metrics_sample_rate: f64,
    /// Facts that wait for telemetry; newer ones are dropped and counted beyond it
    #[arg(long, value_parser = positive, value_name = "EVENTS", hide_short_help = true)]
    pub event_bus_queue_size: Option<u64>,
    /// A summary at fixed times, also while idle, with throughput and what L1 holds
    #[arg(long, hide_short_help = true)]
    pub enable_extra_logging: bool,
    /// Time between two such summaries
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", hide_short_help = true)]
    pub extra_logging_interval: f64,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Recording")]
pub struct RecordFlags {
    /// Record what the engine is told and decides, for `kvtide replay`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Most that FILE and its older parts (FILE.1 ..) take together, in MiB; at least 8
    #[arg(long, default_value_t = 1024, value_parser = mebibytes(), value_name = "MIB",
        hide_short_help = true)]
    pub record_max_mb: u64,
    /// Record token ids, too: whoever has the file can read the prompts
    #[arg(long, hide_short_help = true)]
    pub record_tokens: bool,
    /// Where dumps of the last minute go; by default where temporary files do
    #[arg(long, value_name = "DIR")]
    pub dump_dir: Option<PathBuf>,
    /// Do not keep the last minute in memory
    #[arg(long, hide_short_help = true)]
    pub no_flight_recorder: bool,
}

/// A quarter of it, a part, holds at least what can only be dropped as a whole.
fn mebibytes() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(8..=1 << 30)
}
