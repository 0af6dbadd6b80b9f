//! A client that writes and reads bytes, independent of the server's own codec.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nilometer::auth::{Mechanism, ScramClient};
use nilometer_bson::{Binary, Document, DocumentBuilder, Value, ValueRef, doc};

/// OP_MSG.
pub(crate) const MSG: i32 = 2013;

/// OP_QUERY.
pub(crate) const QUERY: i32 = 2004;

/// OP_COMPRESSED.
pub(crate) const COMPRESSED: i32 = 2012;

/// OP_REPLY.
pub(crate) const REPLY: i32 = 1;

/// The id of every request of these tests.
pub(crate) const REQUEST_ID: i32 = 4711;

/// Returns a message with a header.
pub(crate) fn message(opcode: i32, body: &[u8]) -> Vec<u8> {
    let length = i32::try_from(body.len() + 16).expect("a message");
    let mut bytes = Vec::new();
    for field in [length, REQUEST_ID, 0, opcode] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

/// Returns a body section.
pub(crate) fn body(document: &Document) -> Vec<u8> {
    [&[0], document.as_bytes()].concat()
}

/// Returns a document sequence section.
pub(crate) fn sequence(name: &str, documents: &[Document]) -> Vec<u8> {
    let mut inside = [name.as_bytes(), &[0]].concat();
    for document in documents {
        inside.extend_from_slice(document.as_bytes());
    }
    let length = i32::try_from(inside.len() + 4).expect("a section");
    [&[1], length.to_le_bytes().as_slice(), &inside].concat()
}

/// Returns the bytes after the header of an OP_MSG.
pub(crate) fn op_msg_body(flags: u32, sections: &[Vec<u8>]) -> Vec<u8> {
    [flags.to_le_bytes().as_slice(), &sections.concat()].concat()
}

/// An OP_MSG.
pub(crate) fn op_msg(flags: u32, sections: &[Vec<u8>]) -> Vec<u8> {
    message(MSG, &op_msg_body(flags, sections))
}

/// Returns an OP_MSG with a checksum that is off by `error`.
pub(crate) fn op_msg_checked(sections: &[Vec<u8>], error: u32) -> Vec<u8> {
    let mut bytes = op_msg(1, sections);
    let length = i32::try_from(bytes.len() + 4).expect("a message");
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    let sum = crc32c::crc32c(&bytes).wrapping_add(error);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// An OP_QUERY.
pub(crate) fn op_query(collection: &str, query: &Document) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(collection.as_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    bytes.extend_from_slice(query.as_bytes());
    message(QUERY, &bytes)
}

/// A received message.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) request_id: i32,
    pub(crate) response_to: i32,
    pub(crate) opcode: i32,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// Returns the document of an OP_MSG or OP_REPLY.
    pub(crate) fn document(&self) -> Document {
        let front = match self.opcode {
            MSG => {
                assert_eq!(&self.body[..5], &[0; 5], "flags and kind of section");
                5
            }
            REPLY => 20,
            other => panic!("opcode {other}"),
        };
        Document::from_bytes(self.body[front..].to_vec()).expect("one whole document")
    }
}

/// A connection.
pub(crate) struct Client(TcpStream);

impl Client {
    pub(crate) fn connect(port: u16) -> Self {
        Self::try_connect(port).expect("a connection")
    }

    /// Connects, if the server accepts.
    pub(crate) fn try_connect(port: u16) -> Option<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_nodelay(true).expect("an option");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("an option");
        Some(Self(stream))
    }

    /// Returns its stream.
    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.0
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("bytes are taken");
    }

    /// Sends as much as possible; the server may close the connection meanwhile.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) {
        drop(self.0.write_all(bytes));
    }

    /// Shuts down the sending side.
    pub(crate) fn finish(&self) {
        drop(self.0.shutdown(std::net::Shutdown::Write));
    }

    pub(crate) fn receive(&mut self) -> Reply {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).expect("a header");
        let field = |at: usize| i32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let length = usize::try_from(field(0) - 16).expect("a length");
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("a body");
        Reply {
            request_id: field(4),
            response_to: field(8),
            opcode: field(12),
            body,
        }
    }

    /// True if the server closes the connection without sending anything.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.0.read(&mut byte) {
            Ok(n) => n == 0,
            Err(e) => matches!(
                e.kind(),
                ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted
            ),
        }
    }

    /// True if nothing arrives for a while.
    pub(crate) fn is_silent(&mut self) -> bool {
        let patience = |stream: &TcpStream, ms| {
            let time = Some(Duration::from_millis(ms));
            stream.set_read_timeout(time).expect("an option");
        };
        patience(&self.0, 200);
        let read = self.0.peek(&mut [0]);
        patience(&self.0, 20_000);
        read.is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    /// Sends a message and returns the document of the answer.
    pub(crate) fn ask(&mut self, bytes: &[u8]) -> Document {
        self.send(bytes);
        let reply = self.receive();
        assert_eq!(reply.response_to, REQUEST_ID);
        reply.document()
    }

    /// Sends a message and returns the document of the answer; `None` if the connection is lost.
    pub(crate) fn ask_or_lose(&mut self, bytes: &[u8]) -> Option<Document> {
        self.0.write_all(bytes).ok()?;
        self.receive_or_lose()
    }

    /// Receives the next document; `None` if the server closes the connection.
    pub(crate) fn receive_or_lose(&mut self) -> Option<Document> {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).ok()?;
        let length = i32::from_le_bytes(header[..4].try_into().ok()?);
        let mut body = vec![0; usize::try_from(length).ok()?.checked_sub(16)?];
        self.0.read_exact(&mut body).ok()?;
        let reply = Reply {
            request_id: 0,
            response_to: REQUEST_ID,
            opcode: MSG,
            body,
        };
        Some(reply.document())
    }

    /// Reads all documents of a collection, batch by batch.
    pub(crate) fn find_all(&mut self, database: &str, command: &Document) -> Vec<Document> {
        let mut reply = self.run_on(database, command);
        let mut documents = Vec::new();
        loop {
            assert!(is_ok(&reply), "{reply:?}");
            let cursor = reply.get("cursor").as_document().expect("a cursor");
            let batch = match cursor.get("firstBatch").as_array() {
                Some(batch) => batch,
                None => cursor.get("nextBatch").as_array().expect("a batch"),
            };
            for document in batch.iter() {
                documents.push(document.as_document().expect("a document").to_document());
            }
            let id = cursor.get("id").as_exact_i64().expect("an id");
            if id == 0 {
                return documents;
            }
            let ns = cursor.get("ns").as_str().expect("a namespace");
            let collection = ns.split_once('.').expect("a namespace").1;
            let more = doc! {"getMore": id, "collection": collection};
            reply = self.run_on(database, &more);
        }
    }

    /// Logs in by SCRAM on the database `db`. Returns the last reply.
    pub(crate) fn log_in(
        &mut self,
        mechanism: Mechanism,
        db: &str,
        user: &str,
        pwd: &str,
    ) -> Document {
        let (prover, first) = prover(mechanism, (user, pwd));
        let begin = doc! {
            "saslStart": 1,
            "mechanism": mechanism.name(),
            "payload": first,
            "autoAuthorize": 1,
            "options": doc! {"skipEmptyExchange": true},
        };
        let reply = self.run_on(db, &begin);
        if !is_ok(&reply) {
            return reply;
        }
        self.finish_login(prover, db, &reply)
    }

    /// Answers a challenge and checks the server's proof.
    pub(crate) fn finish_login(
        &mut self,
        mut prover: ScramClient,
        db: &str,
        challenge: &Document,
    ) -> Document {
        let proof = prover.prove(payload(challenge)).expect("a proof");
        let id = challenge.get("conversationId").to_value();
        let go_on = doc! {"saslContinue": 1, "conversationId": id, "payload": binary(&proof)};
        let reply = self.run_on(db, &go_on);
        if is_ok(&reply) {
            prover.check(payload(&reply)).expect("the server's proof");
        }
        reply
    }

    /// Runs a command on `database`.
    pub(crate) fn run_on(&mut self, database: &str, command: &Document) -> Document {
        let mut with_database = DocumentBuilder::new();
        for element in command.iter() {
            with_database.append_element(element);
        }
        with_database.append("$db", database);
        self.ask(&op_msg(0, &[body(&with_database.finish())]))
    }

    /// Runs a command on `admin`.
    pub(crate) fn run(&mut self, command: &Document) -> Document {
        self.run_on("admin", command)
    }

    /// Returns the lines of the log that shells show when they connect.
    pub(crate) fn startup_warnings(&mut self) -> String {
        let reply = self.run(&doc! {"getLog": "startupWarnings"});
        let lines = reply.get("log").as_array().expect("lines");
        let lines: Vec<&str> = lines.iter().filter_map(|line| line.as_str()).collect();
        lines.join("\n")
    }
}

/// True if the reply is ok.
pub(crate) fn is_ok(reply: &Document) -> bool {
    reply.get("ok").as_exact_i64() == Some(1)
}

/// Returns the code of an error reply.
pub(crate) fn code(reply: &Document) -> i64 {
    assert!(!is_ok(reply), "{reply:?}");
    assert!(reply.get("errmsg").as_str().is_some());
    assert!(reply.get("codeName").as_str().is_some());
    reply.get("code").as_exact_i64().expect("a code")
}

/// Returns the prover of a password and its first message.
pub(crate) fn prover(mechanism: Mechanism, (user, pwd): (&str, &str)) -> (ScramClient, Value) {
    let begun = ScramClient::start(mechanism, user, pwd, b"abcdefghijkl");
    let (prover, first) = begun.expect("a first message");
    (prover, binary(&first))
}

fn binary(text: &str) -> Value {
    Value::from(Binary {
        subtype: 0,
        bytes: text.as_bytes().into(),
    })
}

fn payload(reply: &Document) -> &[u8] {
    match reply.get("payload") {
        ValueRef::Binary { bytes, .. } => bytes,
        other => panic!("{other:?} in {reply:?}"),
    }
}
