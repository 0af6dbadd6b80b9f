//! Resolution of `$geoNear`, or of the `$near` of a `find`, once the source is known.
//!
//! | source | field | condition |
//! |---|---|---|
//! | ordinary collection | `key`, else the only geographic index | an index on it with the same metric |
//! | time series, `key` in the metadata | `key` | an index on it |
//! | time series, any other `key` | `key` | none; no `query`, no `includeLocs` |
//! | no source | any | |
//! | several partitions | | each settles the stage; what they return is merged by distance |
//!
//! MongoDB answers a `$near` from its index alone: without an index it fails, so clients see which collections have one.
//! Here the index decides *whether* the query succeeds; distances are measured on the documents the plan reads. A condition
//! on the field in front rejects documents without a location or beyond the largest distance, and bounds a geographic index
//! to the cells within that distance.

use std::sync::Arc;

use nilometer_bson::order::Collator;
use nilometer_bson::{DocRef, Value};

use super::logical::LogicalSource;
use super::settings::PlanSettings;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::matcher::{MatchExpression, MatchPath};
use crate::eval::projection::MetaField;
use crate::eval::sort_key::SortPattern;
use crate::eval::{EvalContext, Expression, FoldBudget, ParseContext};
use crate::geo::{GeoTest, Metric, NearQuery, read_distance};
use crate::index::{Index, IndexPartKind};
use crate::query::pipeline::{
    GeoDistanceStage, GeoNearStage, MatchStage, NearFrom, ProjectStage, SortStage, Stage,
    geo_near_not_first,
};
use crate::query::source::BucketOptions;

/// Replaces a `$geoNear` at the front of `stages` by stages that measure and sort.
pub fn settle(
    source: &LogicalSource,
    stages: Vec<Stage>,
    settings: &PlanSettings,
) -> Result<Vec<Stage>> {
    let mut near = stages
        .iter()
        .enumerate()
        .filter_map(|(at, stage)| match stage {
            Stage::GeoNear(near) => Some((at, near)),
            _ => None,
        });
    let Some((at, asked)) = near.next() else {
        return Ok(stages);
    };
    // Also one that a router has put in the form of a stage.
    let is_find = asked.output.distance_field.is_none();
    if is_find
        && (at > 0
            || matches!(
                source,
                LogicalSource::Measurements(_) | LogicalSource::Rollup(_)
            ))
    {
        return Err(Error::location(
            location::NEAR_NOT_ALLOWED,
            "$geoNear, $near, and $nearSphere are not allowed on a view or a time-series collection",
        ));
    }
    if at > 0 {
        return Err(geo_near_not_first());
    }
    let mut settled = settled(source, asked, settings)?;
    // The distance by which the documents of partitions are merged leaves them behind the limits that belong to the order.
    let carried = carried_for_order(source, asked).then_some(MetaField::GeoNearDistance);
    let mut rest = stages.into_iter().skip(1).peekable();
    if let Some(field) = carried {
        let is_limit = |stage: &Stage| matches!(stage, Stage::Limit(_) | Stage::Skip(_));
        while let Some(limit) = rest.next_if(is_limit) {
            settled.push(limit);
        }
        settled.push(Stage::Project(ProjectStage::without(field)));
    }
    settled.extend(rest);
    Ok(settled)
}

/// True if the documents of partitions bring their distances for nothing but their order.
fn carried_for_order(source: &LogicalSource, asked: &GeoNearStage) -> bool {
    let output = &asked.output;
    let is_read = output.adds.contains(&MetaField::GeoNearDistance);
    matches!(source, LogicalSource::Partitions(_)) && output.is_ordered && !is_read
}

/// Returns the stages over partitions, which settle the `$geoNear` with their indexes.
fn over_partitions(asked: &GeoNearStage, query: &NearQuery) -> Result<Vec<Stage>> {
    let mut near = asked.with_constants(query);
    let field = match &near.output.distance_field {
        Some(field) => Some(SortPattern::by_field(field, false, &ParseContext::new())?),
        None if near.output.is_ordered => {
            let carried = MetaField::GeoNearDistance;
            if !near.output.adds.contains(&carried) {
                near.output.adds.push(carried);
            }
            Some(SortPattern::by_carrier(carried))
        }
        None => None,
    };
    let sort = field.map(|pattern| Stage::Sort(SortStage::new(pattern)));
    Ok([near.into_stage()].into_iter().chain(sort).collect())
}

fn settled(
    source: &LogicalSource,
    asked: &GeoNearStage,
    settings: &PlanSettings,
) -> Result<Vec<Stage>> {
    let query = Arc::new(near_query(asked, settings)?);
    let path = match source {
        LogicalSource::Records(records) => {
            let indexes = records.source.indexes()?;
            on_records(asked, &measured_paths(&indexes, query.metric()))?
        }
        LogicalSource::Measurements(buckets) => {
            let options = buckets.source.options();
            on_buckets(asked, options, || {
                let indexes = buckets.source.indexes()?;
                let indexes: Vec<_> = indexes.iter().map(|i| Arc::new(i.index())).collect();
                Ok(measured_paths(&indexes, query.metric()))
            })?
        }
        LogicalSource::Partitions(_) => return over_partitions(asked, &query),
        LogicalSource::Rollup(_) => {
            return Err(Error::location(
                location::NEAR_NOT_ALLOWED,
                "$geoNear is not allowed on a rollup, which has no indexes",
            ));
        }
        // There is nothing to measure, whichever field.
        LogicalSource::Nothing | LogicalSource::FirstStage => {
            asked.key.clone().unwrap_or_else(|| MatchPath::new(""))
        }
    };
    let mut stages = Vec::new();
    let mut filters: Vec<MatchExpression> = asked.query.iter().cloned().collect();
    if matches!(
        source,
        LogicalSource::Measurements(_) | LogicalSource::Records(_)
    ) {
        // Excludes buckets by their bounds or their metadata, and documents by an index.
        filters.push(MatchExpression::Geo {
            path: path.clone(),
            test: Arc::new(GeoTest::reach(&query)),
        });
    }
    if !filters.is_empty() {
        stages.push(Stage::Match(MatchStage::new(MatchExpression::and(filters))));
    }
    let order = asked.output.distance_field.clone();
    stages.push(Stage::GeoDistance(Arc::new(GeoDistanceStage {
        path,
        query,
        output: asked.output.clone(),
    })));
    if let Some(field) = order {
        let pattern = SortPattern::by_field(&field, false, &ParseContext::new())?;
        stages.push(Stage::Sort(SortStage::new(pattern)));
    }
    Ok(stages)
}

fn near_query(asked: &GeoNearStage, settings: &PlanSettings) -> Result<NearQuery> {
    let (near, spherical, min, max) = match &asked.from {
        NearFrom::Find(query) => return Ok((**query).clone()),
        NearFrom::Stage {
            near,
            spherical,
            min,
            max,
        } => (near, *spherical, min, max),
    };
    let folding = FoldBudget::default();
    let evaluate = |expression: &Expression| {
        let value = folding.compute(|limits| {
            let cx = EvalContext {
                now_ms: settings.now_ms,
                variables: &settings.variables,
                collator: settings.collator.as_deref().map(|c| c as &dyn Collator),
                limits: Some(limits),
                ..EvalContext::default()
            };
            expression.evaluate(DocRef::EMPTY, &cx)
        })?;
        value.ok_or_else(|| {
            let text = "a constant of $geoNear takes too much work";
            Error::new(ErrorCode::ExceededMemoryLimit, text)
        })
    };
    let near = evaluate(near)?;
    if !matches!(near, Value::Document(_) | Value::Array(_)) {
        return Err(Error::location(
            location::GEO_NEAR_NEAR_NOT_POINT,
            "$geoNear requires near argument to be a GeoJSON object or an array",
        ));
    }
    let limit = |name: &str, expression: &Option<Expression>| -> Result<Option<f64>> {
        let Some(expression) = expression else {
            return Ok(None);
        };
        let value = evaluate(expression)?;
        read_distance(name, value.as_ref()).map(Some)
    };
    let mut query = NearQuery::from_point(near.as_ref(), spherical)?;
    query.min = limit("minDistance", min)?.unwrap_or(query.min);
    query.max = limit("maxDistance", max)?.unwrap_or(query.max);
    Ok(query)
}

/// True if keys of this index kind support such distances.
fn measures(kind: &IndexPartKind, metric: Metric) -> bool {
    match kind {
        IndexPartKind::TwoD { .. } => metric != Metric::Meters,
        IndexPartKind::TwoDSphere => metric != Metric::Plane,
        _ => false,
    }
}

/// Returns the paths of geographic indexes with the requested metric, each once.
fn measured_paths(indexes: &[Arc<Index>], metric: Metric) -> Vec<String> {
    let mut paths = Vec::new();
    for part in indexes.iter().flat_map(|index| index.parts()) {
        if measures(&part.kind, metric) && !paths.iter().any(|known| known == part.name()) {
            paths.push(part.name().to_owned());
        }
    }
    paths
}

fn no_index() -> Error {
    Error::new(
        ErrorCode::NoQueryExecutionPlans,
        "error processing query: planner returned error :: caused by :: unable to find index for \
         $geoNear query",
    )
}

/// Returns the field to measure on an ordinary collection, from those that are indexed.
fn on_records(asked: &GeoNearStage, paths: &[String]) -> Result<MatchPath> {
    if let Some(key) = &asked.key {
        let found = paths.iter().any(|path| path == key.as_str());
        return if found {
            Ok(key.clone())
        } else {
            Err(no_index())
        };
    }
    match paths {
        [only] => Ok(MatchPath::new(only)),
        [] => Err(Error::new(
            ErrorCode::IndexNotFound,
            "$geoNear requires a 2d or 2dsphere index, but none were found",
        )),
        _ => Err(Error::new(
            ErrorCode::IndexNotFound,
            "There is more than one 2d or 2dsphere index; unsure which to use for $geoNear",
        )),
    }
}

/// Returns the field to measure on a time-series collection; `paths` are the indexed bucket paths.
fn on_buckets(
    asked: &GeoNearStage,
    options: &BucketOptions,
    paths: impl FnOnce() -> Result<Vec<String>>,
) -> Result<MatchPath> {
    let Some(key) = &asked.key else {
        return Err(Error::location(
            location::GEO_NEAR_KEY_MISSING,
            "Must specify 'key' option for $geoNear on a time-series collection",
        ));
    };
    let meta = options.meta_field.as_deref();
    let in_meta = meta.filter(|meta| key.is_at_or_below(meta));
    if let Some(renamed) = in_meta.and_then(|meta| key.renamed(meta, "meta")) {
        if !paths()?.iter().any(|path| path == renamed.as_str()) {
            return Err(no_index());
        }
        return Ok(key.clone());
    }
    if asked.query.is_some() {
        return Err(Error::location(
            location::GEO_NEAR_QUERY_ON_MEASUREMENTS,
            "$geoNear 'query' is not supported on a measurement of a time-series collection; use a \
             $match stage instead",
        ));
    }
    if asked.output.include_locs.is_some() {
        return Err(Error::location(
            location::GEO_NEAR_INCLUDE_LOCS_ON_MEASUREMENTS,
            "$geoNear 'includeLocs' is not supported on a measurement of a time-series collection",
        ));
    }
    Ok(key.clone())
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, array, doc};

    use super::*;
    use crate::query::pipeline::{PipelineContext, parse_pipeline_value};

    fn asked(spec: Document) -> Vec<Stage> {
        let cx = PipelineContext::top(ParseContext::new());
        let pipeline = array![doc! {"$geoNear": spec}];
        parse_pipeline_value(&cx, "pipeline", pipeline.as_ref()).unwrap()
    }

    fn near_of(stages: &[Stage]) -> &GeoNearStage {
        match &stages[0] {
            Stage::GeoNear(near) => near,
            other => panic!("{other:?} is not a $geoNear"),
        }
    }

    fn options() -> BucketOptions {
        BucketOptions {
            time_field: "t".into(),
            meta_field: Some("m".into()),
            bucket_max_span_seconds: 3600,
            bucket_rounding_seconds: 60,
            extended_range: false,
            fixed_buckets: true,
            mixed_schema: false,
            collation: crate::eval::Collation::default(),
        }
    }

    fn outcome(found: Result<MatchPath>) -> (String, i32) {
        match found {
            Ok(path) => (path.as_str().to_owned(), 0),
            Err(error) => (String::new(), error.code.0),
        }
    }

    #[test]
    fn ordinary_collections_need_an_index_on_the_field() {
        let near = array![1, 2];
        let with_key = asked(doc! {"near": near.clone(), "distanceField": "d", "key": "a"});
        let without = asked(doc! {"near": near, "distanceField": "d"});
        let of = |stages: &[Stage], paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(|p| (*p).to_owned()).collect();
            outcome(on_records(near_of(stages), &paths))
        };
        assert_eq!(of(&with_key, &["b", "a"]), ("a".into(), 0));
        assert_eq!(of(&with_key, &["b"]), (String::new(), 291));
        assert_eq!(of(&without, &["b"]), ("b".into(), 0));
        assert_eq!(of(&without, &[]), (String::new(), 27));
        assert_eq!(of(&without, &["a", "b"]), (String::new(), 27));
    }

    #[test]
    fn time_series_need_one_for_metadata_alone() {
        let of = |extra: &[(&str, Value)], paths: &[&str]| {
            let mut spec = nilometer_bson::DocumentBuilder::new();
            spec.append("near", array![1, 2]);
            spec.append("distanceField", "d");
            for (name, value) in extra {
                spec.append(name, value.clone());
            }
            let stages = asked(spec.finish());
            let paths: Vec<String> = paths.iter().map(|p| (*p).to_owned()).collect();
            let asked = near_of(&stages);
            outcome(on_buckets(asked, &options(), || Ok(paths)))
        };
        let key = |name: &str| ("key", Value::from(name));
        let query = ("query", Value::from(doc! {"v": 1}));
        let locs = ("includeLocs", Value::from("l"));
        assert_eq!(of(&[], &[]).1, location::GEO_NEAR_KEY_MISSING);
        assert_eq!(of(&[key("m.p")], &[]).1, 291);
        assert_eq!(of(&[key("m.p")], &["meta.p"]), ("m.p".into(), 0));
        assert_eq!(of(&[key("m.p"), query.clone()], &["meta.p"]).1, 0);
        assert_eq!(of(&[key("p")], &[]), ("p".into(), 0));
        assert_eq!(
            of(&[key("p"), query], &[]).1,
            location::GEO_NEAR_QUERY_ON_MEASUREMENTS
        );
        assert_eq!(
            of(&[key("p"), locs], &[]).1,
            location::GEO_NEAR_INCLUDE_LOCS_ON_MEASUREMENTS
        );
    }
}
