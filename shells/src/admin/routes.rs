//! Which path leads where, and the peer's conventions for the rest: unknown paths, methods,
//! trailing slashes and HEAD (spec/http-cli §2.1).

use super::answer::{method_not_allowed, not_found, plain};
use super::reach::{Reach, Teller, Unreachable, told};
use super::{Options, Times, View, cache, checksums, debug, health, objects, quota};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{HOST, LOCATION};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// What handlers share. Nothing of it changes.
pub struct Site {
    pub reach: Arc<dyn Reach>,
    pub view: View,
    pub document: Value,
    pub patience: Duration,
    pub times: Times,
    /// How often the admin thread failed and began anew.
    pub restarts: AtomicU64,
    /// One copy of the engine's state or tables lies here at a time, however many ask for one.
    copying: Semaphore,
}

impl Site {
    pub fn new(options: Options) -> Site {
        let Options { reach, view, document, patience, times } = options;
        Site {
            reach,
            view,
            document,
            patience,
            times,
            restarts: AtomicU64::new(0),
            copying: Semaphore::new(1),
        }
    }

    /// Like `told`, for what is large.
    pub async fn copied<T: Send + 'static>(
        &self,
        put: impl FnOnce(Teller<T>) -> Result<(), Unreachable>,
    ) -> Result<T, Unreachable> {
        let copied = timeout(self.patience, async {
            let _turn = self.copying.acquire().await.map_err(|_| Unreachable::Ended)?;
            told(self.patience, put).await
        });
        copied.await.unwrap_or(Err(Unreachable::Busy))
    }
}

/// Every route of this version.
pub fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(health::root))
        .route("/healthcheck", get(health::healthcheck))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/version", get(health::full_version))
        .route("/lmc_version", get(health::lmc_version))
        .route("/commit_id", get(health::commit_id))
        .route("/status", get(health::server_status))
        .route("/config", get(health::config))
        .route("/config/adapters", get(health::config_adapters))
        .route("/periodic-threads-health", get(health::periodic_threads_health))
        .route("/cache/clear", post(cache::clear))
        .route("/cache/checksums", post(checksums::checksums))
        .route("/cache/objects", get(objects::list).delete(objects::delete))
        .route("/debug/dump", post(debug::dump))
        .route("/quota", get(quota::list))
        .route("/quota/{salt}", get(quota::get).put(quota::put).delete(quota::delete))
        .route(METRICS, get(metrics))
        .route("/metrics/reset", post(metrics_reset))
        .route("/run_script", post(run_script))
        .fallback(|| async { not_found() })
        .method_not_allowed_fallback(|| async { method_not_allowed() })
        // Bodies are whole when they come here, within a bound of their own.
        .layer(DefaultBodyLimit::disable())
        .with_state(site)
        .layer(from_fn(conventions))
}

/// The second listener: the page on any path, as the peer's stand-alone port (spec/metrics §6.1).
pub fn metrics_router(site: Arc<Site>) -> Router {
    Router::new().fallback(metrics).with_state(site)
}

async fn metrics(State(site): State<Arc<Site>>) -> Response {
    // A reactor that is late is missing on the page, which is when the rest is needed.
    let patience = site.patience.min(METRICS_PATIENCE);
    let reactor = told(patience, |answer| site.reach.pulse(answer)).await.ok();
    let restarts = site.restarts.load(Ordering::Relaxed);
    plain(StatusCode::OK, site.reach.metrics_page(reactor.as_ref(), restarts))
}

/// The peer resets counters of an older kind that we do not have.
async fn metrics_reset() -> Response {
    plain(StatusCode::OK, "ok")
}

/// Running scripts for whoever asks is no feature; the route stays so that it is no mystery.
async fn run_script() -> Response {
    plain(StatusCode::NOT_FOUND, "Scripts are never run by this server.")
}

/// What the peer's framework does for every route.
async fn conventions(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if let Some(without) = path.strip_suffix('/')
        && is_route(without)
    {
        return redirect(&request, without);
    }
    // Probes use HEAD on these two; elsewhere it is refused like any method that is not there.
    if method == Method::HEAD && is_route(&path) && !["/", "/healthcheck"].contains(&&*path) {
        return method_not_allowed();
    }
    let response = next.run(request).await;
    tracing::debug!("\"{method} {path} HTTP/1.1\" {}", response.status().as_u16());
    response
}

/// To the same address without the trailing slash, with the query kept.
fn redirect(request: &Request, path: &str) -> Response {
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let base = host.map(|host| format!("http://{host}")).unwrap_or_default();
    let Ok(location) = HeaderValue::try_from(format!("{base}{path}{query}")) else {
        return not_found();
    };
    (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, location)]).into_response()
}

fn is_route(path: &str) -> bool {
    let salt = path.strip_prefix("/quota/");
    ROUTES.contains(&path) || salt.is_some_and(|salt| !salt.is_empty() && !salt.contains('/'))
}

/// What probes and scrapers ask, which is answered when nothing else is.
pub fn is_probe(path: &str) -> bool {
    ["/livez", "/readyz", "/healthcheck", METRICS].contains(&path)
}

/// The page for scrapers.
pub const METRICS: &str = "/metrics";
/// How long a scrape waits for the reactor.
const METRICS_PATIENCE: Duration = Duration::from_secs(1);

/// Paths without parameters, for what `axum` does not tell a layer.
const ROUTES: &[&str] = &[
    "/",
    "/healthcheck",
    "/livez",
    "/readyz",
    "/version",
    "/lmc_version",
    "/commit_id",
    "/status",
    "/config",
    "/config/adapters",
    "/periodic-threads-health",
    "/cache/clear",
    "/cache/checksums",
    "/cache/objects",
    "/debug/dump",
    "/quota",
    METRICS,
    "/metrics/reset",
    "/run_script",
];
