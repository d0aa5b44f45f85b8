//! A client's socket, whichever family it is of.

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Watches both directions for edges and sets what a request protocol wants: no waiting for
    /// more to send, and an end for peers that vanished without a word. No limit on how long a
    /// peer that is alive may leave its window shut: a stopped engine still maps the pool.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Socket::Tcp(stream) => {
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&*stream, true)?;
                sockopt::set_tcp_keepidle(&*stream, KEEPALIVE_IDLE)?;
                sockopt::set_tcp_keepintvl(&*stream, KEEPALIVE_INTERVAL)?;
                sockopt::set_tcp_keepcnt(&*stream, KEEPALIVE_PROBES)?;
                registry.register(stream, token, both)
            }
            Socket::Unix(stream) => registry.register(stream, token, both),
        }
    }

    /// Tells the peer that nothing more will come. It may be gone already.
    pub fn shut_output(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(bytes),
            Socket::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write_vectored(slices),
            Socket::Unix(stream) => stream.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A machine that vanished is noticed within about a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
