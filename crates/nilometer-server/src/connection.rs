//! One connection: read a message, run it, answer, until the client leaves.
//!
//! A message that is malformed inside a sound frame is answered with an error and the connection
//! goes on; after one whose frame cannot be trusted the error is sent, if there is something to
//! answer to, and the connection closed. A command that panics is our mistake: the client gets
//! error 1 and the connection is closed, other connections go on.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use nilometer::commands::error_reply;
use nilometer::session::{ClientMetadata, ClientSession};
use nilometer::{Database, Request};
use nilometer_bson::Document;
use tracing::{debug, error, info, warn};

use crate::registry::{Entry, SharedStream};
use crate::tls::{Tls, Transport};
use crate::wire::{self, Compressor, HEADER_BYTES, Header, Message, OpCode, ReplyForm, WireError};
use crate::{command, limits};

/// Numbers of the messages this process sends.
static LAST_REQUEST_ID: AtomicI32 = AtomicI32::new(0);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum End {
    /// The client hung up between two messages, or the server shuts down.
    #[error("closed")]
    Closed,
    /// The client sent what cannot be read.
    #[error(transparent)]
    Malformed(#[from] WireError),
    /// The client stopped in the middle of a message.
    #[error("no data for {} s within a message", limits::STALL_TIMEOUT.as_secs())]
    Stalled,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A command panicked.
    #[error("a command failed unexpectedly")]
    Panicked,
}

/// A connection and what it needs.
pub(crate) struct Connection<'a> {
    database: &'a Database,
    session: ClientSession,
    entry: Arc<Entry>,
    stream: BufReader<Transport>,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(
        database: &'a Database,
        entry: Arc<Entry>,
        compressors: &[Compressor],
        tls: Option<&Tls>,
    ) -> io::Result<Self> {
        let stream = &entry.stream;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limits::STALL_TIMEOUT))?;
        stream.set_write_timeout(Some(limits::STALL_TIMEOUT))?;
        let mut session = ClientSession::new(entry.id, client_of(stream)?);
        session.compressors = compressors.iter().map(|c| c.name()).collect();
        let connections = &database.services().connections;
        connections.open(entry.id, session.client.clone());
        let stream = SharedStream(entry.clone());
        let transport = match tls {
            None => Transport::plain(stream),
            Some(tls) => {
                let opened = tls.open(stream)?;
                session.certificate_subject = opened.subject;
                opened.transport
            }
        };
        if transport.is_tls() {
            entry.mark_tls();
        }
        entry.stream.set_read_timeout(Some(limits::STALL_TIMEOUT))?;
        Ok(Self {
            database,
            session,
            entry,
            stream: BufReader::with_capacity(limits::READ_BUFFER_BYTES, transport),
        })
    }

    /// Serves the connection until it ends.
    pub(crate) fn serve(mut self) {
        let end = loop {
            if let Err(end) = self.serve_one() {
                break end;
            }
        };
        let remote = self.session.client.remote.as_str();
        match end {
            End::Closed => {}
            End::Malformed(problem) => {
                let problem = problem.to_string();
                info!(c = "NETWORK", id = 22_988, remote, error = %problem, "Closing connection after a malformed message");
            }
            End::Stalled => {
                info!(c = "NETWORK", id = 22_989, remote, error = %end, "Closing connection that stalled");
            }
            End::Io(problem) => {
                debug!(c = "NETWORK", id = 22_990, remote, error = %problem, "Connection failed");
            }
            End::Panicked => {
                error!(
                    c = "COMMAND",
                    id = 22_991,
                    remote,
                    "Closing connection after a command failed unexpectedly"
                );
            }
        }
    }

    fn serve_one(&mut self) -> Result<(), End> {
        let (header, bytes) = self.read_message()?;
        let network = &self.database.services().counters.network;
        let physical = bytes.len() as u64;
        network.requests.increment();
        network.physical_bytes_in.add(physical);
        let compressed = header.opcode == OpCode::Compressed;
        let incoming = match wire::parse(header, bytes) {
            Ok(incoming) => incoming,
            Err(problem) => {
                network.bytes_in.add(physical);
                return self.refuse(header, compressed, problem);
            }
        };
        network.bytes_in.add(incoming.uncompressed_bytes as u64);
        let (request, wants_answer) = match incoming.message {
            Message::Msg(msg) => (msg.request, !msg.more_to_come),
            Message::Query(query) => (query.request, true),
        };
        let (reply, panicked) = match &request {
            Ok(request) => self.run(request),
            Err(problem) => (error_reply(&problem.to_error()), false),
        };
        drop(request);
        if wants_answer {
            self.write_reply(incoming.form, &reply)?;
        }
        if panicked { Err(End::Panicked) } else { Ok(()) }
    }

    /// Answers a message of which not even the outer form could be read.
    fn refuse(&mut self, header: Header, compressed: bool, problem: WireError) -> Result<(), End> {
        let form = ReplyForm {
            response_to: header.request_id,
            opcode: match header.opcode {
                OpCode::Query => OpCode::Reply,
                _ => OpCode::Msg,
            },
            compressor: None,
        };
        // Inside a compressed message that cannot be opened nobody knows what was asked.
        if !compressed {
            self.write_reply(form, &error_reply(&problem.to_error()))?;
        }
        if problem.is_fatal() || compressed {
            Err(End::Malformed(problem))
        } else {
            Ok(())
        }
    }

    /// Runs a command. The second value is true if it panicked.
    fn run(&mut self, request: &Request) -> (Document, bool) {
        let active = &self.database.services().counters.connections.active;
        active.increment();
        self.entry.begin_command();
        let outcome = command::run(self.database, &mut self.session, request);
        self.entry.end_command();
        active.decrement();
        outcome
    }

    /// Waits for a message and reads all of it.
    fn read_message(&mut self) -> Result<(Header, Vec<u8>), End> {
        self.wait_for_message()?;
        let started = Instant::now();
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head).map_err(within_message)?;
        let header = Header::parse(&head)?;
        let mut bytes = Vec::with_capacity(header.length.min(limits::TRUSTED_ALLOCATION_BYTES));
        bytes.extend_from_slice(&head);
        while bytes.len() < header.length {
            // Room is made as bytes arrive: never more than twice of what is there.
            let missing = header.length - bytes.len();
            let room = (bytes.capacity() - bytes.len())
                .max(bytes.len())
                .min(missing);
            bytes.reserve(room);
            let part = u64::try_from(room).unwrap_or(u64::MAX);
            let read = self.stream.by_ref().take(part).read_to_end(&mut bytes);
            if read.map_err(within_message)? < room {
                return Err(WireError::Truncated("a message").into());
            }
            if started.elapsed() > limits::MESSAGE_TIMEOUT {
                return Err(End::Stalled);
            }
        }
        Ok((header, bytes))
    }

    /// Blocks until a byte is there. A connection may rest as long as it likes.
    fn wait_for_message(&mut self) -> Result<(), End> {
        loop {
            match self.stream.fill_buf() {
                Ok([]) => return Err(End::Closed),
                Ok(_) => return Ok(()),
                Err(e) if is_timeout(&e) || e.kind() == ErrorKind::Interrupted => {
                    if self.entry.is_closing() {
                        return Err(End::Closed);
                    }
                }
                // A client inside TLS may leave without saying so.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
                    ) =>
                {
                    return Err(End::Closed);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn write_reply(&mut self, form: ReplyForm, document: &Document) -> Result<(), End> {
        let request_id = LAST_REQUEST_ID.fetch_add(1, Ordering::Relaxed);
        let front = wire::reply(request_id, form, document, limits::COPIED_REPLY_BYTES_MAX)?;
        let stream = self.stream.get_mut();
        stream.write_all(&front.bytes)?;
        let mut physical = front.bytes.len() as u64;
        if front.document_follows {
            stream.write_all(document.as_bytes())?;
            physical += document.as_bytes().len() as u64;
        }
        stream.flush()?;
        let network = &self.database.services().counters.network;
        network.physical_bytes_out.add(physical);
        network.bytes_out.add(front.uncompressed_bytes as u64);
        Ok(())
    }
}

/// What a socket tells of its client.
pub(crate) fn client_of(stream: &TcpStream) -> io::Result<ClientMetadata> {
    let remote = stream.peer_addr()?;
    Ok(ClientMetadata {
        document: None,
        remote: remote.to_string(),
        local: stream.local_addr()?.to_string(),
        same_machine: remote.ip().to_canonical().is_loopback(),
    })
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn within_message(error: io::Error) -> End {
    if is_timeout(&error) {
        End::Stalled
    } else if error.kind() == ErrorKind::UnexpectedEof {
        WireError::Truncated("a message").into()
    } else {
        warn!(c = "NETWORK", id = 22_993, error = %error, "Reading a message failed");
        error.into()
    }
}
