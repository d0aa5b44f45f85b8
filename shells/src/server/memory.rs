//! `--print-memory`: what this configuration can cost, table by table (design P3).

use crate::admin;
use crate::arena::sizing::Bytes;
use crate::cli::Settings;
use crate::log;
use crate::paged;
use crate::reactor::status;
use crate::record;
use crate::telemetry::Telemetry;
use crate::tiers;
use crate::tiers::spec::AdapterSpec;
use kvtide_core::config::Config;
use kvtide_core::engine::memory;
use kvtide_core::limits::MEMO_BYTES_MAX;
use std::fmt::Write;

/// The list, in the order of the parts. Tables are counted full; what is not used costs address
/// space and no memory.
pub fn page(settings: &Settings) -> String {
    let mut text = String::new();
    let l1 = settings.engine.l1_bytes;
    line(&mut text, "L1", l1);
    let (engine, adapters) = (&settings.engine, &settings.adapters);
    for (name, bytes) in tables(engine) {
        line(&mut text, name, bytes);
    }
    for (at, spec) in adapters.iter().enumerate() {
        let name = format!("adapter #{} ({})", at + 1, spec.name);
        line(&mut text, &name, adapter_bytes(engine, spec));
    }
    let tables = tables_bytes(engine, adapters);
    line(&mut text, "all tables", tables);
    line(&mut text, "L1 and all tables", l1.saturating_add(tables));
    text
}

/// All tables, full.
pub fn tables_bytes(engine: &Config, adapters: &[AdapterSpec]) -> u64 {
    let of_adapters = adapters.iter().map(|spec| adapter_bytes(engine, spec));
    tables(engine).map(|(_, bytes)| bytes).chain(of_adapters).fold(0, u64::saturating_add)
}

/// The engine's tables for a lower tier, and its own.
fn adapter_bytes(engine: &Config, spec: &AdapterSpec) -> u64 {
    // Neither its size nor its blocks change what its tables take.
    let setup = spec.setup(0, 1, true);
    memory::adapter_bytes(&engine.limits, &setup).saturating_add(tiers::tier_bytes(spec))
}

fn tables(engine: &Config) -> impl Iterator<Item = (&'static str, u64)> {
    let memo = ("token memo", MEMO_BYTES_MAX as u64);
    let telemetry = ("telemetry", Telemetry::memory_bytes_max());
    let lines = ("log lines", log::MEMORY_BYTES_MAX);
    let admin = ("HTTP", admin::memory_bytes_max());
    memory::table_bytes(engine)
        .into_iter()
        .chain([memo, telemetry, lines, admin])
        .chain(record::memory_bytes_max())
        .chain(status::table_bytes())
        .chain(tiers::table_bytes())
        .chain([("copies from and to engines", paged::memory_bytes_max())])
}

fn line(text: &mut String, name: &str, bytes: u64) {
    writeln!(text, "{name:<24} {bytes:>15}  {}", Bytes(bytes)).expect("text takes all");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::spec::{Kind, MockSpec};

    /// Broke: adapters took hundreds of MiB that no list named. Guards: each counts by its bound.
    #[test]
    fn lower_tiers_count_with_their_tables() {
        let engine = Config::default();
        let bytes = |adapters: &[AdapterSpec]| tables_bytes(&engine, adapters);
        let mut files = AdapterSpec::files("/d".into());
        let one = bytes(std::slice::from_ref(&files)) - bytes(&[]);
        files.objects_max *= 2;
        let twice = bytes(std::slice::from_ref(&files)) - bytes(&[]);
        assert!(one > 100 << 20 && twice > one + (100 << 20), "{one} and {twice}");
        let mut mock = AdapterSpec::new("mock", Kind::Mock(MockSpec { bytes_per_second: 1 }));
        let without = bytes(std::slice::from_ref(&mock));
        mock.capacity_bytes = Some(7 << 30);
        assert_eq!(bytes(&[mock]) - without, 7 << 30, "its objects are memory of this process");
    }
}
