//! Ranges of the keys that buckets are stored under.
//!
//! A document's key is the id of its bucket; the key of a tail entry is the id and a sequence number. Ids begin with the
//! start of the bucket, so a range of keys is a range of times.

use nilometer_bson::ValueRef;

use super::bucket_document::damaged;
use super::tail;
use crate::error::Result;

/// Times before this need the extended-range flag, in ms: 1970-01-01.
const ORDINARY_RANGE_MIN_MS: i64 = 0;

/// Times after this need the extended-range flag, in ms: 2^31 - 1 seconds, in 2038.
const ORDINARY_RANGE_MAX_MS: i64 = i32::MAX as i64 * 1000;

/// True for times whose seconds fit into a bucket id and keep their order there.
pub(crate) fn in_ordinary_range(time_ms: i64) -> bool {
    (ORDINARY_RANGE_MIN_MS..=ORDINARY_RANGE_MAX_MS).contains(&time_ms)
}

/// Returns the id of the bucket that a key belongs to.
pub(crate) fn bucket_of(key: &[u8]) -> Result<[u8; 12]> {
    key.first_chunk().copied().ok_or_else(|| {
        damaged(
            ValueRef::Missing,
            "it is stored under a key that is too short",
        )
    })
}

/// Returns the end of the keys of a bucket, those of its tail included.
pub(crate) fn end_of(id: [u8; 12]) -> Vec<u8> {
    [&id[..], &[0xFF; tail::KEY_BYTES - 11]].concat()
}

/// A half-open range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    /// The first key.
    pub(crate) start: Vec<u8>,
    /// The end, exclusive; `None` is the end of the keyspace.
    pub(crate) end: Option<Vec<u8>>,
}

impl KeyRange {
    /// Returns the range of all keys.
    pub(crate) fn all() -> Self {
        Self {
            start: Vec::new(),
            end: None,
        }
    }

    /// Returns the least range that has the keys of all these buckets.
    pub(crate) fn of_buckets(ids: impl Iterator<Item = [u8; 12]> + Clone) -> Self {
        let last = ids.clone().max().map(end_of);
        Self {
            start: ids.min().unwrap_or_default().to_vec(),
            end: Some(last.unwrap_or_default()),
        }
    }

    /// True if the end lies above the key.
    pub(crate) fn ends_after(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_none_or(|end| key < end)
    }

    /// True if the range contains all of the other.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && self.higher_end(other) == self.end
    }

    /// True if no key lies between the two ranges.
    pub(crate) fn touches(&self, other: &Self) -> bool {
        let reaches = |a: &Self, b: &Self| a.end.as_ref().is_none_or(|end| b.start <= *end);
        reaches(self, other) && reaches(other, self)
    }

    /// Extends the range by another that touches it.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.end = self.higher_end(other);
        if other.start < self.start {
            self.start.clone_from(&other.start);
        }
    }

    /// Returns the lower of the two ends.
    pub(crate) fn lower_end(&self, other: &Self) -> Option<Vec<u8>> {
        match (&self.end, &other.end) {
            (Some(a), Some(b)) => Some(a.min(b).clone()),
            (one, None) | (None, one) => one.clone(),
        }
    }

    /// Returns the higher of the two ends.
    fn higher_end(&self, other: &Self) -> Option<Vec<u8>> {
        match (&self.end, &other.end) {
            (Some(a), Some(b)) => Some(a.max(b).clone()),
            _ => None,
        }
    }
}
