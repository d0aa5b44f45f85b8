//! Runs of `tests/client/tiers.py`: the real client over documents whose every byte is known, where
//! a miss is no failure and a wrong byte always one.

use crate::child::{Finished, Watched};
use crate::client::{Client, RUN_TIME_MAX};
use crate::server::Server;
use serde_json::Value;

/// What a run has counted, in chunks but for the documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub documents: u64,
    pub stored: u64,
    pub asked: u64,
    pub hit: u64,
    pub deleted: u64,
    pub wrong: u64,
    /// Promises of lookups that their retrieves did not keep.
    pub broken: u64,
    /// Stores whose commit was refused.
    pub refused: u64,
}

/// Begins a run: `words` is what follows the server's address.
pub fn start(client: &Client, server: &Server, words: &str) -> Result<Watched, String> {
    let mut command = client.command();
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/client/tiers.py"))
        .args(["--url", &server.url(), "--admin", &server.admin.to_string()])
        .args(words.split(' '));
    Watched::start(&mut command).map_err(|error| format!("tiers.py {words}: {error}"))
}

/// Waits for its end. An error where a byte was wrong or it has not come to its end.
pub fn end(run: Watched) -> Result<Tally, String> {
    let finished = run.finish(RUN_TIME_MAX).map_err(|error| error.to_string())?;
    read(&finished).ok_or_else(|| {
        let (code, late) = (finished.code, finished.out_of_time);
        format!("tiers.py ends with {code} (out of time: {late}):\n{}", finished.output)
    })
}

pub fn run(client: &Client, server: &Server, words: &str) -> Result<Tally, String> {
    end(start(client, server, words)?)
}

fn read(finished: &Finished) -> Option<Tally> {
    let last: Value = serde_json::from_str(finished.output.lines().last()?).ok()?;
    let count = |name: &str| last[name].as_u64();
    let tally = Tally {
        documents: count("documents")?,
        stored: count("stored")?,
        asked: count("asked")?,
        hit: count("hit")?,
        deleted: count("deleted")?,
        wrong: count("wrong")?,
        broken: count("broken")?,
        refused: count("refused")?,
    };
    (finished.code == 0 && !finished.out_of_time && tally.wrong == 0).then_some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_is_the_last_line_of_a_run_that_found_no_wrong_byte() {
        let line = |wrong: u64| {
            format!(
                "note\n{{\"documents\":1,\"stored\":2,\"asked\":3,\"hit\":4,\"deleted\":5,\
                 \"wrong\":{wrong},\"broken\":7,\"refused\":8}}\n"
            )
        };
        let of = |code, output| read(&Finished { code, out_of_time: false, output });
        let wanted = Tally {
            documents: 1,
            stored: 2,
            asked: 3,
            hit: 4,
            deleted: 5,
            wrong: 0,
            broken: 7,
            refused: 8,
        };
        assert_eq!(of(0, line(0)), Some(wanted));
        assert_eq!(of(1, line(0)), None);
        assert_eq!(of(0, line(6)), None);
        assert_eq!(of(0, "no line of its own".into()), None);
    }
}
