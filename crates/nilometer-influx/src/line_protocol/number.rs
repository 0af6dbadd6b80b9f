//! Values of fields that are not quoted.

use super::FieldValue;
use super::parser::ends_value;

/// Digits that fit into an integer of 64 bits whatever they are.
const SAFE_DIGITS: usize = 18;

/// Parses a value without quotes. The error says what is wrong.
pub(super) fn value(token: &[u8]) -> Result<FieldValue<'static>, &'static str> {
    match token {
        [] => return Err("missing field value"),
        b"t" | b"T" | b"true" | b"True" | b"TRUE" => return Ok(FieldValue::Boolean(true)),
        b"f" | b"F" | b"false" | b"False" | b"FALSE" => return Ok(FieldValue::Boolean(false)),
        [digits @ .., b'i'] => {
            let value = integer(digits).ok_or("invalid integer")?;
            return Ok(FieldValue::Integer(value));
        }
        [digits @ .., b'u'] => {
            let value = integer(digits).filter(|value| *value >= 0);
            return match value {
                Some(value) if digits.first() != Some(&b'-') => Ok(FieldValue::Integer(value)),
                _ => Err("invalid unsigned integer; the largest is 9223372036854775807"),
            };
        }
        _ => {}
    }
    float(token)
        .map(FieldValue::Float)
        .ok_or("invalid boolean or number")
}

/// Parses a value that is a short integer without a sign, as most are, and returns it with its length. `None` if it may be something else.
#[inline]
pub(super) fn short_integer(line: &[u8]) -> Option<(i64, usize)> {
    let (mut value, mut length) = (0_i64, 0);
    loop {
        let byte = line.get(length)?;
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        if length == SAFE_DIGITS {
            return None;
        }
        value = value * 10 + i64::from(digit);
        length += 1;
    }
    let is_whole = line.get(length + 1).is_none_or(ends_value);
    (length > 0 && line.get(length) == Some(&b'i') && is_whole).then_some((value, length + 1))
}

/// Parses an integer with an optional sign.
pub(super) fn integer(token: &[u8]) -> Option<i64> {
    let (negative, digits) = match token {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    if digits.len() <= SAFE_DIGITS {
        let mut value = 0_i64;
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            value = value * 10 + i64::from(digit);
        }
        return Some(if negative { -value } else { value });
    }
    std::str::from_utf8(token).ok()?.parse().ok()
}

/// Parses a finite double. `nan`, `inf` and the like are refused.
fn float(token: &[u8]) -> Option<f64> {
    let is_numeric = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E');
    if !token.iter().all(is_numeric) {
        return None;
    }
    let value: f64 = std::str::from_utf8(token).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_types_of_their_form() {
        for (token, expected) in [
            ("1", Ok(FieldValue::Float(1.0))),
            ("-1.5e3", Ok(FieldValue::Float(-1500.0))),
            (".5", Ok(FieldValue::Float(0.5))),
            ("5.", Ok(FieldValue::Float(5.0))),
            ("1i", Ok(FieldValue::Integer(1))),
            ("-9223372036854775808i", Ok(FieldValue::Integer(i64::MIN))),
            ("9223372036854775808i", Err("invalid integer")),
            ("1.5i", Err("invalid integer")),
            ("i", Err("invalid integer")),
            ("-i", Err("invalid integer")),
            ("7u", Ok(FieldValue::Integer(7))),
            (
                "-7u",
                Err("invalid unsigned integer; the largest is 9223372036854775807"),
            ),
            ("T", Ok(FieldValue::Boolean(true))),
            ("FALSE", Ok(FieldValue::Boolean(false))),
            ("tRUE", Err("invalid boolean or number")),
            ("nan", Err("invalid boolean or number")),
            ("inf", Err("invalid boolean or number")),
            ("1e999", Err("invalid boolean or number")),
            ("0x10", Err("invalid boolean or number")),
            ("--1", Err("invalid boolean or number")),
            ("", Err("missing field value")),
        ] {
            assert_eq!(value(token.as_bytes()), expected, "{token}");
        }
    }

    #[test]
    fn short_integers_are_those_of_any_value() {
        for token in ["0i", "42i", "007i", "999999999999999999i"] {
            let Ok(FieldValue::Integer(expected)) = value(token.as_bytes()) else {
                panic!("{token}");
            };
            for behind in ["", ",a=1i", " 5", "\n", "\r\n"] {
                let line = format!("{token}{behind}");
                assert_eq!(
                    short_integer(line.as_bytes()),
                    Some((expected, token.len()))
                );
            }
        }
        for other in [
            "",
            "i",
            "1",
            "1.5",
            "-1i",
            "+1i",
            "1u",
            "1ii",
            "1i2",
            "t",
            "1000000000000000000i",
        ] {
            assert_eq!(short_integer(other.as_bytes()), None, "{other}");
        }
    }
}
