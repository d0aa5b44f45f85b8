//! The verdict over a round: which of the answers that clients have got cannot be right.
//!
//! It knows nothing of how the server works, only what its clients may rely on. What a killed or
//! unheard client was at may have happened or not; everything else is certain, and counts.

use crate::history::{History, Op, Read};
use std::collections::BTreeMap;
use std::fmt;

/// A server's life: from before it was started until after it was gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub began: u64,
    pub ended: u64,
    /// Nothing has left its pool.
    pub is_roomy: bool,
}

pub struct Run {
    pub servers: Vec<Life>,
    pub histories: Vec<History>,
    pub read_ttl: u64,
    pub write_ttl: u64,
    /// What lies on disk, where there is one: then a server has what those before it have stored.
    pub files: Option<Vec<Read>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Torn, another key's, or nobody's bytes.
    WrongBytes,
    /// Bytes of an operation that was not lent this chunk.
    NeverLent,
    /// Bytes that were seen before their writer said that they were whole.
    Uncommitted,
    /// Bytes of a store that was told that it had failed.
    Refused,
    /// Bytes from a server that was gone, where nothing outlives it.
    Stale,
    /// A hit of more than anybody can have stored.
    UnexplainedHit,
    /// A hit of less than was stored, where nothing is evicted.
    LostChunks,
    /// A retrieve that missed what its lookup had promised.
    BrokenPromise,
    /// A store that failed without a reason.
    UnexplainedRefusal,
    /// A file that is torn, nobody's, or of a store that nobody has said to be whole.
    TornFile,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub rule: Rule,
    pub who: String,
    pub op: u64,
    pub about: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in operation {} of {}: {}", self.rule, self.op, self.who, self.about)
    }
}

/// What was judged: a verdict over nothing is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub stored_chunks: u64,
    /// Stores that may have happened or not.
    pub open_stores: u64,
    /// Stores that were lent slots and never committed.
    pub cut_stores: u64,
    pub lookups: u64,
    pub hit_chunks: u64,
    pub read_chunks: u64,
    /// Of these, written by another process.
    pub read_of_others: u64,
    /// Chunks read from each server.
    pub read_by_server: Vec<u64>,
    /// Promises that had to be kept, and hits that had to be complete.
    pub promises: u64,
    pub full_hits: u64,
    pub lost_calls: u64,
    /// Chunks read of which only a server before this one can have been told.
    pub read_from_disk: u64,
    /// Whole objects on disk at the end.
    pub files: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} chunks stored ({} stores open, {} cut), {} lookups hit {} chunks ({} had to be \
             complete), {} chunks read ({} of others; by server {:?}), {} promises kept, \
             {} calls lost, {} chunks of former servers read from disk, {} files",
            self.stored_chunks,
            self.open_stores,
            self.cut_stores,
            self.lookups,
            self.hit_chunks,
            self.full_hits,
            self.read_chunks,
            self.read_of_others,
            self.read_by_server,
            self.promises,
            self.lost_calls,
            self.read_from_disk,
            self.files,
        )
    }
}

/// One object: model, chunk, rank.
type Object<'a> = (&'a str, &'a str, u64);

struct Judge<'a> {
    run: &'a Run,
    writes: BTreeMap<(&'a str, u64), &'a Op>,
    writes_of: BTreeMap<Object<'a>, Vec<&'a Op>>,
    /// Lookups, retrieves and releases of each request.
    requests: BTreeMap<&'a str, Vec<&'a Op>>,
    /// Registrations of each process, and their ends.
    registrations: BTreeMap<&'a str, Vec<&'a Op>>,
    faults: Vec<Fault>,
    counts: Counts,
}

pub fn judge(run: &Run) -> (Vec<Fault>, Counts) {
    let mut judge = Judge {
        run,
        writes: BTreeMap::new(),
        writes_of: BTreeMap::new(),
        requests: BTreeMap::new(),
        registrations: BTreeMap::new(),
        faults: Vec::new(),
        counts: Counts { read_by_server: vec![0; run.servers.len()], ..Counts::default() },
    };
    judge.index();
    for history in &run.histories {
        for op in &history.ops {
            judge.counts.lost_calls += u64::from(op.lost);
            match op.what.as_str() {
                "retrieve" => judge.retrieve(history, op),
                "lookup" => judge.lookup(history, op),
                "store" => judge.store(history, op),
                _ => {}
            }
        }
    }
    for file in run.files.iter().flatten() {
        judge.file(file);
    }
    (judge.faults, judge.counts)
}

impl<'a> Judge<'a> {
    fn index(&mut self) {
        for history in &self.run.histories {
            for op in &history.ops {
                if op.what == "store" {
                    self.writes.insert((&history.who, op.number), op);
                } else if !op.request.is_empty() {
                    self.requests.entry(&op.request).or_default().push(op);
                }
                if ["register", "leave"].contains(&op.what.as_str()) {
                    self.registrations.entry(&history.who).or_default().push(op);
                }
                for key in &op.lent {
                    let object = (op.model.as_str(), key.as_str(), op.rank);
                    self.writes_of.entry(object).or_default().push(op);
                }
            }
        }
    }

    fn fault(&mut self, rule: Rule, history: &History, op: &Op, about: String) {
        let who = history.who.clone();
        self.faults.push(Fault { rule, who, op: op.number, about });
    }

    fn retrieve(&mut self, history: &'a History, op: &'a Op) {
        if let Some(read_at) = op.read_at {
            for (key, read) in op.keys.iter().zip(&op.read) {
                self.read(history, op, (key, read), read_at);
            }
            if op.read.len() != op.keys.len() {
                let about = format!("{} chunks of {}", op.read.len(), op.keys.len());
                self.fault(Rule::WrongBytes, history, op, about);
            }
        }
        if let (Some(prepared), false) = (op.prepared, op.lost)
            && self.is_promised(history, op, prepared)
        {
            self.counts.promises += 1;
            if !op.was_hit {
                let about = format!("{} of {}", op.keys.join(" "), op.request);
                self.fault(Rule::BrokenPromise, history, op, about);
            }
        }
    }

    fn read(&mut self, history: &History, op: &Op, (key, read): (&str, &Read), read_at: u64) {
        let (writer, number) = match read {
            Read::Written { writer, op } => (writer, *op),
            Read::Wrong(what) => {
                return self.fault(Rule::WrongBytes, history, op, format!("{key}: {what}"));
            }
        };
        let about = format!("{key} at rank {}, written by {writer} in {number}", op.rank);
        let write = self.writes.get(&(writer.as_str(), number)).copied();
        let is_lent = |write: &&Op| {
            let of = (write.model.as_str(), write.rank);
            of == (op.model.as_str(), op.rank) && write.lent.iter().any(|lent| lent == key)
        };
        let Some(write) = write.filter(is_lent) else {
            return self.fault(Rule::NeverLent, history, op, about);
        };
        // What was lent had been committed by then, not only by the time it was read.
        let answered = op.prepared.unwrap_or(read_at);
        if write.commit_began.is_none_or(|commit| commit > answered) {
            return self.fault(Rule::Uncommitted, history, op, about);
        }
        if write.ok == Some(false) {
            return self.fault(Rule::Refused, history, op, about);
        }
        let by: Vec<usize> = self.servers(op.began, answered).collect();
        let own = by.iter().find(|server| self.was_stored_at(write, **server));
        let Some(server) = own.or(by.last()).filter(|_| self.may_have(write, &by)) else {
            return self.fault(Rule::Stale, history, op, about);
        };
        self.counts.read_by_server[*server] += 1;
        self.counts.read_from_disk += u64::from(own.is_none());
        self.counts.read_chunks += 1;
        self.counts.read_of_others += u64::from(*writer != history.who);
    }

    fn lookup(&mut self, history: &History, op: &Op) {
        let (Some(ended), Some(hit)) = (op.ended, op.hit) else { return };
        self.counts.lookups += 1;
        self.counts.hit_chunks += hit;
        let by: Vec<usize> = self.servers(op.began, ended).collect();
        if hit > op.keys.len() as u64 {
            let about = format!("{hit} chunks of {}", op.keys.len());
            self.fault(Rule::UnexplainedHit, history, op, about);
        }
        for key in op.keys.iter().take(hit as usize) {
            for rank in 0..op.world {
                let may_be = |write: &&Op| {
                    write.commit_began.is_some_and(|commit| commit <= ended)
                        && write.ok != Some(false)
                        && self.may_have(write, &by)
                };
                if !self.writes_of(op, key, rank).any(|write| may_be(&write)) {
                    let about = format!("{key} at rank {rank}");
                    self.fault(Rule::UnexplainedHit, history, op, about);
                }
            }
        }
        // A result that is asked for after its leases have ended is 0.
        let is_quick = ended - op.began < self.run.read_ttl;
        let server = self.server_of(op.began, ended).filter(|_| is_quick);
        let Some(server) = server.filter(|server| self.run.servers[*server].is_roomy) else {
            return;
        };
        self.counts.full_hits += 1;
        let is_there = |write: &Op| {
            let stored = write.ended.filter(|stored| *stored < op.began);
            write.ok == Some(true)
                && stored.is_some_and(|stored| self.server_of(write.began, stored) == Some(server))
        };
        let is_whole =
            |key: &&String| (0..op.world).all(|rank| self.writes_of(op, key, rank).any(is_there));
        let stored = op.keys.iter().take_while(is_whole).count() as u64;
        if hit < stored {
            let about = format!("{hit} of {stored} chunks: {}", op.keys.join(" "));
            self.fault(Rule::LostChunks, history, op, about);
        }
    }

    fn store(&mut self, history: &History, op: &Op) {
        if op.commit_began.is_none() {
            self.counts.cut_stores += u64::from(!op.lent.is_empty());
            return;
        }
        let Some(ended) = op.ended else {
            self.counts.open_stores += 1;
            return;
        };
        if op.ok == Some(true) {
            self.counts.stored_chunks += op.lent.len() as u64;
            return;
        }
        let is_quick = ended - op.began < self.run.write_ttl;
        let server = self.server_of(op.began, ended);
        if is_quick && server.is_some_and(|server| self.is_registered(history, op, server)) {
            self.fault(Rule::UnexplainedRefusal, history, op, op.lent.join(" "));
        }
    }

    /// Whether a lookup has promised all of this, to somebody like this, and nothing has ended the
    /// promise before the answer.
    fn is_promised(&self, history: &History, op: &Op, prepared: u64) -> bool {
        let of_request = || self.requests.get(op.request.as_str()).into_iter().flatten();
        let mut lookups = of_request().filter(|other| other.what == "lookup");
        let (Some(lookup), None) = (lookups.next(), lookups.next()) else { return false };
        let (Some(answered), Some(hit)) = (lookup.ended, lookup.hit) else { return false };
        let promised = &lookup.keys[..(hit as usize).min(lookup.keys.len())];
        let is_covered = op.keys.iter().all(|key| promised.contains(key));
        let is_freed = of_request().any(|other| other.what == "free" && other.began <= prepared);
        let earlier = of_request().filter(|other| {
            (other.what.as_str(), other.rank) == ("retrieve", op.rank) && other.began < op.began
        });
        // What lingers after an end of session lives longer than these leases.
        let in_time = answered <= op.began && prepared - lookup.began < self.run.read_ttl;
        let server = self.server_of(lookup.began, prepared);
        is_covered
            && !is_freed
            && in_time
            && (earlier.count() as u64) < lookup.readers
            && server.is_some_and(|server| self.is_registered(history, op, server))
    }

    /// Whether the last thing that this process heard of its registration came from this server.
    fn is_registered(&self, history: &History, op: &Op, server: usize) -> bool {
        let of_it = self.registrations.get(history.who.as_str());
        let mut before = of_it.into_iter().flatten().rev().filter(|it| it.number < op.number);
        before.next().is_some_and(|last| {
            let by = last.ended.and_then(|ended| self.server_of(last.began, ended));
            last.what == "register" && by == Some(server)
        })
    }

    fn writes_of(&self, op: &'a Op, key: &'a str, rank: u64) -> impl Iterator<Item = &'a Op> {
        let writes = self.writes_of.get(&(op.model.as_str(), key, rank));
        writes.map_or(&[][..], Vec::as_slice).iter().copied()
    }

    /// Servers that may have answered something within this time.
    fn servers(&self, from: u64, to: u64) -> impl Iterator<Item = usize> + use<'a> {
        let servers = self.run.servers.iter().enumerate();
        let alive = servers.filter(move |(_, life)| life.began <= to && life.ended >= from);
        alive.map(|(server, _)| server)
    }

    /// The one server that lived all of this time.
    fn server_of(&self, from: u64, to: u64) -> Option<usize> {
        let lives = |life: &Life| life.began <= from && to <= life.ended;
        self.run.servers.iter().position(lives)
    }

    /// Whether one of these servers may have what was written: told by its writer or, where there
    /// is a disk, by a server before it.
    fn may_have(&self, write: &Op, servers: &[usize]) -> bool {
        let Some(last) = servers.last() else { return false };
        let stored = |server: usize| self.was_stored_at(write, server);
        match self.run.files {
            Some(_) => (0..=*last).any(stored),
            None => servers.iter().any(|server| stored(*server)),
        }
    }

    /// A file has its name: whatever has ended its server, it is whole, and its writer had said so
    /// before.
    fn file(&mut self, file: &Read) {
        let (who, op, about) = match file {
            Read::Wrong(what) => (String::new(), 0, what.clone()),
            Read::Written { writer, op } => {
                let of = (writer.as_str(), *op);
                let write = self.writes.get(&of).filter(|write| write.ok != Some(false));
                if write.is_some_and(|write| write.commit_began.is_some()) {
                    self.counts.files += 1;
                    return;
                }
                (writer.clone(), *op, "a file of what was never committed".into())
            }
        };
        self.faults.push(Fault { rule: Rule::TornFile, who, op, about });
    }

    /// Whether this server may have lent the slots of a write and taken its commit.
    fn was_stored_at(&self, write: &Op, server: usize) -> bool {
        let (Some(prepared), Some(commit)) = (write.prepared, write.commit_began) else {
            return false;
        };
        let ended = write.ended.unwrap_or(u64::MAX);
        let mut lent = self.servers(write.began, prepared);
        let mut taken = self.servers(commit, ended);
        lent.any(|other| other == server) && taken.any(|other| other == server)
    }
}
