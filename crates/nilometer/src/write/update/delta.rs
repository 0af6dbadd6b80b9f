//! Differences in the form that oplogs have: `{$v: 2, diff: {d, u, i, s<field>}}`.
//!
//! ```text
//! document   d: {field: false, …}   removed            i: {field: value, …}   added at the end
//!            u: {field: value, …}   set in place       s<field>: diff         changed within
//! array      a: true, l: length, u<number>: value, s<number>: diff
//! ```
//!
//! A difference is applied to any document: what a part of it does not fit to is left as it is, because a later change of
//! the same oplog replaces it.

use std::collections::{HashMap, HashSet};

use nilometer_bson::{ArrayRef, DocRef, Document, DocumentBuilder, Element, ValueRef};

use crate::error::{Error, Result};

/// Nesting that a difference may have.
const DEPTH_MAX: usize = 200;

/// Elements that an array may have after a difference.
const ARRAY_MAX: usize = 1 << 20;

/// A parsed difference.
#[derive(Clone, Debug)]
pub(super) struct Delta(Document);

fn malformed(what: &str) -> Error {
    Error::failed_to_parse(format!("the diff of an update is malformed: {what}"))
}

/// True for `{$v: 2, diff}`.
pub(super) fn is_delta(update: DocRef<'_>) -> bool {
    update.get("$v").as_exact_i64() == Some(2) && update.get("diff").as_document().is_some()
}

impl Delta {
    /// Parses the `o` of an update.
    pub(super) fn parse(update: DocRef<'_>) -> Result<Self> {
        let diff = update.get("diff").as_document();
        let diff = diff.ok_or_else(|| malformed("it is missing"))?;
        if let Some(other) = update.iter().find(|e| !matches!(e.name(), "$v" | "diff")) {
            return Err(malformed(&format!("unknown field '{}'", other.name())));
        }
        check_document(diff, 0)?;
        Ok(Self(diff.to_document()))
    }

    /// Returns the document after the update.
    pub(super) fn apply(&self, document: DocRef<'_>) -> Document {
        let mut out = DocumentBuilder::with_capacity(document.as_bytes().len() + 64);
        append_document(&mut out, document, self.0.as_ref());
        out.finish()
    }
}

fn inner<'a>(element: Element<'a>, depth: usize) -> Result<DocRef<'a>> {
    if depth >= DEPTH_MAX {
        return Err(malformed("it is nested too deeply"));
    }
    let inner = element.value().as_document();
    inner.ok_or_else(|| malformed(&format!("'{}' is not an object", element.name())))
}

fn is_of_array(diff: DocRef<'_>) -> bool {
    matches!(diff.get("a"), ValueRef::Bool(true))
}

fn check(diff: DocRef<'_>, depth: usize) -> Result<()> {
    match is_of_array(diff) {
        true => check_array(diff, depth),
        false => check_document(diff, depth),
    }
}

fn check_document(diff: DocRef<'_>, depth: usize) -> Result<()> {
    for element in diff {
        match element.name() {
            "d" | "u" | "i" => {
                inner(element, depth)?;
            }
            name if name.starts_with('s') => check(inner(element, depth)?, depth + 1)?,
            name => return Err(malformed(&format!("unknown section '{name}'"))),
        }
    }
    Ok(())
}

fn check_array(diff: DocRef<'_>, depth: usize) -> Result<()> {
    for element in diff {
        let name = element.name();
        match name {
            "a" => {}
            "l" => {
                length_of(diff)?;
            }
            _ if number_of(name, 'u').is_some() => {}
            _ if number_of(name, 's').is_some() => check(inner(element, depth)?, depth + 1)?,
            _ => return Err(malformed(&format!("unknown section '{name}'"))),
        }
    }
    Ok(())
}

/// Returns the new length of an array, if the difference changes it.
fn length_of(diff: DocRef<'_>) -> Result<Option<usize>> {
    match diff.get("l") {
        ValueRef::Missing => Ok(None),
        given => {
            let length = given.as_exact_i64().and_then(|n| usize::try_from(n).ok());
            let length = length.filter(|length| *length <= ARRAY_MAX);
            let length = length.ok_or_else(|| malformed("'l' is not the length of an array"))?;
            Ok(Some(length))
        }
    }
}

/// Returns the number of an element in the name of a section.
fn number_of(name: &str, section: char) -> Option<usize> {
    let number = name.strip_prefix(section)?.parse().ok()?;
    (number < ARRAY_MAX).then_some(number)
}

/// Returns the differences within, by field.
fn changed_within(diff: DocRef<'_>) -> HashMap<&str, DocRef<'_>> {
    let sections = diff.iter().filter_map(|element| {
        let name = element.name().strip_prefix('s')?;
        Some((name, element.value().as_document()?))
    });
    sections.collect()
}

/// Appends the fields of a document after a difference.
fn append_document(out: &mut DocumentBuilder, document: DocRef<'_>, diff: DocRef<'_>) {
    let section = |name: &str| {
        let section = diff.get(name).as_document();
        section.map(|section| section.iter()).into_iter().flatten()
    };
    let gone: HashSet<&str> = section("d")
        .chain(section("i"))
        .map(|element| element.name())
        .collect();
    let mut updated: HashMap<&str, Element<'_>> = HashMap::new();
    for element in section("u") {
        updated.insert(element.name(), element);
    }
    let within = changed_within(diff);
    for element in document {
        let name = element.name();
        if gone.contains(name) {
            continue;
        }
        match (updated.remove(name), within.get(name)) {
            (Some(new), _) => {
                out.append_element(new);
            }
            (None, Some(diff)) => append_within(out, element, *diff),
            (None, None) => {
                out.append_element(element);
            }
        }
    }
    for element in section("u") {
        if updated.remove(element.name()).is_some() {
            out.append_element(element);
        }
    }
    for element in section("i") {
        out.append_element(element);
    }
}

/// Appends a document or an array after a difference within it; another value as it is.
fn append_within(out: &mut DocumentBuilder, element: Element<'_>, diff: DocRef<'_>) {
    match (element.value(), is_of_array(diff)) {
        (ValueRef::Document(document), false) => {
            out.begin_document(element.name());
            append_document(out, document, diff);
            out.end();
        }
        (ValueRef::Array(array), true) => {
            out.begin_array(element.name());
            append_array(out, array, diff);
            out.end();
        }
        _ => {
            out.append_element(element);
        }
    }
}

/// Appends the elements of an array after a difference.
fn append_array(out: &mut DocumentBuilder, array: ArrayRef<'_>, diff: DocRef<'_>) {
    let mut updated: HashMap<usize, Element<'_>> = HashMap::new();
    let mut within: HashMap<usize, DocRef<'_>> = HashMap::new();
    for element in diff {
        if let Some(number) = number_of(element.name(), 'u') {
            updated.insert(number, element);
        } else if let Some(number) = number_of(element.name(), 's')
            && let Some(inner) = element.value().as_document()
        {
            within.insert(number, inner);
        }
    }
    let old: Vec<Element<'_>> = array.as_document().iter().collect();
    let end = updated.keys().map(|number| number + 1).max().unwrap_or(0);
    let length = length_of(diff).ok().flatten();
    let length = length.unwrap_or_else(|| old.len().max(end));
    for number in 0..length {
        match (updated.get(&number), old.get(number), within.get(&number)) {
            (None, Some(old), Some(diff)) => append_within(out, *old, *diff),
            (Some(new), ..) => {
                out.append_indexed(number, new.value());
            }
            (None, old, _) => {
                let kept = old.map_or(ValueRef::Null, Element::value);
                out.append_indexed(number, kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::*;

    fn apply(document: Document, diff: Document) -> Document {
        let update = doc! {"$v": 2, "diff": diff};
        assert!(is_delta(update.as_ref()));
        let delta = Delta::parse(update.as_ref()).unwrap();
        delta.apply(document.as_ref())
    }

    #[test]
    fn sections_change_fields_in_place_and_add_them_at_the_end() {
        let document = doc! {"a": 1, "b": doc! {"x": 1, "y": 2}, "c": 3, "d": 4};
        let diff = doc! {
            "d": doc! {"c": false},
            "u": doc! {"a": 5, "n": 6},
            "i": doc! {"d": 7},
            "sb": doc! {"u": doc! {"y": 8}},
            "smissing": doc! {"u": doc! {"y": 8}},
        };
        let after = doc! {"a": 5, "b": doc! {"x": 1, "y": 8}, "n": 6, "d": 7};
        assert_eq!(apply(document, diff), after);
    }

    #[test]
    fn arrays_are_changed_by_number() {
        let diff = |inner: Document| doc! {"sa": inner};
        let document = doc! {"a": array![1, doc! {"x": 1}, 3]};
        let changed = doc! {"a": true, "u0": 9, "s1": doc! {"u": doc! {"x": 2}}, "u4": 5};
        assert_eq!(
            apply(document.clone(), diff(changed)),
            doc! {"a": array![9, doc! {"x": 2}, 3, Value::Null, 5]}
        );
        let shorter = doc! {"a": true, "l": 1};
        assert_eq!(
            apply(document.clone(), diff(shorter)),
            doc! {"a": array![1]}
        );
        let longer = doc! {"a": true, "l": 4};
        assert_eq!(
            apply(document, diff(longer)),
            doc! {"a": array![1, doc! {"x": 1}, 3, Value::Null]}
        );
    }

    #[test]
    fn what_does_not_fit_is_left() {
        let document = doc! {"a": 1, "b": array![1], "c": doc! {"x": 1}};
        let diff = doc! {
            "sa": doc! {"u": doc! {"x": 1}},
            "sb": doc! {"u": doc! {"x": 1}},
            "sc": doc! {"a": true, "u0": 1},
        };
        assert_eq!(apply(document.clone(), diff), document);
    }

    #[test]
    fn malformed_differences_are_refused() {
        let long = i64::try_from(ARRAY_MAX).unwrap() + 1;
        for diff in [
            doc! {"x": 1},
            doc! {"u": 1},
            doc! {"sa": 1},
            doc! {"sa": doc! {"a": true, "x": 1}},
            doc! {"sa": doc! {"a": true, "l": -1}},
            doc! {"sa": doc! {"a": true, "l": long}},
            doc! {"sa": doc! {"a": true, "u9999999999": 1}},
        ] {
            let update = doc! {"$v": 2, "diff": diff};
            let refused = Delta::parse(update.as_ref()).unwrap_err();
            assert_eq!(refused.code, crate::error::ErrorCode::FailedToParse);
        }
        let update = doc! {"$v": 2, "diff": doc! {}, "x": 1};
        assert!(Delta::parse(update.as_ref()).is_err());
        let mut deep = doc! {};
        for _ in 0..DEPTH_MAX + 1 {
            deep = doc! {"sa": deep};
        }
        assert!(Delta::parse(doc! {"$v": 2, "diff": deep}.as_ref()).is_err());
    }
}
