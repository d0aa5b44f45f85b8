//! The program: everything is in the library, so that tests can call it.

use kvtide::server::{Ground, StartFault, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os().collect(), serve))
}

/// The reactor takes over from here.
fn serve(_ground: Ground) -> Result<u8, StartFault> {
    Err(StartFault::world("this build has no reactor"))
}
