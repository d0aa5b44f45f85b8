//! `cargo soak KIND`: what proves more the longer it runs, and takes too long for `.ci/run`. Each
//! kind prints what it found as it goes and ends with 1 where that is a fault (docs/testing.md).

mod mutants;
mod planted;

use std::process::ExitCode;

const HELP: &str = "\
cargo soak KIND [OPTIONS]

  planted  every other test suite under each planted bug: they pass, the simulator alone fails
             [NUMBER…]     these bugs only
  mutants  a sample of mutants of the engine, under its tests and the simulator
             --sample N    how many (300)
             --seed S      of the sample (1)
             --seeds N     of the simulator (20)
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ended = match words.split_first() {
        Some((kind, rest)) if kind == "planted" => planted::run(rest),
        Some((kind, rest)) if kind == "mutants" => mutants::run(rest),
        _ => Err(HELP.to_string()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
