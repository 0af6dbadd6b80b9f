//! Dotted paths, parsed once, and two of the three ways MongoDB evaluates them.
//!
//! ```text
//!                       { a: [ {b: 1}, {b: [2, 3]}, 7, {} ] }   path a.b
//! expressions  "$a.b"   [1, [2, 3]]                 arrays become arrays, missing is left out
//! keys         a.b      1, 2 or 3 …, null, null     every sort or index key of the document
//! ```
//!
//! * [`FieldPath::get`]: expressions. Components are always field names: `"$a.0"` is the field
//!   called 0.
//! * [`keys`]: sort and index keys; paths into the same array expand together.
//!
//! The third way, that of filters, is in the matcher, since it depends on the operator.
//!
//! A path that meets no array is evaluated without allocating. The caller interprets a missing
//! value; only keys replace missing by null, as sorting requires.

mod expression;
pub mod keys;

use std::fmt;
use std::sync::Arc;

pub use expression::PathValue;

use crate::document::DocRef;
use crate::value::ValueRef;

/// Most components a path may have.
pub const PATH_DEPTH_MAX: usize = 200;

/// Why a text is not a field path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The text is empty.
    #[error("FieldPath cannot be constructed with empty string")]
    Empty,
    /// The last character is a dot.
    #[error("FieldPath must not end with a '.'.")]
    TrailingDot,
    /// Two consecutive dots, or a leading one.
    #[error("FieldPath field names may not be empty strings.")]
    EmptyComponent,
    /// A name starts with a dollar sign.
    #[error("FieldPath field names may not start with '$'. Consider using $getField or $setField.")]
    DollarPrefix,
    /// A name contains a NUL.
    #[error("FieldPath field names may not contain embedded nulls")]
    EmbeddedNul,
    /// More than [`PATH_DEPTH_MAX`] components.
    #[error("FieldPath is too long")]
    TooLong,
}

/// One component of a path.
#[derive(Clone, Debug)]
struct Component {
    name: Arc<str>,
    /// The array position the name can also mean: digits without leading zeros.
    index: Option<u32>,
}

/// A dotted path, parsed.
#[derive(Clone)]
pub struct FieldPath {
    full: Arc<str>,
    components: Arc<[Component]>,
}

impl FieldPath {
    /// Parses a path with the rules of expressions, projections and sort patterns.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        if text.ends_with('.') {
            return Err(PathError::TrailingDot);
        }
        for name in text.split('.') {
            check_name(name)?;
        }
        let path = Self::parse_lenient(text);
        if path.len() > PATH_DEPTH_MAX {
            return Err(PathError::TooLong);
        }
        Ok(path)
    }

    /// Splits a path with the rules of filters: every text is valid, including empty names and `$`.
    pub fn parse_lenient(text: &str) -> Self {
        let components = text.split('.').map(|name| Component {
            name: name.into(),
            index: array_index(name),
        });
        Self {
            full: text.into(),
            components: components.collect(),
        }
    }

    /// Returns the whole path.
    pub fn as_str(&self) -> &str {
        &self.full
    }

    /// Returns the number of components; at least one.
    #[expect(clippy::len_without_is_empty, reason = "a path is never empty")]
    pub fn len(&self) -> usize {
        self.components.len()
    }

    /// Returns the first name.
    pub fn first(&self) -> &str {
        self.name(0)
    }

    /// Returns the last name.
    pub fn last(&self) -> &str {
        self.name(self.len() - 1)
    }

    /// Returns the names in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> + DoubleEndedIterator {
        self.components.iter().map(|c| &*c.name)
    }

    /// Returns the component at a position; empty beyond the end.
    pub fn name(&self, at: usize) -> &str {
        self.components.get(at).map_or("", |c| &c.name)
    }

    /// Returns the array position the component at `at` can also mean.
    pub fn index(&self, at: usize) -> Option<u32> {
        self.components.get(at).and_then(|c| c.index)
    }

    /// Returns the path without its first component; `None` if it has only one.
    pub fn tail(&self) -> Option<Self> {
        let (_, rest) = self.full.split_once('.')?;
        Some(Self::parse_lenient(rest))
    }

    /// Returns the path without its last component; `None` if it has only one.
    pub fn parent(&self) -> Option<Self> {
        let (rest, _) = self.full.rsplit_once('.')?;
        Some(Self::parse_lenient(rest))
    }

    /// Appends `name` as the last component.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        Self::parse_lenient(&format!("{}.{name}", self.full))
    }

    /// True if `self` is `prefix` or lies below it.
    pub fn starts_with(&self, prefix: &Self) -> bool {
        prefix.len() <= self.len() && self.names().zip(prefix.names()).all(|(a, b)| a == b)
    }

    /// Descends through embedded documents from component `from` on, until the path ends, a value
    /// is not a document, or an array is met.
    fn descend<'a>(&self, document: DocRef<'a>, from: usize) -> Descent<'a> {
        let mut document = document;
        let mut at = from;
        loop {
            let value = document.get(self.name(at));
            at += 1;
            if at >= self.len() {
                return Descent {
                    value,
                    consumed: at,
                };
            }
            match value {
                ValueRef::Document(inner) => document = inner,
                ValueRef::Array(_) => {
                    return Descent {
                        value,
                        consumed: at,
                    };
                }
                _ => {
                    return Descent {
                        value: ValueRef::Missing,
                        consumed: self.len(),
                    };
                }
            }
        }
    }
}

/// Result of a descent through documents.
#[derive(Clone, Copy, Debug)]
struct Descent<'a> {
    value: ValueRef<'a>,
    /// Components consumed; less than the path's length only if an array was met.
    consumed: usize,
}

/// The fields of a reference to a document, the only names with a leading `$` that paths may contain.
pub const REFERENCE_NAMES: [&str; 3] = ["$ref", "$id", "$db"];

/// Checks one component with the rules of expressions.
pub fn check_name(name: &str) -> Result<(), PathError> {
    if name.is_empty() {
        Err(PathError::EmptyComponent)
    } else if name.starts_with('$') && !REFERENCE_NAMES.contains(&name) {
        Err(PathError::DollarPrefix)
    } else if name.contains('\0') {
        Err(PathError::EmbeddedNul)
    } else {
        Ok(())
    }
}

/// Returns the array position a name can mean: digits, no leading zero.
fn array_index(name: &str) -> Option<u32> {
    let digits = name.bytes().all(|b| b.is_ascii_digit());
    let plain = name == "0" || !name.starts_with('0');
    if digits && plain {
        name.parse().ok()
    } else {
        None
    }
}

impl fmt::Debug for FieldPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "FieldPath({})", self.full)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.full)
    }
}

impl PartialEq for FieldPath {
    fn eq(&self, other: &Self) -> bool {
        self.full == other.full
    }
}

impl Eq for FieldPath {}

impl std::hash::Hash for FieldPath {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.full.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing() {
        let path = FieldPath::parse("a.0.b").unwrap();
        assert_eq!(path.names().collect::<Vec<_>>(), ["a", "0", "b"]);
        assert_eq!((path.index(0), path.index(1)), (None, Some(0)));
        assert_eq!(path.tail().unwrap().as_str(), "0.b");
        assert_eq!(path.parent().unwrap().as_str(), "a.0");
        assert!(path.starts_with(&FieldPath::parse("a.0").unwrap()));
        assert!(!path.starts_with(&FieldPath::parse("a.01").unwrap()));
        assert_eq!(FieldPath::parse("a.01").unwrap().index(1), None);
        assert_eq!(FieldPath::parse("99999999999").unwrap().index(0), None);
        for (text, error) in [
            ("", PathError::Empty),
            ("a.", PathError::TrailingDot),
            (".a", PathError::EmptyComponent),
            ("a..b", PathError::EmptyComponent),
            ("a.$b", PathError::DollarPrefix),
            ("a\0", PathError::EmbeddedNul),
        ] {
            assert_eq!(FieldPath::parse(text), Err(error), "{text:?}");
        }
        assert_eq!(FieldPath::parse_lenient("a..$b").len(), 3);
        assert_eq!(
            FieldPath::parse(&["a"; 200].join(".")).map(|p| p.len()),
            Ok(200)
        );
        assert_eq!(
            FieldPath::parse(&["a"; 201].join(".")),
            Err(PathError::TooLong)
        );
    }
}
