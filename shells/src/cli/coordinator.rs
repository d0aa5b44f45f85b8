//! What the flags and the environment say about a coordinator (spec/http-cli §1.1). These are the
//! only flags for which the environment may speak, and only where the flag is silent. Membership
//! of a fleet is not served yet: the values are checked and shown, nothing acts on them.

use super::ConfigFault;
use super::others::OtherFlags;

#[derive(Clone, Debug, PartialEq)]
pub struct Coordinator {
    pub advertise_ip: String,
    pub heartbeat_seconds: f64,
    pub event_reporting: bool,
    pub event_flush_seconds: f64,
}

/// Reads one variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Coordinator {
    pub fn resolve(
        flags: &OtherFlags,
        environment: Environment<'_>,
    ) -> Result<Coordinator, ConfigFault> {
        let variable = |name: &str| environment(&format!("{PREFIX}{name}"));
        let url = variable("URL").filter(|url| !url.is_empty());
        // An empty flag is how a command line takes back what the environment says.
        if flags.coordinator_url.is_none() && url.is_some() {
            return Err(ConfigFault::value(format!(
                "{PREFIX}URL (--coordinator-url): membership of a fleet is not served yet"
            )));
        }
        let heartbeat = flags.coordinator_heartbeat_interval;
        let heartbeat_seconds = timer("heartbeat-interval", heartbeat, environment, 5.0)?;
        let old = checked(
            "--coordinator-l2-event-flush-interval",
            flags.coordinator_l2_event_flush_interval,
        )?;
        let flush = flags.coordinator_event_flush_interval.or(old);
        let event_flush_seconds = timer("event-flush-interval", flush, environment, 1.0)?;
        checked("--coordinator-blend-timeout", Some(flags.coordinator_blend_timeout))?;
        if flags.coordinator_event_transport == "kafka"
            && flags.coordinator_kafka_bootstrap_servers.is_empty()
        {
            let flag = "--coordinator-kafka-bootstrap-servers";
            return Err(ConfigFault::value(format!("{flag} must not be empty with kafka")));
        }
        let reporting = variable("EVENT_REPORTING").is_some_and(|text| is_yes(&text));
        let advertised = flags.coordinator_advertise_ip.clone();
        Ok(Coordinator {
            advertise_ip: advertised.or_else(|| variable("ADVERTISE_IP")).unwrap_or_default(),
            heartbeat_seconds,
            event_reporting: flags.coordinator_event_reporting
                || flags.coordinator_l2_event_reporting
                || reporting,
            event_flush_seconds,
        })
    }
}

/// A time that the flag sets, else the environment, else the default.
fn timer(
    name: &str,
    flag: Option<f64>,
    environment: Environment<'_>,
    default: f64,
) -> Result<f64, ConfigFault> {
    if let Some(seconds) = checked(&format!("--coordinator-{name}"), flag)? {
        return Ok(seconds);
    }
    let variable = format!("{PREFIX}{}", name.replace('-', "_").to_ascii_uppercase());
    let Some(text) = environment(&variable).filter(|text| !text.is_empty()) else {
        return Ok(default);
    };
    // What is no number is out of every range.
    let seconds = text.trim().parse().unwrap_or(f64::NAN);
    let shown = format!("{variable} (--coordinator-{name})");
    Ok(checked(&shown, Some(seconds))?.unwrap_or(default))
}

/// A time that is waited for, where one is given.
pub fn checked(flag: &str, seconds: Option<f64>) -> Result<Option<f64>, ConfigFault> {
    match seconds {
        Some(seconds) if !(seconds.is_finite() && seconds > 0.0) => {
            Err(ConfigFault::value(format!("{flag} must be a finite number > 0")))
        }
        seconds => Ok(seconds),
    }
}

/// What the peer takes for yes in its environment variables.
pub fn is_yes(text: &str) -> bool {
    ["1", "true", "yes"].contains(&text.to_ascii_lowercase().as_str())
}

const PREFIX: &str = "LMCACHE_COORDINATOR_";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Asked, parse};
    use std::ffi::OsString;

    fn resolved(line: &str, variables: &[(&str, &str)]) -> Result<Coordinator, ConfigFault> {
        let args = ["kvtide", "server"].into_iter().chain(line.split(' ').skip(1));
        let args = args.map(OsString::from).collect();
        let Asked::Serve { flags, .. } = parse(args)? else { panic!("{line} does not parse") };
        let environment = |name: &str| {
            let name = name.strip_prefix(PREFIX)?;
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, text)| (*text).to_owned())
        };
        Coordinator::resolve(&flags.others, &environment)
    }

    const SET: &[(&str, &str)] = &[
        ("ADVERTISE_IP", "10.0.0.1"),
        ("HEARTBEAT_INTERVAL", "7"),
        ("EVENT_REPORTING", "Yes"),
        ("EVENT_FLUSH_INTERVAL", "0.5"),
    ];

    #[test]
    fn the_environment_speaks_where_the_flag_is_silent() {
        let silent = resolved("", SET).expect("what the operator sets is no reason to fail");
        let expected = Coordinator {
            advertise_ip: "10.0.0.1".to_owned(),
            heartbeat_seconds: 7.0,
            event_reporting: true,
            event_flush_seconds: 0.5,
        };
        assert_eq!(silent, expected);
        let line = "_ --coordinator-heartbeat-interval 3 --coordinator-advertise-ip a \
                    --coordinator-l2-event-flush-interval 2";
        let spoken = resolved(line, SET).expect("flags win");
        let seconds = (spoken.heartbeat_seconds, spoken.event_flush_seconds);
        assert_eq!((seconds, &*spoken.advertise_ip), ((3.0, 2.0), "a"));
        let both = "_ --coordinator-l2-event-flush-interval 2 --coordinator-event-flush-interval 4";
        let both = resolved(both, SET).expect("the newer spelling wins");
        assert_eq!(both.event_flush_seconds, 4.0);
        let nothing = resolved("", &[]).expect("there are defaults");
        assert_eq!((nothing.heartbeat_seconds, nothing.event_flush_seconds), (5.0, 1.0));
    }

    #[test]
    fn a_variable_that_cannot_be_is_refused_by_both_names() {
        for bad in ["0", "-1", "nan", "inf", "soon"] {
            let fault = resolved("", &[("HEARTBEAT_INTERVAL", bad)]).expect_err(bad);
            let names =
                "LMCACHE_COORDINATOR_HEARTBEAT_INTERVAL (--coordinator-heartbeat-interval) must";
            assert_eq!((fault.exit, fault.message.starts_with(names)), (1, true), "{fault:?}");
        }
        let unused = [("HEARTBEAT_INTERVAL", "soon")];
        assert!(resolved("_ --coordinator-heartbeat-interval 1", &unused).is_ok());
    }

    #[test]
    fn a_coordinator_is_refused_from_either_side_and_an_empty_flag_takes_it_back() {
        let url = [("URL", "http://c")];
        let fault = resolved("", &url).expect_err("fleets are not served yet");
        assert!(fault.message.starts_with("LMCACHE_COORDINATOR_URL"), "{fault:?}");
        assert!(resolved("_ --coordinator-url ", &url).is_ok());
        assert!(resolved("", &[("URL", "")]).is_ok());
    }
}
