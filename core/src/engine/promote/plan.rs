//! What a seek does with its chunks, one after another: where every row's object comes from.
//!
//! ```text
//! in L1                  leased
//! on its way into L1     joined, if a load brings it; else the prefix ends here
//! an adapter has it      staged in L1 and loaded, from the first adapter that has it
//! nobody knows           adapters are asked, about this chunk and some behind it; whoever answers
//!                        first that it is there has it to load
//! nowhere                the prefix ends here
//! ```

use super::loads::Bringing;
use super::{Promote, Seek};
use crate::effect::{Effect, L2KeyRange};
use crate::engine::adapters::flights::Flight;
use crate::engine::adapters::shelf::is_size_of;
use crate::engine::adapters::{Adapters, Known};
use crate::engine::jobs::Job;
use crate::engine::l1::room::{Search, Staged};
use crate::engine::l1::{Found, Key};
use crate::engine::turn::Turn;
use crate::event;
use crate::fact::{Fact, FactKey, LookupStop, NoRoom, PrefetchFailure};
use crate::limits;
use crate::names::{AdapterId, L2Key, ObjectId, Seal, Ticket};
use crate::slots::SlotName;
use alloc::vec::Vec;
use smallvec::SmallVec;

/// One question to one adapter that is not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Probing {
    pub ticket: Ticket,
    pub keys: Vec<L2Key>,
}

/// Where one cell comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    InL1(ObjectId),
    Joining(SlotName),
    Below { adapter: AdapterId, entry: SlotName, seal: Option<Seal> },
}

/// What became of one chunk.
enum Step {
    Planned,
    Cut(LookupStop),
    Ask,
    /// Some adapter has not answered yet, and no other one has it.
    Unanswered,
    /// Room is being made for it.
    Busy,
}

impl Promote {
    /// Plans as far as the turn reaches, or until an answer is needed: what one adapter has told of
    /// is loaded while another one is waited for. False where there is more to do at once.
    pub fn go_on(&mut self, turn: &mut Turn, adapters: &mut Adapters, name: SlotName) -> bool {
        let (mut staged, mut ordered) = (SmallVec::new(), SmallVec::new());
        let is_over = loop {
            let Some(seek) = self.seeks.find_mut(name) else { break true };
            if seek.is_done || seek.planned >= seek.end {
                break true;
            }
            if turn.is_spent() {
                break false;
            }
            turn.spend(seek.rows.len());
            match self.plan_chunk(turn, adapters, name, (&mut staged, &mut ordered)) {
                Step::Planned => {
                    let seek = self.seeks.find_mut(name).expect("planned while it exists");
                    seek.planned += 1;
                    seek.waits_for_room = 0;
                }
                Step::Cut(stop) => {
                    let seek = self.seeks.find_mut(name).expect("planned while it exists");
                    seek.cut(seek.planned, stop);
                }
                Step::Ask => self.ask(turn, adapters, name),
                Step::Unanswered => break true,
                Step::Busy => {
                    let seek = self.seeks.find_mut(name).expect("planned while it exists");
                    seek.waits_for_room += 1;
                    if seek.waits_for_room < WAITS_FOR_ROOM_MAX {
                        break false;
                    }
                    seek.cut(seek.planned, LookupStop::NoRoom);
                }
            }
        };
        self.tell_staged(turn, &staged);
        self.order(turn, adapters, &ordered);
        self.settle(turn, name);
        is_over
    }

    fn tell_staged(&self, turn: &mut Turn, staged: &SmallVec<[ObjectId; 16]>) {
        let mark = turn.out.mark();
        staged.iter().for_each(|id| turn.l1.push_key(*id, turn.out));
        let keys = turn.out.keys_since(mark);
        if !keys.is_empty() {
            turn.out.tell(Fact::WriteReserved { keys });
        }
    }

    fn plan_chunk(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        name: SlotName,
        (staged, ordered): (&mut SmallVec<[ObjectId; 16]>, &mut SmallVec<[AdapterId; 4]>),
    ) -> Step {
        let sources = match self.sources(turn, adapters, name) {
            Ok(sources) => sources,
            Err(step) => return step,
        };
        if self.is_slower(turn, adapters, name, &sources) {
            self.tell_failed(turn, name, PrefetchFailure::SlowerThanRecompute);
            return Step::Cut(LookupStop::SlowerThanRecompute);
        }
        // Room that is made for one row is not made of what another one has in L1.
        let in_l1 = sources.iter().filter_map(|source| match source {
            Source::InL1(object) => Some(*object),
            _ => None,
        });
        let kept: SmallVec<[ObjectId; 4]> = in_l1.collect();
        kept.iter().for_each(|object| turn.l1.pin(*object));
        let step = self.plan_rows(turn, adapters, name, sources, (staged, ordered));
        kept.iter().for_each(|object| turn.l1.unpin(*object));
        step
    }

    fn plan_rows(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        name: SlotName,
        sources: SmallVec<[Source; 4]>,
        (staged, ordered): (&mut SmallVec<[ObjectId; 16]>, &mut SmallVec<[AdapterId; 4]>),
    ) -> Step {
        // A chunk is planned whole or not at all; what was taken of one that was given up half-way
        // lies behind the end and goes back with the rest.
        let done = {
            let seek = self.seeks.find(name).expect("planned while it exists");
            seek.set.len() - seek.planned as usize * seek.rows.len()
        };
        for (row, source) in sources.into_iter().enumerate().skip(done) {
            let seek = self.seeks.find_mut(name).expect("planned while it exists");
            let at = seek.set.len();
            match source {
                Source::InL1(object) => seek.set.take(turn.l1, object, seek.readers),
                Source::Joining(load) => {
                    let object = self.join(load, name, at);
                    let seek = self.seeks.find_mut(name).expect("planned while it exists");
                    seek.loaded += 1;
                    seek.set.expect(object);
                }
                Source::Below { adapter, entry, seal } => {
                    let (bytes, below) = (seek.bytes, seek.key(seek.planned, row));
                    let key = Key { hash: below.hash, scope: seek.rows[row].scope };
                    if self.loads.is_full() {
                        return Step::Busy;
                    }
                    let object = match stage(turn, key, bytes) {
                        Staged::New(object) => object,
                        Staged::Present => return Step::Busy,
                        Staged::NoRoom(NoRoom::Busy) => return Step::Busy,
                        Staged::NoRoom(_) => {
                            self.tell_failed(turn, name, PrefetchFailure::L1Oom);
                            return Step::Cut(LookupStop::NoRoom);
                        }
                    };
                    staged.push(object);
                    if !ordered.contains(&adapter) {
                        ordered.push(adapter);
                    }
                    let seek = self.seeks.find_mut(name).expect("planned while it exists");
                    seek.loaded += 1;
                    seek.set.expect(object);
                    let bringing = Bringing { adapter, entry, key: below, seal, object, bytes };
                    let layout = seek.layout;
                    self.bring(adapters, bringing, layout, (name, at));
                    if planted!(turn.config, 44) {
                        adapters.unhold(adapter, entry);
                    }
                }
            }
        }
        Step::Planned
    }

    /// Where the cells of the next chunk come from. Changes nothing.
    fn sources(
        &self,
        turn: &Turn,
        adapters: &Adapters,
        name: SlotName,
    ) -> Result<SmallVec<[Source; 4]>, Step> {
        let seek = self.seeks.find(name).expect("planned while it exists");
        let (chunk, mut must_ask, mut must_wait) = (seek.planned, false, false);
        let mut sources = SmallVec::new();
        for (row, scopes) in seek.rows.iter().enumerate() {
            let below = seek.key(chunk, row);
            let key = Key { hash: below.hash, scope: scopes.scope };
            let source = match turn.l1.find(&key) {
                Found::Resident(_) if planted!(turn.config, 43) => {
                    return Err(Step::Cut(LookupStop::Absent));
                }
                Found::Resident(object) => Source::InL1(object),
                Found::Staged => {
                    let staged = turn.l1.staged_under(&key);
                    let load = staged.and_then(|object| self.by_object.get(&object));
                    let Some(load) = load else { return Err(Step::Cut(LookupStop::InFlight)) };
                    Source::Joining(*load)
                }
                Found::Absent => match self.below(adapters, seek, &below) {
                    Ok(source) => source,
                    Err(may_be) if may_be && chunk >= seek.asked => {
                        must_ask = true;
                        continue;
                    }
                    Err(may_be) if may_be && !seek.probing.is_empty() => {
                        must_wait = true;
                        continue;
                    }
                    Err(_) if row == 0 => return Err(Step::Cut(LookupStop::Absent)),
                    Err(_) => return Err(Step::Cut(LookupStop::RankMissing)),
                },
            };
            sources.push(source);
        }
        match (must_ask, must_wait) {
            (true, _) => Err(Step::Ask),
            (false, true) => Err(Step::Unanswered),
            (false, false) => Ok(sources),
        }
    }

    /// The first adapter that has an object of the right kind under a key; else whether one may
    /// have it that does not know.
    fn below(&self, adapters: &Adapters, seek: &Seek, key: &L2Key) -> Result<Source, bool> {
        let mut may_be = false;
        for adapter in adapters.loading() {
            match adapters.known(adapter, key) {
                Known::Here { entry, bytes, seal } => {
                    let is_like = seal.is_none_or(|seal| seal.layout == seek.layout);
                    if is_size_of(bytes, seek.bytes) && is_like {
                        return Ok(Source::Below { adapter, entry, seal });
                    }
                }
                Known::Absent => {}
                Known::Unknown => may_be = true,
            }
        }
        Err(may_be)
    }

    /// Whether computing all chunks up to this one would be faster than loading what is missing
    /// (`--prefill-tokens-per-second`), as fast as the adapter was lately.
    fn is_slower(
        &self,
        turn: &Turn,
        adapters: &Adapters,
        name: SlotName,
        sources: &[Source],
    ) -> bool {
        let tokens_per_second = turn.config.prefill_tokens_per_second;
        let seek = self.seeks.find(name).expect("planned while it exists");
        let below = sources.iter().filter_map(|source| match source {
            Source::Below { adapter, .. } => Some(*adapter),
            _ => None,
        });
        let Some(adapter) = below.max().filter(|_| tokens_per_second > 0) else { return false };
        let Some(rate) = adapters.pace(adapter, turn.now) else { return false };
        let waits = self.waiting_bytes(adapter) + adapters.get(adapter).loading_bytes;
        let bytes = waits + seek.bytes * seek.rows.len() as u64;
        let tokens = (u128::from(seek.planned) + 1) * u128::from(turn.config.chunk_size);
        // bytes / rate > tokens / tokens_per_second
        u128::from(bytes) * u128::from(tokens_per_second) > tokens * u128::from(rate)
    }

    /// Asks every adapter about the cells that neither L1 nor its table names: this chunk, and some
    /// behind it.
    fn ask(&mut self, turn: &mut Turn, adapters: &mut Adapters, name: SlotName) {
        let seek = self.seeks.find_mut(name).expect("asked while it exists");
        let rows = seek.rows.len();
        let most = (limits::PROBE_KEYS_MAX / rows).max(1) as u32;
        let until = (seek.planned + seek.batch.min(most)).min(seek.end);
        seek.batch = seek.batch.saturating_mul(2).min(most);
        let asked: SmallVec<[AdapterId; 4]> = adapters.loading().collect();
        let mut failed = false;
        for adapter in asked {
            let seek = self.seeks.find_mut(name).expect("asked while it exists");
            let mut keys = Vec::new();
            turn.work.spend_steps(rows * (until - seek.planned) as usize);
            for chunk in seek.planned..until {
                for row in 0..rows {
                    let key = seek.key(chunk, row);
                    let in_l1 = Key { hash: key.hash, scope: seek.rows[row].scope };
                    if adapters.known(adapter, &key) == Known::Unknown
                        && turn.l1.find(&in_l1) == Found::Absent
                    {
                        keys.push(key);
                    }
                }
            }
            if keys.is_empty() {
                continue;
            }
            let patience = adapters.get(adapter).setup.probe_deadline;
            let flight = Flight::Probe { adapter, seek: name };
            let Some(ticket) = adapters.depart(flight, Some(patience), turn.now, turn.alarms)
            else {
                failed = true;
                continue;
            };
            let start = turn.out.l2_keys.len() as u32;
            turn.out.l2_keys.extend_from_slice(&keys);
            let range = L2KeyRange { start, end: turn.out.l2_keys.len() as u32 };
            turn.out.effects.push(Effect::Probe { ticket, adapter, keys: range });
            seek.probing.push(Probing { ticket, keys });
        }
        let seek = self.seeks.find_mut(name).expect("asked while it exists");
        seek.asked = until;
        if failed && seek.probing.is_empty() {
            seek.cut(seek.planned, LookupStop::TierError);
        }
    }

    /// An adapter has answered. What it has is known to its table from now on.
    pub fn probed(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        (adapter, name, ticket): (AdapterId, SlotName, Ticket),
        found: Option<&[Option<event::Found>]>,
    ) {
        let Some(seek) = self.seeks.find_mut(name) else { return };
        let at = seek.probing.iter().position(|probing| probing.ticket == ticket);
        let Some(probing) = at.map(|at| seek.probing.swap_remove(at)) else { return };
        turn.spend_own(probing.keys.len());
        for (key, found) in probing.keys.iter().zip(found.unwrap_or(&[])) {
            if let Some(found) = found {
                adapters.learn(adapter, *key, *found, turn.l1);
            }
        }
        if !self.go_on(turn, adapters, name) {
            turn.jobs.push(Job::Seek { seek: name });
        }
    }

    /// An adapter has not answered in time: what it may have is not waited for.
    pub fn probe_stalled(
        &mut self,
        turn: &mut Turn,
        adapters: &mut Adapters,
        name: SlotName,
        ticket: Ticket,
    ) {
        turn.out.effects.push(Effect::Cancel { ticket });
        let Some(seek) = self.seeks.find_mut(name) else { return };
        seek.probing.retain(|probing| probing.ticket != ticket);
        if !self.go_on(turn, adapters, name) {
            turn.jobs.push(Job::Seek { seek: name });
        }
    }

    /// The next chunk's cells do not come from below, and this is why.
    fn tell_failed(&self, turn: &mut Turn, name: SlotName, why: PrefetchFailure) {
        let seek = self.seeks.find(name).expect("told of while it exists");
        let (hash, bytes, tenant) = (seek.hashes[seek.planned as usize], seek.bytes, seek.tenant);
        let mark = turn.out.mark();
        for row in &seek.rows {
            turn.out.keys.push(FactKey { hash, bytes, scope: row.scope, tenant });
        }
        turn.out.tell(Fact::L2PrefetchFailed { keys: turn.out.keys_since(mark), why });
    }
}

/// A slot in L1, making room for it where that is needed.
fn stage(turn: &mut Turn, key: Key, bytes: u64) -> Staged {
    let mut search = Search::default();
    let staged = turn.l1.stage(key, bytes, &mut search, turn.work, turn.out);
    turn.l1.end_search(&mut search);
    if search.must_empty {
        turn.jobs.push(Job::EmptyWindow);
    }
    staged
}

/// Turns that a seek waits for room that is being made.
const WAITS_FOR_ROOM_MAX: u8 = 64;
