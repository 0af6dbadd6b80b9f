//! `$changeStream`: its options, and the stages that may follow it.
//!
//! The stage is no part of a plan: the command `aggregate` parses its options and opens the stream
//! ([`crate::query::exec::change_stream`]).

use nilometer_bson::{DocRef, Document, Timestamp, ValueRef};

use super::{PipelineContext, Stage};
use crate::error::{Error, ErrorCode, Result, location};

/// The name of the stage.
pub const NAME: &str = "$changeStream";

/// Stages that may follow.
const FOLLOWING: &[&str] = &[
    "$addFields",
    "$match",
    "$project",
    "$redact",
    "$replaceRoot",
    "$replaceWith",
    "$set",
    "$unset",
];

/// Where a stream begins.
#[derive(Clone, Debug)]
pub enum StreamStart {
    /// With the changes that are committed after it is opened.
    Now,
    /// After this token, which must not be that of an `invalidate` event.
    ResumeAfter(Document),
    /// After this token.
    StartAfter(Document),
    /// With the changes at this time.
    AtOperationTime(Timestamp),
}

/// The document that events of updates have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullDocument {
    /// None.
    Default,
    /// As it is when the event is read.
    UpdateLookup,
    /// As it was after the update, if that is stored.
    WhenAvailable,
    /// As it was after the update; the stream fails if that is not stored.
    Required,
}

/// The document before the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeChange {
    /// None.
    Off,
    /// If it is stored.
    WhenAvailable,
    /// The stream fails if it is not stored.
    Required,
}

/// The options of `$changeStream`.
#[derive(Clone, Debug)]
pub struct ChangeStreamOptions {
    /// Where it begins.
    pub start: StreamStart,
    /// The document that events of updates have.
    pub full_document: FullDocument,
    /// Whether events have the document before the change.
    pub before_change: BeforeChange,
    /// Events have further fields, and there are further kinds of events.
    pub is_expanded: bool,
    /// Events that are too large are returned in fragments.
    pub splits: bool,
    /// It shows the changes of all databases.
    pub of_cluster: bool,
    /// Shows the changes of buckets, not of measurements.
    pub of_buckets: bool,
}

/// Returns the argument of `$changeStream` if that is the first stage.
pub fn of_pipeline<'a>(stages: &[DocRef<'a>]) -> Option<ValueRef<'a>> {
    let first = stages.first()?.iter().next()?;
    (first.name() == NAME).then(|| first.value())
}

/// The stage that returns large events in fragments.
const SPLIT: &str = "$changeStreamSplitLargeEvent";

/// Returns the stages that follow, without the last one if it splits events, and true if there is one. Fails if a stage may not
/// follow `$changeStream`.
pub fn following<'s, 'a>(stages: &'s [DocRef<'a>]) -> Result<(&'s [DocRef<'a>], bool)> {
    let name_of = |stage: &DocRef<'a>| stage.iter().next().map_or("", |element| element.name());
    let (stages, splits) = match stages.split_last() {
        Some((last, others)) if name_of(last) == SPLIT => {
            let argument = last.get(SPLIT);
            if !argument
                .as_document()
                .is_some_and(|options| options.is_empty())
            {
                return Err(Error::location(
                    location::SPLIT_NOT_EMPTY,
                    format!("{SPLIT} spec should be an empty object"),
                ));
            }
            (others, true)
        }
        _ => (stages, false),
    };
    for stage in stages {
        let name = name_of(stage);
        if name == SPLIT {
            return Err(Error::location(
                location::SPLIT_NOT_LAST,
                format!("{SPLIT} must be the last stage in the pipeline"),
            ));
        }
        let is_known = super::STAGES.iter().any(|entry| entry.name == name);
        if is_known && !FOLLOWING.contains(&name) {
            return Err(Error::new(
                ErrorCode::IllegalOperation,
                format!("{name} is not permitted in a $changeStream pipeline"),
            ));
        }
    }
    Ok((stages, splits))
}

/// Refuses the stage where it is no stream of a command: that is opened before a pipeline is parsed.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    _: ValueRef<'_>,
    _: &mut Vec<Stage>,
) -> Result<()> {
    super::check_of_command(cx.place, NAME)?;
    Err(only_on_sets())
}

/// Returns the error for a stream without a change log.
pub fn only_on_sets() -> Error {
    Error::location(
        location::REPLICA_SET_ONLY,
        "The $changeStream stage is only supported on replica sets",
    )
}
