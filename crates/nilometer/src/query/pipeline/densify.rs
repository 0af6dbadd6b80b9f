//! `$densify`: adds documents where an axis of numbers or dates has gaps.
//!
//! ```text
//! {field: "t", partitionByFields: ["m"], range: {step: 5, unit: "minute", bounds: "full" | "partition" | [lo, hi]}}
//! ```
//!
//! Parsing checks everything that does not depend on documents. The operator generates the values.

use std::cmp::Ordering;
use std::sync::Arc;

use nilometer_bson::number::Number;
use nilometer_bson::path::FieldPath;
use nilometer_bson::{ArrayRef, DocRef, DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage, object};
use crate::error::{Error, Result, location};
use crate::eval::date::Unit;
use crate::eval::expression::parse_path;

/// A point on the axis.
#[derive(Clone, Copy, Debug)]
pub enum AxisPoint {
    /// A number.
    Number(Number),
    /// Milliseconds since 1970.
    Date(i64),
}

impl AxisPoint {
    /// Compares two points of one axis. An axis never mixes dates and numbers.
    pub fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.compare(b),
            (Self::Date(a), Self::Date(b)) => a.cmp(&b),
            (Self::Number(_), Self::Date(_)) => Ordering::Less,
            (Self::Date(_), Self::Number(_)) => Ordering::Greater,
        }
    }

    /// Returns the point as a BSON value.
    pub fn to_ref(self) -> ValueRef<'static> {
        match self {
            Self::Number(number) => number.to_ref(),
            Self::Date(ms) => ValueRef::DateTime(ms),
        }
    }
}

/// A parsed `$densify`.
#[derive(Clone, Debug)]
pub struct DensifyStage {
    /// The field that holds the position on the axis.
    pub field: FieldPath,
    /// The fields whose values separate partitions.
    pub partition_by: Arc<[FieldPath]>,
    /// The distance between values.
    pub step: DensifyStep,
    /// The first and the last value.
    pub bounds: DensifyBounds,
    source: Value,
}

/// The distance between values.
#[derive(Clone, Copy, Debug)]
pub enum DensifyStep {
    /// A number.
    Number(Number),
    /// A count of time units, for dates.
    Date(i64, Unit),
}

/// The first and the last value.
#[derive(Clone, Copy, Debug)]
pub enum DensifyBounds {
    /// The least and the greatest value of all documents.
    Full,
    /// The least and the greatest value of each partition.
    Partition,
    /// From the first, inclusive, to the second, exclusive.
    Between(AxisPoint, AxisPoint),
}

impl PipelineStage for DensifyStage {
    fn name(&self) -> &'static str {
        "$densify"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, after: &Needs) -> Needs {
        let mut needs = after.clone();
        needs.add_path(self.field.as_str());
        for path in self.partition_by.iter() {
            needs.add_path(path.as_str());
        }
        needs
    }
}

/// Parses `$densify`.
pub(super) fn parse(
    _: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let spec = object(
        value,
        "The $densify stage specification must be an object, found",
    )?;
    let (mut field, mut range) = (None, None);
    let mut partition_by: Vec<FieldPath> = Vec::new();
    for element in spec {
        match (element.name(), element.value()) {
            ("field", ValueRef::String(path)) => field = Some(parse_path(path)?),
            ("partitionByFields", ValueRef::Array(paths)) => partition_by = parse_paths(paths)?,
            ("range", ValueRef::Document(given)) => range = Some(given),
            ("field", other) => {
                return Err(Error::wrong_field_type("$densify.field", other, "string"));
            }
            ("partitionByFields", other) => {
                return Err(Error::wrong_field_type(
                    "$densify.partitionByFields",
                    other,
                    "array",
                ));
            }
            ("range", other) => {
                return Err(Error::wrong_field_type("$densify.range", other, "object"));
            }
            (other, _) => return Err(Error::unknown_field(format_args!("$densify.{other}"))),
        }
    }
    let field = field.ok_or_else(|| Error::missing_field("$densify.field"))?;
    let range = range.ok_or_else(|| Error::missing_field("$densify.range"))?;
    for path in &partition_by {
        if path.starts_with(&field) {
            return Err(Error::location(
                location::DENSIFY_PARTITION_IN_FIELD,
                "$densify 'partitionByFields' may not contain 'field' or a field below it",
            ));
        }
        if field.starts_with(path) {
            return Err(Error::location(
                location::DENSIFY_FIELD_IN_PARTITION,
                "$densify 'partitionByFields' may not contain a prefix of 'field'",
            ));
        }
    }
    let (step, bounds) = parse_range(range, !partition_by.is_empty())?;
    out.push(Stage::Densify(Arc::new(DensifyStage {
        field,
        partition_by: partition_by.into(),
        step,
        bounds,
        source: value.to_value(),
    })));
    Ok(())
}

fn parse_paths(paths: ArrayRef<'_>) -> Result<Vec<FieldPath>> {
    paths
        .iter()
        .map(|path| match path {
            ValueRef::String(path) => parse_path(path),
            other => Err(Error::wrong_field_type(
                "$densify.partitionByFields.0",
                other,
                "string",
            )),
        })
        .collect()
}

fn parse_range(range: DocRef<'_>, has_partitions: bool) -> Result<(DensifyStep, DensifyBounds)> {
    let (mut step, mut unit, mut bounds) = (None, None, ValueRef::Missing);
    for element in range {
        let value = element.value();
        match element.name() {
            "step" => {
                let number = Number::of(value).ok_or_else(|| {
                    Error::wrong_field_type("$densify.range.step", value, "number")
                })?;
                step = Some(number);
            }
            "unit" => {
                let name = value.as_str().ok_or_else(|| {
                    Error::wrong_field_type("$densify.range.unit", value, "string")
                })?;
                let known = Unit::parse(name).ok_or_else(|| {
                    Error::failed_to_parse(format!("unknown time unit value: {name}"))
                })?;
                unit = Some(known);
            }
            "bounds" => bounds = value,
            other => return Err(Error::unknown_field(format_args!("$densify.range.{other}"))),
        }
    }
    let step = step.ok_or_else(|| Error::missing_field("$densify.range.step"))?;
    if bounds.is_missing() {
        return Err(Error::missing_field("$densify.range.bounds"));
    }
    if step.is_nan() || step.compare(Number::Int(0)).is_le() {
        return Err(Error::location(
            location::DENSIFY_STEP_NOT_POSITIVE,
            "the step parameter in a range statement must be a strictly positive numeric value",
        ));
    }
    let bounds = parse_bounds(bounds, step, unit, has_partitions)?;
    let step = match unit {
        None => DensifyStep::Number(step),
        Some(unit) => {
            let whole = step.to_i64_exact().ok_or_else(|| {
                Error::location(
                    location::DENSIFY_STEP_NOT_WHOLE,
                    "The step parameter in a range statement must be a whole number when densifying a date range",
                )
            })?;
            DensifyStep::Date(whole, unit)
        }
    };
    Ok((step, bounds))
}

fn parse_bounds(
    bounds: ValueRef<'_>,
    step: Number,
    unit: Option<Unit>,
    has_partitions: bool,
) -> Result<DensifyBounds> {
    let invalid = |text: &str| Error::location(location::DENSIFY_BOUNDS_INVALID, text);
    let pair = match bounds {
        ValueRef::String("full") => return Ok(DensifyBounds::Full),
        ValueRef::String("partition") if has_partitions => return Ok(DensifyBounds::Partition),
        ValueRef::String("partition") => {
            return Err(Error::location(
                location::DENSIFY_PARTITION_WITHOUT_FIELDS,
                "One may not specify the bounds as 'partition' without specifying a non-empty \
                 array of partitionByFields. You may have meant to specify 'full' bounds.",
            ));
        }
        ValueRef::String(_) => {
            return Err(invalid(
                "Bounds string must either be 'full' or 'partition'",
            ));
        }
        ValueRef::Array(pair) => pair,
        other => {
            return Err(Error::wrong_field_type(
                "$densify.range.bounds",
                other,
                "array",
            ));
        }
    };
    if pair.len() != 2 {
        return Err(Error::location(
            location::DENSIFY_BOUNDS_NOT_TWO,
            "A bounding array in a range statement must have exactly two elements",
        ));
    }
    let (low, high) = parse_pair(pair)?;
    match (low, unit) {
        (AxisPoint::Number(_), Some(_)) => {
            return Err(Error::location(
                location::DENSIFY_UNIT_WITH_NUMBERS,
                "Numeric bounds may not have unit parameter",
            ));
        }
        (AxisPoint::Date(_), None) => {
            return Err(Error::failed_to_parse(
                "Bounds that are dates require the unit parameter",
            ));
        }
        _ => {}
    }
    if low.compare(high).is_gt() {
        return Err(invalid("Bounds must be in ascending order"));
    }
    let is_decimal = |point| matches!(point, AxisPoint::Number(Number::Decimal(_)));
    if (is_decimal(low) || is_decimal(high)) && !matches!(step, Number::Decimal(_)) {
        return Err(Error::location(
            location::DENSIFY_BOUNDS_DECIMAL,
            "Decimal bounds require a decimal step",
        ));
    }
    Ok(DensifyBounds::Between(low, high))
}

/// Parses a pair of dates or a pair of numbers.
fn parse_pair(pair: ArrayRef<'_>) -> Result<(AxisPoint, AxisPoint)> {
    let invalid = |text: &str| Error::location(location::DENSIFY_BOUNDS_INVALID, text);
    Ok(match (pair.get(0), pair.get(1)) {
        (ValueRef::DateTime(low), ValueRef::DateTime(high)) => {
            (AxisPoint::Date(low), AxisPoint::Date(high))
        }
        (ValueRef::DateTime(_), _) => {
            return Err(invalid(
                "A bounding array must contain two dates or two numbers",
            ));
        }
        (low, high) => match (Number::of(low), Number::of(high)) {
            (Some(low), Some(high)) => (AxisPoint::Number(low), AxisPoint::Number(high)),
            (Some(_), None) => {
                return Err(Error::location(
                    location::DENSIFY_BOUNDS_MIXED,
                    "Numeric bounds must both be numeric",
                ));
            }
            _ => return Err(invalid("Bounds must be numbers or dates")),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

    fn densify(range: Document) -> i32 {
        code(array![
            doc! {"$densify": doc! {"field": "a", "range": range}}
        ])
    }

    #[test]
    fn ranges_are_checked() {
        let date = |ms: i64| Value::DateTime(ms);
        for (range, expected) in [
            (doc! {"step": 1, "bounds": "full"}, 0),
            (doc! {"step": 1, "bounds": array![0, 0]}, 0),
            (doc! {"bounds": "full"}, 40_414),
            (doc! {"step": 1}, 40_414),
            (doc! {"step": 1, "bounds": "full", "x": 1}, 40_415),
            (doc! {"step": "1", "bounds": "full"}, 14),
            (doc! {"step": 1, "bounds": 1}, 14),
            (doc! {"step": 1, "unit": 1, "bounds": "full"}, 14),
            (doc! {"step": 1, "unit": "eon", "bounds": "full"}, 9),
            (doc! {"step": 0, "bounds": "full"}, 5_733_401),
            (doc! {"step": -1.5, "bounds": "full"}, 5_733_401),
            (doc! {"step": f64::NAN, "bounds": "full"}, 5_733_401),
            (doc! {"step": 1, "bounds": "all"}, 5_733_402),
            (doc! {"step": 1, "bounds": array![2, 1]}, 5_733_402),
            (doc! {"step": 1, "bounds": array![date(0), 1]}, 5_733_402),
            (doc! {"step": 1, "bounds": array![1]}, 5_733_403),
            (doc! {"step": 1, "bounds": array![1, date(0)]}, 5_733_406),
            (doc! {"step": 1, "bounds": "partition"}, 5_733_408),
            (
                doc! {"step": 1, "unit": "day", "bounds": array![1, 2]},
                5_733_409,
            ),
            (doc! {"step": 1, "bounds": array![date(0), date(1)]}, 9),
            (
                doc! {"step": 1.5, "unit": "day", "bounds": "full"},
                6_586_400,
            ),
        ] {
            assert_eq!(densify(range.clone()), expected, "{range:?}");
        }
    }

    #[test]
    fn fields_are_checked() {
        let with = |name: &str, value: Value| {
            let mut spec = DocumentBuilder::new();
            if name != "field" {
                spec.append("field", "a.b");
            }
            spec.append("range", doc! {"step": 1, "bounds": "full"});
            spec.append(name, value);
            code(array![doc! {"$densify": spec.finish()}])
        };
        assert_eq!(with("field", "a".into()), 0);
        assert_eq!(with("field", "$a".into()), 16_410);
        assert_eq!(with("field", 1.into()), 14);
        assert_eq!(with("other", 1.into()), 40_415);
        assert_eq!(with("partitionByFields", "c".into()), 14);
        assert_eq!(with("partitionByFields", array![1]), 14);
        assert_eq!(with("partitionByFields", array!["$c"]), 16_410);
        assert_eq!(with("partitionByFields", array!["a.b"]), 8_993_000);
        assert_eq!(with("partitionByFields", array!["a.b.c"]), 8_993_000);
        assert_eq!(with("partitionByFields", array!["a"]), 9_554_500);
        assert_eq!(with("partitionByFields", array!["a.c", "d"]), 0);
        assert_eq!(code(array![doc! {"$densify": 1}]), 9);
        assert_eq!(code(array![doc! {"$densify": doc! {}}]), 40_414);
    }
}
