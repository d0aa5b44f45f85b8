//! What one client has written down: a line before each call, and one after it.

use serde_json::Value;

/// One operation of a client, as far as it has come. Times are nanoseconds of the machine's
/// monotonic clock, which all processes share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Op {
    pub number: u64,
    /// `store`, `retrieve`, `lookup`, `free`, `end`, `ping`, `register` or `leave`.
    pub what: String,
    pub began: u64,
    pub request: String,
    pub model: String,
    /// Ranks of the model.
    pub world: u64,
    pub rank: u64,
    /// Names of the chunks that it is about. A name stands for a chunk and all before it.
    pub keys: Vec<String>,
    pub readers: u64,
    /// The answer to its prepare.
    pub prepared: Option<u64>,
    /// Chunks that a store was lent slots for.
    pub lent: Vec<String>,
    /// A retrieve's prepare was a hit.
    pub was_hit: bool,
    /// A store had written all of its slots and was about to say so.
    pub commit_began: Option<u64>,
    /// What a retrieve has read, chunk by chunk, and when it had read all of it.
    pub read: Vec<Read>,
    pub read_at: Option<u64>,
    /// Its last answer.
    pub ended: Option<u64>,
    pub ok: Option<bool>,
    pub hit: Option<u64>,
    /// A call of it was not answered in time.
    pub lost: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Read {
    /// Whole, of the right key, written by an operation of somebody.
    Written {
        writer: String,
        op: u64,
    },
    Wrong(String),
}

/// All operations of one process, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub who: String,
    pub ops: Vec<Op>,
}

impl History {
    /// Reads a history. The last line of a process that was killed may be cut.
    pub fn parse(who: &str, text: &str) -> Result<History, String> {
        let mut history = History { who: who.into(), ops: Vec::new() };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (at, line) in whole.lines().enumerate() {
            let value: Value =
                serde_json::from_str(line).map_err(|error| format!("{who}:{}: {error}", at + 1))?;
            let taken = history.take(&value);
            taken.ok_or_else(|| format!("{who}:{}: what is this? {line}", at + 1))?;
        }
        Ok(history)
    }

    /// None where the line makes no sense.
    fn take(&mut self, line: &Value) -> Option<()> {
        let at = line["t"].as_u64()?;
        let Some(number) = line["op"].as_u64() else {
            return line["who"].as_str().map(|_| ());
        };
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let count = |name: &str| line[name].as_u64().unwrap_or_default();
        if let Some(what) = line["do"].as_str().filter(|what| *what != "commit") {
            self.ops.push(Op {
                number,
                what: what.into(),
                began: at,
                request: text("request"),
                model: text("model"),
                world: count("world"),
                rank: count("rank"),
                keys: names(&line["keys"]),
                readers: count("readers"),
                ..Op::default()
            });
            return Some(());
        }
        let op = self.ops.last_mut().filter(|op| op.number == number)?;
        match (line["do"].as_str(), line["did"].as_str()) {
            (Some("commit"), _) => op.commit_began = Some(at),
            (_, Some("prepare")) => {
                op.prepared = Some(at);
                op.lent = names(&line["lent"]);
                op.was_hit = line["hit"].as_bool().unwrap_or_default();
            }
            (_, Some("read")) => {
                op.read_at = Some(at);
                let read: Option<Vec<Read>> = line["read"].as_array()?.iter().map(read).collect();
                op.read = read?;
            }
            (_, Some(what)) if what == op.what => {
                op.ended = Some(at);
                op.ok = line["ok"].as_bool();
                op.hit = line["hit"].as_u64();
            }
            _ if line["lost"] == true => op.lost = true,
            // How far its writing or reading had come: for whoever reads the file.
            _ if line["wrote"].is_string() || line["reading"].is_string() => {}
            _ => return None,
        }
        Some(())
    }
}

fn names(value: &Value) -> Vec<String> {
    let all = value.as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
}

/// What was found in one chunk.
pub fn read(value: &Value) -> Option<Read> {
    if let Some(wrong) = value["wrong"].as_str() {
        return Some(Read::Wrong(format!("{wrong} {value}")));
    }
    let writer = value["writer"].as_str()?.to_owned();
    Some(Read::Written { writer, op: value["op"].as_u64()? })
}
