//! What is measured, by name. A metric says which way is better, so that a ratio has a direction.

use hdrhistogram::Histogram;

/// Which of two figures is to be preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Less,
    More,
    /// About the generator or the machine: nobody's merit.
    Neither,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// In JSON.
    pub name: &'static str,
    /// Over the column.
    pub head: &'static str,
    pub better: Better,
    pub digits: usize,
}

impl Metric {
    const fn less(name: &'static str, head: &'static str) -> Metric {
        Metric { name, head, better: Better::Less, digits: 1 }
    }

    const fn more(name: &'static str, head: &'static str) -> Metric {
        Metric { name, head, better: Better::More, digits: 0 }
    }

    const fn plain(name: &'static str, head: &'static str) -> Metric {
        Metric { name, head, better: Better::Neither, digits: 1 }
    }

    /// How many times better `ours` is than `theirs`; None where neither is better by rule.
    pub fn times_better(&self, ours: f64, theirs: f64) -> Option<f64> {
        let ratio = match self.better {
            Better::Less => theirs / ours,
            Better::More => ours / theirs,
            Better::Neither => return None,
        };
        ratio.is_finite().then_some(ratio)
    }
}

pub const REQUESTS_PER_S: Metric = Metric::more("requests_per_s", "requests/s");
pub const OFFERED_PER_S: Metric = Metric::plain("offered_per_s", "offered/s");
pub const P50_US: Metric = Metric::less("p50_us", "p50 us");
pub const P99_US: Metric = Metric::less("p99_us", "p99 us");
pub const P999_US: Metric = Metric::less("p999_us", "p99.9 us");
pub const CALL_P50_US: Metric = Metric::less("lookup_call_p50_us", "call p50 us");
pub const LAG_P99_US: Metric = Metric::plain("generator_lag_p99_us", "lag p99 us");
pub const SERVER_CPU_US: Metric = Metric::less("server_cpu_us", "server CPU us");
pub const GENERATOR_CPU_US: Metric = Metric::plain("generator_cpu_us", "generator CPU us");

/// Transfers: bytes per second with everything that an engine waits for, and of the copy alone.
pub const FIGURE_GB_S: Metric = Metric { digits: 2, ..Metric::more("gb_s", "GB/s") };
pub const COPY_GB_S: Metric = Metric { digits: 2, ..Metric::plain("plain_copy_gb_s", "copy GB/s") };
pub const COPY_SHARE: Metric = Metric { digits: 3, ..Metric::more("of_plain_copy", "of copy") };
pub const PROTOCOL_MS: Metric =
    Metric { digits: 3, ..Metric::less("protocol_ms_per_request", "protocol ms") };

/// Bystanders: alone, and beside somebody's large prompts.
pub const IDLE_P50_US: Metric = Metric::plain("idle_p50_us", "idle p50 us");
pub const IDLE_P99_US: Metric = Metric::less("idle_p99_us", "idle p99 us");
pub const BESIDE_P50_US: Metric = Metric::plain("beside_p50_us", "beside p50 us");
pub const BESIDE_P99_US: Metric = Metric::less("beside_p99_us", "beside p99 us");
pub const SLOWER: Metric =
    Metric { digits: 2, ..Metric::less("beside_to_idle_p99", "beside/idle") };
pub const LARGE_PER_S: Metric =
    Metric { digits: 1, ..Metric::more("large_prompts_per_s", "large/s") };

/// Disks: bytes per second until all of them are at rest, and until the client has seen all hits.
pub const STORE_GB_S: Metric =
    Metric { digits: 3, ..Metric::more("disk_store_gb_s", "store GB/s") };
pub const LOAD_GB_S: Metric = Metric { digits: 3, ..Metric::more("disk_load_gb_s", "load GB/s") };
pub const HIT_P50_MS: Metric = Metric::less("disk_hit_p50_ms", "hit p50 ms");
pub const HIT_P99_MS: Metric = Metric::less("disk_hit_p99_ms", "hit p99 ms");
pub const STORE_CPU: Metric =
    Metric { digits: 3, ..Metric::less("store_server_cpu_s_per_gb", "store CPU s/GB") };
pub const LOAD_CPU: Metric =
    Metric { digits: 3, ..Metric::less("load_server_cpu_s_per_gb", "load CPU s/GB") };
pub const PING_IDLE_P99_US: Metric = Metric::less("ping_idle_p99_us", "ping p99 us idle");
pub const PING_STORE_P99_US: Metric = Metric::less("ping_store_p99_us", "storing");
pub const PING_LOAD_P99_US: Metric = Metric::less("ping_load_p99_us", "loading");

/// Resident memory: beyond the pool, and of it.
pub const OWN_MIB: Metric = Metric::less("beyond_pool_mib", "beyond pool MiB");
pub const SHARED_MIB: Metric = Metric::plain("pool_mib", "pool MiB");

/// The figures of one measurement. None: not known.
pub type Figures = Vec<(Metric, Option<f64>)>;

/// Times in nanoseconds, to three digits, from nothing to two minutes.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, 3).expect("the bounds are right")
}

/// Longer times count as the longest.
pub fn note(latencies: &mut Histogram<u64>, nanos: u64) {
    latencies.saturating_record(nanos.max(1));
}

/// Likewise, for one of calls that are due so often, one at a time: those that became due while
/// this one was waited for would have ended with it.
pub fn note_every(latencies: &mut Histogram<u64>, nanos: u64, every_nanos: u64) {
    let mut left = nanos.min(LATENCY_NANOS_MAX);
    note(latencies, left);
    while left > every_nanos {
        left -= every_nanos;
        note(latencies, left);
    }
}

/// A quantile in microseconds; None of nothing.
pub fn quantile_us(latencies: &Histogram<u64>, quantile: f64) -> Option<f64> {
    (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile) as f64 / 1e3)
}

/// The three quantiles that are always told.
pub fn quantiles(latencies: &Histogram<u64>) -> Figures {
    [(P50_US, 0.5), (P99_US, 0.99), (P999_US, 0.999)]
        .map(|(metric, quantile)| (metric, quantile_us(latencies, quantile)))
        .to_vec()
}

const LATENCY_NANOS_MAX: u64 = 120_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_distribution_come_out() {
        let mut times = latencies();
        assert_eq!(quantile_us(&times, 0.5), None);
        (1..=1000).for_each(|each| note(&mut times, each * 1000));
        for (quantile, expected) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = quantile_us(&times, quantile).expect("there are times");
            assert!((found / expected - 1.0).abs() < 0.002, "{quantile}: {found}");
        }
        note(&mut times, u64::MAX);
        note(&mut times, 0);
        assert_eq!(times.len(), 1002);
    }

    #[test]
    fn calls_that_a_stall_kept_from_being_sent_count() {
        let mut times = latencies();
        (0..90).for_each(|_| note_every(&mut times, 50_000, 1_000_000));
        note_every(&mut times, 10_000_000, 1_000_000);
        assert_eq!(times.len(), 100, "nine more were due in ten milliseconds");
        let found = quantile_us(&times, 0.95).expect("there are times");
        assert!((found / 5000.0 - 1.0).abs() < 0.002, "{found}");
    }

    #[test]
    fn more_than_one_always_means_better() {
        assert_eq!(P99_US.times_better(10.0, 150.0), Some(15.0));
        assert_eq!(REQUESTS_PER_S.times_better(10_000.0, 500.0), Some(20.0));
        assert_eq!(GENERATOR_CPU_US.times_better(1.0, 2.0), None);
        assert_eq!(P99_US.times_better(0.0, 1.0), None);
    }
}
