//! Whole requests on many connections: closed loop for saturation, open loop for the latency of a
//! server that is not saturated.

use super::candidate::{Candidate, Instance, Prompt};
use super::case::Stand;
use super::fault::BenchFault;
use super::figures::{Figures, LAG_P99_US, OFFERED_PER_S, REQUESTS_PER_S, quantile_us, quantiles};
use super::fleet::{Fleet, Load, Outcome, Pace};
use super::latency::push_cpu;

/// Connections, the prompts that they ask for, and for how long.
pub struct Crowd {
    fleet: Fleet,
    prompts: Vec<Prompt>,
    nanos: u64,
}

impl Crowd {
    pub fn new(
        candidate: &mut Candidate,
        instance: &Instance,
        connections: usize,
        nanos: u64,
    ) -> Result<Crowd, BenchFault> {
        let prompts = (0..PROMPTS).map(|_| candidate.stored(instance, PROMPT_CHUNKS));
        let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
        Ok(Crowd { fleet: Fleet::connect(candidate, connections, false)?, prompts, nanos })
    }

    fn run(&mut self, candidate: &mut Candidate, pace: Pace) -> Result<Outcome, BenchFault> {
        let (warm_nanos, nanos) = (self.nanos / WARM_SHARE, self.nanos);
        let load = Load { prompts: &self.prompts, hog: None, pace, warm_nanos, nanos };
        self.fleet.run(candidate, load)
    }
}

/// The closed loop.
pub struct Closed(pub Crowd);

impl Stand for Closed {
    fn measure(&mut self, candidate: &mut Candidate) -> Result<Figures, BenchFault> {
        let outcome = self.0.run(candidate, Pace::Closed)?;
        let mut figures = vec![(REQUESTS_PER_S, Some(outcome.per_second()))];
        figures.extend(quantiles(&outcome.latency));
        push_cpu(&mut figures, (outcome.server_cpu_us, outcome.generator_cpu_us));
        Ok(figures)
    }
}

/// The open loop.
pub struct Open {
    crowd: Crowd,
    per_second: f64,
}

impl Open {
    /// Where no rate is given, half of what this server does at most is found out first.
    pub fn new(
        candidate: &mut Candidate,
        mut crowd: Crowd,
        rate: Option<f64>,
    ) -> Result<Open, BenchFault> {
        let per_second = match rate {
            Some(rate) => rate,
            None => crowd.run(candidate, Pace::Closed)?.per_second() / 2.0,
        };
        if per_second < RATE_MIN {
            return Err(candidate.url.fault("not one request has ended in time"));
        }
        Ok(Open { crowd, per_second })
    }
}

impl Stand for Open {
    fn measure(&mut self, candidate: &mut Candidate) -> Result<Figures, BenchFault> {
        let pace = Pace::Open { per_second: self.per_second };
        let outcome = self.crowd.run(candidate, pace)?;
        let mut figures = vec![(OFFERED_PER_S, Some(self.per_second))];
        figures.extend(quantiles(&outcome.latency));
        push_cpu(&mut figures, (outcome.server_cpu_us, outcome.generator_cpu_us));
        figures.push((LAG_P99_US, quantile_us(&outcome.lag, 0.99)));
        Ok(figures)
    }
}

impl Outcome {
    pub fn per_second(&self) -> f64 {
        self.done as f64 * 1e9 / self.nanos as f64
    }
}

/// As in the figures that the peer was measured with: 16 prompts of 16 chunks.
const PROMPTS: usize = 16;
pub const PROMPT_CHUNKS: u64 = 16;
/// The first part of a run, not counted: a quarter of what is.
const WARM_SHARE: u64 = 4;
const RATE_MIN: f64 = 0.1;
