//! The verdict sees what it is for. Each test spoils one line of a history that is in order.

use crate::history::{History, Op, Read};
use crate::verdict::{Fault, Life, Rule, Run, judge};

const SEC: u64 = 1_000_000_000;

/// Two clients and one server: one stores two chunks, the other one looks them up and reads them.
const WRITER: &str = r#"{"t":10,"who":"writer","instance":1}
{"t":20,"op":1,"do":"register","instance":1}
{"t":25,"op":1,"did":"register","pool":"p"}
{"t":30,"op":2,"do":"store","request":"w/1","model":"m","world":1,"rank":0,"keys":["0:0","0:1"]}
{"t":31,"op":2,"did":"prepare","lent":["0:0","0:1"],"context":true}
{"t":32,"op":2,"wrote":"0:0"}
{"t":33,"op":2,"do":"commit"}
{"t":35,"op":2,"did":"store","ok":true}
"#;
const READER: &str = r#"{"t":10,"who":"reader","instance":2}
{"t":20,"op":1,"do":"register","instance":2}
{"t":25,"op":1,"did":"register","pool":"p"}
{"t":40,"op":2,"do":"lookup","request":"r/1","model":"m","world":1,"readers":1,"keys":["0:0","0:1"]}
{"t":42,"op":2,"did":"lookup","hit":2}
{"t":43,"op":3,"do":"retrieve","request":"r/1","model":"m","world":1,"rank":0,"keys":["0:0","0:1"]}
{"t":45,"op":3,"did":"prepare","hit":true}
{"t":46,"op":3,"did":"read","read":[{"writer":"writer","op":2},{"writer":"writer","op":2}]}
{"t":48,"op":3,"did":"retrieve","ok":true}
"#;
const ALWAYS: &[Life] = &[life(0, u64::MAX)];

const fn life(began: u64, ended: u64) -> Life {
    Life { began, ended, is_roomy: true }
}

fn run(writer: &str, reader: &str, servers: &[Life]) -> Run {
    let parse = |who, text| History::parse(who, text).expect("the history makes sense");
    Run {
        servers: servers.to_vec(),
        histories: vec![parse("writer", writer), parse("reader", reader)],
        read_ttl: SEC,
        write_ttl: SEC,
        files: None,
    }
}

fn rules(run: &Run) -> Vec<Rule> {
    let mut rules: Vec<Rule> = judge(run).0.into_iter().map(|Fault { rule, .. }| rule).collect();
    rules.sort();
    rules.dedup();
    rules
}

/// The rules that are broken where this line of the writer or the reader is another one.
fn spoilt(line: &str, other: &str) -> Vec<Rule> {
    let count = WRITER.matches(line).count() + READER.matches(line).count();
    assert_eq!(count, 1, "{line} stands somewhere once");
    rules(&run(&WRITER.replace(line, other), &READER.replace(line, other), ALWAYS))
}

#[test]
fn what_is_in_order_is_counted() {
    let (faults, counts) = judge(&run(WRITER, READER, ALWAYS));
    assert_eq!(faults, []);
    assert_eq!((counts.stored_chunks, counts.hit_chunks, counts.read_chunks), (2, 2, 2));
    assert_eq!((counts.read_of_others, counts.promises, counts.full_hits), (2, 1, 1));
    assert_eq!(counts.read_by_server, [2]);
}

#[test]
fn i20_a_wrong_byte_is_seen() {
    let torn = r#"[{"writer":"writer","op":2},{"wrong":"torn from byte 7 on"}]"#;
    let whole = r#"[{"writer":"writer","op":2},{"writer":"writer","op":2}]"#;
    assert_eq!(spoilt(whole, torn), [Rule::WrongBytes]);
    let short = r#"[{"writer":"writer","op":2}]"#;
    assert_eq!(spoilt(whole, short), [Rule::WrongBytes]);
}

#[test]
fn i7_bytes_before_their_commit_are_seen() {
    let late = READER.replace("\"t\":4", "\"t\":1");
    let early = run(WRITER, &late, ALWAYS);
    // Read at 16, committed at 33; and a lookup at 12 cannot have found them either.
    assert_eq!(rules(&early), [Rule::Uncommitted, Rule::UnexplainedHit]);
    // Committed at 45 and read at 46 is too late as well: at 44 the reader was lent the slots.
    let slow = WRITER.replace("\"t\":33", "\"t\":45").replace("\"t\":35", "\"t\":47");
    let lent = READER.replace("\"t\":45", "\"t\":44");
    assert_eq!(rules(&run(&slow, &lent, ALWAYS)), [Rule::Uncommitted, Rule::UnexplainedHit]);
    // A writer that was killed before it said that its slots are written.
    let killed: String = WRITER.lines().take(6).map(|line| line.to_owned() + "\n").collect();
    let killed = run(&killed, READER, ALWAYS);
    assert_eq!(rules(&killed), [Rule::Uncommitted, Rule::UnexplainedHit]);
}

#[test]
fn a_store_whose_answer_nobody_knows_may_be_read_or_not() {
    let killed: String = WRITER.lines().take(7).map(|line| line.to_owned() + "\n").collect();
    let (faults, counts) = judge(&run(&killed, READER, ALWAYS));
    assert_eq!((faults, counts.open_stores), (vec![], 1));
    let missed = READER.lines().take(4).collect::<Vec<_>>().join("\n");
    let missed = missed + "\n{\"t\":42,\"op\":2,\"did\":\"lookup\",\"hit\":0}\n";
    assert_eq!(rules(&run(&killed, &missed, ALWAYS)), []);
}

#[test]
fn bytes_of_another_chunk_or_of_nobody_are_seen() {
    let lent = r#""lent":["0:0","0:1"]"#;
    let less = r#""lent":["0:0"]"#;
    assert_eq!(spoilt(lent, less), [Rule::NeverLent, Rule::UnexplainedHit]);
    let nobody = READER.replace("\"op\":2},", "\"op\":7},");
    assert_eq!(rules(&run(WRITER, &nobody, ALWAYS)), [Rule::NeverLent]);
}

#[test]
fn a_store_that_was_refused_and_is_read_is_seen() {
    let ok = r#""did":"store","ok":true"#;
    let refused = r#""did":"store","ok":false"#;
    let broken = [Rule::Refused, Rule::UnexplainedHit, Rule::UnexplainedRefusal];
    assert_eq!(spoilt(ok, refused), broken);
}

#[test]
fn a_stale_hit_is_seen() {
    let lives = [life(0, 37), life(38, u64::MAX)];
    assert_eq!(rules(&run(WRITER, READER, &lives)), [Rule::Stale, Rule::UnexplainedHit]);
    // Whoever was answered before the end may read after it.
    let lives = [life(0, 45), life(46, u64::MAX)];
    assert_eq!(rules(&run(WRITER, READER, &lives)), []);
    // Slots of one server are committed with no other.
    let lives = [life(0, 32), life(33, u64::MAX)];
    let broken = rules(&run(WRITER, READER, &lives));
    assert_eq!(broken, [Rule::Stale, Rule::UnexplainedHit]);
}

#[test]
fn where_there_is_a_disk_a_server_has_what_those_before_it_have_stored() {
    let lives = [life(0, 37), life(38, u64::MAX)];
    let mut below = run(WRITER, READER, &lives);
    below.files = Some(Vec::new());
    let (faults, counts) = judge(&below);
    assert_eq!((faults, counts.read_from_disk), (vec![], 2));
    // Slots of one server are committed with no other, and nobody has what comes after it.
    below.servers = vec![life(0, 32), life(33, u64::MAX)];
    assert_eq!(rules(&below), [Rule::Stale, Rule::UnexplainedHit]);
}

#[test]
fn i20_a_torn_file_is_seen() {
    let mut below = run(WRITER, READER, ALWAYS);
    let file = |writer: &str, op| Read::Written { writer: writer.into(), op };
    below.files = Some(vec![file("writer", 2), file("writer", 2)]);
    let (faults, counts) = judge(&below);
    assert_eq!((faults, counts.files), (vec![], 2));
    for bad in [file("writer", 1), file("nobody", 2), Read::Wrong("torn".into())] {
        below.files = Some(vec![bad]);
        assert_eq!(rules(&below), [Rule::TornFile]);
    }
    let killed: String = WRITER.lines().take(6).map(|line| line.to_owned() + "\n").collect();
    let mut uncommitted = run(&killed, "", ALWAYS);
    uncommitted.files = Some(vec![file("writer", 2)]);
    assert_eq!(rules(&uncommitted), [Rule::TornFile]);
}

#[test]
fn a_hit_that_is_too_long_or_too_short_is_seen() {
    let hit = r#""did":"lookup","hit":2"#;
    assert_eq!(spoilt(hit, r#""did":"lookup","hit":3"#), [Rule::UnexplainedHit]);
    assert_eq!(spoilt(hit, r#""did":"lookup","hit":1"#), [Rule::LostChunks]);
    let less = READER.replace(hit, r#""did":"lookup","hit":1"#);
    let late = less.lines().take(4).collect::<Vec<_>>().join("\n");
    let late = late + "\n{\"t\":1000000040,\"op\":2,\"did\":\"lookup\",\"hit\":0}\n";
    assert_eq!(rules(&run(WRITER, &late, ALWAYS)), [], "asked for when its leases have ended");
    let mut evicting = run(WRITER, &less, ALWAYS);
    evicting.servers[0].is_roomy = false;
    assert_eq!(rules(&evicting), [], "what may be evicted may be gone");
    // A rank that has not stored is no hit for both.
    let both = READER.replace("\"world\":1,\"readers\"", "\"world\":2,\"readers\"");
    assert_eq!(rules(&run(WRITER, &both, ALWAYS)), [Rule::UnexplainedHit]);
}

#[test]
fn a_promise_that_is_not_kept_is_seen() {
    let hit = r#""did":"prepare","hit":true"#;
    let miss = r#""did":"prepare","hit":false"#;
    let missed = READER.lines().take(6).collect::<Vec<_>>().join("\n");
    let missed = format!("{missed}\n{{\"t\":45,\"op\":3,{miss}}}\n");
    assert!(READER.contains(hit));
    assert_eq!(rules(&run(WRITER, &missed, ALWAYS)), [Rule::BrokenPromise]);
    // What was given back, has expired, or met another server is promised no more.
    let freed = missed.replace(
        "{\"t\":43,",
        "{\"t\":43,\"op\":9,\"do\":\"free\",\"request\":\"r/1\"}\n{\"t\":43,",
    );
    assert_eq!(rules(&run(WRITER, &freed, ALWAYS)), []);
    let expired = missed.replace("{\"t\":45,", "{\"t\":1000000041,");
    assert_eq!(rules(&run(WRITER, &expired, ALWAYS)), []);
    let lives = [life(0, 43), life(44, u64::MAX)];
    assert_eq!(rules(&run(WRITER, &missed, &lives)), []);
}

#[test]
fn a_refusal_is_explained_by_time_by_registration_or_by_a_restart() {
    let refused = WRITER.replace("\"ok\":true", "\"ok\":false");
    let only = |writer: &str, servers: &[Life]| rules(&run(writer, "", servers));
    assert_eq!(only(&refused, ALWAYS), [Rule::UnexplainedRefusal]);
    let slow = refused.replace("{\"t\":35,", "{\"t\":1000000030,");
    assert_eq!(only(&slow, ALWAYS), []);
    let unregistered: String = refused
        .lines()
        .filter(|line| !line.contains("\"op\":1"))
        .fold(String::new(), |all, line| all + line + "\n");
    assert_eq!(only(&unregistered, ALWAYS), []);
    let lives = [life(0, 28), life(29, u64::MAX)];
    assert_eq!(only(&refused, &lives), [], "the new server does not know it");
}

#[test]
fn a_history_ends_where_its_process_was_killed() {
    let cut = &WRITER[..WRITER.len() - 9];
    let history = History::parse("writer", cut).expect("a cut line is no line");
    assert_eq!(history.ops.last().map(|op| (op.commit_began, op.ok)), Some((Some(33), None)));
    assert!(History::parse("writer", "{\"t\":1,\"op\":1}\n").is_err());
    assert!(History::parse("writer", "no line\n").is_err());
    let whole = History::parse("reader", READER).expect("it makes sense");
    let written = Read::Written { writer: "writer".into(), op: 2 };
    let retrieve = Op { read: vec![written.clone(), written], ..whole.ops[2].clone() };
    assert_eq!(whole.ops[2], retrieve);
}
