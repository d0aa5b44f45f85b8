//! Every flag of `kvtide server` with a value that cannot be: the exit status says whose rule was
//! broken, and the message names the flag (spec/http-cli §1.1). A flag without a row fails, so the
//! table stays whole.

use kvtide::arena::{Machine, SharedMount};
use kvtide::cli::{Asked, Settings, Start, command, parse};
use std::ffi::OsString;
use std::process::Command;

/// What is wrong with a flag, and where it shows.
#[derive(Clone, Copy, Debug)]
enum Bad {
    /// The command line cannot be (2).
    Usage(&'static str),
    /// A rule of the configuration is broken, or the flag is refused (1).
    Rule(&'static str),
    /// The peer finds out at its start, or the machine does not allow it (3).
    Start(&'static str),
    /// The same, found by the program itself.
    Bind(&'static str),
    /// Any text will do; to be without one is wrong (2).
    Text,
    /// Takes no value; to have one is wrong (2).
    Switch,
    /// Takes any number of any texts.
    Any,
}

use Bad::{Any, Bind, Rule, Switch, Text, Usage};

const FLAGS: &[(&str, &[Bad])] = &[
    ("host", &[Bind("no such host"), Text]),
    ("port", &[Usage("70000"), Usage("-1"), Usage("x")]),
    ("ipc-path", &[Bind("/no/such/folder/socket"), Text]),
    ("instance-id", &[Text]),
    ("chunk-size", &[Usage("0"), Usage("-1"), Usage("1.5"), Usage("9999999999")]),
    ("hash-algorithm", &[Usage("builtin"), Usage("md5")]),
    ("supported-transfer-mode", &[Usage("pickle")]),
    ("worker-reap-timeout-seconds", &[Usage("x"), Rule("5"), Rule("-1"), Rule("inf"), Rule("nan")]),
    ("worker-registration-grace-seconds", &[Usage("x"), Rule("10"), Rule("inf"), Rule("nan")]),
    ("session-ttl-seconds", &[Usage("x"), Rule("0"), Rule("-1"), Rule("inf")]),
    ("l1-size-gb", &[Usage("-1"), Usage("0"), Usage("nan"), Usage("big"), Bad::Start("100000")]),
    ("l1-objects-max", &[Usage("-1"), Usage("x"), Rule("0")]),
    ("l1-align-bytes", &[Usage("48"), Usage("0"), Usage("-64")]),
    ("l1-use-lazy", &[Switch]),
    ("no-l1-use-lazy", &[Switch]),
    ("shm-name", &[Rule("a/b"), Text]),
    ("shm-mode", &[Usage("9"), Usage("0400"), Usage("1777")]),
    ("shm-group", &[Usage("no such group")]),
    ("isolated-ipc", &[Switch]),
    ("no-isolated-ipc", &[Switch]),
    ("eviction-policy", &[Usage("FIFO")]),
    ("eviction-trigger-watermark", &[Usage("7"), Usage("-3"), Usage("nan")]),
    ("eviction-ratio", &[Usage("7"), Usage("-3"), Usage("nan")]),
    ("l1-write-ttl-seconds", &[Usage("0"), Usage("-1"), Usage("1.5")]),
    ("l1-read-ttl-seconds", &[Usage("0"), Usage("-1"), Usage("1.5")]),
    ("print-memory", &[Switch]),
    ("http-host", &[Bind("no such host"), Text]),
    ("http-port", &[Usage("70000"), Usage("-1"), Rule("5555")]),
    ("prometheus-port", &[Usage("70000"), Usage("-1")]),
    ("log-format", &[Usage("xml")]),
    ("disable-observability", &[Switch]),
    ("disable-metrics", &[Switch]),
    ("disable-logging", &[Switch]),
    ("metrics-sample-rate", &[Usage("1e-7"), Usage("0"), Usage("1.1"), Usage("-1"), Usage("nan")]),
    ("event-bus-queue-size", &[Usage("0"), Usage("-1"), Usage("x")]),
    ("record", &[Bind("/no/such/folder/file"), Text]),
    ("record-max-mb", &[Usage("0"), Usage("7"), Usage("-1"), Usage("x")]),
    ("record-tokens", &[Switch]),
    ("dump-dir", &[Text]),
    ("no-flight-recorder", &[Switch]),
    ("enable-extra-logging", &[Switch]),
    ("extra-logging-interval", &[Usage("x"), Rule("0"), Rule("-1"), Rule("inf"), Rule("1e300")]),
    ("transport", &[Usage("carrier-pigeon"), Rule("grpc")]),
    ("engine-type", &[Usage("turbo"), Bad::Start("blend")]),
    ("max-workers", &[Usage("0"), Usage("-1"), Usage("x")]),
    ("max-gpu-workers", &[Usage("0"), Usage("-1"), Usage("x")]),
    ("max-cpu-workers", &[Usage("0"), Usage("-1"), Usage("x")]),
    ("grpc-server-workers", &[Usage("0"), Usage("-1"), Usage("x")]),
    ("copy-lanes", &[Usage("0"), Usage("9"), Usage("-1"), Usage("x")]),
    ("null-block-id", &[Usage("x"), Usage("0.5")]),
    ("separate-object-groups", &[Switch]),
    ("no-separate-object-groups", &[Switch]),
    ("kv-event-log-size", &[Usage("-1"), Usage("x")]),
    ("enable-segmented-prefix", &[Switch]),
    ("enable-dedup-content", &[Switch]),
    ("enable-blend-reorder", &[Switch]),
    ("enable", &[Bad::Start("transfer_query"), Bad::Start("nonsense")]),
    ("runtime-plugin-locations", &[Any]),
    ("runtime-plugin-config", &[Rule("{nope"), Text]),
    ("server-module", &[Rule("{nope"), Text]),
    ("run-script-api-enabled", &[Switch]),
    ("no-run-script-api-enabled", &[Switch]),
    ("script-allowed-imports", &[Any]),
    ("p2p-advertise-url", &[Rule("a:1"), Text]),
    ("p2p-listen-url", &[Rule("a:1"), Text]),
    ("p2p-lookup-timeout", &[Usage("x")]),
    ("p2p-load-timeout", &[Usage("x")]),
    ("p2p-transfer-engine", &[Text]),
    ("l1-init-size-gb", &[Usage("-1"), Usage("1.5"), Usage("x")]),
    ("l1-use-hugepages", &[Switch]),
    ("no-l1-use-hugepages", &[Switch]),
    ("l1-devdax-path", &[Rule("/dev/dax0.0"), Text]),
    ("l1-manager", &[Rule("{}"), Text]),
    ("gds-l1-path", &[Rule("/x"), Text]),
    ("gds-l1-backend", &[Usage("floppy")]),
    ("gds-l1-use-direct-io", &[Switch]),
    ("no-gds-l1-use-direct-io", &[Switch]),
    (
        "l2-adapter",
        &[
            Rule("{}"),
            Rule("nope"),
            Rule("[]"),
            Rule(r#"{"type": "disk"}"#),
            Rule(r#"{"type": "resp", "host": "h", "port": 1}"#),
            Rule(r#"{"type": "fs"}"#),
            Rule(r#"{"type": "fs", "base_path": "/d", "max_capcity_gb": 1}"#),
            Bind(r#"{"type": "fs", "base_path": "/dev/null/l2"}"#),
            Text,
        ],
    ),
    ("l2-store-policy", &[Usage("sometimes")]),
    ("l2-prefetch-policy", &[Usage("sometimes")]),
    ("l2-prefetch-max-in-flight", &[Usage("0"), Usage("-1"), Usage("x")]),
    ("prefill-tokens-per-second", &[Usage("-1"), Usage("1.5"), Usage("x")]),
    ("periodic-notifier-interval-ms", &[Usage("-1"), Usage("x")]),
    ("disable-grpc-metrics", &[Switch]),
    ("enable-tracing", &[Switch, Rule("")]),
    ("otlp-endpoint", &[Rule("http://o:4317"), Text]),
    ("lookup-hash-log-dir", &[Rule("/tmp"), Text]),
    ("lookup-hash-log-rotation-interval", &[Usage("-1"), Usage("x")]),
    ("lookup-hash-log-rotation-max-size", &[Usage("-1"), Usage("x")]),
    ("lookup-hash-log-max-files", &[Usage("-1"), Usage("x")]),
    ("trace-level", &[Usage("all"), Rule("storage")]),
    ("trace-output", &[Text]),
    ("enable-gc-monitor", &[Switch]),
    ("gc-monitor-min-pause-ms", &[Usage("x")]),
    ("gc-monitor-top-objects", &[Usage("-1"), Usage("x")]),
    ("coordinator-url", &[Rule("http://c:9300"), Text]),
    ("coordinator-advertise-ip", &[Text]),
    ("coordinator-heartbeat-interval", &[Usage("x"), Rule("0"), Rule("-1"), Rule("nan")]),
    ("coordinator-event-reporting", &[Switch]),
    ("coordinator-event-flush-interval", &[Usage("x"), Rule("0"), Rule("-1"), Rule("inf")]),
    ("coordinator-event-transport", &[Usage("post")]),
    ("coordinator-kafka-bootstrap-servers", &[Text]),
    ("coordinator-kafka-topic", &[Text]),
    ("coordinator-kafka-delivery-timeout", &[Usage("x")]),
    ("coordinator-blend-timeout", &[Usage("x"), Rule("0"), Rule("-1"), Rule("inf")]),
    ("coordinator-blend-match-concurrency", &[Usage("0"), Usage("-1"), Usage("x")]),
    ("coordinator-l2-event-reporting", &[Switch]),
    ("coordinator-l2-event-flush-interval", &[Usage("x"), Rule("0"), Rule("-1"), Rule("inf")]),
    ("format", &[Usage("yaml")]),
    ("output", &[Text]),
    ("quiet", &[Switch]),
];

/// The exit status and the words of a line that must fail.
fn fault(words: &[&str]) -> (u8, String) {
    let args = ["kvtide", "server"].iter().chain(words).map(OsString::from).collect();
    let flags = match parse(args) {
        Ok(Asked::Serve { flags, .. }) => flags,
        Ok(Asked::Print { text, exit, .. }) => return (exit, text),
        Ok(other) => panic!("{words:?} asks for {other:?}"),
        Err(fault) => return (fault.exit, fault.message),
    };
    let gib = 1 << 30;
    let start = Start {
        environment: &|_| None,
        machine: Machine {
            memory_bytes: 64 * gib,
            shm: SharedMount::Free(64 * gib),
            huge_free_bytes: 0,
        },
        seed: 1,
        random_id: "an-id",
        wall_nanos: 1,
    };
    match Settings::resolve(&flags, start) {
        Ok(_) => (0, format!("{words:?} is a configuration")),
        Err(fault) => (fault.exit, fault.message),
    }
}

/// The same for what only the program finds out, on memory that is quickly had.
fn bind_fault(flag: &str, value: &str) -> (u8, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kvtide"))
        .args(["server", "--l1-size-gb", "0.01", "--port", "0", "--http-port", "0", flag, value])
        .env("LMCACHE_DISABLE_BANNER", "1")
        .output()
        .expect("the program was built");
    let code = output.status.code().and_then(|code| u8::try_from(code).ok());
    (code.unwrap_or(u8::MAX), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_bad_value_of_any_flag_ends_in_its_status_and_names_the_flag() {
    for (name, bads) in FLAGS {
        let flag = format!("--{name}");
        for bad in *bads {
            let ((exit, text), expected, named) = match bad {
                Usage(value) => (fault(&[&flag, value]), 2, flag.as_str()),
                Rule("") => (fault(&[&flag]), 1, flag.as_str()),
                Rule(value) => (fault(&[&flag, value]), 1, flag.as_str()),
                Bad::Start("100000") => (fault(&[&flag, "100000"]), 3, "100000"),
                Bad::Start(value) => (fault(&[&flag, value]), 3, flag.as_str()),
                // An address is named by itself: operators look for it.
                Bind(value) if *name == "l2-adapter" => (bind_fault(&flag, value), 3, "#1 (fs)"),
                Bind(value) => (bind_fault(&flag, value), 3, *value),
                Text => (fault(&[&flag]), 2, flag.as_str()),
                Switch => (fault(&[&format!("{flag}=1")]), 2, flag.as_str()),
                Any => continue,
            };
            assert_eq!(exit, expected, "{flag} {bad:?}: {text}");
            assert!(text.contains(named), "{flag} {bad:?} is not named: {text}");
        }
    }
}

#[test]
fn every_flag_has_its_row() {
    let command = command();
    let server = command.find_subcommand("server").expect("there is one");
    let known: Vec<&str> = server.get_arguments().filter_map(|flag| flag.get_long()).collect();
    let missing: Vec<_> =
        known.iter().filter(|name| !FLAGS.iter().any(|(row, _)| row == *name)).collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");
    let unknown: Vec<_> = FLAGS.iter().filter(|(row, _)| !known.contains(row)).collect();
    assert!(unknown.is_empty(), "no flags: {unknown:?}");
}

#[test]
fn a_beginning_that_means_several_flags_is_refused_with_all_of_them() {
    let (exit, text) = fault(&["--l1", "10"]);
    assert_eq!(exit, 2);
    assert!(text.contains("ambiguous option: --l1 could match --l1-size-gb, "), "{text}");
    assert!(text.contains("--l1-read-ttl-seconds"), "{text}");
    let (exit, text) = fault(&["--nonsense"]);
    assert_eq!((exit, text.contains("--nonsense")), (2, true), "{text}");
}
