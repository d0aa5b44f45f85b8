//! One HTTP request over a plain socket, so that the tests of the admin side need no client
//! library. HTTP/1.0 on purpose: the answer ends with the connection and is never chunked.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long connecting, and each pause within the answer, may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

pub fn get(address: SocketAddr, path: &str) -> io::Result<Response> {
    request(address, "GET", path, None)
}

/// `body` is sent as JSON.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&str>,
) -> io::Result<Response> {
    let mut socket = TcpStream::connect_timeout(&address, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut text = format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\n");
    if let Some(body) = body {
        text += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    text += "\r\n";
    text += body.unwrap_or("");
    socket.write_all(text.as_bytes())?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| io::Error::other("not an HTTP answer"))
}

fn parse(text: &str) -> Option<Response> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, head: head.to_string(), body: body.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_apart() {
        let response = parse("HTTP/1.0 503 Busy\r\nContent-Type: text/plain\r\n\r\nno\r\n\r\nyet")
            .expect("an answer");
        assert_eq!(response.status, 503);
        assert_eq!(response.header("content-type"), Some("text/plain"));
        assert_eq!(response.header("x-other"), None);
        assert_eq!(response.body, "no\r\n\r\nyet");
    }

    #[test]
    fn rubbish_is_not_an_answer() {
        for text in ["", "HTTP/1.0", "\r\n\r\n", "HTTP/1.0 abc\r\n\r\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
