//! What others notice of one connection that sends prompts of a million tokens without pause:
//! the same light load is measured alone and beside it, one right after the other.

use super::candidate::{Candidate, Instance, Prompt};
use super::case::Stand;
use super::fault::BenchFault;
use super::figures::{
    BESIDE_P50_US, BESIDE_P99_US, Figures, IDLE_P50_US, IDLE_P99_US, LAG_P99_US, LARGE_PER_S,
    SLOWER, quantile_us,
};
use super::fleet::{Fleet, Load, Pace};
use super::load::PROMPT_CHUNKS;

pub struct Bystander {
    fleet: Fleet,
    prompts: Vec<Prompt>,
    large: Prompt,
    nanos: u64,
}

impl Bystander {
    pub fn new(
        candidate: &mut Candidate,
        instance: &Instance,
        nanos: u64,
    ) -> Result<Bystander, BenchFault> {
        let prompts = (0..CONNECTIONS).map(|_| candidate.stored(instance, PROMPT_CHUNKS));
        let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
        let chunks = LARGE_TOKENS / candidate.chunk_tokens;
        let large = candidate.missing(instance, chunks.max(1));
        Ok(Bystander {
            fleet: Fleet::connect(candidate, CONNECTIONS, true)?,
            prompts,
            large,
            nanos,
        })
    }
}

impl Stand for Bystander {
    fn measure(&mut self, candidate: &mut Candidate) -> Result<Figures, BenchFault> {
        let pace = Pace::Open { per_second: PER_SECOND };
        let warm_nanos = self.nanos / 4;
        let alone = Load { prompts: &self.prompts, hog: None, pace, warm_nanos, nanos: self.nanos };
        let idle = self.fleet.run(candidate, alone)?;
        let beside = self.fleet.run(candidate, Load { hog: Some(&self.large), ..alone })?;
        let [idle_p50, idle_p99] = [0.5, 0.99].map(|each| quantile_us(&idle.latency, each));
        let [beside_p50, beside_p99] = [0.5, 0.99].map(|each| quantile_us(&beside.latency, each));
        let slower = beside_p99.zip(idle_p99).map(|(beside, idle)| beside / idle);
        let large_per_s = beside.hog_done as f64 * 1e9 / self.nanos as f64;
        Ok(vec![
            (IDLE_P50_US, idle_p50),
            (IDLE_P99_US, idle_p99),
            (BESIDE_P50_US, beside_p50),
            (BESIDE_P99_US, beside_p99),
            (SLOWER, slower),
            (LARGE_PER_S, Some(large_per_s)),
            (LAG_P99_US, quantile_us(&beside.lag, 0.99)),
        ])
    }
}

const CONNECTIONS: usize = 4;
/// Less than half of what the peer can do.
const PER_SECOND: f64 = 200.0;
const LARGE_TOKENS: u64 = 1_000_000;
