//! A minimal client for the program's own commands.
//!
//! One connection, with or without TLS, logged in if the connection string names a user; one command at a time, OP_MSG
//! without compression.

mod login;
mod uri;

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nilometer_bson::{Document, DocumentBuilder, doc};

use super::Failure;
use crate::limits;
use crate::wire::{HEADER_BYTES, Header};
use uri::{LoginMethod, Uri};

/// OP_MSG.
const OP_MSG: i32 = 2013;

/// Offset of the body document in an OP_MSG answer: after flags and section kind.
const BODY_AT: usize = HEADER_BYTES + 5;

/// The name of the only document sequence.
const SEQUENCE: &[u8] = b"documents\0";

/// Options for the server and the user.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// The server, such as mongodb://USER@HOST:PORT/?authSource=admin&tls=true
    #[arg(long, value_name = "URI", default_value = "mongodb://127.0.0.1:27017")]
    uri: String,
    /// File whose first line is the password, if the URI has none; else NILOMETER_PASSWORD, else a prompt
    #[arg(long = "passwordFile", value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl ServerArgs {
    /// Connects and logs in.
    pub(super) fn open(&self) -> Result<Connection, Failure> {
        self.clone().login()?.open()
    }

    /// Resolves user and password, so that several connections can log in.
    pub(super) fn login(&self) -> Result<Login, Failure> {
        let mut uri = Uri::parse(&self.uri)?;
        match &mut uri.account {
            Some(account) => login::find_password(account, self.password_file.as_deref())?,
            None if self.password_file.is_some() => {
                return Err(Failure::Options(
                    "--passwordFile is given, but --uri names no user".into(),
                ));
            }
            None => {}
        }
        Ok(Login(uri))
    }

    /// Returns the database in the URI.
    pub(super) fn database(&self) -> Result<Option<String>, Failure> {
        Ok(Uri::parse(&self.uri)?.database)
    }
}

/// A server and the user that logs in.
#[derive(Clone)]
pub(super) struct Login(Uri);

impl Login {
    /// Returns the server as `host:port`.
    pub(super) fn address(&self) -> String {
        self.0.address()
    }

    /// Connects and logs in.
    pub(super) fn open(&self) -> Result<Connection, Failure> {
        let mut server = Connection::to(&self.0)?;
        let hello = server.run("admin", &hello(&self.0))?;
        if let Some(account) = &self.0.account {
            login::log_in(&mut server, account, &hello)?;
        }
        Ok(server)
    }
}

/// Returns the handshake command, which also asks for the user's login mechanisms.
fn hello(uri: &Uri) -> Document {
    let mut command = DocumentBuilder::new();
    command.append("hello", 1);
    let mut client = DocumentBuilder::new();
    if let Some(name) = &uri.app_name {
        client.append("application", doc! {"name": name.as_str()});
    }
    client.append(
        "driver",
        doc! {"name": "nilometer", "version": env!("CARGO_PKG_VERSION")},
    );
    client.append("os", doc! {"type": std::env::consts::OS});
    command.append("client", client.finish());
    if let Some(account) = &uri.account
        && account.method == LoginMethod::Scram(None)
    {
        let whom = format!("{}.{}", account.source, account.user);
        command.append("saslSupportedMechs", whom);
    }
    command.finish()
}

/// The stream of a connection.
trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// A connection to a server.
pub(super) struct Connection {
    stream: Box<dyn Stream + Send>,
    address: String,
    last_request: i32,
}

impl Connection {
    fn to(uri: &Uri) -> Result<Self, Failure> {
        let address = uri.address();
        let stream = reach(&address, uri.connect_timeout)?;
        let stream: Box<dyn Stream + Send> = match &uri.tls {
            None => Box::new(stream),
            Some(tls) => {
                let patience = Some(uri.connect_timeout);
                stream.set_read_timeout(patience)?;
                let stream = tls
                    .connect(&uri.host, stream)
                    .map_err(|e| Failure::Network(format!("no TLS with {address}: {e}")))?;
                stream.sock.set_read_timeout(None)?;
                Box::new(stream)
            }
        };
        Ok(Self {
            stream,
            address,
            last_request: 0,
        })
    }

    /// Runs a command on `database` and returns its reply. A reply with an error is an error.
    pub(super) fn run(&mut self, database: &str, command: &Document) -> Result<Document, Failure> {
        let mut body = DocumentBuilder::with_capacity(command.as_bytes().len() + 64);
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", database);
        let body = body.finish();
        let reply = self.call(&body, None)?;
        if reply.get("ok").as_exact_i64() == Some(1) {
            return Ok(reply);
        }
        let text = reply.get("errmsg").as_str().unwrap_or("no reason given");
        let code = reply.get("code").as_exact_i64().unwrap_or(0);
        let name = reply.get("codeName").as_str().unwrap_or_default();
        Err(Failure::Other(format!("{text} ({name}, {code})")))
    }

    /// Sends a command with `$db` and returns the reply, also one with an error. `documents`, concatenated, are sent as
    /// a document sequence.
    pub(super) fn call(
        &mut self,
        command: &Document,
        documents: Option<&[u8]>,
    ) -> Result<Document, Failure> {
        self.exchange(command.as_bytes(), documents).map_err(|e| {
            let why = match e.kind() {
                // The first message: a server that requires TLS closes the connection.
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset
                    if self.last_request == 1 =>
                {
                    "the server closed the connection; does it require tls=true, or refuse connections?"
                        .to_owned()
                }
                _ => e.to_string(),
            };
            Failure::Network(format!("the connection to {} failed: {why}", self.address))
        })
    }

    fn exchange(&mut self, body: &[u8], documents: Option<&[u8]>) -> std::io::Result<Document> {
        let bad = |what: &str| std::io::Error::other(format!("the answer is {what}"));
        self.last_request = self.last_request.wrapping_add(1);
        let bytes_of = |length: usize| {
            i32::try_from(length).map_err(|_| bad("not possible: the command is too long"))
        };
        let documents = documents.unwrap_or_default();
        let sequence = 4 + SEQUENCE.len() + documents.len();
        let behind = if documents.is_empty() {
            0
        } else {
            1 + sequence
        };
        let length = bytes_of(BODY_AT + body.len() + behind)?;
        let mut message = Vec::with_capacity(BODY_AT + body.len() + behind);
        for field in [length, self.last_request, 0, OP_MSG, 0] {
            message.extend_from_slice(&field.to_le_bytes());
        }
        message.push(0);
        message.extend_from_slice(body);
        if !documents.is_empty() {
            message.push(1);
            message.extend_from_slice(&bytes_of(sequence)?.to_le_bytes());
            message.extend_from_slice(SEQUENCE);
            message.extend_from_slice(documents);
        }
        self.stream.write_all(&message)?;
        self.stream.flush()?;
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head)?;
        let header = Header::parse(&head).map_err(std::io::Error::other)?;
        let rest = header.length.saturating_sub(HEADER_BYTES);
        let mut bytes = Vec::with_capacity(rest.min(limits::TRUSTED_ALLOCATION_BYTES));
        let part = u64::try_from(rest).unwrap_or(u64::MAX);
        if Read::by_ref(&mut self.stream)
            .take(part)
            .read_to_end(&mut bytes)?
            < rest
        {
            return Err(bad("truncated"));
        }
        let document = bytes.get(BODY_AT - HEADER_BYTES..).unwrap_or_default();
        Document::from_bytes(document.to_vec()).ok_or_else(|| bad("not a document"))
    }
}

/// Connects to the first address of a name that answers.
fn reach(address: &str, timeout: Duration) -> Result<TcpStream, Failure> {
    let failed = |e: std::io::Error| {
        Failure::Network(format!(
            "cannot connect to {address}: {e}. Is the server running?"
        ))
    };
    let mut last = None;
    for resolved in address.to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&resolved, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(failed)?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    let nothing = || std::io::Error::other("the name has no address");
    Err(failed(last.unwrap_or_else(nothing)))
}
