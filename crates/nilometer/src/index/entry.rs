//! The layout of an index keyspace, and changing its entries.
//!
//! ```text
//! key     key string of the components │ record key      value   type bits
//! ```
//!
//! Equal keys therefore lie side by side in the order of their records, and a range of key strings
//! is a range of entries.

use std::cmp::Ordering;

use nilometer_bson::key_string::{self, KeyOrder};
use nilometer_storage::WriteBatch;

use super::keys::{IndexKey, Keys};
use super::{Index, keys};
use crate::error::{Error, ErrorCode, Result};

/// A range of key strings: from the first on, up to but without the second.
pub type KeyRange = (Vec<u8>, Vec<u8>);

/// Above every key string: no component begins with this byte.
pub const END_OF_KEYS: u8 = 0xFF;

/// The engine key of an entry.
pub fn key(key: &IndexKey, record: &[u8]) -> Vec<u8> {
    [&key.key[..], record].concat()
}

/// The key string and the record key of an entry of an index with `components` components.
pub fn split(entry: &[u8], order: KeyOrder, components: usize) -> Result<(&[u8], &[u8])> {
    let record = key_string::skip(entry, order, components).map_err(|error| {
        Error::new(
            ErrorCode::DataCorruptionDetected,
            format!("an index entry cannot be read: {error}"),
        )
    })?;
    Ok((&entry[..entry.len() - record.len()], record))
}

/// Adds the entries of a record to a batch.
pub fn put_entries(batch: &mut WriteBatch, index: &Index, keys: &Keys, record: &[u8]) {
    for one in &keys.keys {
        put(batch, index, one, record);
    }
}

/// Removes the entries of a record.
pub fn delete_entries(batch: &mut WriteBatch, index: &Index, keys: &Keys, record: &[u8]) {
    for one in &keys.keys {
        batch.delete(index.stored.keyspace, key(one, record));
    }
}

/// Turns the entries a record has into those it should have.
pub fn diff_entries(
    batch: &mut WriteBatch,
    index: &Index,
    before: &Keys,
    after: &Keys,
    record: &[u8],
) {
    keys::compare(before, after, |order, one| match order {
        Ordering::Less => batch.delete(index.stored.keyspace, key(one, record)),
        // Also where only the type bits differ.
        _ => put(batch, index, one, record),
    });
}

fn put(batch: &mut WriteBatch, index: &Index, one: &IndexKey, record: &[u8]) {
    let bits = one.type_bits.clone();
    batch.put(index.stored.keyspace, key(one, record), bits);
}
