//! Bodies of operators' requests: what is read from one is within its bounds and reads again from
//! its shortest spelling; whoever is refused is told about a place within what was sent.

use kvtide::admin::{ClearBody, Wrong, quota_limit, quote_constants};
use serde_json::{Value, json};

pub fn run(input: &[u8]) {
    match ClearBody::read(input) {
        Ok(body) => {
            let written = json!({ "tier": body.tier, "force": body.force }).to_string();
            assert_eq!(ClearBody::read(written.as_bytes()), Ok(body));
        }
        Err(wrongs) => {
            assert!(!wrongs.is_empty(), "a refusal has a reason");
            wrongs.iter().for_each(|wrong| check_wrong(wrong, input));
        }
    }
    if let Ok(limit) = quota_limit(input) {
        assert!(limit.is_finite() && limit >= 0.0, "{limit} is no limit");
        let written = json!({ "limit_gb": limit }).to_string();
        let again = quota_limit(written.as_bytes()).expect("what we write, we read");
        assert!((again - limit).abs() <= limit * 1e-12, "{limit} became {again}");
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    if serde_json::from_str::<Value>(text).is_ok() {
        assert_eq!(quote_constants(text), text, "JSON has nothing to quote");
    }
}

fn check_wrong(wrong: &Wrong, input: &[u8]) {
    let shown = wrong.shown();
    let text = shown.to_string();
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "an answer is JSON: {text}");
    if let Some(offset) = shown["loc"][1].as_u64() {
        assert!(offset <= input.len() as u64, "{offset} lies outside of the body");
    }
}
