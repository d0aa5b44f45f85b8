//! The program itself, as far as a start goes that does not come to serving: its help, its exit
//! statuses and its last words (spec/http-cli §1.1, §4.3).

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};

fn kvtide(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtide"))
        .args(line.split_whitespace())
        .env_remove("LMCACHE_COORDINATOR_URL")
        .env_remove("LMCACHE_LOG_LEVEL")
        .env("LMCACHE_DISABLE_BANNER", "1")
        .output()
        .expect("the program was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the program writes text")
}

fn last_line(output: &Output) -> String {
    text(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

/// Compares with a file beside this one; `KVTIDE_WRITE_HELP=1` writes it instead.
fn same_as(name: &str, shown: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    if std::env::var_os("KVTIDE_WRITE_HELP").is_some() {
        std::fs::write(&path, shown).expect("the folder can be written");
    }
    let expected = std::fs::read_to_string(&path).expect("the file is in the folder");
    assert_eq!(shown, expected, "{name} differs; KVTIDE_WRITE_HELP=1 writes it anew");
}

#[test]
fn the_help_is_what_we_want_people_to_read_first() {
    let help = kvtide("server -h");
    assert_eq!(help.status.code(), Some(0));
    same_as("help_server.txt", &text(&help.stdout));
    let nothing = kvtide("");
    assert_eq!(nothing.status.code(), Some(1));
    same_as("help.txt", &text(&nothing.stdout));
}

#[test]
fn a_faulty_configuration_ends_in_1_with_the_peers_last_line() {
    for (line, flag) in [
        ("server --l2-adapter {}", "--l2-adapter"),
        ("server --worker-reap-timeout-seconds 5", "--worker-reap-timeout-seconds"),
    ] {
        let output = kvtide(line);
        assert_eq!(output.status.code(), Some(1), "{line}");
        let last = last_line(&output);
        assert!(last.starts_with(&format!("ValueError: {flag}")), "{last}");
    }
    assert_eq!(kvtide("server --nonsense").status.code(), Some(2));
}

#[test]
fn a_port_that_is_taken_ends_in_3_and_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = taken.local_addr().expect("it is bound");
    for line in [
        format!("server --http-port {} --port 0", address.port()),
        format!("server --port {} --http-port 0", address.port()),
    ] {
        let output = kvtide(&line);
        assert_eq!(output.status.code(), Some(3), "{line}");
        let last = last_line(&output);
        let named = format!(
            "Address already in use: {}",
            if line.contains("--http-port 0") {
                format!("localhost:{}", address.port())
            } else {
                address.to_string()
            }
        );
        assert!(last.contains(&named), "{last}");
    }
}

#[test]
fn f24_more_memory_than_there_is_ends_in_3_and_names_both_sizes() {
    let output = kvtide("server --l1-size-gb 1000000 --port 0 --http-port 0");
    assert_eq!(output.status.code(), Some(3));
    let last = last_line(&output);
    assert!(last.contains("1000000.00 GiB") && last.matches("GiB").count() == 2, "{last}");
}
