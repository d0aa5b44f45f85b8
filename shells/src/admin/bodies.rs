//! Bodies are read whole before a handler sees them, within a size and a time: a client that sends
//! too much, or too slowly, is told so and holds nothing (design P3).

use super::answer::{detail, error};
use super::routes::Site;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::Arc;
use tokio::time::timeout;

pub async fn whole(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let announced = request.headers().get(CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    // Said before anything is read: who asks first (`Expect`) need not send it at all.
    if announced.is_some_and(|bytes| bytes > BODY_BYTES_MAX as u64) {
        return too_large(&path);
    }
    let (head, body) = request.into_parts();
    match timeout(site.times.body, Limited::new(body, BODY_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, Body::from(body.to_bytes()))).await,
        Ok(Err(fault)) if fault.is::<LengthLimitError>() => too_large(&path),
        Ok(Err(_)) => shaped(&path, StatusCode::BAD_REQUEST, "the body is broken"),
        Err(_) => shaped(&path, StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
    }
}

fn too_large(path: &str) -> Response {
    let text = format!("the body is larger than {BODY_BYTES_MAX} bytes");
    shaped(path, StatusCode::PAYLOAD_TOO_LARGE, &text)
}

/// An error in the shape that clients of this path read (spec/http-cli §2.1).
pub fn shaped(path: &str, code: StatusCode, text: &str) -> Response {
    match ERROR_PATHS.iter().any(|beginning| path.starts_with(beginning)) {
        true => error(code, text),
        false => detail(code, text),
    }
}

const ERROR_PATHS: &[&str] = &["/quota", "/reconfigure", "/periodic-threads", "/config", "/status"];
/// Bodies of today's routes are a few dozen bytes. One for each connection is kept at most.
const BODY_BYTES_MAX: usize = 64 << 10;
