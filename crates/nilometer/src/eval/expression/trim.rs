//! `$trim`, `$ltrim`, `$rtrim`: `{input, chars?}`.
//!
//! Removes the characters in `chars`, by default white space (ASCII's, NUL, no-break space and the
//! Unicode spaces), from both ends or one. Null in either gives null. Errors: 50694 unknown member,
//! 50695 no input, 50696 not an object, 50699 input and 50700 chars not strings.

use nilometer_bson::ValueRef;

use super::evaluated::Evaluated;
use super::operation::Operation;
use super::registry::{NamedArguments, optional, required};
use super::scope::Scope;
use crate::error::{Error, Result, location};

pub(super) const ARGUMENTS: NamedArguments = NamedArguments {
    not_object: location::TRIM_NOT_OBJECT,
    unknown: location::TRIM_ARGUMENT_UNKNOWN,
    fields: &[
        required("input", location::TRIM_INPUT_MISSING),
        optional("chars"),
    ],
};

/// The characters removed by default.
const WHITE_SPACE: &[char] = &[
    '\0', '\t', '\n', '\u{b}', '\u{c}', '\r', ' ', '\u{a0}', '\u{1680}', '\u{2000}', '\u{2001}',
    '\u{2002}', '\u{2003}', '\u{2004}', '\u{2005}', '\u{2006}', '\u{2007}', '\u{2008}', '\u{2009}',
    '\u{200a}',
];

pub(super) fn trim<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let input = operation.value(0, scope)?;
    if input.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let name = operation.spec.name;
    let text = |value: ValueRef<'_>, what: &str, code: i32| {
        Error::location(
            code,
            format!(
                "{name} requires its {what} to be a string, got {}",
                value.type_name()
            ),
        )
    };
    let Some(input_text) = input.as_str() else {
        return Err(text(
            input.as_ref(),
            "input",
            location::TRIM_INPUT_NOT_STRING,
        ));
    };
    let mut chars: Vec<char>;
    let cut = match operation.optional(1, scope)? {
        None => WHITE_SPACE,
        Some(value) if value.is_nullish() => return Ok(Evaluated::NULL),
        Some(value) => match value.as_str() {
            Some(found) => {
                chars = found.chars().collect();
                chars.sort_unstable();
                &chars
            }
            None => {
                return Err(text(
                    value.as_ref(),
                    "chars",
                    location::TRIM_CHARS_NOT_STRING,
                ));
            }
        },
    };
    // Both lists are sorted.
    let cut = |c: char| cut.binary_search(&c).is_ok();
    let trimmed = match name {
        "$ltrim" => input_text.trim_start_matches(cut),
        "$rtrim" => input_text.trim_end_matches(cut),
        _ => input_text.trim_matches(cut),
    };
    Ok(Evaluated::from(trimmed.to_owned()))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, doc};

    use super::super::testing::{call, check_exact, eval_code, parse_code};

    #[test]
    fn ends() {
        let doc = doc! { "s": " \u{2003}a b\n\0", "x": "xyaxy", "n": Value::Null };
        for (name, plain, chars) in [
            ("$trim", "a b", "a"),
            ("$ltrim", "a b\n\0", "axy"),
            ("$rtrim", " \u{2003}a b", "xya"),
        ] {
            check_exact(&doc, call(name, doc! { "input": "$s" }), plain);
            check_exact(
                &doc,
                call(name, doc! { "input": "$x", "chars": "yx" }),
                chars,
            );
            check_exact(
                &doc,
                call(name, doc! { "input": "$x", "chars": "" }),
                "xyaxy",
            );
            check_exact(&doc, call(name, doc! { "input": "$n" }), Value::Null);
            check_exact(
                &doc,
                call(name, doc! { "input": "$x", "chars": "$n" }),
                Value::Null,
            );
            assert_eq!(eval_code(&doc, call(name, doc! { "input": 1 })), 50699);
            assert_eq!(
                eval_code(&doc, call(name, doc! { "input": "$x", "chars": 1 })),
                50700
            );
            assert_eq!(parse_code(call(name, doc! { "input": 1, "x": 1 })), 50694);
            assert_eq!(parse_code(call(name, doc! { "chars": "x" })), 50695);
            assert_eq!(parse_code(call(name, "$x")), 50696);
        }
    }
}
