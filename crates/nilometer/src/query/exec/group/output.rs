//! Builds the output rows of `$group`: the key and the results of its accumulators.
//!
//! As a rule each output field has one accumulator. Where several accumulators keep the same row of each group, one of them
//! keeps an object with the fields of all, and the row is built from its fields ([`ShownField`]).

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value};

use crate::error::Result;
use crate::eval::accumulator::{AccumulatorSpec, AccumulatorState};
use crate::eval::{EvalContext, memory_bytes};
use crate::query::exec::memory::MemoryGauge;
use crate::query::pipeline::{GroupStage, ShownField};

/// Bytes reserved for a field of a group's document, in addition to its value.
pub(crate) const RESULT_BYTES: usize = 64;

/// Builds output rows from groups.
pub(crate) struct RowMaker {
    fields: Arc<[(Arc<str>, AccumulatorSpec)]>,
    shown: Option<Arc<[ShownField]>>,
}

impl RowMaker {
    /// Creates a row maker for the output fields of `stage`.
    pub(crate) fn of(stage: &GroupStage) -> Self {
        Self {
            fields: Arc::clone(&stage.fields),
            shown: stage.shown.clone(),
        }
    }

    /// Returns the accumulators.
    pub(crate) fn fields(&self) -> &[(Arc<str>, AccumulatorSpec)] {
        &self.fields
    }

    /// Builds the row of a group and counts its size in `results`. Takes one item of `states` per accumulator.
    pub(crate) fn row(
        &self,
        key: Value,
        states: impl Iterator<Item = AccumulatorState>,
        results: &mut MemoryGauge,
        eval: &EvalContext<'_>,
    ) -> Result<Document> {
        // Not `collect`, which does not know the number of results and grows its buffer.
        let mut values = Vec::with_capacity(self.fields.len());
        for ((_, spec), state) in self.fields.iter().zip(states) {
            values.push(spec.finish(state, eval)?);
        }
        let held: usize = values.iter().map(memory_bytes).sum();
        let count = self.shown.as_ref().map_or(self.fields.len(), |s| s.len());
        let room = memory_bytes(&key) + held + RESULT_BYTES * (1 + count);
        results.add(room)?;
        let mut out = DocumentBuilder::with_capacity(room);
        out.append("_id", key);
        match &self.shown {
            None => {
                for ((name, _), value) in self.fields.iter().zip(values) {
                    out.append(name, value);
                }
            }
            Some(shown) => append_shown(&mut out, shown, &values),
        }
        Ok(out.finish())
    }
}

fn append_shown(out: &mut DocumentBuilder, shown: &[ShownField], values: &[Value]) {
    // Common case: all fields are members of one object, in this order. If none is missing, the object's fields are copied as
    // they are.
    if let [only] = values
        && let Some(object) = only.as_ref().as_document()
        && shown.iter().all(|field| field.is_part)
        && object.iter().count() == shown.len()
    {
        out.append_all(object);
        return;
    }
    let parts = values.iter().map(|value| {
        let object = value.as_ref().as_document().unwrap_or(DocRef::EMPTY);
        object.iter()
    });
    let mut parts: Vec<_> = parts.collect();
    for field in shown {
        if !field.is_part {
            if let Some(value) = values.get(field.from) {
                out.append_ref(&field.name, value.as_ref());
            }
            continue;
        }
        let part = parts.get_mut(field.from);
        let part = part.and_then(|rest| rest.next_named(field.name.as_bytes()));
        match part {
            Some(part) => out.append_element(part),
            None => out.append(&field.name, Value::Null),
        };
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{ValueRef, doc};

    use super::*;

    #[test]
    fn parts_are_shown_in_their_place_and_null_if_they_are_missing() {
        let field = |name: &str, from, is_part| ShownField {
            name: name.into(),
            from,
            is_part,
        };
        let shown = [
            field("a", 0, true),
            field("n", 1, false),
            field("b", 0, true),
            field("z", 2, true),
            field("c", 0, true),
        ];
        let values = [
            Value::from(doc! { "a": 1, "c": doc! { "x": 2 } }),
            Value::from(7),
            Value::Null,
        ];
        let mut out = DocumentBuilder::new();
        append_shown(&mut out, &shown, &values);
        let row = out.finish();
        let names: Vec<_> = row.iter().map(|e| e.name()).collect();
        assert_eq!(names, ["a", "n", "b", "z", "c"]);
        assert!(matches!(row.get("b"), ValueRef::Null));
        assert!(matches!(row.get("z"), ValueRef::Null));
        let c = row.get("c").as_document().unwrap();
        assert_eq!(c.get("x").as_exact_i64(), Some(2));
    }

    #[test]
    fn an_object_that_has_all_parts_is_shown_as_it_is() {
        let shown = ["a", "b"].map(|name| ShownField {
            name: name.into(),
            from: 0,
            is_part: true,
        });
        let row = |object: Document| {
            let mut out = DocumentBuilder::new();
            out.append("_id", 1);
            append_shown(&mut out, &shown, &[object.into()]);
            out.finish()
        };
        let inner = doc! { "x": 2 };
        let whole = doc! { "a": "text", "b": inner.clone() };
        assert_eq!(row(whole), doc! { "_id": 1, "a": "text", "b": inner });
        let gap = doc! { "_id": 1, "a": Value::Null, "b": 2 };
        assert_eq!(row(doc! { "b": 2 }), gap);
    }
}
