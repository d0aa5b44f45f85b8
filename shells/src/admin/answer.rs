//! The shapes of answers (spec/http-cli §2.1). Errors come in two, and clients read one or the
//! other depending on the route: `detail` under `/cache` and for unknown paths, `error` elsewhere.

use super::reach::Unreachable;
use axum::Json;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub fn ok(body: Value) -> Response {
    Json(body).into_response()
}

pub fn status(code: StatusCode, body: Value) -> Response {
    (code, Json(body)).into_response()
}

pub fn detail(code: StatusCode, text: &str) -> Response {
    status(code, json!({ "detail": text }))
}

pub fn error(code: StatusCode, text: &str) -> Response {
    status(code, json!({ "error": text }))
}

pub fn plain(code: StatusCode, text: impl Into<String>) -> Response {
    (code, [(CONTENT_TYPE, TEXT)], text.into()).into_response()
}

pub fn not_found() -> Response {
    detail(StatusCode::NOT_FOUND, "Not Found")
}

pub fn method_not_allowed() -> Response {
    detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
}

/// Why the reactor did not answer, as a sentence.
pub fn reason(unreachable: Unreachable) -> &'static str {
    match unreachable {
        Unreachable::Busy => "the server is busy; try again",
        Unreachable::Ended => "the server is ending",
    }
}

/// One thing that is wrong with a body (422).
#[derive(Clone, Debug, PartialEq)]
pub struct Wrong {
    pub kind: &'static str,
    pub location: Value,
    pub message: String,
    pub input: Value,
    pub context: Option<Value>,
}

pub fn unprocessable(wrongs: &[Wrong]) -> Response {
    let list: Vec<Value> = wrongs.iter().map(Wrong::shown).collect();
    status(StatusCode::UNPROCESSABLE_ENTITY, json!({ "detail": list }))
}

impl Wrong {
    /// As it stands in an answer.
    pub fn shown(&self) -> Value {
        let Wrong { kind, location, message, input, context } = self;
        let mut shown = json!({ "type": kind, "loc": location, "msg": message, "input": input });
        if let Some(context) = context {
            shown["ctx"] = context.clone();
        }
        shown
    }

    /// The body is no JSON at all; `text` is what was sent.
    pub fn json(error: &serde_json::Error, text: &[u8]) -> Wrong {
        Wrong {
            kind: "json_invalid",
            location: json!(["body", offset_of(error, text)]),
            message: "JSON decode error".to_owned(),
            input: json!({}),
            context: Some(json!({ "error": pythons_words(error) })),
        }
    }
}

/// The place that an error names by line and column, as an offset.
fn offset_of(error: &serde_json::Error, text: &[u8]) -> usize {
    // What is missing is missing behind the end.
    if error.is_eof() && pythons_words(error) == "Expecting value" {
        return text.len();
    }
    let lines = text.split(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    let before: usize = lines.map(|line| line.len() + 1).sum();
    (before + error.column().saturating_sub(1)).min(text.len())
}

/// The peer's parser calls faults by these names; people search for them.
fn pythons_words(error: &serde_json::Error) -> &'static str {
    let text = error.to_string();
    if text.starts_with("key must be a string") {
        "Expecting property name enclosed in double quotes"
    } else if text.starts_with("trailing characters") {
        "Extra data"
    } else if text.starts_with("EOF while parsing a string") {
        "Unterminated string starting at"
    } else if text.starts_with("expected `:`") {
        "Expecting ':' delimiter"
    } else if text.starts_with("expected `,`") {
        "Expecting ',' delimiter"
    } else {
        "Expecting value"
    }
}

/// What every text answer says it is.
pub const TEXT: &str = "text/plain; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_in_json_has_an_offset_and_a_name() {
        let wrong = |text: &str| {
            let error = serde_json::from_str::<Value>(text).expect_err("the text is no JSON");
            let wrong = Wrong::json(&error, text.as_bytes());
            (wrong.location[1].as_u64(), wrong.context.expect("there is one")["error"].clone())
        };
        let name = json!("Expecting property name enclosed in double quotes");
        assert_eq!(wrong("{nope"), (Some(1), name.clone()));
        assert_eq!(wrong("{\n nope"), (Some(3), name));
        assert_eq!(wrong("{\"a\": 1} x"), (Some(9), json!("Extra data")));
        assert_eq!(wrong("{\"a\": [1,"), (Some(9), json!("Expecting value")));
    }
}
