//! From a namespace to what is really read: views are followed to the collection below them.
//!
//! A view's stages come before the query's. A view may stand on a view; the chain is bounded, which
//! also catches a cycle that concurrent changes could make.

use std::sync::Arc;

use nilometer_bson::Document;

use super::logical::{LogicalMeasurements, LogicalRecords, LogicalSource};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::{Collation, ParseContext};
use crate::query::pipeline::{PipelineContext, Place, Stage, parse_pipeline};
use crate::query::source::{
    BucketSource, Collections, Direction, RecordSource, Resolved, ViewDefinition,
};

/// How many views may stand on each other.
pub const VIEW_DEPTH_MAX: usize = 20;

/// The prefix of the collection that holds the buckets of a time-series collection.
const BUCKETS_PREFIX: &str = "system.buckets.";

/// What a namespace leads to.
pub struct ResolvedInput {
    /// Where documents come from.
    pub source: LogicalSource,
    /// The stages of the views on the way, innermost first.
    pub view_stages: Vec<Stage>,
    /// The views on the way, outermost first, and what they stand on.
    pub chain: Vec<String>,
}

/// Follows `db.coll` to what is read.
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
                LogicalSource::Measurements(Box::new(measurements(source, namespace)))
            }
            Resolved::View(view) => {
                check_collation(cx, &view, &format!("{db}.{name}"))?;
                // A view's stages know no variable of the query.
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

/// Refuses to unpack measurements: that is for buckets that are read as documents.
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

/// A view's stages were written for its own collation, and run under no other.
fn check_collation(cx: &PipelineContext, view: &ViewDefinition, namespace: &str) -> Result<()> {
    if view.collation == Collation::of(&cx.expressions) {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::OptionNotSupportedOnView,
        format!("Cannot override the collation of the view {namespace}"),
    ))
}

/// All records of an ordinary collection.
pub fn records(source: Arc<dyn RecordSource>, namespace: String) -> LogicalRecords {
    LogicalRecords {
        source,
        namespace,
        filter: None,
        direction: Direction::Forward,
        is_natural: false,
        show_record_id: false,
        is_tail: false,
        forced: None,
    }
}

/// All measurements of a time-series collection.
pub fn measurements(source: Arc<dyn BucketSource>, namespace: String) -> LogicalMeasurements {
    LogicalMeasurements {
        source,
        namespace,
        filter: None,
        direction: Direction::Forward,
        is_direction_fixed: false,
        is_natural: false,
        hint: None,
    }
}
