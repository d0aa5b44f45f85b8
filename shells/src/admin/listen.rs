//! The admin thread's sockets. Nobody outside can hold one for nothing: heads and bodies have to
//! come in time, answers to be taken in time, and a connection that is idle makes way when there
//! are too many (`places`).

use super::Times;
use super::bodies::{Bodies, Whole, shaped};
use super::budget::Answers;
use super::places::{Place, Places, TakenAway};
use super::routes::{METRICS, Site, is_probe, metrics_router, router};
use axum::Router;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Serves until `stopped` says so. The listeners stay the caller's, for another try.
pub fn serve(
    http: &std::net::TcpListener,
    metrics: Option<&std::net::TcpListener>,
    site: Arc<Site>,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        tokio::spawn(look_after(site.clone()));
        let times = site.times;
        let (answers, bodies) = (Answers::new(), Bodies::new());
        let places = Places::new(CONNECTIONS_MAX, PROBES_MAX);
        let main = Door {
            router: router(site.clone()),
            places,
            terms: Terms {
                times,
                answers: answers.clone(),
                bodies: bodies.clone(),
                pages_only: false,
            },
        };
        let main = listen(own(http)?, main, stopped.clone());
        let Some(metrics) = metrics else {
            main.await;
            return Ok(());
        };
        let places = Places::new(METRICS_CONNECTIONS_MAX, 0);
        let page = Door {
            router: metrics_router(site),
            places,
            terms: Terms { times, answers, bodies, pages_only: true },
        };
        tokio::join!(main, listen(own(metrics)?, page, stopped));
        Ok(())
    });
    runtime.shutdown_timeout(Duration::ZERO);
    served
}

fn own(listener: &std::net::TcpListener) -> io::Result<TcpListener> {
    TcpListener::from_std(listener.try_clone()?)
}

/// What a listener lets people in to.
struct Door {
    router: Router,
    places: Places,
    terms: Terms,
}

/// What holds for each of them.
#[derive(Clone)]
struct Terms {
    times: Times,
    answers: Answers,
    bodies: Bodies,
    /// Every answer is a page for scrapers, whatever the path.
    pages_only: bool,
}

/// Accepts until the end, and then lets requests under way end for a moment.
async fn listen(listener: TcpListener, door: Door, stopped: watch::Receiver<bool>) {
    // A task that panics ends its connection and no other.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => match door.places.take() {
                    Some((place, away)) => {
                        let served = Served { stream, place, away, stopped: stopped.clone() };
                        connections.spawn(served.run(door.router.clone(), door.terms.clone()));
                    }
                    // A socket that was just accepted has room for this; if not, it is as well.
                    None => drop(stream.try_write(TURNED_AWAY)),
                },
                // No descriptors, most likely: what helps is that others end.
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            () = told(stopped.clone()) => break,
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    timeout(LAST_REQUESTS, all).await.ok();
}

/// Looks after the reactor for as long as this thread serves.
async fn look_after(site: Arc<Site>) {
    loop {
        sleep(WATCH_EVERY).await;
        site.reach.watch();
    }
}

async fn told(mut stopped: watch::Receiver<bool>) {
    // The sender being gone means the same.
    stopped.wait_for(|stopped| *stopped).await.ok();
}

/// One connection.
struct Served {
    stream: TcpStream,
    place: Place,
    away: TakenAway,
    stopped: watch::Receiver<bool>,
}

impl Served {
    /// Serves until it ends, its place is taken away, or the server ends.
    async fn run(self, router: Router, terms: Terms) {
        let Served { stream, place, away, stopped } = self;
        let router = TowerToHyperService::new(router);
        let place = Arc::new(place);
        let times = terms.times;
        let service = service_fn(move |request| {
            answer(router.clone(), place.clone(), terms.clone(), request)
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(times.head)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(Guarded::new(stream, times.idle)), service);
        let mut serving = pin!(serving);
        tokio::select! {
            // Faults of a client are its own: there is nobody to tell.
            _ = serving.as_mut() => return,
            _ = away => return,
            () = told(stopped) => serving.as_mut().graceful_shutdown(),
        }
        serving.await.ok();
    }
}

async fn answer(
    router: TowerToHyperService<Router>,
    place: Arc<Place>,
    terms: Terms,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    if place.probes_only && !is_probe(request.uri().path()) {
        let text = "too many requests at once; try again";
        let mut busy = shaped(request.uri().path(), StatusCode::SERVICE_UNAVAILABLE, text);
        busy.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return Ok(busy);
    }
    // Whoever keeps us waiting for a body makes way for others.
    let whole = match terms.bodies.whole(request, terms.times.body).await {
        Ok(whole) => whole,
        Err(refusal) => return Ok(refusal),
    };
    let Whole { request, _place } = whole;
    place.is_busy();
    let path = request.uri().path().to_owned();
    let Ok(answered) = router.call(request).await;
    let is_page = terms.pages_only || path == METRICS;
    let answered = terms.answers.hold(&path, is_page, answered).await;
    place.is_idle();
    Ok(answered)
}

/// A connection that ends by itself when nothing moves: its reader has stopped reading.
struct Guarded {
    stream: TcpStream,
    idle_max: Duration,
    idle: Pin<Box<Sleep>>,
}

impl Guarded {
    fn new(stream: TcpStream, idle_max: Duration) -> Guarded {
        Guarded { stream, idle_max, idle: Box::pin(sleep(idle_max)) }
    }

    /// Progress puts the end off; standing still lets it come.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        moved: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            let until = Instant::now() + self.idle_max;
            self.idle.as_mut().reset(until);
            return moved;
        }
        match self.idle.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(context, moved)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, moved)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(context, moved)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// HTTP connections at once.
const CONNECTIONS_MAX: usize = 256;
/// More of them that only probes get, while all others are busy.
const PROBES_MAX: usize = 16;
/// Scrapers at once.
const METRICS_CONNECTIONS_MAX: usize = 16;
/// Sockets of both listeners.
pub const SOCKETS_MAX: usize = CONNECTIONS_MAX + PROBES_MAX + METRICS_CONNECTIONS_MAX;
/// Lines and bytes of a request's head; beyond them it is refused (431).
const HEADERS_MAX: usize = 64;
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long requests under way may take once the server ends.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\
                             connection: close\r\n\r\n";
/// How often the reactor is looked after.
const WATCH_EVERY: Duration = Duration::from_secs(1);
