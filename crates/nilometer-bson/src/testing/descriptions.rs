//! Applies the `updateDescription` of a change event to a document, path by path. Too simple to be wrong: tests compare it
//! with documents that were changed.

use crate::{DocRef, Document, DocumentBuilder, Value, ValueRef};

/// A value as fields or elements.
#[derive(Clone, Debug)]
enum Tree {
    Leaf(Value),
    Fields(Vec<(String, Tree)>),
    Elements(Vec<Tree>),
}

impl Tree {
    fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Document(document) => Self::of_document(document),
            ValueRef::Array(array) => Self::Elements(array.iter().map(Self::of).collect()),
            other => Self::Leaf(other.to_value()),
        }
    }

    fn of_document(document: DocRef<'_>) -> Self {
        let fields = document.iter();
        Self::Fields(
            fields
                .map(|e| (e.name().to_owned(), Self::of(e.value())))
                .collect(),
        )
    }

    fn to_value(&self, is_sorted: bool) -> Value {
        match self {
            Self::Leaf(value) => value.clone(),
            Self::Fields(_) => self.to_document(is_sorted).into(),
            Self::Elements(elements) => {
                let values = elements.iter().map(|one| one.to_value(is_sorted));
                Value::Array(values.collect())
            }
        }
    }

    fn to_document(&self, is_sorted: bool) -> Document {
        let mut out = DocumentBuilder::new();
        if let Self::Fields(fields) = self {
            let mut fields = fields.iter().collect::<Vec<_>>();
            if is_sorted {
                fields.sort_by(|a, b| a.0.cmp(&b.0));
            }
            for (name, value) in fields {
                out.append(name, value.to_value(is_sorted));
            }
        }
        out.finish()
    }

    /// Returns what is at `path`, created if it is missing.
    fn at(&mut self, path: &[String]) -> &mut Self {
        let Some((name, rest)) = path.split_first() else {
            return self;
        };
        let found = match self {
            Self::Elements(elements) => {
                let at = name.parse::<usize>().expect("an index");
                while elements.len() <= at {
                    elements.push(Self::Leaf(Value::Null));
                }
                &mut elements[at]
            }
            Self::Fields(fields) => {
                let at = fields.iter().position(|(known, _)| known == name);
                let at = at.unwrap_or_else(|| {
                    fields.push((name.to_owned(), Self::Leaf(Value::Null)));
                    fields.len() - 1
                });
                &mut fields[at].1
            }
            Self::Leaf(_) => panic!("nothing is below a value at {path:?}"),
        };
        found.at(rest)
    }

    fn remove(&mut self, path: &[String]) {
        let (name, parent) = path.split_last().expect("a field");
        match self.at(parent) {
            Self::Fields(fields) => fields.retain(|(known, _)| known != name),
            other => panic!("{name} is no field of {other:?}"),
        }
    }
}

/// Returns the document after a change with this description.
pub fn apply_description(before: DocRef<'_>, description: DocRef<'_>) -> Document {
    let mut tree = Tree::of_document(before);
    let array = |name: &str| description.get(name).as_array().expect("an array");
    let parts = |path: &str| -> Vec<String> {
        let unclear = description.get("disambiguatedPaths").as_document();
        match unclear.and_then(|unclear| unclear.get(path).as_array()) {
            None => path.split('.').map(str::to_owned).collect(),
            Some(parts) => {
                let text = |part: ValueRef<'_>| match part.as_exact_i64() {
                    Some(number) => number.to_string(),
                    None => part.as_str().expect("a name").to_owned(),
                };
                parts.iter().map(text).collect()
            }
        }
    };
    for cut in array("truncatedArrays").iter() {
        let cut = cut.as_document().expect("a document");
        let field = cut.get("field").as_str().expect("a path");
        let size = cut.get("newSize").as_exact_i64().expect("a size");
        match tree.at(&parts(field)) {
            Tree::Elements(elements) => elements.truncate(size as usize),
            other => panic!("{other:?} is no array"),
        }
    }
    for path in array("removedFields").iter() {
        tree.remove(&parts(path.as_str().expect("a path")));
    }
    let updated = description.get("updatedFields").as_document();
    for element in updated.expect("a document") {
        *tree.at(&parts(element.name())) = Tree::of(element.value());
    }
    tree.to_document(false)
}

/// Returns the document with the fields of all levels in order of their names.
pub fn with_sorted_fields(document: DocRef<'_>) -> Document {
    Tree::of_document(document).to_document(true)
}
