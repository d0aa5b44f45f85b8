//! The program: everything is in the library, so that tests can call it.

use std::process::ExitCode;

const _: () = assert!(!kvtide_core::planted::IS_PLANTED, "the program has no bugs on purpose");

fn main() -> ExitCode {
    ExitCode::from(kvtide::server::run(std::env::args_os().collect(), kvtide::serve::serve))
}
