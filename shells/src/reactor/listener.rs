//! Where clients knock: TCP and unix sockets. Invariant: running out of descriptors never makes
//! the reactor spin; a spare one is given up to tell the newcomer so, else accepting rests.

use super::socket::Socket;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// An address as ZeroMQ writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// `tcp://host:port`
    Tcp(SocketAddr),
    /// `ipc://path`
    Path(PathBuf),
    /// `ipc://@name`: a socket without a file.
    Abstract(String),
}

impl ListenAddress {
    /// Reads `tcp://host:port` (`*` for all interfaces) or `ipc://path`. Names are looked up here;
    /// IPv4 is taken where there is a choice, as clients look for it there (spec/wire §1.1).
    pub fn parse(text: &str) -> io::Result<ListenAddress> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        if let Some(path) = text.strip_prefix("ipc://") {
            return match path.strip_prefix('@') {
                _ if path.is_empty() => Err(invalid("an ipc address needs a path")),
                Some(name) => Ok(ListenAddress::Abstract(name.to_owned())),
                None => Ok(ListenAddress::Path(path.into())),
            };
        }
        let address = text.strip_prefix("tcp://").unwrap_or(text);
        let (host, port) =
            address.rsplit_once(':').ok_or_else(|| invalid("a tcp address needs a port"))?;
        let port: u16 = port.parse().map_err(|_| invalid("a port lies in 0..=65535"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host == "*" { "0.0.0.0" } else { host };
        let found: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
        let best = found.iter().find(|address| address.is_ipv4()).or(found.first());
        best.map(|address| ListenAddress::Tcp(*address))
            .ok_or_else(|| invalid("the host name has no address"))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(f, "tcp://{address}"),
            ListenAddress::Path(path) => write!(f, "ipc://{}", path.display()),
            ListenAddress::Abstract(name) => write!(f, "ipc://@{name}"),
        }
    }
}

/// One bound socket.
#[derive(Debug)]
pub struct Listener {
    socket: Bound,
    address: ListenAddress,
    /// The socket file that was made for it.
    file: Option<FileName>,
    /// An edge came and accepting has not run dry since.
    pub ready: bool,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// What one try to accept brought.
#[derive(Debug)]
pub enum Accepted {
    Client(Socket),
    /// Nobody waits.
    Nobody,
    /// No descriptor was left; the newcomer was closed at once.
    TurnedAway,
    /// Nothing can be accepted for now; try again later.
    Exhausted,
}

impl Listener {
    pub fn bind(address: &ListenAddress) -> io::Result<Listener> {
        let mut file = None;
        let (socket, address) = match address {
            ListenAddress::Tcp(address) => {
                let socket = TcpListener::bind(*address)?;
                let address = ListenAddress::Tcp(socket.local_addr()?);
                (Bound::Tcp(socket), address)
            }
            ListenAddress::Path(path) => {
                let socket = bind_path(path)?;
                file = socket_file(path);
                (Bound::Unix(socket), ListenAddress::Path(path.clone()))
            }
            ListenAddress::Abstract(name) => {
                let unix = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                (
                    Bound::Unix(UnixListener::bind_addr(&unix)?),
                    ListenAddress::Abstract(name.clone()),
                )
            }
        };
        Ok(Listener { socket, address, file, ready: false })
    }

    /// A TCP address that was taken early (`crate::sockets`) and is listened to from now on.
    pub fn of(socket: std::net::TcpListener) -> io::Result<Listener> {
        socket.set_nonblocking(true)?;
        let address = ListenAddress::Tcp(socket.local_addr()?);
        let socket = Bound::Tcp(TcpListener::from_std(socket));
        Ok(Listener { socket, address, file: None, ready: false })
    }

    /// The bound address; a port of 0 has become a real one.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            Bound::Tcp(socket) => registry.register(socket, token, Interest::READABLE),
            Bound::Unix(socket) => registry.register(socket, token, Interest::READABLE),
        }
    }

    pub fn accept(&mut self, spare: &mut Spare) -> Accepted {
        for _ in 0..ATTEMPTS_MAX {
            match self.accept_once() {
                Ok(socket) => return Accepted::Client(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ready = false;
                    return Accepted::Nobody;
                }
                Err(error) if is_shortage(&error) => return self.turn_away(spare),
                // The newcomer left again, or a firewall spoke: the next one may be fine.
                Err(_) => {}
            }
        }
        Accepted::Exhausted
    }

    fn accept_once(&self) -> io::Result<Socket> {
        match &self.socket {
            Bound::Tcp(socket) => socket.accept().map(|(stream, _)| Socket::Tcp(stream)),
            Bound::Unix(socket) => socket.accept().map(|(stream, _)| Socket::Unix(stream)),
        }
    }

    /// Trades the spare descriptor for the newcomer's, closes it and takes the spare back.
    fn turn_away(&mut self, spare: &mut Spare) -> Accepted {
        if spare.0.take().is_none() {
            spare.refill();
            return Accepted::Exhausted;
        }
        let accepted = self.accept_once();
        let answer = match &accepted {
            Ok(_) => Accepted::TurnedAway,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.ready = false;
                Accepted::Nobody
            }
            Err(_) => Accepted::Exhausted,
        };
        drop(accepted);
        spare.refill();
        answer
    }
}

impl Drop for Listener {
    /// A client that comes later is to be refused, not to knock at a file that nobody serves. What
    /// somebody else put there meanwhile is theirs.
    fn drop(&mut self) {
        if let ListenAddress::Path(path) = &self.address
            && self.file.is_some()
            && socket_file(path) == self.file
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A descriptor held back for the day on which there are no others.
#[derive(Debug)]
pub struct Spare(Option<File>);

impl Spare {
    pub fn hold() -> Spare {
        let mut spare = Spare(None);
        spare.refill();
        spare
    }

    fn refill(&mut self) {
        self.0 = File::open("/dev/null").ok();
    }
}

/// Device and inode of a socket file. No other has them while its socket is open.
type FileName = (u64, u64);

/// The socket file at a path; None where there is nothing or something else.
fn socket_file(path: &Path) -> Option<FileName> {
    // A link is not followed: what it leads to is not ours to judge.
    let found = std::fs::symlink_metadata(path).ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}

/// The socket file of a listener, for an end that drops nothing.
#[derive(Clone, Debug)]
pub struct SocketFile {
    path: PathBuf,
    name: FileName,
}

impl SocketFile {
    /// The one that lies there now.
    pub fn at(path: &Path) -> Option<SocketFile> {
        Some(SocketFile { path: path.to_owned(), name: socket_file(path)? })
    }

    /// Unless somebody else has put another one there since.
    pub fn remove(&self) {
        if socket_file(&self.path) == Some(self.name) {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

/// A socket file that nobody serves any more is replaced; one that is served is left alone, and so
/// is every other file.
fn bind_path(path: &Path) -> io::Result<UnixListener> {
    let in_use = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        other => return other,
    };
    if socket_file(path).is_none() {
        let why = "a file that is no socket lies at this path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        _ => Err(in_use),
    }
}

fn is_shortage(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Failed tries in a row before accepting rests.
const ATTEMPTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_clients_write_them() {
        let tcp = |text: &str| ListenAddress::Tcp(text.parse().expect("a socket address"));
        for (text, address) in [
            ("tcp://127.0.0.1:5555", tcp("127.0.0.1:5555")),
            ("0.0.0.0:80", tcp("0.0.0.0:80")),
            ("tcp://*:7", tcp("0.0.0.0:7")),
            ("tcp://[::1]:7", tcp("[::1]:7")),
            ("ipc:///run/kv", ListenAddress::Path("/run/kv".into())),
            ("ipc://@kv", ListenAddress::Abstract("kv".into())),
        ] {
            assert_eq!(ListenAddress::parse(text).expect(text), address);
        }
        for text in ["tcp://127.0.0.1", "ipc://", "tcp://127.0.0.1:70000", "tcp://127.0.0.1:"] {
            let error = ListenAddress::parse(text).expect_err(text);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
        }
    }

    #[test]
    fn a_dead_socket_file_is_replaced_and_a_served_one_is_not() {
        let path = std::env::temp_dir().join(format!("kvtide-listener-{}", std::process::id()));
        let address = ListenAddress::Path(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).expect("the path is free"));
        let first = Listener::bind(&address).expect("the file was left behind");
        let second = Listener::bind(&address).expect_err("it is served");
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_of_ours_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("kvtide-ipc-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("the name is free");
        let path = folder.join("precious");
        let address = ListenAddress::Path(path.clone());
        std::fs::write(&path, "precious").expect("the folder is ours");
        let error = Listener::bind(&address).expect_err("it is no socket");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).expect("it is still there"), b"precious");

        std::fs::remove_file(&path).expect("it is there");
        let ours = Listener::bind(&address).expect("the path is free");
        std::fs::remove_file(&path).expect("it is there");
        let theirs = Listener::bind(&address).expect("the path is free");
        drop(ours);
        assert!(path.exists(), "it is another's by now");
        drop(theirs);
        assert!(!path.exists());
        std::fs::remove_dir(&folder).expect("it is empty");
    }
}
