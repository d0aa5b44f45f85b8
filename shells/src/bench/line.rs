//! One connection that waits for each answer: what an engine has, without its library.

use super::answer::{Answer, Inlet};
use super::fault::BenchFault;
use super::message::{Message, RequestId, Uid};
use super::stop::Stop;
use kvtide_core::wire::zmtp::{GREETING, READY_DEALER};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Where a server listens, as it was written and without the scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub text: String,
    address: String,
}

impl Url {
    pub fn parse(text: &str) -> Result<Url, String> {
        let address = text.strip_prefix("tcp://").unwrap_or(text);
        let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        if address.contains("://") || port.is_none() {
            return Err("is not tcp://HOST:PORT".to_owned());
        }
        Ok(Url { text: text.to_owned(), address: address.to_owned() })
    }

    /// The port of a server on this machine; None where the host is not this one for sure.
    pub fn loopback_port(&self) -> Option<u16> {
        let mut addresses = self.address.to_socket_addrs().ok()?;
        addresses.find(|address| address.ip().is_loopback()).map(|address| address.port())
    }

    pub fn fault(&self, what: impl std::fmt::Display) -> BenchFault {
        BenchFault::new(format!("{}: {what}", self.text))
    }
}

pub struct Line {
    url: Url,
    stream: TcpStream,
    inlet: Inlet,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    out: Vec<u8>,
    uid: Uid,
    stop: Stop,
}

impl Line {
    /// Connects, and speaks the opening.
    pub fn connect(url: &Url, stop: &Stop) -> Result<Line, BenchFault> {
        let stream = open(url)?;
        let mut line = Line {
            url: url.clone(),
            stream,
            inlet: Inlet::default(),
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            out: Vec::new(),
            uid: Uid::FIRST,
            stop: stop.clone(),
        };
        let opening = [&GREETING[..], READY_DEALER].concat();
        line.stream.write_all(&opening).map_err(|error| line.url.fault(error))?;
        let mut pongs = Vec::new();
        while !line.inlet.is_ready() {
            line.fill()?;
            let mut input = &line.buffer[line.start..line.end];
            let came = line.inlet.feed(&mut input, &mut pongs).map(|answer| answer.is_some());
            match came {
                Ok(false) => line.start = line.end - input.len(),
                Ok(true) => return Err(line.url.fault("answers before it is asked")),
                Err(what) => return Err(line.url.fault(what)),
            }
        }
        Ok(line)
    }

    /// Sends a request and waits for its answer.
    #[inline]
    pub fn call(&mut self, message: &Message, id: RequestId) -> Result<Reply<'_>, BenchFault> {
        self.call_with(message, id, |_| {})
    }

    /// Likewise, with a last change to the message as it is sent.
    pub fn call_with(
        &mut self,
        message: &Message,
        id: RequestId,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<Reply<'_>, BenchFault> {
        self.uid = self.uid.next();
        message.stamp(self.uid, id, &mut self.out);
        change(&mut self.out);
        self.stream.write_all(&self.out).map_err(|error| self.url.fault(error))?;
        self.receive(message)
    }

    fn receive(&mut self, message: &Message) -> Result<Reply<'_>, BenchFault> {
        let mut pongs = Vec::new();
        loop {
            let mut input = &self.buffer[self.start..self.end];
            let fed = self.inlet.feed(&mut input, &mut pongs).map(|answer| answer.is_some());
            self.start = self.end - input.len();
            match fed {
                Ok(true) => break,
                Ok(false) => self.fill()?,
                Err(what) => return Err(self.url.fault(what)),
            }
            if !pongs.is_empty() {
                self.stream.write_all(&pongs).map_err(|error| self.url.fault(error))?;
                pongs.clear();
            }
        }
        let (uid, operation) = (self.uid, message.operation());
        Ok(Reply { answer: self.inlet.last(), url: &self.url, uid, operation })
    }

    /// Reads more once all that was read is taken.
    fn fill(&mut self) -> Result<(), BenchFault> {
        let mut silent = Duration::ZERO;
        loop {
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(self.url.fault("the server closed the connection")),
                Ok(count) => {
                    (self.start, self.end) = (0, count);
                    return Ok(());
                }
                Err(error) if is_pause(error.kind()) => {
                    silent += READ_SLICE;
                    self.stop.check()?;
                    if silent >= ANSWER_TIME_MAX {
                        let seconds = ANSWER_TIME_MAX.as_secs();
                        return Err(self.url.fault(format!("no answer within {seconds} s")));
                    }
                }
                Err(error) => return Err(self.url.fault(error)),
            }
        }
    }

    /// The connection after its opening, for those who wait for many at once.
    pub fn into_parts(self) -> (TcpStream, Inlet) {
        (self.stream, self.inlet)
    }
}

/// An answer with what it answers.
pub struct Reply<'a> {
    answer: &'a Answer,
    url: &'a Url,
    uid: Uid,
    operation: kvtide_core::wire::operation::Operation,
}

impl<'a> Reply<'a> {
    pub fn value(&self) -> Result<Option<&'a [u8]>, BenchFault> {
        self.answer.value(self.uid, self.operation).map_err(|what| self.url.fault(what))
    }

    pub fn count(&self) -> Result<Option<u64>, BenchFault> {
        self.answer.count(self.uid, self.operation).map_err(|what| self.url.fault(what))
    }

    /// For requests whose answer only says that they were done.
    pub fn done(&self) -> Result<(), BenchFault> {
        self.value().map(drop)
    }
}

fn open(url: &Url) -> Result<TcpStream, BenchFault> {
    let addresses = url.address.to_socket_addrs().map_err(|error| url.fault(error))?;
    let mut last = url.fault("the host has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_TIME_MAX) {
            Ok(stream) => {
                let set = stream
                    .set_nodelay(true)
                    .and_then(|()| stream.set_read_timeout(Some(READ_SLICE)))
                    .and_then(|()| stream.set_write_timeout(Some(ANSWER_TIME_MAX)));
                return set.map(|()| stream).map_err(|error| url.fault(error));
            }
            Err(error) => last = url.fault(error),
        }
    }
    Err(last)
}

fn is_pause(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Longer than any answer of a server that works takes.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a wait may go on before Ctrl-C is looked at.
const READ_SLICE: Duration = Duration::from_millis(250);
const BUFFER_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_host_and_a_port() {
        let url = Url::parse("tcp://localhost:5555").expect("a right one");
        assert_eq!(url.loopback_port(), Some(5555));
        assert_eq!(Url::parse("127.0.0.1:1").expect("without scheme").loopback_port(), Some(1));
        for bad in ["", "tcp://", "tcp://host", "ipc:///a", "tcp://:1", "tcp://h:70000", "h:"] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }
}
