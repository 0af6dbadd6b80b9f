//! `$unwind`: one document for each element of an array.
//!
//! | value at the path | without | with `preserveNullAndEmptyArrays` |
//! |---|---|---|
//! | array | a document per element, position as long | the same |
//! | `[]` | dropped | kept, without the field, position null |
//! | null, missing | dropped | kept unchanged, position null |
//! | anything else | kept unchanged, position null | the same |
//!
//! The path leads through objects only: an array along it counts as missing.

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use crate::error::Result;
use crate::query::batch::Batch;
use crate::query::exec::{
    BATCH_BYTES_MAX, BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, next_filled,
};
use crate::query::pipeline::UnwindStage;

/// Unwinds arrays.
pub struct Unwind {
    input: BoxOperator,
    stage: UnwindStage,
    /// Documents still to unwind.
    waiting: std::vec::IntoIter<Document>,
    /// The rest of a large document.
    large: Option<Large>,
}

/// Larger documents are unwound a few elements at a time: each output document repeats the rest of its input document.
const AT_ONCE_BYTES_MAX: usize = 4 << 10;

/// A large document, and the remaining elements of its array.
struct Large {
    document: Document,
    elements: std::iter::Enumerate<std::vec::IntoIter<Value>>,
}

impl Unwind {
    /// Unwinds arrays in the documents of `input`.
    pub fn new(input: BoxOperator, stage: UnwindStage) -> Self {
        Self {
            input,
            stage,
            waiting: Vec::new().into_iter(),
            large: None,
        }
    }

    fn unwind(&self, document: &Document, out: &mut Vec<Document>) {
        let value = value_at(document.as_ref(), &self.stage.path);
        let keep = match value {
            ValueRef::Array(array) => {
                let mut any = false;
                for (at, element) in array.iter().enumerate() {
                    any = true;
                    out.push(output(
                        &self.stage,
                        document,
                        Some(element),
                        index_value(at),
                    ));
                }
                if any {
                    return;
                }
                self.stage
                    .preserve_empty
                    .then(|| output(&self.stage, document, Some(ValueRef::Missing), Value::Null))
            }
            value if value.is_nullish() => self
                .stage
                .preserve_empty
                .then(|| output(&self.stage, document, None, Value::Null)),
            _ => Some(output(&self.stage, document, None, Value::Null)),
        };
        out.extend(keep);
    }

    /// Begins to unwind a large document, if its array has elements.
    fn begin_large(&mut self, document: Document, out: &mut Vec<Document>) {
        let elements: Vec<Value> = match value_at(document.as_ref(), &self.stage.path) {
            ValueRef::Array(array) => array.iter().map(|element| element.to_value()).collect(),
            _ => Vec::new(),
        };
        if elements.is_empty() {
            return self.unwind(&document, out);
        }
        self.large = Some(Large {
            document,
            elements: elements.into_iter().enumerate(),
        });
    }
}

fn index_value(at: usize) -> Value {
    Value::Int64(i64::try_from(at).unwrap_or(i64::MAX))
}

/// Returns the row of an element: the document with `element` in place of the array, and with the position.
pub(crate) fn unwound(
    stage: &UnwindStage,
    document: &Document,
    element: ValueRef<'_>,
    index: Value,
) -> Document {
    output(stage, document, Some(element), index)
}

/// Returns the document with `element` at the path (`None` leaves the path unchanged) and with the position.
fn output(
    stage: &UnwindStage,
    document: &Document,
    element: Option<ValueRef<'_>>,
    index: Value,
) -> Document {
    let mut result = match element {
        Some(element) => with_value_at(document.as_ref(), &stage.path, element),
        None => document.clone(),
    };
    if let Some(path) = &stage.index_path {
        result = with_value_at(result.as_ref(), path, index.as_ref());
    }
    result
}

impl Operator for Unwind {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let mut out = Vec::new();
        let mut bytes = 0;
        while out.len() < ROWS_PER_BATCH && bytes < BATCH_BYTES_MAX {
            if let Some(large) = &mut self.large {
                let Some((at, element)) = large.elements.next() else {
                    self.large = None;
                    continue;
                };
                let (document, element) = (&large.document, Some(element.as_ref()));
                let made = output(&self.stage, document, element, index_value(at));
                bytes += made.as_bytes().len();
                out.push(made);
                continue;
            }
            match self.waiting.next() {
                Some(document) if document.as_bytes().len() > AT_ONCE_BYTES_MAX => {
                    self.begin_large(document, &mut out);
                }
                Some(document) => self.unwind(&document, &mut out),
                None => match next_filled(&mut self.input, cx)? {
                    Some(batch) => self.waiting = batch.into_rows()?.into_iter(),
                    None => break,
                },
            }
        }
        Ok((!out.is_empty()).then_some(Batch::Rows(out)))
    }

    fn is_exhausted(&self) -> bool {
        self.large.is_none() && self.waiting.len() == 0 && self.input.is_exhausted()
    }
}

/// Returns the value at a path through objects.
pub(crate) fn value_at<'a>(document: DocRef<'a>, path: &FieldPath) -> ValueRef<'a> {
    let mut value = ValueRef::Document(document);
    for name in path.names() {
        value = match value {
            ValueRef::Document(document) => document.get(name),
            _ => return ValueRef::Missing,
        };
    }
    value
}

/// Returns the document with `value` at a path: in place of the existing value, else at the end. Objects along the path are
/// created, and replace values that are not objects. A missing value removes the field.
pub(crate) fn with_value_at(
    document: DocRef<'_>,
    path: &FieldPath,
    value: ValueRef<'_>,
) -> Document {
    let mut out = DocumentBuilder::with_capacity(document.as_bytes().len() + 32);
    let names: Vec<&str> = path.names().collect();
    write_with_value(&mut out, document, &names, value);
    out.finish()
}

fn write_with_value(
    out: &mut DocumentBuilder,
    document: DocRef<'_>,
    names: &[&str],
    value: ValueRef<'_>,
) {
    let Some((first, rest)) = names.split_first() else {
        return;
    };
    let mut written = false;
    let write = |out: &mut DocumentBuilder, old: ValueRef<'_>| {
        if rest.is_empty() {
            out.append_ref(first, value);
        } else {
            let inner = old.as_document();
            if inner.is_none() && value.is_missing() {
                out.append_ref(first, old);
            } else {
                out.begin_document(first);
                write_with_value(out, inner.unwrap_or(DocRef::EMPTY), rest, value);
                out.end();
            }
        }
    };
    for element in document {
        if !written && element.name() == *first {
            write(out, element.value());
            written = true;
        } else {
            out.append_element(element);
        }
    }
    if !written {
        write(out, ValueRef::Missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{array, doc};

    fn unwind(spec: Value, documents: Vec<Document>) -> Vec<Document> {
        run_stages(array![doc! {"$unwind": spec}], documents).unwrap()
    }

    #[test]
    fn elements_take_the_place_of_the_array() {
        let rows = unwind(
            "$a.b".into(),
            vec![
                doc! {"x": 1, "a": doc! {"b": array![1, 2], "c": 3}, "y": 2},
                doc! {"a": array![doc! {"b": array![1]}]},
                doc! {"a": doc! {"b": 7}},
                doc! {"a": doc! {"b": Value::Null}},
                doc! {"a": doc! {"b": array![]}},
                doc! {},
            ],
        );
        assert_eq!(
            rows,
            [
                doc! {"x": 1, "a": doc! {"b": 1, "c": 3}, "y": 2},
                doc! {"x": 1, "a": doc! {"b": 2, "c": 3}, "y": 2},
                doc! {"a": doc! {"b": 7}},
            ]
        );
    }

    #[test]
    fn kept_documents_have_null_positions() {
        let spec =
            doc! {"path": "$a", "includeArrayIndex": "i.j", "preserveNullAndEmptyArrays": true};
        let rows = unwind(
            spec.into(),
            vec![
                doc! {"a": array!["x"]},
                doc! {"a": array![]},
                doc! {"a": Value::Null},
                doc! {"a": 5},
                doc! {},
            ],
        );
        let null = doc! {"j": Value::Null};
        assert_eq!(
            rows,
            [
                doc! {"a": "x", "i": doc! {"j": 0i64}},
                doc! {"i": null.clone()},
                doc! {"a": Value::Null, "i": null.clone()},
                doc! {"a": 5, "i": null.clone()},
                doc! {"i": null},
            ]
        );
    }
}
