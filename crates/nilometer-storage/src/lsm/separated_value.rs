//! The checksum on separated values.
//!
//! A value kept apart from its key travels alone: through files of values, their merging, and the
//! block cache. So it carries eight bytes of its own,
//!
//! ```text
//! value, xxh3-64 of value seeded with (xxh3-64 of key seeded with the keyspace id)
//! ```
//!
//! which tell a damaged value, and also the wrong value for a key.

use std::path::Path;

use super::tree::Tree;
use crate::bytes::Bytes;
use crate::checksum::checksum;
use crate::error::{Error, Result};

/// Bytes added to a separated value.
pub(crate) const CHECKSUM_BYTES: usize = 8;

/// The bytes to store behind `value`.
pub(crate) fn seal(keyspace: u64, key: &[u8], value: &[u8]) -> [u8; CHECKSUM_BYTES] {
    checksum(value, checksum(key, keyspace)).to_le_bytes()
}

/// What is stored for a key of `tree`, checked and without its seal.
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
        format!("a value whose checksum fits the key {}", key.escape_ascii()),
        format!("{} bytes whose checksum does not", stored.len()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_fits_one_value_of_one_key() {
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
