//! One connection: reads a message, runs it, answers, until the client disconnects.
//!
//! A malformed message in a valid frame is answered with an error and the connection stays open. After a message with
//! an invalid frame the error is sent, if there is a request to answer, and the connection is closed. A command that
//! panics is a bug: the client gets error 1 and its connection is closed; other connections are not affected.
//! A `hello` that waits releases its thread ([`crate::awaited_hello`]).

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nilometer::Request;
use nilometer::commands::error_reply;
use nilometer::router::PARTITION_FIELD;
use nilometer::session::{ClientMetadata, ClientSession};
use nilometer_bson::Document;
use tracing::{debug, error, info, warn};

use crate::awaited_hello::{AwaitedHello, ConnectionCount, ConnectionGuard, KnownTopology};
use crate::database_slot::DatabaseSlot;
use crate::idle_connections::IdleConnections;
use crate::message_memory::{MemoryShare, MessageMemory};
use crate::registry::{ConnectionEntry, SharedStream};
use crate::server::{ServerState, Timeouts};
use crate::tls::Transport;
use crate::wire::{self, HEADER_BYTES, Header, Message, OpCode, ReplyForm, WireError};
use crate::{command, limits};

/// The last id of a message sent by this process.
static LAST_REQUEST_ID: AtomicI32 = AtomicI32::new(0);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum ConnectionEnd {
    /// The client disconnected between two messages, or the server shuts down.
    #[error("closed")]
    Closed,
    /// The client sent a message that cannot be parsed.
    #[error(transparent)]
    Malformed(#[from] WireError),
    /// The client stopped in the middle of a message, or reads its answer too slowly.
    #[error("too slow within a message")]
    Stalled,
    /// Idle: it needs no thread until input arrives.
    #[error("idle")]
    Idle,
    /// It was answered, and other connections wait for its thread.
    #[error("yields its thread")]
    YieldsThread,
    /// Its `hello` waits for a change of the topology.
    #[error("waits for a change of the topology")]
    Awaits(Box<AwaitedHello>),
    /// The client has sent nothing since it connected.
    #[error("no message since it connected")]
    NoFirstMessage,
    /// Other messages use all memory for messages.
    #[error("no memory for a message of {0} bytes: messages of other connections use it")]
    NoMemory(usize),
    /// A client sent a message that is too large before a login.
    #[error("a message of {0} bytes before a login: the maximum is {max}", max = limits::UNAUTHENTICATED_MESSAGE_BYTES_MAX)]
    TooLargeBeforeLogin(usize),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A command panicked.
    #[error("a command failed unexpectedly")]
    Panicked,
}

/// Why a connection releases its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseReason {
    /// It is idle.
    Idle,
    /// It is active but shares threads.
    Yield,
    /// It waits for a change of the topology.
    Await,
}

/// The state of a connection between two messages: all that is kept without a thread.
pub(crate) struct IdleConnection {
    session: ClientSession,
    entry: Arc<ConnectionEntry>,
    transport: Transport,
    /// When it connected; `None` after its first message.
    silent_since: Option<Instant>,
    /// The `hello` that waits.
    awaited: Option<(Box<AwaitedHello>, ConnectionGuard)>,
}

impl IdleConnection {
    /// Sets up an accepted connection, with the TLS handshake if TLS is used.
    pub(crate) fn open(shared: &ServerState, entry: Arc<ConnectionEntry>) -> io::Result<Self> {
        let timeouts = shared.timeouts;
        let connected = Instant::now();
        let stream = &entry.stream;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeouts.stall))?;
        stream.set_write_timeout(Some(timeouts.stall))?;
        let mut session = ClientSession::new(entry.id, client_of(stream)?);
        session.compressors = shared.compressors.iter().map(|c| c.name()).collect();
        let connections = &shared.database.services().connections;
        connections.open(entry.id, session.client.clone());
        let stream = SharedStream(entry.clone());
        let transport = match &shared.tls {
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
        // Within a message `DeadlineStream` waits longer.
        entry.stream.set_read_timeout(Some(timeouts.idle))?;
        Ok(Self {
            session,
            entry,
            transport,
            silent_since: Some(connected),
            awaited: None,
        })
    }

    /// Returns when its `hello` is due, if one waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.awaited.as_ref().map(|(hello, _)| hello.due())
    }

    /// Returns what the client knows whose `hello` waits.
    pub(crate) fn known_topology(&self) -> Option<KnownTopology> {
        self.awaited.as_ref().map(|(hello, _)| hello.known())
    }

    /// Returns the registry's entry of the connection.
    pub(crate) fn entry(&self) -> &ConnectionEntry {
        &self.entry
    }

    /// Returns the registry's entry as a handle.
    pub(crate) fn entry_handle(&self) -> Arc<ConnectionEntry> {
        self.entry.clone()
    }

    /// Serves the connection until it ends or releases its thread. In the latter case returns the connection.
    pub(crate) fn serve(
        self,
        shared: &ServerState,
        reader: &mut ConnectionReader,
    ) -> Option<(Self, PauseReason)> {
        *reader.0.get_mut() = self.transport;
        Connection {
            database: &shared.database,
            session: self.session,
            entry: self.entry,
            stream: &mut reader.0,
            timeouts: shared.timeouts,
            memory: &shared.message_memory,
            idle_connections: &shared.idle_connections,
            silent_since: self.silent_since,
        }
        .serve(self.awaited.map(|(hello, _)| hello))
    }
}

/// The read buffer of a thread, used for its connections one after the other. It is empty between two connections.
pub(crate) struct ConnectionReader(BufReader<Transport>);

impl ConnectionReader {
    /// Returns a buffer without a connection.
    pub(crate) fn new() -> Self {
        let reader = BufReader::with_capacity(limits::READ_BUFFER_BYTES, Transport::None);
        Self(reader)
    }
}

/// A connection with a thread.
struct Connection<'a> {
    database: &'a DatabaseSlot,
    session: ClientSession,
    entry: Arc<ConnectionEntry>,
    stream: &'a mut BufReader<Transport>,
    timeouts: Timeouts,
    memory: &'a MessageMemory,
    idle_connections: &'a IdleConnections,
    silent_since: Option<Instant>,
}

/// True if `reply` is a batch of `getMore` that another follows.
fn has_next_batch(request: &Request, reply: &Document) -> bool {
    let cursor = reply.get("cursor").as_document();
    let id = cursor.and_then(|cursor| cursor.get("id").as_exact_i64());
    request.command_name() == "getMore" && id.is_some_and(|id| id != 0)
}

impl<'a> Connection<'a> {
    /// Serves the connection, first the `hello` that it resumes for.
    fn serve(
        mut self,
        mut awaited: Option<Box<AwaitedHello>>,
    ) -> Option<(IdleConnection, PauseReason)> {
        let end = loop {
            let served = match awaited.take() {
                Some(hello) => self.answer_or_wait(hello),
                None => self.serve_one(),
            };
            if let Err(end) = served {
                break end;
            }
        };
        let remote = self.session.client.remote.as_str();
        match end {
            ConnectionEnd::Closed => {}
            ConnectionEnd::Idle => return Some((self.pause(None), PauseReason::Idle)),
            ConnectionEnd::YieldsThread => return Some((self.pause(None), PauseReason::Yield)),
            ConnectionEnd::Awaits(hello) => {
                return Some((self.pause(Some(hello)), PauseReason::Await));
            }
            ConnectionEnd::Malformed(problem) => {
                let problem = problem.to_string();
                info!(c = "NETWORK", id = 22_988, remote, error = %problem, "Closing connection after a malformed message");
            }
            ConnectionEnd::Stalled
            | ConnectionEnd::NoFirstMessage
            | ConnectionEnd::NoMemory(_)
            | ConnectionEnd::TooLargeBeforeLogin(_) => {
                info!(c = "NETWORK", id = 22_989, remote, error = %end, "Closing connection of a client that is too slow or needs too much memory");
            }
            ConnectionEnd::Io(problem) => {
                debug!(c = "NETWORK", id = 22_990, remote, error = %problem, "Connection failed");
            }
            ConnectionEnd::Panicked => {
                error!(
                    c = "COMMAND",
                    id = 22_991,
                    remote,
                    "Closing connection after a command failed unexpectedly"
                );
            }
        }
        *self.stream.get_mut() = Transport::None;
        None
    }

    /// Returns the state to keep. Nothing was read ahead: an idle connection waits for the first byte, and
    /// [`Connection::yields_thread`] and [`Connection::input`] check.
    fn pause(self, awaited: Option<Box<AwaitedHello>>) -> IdleConnection {
        let guard = |hello| {
            let guard = ConnectionGuard::new(self.database.services(), ConnectionCount::Awaiting);
            (hello, guard)
        };
        IdleConnection {
            awaited: awaited.map(guard),
            session: self.session,
            entry: self.entry,
            transport: std::mem::replace(self.stream.get_mut(), Transport::None),
            silent_since: None,
        }
    }

    /// True if a byte of the client's next message has arrived.
    fn input(&self) -> Result<bool, ConnectionEnd> {
        if !self.stream.buffer().is_empty() || self.stream.get_ref().has_read_ahead() {
            return Ok(true);
        }
        self.entry.input().ok_or(ConnectionEnd::Closed)
    }

    /// True if others wait for this thread and no byte of this client's next message was read.
    fn yields_thread(&self) -> bool {
        self.idle_connections.shares_threads()
            && self.stream.buffer().is_empty()
            && !self.stream.get_ref().has_read_ahead()
    }

    fn serve_one(&mut self) -> Result<(), ConnectionEnd> {
        let (header, bytes, room) = self.read_message()?;
        let network = &self.database.services().counters.network;
        let physical = bytes.len() as u64;
        network.requests.increment();
        network.physical_bytes_in.add(physical);
        let compressed = header.opcode == OpCode::Compressed;
        let unpacked = self.reserve_memory(wire::unpacked_bytes(&header, &bytes))?;
        let incoming = match wire::parse(header, bytes) {
            Ok(incoming) => incoming,
            Err(problem) => {
                network.bytes_in.add(physical);
                return self.refuse(header, compressed, problem);
            }
        };
        network.bytes_in.add(incoming.uncompressed_bytes as u64);
        let (request, wants_answer, exhausts) = match incoming.message {
            Message::Msg(msg) => (msg.request, !msg.more_to_come, msg.exhaust_allowed),
            Message::Query(query) => (query.request, true, false),
        };
        let mut form = incoming.form;
        if let Ok(request) = &request
            && wants_answer
            && let Some(hello) =
                AwaitedHello::new(&self.database.current(), request, form, exhausts)
        {
            return self.answer_or_wait(hello);
        }
        let (reply, panicked) = match &request {
            Ok(request) if exhausts && wants_answer => self.exhaust(request, &mut form)?,
            Ok(request) => self.run(request),
            Err(problem) => (error_reply(&problem.to_error()), false),
        };
        drop((request, room, unpacked));
        if wants_answer {
            self.write_reply(form, &reply)?;
        }
        match panicked {
            true => Err(ConnectionEnd::Panicked),
            false if self.yields_thread() => Err(ConnectionEnd::YieldsThread),
            false => Ok(()),
        }
    }

    /// Answers a `hello` that waits, if the time is over or the client has sent more. A client that takes several answers
    /// gets this one with `moreToCome`, and waits for the next.
    fn answer_or_wait(&mut self, mut hello: Box<AwaitedHello>) -> Result<(), ConnectionEnd> {
        let has_input = self.input()?;
        if !has_input && !hello.is_due() {
            return Err(ConnectionEnd::Awaits(hello));
        }
        hello.begin_answer(self.database.services());
        let (reply, panicked) = self.run(&hello.request);
        let failed = reply.get("ok").as_exact_i64() != Some(1);
        let form = ReplyForm {
            more_to_come: hello.streams && !has_input && !failed,
            ..hello.form
        };
        let request_id = self.write_reply(form, &reply)?;
        if form.more_to_come {
            hello.continue_after(self.database.services(), request_id);
            return Err(ConnectionEnd::Awaits(hello));
        }
        drop(hello);
        match panicked {
            true => Err(ConnectionEnd::Panicked),
            false if self.yields_thread() => Err(ConnectionEnd::YieldsThread),
            false => Ok(()),
        }
    }

    /// Runs a command whose client takes several answers: writes all batches of a `getMore` but the last, which is
    /// returned. Each reply answers the one before it.
    fn exhaust(
        &mut self,
        request: &Request,
        form: &mut ReplyForm,
    ) -> Result<(Document, bool), ConnectionEnd> {
        loop {
            let (reply, panicked) = self.run(request);
            if panicked || !has_next_batch(request, &reply) {
                return Ok((reply, panicked));
            }
            if self.entry.is_closing() {
                return Err(ConnectionEnd::Closed);
            }
            let more = ReplyForm {
                more_to_come: true,
                ..*form
            };
            form.response_to = self.write_reply(more, &reply)?;
        }
    }

    /// Answers a message whose outer form is invalid.
    fn refuse(
        &mut self,
        header: Header,
        compressed: bool,
        problem: WireError,
    ) -> Result<(), ConnectionEnd> {
        let form = ReplyForm {
            response_to: header.request_id,
            opcode: match header.opcode {
                OpCode::Query => OpCode::Reply,
                _ => OpCode::Msg,
            },
            compressor: None,
            more_to_come: false,
        };
        // The request in a compressed message that cannot be decompressed is unknown.
        if !compressed {
            self.write_reply(form, &error_reply(&problem.to_error()))?;
        }
        if problem.is_fatal() || compressed {
            Err(ConnectionEnd::Malformed(problem))
        } else {
            Ok(())
        }
    }

    /// Runs a command. The second value is true if it panicked.
    fn run(&mut self, request: &Request) -> (Document, bool) {
        let active = &self.database.services().counters.connections.active;
        active.increment();
        self.entry.begin_command();
        let outcome = match self.database.node() {
            Some(node) if request.body.as_ref().contains(PARTITION_FIELD) => {
                command::run_for_node(node, &self.session, request)
            }
            _ => self.run_for_client(request),
        };
        self.entry.end_command();
        active.decrement();
        outcome
    }

    fn run_for_client(&mut self, request: &Request) -> (Document, bool) {
        let is_closing = || self.entry.is_closing();
        match self.database.current_for(request, &is_closing) {
            Ok(database) => command::run(&database, &mut self.session, request),
            Err(error) => (error_reply(&error), false),
        }
    }

    /// Waits for a message and reads it completely.
    fn read_message(&mut self) -> Result<(Header, Vec<u8>, MemoryShare<'a>), ConnectionEnd> {
        self.wait_for_message()?;
        let until = Instant::now() + self.timeouts.message;
        let mut stream = DeadlineStream {
            stream: &mut *self.stream,
            until,
            stall: self.timeouts.stall,
        };
        let mut head = [0; HEADER_BYTES];
        stream.read_exact(&mut head).map_err(within_message)?;
        let header = Header::parse(&head)?;
        let room = self.reserve_memory(header.length)?;
        let mut stream = DeadlineStream {
            stream: &mut *self.stream,
            until,
            stall: self.timeouts.stall,
        };
        let mut bytes = Vec::with_capacity(header.length.min(limits::TRUSTED_ALLOCATION_BYTES));
        bytes.extend_from_slice(&head);
        while bytes.len() < header.length {
            // Allocate as bytes arrive: at most twice the bytes received.
            let missing = header.length - bytes.len();
            let more = (bytes.capacity() - bytes.len())
                .max(bytes.len())
                .min(missing);
            bytes.reserve(more);
            let part = u64::try_from(more).unwrap_or(u64::MAX);
            let read = stream.by_ref().take(part).read_to_end(&mut bytes);
            if read.map_err(within_message)? < more {
                return Err(WireError::Truncated("a message").into());
            }
        }
        self.silent_since = None;
        Ok((header, bytes, room))
    }

    /// Reserves memory for a message of `length` bytes from this client.
    fn reserve_memory(&self, length: usize) -> Result<MemoryShare<'a>, ConnectionEnd> {
        let asks = self.database.services().access_control;
        let login = &self.session.login;
        let is_unauthenticated = asks && login.user().is_none() && !login.is_member();
        if is_unauthenticated && length > limits::UNAUTHENTICATED_MESSAGE_BYTES_MAX {
            return Err(ConnectionEnd::TooLargeBeforeLogin(length));
        }
        let room = self.memory.take(length, self.timeouts.stall);
        room.ok_or(ConnectionEnd::NoMemory(length))
    }

    /// Blocks until a byte arrives. Only the first message has a time limit; later the connection may be idle.
    fn wait_for_message(&mut self) -> Result<(), ConnectionEnd> {
        loop {
            match self.stream.fill_buf() {
                Ok([]) => return Err(ConnectionEnd::Closed),
                Ok(_) => return Ok(()),
                Err(e) if is_timeout(&e) || e.kind() == ErrorKind::Interrupted => {
                    if self.entry.is_closing() {
                        return Err(ConnectionEnd::Closed);
                    }
                    match self.silent_since {
                        None => return Err(ConnectionEnd::Idle),
                        Some(since) if since.elapsed() >= self.timeouts.first_message => {
                            return Err(ConnectionEnd::NoFirstMessage);
                        }
                        Some(_) => {}
                    }
                }
                // A TLS client may disconnect without a close notification.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
                    ) =>
                {
                    return Err(ConnectionEnd::Closed);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Writes a reply; returns its id.
    fn write_reply(&mut self, form: ReplyForm, document: &Document) -> Result<i32, ConnectionEnd> {
        if self.session.closes_connection {
            return Err(ConnectionEnd::Closed);
        }
        let request_id = LAST_REQUEST_ID.fetch_add(1, Ordering::Relaxed);
        let front = wire::reply(request_id, form, document, limits::COPIED_REPLY_BYTES_MAX)?;
        let length = document.as_bytes().len();
        let room = self.memory.take(length, self.timeouts.stall);
        let _room = room.ok_or(ConnectionEnd::NoMemory(length))?;
        let mut stream = DeadlineStream {
            stream: self.stream.get_mut(),
            until: Instant::now() + self.timeouts.message,
            stall: self.timeouts.stall,
        };
        let write = |bytes: &[u8], stream: &mut DeadlineStream<'_, Transport>| {
            stream
                .write_all(bytes)
                .map_err(|problem| match is_timeout(&problem) {
                    true => ConnectionEnd::Stalled,
                    false => problem.into(),
                })
        };
        write(&front.bytes, &mut stream)?;
        let mut physical = front.bytes.len() as u64;
        if front.document_follows {
            write(document.as_bytes(), &mut stream)?;
            physical += length as u64;
        }
        stream.flush()?;
        let network = &self.database.services().counters.network;
        network.physical_bytes_out.add(physical);
        network.bytes_out.add(front.uncompressed_bytes as u64);
        Ok(request_id)
    }
}

/// A stream with a deadline, so that a client that transfers a byte now and then cannot hold a message forever.
struct DeadlineStream<'s, S> {
    stream: &'s mut S,
    until: Instant,
    /// Maximum silence. A read of the socket times out earlier.
    stall: Duration,
}

impl<S> DeadlineStream<'_, S> {
    fn check(&self) -> io::Result<()> {
        match Instant::now() < self.until {
            true => Ok(()),
            false => Err(ErrorKind::TimedOut.into()),
        }
    }
}

impl<S: Read> Read for DeadlineStream<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let began = Instant::now();
        loop {
            self.check()?;
            match self.stream.read(buffer) {
                Err(problem) if is_timeout(&problem) && began.elapsed() < self.stall => {}
                other => return other,
            }
        }
    }
}

impl<S: Write> Write for DeadlineStream<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Returns the metadata of a client from its socket.
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

fn within_message(error: io::Error) -> ConnectionEnd {
    if is_timeout(&error) {
        ConnectionEnd::Stalled
    } else if error.kind() == ErrorKind::UnexpectedEof {
        WireError::Truncated("a message").into()
    } else {
        warn!(c = "NETWORK", id = 22_993, error = %error, "Reading a message failed");
        error.into()
    }
}
