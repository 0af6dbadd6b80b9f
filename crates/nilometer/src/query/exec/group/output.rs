//! Builds the output rows of `$group`: the key and the results of its accumulators.
//!
//! As a rule each output field has one accumulator. Where several accumulators keep the same row of each group, one of them
//! keeps an object with the fields of all, and the row is built from its fields ([`ShownField`]).

use std::cell::Cell;
use std::sync::Arc;

use nilometer_bson::{ArrayRef, DocRef, Document, DocumentBuilder, Value, ValueRef};

use crate::error::{Error, ErrorCode, Result};
use crate::eval::accumulator::{AccumulatorSpec, AccumulatorState};
use crate::eval::{EvalContext, memory_bytes};
use crate::query::exec::memory::MemoryGauge;
use crate::query::pipeline::ShownField;
use crate::query::planner::physical::{GroupSide, PhysicalGroup};

/// Bytes reserved for a field of a group's document, in addition to its value.
pub(crate) const RESULT_BYTES: usize = 64;

/// The largest size of a row that is reserved before the row is known.
const ROW_BYTES_MAX: usize = 4096;

/// Builds output rows from groups.
pub(crate) struct RowMaker {
    fields: Arc<[(Arc<str>, AccumulatorSpec)]>,
    shown: Option<Arc<[ShownField]>>,
    /// Rows hold states, not results.
    returns_states: bool,
    /// The size of the row made last, as a guess for the next.
    row_bytes: Cell<usize>,
}

/// Field name of the key in a group with states.
pub(crate) const SAVED_KEY: &str = "k";
/// Field name of the states in a group with states.
pub(crate) const SAVED_STATES: &str = "s";

/// Returns a group as a document with the states of its accumulators, as saved by [`AccumulatorSpec::save`].
pub(crate) fn saved_group(key: Value, saved: Vec<Value>) -> Document {
    let bytes: usize = saved.iter().map(memory_bytes).sum();
    let room = memory_bytes(&key) + bytes + RESULT_BYTES * (1 + saved.len());
    let mut out = DocumentBuilder::with_capacity(room);
    out.append(SAVED_KEY, key);
    out.begin_array(SAVED_STATES);
    for (at, value) in saved.iter().enumerate() {
        out.append_indexed(at, value.as_ref());
    }
    out.end();
    out.finish()
}

/// Returns key and states of such a document.
pub(super) fn group_of(row: DocRef<'_>) -> Result<(ValueRef<'_>, ArrayRef<'_>)> {
    match (row.get(SAVED_KEY), row.get(SAVED_STATES).as_array()) {
        (ValueRef::Missing, _) | (_, None) => Err(not_a_group()),
        (key, Some(states)) => Ok((key, states)),
    }
}

/// Returns the error for a document that holds no group with the states of all accumulators.
pub(super) fn not_a_group() -> Error {
    Error::new(
        ErrorCode::InternalError,
        "a group without a key, or without the states of all accumulators",
    )
}

impl RowMaker {
    /// Creates a row maker for the output of `plan`.
    pub(crate) fn of(plan: &PhysicalGroup) -> Self {
        Self {
            fields: Arc::clone(&plan.stage.fields),
            shown: plan.stage.shown.clone(),
            row_bytes: Cell::default(),
            returns_states: matches!(plan.side, GroupSide::Part | GroupSide::Combine),
        }
    }

    /// Returns the accumulators.
    pub(crate) fn fields(&self) -> &[(Arc<str>, AccumulatorSpec)] {
        &self.fields
    }

    /// True if rows hold states, not results.
    pub(super) fn returns_states(&self) -> bool {
        self.returns_states
    }

    /// True if a row is the key and the result of each accumulator.
    pub(super) fn is_plain(&self) -> bool {
        self.shown.is_none() && !self.returns_states
    }

    /// The same as [`RowMaker::row`] for such rows; `append_key` appends the key as `_id`.
    pub(super) fn plain_row(
        &self,
        append_key: impl FnOnce(&mut DocumentBuilder),
        states: impl Iterator<Item = AccumulatorState>,
        results: &mut MemoryGauge,
        eval: &EvalContext<'_>,
    ) -> Result<Document> {
        let mut out = DocumentBuilder::with_capacity(self.row_bytes.get());
        append_key(&mut out);
        for ((name, spec), state) in self.fields.iter().zip(states) {
            out.append(name, spec.finish(state, eval)?);
        }
        let row = out.finish();
        results.add(row.as_bytes().len())?;
        // Rows of one stage are mostly of one size.
        self.row_bytes.set(row.as_bytes().len().min(ROW_BYTES_MAX));
        Ok(row)
    }

    /// Builds the row of a group and counts its size in `results`. Takes one item of `states` per accumulator.
    pub(crate) fn row(
        &self,
        key: Value,
        states: impl Iterator<Item = AccumulatorState>,
        results: &mut MemoryGauge,
        eval: &EvalContext<'_>,
    ) -> Result<Document> {
        if self.returns_states {
            let states = self.fields.iter().zip(states);
            let saved = states.map(|((_, spec), state)| spec.save(state)).collect();
            let row = saved_group(key, saved);
            results.add(row.as_bytes().len())?;
            return Ok(row);
        }
        let Some(shown) = &self.shown else {
            let key = |out: &mut DocumentBuilder| {
                out.append("_id", key);
            };
            return self.plain_row(key, states, results, eval);
        };
        // Not `collect`, which does not know the number of results and grows its buffer.
        let mut values = Vec::with_capacity(self.fields.len());
        for ((_, spec), state) in self.fields.iter().zip(states) {
            values.push(spec.finish(state, eval)?);
        }
        let held: usize = values.iter().map(memory_bytes).sum();
        let room = memory_bytes(&key) + held + RESULT_BYTES * (1 + shown.len());
        results.add(room)?;
        let mut out = DocumentBuilder::with_capacity(room);
        out.append("_id", key);
        append_shown(&mut out, shown, &values);
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
    use nilometer_bson::doc;

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
