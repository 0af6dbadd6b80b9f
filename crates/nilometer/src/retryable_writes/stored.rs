//! The stored form of the results of a session.
//!
//! ```text
//! key      session | kind, 1 byte | chunk, 4 bytes, big-endian
//! session  UUID, 16 bytes | length, 4 bytes, big-endian | `db.user`, empty without a login
//! value    txnNumber, int64 | last write in ms since 1970, int64, both little-endian | contents
//! kind 0   the inserted positions: ranges of two uint32, little-endian, without the second; chunk 0
//! kind 1   the results of 64 statements: a BSON document {"<statement>": {k: kind, u: upserted, d: document, p: position}}
//! ```
//!
//! A statement rewrites its chunk alone, so a command of many statements does not store all of them again and again.
//! Values with a lower `txnNumber` than another of the session are left over from an earlier command; they are ignored.

use nilometer_bson::{DocRef, DocumentBuilder, ValueRef};
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, WriteBatch};

use super::{Positions, SessionWrites, StatementKind, StatementResult};
use crate::error::{Error, ErrorCode, Result};

/// Statements of a chunk.
const CHUNK_STATEMENTS: u32 = 64;

const INSERTED: u8 = 0;
const RESULTS: u8 = 1;

/// Bytes before the contents of a value.
const HEAD_BYTES: usize = 16;

const KINDS: [(StatementKind, i32); 7] = [
    (StatementKind::Insert, 0),
    (StatementKind::Update, 1),
    (StatementKind::Delete, 2),
    (StatementKind::FindAndRemove, 3),
    (StatementKind::FindAndUpdate, 4),
    (StatementKind::FindAndUpdateNew, 5),
    (StatementKind::Commit, 6),
];

fn damaged() -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        "the stored result of a retryable write is damaged",
    )
}

fn key(session: &[u8], kind: u8, chunk: u32) -> Vec<u8> {
    [session, &[kind], &chunk.to_be_bytes()].concat()
}

fn head(writes: &SessionWrites) -> Vec<u8> {
    let number = writes.number.unwrap_or_default();
    [number.to_le_bytes(), writes.last_ms.to_le_bytes()].concat()
}

/// Returns the end of the keys of a session.
fn end_of(session: &[u8]) -> Vec<u8> {
    [session, &[u8::MAX]].concat()
}

/// Adds the inserted positions to a batch.
pub(super) fn put_inserted(
    batch: &mut WriteBatch,
    keyspace: KeyspaceId,
    session: &[u8],
    writes: &SessionWrites,
) {
    let mut value = head(writes);
    for (start, end) in &writes.inserted.0 {
        value.extend_from_slice(&start.to_le_bytes());
        value.extend_from_slice(&end.to_le_bytes());
    }
    batch.put(keyspace, key(session, INSERTED, 0), value);
}

/// Adds the result of a statement to a batch, with those of its chunk.
pub(super) fn put_result(
    batch: &mut WriteBatch,
    keyspace: KeyspaceId,
    session: &[u8],
    writes: &SessionWrites,
    statement: u32,
) {
    let chunk = statement / CHUNK_STATEMENTS;
    let first = chunk * CHUNK_STATEMENTS;
    let mut contents = DocumentBuilder::new();
    let of_chunk = writes
        .results
        .range(first..first.saturating_add(CHUNK_STATEMENTS));
    for (statement, result) in of_chunk {
        contents.begin_document(&statement.to_string());
        let kind = KINDS.iter().find(|(kind, _)| *kind == result.kind);
        contents.append("k", kind.map_or(0, |(_, number)| *number));
        contents.append("u", result.upserted.clone());
        contents.append("d", result.image.clone());
        let position = result
            .position
            .map(|at| i64::try_from(at).unwrap_or(i64::MAX));
        contents.append("p", position);
        contents.end();
    }
    let mut value = head(writes);
    value.extend_from_slice(contents.finish().as_bytes());
    batch.put(keyspace, key(session, RESULTS, chunk), value);
}

/// Returns the session of a key, and the time of the last write in its value.
pub(super) fn session_and_time<'k>(key: &'k [u8], value: &[u8]) -> Result<(&'k [u8], i64)> {
    let length = key.get(16..).and_then(<[u8]>::first_chunk).copied();
    let length = usize::try_from(u32::from_be_bytes(length.ok_or_else(damaged)?));
    let end = length.ok().and_then(|length| length.checked_add(20));
    let session = end.and_then(|end| key.get(..end)).ok_or_else(damaged)?;
    Ok((session, parse(value)?.1))
}

/// Returns number, time and contents of a value.
fn parse(value: &[u8]) -> Result<(i64, i64, &[u8])> {
    let (head, contents) = value.split_at_checked(HEAD_BYTES).ok_or_else(damaged)?;
    let (number, time) = head.split_at(HEAD_BYTES / 2);
    let int = |bytes: &[u8]| bytes.first_chunk().copied().map(i64::from_le_bytes);
    let number = int(number).ok_or_else(damaged)?;
    Ok((number, int(time).ok_or_else(damaged)?, contents))
}

/// Reads the results of a session.
pub(super) fn read(
    engine: &dyn Engine,
    keyspace: KeyspaceId,
    session: &[u8],
) -> Result<SessionWrites> {
    let mut writes = SessionWrites::default();
    let snapshot = engine.snapshot()?;
    let end = end_of(session);
    for entry in snapshot.scan(keyspace, session, Some(&end), Direction::Forward)? {
        let (key, value) = entry?;
        let (number, last_ms, contents) = parse(&value)?;
        if writes.number.is_some_and(|known| known > number) {
            continue;
        }
        if writes.number != Some(number) {
            writes = SessionWrites {
                number: Some(number),
                ..SessionWrites::default()
            };
        }
        writes.last_ms = writes.last_ms.max(last_ms);
        match key.get(session.len()) {
            Some(&INSERTED) => writes.inserted = positions(contents)?,
            Some(&RESULTS) => {
                let document = DocRef::new(contents).ok_or_else(damaged)?;
                for element in document {
                    let statement = element.name().parse().map_err(|_| damaged())?;
                    writes.results.insert(statement, result(element.value())?);
                }
            }
            _ => return Err(damaged()),
        }
    }
    Ok(writes)
}

fn positions(contents: &[u8]) -> Result<Positions> {
    let (ranges, rest) = contents.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(damaged());
    }
    let ranges = ranges.iter().map(|[a, b, c, d, e, f, g, h]| {
        let start = u32::from_le_bytes([*a, *b, *c, *d]);
        (start, u32::from_le_bytes([*e, *f, *g, *h]))
    });
    Ok(Positions(ranges.collect()))
}

fn result(value: ValueRef<'_>) -> Result<StatementResult> {
    let stored = value.as_document().ok_or_else(damaged)?;
    let number = stored.get("k").as_exact_i64();
    let kind = KINDS
        .iter()
        .find(|(_, known)| number == Some((*known).into()));
    let present = |name: &str| Some(stored.get(name)).filter(|value| !value.is_missing());
    let image = match present("d") {
        None => None,
        Some(image) => Some(image.as_document().ok_or_else(damaged)?.to_document()),
    };
    let position = match present("p") {
        None => None,
        Some(at) => {
            let at = at.as_exact_i64().and_then(|at| usize::try_from(at).ok());
            Some(at.ok_or_else(damaged)?)
        }
    };
    Ok(StatementResult {
        kind: kind.ok_or_else(damaged)?.0,
        upserted: present("u").map(ValueRef::to_value),
        image,
        position,
    })
}

/// Removes what is stored of a session.
pub(super) fn remove(engine: &dyn Engine, keyspace: KeyspaceId, session: &[u8]) -> Result<()> {
    let mut batch = WriteBatch::new();
    let snapshot = engine.snapshot()?;
    let end = end_of(session);
    for entry in snapshot.scan(keyspace, session, Some(&end), Direction::Forward)? {
        batch.delete(keyspace, entry?.0.to_vec());
    }
    if !batch.is_empty() {
        engine.commit(batch, Durability::Buffered)?;
    }
    Ok(())
}
