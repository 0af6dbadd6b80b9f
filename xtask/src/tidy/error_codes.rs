//! Numbers of errors stand in one table, `crates/nilometer/src/error/code.rs`.
//!
//! The check reads the numbers of that table and refuses them everywhere else in the code of the
//! crate, and refuses an `ErrorCode` or a location made of a bare number. Tests may use numbers:
//! they say what a client sees. Numbers below [`NUMBER_MIN`] are ordinary numbers in most places
//! and are refused only where an error is made of them.

use std::collections::BTreeSet;

use crate::code::source::{Source, tokens};

/// The table of codes.
pub(crate) const TABLE: &str = "crates/nilometer/src/error/code.rs";
/// The code the rule is about.
const PLACE: &str = "crates/nilometer/src/";
/// The smallest number that means an error wherever it stands.
const NUMBER_MIN: u64 = 10_000;

/// The numbers of the table, which is `text`.
pub(crate) fn numbers(text: &str) -> BTreeSet<u64> {
    let source = Source::new(text);
    let all = tokens(&source.code);
    let values = all
        .iter()
        .zip(all.iter().skip(1))
        .filter(|((_, before), _)| *before == "=")
        .filter_map(|(_, (_, token))| number(token));
    values.filter(|value| *value >= NUMBER_MIN).collect()
}

/// Every number of an error in `source`, the file at `path`: line and message.
pub(crate) fn check(path: &str, source: &Source, numbers: &BTreeSet<u64>) -> Vec<(usize, String)> {
    if !path.starts_with(PLACE) || path == TABLE {
        return Vec::new();
    }
    let tokens = tokens(&source.code);
    let mut found = Vec::new();
    for (at, (offset, token)) in tokens.iter().enumerate() {
        let Some(value) = number(token) else {
            continue;
        };
        let before = |n: usize| at.checked_sub(n).map_or("", |i| tokens[i].1);
        let makes_error =
            before(1) == "(" && ["location", "ErrorCode"].contains(&before(2)) && value != 0;
        if makes_error || numbers.contains(&value) {
            let message = format!("error number {token}: name it in {TABLE}");
            found.push((source.line_of(*offset), message));
        }
    }
    found
}

/// The value of an integer literal.
fn number(token: &str) -> Option<u64> {
    token.replace('_', "").trim_end_matches("i32").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let numbers = numbers("mod t { x! { A = 40_414; B = 2; } }");
        let source = Source::new(text);
        let found = check(path, &source, &numbers);
        found.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn a_number_of_the_table_stands_nowhere_else() {
        let path = "crates/nilometer/src/args.rs";
        assert_eq!(lines(path, "f(40414, 2);\nf(40_414);\n"), [1, 2]);
        assert_eq!(lines(path, "// 40414\nf(\"40414\", 40415);\n"), [0; 0]);
        assert_eq!(
            lines(path, "#[cfg(test)]\nmod tests { f(40414); }\n"),
            [0; 0]
        );
        assert_eq!(lines(TABLE, "f(40414);\n"), [0; 0]);
    }

    #[test]
    fn an_error_is_not_made_of_a_bare_number() {
        let path = "crates/nilometer/src/args.rs";
        assert_eq!(lines(path, "Error::location(9, x);\n"), [1]);
        assert_eq!(lines(path, "ErrorCode(7);\nErrorCode(code);\n"), [1]);
    }
}
