//! Descriptions of updates in the form that oplogs have: `{$v: 2, diff: {u, d, s<field>}}`.
//!
//! ```text
//! {updatedFields: {a.b: 1, c.2: 5}, removedFields: [d], truncatedArrays: [{field: c, newSize: 3}]}
//! {$v: 2, diff: {d: {d: false}, sa: {u: {b: 1}}, sc: {a: true, l: 3, u2: 5}}}
//! ```
//!
//! A part of a path that is a number is an element of an array, unless `disambiguatedPaths` says that it is a field.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Element, ValueRef, doc};

use crate::change_entry::DISAMBIGUATED;

/// Changes of one document or array.
#[derive(Debug, Default)]
struct Changes<'a> {
    is_array: bool,
    /// New length of the array.
    length: Option<i32>,
    removed: Vec<String>,
    updated: Vec<(String, Element<'a>)>,
    inner: Vec<(String, Self)>,
}

/// A part of a path: the name of a field, or the number of an element.
struct Part {
    text: String,
    is_element: bool,
}

impl<'a> Changes<'a> {
    /// Returns the changes of the value at `path`.
    fn at(&mut self, path: &[Part]) -> &mut Self {
        let Some((first, rest)) = path.split_first() else {
            return self;
        };
        self.is_array |= first.is_element;
        let known = self.inner.iter().position(|(name, _)| *name == first.text);
        let at = known.unwrap_or_else(|| {
            self.inner.push((first.text.clone(), Self::default()));
            self.inner.len() - 1
        });
        self.inner[at].1.at(rest)
    }

    /// Returns the changes of what has the last part of `path`.
    fn around<'p>(&mut self, path: &'p [Part]) -> Option<(&mut Self, &'p str)> {
        let (last, outer) = path.split_last()?;
        let around = self.at(outer);
        around.is_array |= last.is_element;
        Some((around, &last.text))
    }

    fn append_to(&self, out: &mut DocumentBuilder) {
        if self.is_array {
            out.append("a", true);
            out.append("l", self.length);
            for (number, element) in &self.updated {
                out.append_renamed(&format!("u{number}"), *element);
            }
        } else {
            if !self.removed.is_empty() {
                out.begin_document("d");
                for name in &self.removed {
                    out.append(name, false);
                }
                out.end();
            }
            if !self.updated.is_empty() {
                out.begin_document("u");
                for (name, element) in &self.updated {
                    out.append_renamed(name, *element);
                }
                out.end();
            }
        }
        for (name, inner) in &self.inner {
            out.begin_document(&format!("s{name}"));
            inner.append_to(out);
            out.end();
        }
    }
}

/// Returns the parts of a path.
fn parts(path: &str, unclear: Option<DocRef<'_>>) -> Vec<Part> {
    let given = unclear.and_then(|unclear| unclear.get(path).as_array());
    if let Some(given) = given {
        let part = |value: ValueRef<'_>| match value {
            ValueRef::String(name) => Part {
                text: name.to_owned(),
                is_element: false,
            },
            number => Part {
                text: number.as_exact_i64().unwrap_or(0).to_string(),
                is_element: true,
            },
        };
        return given.iter().map(part).collect();
    }
    let part = |text: &str| Part {
        text: text.to_owned(),
        is_element: !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
    };
    path.split('.').map(part).collect()
}

/// Returns the `o` of an update with this description.
pub(super) fn of_description(description: DocRef<'_>) -> Document {
    let unclear = description.get(DISAMBIGUATED).as_document();
    let mut changes = Changes::default();
    let updated = description.get("updatedFields").as_document();
    for element in updated.iter().flat_map(|updated| updated.iter()) {
        let path = parts(element.name(), unclear);
        if let Some((around, name)) = changes.around(&path) {
            around.updated.push((name.to_owned(), element));
        }
    }
    let removed = description.get("removedFields").as_array();
    for path in removed.iter().flat_map(|removed| removed.iter()) {
        let path = parts(path.as_str().unwrap_or_default(), unclear);
        if let Some((around, name)) = changes.around(&path) {
            around.removed.push(name.to_owned());
        }
    }
    let truncated = description.get("truncatedArrays").as_array();
    for one in truncated.iter().flat_map(|truncated| truncated.iter()) {
        let Some(one) = one.as_document() else {
            continue;
        };
        let path = parts(one.get("field").as_str().unwrap_or_default(), unclear);
        let array = changes.at(&path);
        array.is_array = true;
        let size = one.get("newSize").as_exact_i64();
        array.length = size.and_then(|size| i32::try_from(size).ok());
    }
    let mut diff = DocumentBuilder::new();
    changes.append_to(&mut diff);
    doc! {"$v": 2, "diff": diff.finish()}
}

/// Returns the `o` of an update that adds measurements to a bucket which has `rows_before` others.
pub(super) fn of_measurements(
    measurements: &[Document],
    rows_before: u64,
    meta_field: &str,
) -> Document {
    let mut columns: Vec<(&str, Vec<(u64, Element<'_>)>)> = Vec::new();
    let mut row = rows_before;
    for measurement in measurements {
        for field in measurement.iter().filter(|f| f.name() != meta_field) {
            let known = columns.iter().position(|(name, _)| *name == field.name());
            let at = known.unwrap_or_else(|| {
                columns.push((field.name(), Vec::new()));
                columns.len() - 1
            });
            columns[at].1.push((row, field));
        }
        row += 1;
    }
    let mut diff = DocumentBuilder::with_capacity(1024);
    diff.begin_document("scontrol").begin_document("u");
    diff.append("count", i32::try_from(row).unwrap_or(i32::MAX));
    diff.end().end().begin_document("sdata");
    for (name, values) in columns {
        diff.begin_document(&format!("s{name}")).begin_document("i");
        for (row, value) in values {
            diff.append_renamed(&row.to_string(), value);
        }
        diff.end().end();
    }
    diff.end();
    doc! {"$v": 2, "diff": diff.finish()}
}
