//! Keys in SlateDB.
//!
//! ```text
//! id u64                    one of our keyspaces: id, then the key             (big-endian, so that ids sort)
//!
//! 0, "annotation"           the annotation of the last batch that has one, or has no operation
//! 0, "copy"                 present while a copy into the database runs; until it is removed the database is incomplete
//! 0, "format"               FORMAT_VERSION u32
//! 0, "keyspace", id u64     a keyspace: flags u8 (1: separated values, 2: short-lived entries, 4: long keys),
//!                           with flag 4 the id of the keyspace whose long keys it has u64, then its name
//! 0, "next"                 the lowest id that was never in use u64
//! 0, "own batches"          how many batches only changed this keyspace; they have no position u64
//! ```
//!
//! Keyspace 0 belongs to this crate. A keyspace exists while its record does; the entries of others are not visible, and
//! merges remove them (see [`crate::retained`]).

use std::ops::Bound;

use bytes::Bytes;
use nilometer_storage::engine::KEY_BYTES_MAX;
use nilometer_storage::{Keyspace, KeyspaceId, KeyspaceOptions};

/// The version of the layout that this crate writes, and the only one it reads.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Bytes before the key.
pub(crate) const PREFIX_BYTES: usize = 8;

const OWN: u64 = 0;
const RECORD: &[u8] = b"keyspace";
const SEPARATED: u8 = 1;
const SHORT_LIVED: u8 = 2;
const LONG_KEYS: u8 = 4;

/// Returns the stored key of an entry.
pub(crate) fn entry_key(id: KeyspaceId, key: &[u8]) -> Bytes {
    let mut stored = Vec::with_capacity(PREFIX_BYTES + key.len());
    stored.extend_from_slice(&id.0.to_be_bytes());
    stored.extend_from_slice(key);
    stored.into()
}

/// Returns the stored key of an entry that may exist; `None` for a key that none has.
pub(crate) fn possible_key(id: KeyspaceId, key: &[u8]) -> Option<Bytes> {
    let is_possible = !key.is_empty() && key.len() <= KEY_BYTES_MAX;
    is_possible.then(|| entry_key(id, key))
}

/// Returns the id in a stored key.
pub(crate) fn keyspace_of(stored: &[u8]) -> Option<KeyspaceId> {
    let id = stored.first_chunk::<PREFIX_BYTES>()?;
    Some(KeyspaceId(u64::from_be_bytes(*id)))
}

/// Returns the stored bounds of the entries with `start <= key < end`; `None` if there is no such key.
pub(crate) fn range(
    id: KeyspaceId,
    start: &[u8],
    end: Option<&[u8]>,
) -> Option<(Bound<Bytes>, Bound<Bytes>)> {
    let stored_end = match end {
        Some(end) if end <= start => return None,
        Some(end) => entry_key(id, end),
        None => entry_key(KeyspaceId(id.0.saturating_add(1)), &[]),
    };
    let start = Bound::Included(entry_key(id, start));
    Some((start, Bound::Excluded(stored_end)))
}

/// The key of the annotation.
pub(crate) fn annotation_key() -> Bytes {
    entry_key(KeyspaceId(OWN), b"annotation")
}

/// The key of the mark of a copy that is not finished.
pub(crate) fn copy_key() -> Bytes {
    entry_key(KeyspaceId(OWN), b"copy")
}

/// The key of the format version.
pub(crate) fn format_key() -> Bytes {
    entry_key(KeyspaceId(OWN), b"format")
}

/// The key of the next id.
pub(crate) fn next_key() -> Bytes {
    entry_key(KeyspaceId(OWN), b"next")
}

/// The key of the number of own batches.
pub(crate) fn own_batches_key() -> Bytes {
    entry_key(KeyspaceId(OWN), b"own batches")
}

/// The key of the record of a keyspace.
pub(crate) fn record_key(id: KeyspaceId) -> Bytes {
    entry_key(KeyspaceId(OWN), &[RECORD, &id.0.to_be_bytes()].concat())
}

/// The bounds of all records of keyspaces.
pub(crate) fn records() -> (Bound<Bytes>, Bound<Bytes>) {
    let (first, last) = (record_key(KeyspaceId(0)), record_key(KeyspaceId(u64::MAX)));
    (Bound::Included(first), Bound::Included(last))
}

/// Returns the record of a keyspace.
pub(crate) fn encode_record(keyspace: &Keyspace) -> Vec<u8> {
    let options = keyspace.options;
    let mut flags = 0;
    for (option, flag) in [
        (options.separate_values, SEPARATED),
        (options.short_lived, SHORT_LIVED),
        (options.long_keys_of.is_some(), LONG_KEYS),
    ] {
        flags |= if option { flag } else { 0 };
    }
    let mut record = vec![flags];
    if let Some(of) = options.long_keys_of {
        record.extend(of.0.to_be_bytes());
    }
    record.extend(keyspace.name.as_bytes());
    record
}

/// Parses the stored key and the record of a keyspace. `None` if they have not the form of the head.
pub(crate) fn decode_record(stored: &[u8], record: &[u8]) -> Option<Keyspace> {
    let id = stored.get(PREFIX_BYTES..)?.strip_prefix(RECORD)?;
    let id = u64::from_be_bytes(id.try_into().ok()?);
    let (flags, mut rest) = record.split_first()?;
    if flags & !(SEPARATED | SHORT_LIVED | LONG_KEYS) != 0 {
        return None;
    }
    let mut long_keys_of = None;
    if flags & LONG_KEYS != 0 {
        let (of, name) = rest.split_first_chunk::<8>()?;
        long_keys_of = Some(KeyspaceId(u64::from_be_bytes(*of)));
        rest = name;
    }
    Some(Keyspace {
        id: KeyspaceId(id),
        name: String::from_utf8(rest.to_vec()).ok()?,
        options: KeyspaceOptions {
            separate_values: flags & SEPARATED != 0,
            short_lived: flags & SHORT_LIVED != 0,
            large_blocks: false,
            long_keys_of,
        },
    })
}

/// Parses a number that this crate stored.
pub(crate) fn decode_number(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyspace(long_keys_of: Option<KeyspaceId>) -> Keyspace {
        Keyspace {
            id: KeyspaceId(258),
            name: "nilo".to_owned(),
            options: KeyspaceOptions {
                separate_values: true,
                short_lived: false,
                large_blocks: false,
                long_keys_of,
            },
        }
    }

    #[test]
    fn the_layout_is_that_of_the_head() {
        assert_eq!(
            entry_key(KeyspaceId(258), b"k")[..],
            *b"\0\0\0\0\0\0\x01\x02k"
        );
        assert_eq!(next_key()[..], *b"\0\0\0\0\0\0\0\0next");
        assert_eq!(own_batches_key()[..], *b"\0\0\0\0\0\0\0\0own batches");
        assert_eq!(format_key()[..], *b"\0\0\0\0\0\0\0\0format");
        assert_eq!(copy_key()[..], *b"\0\0\0\0\0\0\0\0copy");
        assert_eq!(annotation_key()[..], *b"\0\0\0\0\0\0\0\0annotation");
        let key = b"\0\0\0\0\0\0\0\0keyspace\0\0\0\0\0\0\x01\x02";
        assert_eq!(record_key(KeyspaceId(258))[..], *key);
        assert_eq!(encode_record(&keyspace(None)), b"\x01nilo");
        let companion = keyspace(Some(KeyspaceId(7)));
        assert_eq!(encode_record(&companion), b"\x05\0\0\0\0\0\0\0\x07nilo");
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for keyspace in [keyspace(None), keyspace(Some(KeyspaceId(u64::MAX)))] {
            let record = encode_record(&keyspace);
            let read = decode_record(&record_key(keyspace.id), &record);
            assert_eq!(read, Some(keyspace));
        }
    }

    #[test]
    fn fuzz_records_of_any_bytes_are_refused_or_read() {
        let key = record_key(KeyspaceId(1));
        for flags in 0..=u8::MAX {
            for rest in [
                &b""[..],
                b"abc",
                b"\0\0\0\0\0\0\0\x01",
                b"\0\0\0\0\0\0\0\x01n\xff",
            ] {
                let record = [&[flags], rest].concat();
                if let Some(read) = decode_record(&key, &record) {
                    assert_eq!(encode_record(&read), record);
                }
                let _ = decode_record(&record, &key);
            }
        }
        assert_eq!(decode_record(&key, b""), None);
        assert_eq!(keyspace_of(b"\0\0\0"), None);
    }

    #[test]
    fn a_range_ends_with_its_keyspace() {
        let (start, end) = range(KeyspaceId(1), b"a", None).expect("a range");
        assert_eq!(start, Bound::Included(entry_key(KeyspaceId(1), b"a")));
        assert_eq!(end, Bound::Excluded(entry_key(KeyspaceId(2), b"")));
    }
}
