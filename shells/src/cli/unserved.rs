//! What becomes of the flags that this version does not act on (design §7): those that would change
//! what is cached or where are refused in one sentence; those that are for Python or for speed are
//! accepted with one warning. Only flags that stand on the command line count.

use super::ConfigFault;
use clap::ArgMatches;
use clap::parser::ValueSource;

/// When a flag is more than a way to spell its default.
#[derive(Clone, Copy, Debug)]
enum When {
    Given,
    NotEmpty,
    Is(&'static str),
    IsNot(&'static str),
    /// Beside no flag of this name.
    Without(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// With the exit status of the peer's refusals of such flags.
    Refused {
        exit: u8,
    },
    Warned,
}

use Fate::{Refused, Warned};
use When::{Given, Is, IsNot, NotEmpty, Without};

/// Clap's name of the flag (dashes as underscores), when, what, and why.
const UNSERVED: &[(&str, When, Fate, &str)] = &[
    ("transport", Is("grpc"), REFUSED, "grpc is not served; use zmq"),
    ("engine_type", Is("blend"), STARTUP, "blend is not served; use default"),
    ("enable", NotEmpty, STARTUP, "no experimental module is served"),
    ("l1_manager", Given, REFUSED, "several L1s are not served; use --l1-size-gb"),
    ("l1_devdax_path", NotEmpty, REFUSED, "DAX devices are not served"),
    ("gds_l1_path", NotEmpty, REFUSED, "an L1 on NVMe is not served"),
    ("p2p_advertise_url", NotEmpty, REFUSED, "peer-to-peer reads are not served yet"),
    ("p2p_listen_url", NotEmpty, REFUSED, "peer-to-peer reads are not served yet"),
    ("coordinator_url", NotEmpty, REFUSED, "membership of a fleet is not served yet"),
    ("otlp_endpoint", NotEmpty, REFUSED, "metrics are not pushed yet; scrape /metrics"),
    ("lookup_hash_log_dir", NotEmpty, REFUSED, "a log of lookup hashes is not written yet"),
    ("trace_level", Given, REFUSED, "recordings for `lmcache trace` are not written"),
    ("p2p_lookup_timeout", Given, Warned, NO_EFFECT),
    ("p2p_load_timeout", Given, Warned, NO_EFFECT),
    ("p2p_transfer_engine", Given, Warned, NO_EFFECT),
    ("gds_l1_backend", Given, Warned, NO_EFFECT),
    ("gds_l1_use_direct_io", Given, Warned, NO_EFFECT),
    ("no_gds_l1_use_direct_io", Given, Warned, NO_EFFECT),
    ("grpc_server_workers", Given, Warned, NO_EFFECT),
    (
        "kv_event_log_size",
        IsNot("0"),
        Warned,
        "KV events are not served yet; subscribers are told so",
    ),
    ("l2_store_policy", Without("l2_adapter"), Warned, NO_TIER),
    ("l2_prefetch_policy", Without("l2_adapter"), Warned, NO_TIER),
    ("l2_prefetch_max_in_flight", Without("l2_adapter"), Warned, NO_TIER),
    ("prefill_tokens_per_second", Without("l2_adapter"), Warned, NO_TIER),
    ("separate_object_groups", Given, Warned, "one object group is served per model"),
    ("enable_segmented_prefix", Given, Warned, "has no effect without blend"),
    ("enable_dedup_content", Given, Warned, "has no effect without blend"),
    ("enable_blend_reorder", Given, Warned, "has no effect without blend"),
    ("trace_output", Given, Warned, NO_EFFECT),
    ("coordinator_event_reporting", Given, Warned, NO_FLEET),
    ("coordinator_l2_event_reporting", Given, Warned, OLD_REPORTING),
    ("coordinator_l2_event_flush_interval", Given, Warned, OLD_FLUSH),
    ("runtime_plugin_locations", NotEmpty, Warned, PYTHON),
    ("runtime_plugin_config", Given, Warned, PYTHON),
    ("server_module", Given, Warned, PYTHON),
    ("run_script_api_enabled", Given, Warned, "scripts are never run; /run_script stays closed"),
    ("script_allowed_imports", NotEmpty, Warned, PYTHON),
    ("periodic_notifier_interval_ms", Given, Warned, PYTHON),
    ("enable_gc_monitor", Given, Warned, PYTHON),
    ("gc_monitor_min_pause_ms", Given, Warned, PYTHON),
    ("gc_monitor_top_objects", Given, Warned, PYTHON),
];

const REFUSED: Fate = Refused { exit: 1 };
/// The peer finds out only while it builds its engine.
const STARTUP: Fate = Refused { exit: 3 };
const NO_EFFECT: &str = "has no effect";
const NO_TIER: &str = "has no effect without --l2-adapter";
const NO_FLEET: &str = "has no effect without a coordinator";
/// Old operators render these two; the peer still takes them.
const OLD_REPORTING: &str =
    "is the old name of --coordinator-event-reporting and has no effect without a coordinator";
const OLD_FLUSH: &str =
    "is the old name of --coordinator-event-flush-interval and has no effect without a coordinator";
const PYTHON: &str = "is for Python only and has no effect";

/// One sentence per flag that has no effect, or the first flag that is refused.
pub fn judge(matches: &ArgMatches) -> Result<Vec<String>, ConfigFault> {
    let mut warnings = Vec::new();
    for (id, when, fate, why) in UNSERVED {
        if !applies(matches, id, *when) {
            continue;
        }
        let flag = id.replace('_', "-");
        match fate {
            Refused { exit } => {
                return Err(ConfigFault { exit: *exit, message: format!("--{flag}: {why}") });
            }
            Warned => warnings.push(format!("--{flag} {}", sentence(why))),
        }
    }
    Ok(warnings)
}

fn sentence(why: &str) -> String {
    if why.starts_with("has ") || why.starts_with("is ") {
        format!("{why}.")
    } else {
        format!("has no effect: {why}.")
    }
}

fn applies(matches: &ArgMatches, id: &str, when: When) -> bool {
    if matches.value_source(id) != Some(ValueSource::CommandLine) {
        return false;
    }
    let mut values = matches.get_raw(id).into_iter().flatten();
    match when {
        Given => true,
        NotEmpty => values.any(|value| !value.is_empty()),
        Is(wanted) => values.any(|value| value == wanted),
        IsNot(usual) => values.any(|value| value != usual),
        Without(other) => matches.value_source(other) != Some(ValueSource::CommandLine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn judged(line: &str) -> Result<Vec<String>, ConfigFault> {
        let args = ["kvtide", "server"].into_iter().chain(line.split_whitespace());
        let matches = command().try_get_matches_from(args).expect("the line parses");
        judge(matches.subcommand_matches("server").expect("the command is given"))
    }

    #[test]
    fn every_flag_of_the_table_is_one_that_clap_knows() {
        let command = command();
        let server = command.find_subcommand("server").expect("there is one");
        for (id, ..) in UNSERVED {
            assert!(server.get_arguments().any(|argument| argument.get_id() == id), "{id}");
        }
    }

    #[test]
    fn what_would_change_where_data_goes_is_refused_by_name() {
        for (line, exit) in [
            ("--transport grpc", 1),
            ("--engine-type blend", 3),
            ("--enable transfer_query", 3),
            ("--coordinator-url http://c:9300", 1),
            ("--p2p-advertise-url a:1", 1),
            ("--otlp-endpoint http://o:4317", 1),
            ("--l1-manager {}", 1),
            ("--gds-l1-path /x", 1),
            ("--l1-devdax-path /x", 1),
        ] {
            let fault = judged(line).expect_err(line);
            let flag = line.split_whitespace().next().expect("a line begins with its flag");
            assert_eq!((fault.exit, fault.message.starts_with(flag)), (exit, true), "{fault:?}");
        }
    }

    #[test]
    fn defaults_spelled_out_and_empty_values_are_nothing_to_refuse() {
        assert_eq!(judged("--transport zmq --engine-type default"), Ok(Vec::new()));
        assert_eq!(judged("--max-workers 4 --max-gpu-workers 2"), Ok(Vec::new()));
        assert_eq!(judged("--null-block-id 0 --kv-event-log-size 0"), Ok(Vec::new()));
        let empty = ["kvtide", "server", "--coordinator-url", "", "--lookup-hash-log-dir="];
        let matches = command().try_get_matches_from(empty).expect("empty values parse");
        let server = matches.subcommand_matches("server").expect("the command is given");
        assert_eq!(judge(server), Ok(Vec::new()));
    }

    #[test]
    fn policies_of_lower_tiers_are_warned_of_where_there_is_none() {
        let policies = "--l2-store-policy skip_l1 --l2-prefetch-policy retain \
                        --l2-prefetch-max-in-flight 4 --prefill-tokens-per-second 9";
        let warnings = judged(policies).expect("nothing is refused");
        assert_eq!(warnings.len(), 4, "{warnings:?}");
        assert_eq!(warnings[0], "--l2-store-policy has no effect without --l2-adapter.");
        assert_eq!(judged(&format!("{policies} --l2-adapter {{}}")), Ok(Vec::new()));
    }

    #[test]
    fn what_has_no_effect_is_warned_of_once_each() {
        let warnings = judged("--enable-gc-monitor --server-module {} --server-module {}");
        let expected = [
            "--server-module is for Python only and has no effect.",
            "--enable-gc-monitor is for Python only and has no effect.",
        ];
        assert_eq!(warnings, Ok(expected.map(str::to_owned).to_vec()));
    }
}
