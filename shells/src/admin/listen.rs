//! The admin thread's sockets. Bounded: connections have a number and may not idle for ever, so
//! nobody outside can make this thread hold more than a few hundred sockets (design P3).

use super::routes::{Site, metrics_router, router};
use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep};

/// Serves until `stopped` says so. The listeners stay the caller's, for another try.
pub fn serve(
    http: &std::net::TcpListener,
    metrics: Option<&std::net::TcpListener>,
    site: Arc<Site>,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        tokio::spawn(watch(site.clone()));
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let main = Counted::new(http, places)?;
        let serving =
            axum::serve(main, router(site.clone())).with_graceful_shutdown(stop(stopped.clone()));
        if let Some(metrics) = metrics {
            let places = Arc::new(Semaphore::new(METRICS_CONNECTIONS_MAX));
            let page = Counted::new(metrics, places)?;
            let serving = axum::serve(page, metrics_router(site))
                .with_graceful_shutdown(stop(stopped.clone()));
            tokio::spawn(async move { serving.await });
        }
        // A client that holds its connection open does not hold up the end of the server.
        tokio::select! {
            served = serving => served,
            () = given_up(stopped) => Ok(()),
        }
    });
    runtime.shutdown_timeout(Duration::ZERO);
    served
}

/// Looks after the reactor for as long as this thread serves.
async fn watch(site: Arc<Site>) {
    loop {
        sleep(WATCH_EVERY).await;
        site.reach.watch();
    }
}

async fn stop(mut stopped: watch::Receiver<bool>) {
    // The sender being gone means the same.
    stopped.wait_for(|stopped| *stopped).await.ok();
}

async fn given_up(stopped: watch::Receiver<bool>) {
    stop(stopped).await;
    sleep(LAST_REQUESTS).await;
}

/// Accepts only while there is a place; others wait in the backlog.
struct Counted {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Counted {
    fn new(listener: &std::net::TcpListener, places: Arc<Semaphore>) -> io::Result<Counted> {
        let listener = TcpListener::from_std(listener.try_clone()?)?;
        Ok(Counted { listener, places })
    }
}

impl Listener for Counted {
    type Io = Guarded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guarded, SocketAddr) {
        let place = self.places.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => return (Guarded::new(stream, place), address),
                // No descriptors, most likely: what helps is that others end.
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that holds a place, and ends by itself when nothing moves.
struct Guarded {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Guarded {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Guarded {
        Guarded { stream, idle: Box::pin(sleep(IDLE_MAX)), _place: place }
    }

    /// Progress puts the end off; standing still lets it come.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        moved: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_MAX);
            return moved;
        }
        match self.idle.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

use std::future::Future;

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
/// Scrapers at once.
const METRICS_CONNECTIONS_MAX: usize = 16;
/// A connection on which nothing moves for this long is closed.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// How long requests under way may take once the server ends.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the reactor is looked after.
const WATCH_EVERY: Duration = Duration::from_secs(1);
