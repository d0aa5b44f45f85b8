//! `--print-memory`: what this configuration can cost, table by table (design P3).

use crate::arena::sizing::Bytes;
use crate::cli::Settings;
use crate::reactor::status;
use crate::telemetry::Telemetry;
use kvtide_core::engine::memory::table_bytes;
use kvtide_core::limits::MEMO_BYTES_MAX;
use std::fmt::Write;

/// The list, largest parts as they come. Tables are counted full; what is not used costs address
/// space and no memory.
pub fn page(settings: &Settings) -> String {
    let mut text = String::new();
    let l1 = settings.engine.l1_bytes;
    line(&mut text, "L1", l1);
    let mut tables = 0;
    let telemetry = Telemetry::memory_bytes_max();
    let engine = table_bytes(&settings.engine);
    let shells = status::table_bytes();
    let others = [("token memo", MEMO_BYTES_MAX as u64), ("telemetry", telemetry)];
    for (name, bytes) in engine.into_iter().chain(others).chain(shells) {
        line(&mut text, name, bytes);
        tables += bytes;
    }
    line(&mut text, "all tables", tables);
    line(&mut text, "L1 and all tables", l1 + tables);
    text
}

fn line(text: &mut String, name: &str, bytes: u64) {
    writeln!(text, "{name:<24} {bytes:>15}  {}", Bytes(bytes)).expect("text takes all");
}
