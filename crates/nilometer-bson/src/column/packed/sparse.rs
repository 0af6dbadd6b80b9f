//! Sparse codes, for values most of which are zero: regular times, numbers that rarely change.
//!
//! ```text
//! sparse   varint how many are not zero │ each: varint zeros before it, varint value
//! ```

use crate::varint;

/// Appends the codes of values; `None` if they would take more than `bytes_max`.
pub(super) fn write(out: &mut Vec<u8>, values: &[u64], bytes_max: usize) -> Option<()> {
    let start = out.len();
    let count = values.iter().filter(|&&value| value != 0).count();
    // Each takes at least two bytes.
    if count > bytes_max / 2 {
        return None;
    }
    varint::put(out, count as u64);
    let mut zeros = 0;
    for &value in values {
        if value == 0 {
            zeros += 1;
            continue;
        }
        varint::put(out, zeros);
        varint::put(out, value);
        zeros = 0;
    }
    if out.len() - start <= bytes_max {
        return Some(());
    }
    out.truncate(start);
    None
}

/// Decodes sparse codes.
#[derive(Clone)]
pub(super) struct SparseReader<'a> {
    bytes: &'a [u8],
    /// Number of values other than zero after the next one.
    nonzero_left: u64,
    /// Zeros before the next value other than zero.
    zeros: usize,
    /// All remaining values are zero.
    is_rest_zero: bool,
    /// Number of values left.
    left: usize,
}

impl<'a> SparseReader<'a> {
    /// Starts decoding `count` values from `bytes`, which must contain nothing else.
    pub(super) fn new(mut bytes: &'a [u8], count: usize) -> Option<Self> {
        let nonzero_left = varint::take(&mut bytes)?;
        let mut reader = Self {
            bytes,
            nonzero_left,
            zeros: count,
            is_rest_zero: true,
            left: count,
        };
        reader.find_next()?;
        Some(reader)
    }

    /// Reads how many zeros precede the next value.
    fn find_next(&mut self) -> Option<()> {
        let Some(nonzero_left) = self.nonzero_left.checked_sub(1) else {
            (self.zeros, self.is_rest_zero) = (self.left, true);
            return self.bytes.is_empty().then_some(());
        };
        let zeros = usize::try_from(varint::take(&mut self.bytes)?).ok()?;
        (self.zeros, self.is_rest_zero, self.nonzero_left) = (zeros, false, nonzero_left);
        (zeros < self.left).then_some(())
    }

    /// Consumes up to `at_most` zeros; returns their number.
    pub(super) fn zeros(&mut self, at_most: usize) -> usize {
        let zeros = self.zeros.min(at_most);
        self.zeros -= zeros;
        self.left -= zeros;
        zeros
    }

    /// Reads the value after the zeros.
    pub(super) fn value(&mut self) -> Option<u64> {
        if self.is_rest_zero || self.zeros > 0 {
            return None;
        }
        let value = varint::take(&mut self.bytes)?;
        self.left -= 1;
        self.find_next()?;
        Some(value)
    }

    /// True if all remaining values are zero.
    pub(super) fn is_all_zero(&self) -> bool {
        self.is_rest_zero
    }

    /// True if no values are left.
    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }
}

/// Decodes `count` values from `bytes`, which must contain nothing else.
pub(super) fn read(bytes: &[u8], count: usize) -> Option<Vec<u64>> {
    let mut reader = SparseReader::new(bytes, count)?;
    let mut values = Vec::with_capacity(count);
    while !reader.is_empty() {
        values.resize(values.len() + reader.zeros(count), 0);
        if !reader.is_empty() {
            values.push(reader.value()?);
        }
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_values_round_trip() {
        for values in [
            vec![],
            vec![0; 300],
            vec![7],
            vec![20_000, 0, 0, 0, u64::MAX, 0, 1, 1, 0],
        ] {
            let mut bytes = Vec::new();
            write(&mut bytes, &values, 100).unwrap();
            assert_eq!(read(&bytes, values.len()), Some(values.clone()));
            assert_eq!(read(&bytes[..bytes.len() - 1], values.len()), None);
            if values.iter().any(|&value| value != 0) {
                assert_eq!(read(&bytes, values.len() / 2), None);
            }
        }
    }

    #[test]
    fn values_over_the_limit_are_not_written() {
        let mut bytes = vec![1];
        assert_eq!(write(&mut bytes, &[1 << 60; 3], 20), None);
        assert_eq!(write(&mut bytes, &[1; 30], 20), None);
        assert_eq!(bytes, [1]);
    }
}
