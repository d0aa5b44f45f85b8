//! Log lines, made from facts alone. At INFO a line per change of state, none per request but a
//! summary of them; the texts that users search for (spec/http-cli §4.1) are there per request at
//! DEBUG.
//!
//! The one invariant: whoever reaches the socket can neither forge a line nor fill the disk with
//! them. Texts of a peer are escaped and cut, and refusals that repeat are told once a minute.

mod summary;
mod tiers;

use crate::telemetry::FactBatch;
use kvtide_core::effect::Refusal;
use kvtide_core::fact::{Fact, InstanceEnd};
use kvtide_core::names::InstanceId;
use kvtide_core::time::{Duration, Instant};
use summary::Summary;
use tiers::Tiers;

/// What is to be told.
#[derive(Clone, Copy, Debug)]
pub struct NewsOptions {
    pub chunk_size: u32,
    /// Changes of state, and traffic summed up; without it only what `extra_every` asks for.
    pub lines: bool,
    /// `--enable-extra-logging` and its interval.
    pub extra_every: Option<Duration>,
}

/// Tells the log what the facts say.
#[derive(Debug)]
pub struct News {
    chunk_size: u32,
    lines: bool,
    lost: u64,
    refusals: Refusals,
    comings: Pace,
    tiers: Tiers,
    summary: Summary,
}

impl News {
    pub fn new(options: NewsOptions) -> News {
        let NewsOptions { chunk_size, lines, extra_every } = options;
        let summary = Summary::new(extra_every);
        let (refusals, comings) = (Refusals::default(), Pace::new(COMINGS_MAX));
        News { chunk_size, lines, lost: 0, refusals, comings, tiers: Tiers::new(), summary }
    }

    pub fn tell(&mut self, batch: &FactBatch) {
        if let Some(report) = self.summary.take(batch) {
            report.log();
        }
        if !self.lines {
            return;
        }
        if batch.lost > 0 {
            self.lost += batch.lost;
            let (lost, total) = (batch.lost, self.lost);
            tracing::warn!("Telemetry fell behind: {lost} facts lost, {total} since the start");
        }
        for fact in &batch.facts {
            if comes_or_goes(fact) && !self.may_come_or_go(batch.at) {
                continue;
            }
            self.line(fact, batch.at);
            self.tiers.tell(fact, batch);
        }
    }

    /// Whether there is a line left for an instance that comes or goes. A whole fleet may, within a
    /// minute; somebody who only pretends to be one soon finds the log closed.
    fn may_come_or_go(&mut self, now: Instant) -> bool {
        let telling = self.comings.telling(now);
        if telling == Telling::Summary {
            tracing::warn!("More instances come and go than this log tells in a minute");
        }
        telling == Telling::Line
    }

    fn line(&mut self, fact: &Fact, now: Instant) {
        match fact {
            Fact::InstanceRegistered { instance, model, world_size, layers } => {
                let (id, model) = (instance.0, shown(model));
                tracing::info!(
                    "Registered KV cache for GPU ID {id} with {layers} layers \
                     (model {model}, world size {world_size})"
                );
            }
            Fact::InstanceEnded { instance, why } => {
                let id = instance.0;
                match why {
                    InstanceEnd::Unregistered => tracing::info!("Instance {id} has unregistered"),
                    InstanceEnd::Replaced => {
                        tracing::warn!("Instance {id} registers anew with another model or layout");
                    }
                    InstanceEnd::ConnectionEnded => {
                        tracing::info!("Instance {id} is gone, its memory is let go");
                    }
                    InstanceEnd::Reaped => {
                        tracing::warn!("Instance {id} is reaped: it has been silent for too long");
                    }
                }
            }
            Fact::InstanceTold { instance } => {
                let id = instance.0;
                tracing::info!("Instance {id} is not registered here and was told so once");
            }
            Fact::RegistrationRefused { instance, model, reason } => {
                self.refused(*instance, model, *reason, now);
            }
            Fact::Cleared { force } => tracing::info!("L1 is cleared (force={force})"),
            Fact::QuotaChanged => tracing::info!("Quotas have changed"),
            Fact::Stored { keys, took, .. } => {
                let (tokens, seconds) = (self.tokens(keys.len()), took.as_secs_f64());
                tracing::debug!("Stored {tokens} tokens in {seconds:.3} seconds");
            }
            Fact::Retrieved { keys, took, .. } => {
                let (tokens, seconds) = (self.tokens(keys.len()), took.as_secs_f64());
                tracing::debug!("Retrieved {tokens} tokens in {seconds:.3} seconds");
            }
            Fact::RequestFaulted { operation, fault } => {
                tracing::debug!("Refused {operation}: {}", fault.label());
            }
            _ => {}
        }
    }

    fn refused(&mut self, instance: InstanceId, model: &str, reason: Refusal, now: Instant) {
        match self.refusals.telling(instance, reason, now) {
            Telling::Line => {
                let (id, model) = (instance.0, shown(model));
                tracing::warn!("Registration of instance {id} for model {model} {reason}");
            }
            Telling::Summary => tracing::warn!(
                "More registrations are refused than this log tells; \
                 kvtide_refused_registrations_total counts them all"
            ),
            Telling::Nothing => {}
        }
    }

    fn tokens(&self, chunks: u64) -> u64 {
        chunks * self.chunk_size as u64
    }
}

fn comes_or_goes(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::InstanceRegistered { .. } | Fact::InstanceEnded { .. } | Fact::InstanceTold { .. }
    )
}

/// A text that came from a socket, as a log line can bear it: one line, printable, not too long.
fn shown(text: &str) -> String {
    text.escape_debug().take(SHOWN_CHARS_MAX).collect()
}

/// What the log says of one more of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Line,
    /// Too many different ones were told lately: one line for all the others.
    Summary,
    Nothing,
}

/// Which refusals were told within the last minute. Never more than `REFUSALS_MAX`, so a client
/// that makes up instances costs neither memory nor lines.
#[derive(Debug, Default)]
struct Refusals {
    told: Vec<(InstanceId, Refusal, Instant)>,
    summed_up: Option<Instant>,
}

impl Refusals {
    fn telling(&mut self, instance: InstanceId, reason: Refusal, now: Instant) -> Telling {
        let fresh = |at: Instant| now.since(at) < TELL_EVERY;
        self.told.retain(|(_, _, at)| fresh(*at));
        if self.told.iter().any(|(id, why, _)| (*id, *why) == (instance, reason)) {
            return Telling::Nothing;
        }
        if self.told.len() < REFUSALS_MAX {
            self.told.push((instance, reason, now));
            return Telling::Line;
        }
        if self.summed_up.is_some_and(fresh) {
            return Telling::Nothing;
        }
        self.summed_up = Some(now);
        Telling::Summary
    }
}

/// So many lines in a minute.
#[derive(Debug)]
struct Pace {
    began: Instant,
    lines: usize,
    lines_max: usize,
}

impl Pace {
    fn new(lines_max: usize) -> Pace {
        Pace { began: Instant::ZERO, lines: 0, lines_max }
    }

    fn telling(&mut self, now: Instant) -> Telling {
        if now.since(self.began) >= TELL_EVERY {
            (self.began, self.lines) = (now, 0);
        }
        self.lines += 1;
        match self.lines.checked_sub(self.lines_max) {
            None | Some(0) => Telling::Line,
            Some(1) => Telling::Summary,
            Some(_) => Telling::Nothing,
        }
    }
}

/// Lines about instances that come and go, in a minute: a fleet of a few hundred that restarts.
const COMINGS_MAX: usize = 1024;
/// Characters of a peer's text in one line.
const SHOWN_CHARS_MAX: usize = 128;
/// Refusals that are remembered, and lines about them in a minute.
const REFUSALS_MAX: usize = 64;
/// How often the same refusal is told.
const TELL_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_a_peer_stays_one_short_line() {
        assert_eq!(shown("m\n[t] LMCache ERROR: \u{1b}[2J"), "m\\n[t] LMCache ERROR: \\u{1b}[2J");
        assert_eq!(shown(&"x".repeat(100_000)).len(), SHOWN_CHARS_MAX);
        assert_eq!(shown("org/model-7B"), "org/model-7B");
    }

    #[test]
    fn a_refusal_that_repeats_is_told_once_a_minute() {
        let mut refusals = Refusals::default();
        let id = InstanceId(7);
        let mut tell = |reason, second| refusals.telling(id, reason, Instant::from_secs(second));
        assert_eq!(tell(Refusal::ServerDriven, 1), Telling::Line);
        assert_eq!(tell(Refusal::ServerDriven, 60), Telling::Nothing);
        assert_eq!(tell(Refusal::Rope, 60), Telling::Line);
        assert_eq!(tell(Refusal::ServerDriven, 61), Telling::Line);
    }

    #[test]
    fn who_comes_and_goes_without_end_brings_a_bounded_number_of_lines() {
        let mut pace = Pace::new(COMINGS_MAX);
        let mut count = [0; 3];
        for _ in 0..10_000 {
            count[pace.telling(Instant::from_secs(1)) as usize] += 1;
        }
        assert_eq!(count, [COMINGS_MAX, 1, 10_000 - COMINGS_MAX - 1]);
        assert_eq!(pace.telling(Instant::from_secs(61)), Telling::Line);
    }

    #[test]
    fn made_up_instances_bring_a_bounded_number_of_lines() {
        let mut refusals = Refusals::default();
        let mut count = [0; 3];
        for id in 0..10_000 {
            let at = Instant::from_secs(1);
            count[refusals.telling(InstanceId(id), Refusal::Model, at) as usize] += 1;
        }
        assert_eq!(count, [REFUSALS_MAX, 1, 10_000 - REFUSALS_MAX - 1]);
        assert_eq!(refusals.told.len(), REFUSALS_MAX);
    }
}
