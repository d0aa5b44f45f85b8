//! Where the release binary is. The tests of the whole program test what is shipped: the release
//! build, brought up to date by cargo itself before the first test that needs it.

use crate::child;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// A release build from nothing takes minutes on two cores.
const BUILD_TIME_MAX: Duration = Duration::from_secs(30 * 60);

/// The path of the release binary, built once per test process where it is out of date.
/// `KVTIDE_BINARY` names another one, which is then used as it is.
pub fn release() -> Result<PathBuf, String> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY.get_or_init(find).clone()
}

fn find() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("KVTIDE_BINARY") {
        return Ok(PathBuf::from(path));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--release", "-p", "kvtide", "--bin", "kvtide"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let built = child::run(&mut command, BUILD_TIME_MAX)?;
    if built.code != 0 {
        let end = child::tail(&built.output, 60);
        return Err(format!("cargo build --release -p kvtide ended with {}:\n{end}", built.code));
    }
    executable(&built.output)
        .ok_or_else(|| "cargo build --release -p kvtide names no executable".to_string())
}

/// The `executable` of the last artifact that has one: among cargo's messages, one a line, those
/// that are JSON.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_among_cargos_messages() {
        let messages = concat!(
            "   Compiling kvtide v0.1.0\n",
            r#"{"reason":"compiler-artifact","target":{"name":"core"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","executable":"target/release/kvtide"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
            "\n",
        );
        assert_eq!(executable(messages), Some(PathBuf::from("target/release/kvtide")));
        assert_eq!(executable("no message at all"), None);
    }
}
