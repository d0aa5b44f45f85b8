//! `--print-memory`: what this configuration can cost, table by table (design P3).

use crate::admin;
use crate::arena::sizing::Bytes;
use crate::cli::Settings;
use crate::log;
use crate::reactor::status;
use crate::record;
use crate::telemetry::Telemetry;
use crate::tiers;
use kvtide_core::config::Config;
use kvtide_core::engine::memory::table_bytes;
use kvtide_core::limits::MEMO_BYTES_MAX;
use std::fmt::Write;

/// The list, in the order of the parts. Tables are counted full; what is not used costs address
/// space and no memory.
pub fn page(settings: &Settings) -> String {
    let mut text = String::new();
    let l1 = settings.engine.l1_bytes;
    line(&mut text, "L1", l1);
    for (name, bytes) in tables(&settings.engine) {
        line(&mut text, name, bytes);
    }
    let tables = tables_bytes(&settings.engine);
    line(&mut text, "all tables", tables);
    line(&mut text, "L1 and all tables", l1 + tables);
    text
}

/// All tables, full.
pub fn tables_bytes(engine: &Config) -> u64 {
    tables(engine).map(|(_, bytes)| bytes).sum()
}

fn tables(engine: &Config) -> impl Iterator<Item = (&'static str, u64)> {
    let memo = ("token memo", MEMO_BYTES_MAX as u64);
    let telemetry = ("telemetry", Telemetry::memory_bytes_max());
    let lines = ("log lines", log::MEMORY_BYTES_MAX);
    let admin = ("HTTP", admin::memory_bytes_max());
    table_bytes(engine)
        .into_iter()
        .chain([memo, telemetry, lines, admin])
        .chain(record::memory_bytes_max())
        .chain(status::table_bytes())
        .chain(tiers::table_bytes())
}

fn line(text: &mut String, name: &str, bytes: u64) {
    writeln!(text, "{name:<24} {bytes:>15}  {}", Bytes(bytes)).expect("text takes all");
}
