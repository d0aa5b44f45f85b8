//! `/quota*`: limits per tenant (spec/http-cli §2.4). They are kept by the engine and act on lower
//! tiers whose order is IsolatedLRU; what a tenant uses is what it has in all lower tiers.

use super::answer::{error, not_found, ok, reason};
use super::reach::{Ask, Unreachable, told};
use super::routes::Site;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use kvtide_core::effect::OperatorAnswer;
use kvtide_core::engine::status::QuotaStatus;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub async fn list(State(site): State<Arc<Site>>) -> Response {
    match site.copied(|answer| site.reach.quotas(answer)).await {
        Ok(quotas) => {
            let users: Map<String, Value> = quotas.into_iter().map(user).collect();
            ok(json!({ "users": users }))
        }
        Err(unreachable) => busy(unreachable),
    }
}

pub async fn get(State(site): State<Arc<Site>>, salt: Salted) -> Response {
    let Some(name) = shown(salt) else { return not_found() };
    let salt = salt_of(&name).to_owned();
    let found = match told(site.patience, |answer| site.reach.quota_of(salt, answer)).await {
        Ok(found) => found,
        Err(unreachable) => return busy(unreachable),
    };
    ok(json!({
        "cache_salt": name,
        "limit_gb": gib(found.limit_bytes.unwrap_or_default()),
        "current_usage_gb": gib(found.used_bytes),
        "exists": found.limit_bytes.is_some(),
    }))
}

pub async fn put(State(site): State<Arc<Site>>, salt: Salted, body: Bytes) -> Response {
    let Some(name) = shown(salt) else { return not_found() };
    if name.len() > SALT_BYTES_MAX {
        let text = format!("cache salt is longer than {SALT_BYTES_MAX} bytes");
        return error(StatusCode::BAD_REQUEST, &text);
    }
    let limit = match quota_limit(&body) {
        Ok(limit) => limit,
        Err(text) => return error(StatusCode::BAD_REQUEST, text),
    };
    // Saturates: a limit beyond 16 EiB limits nothing.
    let bytes = (limit * GIB) as u64;
    let ask = Ask::QuotaSet { salt: salt_of(&name).to_owned(), bytes };
    match told(site.patience, |answer| site.reach.ask(ask, answer)).await {
        Ok(OperatorAnswer::Full(bound)) => full(bound),
        Ok(_) => ok(json!({ "cache_salt": name, "limit_gb": limit, "status": "ok" })),
        Err(unreachable) => busy(unreachable),
    }
}

pub async fn delete(State(site): State<Arc<Site>>, salt: Salted) -> Response {
    let Some(name) = shown(salt) else { return not_found() };
    let ask = Ask::QuotaRemove { salt: salt_of(&name).to_owned() };
    let removed = match told(site.patience, |answer| site.reach.ask(ask, answer)).await {
        Ok(OperatorAnswer::Full(bound)) => return full(bound),
        Ok(OperatorAnswer::Removed(removed)) => removed,
        Ok(OperatorAnswer::Done | OperatorAnswer::Deleted { .. }) => true,
        Err(unreachable) => return busy(unreachable),
    };
    let status = if removed { "removed" } else { "not_found" };
    ok(json!({ "cache_salt": name, "status": status }))
}

/// A salt as it stands in the path. Some cannot stand there.
type Salted = Result<Path<String>, PathRejection>;

/// The salt's shown name. A slash cannot be addressed, not even encoded, as the peer's cannot.
fn shown(salt: Salted) -> Option<String> {
    let Path(name) = salt.ok()?;
    (!name.contains('/')).then_some(name)
}

/// `_default` is how operators address the empty salt.
fn salt_of(name: &str) -> &str {
    if name == DEFAULT { "" } else { name }
}

fn user(quota: QuotaStatus) -> (String, Value) {
    let QuotaStatus { salt, limit_bytes, used_bytes } = quota;
    let name = if salt.is_empty() { DEFAULT.to_owned() } else { salt };
    let limit = gib(limit_bytes.unwrap_or_default());
    (name, json!({ "limit_gb": limit, "current_usage_gb": gib(used_bytes) }))
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB
}

fn full(bound: &str) -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, &format!("there is no room for more ({bound})"))
}

fn busy(unreachable: Unreachable) -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, reason(unreachable))
}

/// The limit of a body `{"limit_gb": <float>}`, or what the peer says of it.
pub fn quota_limit(body: &[u8]) -> Result<f64, &'static str> {
    let value = read(body).ok_or("invalid JSON body")?;
    let limit = value.get("limit_gb").ok_or("body must be {'limit_gb': <float>}")?;
    let limit = match limit {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
        _ => None,
    };
    let limit = limit.ok_or("limit_gb must be numeric")?;
    if !limit.is_finite() {
        return Err("limit_gb must be finite");
    }
    if limit < 0.0 {
        return Err("limit_gb must be non-negative");
    }
    Ok(limit)
}

/// JSON as Python reads it: also the three numbers that are none, which become strings here, as a
/// string is taken for the number in it anyway.
fn read(body: &[u8]) -> Option<Value> {
    if let Ok(value) = serde_json::from_slice(body) {
        return Some(value);
    }
    serde_json::from_str(&quote_constants(std::str::from_utf8(body).ok()?)).ok()
}

/// Puts the three words that are numbers to Python and nothing to JSON into quotes.
pub fn quote_constants(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    let (mut rest, mut inside, mut escaped) = (text, false, false);
    while let Some(next) = rest.chars().next() {
        let constant = CONSTANTS.iter().find(|constant| !inside && rest.starts_with(**constant));
        if let Some(constant) = constant {
            quoted.extend(["\"", constant, "\""]);
            rest = &rest[constant.len()..];
            continue;
        }
        if next == '"' && !escaped {
            inside = !inside;
        }
        escaped = inside && next == '\\' && !escaped;
        quoted.push(next);
        rest = &rest[next.len_utf8()..];
    }
    quoted
}

const CONSTANTS: &[&str] = &["NaN", "-Infinity", "Infinity"];
const DEFAULT: &str = "_default";
const GIB: f64 = (1_u64 << 30) as f64;
/// The peer takes salts of any length here; what is kept has a bound (design P3).
const SALT_BYTES_MAX: usize = kvtide_core::limits::QUOTA_SALT_BYTES_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_in_any_spelling_that_python_takes() {
        let limit = |body: &str| quota_limit(body.as_bytes());
        assert_eq!(limit(r#"{"limit_gb": 1.5}"#), Ok(1.5));
        assert_eq!(limit(r#"{"limit_gb": " 0.25 "}"#), Ok(0.25));
        assert_eq!(limit(r#"{"limit_gb": true}"#), Ok(1.0));
        assert_eq!(limit(r#"{"limit_gb": 0}"#), Ok(0.0));
        for body in ["NaN", "Infinity", "-Infinity", r#""nan""#, r#""inf""#] {
            let body = format!(r#"{{"limit_gb": {body}}}"#);
            assert_eq!(limit(&body), Err("limit_gb must be finite"), "{body}");
        }
        assert_eq!(limit("[1]"), Err("body must be {'limit_gb': <float>}"));
        assert_eq!(limit(r#"{"limit_gb": null}"#), Err("limit_gb must be numeric"));
        assert_eq!(limit(""), Err("invalid JSON body"));
    }

    #[test]
    fn constants_are_quoted_outside_of_strings_only() {
        assert_eq!(quote_constants(r#"{"NaN": NaN}"#), r#"{"NaN": "NaN"}"#);
        assert_eq!(quote_constants(r#"["a\"NaN", -Infinity]"#), r#"["a\"NaN", "-Infinity"]"#);
        assert_eq!(quote_constants(r#"["\\", NaN]"#), r#"["\\", "NaN"]"#);
    }
}
