//! A lower tier as a client sees it: what is stored until all of it is at rest, and what is looked
//! up once L1 has been cleared until the hits are there. Beside both somebody else sends pings.
//!
//! The one invariant: what is timed is the tier's work and what its server needs for it. Writing
//! into the pool before, and comparing every byte after, are not.

pub mod fio;

mod pings;
mod watch;

use super::candidate::{Candidate, Instance, slots_of};
use super::case::Stand;
use super::fault::BenchFault;
use super::figures::{
    Figures, HIT_P50_MS, HIT_P99_MS, LOAD_CPU, LOAD_GB_S, PING_IDLE_P99_US, PING_LOAD_P99_US,
    PING_STORE_P99_US, STORE_CPU, STORE_GB_S, latencies, note, quantile_us,
};
use super::flags::BenchFlags;
use super::line::ANSWER_TIME_MAX;
use super::message::{Message, RequestId, frame};
use super::process::Usage;
use super::transfer::pool::Pool;
use super::transfer::{Batch, POOL_PERCENT, REQUEST_BYTES, payload, tag};
use crate::clock::Clock;
use hdrhistogram::Histogram;
use kvtide_core::wire::operation::Operation;
use pings::Pings;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use watch::Watch;

/// One request of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub chunks: u64,
    pub object_bytes: u64,
}

/// A case at one server.
pub struct Disk {
    pings: Pings,
    idle_nanos: u64,
    tier: Tier,
}

/// The pool above, the folder below, and the bytes that go back and forth.
struct Tier {
    clock: Clock,
    pool: Pool,
    folder: PathBuf,
    instance: Instance,
    size: Size,
    /// Requests of a round, and how many of them are looked up at once.
    requests: u64,
    lookups_max: usize,
    source: Vec<u8>,
    target: Vec<u8>,
    clear: Message,
    /// No two requests of a run store the same bytes: what an earlier one left behind shows.
    tags: u64,
}

/// A request whose bytes are in the pool.
struct Written {
    batch: Batch,
    id: RequestId,
    tag: u64,
}

/// Time and processor time of one phase.
struct Phase {
    nanos: u64,
    server_cpu_s_per_gb: Option<f64>,
    hits: Histogram<u64>,
}

/// What a row says; a yardstick knows only the first two.
#[derive(Default)]
struct Told {
    store_gb_s: Option<f64>,
    load_gb_s: Option<f64>,
    hit_ms: [Option<f64>; 2],
    cpu_s_per_gb: [Option<f64>; 2],
    ping_us: [Option<f64>; 3],
}

impl Size {
    /// Requests of 64 MiB in objects of each size, and a prefix as long as those of chats are.
    pub fn of(flags: &BenchFlags) -> Vec<Size> {
        let whole = flags.object_kib.iter().map(|kib| {
            let object_bytes = kib << 10;
            Size { chunks: REQUEST_BYTES / object_bytes, object_bytes }
        });
        whole.chain([PREFIX]).collect()
    }

    pub fn is_prefix(self) -> bool {
        self == PREFIX
    }

    fn request_bytes(self) -> u64 {
        self.chunks * self.object_bytes
    }
}

impl Disk {
    /// None: the server has no pool to map.
    pub fn new(
        candidate: &mut Candidate,
        size: Size,
        flags: &BenchFlags,
    ) -> Result<Option<Disk>, BenchFault> {
        let what = format!("-disk-{}", size.chunks);
        let instance = candidate.register_as(&what, size.object_bytes)?;
        if instance.pool_name.is_empty() || instance.pool_bytes == 0 {
            return Ok(None);
        }
        let pings = Pings::connect(candidate, &instance)?;
        let mut tier = Tier::new(candidate, instance, size, flags)?;
        tier.warm(candidate)?;
        Ok(Some(Disk { pings, idle_nanos: (flags.seconds * 1e9) as u64, tier }))
    }
}

impl Stand for Disk {
    fn measure(&mut self, candidate: &mut Candidate) -> Result<Figures, BenchFault> {
        let Disk { pings, idle_nanos, tier } = self;
        tier.clear(candidate)?;
        let (_, idle) = pings.beside(|| thread::sleep(Duration::from_nanos(*idle_nanos)))?;
        let written = tier.write(candidate)?;
        let (stored, storing) = pings.beside(|| tier.store(candidate, &written))?;
        let stored = stored?;
        // The last name may be there a moment before its server has heard of it.
        thread::sleep(SETTLE);
        tier.clear(candidate)?;
        let (loaded, loading) = pings.beside(|| tier.load(candidate, &written))?;
        let loaded = loaded?;
        tier.compare(candidate, &written)?;
        let bytes = tier.round_bytes() as f64;
        let hit = |quantile| quantile_us(&loaded.hits, quantile).map(|us| us / 1e3);
        // Bytes per nanosecond are gigabytes per second.
        let told = Told {
            store_gb_s: Some(bytes / stored.nanos as f64),
            load_gb_s: Some(bytes / loaded.nanos as f64),
            hit_ms: [hit(0.5), hit(0.99)],
            cpu_s_per_gb: [stored.server_cpu_s_per_gb, loaded.server_cpu_s_per_gb],
            ping_us: [&idle, &storing, &loading].map(|pings| quantile_us(pings, 0.99)),
        };
        Ok(told.figures())
    }

    fn finish(&mut self, candidate: &mut Candidate) -> Result<(), BenchFault> {
        self.tier.clear(candidate)
    }
}

impl Tier {
    fn new(
        candidate: &Candidate,
        instance: Instance,
        size: Size,
        flags: &BenchFlags,
    ) -> Result<Tier, BenchFault> {
        let fault = |what: String| candidate.url.fault(what);
        let most = instance.pool_bytes / 100 * POOL_PERCENT;
        let requests = (flags.disk_mib << 20).min(most) / size.request_bytes();
        if requests == 0 {
            let mib = size.request_bytes() >> 20;
            return Err(fault(format!("its pool is too small for requests of {mib} MiB")));
        }
        let pool = Pool::map(&instance.pool_name, instance.pool_bytes).map_err(fault)?;
        let folder = candidate.folder.clone();
        let folder = folder.ok_or_else(|| fault("--disk-dir names no folder for it".to_owned()))?;
        let force = frame(|writer| writer.bool(true));
        Ok(Tier {
            clock: Clock::start(),
            pool,
            folder,
            instance,
            size,
            requests,
            lookups_max: flags.disk_lookups as usize,
            source: payload(size.request_bytes()),
            target: vec![1; size.request_bytes() as usize],
            clear: Message::new(Operation::Clear, &[&force]),
            tags: 0,
        })
    }

    /// Once unmeasured: a pool that has just been made is not whole at once, and whatever is done
    /// once is done.
    fn warm(&mut self, candidate: &mut Candidate) -> Result<(), BenchFault> {
        self.clear(candidate)?;
        let mut watch = self.watch(candidate)?;
        for _ in 0..self.requests {
            candidate.stored(&self.instance, self.size.chunks)?;
        }
        self.until_at_rest(candidate, &mut watch)
    }

    fn clear(&self, candidate: &mut Candidate) -> Result<(), BenchFault> {
        candidate.control.call(&self.clear, RequestId::NONE)?.done()
    }

    /// Puts a round's bytes into the pool, each once; nothing is committed yet.
    fn write(&mut self, candidate: &mut Candidate) -> Result<Vec<Written>, BenchFault> {
        let mut written = Vec::new();
        for _ in 0..self.requests {
            candidate.stop.check()?;
            let batch = Batch::new(candidate, &self.instance, self.size.chunks);
            let id = candidate.ids.next_id();
            candidate.held.push(id);
            let slots = slots_of(candidate.control.call(&batch.prepare_store, id)?.value()?);
            let slots = batch.judge(slots, self.size.object_bytes, "prepare_store");
            let slots = slots.map_err(|what| candidate.url.fault(what))?;
            self.tags += 1;
            tag(&mut self.source, self.tags);
            let objects = self.source.chunks(self.size.object_bytes as usize);
            for (slot, object) in slots.iter().zip(objects) {
                let copied = self.pool.copy_in(slot.offset, object);
                copied.map_err(|outside| candidate.url.fault(outside))?;
            }
            written.push(Written { batch, id, tag: self.tags });
        }
        Ok(written)
    }

    /// Commits all of it and waits until it is at rest.
    fn store(
        &mut self,
        candidate: &mut Candidate,
        written: &[Written],
    ) -> Result<Phase, BenchFault> {
        let mut watch = self.watch(candidate)?;
        let usage = Usage::now(candidate.process);
        let begun = self.now();
        for Written { batch, id, .. } in written {
            let committed = candidate.control.call(&batch.commit_store, *id)?.value()?;
            if committed != Some(b"\xc3") {
                return Err(candidate.url.fault("commit_store does not say true"));
            }
            candidate.control.call(&candidate.session.end, *id)?.done()?;
        }
        self.until_at_rest(candidate, &mut watch)?;
        candidate.held.clear();
        Ok(self.phase(candidate, &usage, begun, latencies()))
    }

    /// Looks all of it up; the clock stands when the last hit is known. The hits stay held until
    /// their bytes have been compared.
    fn load(
        &mut self,
        candidate: &mut Candidate,
        written: &[Written],
    ) -> Result<Phase, BenchFault> {
        let mut hits = latencies();
        let mut under_way = VecDeque::new();
        let usage = Usage::now(candidate.process);
        let begun = self.now();
        for each in written {
            candidate.stop.check()?;
            if under_way.len() == self.lookups_max {
                self.hit(candidate, under_way.pop_front(), &mut hits)?;
            }
            candidate.held.push(each.id);
            let asked = self.now();
            candidate.control.call(&each.batch.lookup, each.id)?.done()?;
            under_way.push_back((each, asked));
        }
        while !under_way.is_empty() {
            self.hit(candidate, under_way.pop_front(), &mut hits)?;
        }
        Ok(self.phase(candidate, &usage, begun, hits))
    }

    /// Waits for the oldest lookup, which must find everything.
    fn hit(
        &self,
        candidate: &mut Candidate,
        oldest: Option<(&Written, u64)>,
        hits: &mut Histogram<u64>,
    ) -> Result<(), BenchFault> {
        let Some((each, asked)) = oldest else { return Ok(()) };
        let found = candidate.control.call(&candidate.session.wait, each.id)?.count()?;
        note(hits, self.now() - asked);
        let chunks = each.batch.chunks;
        match found {
            Some(found) if found == chunks => Ok(()),
            Some(found) => Err(candidate.url.fault(format!(
                "a lookup finds {found} chunks where {chunks} are at rest in its lower tier"
            ))),
            None => Err(candidate.url.fault("a load from its lower tier does not end")),
        }
    }

    /// Reads everything back out of the pool and compares every byte.
    fn compare(
        &mut self,
        candidate: &mut Candidate,
        written: &[Written],
    ) -> Result<(), BenchFault> {
        for Written { batch, id, tag: wanted } in written {
            candidate.stop.check()?;
            let slots = slots_of(candidate.control.call(&batch.prepare_retrieve, *id)?.value()?);
            let slots = batch.judge(slots, self.size.object_bytes, "prepare_retrieve");
            let slots = slots.map_err(|what| candidate.url.fault(what))?;
            let objects = self.target.chunks_mut(self.size.object_bytes as usize);
            for (slot, object) in slots.iter().zip(objects) {
                let copied = self.pool.copy_out(slot.offset, object);
                copied.map_err(|outside| candidate.url.fault(outside))?;
            }
            candidate.control.call(&batch.commit_retrieve, *id)?.done()?;
            candidate.control.call(&candidate.session.end, *id)?.done()?;
            tag(&mut self.source, *wanted);
            if self.target != self.source {
                let what = "bytes from its lower tier are not those that were stored";
                return Err(candidate.url.fault(what));
            }
        }
        candidate.held.clear();
        Ok(())
    }

    fn watch(&self, candidate: &Candidate) -> Result<Watch, BenchFault> {
        let watch = Watch::begin(&self.folder, &self.instance.model, self.size.object_bytes);
        watch.map_err(|error| {
            let folder = self.folder.display();
            candidate.url.fault(format!("--disk-dir: {folder}: {error}"))
        })
    }

    /// Until all of a round's objects are whole under their names.
    fn until_at_rest(&self, candidate: &Candidate, watch: &mut Watch) -> Result<(), BenchFault> {
        let objects = self.requests * self.size.chunks;
        let (mut before, mut heard) = (0, self.now());
        loop {
            let whole = watch.look().map_err(|error| candidate.url.fault(error))?;
            if whole >= objects {
                return Ok(());
            }
            candidate.stop.check()?;
            if whole > before {
                (before, heard) = (whole, self.now());
            } else if self.now() - heard > ANSWER_TIME_MAX.as_nanos() as u64 {
                let folder = self.folder.display();
                let what = format!("{whole} of {objects} objects come to rest in {folder}");
                return Err(candidate.url.fault(what));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn phase(
        &self,
        candidate: &Candidate,
        usage: &Usage,
        begun: u64,
        hits: Histogram<u64>,
    ) -> Phase {
        let nanos = self.now() - begun;
        let (us_per_byte, _) = usage.per(candidate.process, self.round_bytes());
        let server_cpu_s_per_gb = us_per_byte.map(|us| us * 1e9 / 1e6);
        Phase { nanos, server_cpu_s_per_gb, hits }
    }

    fn round_bytes(&self) -> u64 {
        self.requests * self.size.request_bytes()
    }

    fn now(&self) -> u64 {
        self.clock.now().0
    }
}

impl Told {
    fn figures(&self) -> Figures {
        vec![
            (STORE_GB_S, self.store_gb_s),
            (LOAD_GB_S, self.load_gb_s),
            (HIT_P50_MS, self.hit_ms[0]),
            (HIT_P99_MS, self.hit_ms[1]),
            (STORE_CPU, self.cpu_s_per_gb[0]),
            (LOAD_CPU, self.cpu_s_per_gb[1]),
            (PING_IDLE_P99_US, self.ping_us[0]),
            (PING_STORE_P99_US, self.ping_us[1]),
            (PING_LOAD_P99_US, self.ping_us[2]),
        ]
    }
}

/// 32 768 tokens at 256 a chunk.
const PREFIX: Size = Size { chunks: 128, object_bytes: 256 << 10 };
const LOOK_EVERY: Duration = Duration::from_millis(5);
const SETTLE: Duration = Duration::from_millis(50);
