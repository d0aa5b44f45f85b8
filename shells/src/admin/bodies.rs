//! Bodies are read whole before a handler sees them, within a size and a time: a client that sends
//! too much, or too slowly, is told so and holds nothing (design P3), no place among those who are
//! served either. Lists of objects are large: one of them lies here at a time.

use super::answer::{detail, error};
use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The one place for a large body. Clones are the same.
#[derive(Clone, Debug)]
pub struct Bodies {
    large: Arc<Semaphore>,
}

/// A request with its whole body, and the place that it takes.
pub struct Whole {
    pub request: Request<Body>,
    pub _place: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    pub fn new() -> Bodies {
        Bodies { large: Arc::new(Semaphore::new(1)) }
    }

    /// The request with its body, or what its client is told instead.
    pub async fn whole(
        &self,
        request: Request<Incoming>,
        patience: Duration,
    ) -> Result<Whole, Response> {
        // Nothing reads one here, so nothing waits for it.
        if [Method::GET, Method::HEAD].contains(request.method()) {
            return Ok(Whole { request: request.map(|_| Body::empty()), _place: None });
        }
        let path = request.uri().path().to_owned();
        let announced = request.headers().get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let most = if LARGE_PATHS.contains(&&*path) { LARGE_BYTES_MAX } else { BODY_BYTES_MAX };
        // Said before anything is read: who asks first (`Expect`) need not send it at all.
        if announced.is_some_and(|bytes| bytes > most as u64) {
            return Err(too_large(&path, most));
        }
        let is_small = announced.is_some_and(|bytes| bytes <= BODY_BYTES_MAX as u64);
        let (head, body) = request.into_parts();
        let read = async {
            let place = match most > BODY_BYTES_MAX && !is_small {
                true => self.large.clone().acquire_owned().await.ok(),
                false => None,
            };
            (Limited::new(body, most).collect().await, place)
        };
        match timeout(patience, read).await {
            Ok((Ok(body), place)) => {
                let request = Request::from_parts(head, Body::from(body.to_bytes()));
                Ok(Whole { request, _place: place })
            }
            Ok((Err(fault), _)) if fault.is::<LengthLimitError>() => Err(too_large(&path, most)),
            Ok((Err(_), _)) => Err(shaped(&path, StatusCode::BAD_REQUEST, "the body is broken")),
            Err(_) => {
                let text = "the body did not come in time";
                Err(shaped(&path, StatusCode::REQUEST_TIMEOUT, text))
            }
        }
    }
}

fn too_large(path: &str, most: usize) -> Response {
    let text = format!("the body is larger than {most} bytes");
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
/// Bodies of most routes are a few dozen bytes. One for each connection is kept at most.
pub const BODY_BYTES_MAX: usize = 64 << 10;
/// Ten thousand keys with names of ordinary length. One is kept at most.
pub const LARGE_BYTES_MAX: usize = 4 << 20;
const LARGE_PATHS: &[&str] = &["/cache/objects"];
