//! Flags that this version does not act on. They are known, so that a command line written for the
//! peer parses; what becomes of each is the table in `unserved.rs`.

use super::values::{not_zero, positive};
use clap::Args;
use std::ffi::OsString;

/// The peer's own text forms are kept: nothing here is interpreted, but `/config` shows some of it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Accepted for compatibility")]
pub struct OtherFlags {
    /// Request transport; grpc is not served
    #[arg(long, value_parser = ["zmq", "grpc"], default_value = "zmq", hide_short_help = true)]
    pub transport: String,
    /// Engine kind; blend is not served
    #[arg(long, value_parser = ["default", "blend"], default_value = "default", value_name = "KIND",
        hide_short_help = true)]
    pub engine_type: String,
    /// Worker counts have no effect: one thread owns all state
    #[arg(long, default_value_t = 1, value_name = "COUNT", value_parser = not_zero,
        hide_short_help = true)]
    pub max_workers: u32,
    #[arg(long, value_name = "COUNT", value_parser = not_zero, hide = true)]
    pub max_gpu_workers: Option<u32>,
    #[arg(long, value_name = "COUNT", value_parser = not_zero, hide = true)]
    pub max_cpu_workers: Option<u32>,
    #[arg(long, default_value_t = 32, value_parser = not_zero, hide = true)]
    pub grpc_server_workers: u32,
    #[arg(long, default_value_t = 0, hide = true)]
    pub null_block_id: i64,
    #[arg(long, hide = true, overrides_with = "no_separate_object_groups")]
    pub separate_object_groups: bool,
    #[arg(long, hide = true, overrides_with = "separate_object_groups")]
    pub no_separate_object_groups: bool,
    #[arg(long, default_value_t = 32768, hide = true)]
    pub kv_event_log_size: u64,
    #[arg(long, hide = true)]
    pub enable_segmented_prefix: bool,
    #[arg(long, hide = true)]
    pub enable_dedup_content: bool,
    #[arg(long, hide = true)]
    pub enable_blend_reorder: bool,
    #[arg(long, num_args = 0.., hide = true)]
    pub enable: Vec<String>,
    #[arg(long, num_args = 0.., hide = true)]
    pub runtime_plugin_locations: Vec<OsString>,
    #[arg(long, default_value = "{}", hide = true)]
    pub runtime_plugin_config: String,
    #[arg(long, hide = true)]
    pub server_module: Vec<String>,
    #[arg(long, hide = true, overrides_with = "no_run_script_api_enabled")]
    pub run_script_api_enabled: bool,
    #[arg(long, hide = true, overrides_with = "run_script_api_enabled")]
    pub no_run_script_api_enabled: bool,
    #[arg(long, num_args = 0.., hide = true)]
    pub script_allowed_imports: Vec<String>,

    /// Peer-to-peer reads are not served yet
    #[arg(long, value_name = "HOST:PORT", hide_short_help = true)]
    pub p2p_advertise_url: Option<String>,
    #[arg(long, hide = true)]
    pub p2p_listen_url: Option<String>,
    #[arg(long, hide = true)]
    pub p2p_lookup_timeout: Option<f64>,
    #[arg(long, hide = true)]
    pub p2p_load_timeout: Option<f64>,
    #[arg(long, hide = true)]
    pub p2p_transfer_engine: Option<String>,

    #[arg(long, hide = true)]
    pub l1_devdax_path: Option<OsString>,
    #[arg(long, hide = true)]
    pub l1_manager: Vec<String>,
    #[arg(long, hide = true)]
    pub gds_l1_path: Option<OsString>,
    #[arg(long, value_parser = ["auto", "cufile", "hipfile", "mufile", "phx", "ugds"], hide = true)]
    pub gds_l1_backend: Option<String>,
    #[arg(long, hide = true, overrides_with = "no_gds_l1_use_direct_io")]
    pub gds_l1_use_direct_io: bool,
    #[arg(long, hide = true, overrides_with = "gds_l1_use_direct_io")]
    pub no_gds_l1_use_direct_io: bool,

    #[arg(long, default_value_t = 5, hide = true)]
    pub periodic_notifier_interval_ms: u64,

    #[arg(long, hide = true)]
    pub disable_grpc_metrics: bool,
    #[arg(long, hide = true)]
    pub enable_tracing: bool,
    /// Push of metrics is not served yet; scrape /metrics
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub otlp_endpoint: Option<String>,
    #[arg(long, default_value = "", hide = true)]
    pub lookup_hash_log_dir: String,
    #[arg(long, default_value_t = 21600, hide = true)]
    pub lookup_hash_log_rotation_interval: u64,
    #[arg(long, default_value_t = 104_857_600, hide = true)]
    pub lookup_hash_log_rotation_max_size: u64,
    #[arg(long, default_value_t = 100, hide = true)]
    pub lookup_hash_log_max_files: u64,
    #[arg(long, value_parser = ["storage", "events"], hide = true)]
    pub trace_level: Option<String>,
    #[arg(long, hide = true)]
    pub trace_output: Option<OsString>,
    #[arg(long, hide = true)]
    pub enable_gc_monitor: bool,
    #[arg(long, default_value_t = 1.0, hide = true)]
    pub gc_monitor_min_pause_ms: f64,
    #[arg(long, default_value_t = 0, hide = true)]
    pub gc_monitor_top_objects: u64,

    /// Membership of a fleet is not served yet
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub coordinator_url: Option<String>,
    #[arg(long, hide = true)]
    pub coordinator_advertise_ip: Option<String>,
    #[arg(long, hide = true)]
    pub coordinator_heartbeat_interval: Option<f64>,
    #[arg(long, hide = true)]
    pub coordinator_event_reporting: bool,
    #[arg(long, hide = true)]
    pub coordinator_event_flush_interval: Option<f64>,
    #[arg(long, value_parser = ["http", "kafka"], default_value = "http", hide = true)]
    pub coordinator_event_transport: String,
    #[arg(long, default_value = "", hide = true)]
    pub coordinator_kafka_bootstrap_servers: String,
    #[arg(long, hide = true)]
    pub coordinator_kafka_topic: Option<String>,
    #[arg(long, hide = true)]
    pub coordinator_kafka_delivery_timeout: Option<f64>,
    #[arg(long, default_value_t = 1.0, hide = true)]
    pub coordinator_blend_timeout: f64,
    #[arg(long, default_value_t = 8, value_parser = positive, hide = true)]
    pub coordinator_blend_match_concurrency: u64,
    #[arg(long, hide = true)]
    pub coordinator_l2_event_reporting: bool,
    #[arg(long, hide = true)]
    pub coordinator_l2_event_flush_interval: Option<f64>,

    /// Output of other commands; the server ignores it
    #[arg(long, value_parser = ["terminal", "json"], hide = true)]
    pub format: Option<String>,
    #[arg(long, hide = true)]
    pub output: Option<OsString>,
    #[arg(long, short, hide = true)]
    pub quiet: bool,
}
