//! What a rollup computes.
//!
//! ```text
//! [{$match: filter}, {$group: {_id: {bed: "$bed", time: {$dateTrunc: {date: "$time", unit: "hour"}}}, mean: {$avg: "$moisture"}}}]
//!            │                       │          └ the bins, in UTC                                 └ states that can be merged
//!            │                       └ functions of the metadata: all measurements of a series and bin are in one group
//!            └ any filter whose result depends on the measurement alone
//! ```
//!
//! A definition over another rollup names its parts and accumulators: `{$avg: "$mean"}` over a field `mean` that is an `$avg`
//! merges the states of the finer bins, and is never the average of averages. So each definition has a form over the
//! measurements of the time series at the bottom, which is the one compiled here.
//!
//! `$first` and `$last` are those by time.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::bins::RollupBins;
use crate::catalog::{StoredRollup, TimeseriesOptions};
use crate::error::{Error, Result};
use crate::eval::accumulator::{AccumulatorKind, AccumulatorSpec};
use crate::eval::expression::DateBins;
use crate::eval::matcher::MatchExpression;
use crate::eval::{Dependencies, Expression, ParseContext};

/// Variables and operators whose result depends on more than the measurement.
const CHANGING: &[&str] = &[
    "$$NOW",
    "$$CLUSTER_TIME",
    "$$USER_ROLES",
    "$rand",
    "$sampleRate",
    "$text",
    "$near",
    "$nearSphere",
    "$where",
    "$function",
];

/// A part of the key of a rollup.
#[derive(Clone, Debug)]
pub struct KeyPart {
    /// Its name, in the key and in documents of the rollup.
    pub name: Arc<str>,
    /// Its value, over measurements.
    pub expression: Expression,
    /// The same as written over measurements.
    source: Value,
}

/// How a part of a key follows from the key of a finer rollup.
#[derive(Clone, Debug)]
pub enum PartSource {
    /// The part of this name.
    Part(Arc<str>),
    /// The wider bin that contains the finer one.
    Bins(DateBins),
    /// A constant.
    Constant(Value),
}

/// How a rollup follows from a finer one.
#[derive(Debug)]
pub struct FromParent {
    /// The parts of its key, by name.
    pub parts: Vec<(Arc<str>, PartSource)>,
    /// The place of each accumulator in the finer rollup.
    pub places: Vec<usize>,
}

/// A compiled definition.
#[derive(Debug)]
pub struct RollupDefinition {
    /// The filter over measurements.
    pub filter: Option<MatchExpression>,
    /// The key over measurements.
    pub key: Expression,
    /// The parts of the key but the time.
    pub parts: Vec<KeyPart>,
    /// The name of the part that is the time: the time field of the rollup.
    pub time_name: Arc<str>,
    /// The bins of that part.
    pub bins: RollupBins,
    /// The same as an expression has them.
    pub date_bins: DateBins,
    /// The accumulators over measurements.
    pub fields: Arc<[(Arc<str>, AccumulatorSpec)]>,
    /// `$group` over measurements.
    pub group: Document,
    /// For a rollup over a rollup: how it follows from the one below.
    pub from_parent: Option<FromParent>,
    /// The time field of measurements.
    pub series_time_field: Arc<str>,
    /// The metadata field of measurements.
    pub series_meta_field: Option<Arc<str>>,
}

/// Returns the definition of a stored rollup over a time series with these options.
pub fn definition_of(
    rollup: &StoredRollup,
    options: &TimeseriesOptions,
) -> Result<Arc<RollupDefinition>> {
    rollup.get_or_compile(|| match rollup.parent() {
        None => RollupDefinition::over_series(options, &rollup.pipeline),
        Some(parent) => {
            let parent = definition_of(parent, options)?;
            RollupDefinition::over_rollup(&parent, &rollup.pipeline)
        }
    })
}

impl RollupDefinition {
    /// Fails unless a pipeline has the stages of a rollup.
    pub fn check_stages(pipeline: &[Document]) -> Result<()> {
        DefinitionStages::of(pipeline).map(|_| ())
    }

    /// Compiles a definition over a time series.
    pub fn over_series(options: &TimeseriesOptions, pipeline: &[Document]) -> Result<Self> {
        let stages = DefinitionStages::of(pipeline)?;
        let shape = SeriesShape {
            time_field: options.time_field.as_str().into(),
            meta_field: options.meta_field.as_deref().map(Arc::from),
        };
        let filter = match stages.filter {
            None => None,
            Some(filter) => {
                check_unchanging(ValueRef::Document(filter), "$match")?;
                Some(MatchExpression::parse(filter, &ParseContext::new())?)
            }
        };
        let mut parts = Vec::new();
        for element in stages.key {
            parts.push((Arc::from(element.name()), element.value().to_value()));
        }
        let mut fields = Vec::new();
        for element in stages.fields() {
            let value = by_time(element.value(), &shape.time_field);
            fields.push((Arc::from(element.name()), value));
        }
        Self::compile(shape, filter, parts, fields)
    }

    /// Compiles a definition over another rollup.
    pub fn over_rollup(parent: &Self, pipeline: &[Document]) -> Result<Self> {
        let stages = DefinitionStages::of(pipeline)?;
        if stages.filter.is_some() {
            return Err(refused(
                "a rollup over another rollup has no $match: it would have to be that of the source",
            ));
        }
        let (mut parts, mut sources) = (Vec::new(), Vec::new());
        for element in stages.key {
            let name: Arc<str> = element.name().into();
            let (value, source) = parent.part(&name, element.value())?;
            sources.push((name.clone(), source));
            parts.push((name, value));
        }
        let (mut fields, mut places) = (Vec::new(), Vec::new());
        for element in stages.fields() {
            let at = parent.place_of(element.name(), element.value())?;
            let own = parent.group.iter().filter(|field| field.name() != "_id");
            let value = own.map(|field| field.value().to_value()).nth(at);
            fields.push((Arc::from(element.name()), value.unwrap_or_default()));
            places.push(at);
        }
        let shape = SeriesShape {
            time_field: parent.series_time_field.clone(),
            meta_field: parent.series_meta_field.clone(),
        };
        let mut compiled = Self::compile(shape, parent.filter.clone(), parts, fields)?;
        compiled.from_parent = Some(FromParent {
            parts: sources,
            places,
        });
        Ok(compiled)
    }

    fn compile(
        shape: SeriesShape,
        filter: Option<MatchExpression>,
        parts: Vec<(Arc<str>, Value)>,
        fields: Vec<(Arc<str>, Value)>,
    ) -> Result<Self> {
        let mut key = DocumentBuilder::new();
        let (mut others, mut time) = (Vec::new(), None);
        for (name, source) in parts {
            check_name(&name)?;
            check_unchanging(source.as_ref(), &format!("_id.{name}"))?;
            let expression = Expression::parse(source.as_ref(), &ParseContext::new())?;
            key.append(&name, source.clone());
            match bins_of(&expression, &shape.time_field) {
                Some(bins) if time.is_none() => time = Some((name, bins?)),
                Some(_) => return Err(refused("the key of a rollup has one $dateTrunc")),
                None => {
                    shape.check_part(&name, &expression)?;
                    others.push(KeyPart {
                        name,
                        expression,
                        source,
                    });
                }
            }
        }
        let Some((time_name, date_bins)) = time else {
            return Err(refused(format!(
                "the key of a rollup needs a part {{$dateTrunc: {{date: \"${}\", unit: …}}}}",
                shape.time_field
            )));
        };
        let Some(bins) = RollupBins::new(&date_bins) else {
            return Err(refused("the bins of a rollup are in UTC"));
        };
        let mut group = DocumentBuilder::new();
        let key = key.finish();
        let key_value = Value::Document(key.clone());
        let key = Expression::parse(key_value.as_ref(), &ParseContext::new())?;
        group.append("_id", key_value);
        let mut specs = Vec::new();
        for (name, source) in fields {
            check_name(&name)?;
            if *name == *time_name || others.iter().any(|part| part.name == name) {
                return Err(refused(format!(
                    "'{name}' is a part of the key and a field"
                )));
            }
            check_unchanging(source.as_ref(), &name)?;
            let spec = AccumulatorSpec::parse_field(&name, source.as_ref(), &ParseContext::new())?;
            check_accumulator(&name, &spec)?;
            group.append(&name, source);
            specs.push((name, spec));
        }
        Ok(Self {
            filter,
            key,
            parts: others,
            time_name,
            bins,
            date_bins,
            fields: specs.into(),
            group: group.finish(),
            from_parent: None,
            series_time_field: shape.time_field,
            series_meta_field: shape.meta_field,
        })
    }

    /// Returns a part of the key of a coarser rollup, over measurements, and how it follows from the key of this one.
    fn part(&self, name: &str, value: ValueRef<'_>) -> Result<(Value, PartSource)> {
        let expression = Expression::parse(value, &ParseContext::new())?;
        if let Some(path) = expression.as_field_path()
            && let Some(part) = self.parts.iter().find(|part| *part.name == *path.as_str())
        {
            return Ok((part.source.clone(), PartSource::Part(part.name.clone())));
        }
        if let Some(bins) = bins_of(&expression, &self.time_name) {
            let bins = bins?;
            if !self.bins.divides(&bins) {
                return Err(refused(format!(
                    "the bins of '{name}' are not divided by those of the source"
                )));
            }
            let spec = value.as_document().map(|trunc| trunc.get("$dateTrunc"));
            let mut out = DocumentBuilder::new();
            for argument in spec
                .and_then(|spec| spec.as_document())
                .iter()
                .flat_map(|s| s.iter())
            {
                match argument.name() {
                    "date" => out.append("date", format!("${}", self.series_time_field)),
                    _ => out.append_element(argument),
                };
            }
            let value = doc! {"$dateTrunc": out.finish()};
            return Ok((value.into(), PartSource::Bins(bins)));
        }
        Err(refused(format!(
            "'_id.{name}' must be a part of the key of the source, or a $dateTrunc of its time"
        )))
    }

    /// Returns the place of the accumulator whose states a field of a coarser rollup merges.
    fn place_of(&self, name: &str, value: ValueRef<'_>) -> Result<usize> {
        let wrong = || {
            refused(format!(
                "'{name}' must be {{<operator>: \"$<field>\"}}, where the field of the source has the same operator"
            ))
        };
        let spec = value.as_document().ok_or_else(wrong)?;
        let operator = spec.iter().next().ok_or_else(wrong)?;
        let field = operator
            .value()
            .as_str()
            .and_then(|path| path.strip_prefix('$'));
        let field = field
            .filter(|_| spec.iter().count() == 1)
            .ok_or_else(wrong)?;
        let at = self.fields.iter().position(|(known, _)| **known == *field);
        let at = at.ok_or_else(wrong)?;
        let below = self.fields.get(at).map_or("", |(_, spec)| spec.name());
        let is_same = match (operator.name(), below) {
            // Numbers of documents add up.
            ("$sum", "$count") | ("$first", "$top") | ("$last", "$bottom") => true,
            (own, below) => own == below,
        };
        is_same.then_some(at).ok_or_else(wrong)
    }

    /// Returns the key of the group of a series in the bin that starts at `start_ms`.
    pub fn key_of_series(&self, meta: ValueRef<'_>, start_ms: i64) -> Result<Document> {
        let mut row = DocumentBuilder::new();
        row.append(&self.series_time_field, Value::DateTime(start_ms));
        if let Some(field) = &self.series_meta_field {
            row.append_ref(field, meta);
        }
        let context = crate::eval::EvalContext::default();
        match self.key.evaluate(row.finish().as_ref(), &context)? {
            Value::Document(key) => Ok(key),
            other => unreachable!("the key {other:?} of a rollup is an object"),
        }
    }

    /// Returns the bin of a key.
    pub fn time_of(&self, key: DocRef<'_>) -> Option<i64> {
        match key.get(&self.time_name) {
            ValueRef::DateTime(start) => Some(start),
            _ => None,
        }
    }

    /// Returns a key with another bin.
    pub fn at_time(&self, key: DocRef<'_>, start_ms: i64) -> Document {
        let mut out = DocumentBuilder::with_capacity(key.as_bytes().len());
        for element in key {
            match element.name() == &*self.time_name {
                true => out.append(&self.time_name, Value::DateTime(start_ms)),
                false => out.append_element(element),
            };
        }
        out.finish()
    }

    /// True if a part of the key is an array: conditions on it and on the metadata may differ.
    pub fn has_arrays(&self, key: DocRef<'_>) -> bool {
        key.iter()
            .any(|part| matches!(part.value(), ValueRef::Array(_)))
    }
}

/// The fields of the measurements at the bottom.
struct SeriesShape {
    time_field: Arc<str>,
    meta_field: Option<Arc<str>>,
}

impl SeriesShape {
    /// Refuses a part of the key that does not follow from the metadata.
    fn check_part(&self, name: &str, expression: &Expression) -> Result<()> {
        let mut reads = Dependencies::default();
        expression.dependencies(&mut reads);
        let meta = self.meta_field.as_deref();
        let follows = !reads.whole
            && !reads.random
            && reads.variables.is_empty()
            && reads
                .paths
                .iter()
                .all(|path| path.split('.').next() == meta);
        follows.then_some(()).ok_or_else(|| {
            refused(format!(
                "'_id.{name}' must be computed from the metadata, or be a $dateTrunc of the time"
            ))
        })
    }
}

/// The stages of a definition.
struct DefinitionStages<'p> {
    filter: Option<DocRef<'p>>,
    group: DocRef<'p>,
    key: DocRef<'p>,
}

impl<'p> DefinitionStages<'p> {
    fn of(pipeline: &'p [Document]) -> Result<Self> {
        let wrong = || refused("the pipeline of a rollup is [{$match}, {$group}] or [{$group}]");
        let (filter, group) = match pipeline {
            [group] => (None, group),
            [filter, group] => (Some(filter), group),
            _ => return Err(wrong()),
        };
        let only = |stage: &'p Document, name: &str| -> Option<DocRef<'p>> {
            let argument = stage.get(name).as_document()?;
            (stage.iter().count() == 1).then_some(argument)
        };
        let filter = match filter {
            None => None,
            Some(stage) => Some(only(stage, "$match").ok_or_else(wrong)?),
        };
        let group = only(group, "$group").ok_or_else(wrong)?;
        let key = group.get("_id").as_document();
        let key = key.filter(|key| key.iter().all(|part| !part.name().starts_with('$')));
        let key =
            key.ok_or_else(|| refused("the '_id' of a rollup is an object of named parts"))?;
        Ok(Self { filter, group, key })
    }

    fn fields(&self) -> impl Iterator<Item = nilometer_bson::Element<'p>> {
        self.group.iter().filter(|field| field.name() != "_id")
    }
}

/// Returns `$first` and `$last` as the first and the last by time.
fn by_time(accumulator: ValueRef<'_>, time_field: &str) -> Value {
    let spec = accumulator.as_document();
    let Some(operator) = spec.and_then(|spec| spec.iter().next()) else {
        return accumulator.to_value();
    };
    let name = match operator.name() {
        "$first" => "$top",
        "$last" => "$bottom",
        _ => return accumulator.to_value(),
    };
    let mut sort = DocumentBuilder::new();
    sort.append(time_field, 1);
    let mut out = DocumentBuilder::new();
    out.append(
        name,
        doc! {"sortBy": sort.finish(), "output": operator.value().to_value()},
    );
    Value::Document(out.finish())
}

/// Returns the bins of a `$dateTrunc` of the field; `None` for another expression.
fn bins_of(expression: &Expression, field: &str) -> Option<Result<DateBins>> {
    let Expression::DateTrunc(trunc) = expression else {
        return None;
    };
    if trunc.date.as_field_path()?.as_str() != field {
        return None;
    }
    let bins = trunc.constant_bins().cloned();
    Some(bins.ok_or_else(|| refused("the bins of a rollup are constant")))
}

fn check_name(name: &str) -> Result<()> {
    let is_usable = !name.is_empty() && name != "_id" && !name.contains(['.', '\0']);
    is_usable.then_some(()).ok_or_else(|| {
        refused(format!(
            "'{name}' cannot be the name of a field of a rollup"
        ))
    })
}

/// Refuses what changes its value by itself.
fn check_unchanging(value: ValueRef<'_>, place: &str) -> Result<()> {
    let found = |text: &str| {
        let known = CHANGING.iter();
        let mut known = known.filter(|known| text.split('.').next() == Some(**known));
        known.next().copied()
    };
    let refuse = |what: &str| {
        Err(refused(format!(
            "'{place}' cannot use {what}: its value does not follow from the measurement"
        )))
    };
    match value {
        ValueRef::String(text) => found(text).map_or(Ok(()), refuse),
        ValueRef::Document(document) => document.iter().try_for_each(|element| {
            found(element.name()).map_or(Ok(()), refuse)?;
            check_unchanging(element.value(), place)
        }),
        ValueRef::Array(array) => array
            .iter()
            .try_for_each(|value| check_unchanging(value, place)),
        _ => Ok(()),
    }
}

/// Refuses accumulators whose states grow without bound, or depend on the order of documents.
fn check_accumulator(name: &str, spec: &AccumulatorSpec) -> Result<()> {
    use AccumulatorKind as K;
    match spec.kind() {
        K::Sum
        | K::Avg
        | K::Min
        | K::Max
        | K::Count
        | K::StdDevPop
        | K::StdDevSamp
        | K::MinN
        | K::MaxN
        | K::Top
        | K::Bottom
        | K::TopN
        | K::BottomN
        | K::Percentile
        | K::Median => {}
        K::Push | K::AddToSet | K::ConcatArrays | K::SetUnion => {
            return Err(refused(format!(
                "'{name}' cannot be kept: the state of {} has no bound",
                spec.name()
            )));
        }
        K::First | K::Last | K::FirstN | K::LastN | K::MergeObjects => {
            return Err(refused(format!(
                "'{name}' cannot be kept: {} depends on the order of documents; use $top or $bottom",
                spec.name()
            )));
        }
    }
    if spec.n_depends_on_group() {
        return Err(refused(format!("'n' of '{name}' must be constant")));
    }
    Ok(())
}

fn refused(reason: impl Into<String>) -> Error {
    Error::invalid_options(format!("rollup: {}", reason.into()))
}
