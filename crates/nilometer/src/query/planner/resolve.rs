//! Resolution of a namespace to its source: views are followed to the collection below them.
//!
//! The stages of a view come before those of the query. Views may be nested; the depth is bounded, which also catches
//! cycles that concurrent changes could create.

use std::sync::Arc;

use nilometer_bson::{Document, Value};

use super::access::bins::BinHint;
use super::logical::{
    LogicalMeasurements, LogicalPartitions, LogicalRecords, LogicalRollup, LogicalSource,
};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::{Collation, ParseContext};
use crate::query::partitions::PartitionSource;
use crate::query::pipeline::{PipelineContext, Place, Stage, parse_pipeline};
use crate::query::source::{
    BucketSource, Collections, Direction, RecordSource, Resolved, ViewDefinition,
};

/// The maximum depth of nested views.
pub const VIEW_DEPTH_MAX: usize = 20;

/// The prefix of the collection that holds the buckets of a time-series collection.
const BUCKETS_PREFIX: &str = "system.buckets.";

/// A resolved namespace.
pub struct ResolvedInput {
    /// The source of documents.
    pub source: LogicalSource,
    /// The stages of the views, innermost first.
    pub view_stages: Vec<Stage>,
    /// The views, outermost first, and the collection below them.
    pub chain: Vec<String>,
}

/// Resolves `db.coll` to its source.
pub fn resolve(
    collections: &dyn Collections,
    db: &str,
    coll: &str,
    cx: &PipelineContext,
) -> Result<ResolvedInput> {
    let mut name = coll.to_owned();
    let mut chain = Vec::new();
    let mut view_stages: Vec<Stage> = Vec::new();
    loop {
        chain.push(name.clone());
        if chain.len() > VIEW_DEPTH_MAX {
            return Err(Error::new(
                ErrorCode::ViewDepthLimitExceeded,
                format!(
                    "View depth too deep or view cycle detected; maximum depth is {VIEW_DEPTH_MAX}"
                ),
            ));
        }
        let source = match collections.resolve(db, &name)? {
            Resolved::Absent => LogicalSource::Nothing,
            Resolved::Ordinary(source) => {
                LogicalSource::Records(Box::new(records(source, format!("{db}.{name}"))))
            }
            Resolved::TimeSeries(source) => {
                let namespace = format!("{db}.{BUCKETS_PREFIX}{name}");
                let mut scan = measurements(source, namespace);
                scan.rollups = collections.rollups(db, &name)?;
                LogicalSource::Measurements(Box::new(scan))
            }
            Resolved::Partitioned(source) => {
                LogicalSource::Partitions(Box::new(partitions(source, format!("{db}.{name}"))))
            }
            Resolved::PartitionedRollup(rollup, source) => {
                let mut scan = partitions(source, format!("{db}.{name}"));
                scan.rollup = Some(rollup);
                LogicalSource::Partitions(Box::new(scan))
            }
            Resolved::Rollup(rollup) => {
                LogicalSource::Rollup(LogicalRollup::Documents(rollup, BinHint::None))
            }
            Resolved::View(view) => {
                check_collation(cx, &view, &format!("{db}.{name}"))?;
                // The stages of a view cannot use variables of the query.
                let expressions =
                    ParseContext::new().with_collator(cx.expressions.collator().map(Arc::clone));
                let nested = cx.nested(Place::View, expressions)?;
                let stages = view.pipeline.iter().map(Document::as_ref);
                let mut stages = parse_pipeline(&nested, stages)?;
                stages.append(&mut view_stages);
                view_stages = stages;
                name = view.on;
                continue;
            }
        };
        return Ok(ResolvedInput {
            source,
            view_stages,
            chain,
        });
    }
}

/// Rejects stages that unpack measurements: they are for buckets read as documents.
pub fn check_unpacking(source: &LogicalSource, stages: &[Stage]) -> Result<()> {
    match stages.iter().find(|stage| stage.unpacks()) {
        Some(stage) if matches!(source, LogicalSource::Measurements(_)) => {
            Err(Error::bad_value(format!(
                "{} unpacks the documents of {BUCKETS_PREFIX}<collection>; a time-series collection shows them unpacked",
                stage.name()
            )))
        }
        _ => Ok(()),
    }
}

/// Rejects a collation other than the view's own, for which its stages were written.
fn check_collation(cx: &PipelineContext, view: &ViewDefinition, namespace: &str) -> Result<()> {
    if view.collation == Collation::of(&cx.expressions) {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::OptionNotSupportedOnView,
        format!("Cannot override the collation of the view {namespace}"),
    ))
}

/// Returns a scan of all records of an ordinary collection.
pub fn records(source: Arc<dyn RecordSource>, namespace: String) -> LogicalRecords {
    LogicalRecords {
        source,
        namespace,
        filter: None,
        direction: Direction::Forward,
        is_natural: false,
        show_record_id: false,
        is_tail: false,
        start_after: None,
        forced: None,
    }
}

/// Returns a scan of all measurements of a time-series collection.
pub fn measurements(source: Arc<dyn BucketSource>, namespace: String) -> LogicalMeasurements {
    LogicalMeasurements {
        source,
        namespace,
        filter: None,
        direction: Direction::Forward,
        is_direction_fixed: false,
        is_natural: false,
        hint: None,
        rollups: Vec::new(),
    }
}

/// Returns a scan of all documents of a collection in several partitions.
pub fn partitions(source: Arc<dyn PartitionSource>, namespace: String) -> LogicalPartitions {
    LogicalPartitions {
        source,
        namespace,
        hint: Value::Missing,
        variables: None,
        allows_disk_use: true,
        rollup: None,
    }
}
