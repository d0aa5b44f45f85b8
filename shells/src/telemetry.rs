//! Everything that is measured: facts come in, a page for Prometheus goes out.
//!
//! The telemetry thread owns a `Telemetry` and feeds it batches from the lane; the admin thread
//! holds a `Scraper` of it. Between them stands the OpenTelemetry SDK, which is made for that.
//! The one invariant: nothing but facts, losses and failures moves a counter, so an idle server's
//! counters stand still, however often it is scraped.

mod encode;
mod facts;
mod process;
mod pulse;
mod sdk;

pub use facts::{Backlog, FactReceiver, FactSender, Lost, facts};

use crate::admin::ReactorSeen;
use kvtide_core::fact::{AdapterGauges, AllocatedBlock, Fact, FactKey, Gauges};
use kvtide_core::metrics::page::{FamilyKind, Page, SeriesValue};
use kvtide_core::metrics::{Fold, FoldConfig, Measurement, Metric, Text, Value};
use kvtide_core::time::{Duration, Instant};
use sdk::Sdk;
use std::sync::Arc;

/// The facts of one turn, as they leave the reactor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FactBatch {
    pub at: Instant,
    pub facts: Vec<Fact>,
    /// What the ranges of `facts` point into.
    pub keys: Vec<FactKey>,
    /// Facts of earlier turns for which the lane had no room.
    pub lost: u64,
    pub sockets: Sockets,
}

impl FactBatch {
    /// What it holds in memory. Names are shared with whoever told them, but may outlive them here.
    fn bytes(&self) -> u64 {
        let names = self.facts.iter().map(|fact| match fact {
            Fact::TenantNamed { model, salt, .. } | Fact::LookupSkipped { model, salt, .. } => {
                model.len() + salt.len()
            }
            Fact::InstanceRegistered { model, .. } | Fact::RegistrationRefused { model, .. } => {
                model.len()
            }
            Fact::BlocksAllocated { model, blocks, .. } => {
                model.len() + size_of_val::<[AllocatedBlock]>(blocks)
            }
            Fact::AdapterNamed { name, .. } => name.len(),
            Fact::Gauges(gauges) => {
                size_of::<Gauges>() + gauges.adapters.capacity() * size_of::<AdapterGauges>()
            }
            _ => 0,
        });
        let facts = self.facts.capacity() * size_of::<Fact>();
        let keys = self.keys.capacity() * size_of::<FactKey>();
        (size_of::<FactBatch>() + facts + keys + names.sum::<usize>()) as u64
    }
}

/// How things stand at the reactor's sockets. Absolute, so a lost batch costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    pub connections: u64,
    /// Messages of clients since start.
    pub messages: u64,
}

/// What only the lane from the reactor knows. Asked for at each scrape, never summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BusGauges {
    pub queued_facts: u64,
    /// Age of the oldest of them; zero when there is none.
    pub drain_lag: Duration,
}

#[derive(Clone, Debug)]
pub struct TelemetryConfig {
    pub fold: FoldConfig,
    /// `--instance-id`, or the random one of this start.
    pub instance_id: String,
}

/// The telemetry thread's end.
#[derive(Debug)]
pub struct Telemetry {
    fold: Fold,
    scraper: Scraper,
    /// Of the fact at hand; kept for its memory.
    measurements: Vec<Measurement>,
}

/// The admin thread's end. Clones show the same page.
#[derive(Clone, Debug)]
pub struct Scraper {
    sdk: Arc<Sdk>,
}

/// What `/metrics` says it is (spec/metrics §6.1).
pub const CONTENT_TYPE: &str = "text/plain; charset=utf-8";

impl Telemetry {
    pub fn new(config: TelemetryConfig) -> Telemetry {
        let scraper = Scraper { sdk: Arc::new(Sdk::new(&config.instance_id)) };
        // Shown from the first scrape on, unlike every other counter.
        scraper.note_lost(0);
        Telemetry { fold: Fold::new(config.fold), scraper, measurements: Vec::new() }
    }

    pub fn scraper(&self) -> Scraper {
        self.scraper.clone()
    }

    pub fn take(&mut self, batch: &FactBatch) {
        if batch.lost > 0 {
            self.scraper.note_lost(batch.lost);
        }
        for fact in &batch.facts {
            self.measurements.clear();
            self.fold.fold(batch.at, fact, &batch.keys, &mut self.measurements);
            for measurement in &self.measurements {
                self.scraper.sdk.record(measurement);
            }
        }
    }

    /// Whether facts named somebody by a number whose name was lost: it is to be told again.
    pub fn names_are_missing(&self) -> bool {
        self.fold.names_are_missing()
    }

    /// What facts make of the page, and this process: the rest has no part in telemetry.
    pub fn page(&self, bus: BusGauges) -> String {
        let mut page = self.scraper.of_facts(bus);
        process::add_process(&mut page);
        page.render()
    }

    /// Bytes of everything that telemetry remembers, and of what waits for it, when full: for
    /// `--print-memory`.
    pub fn memory_bytes_max() -> u64 {
        Fold::memory_bytes_max() + sdk::memory_bytes_max() + facts::FACT_BYTES_MAX
    }
}

impl Scraper {
    /// The lane was full, and so many facts are gone.
    pub fn note_lost(&self, facts: u64) {
        self.tell(Metric::BusDroppedEvents, None, Value::Add(facts));
    }

    /// A part that works on facts failed and was started again.
    pub fn note_failure(&self, subscriber: &'static str) {
        let label = ("subscriber_name", Text::Fixed(subscriber));
        self.tell(Metric::BusSubscriberExceptions, Some(label), Value::Add(1));
    }

    /// The page: all series, what they belong to, the reactor where it answered, the log and this
    /// process.
    pub fn page(&self, bus: BusGauges, reactor: Option<&ReactorSeen>, restarts: u64) -> String {
        let mut page = self.of_facts(bus);
        if let Some(reactor) = reactor {
            pulse::add_reactor(reactor, &mut page);
        }
        pulse::add_log(&mut page);
        pulse::add_restarts(restarts, &mut page);
        process::add_process(&mut page);
        page.render()
    }

    fn of_facts(&self, bus: BusGauges) -> Page {
        let queued = Value::Set(bus.queued_facts as f64);
        self.tell(Metric::BusQueueDepth, None, queued);
        self.tell(Metric::BusDrainLag, None, Value::Set(bus.drain_lag.as_secs_f64()));
        let mut page = Page::default();
        match self.sdk.collect() {
            Ok(collected) => encode::add_collected(&collected, &mut page),
            Err(error) => tracing::error!(%error, "no metrics could be collected"),
        }
        page
    }

    fn tell(&self, metric: Metric, label: Option<(&'static str, Text)>, value: Value) {
        self.sdk.record(&Measurement { metric, labels: label.into_iter().collect(), value });
    }
}

/// The page of a server whose metrics are off, or go to a collector (spec/metrics §6.1).
pub fn process_page() -> String {
    let mut page = Page::default();
    process::add_process(&mut page);
    page.render()
}

/// Adds a series without labels.
fn add_plain(page: &mut Page, name: &str, kind: FamilyKind, help: &str, value: f64) {
    page.add(name.to_string(), kind, help, [], SeriesValue::Number(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::metrics::SampleRate;

    fn telemetry() -> Telemetry {
        let fold = FoldConfig { chunk_size: 256, sample_rate: SampleRate::ALL, seed: 1 };
        Telemetry::new(TelemetryConfig { fold, instance_id: "me".into() })
    }

    fn lines<'a>(page: &'a str, beginning: &str) -> Vec<&'a str> {
        page.lines().filter(|line| line.starts_with(beginning)).collect()
    }

    #[test]
    fn the_bus_is_shown_as_it_is_and_losses_from_the_start() {
        let telemetry = telemetry();
        let scraper = telemetry.scraper();
        let page = telemetry.page(BusGauges::default());
        assert_eq!(
            lines(&page, "lmcache_mp_event_bus"),
            [
                "lmcache_mp_event_bus_drain_lag_seconds 0.0",
                "lmcache_mp_event_bus_dropped_events_total 0.0",
                "lmcache_mp_event_bus_queue_depth 0.0",
            ]
        );
        scraper.note_lost(3);
        scraper.note_lost(4);
        scraper.note_failure("Fold");
        let bus = BusGauges { queued_facts: 5, drain_lag: Duration::from_millis(1500) };
        let page = scraper.page(bus, None, 0);
        assert_eq!(
            lines(&page, "lmcache_mp_event_bus"),
            [
                "lmcache_mp_event_bus_drain_lag_seconds 1.5",
                "lmcache_mp_event_bus_dropped_events_total 7.0",
                "lmcache_mp_event_bus_queue_depth 5.0",
                "lmcache_mp_event_bus_subscriber_exceptions_total{subscriber_name=\"Fold\"} 1.0",
            ]
        );
    }

    #[test]
    fn the_page_says_whose_it_is() {
        let page = telemetry().page(BusGauges::default());
        let info = lines(&page, "target_info{");
        assert_eq!(info.len(), 1);
        assert!(info[0].contains("service_instance_id=\"me\""), "{}", info[0]);
        assert!(info[0].contains("telemetry_sdk_language=\"rust\""), "{}", info[0]);
        assert!(info[0].ends_with("} 1.0"), "{}", info[0]);
    }

    #[test]
    fn a_scraper_works_from_another_thread() {
        let mut telemetry = telemetry();
        let scraper = telemetry.scraper();
        let batch =
            FactBatch { facts: vec![Fact::StaleEnding, Fact::StaleEnding], ..Default::default() };
        telemetry.take(&batch);
        let page = std::thread::spawn(move || scraper.page(BusGauges::default(), None, 0));
        let page = page.join().expect("a scrape does not panic");
        assert_eq!(lines(&page, "kvtide_stale"), ["kvtide_stale_endings_total 2.0"]);
    }

    #[test]
    fn what_is_remembered_is_counted() {
        let bytes = Telemetry::memory_bytes_max();
        assert!(bytes > Fold::memory_bytes_max());
        assert!(bytes < 256 << 20, "{bytes}");
    }

    #[test]
    fn without_metrics_only_the_process_is_shown() {
        let page = process_page();
        assert!(page.lines().all(|line| {
            line.starts_with("process_") || line.starts_with("# ") && line.contains(" process_")
        }));
        assert_eq!(lines(&page, "# TYPE").len(), 6);
    }
}
