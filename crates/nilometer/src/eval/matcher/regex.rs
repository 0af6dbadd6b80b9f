//! Regular expressions in Perl's dialect, run by Rust's engines.
//!
//! ```text
//! pattern + options ──[regex_syntax]──▶ Rust syntax ──▶ regex-automata (linear time)
//!                                                  └──▶ regex_backtrack, only for look-around,
//!                                                       back references, atomic groups, conditions
//! ```
//!
//! A pattern that compiles matches the same texts as in MongoDB. `\d`, `\w`, `\s`, `\b` are ASCII,
//! `$` also matches before a final newline, options are `i m s u x`. Features that neither engine
//! supports (recursion, callouts, control verbs) are errors when the pattern is parsed.
//! Backtracking patterns have a step limit; exceeding it is an error of the query. They are run step by step
//! ([`regex_backtrack`](super::regex_backtrack)), and so are large texts by linear patterns
//! ([`regex_search`](super::regex_search)), so that `maxTimeMS` and `killOp` end the search.

use std::sync::{Arc, OnceLock};

use regex_automata::Input;
use regex_automata::meta;
use regex_automata::util::syntax;

use super::regex_backtrack::BacktrackProgram;
use super::regex_search::{Groups, SteppedSearch};
use super::regex_syntax::{self, EndAnchor, Translation};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::{EvalContext, FoldBudget};

/// Maximum length of a pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 32_761;

/// Bytes of a text that is searched without counting steps, unless the pattern is large.
const SHORT_TEXT_BYTES_MAX: usize = 4096;

/// Bytes of a pattern without counted repetitions that is not large.
const SMALL_PATTERN_BYTES_MAX: usize = 256;

/// States times bytes of text searched without counting steps: some tens of milliseconds at worst.
const DIRECT_WORK_MAX: usize = 1 << 22;

/// `\b` with ASCII letters and digits.
const ASCII_WORD_BOUNDARY: &str =
    "(?:(?<=[0-9A-Za-z_])(?![0-9A-Za-z_])|(?<![0-9A-Za-z_])(?=[0-9A-Za-z_]))";

/// `\B` with ASCII letters and digits.
const NOT_ASCII_WORD_BOUNDARY: &str =
    "(?:(?<=[0-9A-Za-z_])(?=[0-9A-Za-z_])|(?<![0-9A-Za-z_])(?![0-9A-Za-z_]))";

/// Maximum size of a compiled pattern in bytes, exceeded by large counted repetitions.
const COMPILED_BYTES_MAX: usize = 10 << 20;

/// Bytes of a pattern above which no literals are extracted, which takes longer than linear time.
const LITERALS_EXTRACTED_BYTES_MAX: usize = 4096;

/// Memory that is counted for a pattern beside its engine.
const PATTERN_OVERHEAD_BYTES: usize = 1 << 10;

/// Patterns of a command whose searches may build many states, and the memory of those for each direction; and that of
/// the searches of later patterns.
const SPACIOUS_PATTERNS: u64 = 16;
const SPACIOUS_CACHE_BYTES: usize = 2 << 20;
const CACHE_BYTES: usize = 32 << 10;

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
    Linear(Arc<Linear>),
    Backtracking(Arc<BacktrackProgram>),
}

/// The engines of a pattern whose time is linear in the text.
struct Linear {
    /// The translated pattern.
    source: Box<str>,
    regex: meta::Regex,
    flags: Flags,
    /// Compiled for the first large text; `None` if that is not possible.
    stepped: OnceLock<Option<SteppedSearch>>,
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

    /// Returns the options of a translated pattern.
    fn syntax(self) -> syntax::Config {
        syntax::Config::new()
            .case_insensitive(self.case_insensitive)
            .multi_line(self.multi_line)
            .dot_matches_new_line(self.dot_matches_newline)
    }
}

impl Pattern {
    /// Compiles `source` with the option letters, as the only pattern of a command.
    pub fn parse(source: &str, options: &str) -> Result<Self> {
        Self::parse_within(source, options, &FoldBudget::default())
    }

    /// Compiles `source` with the option letters, within the memory for all patterns of a command. Fails if the command
    /// was interrupted.
    pub(crate) fn parse_within(source: &str, options: &str, budget: &FoldBudget) -> Result<Self> {
        budget.check_interrupt()?;
        if source.contains('\0') || options.contains('\0') {
            return Err(Error::bad_value(
                "Regular expression cannot contain an embedded null byte",
            ));
        }
        if source.len() > PATTERN_BYTES_MAX {
            return Err(invalid(&format!(
                "pattern string is longer than the limit of {PATTERN_BYTES_MAX} bytes"
            )));
        }
        let flags = Flags::parse(options)?;
        let translate = |end| regex_syntax::translate(source, flags, end).map_err(|e| invalid(&e));
        let translated = translate(EndAnchor::OfText)?;
        let engine = Engine::compile(&translated, flags, budget)?;
        let before_newline = translated
            .has_end
            .then(|| Engine::compile(&translate(EndAnchor::BeforeNewline)?, flags, budget))
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

    /// True if the pattern matches anywhere in `text`. The search of a large text can be interrupted.
    pub fn is_match(&self, text: &str, context: &EvalContext<'_>) -> Result<bool> {
        context.charge_bytes(text.len())?;
        match self.engine(text) {
            Engine::Linear(linear) => match linear.stepped(text) {
                Some(stepped) => stepped.is_match(text, context),
                None => Ok(linear.regex.is_match(text)),
            },
            Engine::Backtracking(program) => Ok(program.captures(text, 0, context)?.is_some()),
        }
    }

    /// Returns the first match at or after byte `from`: the position of each group, the whole match
    /// first, `None` for groups that did not participate.
    pub fn captures_at(
        &self,
        text: &str,
        from: usize,
        context: &EvalContext<'_>,
    ) -> Result<Option<Groups>> {
        context.charge_bytes(text.len() - from.min(text.len()))?;
        match self.engine(text) {
            Engine::Linear(linear) => match linear.stepped(text) {
                Some(stepped) => stepped.captures(text, from, context),
                None => Ok(linear.groups(text, from)),
            },
            Engine::Backtracking(program) => program.captures(text, from, context),
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
    /// Compiles within the memory left for the patterns of the command. The engine of large texts, which is compiled when
    /// it is needed, has no more states than this one, so its memory is counted now.
    fn compile(translated: &Translation, flags: Flags, budget: &FoldBudget) -> Result<Self> {
        let pattern = &translated.pattern;
        if translated.backtracking {
            return Self::compile_backtracking(pattern, flags, budget);
        }
        let left = budget.pattern_bytes_left();
        let is_short = pattern.len() <= LITERALS_EXTRACTED_BYTES_MAX;
        let cache_bytes = match budget.patterns() < SPACIOUS_PATTERNS {
            true => SPACIOUS_CACHE_BYTES,
            false => CACHE_BYTES,
        };
        let config = meta::Config::new()
            .nfa_size_limit(Some(COMPILED_BYTES_MAX.min(left)))
            .hybrid_cache_capacity(cache_bytes)
            .auto_prefilter(is_short)
            .onepass(is_short);
        let compiled = meta::Builder::new()
            .configure(config)
            .syntax(flags.syntax())
            .build(pattern);
        let regex = match compiled {
            Ok(regex) => regex,
            Err(error) if error.size_limit().is_some() && left >= COMPILED_BYTES_MAX => {
                return Err(invalid("regular expression is too large"));
            }
            Err(error) if error.size_limit().is_some() => return Err(too_many_patterns()),
            Err(_) => return Self::compile_backtracking(pattern, flags, budget),
        };
        let bytes = PATTERN_OVERHEAD_BYTES + pattern.len() + 2 * regex.memory_usage();
        if bytes > left {
            return Err(too_many_patterns());
        }
        budget.count_pattern(bytes);
        Ok(Self::Linear(Arc::new(Linear {
            source: pattern.as_str().into(),
            regex,
            flags,
            stepped: OnceLock::new(),
        })))
    }

    fn compile_backtracking(translated: &str, flags: Flags, budget: &FoldBudget) -> Result<Self> {
        // The engine has no ASCII mode.
        let translated = &translated
            .replace(regex_syntax::WORD_BOUNDARY, ASCII_WORD_BOUNDARY)
            .replace(regex_syntax::NOT_WORD_BOUNDARY, NOT_ASCII_WORD_BOUNDARY);
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
        let program = BacktrackProgram::compile(&pattern, budget)?;
        let bytes = PATTERN_OVERHEAD_BYTES + program.memory_bytes();
        if bytes > budget.pattern_bytes_left() {
            return Err(too_many_patterns());
        }
        budget.count_pattern(bytes);
        Ok(Self::Backtracking(Arc::new(program)))
    }
}

impl Linear {
    /// Returns the groups of the first match at or after `from`.
    fn groups(&self, text: &str, from: usize) -> Option<Groups> {
        let mut found = self.regex.create_captures();
        self.regex
            .search_captures(&Input::new(text).range(from..), &mut found);
        let groups = (0..found.group_len()).map(|at| found.get_group(at).map(|span| span.range()));
        found.is_match().then(|| groups.collect())
    }

    /// Returns the engine that counts steps, if a search of `text` may take long.
    fn stepped(&self, text: &str) -> Option<&SteppedSearch> {
        let pattern = &*self.source;
        let is_large = pattern.len() > SMALL_PATTERN_BYTES_MAX || pattern.contains('{');
        if !is_large && text.len() <= SHORT_TEXT_BYTES_MAX {
            return None;
        }
        let compile = || SteppedSearch::compile(pattern, self.flags.syntax(), COMPILED_BYTES_MAX);
        let stepped = self.stepped.get_or_init(compile).as_ref()?;
        (stepped.states().saturating_mul(text.len()) > DIRECT_WORK_MAX).then_some(stepped)
    }
}

pub(super) fn too_many_patterns() -> Error {
    let text = "The regular expressions of the command need too much memory";
    Error::new(ErrorCode::ExceededMemoryLimit, text)
}

pub(super) fn invalid(reason: &str) -> Error {
    Error::location(
        location::REGEX_PATTERN_INVALID,
        format!("Regular expression is invalid: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{ValueRef, array, doc};

    use super::*;

    fn matches(pattern: &str, options: &str, text: &str) -> bool {
        Pattern::parse(pattern, options)
            .unwrap_or_else(|e| panic!("/{pattern}/{options}: {e}"))
            .is_match(text, &EvalContext::default())
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
            (r"^\p{L}+$", "", "éa", true),
            (r"^\p{Lu}{2}$", "", "Éa", false),
            (r"^\x{e9}{2}$", "", "éé", true),
            (r"^\P{L}$", "", "1", true),
            (r"\b(\w+) \1\b", "", "the the", true),
            (r"\b(\w+) \1\b", "", "the them", false),
            (r"(?=é)\bé|\Bé", "", "é", true),
            (r"(?!x)\bé", "", "é", false),
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
            ("^(?<n>a)?(?(n)b|c)$", "", "ab", true),
            ("^(?<n>a)?(?(n)b|c)$", "", "b", false),
            ("^(a)?(?(1)b|c)$", "", "c", true),
            ("^(?(?=a)ab|c)$", "i", "AB", true),
            ("^(?(?!(a|b))c(d)|(b))e$", "", "cde", true),
            ("^(?(?!(a|b))c(d)|(b))e$", "", "be", true),
            ("^(?(?<=(x))a|b)$", "", "b", true),
            ("(?U)a+b", "", "aab", true),
            (r"^(\w+) \1$", "i", "The tHE", true),
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
                .captures_at(text, 0, &EvalContext::default())
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
            ("(a)?(?(R)b|c)", "", location::REGEX_PATTERN_INVALID),
            ("(a)?(?(n)b|c)", "", location::REGEX_PATTERN_INVALID),
            ("(?R)", "", location::REGEX_PATTERN_INVALID),
            ("a(?R)?b", "", location::REGEX_PATTERN_INVALID),
            ("(?u)a", "", location::REGEX_PATTERN_INVALID),
            ("(?iu:a)", "", location::REGEX_PATTERN_INVALID),
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
        match slow.is_match(&text, &EvalContext::default()) {
            Ok(found) => assert!(!found),
            Err(e) => assert_eq!(e.code.0, location::REGEX_MATCH_FAILED),
        }
    }

    #[test]
    fn patterns_of_a_command_share_memory() {
        let budget = FoldBudget::default();
        let compile = |pattern: &str| Pattern::parse_within(pattern, "", &budget);
        let mut large = 0;
        let error = loop {
            match compile(r"\p{L}{10}") {
                Ok(_) => large += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.code, ErrorCode::ExceededMemoryLimit);
        assert!((5..=200).contains(&large), "{large}");
        // Many small ones have room.
        let budget = FoldBudget::default();
        for at in 0..5000 {
            Pattern::parse_within(&format!("^name{at}$"), "", &budget).unwrap();
        }
    }

    #[test]
    fn compiling_many_patterns_is_interrupted() {
        struct Ended;
        impl crate::eval::Interrupt for Ended {
            fn check_interrupt(&self) -> Result<()> {
                Err(Error::new(ErrorCode::Interrupted, "ended"))
            }
        }
        let context = crate::eval::ParseContext::new().with_interrupt(Arc::new(Ended));
        let regex = || {
            let (pattern, options) = ("x", "");
            ValueRef::Regex { pattern, options }.to_value()
        };
        let a_schema = doc! {"properties": doc! {"a": doc! {"pattern": "x"}}};
        let matches = doc! {"$regexMatch": doc! {"input": "$a", "regex": "x"}};
        for filter in [
            doc! {"a": regex()},
            doc! {"a": doc! {"$in": array![regex()]}},
            doc! {"a": doc! {"$not": regex()}},
            doc! {"a": doc! {"$regex": "x"}},
            doc! {"$jsonSchema": a_schema},
            doc! {"$expr": matches},
        ] {
            let found = crate::eval::matcher::MatchExpression::parse(filter.as_ref(), &context);
            assert_eq!(
                found.err().map(|e| e.code),
                Some(ErrorCode::Interrupted),
                "{filter:?}"
            );
        }
    }

    /// Both engines of a pattern are counted when it is compiled, whatever they are made of.
    #[test]
    fn the_engine_of_large_texts_is_counted_with_the_pattern() {
        let words: Vec<String> = (0..6500).map(|at| format!("{at:04x}")).collect();
        for (pattern, options) in [
            ("abcdefgh".repeat(4000), ""),
            ("abcdefgh".repeat(4000), "i"),
            (words.join("|"), ""),
            (words.join("|"), "i"),
            (format!("x.*(?:{})", words.join("|")), ""),
            ("a|".repeat(16_000) + "b", ""),
            ("a?".repeat(16_000) + "b", ""),
            ("(a)".repeat(10_000) + "b", ""),
            (r"\p{L}{10}".to_owned(), ""),
            (r"\p{L}".to_owned(), "s"),
            ("^name17$".to_owned(), ""),
            ("a.*b".to_owned(), ""),
            (r"(\w+)@(\w+)".to_owned(), "m"),
        ] {
            let budget = FoldBudget::default();
            let left = budget.pattern_bytes_left();
            let pattern = Pattern::parse_within(&pattern, options, &budget).unwrap();
            let counted = left - budget.pattern_bytes_left();
            let engines = [Some(pattern.engine), pattern.before_newline];
            let bytes: usize = engines
                .iter()
                .flatten()
                .map(|engine| match engine {
                    Engine::Linear(linear) => {
                        let stepped = SteppedSearch::compile(
                            &linear.source,
                            linear.flags.syntax(),
                            COMPILED_BYTES_MAX,
                        );
                        linear.regex.memory_usage() + stepped.expect("engines").memory_bytes()
                    }
                    Engine::Backtracking(_) => 0,
                })
                .sum();
            assert!(bytes <= counted, "{bytes} of {counted} are counted");
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
