//! Evaluation of dotted paths in filters: which values are tested.
//!
//! ```text
//! {"a.b": test}     a is …                 values tested
//!                   an object              its b
//!                   an array               b of every element that is an object,
//!                                          and element 0, 1, … where b is that number
//!                   anything else          missing, once
//! at the end of the path (leaf):
//!                   an array               every element, then the array itself
//!                   anything else          that value
//! ```
//!
//! Deliberate special cases, as in MongoDB: an element selected by a number is tested whole
//! (`{"a.0": 1}` does not match `{a: [[1]]}`, nor does `{"a.0.0": 1}` match `{a: [[[1]]]}`); arrays directly inside
//! arrays are entered by number only, and the rest of the path applies to them as to any array
//! (`{"a.0.b": 1}` matches `{a: [[{b: 1}]]}`); elements that are neither objects nor selected by number give no
//! value, not even missing, so `{"a.b": null}` does not match `{a: [1]}` nor `{a: []}`.

use std::sync::Arc;

use nilometer_bson::{ArrayRef, DocRef, ValueRef};

use crate::error::Result;

/// A dotted path of a filter; the empty path is the tested value itself (inside `$elemMatch`).
#[derive(Clone, Debug)]
pub struct MatchPath {
    dotted: Arc<str>,
    parts: Arc<[PathComponent]>,
}

/// One component.
#[derive(Clone, Debug)]
struct PathComponent {
    name: Arc<str>,
    /// The array index the name also means, if it is a plain decimal number.
    index: Option<usize>,
}

/// Treatment of an array at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafArrays {
    /// Tests its elements, then the array.
    Expand,
    /// Tests only the array.
    Whole,
}

/// Called with each value and the index of the outermost array element that contains it; returning
/// `true` stops the iteration.
pub trait Visit<'a>: FnMut(ValueRef<'a>, Option<usize>) -> Result<bool> {}

impl<'a, F: FnMut(ValueRef<'a>, Option<usize>) -> Result<bool>> Visit<'a> for F {}

impl PartialEq for MatchPath {
    fn eq(&self, other: &Self) -> bool {
        self.dotted == other.dotted && self.parts.len() == other.parts.len()
    }
}

impl Eq for MatchPath {}

impl MatchPath {
    /// Parses a dotted path. `""` is the field with the empty name.
    pub fn new(dotted: &str) -> Self {
        let parts = dotted
            .split('.')
            .map(|name| PathComponent {
                name: name.into(),
                index: array_index(name),
            })
            .collect();
        Self {
            dotted: dotted.into(),
            parts,
        }
    }

    /// Returns the path of the tested value itself.
    pub fn itself() -> Self {
        Self {
            dotted: "".into(),
            parts: Arc::new([]),
        }
    }

    /// True for [`MatchPath::itself`].
    pub fn is_itself(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the dotted form.
    pub fn as_str(&self) -> &str {
        &self.dotted
    }

    /// Returns the dotted form, shared.
    pub fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.dotted)
    }

    /// Returns the first component.
    pub fn first(&self) -> &str {
        self.parts.first().map_or("", |part| &part.name)
    }

    /// True if the path is `prefix` or below it.
    pub fn is_at_or_below(&self, prefix: &str) -> bool {
        !self.is_itself()
            && self
                .dotted
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// Returns the path with the prefix `from` replaced by `to`; `None` if the path is not at or
    /// below `from`.
    pub fn renamed(&self, from: &str, to: &str) -> Option<Self> {
        if !self.is_at_or_below(from) {
            return None;
        }
        let rest = self.dotted.get(from.len()..)?;
        Some(Self::new(&format!("{to}{rest}")))
    }

    /// Returns the rest of the path behind `prefix`; `None` if the path is not below it.
    pub fn below(&self, prefix: &str) -> Option<Self> {
        let rest = self.dotted.strip_prefix(prefix)?.strip_prefix('.')?;
        (!self.is_itself()).then(|| Self::new(rest))
    }

    /// Visits every value that the path finds in `root`, by the rules of the module head.
    pub fn visit<'a>(
        &self,
        root: ValueRef<'a>,
        leaf: LeafArrays,
        visit: &mut impl Visit<'a>,
    ) -> Result<bool> {
        match (self.parts.first(), root) {
            (None, value) => visit(value, None),
            (Some(_), ValueRef::Document(doc)) => {
                walk_document(doc, &self.parts, leaf, None, visit)
            }
            // Elements of `$elemMatch` may be arrays; they are read as documents with the indexes
            // as names.
            (Some(_), ValueRef::Array(array)) => {
                walk_document(array.as_document(), &self.parts, leaf, None, visit)
            }
            (Some(_), _) => visit(ValueRef::Missing, None),
        }
    }

    /// Returns the value at the path if no array is met; `None` if one is.
    pub fn value_without_arrays<'a>(&self, doc: DocRef<'a>) -> Option<ValueRef<'a>> {
        let mut value = ValueRef::Document(doc);
        for part in self.parts.iter() {
            value = match value {
                ValueRef::Document(doc) => doc.get(&part.name),
                ValueRef::Array(_) => return None,
                _ => return Some(ValueRef::Missing),
            };
        }
        Some(value)
    }
}

/// Returns the index a component means: decimal digits without a leading zero.
fn array_index(name: &str) -> Option<usize> {
    let plain = name == "0"
        || (!name.starts_with('0') && !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()));
    if plain { name.parse().ok() } else { None }
}

fn walk_document<'a>(
    doc: DocRef<'a>,
    parts: &[PathComponent],
    leaf: LeafArrays,
    outer: Option<usize>,
    visit: &mut impl Visit<'a>,
) -> Result<bool> {
    let Some((part, rest)) = parts.split_first() else {
        return visit(ValueRef::Document(doc), outer);
    };
    let value = doc.get(&part.name);
    match (rest.is_empty(), value) {
        (true, ValueRef::Array(array)) if leaf == LeafArrays::Expand => {
            for (at, element) in array.iter().enumerate() {
                if visit(element, outer.or(Some(at)))? {
                    return Ok(true);
                }
            }
            visit(value, outer)
        }
        (true, _) => visit(value, outer),
        (false, ValueRef::Document(inner)) => walk_document(inner, rest, leaf, outer, visit),
        (false, ValueRef::Array(array)) => walk_array(array, rest, leaf, outer, visit),
        (false, _) => visit(ValueRef::Missing, outer),
    }
}

/// Visits the values of the path components `rest` (not empty) below `array`.
fn walk_array<'a>(
    array: ArrayRef<'a>,
    rest: &[PathComponent],
    leaf: LeafArrays,
    outer: Option<usize>,
    visit: &mut impl Visit<'a>,
) -> Result<bool> {
    let Some((next, below)) = rest.split_first() else {
        return Ok(false);
    };
    for (at, element) in array.iter().enumerate() {
        if let ValueRef::Document(doc) = element
            && walk_document(doc, rest, leaf, outer.or(Some(at)), visit)?
        {
            return Ok(true);
        }
        if next.index != Some(at) {
            continue;
        }
        let found = match element {
            _ if below.is_empty() => visit(element, outer)?,
            ValueRef::Document(doc) => walk_document(doc, below, leaf, outer, visit)?,
            ValueRef::Array(inner) => walk_array(inner, below, leaf, outer, visit)?,
            _ => false,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, array, doc};

    use super::*;

    /// Returns every visited value, as text.
    fn visited(doc: &Document, path: &str, leaf: LeafArrays) -> Vec<String> {
        let mut seen = Vec::new();
        MatchPath::new(path)
            .visit(
                ValueRef::Document(doc.as_ref()),
                leaf,
                &mut |value, outer| {
                    let text = match value {
                        ValueRef::Missing => "missing".to_owned(),
                        ValueRef::Int32(v) => v.to_string(),
                        other => other.type_name().to_owned(),
                    };
                    seen.push(outer.map_or(text.clone(), |at| format!("{text}@{at}")));
                    Ok(false)
                },
            )
            .unwrap();
        seen
    }

    #[test]
    fn walks() {
        use LeafArrays::{Expand, Whole};
        let cases: Vec<(Document, &str, LeafArrays, Vec<&str>)> = vec![
            (doc! {"a": 1}, "a", Expand, vec!["1"]),
            (doc! {"a": 1}, "b", Expand, vec!["missing"]),
            (doc! {"a": 1}, "a.b", Expand, vec!["missing"]),
            (
                doc! {"a": array![1, 2]},
                "a",
                Expand,
                vec!["1@0", "2@1", "array"],
            ),
            (doc! {"a": array![1, 2]}, "a", Whole, vec!["array"]),
            (doc! {"a": array![1, 2]}, "a.b", Expand, vec![]),
            (doc! {"a": array![]}, "a.b", Expand, vec![]),
            (
                doc! {"a": array![doc! {"b": 1}, doc! {}, doc! {"b": array![3, 4]}, 5]},
                "a.b",
                Expand,
                vec!["1@0", "missing@1", "3@2", "4@2", "array@2"],
            ),
            (
                doc! {"a": array![array![1], 2]},
                "a.0",
                Expand,
                vec!["array"],
            ),
            (doc! {"a": array![array![1], 2]}, "a.1", Expand, vec!["2"]),
            (doc! {"a": array![array![1], 2]}, "a.0.0", Expand, vec!["1"]),
            (
                doc! {"a": array![array![array![1]]]},
                "a.0.0",
                Expand,
                vec!["array"],
            ),
            (doc! {"a": array![array![]]}, "a.0.b", Expand, vec![]),
            (doc! {"a": array![array![1], 2]}, "a.01", Expand, vec![]),
            (
                doc! {"a": array![doc! {"0": 7}]},
                "a.0",
                Expand,
                vec!["7@0", "object"],
            ),
            (
                doc! {"a": array![9, doc! {"b": 5}]},
                "a.1.b",
                Expand,
                vec!["missing@1", "5"],
            ),
            (
                doc! {"a": array![array![doc! {"b": 5}]]},
                "a.b",
                Expand,
                vec![],
            ),
            (
                doc! {"a": array![array![doc! {"b": 5}]]},
                "a.0.b",
                Expand,
                vec!["5@0"],
            ),
            (
                doc! {"a": array![array![doc! {"b": 5}]]},
                "a.0.0.b",
                Expand,
                vec!["missing@0", "5"],
            ),
            (doc! {"": 3}, "", Expand, vec!["3"]),
        ];
        for (doc, path, leaf, expected) in cases {
            assert_eq!(visited(&doc, path, leaf), expected, "{path} in {doc:?}");
        }
    }

    #[test]
    fn renames_whole_components() {
        let path = MatchPath::new("m.a.b");
        assert_eq!(path.renamed("m", "meta").unwrap().as_str(), "meta.a.b");
        assert_eq!(path.renamed("m.a", "x").unwrap().as_str(), "x.b");
        assert!(path.renamed("m.a.b.c", "x").is_none());
        assert!(MatchPath::new("mm").renamed("m", "meta").is_none());
        assert!(MatchPath::itself().renamed("", "x").is_none());
    }
}
