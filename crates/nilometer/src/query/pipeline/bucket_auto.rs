//! `$bucketAuto`: divides documents into a given number of ranges of about equal size.

use std::sync::Arc;

use nilometer_bson::number::Number;
use nilometer_bson::{DocumentBuilder, Value, ValueRef, doc};

use super::granularity::Granularity;
use super::group::parse_field;
use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage};
use crate::error::{Error, Result, location};
use crate::eval::accumulator::AccumulatorSpec;
use crate::eval::{Dependencies, Expression};

/// A parsed `$bucketAuto`.
#[derive(Clone, Debug)]
pub struct BucketAutoStage {
    /// The expression whose values are divided into ranges.
    pub group_by: Expression,
    /// Number of ranges.
    pub buckets: usize,
    /// Output fields besides `_id`.
    pub fields: Arc<[(Arc<str>, AccumulatorSpec)]>,
    /// The series that bounds are rounded to.
    pub granularity: Option<Granularity>,
    source: Value,
}

impl PipelineStage for BucketAutoStage {
    fn name(&self) -> &'static str {
        "$bucketAuto"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, _: &Needs) -> Needs {
        let mut dependencies = Dependencies::default();
        self.group_by.dependencies(&mut dependencies);
        for (_, field) in self.fields.iter() {
            field.dependencies(&mut dependencies);
        }
        Needs::of(&dependencies)
    }
}

/// Parses `$bucketAuto`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(spec) = value.as_document() else {
        return Err(Error::location(
            location::BUCKET_AUTO_NOT_OBJECT,
            format!(
                "The argument to $bucketAuto must be an object, but found type: {}.",
                value.type_name()
            ),
        ));
    };
    let mut options = Options::default();
    for element in spec {
        options.read(cx, element.name(), element.value())?;
    }
    let (Some(group_by), Some(buckets)) = (options.group_by, options.buckets) else {
        return Err(Error::location(
            location::BUCKET_AUTO_OPTION_MISSING,
            "$bucketAuto requires 'groupBy' and 'buckets' to be specified.",
        ));
    };
    let fields = match options.output {
        Some(fields) => fields,
        None => {
            let count = doc! {"$sum": 1};
            let count = ValueRef::Document(count.as_ref());
            vec![(
                Arc::from("count"),
                parse_field("count", count, &cx.expressions)?,
            )]
        }
    };
    out.push(Stage::BucketAuto(Arc::new(BucketAutoStage {
        group_by,
        buckets,
        fields: fields.into(),
        granularity: options.granularity,
        source: value.to_value(),
    })));
    Ok(())
}

#[derive(Default)]
struct Options {
    group_by: Option<Expression>,
    buckets: Option<usize>,
    output: Option<Vec<(Arc<str>, AccumulatorSpec)>>,
    granularity: Option<Granularity>,
}

impl Options {
    fn read(&mut self, cx: &PipelineContext, name: &str, value: ValueRef<'_>) -> Result<()> {
        match (name, value) {
            ("groupBy", value) => self.group_by = Some(parse_group_by(cx, value)?),
            ("buckets", value) => self.buckets = Some(parse_buckets(value)?),
            ("output", value) => self.output = Some(parse_output(cx, value)?),
            ("granularity", ValueRef::String(name)) => {
                self.granularity = Some(Granularity::parse(name)?);
            }
            ("granularity", other) => {
                return Err(Error::location(
                    location::BUCKET_AUTO_GRANULARITY_NOT_STRING,
                    format!(
                        "The $bucketAuto 'granularity' field must be a string, but found type: {}.",
                        other.type_name()
                    ),
                ));
            }
            (other, _) => {
                return Err(Error::location(
                    location::BUCKET_AUTO_OPTION_UNKNOWN,
                    format!("Unrecognized option to $bucketAuto: {other}."),
                ));
            }
        }
        Ok(())
    }
}

fn parse_group_by(cx: &PipelineContext, value: ValueRef<'_>) -> Result<Expression> {
    match value {
        ValueRef::Document(_) => Expression::parse(value, &cx.expressions),
        ValueRef::String(text) if text.starts_with('$') => {
            Expression::parse(value, &cx.expressions)
        }
        _ => Err(Error::location(
            location::BUCKET_AUTO_GROUP_BY,
            "The $bucketAuto 'groupBy' field must be defined as a $-prefixed path or an expression object",
        )),
    }
}

fn parse_buckets(value: ValueRef<'_>) -> Result<usize> {
    let Some(number) = Number::of(value) else {
        return Err(Error::location(
            location::BUCKET_AUTO_COUNT_NOT_NUMBER,
            format!(
                "The $bucketAuto 'buckets' field must be a numeric value, but found type: {}.",
                value.type_name()
            ),
        ));
    };
    let whole = number.to_i64_exact().and_then(|n| i32::try_from(n).ok());
    let Some(whole) = whole else {
        return Err(Error::location(
            location::BUCKET_AUTO_COUNT_NOT_32_BIT,
            "The $bucketAuto 'buckets' field must be representable as a 32-bit integer",
        ));
    };
    usize::try_from(whole)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| {
            Error::location(
                location::BUCKET_AUTO_COUNT_NOT_POSITIVE,
                format!(
                    "The $bucketAuto 'buckets' field must be greater than 0, but found: {whole}."
                ),
            )
        })
}

fn parse_output(
    cx: &PipelineContext,
    value: ValueRef<'_>,
) -> Result<Vec<(Arc<str>, AccumulatorSpec)>> {
    let Some(output) = value.as_document() else {
        return Err(Error::location(
            location::BUCKET_AUTO_OUTPUT_NOT_OBJECT,
            format!(
                "The $bucketAuto 'output' field must be an object, but found type: {}.",
                value.type_name()
            ),
        ));
    };
    let mut fields = Vec::new();
    for element in output {
        let field = parse_field(element.name(), element.value(), &cx.expressions)?;
        if field.n_depends_on_group() {
            return Err(Error::location(
                location::BUCKET_AUTO_OUTPUT_READS_KEY,
                "an accumulator of $bucketAuto may not depend on the key of its bucket",
            ));
        }
        fields.push((Arc::from(element.name()), field));
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use super::*;
    use nilometer_bson::array;

    #[test]
    fn bad_arguments_are_refused() {
        let auto = |fields: &[(&str, Value)]| {
            let mut spec = DocumentBuilder::new();
            for (name, value) in fields {
                spec.append(name, value.clone());
            }
            code(array![doc! {"$bucketAuto": spec.finish()}])
        };
        let by = ("groupBy", Value::from("$a"));
        let two = ("buckets", Value::from(2));
        assert_eq!(code(array![doc! {"$bucketAuto": 1}]), 40_240);
        assert_eq!(auto(std::slice::from_ref(&by)), 40_246);
        assert_eq!(auto(&[("groupBy", "a".into()), two.clone()]), 40_239);
        assert_eq!(auto(&[by.clone(), ("buckets", "2".into())]), 40_241);
        assert_eq!(auto(&[by.clone(), ("buckets", 1.5.into())]), 40_242);
        assert_eq!(auto(&[by.clone(), ("buckets", 0.into())]), 40_243);
        let with = |field| auto(&[by.clone(), two.clone(), field]);
        assert_eq!(with(("output", 1.into())), 40_244);
        assert_eq!(with(("granularity", 1.into())), 40_261);
        assert_eq!(with(("granularity", "R7".into())), 40_257);
        assert_eq!(with(("granularity", "R5".into())), 0);
        assert_eq!(with(("what", 1.into())), 40_245);
    }
}
