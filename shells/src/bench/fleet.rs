//! Many connections on one thread: each sends the four calls of a request one after the other,
//! either as soon as its last request has ended (closed loop) or when one is due (open loop).
//!
//! The one invariant: in the open loop a request's time runs from when it was due, not from when
//! the generator came to it, so a server that stalls cannot hide behind a generator that waits.

mod member;
mod run;
mod timer;

use super::candidate::{Candidate, Prompt};
use super::fault::BenchFault;
use super::line::{ANSWER_TIME_MAX, Line, Url};
use super::stop::Stop;
use crate::clock::Clock;
use hdrhistogram::Histogram;
use member::{Kit, Member};
use mio::{Events, Interest, Poll, Token};
use run::Run;
use std::io::ErrorKind;
use std::time::Duration;
use timer::Timer;

/// When a request begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    Closed,
    /// At random moments (a Poisson process), so many a second.
    Open {
        per_second: f64,
    },
}

/// What to send, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Load<'p> {
    pub prompts: &'p [Prompt],
    /// Sent without pause on a connection of its own, and not measured.
    pub hog: Option<&'p Prompt>,
    pub pace: Pace,
    pub warm_nanos: u64,
    pub nanos: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub done: u64,
    pub nanos: u64,
    pub latency: Histogram<u64>,
    /// How much later than it could the generator sent.
    pub lag: Histogram<u64>,
    pub server_cpu_us: Option<f64>,
    pub generator_cpu_us: Option<f64>,
    pub hog_done: u64,
}

pub struct Fleet {
    url: Url,
    clock: Clock,
    stop: Stop,
    poll: Poll,
    events: Events,
    timer: Timer,
    /// What the timer was last set to.
    armed_for: u64,
    members: Vec<Member>,
    hog: Option<Member>,
    /// Members that can send more at once, and took a break for the others.
    unsent: Vec<usize>,
    buffer: Vec<u8>,
}

impl Fleet {
    pub fn connect(candidate: &Candidate, count: usize, hog: bool) -> Result<Fleet, BenchFault> {
        let url = candidate.url.clone();
        let poll = Poll::new().map_err(|error| url.fault(error))?;
        let timer = Timer::new(poll.registry(), TIMER).map_err(|error| url.fault(error))?;
        let mut fleet = Fleet {
            clock: Clock::start(),
            stop: candidate.stop.clone(),
            poll,
            events: Events::with_capacity(EVENTS),
            timer,
            armed_for: 0,
            members: Vec::with_capacity(count),
            hog: None,
            unsent: Vec::new(),
            buffer: vec![0; READ_BYTES],
            url,
        };
        for index in 0..count {
            let member = fleet.member(Token(index))?;
            fleet.members.push(member);
        }
        if hog {
            fleet.hog = Some(fleet.member(HOG)?);
        }
        Ok(fleet)
    }

    fn member(&self, token: Token) -> Result<Member, BenchFault> {
        let (stream, inlet) = Line::connect(&self.url, &self.stop)?.into_parts();
        let made = Member::new(stream, inlet).and_then(|mut member| {
            let both = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut member.stream, token, both)?;
            Ok(member)
        });
        made.map_err(|error| self.url.fault(error))
    }

    /// Sends the load and waits for all that was sent.
    pub fn run(
        &mut self,
        candidate: &mut Candidate,
        load: Load<'_>,
    ) -> Result<Outcome, BenchFault> {
        let seed = crate::entropy::seed();
        let mut run = Run::new(self.clock.now().0, load, self.members.len(), seed);
        let give_up = run.end + GIVE_UP_NANOS.max(load.nanos);
        loop {
            let now = self.clock.now().0;
            let asked_to_stop = self.stop.check();
            if asked_to_stop.is_err() {
                // What is under way is ended: no session stays behind.
                run.cut(now);
            }
            run.mark(now, candidate);
            self.begin_due(now, &mut run, candidate)?;
            if run.is_over(now) && self.is_idle() {
                return asked_to_stop.map(|()| run.into_outcome(candidate));
            }
            if now > give_up && !run.due.is_empty() {
                let late = run.due.len();
                return Err(self.url.fault(format!(
                    "does not keep up with --rate: {late} requests are still to be sent"
                )));
            }
            if now > run.heard + ANSWER_TIME_MAX.as_nanos() as u64 && !self.is_idle() {
                return Err(self.url.fault("no answer within 30 s"));
            }
            self.wait(now, &run)?;
            self.take_events(&mut run, candidate)?;
        }
    }

    fn is_idle(&self) -> bool {
        self.members.iter().chain(&self.hog).all(Member::is_idle)
    }

    /// Begins what is due, as far as connections are free.
    fn begin_due(
        &mut self,
        now: u64,
        run: &mut Run<'_>,
        candidate: &mut Candidate,
    ) -> Result<(), BenchFault> {
        if let Some((hog, prompt)) = self.hog.as_mut().zip(run.load.hog)
            && hog.is_idle()
            && now < run.end
        {
            hog.begin((0, prompt), now, &mut Kit::of(candidate));
            self.unsent.push(HOG.0);
        }
        run.draw(now);
        while let Some((index, due)) = run.next(now) {
            let prompt = run.prompt();
            self.members[index].begin(prompt, due, &mut Kit::of(candidate));
            self.send(index)?;
        }
        for index in std::mem::take(&mut self.unsent) {
            self.send(index)?;
        }
        Ok(())
    }

    fn send(&mut self, index: usize) -> Result<(), BenchFault> {
        let member = match index {
            _ if index == HOG.0 => self.hog.as_mut().expect("only a hog has its number"),
            _ => &mut self.members[index],
        };
        let more = member.send().map_err(|error| self.url.fault(error))?;
        if more {
            self.unsent.push(index);
        }
        Ok(())
    }

    fn wait(&mut self, now: u64, run: &Run<'_>) -> Result<(), BenchFault> {
        let mut timeout = POLL_TIME_MAX;
        if !self.unsent.is_empty() {
            timeout = Duration::ZERO;
        } else if let Some(at) = run.wakes_at(now) {
            let nanos = at.saturating_sub(now);
            if nanos == 0 {
                timeout = Duration::ZERO;
            } else if run.load.pace == Pace::Closed {
                timeout = timeout.min(Duration::from_nanos(nanos));
            } else if self.armed_for != at {
                // A wait of the poll itself has milliseconds; requests are due between them.
                self.armed_for = at;
                self.timer.arm(nanos).map_err(|error| self.url.fault(error))?;
            }
        }
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(self.url.fault(error)),
            _ => Ok(()),
        }
    }

    fn take_events(
        &mut self,
        run: &mut Run<'_>,
        candidate: &mut Candidate,
    ) -> Result<(), BenchFault> {
        let events = std::mem::replace(&mut self.events, Events::with_capacity(1));
        let mut taken = Ok(());
        for event in events.iter().filter(|event| event.token() != TIMER) {
            let index = event.token().0;
            if event.is_writable() {
                taken = taken.and_then(|()| self.send(index));
            }
            if event.is_readable() {
                taken = taken.and_then(|()| self.receive(index, run, candidate));
            }
        }
        self.events = events;
        taken
    }

    /// Takes what has come for a member. An answer is followed by the next call at once.
    fn receive(
        &mut self,
        index: usize,
        run: &mut Run<'_>,
        candidate: &mut Candidate,
    ) -> Result<(), BenchFault> {
        let is_hog = index == HOG.0;
        let (member, prompts) = match (&mut self.hog, run.load.hog) {
            (Some(hog), Some(prompt)) if is_hog => (hog, std::slice::from_ref(prompt)),
            _ if is_hog => return Ok(()),
            _ => (&mut self.members[index], run.load.prompts),
        };
        let mut kit = Kit::of(candidate);
        let ended = member.receive(&mut self.buffer, prompts, &mut kit);
        let ended = ended.map_err(|what| self.url.fault(what))?;
        let now = self.clock.now().0;
        run.heard = now;
        if let Some(due) = ended {
            if is_hog {
                run.outcome.hog_done += u64::from(now >= run.begin && now < run.end);
                return Ok(());
            }
            run.ended(index, due, now);
            if let Some((index, due)) = run.next(now) {
                let prompt = run.prompt();
                self.members[index].begin(prompt, due, &mut Kit::of(candidate));
            }
        }
        self.send(index)
    }
}

const TIMER: Token = Token(usize::MAX);
const HOG: Token = Token(usize::MAX - 1);
const EVENTS: usize = 256;
/// Every answer of the calls that are sent here fits many times.
const READ_BYTES: usize = 64 << 10;
/// How long Ctrl-C may go unheard.
const POLL_TIME_MAX: Duration = Duration::from_millis(100);
/// How long requests that were due in time may still be sent.
const GIVE_UP_NANOS: u64 = 10_000_000_000;
