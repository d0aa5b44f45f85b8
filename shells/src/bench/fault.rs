//! Why a measurement ended without figures. Whatever a server answers wrongly ends the run: a
//! figure of a server that does something else is no figure.

use std::fmt;

/// One sentence, and the exit status that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchFault {
    pub exit: u8,
    pub message: String,
}

/// The world, the server or a wrong answer.
const EXIT_FAILED: u8 = 1;
/// As a shell reports an end by SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

impl BenchFault {
    pub fn new(message: impl fmt::Display) -> BenchFault {
        BenchFault { exit: EXIT_FAILED, message: message.to_string() }
    }

    /// Somebody pressed Ctrl-C.
    pub fn interrupted() -> BenchFault {
        BenchFault { exit: EXIT_INTERRUPTED, message: "interrupted".to_owned() }
    }
}

impl fmt::Display for BenchFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
