//! Preparing a batch for commit: all work that needs no lock.
//!
//! Resolves keyspaces, sorts and deduplicates operations, adds checksums to separated values, encodes and checksums the
//! log record. Memtables receive copies of parts of the payload ([`copies`]): few of them, and none that keeps more
//! memory alive than its memtable counts.

use std::sync::Arc;

use byteview::ByteView;
use lsm_tree::{InternalValue, Slice, ValueType};

use super::TreeMap;
use super::log::LogRecord;
use super::log::payload::put_varint;
use super::log::record::RECORD_HEADER_BYTES;
use super::separated_value::{CHECKSUM_BYTES, seal};
use super::tree::Tree;
use crate::engine::{KEY_BYTES_MAX, KeyspaceId, Operation, WriteBatch};
use crate::error::{Error, Result};

/// Maximum bytes of varints before one operation.
const OPERATION_OVERHEAD_BYTES: usize = 8;

/// Entries at least this long get their own copy.
const OWN_COPY_BYTES: usize = 512;

/// A batch that waits for its sequence number.
pub(crate) struct PreparedBatch {
    pub(crate) record: LogRecord,
    pub(crate) groups: Vec<KeyspaceEntries>,
}

/// The operations of a batch on one keyspace.
pub(crate) struct KeyspaceEntries {
    pub(crate) tree: Arc<Tree>,
    pub(crate) entries: Vec<(Slice, Option<Slice>)>,
}

type KeyedOperation = (KeyspaceId, Vec<u8>, Operation);

/// Prepares `batch` for the keyspaces in `trees`.
pub(crate) fn prepare(batch: WriteBatch, trees: &TreeMap) -> Result<PreparedBatch> {
    batch.check(KEY_BYTES_MAX)?;
    let WriteBatch {
        mut operations,
        annotation,
        ..
    } = batch;
    sort(&mut operations);
    let mut buffer = LogRecord::buffer(payload_capacity(&operations, &annotation));
    put_varint(&mut buffer, annotation.len() as u64);
    buffer.extend_from_slice(&annotation);
    let mut plans = Vec::new();
    for entries in operations.chunk_by(|a, b| a.0 == b.0) {
        let (id, _, _) = &entries[0];
        let tree = trees.get(id).ok_or(Error::UnknownKeyspace { id: id.0 })?;
        put_varint(&mut buffer, id.0);
        put_varint(&mut buffer, entries.len() as u64);
        let sealed = tree.keyspace.options.separate_values;
        let spans = entries.iter();
        let spans = spans.map(|entry| encode_entry(&mut buffer, entry, sealed));
        plans.push((Arc::clone(tree), spans.collect::<Vec<_>>()));
    }
    let keyspaces = plans.iter().map(|(tree, _)| tree.keyspace.id).collect();
    let record = LogRecord::new(buffer, keyspaces)?;
    let groups = plans.into_iter().map(|(tree, spans)| KeyspaceEntries {
        entries: copies(record.payload(), &spans, tree.releases_entries_singly()),
        tree,
    });
    let groups = groups.collect();
    Ok(PreparedBatch { record, groups })
}

/// Sorts operations by keyspace and key and keeps the last one for each key.
fn sort(operations: &mut Vec<KeyedOperation>) {
    if operations.is_sorted_by(|a, b| (a.0, &a.1) < (b.0, &b.1)) {
        return;
    }
    operations.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    // The sort is stable, so the last operation on a key is the last of its run. `dedup_by` keeps the first.
    operations.reverse();
    operations.dedup_by(|a, b| (a.0, &a.1) == (b.0, &b.1));
    operations.reverse();
}

fn payload_capacity(operations: &[KeyedOperation], annotation: &[u8]) -> usize {
    let each = operations.iter().map(|(_, key, operation)| {
        let value = match operation {
            Operation::Put(value) => value.len() + CHECKSUM_BYTES,
            Operation::Delete => 0,
        };
        key.len() + value + OPERATION_OVERHEAD_BYTES
    });
    each.sum::<usize>() + annotation.len() + 2 * OPERATION_OVERHEAD_BYTES
}

/// The position of an operation in the payload.
struct Span {
    start: usize,
    key_end: usize,
    value_end: Option<usize>,
}

impl Span {
    fn end(&self) -> usize {
        self.value_end.unwrap_or(self.key_end)
    }

    /// Returns key and value, each cut from the payload by `take`.
    fn parts(&self, take: impl Fn(std::ops::Range<usize>) -> Slice) -> (Slice, Option<Slice>) {
        let value = self.value_end.map(|end| take(self.key_end..end));
        (take(self.start..self.key_end), value)
    }
}

/// Copies the entries of one keyspace from the payload. A slice keeps its whole copy alive, so only entries that leave
/// their memtable together share one: the small entries of one keyspace in a batch. A large entry, which a reader may
/// keep for long, has its own copy, and so has each entry of a keyspace that frees entries one by one.
fn copies(payload: &[u8], spans: &[Span], singly: bool) -> Vec<(Slice, Option<Slice>)> {
    let is_large = |span: &Span| span.end() - span.start >= OWN_COPY_BYTES;
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
        return Vec::new();
    };
    let part = |range: std::ops::Range<usize>| &payload[range];
    if singly || spans.iter().any(is_large) {
        let own = |range| Slice::from(part(range));
        return spans.iter().map(|span| span.parts(own)).collect();
    }
    let shared = ByteView::new(part(first.start..last.end()));
    let of_shared = |range: std::ops::Range<usize>| {
        Slice::from(shared.slice(range.start - first.start..range.end - first.start))
    };
    spans.iter().map(|span| span.parts(of_shared)).collect()
}

fn encode_entry(buffer: &mut Vec<u8>, entry: &KeyedOperation, sealed: bool) -> Span {
    let (id, key, operation) = entry;
    put_varint(buffer, key.len() as u64);
    let value = match operation {
        Operation::Put(value) => Some(value),
        Operation::Delete => None,
    };
    let seal_bytes = if sealed { CHECKSUM_BYTES } else { 0 };
    let length = value.map_or(0, |value| value.len() + seal_bytes + 1);
    put_varint(buffer, length as u64);
    let start = buffer.len() - RECORD_HEADER_BYTES;
    buffer.extend_from_slice(key);
    let key_end = start + key.len();
    if let Some(value) = value {
        buffer.extend_from_slice(value);
        if sealed {
            buffer.extend_from_slice(&seal(id.0, key, value));
        }
    }
    Span {
        start,
        key_end,
        value_end: value.map(|_| buffer.len() - RECORD_HEADER_BYTES),
    }
}

/// Returns the memtable entry for one operation.
pub(crate) fn memtable_entry(key: Slice, value: Option<Slice>, sequence: u64) -> InternalValue {
    match value {
        Some(value) => InternalValue::from_components(key, value, sequence, ValueType::Value),
        None => InternalValue::new_tombstone(key, sequence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_operation_on_a_key_is_kept() {
        let put = |id, key: &str, value: u8| {
            let operation = Operation::Put(vec![value]);
            (KeyspaceId(id), key.as_bytes().to_vec(), operation)
        };
        let mut operations = vec![
            put(2, "a", 1),
            put(1, "b", 2),
            put(1, "a", 3),
            put(1, "b", 4),
            put(2, "a", 5),
        ];
        sort(&mut operations);
        assert_eq!(operations, [put(1, "a", 3), put(1, "b", 4), put(2, "a", 5)]);
    }
}
