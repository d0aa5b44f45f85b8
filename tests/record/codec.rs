//! Every kind of event, written and read; and an engine that is told the same again.

use kvtide_core::config::{AdapterSetup, Config, Limits, PolicyKind};
use kvtide_core::effect::{Outbox, Refusal};
use kvtide_core::engine::Engine;
use kvtide_core::event::{
    Ask, BodyOutcome, DeleteOutcome, Event, Found, Keys, LoadOutcome, Named, OperatorAsk,
    Registration, Scanned, SendOutcome, StoreOutcome, TierFault,
};
use kvtide_core::limits::MODEL_BYTES_MAX;
use kvtide_core::names::{
    AdapterId, ChunkHash, Connection, Dtype, InstanceId, KvRank, Layout, Operator, Reply, Seal,
    Ticket,
};
use kvtide_core::recording::secret::{Naming, Numbered};
use kvtide_core::recording::{
    Frame, Happened, Header, Mark, Part, Reader, Recorder, Replay, Secret, hashes_of,
};
use kvtide_core::rng::Rng;
use kvtide_core::slots::SlotName;
use kvtide_core::time::{Duration, Instant};

/// What events borrow, as a client says it or as a recording does.
struct Texts {
    model: String,
    salt: String,
    request: String,
    hashes: Vec<ChunkHash>,
    digest: u32,
}

impl Texts {
    fn said(request: u64, chunks: u8) -> Texts {
        let hash = |depth: u8| {
            let mut hash = [request as u8; 32];
            (hash[0], hash[16]) = (depth, depth);
            ChunkHash(hash)
        };
        Texts {
            model: format!("model-{}", request % 3),
            salt: if request.is_multiple_of(2) { String::new() } else { "tenant".to_owned() },
            request: format!("request-{request}"),
            hashes: (0..chunks).map(hash).collect(),
            digest: request as u32 ^ 0xabcd_0123,
        }
    }

    fn recorded(&self, secret: &Secret) -> Texts {
        let spell = |number| if number == 0 { String::new() } else { format!("{number:016x}") };
        let hash = |hash| Numbered::hash_of(secret.chunk(hash));
        Texts {
            model: self.model.clone(),
            salt: spell(secret.salt(&self.salt)),
            request: spell(secret.request(&self.request)),
            hashes: self.hashes.iter().map(hash).collect(),
            digest: secret.digest(self.digest),
        }
    }

    fn keys(&self, worker: Option<u32>) -> Keys<'_> {
        Keys {
            model: &self.model,
            salt: &self.salt,
            request: &self.request,
            world_size: 2,
            worker,
            readers: 3,
            first_chunk: 1,
            end_chunk: self.hashes.len() as u32,
            hashes: &self.hashes,
        }
    }

    fn delete(&self, from_l1: bool, adapter: Option<AdapterId>, force: bool) -> Event<'_> {
        let hash = self.hashes[0];
        let key = Named { model: &self.model, salt: &self.salt, rank: KvRank(7), group: 300, hash };
        let ask = OperatorAsk::Delete { key, from_l1, adapter, force };
        Event::OperatorAsked { operator: Operator(4), ask }
    }

    /// What a scan tells: another tenant's objects between those of this one, some of them without
    /// a seal.
    fn found(&self) -> Vec<Scanned<'_>> {
        let found = self.hashes.iter().enumerate().map(|(at, hash)| Scanned {
            model: if at % 3 == 2 { "another/model" } else { &self.model },
            salt: if at % 2 == 1 { "" } else { &self.salt },
            rank: KvRank::of(8, at as u32 % 8).expect("a rank of eight"),
            group: at as u16 * 300,
            hash: *hash,
            bytes: 1 << (3 * at),
            seal: (at % 3 > 0).then_some(Seal { digest: self.digest, layout: at as u32 }),
        });
        found.collect()
    }

    /// Events about lower tiers; `found` and `probed` are what two of them borrow.
    fn tier_events<'a>(
        &'a self,
        found: &'a [Scanned<'a>],
        probed: &'a [Option<Found>],
    ) -> Vec<Event<'a>> {
        let (adapter, digest) = (AdapterId(300), self.digest);
        let ticket = Ticket(SlotName { index: 77, generation: 70_000 });
        let mut events = vec![
            Event::AdapterAdded { adapter, setup: setup() },
            Event::AdapterScanned { adapter, found },
            Event::AdapterScanned { adapter, found: &[] },
            Event::AdapterScanEnded { adapter },
            Event::ProbeEnded { ticket, found: Some(probed) },
            Event::ProbeEnded { ticket, found: Some(&[]) },
            Event::ProbeEnded { ticket, found: None },
            Event::DigestEnded { ticket, digest },
            Event::ScrubEnded { ticket, digest: Some(digest) },
            Event::ScrubEnded { ticket, digest: None },
            Event::OperatorAsked {
                operator: Operator(3),
                ask: OperatorAsk::AdapterRemove { adapter },
            },
            self.delete(true, Some(adapter), false),
            self.delete(false, None, true),
        ];
        let bytes = u64::MAX;
        let faults = [TierFault::NoSpace, TierFault::Io, TierFault::Denied, TierFault::Cancelled];
        let failed = || faults.into_iter();
        let stores = [StoreOutcome::Stored, StoreOutcome::Present { bytes }];
        let stores = stores.into_iter().chain(failed().map(StoreOutcome::Failed));
        events.extend(stores.map(|outcome| Event::StoreEnded { ticket, outcome }));
        let loads = [LoadOutcome::Loaded, LoadOutcome::Absent, LoadOutcome::OtherSize { bytes }];
        let loads = loads.into_iter().chain(failed().map(LoadOutcome::Failed));
        events.extend(loads.map(|outcome| Event::LoadEnded { ticket, outcome }));
        let deletes = [DeleteOutcome::Deleted, DeleteOutcome::Absent];
        let deletes = deletes.into_iter().chain(failed().map(DeleteOutcome::Failed));
        events.extend(deletes.map(|outcome| Event::DeleteEnded { ticket, outcome }));
        events
    }

    /// One of every kind, none with the numbers of another.
    fn events(&self) -> Vec<Event<'_>> {
        let (name, instance) = (|index| SlotName { index, generation: 300 }, InstanceId(-7));
        let reply = Reply { connection: Connection(name(5)), request: name(70_000) };
        let (request, operator) = (&*self.request, Operator(u64::MAX - 1));
        let dtype = Dtype::named("bfloat16").expect("a known type");
        let layout = Layout { planes: 2, layers: 3, slots: 16, hidden: 8, dtype };
        let model = &*self.model;
        let registration = Registration { instance, model, world_size: 2, block_size: 16, layout };
        let asks = [
            Ask::Register(registration),
            Ask::RegisterRefused { instance, model, reason: Refusal::UnknownDtype },
            Ask::Unregister { instance },
            Ask::Ping { instance: None },
            Ask::Ping { instance: Some(instance) },
            Ask::Lookup { keys: self.keys(None) },
            Ask::QueryPrefetch { request },
            Ask::WaitPrefetch { request, wait: Duration::from_millis(1234) },
            Ask::FreeLookupLocks { keys: self.keys(None) },
            Ask::EndSession { request, hashes: &self.hashes },
            Ask::EndSession { request, hashes: &[] },
            Ask::PrepareStore { instance, keys: self.keys(Some(0)) },
            Ask::CommitStore { instance, keys: self.keys(Some(1)), inline_bytes: 1 << 40 },
            Ask::PrepareRetrieve { instance, keys: self.keys(Some(1)) },
            Ask::CommitRetrieve { instance, keys: self.keys(Some(0)) },
            Ask::Clear { force: true },
        ];
        let mut events: Vec<_> = asks.into_iter().map(|ask| Event::Asked { reply, ask }).collect();
        let ticket = Ticket(name(9));
        events.push(Event::Tick);
        events.push(Event::ConnectionEnded { connection: reply.connection });
        for outcome in [SendOutcome::Sent, SendOutcome::Cut] {
            events.push(Event::SendEnded { ticket, outcome });
        }
        let bodies =
            [BodyOutcome::Whole, BodyOutcome::Short, BodyOutcome::Malformed, BodyOutcome::Cut];
        for outcome in bodies {
            events.push(Event::ReceiveEnded { ticket, complete: 77, outcome });
        }
        events.push(Event::ArenaGrown { bytes: 3 << 20 });
        let salt = &*self.salt;
        for ask in [
            OperatorAsk::Clear { force: false },
            OperatorAsk::QuotaSet { salt, bytes: 1 << 33 },
            OperatorAsk::QuotaRemove { salt },
        ] {
            events.push(Event::OperatorAsked { operator, ask });
        }
        events
    }
}

/// No two numbers of it are the same.
fn setup() -> AdapterSetup<'static> {
    AdapterSetup {
        name: "fs_native",
        is_shared: true,
        keeps_data: false,
        capacity_bytes: 1 << 42,
        objects_max: 1,
        charge_bytes: 4096,
        policy: PolicyKind::IsolatedLru,
        watermark_ppm: 2,
        ratio_ppm: 3,
        stores_max: 4,
        loads_max: 5,
        probe_deadline: Duration::from_nanos(6),
        load_deadline: Duration::from_nanos(7),
        store_deadline: Duration::from_nanos(8),
        on_second_touch: true,
        write_bytes_per_second: 9,
        write_bytes_per_day: 10,
        scrub_bytes_per_second: 11,
        verify: false,
    }
}

fn header() -> Header {
    let limits = Limits { sessions: 64, lease_cells: 4096, ..Limits::default() };
    let config = Config { chunk_size: 16, l1_bytes: 4 << 20, limits, ..Config::default() };
    Header { recording: 1, tokens: false, writer: "a test".to_owned(), config }
}

fn file(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = header().bytes();
    for frame in frames {
        let (head, entries) = frame.bytes();
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(entries);
    }
    bytes
}

/// What a probe found, where digests of objects are numbered like this.
fn probed(digest: u32) -> [Option<Found>; 5] {
    let seal = Some(Seal { digest, layout: u32::MAX });
    let sealed = Some(Found { bytes: 1 << 20, seal });
    [Some(Found::of(4096)), None, Some(Found::of(u64::MAX)), sealed, Some(Found::of(0))]
}

fn secret() -> Secret {
    Secret::new(*b"nobody knows me!")
}

#[test]
fn every_event_is_read_as_it_was_written() {
    let secret = secret();
    let mut recorder = Recorder::new(secret.clone());
    let said: Vec<Texts> = (0..40).map(|request| Texts::said(request % 7, 9)).collect();
    let (mut frames, mut now) = (Vec::new(), 0);
    for texts in &said {
        let found = texts.found();
        for event in
            texts.events().into_iter().chain(texts.tier_events(&found, &probed(texts.digest)))
        {
            now += 1_000_000 * (now % 91);
            recorder.begins(Instant(now), &event);
            recorder.ended(&[], &Part::since((0, 0), &Outbox::default()));
            if recorder.is_due(Instant(now)) {
                frames.extend(recorder.close());
            }
            now += 1;
        }
    }
    frames.extend(recorder.close());
    frames.push(recorder.marked(Mark::End));
    let fresh = frames.iter().filter(|frame| frame.is_fresh).count();
    assert!(frames.len() > 10 && fresh > 2 && fresh < frames.len(), "{fresh} fresh ones");

    let file = file(&frames);
    let (_, mut reader) = Reader::new(&file).expect("it was just written");
    let mut number = 0;
    for texts in &said {
        let recorded = texts.recorded(&secret);
        let (found, probed) = (recorded.found(), probed(recorded.digest));
        let tier_events = recorded.tier_events(&found, &probed);
        for expected in recorded.events().into_iter().chain(tier_events) {
            let entry = reader.next_entry().expect("it was just written");
            let entry = entry.expect("all of them are there");
            let event = entry.happened.with_event(|event| format!("{event:?}"));
            assert_eq!(event, Some(format!("{expected:?}")));
            assert_eq!(entry.number, number);
            number += 1;
        }
    }
    let last = reader.next_entry().expect("it was just written").expect("the mark");
    assert!(matches!(last.happened, Happened::End) && last.number == number);
    assert!(reader.next_entry().expect("nothing follows").is_none());
}

/// What a front would never let through is recorded as far as it says anything.
#[test]
fn a_refused_model_of_any_length_is_cut_where_a_character_ends() {
    let mut recorder = Recorder::new(secret());
    let model = "ä".repeat(MODEL_BYTES_MAX);
    let name = SlotName { index: 0, generation: 0 };
    let reply = Reply { connection: Connection(name), request: name };
    let (instance, reason) = (InstanceId(1), Refusal::Malformed("a sentence"));
    let ask = Ask::RegisterRefused { instance, model: &model, reason };
    let mut engine = Engine::new(header().config);
    tell(&mut recorder, &mut engine, Instant(1), Event::Asked { reply, ask });
    let frame = recorder.close().expect("it holds an event");
    assert!(frame.entries.len() < MODEL_BYTES_MAX + 100);
    assert_eq!(replayed(&file(&[frame])), Ok(1));
}

fn tell(recorder: &mut Recorder, engine: &mut Engine, now: Instant, event: Event<'_>) {
    let mut out = Outbox::default();
    recorder.begins(now, &event);
    let hashes = hashes_of(&event);
    engine.handle(now, event, &mut out);
    recorder.ended(hashes, &Part::since((0, 0), &out));
}

/// Events that were decided as recorded, or the first that was not.
fn replayed(file: &[u8]) -> Result<u64, u64> {
    let (header, mut reader) = Reader::new(file).expect("it begins as recordings do");
    let mut replay = Replay::new(header.config);
    let mut events = 0;
    while let Some(entry) = reader.next_entry().expect("it can be read") {
        replay.step(&entry).map_err(|difference| difference.number)?;
        events += u64::from(entry.outcome.is_some());
    }
    Ok(events)
}

/// Ordinary work and nonsense on one engine: tickets that nobody issued, replies that are used
/// again, keys of models that nobody registered.
fn record_a_run(seed: u64, steps: u64) -> Vec<Frame> {
    let mut rng = Rng::new(seed);
    let mut recorder = Recorder::new(secret());
    let mut engine = Engine::new(header().config);
    let (mut frames, mut now) = (Vec::new(), Instant(1));
    tell(&mut recorder, &mut engine, now, Event::ArenaGrown { bytes: 4 << 20 });
    let adapter = AdapterId(0);
    let setup = AdapterSetup { objects_max: 64, stores_max: 4, loads_max: 4, ..setup() };
    tell(&mut recorder, &mut engine, now, Event::AdapterAdded { adapter, setup });
    tell(&mut recorder, &mut engine, now, Event::AdapterScanEnded { adapter });
    for _ in 0..steps {
        let texts = Texts::said(rng.below(7), 1 + rng.below(12) as u8);
        let probed = probed(texts.digest);
        // Endings that nobody waits for; the others name an adapter that is not there.
        let endings = texts.tier_events(&[], &probed);
        let endings = endings.into_iter().filter(|event| {
            !matches!(
                event,
                Event::AdapterAdded { .. }
                    | Event::AdapterScanned { .. }
                    | Event::AdapterScanEnded { .. }
                    | Event::OperatorAsked { .. }
            )
        });
        let events: Vec<Event<'_>> = texts.events().into_iter().chain(endings).collect();
        let event = events[rng.below(events.len() as u64) as usize].clone();
        now = now + Duration::from_nanos(rng.below(40_000_000));
        if !matches!(event, Event::ArenaGrown { .. }) {
            tell(&mut recorder, &mut engine, now, event);
        }
        if engine.deadline().is_some_and(|(at, _)| at <= now) {
            tell(&mut recorder, &mut engine, now, Event::Tick);
        }
        if recorder.is_due(now) {
            frames.extend(recorder.close());
        }
    }
    frames.extend(recorder.close());
    frames
}

#[test]
fn an_engine_that_is_told_the_same_decides_the_same() {
    for seed in 0..8 {
        let file = file(&record_a_run(seed, 2000));
        let events = replayed(&file).unwrap_or_else(|at| panic!("seed {seed}: event {at}"));
        assert!(events > 2000, "{events}");
    }
}

#[test]
fn another_configuration_is_found_out_and_the_first_decision_named() {
    let frames = record_a_run(3, 500);
    let mut header = header();
    header.config.chunk_size = 32;
    let whole = file(&frames);
    let body = &whole[header_bytes(&whole)..];
    assert!(replayed(&[&header.bytes(), body].concat()).is_ok(), "nothing depends on it");
    header.config.pool = kvtide_core::config::PoolKind::Private;
    let other = [&header.bytes(), body].concat();
    let at = replayed(&other).expect_err("another pool means other answers");
    let (header, mut reader) = Reader::new(&other).expect("it begins as recordings do");
    let mut replay = Replay::new(header.config);
    let difference = loop {
        let entry = reader.next_entry().expect("it can be read").expect("there is a difference");
        if let Err(difference) = replay.step(&entry) {
            break difference;
        }
    };
    assert_eq!(difference.number, at);
    let text = difference.to_string();
    assert!(text.contains("recorded: answer store slots"), "{text}");
    assert!(text.contains("now:      answer no context"), "{text}");
}

fn header_bytes(file: &[u8]) -> usize {
    Header::read(file).expect("it begins as recordings do").1
}

/// The engine panicked: what it was told last is there, without an outcome.
#[test]
fn an_event_that_was_never_decided_is_the_last_one() {
    let mut recorder = Recorder::new(secret());
    let mut engine = Engine::new(header().config);
    tell(&mut recorder, &mut engine, Instant(1), Event::ArenaGrown { bytes: 4 << 20 });
    let texts = Texts::said(1, 3);
    let event = texts.events().remove(5);
    recorder.begins(Instant(2), &event);
    let file = file(&[recorder.close().expect("it holds events")]);
    let (_, mut reader) = Reader::new(&file).expect("it begins as recordings do");
    let first = reader.next_entry().expect("it can be read").expect("the first");
    assert!(first.outcome.is_some());
    let last = reader.next_entry().expect("it can be read").expect("the last");
    assert_eq!((last.kind, last.outcome), ("lookup", None));
    assert!(reader.next_entry().expect("nothing follows").is_none());
}

#[test]
fn tokens_stand_beside_the_chunks_that_they_are_of() {
    let mut recorder = Recorder::new(secret());
    let texts = Texts::said(1, 4);
    let event = texts.events().remove(5);
    recorder.begins(Instant(1), &event);
    recorder.ended(&[], &Part::since((0, 0), &Outbox::default()));
    assert_eq!(recorder.fresh_chunks(), 0..4);
    recorder.tokens(Instant(1), 1..2, b"\x01\x02");
    recorder.begins(Instant(2), &event);
    recorder.ended(&[], &Part::since((0, 0), &Outbox::default()));
    assert_eq!(recorder.fresh_chunks(), 4..4, "told already");
    let file = file(&[recorder.close().expect("it holds events")]);
    let (_, mut reader) = Reader::new(&file).expect("it begins as recordings do");
    reader.next_entry().expect("it can be read");
    let entry = reader.next_entry().expect("it can be read").expect("tokens");
    let Happened::Tokens { first_chunk: 1, chunks: 1, encoded: b"\x01\x02" } = entry.happened
    else {
        panic!("{entry:?}");
    };
    let entry = reader.next_entry().expect("it can be read").expect("the second event");
    assert_eq!((entry.number, entry.kind), (1, "lookup"));
}
