//! Many small objects, stored before anything is measured: a server that holds millions of them
//! may answer otherwise than an empty one. Their bytes are whatever the pool holds.
//!
//! One prompt is encoded and sent again and again with another first token, so that all of its
//! chunks are new each time. The one invariant: when it is filled, the server still has what was
//! stored first; a pool that has begun to evict is no pool of that many objects.

use super::candidate::{Candidate, Instance, STORE_ATTEMPTS, STORE_PAUSE, slots_of};
use super::fault::BenchFault;
use super::message::Message;
use super::progress::Progress;
use kvtide_core::limits::REQUEST_CHUNKS_MAX;
use kvtide_core::wire::operation::Operation;
use std::thread;

/// The same prompt in every request that names it.
struct Batch {
    chunks: u64,
    prepare: Message,
    commit: Message,
    lookup: Message,
    free: Message,
}

/// Stores so many objects of that size.
pub fn fill(candidate: &mut Candidate, objects: u64, object_bytes: u64) -> Result<(), BenchFault> {
    let instance = candidate.register(object_bytes)?;
    if instance.pool_name.is_empty() {
        return Err(candidate.url.fault("--fill: the server shares no pool"));
    }
    let progress = Progress::start(objects);
    progress.show(format!("{}: filling", candidate.name));
    let most = (TOKENS_PER_REQUEST / candidate.chunk_tokens).clamp(1, REQUEST_CHUNKS_MAX as u64);
    let oldest = Batch::new(candidate, &instance, most.min(objects));
    let mut last = None;
    let (mut stored, mut refused, mut first) = (0, 0, None);
    while stored < objects {
        candidate.stop.check()?;
        let left = objects - stored;
        let batch = match &last {
            _ if left >= oldest.chunks => &oldest,
            Some(last) => last,
            None => last.insert(Batch::new(candidate, &instance, left)),
        };
        let token = candidate.ids.next_token();
        let found = batch.store(candidate, token)?;
        if found == 0 {
            // A server that was started a moment ago may still be growing its pool.
            refused += 1;
            if refused == STORE_ATTEMPTS {
                let what = format!("--fill: there is room for {stored} of {objects} objects");
                return Err(candidate.url.fault(what));
            }
            thread::sleep(STORE_PAUSE);
            continue;
        }
        refused = 0;
        stored += found;
        first.get_or_insert((token, found));
        // The remainder may have come in parts.
        last = last.filter(|last: &Batch| last.chunks <= objects - stored);
        progress.advance_by(found);
    }
    match first {
        Some((token, found)) => oldest.find(candidate, token, found),
        None => Ok(()),
    }
}

impl Batch {
    fn new(candidate: &mut Candidate, instance: &Instance, chunks: u64) -> Batch {
        let tokens = candidate.tokens(chunks);
        let worker = Candidate::key(instance, &tokens, Some(0));
        let scheduler = Candidate::key(instance, &tokens, None);
        Batch {
            chunks,
            prepare: Message::with_key(Operation::PrepareStore, &worker, instance.number),
            commit: Message::with_key(Operation::CommitStore, &worker, instance.number),
            lookup: Message::with_key(Operation::Lookup, &scheduler, 1),
            free: Message::with_key(Operation::FreeLookupLocks, &scheduler, 1),
        }
    }

    /// Stores as many of its chunks as there is room for; how many.
    fn store(&self, candidate: &mut Candidate, token: u32) -> Result<u64, BenchFault> {
        let id = candidate.ids.next_id();
        let control = &mut candidate.control;
        let prepare = |out: &mut [u8]| self.prepare.stamp_token(token, out);
        let slots = slots_of(control.call_with(&self.prepare, id, prepare)?.value()?);
        let found = slots.map_or(0, |slots| slots.len() as u64);
        if found > 0 {
            let commit = |out: &mut [u8]| self.commit.stamp_token(token, out);
            let committed = control.call_with(&self.commit, id, commit)?.value()?;
            if committed != Some(b"\xc3") {
                return Err(candidate.url.fault("commit_store does not say true"));
            }
        }
        control.call(&candidate.session.end, id)?.done()?;
        Ok(found)
    }

    /// Looks for what was stored with that first token.
    fn find(&self, candidate: &mut Candidate, token: u32, stored: u64) -> Result<(), BenchFault> {
        let id = candidate.ids.next_id();
        let control = &mut candidate.control;
        let lookup = |out: &mut [u8]| self.lookup.stamp_token(token, out);
        control.call_with(&self.lookup, id, lookup)?.done()?;
        let found = control.call(&candidate.session.wait, id)?.count()?.unwrap_or(0);
        if found > 0 {
            let free = |out: &mut [u8]| self.free.stamp_token(token, out);
            control.call_with(&self.free, id, free)?.done()?;
        }
        control.call(&candidate.session.end, id)?.done()?;
        if found == stored {
            return Ok(());
        }
        let what = format!(
            "--fill: a lookup finds {found} of the {stored} chunks that were stored first; is its \
             pool too small?"
        );
        Err(candidate.url.fault(what))
    }
}

/// Some 20 MB: less than the largest frame that a server takes.
const TOKENS_PER_REQUEST: u64 = 4 << 20;
