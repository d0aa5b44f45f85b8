//! Who we are, and which peer we stand in for.

/// Our own version.
pub const KVTIDE: &str = env!("CARGO_PKG_VERSION");

/// The version whose behaviour is matched; clients and dashboards compare it.
pub const LMCACHE: &str = "0.5.6";

/// What stands where the peer shows its commit.
pub fn commit() -> String {
    format!("kvtide{KVTIDE}")
}

/// `/version`: the peer's version and, in the place of its commit, ours.
pub fn full() -> String {
    format!("{LMCACHE}-{}", commit())
}
