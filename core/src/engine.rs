//! The desk: takes in one event, routes it to the room it belongs to, and hands small values from
//! room to room. It holds no room's logic.

pub mod adapters;
pub mod alarms;
pub mod attachments;
pub mod audit;
pub mod clients;
pub mod copies;
pub mod demote;
pub mod evict;
pub mod fold;
pub mod jobs;
pub mod l1;
pub mod layouts;
pub mod memory;
mod operator;
pub mod promote;
pub mod quota;
pub mod scopes;
pub mod sessions;
pub mod space;
pub mod status;
pub mod turn;

pub use alarms::Alarm;
pub use status::Status;

use crate::config::Config;
use crate::effect::{Answer, Outbox};
use crate::event::{Ask, BodyOutcome, Event};
use crate::fact::{Abort, Fact, Gauges, InstanceEnd, RequestFault};
use crate::names::Reply;
use crate::time::Instant;
use adapters::Adapters;
use attachments::Attachments;
use clients::{Clients, Mode};
use copies::Copies;
use demote::Demote;
use jobs::{Job, Jobs};
use l1::L1;
use layouts::Layouts;
use promote::Promote;
use quota::Quota;
use sessions::Sessions;
use status::Refusals;
use turn::{Turn, Work};

#[derive(Clone, Debug)]
pub struct Engine {
    config: Config,
    now: Instant,
    l1: L1,
    sessions: Sessions,
    copies: Copies,
    clients: Clients,
    attachments: Attachments,
    layouts: Layouts,
    adapters: Adapters,
    demote: Demote,
    promote: Promote,
    quota: Quota,
    alarms: alarms::Alarms,
    jobs: Jobs,
    refusals: Refusals,
    /// Some engine has told of its blocks: the ends of requests matter to whoever follows those.
    tells_blocks: bool,
    /// What the event at hand may still do, or the last one did.
    work: Work,
}

/// Splits the engine into what a room is lent and the rooms themselves.
macro_rules! turn {
    ($engine:ident, $out:ident) => {
        Turn {
            now: $engine.now,
            config: &$engine.config,
            l1: &mut $engine.l1,
            alarms: &mut $engine.alarms,
            jobs: &mut $engine.jobs,
            work: &mut $engine.work,
            out: $out,
        }
    };
}

// Behind the macro: they use it.
mod registrations;
mod tiers;
mod transfers;

impl Engine {
    /// An engine whose arena has nothing usable yet; `Event::ArenaGrown` says when it has.
    ///
    /// # Panics
    /// When the configuration breaks a rule that `Config::check` names.
    pub fn new(config: Config) -> Engine {
        if let Err(error) = config.check() {
            panic!("{} {}", error.field, error.rule);
        }
        let seed = config.seed;
        let limits = config.limits;
        let timers = memory::timers(&limits);
        let mut engine = Engine {
            l1: L1::new(&config),
            sessions: Sessions::new(&limits, seed),
            copies: Copies::new(&limits, seed),
            clients: Clients::new(&limits, seed),
            attachments: Attachments::new(&limits, seed),
            layouts: Layouts::new(seed),
            adapters: Adapters::new(&limits, seed),
            demote: Demote::new(&limits, seed),
            promote: Promote::new(&limits, seed),
            quota: Quota::default(),
            alarms: alarms::Alarms::with_limit(timers),
            jobs: Jobs::default(),
            refusals: Refusals::default(),
            tells_blocks: false,
            work: Work::default(),
            now: Instant::ZERO,
            config,
        };
        #[cfg(feature = "planted")]
        engine.copies.plant(engine.config.planted);
        engine.alarms.arm(Instant::ZERO + evict::TICK, Alarm::EvictionTick, NOBODY);
        engine
    }

    /// Takes in one event. Work for the shells is appended to `out`.
    pub fn handle(&mut self, now: Instant, event: Event<'_>, out: &mut Outbox) {
        assert!(now >= self.now, "clock went back: {now:?} after {:?}", self.now);
        self.now = now;
        self.work = Work::new(self.config.limits.work_units);
        match event {
            Event::Tick => self.tick(out),
            Event::Asked { reply, ask } => self.ask(reply, ask, out),
            Event::ConnectionEnded { connection } => {
                self.sessions.connection_ended(connection);
                self.end_attached(connection, out);
                self.copies.connection_ended(&mut turn!(self, out), connection);
            }
            Event::SendEnded { ticket, outcome } => {
                let mut turn = turn!(self, out);
                self.copies.send_ended(&mut turn, ticket, outcome);
            }
            Event::ReceiveEnded { ticket, complete, outcome } => {
                let mut turn = turn!(self, out);
                let sender = self.copies.receive_ended(&mut turn, ticket, complete, outcome);
                // Garbage says nothing about how this client moves its bytes.
                if let (Some(instance), BodyOutcome::Whole) = (sender, outcome) {
                    self.clients.has_mode(instance, Mode::Inline);
                }
            }
            Event::AttachEnded { attachment, outcome } => {
                self.attach_ended(attachment, outcome, out);
            }
            Event::CopyEnded { ticket, whole } => {
                self.copies.copy_ended(&mut turn!(self, out), ticket, whole);
            }
            Event::ArenaGrown { bytes } => {
                self.l1.grow(bytes);
                out.tell(self.gauges());
            }
            Event::OperatorAsked { operator, ask } => self.operate(operator, ask, out),
            event => self.tier_event(event, out),
        }
        if !self.copies.published.is_empty() {
            self.objects_committed(out);
        }
        self.settle_tiers(out);
    }

    /// When the next `Event::Tick` is wanted, and what for.
    pub fn deadline(&self) -> Option<(Instant, Alarm)> {
        if !self.jobs.is_empty() {
            return Some((self.now, Alarm::Work));
        }
        self.alarms.next()
    }

    fn tick(&mut self, out: &mut Outbox) {
        while !self.work.is_spent() {
            let Some((alarm, subject)) = self.alarms.pop(self.now, &mut self.work) else { break };
            self.work.spend(1);
            let mut turn = turn!(self, out);
            match alarm {
                Alarm::Work => {}
                Alarm::EvictionTick => {
                    evict::tick(&mut turn);
                    if self.promote.look_after_waiting(&mut turn, &mut self.adapters) {
                        turn.jobs.loads();
                    }
                    let next = turn.now + evict::TICK;
                    turn.alarms.arm(next, Alarm::EvictionTick, NOBODY);
                    self.tiers_tick(out);
                    let gauges = self.gauges();
                    out.tell(gauges);
                }
                Alarm::LeaseExpiry => self.sessions.leases_expired(&mut turn, subject),
                Alarm::SessionExpiry => self.sessions.idle(&mut turn, subject),
                Alarm::WriteExpiry => self.copies.write_expired(&mut turn, subject),
                Alarm::WaitTimeout => self.sessions.wait_expired(&mut turn, subject),
                Alarm::FlightStall => self.tier_stalled(subject, out),
                Alarm::SeekExpiry => self.promote.expire(&mut turn, subject),
                Alarm::StoreRetry => self.store_retry(subject, out),
                Alarm::AdapterRetry => self.adapter_retry(subject, out),
                Alarm::InstanceSilence => {
                    if let Some(instance) = self.clients.silence(&mut turn, subject) {
                        let why = (InstanceEnd::Reaped, Abort::Reaped);
                        self.end_instance(instance, why, out);
                    }
                }
            }
        }
        self.do_jobs(out);
    }

    /// Goes on with unfinished jobs as far as the turn's units reach.
    fn do_jobs(&mut self, out: &mut Outbox) {
        while !self.work.is_spent() {
            let Some(job) = self.jobs.take() else { return };
            self.work.spend(1);
            let mut turn = turn!(self, out);
            let unfinished = match job {
                Job::Lookup { session } => (!self.look_on(session, None, out)).then_some(job),
                Job::Seek { seek } => {
                    let promote = &mut self.promote;
                    (!promote.go_on(&mut turn, &mut self.adapters, seek)).then_some(job)
                }
                Job::Leave => {
                    let adapters = &self.adapters;
                    let is_below = |scopes: &_, key: &_| adapters.keep(scopes, key);
                    turn.l1.drop_leaving(turn.work, turn.out, is_below).then_some(job)
                }
                Job::EndLeases { orphan } => {
                    (!self.sessions.end_orphan(&mut turn, orphan)).then_some(job)
                }
                Job::FreeRange { session } => {
                    (!self.sessions.free_some(&mut turn, session)).then_some(job)
                }
                Job::EndCopy { copy, how } => {
                    (!self.copies.end_some(&mut turn, copy, how)).then_some(job)
                }
                Job::Condemn { copy } => {
                    (!self.copies.condemn_some(&mut turn, copy)).then_some(job)
                }
                Job::EndConnection { connection, left } => self
                    .copies
                    .end_connection_some(&mut turn, connection, left)
                    .map(|left| Job::EndConnection { connection, left }),
                Job::EndInstance { registration, left } => self
                    .copies
                    .end_instance_some(&mut turn, registration, left)
                    .map(|left| Job::EndInstance { registration, left }),
                Job::EmptyWindow => (!turn.l1.empty_some(turn.work, turn.out)).then_some(job),
                Job::Sweep => turn.l1.sweep(turn.work, turn.out).then_some(job),
                Job::Evict => evict::some(&mut turn).then_some(job),
                Job::Tiers => {
                    let (adapters, demote) = (&mut self.adapters, &mut self.demote);
                    tiers::tiers_some(&mut turn, adapters, demote, &self.quota).then_some(job)
                }
                Job::Loads => {
                    self.promote.look_after_waiting(&mut turn, &mut self.adapters).then_some(job)
                }
            };
            match unfinished {
                Some(job) => self.jobs.resume(job),
                None => self.jobs.finished(job),
            }
        }
    }

    fn ask(&mut self, reply: Reply, ask: Ask<'_>, out: &mut Outbox) {
        let mut turn = turn!(self, out);
        match ask {
            Ask::Register(registration) => self.register(reply, &registration, out),
            Ask::RegisterPaged(registration) => self.register_paged(reply, &registration, out),
            Ask::RegisterRefused { instance, model, reason } => {
                self.refuse(reply, instance, model, reason, out);
            }
            Ask::Unregister { instance } => {
                let why = (InstanceEnd::Unregistered, Abort::Unregistered);
                self.attachments.outdate(instance);
                self.end_instance(instance, why, out);
                out.answer(reply, Answer::None);
            }
            Ask::Ping { instance } => {
                let known = instance.is_none_or(|id| self.clients.ping(&mut turn, id));
                out.answer(reply, Answer::Bool(known));
            }
            Ask::Lookup { keys } => {
                let layout = self.layouts.find(keys.model, keys.world_size);
                let is_below = self.adapters.loading().next().is_some();
                let session = self.sessions.lookup(&mut turn, &keys, layout, is_below);
                if let Some(session) = session
                    && !self.look_on(session, Some(keys.hashes), out)
                {
                    self.jobs.push(Job::Lookup { session });
                }
                out.answer(reply, Answer::None);
            }
            Ask::QueryPrefetch { request } => self.sessions.query(&mut turn, reply, request),
            Ask::WaitPrefetch { request, wait } => {
                self.sessions.wait(&mut turn, reply, request, wait);
            }
            Ask::FreeLookupLocks { keys } => {
                if !self.sessions.free(&mut turn, &keys) {
                    let operation = "free_lookup_locks";
                    out.tell(Fact::RequestFaulted { operation, fault: RequestFault::NoSuchHold });
                }
                out.answer(reply, Answer::None);
            }
            Ask::EndSession { request, hashes } => {
                self.sessions.end(&mut turn, request, hashes);
                self.session_ended(request, out);
                out.answer(reply, Answer::None);
            }
            Ask::PrepareStore { .. }
            | Ask::CommitStore { .. }
            | Ask::PrepareRetrieve { .. }
            | Ask::CommitRetrieve { .. } => self.transfer(reply, &ask, out),
            Ask::Store { .. } | Ask::Retrieve { .. } => self.copy_blocks(reply, &ask, out),
            Ask::BlocksAllocated { instance, model, blocks } => {
                self.blocks_allocated(instance, model, blocks, out);
                out.answer(reply, Answer::None);
            }
            Ask::Clear { force } => {
                self.clear(force, out);
                out.answer(reply, Answer::None);
            }
        }
    }

    /// The server goes down: every parked request gets its answer.
    pub fn finish(&mut self, now: Instant, out: &mut Outbox) {
        self.now = self.now.max(now);
        self.work = Work::new(self.config.limits.work_units);
        let mut turn = turn!(self, out);
        self.sessions.finish(&mut turn);
    }

    /// Says every tenant's name again, after facts were lost on their way.
    pub fn retell(&self, out: &mut Outbox) {
        self.l1.scopes.retell(&mut out.facts);
        self.adapters.retell(&mut out.facts);
    }

    /// Absolute gauges, for a scrape and for every tick.
    pub fn gauges(&self) -> Fact {
        let bytes = self.l1.bytes();
        Fact::Gauges(alloc::boxed::Box::new(Gauges {
            l1_used_bytes: self.l1.used_bytes(),
            l1_total_bytes: self.l1.total_bytes(),
            l1_configured_bytes: self.l1.configured_bytes(),
            l1_staging_bytes: bytes.staged,
            l1_condemned_bytes: bytes.condemned,
            l1_leased_bytes: bytes.leased,
            l1_objects: self.l1.objects_len() as u64,
            active_prefetch_jobs: self.sessions.untaken,
            sessions: self.sessions.len() as u64,
            instances: self.clients.len() as u64,
            tickets: self.copies.in_flight() as u64,
            lease_units: self.l1.lease_units(),
            adapters: self.adapters.gauges(&self.demote),
        }))
    }

    /// What the last event did, in cells.
    pub fn work(&self) -> Work {
        self.work
    }

    pub fn config(&self) -> &Config {
        &self.config
    }
}

/// The subject of an alarm that is about nobody in particular.
const NOBODY: crate::slots::SlotName =
    crate::slots::SlotName { index: u32::MAX, generation: u32::MAX };
