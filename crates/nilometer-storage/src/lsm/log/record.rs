//! The headers of the log: encoding and validation.
//!
//! The format is described in the head of [`super`].

use crate::checksum::checksum;

/// Bytes of a segment header; the first record follows it.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;

/// Bytes of a record header.
pub(crate) const RECORD_HEADER_BYTES: usize = 48;

/// Records start at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;

const SEGMENT_MAGIC: [u8; 8] = *b"NILOLOG1";
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"NLr1");
const END_MAGIC: u32 = u32::from_le_bytes(*b"NLe1");

/// The first bytes of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Id of the segment: part of the file name, and the seed of its records' checksums.
    pub(crate) id: u64,
    /// Index of the first record.
    pub(crate) first_index: u64,
    /// Sequence number of the record before the first; 0 if there is none.
    pub(crate) base_sequence: u64,
    /// Size of the file at creation; a shorter file is damaged.
    pub(crate) size: u64,
    /// True if the list of segments names it; false in segments of builds before the list.
    pub(crate) is_listed: bool,
}

/// The flag of [`SegmentHeader::is_listed`].
const LISTED: u64 = 1;

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_index.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.base_sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.size.to_le_bytes());
        let flags = if self.is_listed { LISTED } else { 0 };
        bytes[40..48].copy_from_slice(&flags.to_le_bytes());
        let sum = checksum(&bytes[..56], 0);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes the header at the start of `bytes`, if it is valid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..SEGMENT_HEADER_BYTES)?;
        if header.get(..8)? != SEGMENT_MAGIC
            || u64_at(header, 56)? != checksum(header.get(..56)?, 0)
        {
            return None;
        }
        Some(Self {
            id: u64_at(header, 8)?,
            first_index: u64_at(header, 16)?,
            base_sequence: u64_at(header, 24)?,
            size: u64_at(header, 32)?,
            is_listed: u64_at(header, 40)? & LISTED != 0,
        })
    }
}

/// What follows a record header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// A batch.
    Batch,
    /// Nothing: the log ends here. The next batch overwrites the mark.
    End,
}

/// The header of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    /// Bytes of payload, without padding.
    pub(crate) length: u32,
    /// Index of the batch in the log, without gaps. An end mark has that of the next batch.
    pub(crate) index: u64,
    /// Sequence number of the batch in the trees; ascending, with gaps. An end mark has the last one.
    pub(crate) sequence: u64,
    /// Every record up to this index was durable when this header was written.
    pub(crate) durable: u64,
    /// Checksum of the payload.
    pub(crate) payload_checksum: u64,
}

impl RecordHeader {
    /// Returns the mark that ends the log before batch `index`.
    pub(crate) fn end(index: u64, last_sequence: u64, durable: u64) -> Self {
        Self {
            kind: RecordKind::End,
            length: 0,
            index,
            sequence: last_sequence,
            durable,
            payload_checksum: checksum(&[], 0),
        }
    }

    /// Writes the header into the first bytes of `target`.
    pub(crate) fn encode_into(&self, segment: u64, target: &mut [u8]) {
        let magic = match self.kind {
            RecordKind::Batch => RECORD_MAGIC,
            RecordKind::End => END_MAGIC,
        };
        let header = &mut target[..RECORD_HEADER_BYTES];
        header[..4].copy_from_slice(&magic.to_le_bytes());
        header[4..8].copy_from_slice(&self.length.to_le_bytes());
        header[8..16].copy_from_slice(&self.index.to_le_bytes());
        header[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        header[24..32].copy_from_slice(&self.durable.to_le_bytes());
        header[32..40].copy_from_slice(&self.payload_checksum.to_le_bytes());
        let sum = checksum(&header[..40], segment);
        header[40..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Decodes the header at the start of `bytes`, if it is valid and belongs to `segment`.
    pub(crate) fn decode(bytes: &[u8], segment: u64) -> Option<Self> {
        let header = bytes.get(..RECORD_HEADER_BYTES)?;
        let magic = u32::from_le_bytes(header.get(..4)?.try_into().ok()?);
        let kind = match magic {
            RECORD_MAGIC => RecordKind::Batch,
            END_MAGIC => RecordKind::End,
            _ => return None,
        };
        if u64_at(header, 40)? != checksum(header.get(..40)?, segment) {
            return None;
        }
        Some(Self {
            kind,
            length: u32::from_le_bytes(header.get(4..8)?.try_into().ok()?),
            index: u64_at(header, 8)?,
            sequence: u64_at(header, 16)?,
            durable: u64_at(header, 24)?,
            payload_checksum: u64_at(header, 32)?,
        })
    }

    /// Returns the bytes of the record in the file, padding included.
    pub(crate) fn record_bytes(&self) -> usize {
        padded(RECORD_HEADER_BYTES + self.length as usize)
    }
}

/// Rounds `length` up to the start of the next record.
pub(crate) fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let bytes = bytes.get(offset..offset + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_round_trip_and_nothing_else_does() {
        let header = SegmentHeader {
            id: 7,
            first_index: 100,
            base_sequence: 230,
            size: 4096,
            is_listed: true,
        };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Some(header));
        let record = RecordHeader {
            kind: RecordKind::Batch,
            length: 5,
            index: 101,
            sequence: 240,
            durable: 100,
            payload_checksum: 42,
        };
        let mut space = [0; RECORD_HEADER_BYTES];
        record.encode_into(7, &mut space);
        assert_eq!(RecordHeader::decode(&space, 7), Some(record));
        assert_eq!(RecordHeader::decode(&space, 8), None);
        assert_eq!(record.record_bytes(), 56);
        for bit in 0..space.len() * 8 {
            let mut flipped = space;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&flipped, 7), None, "bit {bit}");
        }
        for cut in 0..RECORD_HEADER_BYTES {
            assert_eq!(RecordHeader::decode(&space[..cut], 7), None);
        }
    }

    #[test]
    fn golden_header_bytes() {
        let header = SegmentHeader {
            id: 1,
            first_index: 2,
            base_sequence: 3,
            size: 4,
            is_listed: false,
        };
        let bytes = header.encode();
        assert_eq!(&bytes[..16], b"NILOLOG1\x01\0\0\0\0\0\0\0");
        assert_eq!(&bytes[40..56], &[0; 16]);
        assert_eq!(u64_at(&bytes, 56), Some(checksum(&bytes[..56], 0)));
        let listed = SegmentHeader {
            is_listed: true,
            ..header
        };
        assert_eq!(
            &listed.encode()[40..56],
            b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
        );
    }
}
