//! The keys of a keyspace of summaries, the list of its blocks, and marks.

use nilometer_storage::WriteBatch;

use super::damage;
use crate::error::Result;
use crate::timeseries::format::keyspaces::BucketKeyspaces;

/// The key that says that every sealed bucket has a summary or a mark. Its value is the form of the blocks; the first form has none.
pub(crate) const COMPLETE: [u8; 1] = [1];

const BLOCK: u8 = 2;
const BODY: u8 = 3;
const MARK: u8 = 4;

/// Returns the key under which the block that begins with a bucket is listed.
pub(crate) fn block_key(first: [u8; 12]) -> Vec<u8> {
    prefixed(BLOCK, &first)
}

/// Returns the key of the first listed block that begins at or after a bucket key.
pub(crate) fn blocks_from(start: &[u8]) -> Vec<u8> {
    prefixed(BLOCK, start)
}

/// Returns the end of the list of blocks.
pub(crate) fn blocks_end() -> [u8; 1] {
    [BLOCK + 1]
}

/// Returns the key of a block.
pub(crate) fn body_key(number: u64) -> Vec<u8> {
    prefixed(BODY, &number.to_be_bytes())
}

/// Returns the number of a block.
pub(crate) fn body_number(key: &[u8]) -> Result<u64> {
    let number = key.get(1..).and_then(|number| number.try_into().ok());
    number
        .map(u64::from_be_bytes)
        .ok_or_else(|| damage("the key of a block has another length"))
}

/// Returns the key of the mark of a bucket.
pub(crate) fn mark_key(id: [u8; 12]) -> Vec<u8> {
    prefixed(MARK, &id)
}

/// Returns the key of the first mark at or after a bucket key.
pub(crate) fn marks_from(start: &[u8]) -> Vec<u8> {
    prefixed(MARK, start)
}

/// Returns the end of all marks.
pub(crate) fn marks_end() -> [u8; 1] {
    [MARK + 1]
}

fn prefixed(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + rest.len());
    key.push(kind);
    key.extend_from_slice(rest);
    key
}

/// True for the key of a mark.
pub(crate) fn is_mark(key: &[u8]) -> bool {
    key.first() == Some(&MARK)
}

/// Returns the bucket of a mark.
pub(crate) fn marked_bucket(key: &[u8]) -> Result<[u8; 12]> {
    let id = key.get(1..).and_then(|id| id.try_into().ok());
    id.ok_or_else(|| damage("a mark has another length"))
}

/// Marks a bucket whose sealed document the batch puts or deletes.
pub(crate) fn mark(batch: &mut WriteBatch, keyspaces: BucketKeyspaces, id: [u8; 12]) {
    if let Some(summaries) = keyspaces.summaries {
        batch.put(summaries, mark_key(id), Vec::new());
    }
}

/// A block in the list of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListedBlock {
    /// Its first bucket.
    pub(crate) first: [u8; 12],
    /// Its last bucket.
    pub(crate) last: [u8; 12],
    /// Its number.
    pub(crate) number: u64,
}

impl ListedBlock {
    /// Returns the value of its entry in the list.
    pub(crate) fn to_value(self) -> Vec<u8> {
        [&self.last[..], &self.number.to_be_bytes()].concat()
    }

    /// Reads an entry of the list.
    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        let parts = || {
            let first = key.get(1..)?.try_into().ok()?;
            let (last, number) = value.split_first_chunk()?;
            let number = u64::from_be_bytes(number.try_into().ok()?);
            Some(Self {
                first,
                last: *last,
                number,
            })
        };
        parts().ok_or_else(|| damage("the entry of a block has another length"))
    }
}
