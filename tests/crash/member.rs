//! One client of a round: a process of `load.py`, whose history says how far it has come.

use kvtide_tests::child::{Finished, Watched, shell_code};
use kvtide_tests::client::Client;
use kvtide_tests::server::Server;
use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What somebody is in a round, whichever process it is.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    pub name: &'static str,
    pub role: &'static str,
    pub model: &'static str,
    pub rank: u32,
    pub world: u32,
}

/// A scheduler with a worker for each of two ranks, and two who share documents of their own.
pub const ROLES: [Role; 5] = [
    Role { name: "scheduler", role: "scheduler", model: "ranked", rank: 0, world: 2 },
    Role { name: "worker-0", role: "worker", model: "ranked", rank: 0, world: 2 },
    Role { name: "worker-1", role: "worker", model: "ranked", rank: 1, world: 2 },
    Role { name: "loner-0", role: "loner", model: "alone", rank: 0, world: 1 },
    Role { name: "loner-1", role: "loner", model: "alone", rank: 0, world: 1 },
];

/// What all members of a round have in common.
pub struct Ground<'a> {
    pub client: &'a Client,
    pub folder: &'a Path,
    pub url: String,
    pub seed: u64,
}

pub struct Member {
    role: Role,
    lives: u32,
    child: Watched,
    history: PathBuf,
    seen: Seen,
}

/// What has been read of a history.
#[derive(Default)]
struct Seen {
    bytes: u64,
    lines: u64,
    lost: u64,
    last: String,
    /// The time of the last line.
    at: u64,
}

/// Time between two looks at a history, spent waiting for the end of its process.
const LOOK: Duration = Duration::from_millis(1);
/// Two minutes and more.
const LOOKS: u32 = 120_000;
/// An ordered end: the operation that it is at, and its last word.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(60);

impl Member {
    pub fn start(ground: &Ground<'_>, role: Role) -> Result<Member, String> {
        Member::begin(ground, role, 0)
    }

    fn begin(ground: &Ground<'_>, role: Role, lives: u32) -> Result<Member, String> {
        let name = format!("{}.{lives}", role.name);
        let mut command = ground.client.command();
        command
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/crash/load.py"))
            .args(["--role", role.role, "--name", &name, "--model", role.model])
            .args(["--rank", &role.rank.to_string(), "--world", &role.world.to_string()])
            .args(["--seed", &ground.seed.to_string(), "--url", &ground.url])
            .arg("--folder")
            .arg(ground.folder);
        let child = Watched::start(&mut command).map_err(|error| format!("{name}: {error}"))?;
        let history = ground.folder.join(format!("{name}.jsonl"));
        Ok(Member { role, lives, child, history, seen: Seen::default() })
    }

    /// Another process takes over.
    pub fn again(self, ground: &Ground<'_>) -> Result<Member, String> {
        Member::begin(ground, self.role, self.lives + 1)
    }

    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        self.child.signal(signal).map_err(|error| format!("{}: {error}", self.role.name))
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) -> Result<(), String> {
        self.signal(Signal::KILL)?;
        let gone = self.child.wait(LEAVE_TIME_MAX).map_err(|error| error.to_string())?;
        match gone.map(shell_code) {
            Some(137) => Ok(()),
            Some(code) => Err(format!("{} has ended with {code}, {}", self.role.name, self.says())),
            None => Err(format!("{} cannot be killed", self.role.name)),
        }
    }

    /// Lets it end in order.
    pub fn leave(self) -> Result<(), String> {
        self.signal(Signal::TERM)?;
        let name = self.role.name;
        let ended = self.child.finish(LEAVE_TIME_MAX).map_err(|error| error.to_string())?;
        match ended {
            Finished { code: 0, .. } => Ok(()),
            Finished { code, out_of_time, output } => {
                Err(format!("{name} leaves with {code} (out of time: {out_of_time}):\n{output}"))
            }
        }
    }

    /// Waits until it has gone on for so many lines.
    pub fn go_on(&mut self, server: &mut Server, lines: u64) -> Result<(), String> {
        let wanted = self.look()?.lines + lines;
        self.until(server, |seen| seen.lines >= wanted)
    }

    /// Waits until what it writes down is so much later than now.
    pub fn go_on_for(&mut self, server: &mut Server, nanos: u64) -> Result<(), String> {
        let wanted = self.look()?.at + nanos;
        self.until(server, |seen| seen.at >= wanted)
    }

    /// Stops it while the last thing that it has said is of this kind.
    pub fn catch(&mut self, server: &mut Server, kind: &str) -> Result<(), String> {
        for _ in 0..LOOKS {
            self.until(server, |seen| seen.last.contains(kind))?;
            self.signal(Signal::STOP)?;
            let stat = format!("/proc/{}/stat", self.child.id());
            self.wait_for(server, |_| {
                let stat = std::fs::read_to_string(&stat).unwrap_or_default();
                Ok(stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
            })?;
            // It may have gone on since it was looked at.
            if self.look()?.last.contains(kind) {
                return Ok(());
            }
            self.signal(Signal::CONT)?;
        }
        Err(format!("{} is never caught at {kind}", self.role.name))
    }

    /// Waits until a call of it has not been answered in time.
    pub fn lose_a_call(&mut self, server: &mut Server) -> Result<(), String> {
        let wanted = self.look()?.lost + 1;
        self.until(server, |seen| seen.lost >= wanted)
    }

    fn until(&mut self, server: &mut Server, wanted: impl Fn(&Seen) -> bool) -> Result<(), String> {
        self.wait_for(server, |member| Ok(wanted(member.look()?)))
    }

    fn wait_for(
        &mut self,
        server: &mut Server,
        wanted: impl Fn(&mut Member) -> Result<bool, String>,
    ) -> Result<(), String> {
        for _ in 0..LOOKS {
            if wanted(self)? {
                return Ok(());
            }
            if let Some(status) = self.child.wait(LOOK).map_err(|error| error.to_string())? {
                let code = shell_code(status);
                return Err(format!("{} ends with {code}, {}", self.role.name, self.says()));
            }
            if let Some(code) = server.wait(Duration::ZERO)? {
                return Err(format!("the server ends with {code}:\n{}", server.log()));
            }
        }
        Err(format!("{} does not go on, {}\n{}", self.role.name, self.says(), server.log()))
    }

    fn says(&self) -> String {
        format!("after {} lines; it says:\n{}", self.seen.lines, self.child.output())
    }

    /// Reads what has come to its history. There is none before it has begun.
    fn look(&mut self) -> Result<&Seen, String> {
        let Ok(mut file) = File::open(&self.history) else { return Ok(&self.seen) };
        let mut bytes = Vec::new();
        let read =
            file.seek(SeekFrom::Start(self.seen.bytes)).and_then(|_| file.read_to_end(&mut bytes));
        read.map_err(|error| format!("{}: {error}", self.history.display()))?;
        // Whole lines only, so that none is looked at in two parts.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in bytes[..whole].split_inclusive(|byte| *byte == b'\n') {
            self.seen.lines += 1;
            self.seen.last = String::from_utf8_lossy(line).into_owned();
            self.seen.lost += u64::from(self.seen.last.contains("\"lost\""));
        }
        let time = self.seen.last.strip_prefix("{\"t\":").and_then(|rest| rest.split(',').next());
        self.seen.at = time.and_then(|time| time.parse().ok()).unwrap_or(self.seen.at);
        self.seen.bytes += whole as u64;
        Ok(&self.seen)
    }
}
