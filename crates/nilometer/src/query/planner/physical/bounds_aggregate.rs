//! A `$group` computed from the headers of whole buckets (zone maps): when it applies, and how explain shows it.
//!
//! ```text
//! {$max: "$v"}                          control.max.v
//! {$sum: 1}                             the number of measurements
//! {$dateTrunc: {date: "$t", …}} in key  the bin that control.min.t and control.max.t both lie in
//! ```
//!
//! Whether a single bucket's header is enough is decided when the bucket is read.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

use super::measurement::{TimeBins, is_constant, time_bins};
use crate::eval::Collation;
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::expression::Expression;
use crate::query::batch::MeasurementShape;
use crate::query::pipeline::GroupStage;
use crate::query::source::ColumnName;

/// A `$group` that is computed from the headers of buckets.
#[derive(Clone, Debug)]
pub struct BoundsAggregate {
    /// The parts of the key.
    pub(crate) parts: Vec<KeyPart>,
    /// Names of the parts if the key is an object.
    pub(crate) names: Option<Vec<Arc<str>>>,
    /// The input of each accumulator.
    pub(crate) inputs: Vec<BoundsInput>,
    time_field: Arc<str>,
    meta_field: Option<Arc<str>>,
    /// The collation of string bounds.
    pub(crate) collation: Collation,
}

/// A part of the key.
#[derive(Clone, Debug)]
pub(crate) enum KeyPart {
    /// Constant within a bucket.
    Constant(Expression),
    /// The time bin that holds the whole bucket.
    Bin(TimeBins),
}

/// The source of an accumulator's values.
#[derive(Clone, Debug)]
pub(crate) enum BoundsInput {
    /// The number of measurements.
    Count,
    /// Constant within a bucket.
    Constant(Expression),
    /// The least value of a field.
    Min(Arc<ColumnName>),
    /// The greatest value of a field.
    Max(Arc<ColumnName>),
}

impl BoundsAggregate {
    /// Returns the aggregate for `stage` over buckets whose measurements have `shape` and whose string bounds use `collation`;
    /// `None` if it needs columns.
    pub(crate) fn of(
        stage: &GroupStage,
        shape: &MeasurementShape,
        collation: Collation,
    ) -> Option<Self> {
        let (names, expressions): (Option<Vec<Arc<str>>>, Vec<&Expression>) = match &stage.key {
            Expression::Object(members) => (
                Some(members.iter().map(|(name, _)| Arc::clone(name)).collect()),
                members.iter().map(|(_, part)| part).collect(),
            ),
            single => (None, vec![single]),
        };
        let parts = expressions.into_iter().map(|expression| {
            if is_constant(expression, shape) {
                return Some(KeyPart::Constant(expression.clone()));
            }
            time_bins(expression, shape).map(KeyPart::Bin)
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

    /// Returns the argument of the stage in terms of bucket documents, for explain.
    pub(crate) fn shown(&self, source: &Document) -> Document {
        let mut out = DocumentBuilder::new();
        let key = self.renamed(source.get("_id"));
        out.append("_id", key);
        let fields = source.iter().filter(|field| field.name() != "_id");
        for (field, input) in fields.zip(&self.inputs) {
            let bound = |side: &str, path: &str| format!("$control.{side}.{path}");
            let (operator, argument) = match input {
                BoundsInput::Count => ("$sum", Value::from("$control.count")),
                BoundsInput::Min(name) => ("$min", bound("min", name.as_str()).into()),
                BoundsInput::Max(name) => ("$max", bound("max", name.as_str()).into()),
                BoundsInput::Constant(expression) => {
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

    /// Rewrites an expression to the names of metadata and time in bucket documents.
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

fn input(spec: &AccumulatorSpec, shape: &MeasurementShape) -> Option<BoundsInput> {
    use AccumulatorKind as K;
    if spec.kind() == K::Count {
        return Some(BoundsInput::Count);
    }
    let argument = spec.argument();
    let is_bound = matches!(spec.kind(), K::Min | K::Max);
    let repeats = matches!(
        spec.kind(),
        K::Sum | K::Avg | K::First | K::Last | K::AddToSet
    );
    if (is_bound || repeats) && is_constant(argument, shape) {
        return Some(BoundsInput::Constant(argument.clone()));
    }
    let path = argument.as_field_path().filter(|path| path.len() == 1)?;
    let name = || Arc::new(ColumnName::new(path.as_str()));
    match spec.kind() {
        // The start of a bucket is rounded.
        K::Min if path.as_str() != &*shape.time_field => Some(BoundsInput::Min(name())),
        K::Max => Some(BoundsInput::Max(name())),
        _ => None,
    }
}
