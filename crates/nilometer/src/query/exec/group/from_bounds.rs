//! `$group` over whole buckets by their headers: no column is decompressed.
//!
//! The planner decides whether a stage can be computed this way ([`BoundsAggregate`]); each bucket is checked here. A bucket
//! is grouped by its columns instead if it is partly filtered, if it spans two bins, or if its bounds are not values of
//! measurements: null (which `$min` ignores), objects and arrays (which are bounded member by member), and bounds of two types.
//!
//! Of several equal values of different types, a bound may differ from the first value in row order.

use nilometer_bson::order::canonical_type;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

use super::Table;
use super::vectorized::whole_bin;
use crate::error::Result;
use crate::eval::Collation;
use crate::query::batch::MeasurementBlock;
use crate::query::exec::ExecContext;
use crate::query::pipeline::GroupStage;
use crate::query::planner::physical::{BoundsAggregate, BoundsInput, KeyPart};
use crate::query::source::ColumnName;

/// Adds a block to `table`. Returns false and adds nothing if its header does not suffice.
pub(crate) fn add(
    aggregate: &BoundsAggregate,
    stage: &GroupStage,
    block: &MeasurementBlock,
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<bool> {
    if !block.is_whole() {
        return Ok(false);
    }
    let mut values = Vec::with_capacity(aggregate.inputs.len());
    for input in &aggregate.inputs {
        values.push(match input {
            BoundsInput::Count | BoundsInput::Constant(_) => ValueRef::Missing,
            BoundsInput::Min(name) | BoundsInput::Max(name) => {
                let Some((min, max)) = bounds(aggregate, name, block, cx) else {
                    return Ok(false);
                };
                if matches!(input, BoundsInput::Min(_)) {
                    min
                } else {
                    max
                }
            }
        });
    }
    let constants = block.constant_document();
    let Some(key) = key(aggregate, block, &constants, cx)? else {
        return Ok(false);
    };
    let group = table.number_of(table.normal_key(key), cx)?;
    let count = u64::from(block.bucket.count());
    let fields = stage.fields.iter().zip(&aggregate.inputs).zip(values);
    for (at, (((_, spec), input), bound)) in fields.enumerate() {
        let constant;
        let (value, times) = match input {
            BoundsInput::Count => (ValueRef::Missing, count),
            BoundsInput::Constant(expression) => {
                constant = expression.evaluate(constants.as_ref(), &cx.eval)?;
                (constant.as_ref(), count)
            }
            BoundsInput::Min(_) | BoundsInput::Max(_) => (bound, 1),
        };
        table.change(group, at, spec, |state| {
            spec.add_repeated(state, value, times)
        })?;
    }
    Ok(true)
}

/// Adds the group of all measurements of a collection to `table`, given their number: key and arguments are constants.
pub(crate) fn add_counted(
    aggregate: &BoundsAggregate,
    stage: &GroupStage,
    count: u64,
    table: &mut Table,
    cx: &ExecContext<'_>,
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let constants = Document::new();
    let mut values = Vec::with_capacity(aggregate.parts.len());
    for part in &aggregate.parts {
        values.push(match part {
            KeyPart::Constant(expression) => expression.evaluate(constants.as_ref(), &cx.eval)?,
            KeyPart::Bin(_) => Value::Null,
        });
    }
    let Some(key) = key_of(aggregate, values) else {
        return Ok(());
    };
    let group = table.number_of(table.normal_key(key), cx)?;
    for (at, ((_, spec), input)) in stage.fields.iter().zip(&aggregate.inputs).enumerate() {
        let value = match input {
            BoundsInput::Constant(expression) => {
                expression.evaluate(constants.as_ref(), &cx.eval)?
            }
            _ => Value::Missing,
        };
        table.change(group, at, spec, |state| {
            spec.add_repeated(state, value.as_ref(), count)
        })?;
    }
    Ok(())
}

/// Returns the key with these parts.
fn key_of(aggregate: &BoundsAggregate, mut parts: Vec<Value>) -> Option<Value> {
    let Some(names) = &aggregate.names else {
        return parts.pop();
    };
    let mut out = DocumentBuilder::new();
    for (name, value) in names.iter().zip(parts) {
        out.append(name, value);
    }
    Some(out.finish().into())
}

/// Returns the key of a block; `None` if the block spans two bins.
fn key(
    aggregate: &BoundsAggregate,
    block: &MeasurementBlock,
    constants: &Document,
    cx: &ExecContext<'_>,
) -> Result<Option<Value>> {
    let mut values = Vec::with_capacity(aggregate.parts.len());
    for part in &aggregate.parts {
        values.push(match part {
            KeyPart::Constant(expression) => expression.evaluate(constants.as_ref(), &cx.eval)?,
            KeyPart::Bin(bins) => match whole_bin(bins, block)? {
                Some(start) => Value::DateTime(start),
                None => return Ok(None),
            },
        });
    }
    Ok(key_of(aggregate, values))
}

/// Returns the least and greatest value of a field, missing if no measurement has it; `None` if the header does not suffice.
pub(super) fn bounds<'b>(
    aggregate: &BoundsAggregate,
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
        && (!is_text || aggregate.collation == Collation::from(cx.settings.plan.collator.clone()));
    tells.then_some((min, max))
}
