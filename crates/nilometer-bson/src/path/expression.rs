//! Evaluation of paths in expressions: `"$a.b"`.
//!
//! An array met before the end becomes an array of the results for each document in it; missing
//! results and elements that are not documents are left out. An array at the end is the value.
//! Numbers are field names.

use super::FieldPath;
use crate::document::{ArrayRef, DocRef, DocumentBuilder};
use crate::value::{Array, Value, ValueRef};

/// Result of a path: a value of the document, or an array built during evaluation.
#[derive(Clone, Debug)]
pub enum PathValue<'a> {
    /// Part of the document.
    Ref(ValueRef<'a>),
    /// Built during evaluation.
    Owned(Value),
}

impl PathValue<'_> {
    /// Returns the value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Self::Ref(value) => *value,
            Self::Owned(value) => value.as_ref(),
        }
    }

    /// Returns the value, owned.
    pub fn into_value(self) -> Value {
        match self {
            Self::Ref(value) => value.to_value(),
            Self::Owned(value) => value,
        }
    }
}

impl FieldPath {
    /// Returns the value of `"$path"` in a document. Allocates only if an array is met before the
    /// end.
    pub fn get<'a>(&self, document: DocRef<'a>) -> PathValue<'a> {
        self.get_from(document, 0)
    }

    /// Returns the value of `"$$variable.path"` for any value of the variable.
    pub fn get_in<'a>(&self, value: ValueRef<'a>) -> PathValue<'a> {
        match value {
            ValueRef::Document(document) => self.get(document),
            ValueRef::Array(array) => PathValue::Owned(self.map_array(array, 0)),
            _ => PathValue::Ref(ValueRef::Missing),
        }
    }

    fn get_from<'a>(&self, document: DocRef<'a>, from: usize) -> PathValue<'a> {
        let step = self.descend(document, from);
        match step.value {
            ValueRef::Array(array) if step.consumed < self.len() => {
                PathValue::Owned(self.map_array(array, step.consumed))
            }
            value => PathValue::Ref(value),
        }
    }

    fn map_array(&self, array: ArrayRef<'_>, from: usize) -> Value {
        let mut out = DocumentBuilder::new();
        let mut count = 0;
        for element in array.iter() {
            let ValueRef::Document(document) = element else {
                continue;
            };
            let found = self.get_from(document, from);
            if !found.as_ref().is_missing() {
                out.append_indexed(count, found.as_ref());
                count += 1;
            }
        }
        Value::Array(Array::from_document(out.finish()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, array, doc, order};

    fn check(document: Document, path: &str, expected: impl Into<Value>) {
        let path = FieldPath::parse(path).unwrap();
        let found = path.get(document.as_ref());
        let expected = expected.into();
        assert!(
            found.as_ref().is_missing() == expected.is_missing()
                && order::equal(found.as_ref(), expected.as_ref()),
            "{path}: {found:?} is not {expected:?}"
        );
    }

    #[test]
    fn walks() {
        check(doc! { "a": doc! { "b": 1 } }, "a.b", 1);
        check(doc! { "a": 1 }, "a.b", Value::Missing);
        check(doc! { "a": array![1] }, "a", array![1]);
        check(doc! { "a": Value::Null }, "a.b", Value::Missing);
    }

    #[test]
    fn arrays_are_mapped() {
        let document = doc! { "a": array![
            doc! { "b": 1 }, doc! { "b": array![2, 3] }, 7, doc! { "c": 1 }, array![doc! { "b": 9 }],
        ] };
        check(document, "a.b", array![1, array![2, 3]]);
        check(doc! { "a": array![] }, "a.b", array![]);
        check(
            doc! { "a": array![doc! { "b": array![doc! { "c": 1 }] }, doc! { "b": doc! { "c": 2 } }] },
            "a.b.c",
            array![array![1], 2],
        );
    }

    #[test]
    fn numbers_are_names() {
        check(doc! { "a": array![5] }, "a.0", array![]);
        check(doc! { "a": array![doc! { "0": 5 }] }, "a.0", array![5]);
        check(doc! { "a": doc! { "0": 5 } }, "a.0", 5);
    }
}
