//! Parts of the log outside of its directory: batches in a row, with the changes of keyspaces and times of their positions.
//!
//! ```text
//! part = "NILOPRT1", index of the first batch u64, index after the last u64, sequence number before the first u64,
//!        number of moments u32, number of changes u32, bytes of the batches u64,
//!        for each moment: milliseconds since 1970 i64, index of the next batch u64
//!        for each change: index of the next batch u64, length u32, the change
//!        for each batch: sequence number u64, length of the payload u32, payload
//!        checksum of everything before it u64                                    (little-endian)
//! change = 1, keyspace id u64, flags u8, id of the keyspace whose long keys it holds u64, name    (created)
//!        | 2, keyspace id u64                                                      (dropped)
//! ```
//!
//! Flags are 1 (separated values), 2 (short-lived entries), 4 (long keys) and 8 (large blocks).

use crate::checksum::checksum;
use crate::engine::{Keyspace, KeyspaceId, KeyspaceOptions};

const MAGIC: &[u8; 8] = b"NILOPRT1";
const CREATED: u8 = 1;
const DROPPED: u8 = 2;
const SEPARATED: u8 = 1;
const SHORT_LIVED: u8 = 2;
const LONG_KEYS: u8 = 4;
const LARGE_BLOCKS: u8 = 8;

/// A place in the log: between two batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Index of the batch after it.
    pub next_index: u64,
    /// Sequence number of the batch before it.
    pub last_sequence: u64,
}

/// A time at which the batches before an index, and no others, had been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// The index of the next batch.
    pub next_index: u64,
}

/// A keyspace that came or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyspaceChange {
    /// It was created.
    Created(Keyspace),
    /// It was dropped.
    Dropped(KeyspaceId),
}

/// Batches in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPart {
    /// Where the first batch is.
    pub begin: LogPosition,
    /// The index after the last batch.
    pub next_index: u64,
    /// Times, ascending.
    pub moments: Vec<Moment>,
    /// Changes of keyspaces, each with the index of the batch after it, ascending.
    pub changes: Vec<(u64, KeyspaceChange)>,
    /// The encoded batches.
    pub(crate) batches: Vec<u8>,
}

impl LogPart {
    /// Appends an encoded batch.
    pub(crate) fn push_batch(batches: &mut Vec<u8>, sequence: u64, payload: &[u8]) {
        batches.extend(sequence.to_le_bytes());
        // A payload is at most as long as the length of its record can say.
        batches.extend((payload.len() as u32).to_le_bytes());
        batches.extend(payload);
    }

    /// Calls `each` with the index, the sequence number and the payload of every batch. `None` if they are not those that
    /// the part says it has.
    pub(crate) fn each_batch(&self, mut each: impl FnMut(u64, u64, &[u8])) -> Option<()> {
        let mut rest = &self.batches[..];
        let mut last = self.begin.last_sequence;
        for index in self.begin.next_index..self.next_index {
            let sequence = take_u64(&mut rest)?;
            let length = take_u32(&mut rest)?;
            let payload = take(&mut rest, length as usize)?;
            if sequence <= last {
                return None;
            }
            each(index, sequence, payload);
            last = sequence;
        }
        rest.is_empty().then_some(())
    }

    /// Returns the bytes of the batches.
    pub fn batch_bytes(&self) -> u64 {
        self.batches.len() as u64
    }

    /// Returns the position after the part; `None` if its batches are not readable.
    pub fn end(&self) -> Option<LogPosition> {
        let mut last_sequence = self.begin.last_sequence;
        self.each_batch(|_, sequence, _| last_sequence = sequence)?;
        Some(LogPosition {
            next_index: self.next_index,
            last_sequence,
        })
    }

    /// Encodes the part.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let numbers = [
            self.begin.next_index,
            self.next_index,
            self.begin.last_sequence,
        ];
        bytes.extend(numbers.map(u64::to_le_bytes).as_flattened());
        bytes.extend((self.moments.len() as u32).to_le_bytes());
        bytes.extend((self.changes.len() as u32).to_le_bytes());
        bytes.extend((self.batches.len() as u64).to_le_bytes());
        for moment in &self.moments {
            bytes.extend(moment.time_ms.to_le_bytes());
            bytes.extend(moment.next_index.to_le_bytes());
        }
        for (next_index, change) in &self.changes {
            let change = encode_change(change);
            bytes.extend(next_index.to_le_bytes());
            bytes.extend((change.len() as u32).to_le_bytes());
            bytes.extend(change);
        }
        bytes.extend(&self.batches);
        bytes.extend(checksum(&bytes, 0).to_le_bytes());
        bytes
    }

    /// Decodes a part. `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        let (magic, mut rest) = body.split_first_chunk::<8>()?;
        if magic != MAGIC || u64::from_le_bytes(*sum) != checksum(body, 0) {
            return None;
        }
        let rest = &mut rest;
        let (first, next_index, last_sequence) =
            (take_u64(rest)?, take_u64(rest)?, take_u64(rest)?);
        let (moment_count, change_count) = (take_u32(rest)?, take_u32(rest)?);
        let batch_bytes = usize::try_from(take_u64(rest)?).ok()?;
        let mut moments = Vec::new();
        for _ in 0..moment_count {
            moments.push(Moment {
                time_ms: take_u64(rest)?.cast_signed(),
                next_index: take_u64(rest)?,
            });
        }
        let mut changes = Vec::new();
        for _ in 0..change_count {
            let at = take_u64(rest)?;
            let length = take_u32(rest)?;
            changes.push((at, decode_change(take(rest, length as usize)?)?));
        }
        let batches = take(rest, batch_bytes)?.to_vec();
        let part = Self {
            begin: LogPosition {
                next_index: first,
                last_sequence,
            },
            next_index,
            moments,
            changes,
            batches,
        };
        let is_whole = rest.is_empty() && first <= next_index;
        part.each_batch(|_, _, _| {}).filter(|()| is_whole)?;
        Some(part)
    }
}

fn encode_change(change: &KeyspaceChange) -> Vec<u8> {
    match change {
        KeyspaceChange::Created(keyspace) => {
            let options = keyspace.options;
            let flag = |set: bool, flag: u8| if set { flag } else { 0 };
            let mut bytes = vec![CREATED];
            bytes.extend(keyspace.id.0.to_le_bytes());
            bytes.push(
                flag(options.separate_values, SEPARATED)
                    | flag(options.short_lived, SHORT_LIVED)
                    | flag(options.large_blocks, LARGE_BLOCKS)
                    | flag(options.long_keys_of.is_some(), LONG_KEYS),
            );
            bytes.extend(options.long_keys_of.map_or(0, |of| of.0).to_le_bytes());
            bytes.extend(keyspace.name.as_bytes());
            bytes
        }
        KeyspaceChange::Dropped(id) => [&[DROPPED], &id.0.to_le_bytes()[..]].concat(),
    }
}

fn decode_change(bytes: &[u8]) -> Option<KeyspaceChange> {
    let (kind, mut rest) = bytes.split_first()?;
    let id = KeyspaceId(take_u64(&mut rest)?);
    match *kind {
        CREATED => {
            let flags = *take(&mut rest, 1)?.first()?;
            let of = KeyspaceId(take_u64(&mut rest)?);
            if flags & !(SEPARATED | SHORT_LIVED | LONG_KEYS | LARGE_BLOCKS) != 0 {
                return None;
            }
            Some(KeyspaceChange::Created(Keyspace {
                id,
                name: String::from_utf8(rest.to_vec()).ok()?,
                options: KeyspaceOptions {
                    separate_values: flags & SEPARATED != 0,
                    short_lived: flags & SHORT_LIVED != 0,
                    large_blocks: flags & LARGE_BLOCKS != 0,
                    long_keys_of: (flags & LONG_KEYS != 0).then_some(of),
                },
            }))
        }
        DROPPED => rest.is_empty().then_some(KeyspaceChange::Dropped(id)),
        _ => None,
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let bytes = take(rest, 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let bytes = take(rest, 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> LogPart {
        let mut batches = Vec::new();
        LogPart::push_batch(&mut batches, 12, b"one");
        LogPart::push_batch(&mut batches, 15, b"");
        LogPart {
            begin: LogPosition {
                next_index: 7,
                last_sequence: 11,
            },
            next_index: 9,
            moments: vec![Moment {
                time_ms: -5,
                next_index: 8,
            }],
            changes: vec![
                (
                    7,
                    KeyspaceChange::Created(Keyspace {
                        id: KeyspaceId(4),
                        name: "séparé".to_owned(),
                        options: KeyspaceOptions {
                            separate_values: true,
                            short_lived: false,
                            large_blocks: true,
                            long_keys_of: Some(KeyspaceId(3)),
                        },
                    }),
                ),
                (9, KeyspaceChange::Dropped(KeyspaceId(2))),
            ],
            batches,
        }
    }

    #[test]
    fn a_part_survives_the_round_trip_and_no_flipped_bit() {
        let bytes = part().encode();
        assert_eq!(LogPart::decode(&bytes), Some(part()));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LogPart::decode(&flipped), None, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(LogPart::decode(&bytes[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn golden_part_bytes() {
        let bytes = part().encode();
        assert_eq!(&bytes[..16], b"NILOPRT1\x07\0\0\0\0\0\0\0");
        assert_eq!(&bytes[32..48], b"\x01\0\0\0\x02\0\0\0\x1b\0\0\0\0\0\0\0");
        let position = part().end().expect("readable");
        assert_eq!((position.next_index, position.last_sequence), (9, 15));
    }

    #[test]
    fn a_part_that_has_other_batches_than_it_says_is_none() {
        for next_index in [8, 10, u64::MAX] {
            let wrong = LogPart {
                next_index,
                ..part()
            };
            assert_eq!(LogPart::decode(&wrong.encode()), None);
        }
    }
}
