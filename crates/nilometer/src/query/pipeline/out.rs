//! `$out`: replaces the contents of a collection by its input.

use std::sync::Arc;

use nilometer_bson::{DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{OutputTarget, PipelineContext, PipelineStage, Stage};
use crate::catalog::{BUCKETS_PREFIX, TimeseriesOptions};
use crate::error::{Error, Result, location};

/// A parsed `$out`.
#[derive(Clone, Debug)]
pub struct OutStage {
    /// The collection to write.
    pub target: OutputTarget,
    /// The options for a new time-series collection.
    pub timeseries: Option<TimeseriesOptions>,
    source: Value,
}

impl PipelineStage for OutStage {
    fn name(&self) -> &'static str {
        "$out"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, _: &Needs) -> Needs {
        Needs::All
    }

    fn writes(&self) -> bool {
        true
    }
}

/// Parses `$out`.
pub(super) fn parse(
    _: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let mut timeseries = None;
    let target = match value {
        ValueRef::String(collection) => OutputTarget::of_name(collection),
        ValueRef::Document(spec) => {
            if let Some(options) = parse_target(name, spec.get("timeseries"))? {
                timeseries = Some(TimeseriesOptions::parse(options)?);
            }
            let target = OutputTarget::parse(name, spec, &["timeseries"])?;
            if !target.has_database() {
                return Err(Error::missing_field("$out.db"));
            }
            target
        }
        other => {
            return Err(Error::location(
                location::OUT_TARGET,
                format!(
                    "$out only supports a string or object argument, but found {}",
                    other.type_name()
                ),
            ));
        }
    };
    let collection = target.collection();
    if collection.starts_with("system.") {
        let buckets = collection.starts_with(BUCKETS_PREFIX);
        let what = if buckets {
            "the buckets of a time series"
        } else {
            "special collection"
        };
        return Err(Error::location(
            location::OUT_TO_SPECIAL_COLLECTION,
            format!("Can't $out to {what}: {collection}"),
        ));
    }
    out.push(Stage::Out(Arc::new(OutStage {
        target,
        timeseries,
        source: value.to_value(),
    })));
    Ok(())
}

fn parse_target<'a>(name: &str, value: ValueRef<'a>) -> Result<Option<nilometer_bson::DocRef<'a>>> {
    match value {
        ValueRef::Missing => Ok(None),
        ValueRef::Document(options) => Ok(Some(options)),
        other => {
            let path = format_args!("{name}.timeseries");
            Err(Error::wrong_field_type(path, other, "object"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use super::*;
    use nilometer_bson::{array, doc};

    #[test]
    fn arguments_are_checked() {
        let out = |spec: Value| code(array![doc! {"$out": spec}]);
        assert_eq!(out("c".into()), 0);
        assert_eq!(out(doc! {"db": "d", "coll": "c"}.into()), 0);
        assert_eq!(out(1.into()), location::OUT_TARGET);
        assert_eq!(out(doc! {"db": "d"}.into()), 40_414);
        assert_eq!(out(doc! {"coll": "c"}.into()), 40_414);
        assert_eq!(out(doc! {"db": "d", "coll": 1}.into()), 14);
        assert_eq!(out(doc! {"db": "d", "coll": "c", "x": 1}.into()), 40_415);
        assert_eq!(
            out("system.views".into()),
            location::OUT_TO_SPECIAL_COLLECTION
        );
        assert_eq!(
            out("system.buckets.x".into()),
            location::OUT_TO_SPECIAL_COLLECTION
        );
        let series = |options: nilometer_bson::Document| {
            out(doc! {"db": "d", "coll": "c", "timeseries": options}.into())
        };
        assert_eq!(series(doc! {"timeField": "t"}), 0);
        assert_eq!(series(doc! {"timeField": "t", "x": 1}), 40_415);
    }

    #[test]
    fn it_stands_last_in_the_pipeline_of_a_command() {
        let last = doc! {"$out": "c"};
        let limit = doc! {"$limit": 1};
        assert_eq!(code(array![limit.clone(), last.clone()]), 0);
        assert_eq!(code(array![last.clone(), limit]), 40_601);
        let inner = array![last];
        let facet = doc! {"$facet": doc! {"a": inner.clone()}};
        assert_eq!(code(array![facet]), 40_600);
        let lookup = doc! {"from": "c", "pipeline": inner.clone(), "as": "x"};
        assert_eq!(code(array![doc! {"$lookup": lookup}]), 51_047);
        let union = doc! {"coll": "c", "pipeline": inner};
        assert_eq!(code(array![doc! {"$unionWith": union}]), 31_441);
    }
}
