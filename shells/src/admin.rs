//! The operators' door: HTTP on a thread of its own, so that neither JSON nor a slow browser ever
//! costs the reactor a turn (design §2). It owns no state: every answer is a constant, a number
//! that another thread keeps, or what the reactor says when asked.
//!
//! The one invariant: no request waits longer than `Options::patience` for the reactor; whoever
//! would is told that the server is busy.

mod answer;
mod bodies;
mod budget;
mod cache;
mod checksums;
mod debug;
mod formats;
mod health;
mod keys;
mod listen;
mod objects;
mod places;
mod quota;
mod reach;
mod routes;
mod status;
mod tiers;

pub use answer::Wrong;
pub use budget::memory_bytes_max;
pub use cache::ClearBody;
pub use quota::{quota_limit, quote_constants};
pub use reach::{Ask, Dump, Reach, ReactorSeen, Seen, Teller, Unreachable, Wanted};
pub use status::View;

use crate::ending::Ending;
use crate::sockets::{BindError, Bound};
use routes::Site;
use serde_json::Value;
use std::io;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use tokio::sync::watch;

/// What the admin thread serves.
pub struct Options {
    pub reach: Arc<dyn Reach>,
    /// What `/status` says beside the state.
    pub view: View,
    /// The answer to `GET /config`.
    pub document: Value,
    /// How long a request waits for the reactor.
    pub patience: Duration,
    pub times: Times,
}

/// How long a client may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// For the head of a request, from the end of the one before.
    pub head: Duration,
    /// For its body.
    pub body: Duration,
    /// Until it takes more of its answer.
    pub idle: Duration,
}

impl Default for Times {
    fn default() -> Times {
        let [head, body, idle] = [15, 10, 30].map(Duration::from_secs);
        Times { head, body, idle }
    }
}

/// The running thread. Dropping it stops it.
pub struct Admin {
    stop: watch::Sender<bool>,
    thread: Option<Ending>,
}

impl Admin {
    /// Listens and serves. `metrics` is a second address for `/metrics` alone
    /// (`--prometheus-port`).
    pub fn start(http: Bound, metrics: Option<Bound>, options: Options) -> io::Result<Admin> {
        let listening =
            |bound: Bound| bound.listen().map_err(|error| io::Error::other(error.to_string()));
        let http = listening(http)?;
        let metrics = metrics.map(listening).transpose()?;
        let site = Arc::new(Site::new(options));
        let (stop, stopped) = watch::channel(false);
        let thread = Ending::spawn("admin", move || {
            keep_serving(&http, metrics.as_ref(), &site, &stopped);
        })?;
        Ok(Admin { stop, thread: Some(thread) })
    }

    /// Stops accepting, lets requests under way end for a moment, and waits for the thread, though
    /// not for ever.
    pub fn stop(mut self, patience: Duration) {
        self.end(patience);
    }

    fn end(&mut self, patience: Duration) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            thread.within(patience);
        }
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.end(END_PATIENCE);
    }
}

/// Takes the address of the metrics listener. The peer opens nothing there, so two servers that are
/// told the same port must both start: a port that is taken is a warning, not an error.
pub fn bind_metrics(host: &str, port: u16) -> Result<Bound, BindError> {
    Bound::bind(host, port)
}

/// A panic in a handler ends its connection only; one in the server itself starts it anew
/// (design §7).
fn keep_serving(
    http: &TcpListener,
    metrics: Option<&TcpListener>,
    site: &Arc<Site>,
    stopped: &watch::Receiver<bool>,
) {
    loop {
        let served = catch_unwind(AssertUnwindSafe(|| {
            listen::serve(http, metrics, site.clone(), stopped.clone())
        }));
        match served {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::error!("The HTTP server ended ({error}) and begins anew."),
            Err(_) => tracing::error!("The HTTP server panicked and begins anew."),
        }
        site.restarts.fetch_add(1, Ordering::Relaxed);
        if *stopped.borrow() {
            return;
        }
        thread::sleep(RESTART_PAUSE);
    }
}

/// More than requests under way are given.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// A fault that comes back at once must not keep a core busy.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
