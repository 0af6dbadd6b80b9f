//! Tokens.

use super::ParseError;

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// The end of the text.
    End,
    /// A word without quotes: a keyword or a name.
    Word(String),
    /// A name in double quotes.
    Quoted(String),
    /// A text in single quotes.
    String(String),
    /// Digits.
    Integer(i64),
    /// Digits with a dot, or too many for an integer.
    Number(f64),
    /// A duration in nanoseconds.
    Duration(i64),
    /// `$name`.
    Bound(String),
    /// An operator or punctuation.
    Sign(&'static str),
}

impl Token {
    /// Returns how errors name it.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::End => "EOF".to_owned(),
            Self::Word(text) | Self::Quoted(text) | Self::String(text) => text.clone(),
            Self::Integer(value) => value.to_string(),
            Self::Number(value) => value.to_string(),
            Self::Duration(ns) => format!("{ns}ns"),
            Self::Bound(name) => format!("${name}"),
            Self::Sign(text) => (*text).to_owned(),
        }
    }
}

/// Signs, longer ones first.
const SIGNS: [&str; 24] = [
    "::", "=~", "!~", "!=", "<>", "<=", ">=", "+", "-", "*", "/", "%", "&", "|", "^", "=", "<",
    ">", "(", ")", ",", ";", ".", ":",
];

/// Units of durations, in nanoseconds, longer names first.
const UNITS: [(&str, i64); 9] = [
    ("ns", 1),
    ("ms", 1_000_000),
    ("u", 1_000),
    ("µ", 1_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
    ("w", 604_800_000_000_000),
];

/// A text and the position in it.
#[derive(Clone, Debug)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Returns the position of the next token.
    pub(super) fn position(&mut self) -> usize {
        self.skip_spaces();
        self.at
    }

    /// Returns an error at a position.
    pub(super) fn error(&self, at: usize, message: impl Into<String>) -> ParseError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let in_line = before.get(line_start..).unwrap_or_default();
        ParseError {
            message: message.into(),
            line: before.matches('\n').count() + 1,
            column: in_line.chars().count() + 1,
        }
    }

    /// Skips spaces and comments.
    fn skip_spaces(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if trimmed.starts_with("--") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if trimmed.starts_with("/*") {
                let length = trimmed.find("*/").map_or(trimmed.len(), |at| at + 2);
                self.at += length;
            } else {
                return;
            }
        }
    }

    /// Reads a pattern, if one begins here.
    pub(super) fn regex(&mut self) -> Result<Option<String>, ParseError> {
        self.skip_spaces();
        let start = self.at;
        let Some(inside) = self.rest().strip_prefix('/') else {
            return Ok(None);
        };
        let mut pattern = String::new();
        let mut characters = inside.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            match character {
                '/' => {
                    self.at += at + 2;
                    return Ok(Some(pattern));
                }
                '\\' if matches!(characters.peek(), Some((_, '/'))) => {}
                '\\' => {
                    pattern.push('\\');
                    // The escaped character is no end.
                    if let Some((_, escaped)) = characters.next() {
                        pattern.push(escaped);
                    }
                    continue;
                }
                other => {
                    pattern.push(other);
                    continue;
                }
            }
            // An escaped slash.
            characters.next();
            pattern.push('/');
        }
        Err(self.error(start, "the regular expression does not end"))
    }

    /// Reads a token.
    pub(super) fn next(&mut self) -> Result<Token, ParseError> {
        self.skip_spaces();
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return Ok(Token::End);
        };
        match first {
            '"' => self.quoted('"').map(Token::Quoted),
            '\'' => self.quoted('\'').map(Token::String),
            '0'..='9' => self.number(),
            '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => self.number(),
            '$' => {
                self.at += 1;
                let name = self.word();
                match name.is_empty() {
                    true => Err(self.error(self.at, "found $, expected a parameter")),
                    false => Ok(Token::Bound(name)),
                }
            }
            c if c.is_alphabetic() || c == '_' => Ok(Token::Word(self.word())),
            _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => {
                    self.at += sign.len();
                    Ok(Token::Sign(sign))
                }
                None => Err(self.error(
                    self.at,
                    format!("found {first}, which is no part of a query"),
                )),
            },
        }
    }

    fn word(&mut self) -> String {
        let rest = self.rest();
        let ends = |c: char| !(c.is_alphanumeric() || c == '_');
        let word = rest.get(..rest.find(ends).unwrap_or(rest.len()));
        let word = word.unwrap_or_default();
        self.at += word.len();
        word.to_owned()
    }

    /// Reads a text in quotes, in which a backslash escapes quotes, backslashes and `n`.
    fn quoted(&mut self, quote: char) -> Result<String, ParseError> {
        let start = self.at;
        let inside = self.rest().get(1..).unwrap_or_default();
        let mut text = String::new();
        let mut characters = inside.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => match characters.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, escaped @ ('\\' | '\'' | '"'))) => text.push(escaped),
                    _ => return Err(self.error(start + at + 1, "found an invalid escape")),
                },
                '\n' => break,
                end if end == quote => {
                    self.at = start + at + 2;
                    return Ok(text);
                }
                other => text.push(other),
            }
        }
        Err(self.error(start, "the quoted text does not end"))
    }

    /// Reads a number or a duration of one part or several, such as `1h30m`.
    fn number(&mut self) -> Result<Token, ParseError> {
        let start = self.at;
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let rest = self.rest();
        let whole = digits(rest);
        let fraction = rest.get(whole..).unwrap_or_default();
        if let Some(after) = fraction.strip_prefix('.')
            && digits(after) > 0
        {
            let length = whole + 1 + digits(after);
            self.at += length;
            let value = rest.get(..length).unwrap_or_default().parse();
            return value
                .map(Token::Number)
                .map_err(|_| self.error(start, "found an invalid number"));
        }
        if unit(fraction).is_none() {
            self.at += whole;
            let text = rest.get(..whole).unwrap_or_default();
            return match (text.parse(), text.parse()) {
                (Ok(value), _) => Ok(Token::Integer(value)),
                (_, Ok(value)) => Ok(Token::Number(value)),
                _ => Err(self.error(start, "found an invalid number")),
            };
        }
        let mut total = 0_i64;
        loop {
            let rest = self.rest();
            let count = digits(rest);
            let after = rest.get(count..).unwrap_or_default();
            let Some((name, factor)) = unit(after).filter(|_| count > 0) else {
                return Ok(Token::Duration(total));
            };
            let part = rest.get(..count).unwrap_or_default().parse::<i64>().ok();
            let part = part.and_then(|part| part.checked_mul(factor));
            total = part
                .and_then(|part| total.checked_add(part))
                .ok_or_else(|| self.error(start, "the duration is too long"))?;
            self.at += count + name.len();
        }
    }
}

/// Returns the unit at the start of a text. A word that only begins like one is none.
fn unit(text: &str) -> Option<(&'static str, i64)> {
    let (name, factor) = UNITS.iter().find(|(name, _)| text.starts_with(name))?;
    let after = text.get(name.len()..)?;
    let is_word = after.starts_with(|c: char| c.is_alphabetic() || c == '_');
    (!is_word).then_some((*name, *factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<Token>, ParseError> {
        let mut lexer = Lexer::new(text);
        let mut out = Vec::new();
        loop {
            match lexer.next()? {
                Token::End => return Ok(out),
                token => out.push(token),
            }
        }
    }

    #[test]
    fn texts_are_cut_into_tokens() {
        let tokens =
            all("SELECT \"a \\\"b\" 'it\\'s' 1h30m 1500ms 2.5 7 -- note\n/* x */ <> $p::tag")
                .unwrap();
        assert_eq!(
            tokens,
            [
                Token::Word("SELECT".into()),
                Token::Quoted("a \"b".into()),
                Token::String("it's".into()),
                Token::Duration(5_400_000_000_000),
                Token::Duration(1_500_000_000),
                Token::Number(2.5),
                Token::Integer(7),
                Token::Sign("<>"),
                Token::Bound("p".into()),
                Token::Sign("::"),
                Token::Word("tag".into()),
            ]
        );
    }

    #[test]
    fn patterns_are_read_where_they_are_expected() {
        let mut lexer = Lexer::new(" /^a\\/b\\d\\\\$/ x");
        assert_eq!(lexer.regex().unwrap().as_deref(), Some("^a/b\\d\\\\$"));
        assert_eq!(lexer.next().unwrap(), Token::Word("x".into()));
        assert_eq!(lexer.regex().unwrap(), None);
        assert!(Lexer::new("/a").regex().is_err());
        assert!(Lexer::new("/a\\").regex().is_err());
    }

    #[test]
    fn errors_have_positions() {
        for (text, line, column) in [
            ("a\n  ?", 2, 3),
            ("'a", 1, 1),
            ("\"\\x\"", 1, 2),
            ("9999999w", 1, 1),
        ] {
            let error = all(text).unwrap_err();
            assert_eq!(
                (error.line, error.column),
                (line, column),
                "{text}: {error}"
            );
        }
    }
}
