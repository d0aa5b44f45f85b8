//! Addresses are taken early and served late: every port of the server is bound before anything
//! else is built, so a port that is taken is found at once, and nobody can connect before there is
//! somebody to answer (spec/http-cli §4.3).

use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt,
};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

/// A TCP address that is ours, but refuses connections until `listen`.
#[derive(Debug)]
pub struct Bound {
    socket: OwnedFd,
    address: SocketAddr,
}

/// Why an address is not ours. Begins like the system's own words, which operators look for.
#[derive(Debug)]
pub struct BindError {
    host: String,
    port: u16,
    error: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BindError { host, port, error } = self;
        if error.kind() == io::ErrorKind::AddrInUse {
            return write!(f, "Address already in use: {host}:{port}");
        }
        write!(f, "cannot listen on {host}:{port}: {error}")
    }
}

impl std::error::Error for BindError {}

impl Bound {
    /// Takes the address. A name is looked up, and IPv4 preferred, as clients look there first.
    pub fn bind(host: &str, port: u16) -> Result<Bound, BindError> {
        bind_to(host, port).map_err(|error| BindError { host: host.to_owned(), port, error })
    }

    /// The address itself; a port of 0 has become a real one.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on connections are let in.
    pub fn listen(self) -> Result<TcpListener, BindError> {
        let failed = |error: io::Error| BindError {
            host: self.address.ip().to_string(),
            port: self.address.port(),
            error,
        };
        listen(&self.socket, BACKLOG).map_err(|errno| failed(errno.into()))?;
        let listener = TcpListener::from(self.socket);
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }
}

fn bind_to(host: &str, port: u16) -> io::Result<Bound> {
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let best = found.iter().find(|address| address.is_ipv4()).or(found.first());
    let address = *best.ok_or_else(|| io::Error::other("the name has no address"))?;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A restart finds its port free although old connections linger; a living listener still
    // keeps it.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    let name = getsockname(&socket)?;
    let address = SocketAddr::try_from(name).map_err(io::Error::other)?;
    Ok(Bound { socket, address })
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn a_bound_address_refuses_until_it_listens() {
        let bound = Bound::bind("127.0.0.1", 0).expect("some port is free");
        let address = bound.address();
        assert_ne!(address.port(), 0);
        assert!(TcpStream::connect(address).is_err());
        let listener = bound.listen().expect("the port is ours");
        assert!(TcpStream::connect(address).is_ok());
        drop(listener);
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let first = Bound::bind("127.0.0.1", 0).expect("some port is free");
        let port = first.address().port();
        let _listener = first.listen().expect("the port is ours");
        let error = Bound::bind("127.0.0.1", port).expect_err("the port is taken");
        assert_eq!(error.to_string(), format!("Address already in use: 127.0.0.1:{port}"));
    }

    #[test]
    fn localhost_is_where_clients_look_for_it() {
        let bound = Bound::bind("localhost", 0).expect("some port is free");
        assert!(bound.address().is_ipv4());
        assert!(Bound::bind("no such host", 1).is_err());
    }
}
