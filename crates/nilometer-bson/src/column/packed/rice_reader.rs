//! Decoding of Rice codes in chunks.
//!
//! Unary codes are decoded by a table lookup per byte: the quotients that end in it, and the zeros
//! carried to the next byte. The position of outliers is found by counting those before them.

use super::rice::{QUOTIENT_MAX, read_remainders, window};

/// Values per chunk: a multiple of 8, so that the remainders of each chunk start at a byte
/// boundary.
pub(super) const CHUNK: usize = 64;

/// Maximum number of quotients that end in one byte.
const BYTE_QUOTIENTS_MAX: usize = 8;

/// Up to this parameter all values except outliers fit into a byte.
const PARAMETER_NARROW: u32 = 3;

/// Values decoded together.
#[derive(Clone)]
pub(super) struct CodeChunk {
    narrow: [u8; CHUNK],
    wide: [u64; CHUNK],
    is_narrow: bool,
}

impl CodeChunk {
    pub(super) fn new() -> Self {
        Self {
            narrow: [0; CHUNK],
            wide: [0; CHUNK],
            is_narrow: false,
        }
    }

    /// Returns the values, if all of them fit into a byte; otherwise use [`CodeChunk::wide`].
    #[inline]
    pub(super) fn narrow(&self) -> Option<&[u8; CHUNK]> {
        self.is_narrow.then_some(&self.narrow)
    }

    pub(super) fn wide(&self) -> &[u64; CHUNK] {
        &self.wide
    }

    /// Shifts the quotients left and inserts the remainders.
    #[inline]
    fn put_under(&mut self, parameter: u32, remainders: &[u64; CHUNK]) {
        if self.is_narrow {
            for (value, remainder) in self.narrow.iter_mut().zip(remainders) {
                *value = *value << parameter | *remainder as u8;
            }
            return;
        }
        for (value, remainder) in self.wide.iter_mut().zip(remainders) {
            *value = *value << parameter | *remainder;
        }
    }
}

/// Decoded form of a byte of unary codes.
#[derive(Clone, Copy)]
struct UnaryByte {
    /// Number of zeros before each of its ones, one byte each, the first lowest.
    zeros: u64,
    ones: u8,
    /// Zeros after the last one.
    rest: u8,
}

static UNARY: [UnaryByte; 256] = unary_table();

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn unary_table() -> [UnaryByte; 256] {
    let none = UnaryByte {
        zeros: 0,
        ones: 0,
        rest: 8,
    };
    let mut table = [none; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut entry = UnaryByte { rest: 0, ..none };
        let mut bit = 0;
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                entry.zeros |= (entry.rest as u64) << (8 * entry.ones);
                entry.ones += 1;
                entry.rest = 0;
            } else {
                entry.rest += 1;
            }
            bit += 1;
        }
        table[byte] = entry;
        byte += 1;
    }
    table
}

/// Decodes Rice codes.
#[derive(Clone)]
pub(super) struct RiceReader<'a> {
    remainders: &'a [u8],
    quotients: &'a [u8],
    outliers: &'a [u8],
    parameter: u32,
    /// Number of values left.
    left: usize,
    /// Quotients decoded but not used yet, and their number.
    buffered: [u8; CHUNK + BYTE_QUOTIENTS_MAX],
    ready: usize,
    /// Zeros since the last one bit.
    zeros: u64,
}

impl<'a> RiceReader<'a> {
    /// Starts decoding `count` values from `bytes`, which must contain nothing else.
    pub(super) fn new(bytes: &'a [u8], count: usize, parameter: u32) -> Option<Self> {
        let remainders = (count.checked_mul(parameter as usize)?).div_ceil(8);
        let (remainders, rest) = bytes.split_at_checked(remainders)?;
        let (quotients, outliers) = rest.split_at_checked(bytes_of_ones(rest, count)?)?;
        (count > 0 || outliers.is_empty()).then_some(Self {
            remainders,
            quotients,
            outliers,
            parameter,
            left: count,
            buffered: [0; CHUNK + BYTE_QUOTIENTS_MAX],
            ready: 0,
            zeros: 0,
        })
    }

    /// Decodes the next chunk; returns the number of values, which is [`CHUNK`] except for the
    /// last.
    #[inline]
    pub(super) fn next(&mut self, chunk: &mut CodeChunk) -> Option<usize> {
        let count = self.left.min(CHUNK);
        self.buffer_quotients(count)?;
        let (read, buffered) = self.buffered.split_first_chunk::<CHUNK>()?;
        let greatest = read.iter().take(count).fold(0, |a, b| a.max(*b));
        chunk.is_narrow = greatest < QUOTIENT_MAX && self.parameter <= PARAMETER_NARROW;
        if chunk.is_narrow {
            chunk.narrow = *read;
        } else {
            for (value, quotient) in chunk.wide.iter_mut().zip(read) {
                *value = u64::from(*quotient);
            }
        }
        let outliers = read.iter().take(count).enumerate();
        let outliers = outliers.filter(|(_, quotient)| **quotient == QUOTIENT_MAX);
        if self.parameter > 0 {
            let mut remainders = [0; CHUNK];
            read_remainders(
                self.remainders,
                self.parameter,
                remainders.get_mut(..count)?,
            );
            chunk.put_under(self.parameter, &remainders);
            let read = CHUNK / 8 * self.parameter as usize;
            self.remainders = self.remainders.get(read..).unwrap_or(&[]);
        }
        if greatest > QUOTIENT_MAX {
            return None;
        }
        if greatest == QUOTIENT_MAX {
            for (at, _) in outliers {
                let (outlier, rest) = self.outliers.split_first_chunk()?;
                *chunk.wide.get_mut(at)? = u64::from_le_bytes(*outlier);
                self.outliers = rest;
            }
        }
        let (behind, _) = buffered.split_first_chunk::<BYTE_QUOTIENTS_MAX>()?;
        let behind = *behind;
        *self.buffered.first_chunk_mut()? = behind;
        self.ready -= count;
        self.left -= count;
        (self.left > 0 || self.outliers.is_empty()).then_some(count)
    }

    /// Decodes quotients until `count` are available.
    #[inline(always)]
    fn buffer_quotients(&mut self, count: usize) -> Option<()> {
        let (mut ready, mut zeros) = (self.ready, self.zeros);
        let mut bytes = self.quotients.iter();
        while ready < count {
            let entry = UNARY.get(usize::from(*bytes.next()?))?;
            if zeros > u64::from(QUOTIENT_MAX) {
                return None;
            }
            // The first includes zeros carried from the bytes before; entries after the last are
            // arbitrary.
            let found = (entry.zeros + zeros).to_le_bytes();
            *self.buffered.get_mut(ready..)?.first_chunk_mut()? = found;
            ready += usize::from(entry.ones);
            zeros = u64::from(entry.rest) + if entry.ones == 0 { zeros } else { 0 };
        }
        self.quotients = bytes.as_slice();
        (self.ready, self.zeros) = (ready, zeros);
        Some(())
    }
}

/// Returns the number of leading bytes that contain `count` ones.
fn bytes_of_ones(bytes: &[u8], count: usize) -> Option<usize> {
    let mut left = count;
    for at in (0..bytes.len()).step_by(8) {
        if left == 0 {
            return Some(at);
        }
        let mut bits = window(bytes, at);
        let ones = bits.count_ones() as usize;
        if ones < left {
            left -= ones;
            continue;
        }
        let mut end = at;
        while left > 0 {
            left = left.saturating_sub((bits & 0xFF).count_ones() as usize);
            bits >>= 8;
            end += 1;
        }
        return Some(end);
    }
    (left == 0).then_some(bytes.len())
}
