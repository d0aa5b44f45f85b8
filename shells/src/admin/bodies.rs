//! Bodies are read whole before a handler sees them, within a size and a time: a client that sends
//! too much, or too slowly, is told so and holds nothing (design P3), no place among those who are
//! served either.

use super::answer::{detail, error};
use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use std::time::Duration;
use tokio::time::timeout;

/// The request with its body, or what its client is told instead.
pub async fn whole(
    request: Request<Incoming>,
    patience: Duration,
) -> Result<Request<Body>, Response> {
    // Nothing reads one here, so nothing waits for it.
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return Ok(request.map(|_| Body::empty()));
    }
    let path = request.uri().path().to_owned();
    let announced = request.headers().get(CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    // Said before anything is read: who asks first (`Expect`) need not send it at all.
    if announced.is_some_and(|bytes| bytes > BODY_BYTES_MAX as u64) {
        return Err(too_large(&path));
    }
    let (head, body) = request.into_parts();
    match timeout(patience, Limited::new(body, BODY_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, Body::from(body.to_bytes()))),
        Ok(Err(fault)) if fault.is::<LengthLimitError>() => Err(too_large(&path)),
        Ok(Err(_)) => Err(shaped(&path, StatusCode::BAD_REQUEST, "the body is broken")),
        Err(_) => {
            let text = "the body did not come in time";
            Err(shaped(&path, StatusCode::REQUEST_TIMEOUT, text))
        }
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
pub const BODY_BYTES_MAX: usize = 64 << 10;
