//! The physical plan: access paths and operators, with their strategies. Explain prints it; `exec` builds it.
//!
//! ```text
//! input    records      collection scan │ clustered scan │ look-up of an _id │ by index
//!          buckets      range of ids │ by index │ sampled ─► header predicate ─► event filter
//!          metadata     from an index alone
//! stages   group        hash table │ from bucket headers │ streaming │ first bins only
//!          sort         rows │ by buckets
//!          windows      sorted here │ input in order │ behind a densify
//!          densify      sorted here │ input in order │ by buckets
//! ```

mod bounds_aggregate;
mod lower;
mod measurement;
mod nearest;
mod stage;

use std::sync::Arc;

use nilometer_bson::{Document, Value};

use super::access::cluster::ClusterBound;
use super::access::hint::Forced;
use super::access::{Choice, IndexAccess};
use super::bounds::{IndexBounds, IndexShape};
use crate::eval::matcher::MatchExpression;
use crate::index::buckets::{BucketIndex, ScannedBuckets};
use crate::query::batch::{FieldSet, MeasurementShape};
use crate::query::pipeline::ProjectStage;
use crate::query::pipeline::needs::Needs;
use crate::query::source::{
    BucketEntries, BucketIndexScan, BucketPredicate, BucketSource, Direction, RecordSource,
};
use crate::timeseries::rewrite::TimeRange;

pub use bounds_aggregate::BoundsAggregate;
pub(crate) use bounds_aggregate::{BoundsInput, KeyPart};
pub use lower::lower;
pub(crate) use measurement::{TimeRank, is_constant, time_bins, time_rank};
pub use nearest::Nearest;
pub use stage::{
    BucketArrival, BucketOrder, DensifyInput, FirstBins, PhysicalDensify, PhysicalGroup,
    PhysicalSort, PhysicalStage, PhysicalWindows, WindowInput, needs_of,
};

/// Measurements a bucket has at most, unless it was written by hand.
pub const BUCKET_PLACES: u32 = 1000;

/// How documents are reached and which operators they pass.
#[derive(Clone)]
pub struct PhysicalPlan {
    /// Where documents come from.
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

/// Where documents come from, and how they are reached.
#[derive(Clone)]
pub enum Input {
    /// A collection that does not exist.
    Nothing,
    /// The first stage makes its documents itself.
    FirstStage,
    /// The records of an ordinary collection.
    Records(Box<RecordInput>),
    /// The measurements of a time-series collection.
    Buckets(Box<BucketInput>),
    /// The distinct metadata of a time-series collection.
    Metas(Box<MetaInput>),
}

/// How records are reached.
#[derive(Clone, Debug, Default)]
pub enum AccessPath {
    /// All of them in key order.
    #[default]
    CollectionScan,
    /// Those of a clustered collection between two keys, both included.
    ClusteredScan {
        /// Lowest.
        min: Option<ClusterBound>,
        /// Highest.
        max: Option<ClusterBound>,
    },
    /// The one with this `_id`.
    IdLookup(Value),
    /// Those an index leads to.
    Index(Box<IndexAccess>),
}

/// Reading an ordinary collection.
#[derive(Clone)]
pub struct RecordInput {
    /// The collection.
    pub source: Arc<dyn RecordSource>,
    /// `db.coll` as stored, for explain.
    pub namespace: String,
    /// How records are reached.
    pub access: AccessPath,
    /// Which way they are read.
    pub direction: Direction,
    /// The filter that documents must pass.
    pub filter: Option<MatchExpression>,
    /// Add the record's key as `$recordId`.
    pub show_record_id: bool,
    /// The direction was asked for: no index is used.
    pub is_natural: bool,
    /// Records that come later are read too.
    pub is_tail: bool,
    /// The index that was asked for.
    pub forced: Option<Forced>,
    /// No more rows than this are asked for.
    pub limit: Option<u64>,
    /// How the access path was chosen.
    pub choice: Arc<Choice>,
}

/// Reading a time-series collection.
#[derive(Clone)]
pub struct BucketInput {
    /// The collection.
    pub source: Arc<dyn BucketSource>,
    /// `db.system.buckets.coll`, for explain.
    pub namespace: String,
    /// Which way buckets are read.
    pub direction: Direction,
    /// The direction was asked for.
    pub is_direction_fixed: bool,
    /// The order of ids was asked for: no index is used.
    pub is_natural: bool,
    /// The index that was asked for.
    pub hint: Option<Arc<BucketIndex>>,
    /// Which buckets are read.
    pub buckets: BucketChoice,
    /// No more measurements than this are asked for.
    pub limit: Option<u64>,
    /// The number of measurements to draw at random; all are returned if drawing does not pay.
    pub sample: Option<u64>,
    /// How they become measurements.
    pub unpack: Unpack,
}

/// Which buckets are read.
#[derive(Clone, Debug)]
pub struct BucketChoice {
    /// Lowest second of the bucket id.
    pub id_min: Option<u32>,
    /// Highest second of the bucket id.
    pub id_max: Option<u32>,
    /// The predicate on the header of a bucket.
    pub predicate: BucketPredicate,
    /// Between which times every match lies.
    pub times: TimeRange,
    /// The index that leads to them; none if all between the ids are looked at.
    pub index: Option<IndexChoice>,
}

/// Which entries of which index lead to the buckets.
#[derive(Clone, Debug)]
pub struct IndexChoice {
    /// Which index.
    pub index: Arc<BucketIndex>,
    /// Which entries.
    pub entries: BucketEntries,
    /// Where they lead, if they were counted.
    pub scanned: Option<Arc<ScannedBuckets>>,
    /// Its parts as bounds see them.
    pub shape: Arc<IndexShape>,
    /// The bounds, for explain.
    pub bounds: IndexBounds,
}

impl IndexChoice {
    /// The scan to ask the collection for.
    pub fn scan(&self) -> BucketIndexScan {
        BucketIndexScan {
            index: Arc::clone(&self.index),
            entries: self.entries.clone(),
            scanned: self.scanned.clone(),
        }
    }
}

/// Reading metadata from an index, without its buckets: documents that show nothing else.
#[derive(Clone)]
pub struct MetaInput {
    /// The collection.
    pub source: Arc<dyn BucketSource>,
    /// `db.system.buckets.coll`, for explain.
    pub namespace: String,
    /// Which index; its first parts are metadata.
    pub index: Arc<BucketIndex>,
    /// How many parts: one document comes for each combination of their values.
    pub components: usize,
    /// Which of them are wanted; it reads nothing that these parts do not say.
    pub filter: Option<MatchExpression>,
    /// The least key that may be wanted.
    pub start: Vec<u8>,
    /// The least key above all that may be wanted; none if there is no end.
    pub end: Option<Vec<u8>>,
    /// What the two were made from, for explain.
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
        }
    }
}

/// How buckets become measurements.
#[derive(Clone, Debug, Default)]
pub struct Unpack {
    /// The fields that measurements show.
    pub fields: FieldSet,
    /// Fields computed from the metadata, once for each bucket.
    pub computed: Vec<ProjectStage>,
    /// The filter that measurements must pass.
    pub event_filter: Option<MatchExpression>,
    /// All measurements of buckets this is sure of pass without the event filter.
    pub whole_bucket_filter: Option<BucketPredicate>,
    /// Every bucket that is read passes as a whole, unless it was written wider than the collection's are:
    /// the filters above are a precaution.
    pub takes_whole: bool,
}

impl BucketInput {
    /// How measurements look to the first stage.
    pub fn shape(&self) -> MeasurementShape {
        let options = self.source.options();
        MeasurementShape {
            time_field: Arc::clone(&options.time_field),
            meta_field: options.meta_field.clone(),
            fields: self.shown(),
        }
    }

    /// The fields the first stage sees.
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
