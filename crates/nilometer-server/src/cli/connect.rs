//! Asking a running server: just enough of a client for the program's own commands.
//!
//! One connection, one command at a time, OP_MSG without compression. It does not log in.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use nilometer_bson::{Document, DocumentBuilder};

use super::Failure;
use crate::limits;
use crate::wire::{HEADER_BYTES, Header};

/// OP_MSG.
const OP_MSG: i32 = 2013;

/// Where OP_MSG's body document begins in an answer: flags, kind of the section.
const BODY_AT: usize = HEADER_BYTES + 5;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a server.
pub(super) struct Connection {
    stream: TcpStream,
    address: String,
    last_request: i32,
}

impl Connection {
    /// Connects to what `uri` names: `mongodb://host:port`, or `host:port`.
    pub(super) fn open(uri: &str) -> Result<Self, Failure> {
        let address = address_of(uri)?;
        let failed = |e: std::io::Error| {
            Failure::Network(format!(
                "cannot connect to {address}: {e}. Is the server running?"
            ))
        };
        let mut last = None;
        for resolved in address.to_socket_addrs().map_err(failed)? {
            match TcpStream::connect_timeout(&resolved, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(failed)?;
                    return Ok(Self {
                        stream,
                        address,
                        last_request: 0,
                    });
                }
                Err(error) => last = Some(error),
            }
        }
        let nothing = || std::io::Error::other("the name has no address");
        Err(failed(last.unwrap_or_else(nothing)))
    }

    /// Runs a command on `database` and answers its reply, unless that is an error.
    pub(super) fn run(&mut self, database: &str, command: &Document) -> Result<Document, Failure> {
        let mut body = DocumentBuilder::with_capacity(command.as_bytes().len() + 64);
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", database);
        let body = body.finish();
        let reply = self.exchange(body.as_bytes()).map_err(|e| {
            Failure::Network(format!("the connection to {} failed: {e}", self.address))
        })?;
        if reply.get("ok").as_exact_i64() == Some(1) {
            return Ok(reply);
        }
        let text = reply.get("errmsg").as_str().unwrap_or("no reason given");
        let code = reply.get("code").as_exact_i64().unwrap_or(0);
        let name = reply.get("codeName").as_str().unwrap_or_default();
        Err(Failure::Other(format!("{text} ({name}, {code})")))
    }

    fn exchange(&mut self, body: &[u8]) -> std::io::Result<Document> {
        let bad = |what: &str| std::io::Error::other(format!("the answer is {what}"));
        self.last_request = self.last_request.wrapping_add(1);
        let length = HEADER_BYTES + 5 + body.len();
        let length =
            i32::try_from(length).map_err(|_| bad("of no use: the command is too long"))?;
        let mut message = Vec::with_capacity(body.len() + BODY_AT);
        for field in [length, self.last_request, 0, OP_MSG, 0] {
            message.extend_from_slice(&field.to_le_bytes());
        }
        message.push(0);
        message.extend_from_slice(body);
        self.stream.write_all(&message)?;
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
            return Err(bad("cut short"));
        }
        let document = bytes.get(BODY_AT - HEADER_BYTES..).unwrap_or_default();
        Document::from_bytes(document.to_vec()).ok_or_else(|| bad("no document"))
    }
}

/// Host and port of a connection string.
fn address_of(uri: &str) -> Result<String, Failure> {
    let refused = |what: &str| {
        Failure::Options(format!(
            "{uri}: {what}; give mongodb://HOST:PORT, such as mongodb://127.0.0.1:27017"
        ))
    };
    if uri.starts_with("mongodb+srv://") {
        return Err(refused("names of services are not looked up"));
    }
    let rest = uri.strip_prefix("mongodb://").unwrap_or(uri);
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    if rest.contains('@') {
        return Err(refused("this command does not log in"));
    }
    if !path.is_empty() || rest.contains('?') || address.contains(',') {
        return Err(refused("only a host and a port are understood"));
    }
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match (address, has_port) {
        ("", _) => Err(refused("there is no host")),
        (host, true) => Ok(host.to_owned()),
        (host, false) => Ok(format!("{host}:27017")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_names_a_host_and_a_port() {
        for (uri, address) in [
            ("mongodb://127.0.0.1:28000", "127.0.0.1:28000"),
            ("mongodb://[::1]:28000/", "[::1]:28000"),
            ("localhost", "localhost:27017"),
            ("mongodb://db.example", "db.example:27017"),
        ] {
            assert_eq!(address_of(uri).expect(uri), address);
        }
        for uri in [
            "",
            "mongodb+srv://a.b",
            "mongodb://u:p@h:1",
            "mongodb://a:1,b:2",
            "mongodb://a:1/?tls=true",
            "mongodb://a:1/db",
        ] {
            assert!(address_of(uri).is_err(), "{uri}");
        }
    }
}
