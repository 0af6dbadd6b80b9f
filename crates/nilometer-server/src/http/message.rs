//! Requests and answers of HTTP/1: one of each for a connection, each in bounded room and time.
//!
//! The head is read by the crate `httparse`; what it means is checked here. Fields that decide about
//! safety may stand in it once. Of bodies only those with a `Content-Length` are taken, and only when
//! whoever answers asks for one: a body nobody wants is never read into memory.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer::session::ClientMetadata;

use crate::connection::client_of;
use crate::registry::{ConnectionEntry, SharedStream};
use crate::tls::{Tls, Transport};

/// Bytes of a request's head. Browsers send the cookies of everything else on the same host, too.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Fields of a request's head. Browsers send about twenty.
const FIELDS_MAX: usize = 64;

/// Bytes of an answer that are sent in one go.
const PART_BYTES: usize = 64 * 1024;

/// Time an answer may take to leave.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// What is read of a body nobody wants, so that the client reads the answer before the connection ends.
const UNWANTED_BYTES_MAX: u64 = 1024 * 1024;

/// How long that goes on.
const UNWANTED_TIME_MAX: Duration = Duration::from_millis(500);

/// Fields that decide something, and may not be there twice.
const ONCE: &[&str] = &[
    "content-length",
    "content-type",
    "cookie",
    "host",
    "origin",
    "sec-fetch-site",
    "transfer-encoding",
];

const TEXT: &str = "text/plain; charset=utf-8";

const JSON: &str = "application/json; charset=utf-8";

/// What is sent back.
#[derive(Debug)]
pub(super) struct HttpResponse {
    status: &'static str,
    kind: &'static str,
    fields: Vec<(&'static str, Cow<'static, str>)>,
    body: Cow<'static, str>,
}

impl HttpResponse {
    pub(super) fn new(
        status: &'static str,
        kind: &'static str,
        body: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            kind,
            fields: Vec::new(),
            body: body.into(),
        }
    }

    pub(super) fn text(status: &'static str, body: impl Into<Cow<'static, str>>) -> Self {
        Self::new(status, TEXT, body)
    }

    pub(super) fn json(status: &'static str, body: String) -> Self {
        Self::new(status, JSON, body)
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> &'static str {
        self.status
    }

    /// The same with one more field in its head.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.fields.push((name, value.into()));
        self
    }
}

/// The head of a request.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) method: String,
    /// Without the query.
    pub(super) path: String,
    /// Names in small letters.
    fields: Vec<(String, String)>,
}

impl RequestHead {
    /// The value of a field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Reads a head; `None` if more must come.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, HttpResponse> {
        let bad = |why: &str| HttpResponse::text("400 Bad Request", format!("{why}\n"));
        if bytes.first().is_some_and(u8::is_ascii_whitespace) {
            return Err(bad("not an HTTP request"));
        }
        let mut room = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut room);
        let length = match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err(too_long()),
            Err(problem) => return Err(bad(&format!("not an HTTP request: {problem}"))),
        };
        let (Some(method), Some(target)) = (request.method, request.path) else {
            return Err(bad("not an HTTP request"));
        };
        let mut fields: Vec<(String, String)> = Vec::new();
        for field in request.headers.iter() {
            let name = field.name.to_ascii_lowercase();
            let value = std::str::from_utf8(field.value);
            let value = value.map_err(|_| bad(&format!("{name} is no text")))?;
            if ONCE.contains(&name.as_str()) && fields.iter().any(|(known, _)| *known == name) {
                return Err(bad(&format!("{name} is there twice")));
            }
            fields.push((name, value.trim().to_owned()));
        }
        let path = target.split('?').next().unwrap_or_default().to_owned();
        let method = method.to_owned();
        let head = Self {
            method,
            path,
            fields,
        };
        Ok(Some((head, length)))
    }
}

fn too_long() -> HttpResponse {
    HttpResponse::text(
        "431 Request Header Fields Too Large",
        "the head of the request is too long\n",
    )
}

/// Why there is no request.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The client has gone, or was too slow.
    Gone(io::Error),
    /// It is answered with this.
    Refused(HttpResponse),
}

impl From<io::Error> for ReadError {
    fn from(problem: io::Error) -> Self {
        Self::Gone(problem)
    }
}

/// A connection with one request.
pub(super) struct Connection {
    entry: Arc<ConnectionEntry>,
    transport: Transport,
    until: Instant,
    /// What was read behind the head.
    rest: Vec<u8>,
    /// Something that was sent was not read.
    unread: bool,
}

impl Connection {
    /// A connection that was accepted. The request may take `patience` to arrive.
    pub(super) fn open(
        entry: Arc<ConnectionEntry>,
        tls: Option<&Tls>,
        patience: Duration,
    ) -> io::Result<Self> {
        let until = Instant::now() + patience;
        entry.stream.set_nodelay(true)?;
        entry.stream.set_write_timeout(Some(patience))?;
        let stream = SharedStream(entry.clone());
        let transport = match tls {
            None => Transport::plain(stream),
            Some(tls) => tls.open_either(stream, patience)?.transport,
        };
        if transport.is_tls() {
            entry.mark_tls();
        }
        Ok(Self {
            entry,
            transport,
            until,
            rest: Vec::new(),
            unread: false,
        })
    }

    /// True if what is said here is encrypted.
    pub(super) fn is_tls(&self) -> bool {
        self.transport.is_tls()
    }

    /// Where it is in the registry.
    pub(super) fn entry(&self) -> &ConnectionEntry {
        &self.entry
    }

    /// Where the client comes from.
    pub(super) fn client(&self) -> io::Result<ClientMetadata> {
        client_of(&self.entry.stream)
    }

    /// Reads the head of the request.
    pub(super) fn read_head(&mut self) -> Result<RequestHead, ReadError> {
        let mut bytes = Vec::new();
        loop {
            self.read_more(&mut bytes)?;
            let parsed = RequestHead::parse(&bytes).and_then(|parsed| match parsed {
                None if bytes.len() > HEAD_BYTES_MAX => Err(too_long()),
                parsed => Ok(parsed),
            });
            match parsed {
                Ok(Some((head, length))) => {
                    self.rest = bytes.split_off(length.min(bytes.len()));
                    // Whoever wants the body reads it.
                    self.unread = head.field("content-length").is_some();
                    return Ok(head);
                }
                Ok(None) => {}
                Err(answer) => {
                    self.unread = true;
                    return Err(ReadError::Refused(answer));
                }
            }
        }
    }

    /// Reads the body of the request, of at most `bytes_max`.
    pub(super) fn read_body(
        &mut self,
        head: &RequestHead,
        bytes_max: usize,
    ) -> Result<Vec<u8>, HttpResponse> {
        if head.field("transfer-encoding").is_some() {
            return Err(HttpResponse::text(
                "411 Length Required",
                "bodies are taken with a Content-Length only\n",
            ));
        }
        let length = head.field("content-length").unwrap_or("0");
        let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
        let length = digits.then(|| length.parse::<usize>().unwrap_or(usize::MAX));
        let Some(length) = length else {
            return Err(HttpResponse::text(
                "400 Bad Request",
                "Content-Length is no number\n",
            ));
        };
        if length > bytes_max {
            return Err(HttpResponse::text(
                "413 Content Too Large",
                format!("the body has {length} bytes, at most {bytes_max} are taken\n"),
            ));
        }
        let mut body = std::mem::take(&mut self.rest);
        while body.len() < length {
            if self.read_more(&mut body).is_err() {
                return Err(HttpResponse::text(
                    "408 Request Timeout",
                    "the body did not arrive\n",
                ));
            }
        }
        body.truncate(length);
        self.unread = false;
        Ok(body)
    }

    /// Reads what is there, and waits for it as long as the request may take.
    fn read_more(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.entry.stream.set_read_timeout(Some(left))?;
        let mut part = [0; 4096];
        let read = self.transport.read(&mut part)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(part.get(..read).unwrap_or_default());
        Ok(())
    }

    /// Answers, and ends the connection.
    pub(super) fn send(mut self, answer: &HttpResponse, head_only: bool) -> io::Result<()> {
        let mut head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
            answer.status,
            answer.kind,
            answer.body.len()
        );
        for (name, value) in &answer.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.write(head.as_bytes())?;
        if !head_only {
            self.write(answer.body.as_bytes())?;
        }
        self.transport.flush()?;
        if self.unread {
            self.drain();
        }
        Ok(())
    }

    /// Writes in parts, so that somebody who reads slowly is not waited for for ever.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let until = Instant::now() + ANSWER_TIME_MAX;
        for part in bytes.chunks(PART_BYTES) {
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.transport.write_all(part)?;
        }
        Ok(())
    }

    /// A connection that is closed with bytes unread is reset, and the answer may be lost with it.
    fn drain(&mut self) {
        let until = Instant::now() + UNWANTED_TIME_MAX;
        let stream = &self.entry.stream;
        // It may be closed already; then there is nothing to read, either.
        drop(stream.shutdown(Shutdown::Write));
        drop(stream.set_read_timeout(Some(UNWANTED_TIME_MAX)));
        let mut unwanted = stream.take(UNWANTED_BYTES_MAX);
        let mut part = [0; 4096];
        while Instant::now() < until && matches!(unwanted.read(&mut part), Ok(1..)) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::fuzz::Numbers;

    #[test]
    fn a_head_is_read_when_all_of_it_is_there() {
        let text = b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
        for length in 1..text.len() - 2 {
            assert!(
                RequestHead::parse(&text[..length]).unwrap().is_none(),
                "{length}"
            );
        }
        let (head, length) = RequestHead::parse(text).unwrap().unwrap();
        assert_eq!((head.method.as_str(), head.path.as_str()), ("POST", "/a"));
        assert_eq!(head.field("host"), Some("x"));
        assert_eq!(length, text.len() - 2);
    }

    #[test]
    fn what_decides_about_safety_is_said_once() {
        let twice = b"GET / HTTP/1.1\r\nHost: x\r\nHOST: y\r\n\r\n";
        let answer = RequestHead::parse(twice).unwrap_err();
        assert!(answer.body.contains("host is there twice"), "{answer:?}");
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
        let answer = RequestHead::parse(many.as_bytes()).unwrap_err();
        assert!(answer.status.starts_with("431"));
    }

    #[test]
    fn fuzz_http_heads() {
        for seed in crate::testing::seeds() {
            let mut numbers = Numbers::new(seed);
            let mut bytes = b"POST /api/command HTTP/1.1\r\nHost: localhost\r\n\
                Content-Length: 12\r\nCookie: a=b; c=d\r\nOrigin: http://localhost\r\n\r\n"
                .to_vec();
            for _ in 0..numbers.below(8) {
                let at = numbers.below(bytes.len() as u64) as usize;
                let byte = numbers.next_u64() as u8;
                match numbers.below(3) {
                    0 => bytes[at] = byte,
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, byte),
                }
            }
            let read = std::panic::catch_unwind(|| drop(RequestHead::parse(&bytes)));
            assert!(read.is_ok(), "seed {seed}");
        }
    }
}
