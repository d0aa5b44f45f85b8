//! Child processes whose output is kept and whose end is awaited with a bound.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running program. Its two output streams go, in order, into one anonymous file, so that
/// nobody has to keep reading for it to go on. Killed when dropped.
pub struct Watched {
    child: Child,
    ended: OwnedFd,
    output: File,
}

/// A program that has ended, or was ended because its time was up.
pub struct Finished {
    /// As a shell reports it: 128 + n for a process that signal n has ended.
    pub code: i32,
    pub out_of_time: bool,
    pub output: String,
}

impl Watched {
    pub fn start(command: &mut Command) -> io::Result<Watched> {
        let output = File::from(rustix::fs::memfd_create(c"output", MemfdFlags::CLOEXEC)?);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .spawn()?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(ended) => Ok(Watched { child, ended, output }),
            Err(error) => {
                end_at_once(&mut child);
                Err(error.into())
            }
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program has ended, at most this long.
    pub fn wait(&mut self, at_most: Duration) -> io::Result<Option<ExitStatus>> {
        let bound = Timespec::try_from(at_most).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.ended, PollFlags::IN)];
        // An interrupted wait is a short one: who needs the whole of it asks again.
        match poll(&mut fds, Some(&bound)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => self.child.try_wait(),
            Err(error) => Err(error.into()),
        }
    }

    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Everything that the program has written so far.
    pub fn output(&self) -> String {
        let size = self.output.metadata().map_or(0, |data| data.len());
        let mut bytes = vec![0; usize::try_from(size).expect("output fits the address space")];
        match self.output.read_exact_at(&mut bytes, 0) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => format!("(its output cannot be read: {error})"),
        }
    }

    /// Waits for the end, and ends the program where it does not come in time.
    pub fn finish(mut self, at_most: Duration) -> io::Result<Finished> {
        let status = self.wait(at_most)?;
        let out_of_time = status.is_none();
        let status = match status {
            Some(status) => status,
            None => {
                self.child.kill()?;
                self.child.wait()?
            }
        };
        Ok(Finished { code: shell_code(status), out_of_time, output: self.output() })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        end_at_once(&mut self.child);
    }
}

fn end_at_once(child: &mut Child) {
    // Both fail only where the process has ended and been waited for already.
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs a program to its end.
pub fn run(command: &mut Command, at_most: Duration) -> Result<Finished, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    Watched::start(command)
        .and_then(|child| child.finish(at_most))
        .map_err(|error| format!("{name}: {error}"))
}

/// The exit status as a shell shows it.
pub fn shell_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// The last lines of a long output.
pub fn tail(output: &str, lines: usize) -> String {
    let all: Vec<&str> = output.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Finished {
        run(Command::new("sh").args(["-c", script]), Duration::from_secs(30)).expect("sh starts")
    }

    #[test]
    fn both_streams_are_kept_in_order_and_the_code_is_the_shells() {
        let finished = shell("echo one; echo two >&2; echo three; kill -TERM $$");
        assert_eq!(finished.output, "one\ntwo\nthree\n");
        assert_eq!(finished.code, 143);
        assert!(!finished.out_of_time);
        assert_eq!(shell("exit 3").code, 3);
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let mut command = Command::new("sh");
        let mut child = Watched::start(command.args(["-c", "kill -STOP $$"])).expect("sh starts");
        assert_eq!(child.wait(Duration::ZERO).expect("waits"), None, "still running");
        let finished = child.finish(Duration::from_millis(1)).expect("is ended");
        assert!(finished.out_of_time);
        assert_eq!(finished.code, 137);
    }

    #[test]
    fn the_tail_is_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\n", 2), "a");
    }
}
