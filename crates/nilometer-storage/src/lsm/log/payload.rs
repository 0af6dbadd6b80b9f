//! The payload of a record: the annotation and the operations of one batch.
//!
//! ```text
//! annotation length, annotation, then for each keyspace:
//!   keyspace id, number of operations, then for each operation:
//!     key length, value length + 1 (0: a delete), key, value
//! ```
//!
//! All numbers are LEB128 varints. Operations are ordered by (keyspace, key), each key once. Checksums are verified
//! before decoding, but the decoder checks every length.

use std::ops::Range;

/// Appends `value` as a varint.
pub(crate) fn put_varint(target: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        target.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    target.push(value as u8);
}

/// Reads fields from a payload.
struct PayloadReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl PayloadReader<'_> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<Range<usize>> {
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        self.bytes.get(self.at..end)?;
        let range = self.at..end;
        self.at = end;
        Some(range)
    }
}

/// One operation of a payload, as ranges of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PayloadOperation {
    pub(crate) keyspace: u64,
    pub(crate) key: Range<usize>,
    /// `None` for a delete.
    pub(crate) value: Option<Range<usize>>,
}

/// Calls `each` for every operation of `payload`. Returns `None` if it is not a payload.
pub(crate) fn decode(payload: &[u8], mut each: impl FnMut(PayloadOperation)) -> Option<()> {
    let mut reader = PayloadReader {
        bytes: payload,
        at: 0,
    };
    let annotation = reader.varint()?;
    reader.take(annotation)?;
    while reader.at < payload.len() {
        let keyspace = reader.varint()?;
        for _ in 0..reader.varint()? {
            let key_length = reader.varint()?;
            let value_length = reader.varint()?;
            let key = reader.take(key_length)?;
            let value = match value_length.checked_sub(1) {
                Some(length) => Some(reader.take(length)?),
                None => None,
            };
            each(PayloadOperation {
                keyspace,
                key,
                value,
            });
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_survive_the_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            let mut reader = PayloadReader {
                bytes: &bytes,
                at: 0,
            };
            assert_eq!(reader.varint(), Some(value));
            assert_eq!(reader.at, bytes.len());
        }
        let mut endless = PayloadReader {
            bytes: &[0xff; 11],
            at: 0,
        };
        assert_eq!(endless.varint(), None);
    }

    #[test]
    fn golden_payload() {
        // annotation "n"; keyspace 3, two operations: "a" = "xy", "b" deleted.
        let payload = b"\x01n\x03\x02\x01\x03axy\x01\x00b";
        let mut entries = Vec::new();
        assert_eq!(decode(payload, |entry| entries.push(entry)), Some(()));
        assert_eq!(entries.len(), 2);
        assert_eq!(&payload[entries[0].key.clone()], b"a");
        assert_eq!(&payload[entries[0].value.clone().expect("a put")], b"xy");
        assert_eq!(&payload[entries[1].key.clone()], b"b");
        assert_eq!(entries[1].value, None);
        for cut in 1..payload.len() {
            // The prefix up to the annotation is a valid, empty payload.
            assert_eq!(decode(&payload[..cut], |_| {}).is_some(), cut == 2, "{cut}");
        }
    }
}
