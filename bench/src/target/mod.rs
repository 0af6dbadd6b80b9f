//! The measured target: runs a command and returns its reply.

mod embedded;
mod wire;

use std::sync::Arc;

use nilometer::Database;
use nilometer_bson::{Document, ValueRef};

use crate::options::Options;

/// A result whose error is a message for people.
pub type Outcome<T = ()> = Result<T, String>;

/// A connection, or its equivalent in process.
pub trait Connection: Send {
    /// Runs a command with `$db`. `documents`, concatenated, are sent as a document sequence of that name.
    fn call(&mut self, command: &Document, documents: Option<Arc<Vec<u8>>>) -> Outcome<Document>;
}

/// The measured target.
pub struct Target {
    /// The requested connections.
    pub(crate) connections: Vec<Box<dyn Connection>>,
    /// The database, if it runs in this process.
    embedded: Option<Arc<Database>>,
}

impl Target {
    /// Connects, or opens the database in process.
    pub fn open(options: &Options) -> Outcome<Self> {
        let Some(folder) = &options.in_process else {
            return Self::connect(options.connections, || {
                Ok(Box::new(wire::Wire::connect(&options.address)?))
            });
        };
        let database = Database::open(folder).map_err(|e| format!("{folder}: {e}"))?;
        Ok(Self::embedded(Arc::new(database), options.connections))
    }

    /// Uses a database of this process.
    pub fn embedded(database: Arc<Database>, count: usize) -> Self {
        let connections = (0..count)
            .map(|_| -> Box<dyn Connection> { Box::new(embedded::Embedded::new(&database)) })
            .collect();
        Self {
            connections,
            embedded: Some(database),
        }
    }

    /// Connects to a server with `connect`.
    pub fn connect(
        count: usize,
        mut connect: impl FnMut() -> Outcome<Box<dyn Connection>>,
    ) -> Outcome<Self> {
        Ok(Self {
            connections: (0..count).map(|_| connect()).collect::<Outcome<_>>()?,
            embedded: None,
        })
    }

    /// Opens `count` further connections.
    pub(crate) fn more(
        &self,
        options: &Options,
        count: usize,
    ) -> Outcome<Vec<Box<dyn Connection>>> {
        let open = |_| -> Outcome<Box<dyn Connection>> {
            match &self.embedded {
                Some(database) => Ok(Box::new(embedded::Embedded::new(database))),
                None => Ok(Box::new(wire::Wire::connect(&options.address)?)),
            }
        };
        (0..count).map(open).collect()
    }

    /// Returns the first connection.
    pub fn first(&mut self) -> &mut dyn Connection {
        &mut *self.connections[0]
    }

    /// Seals buckets and compacts trees, if the database runs in this process.
    pub(crate) fn settle(&self) -> Outcome {
        match &self.embedded {
            Some(database) => database.settle().map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }
}

/// Runs a command. A reply that is not ok or has write errors is an error.
pub(crate) fn run(
    connection: &mut dyn Connection,
    command: &Document,
    documents: Option<Arc<Vec<u8>>>,
) -> Outcome<Document> {
    let reply = connection.call(command, documents)?;
    let name = command.iter().next().map_or("", |e| e.name());
    if reply.get("ok").as_exact_i64() != Some(1) {
        return Err(format!("{name}: {}", error_text(&reply)));
    }
    if let Some(first) = reply
        .get("writeErrors")
        .as_array()
        .and_then(|a| a.iter().next())
    {
        return Err(format!("{name}: {first:?}"));
    }
    Ok(reply)
}

fn error_text(reply: &Document) -> String {
    let code = reply.get("code").as_exact_i64().unwrap_or(0);
    let text = reply.get("errmsg").as_str().unwrap_or("no message");
    format!("{text} (code {code})")
}

/// A batch of a cursor: its reply.
pub(crate) struct Batch {
    reply: Document,
    field: &'static str,
}

impl Batch {
    /// Returns the id of the cursor; 0 if it is exhausted.
    fn cursor(&self) -> i64 {
        let cursor = self.reply.get("cursor").as_document();
        cursor.and_then(|c| c.get("id").as_exact_i64()).unwrap_or(0)
    }

    /// Returns the documents.
    pub(crate) fn documents(&self) -> impl Iterator<Item = nilometer_bson::DocRef<'_>> {
        let cursor = self.reply.get("cursor").as_document();
        let batch = cursor.map_or(ValueRef::Missing, |c| c.get(self.field));
        let elements = batch
            .as_array()
            .into_iter()
            .flat_map(|a| a.as_document().iter());
        elements.filter_map(|e| e.value().as_document())
    }

    /// Returns the bytes of the reply.
    pub(crate) fn bytes(&self) -> usize {
        self.reply.as_bytes().len()
    }
}

/// Runs a command with a cursor and calls a function for each batch.
pub(crate) fn each_batch(
    connection: &mut dyn Connection,
    command: &Document,
    options: &Options,
    mut take: impl FnMut(Batch),
) -> Outcome {
    let mut reply = run(connection, command, None)?;
    let mut field = "firstBatch";
    loop {
        let batch = Batch { reply, field };
        let id = batch.cursor();
        take(batch);
        if id == 0 {
            return Ok(());
        }
        let more = nilometer_bson::doc! {
            "getMore": id,
            "collection": &options.collection,
            "$db": &options.database,
        };
        reply = run(connection, &more, None)?;
        field = "nextBatch";
    }
}

/// Runs a command with a cursor and drains it.
pub(crate) fn drain(
    connection: &mut dyn Connection,
    command: &Document,
    options: &Options,
) -> Outcome<Vec<Batch>> {
    let mut batches = Vec::new();
    each_batch(connection, command, options, |batch| batches.push(batch))?;
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use nilometer_bson::{DocRef, array, doc};

    use super::*;

    /// Reads one message. Returns its id and its bytes after the flags.
    fn receive(socket: &mut impl Read) -> (i32, Vec<u8>) {
        let mut header = [0; 20];
        socket.read_exact(&mut header).unwrap();
        let word = |at: usize| i32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut rest = vec![0; word(0) as usize - header.len()];
        socket.read_exact(&mut rest).unwrap();
        (word(4), rest)
    }

    fn answer(socket: &mut impl Write, request: i32, reply: &Document) {
        let mut message = ((21 + reply.as_bytes().len()) as i32)
            .to_le_bytes()
            .to_vec();
        for word in [77, request, 2013, 0] {
            message.extend_from_slice(&i32::to_le_bytes(word));
        }
        message.push(0);
        message.extend_from_slice(reply.as_bytes());
        socket.write_all(&message).unwrap();
    }

    #[test]
    fn a_cursor_is_drained_and_documents_go_beside_the_command() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let row = |n: i32| doc! { "n": n };
            let first = doc! { "firstBatch": array![row(1), row(2)], "id": 9_i64 };
            let next = doc! { "nextBatch": array![row(3)], "id": 0_i64 };
            let mut seen = Vec::new();
            for reply in [
                doc! { "ok": 1.0, "cursor": first },
                doc! { "ok": 1.0, "cursor": next },
                doc! { "ok": 1.0, "n": 1 },
                doc! { "ok": 0.0, "code": 59, "errmsg": "no such command" },
            ] {
                let (request, bytes) = receive(&mut socket);
                answer(&mut socket, request, &reply);
                seen.push(bytes);
            }
            seen
        });
        let options = Options {
            address,
            ..Options::default()
        };
        let mut target = Target::open(&options).unwrap();
        let connection = target.first();
        let batches = drain(connection, &doc! { "find": "cpu" }, &options).unwrap();
        let rows = batches.iter().flat_map(Batch::documents);
        let numbers: Vec<_> = rows.map(|d| d.get("n").as_exact_i64().unwrap()).collect();
        assert_eq!(numbers, [1, 2, 3]);
        let document = doc! { "time": 5 };
        let beside = Arc::new(document.as_bytes().to_vec());
        run(connection, &doc! { "insert": "cpu" }, Some(beside)).unwrap();
        let refused = run(connection, &doc! { "x": 1 }, None).unwrap_err();
        assert_eq!(refused, "x: no such command (code 59)");

        let seen = server.join().unwrap();
        let more = DocRef::new(&seen[1][1..]).unwrap();
        assert_eq!(more.get("getMore").as_exact_i64(), Some(9));
        let body = DocRef::new(&seen[2][1..]).unwrap().as_bytes().len();
        let section = &seen[2][1 + body..];
        assert_eq!(section[0], 1);
        assert_eq!(&section[5..15], b"documents\0");
        assert_eq!(&section[15..], document.as_bytes());
    }
}
