//! Commands one after the other, each to its end: what one finds hides nothing of the next.

use std::path::Path;
use std::process::Command;

/// A cargo command, run where the workspace lies, after everything else that the machine does.
pub struct Step {
    name: String,
    command: Command,
}

impl Step {
    pub fn cargo(name: &str, words: &[&str]) -> Step {
        let mut command = nice_cargo();
        command.args(words);
        Step { name: name.to_string(), command }
    }

    pub fn with(mut self, variable: &str, value: &str) -> Step {
        self.command.env(variable, value);
        self
    }
}

/// Cargo with the lowest priority. The one that started this program is asked for no toolchain of
/// its own, for `+nightly` names one.
pub fn nice_cargo() -> Command {
    let mut command = Command::new("nice");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    command.args(["-n", "19", "cargo"]).current_dir(root);
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    command
}

/// Whether all of them passed. Their output goes where ours does.
pub fn run(steps: impl IntoIterator<Item = Step>) -> bool {
    let mut verdicts = Vec::new();
    for Step { name, mut command } in steps {
        println!("== {name}");
        let verdict = match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        };
        verdicts.push((name, verdict));
    }
    println!();
    for (name, verdict) in &verdicts {
        match verdict {
            Ok(()) => println!("{name}: ok"),
            Err(why) => println!("{name}: FAILED, {why}"),
        }
    }
    verdicts.iter().all(|(_, verdict)| verdict.is_ok())
}
