//! The checksum on separated values.
//!
//! A separated value passes through files of values, merges and the block cache without its key. So it carries a
//! checksum of eight bytes,
//!
//! ```text
//! value, xxh3-64 of value seeded with (xxh3-64 of key seeded with the keyspace id)
//! ```
//!
//! which detects a damaged value and a value stored under another key.

use std::path::Path;

use super::tree::Tree;
use crate::bytes::Bytes;
use crate::checksum::checksum;
use crate::error::{Error, Result};

/// Bytes added to a separated value.
pub(crate) const CHECKSUM_BYTES: usize = 8;

/// Returns the checksum to store after `value`.
pub(crate) fn seal(keyspace: u64, key: &[u8], value: &[u8]) -> [u8; CHECKSUM_BYTES] {
    checksum(value, checksum(key, keyspace)).to_le_bytes()
}

/// Checks the stored value of a key of `tree` and returns it without its checksum.
pub(crate) fn unseal(tree: &Tree, key: &[u8], stored: Bytes) -> Result<Bytes> {
    if !tree.keyspace.options.separate_values {
        return Ok(stored);
    }
    open(&tree.path, tree.keyspace.id.0, key, stored)
}

fn open(path: &Path, keyspace: u64, key: &[u8], stored: Bytes) -> Result<Bytes> {
    if let Some((value, sum)) = stored.split_last_chunk::<CHECKSUM_BYTES>()
        && *sum == seal(keyspace, key, value)
    {
        return Ok(stored.without_suffix(CHECKSUM_BYTES));
    }
    Err(Error::corruption(
        "separated value",
        path,
        0,
        format!(
            "a value with a checksum that matches the key {}",
            key.escape_ascii()
        ),
        format!("{} bytes with another checksum", stored.len()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_matches_one_value_of_one_key() {
        let path = Path::new("t");
        let mut stored = b"value".to_vec();
        stored.extend(seal(3, b"k", b"value"));
        let opened = open(path, 3, b"k", Bytes::from(stored.clone()));
        assert_eq!(opened.ok(), Some(Bytes::copy_from(b"value")));
        assert!(open(path, 3, b"l", Bytes::from(stored.clone())).is_err());
        assert!(open(path, 4, b"k", Bytes::from(stored.clone())).is_err());
        for bit in 0..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(path, 3, b"k", Bytes::from(flipped)).is_err());
        }
        assert!(open(path, 3, b"k", Bytes::copy_from(b"short")).is_err());
    }
}
