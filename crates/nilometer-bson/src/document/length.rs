//! Lengths of encoded values, from their type and first bytes.

use super::c_string;
use crate::value::type_code as t;

/// Encoded length of a type's values: a fixed part, plus the int32 length prefix where the type has
/// one.
#[derive(Clone, Copy)]
struct ValueLength {
    bytes: u8,
    /// All ones if there is a length prefix, else 0.
    counted: i32,
    /// The least valid prefix. Above zero for types without one, which take the slow path.
    min: i32,
}

const LENGTHS: [ValueLength; 256] = {
    let mut all = [ValueLength {
        bytes: 0,
        counted: 0,
        min: 1,
    }; 256];
    let fixed = [
        (t::DOUBLE, 8),
        (t::DATE_TIME, 8),
        (t::TIMESTAMP, 8),
        (t::INT64, 8),
        (t::INT32, 4),
        (t::BOOL, 1),
        (t::OBJECT_ID, 12),
        (t::DECIMAL128, 16),
        (t::NULL, 0),
        (t::UNDEFINED, 0),
        (t::MIN_KEY, 0),
        (t::MAX_KEY, 0),
    ];
    let mut at = 0;
    while at < fixed.len() {
        let (code, bytes) = fixed[at];
        all[code as usize] = ValueLength {
            bytes,
            counted: 0,
            min: 0,
        };
        at += 1;
    }
    let counted = [
        (t::STRING, 4, 1),
        (t::CODE, 4, 1),
        (t::SYMBOL, 4, 1),
        (t::DOCUMENT, 0, 5),
        (t::ARRAY, 0, 5),
        (t::BINARY, 5, 0),
        (t::CODE_WITH_SCOPE, 0, 14),
        (t::DB_POINTER, 4 + 12, 1),
    ];
    at = 0;
    while at < counted.len() {
        let (code, bytes, min) = counted[at];
        all[code as usize] = ValueLength {
            bytes,
            counted: -1,
            min,
        };
        at += 1;
    }
    all
};

/// Returns the length in bytes of a value of `type_code` at the start of `bytes`; `None` if they
/// are too short.
#[inline]
pub fn value_length(type_code: u8, bytes: &[u8]) -> Option<usize> {
    // Branch-free: the next type cannot be predicted when fields come in any order.
    let length = LENGTHS[usize::from(type_code)];
    let Some(front) = bytes.first_chunk() else {
        return short_value_length(type_code, bytes);
    };
    let count = i32::from_le_bytes(*front) & length.counted;
    if count < length.min {
        return short_value_length(type_code, bytes);
    }
    let length = usize::from(length.bytes) + count as usize;
    (length <= bytes.len()).then_some(length)
}

/// Slow path of [`value_length`]: few bytes left, a type without length prefix, or malformed bytes.
#[inline(never)]
fn short_value_length(type_code: u8, bytes: &[u8]) -> Option<usize> {
    let length = LENGTHS[usize::from(type_code)];
    let length = match type_code {
        t::REGEX => {
            let pattern = c_string(bytes)?.len() + 1;
            pattern + c_string(bytes.get(pattern..)?)?.len() + 1
        }
        _ if length.counted == 0 && length.min == 0 => usize::from(length.bytes),
        _ => return None,
    };
    (length <= bytes.len()).then_some(length)
}

/// Reads the int32 at the start, if it is at least `min`.
#[inline]
pub(super) fn counted(bytes: &[u8], min: i32) -> Option<usize> {
    let n = i32::from_le_bytes(*bytes.first_chunk()?);
    if n < min {
        None
    } else {
        usize::try_from(n).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns lengths of types as defined by the BSON specification.
    fn plain_value_length(type_code: u8, bytes: &[u8]) -> Option<usize> {
        let length = match type_code {
            t::DOUBLE | t::DATE_TIME | t::TIMESTAMP | t::INT64 => 8,
            t::INT32 => 4,
            t::BOOL => 1,
            t::OBJECT_ID => 12,
            t::DECIMAL128 => 16,
            t::NULL | t::UNDEFINED | t::MIN_KEY | t::MAX_KEY => 0,
            t::STRING | t::CODE | t::SYMBOL => 4 + counted(bytes, 1)?,
            t::DOCUMENT | t::ARRAY => counted(bytes, 5)?,
            t::BINARY => 5 + counted(bytes, 0)?,
            t::CODE_WITH_SCOPE => counted(bytes, 14)?,
            t::DB_POINTER => 4 + counted(bytes, 1)? + 12,
            t::REGEX => {
                let pattern = bytes.iter().position(|byte| *byte == 0)? + 1;
                pattern + bytes[pattern..].iter().position(|byte| *byte == 0)? + 1
            }
            _ => return None,
        };
        (length <= bytes.len()).then_some(length)
    }

    #[test]
    fn value_lengths_match_their_types() {
        for type_code in 0..=u8::MAX {
            for count in [i32::MIN, -1, 0, 1, 4, 5, 13, 14, 20, 24, 25, i32::MAX] {
                for room in 0..40 {
                    let bytes = [&count.to_le_bytes()[..], &[1; 14], &[0; 3], &[7; 20]].concat();
                    let bytes = &bytes[..room];
                    assert_eq!(
                        value_length(type_code, bytes),
                        plain_value_length(type_code, bytes),
                        "{type_code} {count} {room}"
                    );
                }
            }
        }
    }
}
