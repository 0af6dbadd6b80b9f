//! Writing JSON text.

use std::fmt::{Display, Write};

/// Appends a quoted, escaped string.
pub(super) fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Writing to a string cannot fail.
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Appends a number.
pub(super) fn write_number(out: &mut String, number: impl Display) {
    let _ = write!(out, "{number}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        let mut out = String::new();
        write_string(&mut out, "a\"\\\n\u{1}ä");
        assert_eq!(out, "\"a\\\"\\\\\\n\\u0001ä\"");
    }
}
