//! The flags of `kvtide replay`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub struct ReplayFlags {
    /// A recording (with its older parts FILE.1 ..) or a dump
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Show what happened around this time, in seconds since the server started
    #[arg(long, value_name = "SECONDS", value_parser = nanos, conflicts_with = "request")]
    pub around: Option<u64>,
    /// Show what one request was about; its number as the transcript shows it
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub request: Option<u64>,
    /// Lines to show
    #[arg(long, value_name = "LINES", default_value_t = 40)]
    pub lines: usize,
}

/// From seconds to nanoseconds, exactly.
fn nanos(text: &str) -> Result<u64, String> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
        return Err("is a number of seconds such as 12.5".to_owned());
    }
    let fraction: u64 = format!("{fraction:0<9}").parse().expect("nine digits");
    let seconds = seconds.parse::<u64>().ok().and_then(|seconds| seconds.checked_mul(SECOND));
    let nanos = seconds.and_then(|nanos| nanos.checked_add(fraction));
    nanos.ok_or_else(|| "is too far in the future".to_owned())
}

fn number(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| "is a number such as 0f3a5c7e9b1d2468".to_owned())
}

const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        assert_eq!(nanos("12.5"), Ok(12_500_000_000));
        assert_eq!(nanos("0.000000001"), Ok(1));
        assert_eq!(nanos("7"), Ok(7_000_000_000));
        for wrong in ["", ".5", "-1", "1e3", "1.0000000001", "99999999999999999999"] {
            assert!(nanos(wrong).is_err(), "{wrong}");
        }
        assert_eq!(number("00ff"), Ok(255));
        assert!(number("request-1").is_err());
    }
}
