//! The difference of two versions of a document, as `updateDescription` shows it.
//!
//! Paths have dots: `a.b.2`; those that could be read in two ways are given in parts, too. An embedded document is compared field by field if the versions share a field, an array
//! element by element; of one that became shorter only its new length is given. The order of fields is not compared.

use std::collections::{HashMap, HashSet};

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Element, Value, doc, type_code};

/// Nesting below which values are set as a whole.
const DEPTH_MAX: usize = 64;

/// Returns `{updatedFields, removedFields, truncatedArrays}`, and `disambiguatedPaths` with the parts of the paths that could be
/// read in two ways: because a field name has a dot, is empty, or is a number. `None` if two paths have the same text.
pub(crate) fn description(before: DocRef<'_>, after: DocRef<'_>) -> Option<Document> {
    ordered_description(before, after).map(|(description, _)| description)
}

/// Like [`description`], and true if the fields of `after` are in the order that they have when the description is applied: those of
/// `before` stay in place, and new ones follow.
pub(super) fn ordered_description(
    before: DocRef<'_>,
    after: DocRef<'_>,
) -> Option<(Document, bool)> {
    let mut diff = Difference::default();
    diff.documents(&Path::default(), (before, after), 0);
    if diff.is_unclear() {
        return None;
    }
    let mut out = DocumentBuilder::with_capacity(256);
    out.begin_document("updatedFields");
    for (path, element) in &diff.updated {
        out.append_renamed(&path.text, *element);
    }
    out.end();
    let removed = diff.removed.iter().map(|path| Value::from(&*path.text));
    out.append("removedFields", removed.collect::<Array>());
    let truncated = diff.truncated.iter().map(|(path, size)| {
        let size = i32::try_from(*size).unwrap_or(i32::MAX);
        Value::from(doc! {"field": path.text.as_str(), "newSize": size})
    });
    out.append("truncatedArrays", truncated.collect::<Array>());
    let mut unclear = DocumentBuilder::new();
    for path in diff.paths().filter(|path| path.is_unclear) {
        unclear.append(&path.text, path.parts.iter().cloned().collect::<Array>());
    }
    let unclear = unclear.finish();
    if !unclear.is_empty() {
        out.append(DISAMBIGUATED, unclear);
    }
    Some((out.finish(), !diff.reorders))
}

/// The field of a description with paths that are unclear.
pub(crate) const DISAMBIGUATED: &str = "disambiguatedPaths";

/// A path as text and in parts: names of fields, and numbers of elements.
#[derive(Clone, Debug, Default)]
struct Path {
    text: String,
    parts: Vec<Value>,
    /// The text has other parts than these, or could have.
    is_unclear: bool,
}

impl Path {
    fn extended(&self, part: Value, text: &str) -> Self {
        let mut out = self.clone();
        if !self.parts.is_empty() {
            out.text.push('.');
        }
        out.text.push_str(text);
        out.parts.push(part);
        out
    }

    fn field(&self, name: &str) -> Self {
        let mut out = self.extended(name.into(), name);
        out.is_unclear |= name.contains('.') || name.bytes().all(|byte| byte.is_ascii_digit());
        out
    }

    fn element(&self, number: usize) -> Self {
        let part = i32::try_from(number).unwrap_or(i32::MAX);
        self.extended(part.into(), &number.to_string())
    }
}

#[derive(Default)]
struct Difference<'a> {
    updated: Vec<(Path, Element<'a>)>,
    removed: Vec<Path>,
    truncated: Vec<(Path, usize)>,
    /// Fields that both versions have are in another order, or behind new ones.
    reorders: bool,
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains('.') && !name.starts_with('$')
}

fn are_equal(a: &Element<'_>, b: &Element<'_>) -> bool {
    a.type_code() == b.type_code() && a.value_bytes() == b.value_bytes()
}

impl<'a> Difference<'a> {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let updated = self.updated.iter().map(|(path, _)| path);
        let truncated = self.truncated.iter().map(|(path, _)| path);
        updated.chain(&self.removed).chain(truncated)
    }

    /// True if a path has the text of another one.
    fn is_unclear(&self) -> bool {
        if !self.paths().any(|path| path.is_unclear) {
            return false;
        }
        let mut texts = HashSet::new();
        let mut others = self
            .updated
            .iter()
            .map(|(path, _)| path)
            .chain(&self.removed);
        !others.all(|path| texts.insert(&path.text))
            || self
                .truncated
                .iter()
                .any(|(path, _)| texts.contains(&path.text))
    }

    /// Adds the difference of two documents at `path`.
    fn documents(&mut self, path: &Path, (before, after): (DocRef<'a>, DocRef<'a>), depth: usize) {
        let mut known: HashMap<&[u8], (usize, Element<'a>)> = HashMap::new();
        for (at, element) in before.iter().enumerate() {
            known.entry(element.name_bytes()).or_insert((at, element));
        }
        // The place in `before` of the last field that it has; the greatest number behind a new one.
        let mut last = 0;
        for element in after {
            let (at, old) = known.remove(element.name_bytes()).unzip();
            let at = at.unwrap_or(usize::MAX);
            self.reorders |= at < last;
            last = at;
            if !old.is_some_and(|old| are_equal(&old, &element)) {
                self.values(path.field(element.name()), (old, element), depth);
            }
        }
        for element in before {
            if known.contains_key(element.name_bytes()) {
                self.removed.push(path.field(element.name()));
            }
        }
    }

    /// Adds the difference of two values that are not equal.
    fn values(
        &mut self,
        path: Path,
        (before, after): (Option<Element<'a>>, Element<'a>),
        depth: usize,
    ) {
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
    }

    /// Adds the difference of two arrays, given as documents.
    fn arrays(&mut self, path: &Path, (before, after): (DocRef<'a>, DocRef<'a>), depth: usize) {
        let (mut old, mut count) = (before.iter(), 0);
        for element in after {
            let was = old.next();
            if !was.is_some_and(|was| are_equal(&was, &element)) {
                self.values(path.element(count), (was, element), depth);
            }
            count += 1;
        }
        if old.next().is_some() {
            self.truncated.push((path.clone(), count));
        }
    }
}

/// True if two documents share a field, and both have plain names alone: then their difference is smaller than the new one, and
/// its paths are clear.
fn is_refined(before: DocRef<'_>, after: DocRef<'_>) -> bool {
    let plain = |document: DocRef<'_>| document.iter().all(|field| is_plain(field.name()));
    plain(before) && plain(after) && after.iter().any(|field| before.contains(field.name()))
}
