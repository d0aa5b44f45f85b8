//! What must hold when everybody has left and every deadline has passed (design P4).

use crate::bench::Bench;
use kvtide_core::config::Config;
use kvtide_core::time::Duration;

/// Longer than any deadline can be.
pub fn longest(config: &Config) -> Duration {
    let deadlines = [
        config.read_ttl,
        config.write_ttl,
        config.session_ttl,
        config.reap_after,
        config.registration_grace,
    ];
    let longest = deadlines.into_iter().max().unwrap_or_default();
    longest * 2 + Duration::from_secs(10)
}

/// Every request has had its answer, but for parked waits, of which none is so long (P2).
pub fn check_answered(bench: &Bench) -> Result<(), String> {
    match bench.unanswered().next() {
        None => Ok(()),
        Some((_, call)) => Err(format!("P2: never answered: {call:?}")),
    }
}

/// Nothing is in flight, held or promised any more (P4).
pub fn check_quiet(bench: &Bench) -> Result<(), String> {
    let engine = bench.engine();
    let status = engine.status();
    if !engine.is_quiet() {
        return Err(format!("P4: something is left: {status:?}"));
    }
    let left = [
        ("sessions", status.sessions),
        ("tickets", status.tickets),
        ("staged objects", status.staged_objects),
        ("condemned objects", status.condemned_objects),
        ("leased bytes", status.leased_bytes),
        ("untaken results", status.active_prefetch_jobs),
    ];
    match left.iter().find(|(_, count)| *count > 0) {
        None => {
            bench.model.check_below()?;
            bench.check_leases()
        }
        Some((name, count)) => Err(format!("P4: {name} are left: {count}")),
    }
}

/// Ticks that one deadline takes at the most, many times over.
pub const TICKS: u64 = 2_000;
