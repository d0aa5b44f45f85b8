//! `POST /cache/clear` (spec/http-cli §2.3).

use super::answer::{Wrong, detail, ok, reason, unprocessable};
use super::reach::{Ask, told};
use super::routes::Site;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use kvtide_core::effect::OperatorAnswer;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Removes what nobody holds, and with `force` also what somebody does.
pub async fn clear(State(site): State<Arc<Site>>, body: Bytes) -> Response {
    let wanted = match ClearBody::read(&body) {
        Ok(wanted) => wanted,
        Err(wrongs) => return unprocessable(&wrongs),
    };
    if wanted.tier != "l1" {
        let text = format!("tier '{}' not supported; only 'l1'", wanted.tier);
        return detail(StatusCode::BAD_REQUEST, &text);
    }
    let ask = Ask::Clear { force: wanted.force };
    match told(site.patience, |answer| site.reach.ask(ask, answer)).await {
        Ok(OperatorAnswer::Full(bound)) => {
            let text = format!("too many requests at once ({bound})");
            detail(StatusCode::SERVICE_UNAVAILABLE, &text)
        }
        Ok(_) => ok(json!({ "status": "ok", "cleared": { "tier": "l1" } })),
        Err(unreachable) => detail(StatusCode::SERVICE_UNAVAILABLE, reason(unreachable)),
    }
}

/// What a body asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct ClearBody {
    pub tier: &'static str,
    pub force: bool,
}

impl ClearBody {
    /// No body, or a JSON null, is all defaults; keys that nobody knows are ignored.
    pub fn read(body: &[u8]) -> Result<ClearBody, Vec<Wrong>> {
        let defaults = ClearBody { tier: "l1", force: false };
        if body.is_empty() {
            return Ok(defaults);
        }
        let value: Value =
            serde_json::from_slice(body).map_err(|error| vec![Wrong::json(&error, body)])?;
        match value {
            Value::Null => Ok(defaults),
            Value::Object(map) => ClearBody::read_map(&map),
            other => Err(vec![Wrong {
                kind: "model_attributes_type",
                location: json!(["body"]),
                message: "Input should be a valid dictionary or object to extract fields from"
                    .to_owned(),
                input: other,
                context: None,
            }]),
        }
    }

    fn read_map(map: &Map<String, Value>) -> Result<ClearBody, Vec<Wrong>> {
        let tier = map.get("tier").map_or(Ok("l1"), read_tier);
        let force = map.get("force").map_or(Ok(false), read_force);
        match (tier, force) {
            (Ok(tier), Ok(force)) => Ok(ClearBody { tier, force }),
            (tier, force) => {
                Err(tier.err().into_iter().chain(force.err()).map(|wrong| *wrong).collect())
            }
        }
    }
}

pub fn read_tier(value: &Value) -> Result<&'static str, Box<Wrong>> {
    let known = ["l1", "l2", "all"].into_iter().find(|tier| value == tier);
    known.ok_or_else(|| {
        Box::new(Wrong {
            kind: "enum",
            location: json!(["body", "tier"]),
            message: "Input should be 'l1', 'l2' or 'all'".to_owned(),
            input: value.clone(),
            context: Some(json!({ "expected": "'l1', 'l2' or 'all'" })),
        })
    })
}

pub fn read_force(value: &Value) -> Result<bool, Box<Wrong>> {
    read_truth("force", value)
}

/// The peer takes the usual spellings of yes and no.
pub fn read_truth(name: &str, value: &Value) -> Result<bool, Box<Wrong>> {
    let wrong = |kind, message: &str| {
        Box::new(Wrong {
            kind,
            location: json!(["body", name]),
            message: message.to_owned(),
            input: value.clone(),
            context: None,
        })
    };
    let spelled = match value {
        Value::Bool(force) => return Ok(*force),
        Value::String(text) => text.to_ascii_lowercase(),
        Value::Number(number) => number.to_string(),
        _ => return Err(wrong("bool_type", "Input should be a valid boolean")),
    };
    match &*spelled {
        "true" | "t" | "yes" | "y" | "on" | "1" | "1.0" => Ok(true),
        "false" | "f" | "no" | "n" | "off" | "0" | "0.0" => Ok(false),
        _ => {
            let message = "Input should be a valid boolean, unable to interpret input";
            Err(wrong("bool_parsing", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<ClearBody, Vec<&'static str>> {
        ClearBody::read(body.as_bytes())
            .map_err(|wrongs| wrongs.iter().map(|wrong| wrong.kind).collect())
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let defaults = Ok(ClearBody { tier: "l1", force: false });
        for body in ["", "null", "{}", r#"{"unknown": 1}"#] {
            assert_eq!(read(body), defaults, "{body}");
        }
        assert_eq!(read(r#"{"force": "yes"}"#), Ok(ClearBody { tier: "l1", force: true }));
        assert_eq!(
            read(r#"{"force": 0, "tier": "all"}"#),
            Ok(ClearBody { tier: "all", force: false })
        );
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once() {
        assert_eq!(read("{"), Err(vec!["json_invalid"]));
        assert_eq!(read("[]"), Err(vec!["model_attributes_type"]));
        assert_eq!(read(r#"{"tier": 1, "force": 2}"#), Err(vec!["enum", "bool_parsing"]));
        assert_eq!(read(r#"{"force": null}"#), Err(vec!["bool_type"]));
    }
}
