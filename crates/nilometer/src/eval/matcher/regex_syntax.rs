//! Translation of Perl's pattern syntax into that of the Rust engines.
//!
//! One pass over the pattern that copies common syntax and rewrites the rest:
//!
//! | Perl                          | Rust                                    |
//! |-------------------------------|-----------------------------------------|
//! | `\d \w \s \b` (ASCII)         | `(?-u:\d)` … ; spelled out in a class   |
//! | `$` (also before a last `\n`) | `\z` or `(?=\n?\z)`, unless multi-line   |
//! | `{` that is no repetition     | `\{`                                    |
//! | `[`, `&&`, `--`, `~~` in `[]` | escaped: no nested classes, no set ops  |
//! | `\Q…\E`                       | each character escaped                  |
//! | white space and `#` under `x` | dropped here, classes keep theirs       |
//! | `(?#…)`                       | dropped                                 |
//! | `\Z \h \H \R \e \cX`          | spelled out                             |
//! | `(*UTF)` in front, `(*FAIL)`  | dropped; a class without members        |
//!
//! `$` and `\Z` have two translations ([`EndAnchor`]): only a text that ends in a newline needs the
//! look-ahead, and with it the backtracking engine.
//!
//! Inline `(?m)` and `(?x)` are passed to the engine, which treats them like Perl except for the
//! rewriting above.

use super::regex::Flags;

/// ASCII classes: escape letter, members inside brackets.
const CLASSES: &[(char, &str, bool)] = &[
    ('d', "0-9", false),
    ('D', "0-9", true),
    ('w', "0-9A-Za-z_", false),
    ('W', "0-9A-Za-z_", true),
    ('s', r"\t\n\x0B\x0C\r ", false),
    ('S', r"\t\n\x0B\x0C\r ", true),
    (
        'h',
        r"\t \u{A0}\u{1680}\u{180E}\u{2000}-\u{200A}\u{202F}\u{205F}\u{3000}",
        false,
    ),
    (
        'H',
        r"\t \u{A0}\u{1680}\u{180E}\u{2000}-\u{200A}\u{202F}\u{205F}\u{3000}",
        true,
    ),
    ('v', r"\n\x0B\x0C\r\u{85}\u{2028}\u{2029}", false),
    ('V', r"\n\x0B\x0C\r\u{85}\u{2028}\u{2029}", true),
];

/// `\b` in Rust's syntax.
pub(super) const WORD_BOUNDARY: &str = r"(?-u:\b)";

/// `\B` in Rust's syntax.
pub(super) const NOT_WORD_BOUNDARY: &str = r"(?-u:\B)";

struct Translator<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    out: String,
    flags: Flags,
    end: EndAnchor,
    has_end: bool,
    /// State of quantifiers: what the next quantifier character would be.
    quantified: QuantifierState,
    backtracking: bool,
    /// The open groups; true for an assertion that is a condition.
    open: Vec<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QuantifierState {
    No,
    Once,
    Closed,
}

/// Translation of `$` and `\Z`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EndAnchor {
    /// The end of the text: correct for texts that do not end in a newline.
    OfText,
    /// The end of the text or before a final newline: correct for all texts.
    BeforeNewline,
}

/// A pattern in Rust's syntax.
pub(super) struct Translation {
    pub(super) pattern: String,
    /// True if the linear engine would accept the pattern with another meaning.
    pub(super) backtracking: bool,
    /// True if the two translations of an end differ.
    pub(super) has_end: bool,
}

/// Translates a pattern; the error says why it cannot be translated.
pub(super) fn translate(
    pattern: &str,
    flags: Flags,
    end: EndAnchor,
) -> Result<Translation, String> {
    let mut translator = Translator {
        rest: pattern.chars().peekable(),
        out: String::with_capacity(pattern.len() + 16),
        flags,
        end,
        has_end: false,
        quantified: QuantifierState::No,
        backtracking: false,
        open: Vec::new(),
    };
    translator.run()?;
    Ok(Translation {
        pattern: translator.out,
        backtracking: translator.backtracking,
        has_end: translator.has_end,
    })
}

impl Translator<'_> {
    fn run(&mut self) -> Result<(), String> {
        while let Some(c) = self.rest.next() {
            match c {
                ' ' | '\t' | '\n' | '\r' | '\x0B' | '\x0C' if self.flags.extended => continue,
                '#' if self.flags.extended => {
                    self.rest.by_ref().find(|c| *c == '\n');
                    continue;
                }
                '*' | '+' | '?' => {
                    self.quantifier(c)?;
                    continue;
                }
                '{' => {
                    if self.brace()? {
                        continue;
                    }
                }
                '\\' => self.escape()?,
                '[' => self.class()?,
                '(' => self.group()?,
                // The engine takes an assertion as a condition in parentheses of its own.
                ')' => self.out.push_str(match self.open.pop() {
                    Some(true) => "))",
                    _ => ")",
                }),
                '$' if !self.flags.multi_line => self.end(),
                other => self.out.push(other),
            }
            self.quantified = QuantifierState::No;
        }
        Ok(())
    }

    /// Translates `$` or `\Z`.
    fn end(&mut self) {
        self.has_end = true;
        self.out.push_str(match self.end {
            EndAnchor::OfText => r"\z",
            EndAnchor::BeforeNewline => r"(?=\n?\z)",
        });
    }

    /// Translates `*`, `+`, `?`: a quantifier, or the suffix that makes one lazy or possessive.
    fn quantifier(&mut self, c: char) -> Result<(), String> {
        self.quantified = match (self.quantified, c) {
            (QuantifierState::No, _) => QuantifierState::Once,
            (QuantifierState::Once, '?') => QuantifierState::Closed,
            (QuantifierState::Once, '+') => {
                // The linear engine parses `a++` as `(a+)+`.
                self.backtracking = true;
                QuantifierState::Closed
            }
            _ => return Err("quantifier does not follow a repeatable item".to_owned()),
        };
        self.out.push(c);
        Ok(())
    }

    /// Translates after `\`, outside a class.
    fn escape(&mut self) -> Result<(), String> {
        let c = self.rest.next().ok_or("\\ at end of pattern")?;
        match c {
            'b' | 'B' => {
                self.out.push_str(match c {
                    'b' => WORD_BOUNDARY,
                    _ => NOT_WORD_BOUNDARY,
                });
            }
            'Z' => self.end(),
            'R' => self
                .out
                .push_str(r"(?:\r\n|[\n\x0B\x0C\r\u{85}\u{2028}\u{2029}])"),
            'N' => self.out.push_str(r"[^\n]"),
            'e' => self.out.push_str(r"\x1B"),
            'c' => self.control()?,
            'Q' => self.quoted(|c| regex::escape(c.encode_utf8(&mut [0; 4]))),
            'E' => {}
            'o' | 'C' | 'X' => return Err(format!("\\{c} is not supported")),
            '0' => self.octal(),
            _ => match class_members(c) {
                Some((members, negated)) => {
                    self.out.push_str(if negated { "[^" } else { "[" });
                    self.out.push_str(members);
                    self.out.push(']');
                }
                None => {
                    self.out.push('\\');
                    self.out.push(c);
                    if matches!(c, 'p' | 'P' | 'x' | 'k' | 'g') {
                        self.braced();
                    }
                }
            },
        }
        Ok(())
    }

    /// Copies `{…}` behind an escape that takes a name or a number.
    fn braced(&mut self) {
        if self.rest.peek() == Some(&'{') {
            for c in self.rest.by_ref() {
                self.out.push(c);
                if c == '}' {
                    break;
                }
            }
        }
    }

    /// Translates `\cX`: a control character.
    fn control(&mut self) -> Result<(), String> {
        let c = self.rest.next().filter(char::is_ascii);
        let c = c.ok_or("\\c at end of pattern")?;
        let code = (c.to_ascii_uppercase() as u8) ^ 0x40;
        self.out.push_str(&format!(r"\x{code:02X}"));
        Ok(())
    }

    /// Translates `\0` and up to two more octal digits.
    fn octal(&mut self) {
        let mut code = 0u32;
        for _ in 0..2 {
            match self.rest.peek().and_then(|c| c.to_digit(8)) {
                Some(digit) => {
                    code = code * 8 + digit;
                    self.rest.next();
                }
                None => break,
            }
        }
        self.out.push_str(&format!(r"\x{code:02X}"));
    }

    /// Translates after `\Q`: copies up to `\E`, each character through `escape`.
    fn quoted(&mut self, escape: impl Fn(char) -> String) {
        while let Some(c) = self.rest.next() {
            if c == '\\' && self.rest.peek() == Some(&'E') {
                self.rest.next();
                return;
            }
            self.out.push_str(&escape(c));
        }
    }

    /// Translates after `(`.
    fn group(&mut self) -> Result<(), String> {
        if self.rest.peek() == Some(&'*') {
            return self.verb();
        }
        if self.rest.peek() == Some(&'?') {
            match self.rest.clone().nth(1) {
                Some('#') => {
                    let end = self.rest.by_ref().find(|c| *c == ')');
                    return end.map(|_| ()).ok_or("missing ) after comment".to_owned());
                }
                Some('C') => return Err("callouts are not supported".to_owned()),
                Some('(') => return self.condition(),
                _ => self.check_flags()?,
            }
        }
        self.open.push(false);
        self.out.push('(');
        Ok(())
    }

    /// Refuses letters behind `(?` that the engines understand as something else.
    fn check_flags(&self) -> Result<(), String> {
        let flags: String = self
            .rest
            .clone()
            .skip(1)
            .take_while(|c| c.is_ascii_alphabetic() || *c == '-')
            .collect();
        let end = self.rest.clone().nth(1 + flags.len());
        if !matches!(end, Some(')' | ':')) {
            return Ok(());
        }
        match flags.chars().find(|c| matches!(c, 'R' | 'u')) {
            Some('R') => Err("recursion is not supported".to_owned()),
            Some(_) => Err("unrecognized character after (? or (?-".to_owned()),
            None => Ok(()),
        }
    }

    /// Translates after `(` of `(?(…)…)`: the name of a group, which the engine takes in `<>`. Numbers and assertions stay.
    fn condition(&mut self) -> Result<(), String> {
        self.open.push(false);
        self.out.push_str("(?(");
        self.rest.by_ref().take(2).for_each(drop);
        if self.rest.peek() == Some(&'?') {
            self.open.push(true);
            self.out.push('(');
            return Ok(());
        }
        let name: String = self.rest.by_ref().take_while(|c| *c != ')').collect();
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        if matches!(name.as_str(), "R" | "DEFINE") {
            return Err(format!("the condition ({name}) is not supported"));
        }
        let is_bare = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
        match is_bare && name.chars().all(is_name) {
            true => self.out.push_str(&format!("<{name}>)")),
            false => self.out.push_str(&format!("{name})")),
        }
        Ok(())
    }

    /// Translates a verb after `(`. `(*UTF)` is the rule here, and `(*FAIL)` matches nothing.
    fn verb(&mut self) -> Result<(), String> {
        let is_first = self.out.is_empty();
        let verb: String = self.rest.by_ref().take_while(|c| *c != ')').collect();
        match verb.as_str() {
            "*UTF" | "*UTF8" if is_first => Ok(()),
            "*FAIL" | "*F" => {
                self.out.push_str(r"[^\s\S]");
                Ok(())
            }
            _ => Err(format!("the control verb ({verb}) is not supported")),
        }
    }

    /// Translates after `{`; returns true for a repetition, false for a literal brace.
    fn brace(&mut self) -> Result<bool, String> {
        let mut ahead = self.rest.clone();
        let mut digits = 0;
        let mut commas = 0;
        let is_repetition = loop {
            match ahead.next() {
                Some(c) if c.is_ascii_digit() => digits += usize::from(commas == 0),
                Some(',') if commas == 0 => commas = 1,
                Some('}') => break digits > 0,
                _ => break false,
            }
        };
        if !is_repetition {
            self.out.push_str(r"\{");
            return Ok(false);
        }
        if self.quantified != QuantifierState::No {
            return Err("quantifier does not follow a repeatable item".to_owned());
        }
        self.quantified = QuantifierState::Once;
        self.out.push('{');
        for c in self.rest.by_ref() {
            self.out.push(c);
            if c == '}' {
                break;
            }
        }
        Ok(true)
    }

    /// Translates after `[`.
    fn class(&mut self) -> Result<(), String> {
        self.out.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push('^');
        }
        if self.rest.next_if_eq(&']').is_some() {
            self.out.push_str(r"\]");
        }
        while let Some(c) = self.rest.next() {
            match c {
                ']' => {
                    self.out.push(']');
                    return Ok(());
                }
                '[' => self.bracket_in_class(),
                '&' | '~' => {
                    self.out.push('\\');
                    self.out.push(c);
                }
                // Two in a row would be a set difference.
                '-' if self.rest.peek() == Some(&'-') => self.out.push_str(r"\-"),
                '\\' => self.escape_in_class()?,
                other => self.out.push(other),
            }
        }
        Err("missing terminating ] for character class".to_owned())
    }

    /// Translates after `[` inside a class: `[:alpha:]` is copied, a single bracket is literal.
    fn bracket_in_class(&mut self) {
        let name: String = self.rest.clone().take_while(|c| *c != ']').collect();
        let is_posix = name.len() > 2 && name.starts_with(':') && name.ends_with(':');
        if is_posix {
            self.out.push('[');
            self.out.push_str(&name);
            self.out.push(']');
            for _ in 0..=name.chars().count() {
                self.rest.next();
            }
        } else {
            self.out.push_str(r"\[");
        }
    }

    fn escape_in_class(&mut self) -> Result<(), String> {
        let c = self.rest.next().ok_or("\\ at end of pattern")?;
        match c {
            'b' => self.out.push_str(r"\x08"),
            'e' => self.out.push_str(r"\x1B"),
            'c' => self.control()?,
            '0'..='7' => {
                let mut code = c.to_digit(8).unwrap_or(0);
                while let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(8)) {
                    if code >= 0o40 {
                        break;
                    }
                    code = code * 8 + digit;
                    self.rest.next();
                }
                self.out.push_str(&format!(r"\x{{{code:X}}}"));
            }
            'Q' => self.quoted(|c| {
                if c.is_ascii_punctuation() {
                    format!("\\{c}")
                } else {
                    c.to_string()
                }
            }),
            'E' => {}
            'R' | 'X' | 'B' | 'N' => return Err(format!("\\{c} in a character class")),
            _ => match class_members(c) {
                Some((members, false)) => self.out.push_str(members),
                Some((members, true)) => {
                    self.out.push_str("[^");
                    self.out.push_str(members);
                    self.out.push(']');
                }
                None => {
                    self.out.push('\\');
                    self.out.push(c);
                }
            },
        }
        Ok(())
    }
}

/// Returns the members of the class of an escape letter, and whether it is negated.
fn class_members(letter: char) -> Option<(&'static str, bool)> {
    CLASSES
        .iter()
        .find(|(known, ..)| *known == letter)
        .map(|(_, members, negated)| (*members, *negated))
}

/// Returns the literal text after `^` or `\A`. Conservative: `None` or a shorter text is always
/// correct.
pub(super) fn literal_prefix(pattern: &str) -> Option<String> {
    let body = pattern
        .strip_prefix('^')
        .or_else(|| pattern.strip_prefix(r"\A"))?;
    if body.contains('|') {
        return None;
    }
    let mut prefix = String::new();
    let mut rest = body.chars().peekable();
    while let Some(c) = rest.next() {
        let literal = match c {
            '\\' => match rest.next() {
                Some(escaped) if escaped.is_ascii_punctuation() => escaped,
                _ => break,
            },
            '.' | '[' | '(' | ')' | '$' | '^' | '*' | '+' | '?' | '{' => break,
            other => other,
        };
        // A character that may be absent or repeated is not part of the prefix.
        if matches!(rest.peek(), Some('*' | '?' | '{' | '+')) {
            break;
        }
        prefix.push(literal);
    }
    (!prefix.is_empty()).then_some(prefix)
}
