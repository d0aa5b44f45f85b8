//! Workers whose bytes the server copies, the card or thread that copies them, and what becomes of
//! memory that is registered.
//!
//! A worker computes into its blocks, asks, and leaves them alone until the answer. A copy takes
//! its time, block by block; some fail, come late, hang until act two, or end twice.

use super::actions::{Action, Then};
use super::{ProcessId, RequestNumber, Step, World};
use crate::bench::Copying;
use crate::calls::{Blocks, Call, Paged, Range};
use crate::deeds::Deed;
use crate::devices::{DeviceId, NULL};
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::effect::Answer;
use kvtide_core::event::AttachFault;
use kvtide_core::names::{Attachment, Ticket};
use kvtide_core::pages::Pages;
use kvtide_core::time::Duration;

/// One worker's memory, as the worker knows it.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub device: DeviceId,
    pages: Pages,
    free: Vec<u32>,
    /// The server has not said yet that it has this memory, and may have another of its own.
    is_new: bool,
    is_refused: bool,
}

/// A copy under way.
pub(crate) struct Carried {
    copying: Copying,
    /// Blocks done, and those after which it fails.
    done: usize,
    fails_at: Option<usize>,
    /// Hangs until act two.
    hangs: bool,
    has_rested: bool,
}

impl World {
    pub(super) fn new_cache(&mut self, group: usize) -> Option<Cache> {
        let pages = self.profile.groups[group].pages?;
        self.devices_made += 1;
        let device = DeviceId(self.devices_made);
        let free = (NULL + 1..pages.blocks).collect();
        Some(Cache { device, pages, free, is_new: true, is_refused: false })
    }

    /// Its process has ended, or has lost the server: memory of a process that is gone is another's
    /// business, and what was to be copied for one that lives is not copied any more.
    pub(super) fn lose_cache(&mut self, process: ProcessId) {
        let group = self.processes[process.0].group;
        let entry = &self.processes[process.0];
        if entry.rank.is_none() || self.profile.groups[group].pages.is_none() {
            return;
        }
        // Some come back as workers that move their bytes themselves, or no longer.
        let share = self.profile.groups[group].paged;
        let changes = self.profile.faults.anew > 0 && self.rng.below(6) == 0;
        let is_paged = match changes {
            true => self.rng.chance_ppm(share),
            false => self.processes[process.0].cache.is_some(),
        };
        self.processes[process.0].cache = if is_paged { self.new_cache(group) } else { None };
        let layout = self.profile.groups[group].layout;
        if is_paged {
            self.processes[process.0].layout = layout;
        }
    }

    pub(super) fn register_paged(&mut self, process: ProcessId) {
        let entry = &self.processes[process.0];
        let Some(cache) = &entry.cache else { return };
        let group = &self.profile.groups[entry.group];
        let call = Call::RegisterPaged {
            instance: entry.instance,
            model: group.model.into(),
            world_size: group.world_size,
            paged: Paged { device: cache.device, pages: cache.pages },
        };
        self.send(process, call, Then::Registered);
    }

    /// The same instance says once more where its memory is; some have other memory by then, and
    /// some of those other pages.
    pub(super) fn register_anew(&mut self, process: ProcessId) {
        let entry = &self.processes[process.0];
        if entry.cache.is_none() || !entry.is_open || self.is_healing {
            return;
        }
        self.tally.came("memory registered anew");
        let group = entry.group;
        if self.rng.below(2) == 0 {
            self.processes[process.0].cache = self.new_cache(group);
            let is_other = self.rng.below(2) == 0;
            if let Some(cache) = self.processes[process.0].cache.as_mut().filter(|_| is_other) {
                let layers = cache.pages.layers;
                let fewer = if layers > 1 { layers - 1 } else { layers };
                let stride = cache.pages.block_stride_bytes;
                let tensors = cache.pages.tensors;
                cache.pages.layers = fewer;
                match tensors {
                    1 => cache.pages.block_stride_bytes = stride / layers as u64 * fewer as u64,
                    _ => cache.pages.tensors = fewer,
                }
                let layout = cache.pages.layout();
                self.processes[process.0].layout = layout;
            }
        }
        self.register_paged(process);
        if self.rng.below(3) == 0 {
            self.plan(self.profile.latency, Action::Anew { process });
        }
    }

    /// Whoever was refused tries again, now and then.
    pub(super) fn register_if_refused(&mut self, process: ProcessId) {
        let cache = self.processes[process.0].cache.as_mut();
        if cache.is_some_and(|cache| std::mem::take(&mut cache.is_refused)) {
            self.register_paged(process);
        }
    }

    /// Memory is being attached; the answer follows its end.
    pub(super) fn attaching(&mut self, attachment: Attachment) {
        let fails = self.chance(self.profile.faults.copy_fails);
        let outcome = match (fails, self.rng.below(5)) {
            (false, _) => Ok(()),
            (true, 0) => Err(AttachFault::Absent),
            (true, 1) => Err(AttachFault::Denied),
            (true, 2) => Err(AttachFault::Short),
            (true, 3) => Err(AttachFault::Full),
            (true, _) => Err(AttachFault::Failed),
        };
        if fails {
            self.tally.came("memory not attached");
        }
        let mut delay = self.latency();
        if self.chance(self.profile.faults.slow.max(self.profile.faults.trailing / 8)) {
            self.tally.came("memory attached late");
            delay += self.profile.latency * 40 + Duration::from_secs(self.rng.below(8));
        }
        self.plan_in(delay, Action::Attached { attachment, outcome });
        if self.chance(self.profile.faults.stale) {
            let input = Input::AttachEnded { attachment, outcome };
            self.plan_in(delay + Duration::from_secs(1), Action::StaleEnding { input });
        }
    }

    /// Blocks for a range, which nobody else has.
    fn allocate(&mut self, process: ProcessId, range: &Range) -> Option<(Blocks, Pages)> {
        let cache = self.processes[process.0].cache.as_mut().filter(|cache| !cache.is_new)?;
        let wanted = range.len() as usize * cache.pages.blocks_per_chunk() as usize;
        if cache.free.len() < wanted {
            return None;
        }
        let (device, pages) = (cache.device, cache.pages);
        let mut ids = Vec::new();
        for _ in 0..wanted {
            let at = self.rng.below(cache.free.len() as u64) as usize;
            ids.push(cache.free.swap_remove(at));
        }
        Some((Blocks { device, ids: ids.into() }, pages))
    }

    fn release(&mut self, process: ProcessId, blocks: &Blocks) {
        let Some(cache) = &mut self.processes[process.0].cache else { return };
        if cache.device == blocks.device {
            let real = blocks.ids.iter().filter(|id| **id != NULL && **id < cache.pages.blocks);
            cache.free.extend(real);
        }
    }

    /// What a worker names in place of its blocks, by mistake; the rest is free again.
    fn spoil(&mut self, process: ProcessId, blocks: Blocks) -> Blocks {
        if blocks.ids.is_empty() || !self.chance(self.profile.faults.bad_blocks) {
            return blocks;
        }
        self.tally.came("blocks that are not there");
        self.bench.reach.met(State::BadBlocks);
        let device = blocks.device;
        let mut ids = blocks.ids.to_vec();
        let at = self.pick(ids.len());
        let beyond = self.processes[process.0].cache.as_ref().map_or(0, |c| c.pages.blocks);
        let lost = match self.rng.below(3) {
            0 => std::mem::replace(&mut ids[at], beyond + self.rng.below(3) as u32),
            1 => ids.pop().expect("it is not empty"),
            _ => {
                ids.push(NULL);
                NULL
            }
        };
        self.release(process, &Blocks { device, ids: [lost].into() });
        Blocks { device, ids: ids.into() }
    }

    /// A worker has computed a range and asks for it to be stored. Of some chunks it has nothing.
    pub(super) fn store_blocks(&mut self, process: ProcessId, range: Range) {
        let Some((blocks, pages)) = self.allocate(process, &range) else { return };
        let each = pages.blocks_per_chunk() as usize;
        let tail = each - pages.blocks_per_object() as usize;
        let mut ids = blocks.ids.to_vec();
        let has_nulls = self.profile.config.null_block.is_some() && self.rng.below(8) == 0;
        let is_empty = has_nulls && self.rng.below(3) == 0;
        for chunk in ids.chunks_mut(each) {
            let is_null = is_empty || (has_nulls && self.rng.below(3) == 0);
            // What a window has left behind is nobody's.
            let dropped = if is_null { each } else { self.rng.below(tail as u64 + 1) as usize };
            let freed = Blocks { device: blocks.device, ids: chunk[..dropped].into() };
            self.release(process, &freed);
            chunk[..dropped].fill(NULL);
            if !is_null {
                self.compute(blocks.device, &chunk[tail..]);
            }
        }
        let blocks = self.spoil(process, Blocks { device: blocks.device, ids: ids.into() });
        let instance = self.processes[process.0].instance;
        self.send(process, Call::Store { instance, range, blocks }, Then::Store);
    }

    fn compute(&mut self, device: DeviceId, ids: &[u32]) {
        self.note(Deed::Computed { device, ids: ids.into() });
        self.bench.devices.compute(device, ids);
    }

    /// A worker has room for a range and asks for it to be filled. Of some it has the beginning.
    pub(super) fn retrieve_blocks(
        &mut self,
        process: ProcessId,
        request: RequestNumber,
        range: Range,
    ) {
        let Some((blocks, pages)) = self.allocate(process, &range) else { return };
        let tokens = u64::from(range.len()) * u64::from(pages.chunk_tokens);
        let skip_tokens = if self.rng.below(3) == 0 { self.rng.below(tokens + 2) } else { 0 };
        let blocks = self.spoil(process, blocks);
        let instance = self.processes[process.0].instance;
        let call = Call::Retrieve { instance, range, blocks, skip_tokens };
        self.send(process, call, Then::Retrieve(request));
    }

    /// A copy that makes no sense where it comes.
    pub(super) fn stray_blocks(&mut self, process: ProcessId, range: Range) {
        if self.rng.below(2) == 0 {
            return self.store_blocks(process, range);
        }
        let Some((blocks, _)) = self.allocate(process, &range) else { return };
        let (instance, skip_tokens) = (self.processes[process.0].instance, self.rng.below(9));
        let call = Call::Retrieve { instance, range, blocks, skip_tokens };
        self.send(process, call, Then::Stray);
    }

    /// An answer has come: the blocks are the worker's again.
    pub(super) fn after_copy(&mut self, process: ProcessId, call: &Call, answer: &Answer) {
        match call {
            Call::Store { blocks, .. } | Call::Retrieve { blocks, .. } => {
                self.release(process, blocks);
            }
            Call::RegisterPaged { paged, .. } => {
                let cache = self.processes[process.0].cache.as_mut();
                if let Some(cache) = cache.filter(|cache| cache.device == paged.device) {
                    cache.is_new &= *answer != Answer::None;
                    cache.is_refused = *answer != Answer::None;
                }
            }
            _ => {}
        }
    }

    /// A copy was ordered.
    pub(super) fn copying(&mut self, copying: Copying) {
        let ticket = copying.ticket;
        let total: usize = copying.blocks.iter().map(Vec::len).sum();
        let fails = self.chance(self.profile.faults.copy_fails);
        let fails_at = fails.then(|| self.pick(total + 1));
        let hangs = self.chance(self.profile.faults.stall / 8);
        self.opened_for.insert(ticket, copying.reply);
        let carried = Carried { copying, done: 0, fails_at, hangs, has_rested: false };
        self.carried.insert(ticket, carried);
        let latency = self.latency();
        self.plan_in(latency, Action::Carry { ticket });
    }

    /// A copy goes on by some blocks, and may end.
    pub(super) fn carry(&mut self, ticket: Ticket) -> Step {
        let Some(mut carried) = self.carried.remove(&ticket) else { return Ok(()) };
        let total: usize = carried.copying.blocks.iter().map(Vec::len).sum();
        let last = carried.fails_at.unwrap_or(total).min(total);
        let some = 1 + self.rng.below(1 + total as u64 / 2) as usize;
        let more = (carried.done + some).min(last);
        for step in carried.done..more {
            self.note(Deed::Moved { reply: carried.copying.reply, step });
            self.bench.move_block(&carried.copying, step)?;
        }
        carried.done = more;
        let is_over = more >= last && !(carried.hangs && !self.is_healing);
        if !is_over {
            let mut delay = self.latency() + Duration::from_micros(1);
            if carried.hangs {
                delay += Duration::from_secs(2);
            } else if !carried.has_rested && self.chance(self.profile.faults.slow) {
                carried.has_rested = true;
                self.tally.came("copy late");
                let config = &self.profile.config;
                let over = [config.write_ttl, config.read_ttl, config.reap_after];
                delay = over[self.pick(over.len())] + Duration::from_secs(1);
            }
            self.carried.insert(ticket, carried);
            self.plan_in(delay, Action::Carry { ticket });
            return Ok(());
        }
        let whole = carried.fails_at.is_none();
        if !whole {
            self.tally.came("copy failed");
        }
        let input = Input::CopyEnded { ticket, whole };
        if self.chance(self.profile.faults.stale) {
            let input = input.clone();
            self.plan(Duration::from_secs(2), Action::StaleEnding { input });
        }
        self.feed(input)
    }
}
