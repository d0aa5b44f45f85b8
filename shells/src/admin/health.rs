//! Routes that say whether the server lives, is ready, and who it is (spec/http-cli §2.2).

use super::answer::{error, ok, reason, status};
use super::reach::told;
use super::routes::Site;
use crate::version;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

pub async fn root() -> Response {
    ok(json!({ "status": "ok", "service": "LMCache HTTP API" }))
}

/// As the peer's: there is an engine, or nobody would answer. `/livez` and `/readyz` say more.
pub async fn healthcheck() -> Response {
    ok(json!({ "status": "healthy" }))
}

/// Fails when the reactor stands still. Asks nobody, so it answers at once.
pub async fn livez(State(site): State<Arc<Site>>) -> Response {
    let age = site.reach.last_turn_age();
    if age <= TURN_AGE_MAX {
        return ok(json!({ "status": "alive" }));
    }
    let reason = format!("the last turn ended {:.1} s ago", age.as_secs_f64());
    unavailable("stuck", &reason)
}

/// Fails when the server does not answer, or is about to end.
pub async fn readyz(State(site): State<Arc<Site>>) -> Response {
    match told(site.patience, |answer| site.reach.pulse(answer)).await {
        Ok(reactor) if reactor.stopping => unavailable("not ready", "the server is ending"),
        Ok(reactor) if reactor.scanning > 0 => {
            // It serves all the same: what has not been told yet is asked for (design §7).
            let noun = if reactor.scanning == 1 { "adapter" } else { "adapters" };
            let scanning = format!("scanning {} {noun}", reactor.scanning);
            ok(json!({ "status": "ready", "note": scanning }))
        }
        Ok(_) => ok(json!({ "status": "ready" })),
        Err(unreachable) => unavailable("not ready", reason(unreachable)),
    }
}

/// The watchdog of the peer's threads; ours has one that matters.
pub async fn periodic_threads_health(State(site): State<Arc<Site>>) -> Response {
    let stuck: &[&str] =
        if site.reach.last_turn_age() <= TURN_AGE_MAX { &[] } else { &["reactor"] };
    ok(json!({
        "healthy": stuck.is_empty(),
        "unhealthy_count": stuck.len(),
        "unhealthy_threads": stuck,
    }))
}

pub async fn full_version() -> Response {
    ok(json!(version::full()))
}

pub async fn lmc_version() -> Response {
    ok(json!(version::LMCACHE))
}

pub async fn commit_id() -> Response {
    ok(json!(version::commit()))
}

pub async fn config(State(site): State<Arc<Site>>) -> Response {
    ok(site.document.clone())
}

/// The roster as it is now; the first is the primary one.
pub async fn config_adapters(State(site): State<Arc<Site>>) -> Response {
    let adapters = match told(site.patience, |answer| site.reach.adapters(answer)).await {
        Ok(adapters) => adapters,
        Err(unreachable) => return error(StatusCode::SERVICE_UNAVAILABLE, reason(unreachable)),
    };
    let shown = adapters.iter().enumerate().map(|(index, adapter)| {
        json!({
            "index": index,
            "type_name": adapter.name,
            "tier": "l2",
            "primary": index == 0,
            "reconfigurable": false,
        })
    });
    ok(json!({ "adapters": shown.collect::<Vec<Value>>() }))
}

pub async fn server_status(State(site): State<Arc<Site>>) -> Response {
    match site.copied(|answer| site.reach.look(answer)).await {
        Ok(seen) => ok(site.view.document(&seen)),
        Err(unreachable) => error(StatusCode::SERVICE_UNAVAILABLE, reason(unreachable)),
    }
}

fn unavailable(state: &str, reason: &str) -> Response {
    let body: Value = json!({ "status": state, "reason": reason });
    status(StatusCode::SERVICE_UNAVAILABLE, body)
}

/// An idle reactor turns about once a second, so silence for this long is no idleness (design §2).
const TURN_AGE_MAX: Duration = Duration::from_secs(5);
