//! The logical plan: the source, the filter to test there, and the stages after it.
//!
//! It does not contain access paths or execution strategies: those are in the [physical plan](super::physical).

use std::sync::Arc;

use nilometer_bson::Value;

use super::access::bins::BinHint;
use super::access::hint::Forced;
use super::physical::RollupInput;
use crate::eval::matcher::MatchExpression;
use crate::index::buckets::BucketIndex;
use crate::query::partitions::PartitionSource;
use crate::query::pipeline::Stage;
use crate::query::pipeline::needs::Needs;
use crate::query::source::{BucketSource, Direction, RecordKey, RecordSource, RollupSource};

/// A source and the stages applied to it.
#[derive(Clone)]
pub struct LogicalPlan {
    /// The source of documents.
    pub source: LogicalSource,
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// The fields that the command needs of the results: all, unless it only counts, for example.
    pub wanted: Needs,
    /// The path whose distinct values are all that the command needs.
    pub distinct: Option<Arc<str>>,
    /// Names of the rules that fired, in order.
    pub fired: Vec<&'static str>,
}

/// A source of documents.
#[derive(Clone)]
pub enum LogicalSource {
    /// A collection that does not exist.
    Nothing,
    /// The first stage generates its documents.
    FirstStage,
    /// The records of an ordinary collection.
    Records(Box<LogicalRecords>),
    /// The measurements of a time-series collection.
    Measurements(Box<LogicalMeasurements>),
    /// The documents of a collection in several partitions.
    Partitions(Box<LogicalPartitions>),
    /// A rollup.
    Rollup(LogicalRollup),
}

/// What is read of a rollup.
#[derive(Clone)]
pub enum LogicalRollup {
    /// Its documents, and what the query says about its indexes.
    Documents(Arc<RollupSource>, BinHint),
    /// Its states, in the place of the measurements that they summarize.
    States(Box<RollupInput>),
}

/// The records of an ordinary collection, and the options of reading them.
#[derive(Clone)]
pub struct LogicalRecords {
    /// The collection.
    pub source: Arc<dyn RecordSource>,
    /// `db.coll` as stored, for explain.
    pub namespace: String,
    /// The filter every document must pass.
    pub filter: Option<MatchExpression>,
    /// The direction of the scan.
    pub direction: Direction,
    /// `$natural` was given: no index is used.
    pub is_natural: bool,
    /// Add the record's key as `$recordId`.
    pub show_record_id: bool,
    /// Records inserted later are read too.
    pub is_tail: bool,
    /// The record after which a scan in record order continues.
    pub start_after: Option<RecordKey>,
    /// The hinted index, with `min` and `max` of a `find`.
    pub forced: Option<Forced>,
}

/// The measurements of a time-series collection, and the options of reading them.
#[derive(Clone)]
pub struct LogicalMeasurements {
    /// The collection.
    pub source: Arc<dyn BucketSource>,
    /// `db.system.buckets.coll`, for explain.
    pub namespace: String,
    /// The filter every measurement must pass.
    pub filter: Option<MatchExpression>,
    /// The direction of the scan.
    pub direction: Direction,
    /// The command set the direction.
    pub is_direction_fixed: bool,
    /// The command asked for the order of bucket ids: no index is used.
    pub is_natural: bool,
    /// The hinted index.
    pub hint: Option<Arc<BucketIndex>>,
    /// The rollups that may answer in its place.
    pub rollups: Vec<Arc<RollupSource>>,
}

/// The documents of a collection in several partitions, and the options of reading them.
#[derive(Clone)]
pub struct LogicalPartitions {
    /// The collection.
    pub source: Arc<dyn PartitionSource>,
    /// `db.coll`, for explain.
    pub namespace: String,
    /// The hint of the command, for the partitions; missing if there is none.
    pub hint: Value,
    /// The names of the query's variables in the order of their values; `None` if they are not known here.
    pub variables: Option<Vec<Arc<str>>>,
    /// Stages above their memory limit may write to disk.
    pub allows_disk_use: bool,
    /// The rollup whose bins they are: several partitions may have parts of one.
    pub rollup: Option<Arc<RollupSource>>,
}

impl LogicalPlan {
    /// Returns a plan as written, before any rule.
    pub fn new(source: LogicalSource, stages: Vec<Stage>) -> Self {
        let source = match stages.first() {
            Some(stage) if stage.is_source() => LogicalSource::FirstStage,
            _ => source,
        };
        Self {
            source,
            stages,
            wanted: Needs::All,
            distinct: None,
            fired: Vec::new(),
        }
    }
}
