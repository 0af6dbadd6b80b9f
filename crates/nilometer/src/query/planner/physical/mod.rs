//! The physical plan: access paths and operators, with their strategies. Explain prints it; `exec` builds it.
//!
//! ```text
//! input    records      collection scan │ clustered scan │ look-up of an _id │ by index
//!          buckets      range of ids │ by index │ sampled ─► header predicate ─► event filter
//!          metadata     from an index alone
//!          rollup       stored bins, and the source where these are not up to date
//! stages   group        hash table │ from bucket headers │ streaming │ first bins only; on one thread │ splittable
//!          sort         rows │ by buckets
//!          windows      sorted here │ input in order │ behind a densify
//!          lookup       arrays │ a row for each joined document; whole documents │ the fields that are read
//!          densify      sorted here │ input in order │ by buckets
//! ```
//!
//! Rows or blocks are not a choice of the plan: an operator gets blocks while those before it return them, and buckets of one
//! collection differ. A block that no kernel can process is turned into rows.

mod bounds_aggregate;
mod join;
mod lower;
mod measurement;
mod nearest;
mod rollup;
mod stage;

use std::sync::Arc;

use nilometer_bson::{Document, Value};

use super::access::cluster::ClusterBound;
use super::access::hint::Forced;
use super::access::{Choice, IndexAccess};
use super::bounds::{IndexBounds, IndexShape};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::sort_key::SortPattern;
use crate::index::buckets::{BucketIndex, ScannedBuckets};
use crate::query::batch::{FieldSet, MeasurementShape};
use crate::query::partitions::{Part, PartitionSource};
use crate::query::pipeline::ProjectStage;
use crate::query::pipeline::needs::Needs;
use crate::query::source::{
    BucketEntries, BucketIndexScan, BucketPredicate, BucketSource, Direction, RecordKey,
    RecordSource, RollupSource,
};
use crate::timeseries::rewrite::TimeRange;

pub use bounds_aggregate::BoundsAggregate;
pub(crate) use bounds_aggregate::{BoundsInput, KeyPart};
pub(crate) use join::narrow_lookups;
pub use join::{FieldNames, PhysicalLookup};
pub use lower::lower;
pub use measurement::TimeBins;
pub(crate) use measurement::{TimeBin, TimeRank, is_constant, time_bins, time_rank};
pub use nearest::Nearest;
pub use rollup::{RollupInput, RollupOutput, StateMapping};
pub(crate) use rollup::{key_filter, span_of};
pub use stage::{
    BucketArrival, BucketOrder, CountedSource, DensifyInput, FirstBins, GroupSide, PhysicalDensify,
    PhysicalGroup, PhysicalSort, PhysicalStage, PhysicalWindows, WindowInput, WithinGroups,
    merges_exactly, needs_of,
};

/// Maximum number of measurements in a bucket, unless a client wrote the bucket directly.
pub const BUCKET_PLACES: u32 = 1000;

/// The access path of documents and the operators above it.
#[derive(Clone)]
pub struct PhysicalPlan {
    /// The source of documents.
    pub input: Input,
    /// The operators, in order.
    pub stages: Vec<PhysicalStage>,
    /// The fields that the command needs of the results.
    pub wanted: Needs,
    /// The path whose distinct values are all that the command needs.
    pub distinct: Option<Arc<str>>,
    /// Names of the rules that fired, in order.
    pub fired: Vec<&'static str>,
}

impl PhysicalPlan {
    /// Makes the last stage, a `$group`, return the states of its groups. A rollup may stand in its place, also with a condition on
    /// its key.
    pub fn return_states(&mut self) -> Result<()> {
        let filter = match self.stages.as_slice() {
            [] => Some(None),
            [PhysicalStage::Match(stage)] => Some(Some(&stage.filter)),
            _ => None,
        };
        if let (Input::Rollup(rollup), Some(filter)) = (&mut self.input, filter)
            && rollup.return_bins(filter)
        {
            self.stages.clear();
            return Ok(());
        }
        match self.stages.last_mut() {
            None if let Input::Rollup(rollup) = &mut self.input
                && rollup.return_states() =>
            {
                Ok(())
            }
            Some(PhysicalStage::Group(group)) if group.side == GroupSide::Whole => {
                group.side = GroupSide::Part;
                Ok(())
            }
            Some(PhysicalStage::Group(group)) if group.side == GroupSide::Merge => {
                group.side = GroupSide::Combine;
                Ok(())
            }
            _ => Err(Error::new(
                ErrorCode::InternalError,
                "only a $group at the end of a pipeline has states",
            )),
        }
    }
}

/// A source of documents and its access path.
#[derive(Clone)]
pub enum Input {
    /// A collection that does not exist.
    Nothing,
    /// The first stage generates its documents.
    FirstStage,
    /// The records of an ordinary collection.
    Records(Box<RecordInput>),
    /// The measurements of a time-series collection.
    Buckets(Box<BucketInput>),
    /// The distinct metadata of a time-series collection.
    Metas(Box<MetaInput>),
    /// The bins of a rollup, and what they are computed from.
    Rollup(Box<RollupInput>),
    /// What the partitions of a collection return for a part of the pipeline.
    Partitions(Box<PartitionsInput>),
}

/// The input from the partitions of a collection.
#[derive(Clone)]
pub struct PartitionsInput {
    /// The collection.
    pub source: Arc<dyn PartitionSource>,
    /// `db.coll`, for explain.
    pub namespace: String,
    /// The partitions that are read, in order.
    pub targets: Vec<usize>,
    /// The stages that each runs.
    pub part: Part,
    /// The order of the documents of each partition, by which they are merged; `None` to read one partition after the
    /// other.
    pub order: Option<SortPattern>,
    /// The rollup whose bins the partitions return, with their states: those of one key are merged.
    pub rollup: Option<Arc<RollupSource>>,
}

/// An access path to records.
#[derive(Clone, Debug, Default)]
pub enum AccessPath {
    /// All records in key order.
    #[default]
    CollectionScan,
    /// The records of a clustered collection between two keys, both inclusive.
    ClusteredScan {
        /// The lowest key.
        min: Option<ClusterBound>,
        /// The highest key.
        max: Option<ClusterBound>,
    },
    /// The record with this `_id`.
    IdLookup(Value),
    /// The records an index leads to.
    Index(Box<IndexAccess>),
}

/// The input from an ordinary collection.
#[derive(Clone)]
pub struct RecordInput {
    /// The collection.
    pub source: Arc<dyn RecordSource>,
    /// `db.coll` as stored, for explain.
    pub namespace: String,
    /// The access path.
    pub access: AccessPath,
    /// The direction of reading.
    pub direction: Direction,
    /// The filter that documents must pass.
    pub filter: Option<MatchExpression>,
    /// Add the record's key as `$recordId`.
    pub show_record_id: bool,
    /// The command set the direction: no index is used.
    pub is_natural: bool,
    /// Records inserted later are read too.
    pub is_tail: bool,
    /// The record after which a scan in record order continues.
    pub start_after: Option<RecordKey>,
    /// The hinted index.
    pub forced: Option<Forced>,
    /// The maximum number of rows needed.
    pub limit: Option<u64>,
    /// How the access path was chosen.
    pub choice: Arc<Choice>,
}

/// The input from a time-series collection.
#[derive(Clone)]
pub struct BucketInput {
    /// The collection.
    pub source: Arc<dyn BucketSource>,
    /// `db.system.buckets.coll`, for explain.
    pub namespace: String,
    /// The direction in which buckets are read.
    pub direction: Direction,
    /// The command set the direction.
    pub is_direction_fixed: bool,
    /// The command asked for the order of ids: no index is used.
    pub is_natural: bool,
    /// The hinted index.
    pub hint: Option<Arc<BucketIndex>>,
    /// The selection of buckets.
    pub buckets: BucketChoice,
    /// The maximum number of measurements needed.
    pub limit: Option<u64>,
    /// The size of a random sample; all measurements are returned if sampling does not pay.
    pub sample: Option<u64>,
    /// How buckets are unpacked to measurements.
    pub unpack: Unpack,
}

/// A selection of buckets.
#[derive(Clone, Debug)]
pub struct BucketChoice {
    /// The lowest second of a bucket id.
    pub id_min: Option<u32>,
    /// The highest second of a bucket id.
    pub id_max: Option<u32>,
    /// The predicate on the header of a bucket.
    pub predicate: BucketPredicate,
    /// The range of times that holds every match.
    pub times: TimeRange,
    /// The index that leads to the buckets; `None` to scan all between the ids.
    pub index: Option<IndexChoice>,
    /// Buckets are read by their summaries as far as these suffice.
    pub summaries: bool,
}

/// The entries of an index that lead to the buckets.
#[derive(Clone, Debug)]
pub struct IndexChoice {
    /// The index.
    pub index: Arc<BucketIndex>,
    /// The entries.
    pub entries: BucketEntries,
    /// The bucket ids, if the entries were counted.
    pub scanned: Option<Arc<ScannedBuckets>>,
    /// The shape of the index, for bounds.
    pub shape: Arc<IndexShape>,
    /// The bounds, for explain.
    pub bounds: IndexBounds,
}

impl IndexChoice {
    /// Returns the scan to request from the collection.
    pub fn scan(&self) -> BucketIndexScan {
        BucketIndexScan {
            index: Arc::clone(&self.index),
            entries: self.entries.clone(),
            scanned: self.scanned.clone(),
        }
    }
}

/// Metadata read from an index without its buckets; documents have no other fields.
#[derive(Clone)]
pub struct MetaInput {
    /// The collection.
    pub source: Arc<dyn BucketSource>,
    /// `db.system.buckets.coll`, for explain.
    pub namespace: String,
    /// The index; its first parts are metadata.
    pub index: Arc<BucketIndex>,
    /// The number of parts: one document is returned for each combination of their values.
    pub components: usize,
    /// The filter on entries; it reads these parts only.
    pub filter: Option<MatchExpression>,
    /// The lowest key of the range.
    pub start: Vec<u8>,
    /// The lowest key above the range; `None` if it has no end.
    pub end: Option<Vec<u8>>,
    /// The bounds behind the two keys, for explain.
    pub bounds: Option<Document>,
}

impl Default for BucketChoice {
    fn default() -> Self {
        Self {
            id_min: None,
            id_max: None,
            predicate: BucketPredicate::Always,
            times: TimeRange::ALL,
            index: None,
            summaries: false,
        }
    }
}

/// How buckets are unpacked to measurements.
#[derive(Clone, Debug, Default)]
pub struct Unpack {
    /// The fields of unpacked measurements.
    pub fields: FieldSet,
    /// Fields computed from the metadata, once for each bucket.
    pub computed: Vec<ProjectStage>,
    /// The filter that measurements must pass.
    pub event_filter: Option<MatchExpression>,
    /// Measurements of buckets that pass this predicate skip the event filter.
    pub whole_bucket_filter: Option<BucketPredicate>,
    /// Every bucket that is read passes as a whole, unless it was written wider than the collection's buckets: the filters
    /// above are a precaution.
    pub takes_whole: bool,
}

impl BucketInput {
    /// True if every measurement of the collection is returned, but for a limit.
    pub fn reads_all(&self) -> bool {
        let BucketChoice {
            id_min,
            id_max,
            predicate,
            times: _,
            index,
            summaries: _,
        } = &self.buckets;
        id_min.is_none()
            && id_max.is_none()
            && matches!(predicate, BucketPredicate::Always)
            && index.is_none()
            && self.sample.is_none()
            && self.unpack.event_filter.is_none()
    }

    /// Returns the shape of measurements for the first stage.
    pub fn shape(&self) -> MeasurementShape {
        let options = self.source.options();
        MeasurementShape {
            time_field: Arc::clone(&options.time_field),
            meta_field: options.meta_field.clone(),
            fields: self.shown(),
        }
    }

    /// Returns the fields the first stage sees.
    pub fn shown(&self) -> FieldSet {
        let options = self.source.options();
        let mut shape = MeasurementShape {
            time_field: Arc::clone(&options.time_field),
            meta_field: options.meta_field.clone(),
            fields: self.unpack.fields.clone(),
        };
        for stage in &self.unpack.computed {
            if let Some(fields) = stage.shown_behind(&shape) {
                shape.fields = fields;
            }
        }
        shape.fields
    }
}
