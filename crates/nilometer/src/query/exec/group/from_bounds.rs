//! Grouping whole buckets by what their headers tell: no column is decompressed.
//!
//! ```text
//! {$max: "$v"}                          control.max.v
//! {$sum: 1}                             the number of measurements
//! {$dateTrunc: {date: "$t", …}} in key  the bin that control.min.t and control.max.t both lie in
//! ```
//!
//! The rule `GroupFromBounds` decides whether a stage can be answered this way ([`FromHeaders::of`]); here
//! each bucket is asked whether it can. One that cannot is grouped by its columns as ever: part of it was
//! filtered out, it lies in two bins, or its bounds are no values of measurements, which is so of
//! null (which `$min` passes over), objects and arrays (which are bounded member by member), and of two types.
//!
//! Of several equal values of different types a bound may be another one than the first met.

use std::sync::Arc;

use nilometer_bson::order::canonical_type;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

use super::Table;
use super::vectorized::{is_constant, time_bins, whole_bin};
use crate::error::Result;
use crate::eval::Collation;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::expression::{DateBins, Expression};
use crate::query::batch::{MeasurementBlock, MeasurementShape};
use crate::query::exec::ExecContext;
use crate::query::pipeline::GroupStage;
use crate::query::source::ColumnName;

/// How a `$group` is answered from headers.
#[derive(Clone, Debug)]
pub struct FromHeaders {
    parts: Vec<Part>,
    /// Names of the parts if the key is an object.
    names: Option<Vec<Arc<str>>>,
    inputs: Vec<Input>,
    time_field: Arc<str>,
    meta_field: Option<Arc<str>>,
    /// How bounds compare strings.
    collation: Collation,
}

#[derive(Clone, Debug)]
enum Part {
    /// The same in the whole bucket.
    Constant(Expression),
    /// The bin its times lie in.
    Bin(DateBins),
}

#[derive(Clone, Debug)]
enum Input {
    /// Counts measurements.
    Count,
    /// The same in the whole bucket.
    Constant(Expression),
    /// The least value of a field.
    Min(Arc<ColumnName>),
    /// The greatest.
    Max(Arc<ColumnName>),
}

impl FromHeaders {
    /// The way to answer `stage` from headers of buckets whose measurements look like `shape`, and whose
    /// bounds compare strings by `collation`; none if there is none.
    pub fn of(stage: &GroupStage, shape: &MeasurementShape, collation: Collation) -> Option<Self> {
        let (names, expressions): (Option<Vec<Arc<str>>>, Vec<&Expression>) = match &stage.key {
            Expression::Object(members) => (
                Some(members.iter().map(|(name, _)| Arc::clone(name)).collect()),
                members.iter().map(|(_, part)| part).collect(),
            ),
            single => (None, vec![single]),
        };
        let parts = expressions.into_iter().map(|expression| {
            if is_constant(expression, shape) {
                return Some(Part::Constant(expression.clone()));
            }
            time_bins(expression, shape).map(|bins| Part::Bin(bins.clone()))
        });
        let inputs = stage.fields.iter().map(|(_, spec)| input(spec, shape));
        Some(Self {
            parts: parts.collect::<Option<_>>()?,
            names,
            inputs: inputs.collect::<Option<_>>()?,
            time_field: Arc::clone(&shape.time_field),
            meta_field: shape.meta_field.clone(),
            collation,
        })
    }

    /// Adds a block; false, and nothing added, if its header does not tell.
    pub(crate) fn add(
        &self,
        stage: &GroupStage,
        block: &MeasurementBlock,
        table: &mut Table,
        cx: &ExecContext<'_>,
    ) -> Result<bool> {
        if !block.is_whole() {
            return Ok(false);
        }
        let mut bounds = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            bounds.push(match input {
                Input::Count | Input::Constant(_) => ValueRef::Missing,
                Input::Min(name) | Input::Max(name) => {
                    let Some((min, max)) = self.bounds(name, block, cx) else {
                        return Ok(false);
                    };
                    if matches!(input, Input::Min(_)) {
                        min
                    } else {
                        max
                    }
                }
            });
        }
        let constants = block.constant_document();
        let Some(key) = self.key(block, &constants, cx)? else {
            return Ok(false);
        };
        let group = table.number_of(table.normal_key(key), cx)?;
        let count = u64::from(block.bucket.count());
        let fields = stage.fields.iter().zip(&self.inputs).zip(bounds);
        for (at, (((_, spec), input), bound)) in fields.enumerate() {
            let constant;
            let (value, times) = match input {
                Input::Count => (ValueRef::Missing, count),
                Input::Constant(expression) => {
                    constant = expression.evaluate(constants.as_ref(), &cx.eval)?;
                    (constant.as_ref(), count)
                }
                Input::Min(_) | Input::Max(_) => (bound, 1),
            };
            table.change(group, at, spec, |state| {
                spec.add_repeated(state, value, times)
            })?;
        }
        Ok(true)
    }

    fn key(
        &self,
        block: &MeasurementBlock,
        constants: &Document,
        cx: &ExecContext<'_>,
    ) -> Result<Option<Value>> {
        let mut values = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            values.push(match part {
                Part::Constant(expression) => expression.evaluate(constants.as_ref(), &cx.eval)?,
                Part::Bin(bins) => match whole_bin(bins, block)? {
                    Some(start) => Value::DateTime(start),
                    None => return Ok(None),
                },
            });
        }
        let Some(names) = &self.names else {
            return Ok(values.pop());
        };
        let mut out = DocumentBuilder::new();
        for (name, value) in names.iter().zip(values) {
            out.append(name, value);
        }
        Ok(Some(out.finish().into()))
    }

    /// Least and greatest of a field, missing if no measurement shows it; none if the header does not
    /// tell.
    fn bounds<'b>(
        &self,
        name: &ColumnName,
        block: &'b MeasurementBlock,
        cx: &ExecContext<'_>,
    ) -> Option<(ValueRef<'b>, ValueRef<'b>)> {
        if !block.shape.fields.contains(name.as_str()) {
            return Some((ValueRef::Missing, ValueRef::Missing));
        }
        let (min, max) = name.bounds_of(&*block.bucket);
        let is_value = |bound| {
            !matches!(
                bound,
                ValueRef::Null | ValueRef::Undefined | ValueRef::Document(_) | ValueRef::Array(_)
            )
        };
        let is_text = matches!(min, ValueRef::String(_) | ValueRef::Symbol(_));
        let tells = canonical_type(min) == canonical_type(max)
            && min.is_missing() == max.is_missing()
            && is_value(min)
            && is_value(max)
            && (!is_text || self.collation == Collation::from(cx.settings.collator.clone()));
        tells.then_some((min, max))
    }

    /// The argument of the stage in terms of bucket documents, as explain shows it.
    pub fn shown(&self, source: &Document) -> Document {
        let mut out = DocumentBuilder::new();
        let key = self.renamed(source.get("_id"));
        out.append("_id", key);
        let fields = source.iter().filter(|field| field.name() != "_id");
        for (field, input) in fields.zip(&self.inputs) {
            let bound = |side: &str, path: &str| format!("$control.{side}.{path}");
            let (operator, argument) = match input {
                Input::Count => ("$sum", Value::from("$control.count")),
                Input::Min(name) => ("$min", bound("min", name.as_str()).into()),
                Input::Max(name) => ("$max", bound("max", name.as_str()).into()),
                Input::Constant(expression) => {
                    let written = field.value().as_document();
                    let Some(written) = written.and_then(|spec| spec.iter().next()) else {
                        continue;
                    };
                    let is_count = written.name() == "$sum"
                        && matches!(expression, Expression::Constant(one) if one.as_ref().as_exact_i64() == Some(1));
                    if is_count {
                        ("$sum", "$control.count".into())
                    } else {
                        (written.name(), self.renamed(written.value()))
                    }
                }
            };
            let mut accumulator = DocumentBuilder::new();
            accumulator.append(operator, argument);
            out.append(field.name(), accumulator.finish());
        }
        out.finish()
    }

    /// An expression with the names bucket documents have for metadata and time.
    fn renamed(&self, written: ValueRef<'_>) -> Value {
        match written {
            ValueRef::String(text) => {
                let below = |name: &str| {
                    let rest = text.strip_prefix('$')?.strip_prefix(name)?;
                    (rest.is_empty() || rest.starts_with('.')).then_some(rest)
                };
                if let Some(rest) = self.meta_field.as_deref().and_then(below) {
                    return format!("$meta{rest}").into();
                }
                match below(&self.time_field) {
                    Some("") => format!("$control.min.{}", self.time_field).into(),
                    _ => text.into(),
                }
            }
            ValueRef::Document(fields) => {
                let mut out = DocumentBuilder::new();
                for field in fields {
                    let value = match field.name() {
                        "$literal" | "$const" => field.value().to_value(),
                        _ => self.renamed(field.value()),
                    };
                    out.append(field.name(), value);
                }
                out.finish().into()
            }
            ValueRef::Array(values) => {
                let values = values.iter().map(|value| self.renamed(value));
                values.collect::<Vec<_>>().into()
            }
            other => other.to_value(),
        }
    }
}

fn input(spec: &AccumulatorSpec, shape: &MeasurementShape) -> Option<Input> {
    use AccumulatorKind as K;
    if spec.kind() == K::Count {
        return Some(Input::Count);
    }
    let argument = spec.argument();
    let is_bound = matches!(spec.kind(), K::Min | K::Max);
    let repeats = matches!(
        spec.kind(),
        K::Sum | K::Avg | K::First | K::Last | K::AddToSet
    );
    if (is_bound || repeats) && is_constant(argument, shape) {
        return Some(Input::Constant(argument.clone()));
    }
    let path = argument.as_field_path().filter(|path| path.len() == 1)?;
    let name = || Arc::new(ColumnName::new(path.as_str()));
    match spec.kind() {
        // The start of a bucket is rounded.
        K::Min if path.as_str() != &*shape.time_field => Some(Input::Min(name())),
        K::Max => Some(Input::Max(name())),
        _ => None,
    }
}
