//! The difference of two versions of a document, as `updateDescription` shows it.
//!
//! Paths have dots: `a.b.2`. An embedded document is compared field by field if the versions share a field, an array
//! element by element; of one that became shorter only its new length is given. The order of fields is not compared.

use std::collections::HashMap;

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Element, Value, doc, type_code};

/// Nesting below which values are set as a whole.
const DEPTH_MAX: usize = 64;

/// Returns `{updatedFields, removedFields, truncatedArrays}`; `None` if a path could be read in two ways, because a field name
/// is empty, has a dot, or begins with `$`.
pub(crate) fn description(before: DocRef<'_>, after: DocRef<'_>) -> Option<Document> {
    let mut diff = Difference::default();
    diff.documents("", (before, after), 0)?;
    let mut updated = DocumentBuilder::with_capacity(256);
    for (path, element) in &diff.updated {
        updated.append_renamed(path, *element);
    }
    let truncated = diff.truncated.into_iter();
    let truncated = truncated.map(|(field, size)| {
        let size = i32::try_from(size).unwrap_or(i32::MAX);
        Value::from(doc! {"field": field, "newSize": size})
    });
    Some(doc! {
        "updatedFields": updated.finish(),
        "removedFields": diff.removed.into_iter().map(Value::from).collect::<Array>(),
        "truncatedArrays": truncated.collect::<Array>(),
    })
}

#[derive(Default)]
struct Difference<'a> {
    updated: Vec<(String, Element<'a>)>,
    removed: Vec<String>,
    truncated: Vec<(String, usize)>,
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains('.') && !name.starts_with('$')
}

fn are_equal(a: &Element<'_>, b: &Element<'_>) -> bool {
    a.type_code() == b.type_code() && a.value_bytes() == b.value_bytes()
}

/// Returns the path of a field.
fn join(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

impl<'a> Difference<'a> {
    /// Adds the difference of two documents at `path`. `None` if a changed field has no plain name.
    fn documents(
        &mut self,
        path: &str,
        (before, after): (DocRef<'a>, DocRef<'a>),
        depth: usize,
    ) -> Option<()> {
        let mut known: HashMap<&[u8], Element<'a>> = HashMap::new();
        for element in before {
            known.entry(element.name_bytes()).or_insert(element);
        }
        for element in after {
            let old = known.remove(element.name_bytes());
            if old.is_some_and(|old| are_equal(&old, &element)) {
                continue;
            }
            if !is_plain(element.name()) {
                return None;
            }
            let path = join(path, element.name());
            self.values(path, (old, element), depth)?;
        }
        for element in before {
            if known.contains_key(element.name_bytes()) {
                if !is_plain(element.name()) {
                    return None;
                }
                self.removed.push(join(path, element.name()));
            }
        }
        Some(())
    }

    /// Adds the difference of two values that are not equal.
    fn values(
        &mut self,
        path: String,
        (before, after): (Option<Element<'a>>, Element<'a>),
        depth: usize,
    ) -> Option<()> {
        let same_type = before.filter(|before| before.type_code() == after.type_code());
        if let Some(before) = same_type.filter(|_| depth < DEPTH_MAX) {
            let inner = |element: &Element<'a>| DocRef::new(element.value_bytes());
            if let (Some(old), Some(new)) = (inner(&before), inner(&after)) {
                match after.type_code() {
                    type_code::DOCUMENT if is_refined(old, new) => {
                        return self.documents(&path, (old, new), depth + 1);
                    }
                    type_code::ARRAY if !new.is_empty() => {
                        return self.arrays(&path, (old, new), depth + 1);
                    }
                    _ => {}
                }
            }
        }
        self.updated.push((path, after));
        Some(())
    }

    /// Adds the difference of two arrays, given as documents.
    fn arrays(
        &mut self,
        path: &str,
        (before, after): (DocRef<'a>, DocRef<'a>),
        depth: usize,
    ) -> Option<()> {
        let (mut old, mut count) = (before.iter(), 0);
        for element in after {
            let was = old.next();
            if !was.is_some_and(|was| are_equal(&was, &element)) {
                self.values(format!("{path}.{count}"), (was, element), depth)?;
            }
            count += 1;
        }
        if old.next().is_some() {
            self.truncated.push((path.to_owned(), count));
        }
        Some(())
    }
}

/// True if two documents share a field, and both have plain names alone: then their difference is smaller than the new one, and
/// its paths are clear.
fn is_refined(before: DocRef<'_>, after: DocRef<'_>) -> bool {
    let plain = |document: DocRef<'_>| document.iter().all(|field| is_plain(field.name()));
    plain(before) && plain(after) && after.iter().any(|field| before.contains(field.name()))
}
