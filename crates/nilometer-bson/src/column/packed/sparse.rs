//! Values most of which are zero: regular times, numbers that hardly ever change.
//!
//! ```text
//! sparse   varint how many are not zero │ each: varint zeros before it, varint value
//! ```

use crate::varint;

/// Appends values, unless that takes more than `bytes_max`.
pub(super) fn write(out: &mut Vec<u8>, values: &[u64], bytes_max: usize) -> Option<()> {
    let start = out.len();
    let count = values.iter().filter(|&&value| value != 0).count();
    // Each takes two bytes at least.
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

/// Reads `count` values, which are all of `bytes`.
pub(super) fn read(mut bytes: &[u8], count: usize) -> Option<Vec<u64>> {
    let mut values = vec![0; count];
    let mut rest = values.as_mut_slice();
    for _ in 0..varint::take(&mut bytes)? {
        let zeros = usize::try_from(varint::take(&mut bytes)?).ok()?;
        let (value, behind) = rest.split_at_mut_checked(zeros)?.1.split_first_mut()?;
        *value = varint::take(&mut bytes)?;
        rest = behind;
    }
    bytes.is_empty().then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_where_they_were() {
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
    fn more_than_there_is_room_for_is_not_written() {
        let mut bytes = vec![1];
        assert_eq!(write(&mut bytes, &[1 << 60; 3], 20), None);
        assert_eq!(write(&mut bytes, &[1; 30], 20), None);
        assert_eq!(bytes, [1]);
    }
}
