//! OP_QUERY and OP_REPLY: the handshake of clients that do not know the server yet.
//!
//! ```text
//! OP_QUERY   int32 flags | collection … 00 | int32 skip | int32 count | document | [document]
//! OP_REPLY   int32 flags | int64 cursor | int32 start | int32 count | document …
//! ```
//!
//! Only `isMaster` and `hello` on a `$cmd` collection are answered; every other query is error 352.
//! The command may be wrapped in `$query` with a `$readPreference` beside it.

use nilometer::Request;
use nilometer_bson::{DocRef, DocumentBuilder};

use super::WireError;
use super::codec::WireReader;

/// The commands of legacy queries.
const HANDSHAKES: &[&str] = &["isMaster", "ismaster", "hello"];

/// A handshake sent as OP_QUERY.
#[derive(Clone, Debug)]
pub struct OpQuery {
    /// The command, or why it is invalid.
    pub request: Result<Request, WireError>,
}

/// Parses the bytes after the header.
pub(super) fn parse(body: &[u8]) -> Result<OpQuery, WireError> {
    let mut reader = WireReader::new(body);
    reader.i32("flags")?;
    let collection = reader.c_string("collection name")?;
    reader.i32("number to skip")?;
    reader.i32("number to return")?;
    let query = reader.document("the query")?;
    if reader.left() > 0 {
        reader.document("the field selector")?;
    }
    if reader.left() > 0 {
        return Err(WireError::TrailingBytes(reader.left()));
    }
    Ok(OpQuery {
        request: request(collection, query),
    })
}

fn request(collection: &str, query: DocRef<'_>) -> Result<Request, WireError> {
    super::message::validate(query)?;
    let Some(database) = collection.strip_suffix(".$cmd") else {
        return Err(WireError::UnsupportedQuery("find".to_owned()));
    };
    let command = query
        .get("$query")
        .as_document()
        .or_else(|| query.get("query").as_document())
        .unwrap_or(query);
    let name = command.iter().next().map_or("", |e| e.name());
    if !HANDSHAKES.contains(&name) {
        return Err(WireError::UnsupportedQuery(name.to_owned()));
    }
    let mut builder = DocumentBuilder::with_capacity(command.as_bytes().len() + 32);
    for element in command.iter().filter(|e| e.name() != "$db") {
        builder.append_element(element);
    }
    builder.append("$db", database);
    Ok(Request::new(builder.finish()))
}

/// Flags of an answer: bit 3, await capable, which every server since 1.6 sets.
const REPLY_FLAGS: i32 = 8;

/// Returns the bytes between the header and the document of an answer.
pub(super) fn answer_prefix() -> Vec<u8> {
    let mut prefix = Vec::with_capacity(20);
    prefix.extend_from_slice(&REPLY_FLAGS.to_le_bytes());
    prefix.extend_from_slice(&0i64.to_le_bytes());
    prefix.extend_from_slice(&0i32.to_le_bytes());
    prefix.extend_from_slice(&1i32.to_le_bytes());
    prefix
}
