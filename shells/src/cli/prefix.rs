//! Shortened flags. The peer accepts any unambiguous beginning of a flag's name (`--l1-size 10`),
//! and scripts rely on it. Clap does the same, but over all flags, and a flag that only we have
//! must not make a beginning ambiguous that the peer understands. So beginnings are looked up among
//! the peer's names first; what they do not settle is left to clap.

use clap::Command;
use std::ffi::OsString;

/// Flags of ours that the peer does not have.
const OWN: &[&str] =
    &["ipc-path", "l1-objects-max", "log-format", "print-memory", "shm-group", "shm-mode"];

/// Replaces beginnings of the peer's flags by their full names.
pub fn expand(command: &Command, args: Vec<OsString>) -> Vec<OsString> {
    let given = args.iter().skip(1).position(|arg| arg == "server");
    let Some(at) = given.map(|at| at + 1) else { return args };
    let Some(server) = command.find_subcommand("server") else { return args };
    let names: Vec<&str> = server
        .get_arguments()
        .flat_map(|argument| argument.get_long_and_visible_aliases().unwrap_or_default())
        .chain(["disable-prometheus", "help"])
        .collect();
    let mut open = true;
    let (before, after) = args.split_at(at + 1);
    let expanded = after.iter().map(|arg| {
        open &= arg != "--";
        let full = arg.to_str().filter(|_| open).and_then(|arg| full_name(&names, arg));
        full.map_or_else(|| arg.clone(), OsString::from)
    });
    before.iter().cloned().chain(expanded).collect()
}

/// The argument with its flag's full name, where exactly one of the peer's flags begins like it.
fn full_name(names: &[&str], arg: &str) -> Option<String> {
    let flag = arg.strip_prefix("--")?;
    let (beginning, value) = match flag.split_once('=') {
        Some((beginning, value)) => (beginning, Some(value)),
        None => (flag, None),
    };
    if beginning.is_empty() || names.contains(&beginning) {
        return None;
    }
    let mut meant = names.iter().filter(|name| name.starts_with(beginning) && !OWN.contains(name));
    let (Some(name), None) = (meant.next(), meant.next()) else { return None };
    Some(value.map_or(format!("--{name}"), |value| format!("--{name}={value}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn expanded(line: &str) -> String {
        let args = line.split_whitespace().map(OsString::from).collect();
        let args = expand(&command(), args);
        let words: Vec<_> = args.iter().map(|arg| arg.to_str().expect("it was text")).collect();
        words.join(" ")
    }

    #[test]
    fn beginnings_become_names_and_our_own_flags_do_not_get_in_the_way() {
        assert_eq!(expanded("kvtide server --l1-size 10"), "kvtide server --l1-size-gb 10");
        assert_eq!(expanded("kvtide server --shm=x"), "kvtide server --shm-name=x");
        assert_eq!(expanded("kvtide server --pr 9090"), "kvtide server --prometheus-port 9090");
    }

    #[test]
    fn what_is_whole_ambiguous_unknown_or_no_flag_stays() {
        for line in [
            "kvtide server --port 1 --host=h",
            "kvtide server --enable x",
            "kvtide server --l1 10",
            "kvtide server --nonsense",
            "kvtide server -q value",
            "kvtide server -- --l1-size",
            "kvtide --vers",
        ] {
            assert_eq!(expanded(line), line);
        }
    }

    #[test]
    fn every_flag_of_ours_exists() {
        let command = command();
        let server = command.find_subcommand("server").expect("there is one");
        for own in OWN {
            assert!(server.get_arguments().any(|flag| flag.get_long() == Some(own)), "{own}");
        }
    }
}
