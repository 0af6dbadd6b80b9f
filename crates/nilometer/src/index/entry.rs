//! The layout of an index keyspace, and changes of its entries.
//!
//! ```text
//! key     key string of the components │ record key      value   type bits
//! ```
//!
//! Equal keys are adjacent, in the order of their records, and a range of key strings is a range of entries.

use std::cmp::Ordering;

use nilometer_bson::key_string::{self, KeyOrder};
use nilometer_storage::{Direction, Snapshot, WriteBatch};

use super::keys::{DocumentKeys, IndexKey};
use super::{Index, keys};
use crate::error::{Error, ErrorCode, Result};

/// A range of key strings: first inclusive, second exclusive.
pub type KeyRange = (Vec<u8>, Vec<u8>);

/// A stored entry: key string, type bits, record key.
pub type StoredEntry = (Vec<u8>, Vec<u8>, Vec<u8>);

/// Greater than every key string: no component begins with this byte.
pub const END_OF_KEYS: u8 = 0xFF;

/// Returns the engine key of an entry.
pub fn key(key: &IndexKey, record: &[u8]) -> Vec<u8> {
    [&key.key[..], record].concat()
}

/// Splits an entry of an index with `components` components into the key string and the record key.
pub fn split(entry: &[u8], order: KeyOrder, components: usize) -> Result<(&[u8], &[u8])> {
    let record = key_string::skip(entry, order, components).map_err(|error| {
        Error::new(
            ErrorCode::DataCorruptionDetected,
            format!("an index entry cannot be read: {error}"),
        )
    })?;
    Ok((&entry[..entry.len() - record.len()], record))
}

/// Returns the entries of an index whose bytes are at least `start` and less than `end`.
pub fn scan(
    snapshot: &dyn Snapshot,
    index: &Index,
    start: &[u8],
    end: Option<&[u8]>,
    direction: Direction,
) -> Result<impl Iterator<Item = Result<StoredEntry>> + Send + use<>> {
    let entries = snapshot.scan(index.stored.keyspace, start, end, direction)?;
    let (order, components) = (index.order(), index.components());
    Ok(entries.map(move |item| {
        let (bytes, type_bits) = item?;
        let (own, record) = split(&bytes, order, components)?;
        Ok((own.to_vec(), type_bits.to_vec(), record.to_vec()))
    }))
}

/// Adds puts of the entries of a record to a batch.
pub fn put_entries(batch: &mut WriteBatch, index: &Index, keys: &DocumentKeys, record: &[u8]) {
    for one in &keys.keys {
        put(batch, index, one, record);
    }
}

/// Adds deletes of the entries of a record to a batch.
pub fn delete_entries(batch: &mut WriteBatch, index: &Index, keys: &DocumentKeys, record: &[u8]) {
    for one in &keys.keys {
        batch.delete(index.stored.keyspace, key(one, record));
    }
}

/// Adds the changes that turn the entries of `before` into those of `after` to a batch.
pub fn diff_entries(
    batch: &mut WriteBatch,
    index: &Index,
    before: &DocumentKeys,
    after: &DocumentKeys,
    record: &[u8],
) {
    keys::compare(before, after, |order, one| match order {
        Ordering::Less => batch.delete(index.stored.keyspace, key(one, record)),
        // Includes keys whose type bits alone differ.
        _ => put(batch, index, one, record),
    });
}

fn put(batch: &mut WriteBatch, index: &Index, one: &IndexKey, record: &[u8]) {
    let bits = one.type_bits.clone();
    batch.put(index.stored.keyspace, key(one, record), bits);
}
