//! The six `process_*` series that every Prometheus client shows, from `/proc`. What cannot be
//! read is left out of the page.

use super::add_plain;
use kvtide_core::metrics::page::{FamilyKind, Page};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use std::fs;

pub(super) fn add_process(page: &mut Page) {
    let stat = fs::read_to_string("/proc/self/stat").ok();
    if let Some(stat) = stat.as_deref().and_then(Stat::parse) {
        add_stat(&stat, page);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        let help = "Open file descriptors.";
        let open = files.count() as f64;
        add_plain(page, "process_open_fds", FamilyKind::Gauge, help, open);
    }
    let help = "Open file descriptors allowed at most.";
    let most = getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |most| most as f64);
    add_plain(page, "process_max_fds", FamilyKind::Gauge, help, most);
}

fn add_stat(stat: &Stat, page: &mut Page) {
    let ticks = clock_ticks_per_second() as f64;
    let help = "Bytes of address space.";
    let bytes = stat.virtual_bytes as f64;
    add_plain(page, "process_virtual_memory_bytes", FamilyKind::Gauge, help, bytes);
    let help = "Bytes of memory in use, the populated part of L1 included.";
    let bytes = stat.resident_pages as f64 * page_size() as f64;
    add_plain(page, "process_resident_memory_bytes", FamilyKind::Gauge, help, bytes);
    let help = "Time on all processors, in user and system mode.";
    let busy = stat.busy_ticks as f64 / ticks;
    add_plain(page, "process_cpu_seconds_total", FamilyKind::Counter, help, busy);
    let boot = fs::read_to_string("/proc/stat").ok();
    if let Some(boot) = boot.as_deref().and_then(boot_seconds) {
        let help = "Start of the process, in seconds since 1970.";
        let start = boot as f64 + stat.start_ticks as f64 / ticks;
        add_plain(page, "process_start_time_seconds", FamilyKind::Gauge, help, start);
    }
}

/// What we need of `/proc/self/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    busy_ticks: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// The program's name comes second, in brackets, and may hold anything: count from its end.
    fn parse(text: &str) -> Option<Stat> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // proc(5) counts from 1 and from the process id; the first field here is its third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            busy_ticks: field(14)? + field(15)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

fn boot_seconds(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_brackets_and_blanks() {
        let text = "77 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22\n";
        let stat =
            Stat { busy_ticks: 11 + 12, start_ticks: 19, virtual_bytes: 20, resident_pages: 21 };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("77 (short) S 1 2"), None);
        assert_eq!(boot_seconds("cpu 1 2\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000));
    }

    #[test]
    fn all_six_series_are_there_and_sane() {
        let mut page = Page::default();
        add_process(&mut page);
        assert_eq!(page.families().count(), 6);
        let value = |name| page.number(name, &[]);
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        let all = value("process_virtual_memory_bytes");
        assert!(all >= value("process_resident_memory_bytes"));
        assert!(value("process_start_time_seconds") > 1.6e9);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
    }
}
