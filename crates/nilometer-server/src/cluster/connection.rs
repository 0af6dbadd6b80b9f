//! A connection to another node: one command at a time, OP_MSG without compression, logged in as a process of the cluster.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use nilometer::auth::{MEMBER_DATABASE, MEMBER_USER, Mechanism};
use nilometer::operation::DocumentSequence;
use nilometer::{Error, ErrorCode};
use nilometer_bson::{Document, DocumentBuilder, doc};
use rustls::{ClientConnection, StreamOwned};

use super::pool::NodeSecurity;
use crate::limits;
use crate::login::by_scram;
use crate::wire::{HEADER_BYTES, Header};

/// OP_MSG.
const OP_MSG: i32 = 2013;

/// Offset of the body document in an OP_MSG reply, behind its header: after flags and section kind.
const BODY_AT: usize = 5;

/// Longest time for connecting, the handshake of TLS and each message of the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time for sending a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes),
            Self::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }
}

/// A connection that is logged in.
pub(super) struct NodeConnection {
    stream: Stream,
    last_request: i32,
    /// What has arrived of a reply.
    received: Vec<u8>,
    /// The timeout of the socket.
    timeout: Option<Duration>,
}

impl NodeConnection {
    /// Connects to a node and logs in. Both sides prove that they know the key of the cluster.
    pub(super) fn open(address: &str, security: &NodeSecurity) -> Result<Self, Error> {
        let failed = |why: String| unreachable(address, &why);
        let stream = reach(address).map_err(|error| failed(error.to_string()))?;
        let stream = match &security.tls {
            None => Stream::Plain(stream),
            Some(tls) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                Stream::Tls(Box::new(tls.connect(host, stream).map_err(failed)?))
            }
        };
        let mut new = Self {
            stream,
            last_request: 0,
            received: Vec::new(),
            timeout: None,
        };
        let driver = doc! {"name": "nilometer", "version": env!("CARGO_PKG_VERSION")};
        let name = doc! {"name": format!("node {}", security.me)};
        let client = doc! {"application": name, "driver": driver};
        let hello = doc! {"hello": 1, "client": client};
        new.call(address, "admin", &hello)?;
        let account = (MEMBER_USER, security.key.as_str());
        by_scram(Mechanism::Sha256, account, |command| {
            new.call(address, MEMBER_DATABASE, &command)
        })?;
        Ok(new)
    }

    /// Runs a command of the login.
    fn call(
        &mut self,
        address: &str,
        database: &str,
        command: &Document,
    ) -> Result<Document, Error> {
        let failed = |error: io::Error| unreachable(address, &error.to_string());
        let mut body = DocumentBuilder::new();
        body.append_all(command.as_ref());
        body.append("$db", database);
        self.send(&body.finish(), &[]).map_err(failed)?;
        let reply = self.receive(CONNECT_TIMEOUT).map_err(failed)?;
        let reply = reply.ok_or_else(|| unreachable(address, "no reply to a login"))?;
        if reply.get("ok").as_exact_i64() == Some(1) {
            return Ok(reply);
        }
        let text = reply.get("errmsg").as_str().unwrap_or("no reason given");
        Err(unreachable(address, text))
    }

    /// Sends a command.
    pub(super) fn send(
        &mut self,
        body: &Document,
        sequences: &[DocumentSequence],
    ) -> io::Result<()> {
        self.last_request = self.last_request.wrapping_add(1);
        let message = message(self.last_request, body, sequences)?;
        self.stream.write_all(&message)
    }

    /// Waits at most that long for the reply; `None` if it is not there yet. Can be called again then.
    pub(super) fn receive(&mut self, at_most: Duration) -> io::Result<Option<Document>> {
        let until = Instant::now() + at_most;
        let mut buffer = vec![0; limits::READ_BUFFER_BYTES];
        loop {
            let wanted = match self.received.first_chunk::<HEADER_BYTES>() {
                None => HEADER_BYTES,
                Some(head) => {
                    let header = Header::parse(head).map_err(io::Error::other)?;
                    if header.response_to != self.last_request {
                        return Err(io::Error::other("a reply to another request"));
                    }
                    header.length
                }
            };
            if wanted > HEADER_BYTES && self.received.len() >= wanted {
                let message = std::mem::take(&mut self.received);
                let body = message.get(HEADER_BYTES + BODY_AT..).unwrap_or_default();
                let document = Document::from_bytes(body.to_vec());
                let document = document.ok_or_else(|| io::Error::other("no document"))?;
                return Ok(Some(document));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // A timeout of 0 would mean none.
            self.set_timeout(left.max(Duration::from_millis(1)))?;
            let missing = (wanted - self.received.len()).min(buffer.len());
            match self
                .stream
                .read(buffer.get_mut(..missing).unwrap_or_default())
            {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend(buffer.iter().take(count)),
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        if self.timeout != Some(timeout) {
            self.stream.socket().set_read_timeout(Some(timeout))?;
            self.timeout = Some(timeout);
        }
        Ok(())
    }

    /// True if the other side has not closed the connection while it was idle.
    pub(super) fn is_open(&self) -> bool {
        let socket = self.stream.socket();
        let mut byte = [0];
        let is_set = socket.set_nonblocking(true).is_ok();
        let peeked = socket.peek(&mut byte);
        let is_reset = socket.set_nonblocking(false).is_ok();
        let is_idle = matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock);
        is_set && is_reset && is_idle
    }
}

fn is_timeout(error: &io::Error) -> bool {
    use ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Returns the error of a node that does not answer.
pub(super) fn unreachable(address: &str, why: &str) -> Error {
    let text = format!("the node {address} does not answer: {why}");
    Error::new(ErrorCode::HostUnreachable, text)
}

fn reach(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
                stream.set_write_timeout(Some(SEND_TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns a command as a message.
fn message(number: i32, body: &Document, sequences: &[DocumentSequence]) -> io::Result<Vec<u8>> {
    let too_long = |_| io::Error::other("the command is too long for a message");
    let documents: usize = sequences.iter().map(bytes_of).sum();
    let capacity = HEADER_BYTES + BODY_AT + body.as_bytes().len() + documents;
    let mut out = Vec::with_capacity(capacity + 64 * sequences.len());
    for field in [0, number, 0, OP_MSG, 0] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.push(0);
    out.extend_from_slice(body.as_bytes());
    for sequence in sequences {
        let name = sequence.name().as_bytes();
        let length = 4 + name.len() + 1 + bytes_of(sequence);
        out.push(1);
        out.extend_from_slice(&i32::try_from(length).map_err(too_long)?.to_le_bytes());
        out.extend_from_slice(name);
        out.push(0);
        for document in sequence.iter() {
            out.extend_from_slice(document.as_bytes());
        }
    }
    if out.len() > limits::MESSAGE_BYTES_MAX {
        return Err(io::Error::other("the command is too long for a message"));
    }
    let length = i32::try_from(out.len()).map_err(too_long)?;
    if let Some(head) = out.first_chunk_mut::<4>() {
        *head = length.to_le_bytes();
    }
    Ok(out)
}

fn bytes_of(sequence: &DocumentSequence) -> usize {
    let documents = sequence.iter();
    documents.map(|document| document.as_bytes().len()).sum()
}
