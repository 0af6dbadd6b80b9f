//! The logical plan: what is read, which filter is asked there, and which stages follow.
//!
//! It says nothing of how data is reached or how a stage is executed: that is the
//! [physical plan](super::physical).

use std::sync::Arc;

use super::access::hint::Forced;
use crate::eval::matcher::MatchExpression;
use crate::index::buckets::BucketIndex;
use crate::query::pipeline::Stage;
use crate::query::pipeline::needs::Needs;
use crate::query::source::{BucketSource, Direction, RecordSource};

/// What is read and what is done to it.
#[derive(Clone)]
pub struct LogicalPlan {
    /// Where documents come from.
    pub source: LogicalSource,
    /// What happens to them, in order.
    pub stages: Vec<Stage>,
    /// The fields that the command needs of the results: all, unless it only counts, for example.
    pub wanted: Needs,
    /// The path whose distinct values are all that the command needs.
    pub distinct: Option<Arc<str>>,
    /// Names of the rules that fired, in order.
    pub fired: Vec<&'static str>,
}

/// Where documents come from.
#[derive(Clone)]
pub enum LogicalSource {
    /// A collection that does not exist.
    Nothing,
    /// The first stage makes its documents itself.
    FirstStage,
    /// The records of an ordinary collection.
    Records(Box<LogicalRecords>),
    /// The measurements of a time-series collection.
    Measurements(Box<LogicalMeasurements>),
}

/// The records of an ordinary collection, with what the command says about reading them.
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
    /// Records that are inserted later are read too.
    pub is_tail: bool,
    /// The hinted index, with `min` and `max` of a `find`.
    pub forced: Option<Forced>,
}

/// The measurements of a time-series collection, with what the command says about reading them.
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
    /// The direction was given by the command.
    pub is_direction_fixed: bool,
    /// The order of bucket ids was asked for: no index is used.
    pub is_natural: bool,
    /// The hinted index.
    pub hint: Option<Arc<BucketIndex>>,
}

impl LogicalPlan {
    /// A plan as written, before any rule.
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
