//! The release binary as the server, with a driver of its own.

use crate::card::{Card, Report, real_driver};
use kvtide_tests::binary;
use kvtide_tests::server::{Server, left_behind};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Bed {
    pub server: Server,
    report: PathBuf,
}

/// What is asked of every operation of a stream: without delays a missing wait goes unseen.
pub const DELAY_US: &str = "300";

impl Bed {
    pub fn start(card: &Card) -> Bed {
        Bed::start_with(card, &[])
    }

    /// With more in its environment.
    pub fn start_with(card: &Card, more: &[(&str, &str)]) -> Bed {
        let (library, objects) = (card.folder.join("lib"), card.folder.join("objects"));
        Bed::launch(&card.folder, |command| {
            if real_driver().is_none() {
                command.env("LD_LIBRARY_PATH", &library).env("FAKECUDA_DIR", &objects);
                command.env("FAKECUDA_DELAY_US", DELAY_US);
            }
            command.envs(more.iter().copied());
        })
    }

    /// One that finds no driver.
    pub fn without_driver(card: &Card) -> Bed {
        Bed::launch(&card.folder, |command| {
            command.env_remove("LD_LIBRARY_PATH");
        })
    }

    fn launch(folder: &Path, prepare: impl Fn(&mut Command)) -> Bed {
        let binary = binary::release().expect("the server is built");
        let report = folder.join("report");
        let _ = std::fs::remove_file(&report);
        let launch = || {
            let mut command = Command::new(&binary);
            command.env("FAKECUDA_REPORT", &report);
            prepare(&mut command);
            command
        };
        let arguments = ["--l1-size-gb", "0.1", "--no-l1-use-lazy", "--chunk-size", "16"];
        let server = Server::start_by(&launch, &arguments).expect("the server starts");
        Bed { server, report }
    }

    /// Waits until nothing of anybody is left. Every worker is gone before.
    pub fn idle(&mut self) {
        let mut left = Vec::new();
        let waited = self.server.until(|status| {
            left = left_behind(status);
            // Sessions end when their scheduler says so.
            left.retain(|what| !what.starts_with("active_sessions"));
            left.is_empty()
        });
        assert!(waited.is_ok(), "still there: {left:?}");
    }

    /// Waits until so many copies are in flight.
    pub fn until_in_flight(&mut self, tickets: u64) {
        let wanted = |status: &serde_json::Value| status["kvtide"]["tickets"] == tickets;
        self.server.until(wanted).expect("so many come to be in flight");
    }

    /// Whether it has this file mapped: an allocation of an engine that it has opened.
    pub fn maps(&self, part: &str) -> bool {
        let path = format!("/proc/{}/maps", self.server.id());
        std::fs::read_to_string(path).expect("it runs").contains(part)
    }

    /// Ends it in order and says what its driver has to say.
    pub fn stop(mut self) -> Report {
        self.idle();
        self.server.signal(Signal::TERM).expect("it runs");
        self.ended()
    }

    /// Waits for its end.
    fn ended(self) -> Report {
        let segments = self.server.segments();
        let stopped = self.server.ended(segments).expect("it ends by the signal");
        assert_eq!(stopped.code, 143, "{}", stopped.log);
        assert!(stopped.segments_left.is_empty(), "{:?}", stopped.segments_left);
        let report = Report::read(&self.report);
        assert!(!stopped.log.contains("panicked"), "{}", stopped.log);
        assert_eq!(report.violations, Vec::<String>::new(), "{}", stopped.log);
        report
    }

    /// The same where cards were used: everything of its driver is let go.
    pub fn stop_clean(self) -> Report {
        Bed::assert_clean(self.stop())
    }

    /// Likewise, of one that has got its signal.
    pub fn ended_clean(self) {
        Bed::assert_clean(self.ended());
    }

    fn assert_clean(report: Report) -> Report {
        if real_driver().is_none() {
            assert_eq!(report.live, Some(0), "nothing is left in the server's driver");
        }
        report
    }
}
