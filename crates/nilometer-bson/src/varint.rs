//! Variable-length unsigned integers: seven bits per byte, the lowest first.

/// Appends an integer.
#[inline]
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads an integer and advances `bytes` past it; `None` if they end within it.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn integers_come_back() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX] {
            let mut bytes = Vec::new();
            super::put(&mut bytes, value);
            assert_eq!(super::take(&mut bytes.as_slice()), Some(value));
            bytes.pop();
            assert_eq!(super::take(&mut bytes.as_slice()), None);
        }
        assert_eq!(super::take(&mut [0x80; 11].as_slice()), None);
    }
}
