//! Serving: the engine, the reactor and the helper threads on the ground that `server` has laid.
//!
//! Here and nowhere else the parts meet. Order at start: memory, engine, telemetry, the
//! engines' path, operators' port, the engines' port; so a port that accepts means a server that
//! answers. Order at the end:
//! the reactor answers what is outstanding, the segment, operators' port, telemetry. What comes
//! after the segment shares one deadline, and a signal ends it at once.

use crate::admin::{Admin, Options, Times, View};
use crate::admin::{Ask, Dump, Reach, ReactorSeen, Seen, Teller, Unreachable, Wanted};
use crate::cli::{EXIT_STARTUP, Settings};
use crate::clock::Clock;
use crate::ending::Ending;
use crate::log;
use crate::paged::{SumFault, Summed, Wanted as SumWanted};
use crate::reactor::watchdog::Sighting;
use crate::reactor::{
    Closing, LastTurn, ListenAddress, Note, OperatorRequest, Parts, Reactor, ReactorStatus,
    SocketFile, Watchdog,
};
use crate::record::{self, Recording};
use crate::server::grow::{Received, Word, while_serving};
use crate::server::news::{News, NewsOptions};
use crate::server::threads;
use crate::server::{
    Ended, Ground, LOG_PATIENCE, StartFault, announce_http, announce_serving, left,
};
use crate::telemetry::{Backlog, Scraper, Telemetry, TelemetryConfig, facts, process_page};
use crate::tiers;
use kvtide_core::effect::{OperatorAnswer, Outbox};
use kvtide_core::engine::Engine;
use kvtide_core::engine::adapters::operator::{AdapterStatus, Page};
use kvtide_core::engine::status::QuotaStatus;
use kvtide_core::event::Event;
use kvtide_core::front::Front;
use kvtide_core::metrics::{FoldConfig, SampleRate};
use kvtide_core::names::InstanceId;
use kvtide_core::wire::zmtp::ZmtpFault;
use kvtide_lanes::Refused;
use kvtide_lanes::mailbox::Sender;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Serves until a signal comes. The exit status is the peer's: 130 or 143.
pub fn serve(ground: Ground) -> Result<Ended, StartFault> {
    let Ground { settings, clock, signals, arena, grower, request, http, metrics } = ground;
    let whole = arena.bytes();
    let bytes = arena.usable_bytes();
    let (engine, recording, record_thread) = engine(&settings, clock, bytes)?;
    let telemetry = Telemetry::new(telemetry_config(&settings)?);
    let scraper = telemetry.scraper();
    let (sender, receiver) = facts(settings.facts_max);
    let backlog = receiver.backlog();
    let parts =
        Parts { engine, front: Front::new(&settings.engine), arena, clock, facts: Some(sender) };
    let mut reactor = Reactor::new(parts).map_err(StartFault::world)?;
    reactor.set_copy_lanes(settings.copy_lanes);
    if let Some(recording) = recording {
        reactor.record(recording);
    }
    open_tiers(&mut reactor, &settings)?;
    // Told once more, so that the gauges stand before the first tick.
    reactor.sender().put(Note::ArenaGrown { bytes }).ok();
    let unread = signals.unread();
    reactor.watch(signals).map_err(StartFault::world)?;
    let facts_thread = threads::telemetry(receiver, telemetry, news(&settings));
    let facts_thread = facts_thread.map_err(StartFault::world)?;
    let port = request.address().port();
    if let Some(path) = &settings.ipc_path {
        let address = ListenAddress::Path(path.clone());
        let failed = |error| StartFault::world(format!("--ipc-path {}: {error}", path.display()));
        reactor.listen(&address).map_err(failed)?;
    }
    let (sender, socket) =
        (reactor.sender(), settings.ipc_path.as_deref().and_then(SocketFile::at));
    while_serving(grower, whole, move |word| hear(&sender, socket.as_ref(), word), thread::sleep)
        .map_err(StartFault::world)?;
    let http_port = http.address().port();
    let reach = Reactors {
        sender: reactor.sender(),
        last_turn: reactor.last_turn(),
        watchdog: Mutex::new(Watchdog::new(reactor.last_turn())),
        clock,
        scraper: settings.metrics.then_some(scraper),
        backlog,
    };
    let options = Options {
        reach: Arc::new(reach),
        view: View::new(settings.engine.clone(), settings.adapters.clone()),
        document: settings.document.clone(),
        patience: PATIENCE,
        times: Times::default(),
    };
    let admin = Admin::start(http, metrics, options).map_err(StartFault::world)?;
    reactor.accept_at(request.listen()?).map_err(StartFault::world)?;
    announce_serving(&settings, port);
    announce_http(&settings, http_port);
    let ended = run(&mut reactor, record_thread.as_ref());
    reactor.end_recording(ended.is_ok());
    drop(reactor);
    // Nothing that others could see is left: from here on the end can be cut short anywhere.
    unread.say();
    let until = clock.now() + END_PATIENCE;
    admin.stop(left(clock, until));
    facts_thread.within(left(clock, until));
    if let Some(thread) = record_thread {
        thread.within(left(clock, until));
    }
    Ok(Ended { exit: ended?, until })
}

/// Every lower tier, in the order in which they were asked for.
fn open_tiers(reactor: &mut Reactor<Engine>, settings: &Settings) -> Result<(), StartFault> {
    for (at, spec) in settings.adapters.iter().enumerate() {
        let failed = |why: &dyn Display| {
            StartFault::world(format!("--l2-adapter #{} ({}): {why}", at + 1, spec.name))
        };
        let opened = tiers::open(spec.clone(), reactor.tier_terms());
        let opened = opened.map_err(|error| failed(&error))?;
        match reactor.add_tier(opened) {
            Ok(Some(_)) => {}
            Ok(None) => return Err(failed(&"there are as many adapters as there can be")),
            Err(error) => return Err(failed(&error)),
        }
    }
    Ok(())
}

/// What the arena's helper says, on its thread.
fn hear(sender: &Sender<Note<Engine>>, socket: Option<&SocketFile>, word: Word) -> Received {
    let note = match word {
        Word::Grown(bytes) => Note::ArenaGrown { bytes },
        Word::Pool(news) => Note::Pool(news),
        Word::Torn => {
            // Nothing that L1 holds can be trusted any more, and no answer is better than a wrong
            // one: engines compute anew, and whoever watches starts a new server.
            tracing::error!("L1's segment was cut short from outside; what was stored is lost.");
            // Ending here runs no destructor; the segment's name is gone already.
            if let Some(socket) = socket {
                socket.remove();
            }
            log::flush(LOG_PATIENCE);
            std::process::exit(EXIT_STARTUP.into());
        }
    };
    match sender.put(note) {
        Ok(()) => Received::Taken,
        Err(Refused::Full(_)) => Received::NotNow,
        Err(Refused::Closed(_)) => Received::Ended,
    }
}

/// A panic of the reactor is a fault of ours that nothing can be served after: say what it was at,
/// and abort, so that whoever watches starts anew (design §7).
fn run(reactor: &mut Reactor<Engine>, record: Option<&Ending>) -> Result<u8, StartFault> {
    match catch_unwind(AssertUnwindSafe(|| reactor.run())) {
        Ok(Ok(signal)) => Ok(signal.exit_code()),
        Ok(Err(error)) => Err(StartFault::world(format!("the reactor cannot poll: {error}"))),
        Err(_) => {
            // The server ends, even if something is so broken that it cannot be told of.
            let told = catch_unwind(AssertUnwindSafe(|| tell_of_panic(reactor, record)));
            if told.is_err() {
                tracing::error!("What led to it could not be written down: that panicked, too.");
            }
            tracing::error!("The reactor panicked and cannot go on; the server aborts.");
            log::flush(LOG_PATIENCE);
            std::process::abort();
        }
    }
}

/// What a reactor that has panicked leaves behind. Every wait in it has an end.
fn tell_of_panic(reactor: &mut Reactor<Engine>, record: Option<&Ending>) {
    let recent = reactor.recent_events();
    tracing::error!("The reactor panicked after these events: {recent}");
    match reactor.dump_after_panic() {
        Some(Ok(dumped)) => {
            let (events, path) = (dumped.events, dumped.path.display());
            tracing::error!("The last {events} events are in {path} (kvtide replay).");
        }
        Some(Err(error)) => tracing::error!("They could not be written down: {error}"),
        None => {}
    }
    reactor.end_recording(false);
    if let Some(thread) = record {
        thread.within(LOG_PATIENCE);
    }
}

/// The engine, which knows what there is of the arena, and its recording.
fn engine(
    settings: &Settings,
    clock: Clock,
    bytes: u64,
) -> Result<(Engine, Option<Recording>, Option<Ending>), StartFault> {
    let mut engine = Engine::new(settings.engine.clone());
    let (grown, mut first) = (Event::ArenaGrown { bytes }, Outbox::default());
    let Some((mut recording, thread)) = recording(settings)? else {
        engine.handle(clock.now(), grown, &mut first);
        return Ok((engine, None, None));
    };
    recording.handle(&mut engine, clock.now(), grown, &mut first);
    Ok((engine, Some(recording), Some(thread)))
}

/// `--record` and the flight recorder. Without a random device there is no secret for it: then a
/// recording that was asked for is refused, and the flight recorder left out.
fn recording(settings: &Settings) -> Result<Option<(Recording, Ending)>, StartFault> {
    match record::start(&settings.record, &settings.engine) {
        Err(error) if settings.record.file.is_none() => {
            tracing::warn!("There is no flight recorder: {error}");
            Ok(None)
        }
        started => started.map_err(StartFault::world),
    }
}

fn telemetry_config(settings: &Settings) -> Result<TelemetryConfig, StartFault> {
    let sample_rate = SampleRate::from_ppm(settings.sample_rate_ppm);
    let sample_rate = sample_rate
        .ok_or_else(|| StartFault::world("--metrics-sample-rate does not lie in (0, 1]"))?;
    let chunk_size = settings.engine.chunk_size;
    let fold = FoldConfig { chunk_size, sample_rate, seed: SAMPLING_SEED };
    Ok(TelemetryConfig { fold, instance_id: settings.engine.server_id.clone() })
}

/// None where the flags leave nothing to tell.
fn news(settings: &Settings) -> Option<News> {
    let options = NewsOptions {
        chunk_size: settings.engine.chunk_size,
        lines: settings.fact_log,
        extra_every: settings.extra_logging,
    };
    (options.lines || options.extra_every.is_some()).then(|| News::new(options))
}

/// The admin thread's way to the reactor and to telemetry.
struct Reactors {
    sender: Sender<Note<Engine>>,
    last_turn: LastTurn,
    watchdog: Mutex<Watchdog>,
    clock: Clock,
    /// None where metrics are off: then `/metrics` tells of the process alone.
    scraper: Option<Scraper>,
    backlog: Arc<Backlog>,
}

impl Reactors {
    fn put(&self, note: Note<Engine>) -> Result<(), Unreachable> {
        self.sender.put(note).map_err(|refused| match refused {
            Refused::Full(_) => Unreachable::Busy,
            Refused::Closed(_) => Unreachable::Ended,
        })
    }
}

impl Reach for Reactors {
    fn ask(&self, ask: Ask, answer: Teller<OperatorAnswer>) -> Result<(), Unreachable> {
        let ask = match ask {
            Ask::Clear { force } => OperatorRequest::Clear { force },
            Ask::QuotaSet { salt, bytes } => OperatorRequest::QuotaSet { salt, bytes },
            Ask::QuotaRemove { salt } => OperatorRequest::QuotaRemove { salt },
            Ask::Delete { keys, from_l1, adapter, force } => {
                return self.put(Note::Delete { keys, how: (from_l1, adapter, force), answer });
            }
        };
        self.put(Note::Operator { ask, answer })
    }

    fn look(&self, answer: Teller<Seen>) -> Result<(), Unreachable> {
        self.put(Note::Look(Box::new(move |engine: &Engine, reactor| {
            let tiers = reactor.tiers.clone();
            answer(Seen { engine: engine.status(), reactor: seen(engine, reactor), tiers });
        })))
    }

    fn pulse(&self, answer: Teller<ReactorSeen>) -> Result<(), Unreachable> {
        self.put(Note::Look(Box::new(move |engine, reactor| answer(seen(engine, reactor)))))
    }

    fn quota_of(&self, salt: String, answer: Teller<QuotaStatus>) -> Result<(), Unreachable> {
        self.put(Note::Look(Box::new(move |engine, _| answer(engine.quota_of(&salt)))))
    }

    fn quotas(&self, answer: Teller<Vec<QuotaStatus>>) -> Result<(), Unreachable> {
        self.put(Note::Look(Box::new(move |engine, _| answer(engine.quotas()))))
    }

    fn adapters(&self, answer: Teller<Vec<AdapterStatus>>) -> Result<(), Unreachable> {
        self.put(Note::Look(Box::new(move |engine, _| answer(engine.adapters_status()))))
    }

    fn objects(&self, wanted: Wanted, answer: Teller<Option<Page>>) -> Result<(), Unreachable> {
        self.put(Note::Look(Box::new(move |engine, _| {
            let Wanted { adapter, from, most, model } = wanted;
            answer(engine.l2_page(adapter, (from, most), model.as_deref()));
        })))
    }
    fn sum(
        &self,
        instance: InstanceId,
        wanted: SumWanted,
        answer: Teller<Result<Summed, SumFault>>,
    ) -> Result<(), Unreachable> {
        self.put(Note::Sum { instance, wanted, answer })
    }

    fn dump(&self, answer: Teller<Result<Dump, String>>) -> Result<(), Unreachable> {
        self.put(Note::Dump(Box::new(move |dumped| {
            answer(dumped.map(|dumped| Dump {
                path: dumped.path.display().to_string(),
                bytes: dumped.bytes,
                events: dumped.events,
                is_whole: dumped.is_whole,
            }));
        })))
    }

    fn last_turn_age(&self) -> Duration {
        self.last_turn.age(self.clock.now())
    }

    fn watch(&self) {
        // A look that panicked leaves nothing half done.
        let mut watchdog = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner);
        match watchdog.look(self.clock.now()) {
            Some(stalled @ Sighting::Stalled { .. }) => tracing::error!("{stalled}"),
            Some(recovered @ Sighting::Recovered { .. }) => tracing::warn!("{recovered}"),
            None => {}
        }
    }

    fn metrics_page(&self, reactor: Option<&ReactorSeen>, restarts: u64) -> String {
        let Some(scraper) = &self.scraper else { return process_page() };
        scraper.page(self.backlog.gauges(self.clock.now()), reactor, restarts)
    }
}

fn seen(engine: &Engine, reactor: &ReactorStatus) -> ReactorSeen {
    ReactorSeen {
        connections: reactor.connections as u64,
        requests: reactor.requests as u64,
        stopping: reactor.stopping,
        scanning: engine.adapters_scanning() as u64,
        stalls: reactor.stalls,
        turns: reactor.turns.turns,
        turns_total: reactor.turns.total,
        longest_turn: reactor.turns.longest,
        longest_event: reactor.turns.longest_event,
        pool_name: reactor.pool_name.clone(),
        usable_bytes: reactor.usable_bytes,
        pool_waits: reactor.pool_news.waits.map(|error| error.to_string()),
        pool_is_unnamed: reactor.pool_news.is_unnamed,
        medium_frame_bytes_left: reactor.medium_frame_bytes_left as u64,
        large_frame_bytes_left: reactor.large_frame_bytes_left as u64,
        buffered_bytes: reactor.buffered_bytes as u64,
        totals: totals(reactor).to_vec(),
        closings: closings().map(|why| (why.label(), reactor.counters.closings(why))).collect(),
        turns_by_duration: reactor.turns.buckets.to_vec(),
    }
}

fn totals(reactor: &ReactorStatus) -> [(&'static str, u64); 14] {
    let (counters, recording) = (&reactor.counters, &reactor.recording);
    [
        ("accepted", counters.accepted),
        ("turned_away_full", counters.turned_away_full),
        ("turned_away_descriptors", counters.turned_away_descriptors),
        ("ended", counters.ended),
        ("messages", counters.messages),
        ("answers", counters.answers),
        ("answers_dropped", counters.answers_dropped),
        ("input_bytes", counters.input_bytes),
        ("output_bytes", counters.output_bytes),
        ("fact_batches_dropped", counters.fact_batches_dropped),
        ("recording_events", recording.events),
        ("recording_frames", recording.frames),
        ("recording_gaps", recording.gaps),
        ("recording_dumps", recording.dumps),
    ]
}

/// Every reason to close a connection; protocol faults are one. A reason that is added to `Closing`
/// does not build until it has its place in this chain.
fn closings() -> impl Iterator<Item = Closing> {
    let next = |why: &Closing| match why {
        Closing::Protocol(_) => Some(Closing::FrameTooLarge),
        Closing::FrameTooLarge => Some(Closing::EnvelopeTooLarge),
        Closing::EnvelopeTooLarge => Some(Closing::HandshakeTimeout),
        Closing::HandshakeTimeout => Some(Closing::LargeFrameStalled),
        Closing::LargeFrameStalled => Some(Closing::MessageStalled),
        Closing::MessageStalled => Some(Closing::BuffersFull),
        Closing::BuffersFull => None,
    };
    std::iter::successors(Some(Closing::Protocol(ZmtpFault::Signature)), next)
}

/// How long an operator's request waits for the reactor: long enough for one under load, short
/// enough for a probe.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the end waits, once the reactor has ended, for operators' answers, the last facts and
/// the log together (design §7).
const END_PATIENCE: Duration = Duration::from_secs(2);
/// The same keys are sampled on every server and after every restart (spec/metrics §3.3).
const SAMPLING_SEED: u64 = 0x6B76_7469_6465;
