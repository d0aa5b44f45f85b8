//! One connection, one call after the other: what a caller waits for.

use super::candidate::{Candidate, Instance, Prompt};
use super::case::Stand;
use super::fault::BenchFault;
use super::figures::{
    CALL_P50_US, Figures, GENERATOR_CPU_US, SERVER_CPU_US, latencies, note, quantile_us, quantiles,
};
use super::message::{Message, RequestId};
use super::process::Usage;
use crate::clock::Clock;
use kvtide_core::wire::operation::Operation;

/// `noop`.
pub struct Noop {
    clock: Clock,
    nanos: u64,
    message: Message,
}

impl Noop {
    pub fn new(nanos: u64) -> Noop {
        Noop { clock: Clock::start(), nanos, message: Message::new(Operation::Noop, &[]) }
    }
}

impl Stand for Noop {
    fn measure(&mut self, candidate: &mut Candidate) -> Result<Figures, BenchFault> {
        let control = &mut candidate.control;
        for _ in 0..WARM_CALLS {
            control.call(&self.message, RequestId::NONE)?.done()?;
        }
        let mut times = latencies();
        let usage = Usage::now(candidate.process);
        let end = self.clock.now().0 + self.nanos;
        let mut before = self.clock.now().0;
        while before < end {
            candidate.stop.check()?;
            control.call(&self.message, RequestId::NONE)?.done()?;
            let after = self.clock.now().0;
            note(&mut times, after - before);
            before = after;
        }
        let mut figures = quantiles(&times);
        push_cpu(&mut figures, usage.per(candidate.process, times.len()));
        Ok(figures)
    }
}

/// Lookup, then its result. What ends the request is sent as well, and not timed.
pub struct Lookup {
    clock: Clock,
    nanos: u64,
    prompt: Prompt,
}

impl Lookup {
    /// Prepares a prompt that hits whole, or one that misses.
    pub fn new(
        candidate: &mut Candidate,
        instance: &Instance,
        chunks: u64,
        hit: bool,
        nanos: u64,
    ) -> Result<Lookup, BenchFault> {
        let prompt = if hit {
            candidate.stored(instance, chunks)?
        } else {
            candidate.missing(instance, chunks)
        };
        Ok(Lookup { clock: Clock::start(), nanos, prompt })
    }

    /// One request: nanoseconds until the lookup was acknowledged, and until its result was there.
    fn request(&self, candidate: &mut Candidate) -> Result<(u64, u64), BenchFault> {
        let prompt = &self.prompt;
        let id = candidate.ids.next_id();
        let token = (prompt.hits == 0).then(|| candidate.ids.next_token());
        let change = |out: &mut [u8]| {
            if let Some(token) = token {
                prompt.lookup.stamp_token(token, out);
            }
        };
        let control = &mut candidate.control;
        let begun = self.clock.now().0;
        control.call_with(&prompt.lookup, id, change)?.done()?;
        let acknowledged = self.clock.now().0;
        let found = control.call(&candidate.session.wait, id)?.count()?;
        let known = self.clock.now().0;
        prompt.judge(found).map_err(|what| candidate.url.fault(what))?;
        if prompt.hits > 0 {
            control.call(&prompt.free, id)?.done()?;
        }
        control.call(&candidate.session.end, id)?.done()?;
        Ok((acknowledged - begun, known - begun))
    }
}

impl Stand for Lookup {
    fn measure(&mut self, candidate: &mut Candidate) -> Result<Figures, BenchFault> {
        for _ in 0..WARM_REQUESTS {
            self.request(candidate)?;
        }
        let (mut calls, mut totals) = (latencies(), latencies());
        let usage = Usage::now(candidate.process);
        let end = self.clock.now().0 + self.nanos;
        while self.clock.now().0 < end {
            candidate.stop.check()?;
            let (call, total) = self.request(candidate)?;
            note(&mut calls, call);
            note(&mut totals, total);
        }
        let cpu = usage.per(candidate.process, totals.len());
        let mut figures = quantiles(&totals);
        figures.push((CALL_P50_US, quantile_us(&calls, 0.5)));
        push_cpu(&mut figures, cpu);
        Ok(figures)
    }
}

/// The two columns of processor time.
pub fn push_cpu(figures: &mut Figures, (server, own): (Option<f64>, Option<f64>)) {
    figures.push((SERVER_CPU_US, server));
    figures.push((GENERATOR_CPU_US, own));
}

const WARM_CALLS: u32 = 50;
const WARM_REQUESTS: u32 = 5;
