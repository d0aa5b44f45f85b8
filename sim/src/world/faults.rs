//! What goes wrong, as far as it does not lie in how slowly bytes travel.

use super::actions::{Action, Then};
use super::{ProcessId, Step, World};
use crate::calls::Call;
use crate::profile::layout_of;
use crate::reach::State;
use crate::transcript::Input;
use kvtide_core::limits::LINGER_SECS;
use kvtide_core::names::InstanceId;
use kvtide_core::time::Duration;

impl World {
    /// Comes again and again; each time every fault that exists has its chance.
    pub(super) fn fault(&mut self) -> Step {
        if self.is_healing {
            return Ok(());
        }
        self.plan(self.profile.gap, Action::Fault);
        let faults = self.profile.faults.clone();
        if self.chance(faults.jump * 2) {
            self.jump();
        }
        if self.chance(faults.crash * 2) {
            let process = self.whoever_dies();
            self.crash(process)?;
        }
        if self.chance(faults.stray) {
            self.stray();
        }
        if self.chance(faults.stop) {
            self.stop();
        }
        if self.chance(faults.lie) {
            self.lie();
        }
        if self.chance(faults.clear) {
            self.tally.came("clear");
            let process = ProcessId(self.pick(self.processes.len()));
            self.send(process, Call::Clear { force: false }, Then::Nothing);
        }
        if self.chance(faults.forced_clear) {
            self.forced_clear()?;
        }
        if self.chance(faults.unregister) {
            self.unregister();
        }
        if self.chance(faults.anew) {
            let process = ProcessId(self.pick(self.processes.len()));
            self.register_anew(process);
        }
        self.tier_faults()?;
        if self.chance(faults.late_tick / 8) {
            self.tally.came("tick early");
            // An early tick is as harmless as a late one.
            self.feed(Input::Tick)?;
        }
        Ok(())
    }

    pub(super) fn forced_clear(&mut self) -> Step {
        if self.is_healing {
            return Ok(());
        }
        self.tally.came("forced clear");
        let operator = self.bench.events;
        self.feed(Input::OperatorClear { operator, force: true })
    }

    fn jump(&mut self) {
        let config = &self.profile.config;
        let over = [
            ("clock jumped half a second", Duration::from_millis(500)),
            ("clock jumped over a linger", Duration::from_secs(LINGER_SECS + 1)),
            ("clock jumped over a read TTL", config.read_ttl),
            ("clock jumped over a write TTL", config.write_ttl),
            ("clock jumped over a session TTL", config.session_ttl),
            ("clock jumped over a silence", config.reap_after),
            ("clock jumped over a grace", config.registration_grace),
        ];
        let (what, over) = over[self.pick(over.len())];
        if over > Duration::ZERO {
            self.tally.came(what);
        }
        self.now = self.now + over + self.latency();
    }

    /// A worker stops, mostly one that is writing, for longer than any TTL and than it may be
    /// silent. Then it goes on where it was.
    fn stop(&mut self) {
        self.tally.came("client stopped");
        let at_work = self.writers().map(|(connection, _)| connection);
        let writers: Vec<usize> = match self.profile.faults.trailing > 0 {
            true => at_work.chain(self.flowing()).collect(),
            false => at_work.collect(),
        };
        let process = match writers.is_empty() {
            true => self.pick(self.processes.len()),
            false => writers[self.pick(writers.len())],
        };
        let config = &self.profile.config;
        let silence = config.reap_after.max(config.registration_grace);
        // Where that is shorter, some stop for no longer than they may be silent.
        let is_brief = self.rng.below(2) == 0;
        let longest = if is_brief { silence } else { silence.max(config.write_ttl) };
        self.processes[process].stopped_until = self.now + longest + Duration::from_secs(2);
    }

    /// Processes that are at work on slots, each with what it will commit.
    fn writers(&self) -> impl Iterator<Item = (usize, &Call)> {
        let writing = self.holdings.values().filter(|holding| holding.is_writer);
        let writing = writing.filter(|holding| self.is_open(holding.connection));
        writing.map(|holding| (holding.connection.0.index as usize, &holding.commit))
    }

    /// A worker commits what another one writes, or fewer chunks than it writes itself. Neither is
    /// the name of anything that it was lent.
    fn lie(&mut self) {
        let nth = self.pick(self.writers().count().max(1));
        let Some((writer, commit)) = self.writers().nth(nth) else { return };
        let Call::CommitStore { range, .. } = commit.clone() else { return };
        let (liar, range, state) = if self.rng.below(2) == 0 {
            (self.pick(self.processes.len()), range, State::LieAboutOthers)
        } else {
            let fewer = range.part(range.worker, range.first_chunk, range.end_chunk - 1);
            (writer, fewer, State::LieAboutCount)
        };
        self.tally.came("commit of what was not lent");
        let instance = self.processes[liar].instance;
        let call = Call::CommitStore { instance, range, inline_bytes: 0 };
        self.send(ProcessId(liar), call, Then::Lied(state));
    }

    /// Anybody, and often one with bytes on their way.
    fn whoever_dies(&mut self) -> ProcessId {
        let flowing: Vec<usize> = self.flowing().collect();
        if flowing.is_empty() || self.rng.below(2) == 0 {
            return ProcessId(self.pick(self.processes.len()));
        }
        ProcessId(flowing[self.pick(flowing.len())])
    }

    /// The process is gone, and with it everything that it read and wrote. It comes back later,
    /// as the same instance, as a new one, or with another layout.
    pub(super) fn crash(&mut self, process: ProcessId) -> Step {
        let entry = &self.processes[process.0];
        if !entry.is_open {
            return Ok(());
        }
        let connection = entry.connection(process);
        if !self.is_healing {
            self.tally.came("client died");
        }
        self.processes[process.0].is_open = false;
        self.hurry_streams(connection);
        self.feed(Input::ConnectionEnded { connection })?;
        self.holdings.retain(|_, holding| holding.connection != connection);
        self.waiting.retain(|reply, _| reply.connection != connection);
        let entry = &mut self.processes[process.0];
        entry.generation += 1;
        entry.was_reaped = false;
        self.lose_cache(process);
        let entry = &mut self.processes[process.0];
        match self.rng.below(4) {
            0 => {
                self.instances_made += 1;
                entry.instance = InstanceId(self.instances_made);
            }
            1 if self.profile.faults.unregister > 0 && entry.cache.is_none() => {
                // A new one; then again that of its group, of which there may be objects.
                let grains = 1 + self.rng.below(self.profile.config.l1_bytes / 16 / 1024);
                let usual = self.profile.groups[entry.group].layout;
                let is_new = entry.layout == usual;
                entry.layout = if is_new { layout_of(grains) } else { usual };
                entry.is_inline = self.rng.chance_ppm(self.profile.inline);
            }
            _ => {}
        }
        if !self.is_healing {
            self.plan(Duration::from_secs(3), Action::Connect { process });
        }
        Ok(())
    }

    fn unregister(&mut self) {
        self.tally.came("instance left");
        let process = ProcessId(self.pick(self.processes.len()));
        let instance = self.processes[process.0].instance;
        self.send(process, Call::Unregister { instance }, Then::Nothing);
        if self.rng.below(2) == 0 {
            self.register(process);
        }
    }

    /// A request that makes no sense where it comes, about something that exists.
    fn stray(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        self.tally.came("request without sense");
        let recent = self.requests.len().saturating_sub(40);
        let request = recent + self.pick(self.requests.len() - recent);
        let range = self.requests[request].range.clone();
        let process = ProcessId(self.pick(self.processes.len()));
        let entry = &self.processes[process.0];
        let (instance, rank) = (entry.instance, entry.rank);
        let end = self.rng.below(range.end_chunk as u64 + 1) as u32;
        let first = self.rng.below(end as u64 + 1) as u32;
        let mut part = range.part(rank, first, end);
        if self.rng.below(4) == 0 {
            part.salt = if part.salt.is_empty() { "tenant".into() } else { "".into() };
        }
        let name = range.request.clone();
        if entry.cache.is_some() && self.rng.below(2) == 0 {
            return self.stray_blocks(process, part);
        }
        let call = match self.rng.below(11) {
            0 => Call::Query { request: name },
            1 => Call::Wait { request: name, wait: Duration::from_millis(self.rng.below(200)) },
            2 => Call::Free { range: part.part(None, first, end) },
            3 => Call::EndSession { request: name, hashes: range.hashes.clone() },
            4 => Call::CommitStore { instance, range: part, inline_bytes: 0 },
            5 => Call::CommitRetrieve { instance, range: part },
            6 => Call::PrepareRetrieve { instance, range: part },
            7 => Call::PrepareStore { instance, range: part },
            8 => Call::Ping { instance: Some(InstanceId(self.rng.below(40) as i64)) },
            9 => Call::CommitStore { instance, range: part, inline_bytes: 1 },
            _ => Call::Lookup { range },
        };
        self.send(process, call, Then::Stray);
    }
}
