//! What the flags come to: the engine's configuration and the shells' settings, checked together.
//! Everything that is not on the command line (environment, machine, chance, wall clock) is an
//! argument, so a configuration is a function that tests can call.

use super::coordinator::{Coordinator, Environment, checked};
use super::flags::ServerFlags;
use super::{ConfigFault, EXIT_STARTUP, adapters, document};
use crate::arena::segment::fault_of_name;
use crate::arena::sizing::Bytes;
use crate::arena::{Machine, NoPool, SegmentOptions, Sizing, Wanted};
use crate::log::Form;
use crate::record::RecordOptions;
use crate::server::memory;
use crate::tiers::spec::AdapterSpec;
use kvtide_core::config::{Config, Limits, TransferModes};
use kvtide_core::time::Duration;
use serde_json::Value;
use std::path::PathBuf;

/// What a start is a function of, beside the flags.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    pub environment: Environment<'a>,
    pub machine: Machine,
    /// Unguessable; also the incarnation's source of difference.
    pub seed: u64,
    pub random_id: &'a str,
    pub wall_nanos: u64,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub engine: Config,
    /// Lower tiers, the preferred one first.
    pub adapters: Vec<AdapterSpec>,
    pub segment: SegmentOptions,
    /// Threads for server-driven copies.
    pub copy_lanes: usize,
    /// Grow so much before serving, the rest while serving.
    pub first_bytes: u64,
    /// `--l1-use-hugepages`.
    pub huge_pages: bool,
    pub request_host: String,
    pub request_port: u16,
    pub ipc_path: Option<PathBuf>,
    pub http_host: String,
    pub http_port: u16,
    /// `--prometheus-port`, where it is given and not the HTTP port anyway.
    pub metrics_port: Option<u16>,
    pub metrics: bool,
    /// Log lines made from facts.
    pub fact_log: bool,
    /// `--enable-extra-logging`: how often it is told how things stand, traffic or not.
    pub extra_logging: Option<Duration>,
    /// Facts that may wait for telemetry; None leaves it at what the lane holds.
    pub facts_max: Option<u64>,
    pub log_json: bool,
    pub sample_rate_ppm: u64,
    pub print_memory: bool,
    pub record: RecordOptions,
    /// The answer to `GET /config`.
    pub document: Value,
    /// To be logged, one sentence each.
    pub warnings: Vec<String>,
}

impl Settings {
    pub fn resolve(flags: &ServerFlags, start: Start<'_>) -> Result<Settings, ConfigFault> {
        let mut warnings = Vec::new();
        let coordinator = Coordinator::resolve(&flags.others, start.environment)?;
        check_observability(flags, &coordinator)?;
        check_json(flags)?;
        check_ports(flags)?;
        check_huge_pages(flags)?;
        let adapters = adapters::read(&flags.tiers.l2_adapter)?;
        let segment = segment_of(flags)?;
        let sizing = sizing_of(flags, segment.name.is_some(), start.machine)?;
        warnings.extend(sizing.warnings.iter().cloned());
        let engine = engine_of(flags, &sizing, start)?;
        warnings.extend(rounding_warning(flags, &engine));
        if flags.memory.l1_size_gb.is_some() {
            warnings.extend(tables_warning((&engine, &adapters), start.machine.memory_bytes));
        }
        let observed = !flags.observe.disable_observability;
        let metrics = observed && !flags.observe.disable_metrics;
        let document = document::of(flags, (&engine, &adapters), &coordinator, metrics);
        let (http, observe) = (&flags.http, &flags.observe);
        let interval = duration("--extra-logging-interval", observe.extra_logging_interval)?;
        Ok(Settings {
            adapters,
            segment,
            copy_lanes: flags.request.copy_lanes,
            first_bytes: first_bytes(flags, engine.l1_bytes),
            huge_pages: flags.memory.l1_use_hugepages,
            request_host: flags.request.host.clone(),
            request_port: flags.request.port,
            ipc_path: flags.request.ipc_path.clone(),
            http_host: http.http_host.clone(),
            http_port: http.http_port,
            metrics_port: http.prometheus_port.filter(|port| metrics && *port != http.http_port),
            metrics,
            fact_log: observed && !observe.disable_logging,
            extra_logging: observe.enable_extra_logging.then_some(interval),
            facts_max: observe.event_bus_queue_size,
            log_json: observe.log_format == Form::Json,
            sample_rate_ppm: millionths(observe.metrics_sample_rate),
            print_memory: flags.memory.print_memory,
            record: record_of(flags)?,
            document,
            warnings,
            engine,
        })
    }
}

// Whoever builds the core with bugs planted has one more field.
#[allow(clippy::needless_update)]
fn engine_of(
    flags: &ServerFlags,
    sizing: &Sizing,
    start: Start<'_>,
) -> Result<Config, ConfigFault> {
    let ServerFlags { request, memory, tiers, .. } = flags;
    let reap = request.worker_reap_timeout_seconds;
    let grace = request.worker_registration_grace_seconds;
    let session = request.session_ttl_seconds;
    let config = Config {
        chunk_size: request.chunk_size,
        hash_algorithm: request.hash_algorithm.into(),
        transfer_modes: request.supported_transfer_mode.into(),
        pool: sizing.pool,
        l1_bytes: sizing.bytes,
        l1_align_bytes: memory.l1_align_bytes,
        l1_objects_max: memory.l1_objects_max.unwrap_or_else(|| objects_of(sizing.bytes)),
        policy: memory.eviction_policy.into(),
        watermark_ppm: millionths(memory.eviction_trigger_watermark),
        ratio_ppm: millionths(memory.eviction_ratio),
        write_ttl: Duration::from_secs(memory.l1_write_ttl_seconds.into()),
        read_ttl: Duration::from_secs(memory.l1_read_ttl_seconds.into()),
        session_ttl: duration("--session-ttl-seconds", session)?,
        reap_after: duration("--worker-reap-timeout-seconds", reap)?,
        registration_grace: duration("--worker-registration-grace-seconds", grace)?,
        store_policy: tiers.l2_store_policy.into(),
        prefetch_policy: tiers.l2_prefetch_policy.into(),
        prefetch_max: usize::try_from(tiers.l2_prefetch_max_in_flight).unwrap_or(usize::MAX),
        prefill_tokens_per_second: tiers.prefill_tokens_per_second,
        // One that is no block's id is none.
        null_block: u32::try_from(flags.others.null_block_id).ok(),
        seed: start.seed,
        // Never the same twice on one machine, and greater at each start (spec/http-cli §3.4).
        incarnation: start.wall_nanos,
        wall_nanos: start.wall_nanos,
        server_id: request
            .instance_id
            .clone()
            .filter(|id| !id.is_empty())
            .unwrap_or_else(|| start.random_id.to_owned()),
        limits: Limits::default(),
        ..Config::default()
    };
    config
        .check()
        .map_err(|error| ConfigFault::value(format!("{} {}", error.field, error.rule)))?;
    Ok(config)
}

fn sizing_of(flags: &ServerFlags, named: bool, machine: Machine) -> Result<Sizing, ConfigFault> {
    let modes: TransferModes = flags.request.supported_transfer_mode.into();
    let wanted = Wanted {
        bytes: flags.memory.l1_size_gb.map(|size| size.0),
        named,
        modes,
        isolated: flags.memory.isolated_ipc,
        huge: flags.memory.l1_use_hugepages,
    };
    wanted.decide(machine).map_err(|why| match why {
        // The peer finds out while it reads its flags.
        NoPool::HugePagesTooFew { .. } => ConfigFault::value(why.to_string()),
        _ => ConfigFault { exit: EXIT_STARTUP, message: why.to_string() },
    })
}

fn record_of(flags: &ServerFlags) -> Result<RecordOptions, ConfigFault> {
    let record = &flags.record;
    if record.record_tokens && record.record.is_none() {
        return Err(ConfigFault::value("--record-tokens needs --record FILE"));
    }
    Ok(RecordOptions {
        file: record.record.clone(),
        bytes_max: record.record_max_mb << 20,
        tokens: record.record_tokens,
        dump_dir: record.dump_dir.clone().unwrap_or_else(std::env::temp_dir),
        flight: !record.no_flight_recorder,
    })
}

/// All of it where memory is not to grow while serving; else as much as was asked for by name.
fn first_bytes(flags: &ServerFlags, l1_bytes: u64) -> u64 {
    let memory = &flags.memory;
    if memory.no_l1_use_lazy || memory.l1_use_hugepages {
        return l1_bytes;
    }
    memory.l1_init_size_gb.unwrap_or(0).saturating_mul(1 << 30).min(l1_bytes)
}

/// Such pages are private and all there at once (spec/http-cli §1.2).
fn check_huge_pages(flags: &ServerFlags) -> Result<(), ConfigFault> {
    let named = flags.memory.shm_name.as_ref().is_some_and(|name| !name.is_empty());
    if flags.memory.l1_use_hugepages && named {
        let fault = "--l1-use-hugepages excludes --shm-name: such pages are not shared";
        return Err(ConfigFault::value(fault));
    }
    Ok(())
}

/// F24: what is used beside L1 counts against the same limit.
fn tables_warning((engine, adapters): (&Config, &[AdapterSpec]), limit: u64) -> Option<String> {
    let tables = memory::tables_bytes(engine, adapters);
    (engine.l1_bytes.saturating_add(tables) > limit).then(|| {
        format!(
            "L1 of {} and its tables, up to {}, exceed the {} that this process may use: give a \
             smaller --l1-size-gb (--print-memory lists the tables).",
            Bytes(engine.l1_bytes),
            Bytes(tables),
            Bytes(limit)
        )
    })
}

fn segment_of(flags: &ServerFlags) -> Result<SegmentOptions, ConfigFault> {
    // An empty name is how the peer spells "none".
    let name = flags.memory.shm_name.clone().filter(|name| !name.is_empty());
    if let Some(fault) = name.as_deref().and_then(fault_of_name) {
        return Err(ConfigFault::value(format!("--shm-name {fault}")));
    }
    Ok(SegmentOptions { name, mode: flags.memory.shm_mode, group: flags.memory.shm_group })
}

/// F46: a size that was given and could not be kept exactly is told.
fn rounding_warning(flags: &ServerFlags, engine: &Config) -> Option<String> {
    let asked = flags.memory.l1_size_gb?.0;
    let lost = asked.checked_sub(engine.l1_bytes).filter(|lost| *lost > 0)?;
    Some(format!(
        "--l1-size-gb is rounded down to whole superblocks: {} bytes ({}), {lost} less than given.",
        engine.l1_bytes,
        Bytes(engine.l1_bytes)
    ))
}

fn check_observability(flags: &ServerFlags, coordinator: &Coordinator) -> Result<(), ConfigFault> {
    let (others, observe) = (&flags.others, &flags.observe);
    if others.enable_tracing {
        // A given endpoint was refused already.
        return Err(ConfigFault::value("--enable-tracing needs --otlp-endpoint"));
    }
    checked("--extra-logging-interval", Some(observe.extra_logging_interval))?;
    let conflict = [
        (coordinator.event_reporting, "--coordinator-event-reporting"),
        (observe.enable_extra_logging, "--enable-extra-logging"),
    ];
    let conflicting = conflict.iter().find(|(given, _)| *given);
    match conflicting.filter(|_| observe.disable_observability) {
        Some((_, flag)) => Err(ConfigFault::value(format!(
            "{flag} needs the event bus: remove --disable-observability"
        ))),
        None => Ok(()),
    }
}

/// Two listeners cannot share an address, and the system's own complaint would name only one flag.
/// `--prometheus-port` may be the HTTP port: the metrics are there anyway.
fn check_ports(flags: &ServerFlags) -> Result<(), ConfigFault> {
    let (request, http) = (&flags.request, &flags.http);
    if !share_a_host(&request.host, &http.http_host) {
        return Ok(());
    }
    let others =
        [("--http-port", Some(http.http_port)), ("--prometheus-port", http.prometheus_port)];
    match others.iter().find(|(_, port)| request.port != 0 && *port == Some(request.port)) {
        Some((flag, _)) => Err(ConfigFault::value(format!(
            "--port and {flag} are both {} on the same host",
            request.port
        ))),
        None => Ok(()),
    }
}

/// As far as the names tell, without a look-up.
fn share_a_host(one: &str, other: &str) -> bool {
    let plain =
        |host: &str| if host == "localhost" { "127.0.0.1".to_owned() } else { host.to_owned() };
    let (one, other) = (plain(one), plain(other));
    let any = |host: &str| host == "0.0.0.0" || host == "::";
    one == other || any(&one) || any(&other)
}

fn check_json(flags: &ServerFlags) -> Result<(), ConfigFault> {
    let plugin = ("--runtime-plugin-config", &flags.others.runtime_plugin_config);
    let modules = flags.others.server_module.iter().map(|text| ("--server-module", text));
    for (flag, text) in std::iter::once(plugin).chain(modules) {
        if serde_json::from_str::<Value>(text).is_err() {
            return Err(ConfigFault::value(format!("{flag} is not valid JSON")));
        }
    }
    Ok(())
}

/// One entry per 64 KiB (design §7), within what the engine's table allows.
fn objects_of(l1_bytes: u64) -> usize {
    usize::try_from(l1_bytes / BYTES_PER_OBJECT).unwrap_or(usize::MAX).clamp(1, OBJECTS_MAX)
}

fn duration(flag: &str, seconds: f64) -> Result<Duration, ConfigFault> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| ConfigFault::value(format!("{flag} must be a finite number >= 0")))
}

/// Decisions are made in integers (design: no floats in the core).
fn millionths(fraction: f64) -> u64 {
    (fraction * 1e6).round() as u64
}

const BYTES_PER_OBJECT: u64 = 64 << 10;
/// The bound that `Config::check` sets.
const OBJECTS_MAX: usize = 1 << 28;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::SharedMount;
    use crate::cli::{Asked, parse};
    use kvtide_core::config::{HashAlgorithm, PolicyKind, PoolKind};
    use kvtide_core::config::{PrefetchPolicy, StorePolicy};
    use std::ffi::OsString;

    const GIB: u64 = 1 << 30;

    fn resolved(line: &str) -> Result<Settings, ConfigFault> {
        resolved_with(line, &|_| None)
    }

    fn resolved_with(
        line: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Settings, ConfigFault> {
        let args = format!("kvtide server {line}");
        let args = args.split_whitespace().map(OsString::from).collect();
        let Asked::Serve { flags, .. } = parse(args)? else { panic!("{line} does not parse") };
        let (memory_bytes, huge_free_bytes) = (64 * GIB, 2 * GIB);
        let shm = SharedMount::Free(64 * GIB);
        let machine = Machine { memory_bytes, shm, huge_free_bytes };
        let (seed, wall_nanos) = (7, 1_796_007_464_000_000_000);
        let start = Start { environment, machine, seed, random_id: "an-id", wall_nanos };
        Settings::resolve(&flags, start)
    }

    #[test]
    fn the_embedded_default_is_a_valid_configuration() {
        let settings = resolved("").expect("no flags at all is a configuration");
        let engine = &settings.engine;
        assert_eq!((engine.pool, engine.l1_bytes), (PoolKind::Shared, 32 * GIB));
        assert_eq!(
            (engine.policy, engine.hash_algorithm),
            (PolicyKind::Lru, HashAlgorithm::Blake3)
        );
        assert_eq!((engine.watermark_ppm, engine.ratio_ppm), (800_000, 200_000));
        assert_eq!(engine.l1_objects_max as u64, 32 * GIB / (64 << 10));
        assert_eq!(engine.server_id, "an-id");
        assert_eq!((settings.first_bytes, settings.huge_pages), (0, false));
        assert!(settings.metrics && settings.warnings.is_empty());
        assert_eq!((settings.sample_rate_ppm, settings.metrics_port), (10_000, None));
    }

    #[test]
    fn flags_arrive_where_they_belong() {
        let settings = resolved(
            "--l1-size-gb 2 --eviction-policy ARC --hash-algorithm sha256_cbor --chunk-size 16 \
             --shm-name x --shm-mode 0660 --shm-group 7 --no-l1-use-lazy --instance-id me \
             --l1-objects-max 99 --prometheus-port 9090 --ipc-path /run/kv.sock \
             --worker-reap-timeout-seconds 0 --session-ttl-seconds 1.5",
        );
        let settings = settings.expect("the line is a configuration");
        let engine = &settings.engine;
        assert_eq!((engine.l1_bytes, engine.l1_objects_max), (2 * GIB, 99));
        assert_eq!((engine.chunk_size, &*engine.server_id), (16, "me"));
        assert_eq!(
            (engine.policy, engine.hash_algorithm),
            (PolicyKind::Arc, HashAlgorithm::Sha256Cbor)
        );
        assert_eq!(engine.session_ttl, Duration::from_millis(1500));
        assert!(engine.reap_after.is_zero());
        let segment = SegmentOptions { name: Some("x".into()), mode: 0o660, group: Some(7) };
        assert_eq!(settings.segment, segment);
        assert_eq!(settings.first_bytes, 2 * GIB, "all of it");
        assert_eq!((settings.metrics_port, settings.http_port), (Some(9090), 8080));
        assert_eq!(settings.ipc_path, Some("/run/kv.sock".into()));
    }

    #[test]
    fn lower_tiers_and_their_policies_arrive_too() {
        let settings = resolved(
            "--l2-adapter {\"type\":\"fs\",\"base_path\":\"/data\"} --l2-store-policy skip_l1 \
             --l2-prefetch-policy retain --l2-prefetch-max-in-flight 3 \
             --prefill-tokens-per-second 20000",
        );
        let settings = settings.expect("the line is a configuration");
        assert_eq!(settings.adapters, [AdapterSpec::files("/data".into())]);
        let engine = &settings.engine;
        let policies = (StorePolicy::SkipL1, PrefetchPolicy::Retain);
        assert_eq!((engine.store_policy, engine.prefetch_policy), policies);
        assert_eq!((engine.prefetch_max, engine.prefill_tokens_per_second), (3, 20_000));
        let shown = &settings.document["storage_manager"];
        assert_eq!(shown["l2_adapter_config"]["adapters"][0]["base_path"], "/data");
        assert_eq!(shown["store_policy"], "skip_l1");
        assert_eq!(resolved("").expect("no flags").adapters, []);
    }

    #[test]
    fn rules_of_the_configuration_end_in_1_and_name_their_flag() {
        for line in [
            "--worker-reap-timeout-seconds 5",
            "--worker-registration-grace-seconds 10",
            "--worker-registration-grace-seconds inf",
            "--session-ttl-seconds 0",
            "--coordinator-heartbeat-interval 0",
            "--coordinator-event-flush-interval inf",
            "--coordinator-blend-timeout nan",
            "--enable-tracing",
            "--coordinator-event-reporting --disable-observability",
            "--enable-extra-logging --disable-observability",
            "--extra-logging-interval 0",
            "--runtime-plugin-config {nope",
            "--server-module {nope",
            "--shm-name a/b",
            "--l1-objects-max 0",
            "--l1-use-hugepages --shm-name x",
            "--l1-use-hugepages --l1-size-gb 3",
        ] {
            let fault = resolved(line).expect_err(line);
            let flag = line.split_whitespace().next().expect("a line begins with its flag");
            assert_eq!((fault.exit, fault.message.starts_with(flag)), (1, true), "{fault:?}");
        }
    }

    #[test]
    fn equal_ports_of_one_host_are_refused_and_both_named() {
        for (line, other) in [
            ("--port 7000 --http-port 7000", "--http-port"),
            ("--host 0.0.0.0 --http-port 5555", "--http-port"),
            ("--port 7000 --prometheus-port 7000", "--prometheus-port"),
        ] {
            let fault = resolved(line).expect_err(line);
            assert_eq!(fault.exit, 1);
            assert!(fault.message.starts_with(&format!("--port and {other}")), "{fault:?}");
        }
        for line in [
            "--host 10.0.0.1 --port 7000 --http-port 7000",
            "--port 0 --http-port 0",
            "--http-port 7000 --prometheus-port 7000",
        ] {
            assert!(resolved(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn f24_a_size_above_the_machine_ends_in_3() {
        let fault = resolved("--l1-size-gb 100").expect_err("there are 64 GiB");
        assert_eq!(fault.exit, 3);
        assert!(fault.message.contains("100.00 GiB") && fault.message.contains("64.00 GiB"));
    }

    #[test]
    fn what_is_there_before_serving_is_what_was_asked_for() {
        for (line, first) in [
            ("--l1-size-gb 8 --l1-init-size-gb 3", 3 * GIB),
            ("--l1-size-gb 8 --l1-init-size-gb 20", 8 * GIB),
            ("--l1-size-gb 8 --l1-init-size-gb 0", 0),
            ("--l1-size-gb 2 --l1-use-hugepages", 2 * GIB),
        ] {
            let settings = resolved(line).expect(line);
            assert_eq!(settings.first_bytes, first, "{line}");
        }
        let huge = resolved("--l1-use-hugepages").expect("there are pages");
        assert_eq!((huge.engine.pool, huge.engine.l1_bytes), (PoolKind::Private, 2 * GIB));
        let config = huge.document.to_string();
        assert!(
            config.contains("\"use_hugepages\":true,") && config.contains("\"use_lazy\":false")
        );
    }

    #[test]
    fn f24_tables_beyond_the_limit_are_warned_of_with_every_size() {
        let settings = resolved("--l1-size-gb 63.9").expect("L1 alone fits");
        let told = settings.warnings.iter().any(|warning| {
            warning.contains("63.88 GiB") && warning.contains("tables") && warning.contains("64.00")
        });
        assert!(told, "{:?}", settings.warnings);
    }

    #[test]
    fn f46_a_size_that_is_rounded_says_so() {
        let settings = resolved("--l1-size-gb 1.0001").expect("sizes are rounded, not refused");
        assert_eq!(settings.engine.l1_bytes, GIB);
        let [warning] = &settings.warnings[..] else { panic!("{:?}", settings.warnings) };
        assert!(warning.starts_with("--l1-size-gb"), "{warning}");
    }

    #[test]
    fn reporting_that_the_environment_asks_for_needs_the_event_bus() {
        let reporting =
            |name: &str| (name == "LMCACHE_COORDINATOR_EVENT_REPORTING").then(|| "YES".to_owned());
        assert!(resolved_with("", &reporting).is_ok());
        assert!(resolved_with("--disable-observability", &reporting).is_err());
    }

    #[test]
    fn what_is_told_and_how_often_is_set_by_flags() {
        let settings = resolved("").expect("no flags at all is a configuration");
        assert_eq!((settings.extra_logging, settings.facts_max), (None, None));
        assert!(!settings.log_json);
        let line = "--enable-extra-logging --extra-logging-interval 2.5 --log-format json \
                    --event-bus-queue-size 7";
        let settings = resolved(line).expect("the line is a configuration");
        assert_eq!(settings.extra_logging, Some(Duration::from_millis(2500)));
        assert_eq!((settings.facts_max, settings.log_json), (Some(7), true));
    }

    #[test]
    fn one_switch_turns_off_metrics_and_the_other_everything() {
        let settings = resolved("--disable-prometheus --prometheus-port 9090");
        let settings = settings.expect("the line is a configuration");
        assert!(!settings.metrics && settings.fact_log && settings.metrics_port.is_none());
        let settings = resolved("--disable-observability").expect("so is this");
        assert!(!settings.metrics && !settings.fact_log);
    }
}
