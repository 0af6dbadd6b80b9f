//! Field paths of expressions: [`FieldPath`] with MongoDB's error codes.
//!
//! [`nilometer_bson::path`] defines the evaluation: paths lead through documents; at an array they
//! are followed in each element that is a document; numbers are field names.

use nilometer_bson::ValueRef;
use nilometer_bson::path::{FieldPath, PathError, PathValue, check_name};

use super::evaluated::Evaluated;
use crate::error::{Error, Result, location};

/// Parses `a.b.c` (without a leading dollar sign).
pub(crate) fn parse_path(text: &str) -> Result<FieldPath> {
    FieldPath::parse(text).map_err(|error| path_error(error, text))
}

/// Checks a name in an object literal.
pub(crate) fn check_field_name(name: &str) -> Result<()> {
    if name.contains('.') {
        return Err(Error::location(
            location::FIELD_NAME_DOTTED,
            format!(
                "FieldPath field names may not contain '.', given '{name}'. \
                 Consider using $getField or $setField."
            ),
        ));
    }
    check_name(name).map_err(|error| path_error(error, name))
}

/// Returns MongoDB's error for an invalid path.
pub(crate) fn path_error(error: PathError, text: &str) -> Error {
    let code = match error {
        PathError::Empty => location::PATH_EMPTY,
        PathError::TrailingDot => location::PATH_TRAILING_DOT,
        PathError::EmptyComponent => location::PATH_COMPONENT_EMPTY,
        PathError::DollarPrefix => location::PATH_DOLLAR_PREFIX,
        PathError::EmbeddedNul => location::PATH_NUL,
        PathError::TooLong => crate::ErrorCode::Overflow.0,
    };
    Error::location(code, format!("{error} (given '{text}')"))
}

/// Returns the value of the path in a value of any type.
pub(crate) fn follow<'a>(path: &FieldPath, value: ValueRef<'a>) -> Evaluated<'a> {
    Evaluated::from(path.get_in(value))
}

impl<'a> From<PathValue<'a>> for Evaluated<'a> {
    fn from(found: PathValue<'a>) -> Self {
        match found {
            PathValue::Ref(value) => Self::Borrowed(value),
            PathValue::Owned(value) => Self::Owned(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::path::PATH_DEPTH_MAX;
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::check;
    use super::*;

    #[test]
    fn paths_through_documents_and_arrays() {
        let doc = doc! {
            "a": doc! { "b": 1, "c": array![doc! { "d": 1 }, 5, doc! { "e": 2 }, array![doc! { "d": 9 }], doc! { "d": array![2, 3] }] },
            "l": array![50, 51],
            "n": Value::Null,
            "z": array![doc! { "0": 7 }],
        };
        let cases: Vec<(&str, Value)> = vec![
            ("$a.b", 1.into()),
            ("$a.x", Value::Missing),
            ("$a.b.c", Value::Missing),
            ("$a.c.d", array![1, array![2, 3]]),
            ("$l.b", array![]),
            ("$l.0", array![]),
            ("$z.0", array![7]),
            ("$n", Value::Null),
            ("$n.x", Value::Missing),
            ("$gone", Value::Missing),
        ];
        for (path, expected) in cases {
            check(&doc, path, expected);
        }
    }

    #[test]
    fn refused_paths() {
        for (path, code) in [
            ("", 40352),
            ("a.", 40353),
            ("a..b", 15998),
            (".a", 15998),
            ("a.$b", 16410),
            ("a\0", 16411),
        ] {
            assert_eq!(parse_path(path).unwrap_err().code.0, code, "{path}");
        }
        assert_eq!(check_field_name("a.b").unwrap_err().code.0, 16412);
        let long = vec!["a"; PATH_DEPTH_MAX + 1].join(".");
        assert_eq!(parse_path(&long).unwrap_err().code.0, 15);
    }
}
