//! Requests and responses of HTTP/1, with bounded memory and time.
//!
//! A connection has one request, or several one after the other where the port allows it: then another may follow a
//! response before which the whole request was read.
//!
//! The crate `httparse` parses the head; this module checks its meaning. Fields that affect safety may occur once. A body
//! is only read if the handler requests it. It has a `Content-Length`, or comes in chunks where the handler takes those.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer::session::ClientMetadata;

use crate::connection::client_of;
use crate::registry::{ConnectionEntry, SharedStream};
use crate::tls::{Tls, Transport};

/// Bytes of a request head. Browsers also send the cookies of other services on the same host.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Fields of a request head. Browsers send about twenty.
const FIELDS_MAX: usize = 64;

/// Bytes of a response that are sent in one call.
const PART_BYTES: usize = 64 * 1024;

/// Time for a whole response to be sent.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Bytes to read of an unused body, so that the client reads the response before the connection ends.
const UNWANTED_BYTES_MAX: u64 = 1024 * 1024;

/// Time for reading an unused body.
const UNWANTED_TIME_MAX: Duration = Duration::from_millis(500);

/// Bytes of a head that are read in one call.
const READ_BYTES: usize = 16 * 1024;

/// Bytes of a body that are read in one call.
const BODY_READ_BYTES: usize = 128 * 1024;

/// Bytes of a body for which there is room before they arrive.
const RESERVED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of the line in front of a chunk.
const CHUNK_HEAD_BYTES_MAX: usize = 256;

/// What follows a chunk.
const CHUNK_END: &[u8] = b"\r\n";

/// Fields that may occur only once.
const ONCE: &[&str] = &[
    "authorization",
    "content-encoding",
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

/// A response.
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

    /// Returns a response without a body.
    pub(super) fn no_content() -> Self {
        Self::new("204 No Content", "", "")
    }

    /// Returns the head; `framing` are the lines that describe the body.
    fn head(&self, framing: &str, stays: bool) -> String {
        let mut head = format!("HTTP/1.1 {}\r\n{framing}", self.status);
        if !self.kind.is_empty() {
            head.push_str(&format!("Content-Type: {}\r\n", self.kind));
        }
        if !stays {
            head.push_str("Connection: close\r\n");
        }
        head.push_str("Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n");
        for (name, value) in &self.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head
    }

    /// Returns the body.
    pub(super) fn body(&self) -> &str {
        &self.body
    }

    pub(super) fn status(&self) -> &'static str {
        self.status
    }

    /// Adds a field to the head.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.fields.push((name, value.into()));
        self
    }
}

/// The head of a request.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) method: String,
    /// The path without the query.
    pub(super) path: String,
    /// What follows the question mark; empty if there is none.
    pub(super) query: String,
    /// The fields, with names in lower case.
    fields: Vec<(String, String)>,
    /// True if it is of HTTP/1.1, whose connections stay unless a field says otherwise.
    is_newest: bool,
}

impl RequestHead {
    /// Returns the value of a field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// True if a body follows.
    fn has_body(&self) -> bool {
        let length = self.field("content-length");
        length.is_some_and(|length| length != "0") || self.field("transfer-encoding").is_some()
    }

    /// True if the client may send another request on the connection.
    fn keeps_connection(&self) -> bool {
        let named = self.fields.iter().filter(|(name, _)| name == "connection");
        let mut options = named.flat_map(|(_, value)| value.split(','));
        self.is_newest && !options.any(|option| option.trim().eq_ignore_ascii_case("close"))
    }

    /// Parses a head. Returns `None` if it is incomplete.
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
                return Err(bad(&format!("{name} occurs twice")));
            }
            fields.push((name, value.trim().to_owned()));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (path, query) = (path.to_owned(), query.to_owned());
        let method = method.to_owned();
        let head = Self {
            method,
            path,
            query,
            fields,
            is_newest: request.version == Some(1),
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

/// Why a request cannot be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The client disconnected or was too slow.
    Gone(io::Error),
    /// The request is invalid; this is the response.
    Refused(HttpResponse),
}

impl From<io::Error> for ReadError {
    fn from(problem: io::Error) -> Self {
        Self::Gone(problem)
    }
}

/// A connection with one request at a time.
pub(super) struct Connection {
    entry: Arc<ConnectionEntry>,
    transport: Transport,
    until: Instant,
    /// Bytes read after the head.
    rest: Vec<u8>,
    /// True if the client has sent bytes that were not read.
    unread: bool,
    /// True if another request may follow the response.
    stays: bool,
    /// True if the head of a response in chunks was sent.
    in_chunks: bool,
    /// True if the response breaks off: its end must be missing.
    is_aborted: bool,
}

impl Connection {
    /// Sets up an accepted connection. The request must arrive within `patience`.
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
            stays: false,
            in_chunks: false,
            is_aborted: false,
        })
    }

    /// True if the connection is encrypted.
    pub(super) fn is_tls(&self) -> bool {
        self.transport.is_tls()
    }

    /// Returns its entry in the registry.
    pub(super) fn entry(&self) -> &ConnectionEntry {
        &self.entry
    }

    /// Returns the metadata of the client.
    pub(super) fn client(&self) -> io::Result<ClientMetadata> {
        client_of(&self.entry.stream)
    }

    /// Allows another request after the response to one, if its client keeps the connection.
    pub(super) fn allow_next(&mut self, head: &RequestHead) {
        self.stays = head.keeps_connection();
    }

    /// Waits for the next request to begin, for at most `idle`; it must arrive within `patience` from then on. False if
    /// there is none.
    pub(super) fn await_next(&mut self, idle: Duration, patience: Duration) -> bool {
        self.stays = false;
        self.in_chunks = false;
        self.until = Instant::now() + idle;
        let mut bytes = std::mem::take(&mut self.rest);
        if bytes.is_empty() && self.read_more(&mut bytes, READ_BYTES).is_err() {
            return false;
        }
        self.rest = bytes;
        self.until = Instant::now() + patience;
        true
    }

    /// Reads the head of the request.
    pub(super) fn read_head(&mut self) -> Result<RequestHead, ReadError> {
        let mut bytes = std::mem::take(&mut self.rest);
        let mut reads = bytes.is_empty();
        loop {
            if reads {
                self.read_more(&mut bytes, READ_BYTES)?;
            }
            reads = true;
            let parsed = RequestHead::parse(&bytes).and_then(|parsed| match parsed {
                None if bytes.len() > HEAD_BYTES_MAX => Err(too_long()),
                parsed => Ok(parsed),
            });
            match parsed {
                Ok(Some((head, length))) => {
                    self.rest = bytes.split_off(length.min(bytes.len()));
                    // The handler reads the body if it needs it.
                    self.unread = head.has_body();
                    return Ok(head);
                }
                Ok(None) => {}
                Err(answer) => {
                    self.stays = false;
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
                "a body needs a Content-Length\n",
            ));
        }
        let length = head.field("content-length").unwrap_or("0");
        let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
        let length = digits.then(|| length.parse::<usize>().unwrap_or(usize::MAX));
        let Some(length) = length else {
            return Err(HttpResponse::text(
                "400 Bad Request",
                "Content-Length is not a number\n",
            ));
        };
        if length > bytes_max {
            return Err(HttpResponse::text(
                "413 Content Too Large",
                format!("the body has {length} bytes, the maximum is {bytes_max}\n"),
            ));
        }
        let mut body = std::mem::take(&mut self.rest);
        body.reserve(length.saturating_sub(body.len()).min(RESERVED_BYTES_MAX));
        while body.len() < length {
            let most = BODY_READ_BYTES.min(length - body.len());
            if self.read_more(&mut body, most).is_err() {
                return Err(HttpResponse::text(
                    "408 Request Timeout",
                    "the body did not arrive\n",
                ));
            }
        }
        self.rest = body.split_off(length);
        self.unread = false;
        Ok(body)
    }

    /// Gives the request this much time from now on to arrive.
    pub(super) fn extend_deadline(&mut self, patience: Duration) {
        self.until = Instant::now() + patience;
    }

    /// Tells a client that waits for it before it sends the body to do so.
    pub(super) fn accept_body(&mut self, head: &RequestHead) -> io::Result<()> {
        let waits = head
            .field("expect")
            .is_some_and(|expected| expected.eq_ignore_ascii_case("100-continue"));
        if waits && self.rest.is_empty() {
            self.transport.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            self.transport.flush()?;
        }
        Ok(())
    }

    /// Reads the body of the request, of at most `bytes_max`, also one in chunks.
    pub(super) fn read_body_or_chunks(
        &mut self,
        head: &RequestHead,
        bytes_max: usize,
    ) -> Result<Vec<u8>, HttpResponse> {
        match head.field("transfer-encoding") {
            None => self.read_body(head, bytes_max),
            Some(coding) if coding.eq_ignore_ascii_case("chunked") => {
                if head.field("content-length").is_some() {
                    return Err(HttpResponse::text(
                        "400 Bad Request",
                        "a body in chunks has no Content-Length\n",
                    ));
                }
                self.read_chunks(bytes_max)
            }
            Some(_) => Err(HttpResponse::text(
                "501 Not Implemented",
                "the only transfer coding is chunked\n",
            )),
        }
    }

    /// Reads a body in chunks, and the fields behind it, which are ignored.
    fn read_chunks(&mut self, bytes_max: usize) -> Result<Vec<u8>, HttpResponse> {
        let bad = || HttpResponse::text("400 Bad Request", "a chunk of the body is invalid\n");
        let late = |_| HttpResponse::text("408 Request Timeout", "the body did not arrive\n");
        let mut unread = std::mem::take(&mut self.rest);
        let (mut body, mut at) = (Vec::new(), 0);
        loop {
            let (begin, length) = loop {
                let rest = unread.get(at..).unwrap_or_default();
                match httparse::parse_chunk_size(rest).map_err(|_| bad())? {
                    httparse::Status::Complete((begin, length)) => break (at + begin, length),
                    httparse::Status::Partial if rest.len() > CHUNK_HEAD_BYTES_MAX => {
                        return Err(bad());
                    }
                    httparse::Status::Partial => {
                        unread.drain(..at);
                        at = 0;
                        self.read_more(&mut unread, BODY_READ_BYTES).map_err(late)?;
                    }
                }
            };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > bytes_max.saturating_sub(body.len()) {
                return Err(HttpResponse::text(
                    "413 Content Too Large",
                    format!("the body has more than {bytes_max} bytes\n"),
                ));
            }
            if length == 0 {
                // If fields follow, the connection ends after the response.
                unread.drain(..begin);
                while unread.len() < CHUNK_END.len()
                    && self.read_more(&mut unread, READ_BYTES).is_ok()
                {}
                self.unread = !unread.starts_with(CHUNK_END);
                if !self.unread {
                    self.rest = unread.split_off(CHUNK_END.len());
                }
                return Ok(body);
            }
            let end = begin + length;
            while unread.len() < end + CHUNK_END.len() {
                self.read_more(&mut unread, BODY_READ_BYTES).map_err(late)?;
            }
            body.extend_from_slice(unread.get(begin..end).unwrap_or_default());
            at = end + CHUNK_END.len();
            if unread.get(end..at) != Some(CHUNK_END) {
                return Err(bad());
            }
        }
    }

    /// Sends the head of a response whose body follows in chunks, see [`Self::send_chunk`].
    pub(super) fn begin_chunks(&mut self, answer: &HttpResponse) -> io::Result<()> {
        self.in_chunks = true;
        self.stays &= !self.unread;
        let head = answer.head("Transfer-Encoding: chunked\r\n", self.stays);
        self.write(head.as_bytes())
    }

    /// Sends slices as one part of the body, not an empty one.
    pub(super) fn send_chunk(&mut self, slices: &[&[u8]]) -> io::Result<()> {
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if length == 0 {
            return Ok(());
        }
        self.write(format!("{length:x}\r\n").as_bytes())?;
        for slice in slices {
            self.write(slice)?;
        }
        self.write(CHUNK_END)?;
        self.transport.flush()
    }

    /// Gives the client this much time to take each part of the response.
    pub(super) fn extend_send_patience(&self, patience: Duration) -> io::Result<()> {
        self.entry.stream.set_write_timeout(Some(patience))
    }

    /// True if the head of a response in chunks was sent.
    pub(super) fn has_begun(&self) -> bool {
        self.in_chunks
    }

    /// Makes a response in chunks end without its last chunk, so that the client sees that it is not complete.
    pub(super) fn abort(&mut self) {
        self.is_aborted = true;
    }

    /// Reads more bytes, at most `most`, waiting until the deadline of the request.
    fn read_more(&mut self, bytes: &mut Vec<u8>, most: usize) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.entry.stream.set_read_timeout(Some(left))?;
        let before = bytes.len();
        bytes.resize(before + most, 0);
        let read = self.transport.read(&mut bytes[before..]);
        bytes.truncate(before + read.as_ref().unwrap_or(&0));
        match read? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Sends the response, or the end of the one in chunks that was begun. True if another request may follow.
    pub(super) fn send(&mut self, answer: &HttpResponse, head_only: bool) -> io::Result<bool> {
        if self.in_chunks && self.is_aborted {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if self.in_chunks {
            self.write(b"0\r\n\r\n")?;
        } else {
            let length = match answer.kind {
                "" => String::new(),
                _ => format!("Content-Length: {}\r\n", answer.body.len()),
            };
            self.stays &= !self.unread;
            self.write(answer.head(&length, self.stays).as_bytes())?;
            if !head_only {
                self.write(answer.body.as_bytes())?;
            }
        }
        self.transport.flush()?;
        if self.unread {
            self.drain();
        }
        Ok(self.stays)
    }

    /// Writes in parts, so that a slow reader is not waited for forever.
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

    /// Reads unused bytes: closing a connection with unread bytes resets it, and the response may be lost.
    fn drain(&mut self) {
        let until = Instant::now() + UNWANTED_TIME_MAX;
        let stream = &self.entry.stream;
        // It may be closed already; then there is nothing to read.
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
    fn fields_that_affect_safety_occur_once() {
        let twice = b"GET / HTTP/1.1\r\nHost: x\r\nHOST: y\r\n\r\n";
        let answer = RequestHead::parse(twice).unwrap_err();
        assert!(answer.body.contains("host occurs twice"), "{answer:?}");
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
