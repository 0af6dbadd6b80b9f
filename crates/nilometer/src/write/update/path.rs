//! Paths of updates: `a.b`, `a.0`, `a.$.b`, `a.$[].b`, `a.$[x].b`. Any other name may start with `$`, as in `a.$b`;
//! [`super::check`] refuses one at the top of an existing document.

use std::cmp::Ordering;

use crate::error::{Error, ErrorCode, Result};

/// Most components of a path.
const COMPONENTS_MAX: usize = 200;

/// The component that selects the matched element.
const POSITIONAL: &str = "$";

/// One component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathComponent {
    /// The name of a field, or an array index.
    Field(FieldName),
    /// `$`: the element the filter matched.
    Positional,
    /// `$[]` (an empty identifier) or `$[x]`: all elements, or those an array filter matches.
    Elements(String),
}

/// A name that sorts in the order in which new fields are created: numbers first, numerically, then names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldName {
    name: String,
    index: Option<u64>,
}

impl FieldName {
    /// Makes a name.
    pub(super) fn new(name: &str) -> Self {
        let digits = !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
        let plain = digits && (name == "0" || !name.starts_with('0'));
        Self {
            name: name.to_owned(),
            index: if plain { name.parse().ok() } else { None },
        }
    }

    /// Returns the text.
    pub(super) fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns the array index it denotes.
    pub(super) fn index(&self) -> Option<usize> {
        self.index.and_then(|index| usize::try_from(index).ok())
    }
}

impl PartialOrd for FieldName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FieldName {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.index, other.index) {
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => self.name.cmp(&other.name),
        }
    }
}

/// Parses the path of a modifier.
pub(super) fn parse(path: &str) -> Result<Vec<PathComponent>> {
    let empty = |text: String| Error::new(ErrorCode::EmptyFieldName, text);
    if path.is_empty() {
        return Err(empty("An empty update path is not valid.".into()));
    }
    let mut components = Vec::new();
    for (at, name) in path.split('.').enumerate() {
        if name.is_empty() {
            return Err(empty(format!(
                "The update path '{path}' contains an empty field name, which is not allowed."
            )));
        }
        components.push(component(path, at, name)?);
    }
    if components.len() > COMPONENTS_MAX {
        return Err(Error::new(
            ErrorCode::Overflow,
            format!("FieldPath is too long, at most {COMPONENTS_MAX} components are allowed"),
        ));
    }
    let positionals = components
        .iter()
        .filter(|c| **c == PathComponent::Positional)
        .count();
    if positionals > 1 {
        return Err(Error::bad_value(format!(
            "Too many positional (i.e. '$') elements found in path '{path}'"
        )));
    }
    Ok(components)
}

fn component(path: &str, at: usize, name: &str) -> Result<PathComponent> {
    let first = |what: &str| {
        Error::bad_value(format!(
            "Cannot have {what} element in the first position in path '{path}'"
        ))
    };
    if name == POSITIONAL {
        return if at == 0 {
            Err(first("positional (i.e. '$')"))
        } else {
            Ok(PathComponent::Positional)
        };
    }
    let identifier = name.strip_prefix("$[").and_then(|n| n.strip_suffix(']'));
    if let Some(identifier) = identifier {
        return if at == 0 {
            Err(first("array filter identifier (i.e. '$[<id>]')"))
        } else {
            Ok(PathComponent::Elements(identifier.to_owned()))
        };
    }
    Ok(PathComponent::Field(FieldName::new(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_paths_are_refused() {
        for (path, code) in [
            ("", 56),
            ("a.", 56),
            (".a", 56),
            ("a..b", 56),
            ("$", 2),
            ("$.a", 2),
            ("$[]", 2),
            ("$[x].a", 2),
            ("a.$.b.$", 2),
        ] {
            assert_eq!(parse(path).unwrap_err().code.0, code, "{path}");
        }
        assert!(parse(&vec!["a"; COMPONENTS_MAX].join(".")).is_ok());
        assert!(parse(&vec!["a"; COMPONENTS_MAX + 1].join(".")).is_err());
        for path in ["a.$ref", "$a", "a.$b", "a.$[x", "a.$*.b", "a.$each"] {
            assert!(parse(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn numbers_sort_before_names_and_numerically() {
        let mut names: Vec<FieldName> = ["b", "10", "9", "a", "1a", "01"]
            .into_iter()
            .map(FieldName::new)
            .collect();
        names.sort();
        let sorted: Vec<&str> = names.iter().map(FieldName::as_str).collect();
        assert_eq!(sorted, ["9", "10", "01", "1a", "a", "b"]);
    }
}
