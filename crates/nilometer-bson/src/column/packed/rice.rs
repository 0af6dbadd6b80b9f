//! Rice codes in three separate parts, which can be decoded without reading bit by bit.
//!
//! ```text
//! remainders   the low `parameter` bits of each value
//! quotients    value >> parameter in unary: as many 0 bits and a 1; QUOTIENT_MAX for outliers
//! outliers     each value with a quotient of QUOTIENT_MAX: 8 bytes
//! ```
//!
//! Each part starts at a byte boundary and fills bytes from the lowest bit.
//! [`rice_reader`](super::rice_reader) decodes them.

use super::rice_reader::{CodeChunk, RiceReader};

/// Values with at least this quotient are outliers.
pub(super) const QUOTIENT_MAX: u8 = 24;

/// Maximum parameter.
pub(super) const PARAMETER_MAX: u32 = 29;

/// Remainders decoded from one window of bits.
const GROUP: usize = 8;

/// Bits in a window at any bit offset within its first byte.
const WINDOW_BITS: u32 = 57;

/// Returns the number of bits in a value's code.
fn code_bits(value: u64, parameter: u32) -> u64 {
    let quotient = value >> parameter;
    let outlier = if quotient < u64::from(QUOTIENT_MAX) {
        0
    } else {
        64
    };
    quotient.min(u64::from(QUOTIENT_MAX)) + 1 + u64::from(parameter) + outlier
}

/// Returns the parameter with the shortest codes, of those near the bit length of the median, and
/// their total bits. A mean would be dominated by the few outliers.
pub(super) fn best_parameter(values: &[u64]) -> (u32, usize) {
    let mut lengths = [0_usize; 65];
    for value in values {
        let count = lengths.get_mut(64 - value.leading_zeros() as usize);
        *count.expect("a value has at most 64 bits") += 1;
    }
    let mut left = values.len() / 2;
    let median = lengths.iter().position(|&count| {
        let is_it = left < count;
        left = left.saturating_sub(count);
        is_it
    });
    let median = median.unwrap_or(0) as u32;
    let bits = |parameter: u32| -> u64 { values.iter().map(|&v| code_bits(v, parameter)).sum() };
    let candidates = median.saturating_sub(2)..=median.min(PARAMETER_MAX);
    let best = candidates
        .map(|p| (bits(p), p))
        .min()
        .unwrap_or((u64::MAX, 0));
    (best.1, usize::try_from(best.0).unwrap_or(usize::MAX))
}

/// Appends the codes of values.
pub(super) fn write(out: &mut Vec<u8>, values: &[u64], parameter: u32) {
    let mut bits = BitWriter::new(out);
    if parameter > 0 {
        for &value in values {
            bits.put(value & !(u64::MAX << parameter), parameter);
        }
    }
    bits.finish();
    let mut bits = BitWriter::new(out);
    for &value in values {
        let quotient = (value >> parameter).min(u64::from(QUOTIENT_MAX)) as u32;
        bits.put(1 << quotient, quotient + 1);
    }
    bits.finish();
    let outliers = values
        .iter()
        .filter(|&v| v >> parameter >= u64::from(QUOTIENT_MAX));
    for outlier in outliers {
        out.extend_from_slice(&outlier.to_le_bytes());
    }
}

/// Decodes `count` values from `bytes`, which must contain nothing else.
pub(super) fn read(bytes: &[u8], count: usize, parameter: u32) -> Option<Vec<u64>> {
    let mut reader = RiceReader::new(bytes, count, parameter)?;
    let mut values = Vec::with_capacity(count);
    let mut chunk = CodeChunk::new();
    while values.len() < count {
        let read = reader.next(&mut chunk)?;
        match chunk.narrow() {
            Some(narrow) => values.extend(narrow.iter().take(read).map(|value| u64::from(*value))),
            None => values.extend(chunk.wide().iter().take(read)),
        }
    }
    Some(values)
}

/// Returns the 8 bytes from `at` on, padded with zeros at the end.
#[inline(always)]
pub(super) fn window(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or(&[]);
    if let Some(eight) = rest.first_chunk() {
        return u64::from_le_bytes(*eight);
    }
    let mut eight = [0; 8];
    for (to, from) in eight.iter_mut().zip(rest) {
        *to = *from;
    }
    u64::from_le_bytes(eight)
}

/// Decodes the remainders of values.
pub(super) fn read_remainders(bytes: &[u8], parameter: u32, values: &mut [u64]) {
    let mask = !(u64::MAX << parameter);
    let width = parameter as usize;
    if parameter * GROUP as u32 > WINDOW_BITS {
        for (at, value) in values.iter_mut().enumerate() {
            let bit = at * width;
            *value = window(bytes, bit / 8) >> (bit % 8) & mask;
        }
        return;
    }
    // Each group of eight starts at a byte boundary.
    let (groups, last) = values.as_chunks_mut::<GROUP>();
    let behind = groups.len() * width;
    for (at, group) in groups.iter_mut().enumerate() {
        let mut bits = window(bytes, at * width);
        for value in group {
            *value = bits & mask;
            bits >>= parameter;
        }
    }
    let mut bits = window(bytes, behind);
    for value in last {
        *value = bits & mask;
        bits >>= parameter;
    }
}

/// Writes bits, the lowest of a byte first.
struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Bits that do not fill a byte yet, and their number.
    held: u64,
    count: u32,
}

impl<'a> BitWriter<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        Self {
            out,
            held: 0,
            count: 0,
        }
    }

    /// Appends the low `count` bits of `bits`, at most 32; the others must be 0.
    #[inline]
    fn put(&mut self, bits: u64, count: u32) {
        self.held |= bits << self.count;
        self.count += count;
        if self.count >= 32 {
            self.out
                .extend_from_slice(&(self.held as u32).to_le_bytes());
            self.held >>= 32;
            self.count -= 32;
        }
    }

    fn finish(self) {
        let rest = self.held.to_le_bytes();
        let bytes = self.count.div_ceil(8) as usize;
        self.out.extend(rest.iter().take(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rice_codes_round_trip_at_every_parameter() {
        let mut draw = 99_u64;
        for parameter in 0..=PARAMETER_MAX {
            for count in [0, 1, 7, 8, 9, 63, 64, 65, 300] {
                let mut value = || {
                    draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    draw >> (draw >> 58)
                };
                let values: Vec<u64> = (0..count).map(|_| value()).collect();
                let mut bytes = Vec::new();
                write(&mut bytes, &values, parameter);
                assert_eq!(read(&bytes, count, parameter), Some(values));
                if !bytes.is_empty() {
                    assert_eq!(read(&bytes[..bytes.len() - 1], count, parameter), None);
                    bytes.push(0);
                    assert_eq!(read(&bytes, count, parameter), None);
                }
            }
        }
    }
}
