//! The bench's driver, with times and sizes that fit small lists of operations.

pub use kvtide_sim::driver::{Driver, SCHEDULER, hash, instance};

use kvtide_core::config::{Config, Limits};
use kvtide_core::time::Duration;
use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;

pub fn config() -> Config {
    Config {
        l1_bytes: 1 << 20,
        l1_align_bytes: 1024,
        l1_objects_max: 256,
        read_ttl: Duration::from_secs(10),
        write_ttl: Duration::from_secs(20),
        session_ttl: Duration::from_secs(30),
        reap_after: Duration::ZERO,
        limits: limits(),
        ..Config::default()
    }
}

/// Production's, but writers may hold the whole pool: their share is a subject of its own.
pub fn limits() -> Limits {
    Limits { lent_ppm: 1_000_000, ..Limits::default() }
}

pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}
