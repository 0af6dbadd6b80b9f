//! Keys of indexes with a wildcard part: path and value of every leaf below its root.
//!
//! ```text
//! {a: 1, b: {c: [2, {d: 3}, [4]], e: [], f: {}}}       $**
//! ("a", 1) ("b.c", 2) ("b.c.d", 3) ("b.c", [4]) ("b.e", undefined) ("b.f", {})
//! ```
//!
//! Array positions do not appear in the path; an array directly within another stays a value. Beside other
//! parts, a document without leaves has one key with (MinKey, MinKey) for the wildcard, so that the other
//! parts find it.

use nilometer_bson::path::FieldPath;
use nilometer_bson::path::keys::visit_keys_with_gaps;
use nilometer_bson::{ArrayRef, DocRef, ValueRef};

use super::{KeyCollector, refused};
use crate::error::{Error, ErrorCode, Result};
use crate::index::{Index, IndexPartKind, WildcardFields};

/// Deepest nesting followed: the limit of documents.
const DEPTH_MAX: usize = 200;

/// Path and value of one leaf.
type WildcardLeaf<'a> = (String, ValueRef<'a>);

/// Adds the keys of `document`, unsorted and possibly repeated.
pub(super) fn keys(index: &Index, document: DocRef<'_>, out: &mut KeyCollector) -> Result<()> {
    let mut parts = index.parts().iter().enumerate();
    let (at, part) = parts
        .find(|(_, part)| matches!(part.kind, IndexPartKind::Wildcard { .. }))
        .expect("the index has a wildcard part");
    let mut leaves = LeafCollector {
        fields: index.wildcard_fields(),
        found: Vec::new(),
        multikey: false,
    };
    leaves.below_root(document, part.path.as_ref())?;
    out.multikey |= u32::from(leaves.multikey) << at;
    let mut leaves = leaves.found;
    if index.parts().len() == 1 {
        for (path, value) in leaves {
            let values = [ValueRef::String(&path), value];
            out.add(index, index.encode(values.into_iter())?)?;
        }
        return Ok(());
    }
    let none = leaves.is_empty();
    if none {
        leaves.push((String::new(), ValueRef::MinKey));
    }
    let mut failed = None;
    let expanded = visit_keys_with_gaps(index.paths(), document, &mut |key| {
        for (path, value) in &leaves {
            if failed.is_some() {
                return;
            }
            let path = match none {
                true => ValueRef::MinKey,
                false => ValueRef::String(path),
            };
            let (before, after) = key.split_at(at);
            let values = before.iter().chain([&path, value]).chain(after).copied();
            let added = index.encode(values).and_then(|key| out.add(index, key));
            failed = added.err();
        }
    });
    let expanded = expanded.map_err(|error| refused(&error))?;
    let others = (0..).filter(|part| *part != at);
    for (part, expanded) in others.zip(expanded) {
        out.multikey |= u32::from(expanded) << part;
    }
    failed.map_or(Ok(()), Err)
}

/// Collects leaves.
struct LeafCollector<'a, 'f> {
    fields: &'f WildcardFields,
    found: Vec<WildcardLeaf<'a>>,
    multikey: bool,
}

impl<'a> LeafCollector<'a, '_> {
    /// Collects all leaves, or those at and below `root`.
    fn below_root(&mut self, document: DocRef<'a>, root: Option<&FieldPath>) -> Result<()> {
        let names: Vec<&str> = root.map(|root| root.names().collect()).unwrap_or_default();
        self.document(document, "", &names, 0)
    }

    /// Visits the members of a document at `path`, restricted to those along `toward`.
    fn document(
        &mut self,
        document: DocRef<'a>,
        path: &str,
        toward: &[&str],
        depth: usize,
    ) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::new(
                ErrorCode::Overflow,
                "a document is nested too deep for a wildcard index",
            ));
        }
        let (only, toward) = match toward.split_first() {
            Some((only, rest)) => (Some(*only), rest),
            None => (None, toward),
        };
        for element in document {
            if only.is_some_and(|only| only != element.name()) {
                continue;
            }
            let below = match path {
                "" => element.name().to_owned(),
                path => format!("{path}.{}", element.name()),
            };
            self.value(element.value(), &below, toward, depth)?;
        }
        Ok(())
    }

    fn value(
        &mut self,
        value: ValueRef<'a>,
        path: &str,
        toward: &[&str],
        depth: usize,
    ) -> Result<()> {
        let parsed = FieldPath::parse_lenient(path);
        let covered = toward.is_empty() && self.fields.covers(&parsed);
        if !covered && toward.is_empty() && !self.fields.leads_to(&parsed) {
            return Ok(());
        }
        match value {
            ValueRef::Document(inner) if !inner.is_empty() => {
                self.document(inner, path, toward, depth + 1)
            }
            ValueRef::Array(array) => self.array(array, path, toward, covered, depth),
            leaf if covered => {
                self.found.push((path.to_owned(), leaf));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn array(
        &mut self,
        array: ArrayRef<'a>,
        path: &str,
        toward: &[&str],
        covered: bool,
        depth: usize,
    ) -> Result<()> {
        self.multikey = true;
        if array.is_empty() && covered {
            self.found.push((path.to_owned(), ValueRef::Undefined));
        }
        for element in array.iter() {
            match element {
                ValueRef::Document(inner) if !inner.is_empty() => {
                    self.document(inner, path, toward, depth + 1)?;
                }
                leaf if covered => self.found.push((path.to_owned(), leaf)),
                _ => {}
            }
        }
        Ok(())
    }
}
