//! Immutable bytes that are cheap to clone.
//!
//! [`Bytes`] wraps the slice type of the tables, so a value read from the block cache is shared with it, not copied. It
//! may hide a suffix: the checksum stored after a separated value.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use lsm_tree::Slice;

/// Immutable, shared bytes. Cloning does not copy them (up to 20 bytes are stored in place).
#[derive(Clone)]
pub struct Bytes {
    slice: Slice,
    /// Length of the visible prefix of `slice`.
    length: usize,
}

impl Bytes {
    /// Copies `bytes`.
    pub fn copy_from(bytes: &[u8]) -> Self {
        Self::from_slice(Slice::from(bytes))
    }

    /// Shares `slice`.
    pub(crate) fn from_slice(slice: Slice) -> Self {
        let length = slice.len();
        Self { slice, length }
    }

    /// Returns the same bytes without the last `count`, still shared. `count` is at most the length.
    pub(crate) fn without_suffix(mut self, count: usize) -> Self {
        assert!(count <= self.length, "a suffix is part of the bytes");
        self.length -= count;
        self
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.slice[..self.length]
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Borrow<[u8]> for Bytes {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Self::copy_from(&[])
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from_slice(Slice::from(bytes))
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self::copy_from(bytes)
    }
}

impl From<Bytes> for Vec<u8> {
    fn from(bytes: Bytes) -> Self {
        bytes.to_vec()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "b\"{}\"", self.escape_ascii())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Bytes {}

impl PartialEq<[u8]> for Bytes {
    fn eq(&self, other: &[u8]) -> bool {
        self.as_slice() == other
    }
}

impl PartialEq<&[u8]> for Bytes {
    fn eq(&self, other: &&[u8]) -> bool {
        self.as_slice() == *other
    }
}

impl PartialEq<Vec<u8>> for Bytes {
    fn eq(&self, other: &Vec<u8>) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl PartialOrd for Bytes {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bytes {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_suffix_is_not_part_of_the_bytes() {
        let long = (0..100).collect::<Vec<u8>>();
        let bytes = Bytes::from(long.clone()).without_suffix(8);
        assert_eq!(bytes.as_slice(), &long[..92]);
        assert_eq!(bytes.clone(), Bytes::copy_from(&long[..92]));
        assert_eq!(Bytes::default().len(), 0);
        assert_eq!(Bytes::from(vec![1, 2]).without_suffix(2), Bytes::default());
    }

    #[test]
    fn bytes_order_as_slices_do() {
        let (a, b) = (Bytes::from(vec![1, 255]), Bytes::from(vec![2]));
        assert!(a < b);
        assert_eq!(format!("{:?}", Bytes::from(b"a\0".to_vec())), "b\"a\\x00\"");
    }
}
