//! `POST /debug/dump`: the last minute as a file in `--dump-dir` (docs/recording.md). Not of the
//! peer's routes. Its one invariant: the answer says where the file is, or why there is none.

use super::answer::{detail, ok, reason};
use super::reach::told;
use super::routes::Site;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;

/// Where the dump lies, and what is in it. The bytes themselves never leave by HTTP.
pub async fn dump(State(site): State<Arc<Site>>) -> Response {
    match told(site.patience, |answer| site.reach.dump(answer)).await {
        Ok(Ok(dump)) => ok(json!({
            "path": dump.path,
            "bytes": dump.bytes,
            "events": dump.events,
            "whole": dump.is_whole,
        })),
        Ok(Err(why)) => detail(StatusCode::SERVICE_UNAVAILABLE, &why),
        Err(unreachable) => detail(StatusCode::SERVICE_UNAVAILABLE, reason(unreachable)),
    }
}
