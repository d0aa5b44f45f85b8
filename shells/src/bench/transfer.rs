//! Store and retrieve through the shared pool, as an engine does it: the server names places, we
//! copy, the server is told. Beside it, in the same run, the same bytes are copied to and from the
//! same places without a server: the most that any server can reach.

pub mod pool;

use super::candidate::{Candidate, Instance, Slot, slots_of};
use super::case::Stand;
use super::fault::BenchFault;
use super::figures::{COPY_GB_S, COPY_SHARE, FIGURE_GB_S, Figures, PROTOCOL_MS, SERVER_CPU_US};
use super::message::{Message, RequestId, frame};
use super::process::Usage;
use crate::clock::Clock;
use kvtide_core::rng::Rng;
use kvtide_core::wire::operation::Operation;
use pool::Pool;

/// One request, of 64 MiB here.
pub struct Batch {
    pub chunks: u64,
    pub prepare_store: Message,
    pub commit_store: Message,
    pub lookup: Message,
    pub prepare_retrieve: Message,
    pub commit_retrieve: Message,
    /// Where its objects lay when they were last stored or read.
    slots: Vec<Slot>,
}

/// Prompts, the pool, and the engine's own memory.
struct Traffic {
    clock: Clock,
    pool: Pool,
    object_bytes: u64,
    batches: Vec<Batch>,
    /// What is stored, and where it is read back to.
    source: Vec<u8>,
    target: Vec<u8>,
    clear: Message,
}

/// Nanoseconds that a pass took, and how many of them were copying.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    total: u64,
    copying: u64,
}

pub struct Store(Traffic);
pub struct Retrieve(Traffic);

impl Store {
    /// None: the server has no pool to map.
    pub fn new(
        candidate: &mut Candidate,
        object_bytes: u64,
        bytes: u64,
    ) -> Result<Option<Store>, BenchFault> {
        Ok(Traffic::new(candidate, object_bytes, bytes)?.map(Store))
    }
}

impl Retrieve {
    /// Likewise; stores what is to be read.
    pub fn new(
        candidate: &mut Candidate,
        object_bytes: u64,
        bytes: u64,
    ) -> Result<Option<Retrieve>, BenchFault> {
        let Some(mut traffic) = Traffic::new(candidate, object_bytes, bytes)? else {
            return Ok(None);
        };
        traffic.store(candidate)?;
        traffic.retrieve(candidate)?;
        Ok(Some(Retrieve(traffic)))
    }
}

impl Stand for Store {
    fn measure(&mut self, candidate: &mut Candidate) -> Result<Figures, BenchFault> {
        let traffic = &mut self.0;
        traffic.clear(candidate)?;
        let usage = Usage::now(candidate.process);
        let pass = traffic.store(candidate)?;
        let (cpu, _) = usage.per(candidate.process, traffic.batches.len() as u64);
        let plain = traffic.plain_in(candidate)?;
        Ok(traffic.figures(pass, plain, cpu))
    }

    fn finish(&mut self, candidate: &mut Candidate) -> Result<(), BenchFault> {
        self.0.clear(candidate)
    }
}

impl Stand for Retrieve {
    fn measure(&mut self, candidate: &mut Candidate) -> Result<Figures, BenchFault> {
        let traffic = &mut self.0;
        let usage = Usage::now(candidate.process);
        let pass = traffic.retrieve(candidate)?;
        let (cpu, _) = usage.per(candidate.process, traffic.batches.len() as u64);
        let plain = traffic.plain_out(candidate)?;
        Ok(traffic.figures(pass, plain, cpu))
    }

    fn finish(&mut self, candidate: &mut Candidate) -> Result<(), BenchFault> {
        self.0.clear(candidate)
    }
}

impl Traffic {
    fn new(
        candidate: &mut Candidate,
        object_bytes: u64,
        bytes: u64,
    ) -> Result<Option<Traffic>, BenchFault> {
        let instance = candidate.register(object_bytes)?;
        if instance.pool_name.is_empty() || instance.pool_bytes == 0 {
            return Ok(None);
        }
        let most = instance.pool_bytes / 100 * POOL_PERCENT;
        let count = bytes.min(most) / REQUEST_BYTES;
        if count == 0 {
            let what = "its pool is too small for transfers of 64 MiB";
            return Err(candidate.url.fault(what));
        }
        let pool = Pool::map(&instance.pool_name, instance.pool_bytes);
        let pool = pool.map_err(|what| candidate.url.fault(what))?;
        let chunks = REQUEST_BYTES / object_bytes;
        let batches = (0..count).map(|_| Batch::new(candidate, &instance, chunks)).collect();
        let force = frame(|writer| writer.bool(true));
        let source = payload(chunks * object_bytes);
        let mut traffic = Traffic {
            clock: Clock::start(),
            pool,
            object_bytes,
            batches,
            target: vec![1; source.len()],
            source,
            clear: Message::new(Operation::Clear, &[&force]),
        };
        // Unmeasured, so that whatever is done once is done; and a pool that has just been made is
        // not whole at once.
        traffic.clear(candidate)?;
        for _ in 0..count {
            candidate.stored(&instance, chunks)?;
        }
        traffic.clear(candidate)?;
        traffic.store(candidate)?;
        traffic.clear(candidate)?;
        Ok(Some(traffic))
    }

    fn clear(&self, candidate: &mut Candidate) -> Result<(), BenchFault> {
        candidate.control.call(&self.clear, RequestId::NONE)?.done()
    }

    /// Makes the source this batch's own.
    fn tag(&mut self, batch: usize) {
        tag(&mut self.source, batch as u64);
    }

    fn now(&self) -> u64 {
        self.clock.now().0
    }

    /// Stores every batch. What is timed is what an engine waits for.
    fn store(&mut self, candidate: &mut Candidate) -> Result<Pass, BenchFault> {
        let mut pass = Pass::default();
        for at in 0..self.batches.len() {
            candidate.stop.check()?;
            self.tag(at);
            let id = candidate.ids.next_id();
            let begun = self.now();
            let batch = &self.batches[at];
            let slots = slots_of(candidate.control.call(&batch.prepare_store, id)?.value()?);
            let slots = self.judge(candidate, batch, slots, "prepare_store")?;
            let copied_from = self.now();
            self.copy_in(candidate, &slots)?;
            pass.copying += self.now() - copied_from;
            let control = &mut candidate.control;
            let batch = &mut self.batches[at];
            let committed = control.call(&batch.commit_store, id)?.value()? == Some(b"\xc3");
            control.call(&candidate.session.end, id)?.done()?;
            batch.slots = slots;
            pass.total += self.now() - begun;
            if !committed {
                return Err(candidate.url.fault("commit_store does not say true"));
            }
        }
        Ok(pass)
    }

    /// Reads every batch back, from its lookup on, and compares every byte.
    fn retrieve(&mut self, candidate: &mut Candidate) -> Result<Pass, BenchFault> {
        let mut pass = Pass::default();
        for at in 0..self.batches.len() {
            candidate.stop.check()?;
            self.tag(at);
            let id = candidate.ids.next_id();
            let begun = self.now();
            let batch = &self.batches[at];
            let control = &mut candidate.control;
            control.call(&batch.lookup, id)?.done()?;
            let found = control.call(&candidate.session.wait, id)?.count()?;
            if found != Some(batch.chunks) {
                let (found, chunks) = (found.unwrap_or(0), batch.chunks);
                let what = format!("a lookup finds {found} chunks where {chunks} are stored");
                return Err(candidate.url.fault(what));
            }
            let slots = slots_of(control.call(&batch.prepare_retrieve, id)?.value()?);
            let slots = self.judge(candidate, batch, slots, "prepare_retrieve")?;
            let copied_from = self.now();
            self.copy_out(candidate, &slots)?;
            pass.copying += self.now() - copied_from;
            let control = &mut candidate.control;
            let batch = &mut self.batches[at];
            control.call(&batch.commit_retrieve, id)?.done()?;
            control.call(&candidate.session.end, id)?.done()?;
            batch.slots = slots;
            pass.total += self.now() - begun;
            if self.target != self.source {
                return Err(candidate.url.fault("retrieved bytes are not those that were stored"));
            }
        }
        Ok(pass)
    }

    /// The same bytes into the same places, without a server.
    fn plain_in(&mut self, candidate: &Candidate) -> Result<u64, BenchFault> {
        let mut nanos = 0;
        for at in 0..self.batches.len() {
            self.tag(at);
            let slots = std::mem::take(&mut self.batches[at].slots);
            let begun = self.now();
            self.copy_in(candidate, &slots)?;
            nanos += self.now() - begun;
            self.batches[at].slots = slots;
        }
        Ok(nanos)
    }

    fn plain_out(&mut self, candidate: &Candidate) -> Result<u64, BenchFault> {
        let mut nanos = 0;
        for at in 0..self.batches.len() {
            self.tag(at);
            let slots = std::mem::take(&mut self.batches[at].slots);
            let begun = self.now();
            self.copy_out(candidate, &slots)?;
            nanos += self.now() - begun;
            self.batches[at].slots = slots;
        }
        Ok(nanos)
    }

    fn copy_in(&mut self, candidate: &Candidate, slots: &[Slot]) -> Result<(), BenchFault> {
        let objects = self.source.chunks(self.object_bytes as usize);
        for (slot, object) in slots.iter().zip(objects) {
            let copied = self.pool.copy_in(slot.offset, object);
            copied.map_err(|outside| candidate.url.fault(outside))?;
        }
        Ok(())
    }

    fn copy_out(&mut self, candidate: &Candidate, slots: &[Slot]) -> Result<(), BenchFault> {
        let objects = self.target.chunks_mut(self.object_bytes as usize);
        for (slot, object) in slots.iter().zip(objects) {
            let copied = self.pool.copy_out(slot.offset, object);
            copied.map_err(|outside| candidate.url.fault(outside))?;
        }
        Ok(())
    }

    /// Every chunk has a place of its size.
    fn judge(
        &self,
        candidate: &Candidate,
        batch: &Batch,
        slots: Option<Vec<Slot>>,
        operation: &str,
    ) -> Result<Vec<Slot>, BenchFault> {
        let judged = batch.judge(slots, self.object_bytes, operation);
        judged.map_err(|what| candidate.url.fault(what))
    }

    fn figures(&self, pass: Pass, plain: u64, cpu: Option<f64>) -> Figures {
        let requests = self.batches.len() as f64;
        let bytes = requests * self.source.len() as f64;
        // Bytes per nanosecond are gigabytes per second.
        vec![
            (FIGURE_GB_S, Some(bytes / pass.total as f64)),
            (COPY_GB_S, Some(bytes / plain as f64)),
            (COPY_SHARE, Some(plain as f64 / pass.total as f64)),
            (PROTOCOL_MS, Some((pass.total - pass.copying) as f64 / 1e6 / requests)),
            (SERVER_CPU_US, cpu),
        ]
    }
}

impl Batch {
    /// A prompt that nobody has had.
    pub fn new(candidate: &mut Candidate, instance: &Instance, chunks: u64) -> Batch {
        let tokens = candidate.tokens(chunks);
        let key = Candidate::key(instance, &tokens, Some(0));
        let message = |operation| Message::with_key(operation, &key, instance.number);
        Batch {
            chunks,
            prepare_store: message(Operation::PrepareStore),
            commit_store: message(Operation::CommitStore),
            prepare_retrieve: message(Operation::PrepareRetrieve),
            commit_retrieve: message(Operation::CommitRetrieve),
            lookup: Message::with_key(
                Operation::Lookup,
                &Candidate::key(instance, &tokens, None),
                1,
            ),
            slots: Vec::new(),
        }
    }

    /// Every chunk has a place of its size, else a sentence.
    pub fn judge(
        &self,
        slots: Option<Vec<Slot>>,
        bytes: u64,
        operation: &str,
    ) -> Result<Vec<Slot>, String> {
        let slots = slots.unwrap_or_default();
        let right = slots.iter().filter(|slot| slot.bytes == bytes).count() as u64;
        let chunks = self.chunks;
        if right == chunks && slots.len() as u64 == right {
            return Ok(slots);
        }
        Err(format!("{operation} gives {right} of {chunks} slots of {bytes} bytes"))
    }
}

/// Bytes that no device makes shorter.
pub fn payload(bytes: u64) -> Vec<u8> {
    let mut payload = vec![0; bytes as usize];
    let mut rng = Rng::new(bytes);
    for word in payload.as_chunks_mut::<8>().0 {
        *word = rng.next_u64().to_ne_bytes();
    }
    payload
}

/// Makes a payload one batch's own: every page of every batch is another one.
pub fn tag(payload: &mut [u8], batch: u64) {
    for (page, bytes) in payload.chunks_mut(PAGE_BYTES).enumerate() {
        if let Some(tag) = bytes.first_chunk_mut::<8>() {
            *tag = (batch << 32 | page as u64).to_ne_bytes();
        }
    }
}

/// What one request moves.
pub const REQUEST_BYTES: u64 = 64 << 20;
/// Below every watermark, so that nothing is evicted meanwhile.
pub const POOL_PERCENT: u64 = 60;
const PAGE_BYTES: usize = 4096;
