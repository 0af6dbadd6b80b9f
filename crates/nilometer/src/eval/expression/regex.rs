//! `$regexFind`, `$regexFindAll`, `$regexMatch`: `{input, regex, options?}`.
//!
//! A match is `{match, idx, captures}`: its text, its position in code points, the text of each
//! group (null for one that did not participate). A null input or regex gives null, `[]`, false.
//! Patterns are Perl's; options `i m s x u` are given in the regex value or in `options`, not in
//! both.
//!
//! Errors: 51103 not an object, 51031 unknown member, 51022 no input, 51023 no regex, 51104 to 51106
//! types, 51107 options twice, 51108 unknown option, 51109 null byte, 51111 invalid pattern.

use std::ops::Range;
use std::sync::Arc;

use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::array::ArrayBuilder;
use super::evaluated::Evaluated;
use super::operation::{Operation, PreparedData};
use super::registry::{NamedArguments, optional, required};
use super::scope::Scope;
use crate::error::{Error, Result, location};
use crate::eval::limits::STEPS_PER_CHECK;
use crate::eval::matcher::regex::Pattern;
use crate::eval::{EvalContext, FoldBudget, memory_bytes};

/// Maximum size of all matches of `$regexFindAll` in bytes.
const FOUND_BYTES_MAX: usize = 64 << 20;

pub(super) const ARGUMENTS: NamedArguments = NamedArguments {
    not_object: location::REGEX_NOT_OBJECT,
    unknown: location::REGEX_ARGUMENT_UNKNOWN,
    fields: &[
        required("input", location::REGEX_INPUT_MISSING),
        required("regex", location::REGEX_REGEX_MISSING),
        optional("options"),
    ],
};

/// Compiles a constant pattern within the memory for all patterns of the command. One that has no room there is compiled for
/// each document; an invalid one fails during evaluation.
pub(super) fn prepare(operation: &Operation, budget: &FoldBudget) -> Option<PreparedData> {
    let regex = operation.constant(1)?;
    let options = match operation.argument(2) {
        None => None,
        Some(_) => Some(operation.constant(2)?.as_ref()),
    };
    let pattern = compile(regex.as_ref(), options, operation.spec.name, budget).ok()??;
    Some(Arc::new(pattern))
}

/// Validates and compiles; `None` for a null regex.
fn compile(
    regex: ValueRef<'_>,
    options: Option<ValueRef<'_>>,
    name: &str,
    budget: &FoldBudget,
) -> Result<Option<Pattern>> {
    let given = match options {
        None => "",
        Some(ValueRef::String(text)) => text,
        Some(value) if value.is_nullish() => "",
        Some(other) => {
            return Err(Error::location(
                location::REGEX_OPTIONS_NOT_STRING,
                format!(
                    "{name} needs 'options' to be of type string, got {}",
                    other.type_name()
                ),
            ));
        }
    };
    let (pattern, options) = match regex {
        ValueRef::Regex { pattern, options } => {
            if !options.is_empty() && !given.is_empty() {
                return Err(Error::location(
                    location::REGEX_OPTIONS_TWICE,
                    format!(
                        "{name} found regex option(s) specified in both 'regex' and 'option' fields"
                    ),
                ));
            }
            (pattern, if options.is_empty() { given } else { options })
        }
        ValueRef::String(pattern) => (pattern, given),
        value if value.is_nullish() => return Ok(None),
        other => {
            return Err(Error::location(
                location::REGEX_REGEX_TYPE,
                format!(
                    "{name} needs 'regex' to be of type string or regex, got {}",
                    other.type_name()
                ),
            ));
        }
    };
    for (what, text) in [("regex", pattern), ("options", options)] {
        if text.contains('\0') {
            return Err(Error::location(
                location::REGEX_NUL,
                format!("{name} found null byte in '{what}'"),
            ));
        }
    }
    let pattern = Pattern::parse_within(pattern, options, budget);
    pattern.map(Some).map_err(|error| {
        if error.code.0 != location::REGEX_PATTERN_INVALID {
            return error;
        }
        Error::location(
            location::REGEX_INVALID,
            format!("Invalid Regex in {name}: {}", error.message),
        )
    })
}

pub(super) fn regex<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let name = operation.spec.name;
    let input = operation.value(0, scope)?;
    let text = match input.as_ref() {
        ValueRef::String(text) => Some(text),
        value if value.is_nullish() => None,
        other => {
            return Err(Error::location(
                location::REGEX_INPUT_NOT_STRING,
                format!(
                    "{name} needs 'input' to be of type string, got {}",
                    other.type_name()
                ),
            ));
        }
    };
    let compiled;
    let pattern = match operation.prepared::<Pattern>() {
        Some(pattern) => Some(pattern),
        None => {
            let regex = operation.value(1, scope)?;
            let options = operation.optional(2, scope)?;
            // Compiling may take as long as many steps.
            scope.context.charge(STEPS_PER_CHECK as usize)?;
            compiled = compile(
                regex.as_ref(),
                options.as_ref().map(Evaluated::as_ref),
                name,
                &FoldBudget::default(),
            )?;
            compiled.as_ref()
        }
    };
    match (name, text.zip(pattern)) {
        ("$regexMatch", None) => Ok(Evaluated::from(false)),
        ("$regexMatch", Some((text, pattern))) => {
            pattern.is_match(text, scope.context).map(Evaluated::from)
        }
        ("$regexFind", None) => Ok(Evaluated::NULL),
        ("$regexFind", Some((text, pattern))) => {
            let mut finder = MatchFinder::new(text, pattern, scope.context);
            Ok(finder.next()?.map_or(Evaluated::NULL, Evaluated::from))
        }
        (_, None) => Ok(Evaluated::from(Vec::new())),
        (_, Some((text, pattern))) => {
            let mut finder = MatchFinder::new(text, pattern, scope.context);
            let mut found = ArrayBuilder::new(scope);
            let mut bytes = 0;
            while let Some(value) = finder.next()? {
                bytes += memory_bytes(&value) + size_of::<Value>();
                if bytes > FOUND_BYTES_MAX {
                    return Err(Error::location(
                        location::REGEX_FIND_ALL_TOO_LARGE,
                        format!(
                            "$regexFindAll: the matches exceed the limit of {FOUND_BYTES_MAX} bytes"
                        ),
                    ));
                }
                found.push(value.as_ref())?;
            }
            Ok(found.finish())
        }
    }
}

/// Iterates over the matches of a text and counts code points.
struct MatchFinder<'t> {
    text: &'t str,
    pattern: &'t Pattern,
    context: &'t EvalContext<'t>,
    from: usize,
    /// True from the first search on.
    is_started: bool,
    /// Number of code points in the first `counted` bytes.
    code_points: usize,
    counted: usize,
}

impl<'t> MatchFinder<'t> {
    fn new(text: &'t str, pattern: &'t Pattern, context: &'t EvalContext<'t>) -> Self {
        Self {
            text,
            pattern,
            context,
            from: 0,
            is_started: false,
            code_points: 0,
            counted: 0,
        }
    }

    /// Returns the groups of the next match. A `$` at the pattern's end also matches before a final
    /// newline, which the engine includes in the match; the text without it gives Perl's match.
    fn captures(&self) -> Result<Option<Vec<Option<Range<usize>>>>> {
        let groups = self
            .pattern
            .captures_at(self.text, self.from, self.context)?;
        let reaches_end = |groups: &Vec<Option<Range<usize>>>| matches!(groups.first(), Some(Some(whole)) if whole.end == self.text.len() && !whole.is_empty());
        if self.pattern.source().ends_with('$')
            && groups.as_ref().is_some_and(reaches_end)
            && let Some(line) = self.text.strip_suffix('\n')
            && self.from <= line.len()
            && let Some(within) = self.pattern.captures_at(line, self.from, self.context)?
        {
            return Ok(Some(within));
        }
        Ok(groups)
    }

    fn next(&mut self) -> Result<Option<Value>> {
        // As in MongoDB, an empty match at the end is found only in an empty text.
        if self.from >= self.text.len() && self.is_started {
            return Ok(None);
        }
        self.is_started = true;
        let Some(groups) = self.captures()? else {
            self.from = self.text.len() + 1;
            return Ok(None);
        };
        let mut groups = groups.into_iter();
        let Some(whole) = groups.next().flatten() else {
            return Ok(None);
        };
        let between = self.text.get(self.counted..whole.start).unwrap_or("");
        self.code_points += between.chars().count();
        self.counted = whole.start;
        // After an empty match advance by a character, or it would be found again.
        self.from = if whole.is_empty() {
            let next = self.text.get(whole.end..).and_then(|t| t.chars().next());
            whole.end + next.map_or(1, char::len_utf8)
        } else {
            whole.end
        };
        let captures: Vec<Value> = groups
            .map(|group| {
                group
                    .and_then(|range| self.text.get(range))
                    .map_or(Value::Null, Value::from)
            })
            .collect();
        let mut out = DocumentBuilder::new();
        out.append("match", self.text.get(whole).unwrap_or(""));
        out.append("idx", i32::try_from(self.code_points).unwrap_or(i32::MAX));
        out.append("captures", captures);
        Ok(Some(out.finish().into()))
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc, value};

    use super::super::testing::{call, check_exact, eval_code, parse_code};
    use super::*;

    fn regex_value(pattern: &str, options: &str) -> Value {
        Value::Regex(Arc::new(value::Regex {
            pattern: pattern.into(),
            options: options.into(),
        }))
    }

    #[test]
    fn matches() {
        let doc = doc! { "s": "Äb1 cd22", "r": "[a-z]+", "n": Value::Null };
        let found = |text: &str, idx: i32, captures: Value| {
            doc! { "match": text, "idx": idx, "captures": captures }
        };
        let arguments = doc! { "input": "$s", "regex": regex_value("([a-z])(\\d+)", "") };
        check_exact(
            &doc,
            call("$regexFind", arguments.clone()),
            found("b1", 1, array!["b", "1"]),
        );
        check_exact(
            &doc,
            call("$regexFindAll", arguments.clone()),
            array![
                found("b1", 1, array!["b", "1"]),
                found("d22", 5, array!["d", "22"])
            ],
        );
        check_exact(&doc, call("$regexMatch", arguments), true);
        // Patterns read from the document.
        let dynamic = doc! { "input": "$s", "regex": "$r" };
        check_exact(&doc, call("$regexFind", dynamic), found("b", 1, array![]));
        // Options, groups that do not participate, look-around, empty matches.
        let cases = [
            (
                doc! { "input": "ABC", "regex": "b", "options": "i" },
                found("B", 1, array![]),
            ),
            (
                doc! { "input": "ABC", "regex": regex_value("b", "i") },
                found("B", 1, array![]),
            ),
            (
                doc! { "input": "ac", "regex": "(a)|(b)" },
                found("a", 0, array!["a", Value::Null]),
            ),
            (
                doc! { "input": "xay", "regex": "(?<=x)a(?=y)" },
                found("a", 1, array![]),
            ),
            (
                doc! { "input": "x1\n", "regex": "\\d$" },
                found("1", 1, array![]),
            ),
            (
                doc! { "input": "xaax", "regex": "(a)\\1" },
                found("aa", 1, array!["a"]),
            ),
        ];
        for (arguments, expected) in cases {
            check_exact(&doc, call("$regexFind", arguments), expected);
        }
        let empty = doc! { "input": "äb", "regex": "" };
        check_exact(
            &doc,
            call("$regexFindAll", empty),
            array![found("", 0, array![]), found("", 1, array![])],
        );
        let nothing = doc! { "input": "", "regex": "a*" };
        check_exact(
            &doc,
            call("$regexFindAll", nothing),
            array![found("", 0, array![])],
        );
        let at_the_end = doc! { "input": "ab", "regex": "b*" };
        check_exact(
            &doc,
            call("$regexFindAll", at_the_end),
            array![found("", 0, array![]), found("b", 1, array![])],
        );
        let none = doc! { "input": "x", "regex": "y" };
        check_exact(&doc, call("$regexFind", none.clone()), Value::Null);
        check_exact(&doc, call("$regexFindAll", none.clone()), array![]);
        check_exact(&doc, call("$regexMatch", none), false);
        for arguments in [
            doc! { "input": "$n", "regex": "x" },
            doc! { "input": "$gone", "regex": "x" },
            doc! { "input": "$s", "regex": "$n" },
        ] {
            check_exact(&doc, call("$regexFind", arguments.clone()), Value::Null);
            check_exact(&doc, call("$regexFindAll", arguments.clone()), array![]);
            check_exact(&doc, call("$regexMatch", arguments), false);
        }
    }

    #[test]
    fn constant_patterns_count_against_the_memory_of_a_command() {
        let context = crate::eval::ParseContext::new();
        let left = || context.folding().pattern_bytes_left();
        let parse = |at: i32| {
            let arguments = doc! { "input": "$s", "regex": format!(r"\p{{L}}{{{}}}", 10 + at) };
            let source = Value::from(call("$regexMatch", arguments));
            crate::eval::Expression::parse(source.as_ref(), &context).unwrap()
        };
        let before = left();
        parse(0);
        assert!(left() < before);
        if !nilometer_storage::testing::is_long() {
            return;
        }
        // Above the limit they are compiled for each document.
        (1..200).map(parse).for_each(drop);
        let last = parse(0);
        let one = before - left();
        assert!(one > before / 2, "{one} of {before}");
        let document = doc! { "s": "a".repeat(300) };
        let evaluation = EvalContext::default();
        let scope = Scope::new(document.as_ref(), &evaluation);
        let found = last.eval(&scope).unwrap();
        assert!(matches!(found.as_ref(), ValueRef::Bool(true)));
    }

    #[test]
    fn all_matches_together_have_a_limit() {
        if !nilometer_storage::testing::is_long() {
            return;
        }
        let doc = doc! { "s": "a".repeat(100_000) };
        let regex = format!("a{}", "()".repeat(100));
        let all = doc! { "input": "$s", "regex": regex };
        assert_eq!(eval_code(&doc, call("$regexFindAll", all)), 51151);
    }

    #[test]
    fn errors() {
        let doc = doc! { "s": "x" };
        for name in ["$regexFind", "$regexFindAll", "$regexMatch"] {
            for (argument, code) in [
                (Value::from("x"), 51103),
                (doc! { "input": "", "regex": "", "x": 1 }.into(), 51031),
                (doc! { "regex": "" }.into(), 51022),
                (doc! { "input": "" }.into(), 51023),
            ] {
                assert_eq!(parse_code(call(name, argument)), code);
            }
            for (argument, code) in [
                (doc! { "input": 1, "regex": "" }, 51104),
                (doc! { "input": "$s", "regex": 1 }, 51105),
                (doc! { "input": "$s", "regex": "", "options": 1 }, 51106),
                (
                    doc! { "input": "$s", "regex": regex_value("a", "i"), "options": "i" },
                    51107,
                ),
                (doc! { "input": "$s", "regex": "a", "options": "g" }, 51108),
                (doc! { "input": "$s", "regex": "a\0" }, 51109),
                (doc! { "input": "$s", "regex": "(" }, 51111),
            ] {
                assert_eq!(
                    eval_code(&doc, call(name, argument.clone())),
                    code,
                    "{argument:?}"
                );
            }
        }
    }
}
