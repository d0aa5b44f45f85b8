//! The yardstick: what a request costs where nothing is done for it but what cannot be left out.
//! Sockets, the tokens of the lookup decoded by hand, their chained hashes, one look into an index,
//! and answers of the same bytes. No limits, no sessions, no leases, nothing but one process that
//! trusts its client: the generator starts it as a child and is the only one that speaks to it.

mod serve;
mod tokens;

pub use serve::serve;

use super::fault::BenchFault;
use super::line::Url;
use super::process::Process;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The hidden verb under which the program is its own yardstick.
pub const VERB: &str = "bench-floor";

/// A running yardstick. Ended when dropped; it also ends by itself when we do, whatever ends us.
pub struct Floor {
    child: Child,
    pub url: Url,
}

impl Floor {
    /// Starts one that hashes chunks of that many tokens.
    pub fn start(chunk_tokens: u64) -> Result<Floor, BenchFault> {
        let failed = |what: &dyn std::fmt::Display| BenchFault::new(format!("--floor: {what}"));
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut child = Command::new(program)
            .args([VERB, &chunk_tokens.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C at a terminal is for us: it is measured and spoken to until we have ended.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&error))?;
        let output = child.stdout.take().expect("its output was asked for");
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        let floor = |url| Floor { child, url };
        match (read, Url::parse(line.trim())) {
            (Ok(_), Ok(url)) => Ok(floor(url)),
            (Err(error), _) => Err(failed(&error)),
            (Ok(_), Err(_)) => Err(failed(&"the echo server does not start")),
        }
    }

    pub fn process(&self) -> Process {
        Process(self.child.id())
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
