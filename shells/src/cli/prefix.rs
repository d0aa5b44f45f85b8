//! Shortened flags. The peer accepts any unambiguous beginning of a flag's name (`--l1-size 10`),
//! and scripts rely on it. Clap does the same, but over all flags, and a flag that only we have
//! must not make a beginning ambiguous that the peer understands. So beginnings are looked up among
//! the peer's names first. One that means several is refused with all of them named; one that means
//! none of them is left to clap.

use clap::Command;
use std::ffi::OsString;
use std::fmt;

/// Flags of ours that the peer does not have.
const OWN: &[&str] = &[
    "ipc-path",
    "l1-objects-max",
    "log-format",
    "prefill-tokens-per-second",
    "print-memory",
    "shm-group",
    "shm-mode",
];

/// A beginning that more than one flag has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ambiguous {
    given: String,
    /// Full names, in the order of the help.
    meant: Vec<String>,
}

impl fmt::Display for Ambiguous {
    /// The peer's words, in clap's form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ambiguous { given, meant } = self;
        write!(f, "error: ambiguous option: --{given} could match --{}", meant.join(", --"))
    }
}

/// Replaces beginnings of the peer's flags by their full names.
pub fn expand(command: &Command, args: Vec<OsString>) -> Result<Vec<OsString>, Ambiguous> {
    let given = args.iter().skip(1).position(|arg| arg == "server");
    let Some(at) = given.map(|at| at + 1) else { return Ok(args) };
    let Some(server) = command.find_subcommand("server") else { return Ok(args) };
    let names: Vec<&str> = server
        .get_arguments()
        .flat_map(|argument| argument.get_long_and_visible_aliases().unwrap_or_default())
        .chain(["disable-prometheus", "help"])
        .collect();
    let mut open = true;
    let (before, after) = args.split_at(at + 1);
    let expanded = after.iter().map(|arg| {
        open &= arg != "--";
        let full = match arg.to_str().filter(|_| open) {
            Some(arg) => full_name(&names, arg)?,
            None => None,
        };
        Ok(full.map_or_else(|| arg.clone(), OsString::from))
    });
    before.iter().cloned().map(Ok).chain(expanded).collect()
}

/// The argument with its flag's full name, where exactly one of the peer's flags begins like it.
fn full_name(names: &[&str], arg: &str) -> Result<Option<String>, Ambiguous> {
    let Some(flag) = arg.strip_prefix("--") else { return Ok(None) };
    let (beginning, value) = match flag.split_once('=') {
        Some((beginning, value)) => (beginning, Some(value)),
        None => (flag, None),
    };
    if beginning.is_empty() || names.contains(&beginning) {
        return Ok(None);
    }
    let meant = names.iter().filter(|name| name.starts_with(beginning) && !OWN.contains(name));
    let meant: Vec<&str> = meant.copied().collect();
    match &meant[..] {
        [] => Ok(None),
        [name] => Ok(Some(value.map_or(format!("--{name}"), |value| format!("--{name}={value}")))),
        several => Err(Ambiguous {
            given: beginning.to_owned(),
            meant: several.iter().map(|name| (*name).to_owned()).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn expanded(line: &str) -> String {
        let args = line.split_whitespace().map(OsString::from).collect();
        let args = expand(&command(), args).expect("the line is not ambiguous");
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
    fn what_is_whole_unknown_or_no_flag_stays() {
        for line in [
            "kvtide server --port 1 --host=h",
            "kvtide server --enable x",
            "kvtide server --nonsense",
            "kvtide server -q value",
            "kvtide server -- --l1-size",
            "kvtide --vers",
        ] {
            assert_eq!(expanded(line), line);
        }
    }

    #[test]
    fn a_beginning_of_several_is_refused_with_all_of_them() {
        let args = ["kvtide", "server", "--l1-us=1"].map(OsString::from).to_vec();
        let ambiguous = expand(&command(), args).expect_err("two pairs of switches begin like it");
        let text = ambiguous.to_string();
        let expected = "error: ambiguous option: --l1-us could match --l1-use-lazy, ";
        assert!(text.starts_with(expected) && text.contains("--l1-use-hugepages"), "{text}");
        // What only differs by being ours is not ambiguous to scripts written for the peer.
        assert_eq!(expanded("kvtide server --print"), "kvtide server --print");
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
