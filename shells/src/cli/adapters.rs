//! `--l2-adapter JSON`: what it says, key by key (spec/storage §6.3). Pure: nothing is opened here.
//!
//! The one invariant: every key that stands in the JSON is acted on, or refused with the number of
//! the adapter, the name of the key and its rule. No message quotes a value, which may be a secret.

mod fields;
pub mod shown;

use super::ConfigFault;
use super::values::Policy;
use crate::tiers::files::OWN;
use crate::tiers::spec::{
    AdapterSpec, Eviction, FaultSpec, FilesSpec, Kind, LOAD_DEADLINE, MockSpec, NUM_WORKERS,
    OBJECTS_MAX, PROBE_DEADLINE, QUEUE_DEPTH, RATIO_PPM, STORE_DEADLINE, USE_ODIRECT,
    WATERMARK_PPM,
};
use clap::ValueEnum;
use fields::{Fields, Label};
use kvtide_core::limits::ADAPTERS_MAX;
use kvtide_core::time::Duration;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use std::path::{Component, PathBuf};

/// All adapters of a command line, the preferred one first.
pub fn read(texts: &[String]) -> Result<Vec<AdapterSpec>, ConfigFault> {
    if texts.len() > ADAPTERS_MAX {
        let given = texts.len();
        let text = format!("--l2-adapter: at most {ADAPTERS_MAX} adapters, {given} are given");
        return Err(ConfigFault::value(text));
    }
    let each = texts.iter().enumerate().map(|(at, text)| one(Label::new(at + 1), text));
    let specs: Vec<AdapterSpec> = each.collect::<Result<_, _>>()?;
    let paths: Vec<Option<PathBuf>> = specs.iter().map(|spec| folder(&spec.kind)).collect();
    for (at, path) in paths.iter().enumerate() {
        // Each would count, evict and delete what it takes for its own.
        let first = paths[..at].iter().position(|other| path.is_some() && other == path);
        if let Some(first) = first {
            let text = format!("\"base_path\" is the one of --l2-adapter #{}", first + 1);
            return Err(Label::new(at + 1).typed(&specs[at].name).fault(text));
        }
    }
    Ok(specs)
}

/// The folder that an adapter keeps its objects in, without what says nothing in its path.
fn folder(kind: &Kind) -> Option<PathBuf> {
    match kind {
        Kind::Files(files) => Some(files.base_path.components().collect()),
        Kind::Faulty(faulty) => folder(&faulty.inner.kind),
        Kind::Mock(_) => None,
    }
}

fn one(label: Label, text: &str) -> Result<AdapterSpec, ConfigFault> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        label.fault(format!("is not valid JSON ({place})"))
    })?;
    let Value::Object(map) = value else {
        return Err(label.fault("must be a JSON object with a \"type\""));
    };
    adapter(label, &map)
}

fn adapter(label: Label, map: &Map<String, Value>) -> Result<AdapterSpec, ConfigFault> {
    let name = match map.get("type") {
        Some(Value::String(name)) => name.as_str(),
        Some(_) => return Err(label.fault("\"type\" must be a string")),
        None => return Err(label.fault("has no \"type\"")),
    };
    let kind = SERVED.iter().find(|(known, _)| *known == name);
    let Some((name, read)) = kind else {
        return Err(label.fault(match LATER.contains(&name) {
            true => format!("type {name:?} is not served; {} are", list(SERVED.map(|of| of.0))),
            false => format!("unknown type {name:?}; known types are {}", known_types()),
        }));
    };
    let mut fields = Fields::new(label.typed(name), map.clone());
    let kind = read(&mut fields)?;
    let spec = common(&mut fields, AdapterSpec::new(name, kind))?;
    fields.end()?;
    Ok(spec)
}

fn fs(fields: &mut Fields) -> Result<Kind, ConfigFault> {
    files(fields, false)
}

fn fs_native(fields: &mut Fields) -> Result<Kind, ConfigFault> {
    files(fields, true)
}

fn files(fields: &mut Fields, native: bool) -> Result<Kind, ConfigFault> {
    let base_path = fields.text("base_path")?.filter(|path| !path.is_empty());
    let base_path =
        base_path.ok_or_else(|| fields.fault("base_path", "must be a non-empty string"))?;
    let below = fields.text("relative_tmp_dir")?.filter(|path| !path.is_empty());
    let relative_tmp_dir = below.map(PathBuf::from);
    let stays = |path: &PathBuf| path.components().all(|part| matches!(part, Component::Normal(_)));
    // What lies in ours is looked after by its own rules: a full quarantine loses its oldest files.
    let is_ours = |path: &PathBuf| path.starts_with(OWN);
    if relative_tmp_dir.as_ref().is_some_and(|path| !stays(path) || is_ours(path)) {
        let rule = "must be a path below base_path, and not in .kvtide";
        return Err(fields.fault("relative_tmp_dir", rule));
    }
    let read_ahead = fields.whole("read_ahead_size", 1..=1 << 40)?;
    let workers = fields.whole("num_workers", 1..=256)?;
    Ok(Kind::Files(FilesSpec {
        native,
        base_path: base_path.into(),
        relative_tmp_dir,
        use_odirect: fields.flag("use_odirect", USE_ODIRECT)?,
        read_ahead_bytes: read_ahead,
        num_workers: workers.map_or(NUM_WORKERS, |workers| workers as u32),
        sync: fields.flag("sync", false)?,
        without_ring: !fields.flag("use_io_uring", true)?,
    }))
}

fn mock(fields: &mut Fields) -> Result<Kind, ConfigFault> {
    let bandwidth = fields.number("mock_bandwidth_gb")?.filter(|gib| *gib > 0.0);
    let bandwidth =
        bandwidth.ok_or_else(|| fields.fault("mock_bandwidth_gb", "must be a number above 0"))?;
    // Its size is read with what all types have: it is the same thing under another name.
    Ok(Kind::Mock(MockSpec { bytes_per_second: bytes(bandwidth, GIB).max(1) }))
}

/// What the outer object does not say of the keys that all types have, the inner one does.
fn fault_inject(fields: &mut Fields) -> Result<Kind, ConfigFault> {
    let Some(Value::Object(inner)) = fields.take("inner") else {
        return Err(fields.fault("inner", "must be an adapter's JSON object with a \"type\""));
    };
    if inner.get("type").is_some_and(|name| name == "fault_inject") {
        return Err(fields.fault("inner", "cannot be a fault_inject itself"));
    }
    fields.inherit(&inner, &COMMON);
    let inner = adapter(fields.label().inside(), &inner)?;
    let latency = fields.whole("latency_ms", 0..=MILLISECONDS_MAX)?.unwrap_or(0);
    Ok(Kind::Faulty(Box::new(FaultSpec {
        seed: fields.integer("seed", 0)?,
        // As the peer does, whatever is below a millionth is cut off.
        lost_ppm: (fields.share("rate")?.unwrap_or(0.0) * 1e6) as u32,
        gap_indices: fields.indices("gap_indices")?,
        gap_tails_ppm: fields.shares("gap_tail_ratios")?.into_iter().map(ppm).collect(),
        latency: Duration::from_millis(latency),
        hang_ppm: ppm(fields.share("hang_rate")?.unwrap_or(0.0)),
        error_ppm: ppm(fields.share("error_rate")?.unwrap_or(0.0)),
        torn_ppm: ppm(fields.share("torn_rate")?.unwrap_or(0.0)),
        flip_ppm: ppm(fields.share("flip_rate")?.unwrap_or(0.0)),
        inner,
    })))
}

/// The keys that every type has.
fn common(fields: &mut Fields, defaults: AdapterSpec) -> Result<AdapterSpec, ConfigFault> {
    if fields.take("serde").is_some() {
        return Err(fields.fault("serde", "is not served: objects are stored as they are"));
    }
    if fields.text("affinity_tag")?.is_some_and(|tag| tag != "_default") {
        return Err(fields.fault("affinity_tag", "must be \"_default\": there is one L1"));
    }
    let is_mock = matches!(defaults.kind, Kind::Mock(_));
    let inner = match &defaults.kind {
        Kind::Faulty(fault) => Some(&fault.inner),
        Kind::Files(_) | Kind::Mock(_) => None,
    };
    let (mut capacity_bytes, exclusive) = match inner {
        Some(inner) => (inner.capacity_bytes, inner.exclusive),
        // Memory of this process is nobody else's.
        None => (None, is_mock),
    };
    if is_mock {
        let size = fields.size("max_size_gb")?;
        capacity_bytes =
            Some(size.ok_or_else(|| fields.fault("max_size_gb", "must be a number above 0"))?);
    }
    let bound = fields.size("max_capacity_gb")?;
    Ok(AdapterSpec {
        shared: fields.flag("shared", false)?,
        exclusive: fields.flag("exclusive", exclusive)?,
        capacity_bytes: bound.into_iter().chain(capacity_bytes).min(),
        objects_max: within(fields, "max_objects", 1..=1 << 28, OBJECTS_MAX)?,
        persist_enabled: persist_enabled(fields, &defaults.kind)?,
        eviction: eviction(fields)?,
        queue_depth: within(fields, "queue_depth", 1..=4096, QUEUE_DEPTH)?,
        probe_deadline: deadline(fields, "probe_deadline_ms", PROBE_DEADLINE)?,
        load_deadline: deadline(fields, "load_deadline_ms", LOAD_DEADLINE)?,
        store_deadline: deadline(fields, "store_deadline_ms", STORE_DEADLINE)?,
        on_second_touch: fields.flag("store_on_second_touch", false)?,
        write_bytes_per_second: rate(fields, "write_mb_per_second", MIB)?,
        write_bytes_per_day: rate(fields, "write_gb_per_day", GIB)?,
        scrub_bytes_per_second: rate(fields, "scrub_mb_per_second", MIB)?,
        verify: fields.flag("verify", true)?,
        ..defaults
    })
}

/// The peer's tiers of files take "false" and keep their files. Here nothing that was asked for is
/// left undone, and to remove a folder's worth of objects takes longer than a server's end may.
fn persist_enabled(fields: &mut Fields, kind: &Kind) -> Result<bool, ConfigFault> {
    let persists = fields.flag("persist_enabled", true)?;
    let kind = match kind {
        Kind::Faulty(fault) => &fault.inner.kind,
        Kind::Files(_) | Kind::Mock(_) => kind,
    };
    match kind {
        Kind::Files(_) if !persists => {
            let rule = "cannot be false: files stay when the server ends (remove the folder, or \
                        give one that goes with the container)";
            Err(fields.fault("persist_enabled", rule))
        }
        Kind::Files(_) | Kind::Mock(_) | Kind::Faulty(_) => Ok(persists),
    }
}

fn eviction(fields: &mut Fields) -> Result<Eviction, ConfigFault> {
    let label = fields.label();
    let mut inner = match fields.take("eviction") {
        // A tier without a bound and an order fills its device and then fails (F19).
        None => {
            return Ok(Eviction {
                policy: Policy::Lru.into(),
                watermark_ppm: WATERMARK_PPM,
                ratio_ppm: RATIO_PPM,
            });
        }
        Some(Value::Object(map)) => Fields::new(label.within("eviction"), map),
        Some(_) => return Err(fields.fault("eviction", "must be a JSON object")),
    };
    let policy = inner.text("eviction_policy")?;
    let policy = policy.and_then(|name| Policy::from_str(&name, false).ok());
    let rule = "must be \"LRU\", \"ARC\", \"IsolatedLRU\" or \"noop\"";
    let policy = policy.ok_or_else(|| inner.fault("eviction_policy", rule))?;
    let watermark = inner.share("trigger_watermark")?.map(ppm);
    let ratio = inner.share("eviction_ratio")?.map(ppm);
    inner.end()?;
    Ok(Eviction {
        policy: policy.into(),
        watermark_ppm: watermark.map_or(WATERMARK_PPM, u64::from),
        ratio_ppm: ratio.map_or(RATIO_PPM, u64::from),
    })
}

fn within(
    fields: &mut Fields,
    key: &'static str,
    range: RangeInclusive<u64>,
    default: u32,
) -> Result<u32, ConfigFault> {
    Ok(fields.whole(key, range)?.map_or(default, |number| number as u32))
}

fn deadline(
    fields: &mut Fields,
    key: &'static str,
    default: Duration,
) -> Result<Duration, ConfigFault> {
    let given = fields.whole(key, 1..=MILLISECONDS_MAX)?;
    Ok(given.map_or(default, Duration::from_millis))
}

/// Bytes in some time; 0 is no limit, and so is what is absent.
fn rate(fields: &mut Fields, key: &'static str, unit: u64) -> Result<u64, ConfigFault> {
    let given = fields.number(key)?.unwrap_or(0.0);
    if given < 0.0 {
        return Err(fields.fault(key, "must be 0 or above"));
    }
    let rounded = bytes(given, unit);
    // So little would be no limit at all.
    Ok(if given > 0.0 { rounded.max(1) } else { 0 })
}

/// Saturates: no device has 16 EiB.
fn bytes(count: f64, unit: u64) -> u64 {
    (count * unit as f64) as u64
}

fn ppm(share: f64) -> u32 {
    (share * 1e6).round() as u32
}

fn known_types() -> String {
    let mut types: Vec<&str> = SERVED.map(|of| of.0).into_iter().chain(LATER).collect();
    types.sort_unstable();
    list(types)
}

fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

type Read = fn(&mut Fields) -> Result<Kind, ConfigFault>;
const SERVED: [(&str, Read); 4] =
    [("fs", fs), ("fs_native", fs_native), ("mock", mock), ("fault_inject", fault_inject)];
/// Types of the peer that this version does not serve (spec/storage §6.1).
const LATER: [&str; 17] = [
    "aerospike",
    "bigtable",
    "dax",
    "hf3fs",
    "hfbucket",
    "mooncake_store",
    "native_plugin",
    "nixl_native",
    "nixl_store",
    "nixl_store_dynamic",
    "p2p",
    "plugin",
    "raw_block",
    "resp",
    "s3",
    "sagemaker-hyperpod",
    "valkey",
];
const COMMON: [&str; 16] = [
    "affinity_tag",
    "shared",
    "exclusive",
    "max_capacity_gb",
    "max_objects",
    "persist_enabled",
    "eviction",
    "queue_depth",
    "probe_deadline_ms",
    "load_deadline_ms",
    "store_deadline_ms",
    "store_on_second_touch",
    "write_mb_per_second",
    "write_gb_per_day",
    "scrub_mb_per_second",
    "verify",
];
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// A day.
const MILLISECONDS_MAX: u64 = 86_400_000;

#[cfg(test)]
mod tests;
