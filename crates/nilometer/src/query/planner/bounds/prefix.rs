//! The literal prefix of all strings that a pattern matches.
//!
//! `^abc` is an anchor and literal text: all matches lie in `["abc", "abd")`, and every string in that range matches.
//! If more follows the literal text (`^abc.*d`), the range remains but is not exact. Patterns with alternatives,
//! comment mode or case-insensitivity have no prefix.

/// Characters with a special meaning in a pattern.
const SPECIAL: &str = "^$.[|()*+?{\\";

/// Returns the prefix of all matches, and whether all strings with this prefix match.
pub(super) fn literal_prefix(pattern: &str, options: &str) -> Option<(String, bool)> {
    // `s` changes only what a dot matches and `u` has no effect; `i`, `m` and `x` change which text is literal.
    if options.contains(['i', 'm', 'x']) || pattern.contains('|') {
        return None;
    }
    let rest = pattern
        .strip_prefix('^')
        .or_else(|| pattern.strip_prefix("\\A"))?;
    let mut prefix = String::new();
    let mut characters = rest.chars().peekable();
    while let Some(&next) = characters.peek() {
        let literal = match next {
            '\\' => {
                let mut ahead = characters.clone();
                ahead.next();
                match ahead.peek() {
                    // Escaped punctuation is literal; escaped letters and digits are not.
                    Some(&escaped) if escaped.is_ascii_punctuation() => {
                        characters.next();
                        escaped
                    }
                    _ => break,
                }
            }
            '*' | '?' | '{' => {
                // The previous character may occur zero times.
                prefix.pop();
                break;
            }
            '+' => break,
            other if SPECIAL.contains(other) => break,
            other => other,
        };
        prefix.push(literal);
        characters.next();
    }
    let is_all = characters.peek().is_none();
    (!prefix.is_empty()).then_some((prefix, is_all))
}

/// Returns the least string greater than all strings with this prefix, if one exists.
pub(super) fn next_text(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        let above = match last {
            // There are no characters between these two.
            '\u{D7FF}' => Some('\u{E000}'),
            other => char::from_u32(u32::from(other) + 1),
        };
        if let Some(above) = above {
            text.push(above);
            return Some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings() {
        let cases = [
            ("^abc", "", Some(("abc", true))),
            ("\\Aabc", "", Some(("abc", true))),
            ("^abc", "s", Some(("abc", true))),
            ("^abc.*", "", Some(("abc", false))),
            ("^abc*", "", Some(("ab", false))),
            ("^abc+", "", Some(("abc", false))),
            ("^ab{0,1}", "", Some(("a", false))),
            ("^a\\.b", "", Some(("a.b", true))),
            ("^a\\db", "", Some(("a", false))),
            ("^abc$", "", Some(("abc", false))),
            ("^abc", "i", None),
            ("^abc", "m", None),
            ("^a|b", "", None),
            ("abc", "", None),
            ("^", "", None),
            ("^a?", "", None),
            ("^(ab)c", "", None),
        ];
        for (pattern, options, expected) in cases {
            let expected = expected.map(|(text, all)| (String::from(text), all));
            assert_eq!(literal_prefix(pattern, options), expected, "{pattern}");
        }
    }

    #[test]
    fn texts_above() {
        assert_eq!(next_text("abc").as_deref(), Some("abd"));
        assert_eq!(next_text("a\u{10FFFF}").as_deref(), Some("b"));
        assert_eq!(next_text("\u{D7FF}").as_deref(), Some("\u{E000}"));
        assert_eq!(next_text("\u{10FFFF}"), None);
    }
}
