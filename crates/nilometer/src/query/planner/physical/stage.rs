//! One operator of a physical plan: a parsed stage and the strategy that runs it.

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::{BoundsAggregate, PhysicalLookup, TimeBins};
use crate::eval::accumulator::AccumulatorKind;
use crate::eval::sort_key::SortPattern;
use crate::eval::{Dependencies, Expression};
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{
    DensifyStage, GeoDistanceStage, GroupStage, MatchStage, NamedPart, PipelineStage, ProjectStage,
    SetWindowFieldsStage, SortStage, Stage,
};
use crate::query::source::BucketSource;
use crate::timeseries::rewrite::TimeRange;

/// One operator with its strategy.
#[derive(Clone, Debug)]
pub enum PhysicalStage {
    /// Filters rows and blocks.
    Match(MatchStage),
    /// Changes fields of rows, or columns of blocks.
    Project(ProjectStage),
    /// Groups by key.
    Group(PhysicalGroup),
    /// Sorts rows, or buckets first.
    Sort(PhysicalSort),
    /// Passes the first rows only.
    Limit(u64),
    /// Skips the first rows.
    Skip(u64),
    /// Computes fields over windows.
    Windows(PhysicalWindows),
    /// Fills gaps along an axis.
    Densify(PhysicalDensify),
    /// Adds the matching documents of another collection.
    Lookup(PhysicalLookup),
    /// A stage with a single strategy.
    Plain(Stage),
}

/// A `$group` and its strategy.
#[derive(Clone, Debug)]
pub struct PhysicalGroup {
    /// Key and accumulators.
    pub stage: GroupStage,
    /// Computes whole buckets from their headers, if that is possible.
    pub from_bounds: Option<Arc<BoundsAggregate>>,
    /// Computes the only group from the number of measurements of the collection, if the source knows it.
    pub counted: Option<CountedSource>,
    /// Parts of the key that follow the order of the input, by name (`_id` for a key that is one value): a group is
    /// returned as soon as its part has passed.
    pub in_order: Option<Arc<[NamedPart]>>,
    /// The time bins that are needed, where reading may end after the first few.
    pub first_bins: Option<Arc<FirstBins>>,
    /// The result does not depend on how the input is split: several threads may group parts of it.
    pub is_splittable: bool,
    /// The side of a cut on which it runs.
    pub side: GroupSide,
}

/// The side of a cut between parts of the input and the reader of all on which a `$group` runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupSide {
    /// The `$group` is not cut: it reads documents and returns groups.
    #[default]
    Whole,
    /// In a partition, or for the bins of a rollup: it reads documents and returns the states of its groups.
    Part,
    /// Over all partitions, or over a rollup: it reads states and returns groups.
    Merge,
    /// For the bins of a rollup over a rollup: it reads states and returns states.
    Combine,
}

/// A collection whose measurements are counted and not read.
#[derive(Clone)]
pub struct CountedSource(pub Arc<dyn BucketSource>);

impl std::fmt::Debug for CountedSource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("CountedSource")
    }
}

/// The needed groups: those of the first time bins in the order in which buckets arrive.
#[derive(Clone, Debug)]
pub struct FirstBins {
    /// The time bins in the key.
    pub bins: TimeBins,
    /// The number of bins needed.
    pub wanted: usize,
    /// The order in which buckets arrive.
    pub arrival: BucketArrival,
    /// The range of times that holds every measurement of the groups.
    pub times: TimeRange,
}

/// A `$sort` and its strategy.
#[derive(Clone, Debug)]
pub struct PhysicalSort {
    /// Pattern and limit.
    pub stage: SortStage,
    /// The order in which buckets arrive, if a limit may end the reading.
    pub arrival: Option<BucketArrival>,
    /// The bucket order that is used to sort measurements.
    pub buckets: Option<BucketOrder>,
    /// The next operator accepts blocks as well as rows.
    pub as_blocks: bool,
    /// The next operator is a `$group`, and needs its rows in order within each group only.
    pub within: Option<WithinGroups>,
}

/// Which rows are of one group, as far as the metadata tells.
#[derive(Clone, Debug)]
pub struct WithinGroups {
    /// The parts of the key that read only the metadata.
    pub parts: Arc<[Expression]>,
    /// The metadata by which the sort orders before the time: each is such a part.
    pub prefix: Arc<[FieldPath]>,
    /// The key has one part, of which null and missing are the same.
    pub has_one_part: bool,
    /// The `$group` reads no metadata but these parts.
    pub reads_key_alone: bool,
}

/// The order of buckets that a sort of measurements relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketOrder {
    /// By metadata, the only fields of the sort.
    Metadata,
    /// By start: ascending, or descending with the longest span in milliseconds.
    Arrival(Option<i64>),
    /// By the first parts of the pattern, which are metadata, and then by start: ascending, or descending with the longest
    /// span in milliseconds.
    Indexed {
        /// The number of metadata parts.
        parts: usize,
        /// The longest span, if starts are descending.
        span_ms: Option<i64>,
    },
    /// By the first parts of the pattern, which are metadata, and then by a bound of the time.
    Bounds {
        /// The number of metadata parts.
        parts: usize,
    },
}

/// The order in which buckets arrive, where it lets a sort with a limit stop early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketArrival {
    /// By ascending id, for ascending time.
    OldestFirst,
    /// By descending id, for descending time; no bucket spans more than `span`.
    NewestFirst {
        /// The longest span in milliseconds.
        span_ms: i64,
    },
}

/// A `$setWindowFields` and the order of its input.
#[derive(Clone, Debug)]
pub struct PhysicalWindows {
    /// Partition, order and outputs.
    pub stage: Arc<SetWindowFieldsStage>,
    /// The order of the input.
    pub input: WindowInput,
}

/// The order in which documents reach a `$setWindowFields`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowInput {
    /// Any order: the operator sorts.
    Any,
    /// By partition, and within each by `sortBy`.
    InOrder,
    /// As returned by a `$densify` with the same partitions and field.
    Densified,
}

/// A `$densify` and the order of its input.
#[derive(Clone, Debug)]
pub struct PhysicalDensify {
    /// Axis, partitions and step.
    pub stage: Arc<DensifyStage>,
    /// The order of the input.
    pub input: DensifyInput,
}

/// The order in which documents reach a `$densify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DensifyInput {
    /// Any order: the operator sorts.
    Any,
    /// By the axis; there are no partitions.
    InOrder,
    /// Measurements of a time series: the axis is the time, partitions are fields of the metadata.
    Buckets,
}

impl From<Stage> for PhysicalStage {
    /// Returns the operator of a stage with its simplest strategy.
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Match(stage) => Self::Match(stage),
            Stage::Project(stage) => Self::Project(stage),
            Stage::Group(stage) if stage.takes_states => {
                Self::Group(PhysicalGroup::of_states(stage))
            }
            Stage::Group(stage) => Self::Group(PhysicalGroup::new(stage)),
            Stage::Sort(stage) => Self::Sort(PhysicalSort::new(stage)),
            Stage::Limit(count) => Self::Limit(count),
            Stage::Skip(count) => Self::Skip(count),
            Stage::SetWindowFields(stage) => Self::Windows(PhysicalWindows {
                stage,
                input: WindowInput::Any,
            }),
            Stage::Densify(stage) => Self::Densify(PhysicalDensify {
                stage,
                input: DensifyInput::Any,
            }),
            Stage::Lookup(stage) => Self::Lookup(PhysicalLookup::new(stage)),
            other => Self::Plain(other),
        }
    }
}

impl PhysicalStage {
    /// Returns the name for explain.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Match(_) => "$match",
            Self::Project(stage) => stage.name(),
            Self::Group(group) if group.in_order.is_some() => "$_internalStreamingGroup",
            Self::Group(_) => "$group",
            Self::Sort(_) => "$sort",
            Self::Limit(_) => "$limit",
            Self::Skip(_) => "$skip",
            Self::Windows(windows) => match windows.input {
                WindowInput::Any => "$setWindowFields",
                WindowInput::InOrder | WindowInput::Densified => "$_internalSetWindowFields",
            },
            Self::Densify(densify) => match densify.input {
                DensifyInput::Any => "$densify",
                DensifyInput::InOrder | DensifyInput::Buckets => "$_internalDensify",
            },
            Self::Lookup(lookup) => lookup.stage.name(),
            Self::Plain(stage) => stage.name(),
        }
    }

    /// Returns the operator for explain.
    pub fn explain(&self) -> Document {
        let mut out = DocumentBuilder::new();
        let name = self.name();
        match self {
            Self::Match(stage) => out.append(name, stage.source.clone()),
            Self::Project(stage) => out.append(name, stage.source.clone()),
            Self::Group(group) => out.append(name, group.explain()),
            Self::Sort(sort) => return sort.explain(),
            Self::Limit(n) | Self::Skip(n) => {
                out.append(name, i64::try_from(*n).unwrap_or(i64::MAX))
            }
            Self::Windows(windows) => {
                windows.stage.explain(name, &mut out);
                &mut out
            }
            Self::Densify(densify) => {
                densify.stage.explain(name, &mut out);
                &mut out
            }
            Self::Lookup(lookup) => return lookup.explain(),
            Self::Plain(stage) => return stage.explain(),
        };
        out.finish()
    }

    /// Returns the fields the operator reads from its input when `after` is needed of its output.
    pub fn needs(&self, after: &Needs) -> Needs {
        match self {
            Self::Match(stage) => after.clone().and(&stage.needs()),
            Self::Project(stage) => stage.needs(after),
            Self::Group(group) => group.stage.needs(),
            Self::Sort(sort) => after.clone().and(&sort.stage.needs()),
            Self::Limit(_) | Self::Skip(_) => after.clone(),
            Self::Windows(windows) => windows.stage.needs(after),
            Self::Densify(densify) => densify.stage.needs(after),
            Self::Lookup(lookup) => lookup.needs(after),
            Self::Plain(stage) => stage.needs(after),
        }
    }

    /// True if the operator writes its input to a collection: `$out` and `$merge`.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Plain(stage) if stage.writes())
    }

    /// Returns the operator if it measures distances.
    pub fn as_geo_distance(&self) -> Option<&GeoDistanceStage> {
        match self {
            Self::Plain(Stage::GeoDistance(stage)) => Some(stage),
            _ => None,
        }
    }

    /// Returns the input order that would replace its own sort, as the pattern of a `$sort`.
    pub fn wanted_order(&self) -> Option<Document> {
        match self {
            Self::Windows(windows) => windows.wanted_order(),
            Self::Densify(densify) => densify.wanted_order(),
            _ => None,
        }
    }

    /// Returns the same operator for input in [`Self::wanted_order`].
    #[must_use]
    pub fn over_ordered_input(&self) -> Self {
        match self {
            Self::Windows(windows) => Self::Windows(PhysicalWindows {
                input: WindowInput::InOrder,
                ..windows.clone()
            }),
            Self::Densify(densify) => Self::Densify(PhysicalDensify {
                input: DensifyInput::InOrder,
                ..densify.clone()
            }),
            other => other.clone(),
        }
    }
}

/// Returns the fields `stages` read from their input when `after` is needed of their output.
pub fn needs_of(stages: &[PhysicalStage], after: &Needs) -> Needs {
    stages
        .iter()
        .rev()
        .fold(after.clone(), |needs, stage| stage.needs(&needs))
}

/// True if threads may group parts of the input of `stage`: it merges exactly, and no accumulator keeps all its input, unless that
/// is numbers alone.
fn is_splittable(stage: &GroupStage) -> bool {
    use AccumulatorKind as K;
    let may_split = |kind| match kind {
        K::Push | K::AddToSet | K::ConcatArrays | K::SetUnion | K::MergeObjects => false,
        // Exact, too; whether partitions return their states is decided elsewhere.
        K::Percentile | K::Median => true,
        kind => kind_merges_exactly(kind),
    };
    let mut specs = stage.fields.iter().map(|(_, spec)| spec);
    !is_random(stage) && specs.all(|spec| may_split(spec.kind()))
}

/// True if the key or an accumulator is random.
fn is_random(stage: &GroupStage) -> bool {
    let mut reads = Dependencies::default();
    stage.key.dependencies(&mut reads);
    for (_, spec) in stage.fields.iter() {
        spec.dependencies(&mut reads);
    }
    reads.random
}

/// True if partial results of `stage` merge into exactly the result of one thread: nothing is random, and no accumulator
/// merges inexactly.
pub fn merges_exactly(stage: &GroupStage) -> bool {
    let mut specs = stage.fields.iter().map(|(_, spec)| spec);
    !is_random(stage) && specs.all(|spec| kind_merges_exactly(spec.kind()))
}

fn kind_merges_exactly(kind: AccumulatorKind) -> bool {
    use AccumulatorKind as K;
    matches!(
        kind,
        K::Sum
            | K::Avg
            | K::Count
            | K::Min
            | K::Max
            | K::First
            | K::Last
            | K::Top
            | K::Bottom
            | K::FirstN
            | K::LastN
            | K::MinN
            | K::MaxN
            | K::TopN
            | K::BottomN
            | K::Push
            | K::AddToSet
            | K::ConcatArrays
            | K::SetUnion
            | K::MergeObjects
    )
}

impl PhysicalGroup {
    /// Returns a group with a hash table over rows and columns.
    pub fn new(stage: GroupStage) -> Self {
        Self {
            is_splittable: is_splittable(&stage),
            stage,
            from_bounds: None,
            counted: None,
            in_order: None,
            first_bins: None,
            side: GroupSide::Whole,
        }
    }

    /// Returns the group that merges the states of partitions, or of a rollup.
    pub fn of_states(stage: GroupStage) -> Self {
        Self {
            is_splittable: false,
            side: GroupSide::Merge,
            ..Self::new(stage)
        }
    }

    /// Returns the argument for explain.
    fn explain(&self) -> Document {
        let Some(parts) = &self.in_order else {
            return self.stage.source.clone();
        };
        let mut out = DocumentBuilder::new();
        for element in self.stage.source.iter() {
            out.append_element(element);
        }
        let names = parts.iter().map(|(name, _)| Value::from(&**name));
        out.append("$monotonicIdFields", names.collect::<Vec<_>>());
        out.finish()
    }
}

impl PhysicalSort {
    /// Returns a sort of rows.
    pub fn new(stage: SortStage) -> Self {
        Self {
            stage,
            arrival: None,
            buckets: None,
            as_blocks: false,
            within: None,
        }
    }

    /// Returns the longest bucket span this sort relies on, in milliseconds.
    pub fn guarded_span_ms(&self) -> Option<i64> {
        if let Some(BucketArrival::NewestFirst { span_ms }) = self.arrival {
            return Some(span_ms);
        }
        match self.buckets? {
            BucketOrder::Arrival(span_ms) | BucketOrder::Indexed { span_ms, .. } => span_ms,
            BucketOrder::Metadata | BucketOrder::Bounds { .. } => None,
        }
    }

    /// Returns, for explain, the bucket bound that no later row sorts before.
    fn bound(&self) -> Option<Document> {
        if let Some(arrival) = self.arrival {
            let offset_ms = match arrival {
                BucketArrival::OldestFirst => 0,
                BucketArrival::NewestFirst { span_ms } => span_ms,
            };
            return Some(doc! {"base": "min", "offsetSeconds": offset_ms / 1000});
        }
        let (base, offset_ms) = match self.buckets? {
            BucketOrder::Metadata => return None,
            BucketOrder::Arrival(span_ms) | BucketOrder::Indexed { span_ms, .. } => {
                ("min", span_ms.unwrap_or(0))
            }
            BucketOrder::Bounds { parts } => match self.stage.pattern.parts().get(parts) {
                Some(part) if part.descending => ("max", 0),
                _ => ("min", 0),
            },
        };
        Some(doc! {"base": base, "offsetSeconds": offset_ms / 1000})
    }

    /// Returns the operator for explain.
    fn explain(&self) -> Document {
        let mut out = DocumentBuilder::new();
        let bound = self.bound();
        out.begin_document(if bound.is_some() {
            "$_internalBoundedSort"
        } else {
            "$sort"
        });
        out.append("sortKey", self.stage.pattern.to_document());
        out.append("bound", bound);
        if let Some(limit) = self.stage.limit {
            out.append("limit", i64::try_from(limit).unwrap_or(i64::MAX));
        }
        if self.as_blocks {
            out.append("blocks", true);
        }
        if self.within.is_some() {
            out.append("withinGroups", true);
        }
        out.end();
        out.finish()
    }
}

impl PhysicalWindows {
    fn wanted_order(&self) -> Option<Document> {
        let spec = &self.stage.spec;
        let mut out = DocumentBuilder::new();
        if let Some(partition) = spec.partition_by() {
            out.append(partition.as_field_path()?.as_str(), 1);
        }
        let sort_by = spec.sort_by().map(SortPattern::to_document);
        for part in sort_by.iter().flat_map(Document::iter) {
            out.append_element(part);
        }
        (self.input == WindowInput::Any && !out.is_empty()).then(|| out.finish())
    }

    /// True if it reads whole columns of measurements that arrive in order.
    pub fn reads_columns(&self, time_field: &str) -> bool {
        self.input == WindowInput::InOrder && self.stage.spec.reads_columns(time_field)
    }

    /// True if a preceding `$densify` returns documents in the order it needs.
    pub fn fits_behind(&self, densify: &DensifyStage) -> bool {
        let spec = &self.stage.spec;
        let is_alike = match (&*densify.partition_by, spec.partition_by()) {
            ([], None) => true,
            ([path], Some(partition)) => partition.as_field_path() == Some(path),
            _ => false,
        };
        let sort = spec.sort_by().and_then(SortPattern::single_field);
        // Below a path there may be arrays, which sort by their elements.
        let follows_axis = sort.is_some_and(|(path, descending)| {
            !descending && path.len() == 1 && *path == densify.field
        });
        self.input == WindowInput::Any && is_alike && follows_axis
    }
}

impl PhysicalDensify {
    fn wanted_order(&self) -> Option<Document> {
        // Below a path there may be arrays, which sort by their elements.
        let is_plain = self.stage.partition_by.is_empty() && self.stage.field.len() == 1;
        (is_plain && self.input == DensifyInput::Any).then(|| {
            let mut out = DocumentBuilder::new();
            out.append(self.stage.field.as_str(), 1);
            out.finish()
        })
    }

    /// True if it can order the buckets of measurements with these fields instead of their rows.
    pub fn fits_buckets(&self, time_field: &str, meta_field: Option<&str>) -> bool {
        let is_meta = |path: &FieldPath| Some(path.first()) == meta_field;
        self.input == DensifyInput::Any
            && self.stage.field.as_str() == time_field
            && !self.stage.partition_by.is_empty()
            && self.stage.partition_by.iter().all(is_meta)
    }
}
