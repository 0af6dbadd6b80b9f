//! Regular expressions in Perl's dialect, run by Rust's engines.
//!
//! ```text
//! pattern + options ──[regex_syntax]──▶ Rust syntax ──▶ regex (linear time)
//!                                                  └──▶ fancy-regex, only for look-around,
//!                                                       back references, atomic groups
//! ```
//!
//! A pattern that compiles matches the same texts as in MongoDB. `\d`, `\w`, `\s`, `\b` are ASCII,
//! `$` also matches before a final newline, options are `i m s u x`. Features that neither engine
//! supports (recursion, conditions on code, control verbs) are errors when the pattern is parsed.
//! Backtracking patterns have a step limit; exceeding it is an error of the query.

use std::ops::Range;
use std::sync::Arc;

use super::regex_syntax::{self, EndAnchor, Translation};
use crate::error::{Error, Result, location};

/// Maximum length of a pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 32_764;

/// Maximum steps of a backtracking match before the query fails.
pub const BACKTRACK_STEPS_MAX: usize = 1_000_000;

/// Maximum size of a compiled pattern in bytes, exceeded by large counted repetitions.
const COMPILED_BYTES_MAX: usize = 32 << 20;

/// A compiled pattern with its source. Cheap to clone.
#[derive(Clone)]
pub struct Pattern {
    source: Arc<str>,
    options: Arc<str>,
    engine: Engine,
    /// The engine for texts that end in a newline, if the pattern contains an end-of-text
    /// assertion.
    before_newline: Option<Engine>,
}

#[derive(Clone)]
enum Engine {
    Linear(regex::Regex),
    Backtracking(Arc<fancy_regex::Regex>),
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}/{}", self.source, self.options)
    }
}

/// The parsed option letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// `i`
    pub(super) case_insensitive: bool,
    /// `m`
    pub(super) multi_line: bool,
    /// `s`
    pub(super) dot_matches_newline: bool,
    /// `x`
    pub(super) extended: bool,
}

impl Flags {
    fn parse(options: &str) -> Result<Self> {
        let mut flags = Self::default();
        for letter in options.chars() {
            match letter {
                'i' => flags.case_insensitive = true,
                'm' => flags.multi_line = true,
                's' => flags.dot_matches_newline = true,
                'x' => flags.extended = true,
                // Text is always UTF-8.
                'u' => {}
                other => {
                    return Err(Error::location(
                        location::REGEX_FLAG_INVALID,
                        format!("invalid flag in regex options: {other}"),
                    ));
                }
            }
        }
        Ok(flags)
    }
}

impl Pattern {
    /// Compiles `source` with the option letters.
    pub fn parse(source: &str, options: &str) -> Result<Self> {
        if source.contains('\0') || options.contains('\0') {
            return Err(Error::bad_value(
                "Regular expression cannot contain an embedded null byte",
            ));
        }
        if source.len() > PATTERN_BYTES_MAX {
            return Err(invalid("regular expression is too large"));
        }
        let flags = Flags::parse(options)?;
        let translate = |end| regex_syntax::translate(source, flags, end).map_err(|e| invalid(&e));
        let translated = translate(EndAnchor::OfText)?;
        let engine = Engine::compile(&translated, flags)?;
        let before_newline = translated
            .has_end
            .then(|| Engine::compile(&translate(EndAnchor::BeforeNewline)?, flags))
            .transpose()?;
        Ok(Self {
            source: source.into(),
            options: options.into(),
            engine,
            before_newline,
        })
    }

    /// Returns the pattern as written by the user.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the option letters as written by the user.
    pub fn options(&self) -> &str {
        &self.options
    }

    /// Returns the engine for `text`.
    fn engine(&self, text: &str) -> &Engine {
        match &self.before_newline {
            Some(engine) if text.ends_with('\n') => engine,
            _ => &self.engine,
        }
    }

    /// True if the pattern matches anywhere in `text`.
    pub fn is_match(&self, text: &str) -> Result<bool> {
        match self.engine(text) {
            Engine::Linear(regex) => Ok(regex.is_match(text)),
            Engine::Backtracking(regex) => regex.is_match(text).map_err(|e| {
                Error::location(
                    location::REGEX_MATCH_FAILED,
                    format!("Error occurred while matching regular expression: {e}"),
                )
            }),
        }
    }

    /// Returns the first match at or after byte `from`: the position of each group, the whole match
    /// first, `None` for groups that did not participate.
    pub fn captures_at(
        &self,
        text: &str,
        from: usize,
    ) -> Result<Option<Vec<Option<Range<usize>>>>> {
        match self.engine(text) {
            Engine::Linear(regex) => Ok(regex.captures_at(text, from).map(|groups| {
                groups
                    .iter()
                    .map(|group| group.map(|found| found.range()))
                    .collect()
            })),
            Engine::Backtracking(regex) => {
                let groups = regex.captures_from_pos(text, from).map_err(|e| {
                    Error::location(
                        location::REGEX_MATCH_FAILED,
                        format!("Error occurred while matching regular expression: {e}"),
                    )
                })?;
                Ok(groups.map(|groups| {
                    groups
                        .iter()
                        .map(|group| group.map(|found| found.range()))
                        .collect()
                }))
            }
        }
    }

    /// Returns the literal prefix of all matches of an anchored, case-sensitive pattern, to bound
    /// an index scan. `None` if there is none.
    pub fn literal_prefix(&self) -> Option<String> {
        let flags = Flags::parse(&self.options).ok()?;
        if flags.case_insensitive || flags.multi_line || flags.extended {
            return None;
        }
        regex_syntax::literal_prefix(&self.source)
    }
}

impl Engine {
    fn compile(translated: &Translation, flags: Flags) -> Result<Self> {
        if translated.backtracking {
            return Self::compile_backtracking(&translated.pattern, flags);
        }
        let linear = regex::RegexBuilder::new(&translated.pattern)
            .case_insensitive(flags.case_insensitive)
            .multi_line(flags.multi_line)
            .dot_matches_new_line(flags.dot_matches_newline)
            .size_limit(COMPILED_BYTES_MAX)
            .build();
        match linear {
            Ok(regex) => Ok(Self::Linear(regex)),
            Err(regex::Error::CompiledTooBig(_)) => Err(invalid("regular expression is too large")),
            Err(_) => Self::compile_backtracking(&translated.pattern, flags),
        }
    }

    fn compile_backtracking(translated: &str, flags: Flags) -> Result<Self> {
        let mut prefix = String::new();
        for (on, letter) in [
            (flags.case_insensitive, 'i'),
            (flags.multi_line, 'm'),
            (flags.dot_matches_newline, 's'),
        ] {
            if on {
                prefix.push(letter);
            }
        }
        let pattern = if prefix.is_empty() {
            translated.to_owned()
        } else {
            format!("(?{prefix}:{translated})")
        };
        fancy_regex::RegexBuilder::new(&pattern)
            .backtrack_limit(BACKTRACK_STEPS_MAX)
            .delegate_size_limit(COMPILED_BYTES_MAX)
            .build()
            .map(|regex| Self::Backtracking(Arc::new(regex)))
            .map_err(|e| invalid(&e.to_string()))
    }
}

fn invalid(reason: &str) -> Error {
    Error::location(
        location::REGEX_PATTERN_INVALID,
        format!("Regular expression is invalid: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, options: &str, text: &str) -> bool {
        Pattern::parse(pattern, options)
            .unwrap_or_else(|e| panic!("/{pattern}/{options}: {e}"))
            .is_match(text)
            .unwrap()
    }

    #[test]
    fn matches_like_perl() {
        // pattern, options, text, expected
        let cases = [
            ("abc", "", "xabcx", true),
            ("ABC", "i", "xabcx", true),
            ("^abc$", "", "abc", true),
            ("^abc$", "", "abc\n", true),
            ("^abc$", "", "abc\nx", false),
            ("^b$", "m", "a\nb\nc", true),
            ("a.c", "", "a\nc", false),
            ("a.c", "s", "a\nc", true),
            ("a b # comment\n c", "x", "abc", true),
            ("[ ]b", "x", "a b", true),
            (r"\d", "", "٣", false),
            (r"^\w+$", "", "é", false),
            (r"[^\W\d]", "", "7", false),
            (r"[^\W\d]", "", "x", true),
            (r"\bfoo\b", "", "a foo b", true),
            (r"a{,2}", "", "a{,2}", true),
            ("a{", "", "a{", true),
            ("{x}", "", "{x}", true),
            (r"a\/b", "", "a/b", true),
            ("[[]", "", "[", true),
            ("[a&&b]", "", "&", true),
            ("[]x]", "", "]", true),
            ("[^]x]", "", "]", false),
            (r"\Qa.b\E+", "", "a.bbb", true),
            (r"\Qa.b\E", "", "axb", false),
            (r"(?<=a)b", "", "ab", true),
            (r"(?<!a)b", "", "ab", false),
            (r"(a)\1", "", "aa", true),
            (r"(?=x)x$", "", "x\n", true),
            ("(?>a+)b", "", "aab", true),
            ("a++b", "", "aab", true),
            ("a++a", "", "aaa", false),
            ("a{1,2}+a", "", "aaa", true),
            ("a+?b", "", "aab", true),
            ("(?i)ABC", "", "abc", true),
            ("[[:alpha:]]", "", "1a", true),
            (r"\x41\x{42}", "", "AB", true),
            (r"\h", "", "\t", true),
            (r"a\Z", "", "a\n", true),
            (r"a\z", "", "a\n", false),
            ("(?#note)a", "", "a", true),
            (r"[\d.]+", "", "..", true),
            (r"[a\-z]", "", "-", true),
            (r"[\w-]", "", "-", true),
            ("é", "i", "É", true),
            ("", "", "", true),
            ("(?P<n>a)(?P=n)", "", "aa", true),
        ];
        for (pattern, options, text, expected) in cases {
            assert_eq!(
                matches(pattern, options, text),
                expected,
                "/{pattern}/{options} on {text:?}"
            );
        }
    }

    #[test]
    fn the_end_does_not_swallow_a_newline() {
        for (pattern, text, expected) in [
            ("b$", "ab\n", Some(1..2)),
            ("b$", "ab", Some(1..2)),
            (r"b\Z", "ab\n", Some(1..2)),
            (r"b$\n", "ab\n", Some(1..3)),
            ("b$", "ab\n\n", None),
            ("$", "ab\n", Some(2..2)),
        ] {
            let found = Pattern::parse(pattern, "")
                .unwrap()
                .captures_at(text, 0)
                .unwrap()
                .and_then(|groups| groups.into_iter().next().flatten());
            assert_eq!(found, expected, "/{pattern}/ in {text:?}");
        }
    }

    #[test]
    fn unsupported_patterns_are_rejected() {
        for (pattern, options, code) in [
            ("(", "", location::REGEX_PATTERN_INVALID),
            ("a**", "", location::REGEX_PATTERN_INVALID),
            ("a+++", "", location::REGEX_PATTERN_INVALID),
            ("a+{2}", "", location::REGEX_PATTERN_INVALID),
            ("*a", "", location::REGEX_PATTERN_INVALID),
            ("[z-a]", "", location::REGEX_PATTERN_INVALID),
            ("(*COMMIT)a", "", location::REGEX_PATTERN_INVALID),
            ("(?C)a", "", location::REGEX_PATTERN_INVALID),
            ("a\\", "", location::REGEX_PATTERN_INVALID),
            ("a{1000}{1000}{1000}", "", location::REGEX_PATTERN_INVALID),
            ("a", "g", location::REGEX_FLAG_INVALID),
            ("a\0", "", 2),
        ] {
            let error = Pattern::parse(pattern, options).unwrap_err();
            assert_eq!(error.code.0, code, "/{pattern}/{options}");
        }
    }

    #[test]
    fn exceeding_the_step_limit_is_an_error() {
        let text = "a".repeat(60) + "b";
        let slow = Pattern::parse("^(?:(a+)+)\\1?$(?=x)", "").unwrap();
        match slow.is_match(&text) {
            Ok(found) => assert!(!found),
            Err(e) => assert_eq!(e.code.0, location::REGEX_MATCH_FAILED),
        }
    }

    #[test]
    fn prefixes() {
        for (pattern, options, expected) in [
            ("^abc", "", Some("abc")),
            ("^ab.c", "", Some("ab")),
            ("^ab?c", "", Some("a")),
            ("^abc$", "", Some("abc")),
            ("^a|b", "", None),
            ("abc", "", None),
            ("^abc", "i", None),
            (r"^a\.b", "", Some("a.b")),
            (r"^\Qa.b\E", "", None),
            ("^", "", None),
            (r"\Aab", "", Some("ab")),
            ("^a{2}", "", None),
        ] {
            assert_eq!(
                Pattern::parse(pattern, options)
                    .unwrap()
                    .literal_prefix()
                    .as_deref(),
                expected,
                "/{pattern}/{options}"
            );
        }
    }
}
