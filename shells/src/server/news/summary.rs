//! What the server did of late, in one line: every ten seconds in which there was traffic, and with
//! `--enable-extra-logging` at its own pace and whether there was any or not.
//!
//! The one invariant: a summary is made from facts and the time that they carry; the same facts
//! give the same lines. Pings are no traffic, or a fleet at rest would fill the log.

use crate::telemetry::{FactBatch, Sockets};
use kvtide_core::fact::{Fact, Gauges};
use kvtide_core::time::{Duration, Instant};

#[derive(Debug)]
pub struct Summary {
    every: Duration,
    /// Also while idle, and with more in it.
    extra: bool,
    began: Instant,
    tally: Tally,
    /// At the beginning of this stretch, and now.
    sockets_before: Sockets,
    sockets: Sockets,
    gauges: Gauges,
}

/// What happened within one stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub lookups: u64,
    pub requested_chunks: u64,
    pub hit_chunks: u64,
    pub stores: u64,
    pub stored_bytes: u64,
    pub retrieves: u64,
    pub retrieved_bytes: u64,
    pub faults: u64,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub took: Duration,
    pub tally: Tally,
    pub requests: u64,
    pub connections: u64,
    pub gauges: Gauges,
    pub extra: bool,
}

impl Summary {
    /// `extra` is the pace of `--enable-extra-logging`, where it is given.
    pub fn new(extra: Option<Duration>) -> Summary {
        Summary {
            every: extra.unwrap_or(EVERY),
            extra: extra.is_some(),
            began: Instant::ZERO,
            tally: Tally::default(),
            sockets_before: Sockets::default(),
            sockets: Sockets::default(),
            gauges: Gauges::default(),
        }
    }

    /// Takes the facts of one turn in. What came before them is told when its time is over; the
    /// engine's tick makes facts every second, so that is never much later.
    pub fn take(&mut self, batch: &FactBatch) -> Option<Report> {
        let report = self.close(batch.at);
        for fact in &batch.facts {
            self.add(fact);
        }
        self.sockets = batch.sockets;
        report
    }

    fn close(&mut self, now: Instant) -> Option<Report> {
        let took = now.since(self.began);
        if took < self.every {
            return None;
        }
        let tally = std::mem::take(&mut self.tally);
        let requests = self.sockets.messages - self.sockets_before.messages;
        (self.began, self.sockets_before) = (now, self.sockets);
        (self.extra || tally != Tally::default()).then(|| Report {
            took,
            tally,
            requests,
            connections: self.sockets.connections,
            gauges: self.gauges.clone(),
            extra: self.extra,
        })
    }

    fn add(&mut self, fact: &Fact) {
        let tally = &mut self.tally;
        match fact {
            Fact::LookupTaken { requested_chunks, hit_chunks, .. } => {
                tally.lookups += 1;
                tally.requested_chunks += u64::from(*requested_chunks);
                tally.hit_chunks += u64::from(*hit_chunks);
            }
            Fact::LookupSkipped { .. } => tally.lookups += 1,
            Fact::Stored { bytes, .. } => {
                tally.stores += 1;
                tally.stored_bytes += bytes;
            }
            Fact::Retrieved { bytes, .. } => {
                tally.retrieves += 1;
                tally.retrieved_bytes += bytes;
            }
            Fact::RequestFaulted { .. } => tally.faults += 1,
            Fact::Gauges(gauges) => self.gauges = (**gauges).clone(),
            _ => {}
        }
    }
}

impl Report {
    /// Says it, with figures as fields so that machines can read them.
    pub fn log(&self) {
        let Tally { lookups, requested_chunks, hit_chunks, stores, retrieves, faults, .. } =
            self.tally;
        let Tally { stored_bytes, retrieved_bytes, .. } = self.tally;
        let Report { requests, connections, gauges, .. } = self;
        let seconds = self.took.as_secs_f64();
        let l1_percent = percent(gauges.l1_used_bytes, gauges.l1_configured_bytes);
        if !self.extra {
            tracing::info!(
                requests,
                lookups,
                requested_chunks,
                hit_chunks,
                stored_bytes,
                retrieved_bytes,
                faults,
                l1_percent,
                connections,
                "Traffic of the last {seconds:.1} s:"
            );
            return;
        }
        let Gauges { l1_objects, l1_used_bytes, sessions, instances, lease_units, .. } = gauges;
        tracing::info!(
            requests,
            lookups,
            requested_chunks,
            hit_chunks,
            hit_percent = percent(hit_chunks, requested_chunks),
            stores,
            stored_bytes,
            stored_gb_per_second = rate(stored_bytes, seconds),
            retrieves,
            retrieved_bytes,
            retrieved_gb_per_second = rate(retrieved_bytes, seconds),
            faults,
            l1_percent,
            l1_used_bytes,
            l1_objects,
            lease_units,
            sessions,
            instances,
            connections,
            "Throughput and usage of the last {seconds:.1} s:"
        );
    }
}

/// With one digit behind the point.
fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => (part as f64 / whole as f64 * 1000.0).round() / 10.0,
    }
}

/// Gigabytes (not GiB) a second, with three digits behind the point.
fn rate(bytes: u64, seconds: f64) -> f64 {
    (bytes as f64 / seconds / 1e6).round() / 1e3
}

/// How often traffic is summed up (design: none per request).
const EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_core::fact::{KeyRange, LookupStop, RequestFault};
    use kvtide_core::names::TenantId;

    fn lookup(requested_chunks: u32, hit_chunks: u32) -> Fact {
        let (hit_keys, stop) = (hit_chunks, LookupStop::Complete);
        let (l1_hit_chunks, l1_hit_keys) = (hit_chunks, hit_keys);
        Fact::LookupTaken {
            tenant: TenantId(0),
            requested_chunks,
            hit_chunks,
            hit_keys,
            l1_hit_chunks,
            l1_hit_keys,
            stop,
        }
    }

    fn moved(stored: bool, bytes: u64) -> Fact {
        let (keys, took) = (KeyRange::default(), Duration::ZERO);
        match stored {
            true => Fact::Stored { keys, bytes, took },
            false => Fact::Retrieved { keys, bytes, took },
        }
    }

    fn batch(second: u64, facts: Vec<Fact>) -> FactBatch {
        let sockets = Sockets { connections: 2, messages: second * 10 };
        FactBatch { at: Instant::from_secs(second), facts, sockets, ..FactBatch::default() }
    }

    /// What is told, by the second in which it is.
    fn told(extra: Option<Duration>, batches: Vec<FactBatch>) -> Vec<(u64, Report)> {
        let mut summary = Summary::new(extra);
        let told = batches.iter().filter_map(|batch| {
            let report = summary.take(batch)?;
            Some((batch.at.0 / 1_000_000_000, report))
        });
        told.collect()
    }

    #[test]
    fn traffic_is_summed_up_every_ten_seconds_and_silence_is_silent() {
        let gauges = Gauges { l1_used_bytes: 1, l1_configured_bytes: 8, ..Gauges::default() };
        let mut batches: Vec<FactBatch> = (1..60).map(|second| batch(second, vec![])).collect();
        batches[11].facts = vec![lookup(16, 12), moved(true, 100), Fact::Gauges(gauges.into())];
        batches[14].facts = vec![lookup(4, 4), moved(false, 50), moved(false, 7)];
        let told = told(None, batches);
        let [(second, report)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(*second, 20, "within a tick of the end of its ten seconds");
        let expected = Tally {
            lookups: 2,
            requested_chunks: 20,
            hit_chunks: 16,
            stores: 1,
            stored_bytes: 100,
            retrieves: 2,
            retrieved_bytes: 57,
            faults: 0,
        };
        assert_eq!((report.tally, report.took), (expected, Duration::from_secs(10)));
        assert_eq!((report.requests, report.connections), (100, 2));
        assert_eq!(report.gauges.l1_used_bytes, 1);
    }

    #[test]
    fn pings_are_no_traffic_and_faults_are() {
        let quiet = (1..40).map(|second| batch(second, vec![])).collect();
        assert_eq!(told(None, quiet), []);
        let fault = Fact::RequestFaulted { operation: "PING", fault: RequestFault::Malformed };
        let faulty = vec![batch(1, vec![fault]), batch(11, vec![])];
        assert_eq!(told(None, faulty).len(), 1);
    }

    #[test]
    fn extra_logging_keeps_its_own_pace_and_does_not_wait_for_traffic() {
        let batches = (1..=10).map(|second| batch(second, vec![])).collect();
        let told = told(Some(Duration::from_secs(3)), batches);
        assert_eq!(told.iter().map(|(second, _)| *second).collect::<Vec<_>>(), [3, 6, 9]);
        assert!(told.iter().all(|(_, report)| report.extra && report.requests <= 30));
    }

    #[test]
    fn figures_are_rounded_for_people() {
        assert_eq!((percent(1, 3), percent(0, 0)), (33.3, 0.0));
        assert_eq!(rate(2_500_000_000, 2.0), 1.25);
    }
}
