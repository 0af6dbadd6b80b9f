//! How many bytes values take, by their type and what lies in front of them.

use super::c_string;
use crate::value::type_code as t;

/// How long values of a type are: so many bytes, and as many as the number in front says where there is one.
#[derive(Clone, Copy)]
struct Length {
    bytes: u8,
    /// All ones where there is a number in front.
    counted: i32,
    /// What that number is at least; above zero without one: a closer look is needed.
    min: i32,
}

const LENGTHS: [Length; 256] = {
    let mut all = [Length {
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
        all[code as usize] = Length {
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
        all[code as usize] = Length {
            bytes,
            counted: -1,
            min,
        };
        at += 1;
    }
    all
};

/// How many bytes a value of `type_code` at the start of `bytes` takes; `None` if they do not hold it.
#[inline]
pub fn value_length(type_code: u8, bytes: &[u8]) -> Option<usize> {
    // Which type comes next cannot be foreseen where fields come in any order: no branch asks for it.
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

/// The same for what has few bytes behind it, has no number in front, or is malformed.
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

/// The int32 at the front, if at least `min`.
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

    /// The lengths of types as the format tells them.
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
    fn values_are_as_long_as_their_types_say() {
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
